"""Test sharded programs: inputs made from their hints, and the same result demanded on every mesh."""

from .call import Inputs
from .inputs import inputs
from .invariance import assert_mesh_invariant
from .marking import mesh_invariant
from .strategies import strategies

__all__ = ["Inputs", "assert_mesh_invariant", "inputs", "mesh_invariant", "strategies"]
