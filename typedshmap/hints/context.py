"""Where a value is checked, the sizes bound in the call around it, and the layouts known of tracers.

A mesh context has the mesh axes by which a shape is read; a scope belongs to one call, and holds the sizes that its
hints bound. Threads do not see each other's scopes. JAX's types have the shape of a shard and the axes over which it
varies, never which dim is sharded over which axes in which order: that is recorded by the identity of the tracer, for
as long as the tracer lives."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial, reduce
from itertools import repeat
from sys import modules
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from .. import _jax
from ..axis_names import FLAX, NO_NAMING, AliasPairs, AxisNaming, flax_naming, naming_context
from ..errors import TypedShmapError, error_of
from ..errors.failures import Failure, Fault, Subject
from ..errors.report import Report
from ..notation.layout import Layout, Rules, Unresolved, resolve
from ..notation.match import NO_SIZES, Sizes
from .array_hint import ArrayHint

T = TypeVar("T")
SizedAxes = tuple[tuple[str, int], ...]
"""Mesh axes with their sizes."""
Role = Literal["value", "boundary", "placement"]
_MOST_HINTS = 4096


@dataclass(frozen=True)
class MeshContext:
    """Where values are checked.

    Attributes:
      mesh: all mesh axes with their sizes; None where no mesh is known.
      manual: the axes over which a value here is one shard.
      placed_axes: the axes over which it is about to be placed, so that no mark may name them.
      boundary_axes: the axes of the boundary that it crosses, on its way in or out.
      checked_axes: the axes over which a hint must say that a value varies, none of them of size 1.
      has_vma: whether JAX types values as varying here.
      aliases: names in hints that stand for mesh axes.
      role: what the check is for. ``"value"``: a value as it is; ``"boundary"``: an argument or
        a result of a ``typed_shard_map``; ``"placement"``: a value that is about to be placed. In
        the last two NumPy arrays and Python scalars count as the JAX arrays that they become.
      explicit: the mesh axes of type Explicit.
      rules: mesh axes for dims of hints without brackets.
      inferred_axes: the axes over which the traced body is analyzed, so that a value that JAX types as varying there
        may turn out to be invarying.
      layouts: the mesh axes that each hint means here; bounded, as the other two.
      compiled: the matchers of hints.
      plans: what else was computed here, by its key.
    """

    mesh: SizedAxes | None
    manual: SizedAxes
    placed_axes: frozenset[str] = frozenset()
    boundary_axes: frozenset[str] = frozenset()
    checked_axes: frozenset[str] = frozenset()
    has_vma: bool = False
    aliases: AliasPairs = ()
    role: Role = "value"
    explicit: frozenset[str] = frozenset()
    rules: Rules | None = None
    inferred_axes: frozenset[str] = frozenset()
    # What is computed in one context; a context that is made of it by `replace` starts anew.
    layouts: dict[ArrayHint, Layout | Unresolved] = field(init=False, compare=False, repr=False, default_factory=dict)
    compiled: dict[ArrayHint, Any] = field(init=False, compare=False, repr=False, default_factory=dict)
    plans: dict[Any, Any] = field(init=False, compare=False, repr=False, default_factory=dict)

    @classmethod
    @lru_cache(maxsize=256)
    def over(
        cls,
        mesh: _jax.mesh.AnyMesh | None,
        naming: AxisNaming = NO_NAMING,
        role: Role = "value",
        manual: SizedAxes = (),
        placed_axes: frozenset[str] = frozenset(),
        boundary_axes: frozenset[str] = frozenset(),
        checked_axes: frozenset[str] = frozenset(),
        has_vma: bool = False,
        inferred_axes: frozenset[str] = frozenset(),
    ) -> MeshContext:
        """Where values are checked over a mesh, if one is known."""
        axes, explicit = (None, frozenset[str]()) if mesh is None else (mesh.shape_tuple, _jax.mesh.explicit_axes(mesh))
        checked_axes = checked_axes.difference(axis for axis, size in manual if size == 1)
        where = (axes, manual, placed_axes, boundary_axes, checked_axes, has_vma)
        return intern_context(cls(*where, naming.aliases, role, explicit, naming.rules, inferred_axes))

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the axes over which a value here is one shard."""
        return dict(self.manual)

    @cached_property
    def nontrivial_axes(self) -> frozenset[str]:
        """Those of several shards: over an axis of size 1 nothing varies, nothing is split, and no sum is due."""
        return frozenset(axis for axis, size in self.manual if size > 1)

    def layout(self, hint: ArrayHint) -> Layout | Unresolved:
        """The mesh axes that a hint means here."""
        found = self.layouts.get(hint)
        if found is None:
            if len(self.layouts) >= _MOST_HINTS:
                self.layouts.clear()
                self.compiled.clear()
            rules = self.rules if hint.takes_rules else None
            mesh = None if self.mesh is None else dict(self.mesh)
            found = resolve(hint.spec, dict(self.aliases), mesh, rules, self.explicit, self.sizes)
            self.layouts[hint] = found
        return found

    def plan(self, key: Any, make: Callable[[], T]) -> T:
        """What ``make`` returned for a key, made of shapes, hints and patterns only; an error is not kept."""
        found = self.plans.get(key)
        if found is None:
            if len(self.plans) >= _MOST_HINTS:
                self.plans.clear()
            found = self.plans[key] = make()
        return found

    def manual_layout(self, hint: ArrayHint, rank: int) -> Layout | None:
        """The layout of a shard of a rank, over the nontrivial axes; None for a hint that names unknown mesh axes."""
        if (found := self.plans.get((hint, rank))) is not None:
            return found

        def make() -> Layout | None:
            layout = self.layout(hint)
            if not isinstance(layout, Layout):
                return None
            return layout.at_rank(rank, hint.spec.rest).over(self.nontrivial_axes)

        return self.plan((hint, rank), make)

    def spec(self, hint: ArrayHint, rank: int) -> Any:
        """The PartitionSpec of full rank that a hint means here, over the boundary's axes if there is one."""

        if (found := self.plans.get(("spec", hint, rank))) is not None:
            return found

        def make() -> Any:
            layout = self.layout(hint)
            assert isinstance(layout, Layout)
            layout = layout.at_rank(rank, hint.spec.rest)
            layout = layout.over(self.boundary_axes) if self.boundary_axes else layout
            return _jax.array.spec_of(layout)

        return self.plan(("spec", hint, rank), make)

    def report(self, function: str, failures: tuple[Failure, ...], sizes: Sizes, place: str = "") -> Report:
        """The facts of an error here."""
        used = tuple((name, axes) for name, axes in self.aliases if axes != (name,))
        manual = tuple(self.sizes) if self.manual else None
        rules = self.rules.pairs if self.rules is not None else ()
        return Report(function, failures, self.mesh or (), manual, bool(self.manual), used, sizes, rules, place)

    def error(
        self, function: str, failures: Iterable[Failure], sizes: Sizes = NO_SIZES, place: str = ""
    ) -> TypedShmapError:
        """The error for what does not fit here."""
        return error_of(self.report(function, tuple(failures), sizes, place))


