"""An argument taken apart: what is traced, with its hints, and what is static, with its value.

Invariant: the key of a part has all of an argument that a trace depends on, but for the types of
what is traced, which stand in the key of the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from .. import _jax
from ..hints.array import ArrayHint, rank_of
from ..hints.walk import Found
from ..notation.sizes import Subject
from .place import Place

_LEAF = jax.tree_util.tree_structure(0)


class Fixed:
    """A static value, compared by its type and ``==``, and numbers to the last bit."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = (type(value), repr(value) if isinstance(value, (float, complex)) else value)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and self._key == other._key


@dataclass(frozen=True, slots=True)
class Slot:
    """A leaf that is traced: its hint and rank; none where JAX chooses its sharding."""

    hint: ArrayHint | None = None
    rank: int = 0

    def sharding(self, place: Place) -> Any:
        """What ``jax.jit`` is told of it; None where it chooses."""
        return None if self.hint is None else place.sharding(self.hint, self.rank)


def slot_of(leaf: Found) -> Slot:
    """A leaf without its value."""
    return Slot() if leaf.hint is None else Slot(leaf.hint, rank_of(leaf.value))


@dataclass(frozen=True, slots=True)
class Key:
    """What a trace depends on of one argument."""

    parameter: str
    subject: Subject
    structure: Any
    leaves: tuple[Slot | Fixed, ...]

    @property
    def is_traced(self) -> bool:
        return any(isinstance(leaf, Slot) for leaf in self.leaves)

    @property
    def is_mixed(self) -> bool:
        """Whether some leaves are traced and others static; then only the traced ones are given to ``jax.jit``."""
        return len({type(leaf) for leaf in self.leaves}) > 1

    @property
    def is_replaced(self) -> bool:
        """Whether the function is given another value than the call: all but a static leaf.

        A static tree is made anew, as ``jax.jit`` does with traced ones: what its structure does not
        tell, such as the order of a dict's keys, is not in this key.
        """
        return self.is_traced or (self.structure is not None and self.structure != _LEAF)

    def put_together(self, traced: Iterator[Any]) -> Any:
        """The argument, from what was traced of it, if anything was, and its static leaves."""
        if self.is_traced and not self.is_mixed:
            return next(traced)
        slots = iter(next(traced) if self.is_traced else ())
        leaves = [next(slots) if isinstance(leaf, Slot) else leaf.value for leaf in self.leaves]
        return jax.tree_util.tree_unflatten(self.structure, leaves)

    def shardings(self, place: Place) -> Any:
        """What ``jax.jit`` is told of this argument; None where it chooses."""
        found = [leaf.sharding(place) for leaf in self.leaves if isinstance(leaf, Slot)]
        if self.is_mixed:
            return found
        return jax.tree_util.tree_unflatten(self.structure, found) if any(each is not None for each in found) else None


@dataclass(frozen=True, slots=True)
class Part:
    """One argument of a call: its key, and what of it is given to ``jax.jit``."""

    key: Key
    value: Any


def take_apart(parameter: str, subject: Subject, value: Any, found: Iterable[Found], is_any: bool) -> Part:
    """Take an argument apart.

    Args:
      parameter: the parameter's name.
      subject: the argument.
      value: its value.
      found: its leaves, with their hints.
      is_any: whether all its leaves are traced, whatever they are (a parameter hinted ``Any``).
    """
    found = tuple(found)
    leaves = tuple(_leaf_of(leaf, is_any) for leaf in found)
    try:
        structure = jax.tree_util.tree_structure(value)
    except Exception:  # what JAX cannot take apart is static as a whole
        return Part(Key(parameter, subject, None, (Fixed(value),)), value)
    key = Key(parameter, subject, structure, leaves)
    if key.is_mixed:
        value = [leaf.value for leaf, slot in zip(found, leaves, strict=True) if isinstance(slot, Slot)]
    return Part(key, value)


def _leaf_of(leaf: Found, is_any: bool) -> Slot | Fixed:
    is_traced = leaf.hint is not None or is_any or isinstance(leaf.value, (*_jax.ARRAYS, *_jax.SHAPES))
    return slot_of(leaf) if is_traced else Fixed(leaf.value)


def put_in_place(part: Part, place: Place) -> Part:
    """An argument whose arrays' types tell how they lie on Explicit axes, also where they are not placed yet.

    ``jax.jit`` places such an array as ``in_shardings`` says, but types it as whole where it is traced.
    """
    slots = [leaf for leaf in part.key.leaves if isinstance(leaf, Slot)]
    if not slots:
        return part
    leaves, structure = jax.tree_util.tree_flatten(part.value)
    put = [_put(leaf, slot.sharding(place)) for leaf, slot in zip(leaves, slots, strict=True)]
    is_in_place = all(new is leaf for new, leaf in zip(put, leaves, strict=True))
    return part if is_in_place else Part(part.key, structure.unflatten(put))


def _put(value: Any, sharding: Any) -> Any:
    is_known = _jax.explicit_spec(value) is not None or _jax.placement(value) is not None
    return value if is_known or sharding is None else _jax.put(value, sharding)
