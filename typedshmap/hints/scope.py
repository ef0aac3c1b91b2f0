"""Where a value is checked (`Region`) and what is bound there (`Scope`).

A region knows mesh axes and says how to read a shape; a scope belongs to one call, and holds the
sizes that its hints bound. Threads do not see each other's scopes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from .. import _jax
from ..errors.failures import Failure, Report
from ..notation.layout import Layout, Rules, Unresolved, resolve
from ..notation.match import View
from ..notation.nodes import Dim, Span, Spec
from ..notation.sizes import NO_SIZES, Sizes, Subject
from .array import ArrayHint
from .axes import NOTHING, Aliases, Naming, current_context, current_depth, current_naming

T = TypeVar("T")
Axes = tuple[tuple[str, int], ...]
"""Mesh axes with their sizes."""


class Lying(NamedTuple):
    """How a hint says that a shard of one rank lies, over the manual axes.

    Attributes:
      parts: per dim its mesh axes, major to minor.
      spans: per dim where it stands in the hint's text.
      sharded: all axes of the parts.
      unreduced: mesh axes over which a sum is owed.
      varying: those over which it may differ, with no more said.
      spoken: those of which all this speaks.
    """

    parts: tuple[tuple[str, ...], ...]
    spans: tuple[Span | None, ...]
    sharded: frozenset[str]
    unreduced: frozenset[str]
    varying: frozenset[str]
    spoken: frozenset[str]


@dataclass(frozen=True)
class Region:
    """Where values are checked.

    Attributes:
      mesh: all mesh axes with their sizes; None where no mesh is known.
      held: the axes over which a value here is one shard.
      split: the axes over which it is about to be split, so that its dims must divide.
      crossed: the axes of the boundary that it crosses, on its way in or out.
      watched: the axes over which a hint must say that a value varies.
      typed: whether JAX types values as varying here.
      aliases: names in hints that stand for mesh axes.
      role: what the check is for. ``"value"``: a value as it stands; ``"boundary"``: an argument or
        a result of a ``typed_shard_map``; ``"placement"``: a value that is about to be placed. In
        the last two NumPy arrays and Python scalars count as the JAX arrays that they become.
      explicit: the mesh axes of type Explicit.
      rules: mesh axes for dims of hints without brackets.
      read: the axes over which the body is read as a whole once it is traced, so that what JAX types as
        varying there may turn out to be equal.
    """

    mesh: Axes | None
    held: Axes
    split: Axes = ()
    crossed: frozenset[str] = frozenset()
    watched: frozenset[str] = frozenset()
    typed: bool = False
    aliases: Aliases = ()
    role: Literal["value", "boundary", "placement"] = "value"
    explicit: frozenset[str] = frozenset()
    rules: Rules | None = None
    read: frozenset[str] = frozenset()

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the axes over which a value here is one shard."""
        return dict(self.held)

    @cached_property
    def known(self) -> Known:
        """What has been worked out of the hints that were seen here."""
        return Known(self)

    def layout(self, hint: ArrayHint) -> Layout | Unresolved:
        """The mesh axes that a hint means here."""
        return self.known.layout(hint)

    def spec(self, hint: ArrayHint, rank: int) -> Any:
        """The PartitionSpec of full rank that a hint means here, over the axes that are crossed, if any are."""
        return self.known.spec(hint, rank)

    def lying(self, hint: ArrayHint, rank: int) -> Lying | None:
        """How a shard of that rank lies by a hint; None for one that names axes that there are not."""
        return self.known.plan((hint, rank), lambda: _lying(hint.spec, self.layout(hint), rank, self))

    def view(self, arguments: Mapping[str, Any]) -> View:
        return View(self.sizes, dict(self.split), arguments)

    @property
    def is_manual(self) -> bool:
        return bool(self.held)

    def report(self, function: str, failures: tuple[Failure, ...], sizes: Sizes, place: str = "") -> Report:
        """The facts of an error here."""
        used = tuple((name, axes) for name, axes in self.aliases if axes != (name,))
        manual = tuple(self.sizes) if self.held else None
        rules = self.rules.pairs if self.rules is not None else ()
        return Report(function, failures, self.mesh or (), manual, self.is_manual, used, sizes, rules, place)


