"""``typed_shard_map``: ``jax.shard_map`` whose specs are the hints, checked on both sides.

A call goes: bind the arguments, find the mesh, check every global array, take the arguments apart
into leaves with a PartitionSpec each, and hand them to ``jax.shard_map``; inside, the body gets its
arguments again, and its result is checked, taken apart, and put together outside.

Invariant: under a transformation the program is that of a hand-written ``jax.shard_map``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from . import _jax
from .check import remember_leaves, state_leaves, stated_of
from .decorated import Decorated, name_like, noted
from .errors import TypedShmapError, error_of
from .errors.failures import Failure, NoArray, Varies
from .hints.axes import Axes, AxisRules, Naming, Pairs, read_naming
from .hints.binding import EMPTY, Typed
from .hints.leaf import describe
from .hints.nodes import Anything, array_hints, holds_arrays
from .hints.postponed import caller
from .hints.scope import Axes as RegionAxes
from .hints.scope import (
    Region,
    Scope,
    Stated,
    current_reading,
    current_region,
    entered,
    naming_around,
    naming_here,
    same,
)
from .hints.signatures import Hinted
from .hints.walk import Found, Walk, unresolved
from .inference.reading import Reading, read
from .meshes import find_crossing, read_axis_names, read_mesh
from .notation.layout import Layout
from .notation.sizes import RETURN, Subject
from .notes import add_note
from .tracing import Program, program_of, read_later

F = TypeVar("F", bound=Callable[..., Any])


@overload
def typed_shard_map(
    f: F,
    /,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    axis_names: set[str] | frozenset[str] = frozenset(),
    check_vma: bool = True,
    axes: Mapping[str, Axes] | None = None,
    rules: Pairs | AxisRules | None = None,
    in_types: tuple[Any, ...] | None = None,
    out_types: Any = EMPTY,
) -> F: ...
@overload
def typed_shard_map(
    f: None = None,
    /,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    axis_names: set[str] | frozenset[str] = frozenset(),
    check_vma: bool = True,
    axes: Mapping[str, Axes] | None = None,
    rules: Pairs | AxisRules | None = None,
    in_types: tuple[Any, ...] | None = None,
    out_types: Any = EMPTY,
) -> Callable[[F], F]: ...
def typed_shard_map(
    f: Any = None,
    /,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    axis_names: set[str] | frozenset[str] = frozenset(),
    check_vma: bool = True,
    axes: Mapping[str, Axes] | None = None,
    rules: Pairs | AxisRules | None = None,
    in_types: tuple[Any, ...] | None = None,
    out_types: Any = EMPTY,
) -> Any:
    """Map a function over shards, with ``in_specs`` and ``out_specs`` taken from its hints.

    A drop-in for `jax.shard_map`: the body sees one shard of each argument. Global shapes are
    checked before the call; the result's shape, dtype and varying type are checked inside, when the
    function is traced, at no cost afterwards.

    ```python
    @typed_shard_map(mesh=mesh)  # dp=4, tp=2
    def mlp(
        x: Float[Array, "[batch/dp] model"],  # global f32[8,16], in the body f32[2,16]
        w: Float[Array, "model [ff/tp]"],  # global f32[16,32], in the body f32[16,16]
    ) -> Float[Array, "[batch/dp] [ff/tp]"]:  # in the body f32[2,16], global f32[8,32]
        return jax.nn.relu(x @ w)
    ```

    Args:
      f: the function. Every parameter but ``self`` and ``cls`` has a hint, and so has the result. A
        parameter whose hint holds no array is static; one hinted ``Any`` is closed over.
      mesh: as for `jax.shard_map`; by default the ambient mesh, else that of the arguments, looked
        up at every call.
      axis_names: the mesh axes to make manual; by default all. Axes in hints that are not manual
        are left out of the specs.
      check_vma: as for `jax.shard_map`. Without it JAX does not know which values vary; the library
        infers it from the traced body all the same.
      axes: names in the hints that stand for mesh axes: one, several (major to minor), or None.
      rules: mesh axes for dims without brackets, by their names, as `axis_rules` takes them.
      in_types: one hint per positional argument, for functions that carry none; a tuple, list or dict
        of hints for an argument that is one.
      out_types: the hint of the result; ``tuple[A, B]`` or ``(A, B)`` for several.

    Returns:
      A function that takes global arrays, positional or by keyword, and returns global arrays. On
      concrete arrays a call is compiled as one program.

    Raises:
      AnnotationSyntaxError: when decorating, for a hint that is missing or cannot be read.
      MeshAxisError: for no mesh, or an axis that the mesh does not have.
      ShapeError, DtypeError, ShardingError, VaryingError, StructureError: for arguments or results
        that are not what their hints say; ``error.failures`` holds all of them. The last to be raised
        are those of the traced body as a whole, with the place in the source ("At: file:line").
    """
    _jax.load_extend()
    options = _Options(read_mesh(mesh), read_axis_names(axis_names), bool(check_vma), read_naming(axes, rules))
    if f is None:
        return lambda function: _wrap(function, options, Hinted(function, caller(1), in_types, out_types))
    return _wrap(f, options, Hinted(f, caller(1), in_types, out_types))


@dataclass(frozen=True)
class _Options:
    mesh: _jax.AnyMesh | None
    axis_names: frozenset[str]
    check_vma: bool
    naming: Naming


def _wrap(function: Callable[..., Any], options: _Options, hinted: Hinted) -> Callable[..., Any]:
    @name_like(function)
    def typed_call(*args: Any, **kwargs: Any) -> Any:
        call = _Call(hinted.read(args), options, args, kwargs)
        program = call.program()
        results = program.call(*call.dynamic)  # from this frame, as the module `tracing` says why
        return call.finished(program, results)

    made_of = Decorated("typed_shard_map", hinted, options.mesh, options.naming, options.axis_names)
    return noted(typed_call, made_of)


@dataclass(frozen=True, slots=True)
class _Argument:
    """One argument taken apart: its structure, and where its leaves stand among all leaves."""

    parameter: str
    subject: Subject
    structure: Any
    first: int
    last: int

    def value_of(self, leaves: Sequence[Found]) -> Any:
        """The argument put together again from its leaves."""
        return self.structure.unflatten([leaf.value for leaf in leaves[self.first : self.last]])


class _Call:
    """One call: from bound arguments to global results."""

    def __init__(self, typed: Typed, options: _Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.typed, self.options = typed, options
        self.bound = typed.bind(args, kwargs)
        self.parts: list[_Argument] = []
        self.walk = self._check_arguments()
        self.structure: Any = None
        self.reading = Reading(self.manual) if self.crossing.new else None
        self.results: list[Stated | None] = []
        self.later: TypedShmapError | None = None
        self.out_specs: list[PartitionSpec] = []
        self.dynamic = [leaf.value for leaf in self.walk.leaves if leaf.hint is not None]

    def _check_arguments(self) -> Walk:
        """Check every argument, find the mesh, and list the leaves."""
        arguments = [
            (name, subject, node, value)
            for name, subject, node, value in self.typed.arguments(self.bound)
            if not isinstance(node, Anything)
        ]

        def candidates() -> list[Found]:
            arrays = ((subject, value) for _, subject, node, value in arguments if holds_arrays(node))
            return [Found(leaf, None, subject) for subject, value in arrays for leaf in _jax.leaves(value)]

        options = self.options
        self.crossing = find_crossing(self.typed.name, options.mesh, options.axis_names, candidates)
        self.naming = naming_here(options.naming)
        self.manual = frozenset(name for name, _ in self.crossing.new)
        # A function that makes no axis manual is in the region around it, and check_vma is that one's.
        self.is_typed = options.check_vma if self.manual else current_region().typed
        region = self._region(self.crossing.held, split=self.crossing.new)
        walk = Walk(region, self.bound.arguments)
        spans: list[tuple[int, int]] = []
        for _, subject, node, value in arguments:
            first = len(walk.leaves)
            walk.visit(node, value, subject)
            spans.append((first, len(walk.leaves)))
        walk.settle()
        assert self.typed.result is not None
        self._raise(region, walk, (*walk.failures, *unresolved(self.typed.result, region, RETURN)))
        for (name, subject, node, value), (first, last) in zip(arguments, spans, strict=True):
            if holds_arrays(node):
                structure = jax.tree_util.tree_structure(value)
                self.parts.append(_Argument(name, subject, structure, first, last))
        return walk

    def _raise(self, region: Region, walk: Walk, failures: tuple[Failure, ...]) -> None:
        if failures:
            raise error_of(region.report(self.typed.name, failures, walk.sizes))

    def _region(self, held: RegionAxes, split: RegionAxes = (), watched: frozenset[str] = frozenset()) -> Region:
        mesh = self.crossing.mesh
        region = Region(
            mesh.shape_tuple,
            held,
            split,
            self.manual,
            watched,
            self.is_typed,
            self.naming.aliases,
            "boundary",
            _jax.explicit_axes(mesh),
            self.naming.rules,
        )
        return same(region)

    def program(self) -> Program:
        """What maps the body over the shards; the body itself where all axes are manual already."""
        body = self._body()
        if not self.crossing.new:
            return Program(body, False)
        leaves = [leaf for leaf in self.walk.leaves if leaf.hint is not None]
        self.mapped = jax.shard_map(
            body,
            mesh=self.crossing.mesh,
            in_specs=tuple(self._spec(self.walk.region, leaf) for leaf in leaves),
            # A list that the body fills: the specs of "... [b/dp]" or of a PyTree are known only
            # when the result is, and JAX reads them after it has called the body.
            out_specs=self.out_specs,
            axis_names=self.manual,
            check_vma=self.options.check_vma,
        )
        result = self.typed.result
        return program_of(self.mapped, self.dynamic, self._read, result is not None and holds_arrays(result))

    def finished(self, program: Program, results: Sequence[Any]) -> Any:
        """The result put together, its body read."""
        if program.is_read_later:
            read_later(self.mapped, self.dynamic, results, self._read)
        return jax.tree_util.tree_unflatten(self.structure, results)

    def _read(self, traced: _jax.TracedRegion | None) -> bool:
        """Compare what the body states, and what its hints state of its results, with what it does."""
        assert self.reading is not None
        is_all = read(self.reading, traced, self.results)
        if self.later is not None:
            raise self.later
        return is_all

    def _spec(self, region: Region, leaf: Found) -> PartitionSpec:
        assert leaf.hint is not None
        rank = len(getattr(leaf.value, "shape", ()))
        # All axes are manual already where none is crossed, and no spec is asked for.
        return region.spec(leaf.hint, rank) if self.manual else PartitionSpec()

    def _body(self) -> Callable[..., list[Any]]:
        """What ``jax.shard_map`` maps: leaves in, leaves out."""
        function = self.typed.function

        def body(*shards: Any) -> list[Any]:
            region, leaves = self._entered(shards)
            args, kwargs = self._arguments(leaves)
            scope = self._scope(region)
            with entered(scope):
                try:
                    result = function(*args, **kwargs)
                except TypedShmapError:
                    raise
                except Exception as error:
                    behind = self.reading.behind(error) if self.reading else None
                    if behind is not None:
                        raise behind from error
                    add_note(error, scope, region, leaves, self.reading.unproven if self.reading else ())
                    raise
            return self._check_result(result, region, scope)

        body.__name__ = body.__qualname__ = self.typed.name  # what JAX's own messages call it
        return body

    def _entered(self, shards: tuple[Any, ...]) -> tuple[Region, list[Found]]:
        """The region of the body, and its leaves there, of which is known what the hints say."""
        watched = self.manual or self._mentioned()
        region = self._region(self.crossing.held + self.crossing.new, watched=watched)
        if self.reading is not None:
            self.reading.begin(self.typed.name, region)
        leaves = self._shard_leaves(shards)
        if not self.crossing.new:
            return region, state_leaves(leaves, region, self.typed.name, self.walk.sizes)
        remember_leaves(leaves, region, self.typed.name)
        return region, leaves

    def _scope(self, region: Region) -> Scope:
        return Scope(
            self.typed.name,
            self.bound.arguments,
            self.walk.sizes,
            naming_around(self.options.naming),
            manual=frozenset(region.sizes),
            watched=region.watched,
            typed=self.is_typed,
            reading=self.reading or current_reading(),
        )

    def _mentioned(self) -> frozenset[str]:
        """The axes to watch where all are manual already: those that the function's hints speak of.

        Were they not manual, it would have made them so; of others around it, it need not know.
        """
        region, nodes = self.walk.region, (*self.typed.parameters.values(), *self.typed.positional, self.typed.result)
        layouts = (region.layout(hint) for node in nodes if node is not None for hint in array_hints(node))
        axes = {axis for layout in layouts if isinstance(layout, Layout) for axis in layout.axes}
        return frozenset(axes) & (self.options.axis_names or axes)

    def _shard_leaves(self, shards: tuple[Any, ...]) -> list[Found]:
        """The leaves of all arguments, arrays replaced by their shards."""
        remaining = iter(shards)
        return [
            leaf if leaf.hint is None else Found(next(remaining), leaf.hint, leaf.subject) for leaf in self.walk.leaves
        ]

    def _arguments(self, leaves: Sequence[Found]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments with shards in the place of global arrays."""
        return self.bound.replaced((part.parameter, part.subject, part.value_of(leaves)) for part in self.parts)

    def _check_result(self, result: Any, region: Region, scope: Scope) -> list[Any]:
        """Check what the body returned; note its structure and specs."""
        walk = Walk(region, self.bound.arguments, scope.sizes)
        assert self.typed.result is not None
        walk.visit(self.typed.result, result, RETURN)
        walk.settle()
        if walk.failures and self._is_told_later(walk.failures):
            self.later = error_of(region.report(self.typed.name, tuple(walk.failures), walk.sizes))
            self.out_specs[:] = []
            return []
        self._raise(region, walk, tuple(walk.failures))
        stuck = [leaf for leaf in walk.leaves if _jax.refusal(leaf.value) is not None]
        self._raise(region, walk, tuple(Failure(NoArray(describe(leaf.value)), leaf.subject) for leaf in stuck))
        self.structure = jax.tree_util.tree_structure(result)
        self.out_specs[:] = [self._spec(region, leaf) if leaf.hint else PartitionSpec() for leaf in walk.leaves]
        self.results = [stated_of(leaf, region, self.typed.name, walk.sizes) for leaf in walk.leaves]
        leaves = walk.leaves
        if not self.crossing.new:
            leaves = state_leaves(leaves, region, self.typed.name, walk.sizes)
        return [self._handed_on(leaf, region) for leaf in leaves]

    def _is_told_later(self, failures: Sequence[Failure]) -> bool:
        """Whether a result that varies may come of something that the reading finds, which is told instead."""
        waits = self.reading is not None and bool(self.reading.unproven)
        return waits and all(isinstance(failure.what, Varies) for failure in failures)

    def _handed_on(self, leaf: Found, region: Region) -> Any:
        """A result at the type of its hint: ``+axis`` becomes unreduced, ``-axis`` reduced."""
        if leaf.hint is None:
            return leaf.value
        layout = region.layout(leaf.hint)
        assert isinstance(layout, Layout)
        value = _jax.leave_unreduced(leaf.value, layout.unreduced) if layout.unreduced else leaf.value
        return _jax.make_reduced(value, layout.reduced) if layout.reduced and region.typed else value
