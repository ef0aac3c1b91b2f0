"""Judge the results of a region by the layouts that hints and specs state: right, wrong or unknown."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from ... import _jax
from .origins import Loss
from .reading import ENTRY_BY_ENTRY, Reading
from .value import ANY, SAME, Share


class ResultVerdict(NamedTuple):
    """The verdict on a result.

    Attributes:
      says: whether it is right.
      kind: the mistake: ``degree``, ``sum`` or ``extreme`` that is not reduced, ``sharded``, ``lost`` (symbols remain),
        ``own``, ``folded`` (sums of different rows), ``copies`` or ``order``.
      value: its abstract value.
      losses: the losses behind its symbols.
    """

    says: Literal["right", "wrong", "unknown"]
    kind: str = ""
    value: Share = SAME
    losses: tuple[Loss, ...] = ()


RIGHT, UNDECIDED = ResultVerdict("right"), ResultVerdict("unknown")


def judge(reading: Reading, value: Share, dim: int | None, is_sum: bool = False) -> ResultVerdict:
    """The verdict on a result.

    Args:
      reading: the reading over the axis.
      value: the result.
      dim: the dim that its layout shards over the axis; None if it is the same on every shard.
      is_sum: whether its layout is unreduced over the axis.
    """
    numbers = reading.numbers
    if value.kind == "unknown":
        return UNDECIDED
    losses = reading.losses_of(value)
    if losses:
        losses = tuple([loss for loss in losses if not loss.parts or not loss.parts <= reading.stated])
        if not losses or value.may_cancel or (reading.sent and any(loss.why.is_of_slice for loss in losses)):
            return UNDECIDED
        return ResultVerdict("wrong", "lost", value, losses)
    if is_sum:
        is_right = value.kind == "sum" and value.beside is None and numbers.is_degree(value.degree, 0)
        return RIGHT if is_right else UNDECIDED
    if value.kind == "own":
        return UNDECIDED if value.is_reached else ResultVerdict("wrong", "own", value)
    if value.is_part and dim is None:
        return ResultVerdict("wrong", value.kind, value)
    if value.is_part or value.kind == "gathered":  # along a sharded dim, each shard may return its own
        return UNDECIDED
    if value.trait == "folded":
        is_wrong = dim is not None and value.degree != ANY
        return ResultVerdict("wrong", "folded", value) if is_wrong else UNDECIDED
    if value.trait == "taken" and dim is not None:  # it may have the length of a shard by chance
        numbers.is_open = True
    is_right = numbers.is_degree(value.degree, 0)
    if not is_right:
        return UNDECIDED if is_right is None else ResultVerdict("wrong", "degree", value)
    match value.kind:
        case "same" if dim is None:
            return RIGHT
        case "sharded" if dim is None:
            return ResultVerdict("wrong", "sharded", value)
        case "sharded" if value.dim == dim and value.order <= 0:  # the caller may know the order of pieces
            return ResultVerdict("wrong", "order", value) if value.order else RIGHT
        case "same":
            return RIGHT if value.degree == ANY else ResultVerdict("unknown", "copies", value)
        case _:
            return UNDECIDED


def differs_along(jaxpr: Any, at: int, dim: int | None) -> bool:
    """Whether a result may differ along a dim: it is computed, entry by entry, from an argument or an iota."""
    jaxpr = _jax.jaxpr.open_jaxpr(jaxpr)
    makers = _jax.jaxpr.makers(jaxpr)
    waiting, seen = [(jaxpr.outvars[at], dim)], set[Any]()
    for atom, along in waiting:
        if _jax.jaxpr.is_literal(atom) or (atom, along) in seen or along is None or not atom.aval.shape:
            continue
        seen.add((atom, along))
        if atom.aval.shape[along] == 1:
            continue
        eqn = makers.get(atom)
        if eqn is None:
            if atom in jaxpr.invars:
                return True
            continue
        name, shape = eqn.primitive.name, atom.aval.shape
        if name == "iota" and eqn.params["dimension"] == along:
            return True
        if name == "broadcast_in_dim":
            dims = eqn.params["broadcast_dimensions"]
            waiting += [(eqn.invars[0], dims.index(along))] if along in dims else []
        elif name == "transpose":
            waiting.append((eqn.invars[0], eqn.params["permutation"][along]))
        elif (inner := _jax.jaxpr.called_jaxpr(eqn)) is not None:
            if differs_along(inner, eqn.outvars.index(atom), along):
                return True
        elif name in ENTRY_BY_ENTRY:
            waiting += [(operand, along) for operand in eqn.invars if getattr(operand.aval, "shape", ()) == shape]
    return False
