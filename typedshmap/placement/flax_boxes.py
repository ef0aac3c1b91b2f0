"""Flax's boxes, which carry names for the dims of an array, read as hints, as are trees that Flax has boxed.

``nn.LogicallyPartitioned``, ``nn.Partitioned`` and ``nnx.Variable`` are recognized by their attributes, so that Flax
is never imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from .. import _jax
from ..axis_names import read_rules
from ..errors import AnnotationSyntaxError
from ..errors.failures import Failure, HintText, WrongSharding
from ..errors.phrases import value_text
from ..hints.array_hint import ArrayHint, bare_array_hint
from ..hints.check_array import check_array
from ..hints.check_tree import CheckedLeaf
from ..hints.context import MeshContext, intern_context
from ..hints.structure import Node
from ..notation.layout import Rules
from ..notation.match import NO_SIZES, Subject
from ..notation.spec import Anything, Axes, Dim, Rest, Spec
from .context import PlacementContext

_UNSHARDED = bare_array_hint(Any)


@dataclass(frozen=True, slots=True)
class FlaxLeaf:
    """One leaf of a boxed tree, with the context that its names are resolved in."""

    leaf: CheckedLeaf
    place: PlacementContext
    original: Any
    box: FlaxBox | None

    @property
    def rank(self) -> int:
        return len(getattr(self.leaf.value, "shape", ()))

    @property
    def spec(self) -> Any:
        """Its PartitionSpec, of full rank."""
        assert self.leaf.hint is not None
        return self.place.context.spec(self.leaf.hint, self.rank)

    @property
    def sharding(self) -> Any:
        """Its NamedSharding."""
        return self.place.sharding(self.leaf.hint, self.rank)


@dataclass(frozen=True, slots=True)
class FlaxTree:
    """A boxed tree, leaf by leaf, each checked."""

    leaves: tuple[FlaxLeaf, ...]
    structure: Any

    def with_boxes(self, make: Callable[[FlaxLeaf], Any]) -> Any:
        """The tree with other values in the same boxes."""
        return self.structure.unflatten(
            [make(each) if each.box is None else rewrap(each.original, make(each)) for each in self.leaves]
        )

    def with_specs(self, make: Callable[[FlaxLeaf], Any]) -> Any:
        """The tree with specs: instead of ``flax.linen``'s boxes, inside ``nnx``'s variables."""
        return self.structure.unflatten(
            [
                rewrap(each.original, make(each))
                if each.box is not None and not replaces_box(each.original)
                else make(each)
                for each in self.leaves
            ]
        )


def check_boxes(place: PlacementContext, value: Any, node: Node | None) -> FlaxTree:
    """A boxed tree, checked against its names, and against a hint for the tree without its boxes.

    Raises:
      TypedShmapError: for everything that is wrong.
    """
    found, structure = _jax.tree.flatten_with_paths(value, is_box)
    leaves = tuple(_check_box(place, part, Subject("boxed", "given", path)) for path, part in found)
    failures = [(each, wrong) for each in leaves if (wrong := _sharding_failure(each)) is not None]
    if not failures and node is not None:
        bare_tree = structure.unflatten([each.leaf.value for each in leaves])
        walk = place.require_match(node, bare_tree, "given")
        pairs = zip(leaves, walk.leaves, strict=True)
        failures = [(each, wrong) for each, leaf in pairs if (wrong := _contradiction(each, leaf, place)) is not None]
    if failures:
        raise failures[0][0].place.error(wrong for _, wrong in failures)
    return FlaxTree(leaves, structure)


def _check_box(place: PlacementContext, part: Any, subject: Subject) -> FlaxLeaf:
    if not is_box(part):
        return FlaxLeaf(CheckedLeaf(part, _UNSHARDED, subject), place, part, None)
    box = parse_box(part)
    return FlaxLeaf(
        CheckedLeaf(box.value, box.hint, subject), replace(place, context=box.context(place.context)), part, box
    )


def _sharding_failure(each: FlaxLeaf) -> Failure | None:
    leaf = each.leaf
    assert leaf.hint is not None
    found = check_array(leaf.value, leaf.hint, each.place.context, NO_SIZES, leaf.subject, {})
    return found if isinstance(found, Failure) else None


def _contradiction(each: FlaxLeaf, leaf: CheckedLeaf, place: PlacementContext) -> Failure | None:
    """A hint with another sharding than the names of the box; ``...`` alone leaves the sharding open."""
    if leaf.hint is None or each.box is None:
        return None
    if all(isinstance(dim, Rest) for dim in leaf.hint.spec.dims) and not leaf.hint.spec.marks:
        return None
    want = place.context.spec(leaf.hint, each.rank)
    if want == each.spec:
        return None
    got = f"boxed as {each.box.hint.text}, which means {_jax.array.spec_text(each.spec)}"
    what = WrongSharding(_jax.array.spec_text(want), got)
    return Failure(what, leaf.subject, leaf.hint.text, _jax.array.type_text(leaf.value))


@dataclass(frozen=True, slots=True)
class FlaxBox:
    """An array and the names of its dims.

    Attributes:
      value: the array.
      hint: the names as a hint; they bind no sizes, since Flax's do not.
      names: the dims' names that rules map to mesh axes.
      rules: the box's own rules, if it has any.
      is_axis: whether a name without a rule is itself a mesh axis, as it is in ``nnx``.
    """

    value: Any
    hint: ArrayHint
    names: tuple[str, ...]
    rules: Rules | None
    is_axis: bool

    def context(self, region: MeshContext) -> MeshContext:
        """A context with the rules for these names; without any rules, every name is an error."""
        rules = self.rules if self.rules is not None else region.rules
        known = rules if rules is not None else Rules(must_match=True)
        if self.is_axis:
            ruled = {name for name, _ in known.pairs}
            axes = None if rules is None or region.mesh is None else dict(region.mesh)
            own = tuple((n, (n,)) for n in self.names if n not in ruled and (axes is None or n in axes))
            known = replace(known, pairs=(*known.pairs, *own))
        return intern_context(replace(region, rules=known))


def is_box(value: Any) -> bool:
    """Whether a value is a box of Flax."""
    return _may_be_variable(type(value)) or _is_linen(value)


def _is_linen(value: Any) -> bool:
    return _may_be_linen(type(value)) and hasattr(value, "names")


@lru_cache(maxsize=1024)
def _may_be_linen(cls: type) -> bool:
    return hasattr(cls, "replace_boxed")


@lru_cache(maxsize=1024)
def _may_be_variable(cls: type) -> bool:
    return hasattr(cls, "get_metadata") and hasattr(cls, "raw_value")


def replaces_box(box: Any) -> bool:
    """Whether a spec replaces the box, as in ``nn.get_partition_spec``, or goes inside it, as in nnx."""
    return _is_linen(box)


def holds_boxes(value: Any) -> bool:
    """Whether any part of a value is a box."""
    found: list[Any] = []

    def note(part: Any) -> bool:
        if is_box(part):
            found.append(part)
            return True
        return False

    return bool(_jax.tree.leaves(value, note) and found)


def parse_box(box: Any) -> FlaxBox:
    """A box's array, with its names as a hint.

    Raises:
      AnnotationSyntaxError: for something else than names.
    """
    children = _jax.tree.one_level(box)
    if children is None or len(children) != 1:
        raise AnnotationSyntaxError(f"{type(box).__name__} is a box of Flax that does not hold just one value")
    (_, value) = children[0]
    if _is_linen(box):
        is_logical, rules = hasattr(box, "rules"), getattr(box, "rules", None)
        hint, names = _hint(type(box).__name__, box.names, is_logical)
        return FlaxBox(value, hint, names, read_rules(rules), False)
    metadata = box.get_metadata()
    written = next((metadata[key] for key in _NAMES if metadata.get(key) is not None), None)
    if isinstance(written, NamedSharding):
        written = written.spec
    hint, names = _hint(type(box).__name__, written, True)
    return FlaxBox(value, hint, names, read_rules(metadata.get("sharding_rules")), True)


# What Flax has called them, the newest first.
_NAMES = ("out_sharding", "sharding_names", "sharding")


def _hint(cls: str, written: Any, is_logical: bool) -> tuple[ArrayHint, tuple[str, ...]]:
    if written is None:
        return ArrayHint(None, "Shaped", Any, Spec((Rest(None),)), HintText(cls)), ()
    if isinstance(written, PartitionSpec):
        written = tuple(
            axes[0] if len(axes) == 1 else axes or None for axes in _jax.array.spec_entries(written).dim_axes
        )
    if not isinstance(written, (tuple, list)):
        raise AnnotationSyntaxError(
            f"{cls}: its names are {value_text(written)}; they are a tuple with a name or None per dim"
        )
    dims: list[Dim] = []
    start = 0
    for entry in written:
        span = (start, start + len(repr(entry)))
        start = span[1] + 2
        dims.append(_dim(cls, entry, is_logical, span))
    source = ", ".join(map(repr, written))
    names = tuple(dim.label for dim in dims if dim.label is not None)
    return ArrayHint(None, "Shaped", Any, Spec(tuple(dims), (), source), HintText(f"{cls} names=(", source, ")")), names


def _dim(cls: str, entry: Any, is_logical: bool, span: tuple[int, int]) -> Dim:
    if is_logical and isinstance(entry, str):
        return Dim(Anything(), None, label=entry, span=span, size_span=span)
    axes: Iterable[Any] = () if entry is None else (entry,) if isinstance(entry, str) else entry
    if not isinstance(axes, (tuple, list)) or not all(isinstance(axis, str) for axis in axes):
        raise AnnotationSyntaxError(f"{cls}: {value_text(entry)} among its names is not a name")
    return Dim(Anything(), Axes(tuple(axes), span=span), span=span, size_span=span)


def rewrap(box: Any, value: Any) -> Any:
    """The box with another value."""
    return _jax.tree.replace_children(box, [value])
