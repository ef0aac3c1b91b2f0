"""Trees that Flax has boxed: what their names, and a hint beside them, say of how their arrays lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .. import _jax
from ..errors.failures import Failure, WrongSharding
from ..hints.array import ArrayHint, bare
from ..hints.boxes import Box, is_box, put_back, read_box, stands_for_its_value
from ..hints.leaf import check_leaf
from ..hints.nodes import Node
from ..hints.walk import Found
from ..notation.nodes import Rest
from ..notation.sizes import NO_SIZES, Subject
from .places import Place

_WHOLE = bare(Any)


@dataclass(frozen=True, slots=True)
class Boxed:
    """One leaf of a boxed tree, and where its names have their meaning."""

    leaf: Found
    place: Place
    whole: Any
    box: Box | None

    @property
    def rank(self) -> int:
        return len(getattr(self.leaf.value, "shape", ()))

    @property
    def spec(self) -> Any:
        """Its PartitionSpec, of full rank."""
        assert self.leaf.hint is not None
        return self.place.region.spec(self.leaf.hint, self.rank)

    @property
    def sharding(self) -> Any:
        """Its NamedSharding."""
        return self.place.sharding(self.leaf.hint, self.rank)


@dataclass(frozen=True, slots=True)
class BoxedTree:
    """A boxed tree, leaf by leaf, each checked."""

    leaves: tuple[Boxed, ...]
    structure: Any

    def with_boxes(self, make: Callable[[Boxed], Any]) -> Any:
        """The tree with other values in the same boxes."""
        return self.structure.unflatten(
            [make(each) if each.box is None else put_back(each.whole, make(each)) for each in self.leaves]
        )

    def with_specs(self, make: Callable[[Boxed], Any]) -> Any:
        """The tree with what stands for specs: in the place of ``flax.linen``'s boxes, in ``nnx``'s variables."""
        return self.structure.unflatten(
            [
                put_back(each.whole, make(each))
                if each.box is not None and not stands_for_its_value(each.whole)
                else make(each)
                for each in self.leaves
            ]
        )


def read_boxed(place: Place, value: Any, node: Node | None) -> BoxedTree:
    """A boxed tree, checked against its names, and against a hint for the tree without its boxes.

    Raises:
      TypedShmapError: for what is wrong, all of it.
    """
    found, structure = _jax.paths(value, is_box)
    leaves = tuple(_read(place, part, Subject("boxed", "given", path)) for path, part in found)
    failures = [(each, wrong) for each in leaves if (wrong := _wrong(each)) is not None]
    if not failures and node is not None:
        bare_tree = structure.unflatten([each.leaf.value for each in leaves])
        walk = place.checked(node, bare_tree, "given")
        pairs = zip(leaves, walk.leaves, strict=True)
        failures = [(each, wrong) for each, leaf in pairs if (wrong := _contradiction(each, leaf, place)) is not None]
    if failures:
        raise failures[0][0].place.error(wrong for _, wrong in failures)
    return BoxedTree(leaves, structure)


def _read(place: Place, part: Any, subject: Subject) -> Boxed:
    if not is_box(part):
        return Boxed(Found(part, _WHOLE, subject), place, part, None)
    box = read_box(part)
    return Boxed(Found(box.value, box.hint, subject), replace(place, region=box.region(place.region)), part, box)


def _wrong(each: Boxed) -> Failure | None:
    leaf = each.leaf
    assert leaf.hint is not None
    found = check_leaf(leaf.value, leaf.hint, each.place.region, NO_SIZES, leaf.subject, {})
    return found if isinstance(found, Failure) else None


def _contradiction(each: Boxed, leaf: Found, place: Place) -> Failure | None:
    """A hint that says another sharding than the names of the box; ``...`` alone says nothing of it."""
    if leaf.hint is None or each.box is None or _says_nothing(leaf.hint):
        return None
    want = place.region.spec(leaf.hint, each.rank)
    if want == each.spec:
        return None
    got = f"boxed as {each.box.hint.text}, which means {_jax.spec_text(each.spec)}"
    what = WrongSharding(_jax.spec_text(want), got)
    return Failure(what, leaf.subject, leaf.hint.text, _jax.type_text(leaf.value))


def _says_nothing(hint: ArrayHint) -> bool:
    return all(isinstance(dim, Rest) for dim in hint.spec.dims) and not hint.spec.marks
