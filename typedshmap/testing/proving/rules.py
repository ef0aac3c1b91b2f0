"""The rule of each primitive for global arrays whose parts the shards hold."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ... import _jax
from ..._jax.primitives import PRIMITIVES, names_of
from ...inspection import CALLS
from . import communicating, contracting, control, elementwise, looking_up, moving
from .global_values import Gap, GlobalValue, NotKnown
from .walk import PrimitiveRule, Walk, operand_shape, params_key


def _opaque(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """An operation that is known only by name, on replicated operands."""
    name = eqn.primitive.name
    is_other = _jax.jaxpr.inner_jaxprs(eqn) or "callback" in name or "pallas" in name or _jax.jaxpr.has_effects(eqn)
    if is_other or walk.longer(_jax.jaxpr.named_axes(eqn)):
        raise NotKnown(f"nothing is known of {name}")
    shapes = tuple(operand_shape(eqn, at) for at in range(len(operands)))
    values = walk.solid_along(eqn, [walk.settled(value).reduced() for value in operands])
    params = (params_key(eqn, "sharding", "out_sharding"), shapes)
    dims = [((),) * len(var.aval.shape) for var in eqn.outvars]
    return [walk.made(name, (at, params), values, axes) for at, axes in enumerate(dims)]


def _answering(rule: PrimitiveRule) -> PrimitiveRule:
    """A rule whose results are unknown, with the place of the equation, where the rule raises `NotKnown`."""

    def answered(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
        if time.monotonic() > walk.deadline:
            raise Gap("reading it takes too long")
        before, walk.place = walk.place, _jax.source.equation_place(eqn) or walk.place
        try:
            return rule(walk, eqn, operands)
        except NotKnown as error:
            with suppress(NotKnown):  # for replicated operands any operation is known
                return _opaque(walk, eqn, operands)
            return [walk.unknown(error, operands)] * len(eqn.outvars)
        finally:
            walk.place = before

    return answered


_BY_FUNCTION: dict[str, PrimitiveRule] = {
    "psum": communicating.all_reduce,
    "pmax": communicating.all_reduce,
    "pmin": communicating.all_reduce,
    "all_gather": communicating.all_gather,
    "psum_scatter": communicating.reduce_scatter,
    "all_to_all": communicating.all_to_all,
    "ppermute": communicating.ppermute,
    "reshard": communicating.reshard_shards,
}
_ALONG = ("axes", "axis", "dimension", "fft_lengths")
_RULES: dict[str, PrimitiveRule] = {
    **{name: rule for name, rule in CALLS.items() if name != "call_hi_primitive"},
    "shard_map": control.region,
    "cond": control.cond,
    "scan": control.scan,
    "while": control.while_loop,
    **{name: elementwise.entry_by_entry for name, known in PRIMITIVES.items() if known.is_entry_by_entry},
    **dict.fromkeys(names_of("cast"), elementwise.same),
    "bitcast_convert_type": elementwise.entry_by_entry,
    "complex": elementwise.entry_by_entry,
    "reduce_precision": elementwise.entry_by_entry,
    "convert_element_type": elementwise.convert,
    "add": elementwise.add,
    "add_any": elementwise.add,
    "sub": elementwise.add,
    "mul": elementwise.multiply,
    "div": elementwise.divide,
    "neg": elementwise.negate,
    "max": elementwise.extreme,
    "min": elementwise.extreme,
    **dict.fromkeys(elementwise.COMPARISONS, elementwise.compare),
    "and": elementwise.conjunction,
    "select_n": elementwise.select,
    **{name: contracting.along_dims for name in names_of("reducing", "ordering") if PRIMITIVES[name].along in _ALONG},
    "rev": contracting.along_dims,
    "split": contracting.along_dims,
    "unstack": contracting.along_dims,
    "reduce_sum": contracting.reduce_dims,
    "reduce_max": contracting.reduce_dims,
    "reduce_min": contracting.reduce_dims,
    "dot_general": contracting.dot,
    "transpose": moving.transpose,
    "broadcast_in_dim": moving.broadcast,
    "squeeze": moving.squeeze,
    "reshape": moving.reshape,
    "iota": moving.iota,
    "slice": moving.slice_dims,
    "dynamic_slice": moving.dynamic_slice,
    "concatenate": moving.concatenate,
    "stack": moving.stack,
    "pad": moving.pad,
    "gather": looking_up.gather,
    "scatter-add": looking_up.scatter_add,
    **{
        name: _BY_FUNCTION[known.function]
        for name, known in PRIMITIVES.items()
        if known.function in _BY_FUNCTION and not name.endswith("_start")
    },
    "axis_index": communicating.axis_index,
    "reshard": communicating.reshard,
}

RULES: dict[str, PrimitiveRule] = defaultdict(
    lambda: _answering(_opaque), {name: _answering(rule) for name, rule in _RULES.items()}
)
"""By primitive what its results are."""