@lru_cache(maxsize=256)
def intern_context(region: MeshContext) -> MeshContext:
    """The equal mesh context that was made before, with what was computed in it."""
    return region


class AssertionSink(Protocol):
    """Takes the assertions about values of a body that is analyzed once it is traced."""

    @property
    def axes(self) -> frozenset[str]:
        """The mesh axes over which the body is analyzed."""
        ...

    def assert_layout(
        self, value: Any, assertion: LayoutAssertion, layout: Layout | None, known: KnownLayout | None
    ) -> Any:
        """The value, with the assertion recorded.

        Args:
          value: a value.
          assertion: what is asserted of it.
          layout: the layout that this means for its rank; None for a hint that names unknown mesh axes.
          known: the layout that is known of it.
        """
        ...

    def with_cause(self, value: Any, what: Fault, layout: Layout | None) -> Fault:
        """What is wrong with a value, with its cause, as far as the body has been traced.

        Args:
          value: the value.
          what: what is wrong.
          layout: what it has to be, if that is known.
        """
        ...


class LayoutAssertion(NamedTuple):
    """The assertion that a value fits a hint.

    Attributes:
      hint: the hint.
      region: the mesh context.
      subject: the value's name.
      function: the function that asserts it.
      sizes: the sizes of names.
      must_be_invarying: the mesh axes over which JAX types it as varying, and the hint as invarying.
      is_assumed: whether it holds without proof.
    """

    hint: ArrayHint
    region: MeshContext
    subject: Subject
    function: str
    sizes: Sizes = NO_SIZES
    must_be_invarying: frozenset[str] = frozenset()
    is_assumed: bool = False


