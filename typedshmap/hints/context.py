"""Where a value is checked, the sizes bound in the call around it, and the layouts known of tracers.

A mesh context has the mesh axes by which a shape is read; a scope belongs to one call, and holds the sizes that its
hints bound. Threads do not see each other's scopes. JAX's types have the shape of a shard and the axes over which it
varies, never which dim is sharded over which axes in which order: that is recorded by the identity of the tracer, for
as long as the tracer lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from .. import _jax
from ..axis_names import NO_NAMING, AliasPairs, AxisNaming, context_depth, context_naming, naming_context
from ..errors.failures import Failure, Report
from ..notation.layout import Layout, Rules, Unresolved, resolve
from ..notation.match import NO_SIZES, Sizes, Subject, View
from ..notation.spec import Dim, Spec
from ..notation.tokens import Span
from .array_hint import ArrayHint

T = TypeVar("T")
_NO_AXES: frozenset[str] = frozenset()
SizedAxes = tuple[tuple[str, int], ...]
"""Mesh axes with their sizes."""
Role = Literal["value", "boundary", "placement"]


class ManualLayout(NamedTuple):
    """The layout that a hint gives to a shard of one rank, over the manual axes.

    Attributes:
      dim_axes: per dim its mesh axes, major to minor.
      spans: per dim its place in the hint's text.
      sharded: all axes over which dims are sharded.
      unreduced: mesh axes over which it is a partial sum.
      varying: those over which shards may differ in any way (``~``).
      covered_axes: those that the layout describes.
    """

    dim_axes: tuple[tuple[str, ...], ...]
    spans: tuple[Span | None, ...]
    sharded: frozenset[str]
    unreduced: frozenset[str]
    varying: frozenset[str]
    covered_axes: frozenset[str]


@dataclass(frozen=True)
class MeshContext:
    """Where values are checked.

    Attributes:
      mesh: all mesh axes with their sizes; None where no mesh is known.
      manual: the axes over which a value here is one shard.
      entering: the axes over which it is about to be sharded, so that its dims must divide.
      boundary_axes: the axes of the boundary that it crosses, on its way in or out.
      checked_axes: the axes over which a hint must say that a value varies.
      has_vma: whether JAX types values as varying here.
      aliases: names in hints that stand for mesh axes.
      role: what the check is for. ``"value"``: a value as it stands; ``"boundary"``: an argument or
        a result of a ``typed_shard_map``; ``"placement"``: a value that is about to be placed. In
        the last two NumPy arrays and Python scalars count as the JAX arrays that they become.
      explicit: the mesh axes of type Explicit.
      rules: mesh axes for dims of hints without brackets.
      inferred_axes: the axes over which the traced body is analyzed, so that a value that JAX types as varying there
        may turn out to be invarying.
    """

    mesh: SizedAxes | None
    manual: SizedAxes
    entering: SizedAxes = ()
    boundary_axes: frozenset[str] = frozenset()
    checked_axes: frozenset[str] = frozenset()
    has_vma: bool = False
    aliases: AliasPairs = ()
    role: Role = "value"
    explicit: frozenset[str] = frozenset()
    rules: Rules | None = None
    inferred_axes: frozenset[str] = frozenset()

    @classmethod
    @lru_cache(maxsize=256)
    def for_values(
        cls,
        mesh: _jax.mesh.AnyMesh | None,
        naming: AxisNaming,
        manual: SizedAxes = (),
        checked_axes: frozenset[str] = frozenset(),
        has_vma: bool = False,
        inferred_axes: frozenset[str] = frozenset(),
    ) -> MeshContext:
        """Where values are checked as they are: global values, or shards of a region over the manual axes."""
        axes, explicit = (None, frozenset[str]()) if mesh is None else _sized_axes(mesh)
        aliases, rules = naming.aliases, naming.rules
        return intern_context(
            cls(axes, manual, (), _NO_AXES, checked_axes, has_vma, aliases, "value", explicit, rules, inferred_axes)
        )

    @classmethod
    @lru_cache(maxsize=256)
    def at_boundary(
        cls,
        mesh: _jax.mesh.AnyMesh,
        naming: AxisNaming,
        manual: SizedAxes,
        entering: SizedAxes,
        boundary_axes: frozenset[str] = frozenset(),
        checked_axes: frozenset[str] = frozenset(),
        has_vma: bool = False,
    ) -> MeshContext:
        """Where the arguments and the results of a call are checked: outside its region, or inside."""
        axes, explicit = _sized_axes(mesh)
        aliases, rules = naming.aliases, naming.rules
        return intern_context(
            cls(axes, manual, entering, boundary_axes, checked_axes, has_vma, aliases, "boundary", explicit, rules)
        )

    @classmethod
    @lru_cache(maxsize=256)
    def for_placement(cls, mesh: _jax.mesh.AnyMesh | None, naming: AxisNaming = NO_NAMING) -> MeshContext:
        """Where values are checked that are about to be placed, over a mesh if one is known."""
        axes, explicit = (None, frozenset[str]()) if mesh is None else _sized_axes(mesh)
        context = cls(
            axes, (), axes or (), aliases=naming.aliases, role="placement", explicit=explicit, rules=naming.rules
        )
        return intern_context(context)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the axes over which a value here is one shard."""
        return dict(self.manual)

    @cached_property
    def cache(self) -> HintCache:
        """What was computed for the hints that were checked here."""
        return HintCache(self)

    def layout(self, hint: ArrayHint) -> Layout | Unresolved:
        """The mesh axes that a hint means here."""
        return self.cache.layout(hint)

    def spec(self, hint: ArrayHint, rank: int) -> Any:
        """The PartitionSpec of full rank that a hint means here, over the boundary's axes if there is one."""
        return self.cache.spec(hint, rank)

    def manual_layout(self, hint: ArrayHint, rank: int) -> ManualLayout | None:
        """The layout that a hint gives to a shard of that rank; None if it names unknown mesh axes."""
        return self.cache.plan((hint, rank), lambda: _manual_layout(hint.spec, self.layout(hint), rank, self))

    def view(self, arguments: Mapping[str, Any]) -> View:
        return View(self.sizes, dict(self.entering), arguments)

    @property
    def is_manual(self) -> bool:
        return bool(self.manual)

    def report(self, function: str, failures: tuple[Failure, ...], sizes: Sizes, place: str = "") -> Report:
        """The facts of an error here."""
        used = tuple((name, axes) for name, axes in self.aliases if axes != (name,))
        manual = tuple(self.sizes) if self.manual else None
        rules = self.rules.pairs if self.rules is not None else ()
        return Report(function, failures, self.mesh or (), manual, self.is_manual, used, sizes, rules, place)


