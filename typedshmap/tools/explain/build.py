"""One call on a mesh: its arguments checked, it and its gradient traced, and the values and collectives found there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from ... import _jax
from ...errors import MeshAxisError, StructureError, TypedShmapError
from ...errors.failures import RETURN
from ...errors.phrases import value_text
from ...hints.check_structs import check_arguments_as_traced, check_as_traced
from ...hints.check_tree import TreeCheck, check_value
from ...hints.context import MeshContext, current_axis_naming
from ...hints.fitting import CheckedLeaf
from ...inspection import keeping_claims, on_mesh
from ...introspection import bound_self, require_decorated
from ...meshes import mesh_like, mesh_sizes, why_unusable
from ...ops.resharding.pieces import shard_shape
from ..sample.arguments import Inputs
from ..sample.meshes import map_over_shards
from .collectives import JaxprCosts, read_jaxpr
from .compiled import Target, compile_program
from .hardware import Hardware, time_of
from .memory import memory_of
from .model import Collective, Value, ValueKind
from .reading import Backend, read_program
from .tables import Explanation
from .work import work_of


def explanation(
    call: ExplainedCall,
    grad: bool | None,
    bandwidth: Mapping[str, float],
    hardware: Hardware | None = None,
    target: Target | None = None,
) -> Explanation:
    """Explain one call."""
    jaxpr, types = call.trace()
    costs, sources = read_jaxpr(jaxpr, len(call.traced))
    arguments = [value_of(at, "argument", leaf, call.region) for at, leaf in enumerate(call.traced.values())]
    first = max((value.ident for value in (*costs.values, *costs.collectives)), default=len(arguments) - 1) + 1
    leaves = call.result_leaves(types) if call.typed.result is not None else []
    results = [
        value_of(first + at, "result", leaf, call.region, sorted(source))
        for at, (leaf, source) in enumerate(zip(leaves, sources, strict=False))
    ]
    gradient, both, notes = _gradient(call, types, costs, results, first + len(results), grad)
    cotangents = [value for value, leaf in zip(results, leaves, strict=True) if has_gradient(leaf.value)]
    inputs, specs = [(value.name, value.bytes) for value in arguments], [value.spec for value in arguments]
    backend = _backend(hardware, target)
    if both is not None and grad:
        inputs += [(f"cotangent of {value.name}", value.bytes) for value in cotangents]
        jaxpr, specs = both, [*specs, *(cotangent_spec(value.spec) for value in cotangents)]
        program = read_program(both, inputs, backend=backend)
    else:
        program = read_program(jaxpr, inputs, [value.bytes for value in results], backend=backend)
    work, runs = work_of(program), (*costs.collectives, *(gradient if grad else ()))
    compiled = compile_program(call.typed.name, jaxpr, specs, call.mesh, target, runs) if target else None
    return Explanation(
        call.typed.name,
        call.mesh.shape_tuple,
        {name: bound.size for name, bound in call.sizes if name.lstrip("*").isidentifier()},
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
    """Whose compiler is meant: of CPUs, where neither says otherwise."""
    if hardware is not None:
        return "tpu" if hardware.rounds else "gpu"
    return "cpu" if target is None or target.name == "cpu" else "tpu"


def _notes(call: ExplainedCall, costs: JaxprCosts) -> list[str]:
    """What is not counted in the function itself, and why."""
    notes: list[str] = []
    if call.made_of.verb == "typed":
        axes = ", ".join(call.mesh.axis_names)
        notes.append(f"{call.typed.name} is explained as mapped over {axes}, as it is called in a manual region")
    if unhinted := ", ".join(str(leaf.subject) for leaf in call.traced.values() if leaf.hint is None):
        notes.append(f"no hint says how {unhinted} is sharded; it counts as unsharded")
    if costs.outside and call.mesh.size > 1:
        names = list(dict.fromkeys(costs.outside))
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        notes.append(
            f"outside of manual regions XLA partitions operations on global arrays ({shown}), and what they "
            "communicate is not counted: it is not in the jaxpr"
        )
    return [*notes, *_jaxpr_notes(costs)]


def _jaxpr_notes(costs: JaxprCosts) -> list[str]:
    note = "how often a while loop iterates is not known: what is in it is counted for one iteration"
    return [*costs.notes, *([note] if any(op.is_open for op in costs.collectives) else [])]


def _gradient(
    call: ExplainedCall, types: Any, forward: JaxprCosts, results: Sequence[Value], first: int, grad: bool | None
) -> tuple[Sequence[Collective], Any, Sequence[str]]:
    """The collectives that the gradient adds, with numbers from ``first`` on; the jaxpr with it, if any; and notes."""
    name, inexact = call.typed.name, [has_gradient(leaf) for leaf in jax.tree_util.tree_leaves(types)]
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
        except Exception as error:  # loops and kernels without a transpose, and what a user's rule raises
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
    """What the jaxpr with the gradient communicates beyond what the function does alone.

    Transposed equations belong to the gradient; so does what its forward part has more of than the function
    alone, as that of a ``jax.custom_vjp`` may.
    """
    # Which of those in the forward part are those of the function alone: first without what a transformation changes
    # that moves a collective, for instance out of a loop; then wherever it is written, since the forward part of a
    # `jax.custom_vjp` is in another place than the function itself.
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


def value_of(ident: int, kind: ValueKind, leaf: CheckedLeaf, region: MeshContext, after: Sequence[int] = ()) -> Value:
    """An argument or a result, sharded as its hint says.

    Args:
      ident: its number.
      kind: which of the two it is.
      leaf: its shape and dtype, its hint, and its path.
      region: what the hint means on the mesh.
      after: the numbers of the values and collectives that it is computed from.
    """
    aval = leaf.value if isinstance(leaf.value, _jax.array.SHAPES) else jax.typeof(leaf.value)
    shape, dtype = aval.shape, aval.dtype
    spec = region.spec(leaf.hint, len(shape)) if leaf.hint is not None else _jax.array.partition_spec([()] * len(shape))
    shard = shard_shape(_jax.array.spec_entries(spec).dim_axes, shape, dict(region.mesh or ()))
    name, hint, size = str(leaf.subject), leaf.hint, _jax.array.size_in_bytes(shard, dtype)
    text = str(hint.text) if hint is not None else ""
    return Value(ident, kind, name, shape, _jax.array.short_dtype(dtype), spec, shard, size, text, after=tuple(after))


class ExplainedCall:
    """One call, which is traced but never run.

    Attributes:
      made_of: the hints and options of the function.
      f: the function; one of ``typed`` is mapped over the mesh.
      mesh: the mesh, without devices.
      typed: the hints of the function.
      region: what hints mean on the mesh.
      bound: the arguments by name.
      checked: the arguments, checked against their hints.
      sizes: the sizes of the names in the hints.
      traced: the leaves that are traced, by their places among all leaves: arrays, each as a struct with its shape,
        dtype and sharding, and numbers for which there is a hint.
      structs: their values.
    """

    def __init__(self, f: Callable[..., Any], made: Inputs, mesh: AbstractMesh) -> None:
        self.made_of, self.f, self.mesh = require_decorated(f, "explain"), f, mesh
        if self.made_of.verb == "typed":
            # Over Explicit axes, so that a result may be unreduced.
            self.f, self.mesh = map_over_shards(f, self.made_of), _jax.mesh.with_axis_type(mesh, AxisType.Explicit)
        self.owner = bound_self(f)
        self.typed = self.made_of.signature.read((*self.owner, *made.args))
        # No boundary is crossed here, since the function itself says what it refuses.
        naming = current_axis_naming(self.made_of.naming)
        self.region = MeshContext.over(self.mesh, naming, "boundary")
        self.bound = self.typed.bind((*self.owner, *made.args), made.kwargs)
        # Without the shardings of structs, which are those of the hints: what is given need not be placed yet.
        self.checked = check_arguments_as_traced(
            self.typed.arguments(self.bound), self.bound.arguments, self.region, has_shardings=False
        )
        self._raise(self.checked)
        self.sizes = self.checked.sizes
        self.traced = {
            at: leaf._replace(value=self._struct(leaf)) if _is_array(leaf.value) else leaf
            for at, leaf in enumerate(self.checked.leaves)
            if leaf.hint is not None or _is_array(leaf.value)
        }
        self.structs = [leaf.value for leaf in self.traced.values()]

    def _raise(self, checked: TreeCheck) -> None:
        if checked.failures:
            raise self.region.error(self.typed.name, checked.failures, checked.sizes)

    def _struct(self, leaf: CheckedLeaf) -> Any:
        """The shape, dtype and sharding of an array."""
        shape, sharding, explicit = leaf.value.shape, None, _jax.mesh.explicit_axes(self.mesh)
        # Part of a value's type over Explicit axes; over others it says nothing to a trace.
        if leaf.hint is not None and explicit:
            spec = _jax.array.spec_entries(self.region.spec(leaf.hint, len(shape)))
            dim_axes = [tuple(axis for axis in axes if axis in explicit) for axes in spec.dim_axes]
            sharding = NamedSharding(self.mesh, _jax.array.partition_spec(dim_axes, spec.unreduced, spec.reduced))
        dtype = jax.dtypes.canonicalize_dtype(leaf.value.dtype, allow_extended_dtype=True)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def run(self, values: Iterable[Any]) -> Any:
        """Call the function with values in the place of what is traced."""
        leaves = list(self.checked.leaves)
        for at, value in zip(self.traced, values, strict=True):
            leaves[at] = leaves[at]._replace(value=value)
        args, kwargs = self.bound.with_arguments(self.checked.with_leaves(leaves))
        return self.f(*args[len(self.owner) + len(self.typed.given) :], **kwargs)

    def trace(self) -> tuple[Any, Any]:
        """The jaxpr of the function alone, and the types of its results in their structure."""
        numbered: Any = None

        # A function of its own, since JAX keeps what it traced by the function.
        def leaves(*values: Any) -> list[Any]:
            nonlocal numbered
            results = self.run(values)
            flat = jax.tree_util.tree_leaves(results)
            numbered = _jax.tree.replace_leaves(results, range(len(flat)))
            return flat

        with self._replace_meshes():
            jaxpr, types = jax.make_jaxpr(leaves, return_shape=True)(*self.structs)
        return jaxpr, _jax.tree.replace_leaves(numbered, types)

    def result_leaves(self, results: Any) -> list[CheckedLeaf]:
        """The leaves of the results, each with its hint."""
        node, named, sizes = self.typed.result, self.bound.arguments, self.sizes
        assert node is not None
        checked = check_as_traced(
            lambda value: check_value(node, value, RETURN, self.region, named, sizes), results, has_shardings=False
        )
        self._raise(checked)
        self.sizes = checked.sizes
        return checked.leaves

    def trace_gradient(self, results: Any) -> Any:
        """Trace the function and its vector-Jacobian product by all that has a gradient, to one jaxpr."""
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
        """Replace the function's own mesh by another, and the ambient one where the function looks for that."""
        looks = self.made_of.mesh is None or not _jax.mesh.context_mesh().empty
        ambient = jax.sharding.use_abstract_mesh(self.mesh) if looks else nullcontext()
        with _jax.mesh.without_ambient(), ambient, on_mesh(self.mesh), keeping_claims():
            yield


