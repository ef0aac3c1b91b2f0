"""Judge the results of a region: right, wrong or not known, and since where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ... import _jax
from .numbers import Numbers
from .reading import Loss, Reading, Unaligned
from .rules import RULES, entering
from .value import ANY, SAME, UNKNOWN, Value


class Verdict(NamedTuple):
    """What a result is.

    Attributes:
      says: whether it is right.
      kind: of a wrong one: ``degree``, ``sum``, ``extreme``, ``lost``, ``own``, ``copies``, ``order``.
      value: what is known of it.
      losses: how each shard's own came into it.
    """

    says: Literal["right", "wrong", "unknown"]
    kind: str = ""
    value: Value = SAME
    losses: tuple[Loss, ...] = ()


RIGHT, NOT_KNOWN = Verdict("right"), Verdict("unknown")


@dataclass
class Read:
    """A region as it was read over one axis.

    Attributes:
      reading: how.
      values: of its results.
      verdicts: on them.
      jaxpr: the region's body.
    """

    reading: Reading
    values: list[Value]
    verdicts: list[Verdict]
    jaxpr: Any
    is_open: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_open = self.reading.numbers.is_open


def judge(reading: Reading, value: Value, dim: int | None, is_sum: bool = False) -> Verdict:
    """A result, by the dim that its spec shards over the axis; None where it is the same on every shard."""
    numbers = reading.numbers
    if value.kind == "unknown":
        return NOT_KNOWN
    losses = tuple(reading.losses[own] for own, _ in value.own)
    if losses:
        if value.may_cancel:
            return NOT_KNOWN
        return Verdict("wrong", "lost", value, losses)
    if is_sum:
        return RIGHT if value.kind == "sum" and numbers.is_degree(value.degree, 0) else NOT_KNOWN
    match value.kind:
        case "own":
            return NOT_KNOWN if value.is_heard else Verdict("wrong", "own", value)
        case "sum" | "extreme":
            return Verdict("wrong", value.kind, value)
        case "parts":
            return NOT_KNOWN
        case _ if value.place == "folded":
            return Verdict("wrong", "folded", value) if dim is not None else NOT_KNOWN
    is_whole = numbers.is_degree(value.degree, 0)
    if is_whole is None:
        return NOT_KNOWN
    if not is_whole:
        return Verdict("wrong", "degree", value)
    if dim is None:
        return RIGHT if value.kind == "same" else NOT_KNOWN if value.kind == "local" else Verdict("wrong", value.kind, value)
    if value.kind == "sharded" and value.dim == dim:
        return Verdict("wrong", "order", value) if value.order else RIGHT
    if value.kind == "same":
        return RIGHT if value.degree == ANY else Verdict("unknown", "copies", value)
    return NOT_KNOWN


def read(
    axis: str,
    sizes: Mapping[str, int],
    traces: Sequence[Any],
    lengths: Sequence[int],
    given: Sequence[Any],
    results: Sequence[Any],
    claims: Mapping[Any, Any] | None = None,
    edits: Mapping[Any, Any] | None = None,
) -> Read:
    """Read a region.

    Args:
      axis: the mesh axis.
      sizes: those of all manual axes.
      traces: the region's body, and perhaps that of a second trace.
      lengths: the sizes of the axis in each of them.
      given: layouts of the operands.
      results: layouts of the results.

    Raises:
      Unaligned: where the two traces do not have the same equations.
    """
    jaxpr, other = traces[0], traces[-1]
    body = _jax.jaxpr.open_jaxpr(jaxpr)
    values = [entering(layout, axis) for layout in given]
    rows = [
        var.aval.shape[value.dim]
        for var, value in zip(body.invars, values, strict=True)
        if isinstance(value.dim, int)
    ]
    numbers = Numbers(axis, lengths, sizes, rows)
    reading = Reading(axis, numbers, RULES, claims, edits)
    found = reading.read(jaxpr, other, values)
    verdicts = []
    for value, layout in zip(found, results, strict=True):
        dim = next((at for at, axes in enumerate(layout.dim_axes) if axis in axes), None)
        verdicts.append(judge(reading, value, dim, axis in layout.unreduced))
    return Read(reading, found, verdicts, body)


def overall(verdicts: Sequence[Verdict]) -> str:
    """That of all results."""
    says = {verdict.says for verdict in verdicts}
    return "wrong" if "wrong" in says else "unknown" if "unknown" in says else "right"


__all__ = ["NOT_KNOWN", "RIGHT", "UNKNOWN", "Read", "Unaligned", "Verdict", "judge", "overall", "read"]
