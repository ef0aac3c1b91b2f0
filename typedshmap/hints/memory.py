"""What is known of a value's layout while it is traced: what a hint declared, what an operation returned.

JAX's types tell the shape of a shard and the axes it varies over, never which dim is split over
which axes in which order. That is remembered here, by the identity of the tracer, for as long as
the tracer lives.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, NamedTuple

from .. import _jax
from .scope import Stated

_NONE: frozenset[str] = frozenset()
_NOTHING: tuple[None, None] = (None, None)


class Remembered(NamedTuple):
    """How a shard lies, over the manual axes.

    Attributes:
      parts: per dim its mesh axes, major to minor.
      unreduced: mesh axes over which a sum is owed.
      varying: mesh axes over which it may differ, with no more said (``~``).
      equal: those over which all shards are equal, whatever JAX's type says.
      spoken: the axes of which all this speaks; of those of the regions around nothing is known.
      text: what was written.
      place: who wrote it, as a message names it.
      left: those over which each shard holds its own addend, since an operation left its sum.
    """

    parts: tuple[tuple[str, ...], ...]
    unreduced: frozenset[str]
    varying: frozenset[str]
    equal: frozenset[str]
    spoken: frozenset[str]
    text: str
    place: str
    left: frozenset[str] = _NONE


# Weak, and keyed by identity since a tracer compares by value: an entry goes with its tracer.
_known: dict[int, tuple[weakref.ref[Any], Remembered | Stated]] = {}


def remember(value: Any, what: Remembered | Stated) -> None:
    """Remember how a traced shard lies; of other values, which may be shared by programs, nothing.

    What was stated of it is read when it is asked for. What was known of its shards being equal stays true, whatever a
    hint says.
    """
    if not _jax.is_tracer(value):
        return
    key = id(value)
    ref, before = _known.get(key, _NOTHING)
    if ref is None or before is None or ref() is not value:
        _known[key] = (weakref.ref(value, partial(_forget, key)), what)
        return
    if isinstance(what, Stated):
        equal = before.alike if isinstance(before, Stated) else before.equal
        what = what._replace(alike=what.alike | equal) if equal else what
    _known[key] = (ref, what)


def _forget(key: int, _: object) -> None:
    _known.pop(key, None)


def recall(value: Any) -> Remembered | None:
    """What is known of how a value lies; under differentiation, of the value that is differentiated."""
    while value is not None:
        ref, what = _known.get(id(value), _NOTHING)
        if ref is not None and ref() is value:
            return _read(what, len(_jax.facts(value).shape)) if isinstance(what, Stated) else what
        value = _jax.primal(value)
    return None


def _read(stated: Stated, rank: int) -> Remembered | None:
    hint, region, subject, function, _, equal, _ = stated
    return region.known.plan((hint, subject, function, equal, rank), lambda: _meant(stated, rank))


def _meant(stated: Stated, rank: int) -> Remembered | None:
    lying = stated.region.lying(stated.hint, rank)
    if lying is None:
        return None
    place = f"{stated.function}'s hint of {stated.subject.phrase}"
    text = f"{stated.subject}: {stated.hint.text}"
    equal = stated.alike - lying.sharded - lying.unreduced
    return Remembered(lying.parts, lying.unreduced, lying.varying, equal, lying.spoken, text, place)