@lru_cache(maxsize=256)
def same(region: Region) -> Region:
    """The region that is equal to this one and was seen before, with all that it knows."""
    return region


_MOST_HINTS = 4096


class Known:
    """Per hint its mesh axes and specs in one region, worked out once; bounded."""

    def __init__(self, region: Region) -> None:
        self.mesh = None if region.mesh is None else dict(region.mesh)
        self.aliases, self.rules = dict(region.aliases), region.rules
        self.crossed = region.crossed or None
        self.layouts: dict[ArrayHint, Layout | Unresolved] = {}
        self.specs: dict[tuple[ArrayHint, int], Any] = {}
        self.plain: dict[ArrayHint, Any] = {}
        self.plans: dict[Any, Any] = {}

    def layout(self, hint: ArrayHint) -> Layout | Unresolved:
        found = self.layouts.get(hint)
        if found is None:
            if len(self.layouts) >= _MOST_HINTS:
                self.layouts.clear()
                self.specs.clear()
                self.plain.clear()
            rules = self.rules if hint.takes_rules else None
            found = self.layouts[hint] = resolve(hint.spec, self.aliases, self.mesh, rules)
        return found

    def plan(self, key: Any, make: Callable[[], T]) -> T:
        """What was worked out under a key, of shapes and patterns only; an error is raised anew each time."""
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
            found = self.specs[hint, rank] = spec_of(hint.spec, layout, rank, self.crossed)
        return found


def _lying(spec: Spec, layout: Layout | Unresolved, rank: int, region: Region) -> Lying | None:
    if not isinstance(layout, Layout):
        return None
    held = frozenset(region.sizes)
    parts: list[tuple[str, ...]] = []
    spans: list[Span | None] = []
    for dim, axes in zip(spec.dims, layout.parts, strict=True):
        if isinstance(dim, Dim):
            parts.append(tuple(axis for axis in axes if axis in held))
            spans.append(dim.span)
        else:
            count = rank - len(layout.parts) + 1
            parts += [()] * count
            spans += [dim.span] * count
    sharded = frozenset(axis for part in parts for axis in part)
    spoken = region.watched | (layout.axes & held)
    return Lying(tuple(parts), tuple(spans), sharded, layout.unreduced & held, layout.varying & held, spoken)


def spec_of(spec: Spec, layout: Layout, rank: int, axes: frozenset[str] | None) -> Any:
    """A PartitionSpec of full rank, with only the given mesh axes if any are given."""
    parts: list[tuple[str, ...]] = []
    for dim, names in zip(spec.dims, layout.parts, strict=True):
        kept = names if axes is None else tuple(name for name in names if name in axes)
        parts += [kept] if isinstance(dim, Dim) else [()] * (rank - len(layout.parts) + 1)
    keep = (lambda marked: marked) if axes is None else (lambda marked: marked & axes)
    return _jax.partition_spec(parts, keep(layout.unreduced), keep(layout.reduced))


class Reading(Protocol):
    """Takes what is stated of the values of a body that is read as a whole once it is traced."""

    @property
    def axes(self) -> frozenset[str]:
        """The mesh axes over which it is read."""
        ...

    def state(self, value: Any, stated: Stated) -> Any:
        """The value, of which that is stated now."""
        ...


class Stated(NamedTuple):
    """What is stated of one value.

    Attributes:
      hint: what it is said to be.
      region: where.
      subject: what it is called.
      function: in which function.
      sizes: what names stand for.
      alike: the mesh axes over which JAX types it as varying, and it is said to be equal.
      is_assumed: whether that is believed.
    """

    hint: ArrayHint
    region: Region
    subject: Subject
    function: str
    sizes: Sizes = NO_SIZES
    alike: frozenset[str] = frozenset()
    is_assumed: bool = False


class Here(NamedTuple):
    """A region, and all that it was told by within a scope."""

    mesh: object
    context: object
    own: Naming
    is_stated: bool
    region: Region

    def is_of(self, mesh: object, context: object, own: Naming, is_stated: bool) -> bool:
        """Whether it would be told again."""
        is_same = self.mesh is mesh and self.context is context and self.own is own
        return is_same and self.is_stated == is_stated


