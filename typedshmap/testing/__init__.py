"""Test sharded programs: make their inputs from their hints, and require the same results on every mesh."""

from ..sampling import inputs, strategies
from ..sampling.arguments import Inputs
from .cost import assert_cost
from .invariance import assert_mesh_invariant
from .marks import mesh_invariant

__all__ = ["Inputs", "assert_cost", "assert_mesh_invariant", "inputs", "mesh_invariant", "strategies"]
