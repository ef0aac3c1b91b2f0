"""Trace one call on a mesh, and its gradient, and collect their values and collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from ... import _jax
from ...errors import MeshAxisError, StructureError, TypedShmapError
from ...inspection import HintedLeaf, bind, keeping_claims, on_mesh, read_mesh, signature
from ...shard_map import typed_shard_map
from ..sample.input_plan import UnplacedInputs
from .compiled import Target, compile_program
from .hardware import Hardware, time_of
from .jaxpr_costs import JaxprCosts, read_jaxpr
from .memory import memory_of
from .model import Collective, Value, ValueKind
from .read_program import Backend, read_program
from .tables import Explanation
from .work import work_of


def explanation(
    call: ExplainedCall,
    grad: bool | None,
    bandwidth: Mapping[str, float],
    hardware: Hardware | None,
    target: Target | None,
) -> Explanation:
    """Explain one call."""
    jaxpr, types = call.trace()
    costs, sources = read_jaxpr(jaxpr, len(call.traced))
    arguments = [value_of(at, "argument", leaf) for at, leaf in enumerate(call.traced.values())]
    first = max((value.ident for value in (*costs.values, *costs.collectives)), default=len(arguments) - 1) + 1
    leaves = call.bound.results(types)
    results = [
        value_of(first + at, "result", leaf, sorted(source))
        for at, (leaf, source) in enumerate(zip(leaves, sources, strict=False))
    ]
    gradient, both, notes = _gradient(call, types, costs, results, first + len(results), grad)
    cotangents = [value for value, leaf in zip(results, leaves, strict=True) if has_gradient(leaf.value)]
    inputs, specs = [(value.name, value.bytes) for value in arguments], [value.spec for value in arguments]
    backend = _backend(hardware, target)
    if both is not None and grad:
        inputs += [(f"cotangent of {value.name}", value.bytes) for value in cotangents]
        jaxpr, specs = both, [*specs, *(cotangent_spec(value.spec) for value in cotangents)]
        program = read_program(both, inputs, backend)
    else:
        program = read_program(jaxpr, inputs, backend, [value.bytes for value in results])
    work, runs = work_of(program), (*costs.collectives, *(gradient if grad else ()))
    compiled = compile_program(call.signature.name, jaxpr, specs, call.mesh, target, runs) if target else None
    return Explanation(
        call.signature.name,
        call.mesh.shape_tuple,
        call.bound.sizes,
        (*arguments, *costs.values, *results),
        (*costs.collectives, *gradient),
        memory_of(program, is_differentiated=both is not None and bool(grad)),
        work,
        tuple(dict.fromkeys((*_notes(call, costs), *notes))),
        bandwidth,
        time_of(work, runs, hardware, call.mesh.shape_tuple, bandwidth) if hardware else None,
        compiled,
    )


def _backend(hardware: Hardware | None, target: Target | None) -> Backend:
    """The compiler to model: for CPUs by default."""
    if hardware is not None:
        return "tpu" if hardware.rounds else "gpu"
    return "cpu" if target is None or target.name == "cpu" else "tpu"


def _notes(call: ExplainedCall, costs: JaxprCosts) -> list[str]:
    """Notes about operations of the function that are not counted, with reasons."""
    notes: list[str] = []
    if call.signature.verb == "typed":
        axes = ", ".join(call.mesh.axis_names)
        notes.append(f"{call.signature.name} is explained as mapped over {axes}, as it is called in a manual region")
    if unhinted := ", ".join(leaf.name for leaf in call.traced.values() if leaf.hint is None):
        notes.append(f"no hint says how {unhinted} is sharded; it counts as unsharded")
    if costs.outside and call.mesh.size > 1:
        names = list(dict.fromkeys(costs.outside))
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        notes.append(
            f"outside of manual regions XLA partitions operations on global arrays ({shown}): their communication "
            "is not in the jaxpr and not counted"
        )
    return [*notes, *_jaxpr_notes(costs)]


def _jaxpr_notes(costs: JaxprCosts) -> list[str]:
    note = "the number of iterations of a while loop is unknown: its body is counted once"
    return [*costs.notes, *([note] if any(op.is_open for op in costs.collectives) else [])]


def _gradient(
    call: ExplainedCall, types: Any, forward: JaxprCosts, results: Sequence[Value], first: int, grad: bool | None
) -> tuple[Sequence[Collective], Any, Sequence[str]]:
    """The collectives that the gradient adds, numbered from ``first`` on; the jaxpr with it, if any; and notes."""
    name, inexact = call.signature.name, [has_gradient(leaf) for leaf in jax.tree_util.tree_leaves(types)]
    if grad is False:
        return (), None, ()
    if grad is None and forward.is_transposed:
        return (), None, (f"{name} takes a gradient itself, and is not differentiated again (grad=True does)",)
    if not any(map(has_gradient, call.structs)):
        reason = "no argument is of an inexact dtype"
    elif not any(inexact):
        reason = "no result is of an inexact dtype"
    else:
        try:
            jaxpr = call.trace_gradient(types)
        except Exception as error:  # loops and kernels without a transpose, and exceptions of a user's rule
            if grad and isinstance(error, TypedShmapError):
                raise
            text = (str(error).splitlines() or [""])[0]
            reason = f"it cannot be differentiated: {type(error).__name__}: {text}"
        else:
            both, _ = read_jaxpr(jaxpr, len(call.traced) + sum(inexact))
            ends = [value.ident for value, has in zip(results, inexact, strict=False) if has]
            operands = dict(enumerate([*range(len(call.traced)), *ends]))
            added = _added_collectives(both.collectives, forward.collectives, operands, first)
            return added, jaxpr, _jaxpr_notes(both)
    if grad:
        raise StructureError(f"explain: {name}: grad=True, but {reason}")
    return (), None, (f"no gradient is reported: {reason}",)


def _added_collectives(
    both: Sequence[Collective], alone: Sequence[Collective], numbers: dict[int, int], first: int
) -> list[Collective]:
    """The collectives of the jaxpr with the gradient that the function alone lacks, also in the forward part."""
    # Match the collectives of the forward part with those of the function alone: first regardless of changes by a
    # transformation that moves a collective, for instance out of a loop; then regardless of its place, since the
    # forward part of a `jax.custom_vjp` has another place than the function.
    same, added = dict[int, int](), list[Collective]()
    moved: dict[str, Any] = {"ident": 0, "after": (), "times": 1, "loops": ()}
    for ignored in (moved, {**moved, "place": ""}):
        left: defaultdict[Collective, list[int]] = defaultdict(list)
        for op in alone:
            if op.ident not in same.values():
                left[replace(op, **ignored)].append(op.ident)
        for op in both:
            equal = left[replace(op, **ignored)]
            if op.part == "forward" and op.ident not in same and equal:
                same[op.ident] = equal.pop(0)
    numbers = {**numbers, **same}
    for op in both:
        if op.ident not in same:
            numbers[op.ident] = ident = first + len(added)
            after = tuple(sorted(numbers[source] for source in op.after if source in numbers))
            added.append(replace(op, ident=ident, part="gradient", after=after))
    return added


def value_of(ident: int, kind: ValueKind, leaf: HintedLeaf, after: Sequence[int] = ()) -> Value:
    """An argument or a result, sharded by its hint."""
    aval = leaf.value if isinstance(leaf.value, _jax.array.SHAPES) else jax.typeof(leaf.value)
    dtype, size = _jax.array.short_dtype(aval.dtype), _jax.array.size_in_bytes(leaf.shard_shape, aval.dtype)
    text = leaf.hint.text if leaf.hint is not None else ""
    return Value(ident, kind, leaf.name, aval.shape, dtype, leaf.spec, leaf.shard_shape, size, text, after=tuple(after))


class ExplainedCall:
    """One call, which is traced but never run; a helper of ``typed`` is mapped over the mesh."""

    def __init__(self, f: Callable[..., Any], drawn: UnplacedInputs, mesh: AbstractMesh) -> None:
        self.signature, self.f, self.mesh = signature(f, "explain"), f, mesh
        if self.signature.verb == "typed":
            # Over Explicit axes, so that a result may be unreduced.
            self.f, self.mesh = typed_shard_map(f), _jax.mesh.with_axis_type(mesh, AxisType.Explicit)
        made = drawn.structs(self.mesh)
        self.bound = bind(f, made.args, made.kwargs, mesh=self.mesh)
        self._values = [_unplaced(leaf.value) if leaf.hint is None else leaf.value for leaf in self.bound.leaves]
        # By their positions among all leaves: arrays as structs, and numbers with hints.
        self.traced = {
            at: leaf for at, leaf in enumerate(self.bound.leaves) if leaf.hint is not None or _is_array(leaf.value)
        }
        self.structs = [self._values[at] for at in self.traced]

    def run(self, values: Iterable[Any]) -> Any:
        """Call the function with other values for the traced leaves."""
        changed = {**dict(enumerate(self._values)), **dict(zip(self.traced, values, strict=True))}
        args, kwargs = self.bound.with_values(changed.values())
        return self.f(*args, **kwargs)

    def trace(self) -> tuple[Any, Any]:
        """The jaxpr of the function alone, and the types of its results in their structure."""
        numbered: Any = None

        # A new function, since JAX caches traces by the function.
        def leaves(*values: Any) -> list[Any]:
            nonlocal numbered
            results = self.run(values)
            flat = jax.tree_util.tree_leaves(results)
            numbered = _jax.tree.replace_leaves(results, range(len(flat)))
            return flat

        with self._replace_meshes():
            jaxpr, types = jax.make_jaxpr(leaves, return_shape=True)(*self.structs)
        return jaxpr, _jax.tree.replace_leaves(numbered, types)

    def trace_gradient(self, results: Any) -> Any:
        """Trace the function and its vector-Jacobian product with respect to all inexact values, to one jaxpr."""
        chosen = [at for at, struct in enumerate(self.structs) if has_gradient(struct)]
        cotangents: list[jax.ShapeDtypeStruct] = []
        for leaf in filter(has_gradient, jax.tree_util.tree_leaves(results)):
            sharding = getattr(leaf, "sharding", None)
            if isinstance(sharding, NamedSharding):
                sharding = NamedSharding(sharding.mesh, cotangent_spec(sharding.spec))
            cotangents.append(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding))

        def both(values: list[Any], cotangents: list[Any]) -> Any:
            def only(*some: Any) -> Any:
                now = {**dict(enumerate(values)), **dict(zip(chosen, some, strict=True))}
                leaves = jax.tree_util.tree_leaves(self.run(now.values()))
                inexact = [leaf for leaf in leaves if has_gradient(leaf)]
                return inexact, [leaf for leaf in leaves if not has_gradient(leaf)]

            out, pull, others = jax.vjp(only, *(values[at] for at in chosen), has_aux=True)
            return out, others, pull(cotangents)

        with self._replace_meshes():
            return jax.make_jaxpr(both)(self.structs, cotangents)

    @contextmanager
    def _replace_meshes(self) -> Generator[None]:
        """Replace the function's own mesh, and the ambient mesh if the function uses it."""
        is_ambient = self.signature.mesh is None or not _jax.mesh.context_mesh().empty
        with on_mesh(self.mesh, is_ambient=is_ambient), keeping_claims():
            yield


