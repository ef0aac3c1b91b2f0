"""``typed_shard_map``: ``jax.shard_map`` with specs from hints; arguments and results are checked.

A call binds the arguments, finds the mesh, checks every global array, and passes the leaves of the arguments to
``jax.shard_map`` with a PartitionSpec each. The body receives the arguments as trees again, and its result is checked
before it is flattened. The analysis compares the hints with the traced body: before the call, or after it if an outer
program is being traced. An exception of the user's code gets a note about the shards."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import count
from typing import Any, TypeVar, overload

import jax
from jax.sharding import AxisType, PartitionSpec

from . import _jax
from .axis_names import AxesLike, AxisRules, RulesLike, read_naming
from .errors import StructureError, TypedShmapError, placed_at_decoration
from .errors.failures import RETURN, Failure, Subject
from .errors.phrases import value_text
from .errors.region_note import has_note, note_of_region
from .errors.varying import DivergentCollective, UnmarkedUnreduced, UnmentionedVarying
from .hints import context, enforcement
from .hints.check_tree import (
    array_leaves,
    assert_layouts,
    check_arguments,
    check_value,
    non_array_failures,
    result_place,
    unknown_axes,
)
from .hints.enforcement import enforced
from .hints.fitting import CheckedLeaf, checked_leaves
from .hints.signature import EMPTY, BoundArgument, BoundCall, LazySignature, Specs
from .hints.specs import Unreadable, disagreements, leaf_specs, says_sharding, specs_of_arguments, with_specs
from .hints.structure import BySpec, Untyped, array_hints, holds_arrays
from .inference.analysis import Refused, RegionAnalysis, analyze_region
from .introspection import DecoratedInfo, caller_frame, decorate, wraps
from .meshes import MeshLike, find_boundary, read_axis_names, read_mesh
from .notation.layout import Layout
from .observers import (
    Boundary,
    HintedValue,
    ObservedCall,
    Observer,
    active,
    hinted_values,
    observed_by,
    observers,
    run_observed,
)

F = TypeVar("F", bound="Callable[..., Any] | classmethod[Any, Any, Any] | property")


@overload
def typed_shard_map(
    f: F,
    /,
    *,
    mesh: MeshLike | None = None,
    axis_names: set[str] | frozenset[str] = frozenset(),
    check_vma: bool = True,
    in_specs: Any = ...,
    out_specs: Any = ...,
    axes: Mapping[str, AxesLike] | None = None,
    rules: RulesLike | AxisRules | None = None,
    in_types: Any = None,
    out_types: Any = EMPTY,
    sanitize: int | None = None,
) -> F: ...
@overload
def typed_shard_map(
    f: None = None,
    /,
    *,
    mesh: MeshLike | None = None,
    axis_names: set[str] | frozenset[str] = frozenset(),
    check_vma: bool = True,
    in_specs: Any = ...,
    out_specs: Any = ...,
    axes: Mapping[str, AxesLike] | None = None,
    rules: RulesLike | AxisRules | None = None,
    in_types: Any = None,
    out_types: Any = EMPTY,
    sanitize: int | None = None,
) -> Callable[[F], F]: ...
def typed_shard_map(
    f: Any = None,
    /,
    *,
    mesh: MeshLike | None = None,
    axis_names: set[str] | frozenset[str] = frozenset(),
    check_vma: bool = True,
    in_specs: Any = ...,
    out_specs: Any = ...,
    axes: Mapping[str, AxesLike] | None = None,
    rules: RulesLike | AxisRules | None = None,
    in_types: Any = None,
    out_types: Any = EMPTY,
    sanitize: int | None = None,
) -> Any:
    """Map a function over shards, with ``in_specs`` and ``out_specs`` from its hints or from the caller.

    A drop-in for `jax.shard_map`: the body sees one shard of each argument. Global shapes are
    checked before the call. The result's shape, dtype and varying type are checked while the
    function is traced, and cost nothing afterwards. To convert a call of `jax.shard_map`, replace its name: a value
    without a hint is sharded by its spec, and the body is analyzed all the same.

    ```python
    @typed_shard_map(mesh=mesh)  # dp=4, tp=2
    def mlp(
        x: Float[Array, "[batch/dp] model"],  # global f32[8,16], in the body f32[2,16]
        w: Float[Array, "model [ff/tp]"],  # global f32[16,32], in the body f32[16,16]
    ) -> Float[Array, "[batch/dp] [ff/tp]"]:  # in the body f32[2,16], global f32[8,32]
        return jax.nn.relu(x @ w)
    ```

    Args:
      f: the function. The result and every parameter except ``self`` and ``cls`` need a hint or a spec;
        ``*args``, ``**kwargs`` and parameters with a default need none. A parameter without a hint, or whose hint
        holds no array, is static; a parameter hinted ``Any`` is closed over. A ``float`` or ``int`` parameter
        accepts an array of rank 0.
      mesh: as for `jax.shard_map`, or a dict of sizes, or a text ``"dp=4,tp=2"``, whose devices are those of the
        ambient mesh or of the arguments; by default the ambient mesh, else the arguments' own, looked up at every
        call.
      axis_names: the mesh axes to make manual; by default all. The specs leave out axes of hints
        that are not manual.
      check_vma: as for `jax.shard_map`. If False, JAX does not track which values vary; the library
        still infers it from the traced body.
      in_specs: as for `jax.shard_map`, for arguments by position: a prefix of their tree, with None for static
        arguments; by default inferred over Explicit axes. Where an argument has a hint too, both must agree.
      out_specs: the same for the result.
      axes: names in the hints that stand for mesh axes: one, several (major to minor), or None.
      rules: mesh axes for dims without brackets, by their names, as `axis_rules` takes them.
      in_types: a tuple of hints, one per positional argument, for functions without annotations; an item
        may be a tuple, list or dict of hints. A single hint is short for a tuple of one.
      out_types: the hint of the result; ``tuple[A, B]`` or ``(A, B)`` for several.
      sanitize: compare replicated values across shards on the devices at every N-th call; by default as set
        by an enclosing `sanitize`.

    Returns:
      A function that takes global arrays, positional or by keyword, and returns global arrays. On
      concrete arrays a call is compiled as one program.

    Raises:
      AnnotationSyntaxError: when decorating, for a hint that is missing or cannot be read.
      MeshAxisError: without a mesh, or for an axis that the mesh does not have.
      ShapeError, DtypeError, ShardingError, VaryingError, StructureError: for arguments or results
        that contradict their hints and specs; ``error.failures`` holds all of them. Errors that need the whole
        traced body are raised last, with the place in the source ("At: file:line").
    """
    _jax.trace.load_extend()
    with placed_at_decoration():
        given_mesh, names, own_naming = read_mesh(mesh), read_axis_names(axis_names), read_naming(axes, rules)
        own_observer = None if sanitize is None else _own_observer(sanitize)
        try:
            is_typed = bool(check_vma)
        except Exception:  # an array's truth is unclear
            raise StructureError(f"check_vma= expects True or False, got {value_text(check_vma)}") from None

    def wrap(function: Callable[..., Any], hinted: LazySignature, below: DecoratedInfo | None) -> Callable[..., Any]:
        naming = own_naming if below is None else below.naming.then(own_naming)
        info = DecoratedInfo("typed_shard_map", hinted, given_mesh, naming, names, specs)
        calls = count()

        @wraps(function, info)
        def typed_call(*args: Any, **kwargs: Any) -> Any:
            call = None
            try:
                call = _RegionCall(info, is_typed, args, kwargs)
                if own_observer is not None or (active and observers()):
                    results = call.run_observed(own_observer, calls)
                else:
                    mapped = call.map_body()
                    # From this frame: JAX records the whole stack with every equation that it traces.
                    results = mapped(*call.arrays)
                if call.analyzed_after is not None:
                    call.analyze_after(results)
                return jax.tree_util.tree_unflatten(call.result_structure, results)
            except TypedShmapError:
                raise
            except Exception as error:
                is_of_body = (call is not None and call.raised is not None) or isinstance(error, RuntimeError)
                if is_of_body and isinstance(error, _NEEDS_VALUES):  # JAX evaluates op by op, and there are values
                    is_of_body = not _jax.trace.is_outside_traces()
                if specs is not None and not is_of_body:
                    options = {"mesh": given_mesh, "axis_names": axis_names, "check_vma": check_vma}
                    results = _call_by_jax(function, specs, options, args, kwargs)
                    if isinstance(error, (Unreadable, *_NEEDS_VALUES)):
                        return results
                _jax.versions.note_untried(error)
                if is_typed and (cause := _cause_behind(error, info, args, kwargs)):
                    raise cause from error
                raise

        return typed_call

    specs = None if in_specs is ... and out_specs is ... else Specs(in_specs, out_specs)
    if f is None:
        return lambda function: decorate(function, wrap, caller_frame(1), in_types, out_types, specs=specs)
    return decorate(f, wrap, caller_frame(1), in_types, out_types, specs=specs)


def _own_observer(every: Any) -> Observer:
    # The only option of the decorator that belongs to a tool: imported only if it is set.
    from .tools.sanitize.sanitizer import Sanitizer

    return Sanitizer.of("sanitize=", every)


_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def _call_by_jax(
    function: Callable[..., Any], specs: Specs, options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call ``jax.shard_map`` itself, whose errors name the specs by the trees that the user passed."""
    if kwargs:
        bound = inspect.signature(function).bind(*args, **kwargs)
        function, args = partial(function, **bound.kwargs), bound.args
    if specs.in_specs is not ...:
        options["in_specs"] = specs.in_specs
    options["out_specs"] = specs.out_specs if specs.has_results else PartitionSpec()
    try:
        return _jax.mesh.shard_map(function, **options)(*args)
    except Exception as error:
        raise error from None


