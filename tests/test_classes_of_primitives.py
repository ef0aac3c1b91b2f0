"""Every primitive of JAX has one class, or is opaque by name."""

import subprocess
import sys

import pytest

from typedshmap._jax.primitives import OPAQUE_NAMES, PRIMITIVES

# In a process of its own, where nobody else has made primitives. The languages of kernels are not those of programs.
_PRIMITIVES_OF_JAX = """
import gc, importlib, pkgutil, warnings
import jax
from jax.extend.core import Primitive

warnings.simplefilter("ignore")
for module in pkgutil.walk_packages(jax.__path__, "jax."):
    if {"_src", "collect_profile", "jax2tf", "mosaic", "pallas", "tools"}.isdisjoint(module.name.split(".")):
        importlib.import_module(module.name)
importlib.import_module("jax.experimental.pallas")
print(*{value.name for value in gc.get_objects() if isinstance(value, Primitive)})
"""


@pytest.fixture(scope="module")
def primitives() -> set[str]:
    done = subprocess.run([sys.executable, "-c", _PRIMITIVES_OF_JAX], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_every_primitive_of_jax_has_a_class_or_is_opaque_by_name(primitives: set[str]) -> None:
    assert len(primitives) > 300
    assert sorted(primitives - PRIMITIVES.keys() - OPAQUE_NAMES) == []


def test_nothing_that_has_a_class_is_opaque_by_name() -> None:
    assert sorted(OPAQUE_NAMES & PRIMITIVES.keys()) == []
