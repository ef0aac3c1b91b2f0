"""Check a value against the tree of its hints: every leaf, named by its path.

A walk finds the hint of each leaf, unless similar values fitted before (`fitting`).

Invariant: the leaves of a value are in the order of ``jax.tree_util``, each with its hint, so that the value can be
flattened at a boundary and unflattened after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from operator import is_
from typing import Any

from .. import _jax
from ..errors import TypedShmapError, failures
from ..errors.failures import Failure, HintText, Subject, WrongType
from ..errors.phrases import excerpt, quoted_axes, shortened
from ..errors.varying import UnmentionedVarying
from ..notation.layout import NO_AXES, Layout
from ..notation.match import NO_SIZES, Match, RankMismatch, Sizes
from ..records import Record
from . import enforcement, structure
from .array_hint import ArrayHint, hint_of_spec, is_of_rank, rank_of
from .check_array import check_array, describe
from .containers import by_fields, items_of, key_name, may_match, wrong_container, wrong_structure
from .context import LayoutAssertion, MeshContext, StatedShard, assert_each, current_sink, record_layouts
from .fitting import CheckedLeaf, Fit, Fitting, checked_leaves, find_fitting, keep_fit
from .global_sharding import with_value_mesh
from .python_types import describe_static, holds_array, is_instance, number_hint
from .signature import BoundArgument, HintedSignature
from .structure import (
    ArrayLeaf,
    Container,
    Fields,
    FixedTuple,
    LikeOf,
    MappingOf,
    Node,
    PyTreeOf,
    SequenceOf,
    Static,
    UnionOf,
)

ArrayCheck = Callable[..., tuple[Match, frozenset[str]] | Failure]
"""`check_array`, or a function that checks another leaf instead of an array."""


class Deferred(Record):
    """A subtree that must be checked again, and the index of its first leaf."""

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
      failures: the failures so far.
      deferred: subtrees with an expression over names that are not bound yet.
      is_second_visit: whether all names are bound, so that nothing can be deferred.
      check: checks one array.
      given: the arguments of the call, or the value.
      spans: the range of the leaves of each argument among all leaves.
      fitting: the earlier values that fitted; None if all leaves were checked.
    """

    region: MeshContext
    arguments: Mapping[str, Any]
    sizes: Sizes = NO_SIZES
    leaves: list[CheckedLeaf] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    is_second_visit: bool = False
    check: ArrayCheck = check_array
    given: Sequence[BoundArgument] = ()
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    fitting: Fitting | None = None

    def by_argument(self) -> Iterator[tuple[BoundArgument, list[CheckedLeaf]]]:
        """Each argument with its leaves."""
        for argument, (first, last) in zip(self.given, self.spans, strict=True):
            yield argument, self.leaves[first:last]

    def with_leaves(
        self, leaves: list[CheckedLeaf], copies_containers: bool = False
    ) -> Iterator[tuple[str, Subject, Any]]:
        """The arguments that change with other leaves, for `BoundCall.with_arguments`."""
        if leaves is self.leaves:
            return
        for (name, subject, node, value), (first, last) in zip(self.given, self.spans, strict=True):
            new = with_other_leaves(value, self.leaves[first:last], leaves[first:last])
            is_static = isinstance(node, structure.BareTree) and all(leaf.hint is None for leaf in leaves[first:last])
            if new is value and copies_containers and not is_static and structure.holds_arrays(node):
                new = _jax.tree.unflatten_like(value, [leaf.value for leaf in leaves[first:last]])
            if new is not value:
                yield name, subject, new

    def visit_all(self) -> None:
        """Check all given values."""
        for _, subject, node, value in self.given:
            first = len(self.leaves)
            self.visit(node, value, subject)
            self.spans.append((first, len(self.leaves)))
        self.check_deferred()

    def visit(self, node: Node, value: Any, subject: Subject, leaf: str | None = None) -> None:
        """Check a value against a node."""
        match node:
            case ArrayLeaf(hint):
                self._visit_array(hint, value, subject, leaf)
            case Static() if node is structure.NONE and self._places(subject) and holds_array(value):
                self.visit(structure.Untyped(), value, subject)  # like None among JAX's shardings
            case Static(hint) if getattr(value, "shape", None) == () and (number := number_hint(value, hint)):
                self._visit_array(number, value, subject, leaf)
            case Static(hint, parts):
                has_array = holds_array(value)
                if parts is None and not has_array and _is_registered_late(hint, value):
                    self.failures.append(Failure(failures.LateRegistration(hint.__name__), subject))
                if has_array and parts is not None and self._visit_numbers(parts, value, subject):
                    return
                if has_array or not is_instance(value, hint):
                    name = None if node is structure.OPTION else structure.hint_name(hint)
                    wrong = failures.StaticArray(name) if has_array else None
                    wrong = wrong or WrongType(str(name), describe_static(value, hint))
                    self.failures.append(Failure(wrong, subject, HintText(name) if name else None, _type_text(value)))
                self._close_over(value, subject)
            case structure.Untyped():
                leaves, subjects, _ = self._flatten(value, subject)
                self.leaves += checked_leaves(leaves, repeat(None), subjects)
            case structure.BySpec(specs):
                self._visit_by_spec(specs, value, subject)
            case structure.BareTree(kind, hint):
                self._visit_bare_tree(kind, hint, value, subject)
            case UnionOf():
                self._visit_union(node, value, subject, leaf)
            case PyTreeOf():
                self._visit_tree(node, value, subject, leaf)
            case Fields(cls) if node.goes_by_names and _jax.tree.is_variable_class(cls) and not _jax.tree.is_box(value):
                self.visit(node.fields["value"], value, subject, leaf)  # as in a dict that has only arrays
            case FixedTuple() | SequenceOf() | MappingOf() | Fields():
                self._visit_children(node, value, subject, leaf)
            case LikeOf():
                self._visit_like(node, value, subject)

    def _places(self, subject: Subject) -> bool:
        """Whether a value will be placed, also in a region, and not only checked."""
        return self.region.role == "placement" or subject.kind == "placed"

    def check_deferred(self) -> None:
        """Check the deferred subtrees, after all arguments have bound their names."""
        waiting, self.deferred = self.deferred, []
        for late in waiting:
            branch = self._branch(is_second_visit=True)
            branch.visit(late.node, late.value, late.subject, late.leaf)
            self.failures += branch.failures
            self.sizes = branch.sizes
            self.leaves[late.at : late.at + len(branch.leaves)] = branch.leaves

    def error(self, function: str, place: str = "") -> TypedShmapError:
        """The error for the failures, with the mesh of the first value that failed."""
        value = _value_of(self.failures[0].subject, self.leaves)
        return with_value_mesh(value, self.region).error(function, self.failures, self.sizes, place)

    def stated(self, value: Any, function: str, is_assumed: bool = False) -> Any:
        """The checked value with its layouts asserted; outside manual regions the value itself."""
        if self.fitting is not None and not is_assumed:
            return self.fitting.asserted((value,), function, current_sink())[0]
        return with_other_leaves(value, self.leaves, self.stated_leaves(function, is_assumed))

    def stated_leaves(self, function: str, is_assumed: bool = False) -> list[CheckedLeaf]:
        """The leaves, in a manual region with their layouts asserted; the same list if no leaf changed."""
        if not self.region.manual or not enforcement.IS_ON:
            return self.leaves
        return assert_layouts(self.leaves, self.region, function, self.sizes, is_assumed)

    def _branch(self, is_second_visit: bool) -> TreeCheck:
        """A new check, with the sizes bound so far."""
        return TreeCheck(self.region, self.arguments, self.sizes, is_second_visit=is_second_visit, check=self.check)

    def _visit_array(self, hint: ArrayHint, value: Any, subject: Subject, leaf: str | None = None) -> None:
        result = self.check(value, hint, self.region, self.sizes, subject, self.arguments, leaf)
        must_be_invarying = NO_AXES
        if isinstance(result, Failure):
            if hint.may_be_missing and _jax.tree.is_empty(value):
                return
            if _jax.tree.is_box(value) and len(inside := _jax.tree.one_level(value) or ()) == 1:
                ((_, part),) = inside
                self._visit_array(hint, part, subject, leaf)
                return
            self.failures.append(result)
        elif (unbound := result[0].unbound) and self.is_second_visit and self.region.role != "placement":
            # A value that is placed alone may have a dim like seq+1 whose seq belongs to another array.
            self.failures.append(Failure(unbound, subject, hint.text, _jax.array.type_text(value)))
        else:
            self.sizes, must_be_invarying = result[0].sizes, result[1]
            if unbound:
                self.deferred.append(Deferred(ArrayLeaf(hint), value, subject, leaf, len(self.leaves)))
        self.leaves.append(CheckedLeaf(value, hint, subject, must_be_invarying))

    def _flatten(
        self, value: Any, subject: Subject, is_leaf: Callable[[Any], bool] | None = None
    ) -> tuple[list[Any], tuple[Subject, ...], Any]:
        """The leaves of a value, their subjects, and its treedef; no leaves and None if JAX cannot flatten it."""
        try:
            leaves, paths, treedef = _jax.tree.flatten_with_paths(value, is_leaf)
        except _jax.tree.BadTree as bad:
            self._note_bad_tree(bad, value, subject)
            return [], (), None
        return leaves, tuple(map(subject.at, paths)), treedef

    def _note_bad_tree(self, bad: _jax.tree.BadTree, value: Any, subject: Subject) -> None:
        what = failures.PlainMessage(f"is {describe(value)} that JAX cannot flatten: {bad}")
        self.failures.append(Failure(what, subject))

    def _close_over(self, value: Any, subject: Subject) -> None:
        self.leaves.extend(CheckedLeaf(leaf, None, subject) for leaf in _jax.tree.leaves(value))

    def _visit_numbers(self, parts: Node, value: Any, subject: Subject) -> bool:
        """Check a container in which numbers may be arrays of rank 0; False if no number is an array."""
        branch = self._branch(self.is_second_visit)
        branch.visit(parts, value, subject)
        if all(leaf.hint is None for leaf in branch.leaves):
            return False
        self.leaves += branch.leaves
        self.failures += branch.failures
        return True

    def _visit_bare_tree(self, kind: type, hint: ArrayHint, value: Any, subject: Subject) -> None:
        """Check a container whose hint has no item hints: arrays are unsharded when they are placed.

        When they are only checked, they may be anything; leaves that are not arrays are static.
        """
        if not isinstance(value, kind):
            what = WrongType(str(hint.text), describe(value))
            self.failures.append(Failure(what, subject, hint.text, _type_text(value)))
            self._close_over(value, subject)
            return
        try:
            leaves, paths, _ = _jax.tree.flatten_with_paths(value)
        except _jax.tree.BadTree as bad:
            if holds_array(value):
                self._note_bad_tree(bad, value, subject)
            return
        shapes = _jax.array.SHAPES if self.region.role == "placement" else ()
        for part, at in zip(leaves, map(subject.at, paths), strict=True):
            if self.region.role != "value" and isinstance(part, (*_jax.array.ARRAYS, *shapes)):
                self._visit_array(hint, part, at)
            else:
                self.leaves.append(CheckedLeaf(part, None, at))

    def _visit_by_spec(self, specs: Sequence[Any], value: Any, subject: Subject) -> None:
        """Check a value by its specs; a leaf whose type varies over axes that its spec omits must not leave."""
        leaves, subjects, _ = self._flatten(value, subject)
        region, kinds = self.region, list(zip(specs, map(len, _jax.array.shapes_of(leaves)), strict=True))
        hints = {kind: None if kind[0] is None else hint_of_spec(*kind) for kind in dict.fromkeys(kinds)}
        checked = checked_leaves(leaves, [hints[kind] for kind in kinds], subjects)
        self.leaves += checked
        axes = region.boundary_axes & frozenset(region.sizes) if region.has_vma else NO_AXES
        for part, hint, at, _ in checked if axes else ():
            if hint is None or not _jax.array.is_tracer(part):
                continue
            extra, layout = _jax.array.manual_type(part).varying & axes, region.layout(hint)
            if isinstance(layout, Layout) and (extra := extra - layout.sharded - layout.unreduced):
                named = tuple(axis for axis in region.sizes if axis in extra)
                what = UnmentionedVarying(named, True, extra <= region.explicit)
                self.failures.append(Failure(what, at, hint.text, _type_text(part)))

    def _visit_union(self, node: UnionOf, value: Any, subject: Subject, leaf: str | None) -> None:
        """Choose the first member that fits; the others bind nothing.

        While a member is deferred, none is chosen, since a member that fits now may be the wrong one.
        """
        branches = [self._branch(self.is_second_visit) for _ in node.options]
        for option, branch in zip(node.options, branches, strict=True):
            branch.visit(structure.ABSENT if option is structure.NONE else option, value, subject, leaf)
        fitting = [branch for branch in branches if not branch.failures]
        if any(branch.deferred for branch in branches):
            self.deferred.append(Deferred(node, value, subject, leaf, len(self.leaves)))
        elif fitting:
            # A member that mentions the varying axes comes before one that needs the value to be invarying.
            best = min(fitting, key=lambda branch: any(leaf.must_be_invarying for leaf in branch.leaves))
            self.sizes = best.sizes
            self.leaves += best.leaves
            return
        else:  # omit the failure that the value is not None
            options = zip(node.options, branches, strict=True)
            meant = [(option, branch) for option, branch in options if option is not structure.NONE or value is None]
            near = [branch for option, branch in meant if may_match(option, value)]
            relevant = near if len(near) == 1 else [branch for _, branch in meant]
            if len(relevant) == 1:
                self.failures += relevant[0].failures
                self.leaves += relevant[0].leaves
                return
            what = failures.NoUnionMember(tuple(branch.failures[0] for branch in relevant))
            self.failures.append(Failure(what, subject, None, _type_text(value)))
        self._close_over(value, subject)

    def _visit_tree(self, node: PyTreeOf, value: Any, subject: Subject, leaf: str | None) -> None:
        """Check the leaves and the structure; one composed of names that are not bound yet waits for them."""
        first, failed, written = len(self.leaves), len(self.failures), " ".join(node.structure)
        is_flat = isinstance(node.leaf, ArrayLeaf | structure.Untyped)
        is_leaf = None if is_flat else partial(may_match, node.leaf)
        leaves, subjects, treedef = self._flatten(value, subject, is_leaf)
        unbound = set(node.structure).difference(self.sizes.structures, ("...",))
        known, wrong, cure = self.sizes.structures.get(written), None, None
        if not node.structure or treedef is None or (known is not None and known[0] == treedef):
            unbound.clear()
        elif unbound and len(node.structure) == 1:
            self.sizes = self.sizes.bind_structure(unbound.pop(), treedef, subject)
        elif not unbound:
            wrong = wrong_structure(node.structure, treedef, self.sizes)
        elif self.is_second_visit and self.region.role != "placement":
            names = [name for name in dict.fromkeys(node.structure) if name in unbound]
            wrong = f"has structure '{shortened(written)}' in its hint, but nothing binds {quoted_axes(names)}"
            cure = f'name the structure of another tree, as in PyTree[..., "{excerpt(names[0])}"]'
        if wrong is not None:
            self.failures.append(Failure(failures.PlainMessage(shortened(wrong, 1500), cure), subject))
        for part, at in zip(leaves, subjects, strict=True):
            self.visit(node.leaf, part, at, f"{written}{at.path[len(subject.path) :]}" if node.structure else leaf)
        if unbound and not self.is_second_visit and len(self.failures) == failed:
            self.deferred.append(Deferred(node, value, subject, leaf, first))

    def _visit_children(self, node: Container, value: Any, subject: Subject, leaf: str | None) -> None:
        wrong, children = wrong_container(node, value), None
        if wrong is None:
            try:
                children = _jax.tree.one_level(value)
            except _jax.tree.BadTree as bad:
                self._note_bad_tree(bad, value, subject)
                return
        if children is None:
            self.failures.append(Failure(wrong or failures.NotAPytree(type(value).__name__), subject))
            self._close_over(value, subject)
            return
        match node:
            case FixedTuple(hints):
                pass
            case SequenceOf(_, item) | MappingOf(_, item):
                hints = tuple([item if is_item else structure.UNHINTED for is_item in items_of(value, children)])
            case Fields():
                children = self._field_children(node, value, children, subject)
                hints = tuple(node.fields.get(key_name(key), structure.UNHINTED) for key, _ in children)
        for (key, part), inner in zip(children, hints, strict=True):
            # A filtered module, and its gradient, has None instead of leaves that are not arrays.
            if part is not None or not isinstance(inner, Static):
                self.visit(inner, part, subject if _jax.tree.is_box(value) else subject.at(str(key)), leaf)

    def _visit_like(self, node: LikeOf, value: Any, subject: Subject) -> None:
        """Check the largest subtrees with the parameters' structure, and the other arrays."""
        if (wrong := wrong_container(node, value)) is not None:
            self.failures.append(Failure(wrong, subject))
            self._close_over(value, subject)
            return
        for at, part, is_similar in self.parts_like(node, value, subject):
            if is_similar:
                first = len(self.failures)
                self.visit(node.parameters, part, at)
                cured = [_with_cure(failure, node) for failure in self.failures[first:]]
                # If ranks differ, some arrays may have the expected rank by accident, with another size.
                self.failures[first:] = sorted(cured, key=lambda failure: not isinstance(failure.what, RankMismatch))
            elif isinstance(part, _ARRAYS):
                self._visit_array(node.other.hint, part, at)
            else:
                self.leaves.append(CheckedLeaf(part, None, at))

    def parts_like(self, node: LikeOf, value: Any, subject: Subject) -> list[tuple[Subject, Any, bool]]:
        """The largest subtrees with the parameters' structure, and the other leaves; each with its subject."""
        members, similar = node.members, set[int]()

        def is_similar(part: Any) -> bool:
            if matches := any(self._has_structure(member, part) for member in members):
                similar.add(id(part))
            return matches

        parts, subjects, _ = self._flatten(value, subject, is_similar)
        return [(at, part, id(part) in similar) for part, at in zip(parts, subjects, strict=True)]

    def _has_structure(self, node: Node, value: Any) -> bool:
        """Whether a value has the structure of a hint; without class or key names, also its ranks."""
        has_rank = False

        def check(part: Any, hint: ArrayHint, region: MeshContext, sizes: Sizes, subject: Subject, *rest: Any) -> Any:
            nonlocal has_rank
            if not isinstance(part, _ARRAYS):
                return Failure(failures.NotAnArray(hint.type_text, describe(part)), subject)
            has_rank |= is_of_rank(hint, rank_of(part))
            return Match(sizes), NO_AXES

        branch = self._branch(is_second_visit=False)
        branch.check = check
        branch.visit(node, value, Subject("checked", "checked"))
        return not branch.failures and (has_rank or structure.is_named(node))

    def _field_children(
        self, node: Fields, value: Any, children: list[tuple[Any, Any]], subject: Subject
    ) -> list[tuple[Any, Any]]:
        """The children of a record by the names of its fields; a field that is not a child must have a static hint."""
        names = {key_name(key) for key, _ in children}
        if node.kind not in ("dataclass", "class") or names == node.fields.keys() or not isinstance(value, node.cls):
            return children
        children = by_fields(node, value, children)
        names = {key_name(key) for key, _ in children}
        for name, inner in node.fields.items():
            if name in names:
                continue
            at = subject.at(f".{name}")
            if not hasattr(value, name):
                if structure.declares_arrays(inner):
                    problem = f"is missing, but {node.cls.__name__} declares it"
                    self.failures.append(Failure(failures.PlainMessage(problem), at))
                continue
            branch = self._branch(False)
            branch.visit(inner, getattr(value, name), at)
            if any(leaf.hint is not None for leaf in branch.leaves):
                what = failures.NonPytreeField(node.cls.__name__, name, node.kind == "dataclass")
                self.failures.append(Failure(what, at))
            else:
                self.failures += branch.failures
        return children