_NOWHERE = MeshContext(None, ())


@dataclass
class CallScope:
    """What is bound in one call.

    Attributes:
      function: the called function's name.
      arguments: its arguments, for ``{self.heads}``.
      sizes: the sizes bound so far.
      naming: what names in hints mean by the decorators around.
      region: the mesh context that the scope belongs to.
      sink: the analysis of the region's body, which takes the assertions about its values.
      depth: how many naming contexts were entered before the scope; those entered since replace ``naming``.
      cached: the mesh context that was asked for last, behind what it was derived from.
      jaxtyped_depth: how many calls of jaxtyping's were open when it was entered.
    """

    function: str
    arguments: Mapping[str, Any]
    sizes: Sizes = NO_SIZES
    naming: AxisNaming = NO_NAMING
    region: MeshContext = _NOWHERE
    sink: AssertionSink | None = None
    depth: int = field(default_factory=lambda: len(naming_context.value))
    cached: tuple[object, object, object, AxisNaming, bool, MeshContext] | None = None
    jaxtyped_depth: int = 0


_scope: ContextVar[CallScope | None] = ContextVar("typedshmap_scope", default=None)


def current_scope() -> CallScope | None:
    """The innermost scope of this thread."""
    return _scope.get()


class scope_entered:
    """Make a scope the innermost one."""

    __slots__ = ("scope", "token")

    def __init__(self, scope: CallScope) -> None:
        self.scope = scope

    def __enter__(self) -> CallScope:
        self.token = _scope.set(self.scope)
        self.scope.jaxtyped_depth = len(_jaxtyped_calls()) if _JAXTYPING in sys.modules else 0
        return self.scope

    def __exit__(self, *_: object) -> None:
        _scope.reset(self.token)


_JAXTYPING = "jaxtyping._storage"


def _jaxtyped_calls() -> Sequence[Any]:
    """The calls of ``jaxtyping.jaxtyped`` functions that run in this thread, each with its names and arguments.

    Read where jaxtyping keeps them, since there is no other way to ask; where they are not there, there are none.
    """
    return getattr(getattr(sys.modules.get(_JAXTYPING), "_shape_storage", None), "memo_stack", ())


def isinstance_scope() -> CallScope:
    """The innermost scope, or that of a ``jaxtyping.jaxtyped`` function inside of it, whose names are its own."""
    scope, calls = _scope.get(), _jaxtyped_calls()
    if len(calls) > (0 if scope is None else scope.jaxtyped_depth):
        match calls[-1]:
            case (dict() as names, *_, dict() as arguments):
                # Kept among the names of the call, to end with it; jaxtyping shows none that begin like this.
                return names.setdefault("~~delete~~ typedshmap", CallScope("", arguments))
            case _:
                pass
    return CallScope("", {}) if scope is None else scope


def current_mesh_context(own: AxisNaming = NO_NAMING, is_stated: bool = True) -> MeshContext:
    """The mesh context of the running program: JAX's own mesh, with what the innermost scope adds.

    Args:
      own: the naming of the decorator that asks.
      is_stated: whether a match is asserted of the value, so that the analysis of the body may decide it.
    """
    mesh, context, scope = _jax.mesh.context_mesh(), naming_context.value, _scope.get()
    flax = flax_naming() if FLAX in modules else NO_NAMING
    if mesh.empty and (of_jit := _jax.mesh.jit_mesh.value) is not None:
        mesh = of_jit
    if scope is not None and scope.cached is not None:
        of_mesh, of_context, of_flax, of_naming, of_stated, region = scope.cached
        is_same = of_mesh is mesh and of_context is context and of_flax is flax
        if is_same and of_naming is own and of_stated == is_stated:
            return region
    if scope is None and not mesh.manual_axes:
        return _context_outside(mesh, context if flax is NO_NAMING else (flax, *context), own)
    manual_axes = _jax.mesh.manual_axes(mesh)
    outer = scope.region if scope is not None else _NOWHERE
    if is_own := outer.sizes == dict(manual_axes):
        checked_axes, has_vma = outer.checked_axes, outer.has_vma
    else:  # a plain jax.shard_map, inside of the scope's region or by itself: hints must mention its axes
        checked_axes = frozenset(dict(manual_axes)) - (frozenset(outer.sizes) - outer.checked_axes)
        has_vma = bool(manual_axes) and _jax.mesh.are_values_typed(manual_axes[0][0])
    sink = scope.sink if scope is not None and is_stated else None
    region = MeshContext.over(
        None if mesh.empty else mesh,
        current_axis_naming(own),
        manual=manual_axes,
        checked_axes=checked_axes,
        has_vma=has_vma,
        inferred_axes=sink.axes & checked_axes if sink is not None else frozenset(),
    )
    # A region nested in the scope's own is not known by its mesh alone.
    if scope is not None and is_own:
        scope.cached = (mesh, context, flax, own, is_stated, region)
    return region


