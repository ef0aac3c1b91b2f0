"""Judge the results of a region: right, wrong or not known, and since where."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .origins import Loss
from .reading import Reading
from .value import ANY, SAME, Share


class ResultVerdict(NamedTuple):
    """What a result is.

    Attributes:
      says: whether it is right.
      kind: of a wrong one: ``degree``, ``sum``, ``extreme``, ``lost``, ``own``, ``copies``, ``order``.
      value: what is known of it.
      losses: how each shard's own came into it.
    """

    says: Literal["right", "wrong", "unknown"]
    kind: str = ""
    value: Share = SAME
    losses: tuple[Loss, ...] = ()


RIGHT, NOT_KNOWN = ResultVerdict("right"), ResultVerdict("unknown")


def judge(reading: Reading, value: Share, dim: int | None, is_sum: bool = False) -> ResultVerdict:
    """A result, by the dim that its spec shards over the axis; None where it is the same on every shard."""
    numbers = reading.numbers
    if value.kind == "unknown":
        return NOT_KNOWN
    losses = reading.losses_of(value)
    if losses:
        losses = tuple([loss for loss in losses if not loss.parts or not loss.parts <= reading.stated])
        if not losses or value.may_cancel or (reading.sent and any(loss.is_of_slice for loss in losses)):
            return NOT_KNOWN
        return ResultVerdict("wrong", "lost", value, losses)
    if is_sum:
        is_right = value.kind == "sum" and value.beside is None and numbers.is_degree(value.degree, 0)
        return RIGHT if is_right else NOT_KNOWN
    match value.kind:
        case "own":
            return NOT_KNOWN if value.is_heard else ResultVerdict("wrong", "own", value)
        case (
            "sum" | "extreme"
        ):  # one after the other along a dim they are each shard's own, which is known to the caller
            return NOT_KNOWN if dim is not None else ResultVerdict("wrong", value.kind, value)
        case "parts":
            return NOT_KNOWN
        case _ if value.place == "folded":
            is_wrong = dim is not None and value.degree != ANY
            return ResultVerdict("wrong", "folded", value) if is_wrong else NOT_KNOWN
        case _:
            pass
    if value.place == "taken" and dim is not None:  # as long as a shard, or so by chance
        numbers.is_open = True
    is_right = numbers.is_degree(value.degree, 0)
    if is_right is None:
        return NOT_KNOWN
    if not is_right:
        return ResultVerdict("wrong", "degree", value)
    if dim is None:
        return (
            RIGHT
            if value.kind == "same"
            else NOT_KNOWN
            if value.kind == "local"
            else ResultVerdict("wrong", value.kind, value)
        )
    if value.kind == "sharded" and value.dim == dim:
        if value.order > 0:  # in pieces, as of microbatches, whose order the caller may know
            return NOT_KNOWN
        return ResultVerdict("wrong", "order", value) if value.order else RIGHT
    if value.kind == "same":
        return RIGHT if value.degree == ANY else ResultVerdict("unknown", "copies", value)
    return NOT_KNOWN