def _is_registered_late(hint: Any, value: Any) -> bool:
    """Whether a class that was static when its hint was read is now a registered pytree of arrays."""
    if not isinstance(hint, type) or hint.__module__ == "builtins" or not _jax.tree.is_registered(hint):
        return False
    return any(isinstance(part, _ARRAYS) for part in _jax.tree.leaves(value))


_STRUCTS = frozenset(_jax.array.SHAPES)
_ARRAYS = (*_jax.array.ARRAYS, *_jax.array.SHAPES, *_jax.array.SCALARS)


def _value_of(subject: Subject, leaves: Sequence[CheckedLeaf]) -> Any:
    """The leaf that is the subject of a message; None if no leaf is."""
    return next((leaf.value for leaf in leaves if leaf.subject == subject), None)


def result_place(typed: HintedSignature, failures: Sequence[Failure], leaves: Sequence[CheckedLeaf]) -> str:
    """The place of the operation that made the first leaf that failed, or of the ``return``.

    If a container has the wrong type, no operation made it."""
    if isinstance(failures[0].what, WrongType):
        return typed.return_place
    return _jax.staging.value_place(_value_of(failures[0].subject, leaves)) or typed.return_place


def non_array_failures(leaves: Iterable[CheckedLeaf], why: str, cure: str | None = None) -> list[Failure]:
    """A failure for each leaf that JAX does not accept as an array."""
    others = [leaf for leaf in leaves if type(leaf.value) is not _jax.array.STAGED]
    others = [leaf for leaf in others if not isinstance(leaf.value, (*_jax.array.SHAPES, *_jax.array.ARRAYS))]
    return [
        Failure(failures.PlainMessage(f"is {describe(leaf.value)}, {why}", cure), leaf.subject)
        for leaf in others
        if _jax.array.why_not_array(leaf.value) is not None
    ]


