"""Check a whole value against its hint's tree: every leaf, each named by its path.

Invariant: a walk lists the leaves of a value in the order of ``jax.tree_util``, each with its hint,
so that the value can be taken apart at a boundary and put together again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any, NamedTuple

from .. import _jax
from ..errors.failures import (
    Failure,
    HiddenField,
    HintText,
    NoMember,
    NotAPytree,
    OtherStructure,
    StaticArray,
    Told,
    WrongType,
)
from ..notation.layout import Layout
from ..notation.sizes import NO_SIZES, Sizes, Subject
from .array import ArrayHint
from .containers import is_near, keyed_by_place, name_in, nodes_of, wrong_container
from .flat import Flats, Taken, flats_of
from .leaf import check_leaf, describe
from .nodes import (
    Anything,
    Container,
    Either,
    Items,
    Keyed,
    Leaf,
    Node,
    Record,
    Repeated,
    Static,
    Tree,
    hints_by_path,
    node_name,
)
from .plain import plain_of
from .scope import Region
from .statics import describe_static, fits, holds_array


class Found(NamedTuple):
    """One leaf of a value: the array and its hint, or a static leaf without one.

    Attributes:
      alike: mesh axes over which JAX types it as varying, and its hint says that it is equal.
    """

    value: Any
    hint: ArrayHint | None
    subject: Subject
    alike: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Late:
    """A part of a value that must be seen again, and where its leaves stand."""

    node: Node
    value: Any
    subject: Subject
    leaf: str | None
    at: int


@dataclass
class Walk:
    """The state of a check: what was found, bound, failed, and must be seen again.

    Attributes:
      region: where the values are checked.
      arguments: the call's arguments, for ``{self.heads}``.
      sizes: the sizes bound so far.
      leaves: the leaves seen, in order.
      failures: what is wrong.
      waiting: parts with an expression over names that are not bound yet.
      is_late: whether nothing more will be bound, so that nothing may wait.
    """

    region: Region
    arguments: Mapping[str, Any]
    sizes: Sizes = NO_SIZES
    leaves: list[Found] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    waiting: list[Late] = field(default_factory=list)
    is_late: bool = False

    def visit(self, node: Node, value: Any, subject: Subject, leaf: str | None = None) -> None:
        """Check a value against a node."""
        match node:
            case Leaf(hint):
                self._visit_array(hint, value, subject, leaf)
            case Static(hint):
                self._visit_static(hint, value, subject)
            case Anything():
                self._visit_anything(value, subject)
            case Either():
                self._visit_union(node, value, subject, leaf)
            case Tree():
                self._visit_tree(node, value, subject)
            case Items() | Repeated() | Keyed() | Record():
                self._visit_container(node, value, subject, leaf)

    def settle(self) -> None:
        """See again what waits, now that every argument has bound its names."""
        waiting, self.waiting = self.waiting, []
        for late in waiting:
            branch = Walk(self.region, self.arguments, self.sizes, is_late=True)
            branch.visit(late.node, late.value, late.subject, late.leaf)
            self.failures += branch.failures
            self.sizes = branch.sizes
            self.leaves[late.at : late.at + len(branch.leaves)] = branch.leaves

    def _visit_array(self, hint: ArrayHint, value: Any, subject: Subject, leaf: str | None = None) -> None:
        plain = plain_of(hint, self.region)
        matched = plain.match(value, self.sizes, subject) if plain is not None else None
        if matched is not None:
            self.sizes, alike = matched
            self.leaves.append(Found(value, hint, subject, alike))
            return
        fit = check_leaf(value, hint, self.region, self.sizes, subject, self.arguments, leaf)
        alike = frozenset[str]()
        if isinstance(fit, Failure):
            self.failures.append(fit)
        elif fit.unbound is not None and self.is_late and self.region.role != "placement":
            # What is placed by itself may have a dim like seq+1 whose seq belongs to another array.
            self.failures.append(Failure(fit.unbound, subject, hint.text, _jax.type_text(value)))
        else:
            self.sizes, alike = fit.sizes, fit.alike
            if plain is not None:
                plain.learn(value)
            if fit.unbound is not None:
                self.waiting.append(Late(Leaf(hint), value, subject, leaf, len(self.leaves)))
        self.leaves.append(Found(value, hint, subject, alike))

    def _visit_static(self, hint: Any, value: Any, subject: Subject) -> None:
        if holds_array(value):
            name = node_name(Static(hint))
            self.failures.append(Failure(StaticArray(name), subject, HintText(name), _text(value)))
        elif not fits(value, hint):
            name = node_name(Static(hint))
            self.failures.append(Failure(WrongType(name, describe_static(value, hint)), subject, HintText(name)))
        self._close_over(value, subject)

    def _visit_anything(self, value: Any, subject: Subject) -> None:
        try:
            found, _ = _jax.paths(value, None)
        except _jax.BadTree as bad:
            self._refuse_tree(bad, value, subject)
            return
        self.leaves.extend(Found(part, None, subject.at(path)) for path, part in found)

    def _close_over(self, value: Any, subject: Subject) -> None:
        self.leaves.extend(Found(leaf, None, subject) for leaf in _jax.leaves(value))

    def _visit_union(self, node: Either, value: Any, subject: Subject, leaf: str | None) -> None:
        """Take the first member that fits; the others bind nothing.

        While a member waits for names, no member is taken, since one that fits now may be the wrong one.
        """
        branches = [self._branch(option, value, subject, leaf) for option in node.options]
        if any(branch.waiting for branch in branches):
            self.waiting.append(Late(node, value, subject, leaf, len(self.leaves)))
            self._close_over(value, subject)
            return
        fitting = [branch for branch in branches if not branch.failures]
        # A member whose mark says how the value varies comes before one for which it would have to be equal.
        for branch in sorted(fitting, key=lambda branch: any(leaf.alike for leaf in branch.leaves)):
            if not branch.failures:
                self.sizes = branch.sizes
                self.leaves += branch.leaves
                return
        self.failures += _why_none(node, branches, value, subject)
        self._close_over(value, subject)

    def _branch(self, option: Node, value: Any, subject: Subject, leaf: str | None) -> Walk:
        branch = Walk(self.region, self.arguments, self.sizes, is_late=self.is_late)
        branch.visit(option, value, subject, leaf)
        return branch

    def _visit_tree(self, node: Tree, value: Any, subject: Subject) -> None:
        is_leaf = None if isinstance(node.leaf, Leaf) else lambda part: is_near(node.leaf, part)
        try:
            found, structure = _jax.paths(value, is_leaf)
        except _jax.BadTree as bad:
            self._refuse_tree(bad, value, subject)
            return
        if node.structure is not None:
            self._bind_structure(node.structure, structure, subject)
        for text, part in found:
            self.visit(node.leaf, part, subject.at(text), text if node.structure is not None else None)

    def _bind_structure(self, name: str, structure: Any, subject: Subject) -> None:
        known = self.sizes.structures.get(name)
        if known is None:
            self.sizes = self.sizes.bind_structure(name, structure, subject)
        elif known[0] != structure:
            what = OtherStructure(name, str(known[0]), str(structure), known[1])
            self.failures.append(Failure(what, subject))

    def _visit_container(self, node: Container, value: Any, subject: Subject, leaf: str | None) -> None:
        flats = flats_of(node)
        taken = flats.take_apart(value) if leaf is None else None
        if taken is None:
            self._visit_parts(node, value, subject, leaf)
        elif (flat := flats.known.get(taken.structure)) is not None:
            for part, hint, at in zip(taken.leaves, flat.hints, flat.subjects(subject), strict=True):
                self._visit_array(hint, part, at)
        else:
            self._visit_anew(flats, taken, node, value, subject)

    def _visit_anew(self, flats: Flats, taken: Taken, node: Container, value: Any, subject: Subject) -> None:
        """Check a value of a structure that was not met before, and remember its leaves if all is as it should be."""
        first, failed = len(self.leaves), len(self.failures)
        self._visit_parts(node, value, subject, None)
        found = self.leaves[first:]
        # What JAX takes apart may be one array to a hint.
        is_alike = len(found) == len(taken.leaves) and all(map(is_, (leaf.value for leaf in found), taken.leaves))
        if is_alike and len(self.failures) == failed:
            start = len(subject.path)
            flats.learn(taken.structure, [(leaf.hint, leaf.subject.path[start:]) for leaf in found if leaf.hint])

    def _visit_parts(self, node: Container, value: Any, subject: Subject, leaf: str | None) -> None:
        wrong = wrong_container(node, value)
        if wrong is not None:
            self.failures.append(Failure(wrong, subject))
            self._close_over(value, subject)
            return
        try:
            parts = _jax.children(value)
        except _jax.BadTree as bad:
            self._refuse_tree(bad, value, subject)
            return
        if parts is None:
            self.failures.append(Failure(NotAPytree(type(value).__name__), subject))
            self._close_over(value, subject)
            return
        if isinstance(node, Record):
            parts = self._named(node, value, parts, subject)
        for (key, part), inner in zip(parts, nodes_of(node, parts), strict=True):
            # A module whose leaves are filtered, and its gradient, has None for what is no array.
            if part is not None or not isinstance(inner, Static):
                self.visit(inner, part, subject.at(str(key)), leaf)

    def _refuse_tree(self, bad: _jax.BadTree, value: Any, subject: Subject) -> None:
        self.failures.append(Failure(Told(f"is {describe(value)} that JAX cannot take apart: {bad}"), subject))

    def _named(self, node: Record, value: Any, parts: list[tuple[Any, Any]], subject: Subject) -> list[tuple[Any, Any]]:
        """A record's children by the names of its fields; what is no child must be static."""
        names = {name_in(key) for key, _ in parts}
        if names == node.fields.keys():
            return parts
        if node.kind == "dataclass" and not names <= node.fields.keys():
            parts = keyed_by_place(node, value, parts)
            names = {name_in(key) for key, _ in parts}
        for name, inner in node.fields.items():
            if name not in names and node.kind == "dataclass":
                self._check_hidden(node, name, inner, getattr(value, name, None), subject.at(f".{name}"))
        return parts

    def _check_hidden(self, node: Record, name: str, inner: Node, value: Any, subject: Subject) -> None:
        """A field that is part of the tree's structure must be static by its hint, too."""
        branch = Walk(self.region, self.arguments, self.sizes)
        branch.visit(inner, value, subject)
        if any(found.hint is not None for found in branch.leaves):
            self.failures.append(Failure(HiddenField(node.cls.__name__, name), subject))
        else:
            self.failures += branch.failures


def _why_none(node: Either, branches: list[Walk], value: Any, subject: Subject) -> list[Failure]:
    """What is wrong with a value that no member of a union takes; that it is not None, goes without saying."""
    options = zip(node.options, branches, strict=True)
    meant = [pair for pair in options if not _is_none(pair[0]) or value is None]
    near = [branch for option, branch in meant if is_near(option, value)]
    told = near if len(near) == 1 else [branch for _, branch in meant]
    if len(told) == 1:
        return told[0].failures
    reasons = tuple(branch.failures[0] for branch in told)
    return [Failure(NoMember(reasons), subject, None, _text(value))]


def _is_none(node: Node) -> bool:
    return isinstance(node, Static) and node.hint is type(None)


def unresolved(node: Node, region: Region, subject: Subject) -> list[Failure]:
    """Hints that name mesh axes that there are not, told before there is a value."""
    found = ((path, hint, region.layout(hint)) for path, hint in hints_by_path(node))
    return [
        Failure(layout, subject.at(path), hint.text) for path, hint, layout in found if not isinstance(layout, Layout)
    ]


def _text(value: Any) -> str | None:
    return _jax.type_text(value) if isinstance(value, _jax.ARRAYS) else None
