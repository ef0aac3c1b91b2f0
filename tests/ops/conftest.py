"""What reads the collectives of a compiled program, in bench, a folder of programs; what other tests share."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("call", "placement")]


@pytest.fixture(scope="session")
def reader() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
        return importlib.import_module("collectives")