def cotangent_spec(spec: PartitionSpec) -> PartitionSpec:
    """How a result's cotangent is sharded: reduced where the result is unreduced, and the other way round."""
    entries = _jax.array.spec_entries(spec)
    return _jax.array.partition_spec(entries.dim_axes, entries.reduced, entries.unreduced)


def _is_array(value: Any) -> bool:
    return isinstance(value, (*_jax.array.ARRAYS, *_jax.array.SHAPES))


def has_gradient(value: Any) -> bool:
    """Whether a value is of a dtype that has gradients."""
    return _jax.array.is_inexact(np.result_type(value) if not hasattr(value, "dtype") else value.dtype)


def meshes_of(
    given: Any, own: _jax.mesh.AnyMesh | None, values: Iterable[Any], verb: str = "explain"
) -> tuple[AbstractMesh, ...]:
    """One mesh or several, without their devices.

    Args:
      given: a mesh, a dict of sizes, a text as in ``"dp=4,tp=2"``, or a list of such; None to find one.
      own: the decorator's mesh, which comes first where none is given, and says what type axes have.
      values: the call's arguments, which may be placed on a mesh.
      verb: the function that messages name.

    Raises:
      MeshAxisError: for what is not a mesh, and where none is found.
    """
    ambient = _jax.mesh.context_mesh()
    default = own or (None if ambient.empty else ambient)
    if isinstance(given, (list, tuple)):
        if not given:
            raise MeshAxisError(f"{verb}: mesh= is empty")
        return tuple(_read_mesh(written, default, verb) for written in given)
    if given is None and default is None:
        leaves = (leaf for value in values for leaf in jax.tree_util.tree_leaves(value))
        default = next((mesh for leaf in leaves if (mesh := _jax.mesh.value_mesh(leaf)) is not None), None)
    if given is None and default is None:
        raise MeshAxisError(
            f"{verb}: no mesh is known: mesh= is not given, none is ambient, and no argument was placed on one\n\n"
            'Hint: pass mesh=, as in mesh={"dp": 4, "tp": 2}; it needs no devices'
        )
    return (_read_mesh(default if given is None else given, default, verb),)


def _read_mesh(given: Any, like: _jax.mesh.AnyMesh | None, verb: str) -> AbstractMesh:
    """A mesh without its devices; of one that is written down the axes have the types of another mesh."""
    if isinstance(given, (Mesh, AbstractMesh)):
        if problem := why_unusable(given):
            raise MeshAxisError(f"{verb}: the mesh {problem}")
        if given.empty:
            raise MeshAxisError(f"{verb}: the mesh has no axes")
        return AbstractMesh(given.axis_sizes, given.axis_names, axis_types=given.axis_types)
    sizes = mesh_sizes(given)
    if sizes is None:
        raise MeshAxisError(
            f"{verb}: mesh= is {value_text(given)}\n\n"
            'Hint: a mesh is a jax.sharding.Mesh or AbstractMesh, a dict of sizes, or a text as in "dp=4,tp=2"'
        )
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
    return mesh_like(mesh, like)
