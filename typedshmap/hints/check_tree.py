"""Check a value against the tree of its hint: every leaf, each named by its path.

Values without arrays are checked by beartype, which is imported once a hint needs it. A walk finds the hint of each
leaf; from then on the hints are looked up by the value's treedef. Unions, static values and ``PyTree``, which depend on
more than the treedef, are walked each time.

Invariant: the leaves of a value are in the order of ``jax.tree_util``, each with its hint, so that the value can be
flattened at a boundary and rebuilt behind it."""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from .. import _jax
from ..errors import AnnotationSyntaxError
from ..errors.failures import (
    Failure,
    HintText,
    NonPytreeField,
    NotAPytree,
    NoUnionMember,
    PlainMessage,
    StaticArray,
    StructureMismatch,
    WrongKeys,
    WrongLength,
    WrongType,
)
from ..errors.phrases import value_text
from ..notation.layout import Layout
from ..notation.match import NO_SIZES, Sizes, Subject
from .array_hint import ArrayHint
from .check_array import check_array, describe
from .context import MeshContext
from .structure import (
    NONE,
    ArrayLeaf,
    Container,
    Fields,
    FixedTuple,
    MappingOf,
    Node,
    PyTreeOf,
    SequenceOf,
    Static,
    UnionOf,
    Untyped,
    all_nodes,
    hints_by_path,
    node_name,
)


class CheckedLeaf(NamedTuple):
    """One leaf of a value: the array and its hint, or a static leaf without one.

    Attributes:
      must_be_invarying: mesh axes over which JAX types it as varying, and its hint as invarying.
    """

    value: Any
    hint: ArrayHint | None
    subject: Subject
    must_be_invarying: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Deferred:
    """A part of a value that must be checked again, and the index of its first leaf."""

    node: Node
    value: Any
    subject: Subject
    leaf: str | None
    at: int


