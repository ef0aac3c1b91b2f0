"""The mesh context of a check, the scope of a call with its sizes, and the known layouts of tracers.

A mesh context has the mesh axes for reading a shape; a scope belongs to one call, and holds the sizes that its hints
bound. Threads do not see each other's scopes. JAX's type of a shard has its shape and the axes over which it varies,
but not the mesh axes of each dim: these are recorded by the identity of the tracer, for its lifetime."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial, reduce
from itertools import repeat
from sys import modules
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from .. import _jax
from ..axis_names import FLAX, NO_NAMING, AliasPairs, AxisNaming, flax_naming, naming_context
from ..errors import TypedShmapError, error_of
from ..errors.failures import Failure, Fault, Subject
from ..errors.report import Report
from ..notation.layout import NO_AXES, Layout, Rules, Unresolved, resolve
from ..notation.match import NO_SIZES, Sizes
from .array_hint import ArrayHint

T = TypeVar("T")
SizedAxes = tuple[tuple[str, int], ...]
"""Mesh axes with their sizes."""
Role = Literal["value", "boundary", "placement"]
_MOST_PLANS = 16384


@dataclass(frozen=True)
class MeshContext:
    """The context in which values are checked.

    Attributes:
      mesh: all mesh axes with their sizes; None if no mesh is known.
      manual: the axes over which a value is one shard.
      placed_axes: the axes over which a value will be placed, which no mark may name.
      boundary_axes: the axes of the boundary that an argument or a result crosses.
      checked_axes: the axes that a hint must mention if a value varies over them, without axes of size 1.
      has_vma: whether JAX types values as varying here.
      aliases: names in hints that stand for mesh axes.
      role: the kind of check. ``"value"``: a value as it is; ``"boundary"``: an argument or
        a result of a ``typed_shard_map``; ``"placement"``: a value that will be placed. In
        the last two NumPy arrays and Python scalars count as the JAX arrays that they become.
      explicit: the mesh axes of type Explicit.
      rules: mesh axes for dims of hints without brackets.
      inferred_axes: the axes over which the traced body is analyzed, which may find a varying value invarying.
      plans: cached results of this context, by their keys: compiled hints, layouts, specs, the steps of operations.
        Bounded.
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
    # Without this cache a typed helper of a list takes 15 times the calls, an einsum 2.5 times (`bench/caches.py`).
    plans: dict[Any, Any] = field(init=False, compare=False, repr=False, default_factory=dict)

    @classmethod
    @lru_cache(maxsize=256)  # `isinstance` takes 8 times the calls without it: `plans` belong to one object
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
        """The mesh context for a mesh; for None or an empty mesh, the context without a mesh."""
        axes, explicit = None, NO_AXES
        if mesh is not None and not mesh.empty:
            axes, explicit = mesh.shape_tuple, _jax.mesh.explicit_axes(mesh)
        checked_axes = checked_axes.difference(axis for axis, size in manual if size == 1)
        where = (axes, manual, placed_axes, boundary_axes, checked_axes, has_vma)
        return cls(*where, naming.aliases, role, explicit, naming.rules, inferred_axes)

    def but(self, **changes: Any) -> MeshContext:
        """This context with other fields; the same object for the same changes."""

        def make() -> MeshContext:
            changed = replace(self, **changes)
            return self if changed == self else changed

        return self.plan(("but", *changes.items()), make)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the manual axes."""
        return dict(self.manual)

    @cached_property
    def nontrivial_axes(self) -> frozenset[str]:
        """The manual axes with several shards: over an axis of size 1 nothing varies, is sharded or unreduced."""
        return frozenset(axis for axis, size in self.manual if size > 1)

    def layout(self, hint: ArrayHint) -> Layout | Unresolved:
        """The layout of a hint."""
        if (cached := self.plans.get(("layout", hint))) is not None:
            return cached
        rules, mesh = self.rules if hint.takes_rules else None, None if self.mesh is None else dict(self.mesh)
        layout = resolve(hint.spec, dict(self.aliases), mesh, rules, self.explicit, self.sizes)
        return self.keep(("layout", hint), layout)

    def keep(self, key: Any, value: T) -> T:
        """Keep a result; returns it."""
        if len(self.plans) >= _MOST_PLANS:
            self.plans.clear()
        self.plans[key] = value
        return value

    def plan(self, key: Any, make: Callable[[], T]) -> T:
        """The cached result of ``make`` for a key of shapes, hints and patterns; an error is not cached."""
        cached = self.plans.get(key)
        return self.keep(key, make()) if cached is None else cached

    def manual_layout(self, hint: ArrayHint, rank: int) -> Layout | None:
        """The layout of a shard of a rank, over the nontrivial axes; None for a hint that names unknown mesh axes."""
        if (cached := self.plans.get((hint, rank))) is not None:
            return cached
        layout = self.layout(hint)
        if not isinstance(layout, Layout):
            return None
        return self.keep((hint, rank), layout.at_rank(rank, hint.spec.rest).over(self.nontrivial_axes))

    def spec(self, hint: ArrayHint, rank: int) -> Any:
        """The PartitionSpec of a hint, of full rank, over the boundary's axes if there is a boundary."""
        if (cached := self.plans.get(("spec", hint, rank))) is not None:
            return cached
        layout = self.layout(hint)
        assert isinstance(layout, Layout)
        layout = layout.at_rank(rank, hint.spec.rest)
        layout = layout.over(self.boundary_axes) if self.boundary_axes else layout
        return self.keep(("spec", hint, rank), _jax.array.spec_of(layout))

    def report(self, function: str, failures: tuple[Failure, ...], sizes: Sizes, place: str = "") -> Report:
        """The report of failures in this context."""
        used = tuple((name, axes) for name, axes in self.aliases if axes != (name,))
        manual = tuple(self.sizes) if self.manual else None
        rules = self.rules.pairs if self.rules is not None else ()
        return Report(function, failures, self.mesh or (), manual, bool(self.manual), used, sizes, rules, place)

    def error(
        self, function: str, failures: Iterable[Failure], sizes: Sizes = NO_SIZES, place: str = ""
    ) -> TypedShmapError:
        """The error for failures in this context."""
        return error_of(self.report(function, tuple(failures), sizes, place))


