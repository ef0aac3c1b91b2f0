"""Test sharded programs: make inputs from hints, and require the same results on every mesh."""

from typing import TYPE_CHECKING, Any

from ..tools.sample import inputs, strategies
from ..tools.sample.arguments import Inputs
from .invariance import assert_mesh_invariant
from .marks import mesh_invariant
from .proving import Proof, prove
from .same_program import assert_same_program

if TYPE_CHECKING:
    from .budget import assert_cost

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


def __getattr__(name: str) -> Any:
    if name != "assert_cost":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .budget import assert_cost  # which uses a tool that few tests need

    return assert_cost
