"""The rule of each primitive in the domain of kinds, and that of claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ... import _jax
from ..interpreter import CLAIM
from . import collective_kinds, flow, functions, lookups, loss_kinds, moves, products, reductions, sums
from .reading import KindRule, ReadEquation, Reading
from .value import Share


def _loses_sum(reading: Reading, value: Share) -> bool:
    """Whether the symbols of a value come from nonlinear operations on partial sums that no hint marks."""
    losses = reading.losses_of(value)
    are_lost = all(
        loss.why == loss_kinds.NONLINEAR and loss.parts and not reading.is_marked(loss.parts) for loss in losses
    )
    return bool(losses) and are_lost


def claimed(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A claim: a value of unknown kind gets the kind of the hint."""
    value, claim, axis = values[0], step.params["claim"], step.reading.axis
    if claim is None:
        return values
    layout = claim.layout
    if axis not in claim.covered_axes:
        return values
    step.reading.claimed.append((step.eqn, claim, value))
    claimed_dims: tuple[int, ...] = step.params["claimed_dims"]
    if claim.assertion.is_assumed and axis not in layout.varying | layout.unreduced | layout.sharded:
        return [value if value.kind == "same" and not value.symbols else Share("same", 0, is_reached=True)]
    if axis in layout.varying:
        if value.kind in ("sum", "extreme"):
            step.reading.stated.add(value.part)
            return [value]
        return [value if value.trait == "halo" else Share("own", 0, is_reached=True)]
    if axis in layout.unreduced:
        if value.kind == "sum":
            step.reading.marked.add(value.part)
            return [value]
        if claim.assertion.subject.is_pattern and _loses_sum(step.reading, value):
            return [value]
        return [Share("sum", 0, is_reached=value.is_reached) if value.kind in ("own", "unknown") else value]
    dim = next((at for at, axes in zip(claimed_dims, layout.dim_axes, strict=True) if axis in axes), None)
    if dim is not None:
        name = (claim.dim_name(axis) or value.name[0], value.name[1] or claim.assertion.subject.phrase)
        if value.kind == "sharded" and value.dim == dim:
            return [value if value.name == name else value.but(name=name)._replace(is_plain=value.is_plain)]
        if value.kind in ("own", "unknown"):
            return [Share("sharded", 0, dim=dim, is_reached=value.is_reached, name=name)]
        return [value]
    return [Share("same", 0, is_reached=True) if value.kind == "unknown" else value]


_RULES_OF_KINDS: Mapping[str, KindRule] = {
    "cast": functions.cast,
    "sum": sums.add,
    "product": products.multiply,
    "quotient": products.multiply,
    **dict.fromkeys(("homogeneous", "elementwise", "test", "extreme"), functions.function),
    "choice": functions.select,
    "joining": moves.put_side_by_side,
    "reducing": reductions.reduced,
    "ordering": reductions.ordered,
    "matrix": reductions.of_matrices,
    "placing": lookups.scatter,
    "random": lookups.draw,
    "collective": collective_kinds.collective,
    "index": collective_kinds.index,
    "call": flow.call,
}
RULES: Mapping[str, KindRule] = {
    **{
        name: rule
        for name, primitive in _jax.primitives.PRIMITIVES.items()
        if (rule := _RULES_OF_KINDS.get(primitive.kind)) is not None
    },
    "neg": sums.negate,
    "real": sums.negate,
    "imag": sums.negate,
    "conj": sums.negate,
    "custom_linear_solve": flow.linear_solve,
    "cond": flow.branch,
    "while": flow.while_loop,
    "scan": flow.scan,
    "dot_general": reductions.contract,
    "ragged_dot": reductions.contract,
    "ragged_dot_general": reductions.contract,
    "conv": reductions.convolve,
    "conv_general_dilated": reductions.convolve,
    "broadcast_in_dim": moves.broadcast,
    "broadcast_to": moves.broadcast,
    "expand_dims": moves.broadcast,
    "split": moves.split,
    "unstack": moves.split,
    "slice": moves.cut,
    "reshape": moves.reshape,
    "transpose": moves.transpose,
    "squeeze": moves.squeeze,
    "rev": moves.reverse,
    "roll": moves.roll,
    "tile": moves.tile,
    "iota": moves.iota,
    "gather": lookups.gather,
    "dynamic_slice": lookups.dynamic_slice,
    "dynamic_update_slice": lookups.update_slice,
    "reshard_shards": collective_kinds.resharded,
    CLAIM: claimed,
}