class AssertionSink(Protocol):
    """Collects the assertions about values of a body, which is analyzed after its trace."""

    @property
    def axes(self) -> frozenset[str]:
        """The mesh axes over which the body is analyzed."""
        ...

    def assert_layout(
        self, value: Any, assertion: LayoutAssertion, layout: Layout | None, known: KnownLayout | None
    ) -> Any:
        """The value, with the assertion recorded."""
        ...

    def with_cause(self, value: Any, what: Fault, layout: Layout | None) -> Fault:
        """A fault of a value with an expected layout, with its cause, as far as the body has been traced."""
        ...


class LayoutAssertion(NamedTuple):
    """The assertion that a value fits a hint.

    Attributes:
      hint: the hint.
      region: the mesh context.
      subject: the value's name.
      function: the function that asserts it.
      sizes: the sizes of names.
      must_be_invarying: the mesh axes over which it is varying by JAX's type, and invarying by the hint.
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
    """The scope of one call.

    Attributes:
      function: the called function's name.
      arguments: its arguments, for ``{self.heads}``.
      sizes: the sizes bound so far.
      naming: the naming of the enclosing decorators.
      region: the mesh context of the scope.
      sink: the analysis of the region's body, which collects assertions about its values.
      depth: the number of naming contexts entered before the scope; later ones override ``naming``.
      cached: the last mesh context, after the values that it was derived from: a typed helper takes 1.3 times the
        calls without it.
      jaxtyped_depth: the number of open calls of ``jaxtyped`` functions when it was entered.
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
    """Make a scope the innermost one, inside a ``with``."""

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
    """The running calls of ``jaxtyping.jaxtyped`` functions in this thread, each with its names and arguments.

    They are read from jaxtyping's private storage, since it has no public interface; empty if that is missing.
    """
    return getattr(getattr(sys.modules.get(_JAXTYPING), "_shape_storage", None), "memo_stack", ())


