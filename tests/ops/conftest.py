"""What reads the collectives of a compiled program, in bench, a folder of programs; what other tests share."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from expecting import mesh_of
from jax.sharding import Mesh

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("call", "placement")]


@pytest.fixture(scope="session")
def cube() -> Mesh:
    """a=2, b=2, c=2, all Auto."""
    return mesh_of(2, 2, 2, names=("a", "b", "c"))


@pytest.fixture(scope="session")
def reader() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
        return importlib.import_module("collectives")
