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
from ..notation.sizes import Subject
from .array import ArrayHint
from .scope import Region

_NONE: frozenset[str] = frozenset()


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


class Declared(NamedTuple):
    """A hint that a value was found to fit, and where; read when it is asked for.

    What was known of its shards being equal stays true, whatever a hint says.
    """

    hint: ArrayHint
    region: Region
    subject: Subject
    function: str
    equal: frozenset[str] = _NONE


# Weak, and keyed by identity since a tracer compares by value: an entry goes with its tracer.
_known: dict[int, tuple[weakref.ref[Any], Remembered | Declared]] = {}


def remember(value: Any, what: Remembered | Declared) -> None:
    """Remember how a traced shard lies; of other values, which may be shared by programs, nothing."""
    if _jax.is_tracer(value):
        key = id(value)
        ref, before = _known.get(key, (None, None))
        if before is not None and before.equal and isinstance(what, Declared) and ref is not None and ref() is value:
            what = what._replace(equal=what.equal | before.equal)
        _known[key] = (weakref.ref(value, partial(_forget, key)), what)


def _forget(key: int, _: object) -> None:
    _known.pop(key, None)


def recall(value: Any) -> Remembered | None:
    """What is known of how a value lies; under differentiation, of the value that is differentiated."""
    while value is not None:
        ref, what = _known.get(id(value), (None, None))
        if ref is not None and ref() is value:
            return _read(what, len(_jax.facts(value).shape)) if isinstance(what, Declared) else what
        value = _jax.primal(value)
    return None


def _read(declared: Declared, rank: int) -> Remembered | None:
    hint, region, subject, function, equal = declared
    return region.known.plan((hint, subject, function, equal, rank), lambda: _meant(declared, rank))


def _meant(declared: Declared, rank: int) -> Remembered | None:
    lying = declared.region.lying(declared.hint, rank)
    if lying is None:
        return None
    place = f"{declared.function}'s hint of {declared.subject.phrase}"
    text = f"{declared.subject}: {declared.hint.text}"
    equal = declared.equal - lying.sharded - lying.unreduced
    return Remembered(lying.parts, lying.unreduced, lying.varying, equal, lying.spoken, text, place)