def isinstance_scope() -> CallScope:
    """The innermost scope, or the scope of a ``jaxtyping.jaxtyped`` function inside it, with its own names."""
    scope, calls = _scope.get(), _jaxtyped_calls()
    if len(calls) > (0 if scope is None else scope.jaxtyped_depth):
        match calls[-1]:
            case (dict() as names, *_, dict() as arguments):
                # Stored among the names of the call, so that it ends with the call; jaxtyping hides names like this.
                return names.setdefault("~~delete~~ typedshmap", CallScope("", arguments))
            case _:
                pass
    return CallScope("", {}) if scope is None else scope


def current_mesh_context(naming: AxisNaming = NO_NAMING, is_stated: bool = True) -> MeshContext:
    """The mesh context of the innermost scope; ``is_stated`` if the analysis of the body may decide a match."""
    mesh, context, scope = _jax.mesh.context_mesh(), naming_context.value, _scope.get()
    flax = flax_naming() if FLAX in modules else NO_NAMING
    if mesh.empty and (of_jit := _jax.mesh.jit_mesh.value) is not None:
        mesh = of_jit
    if scope is not None and scope.cached is not None:
        of_mesh, of_context, of_flax, of_naming, of_stated, region = scope.cached
        is_same = of_mesh is mesh and of_context is context and of_flax is flax
        if is_same and of_naming is naming and of_stated == is_stated:
            return region
    if scope is None and not mesh.manual_axes:
        is_plain = not context and flax is NO_NAMING
        return MeshContext.over(mesh, naming if is_plain else reduce(AxisNaming.then, (*context, naming), flax))
    manual_axes = _jax.mesh.manual_axes(mesh)
    outer = scope.region if scope is not None else _NOWHERE
    if is_own := outer.sizes == dict(manual_axes):
        checked_axes, has_vma = outer.checked_axes, outer.has_vma
    else:  # a plain jax.shard_map, perhaps inside the scope's region: hints must mention its axes
        checked_axes = frozenset(dict(manual_axes)) - (frozenset(outer.sizes) - outer.checked_axes)
        has_vma = bool(manual_axes) and _jax.mesh.are_values_typed(manual_axes[0][0])
    sink = scope.sink if scope is not None and is_stated else None
    region = MeshContext.over(
        mesh,
        current_axis_naming(naming),
        manual=manual_axes,
        checked_axes=checked_axes,
        has_vma=has_vma,
        inferred_axes=sink.axes & checked_axes if sink is not None else frozenset(),
    )
    # The mesh alone does not identify a region nested in the scope's own.
    if scope is not None and is_own:
        scope.cached = (mesh, context, flax, naming, is_stated, region)
    return region


def current_sink() -> AssertionSink | None:
    """The analysis of the body that is being traced, if any."""
    scope = _scope.get()
    return scope.sink if scope is not None else None


def with_cause(value: Any, what: Fault, layout: Layout | None = None) -> Fault:
    """A fault of a value with an expected layout; with its cause, if the enclosing body is analyzed."""
    sink = current_sink()
    return what if sink is None else sink.with_cause(value, what, layout)


def current_axis_naming(naming: AxisNaming = NO_NAMING) -> AxisNaming:
    """The current naming: the innermost of decorators and context managers wins; the caller's is innermost."""
    scope, contexts = _scope.get(), naming_context.value
    flax = flax_naming() if FLAX in modules else NO_NAMING
    if scope is None and not contexts and flax is NO_NAMING:
        return naming
    decorators = () if scope is None else (scope.naming, *contexts[scope.depth :])
    return reduce(AxisNaming.then, (*contexts, *decorators, naming), flax)


def decorator_axis_naming(naming: AxisNaming) -> AxisNaming:
    """The naming of the decorators of a new scope: its own, applied to that of the enclosing scope."""
    scope = _scope.get()
    return naming if scope is None else scope.naming if naming is NO_NAMING else scope.naming.then(naming)


_NO_ENTRY: tuple[None, None] = (None, None)