@dataclass
class TreeCheck:
    """The state of a check.

    Attributes:
      region: the mesh context.
      arguments: the call's arguments, for ``{self.heads}``.
      sizes: the sizes bound so far.
      leaves: the leaves checked so far, in order.
      failures: what is wrong.
      deferred: parts with an expression over names that are not bound yet.
      is_second_visit: whether nothing more will be bound, so that nothing can be deferred.
    """

    region: MeshContext
    arguments: Mapping[str, Any]
    sizes: Sizes = NO_SIZES
    leaves: list[CheckedLeaf] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    is_second_visit: bool = False

    def visit(self, node: Node, value: Any, subject: Subject, leaf: str | None = None) -> None:
        """Check a value against a node."""
        match node:
            case ArrayLeaf(hint):
                self._visit_array(hint, value, subject, leaf)
            case Static(hint):
                self._visit_static(hint, value, subject)
            case Untyped():
                self._visit_untyped(value, subject)
            case UnionOf():
                self._visit_union(node, value, subject, leaf)
            case PyTreeOf():
                self._visit_tree(node, value, subject)
            case FixedTuple() | SequenceOf() | MappingOf() | Fields():
                self._visit_container(node, value, subject, leaf)

    def check_deferred(self) -> None:
        """Check the deferred parts, now that every argument has bound its names."""
        waiting, self.deferred = self.deferred, []
        for late in waiting:
            branch = TreeCheck(self.region, self.arguments, self.sizes, is_second_visit=True)
            branch.visit(late.node, late.value, late.subject, late.leaf)
            self.failures += branch.failures
            self.sizes = branch.sizes
            self.leaves[late.at : late.at + len(branch.leaves)] = branch.leaves

    def _visit_array(self, hint: ArrayHint, value: Any, subject: Subject, leaf: str | None = None) -> None:
        found = check_array(value, hint, self.region, self.sizes, subject, self.arguments, leaf)
        must_be_invarying = frozenset[str]()
        if isinstance(found, Failure):
            self.failures.append(found)
        elif (unbound := found[0].unbound) and self.is_second_visit and self.region.role != "placement":
            # What is placed by itself may have a dim like seq+1 whose seq belongs to another array.
            self.failures.append(Failure(unbound, subject, hint.text, _jax.array.type_text(value)))
        else:
            self.sizes, must_be_invarying = found[0].sizes, found[1]
            if unbound:
                self.deferred.append(Deferred(ArrayLeaf(hint), value, subject, leaf, len(self.leaves)))
        self.leaves.append(CheckedLeaf(value, hint, subject, must_be_invarying))

    def _visit_static(self, hint: Any, value: Any, subject: Subject) -> None:
        if holds_array(value):
            name = node_name(Static(hint))
            self.failures.append(Failure(StaticArray(name), subject, HintText(name), _text(value)))
        elif not is_instance(value, hint):
            name = node_name(Static(hint))
            self.failures.append(Failure(WrongType(name, describe_static(value, hint)), subject, HintText(name)))
        self._close_over(value, subject)

    def _visit_untyped(self, value: Any, subject: Subject) -> None:
        try:
            found, _ = _jax.tree.flatten_with_paths(value, None)
        except _jax.tree.BadTree as bad:
            self._note_bad_tree(bad, value, subject)
            return
        self.leaves.extend(CheckedLeaf(part, None, subject.at(path)) for path, part in found)

    def _close_over(self, value: Any, subject: Subject) -> None:
        self.leaves.extend(CheckedLeaf(leaf, None, subject) for leaf in _jax.tree.leaves(value))

    def _visit_union(self, node: UnionOf, value: Any, subject: Subject, leaf: str | None) -> None:
        """Take the first member that fits; the others bind nothing.

        While a member is deferred, no member is taken, since one that fits now may be the wrong one.
        """
        branches = [
            TreeCheck(self.region, self.arguments, self.sizes, is_second_visit=self.is_second_visit)
            for _ in node.options
        ]
        for option, branch in zip(node.options, branches, strict=True):
            branch.visit(option, value, subject, leaf)
        if any(branch.deferred for branch in branches):
            self.deferred.append(Deferred(node, value, subject, leaf, len(self.leaves)))
            self._close_over(value, subject)
            return
        fitting = [branch for branch in branches if not branch.failures]
        # A member that says how the value varies comes before one for which it would have to be invarying.
        for branch in sorted(fitting, key=lambda branch: any(leaf.must_be_invarying for leaf in branch.leaves)):
            self.sizes = branch.sizes
            self.leaves += branch.leaves
            return
        self.failures += _union_failures(node, branches, value, subject)
        self._close_over(value, subject)

    def _visit_tree(self, node: PyTreeOf, value: Any, subject: Subject) -> None:
        is_leaf = None if isinstance(node.leaf, ArrayLeaf) else lambda part: may_match(node.leaf, part)
        try:
            found, structure = _jax.tree.flatten_with_paths(value, is_leaf)
        except _jax.tree.BadTree as bad:
            self._note_bad_tree(bad, value, subject)
            return
        if node.structure is not None:
            known = self.sizes.structures.get(node.structure)
            if known is None:
                self.sizes = self.sizes.bind_structure(node.structure, structure, subject)
            elif known[0] != structure:
                what = StructureMismatch(node.structure, str(known[0]), str(structure), known[1])
                self.failures.append(Failure(what, subject))
        for text, part in found:
            self.visit(node.leaf, part, subject.at(text), text if node.structure is not None else None)

    def _visit_container(self, node: Container, value: Any, subject: Subject, leaf: str | None) -> None:
        flats = treedef_cache(node)
        taken = flats.flatten(value) if leaf is None else None
        if taken is None:
            self._visit_children(node, value, subject, leaf)
        elif (flat := flats.known.get(taken.structure)) is not None:
            for part, hint, at in zip(taken.leaves, flat.hints, flat.subjects(subject), strict=True):
                self._visit_array(hint, part, at)
        else:
            self._visit_new_structure(flats, taken, node, value, subject)

    def _visit_new_structure(
        self, flats: TreedefCache, taken: Flattened, node: Container, value: Any, subject: Subject
    ) -> None:
        """Check a value of a new structure, and remember the hints of its leaves if it fits."""
        first, failed = len(self.leaves), len(self.failures)
        self._visit_children(node, value, subject, None)
        found = self.leaves[first:]
        # A value that JAX flattens may be one array to its hint.
        is_same = len(found) == len(taken.leaves) and all(map(is_, (leaf.value for leaf in found), taken.leaves))
        if is_same and len(self.failures) == failed:
            start = len(subject.path)
            flats.learn(taken.structure, [(leaf.hint, leaf.subject.path[start:]) for leaf in found if leaf.hint])

    def _visit_children(self, node: Container, value: Any, subject: Subject, leaf: str | None) -> None:
        wrong = wrong_container(node, value)
        if wrong is not None:
            self.failures.append(Failure(wrong, subject))
            self._close_over(value, subject)
            return
        try:
            children = _jax.tree.one_level(value)
        except _jax.tree.BadTree as bad:
            self._note_bad_tree(bad, value, subject)
            return
        if children is None:
            self.failures.append(Failure(NotAPytree(type(value).__name__), subject))
            self._close_over(value, subject)
            return
        if isinstance(node, Fields):
            children = self._field_children(node, value, children, subject)
        for (key, part), inner in zip(children, child_hints(node, children), strict=True):
            # A module whose leaves are filtered, and its gradient, has None in place of what is not an array.
            if part is not None or not isinstance(inner, Static):
                self.visit(inner, part, subject.at(str(key)), leaf)

    def _note_bad_tree(self, bad: _jax.tree.BadTree, value: Any, subject: Subject) -> None:
        self.failures.append(Failure(PlainMessage(f"is {describe(value)} that JAX cannot take apart: {bad}"), subject))

    def _field_children(
        self, node: Fields, value: Any, children: list[tuple[Any, Any]], subject: Subject
    ) -> list[tuple[Any, Any]]:
        """A record's children by the names of its fields; a field that is not a child must be static."""
        names = {key_name(key) for key, _ in children}
        if names == node.fields.keys():
            return children
        if node.kind == "dataclass" and not names <= node.fields.keys():
            children = field_keys(node, value, children)
            names = {key_name(key) for key, _ in children}
        for name, inner in node.fields.items():
            if name not in names and node.kind == "dataclass":
                self._check_non_child(node, name, inner, getattr(value, name, None), subject.at(f".{name}"))
        return children

    def _check_non_child(self, node: Fields, name: str, inner: Node, value: Any, subject: Subject) -> None:
        """A field that is part of the tree's structure must be static by its hint, too."""
        branch = TreeCheck(self.region, self.arguments, self.sizes)
        branch.visit(inner, value, subject)
        if any(found.hint is not None for found in branch.leaves):
            self.failures.append(Failure(NonPytreeField(node.cls.__name__, name), subject))
        else:
            self.failures += branch.failures


