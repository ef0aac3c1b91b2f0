"""Manual regions as they are traced: find them in a program, or watch those of plain programs, from any caller."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial, reduce
from itertools import count
from types import SimpleNamespace
from typing import Any, Literal

import jax
import jax.core
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from ..records import Record
from .array import explicit_spec, has_tangent, is_inexact, is_tracer, spec_entries, strip_transforms
from .jaxpr import all_equations, inner_jaxprs, is_literal, is_transposed, open_jaxpr
from .mesh import AnyMesh, shard_map, without_ambient
from .source import at_its_own_line
from .versions import extend_core

# Cached traces are not reused while regions are watched: this number is in JAX's cache key.
_watch = jax.make_user_context(default_value=0)
_numbers = count(1)
# The second trace of a region is not a region of the program.
is_again = jax.make_user_context(default_value=False)


class RegionBinding(Record):
    """One binding of the primitive of regions, which can be bound again.

    Attributes:
      primitive: the primitive.
      body: the function of the shards.
      params: the parameters, such as the mesh.
      operands: the arrays; a ``jax.ShapeDtypeStruct`` for an unknown value.
      is_under_gradient: for each operand whether it is differentiated.
      names: the names of the operands in the program, if they have any.
    """

    primitive: Any
    body: Any
    params: dict[str, Any]
    operands: tuple[Any, ...]
    is_under_gradient: tuple[bool, ...] = ()
    names: tuple[str, ...] = ()

    def __call__(self, *operands: Any) -> list[Any]:
        """The results for other operands of the same shapes and dtypes."""
        return list(self.primitive.bind(*operands, subfuns=(self.body,), **self.params))

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The names of its operands in the function, if known."""
        return tuple(getattr(self.params.get("debug_info"), "arg_names", None) or ())

    def with_values(self, values: Mapping[str, Any]) -> RegionBinding:
        """The same binding with values for unknown operands, by their names; for a mapped value, its first entry."""
        operands = list(self.operands)
        for at, (operand, name) in enumerate(zip(self.operands, self.names, strict=True)):
            if name in values and isinstance(operand, jax.ShapeDtypeStruct):
                value = values[name]
                while value.ndim > len(operand.shape):
                    shapes = (value.shape[:dim] + value.shape[dim + 1 :] for dim in range(value.ndim))
                    value = value.take(0, next((dim for dim, shape in enumerate(shapes) if shape == operand.shape), 0))
                if value.shape == operand.shape and value.dtype == operand.dtype:
                    operands[at] = value
        return replace(self, operands=tuple(operands))


class RegionTrees(Record):
    """The arguments and the result of a call of ``jax.shard_map``, before JAX flattens them.

    Attributes:
      function: the user's function.
      arguments: the tree structure of the arguments.
      is_array: for each leaf whether it is an array; the others are static.
      result: the tree structure of the result.
      results: its leaves, as ``jax.ShapeDtypeStruct``.
      out_specs: the specs of the result, a prefix of its tree.
    """

    function: Any
    arguments: Any
    is_array: tuple[bool, ...]
    result: Any
    results: tuple[Any, ...]
    out_specs: Any


RegionOrigin = Literal["written", "copied", "derived", "transposed"]
"""The origin of a region: a call of ``jax.shard_map``, a program traced earlier, differentiation, a transpose in it."""


class TracedRegion(Record):
    """A manual region in a traced program.

    Attributes:
      eqn: its equation.
      results: the places of the call's results among those of the equation.
      start: the place of the call's first operand among those of the equation.
      is_differentiated: whether it was differentiated during the trace, and has more results, for the gradient.
      call: its binding, if that is known.
      origin: its origin.
      trees: the arguments and the result of the call, if they are known.
    """

    eqn: Any
    results: tuple[int, ...]
    start: int = 0
    is_differentiated: bool = False
    call: RegionBinding | None = None
    origin: RegionOrigin = "written"
    trees: RegionTrees | None = None


def find_region(jaxpr: Any) -> TracedRegion | None:
    """The last manual region of a program."""
    eqn = next((eqn for eqn in reversed(open_jaxpr(jaxpr).eqns) if eqn.primitive.name == "shard_map"), None)
    return None if eqn is None else TracedRegion(eqn, tuple(range(len(eqn.outvars))))


