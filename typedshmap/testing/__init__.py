"""Test sharded programs: make their inputs from their hints, and require the same results on every mesh."""

from ..tools.sample import inputs, strategies
from ..tools.sample.arguments import Inputs
from .cost import assert_cost
from .invariance import assert_mesh_invariant
from .marks import mesh_invariant
from .proving import Proof, prove
from .same_program import assert_same_program

__all__ = [
    "Inputs",
    "Proof",
    "assert_cost",
    "assert_mesh_invariant",
    "assert_same_program",
    "inputs",
    "mesh_invariant",
    "prove",
    "strategies",
]