def _union_failures(node: UnionOf, branches: list[TreeCheck], value: Any, subject: Subject) -> list[Failure]:
    """Why no member of a union takes a value; that it is not None is left out."""
    options = zip(node.options, branches, strict=True)
    meant = [(option, branch) for option, branch in options if option is not NONE or value is None]
    near = [branch for option, branch in meant if may_match(option, value)]
    relevant = near if len(near) == 1 else [branch for _, branch in meant]
    if len(relevant) == 1:
        return relevant[0].failures
    reasons = tuple(branch.failures[0] for branch in relevant)
    return [Failure(NoUnionMember(reasons), subject, None, _text(value))]


def unknown_axes(node: Node, region: MeshContext, subject: Subject) -> list[Failure]:
    """The failures of hints that name unknown mesh axes, known before there is a value."""
    found = ((path, hint, region.layout(hint)) for path, hint in hints_by_path(node))
    return [
        Failure(layout, subject.at(path), hint.text) for path, hint, layout in found if not isinstance(layout, Layout)
    ]


def _text(value: Any) -> str | None:
    return _jax.array.type_text(value) if isinstance(value, _jax.array.ARRAYS) else None


_UNTYPED = Untyped()


def wrong_container(node: Container, value: Any) -> WrongType | WrongLength | WrongKeys | None:
    """Why a value cannot be taken apart by its hint."""
    match node:
        case FixedTuple(items, kind):
            if not isinstance(value, kind):
                return WrongType(node_name(node), describe(value))
            return None if len(value) == len(items) else WrongLength(len(items), len(value))
        case SequenceOf(kind, _) | MappingOf(kind, _):
            return None if isinstance(value, kind) else WrongType(node_name(node), describe(value))
        case Fields(cls=cls, kind="TypedDict", fields=fields, optional=optional):
            if not isinstance(value, dict):
                return WrongType(cls.__name__, describe(value))
            missing = tuple(name for name in fields if name not in value and name not in optional)
            extra = tuple(str(name) for name in value if name not in fields)
            return WrongKeys(missing, extra) if missing or extra else None
        case Fields(cls=cls):
            return None if isinstance(value, cls) else WrongType(cls.__name__, describe(value))


