"""Test sharded programs: inputs made from their hints, and the same result demanded on every mesh."""

from ..sampling import inputs, strategies
from ..sampling.arguments import Inputs
from .invariance import assert_mesh_invariant
from .marks import mesh_invariant

__all__ = ["Inputs", "assert_mesh_invariant", "inputs", "mesh_invariant", "strategies"]