@dataclass
class Scope:
    """What is bound in one call.

    Attributes:
      function: the called function's name.
      arguments: its arguments, for ``{self.heads}``.
      sizes: the sizes bound so far.
      naming: what names in hints mean by the decorators around.
      depth: how many contexts there were when the scope was entered; those since replace ``naming``.
      manual: the manual axes of the region that the scope belongs to.
      watched: those of them that the innermost typed region made manual.
      typed: whether JAX types values as varying in that region.
      reading: what reads the region's body as a whole, and takes what is stated of its values.
      here: the region that was asked for last.
    """

    function: str
    arguments: Mapping[str, Any]
    sizes: Sizes = NO_SIZES
    naming: Naming = NOTHING
    depth: int = field(default_factory=current_depth)
    manual: frozenset[str] = frozenset()
    watched: frozenset[str] = frozenset()
    typed: bool = False
    reading: Reading | None = None
    here: Here | None = None


_scope: ContextVar[Scope | None] = ContextVar("typedshmap_scope", default=None)


def current_scope() -> Scope | None:
    """The innermost scope of this thread."""
    return _scope.get()


@contextmanager
def entered(scope: Scope) -> Generator[Scope]:
    """Make a scope the innermost one."""
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        _scope.reset(token)


def current_region(own: Naming = NOTHING, is_stated: bool = True) -> Region:
    """The region that the program is in, as JAX knows it, with what the innermost scope adds.

    Args:
      own: what the decorator that asks says of names.
      is_stated: whether what is found to fit is stated of the value, so that it may be found out later.
    """
    mesh, context, scope = _jax.context_mesh(), current_context(), _scope.get()
    if scope is not None and scope.here is not None and scope.here.is_of(mesh, context, own, is_stated):
        return scope.here.region
    held = _jax.manual_axes(mesh)
    watched, typed = _watched(scope, held)
    known = None if mesh.empty else mesh.shape_tuple
    reading = scope.reading if scope is not None and is_stated else None
    read = reading.axes & watched if reading is not None else frozenset[str]()
    region = _region_of_values(known, held, watched, typed, naming_here(own), _jax.explicit_axes(mesh), read)
    # Of a region within the scope's own it is not the mesh alone that tells.
    if scope is not None and scope.manual == frozenset(region.sizes):
        scope.here = Here(mesh, context, own, is_stated, region)
    return region


@lru_cache(maxsize=256)
def _region_of_values(
    mesh: Axes | None,
    held: Axes,
    watched: frozenset[str],
    typed: bool,
    naming: Naming,
    explicit: frozenset[str],
    read: frozenset[str],
) -> Region:
    return Region(
        mesh,
        held,
        watched=watched,
        typed=typed,
        aliases=naming.aliases,
        explicit=explicit,
        rules=naming.rules,
        read=read,
    )


def current_reading() -> Reading | None:
    """What reads the body that the program is in."""
    scope = _scope.get()
    return scope.reading if scope is not None else None


def naming_here(own: Naming = NOTHING) -> Naming:
    """What names mean here: the innermost of decorators and context managers wins.

    Args:
      own: what the decorator that asks says, which is the innermost.
    """
    scope, around = _scope.get(), current_naming()
    if scope is None:
        return around.then(own)
    inside = current_naming(scope.depth) if around is not NOTHING else NOTHING
    return around.then(scope.naming).then(inside).then(own)


def naming_around(own: Naming) -> Naming:
    """What the decorators of a new scope say: its own, and those of the scope around it."""
    scope = _scope.get()
    return scope.naming.then(own) if scope is not None else own


def _watched(scope: Scope | None, held: Axes) -> tuple[frozenset[str], bool]:
    """The axes that hints must mention, and whether JAX types values, in a region of these axes.

    A scope knows both for its own region. A plain ``jax.shard_map`` inside of it adds its axes.
    """
    manual = frozenset(name for name, _ in held)
    if not manual:
        return manual, False
    if scope is not None and scope.manual == manual:
        return scope.watched, scope.typed
    typed = _jax.are_values_typed(held[0][0])
    outer = scope.manual - scope.watched if scope is not None else frozenset()
    return manual - outer, typed