def before_gradients(traced: TracedRegion) -> TracedRegion:
    """A region up to its first transposed equation, without results; unchanged without such an equation."""
    body = traced.eqn.params["jaxpr"]
    within = ([eqn, *(nested for inner in inner_jaxprs(eqn) for nested in all_equations(inner))] for eqn in body.eqns)
    is_backward = [any(map(is_transposed, equations)) for equations in within]
    if True not in is_backward:
        return traced
    jaxpr = body.replace(eqns=body.eqns[: is_backward.index(True)], outvars=[])
    return TracedRegion(SimpleNamespace(params={**traced.eqn.params, "jaxpr": jaxpr}), ())


@cache
def _region_primitive() -> Any:
    """The primitive of manual regions, from a program that has one."""
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec()
    with without_ambient():
        mapped = shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec)
        return jax.make_jaxpr(mapped)(0.0).eqns[0].primitive


@cache
def _codes_of_bodies() -> Mapping[Any, RegionOrigin]:
    """The code objects of JAX's wrapper of a user's function, and of a transposed region.

    They are read from a program with a gradient. Empty below jax 0.10.2, where a body is the user's function itself.
    """
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,))
    bodies = list[Any]()

    def note(bind: Bind, *args: Any) -> Any:
        if args[-1]["mesh"] is mesh:  # other threads may also trace
            bodies.extend(args[-1].get("subfuns", ()))
        return bind(*args)

    spec = PartitionSpec()
    mapped = shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec)
    with without_ambient(), _binding(lambda bind: partial(note, bind)):
        jax.make_jaxpr(jax.grad(mapped))(0.0)
    return {bodies[0].__code__: "written", bodies[-1].__code__: "transposed"} if bodies else {}


class _Here(threading.local):
    """The state of a thread.

    Attributes:
      is_evaluating: whether it evaluates a region operation by operation.
      traced: the body of the region that it traces before its evaluation.
      handed: the parent traces to which a transformation passes a region.
      functions: the functions of the regions that it traces, from which transformations derive others meanwhile.
    """

    is_evaluating, traced, handed, functions = False, None, frozenset[int](), frozenset[str]()

    @contextmanager
    def setting(self, **changes: Any) -> Generator[None]:
        before = {name: getattr(self, name) for name in changes}
        vars(self).update(changes)
        try:
            yield
        finally:
            vars(self).update(before)


Bind = Callable[..., Any]
NameOperands = Callable[[Any, Sequence[Any]], tuple[list[Any], tuple[str, ...]]]
_bound_by: list[Callable[[Bind], Bind]] = []
_changing = threading.Lock()


@contextmanager
def _binding(around: Callable[[Bind], Bind]) -> Generator[None]:
    """Wrap the binding of regions, in all threads; several wrappers begin and end in any order."""
    primitive = _region_primitive()
    bind_unwatched = type(primitive).bind_with_trace.__get__(primitive)

    def bind(*args: Any) -> Any:
        return reduce(lambda inner, outer: outer(inner), tuple(_bound_by), bind_unwatched)(*args)

    with _changing:
        _bound_by.append(around)
        primitive.bind_with_trace = bind
    try:
        yield
    finally:
        with _changing:
            _bound_by.remove(around)
            if not _bound_by:
                del primitive.bind_with_trace