class KnownLayout(Layout, kw_only=True):
    """The known layout of a shard, over the manual axes.

    Attributes:
      invarying: the axes over which all shards are the same, regardless of JAX's type.
      covered_axes: the axes that the layout describes; it does not describe the axes of outer regions.
      addend_axes: the axes over which each shard holds an addend of a sum that was not taken.
      text: the hint or the pattern.
      place: the name of its place in messages.
    """

    invarying: frozenset[str]
    covered_axes: frozenset[str]
    addend_axes: frozenset[str] = frozenset()
    text: str
    place: str

    def differs_over(self, axes: frozenset[str]) -> bool:
        """Whether shards are known to differ over one of the axes: a dim is sharded, or the value is unreduced."""
        return not axes.isdisjoint(self.sharded | self.unreduced | self.addend_axes)


# Weak references, keyed by identity since a tracer compares by value: an entry is removed with its tracer.
_known: dict[int, tuple[weakref.ref[Any], KnownLayout | LayoutAssertion]] = {}


def record_layout(value: Any, what: KnownLayout | LayoutAssertion) -> None:
    """Record the layout of a tracer; other values may be shared by programs, and are not recorded.

    An assertion becomes a layout when it is looked up. Axes known to be invarying stay so, regardless of the hint.
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
    """Record the assertions of hints about leaves; for a leaf without a record, as usual, without a call."""
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


StatedShard = tuple[Any, LayoutAssertion, Layout | None]
"""A shard, its assertion, and the asserted layout."""


def assert_each(shards: Sequence[StatedShard], sink: AssertionSink | None) -> list[Any]:
    """Record the layouts of shards for later operations, and pass new assertions to the analysis, if there is one.

    In a loop or a call within the region the shards are replaced by others, with claims in the jaxpr.
    """
    values: list[Any] = []
    for at, (value, stated, layout) in enumerate(shards):  # a hot path: every argument of a helper
        values += [value]
        if sink is None:
            record_layout(value, stated)
            continue
        key = id(value)
        ref, before = _known.get(key, _NO_ENTRY)
        ref = ref if ref is not None and ref() is value else None
        if (
            ref is not None
            and type(before) is LayoutAssertion
            and before.hint is stated.hint
            and before.region is stated.region
            and not (before.must_be_invarying or stated.must_be_invarying or stated.is_assumed)
            and stated.subject.kind != "checked"  # observers need every check, also implied ones
        ):
            _known[key] = (ref, stated)
            continue
        is_new = ref is None and type(value) is _jax.array.STAGED
        values[at] = sink.assert_layout(value, stated, layout, None if is_new else lookup_layout(value))
        record_layout(values[at], stated)
    return values


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
    """The last assertion about a value, if no operation returned the value."""
    ref, what = _known.get(id(value), _NO_ENTRY)
    return what if ref is not None and ref() is value and isinstance(what, LayoutAssertion) else None


class StatedSharding(NamedTuple):
    """The stated sharding of a traced global value over Auto axes, which JAX's type does not have.

    Attributes:
      layout: its layout over these axes.
      axes: the Auto axes.
      mesh: the mesh.
      source: the name of the statement in messages.
    """

    layout: Layout
    axes: frozenset[str]
    mesh: SizedAxes
    source: str


_stated: dict[int, tuple[weakref.ref[Any], StatedSharding]] = {}


def state_sharding(value: Any, layout: Layout, region: MeshContext, source: str) -> None:
    """Record the sharding of a traced global value, as a layout of its rank."""
    if region.mesh is None or not _jax.array.is_tracer(value):
        return
    auto = frozenset(axis for axis, size in region.mesh if size > 1).difference(region.explicit, region.sizes)
    if auto:
        what, key = StatedSharding(layout.over(auto), auto, region.mesh, source), id(value)
        _stated[key] = (weakref.ref(value, partial(_stated.pop, key)), what)


def stated_sharding(value: Any) -> StatedSharding | None:
    """The stated sharding of a traced global value, if any."""
    ref, what = _stated.get(id(value), _NO_ENTRY)
    return what if ref is not None and ref() is value else None


def recorded_values() -> list[Any]:
    """The tracers with recorded layouts, in the order of recording."""
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