def cotangent_spec(spec: PartitionSpec) -> PartitionSpec:
    """The spec of a result's cotangent: reduced if the result is unreduced, and the other way round."""
    entries = _jax.array.spec_entries(spec)
    return _jax.array.partition_spec(entries.dim_axes, entries.reduced, entries.unreduced)


def _unplaced(value: Any) -> Any:
    """An array as a struct without its sharding, which may be on another mesh; any other value unchanged."""
    if not _is_array(value):
        return value
    dtype = jax.dtypes.canonicalize_dtype(value.dtype, allow_extended_dtype=True)
    return jax.ShapeDtypeStruct(value.shape, dtype)


def _is_array(value: Any) -> bool:
    return isinstance(value, (*_jax.array.ARRAYS, *_jax.array.SHAPES))


def has_gradient(value: Any) -> bool:
    """Whether a value has a dtype with gradients."""
    return _jax.array.is_inexact(np.result_type(value) if not hasattr(value, "dtype") else value.dtype)


def meshes_of(
    given: Any, default: _jax.mesh.AnyMesh | None, values: Iterable[Any], verb: str
) -> tuple[AbstractMesh, ...]:
    """The given meshes without devices; by default the function's or the ambient mesh, else that of the values."""
    if isinstance(given, (list, tuple)):
        if not given:
            raise MeshAxisError(f"{verb}: mesh= is empty")
        return tuple(_read_mesh(written, default, verb) for written in given)
    if given is None:
        of_values = map(_jax.mesh.value_mesh, jax.tree_util.tree_leaves([*values]))
        given = default or next(filter(None, of_values), None)
    if given is None:
        raise MeshAxisError(
            f"{verb}: no mesh is known: mesh= is not given, none is ambient, and no argument was placed on one\n\n"
            'Hint: pass mesh=, as in mesh={"dp": 4, "tp": 2}; it needs no devices'
        )
    return (_read_mesh(given, default, verb),)


def _read_mesh(given: Any, like: _jax.mesh.AnyMesh | None, verb: str) -> AbstractMesh:
    """A mesh without its devices; a dict or a text has the axis types of another mesh."""
    try:
        mesh = read_mesh(given, like)
    except MeshAxisError as error:
        raise MeshAxisError(f"{verb}: {error}") from None
    if mesh is None:
        raise MeshAxisError(f"{verb}: the mesh has no axes")
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types)
