"""Which equations communicate, over which mesh axes, and what goes in and out of one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from .. import _jax
from ..ops.resharding.plans import Unreachable
from ..ops.resharding.search import plan
from .model import Axes, ring_bytes

OPERATIONS: Mapping[str, str] = {
    **dict.fromkeys(("psum", "psum2", "psum_invariant", "unreduced_psum"), "all-reduce"),
    **dict.fromkeys(("pmax", "pmin", "unreduced_pmax", "unreduced_pmin"), "all-reduce"),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), "all-gather"),
    **dict.fromkeys(("reduce_scatter", "unreduced_reduce_scatter"), "reduce-scatter"),
    "all_to_all": "all-to-all",
    "ragged_all_to_all": "ragged-all-to-all",
    "ppermute": "collective-permute",
    "psend": "collective-permute",
    "pbroadcast": "collective-broadcast",
    "pbroadcast_dynamic": "collective-broadcast",
}
"""JAX's primitives, and what XLA and the field call them; what only changes a type is not among them."""

_STEPS = {
    "psum": "all-reduce",
    "psum_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one collective does to one operand, wherever it stands."""

    operation: str
    axes: Axes
    group: int
    operand: str
    result: str
    bytes_in: int
    bytes_out: int

    @property
    def wire(self) -> int:
        return ring_bytes(self.operation, self.group, self.bytes_in, self.bytes_out)


def exchanges(eqn: Any, sizes: Mapping[str, int]) -> list[Exchange] | None:
    """What an equation communicates, per operand; None for one that is no collective.

    Args:
      eqn: the equation.
      sizes: the mesh axes that are manual here; over those of size 1 nothing is sent, and XLA drops it.
    """
    name = eqn.primitive.name
    if name == "reshard_shards":
        return list(_resharding(eqn, sizes))
    operation = OPERATIONS.get(name.removesuffix("_start"))
    return None if operation is None else list(_of(operation, eqn, sizes))


def _of(operation: str, eqn: Any, sizes: Mapping[str, int]) -> Iterator[Exchange]:
    axes = tuple(axis for axis in _named(eqn.params) if sizes.get(axis, 1) > 1)
    group = _group(eqn.params, prod(sizes[axis] for axis in axes))
    if group == 1 or _stays(eqn.params):
        return
    # Ragged exchanges have offsets and the memory of the result for operands, too.
    pairs = [(eqn.invars[0], eqn.outvars[0])] if "ragged" in operation else zip(eqn.invars, eqn.outvars, strict=False)
    for operand, result in pairs:
        before, after = operand.aval, result.aval
        sent, got = _jax.size_in_bytes(before.shape, before.dtype), _jax.size_in_bytes(after.shape, after.dtype)
        texts = short_type(before.dtype, before.shape), short_type(after.dtype, after.shape)
        yield Exchange(operation, axes, group, *texts, sent, got)


def _named(params: Mapping[str, Any]) -> Axes:
    names = params.get("axis_name", params.get("axes", ()))
    names = names if isinstance(names, (tuple, list)) else (names,)
    return tuple(name for name in names if isinstance(name, str))


def _group(params: Mapping[str, Any], whole: int) -> int:
    groups = params.get("axis_index_groups")
    return len(groups[0]) if groups else whole


def _stays(params: Mapping[str, Any]) -> bool:
    """Whether a permutation sends nothing to another device."""
    return "perm" in params and all(source == target for source, target in params["perm"])


def _resharding(eqn: Any, sizes: Mapping[str, int]) -> Iterator[Exchange]:
    """The steps of this library's own ``reshard``, which JAX's program holds as one equation."""
    params, aval = eqn.params, eqn.invars[0].aval
    found = plan(params["source"], params["target"], params["shape"], dict(params["sizes"]))
    assert not isinstance(found, Unreachable), found.reason
    lead = aval.shape[: params["lead"]]
    for step in found.steps:
        axes = tuple(axis for axis in step.axes if sizes.get(axis, 1) > 1)
        if step.kind in _STEPS and axes:
            before, after = (*lead, *step.shard_before), (*lead, *step.shard_after)
            group = prod(sizes[axis] for axis in axes)
            texts = short_type(aval.dtype, before), short_type(aval.dtype, after)
            sent, got = (_jax.size_in_bytes(shape, aval.dtype) for shape in (before, after))
            yield Exchange(_STEPS[step.kind], axes, group, *texts, sent, got)


def short_type(dtype: Any, shape: tuple[int, ...]) -> str:
    """``f32[8,16]``"""
    return f"{_jax.short_dtype(dtype)}[{','.join(map(str, shape))}]"