class _RegionCall:
    """One call: bind, find the mesh, check the arguments, map the body over the shards, enter it, check its result."""

    def __init__(self, info: DecoratedInfo, check_vma: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.typed = typed = info.signature.read(args)
        self.raised: Exception | None = None  # by the function
        self.info, self.check_vma = info, check_vma
        self.bound = self._bound(args, kwargs)
        arguments = self.typed.arguments(self.bound)
        try:
            self.mesh, self.outer, self.entered = find_boundary(
                typed.name, info.mesh, info.axis_names, lambda: array_leaves(arguments)
            )
        except TypedShmapError as error:
            if info.specs is not None:
                raise Unreadable(str(error)) from None
            raise
        self.naming = context.current_axis_naming(info.naming)
        self.manual = frozenset(dict(self.entered))
        given, specs = self._given(arguments)
        # A function that makes no axis manual runs in the enclosing region, with the check_vma of that region.
        self.has_vma = check_vma if self.manual else context.current_mesh_context().has_vma
        self.outer_context = self._context_around()

        self.checked = check_arguments(given, self.bound.arguments, self.outer_context, typed.fits)
        unknown = unknown_axes(typed.result, self.outer_context, RETURN) if typed.result is not None else []
        failures = self.checked.failures and enforced(self.checked.failures)
        if failures := [*failures, *unknown]:
            raise self.outer_context.error(typed.name, failures, self.checked.sizes)

        self.given_specs = None if specs is None else self._compare_specs(specs)
        self.arrays = [leaf.value for leaf in self.checked.leaves if leaf.hint is not None]
        self.analysis = RegionAnalysis(self.manual) if self.entered and enforcement.IS_ON else None
        self.analyzed_after: Callable[..., Any] | None = None
        self.is_again = False  # the second trace, for degrees: errors of its results are reported already
        # Set by the body while it is traced.
        self.result_structure: Any = None
        self.results: list[context.LayoutAssertion | Refused | None] = []
        self.out_specs: list[PartitionSpec] = []

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall:
        """The arguments by name; by position if a wrapper has other parameters than the function it wraps."""
        try:
            return self.typed.bind(args, kwargs)
        except StructureError as error:
            if self.info.specs is None or kwargs:
                raise
            if not hasattr(self.typed.function, "__wrapped__"):
                raise Unreadable(str(error)) from None
        self.typed = self.typed.by_position
        return self.typed.bind(args, kwargs)

    def _given(
        self, arguments: Sequence[BoundArgument]
    ) -> tuple[list[BoundArgument], list[tuple[Any, ...] | None] | None]:
        """The arguments that are not closed over, with the specs of each if the caller passed specs."""
        if self.info.specs is None:
            return [argument for argument in arguments if not isinstance(argument[2], Untyped)], None
        if not self.entered:
            raise Unreadable("no axis is left to be made manual")
        types = dict(zip(self.mesh.axis_names, self.mesh.axis_types, strict=True))
        is_explicit = all(types[axis] is AxisType.Explicit for axis in self.manual)
        infer = partial(_jax.array.inferred_spec, axes=self.manual) if is_explicit else None
        found_specs = specs_of_arguments(self.info.specs, self.typed, self.bound, arguments, infer)
        pairs = [(with_specs(argument, specs), specs) for argument, specs in zip(arguments, found_specs, strict=True)]
        given = [(argument, specs) for argument, specs in pairs if not isinstance(argument[2], Untyped)]
        return [argument for argument, _ in given], [specs for _, specs in given]

    def _compare_specs(self, specs: Sequence[tuple[Any, ...] | None]) -> list[PartitionSpec | None]:
        """The spec of each array, None without one; raises if a hint contradicts a spec."""
        array_specs, failures = list[PartitionSpec | None](), list[Failure]()
        for ((_, _, node, _), leaves), argument_specs in zip(self.checked.by_argument(), specs, strict=True):
            if argument_specs is not None and not isinstance(node, BySpec):
                failures += disagreements(leaves, argument_specs, "in_specs", self.outer_context)
            pairs = zip(leaves, argument_specs or [None] * len(leaves), strict=True)
            array_specs += [spec for leaf, spec in pairs if leaf.hint is not None]
        if failures:
            raise self.outer_context.error(self.typed.name, failures, self.checked.sizes)
        return array_specs

    def _context_around(self) -> context.MeshContext:
        """The mesh context outside the region, where the arguments are global arrays."""
        return context.MeshContext.over(
            self.mesh, self.naming, "boundary", self.outer, boundary_axes=self.manual, has_vma=self.has_vma
        )

    def map_body(self) -> Callable[..., Any]:
        """The function to call with the global arrays: the body mapped over the shards, and analyzed.

        While an outer program is traced, with or without differentiation, the call is JAX's own, and the analysis
        follows it. Otherwise the analysis comes first.
        """
        if not self.entered:
            return self._body()
        mapped = program = self.mapped()
        if not _jax.trace.is_jit_disabled() and _jax.staging.are_staged(self.arrays):
            # A tracer among the arguments means that its trace is running.
            if _jax.array.STAGED not in map(type, self.arrays) and _jax.trace.is_outside_traces():
                program = jax.jit(mapped)
                traced = program.trace(*self.arrays)  # at every call, so that no closed-over value is stale
                self._analyze(_jax.regions.find_region(traced.jaxpr))
                return _jax.programs.compiled(traced, self.arrays, self.typed.name) or program
            elif self.typed.result is None or holds_arrays(self.typed.result):
                self.analyzed_after = mapped if self.analysis else None
                return mapped
            else:  # no result would lead to the region in the enclosing jaxpr
                program = _jax.staging.inline_jit(mapped)
        self._analyze(_jax.regions.find_region(_jax.staging.make_jaxpr(program, self.arrays)))
        return program

    def run_observed(self, own_observer: Observer | None, numbers: Iterator[int]) -> Sequence[Any]:
        """Run the body under the observers; the decorator's own observer replaces one of its type."""
        call = ObservedCall(self.typed.name, self.arrays, numbers, self._boundary, bool(self.outer))
        observing = observers()
        if own_observer is not None:
            others = [observer for observer in observing if type(observer) is not type(own_observer)]
            observing = (*others, own_observer)
        with observed_by(observing):
            return run_observed(call, lambda: self.map_body()(*self.arrays))

    def _boundary(self) -> Boundary:
        return Boundary(
            self.mesh,
            self.entered,
            self.outer_context,
            self.checked.sizes,
            hinted_values(self.checked.leaves, self.typed.hint_place),
            [(leaf.subject, leaf.value) for leaf in self.checked.leaves if leaf.hint is None],
            self._hinted_results,
            lambda: jax.jit(self.mapped()).lower(*self.arrays).as_text(),
        )

    def _hinted_results(self, values: Iterable[Any]) -> list[HintedValue]:
        pairs = zip(values, self.results, strict=True)
        stated_values = [(value, stated) for value, stated in pairs if isinstance(stated, context.LayoutAssertion)]
        leaves = [CheckedLeaf(value, stated.hint, stated.subject) for value, stated in stated_values]
        return hinted_values(leaves, lambda _: self.typed.return_place)

    def mapped(self) -> Callable[..., Any]:
        """The body mapped over the shards by ``jax.shard_map``."""
        return _jax.mesh.shard_map(
            self._body(),
            mesh=self.mesh,
            in_specs=self.in_specs(),
            # A list that the body fills: the specs of "... [b/dp]" or of a PyTree depend on the result,
            # and JAX reads them after it has called the body.
            out_specs=self.out_specs,
            axis_names=self.info.axis_names,
            check_vma=self.check_vma,
        )

    def in_specs(self) -> tuple[PartitionSpec, ...]:
        """The spec of each array."""
        shapes = _jax.array.shapes_of(self.arrays)
        hints = [leaf.hint for leaf in self.checked.leaves if leaf.hint is not None]
        arrays = list(zip(hints, shapes, strict=True))
        specs = {array: self.outer_context.spec(array[0], len(array[1])) for array in dict.fromkeys(arrays)}
        given = self.given_specs or [None] * len(arrays)
        return tuple([specs[array] if spec is None else spec for array, spec in zip(arrays, given, strict=True)])

    def analyze_after(self, results: Sequence[Any]) -> None:
        """Analyze the body from the results, which are tracers of an outer program."""
        traced = _jax.staging.region_of_results(results)
        if traced is None or not self._analyze(traced):
            # No jaxpr holds the whole body, as under jax.vmap: trace it a second time.
            assert self.analyzed_after is not None
            self._analyze(_jax.regions.find_region(jax.make_jaxpr(self.analyzed_after)(*self.arrays)))

    def _analyze(self, traced: _jax.regions.TracedRegion | None) -> bool:
        """Compare the hints and checks of the body with its jaxpr; False if parts of the jaxpr are missing."""
        if self.analysis is None:  # checks are off
            return True
        try:
            return analyze_region(self.analysis, traced, self.arrays, self.results, self._retraced)
        except TypedShmapError as error:  # an argument that is returned unchanged has no equation and no place
            error.place = error.place or self.typed.return_place
            raise

    def _retraced(self, axis: str, size: int) -> Any:
        """The body's jaxpr on a mesh with another size of one axis; None if it cannot be traced there."""
        if self.outer or axis not in self.manual:
            return None
        mesh, retraced = _jax.regions.other_mesh(self.mesh, axis, size), copy(self)
        retraced.is_again = True
        retraced.results, retraced.out_specs = [], []
        retraced._move_to(mesh)
        with _jax.mesh.override_mesh(None):
            return _jax.regions.traced_on(mesh, retraced.mapped(), self.arrays, retraced.in_specs())

    def _move_to(self, mesh: _jax.mesh.AnyMesh) -> None:
        """Map the body over another mesh, without an analysis."""
        self.mesh, self.analysis = mesh, None
        self.entered = tuple([(axis, mesh.shape[axis]) for axis, _ in self.entered])
        self.outer_context = self._context_around()

    def _body(self) -> Callable[..., list[Any]]:
        """The function that ``jax.shard_map`` maps: leaves in, leaves out."""
        function = self.typed.function

        def body(*shards: Any) -> list[Any]:
            mesh = _jax.mesh.override_mesh.value
            if mesh is not None and mesh.shape_tuple != self.mesh.shape_tuple:  # run again, on another mesh
                self._move_to(mesh)
            analysis = self.analysis
            region, leaves = self._enter_region(shards)
            args, kwargs = self.bound.with_arguments(self.checked.with_leaves(leaves, copies_containers=True))
            naming, sink = context.decorator_axis_naming(self.info.naming), analysis or context.current_sink()
            scope = context.CallScope(self.typed.name, self.bound.arguments, self.checked.sizes, naming, region, sink)
            with context.scope_entered(scope), _jax.source.at_its_own_line():
                try:
                    result = function(*args, **kwargs)
                except TypedShmapError as error:
                    if analysis and (earlier := analysis.earlier_contradiction()):
                        raise earlier from error
                    raise
                except Exception as error:
                    self.raised = error
                    self._add_note(error, scope, leaves)
                    raise
            results = self._check_result(result, scope)
            if active and self.entered and (observing := observers()):
                arguments = [leaf.value for leaf in leaves if leaf.hint is not None]
                hinted = hinted_values(leaves, self.typed.hint_place)
                inside = self._boundary()._replace(region=region, sizes=scope.sizes, arguments=hinted)
                call = ObservedCall(self.typed.name, arguments, count(), lambda: inside, bool(self.outer))
                for observer in observing:
                    observer.body(call, results)
            return results

        body.__name__ = body.__qualname__ = self.typed.name  # for JAX's messages
        return body

    def _enter_region(self, shards: tuple[Any, ...]) -> tuple[context.MeshContext, list[CheckedLeaf]]:
        """The mesh context of the body, and all leaves with shards for arrays, their layouts asserted."""
        manual, checked_axes = self.outer + self.entered, self.manual
        if self.outer_context.explicit:  # jax.vmap removes the mesh axes of the dim that it maps over
            manual = _jax.mesh.manual_axes(_jax.mesh.context_mesh())
            checked_axes = checked_axes.intersection(dict(manual))
        boundary_axes = checked_axes
        if not self.entered:
            # All axes are manual already: check those of the hints.
            nodes = (*self.typed.parameters.values(), *self.typed.positional, self.typed.result)
            layouts = [self.outer_context.layout(hint) for node in nodes if node for hint in array_hints(node)]
            axes = frozenset(axis for layout in layouts if isinstance(layout, Layout) for axis in layout.axes)
            checked_axes = axes & (self.info.axis_names or axes)
        region = context.MeshContext.over(
            self.mesh, self.naming, "boundary", manual, frozenset(), boundary_axes, checked_axes, self.has_vma
        )
        if self.analysis is not None:
            self.analysis.begin(self.typed, region, self.checked.leaves)
        remaining, checked = iter(shards), self.checked.leaves
        values = [leaf.value if leaf.hint is None else next(remaining) for leaf in checked]
        leaves = checked_leaves(values, [leaf.hint for leaf in checked], [leaf.subject for leaf in checked])
        return region, assert_layouts(leaves, region, self.typed.name, self.checked.sizes, is_proven=bool(self.entered))

    def _check_result(self, result: Any, scope: context.CallScope) -> list[Any]:
        """Check the result, set its structure and specs, and return its leaves, cast to the types of their hints."""
        name, region, analysis = self.typed.name, scope.region, self.analysis
        node, subject, specs = self.typed.result, RETURN, None
        if self.info.specs is not None and self.info.specs.has_results:
            specs = leaf_specs(self.info.specs.out_specs, result, takes_none=False)
            if not says_sharding(node):
                node, subject = BySpec(tuple(specs)), Subject("spec", "return")
        assert node is not None
        checked = check_value(node, result, subject, region, self.bound.arguments, scope.sizes)
        leaves, sizes = checked.leaves, checked.sizes
        failures = checked.failures and enforced(checked.failures)
        if specs is not None and not failures and not isinstance(node, BySpec):
            failures = disagreements(leaves, specs, "out_specs", region)
        self.results.clear()
        self.out_specs.clear()
        # A result whose type varies leaves the region all the same: the analysis finds the cause.
        refused = {failure.subject: failure for failure in failures if isinstance(failure.what, UnmentionedVarying)}
        lets_by = analysis is not None or self.is_again
        if failures and (not lets_by or len(refused) < len(failures)):
            raise region.error(name, failures, sizes, result_place(self.typed, failures, leaves))
        if failures := non_array_failures(leaves, "which is not an array and cannot leave the manual region"):
            raise region.error(name, failures, sizes, result_place(self.typed, failures, leaves))
        self.result_structure = jax.tree_util.tree_structure(result)
        if not self.entered:
            leaves = assert_layouts(leaves, region, name, sizes)
        values: list[Any] = []
        unsharded = PartitionSpec()
        shapes = _jax.array.shapes_of([leaf.value for leaf in leaves])
        known: dict[Any, tuple[Layout, PartitionSpec]] = {}  # most leaves share a hint and a shape
        given = specs or [None] * len(leaves)
        for (value, hint, subject, must_be_invarying), shape, out_spec in zip(leaves, shapes, given, strict=True):
            spec, assertion = unsharded, None
            if hint is not None:
                if (hint, shape) not in known:
                    layout = region.layout(hint)
                    assert isinstance(layout, Layout)
                    known[hint, shape] = layout, region.spec(hint, len(shape)) if self.manual else unsharded
                layout, spec = known[hint, shape]
                spec = spec if out_spec is None else out_spec
                assertion = context.LayoutAssertion(hint, region, subject, name, sizes, must_be_invarying)
                if out_spec is None and subject not in refused and (leaving := layout.unreduced & self.manual):
                    value = _jax.casts.pcast_unreduced(value, leaving)
                if out_spec is None and layout.reduced and region.has_vma:
                    value = _jax.casts.pcast_reduced(value, layout.reduced)
            if subject in refused:
                value, spec = _leaving(value, spec)
                assertion = Refused(refused[subject], sizes, assertion)
            self.results.append(assertion)
            self.out_specs.append(spec)
            values.append(value)
        return values

    def _add_note(self, error: Exception, scope: context.CallScope, leaves: Iterable[CheckedLeaf]) -> None:
        """Add a note about the shards to an exception of the user's code; only the innermost region adds one."""
        _jax.versions.note_untried(error)
        if not has_note(error):
            # What the analysis would have checked after the trace: if it does not hold, that may be the cause.
            unproven = self.analysis.unproven if self.analysis else ()
            arrays = [(leaf.subject, leaf.hint.text, leaf.value) for leaf in leaves if leaf.hint is not None]
            shards = [(subject, text, _jax.array.type_text(value)) for subject, text, value in arrays]
            mesh, aliases = self.mesh.shape_tuple, dict(self.outer_context.aliases)
            error.add_note(note_of_region(error, scope.function, unproven, shards, mesh, scope.sizes, aliases))


def _cause_behind(
    error: Exception, info: DecoratedInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TypedShmapError | None:
    """The cause of JAX's error that two types differ over manual axes, such as those of a carry after a missing psum.

    JAX raises it before the jaxpr is complete, and its advice makes the carry vary, which hides the cause. With
    ``check_vma=False`` the trace reaches the end. Only the part before a gradient counts, since gradients differ there.
    """
    if not _jax.versions.DIFFERING_MANUAL_AXES.search(str(error)):
        return None
    try:
        call = _RegionCall(info, False, args, kwargs)
        traced = _jax.regions.find_region(_jax.staging.make_jaxpr(call.mapped(), call.arrays))
        if call.analysis is not None and traced is not None:
            forward = _jax.regions.before_gradients(traced)
            analyze_region(call.analysis, forward, (), call.results if forward is traced else ())
    except TypedShmapError as cause:
        wrong = cause.failures[0].what if cause.failures else None
        if isinstance(wrong, DivergentCollective):
            return cause
        if isinstance(wrong, UnmentionedVarying | UnmarkedUnreduced):
            named = (re.search(rf"\b{re.escape(axis)}\b", str(error)) for axis in wrong.axes)
            return cause if all(named) else None
    except Exception:  # the user's or JAX's: the caller raises the first error
        return None
    return None


def _leaving(value: Any, spec: PartitionSpec) -> tuple[Any, PartitionSpec]:
    """The value and the spec with which it leaves the region, though it varies over axes its hint omits."""
    first, *other_dims = _jax.array.spec_entries(spec).dim_axes or ((),)
    more = _jax.array.manual_type(value).varying.difference(first, *other_dims)
    return (value if value.shape else value[None]), PartitionSpec((*first, *sorted(more)), *other_dims)
