"""Trees of Flax boxes, which are recognized by their attributes: the names of dims serve as a hint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .. import _jax
from ..axis_names import read_rules
from ..errors import AnnotationSyntaxError
from ..errors.failures import Failure, HintText, Subject, WrongSharding
from ..errors.phrases import value_text
from ..hints.array_hint import ArrayHint, bare_array_hint, rank_of
from ..hints.check_array import check_array
from ..hints.fitting import CheckedLeaf
from ..hints.structure import Node
from ..notation.layout import Rules
from ..notation.match import NO_SIZES
from ..notation.spec import Anything, Axes, Dim, Rest, Spec
from .placement_context import PlacementContext

_UNSHARDED = bare_array_hint(Any)


class PlacedLeaf(NamedTuple):
    """One checked leaf of a tree; the hint of a boxed array names its dims and binds no sizes, as in Flax."""

    leaf: CheckedLeaf
    place: PlacementContext
    box: Any = None


class PlacedTree(NamedTuple):
    """A tree with checked leaves."""

    leaves: tuple[PlacedLeaf, ...]
    structure: Any
    tree: Any

    def with_values(self, values: list[Any], are_specs: bool = False) -> Any:
        """The tree with other values in its boxes; specs replace ``linen``'s, as in ``nn.get_partition_spec``."""
        for at, placed in enumerate(self.leaves):
            if placed.box is not None and not (are_specs and _jax.tree.is_linen_box(placed.box)):
                values[at] = _jax.tree.replace_children(placed.box, [values[at]])
        return _jax.tree.replace_leaves(self.tree, values, _is_leaf) if are_specs else self.structure.unflatten(values)


def check_leaves(place: PlacementContext, value: Any, node: Node | None) -> PlacedTree:
    """Check a tree against its hint; a boxed tree against the names of its boxes, or the hint for boxes without."""
    if node is not None and not holds_boxes(value):
        hinted = tuple([PlacedLeaf(leaf, place) for leaf in place.require_match(node, value)])
        return PlacedTree(hinted, jax.tree_util.tree_structure(value), value)
    parts, paths, structure = _jax.tree.flatten_with_paths(value, _is_leaf)
    subjects = [Subject("boxed", "given", path) for path in paths]
    leaves = list(map(partial(_read_leaf, place), parts, subjects))
    failures: list[tuple[PlacedLeaf, Failure]] = []
    for placed in leaves:
        part, hint, subject, _ = placed.leaf
        assert hint is not None
        wrong = check_array(part, hint, placed.place.context, NO_SIZES, subject, {})
        failures += [(placed, wrong)] if isinstance(wrong, Failure) else []
    if not failures and node is not None:
        pairs = list(zip(leaves, place.require_match(node, value), strict=True))
        compared = [(placed, _contradiction(placed, leaf, place)) for placed, leaf in pairs]
        failures = [(placed, wrong) for placed, wrong in compared if wrong is not None]
        # A box without names, such as a new nnx.Param, follows the hint.
        for at, (placed, leaf) in enumerate(pairs):
            if leaf.hint is not None and _says_nothing(placed.leaf.hint):
                leaves[at] = PlacedLeaf(leaf, place, placed.box)
    if failures:
        raise failures[0][0].place.error(wrong for _, wrong in failures)
    return PlacedTree(tuple(leaves), structure, value)


def _contradiction(placed: PlacedLeaf, leaf: CheckedLeaf, place: PlacementContext) -> Failure | None:
    """The failure of a hint whose sharding contradicts the names of the box."""
    names, hint, rank = placed.leaf.hint, leaf.hint, rank_of(leaf.value)
    if hint is None or names is None or _says_nothing(hint) or _says_nothing(names):
        return None
    want, have = place.spec(hint, rank), placed.place.spec(names, rank)
    if want == have:
        return None
    what = WrongSharding(_jax.array.spec_text(want), f"boxed as {names.text}, which means {_jax.array.spec_text(have)}")
    return Failure(what, leaf.subject, hint.text, _jax.array.type_text(leaf.value))


def _says_nothing(hint: ArrayHint | None) -> bool:
    """Whether a hint, or the names of a box, is only ``...``, which leaves the sharding open."""
    return hint is None or (all(isinstance(dim, Rest) for dim in hint.spec.dims) and not hint.spec.marks)


def holds_boxes(value: Any) -> bool:
    """Whether any part of a value is a box."""
    return not _jax.tree.is_endless(value) and any(map(_jax.tree.is_box, _jax.tree.leaves(value, _jax.tree.is_box)))


def mesh_of_boxes(value: Any) -> Mesh | None:
    """The first mesh that a box names."""
    if _jax.tree.is_endless(value):
        return None
    boxes = filter(_jax.tree.is_box, _jax.tree.leaves(value, _jax.tree.is_box))
    return next((names.mesh for names in map(_names_of, boxes) if names.mesh is not None), None)