def _sized_axes(mesh: _jax.mesh.AnyMesh) -> tuple[SizedAxes, frozenset[str]]:
    """All axes of a mesh with their sizes, and those of type Explicit."""
    return mesh.shape_tuple, _jax.mesh.explicit_axes(mesh)


@lru_cache(maxsize=256)
def intern_context(region: MeshContext) -> MeshContext:
    """The equal mesh context that was made before, with its cache."""
    return region


_MOST_HINTS = 4096


class HintCache:
    """Per hint its mesh axes, specs and matcher in one mesh context; bounded."""

    def __init__(self, region: MeshContext) -> None:
        self.mesh = None if region.mesh is None else dict(region.mesh)
        self.aliases, self.rules = dict(region.aliases), region.rules
        self.boundary_axes = region.boundary_axes or None
        self.layouts: dict[ArrayHint, Layout | Unresolved] = {}
        self.specs: dict[tuple[ArrayHint, int], Any] = {}
        self.compiled: dict[ArrayHint, Any] = {}
        self.plans: dict[Any, Any] = {}

    def layout(self, hint: ArrayHint) -> Layout | Unresolved:
        found = self.layouts.get(hint)
        if found is None:
            if len(self.layouts) >= _MOST_HINTS:
                self.layouts.clear()
                self.specs.clear()
                self.compiled.clear()
            rules = self.rules if hint.takes_rules else None
            found = self.layouts[hint] = resolve(hint.spec, self.aliases, self.mesh, rules)
        return found

    def plan(self, key: Any, make: Callable[[], T]) -> T:
        """What ``make`` returned for a key, made of shapes and patterns only; an error is not kept."""
        found = self.plans.get(key)
        if found is None:
            if len(self.plans) >= _MOST_HINTS:
                self.plans.clear()
            found = self.plans[key] = make()
        return found

    def spec(self, hint: ArrayHint, rank: int) -> Any:
        found = self.specs.get((hint, rank))
        if found is None:
            layout = self.layout(hint)
            assert isinstance(layout, Layout)
            found = self.specs[hint, rank] = spec_of(hint.spec, layout, rank, self.boundary_axes)
        return found