@lru_cache(maxsize=256)
def _context_outside(mesh: _jax.mesh.AnyMesh, contexts: tuple[AxisNaming, ...], own: AxisNaming) -> MeshContext:
    """The mesh context outside of all scopes and manual regions."""
    return MeshContext.over(None if mesh.empty else mesh, reduce(AxisNaming.then, (*contexts, own), NO_NAMING))


def current_sink() -> AssertionSink | None:
    """The analysis of the body that is being traced, if there is one."""
    scope = _scope.get()
    return scope.sink if scope is not None else None


def with_cause(value: Any, what: Fault, layout: Layout | None = None) -> Fault:
    """What is wrong with a value, which has to be of a layout, with its cause, where the body around is analyzed."""
    sink = current_sink()
    return what if sink is None else sink.with_cause(value, what, layout)


def current_axis_naming(own: AxisNaming = NO_NAMING) -> AxisNaming:
    """What names in hints mean here: the innermost of decorators and context managers wins.

    Args:
      own: the naming of the decorator that asks, which is the innermost.
    """
    scope, contexts = _scope.get(), naming_context.value
    flax = flax_naming() if FLAX in modules else NO_NAMING
    if scope is None and not contexts and flax is NO_NAMING:
        return own
    decorators = () if scope is None else (scope.naming, *contexts[scope.depth :])
    return reduce(AxisNaming.then, (*contexts, *decorators, own), flax)


def decorator_axis_naming(own: AxisNaming) -> AxisNaming:
    """The naming of a new scope's decorators: its own, after those of the scope around it."""
    scope = _scope.get()
    return own if scope is None else scope.naming if own is NO_NAMING else scope.naming.then(own)


_NO_ENTRY: tuple[None, None] = (None, None)


class KnownLayout(Layout, kw_only=True):
    """The known layout of a shard, over the manual axes.

    Attributes:
      invarying: the axes over which all shards are the same, whatever JAX's type says.
      covered_axes: the axes that the layout describes; nothing is known of those of outer regions.
      addend_axes: those over which each shard holds its own addend of a sum that was not taken.
      text: the hint or pattern as it was written.
      place: where that was written, as a message names it.
    """

    invarying: frozenset[str]
    covered_axes: frozenset[str]
    addend_axes: frozenset[str] = frozenset()
    text: str
    place: str

    def differs_over(self, axes: frozenset[str]) -> bool:
        """Whether shards are known to differ over one of the axes: a dim is sharded, or each holds an addend."""
        return not axes.isdisjoint(self.sharded | self.unreduced | self.addend_axes)


# Weak, and keyed by identity since a tracer compares by value: an entry goes with its tracer.
_known: dict[int, tuple[weakref.ref[Any], KnownLayout | LayoutAssertion]] = {}


def record_layout(value: Any, what: KnownLayout | LayoutAssertion) -> None:
    """Record the layout of a tracer; other values may be shared by programs, and nothing is recorded of them.

    An assertion becomes a layout when it is looked up. What was known to be invarying stays so, whatever a hint says.
    """
    if type(value) is not _jax.array.STAGED and not _jax.array.is_tracer(value):
        return
    key = id(value)
    ref, before = _known.get(key, _NO_ENTRY)
    if ref is None or before is None or ref() is not value:
        _known[key] = (weakref.ref(value, partial(_known.pop, key)), what)  # called with the reference
        return
    if isinstance(what, LayoutAssertion):
        invarying = before.must_be_invarying if isinstance(before, LayoutAssertion) else before.invarying
        what = what._replace(must_be_invarying=what.must_be_invarying | invarying) if invarying else what
    _known[key] = (ref, what)


