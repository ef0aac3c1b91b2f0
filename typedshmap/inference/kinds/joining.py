"""The join of two values, after a branch, or after an iteration of a loop."""

from __future__ import annotations

from typing import Any

from .origins import Ledger
from .value import SAME, UNKNOWN, Share, reach_of, unknown, untracked


def join(ledger: Ledger, a: Share, b: Share) -> Share:
    """The join of two values."""
    if a is b or a == b:
        return a
    if a.kind == "unknown" or b.kind == "unknown":
        return unknown((a, b)).but(origin=_origin_of_either(ledger, a, b))
    for zero, value in ((a, b), (b, a)):
        if zero.is_zero and zero.kind == "same":
            return value.without_number
    more: dict[str, Any] = {
        **untracked(a, b),
        **reach_of(a, b),
        "is_positive": a.is_positive and b.is_positive,
    }
    if "own" in (a.kind, b.kind):
        return Share("own", 0, origin=ledger.origin_of((a, b)), **more)
    degree, kinds = ledger.numbers.agree(a.degree, b.degree), {a.kind, b.kind}
    if degree is None:
        degree = 0 if kinds == {"same"} and a.number is not None and b.number is not None else UNKNOWN
    if kinds == {"same"}:
        is_plain = degree == 0 and not (more["symbols"] or more["is_reached"] or more["reduced"])
        return SAME if is_plain else Share("same", degree, **more)
    dims = {value.dim for value in (a, b) if value.kind in ("sharded", "local")}
    if kinds <= {"same", "sharded"} and len(dims) == 1:
        name = a.name if a.kind == "sharded" else b.name
        return Share("sharded", degree, dim=dims.pop(), order=a.order or b.order, name=name, **more)
    if kinds == {"sum"} and a.beside == b.beside:
        return Share("sum", degree, a.beside, part=a.part, **more)
    if kinds == {"extreme"} and a.end == b.end:
        return Share("extreme", degree, end=a.end, part=a.part, **more)
    if kinds <= {"same", "local"} and len(dims) == 1:
        return Share("local", degree, dim=dims.pop(), **more)
    if kinds == {"same", "extreme"}:  # before the first iteration of a running extreme
        running, start = (a, b) if a.kind == "extreme" else (b, a)
        bound = start.number[0] if start.number is not None else None
        if bound is not None and abs(bound) > 1e6:
            return running.but(**more)
    return unknown((a, b)).but(origin=_origin_of_either(ledger, a, b))


def _origin_of_either(ledger: Ledger, a: Share, b: Share) -> Any:
    """The key of the origin of an unknown join: where a part was made, if one of the values is that part."""
    if (origin := ledger.origin_of((a, b))) is not None:
        return origin
    for value in (a, b):
        if value.part in ledger.makers:
            ledger.origins.setdefault(value.part, ledger.makers[value.part])
            return value.part
    return None