def _type_text(value: Any) -> str | None:
    return _jax.array.type_text(value) if isinstance(value, _jax.array.ARRAYS) else None


def _with_cure(failure: Failure, node: LikeOf) -> Failure:
    """A failure of a subtree with the structure of parameters, with the cure for intended other ranks."""
    what, name = failure.what, structure.node_name(node.parameters)
    if not isinstance(what, RankMismatch):
        return failure
    more = f"{name} | " + (f'Stacked["n", {name}]' if what.got > what.expected else "PyTree[Array]")
    means = "allows a leading dim" if what.got > what.expected else "accepts them unsharded"
    cure = f"if trees of {name} hold arrays of other ranks, write Like[..., {more}], which {means}"
    return replace(failure, what=replace(what, cure=cure))


def check_value(
    node: Node,
    value: Any,
    subject: Subject,
    context: MeshContext,
    named: Mapping[str, Any],
    sizes: Sizes = NO_SIZES,
    check: ArrayCheck = check_array,
) -> TreeCheck:
    """Check one value, such as a result; the check has the failures."""
    return check_arguments([("", subject, node, value)], named, context, node.fits, sizes, check)


def check_arguments(
    given: Sequence[BoundArgument],
    named: Mapping[str, Any],
    context: MeshContext,
    fits: list[Fit] | None = None,
    sizes: Sizes = NO_SIZES,
    check: ArrayCheck = check_array,
) -> TreeCheck:
    """Check the arguments of a call together, unless ``fits`` has such a call; the check has the failures."""
    values, subjects = tuple([value for *_, value in given]), tuple([subject for _, subject, *_ in given])
    is_known = fits is not None and check is check_array
    fitting = find_fitting(fits, values, subjects, context, sizes) if fits and is_known else None
    if fitting is not None:
        fit = fitting.fit
        return TreeCheck(
            context, named, fit.sizes, fitting.checked(), given=given, spans=fit.spans, fitting=fitting, check=check
        )
    checked = TreeCheck(context, named, sizes, check=check, given=given)
    checked.visit_all()
    if fits is not None and is_known and not checked.failures:
        parts = [part for _, _, node, _ in given for _, part in structure.walk(node)]
        # A size like {self.heads} may change.
        if not any(part.hint.reads_arguments for part in parts if isinstance(part, ArrayLeaf)):
            has_union = any(isinstance(part, UnionOf) for part in parts)
            keep_fit(fits, values, subjects, context, sizes, checked.leaves, checked.spans, checked.sizes, has_union)
    return checked