@contextmanager
def watched_regions(
    see: Callable[[TracedRegion], None], miss: Callable[[str], None], name_operands: NameOperands | None = None
) -> Generator[None]:
    """Report each manual region that is traced, in any thread, inside a ``with``.

    A region that is evaluated operation by operation has no equation, so it is traced before.

    Args:
      see: called with a region, after its body is traced.
      miss: called with the reason if a region cannot be traced.
      name_operands: names the operands of a region that may be run again.
    """
    primitive, codes, here = _region_primitive(), _codes_of_bodies(), _Here()

    def bind_and_see(bind: Bind, trace: Any, *rest: Any) -> Any:
        (body,) = rest[-1].get("subfuns", (None,))
        info = rest[-1].get("debug_info")
        function, origin = str(getattr(info, "func_src_info", "")), _origin_of(body, info, codes)
        is_handed_on = id(trace) in here.handed or function in here.functions
        is_traced = body is not None and body is here.traced
        is_none = bool(is_again.value) or here.is_evaluating or is_traced
        if is_none or (is_handed_on and origin != "written"):
            return bind(trace, *rest)
        chain = [trace]
        while not hasattr(chain[-1], "frame") and (parent := getattr(chain[-1], "parent_trace", None)) is not None:
            chain.append(parent)
        own_line = at_its_own_line() if origin == "written" else nullcontext()
        if not hasattr(chain[-1], "frame"):  # JAX maps each operation by itself
            with here.setting(traced=body, is_evaluating=body is None), own_line:
                why = _trace_for_region(primitive, rest, origin, see)
            with here.setting(is_evaluating=True):
                results = bind(trace, *rest)
            if why:  # only if JAX accepts the region
                miss(why)
            return results
        call = _call_of(primitive, rest)
        # Regions derived by transformations have no argument names, and their operands are named already.
        is_users = getattr(info, "arg_names", None) and not rest[-1]["mesh"].manual_axes
        if name_operands is not None and call is not None and is_users:
            operands, names = name_operands(trace, rest[0])
            call, rest = replace(call, names=names), (operands, *rest[1:])
        functions = here.functions | {function} if function else here.functions
        with here.setting(handed=here.handed.union(map(id, chain[1:])), functions=functions), own_line:
            results = bind(trace, *rest)
        if (region := _region_of(rest[0], list(results), chain[-1])) is not None:
            see(replace(region, call=call, origin=origin or _old_origin(region.eqn), trees=_trees_of(call, results)))
        return results

    with _binding(lambda bind: partial(bind_and_see, bind)), _watch(next(_numbers)):
        yield


def regions_of(jaxpr: Any) -> list[TracedRegion]:
    """The regions of a program, including nested ones and those in rules of ``jax.custom_vjp``."""
    regions, equations = list[TracedRegion](), [*all_equations(jaxpr)]
    for eqn in equations:
        if eqn.primitive is _region_primitive():
            regions.append(TracedRegion(eqn, tuple(range(len(eqn.outvars))), origin=_old_origin(eqn)))
    for eqn in equations:
        if eqn.primitive.name.startswith("custom_vjp_call"):
            known = set(map(_function_of, regions))
            regions += [region for region in _regions_of_rules(jaxpr, eqn) if _function_of(region) not in known]
    return regions


def _function_of(traced: TracedRegion) -> Any:
    """The function of a region, with its place."""
    return getattr(getattr(traced.eqn.params["jaxpr"], "debug_info", None), "func_src_info", None)


def _regions_of_rules(jaxpr: Any, eqn: Any) -> list[TracedRegion]:
    """The regions in the rules of a ``jax.custom_vjp``; empty if they cannot be traced alone."""
    operands = list(dict.fromkeys(atom for atom in eqn.invars if not is_literal(atom)))
    part = jaxpr.replace(eqns=[eqn], constvars=[], invars=operands, outvars=eqn.outvars)
    structs = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, sharding=explicit_spec(var)) for var in operands]
    regions = list[TracedRegion]()

    def gradient(*values: Any) -> Any:
        results, pull = jax.vjp(lambda *values: jax.core.eval_jaxpr(part, (), *values), *values)
        return pull([jax.numpy.zeros(result.shape, result.dtype) for result in results])

    try:
        with watched_regions(regions.append, lambda why: None):
            jax.make_jaxpr(gradient)(*structs)
    except Exception:  # for instance collectives of an outer region, whose axes are unbound here
        return []
    return [region for region in regions if region.origin == "written" or not _codes_of_bodies()]


@contextmanager
def moved_regions(mesh: AnyMesh) -> Generator[None]:
    """Run the regions that this thread traces on another mesh, if it has their axes, inside a ``with``.

    The body is traced with the shards of that mesh. Nested regions use the mesh of the outer region.
    """
    thread = threading.get_ident()

    def bind_moved(bind: Bind, trace: Any, *rest: Any) -> Any:
        own_mesh = rest[-1]["mesh"]
        is_other = own_mesh.shape_tuple != mesh.shape_tuple and set(own_mesh.axis_names) <= set(mesh.axis_names)
        is_of_program = not is_again.value and threading.get_ident() == thread
        if is_other and not own_mesh.manual_axes and is_of_program:
            rest = (*rest[:-1], {**rest[-1], "mesh": mesh})
        return bind(trace, *rest)

    with _binding(lambda bind: partial(bind_moved, bind)):
        yield


