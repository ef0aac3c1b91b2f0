"""Programs during tracing: make them, and read their equations so far."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from operator import is_not
from typing import Any, NamedTuple

import jax
from jax.interpreters import ad, mlir

from ..records import Record
from .array import STAGED, is_tracer, is_under_gradient, strip_transforms, undifferentiated
from .jaxpr import is_literal
from .regions import TracedRegion
from .source import equation_place
from .versions import DROPS_UNUSED, extend_core

# On jax 0.12 True means "when lowered", and leaves a call in the program.
_EARLY: Any = getattr(jax, "Inline").JAX_EARLY if hasattr(jax, "Inline") else True  # noqa: B009 (not known to 0.10)


def make_jaxpr(f: Any, args: Sequence[Any]) -> Any:
    """The jaxpr of a function; cached for a function under ``jax.jit``."""
    return f.trace(*args).jaxpr if hasattr(f, "trace") else jax.make_jaxpr(f)(*args)


def inline_jit(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function under a new jit, which is inlined in the enclosing jaxpr."""
    return jax.jit(f, inline=_EARLY)


def linearised_once(f: Any) -> Callable[..., Any]:
    """A function of two arrays and hashable options, which JAX linearises once per types of the arrays.

    Otherwise JAX linearises each occurrence, such as the dot of every layer.
    """
    jitted = jax.jit(f, static_argnums=tuple(range(2, f.__code__.co_argcount)), inline=_EARLY)

    def call(first: Any, second: Any, *options: Any) -> Any:
        are_staged = type(first) is STAGED and type(second) is STAGED
        is_differentiated = not are_staged and (is_under_gradient(first) or is_under_gradient(second))
        return (jitted if is_differentiated else f)(first, second, *options)

    return call


def identity_primitive(name: str) -> Any:
    """A primitive that returns its operand. Tangents bypass it: JAX would trace its jvp, which takes longer."""
    primitive = extend_core().Primitive(name)
    bind = primitive.bind_with_trace

    def bind_primal(trace: Any, args: Sequence[Any], *rest: Any) -> Any:
        (x,) = args
        primal, tangent = trace.to_primal_tangent_pair(x) if hasattr(trace, "to_primal_tangent_pair") else (x, None)
        if primal is x:
            return bind(trace, args, *rest)
        return type(x)(trace, primitive.bind_with_trace(trace.parent_trace, (primal,), *rest), tangent)

    primitive.bind_with_trace = bind_primal
    primitive.def_impl(lambda x, **_: x)
    primitive.def_abstract_eval(lambda x, **_: x)
    mlir.register_lowering(primitive, lambda _, x, **__: [x])
    ad.primitive_jvps[primitive] = lambda primals, tangents, **what: (primitive.bind(*primals, **what), tangents[0])
    ad.primitive_transposes[primitive] = lambda cotangent, x, **_: [cotangent]  # a claim about a tangent
    return primitive


def bind_staged(primitive: Any, x: Any, **params: Any) -> Any:
    """Bind a primitive to a tracer of the current jaxpr."""
    return x._trace.process_primitive(primitive, (x,), params)


def is_staged(value: Any) -> bool:
    """Whether a value is a tracer of a jaxpr, not of a transformation that evaluates eagerly."""
    return type(value) is STAGED


def are_staged(values: Iterable[Any]) -> bool:
    """Whether all tracers belong to a jaxpr, perhaps under differentiation."""
    others = [x for x in values if type(x) is not STAGED and is_tracer(x)]  # mostly none
    return all(isinstance(undifferentiated(x), STAGED) for x in others)


def trace_id(value: Any) -> int:
    """The id of the trace of a value."""
    return id(getattr(value, "_trace", None))


def equation_of(value: Any) -> Any:
    """The equation of a tracer of a jaxpr; None for an operand, and any other value."""
    return value.parent if type(value) is STAGED else None


def is_constant(value: Any) -> bool:
    """Whether a value is a literal of the jaxpr being traced."""
    return is_literal(getattr(value, "val", None))


def value_place(value: Any) -> str:
    """The user's place of the equation of a tracer; empty for an operand, and any other value."""
    eqn = equation_of(strip_transforms(value).value) if is_tracer(value) else None
    return equation_place(eqn) if eqn is not None else ""


def variable_of(value: Any, traces: Container[int]) -> Any:
    """The variable of a value, or of its primal, in one of these traces; else None.

    Also None for an operand or a constant of the jaxpr, under ``jax.vmap``, and if JAX drops unused variables.
    """
    below = value if type(value) is STAGED else undifferentiated(value)
    if DROPS_UNUSED or type(below) is not STAGED or below.parent is None:
        return None
    return below.val if id(below._trace) in traces else None  # pyright: ignore[reportPrivateUsage]


def is_within(value: Any, traces: Container[int]) -> bool:
    """Whether a value belongs to an inner jaxpr, such as the body of a loop, and not to one of these traces."""
    return type(value) is STAGED and id(value._trace) not in traces  # pyright: ignore[reportPrivateUsage]


def is_transformed_before(value: Any, traces: Container[int]) -> bool:
    """Whether there is a transformation between a value's trace and these traces, as for a loop under a gradient."""
    trace = getattr(value, "_trace", None)
    while trace is not None and id(trace) not in traces:
        if not hasattr(trace, "frame"):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def region_of_results(results: Sequence[Any]) -> TracedRegion | None:
    """The manual region that returned tracers; None if no jaxpr being traced has its equation."""
    traced = [value if type(value) is STAGED else undifferentiated(value) for value in results]
    eqn = getattr(traced[0], "parent", None) if traced else None
    if eqn is None or eqn.primitive.name != "shard_map":
        return None
    places = {id(var): at for at, var in enumerate(eqn.outvars)}
    indices = tuple([places.get(id(getattr(value, "val", None)), -1) for value in traced])
    return None if -1 in indices else TracedRegion(eqn, indices, is_differentiated=any(map(is_not, traced, results)))


class UnfinishedEquation(Record, eq=False):
    """An equation of a jaxpr being traced, in its final form."""

    primitive: Any
    invars: list[Any]
    outvars: list[Any]
    params: Any
    source_info: Any


class UnfinishedJaxpr(NamedTuple):
    """The part of a jaxpr being traced that computes some values.

    Attributes:
      invars: its input variables.
      operands: their values.
    """

    eqns: list[Any]
    invars: list[Any]
    operands: list[Any]
    outvars: list[Any]
    constvars: tuple[()] = ()


def unfinished_jaxpr(values: Sequence[Any]) -> UnfinishedJaxpr:
    """The equations that compute tracers, in topological order."""
    equations, operands, seen = list[UnfinishedEquation](), list[Any](), set[int]()
    waiting = [(value, False) for value in reversed(values)]
    while waiting:
        value, is_ready = waiting.pop()
        eqn = value.parent
        key = id(value.val) if eqn is None else id(eqn)
        if key in seen or is_literal(value.val):
            continue
        if eqn is None:
            seen.add(key)
            operands.append(value)
        elif is_ready:
            seen.add(key)
            atoms = [operand.val for operand in eqn.invars]
            equations.append(UnfinishedEquation(eqn.primitive, atoms, eqn.outvars, eqn.params, eqn.source_info))
        else:
            waiting.append((value, True))
            waiting += [(operand, False) for operand in reversed(eqn.invars)]
    results = [value.val for value in values]
    return UnfinishedJaxpr(equations, [operand.val for operand in operands], operands, results)