def _manual_layout(spec: Spec, layout: Layout | Unresolved, rank: int, region: MeshContext) -> ManualLayout | None:
    if not isinstance(layout, Layout):
        return None
    manual = frozenset(region.sizes)
    dim_axes: list[tuple[str, ...]] = []
    spans: list[Span | None] = []
    for dim, axes in zip(spec.dims, layout.dim_axes, strict=True):
        if isinstance(dim, Dim):
            dim_axes.append(tuple(axis for axis in axes if axis in manual))
            spans.append(dim.span)
        else:
            count = rank - len(layout.dim_axes) + 1
            dim_axes += [()] * count
            spans += [dim.span] * count
    sharded = frozenset(axis for part in dim_axes for axis in part)
    covered_axes = region.checked_axes | (layout.axes & manual)
    return ManualLayout(
        tuple(dim_axes), tuple(spans), sharded, layout.unreduced & manual, layout.varying & manual, covered_axes
    )


def spec_of(spec: Spec, layout: Layout, rank: int, axes: frozenset[str] | None) -> Any:
    """A PartitionSpec of full rank, with only the given mesh axes if any are given."""
    dim_axes: list[tuple[str, ...]] = []
    for dim, names in zip(spec.dims, layout.dim_axes, strict=True):
        kept = names if axes is None else tuple(name for name in names if name in axes)
        dim_axes += [kept] if isinstance(dim, Dim) else [()] * (rank - len(layout.dim_axes) + 1)
    keep = (lambda marked: marked) if axes is None else (lambda marked: marked & axes)
    return _jax.array.partition_spec(dim_axes, keep(layout.unreduced), keep(layout.reduced))


class AssertionSink(Protocol):
    """Takes the assertions about values of a body that is analyzed once it is traced."""

    @property
    def axes(self) -> frozenset[str]:
        """The mesh axes over which the body is analyzed."""
        ...

    def assert_layout(self, value: Any, assertion: LayoutAssertion) -> Any:
        """The value, with the assertion recorded."""
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


class CachedContext(NamedTuple):
    """A mesh context, and what it was derived from within a scope."""

    mesh: object
    context: object
    own: AxisNaming
    is_stated: bool
    region: MeshContext

    def is_current(self, mesh: object, context: object, own: AxisNaming, is_stated: bool) -> bool:
        """Whether it would be derived again."""
        is_same = self.mesh is mesh and self.context is context and self.own is own
        return is_same and self.is_stated == is_stated


@dataclass
class CallScope:
    """What is bound in one call.

    Attributes:
      function: the called function's name.
      arguments: its arguments, for ``{self.heads}``.
      sizes: the sizes bound so far.
      naming: what names in hints mean by the decorators around.
      depth: how many naming contexts were entered before the scope; those entered since replace ``naming``.
      manual: the manual axes of the region that the scope belongs to.
      checked_axes: those of them that the innermost typed region made manual.
      has_vma: whether JAX types values as varying in that region.
      sink: the analysis of the region's body, which takes the assertions about its values.
      cached: the mesh context that was asked for last.
    """

    function: str
    arguments: Mapping[str, Any]
    sizes: Sizes = NO_SIZES
    naming: AxisNaming = NO_NAMING
    depth: int = field(default_factory=context_depth)
    manual: frozenset[str] = frozenset()
    checked_axes: frozenset[str] = frozenset()
    has_vma: bool = False
    sink: AssertionSink | None = None
    cached: CachedContext | None = None


_scope: ContextVar[CallScope | None] = ContextVar("typedshmap_scope", default=None)


def current_scope() -> CallScope | None:
    """The innermost scope of this thread."""
    return _scope.get()


@contextmanager
def scope_entered(scope: CallScope) -> Generator[CallScope]:
    """Make a scope the innermost one."""
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        _scope.reset(token)


def current_mesh_context(own: AxisNaming = NO_NAMING, is_stated: bool = True) -> MeshContext:
    """The mesh context of the running program: JAX's own mesh, with what the innermost scope adds.

    Args:
      own: the naming of the decorator that asks.
      is_stated: whether a match is asserted of the value, so that the analysis of the body may decide it.
    """
    mesh, context, scope = _jax.mesh.context_mesh(), naming_context(), _scope.get()
    if scope is not None and scope.cached is not None and scope.cached.is_current(mesh, context, own, is_stated):
        return scope.cached.region
    manual = _jax.mesh.manual_axes(mesh)
    checked_axes, has_vma = _checked_axes(scope, manual)
    reading = scope.sink if scope is not None and is_stated else None
    inferred_axes = reading.axes & checked_axes if reading is not None else frozenset[str]()
    naming, known = current_axis_naming(own), None if mesh.empty else mesh
    region = MeshContext.for_values(known, naming, manual, checked_axes, has_vma, inferred_axes)
    # A region nested in the scope's own is not known by its mesh alone.
    if scope is not None and scope.manual == frozenset(region.sizes):
        scope.cached = CachedContext(mesh, context, own, is_stated, region)
    return region