@contextmanager
def _without_warnings() -> Generator[None]:
    """Ignore warnings, but keep Python's record of earlier ones, which `warnings.catch_warnings` clears."""
    silent = ("ignore", None, Warning, None, 0)
    filters: Any = warnings.filters
    filters.insert(0, silent)
    try:
        yield
    finally:
        filters.remove(silent)


def other_mesh(mesh: AnyMesh, axis: str, size: int) -> AbstractMesh:
    """The mesh with another size of one axis, without devices."""
    sizes = tuple(size if name == axis else length for name, length in mesh.shape_tuple)
    return AbstractMesh(sizes, tuple(mesh.axis_names), axis_types=mesh.axis_types)


def traced_on(mesh: AbstractMesh, mapped: Callable[..., Any], operands: Sequence[Any], specs: Sequence[Any]) -> Any:
    """The body of the region of a mapped function on a mesh, for global operands of these types.

    None if it cannot be traced there.
    """
    explicit = {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit}
    structs: list[Any] = []
    for operand, spec in zip(operands, specs, strict=True):
        aval, sharding = jax.typeof(operand), None
        if explicit:
            dim_axes = spec_entries(spec, len(aval.shape)).dim_axes
            kept = (axes if explicit.issuperset(axes) else () for axes in dim_axes)
            sharding = NamedSharding(mesh, PartitionSpec(*(axes or None for axes in kept)))
        structs.append(_struct_of(aval, sharding))
    try:
        with without_ambient(), _without_warnings(), _watch(next(_numbers)), is_again(True):
            program = jax.make_jaxpr(mapped)(*structs)
    except Exception:  # any exception of the body for other shards
        return None
    region = find_region(program)
    return None if region is None else _with_numbers(region.eqn, program)


def _with_numbers(eqn: Any, program: Any) -> Any:
    """The body of a region; an operand that JAX hoisted from it is a constant again where it repeats one number."""
    hoisted, body = dict(zip(open_jaxpr(program).constvars, program.consts, strict=True)), eqn.params["jaxpr"]
    values = [None if is_literal(atom) else hoisted.get(atom) for atom in eqn.invars]
    numbers = {var: value for var, value in zip(body.invars, values, strict=True) if _repeats_number(value)}
    if not numbers:
        return body
    rest = [var for var in body.invars if var not in numbers]
    info = body.debug_info._replace(arg_names=None)
    opened = body.replace(constvars=[*numbers], invars=rest, debug_info=info)
    return extend_core().ClosedJaxpr(opened, [*numbers.values()])


def _repeats_number(value: Any) -> bool:
    """Whether an array repeats one number, as from ``numpy.full``, that may be a number of shards."""
    if value is None or is_tracer(value) or not is_inexact(value.dtype) or not value.size:
        return False
    entries = np.ravel(value)
    return entries[0] not in (0, 1) and bool((entries == entries[0]).all())


def _struct_of(aval: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    """The type of an array as a struct."""
    weak_type = getattr(aval, "weak_type", False)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=weak_type)


def _origin_of(body: Any, info: Any, codes: Mapping[Any, RegionOrigin]) -> RegionOrigin | None:
    """The origin of a region, by its body; None if that does not determine it."""
    if not codes:
        return None
    # JAX omits the argument names in regions derived by differentiation.
    other: RegionOrigin = "copied" if getattr(info, "arg_names", None) else "derived"
    return codes.get(getattr(body, "__code__", None), other)


def _old_origin(eqn: Any) -> RegionOrigin:
    """The origin of a region, by its equation."""
    if is_transposed(eqn):
        return "transposed"
    return "written" if getattr(eqn.params["jaxpr"].debug_info, "arg_names", None) else "copied"


