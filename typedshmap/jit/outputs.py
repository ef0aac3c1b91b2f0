"""The ``out_shardings`` of a hint, as far as they are known before the function has run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from ..errors.failures import Failure
from ..hints.array import ArrayHint
from ..hints.nodes import NONE, Either, Items, Keyed, Leaf, Node, Record, Repeated, Static, Tree, array_hints
from ..notation.layout import Layout
from ..notation.sizes import RETURN
from .place import Place


@dataclass(frozen=True, slots=True)
class Known:
    """A prefix of the result's tree with shardings in it; None where JAX chooses."""

    shardings: Any


@dataclass(frozen=True, slots=True)
class Expected:
    """What a result's hint says of its shardings at a place.

    Attributes:
      unknown: mesh axes in it that there are not.
      known: the shardings; None where the hint leaves open what they depend on.
    """

    unknown: tuple[Failure, ...]
    known: Known | None


@lru_cache(maxsize=1024)
def expected(node: Node, place: Place) -> Expected:
    """What a result's hint says of its shardings."""
    wrong = ((hint, place.region.layout(hint)) for hint in array_hints(node))
    unknown = tuple(Failure(what, RETURN, hint.text) for hint, what in wrong if not isinstance(what, Layout))
    return Expected(unknown, None if unknown else _outputs(node, place, frozenset()))


def _outputs(node: Node, place: Place, around: frozenset[int]) -> Known | None:
    match node:
        case Leaf(hint):
            return _of_array(hint, place)
        case Static():
            return Known(None)
        case Items(items):
            return _together(tuple, [_outputs(item, place, around) for item in items])
        case Repeated(_, inner) | Keyed(_, inner) | Tree(inner, _):
            return _alike([_outputs(inner, place, around)])
        case Either(options, _):
            return _alike([_outputs(option, place, around) for option in options if option is not NONE])
        case Record() if id(node) not in around:
            return _of_record(node, place, around | {id(node)})
        case _:
            return None


def _of_array(hint: ArrayHint, place: Place) -> Known | None:
    layout, dims = place.region.layout(hint), hint.spec.dims
    assert isinstance(layout, Layout)
    if hint.spec.rest is None:
        return Known(place.sharding(hint, len(dims)))
    # What comes after "..." is unsharded, or lies at a place that depends on the rank.
    is_fixed = not any(layout.parts[hint.spec.rest :])
    return Known(place.sharding(hint, len(dims) - 1)) if is_fixed else None


def _of_record(node: Record, place: Place, around: frozenset[int]) -> Known | None:
    found = [_outputs(inner, place, around) for inner in node.fields.values()]
    if node.kind == "TypedDict" and not node.optional:
        return _together(lambda values: dict(zip(node.fields, values, strict=True)), found)
    if node.kind == "NamedTuple":
        return _together(lambda values: tuple.__new__(node.cls, values), found)
    # A dataclass may have static fields, whose values are part of its tree.
    return _alike(found)


def _together(make: Any, found: Iterable[Known | None]) -> Known | None:
    known = [each for each in found if each is not None]
    return Known(make([each.shardings for each in known])) if len(known) == len(list(found)) else None


def _alike(found: list[Known | None]) -> Known | None:
    """One sharding for all that a tree holds, however much that is."""
    first = found[0] if found else None
    if first is None or not isinstance(first.shardings, (NamedSharding, PartitionSpec)):
        return None
    return first if all(each is not None and each.shardings == first.shardings for each in found) else None