def record_layouts(
    leaves: Sequence[tuple[Any, Any, Subject, frozenset[str]]],
    region: MeshContext,
    function: str,
    sizes: Sizes,
    is_assumed: bool,
) -> None:
    """Record what the hints of values assert, of which most have no record; without a call for each."""
    if not leaves:
        return
    values, hints, subjects, invarying = zip(*leaves, strict=True)
    parts = (hints, repeat(region), subjects, repeat(function), repeat(sizes), invarying, repeat(is_assumed))
    stated = map(partial(tuple.__new__, LayoutAssertion), zip(*parts, strict=False))
    for value, what in zip(values, stated, strict=True):
        key = id(value)
        if key in _known or type(value) is not _jax.array.STAGED:
            record_layout(value, what)
        else:
            _known[key] = (weakref.ref(value, partial(_known.pop, key)), what)


def restate_layouts(shards: Iterable[tuple[Any, LayoutAssertion, Layout | None]]) -> list[bool | None]:
    """Record assertions that have the hint of the last one of their value, so that they say nothing new of its layout.

    Returns:
      For each whether it has; None if nothing is recorded of the value.
    """
    found: list[bool | None] = []
    for value, stated, _ in shards:  # every argument of a helper comes by here
        key, has_hint = id(value), None
        ref, before = _known.get(key, _NO_ENTRY)
        if ref is not None and ref() is value:
            has_hint = (
                type(before) is LayoutAssertion
                and before.hint is stated.hint
                and before.region is stated.region
                and not (before.must_be_invarying or stated.must_be_invarying or stated.is_assumed)
            )
            if has_hint:
                _known[key] = (ref, stated)
        found += [has_hint]
    return found


def lookup_layout(value: Any) -> KnownLayout | None:
    """The known layout of a value; under differentiation, of its primal."""
    while value is not None:
        ref, what = _known.get(id(value), _NO_ENTRY)
        if ref is not None and ref() is value:
            if not isinstance(what, LayoutAssertion):
                return what
            hint, region, subject, function, _, invarying, _ = what
            rank = len(_jax.array.aval_of(value).shape)
            return region.plan((hint, subject, function, invarying, rank), partial(_asserted_layout, what, rank))
        value = None if type(value) is _jax.array.STAGED else _jax.array.jvp_primal(value)
    return None


def lookup_assertion(value: Any) -> LayoutAssertion | None:
    """The hint that a value was given last, if no operation returned it."""
    ref, what = _known.get(id(value), _NO_ENTRY)
    return what if ref is not None and ref() is value and isinstance(what, LayoutAssertion) else None


class StatedSharding(NamedTuple):
    """How a traced global value is sharded over Auto axes, by what was said of it; JAX's type does not tell.

    Attributes:
      layout: the mesh axes of its dims, of those.
      axes: the Auto axes, which it tells of.
      mesh: the mesh.
      source: who said so, as a message names it.
    """

    layout: Layout
    axes: frozenset[str]
    mesh: SizedAxes
    source: str


_stated: dict[int, tuple[weakref.ref[Any], StatedSharding]] = {}


def state_sharding(value: Any, layout: Layout, region: MeshContext, source: str) -> None:
    """Record how a traced global value is sharded, by a layout of its rank."""
    if region.mesh is None or not _jax.array.is_tracer(value):
        return
    auto = frozenset(axis for axis, size in region.mesh if size > 1).difference(region.explicit, region.sizes)
    if auto:
        what, key = StatedSharding(layout.over(auto), auto, region.mesh, source), id(value)
        _stated[key] = (weakref.ref(value, partial(_stated.pop, key)), what)


def stated_sharding(value: Any) -> StatedSharding | None:
    """What was said of a traced global value."""
    ref, what = _stated.get(id(value), _NO_ENTRY)
    return what if ref is not None and ref() is value else None


def recorded_values() -> list[Any]:
    """The tracers whose layouts are recorded, those recorded first first."""
    return [value for ref, _ in list(_known.values()) if (value := ref()) is not None]


def _asserted_layout(stated: LayoutAssertion, rank: int) -> KnownLayout | None:
    layout = stated.region.manual_layout(stated.hint, rank)
    if layout is None:
        return None
    return KnownLayout(
        *(layout.dim_axes, layout.unreduced, layout.reduced, layout.varying),
        invarying=stated.must_be_invarying - layout.sharded - layout.unreduced,
        covered_axes=stated.region.checked_axes | layout.axes,
        text=f"{stated.subject}: {stated.hint.text}",
        place=f"{stated.function}'s hint of {stated.subject.phrase}",
    )