def _call_of(primitive: Any, rest: Sequence[Any]) -> RegionBinding | None:
    """The binding of a region; None below jax 0.10.2, which traces a body only once."""
    params = dict(rest[-1])
    bodies = params.pop("subfuns", ())
    if len(bodies) != 1:
        return None
    known, gradients = map(_known_value, rest[0]), map(has_tangent, rest[0])
    return RegionBinding(primitive, bodies[0], params, tuple(known), tuple(gradients))


def _trees_of(call: RegionBinding | None, results: Any) -> RegionTrees | None:
    """The trees of the arguments and the result of a call of ``jax.shard_map``; None for a derived region."""
    tree, code = getattr(results, "tree", None), getattr(getattr(call, "body", None), "__code__", None)
    if call is None or tree is None or code is None:
        return None
    given, names = dict(zip(code.co_freevars, call.body.__closure__ or (), strict=True)), _OF_SHARD_MAP
    if not given.keys() >= {*names}:
        return None
    function, arguments, is_array, out_specs = (given[name].cell_contents for name in names)
    types = [jax.typeof(x) for x in results]
    structs = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in types)
    return RegionTrees(function, arguments, tuple(is_array), tree, structs, out_specs)


_OF_SHARD_MAP = ("f", "in_tree", "which_dyn", "out_specs")
"""What JAX's wrapper of a user's function closes over."""


def _known_value(x: Any) -> Any:
    """The value of an operand without transformations, the first item under vmap; its struct if it is unknown."""
    aval, below = jax.typeof(x), strip_transforms(x) if isinstance(x, jax.core.Tracer) else None
    value = x if below is None else below.value
    if isinstance(value, jax.core.Tracer):
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    is_key = jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key)
    if below is not None and len(below.dims) < np.ndim(value) and not is_key:
        value = np.asarray(value)[tuple([slice(None) if dim in below.dims else 0 for dim in range(np.ndim(value))])]
    return value if np.shape(value) == aval.shape else jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _region_of(operands: Sequence[Any], results: Sequence[Any], trace: Any) -> TracedRegion | None:
    """The region that was just traced; under differentiation, with the indices of the user's results."""
    eqn: Any
    if results:
        below = [strip_transforms(value).value for value in results]
        eqn = next((parent for value in below if (parent := getattr(value, "parent", None)) is not None), None)
        vars_below = {id(getattr(value, "val", None)) for value in below}
    else:
        eqns = getattr(trace.frame, "tracing_eqns", None)
        last = eqns[-1] if eqns else None
        eqn, vars_below = (last() if callable(last) else last), set[int]()
    if eqn is None or eqn.primitive is not _region_primitive():
        return None
    given = {id(getattr(strip_transforms(x).value, "val", None)): at for at, x in enumerate(operands) if is_tracer(x)}
    # Closed-over values come before the operands, and tangents after them.
    start = next((at - given[id(atom)] for at, atom in enumerate(eqn.invars) if id(atom) in given), 0)
    return TracedRegion(eqn, tuple(at for at, var in enumerate(eqn.outvars) if id(var) in vars_below), max(start, 0))


def _trace_for_region(
    primitive: Any, rest: Sequence[Any], origin: RegionOrigin | None, see: Callable[[TracedRegion], None]
) -> str:
    """Trace a region before its evaluation; returns the reason if that fails."""
    args, params, call = rest[0], rest[-1], _call_of(primitive, rest)
    if any(hasattr(arg, "call_wrapped") for arg in args):
        return "it is evaluated operation by operation, which jax 0.10.1 and older do only once: call it under jax.jit"
    try:
        structs = [_struct_of(jax.typeof(x), explicit_spec(x)) for x in args]
        returned = list[Any]()

        def program(*operands: Any) -> list[Any]:
            returned.append(primitive.bind(*operands, **params))
            return list(returned[0])

        traced = jax.make_jaxpr(program)(*structs)
        trees = _trees_of(call, returned[0])
    except Exception as error:
        return f"it cannot be traced: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    for eqn in traced.eqns:
        if eqn.primitive is primitive:
            results, start = tuple(range(len(eqn.outvars))), len(eqn.invars) - len(args)
            see(TracedRegion(eqn, results, start, call=call, origin=origin or _old_origin(eqn), trees=trees))
    return ""
