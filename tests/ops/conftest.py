"""What reads the collectives of a compiled program; bench is a folder of programs and no package."""

import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def reader() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
        return importlib.import_module("collectives")