def array_leaves(given: Sequence[BoundArgument]) -> list[CheckedLeaf]:
    """The unchecked leaves of arguments that hold arrays, whose mesh may be known."""
    arrays = ((subject, value) for _, subject, node, value in given if structure.holds_arrays(node))
    return [CheckedLeaf(leaf, None, subject) for subject, value in arrays for leaf in _jax.tree.leaves(value)]


def unknown_axes(node: Node, region: MeshContext, subject: Subject) -> list[Failure]:
    """The failures of hints that name unknown mesh axes; they do not need a value."""
    parts = [("", node)] if isinstance(node, ArrayLeaf) else structure.walk(node)
    return [
        Failure(layout, subject.at(path), part.hint.text)
        for path, part in parts
        if isinstance(part, ArrayLeaf) and not isinstance(layout := region.layout(part.hint), Layout)
    ]


def with_other_leaves(value: Any, before: list[CheckedLeaf], after: list[CheckedLeaf]) -> Any:
    """The value with other leaves; the same object if no leaf changed."""
    if after is before:
        return value
    if len(before) == 1 and before[0].value is value:
        return after[0].value
    old, new = [leaf.value for leaf in before], [leaf.value for leaf in after]
    if all(map(is_, old, new)):
        return value
    has_structs = not _STRUCTS.isdisjoint(map(type, new))
    return _jax.tree.replace_leaves(value, new) if has_structs else _jax.tree.unflatten_like(value, new)


def assert_layouts(
    leaves: list[CheckedLeaf],
    region: MeshContext,
    function: str,
    sizes: Sizes,
    is_assumed: bool = False,
    is_proven: bool = False,
) -> list[CheckedLeaf]:
    """Record the layouts of shards by their hints, and pass them to the analysis unless they are proven.

    In a loop or a call within the region the leaves are replaced by others, with claims in the jaxpr.
    """
    sink = None if is_proven else current_sink()
    if sink is None:
        record_layouts([leaf for leaf in leaves if leaf.hint is not None], region, function, sizes, is_assumed)
        return leaves
    shards, positions, claimed = list[StatedShard](), list[int](), leaves
    for at, (value, hint, subject, must_be_invarying) in enumerate(leaves):
        if hint is not None:
            layout = region.manual_layout(hint, len(_jax.array.aval_of(value).shape))
            stated = LayoutAssertion(hint, region, subject, function, sizes, must_be_invarying, is_assumed)
            shards += [(value, stated, layout)]
            positions += [at]
    for at, value in zip(positions, assert_each(shards, sink), strict=True):
        if value is not leaves[at].value:
            claimed = list(leaves) if claimed is leaves else claimed
            claimed[at] = leaves[at]._replace(value=value)
    return claimed