def may_match(node: Node, value: Any) -> bool:
    """Whether a value is of the kind that a node wants, whatever its items are."""
    match node:
        case ArrayLeaf():
            return isinstance(value, (*_jax.array.ARRAYS, *_jax.array.SCALARS))
        case Static(hint):
            return not holds_array(value) and is_instance(value, hint)
        case UnionOf(options, _):
            return any(may_match(option, value) for option in options)
        case Untyped() | PyTreeOf():
            return True
        case FixedTuple(items, kind):
            return isinstance(value, kind) and len(value) == len(items)
        case SequenceOf() | MappingOf() | Fields():
            return wrong_container(node, value) is None


def child_hints(node: Container, children: list[tuple[Any, Any]]) -> list[Node]:
    """The hint of each child."""
    match node:
        case FixedTuple(items):
            return list(items)
        case SequenceOf(_, item) | MappingOf(_, item):
            return [item] * len(children)
        case Fields():
            return [node.fields.get(key_name(key), _UNTYPED) for key, _ in children]


def key_name(key: Any) -> str:
    """The field that a child's key names."""
    return getattr(key, "name", None) or str(getattr(key, "key", ""))


def field_keys(node: Fields, value: Any, children: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The children of a class that was registered without keys, by their fields.

    The value is rebuilt from distinguishable children, as JAX itself does, and each is looked for in the fields.
    """
    marks = [object() for _ in children]
    try:
        marked = _jax.tree.replace_children(value, list(marks))
    except Exception:
        return children
    found = {id(getattr(marked, name, None)): name for name in node.fields}
    return [
        (_jax.tree.field_key(found[id(mark)]) if id(mark) in found else key, part)
        for mark, (key, part) in zip(marks, children, strict=True)
    ]


_PLAIN = (bool, int, str, bytes, list, tuple, dict, set, frozenset, type(None))
_CONTAINERS = ("builtins", "collections", "collections.abc")


def is_instance(value: Any, hint: Any) -> bool:
    """Whether a value is of a Python type, ints counting as floats and floats as complex."""
    if hint in _PLAIN:
        return isinstance(value, hint)
    if hint is float:
        return isinstance(value, (float, int))
    if hint is complex:
        return isinstance(value, (complex, float, int))
    options = _union_members(hint)
    if len(options) > 1:
        return any(is_instance(value, option) for option in options)
    return _is_bearable(value, hint) and all(is_instance(item, inner) for item, inner in _items(value, hint))


def offending_item(value: Any, hint: Any) -> list[Any]:
    """The innermost item for which a plain container does not fit, in a list; an empty one if there is none."""
    for option in _union_members(hint):
        origin = typing.get_origin(option)
        items = _items(value, option) if isinstance(origin, type) and isinstance(value, origin) else ()
        for item, inner in items:
            if not is_instance(item, inner):
                return offending_item(item, inner) or [item]
    return []


def _union_members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other hint is its own only member."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _items(value: Any, hint: Any) -> Iterable[tuple[Any, Any]]:
    """The items of a plain container that fits so far, each with its hint."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args[1:] != (...,):
        return zip(value, args, strict=False)
    # The arguments of another generic class may mean anything.
    if not isinstance(value, Collection) or getattr(origin, "__module__", None) not in _CONTAINERS:
        return ()
    if isinstance(value, Mapping) and len(args) == 2:
        return [pair for key, item in value.items() for pair in ((key, args[0]), (item, args[1]))]
    is_one = len(args) == 1 or args[1:] == (...,)
    return [(item, args[0]) for item in value] if is_one and issubclass(origin, Collection) else ()


def _is_bearable(value: Any, hint: Any) -> bool:
    from beartype import BeartypeConf
    from beartype.door import is_bearable
    from beartype.roar import BeartypeException

    try:
        return is_bearable(value, hint, conf=BeartypeConf(is_pep484_tower=True))
    except BeartypeException as error:  # typing.Self, a name that is not defined
        raise AnnotationSyntaxError(f"{value_text(hint)} is not a hint that beartype checks: {error}") from None


def holds_array(value: Any) -> bool:
    """Whether a value is an array or a plain container with one; what other objects hold is not looked at."""
    waiting, seen = [value], set[int]()
    while waiting:  # a container may be nested deep, and may hold itself
        part = waiting.pop()
        if isinstance(part, _jax.array.ARRAYS):
            return True
        if isinstance(part, (tuple, list, dict)) and id(part) not in seen:
            seen.add(id(part))
            waiting.extend(part.values() if isinstance(part, dict) else part)
    return False


def describe_static(value: Any, hint: Any) -> str:
    """A value as a message describes it, with the item for which it does not fit, or as Python shows a container."""
    if wrong := offending_item(value, hint):
        return f"{describe(value)} with {describe(wrong[0])} in it"
    is_plain = isinstance(value, (tuple, list, dict, set, frozenset)) and value_text(value) != describe(value)
    return f"{value_text(value)} ({type(value).__name__})" if is_plain else describe(value)


_MOST_STRUCTURES = 16


@dataclass(frozen=True, slots=True)
class LeafHints:
    """The leaves of all values of one structure.

    Attributes:
      hints: their hints.
      paths: their paths within the value.
      subjects_by_root: their subjects, by the subject of the value; the last one only.
    """

    hints: tuple[ArrayHint, ...]
    paths: tuple[str, ...]
    subjects_by_root: dict[Subject, tuple[Subject, ...]] = field(default_factory=dict)

    def subjects(self, root: Subject) -> tuple[Subject, ...]:
        """The subjects of the leaves of a value."""
        found = self.subjects_by_root.get(root)
        if found is None:
            found = tuple(map(root.at, self.paths))
            self.subjects_by_root.clear()
            self.subjects_by_root[root] = found
        return found


class Flattened(NamedTuple):
    """A value taken apart."""

    leaves: list[Any]
    structure: Any


class TreedefCache:
    """The structures of a node's values so far.

    Attributes:
      known: the leaves of each structure; bounded.
    """

    def __init__(self, node: Container) -> None:
        self._is_fixed_by_structure = all(
            isinstance(part, (ArrayLeaf, FixedTuple, SequenceOf, MappingOf, Fields)) for part in all_nodes(node)
        )
        self.known: dict[Any, LeafHints] = {}

    def flatten(self, value: Any) -> Flattened | None:
        """A value taken apart; None where its structure does not determine the hints of its leaves."""
        try:
            return Flattened(*_jax.tree.flatten(value)) if self._is_fixed_by_structure else None
        except _jax.tree.BadTree:  # the walk reports where
            return None

    def learn(self, structure: Any, leaves: Sequence[tuple[ArrayHint, str]]) -> None:
        """Remember the leaves of a structure, by their hints and paths."""
        if len(self.known) >= _MOST_STRUCTURES:
            self.known.clear()
        self.known[structure] = LeafHints(tuple(hint for hint, _ in leaves), tuple(path for _, path in leaves))


# Weak, since a node goes with the function or the class that it was made for.
_caches: WeakKeyDictionary[Container, TreedefCache] = WeakKeyDictionary()


def treedef_cache(node: Container) -> TreedefCache:
    """The cache of a node."""
    found = _caches.get(node)
    if found is None:
        found = _caches[node] = TreedefCache(node)
    return found