def current_sink() -> AssertionSink | None:
    """The analysis of the body that is being traced, if there is one."""
    scope = _scope.get()
    return scope.sink if scope is not None else None


def current_axis_naming(own: AxisNaming = NO_NAMING) -> AxisNaming:
    """What names in hints mean here: the innermost of decorators and context managers wins.

    Args:
      own: the naming of the decorator that asks, which is the innermost.
    """
    scope, around = _scope.get(), context_naming()
    if scope is None:
        return around.then(own)
    inside = context_naming(scope.depth) if around is not NO_NAMING else NO_NAMING
    return around.then(scope.naming).then(inside).then(own)


def decorator_axis_naming(own: AxisNaming) -> AxisNaming:
    """The naming of a new scope's decorators: its own, after those of the scope around it."""
    scope = _scope.get()
    return scope.naming.then(own) if scope is not None else own


def _checked_axes(scope: CallScope | None, manual_axes: SizedAxes) -> tuple[frozenset[str], bool]:
    """The axes that hints must mention in a region of these manual axes, and whether JAX types values there.

    A scope has both for its own region. A plain ``jax.shard_map`` inside of it adds its axes.
    """
    manual = frozenset(name for name, _ in manual_axes)
    if not manual:
        return manual, False
    if scope is not None and scope.manual == manual:
        return scope.checked_axes, scope.has_vma
    has_vma = _jax.mesh.are_values_typed(manual_axes[0][0])
    outer = scope.manual - scope.checked_axes if scope is not None else frozenset()
    return manual - outer, has_vma


_NO_ENTRY: tuple[None, None] = (None, None)


class KnownLayout(NamedTuple):
    """The known layout of a shard, over the manual axes.

    Attributes:
      dim_axes: per dim its mesh axes, major to minor.
      unreduced: mesh axes over which it is a partial sum.
      varying: mesh axes over which shards may differ in any way (``~``).
      invarying: those over which all shards are the same, whatever JAX's type says.
      covered_axes: the axes that the layout describes; nothing is known of those of outer regions.
      text: the hint or pattern as it was written.
      place: where that was written, as a message names it.
      addend_axes: those over which each shard holds its own addend of a sum that was not taken.
    """

    dim_axes: tuple[tuple[str, ...], ...]
    unreduced: frozenset[str]
    varying: frozenset[str]
    invarying: frozenset[str]
    covered_axes: frozenset[str]
    text: str
    place: str
    addend_axes: frozenset[str] = _NO_AXES


# Weak, and keyed by identity since a tracer compares by value: an entry goes with its tracer.
_known: dict[int, tuple[weakref.ref[Any], KnownLayout | LayoutAssertion]] = {}


def record_layout(value: Any, what: KnownLayout | LayoutAssertion) -> None:
    """Record the layout of a tracer; other values may be shared by programs, and nothing is recorded of them.

    An assertion becomes a layout when it is looked up. What was known to be invarying stays so, whatever a hint says.
    """
    if not _jax.array.is_tracer(value):
        return
    key = id(value)
    ref, before = _known.get(key, _NO_ENTRY)
    if ref is None or before is None or ref() is not value:
        _known[key] = (weakref.ref(value, partial(_forget, key)), what)
        return
    if isinstance(what, LayoutAssertion):
        invarying = before.must_be_invarying if isinstance(before, LayoutAssertion) else before.invarying
        what = what._replace(must_be_invarying=what.must_be_invarying | invarying) if invarying else what
    _known[key] = (ref, what)


def _forget(key: int, _: object) -> None:
    _known.pop(key, None)


def lookup_layout(value: Any) -> KnownLayout | None:
    """The known layout of a value; under differentiation, of its primal."""
    while value is not None:
        ref, what = _known.get(id(value), _NO_ENTRY)
        if ref is not None and ref() is value:
            if not isinstance(what, LayoutAssertion):
                return what
            hint, region, subject, function, _, invarying, _ = what
            rank = len(_jax.array.aval_of(value).shape)
            return region.cache.plan((hint, subject, function, invarying, rank), partial(_assertion_layout, what, rank))
        value = _jax.array.jvp_primal(value)
    return None


def _assertion_layout(stated: LayoutAssertion, rank: int) -> KnownLayout | None:
    layout = stated.region.manual_layout(stated.hint, rank)
    if layout is None:
        return None
    place = f"{stated.function}'s hint of {stated.subject.phrase}"
    text = f"{stated.subject}: {stated.hint.text}"
    invarying = stated.must_be_invarying - layout.sharded - layout.unreduced
    return KnownLayout(layout.dim_axes, layout.unreduced, layout.varying, invarying, layout.covered_axes, text, place)