def _is_leaf(part: Any) -> bool:
    """Whether to read a part as one box: it has names, or holds no subtree."""
    if not _jax.tree.is_box(part):
        return False
    if _names_of(part).written is not None:
        return True
    children = _jax.tree.one_level(part) or []
    return len(children) == 1 and _jax.tree.one_level(children[0][1]) is None


class _BoxMetadata(NamedTuple):
    """The names in a box, of dims or of mesh axes, and its own rules and mesh."""

    written: Any
    rules: Any
    mesh: Any
    is_logical: bool = True


# The metadata keys for the names of an nnx.Variable in versions of Flax, the newest first.
_NAMES = ("out_sharding", "sharding_names", "sharding")


def _names_of(box: Any) -> _BoxMetadata:
    if (metadata := _metadata(box)) is None:
        rules, mesh = getattr(box, "rules", None), getattr(box, "mesh", None)
        return _BoxMetadata(box.names, rules, mesh, hasattr(box, "rules"))
    # Empty metadata counts as missing.
    written = next((metadata[key] for key in _NAMES if metadata.get(key)), None)
    written = getattr(written, "sharding", written)  # of a Format
    rules, mesh = metadata.get("sharding_rules"), metadata.get("mesh")
    if isinstance(written, NamedSharding):
        return _BoxMetadata(written.spec, rules, written.mesh)
    return _BoxMetadata((written,) if isinstance(written, str) else written, rules, mesh)


def _metadata(box: Any) -> Mapping[str, Any] | None:
    """The metadata of an ``nnx`` variable; None for a box of ``flax.linen``."""
    return box.get_metadata() if _jax.tree.is_variable_class(type(box)) else getattr(box, "metadata", None)


def _read_leaf(place: PlacementContext, part: Any, subject: Subject) -> PlacedLeaf:
    if not _jax.tree.is_box(part):
        return PlacedLeaf(CheckedLeaf(part, _UNSHARDED, subject), place)
    cls, children, names = type(part).__name__, _jax.tree.one_level(part), _names_of(part)
    if children is None or len(children) != 1:
        raise AnnotationSyntaxError(f"{cls} is a box of Flax that does not hold just one value")
    hint = _parse_names(cls, names.written, names.is_logical)
    own_rules, context = read_rules(names.rules), place.context
    rules = own_rules if own_rules is not None else context.rules
    known = rules if rules is not None else Rules(fallback="error")  # without any rules, every name is an error
    if _metadata(part) is not None:
        # In nnx a box's own rules come before the current ones, and a name without a rule is a mesh axis.
        if own_rules is not None and context.rules is not None:
            known = replace(context.rules, pairs=(*own_rules.pairs, *context.rules.pairs))
        labels = [dim.label for dim in hint.spec.dims if isinstance(dim, Dim) and dim.label is not None]
        ruled = {name for name, _ in known.pairs}
        axes = None if rules is None or context.mesh is None else dict(context.mesh)
        itself = tuple((name, (name,)) for name in labels if name not in ruled and (axes is None or name in axes))
        known = replace(known, pairs=(*known.pairs, *itself))
    within = replace(place, context=context.but(rules=known))
    return PlacedLeaf(CheckedLeaf(children[0][1], hint, subject), within, part)


def _parse_names(cls: str, written: Any, is_logical: bool) -> ArrayHint:
    if written is None:
        return ArrayHint(None, "Shaped", Any, Spec((Rest(None),)), HintText(cls))
    if isinstance(written, PartitionSpec):
        layout = _jax.array.spec_entries(written)
        entries: list[Any] = [axes[0] if len(axes) == 1 else axes or None for axes in layout.dim_axes]
        for at in layout.unconstrained:
            entries[at] = PartitionSpec.UNCONSTRAINED
        written = tuple(entries)
    if not isinstance(written, (tuple, list)):
        names = f"its names are {value_text(written)}"
        raise AnnotationSyntaxError(f"{cls}: {names}, not a tuple with a name or None per dim")
    dims: list[Dim] = []
    start = 0
    for entry in written:
        span = (start, start + len(repr(entry)))
        start = span[1] + 2
        if is_logical and isinstance(entry, str):
            dims.append(Dim(Anything(), None, label=entry, span=span, size_span=span))
            continue
        if entry is PartitionSpec.UNCONSTRAINED:
            dims.append(Dim(Anything(), Axes((), span=span, is_any=True), span=span, size_span=span))
            continue
        axes: Iterable[Any] = () if entry is None else (entry,) if isinstance(entry, str) else entry
        if not isinstance(axes, (tuple, list)) or not all(isinstance(axis, str) for axis in axes):
            raise AnnotationSyntaxError(f"{cls}: {value_text(entry)} among its names is not a str or None")
        dims.append(Dim(Anything(), Axes(tuple(axes), span=span), span=span, size_span=span))
    source = ", ".join(map(repr, written))
    # As in JAX's specs, dims after the last name are unsharded.
    spec = Spec((*dims, Rest(None)), (), source)
    return ArrayHint(None, "Shaped", Any, spec, HintText(f"{cls} names=(", source, ")"))
