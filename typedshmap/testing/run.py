"""Run a function on one mesh, and return its results and vector-Jacobian products as arrays on the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Literal, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from .. import _jax
from ..errors import MeshAxisError, StructureError
from ..errors.requirements import require_bool_or_none
from ..inspection import Signature, on_mesh
from ..shard_map import typed_shard_map
from ..tools.sample.arguments import CallForm, FlatCall, Inputs
from .trial_meshes import with_replica
from .waiting import IDLE, wait_for

HostArray = np.ndarray[Any, Any]
ArraysByName = dict[str, HostArray]
CallKind = Literal["as it is", "global", "mapped"]
MeshT = TypeVar("MeshT", Mesh, AbstractMesh)


@dataclass(frozen=True)
class FunctionUnderTest:
    """The tested function.

    Attributes:
      f: the function.
      signature: its hints, and the options of its decorator.
      kind: how it is called: unchanged; under ``jax.jit`` on global arrays; or mapped over all mesh axes.
      is_ambient: whether the mesh that replaces its own also becomes the ambient mesh.
    """

    f: Callable[..., Any]
    signature: Signature
    kind: CallKind
    is_ambient: bool

    @property
    def name(self) -> str:
        return self.signature.name

    def mesh_for(self, mesh: MeshT) -> MeshT:
        """The mesh of the function's run: an unreduced result needs Explicit axes and more than one device."""
        if self.kind == "mapped":
            mesh = _jax.mesh.with_axis_type(mesh, AxisType.Explicit)
        marks = [mark for hint in self.signature.result for mark in hint.marks]
        is_unreduced = self.kind != "global" and any(mark.startswith("+") for mark in marks)
        return with_replica(mesh) if mesh.size == 1 and is_unreduced and isinstance(mesh, Mesh) else mesh

    def mapped(self, mesh: _jax.mesh.AnyMesh) -> Callable[..., Any]:
        """A function of global arrays: the function, or a helper of manual regions, mapped over the shards."""
        return typed_shard_map(self.f, mesh=mesh) if self.kind == "mapped" else self.f

    def on(self, mesh: _jax.mesh.AnyMesh) -> AbstractContextManager[None]:
        """Replace the function's mesh."""
        return on_mesh(mesh, is_ambient=self.is_ambient)


def classify_function(f: Callable[..., Any], signature: Signature, manual: bool | None = None) -> FunctionUnderTest:
    """Decide how a function is called."""
    require_bool_or_none("assert_mesh_invariant", "manual", manual)
    kind: CallKind = "as it is"
    if signature.verb == "typed":
        kind = "mapped" if manual or (manual is None and signature.has_marks) else "global"
    elif manual is not None:
        raise StructureError(
            f"assert_mesh_invariant: {signature.name}: manual= is for helpers made by typed; this one is made by "
            f"{signature.verb}"
        )
    is_ambient = signature.mesh is None or not _jax.mesh.context_mesh().empty
    return FunctionUnderTest(f, signature, kind, is_ambient)


def in_its_region(subject: FunctionUnderTest, made: Inputs, mesh: _jax.mesh.AnyMesh) -> FunctionUnderTest:
    """The function, with its kind of call: a helper that uses manual axes is mapped over the shards."""
    if subject.kind != "global":
        return subject
    call = FlatCall(made, jax.ShapeDtypeStruct if isinstance(mesh, AbstractMesh) else jax.Array)
    try:
        with subject.on(mesh):
            jax.eval_shape(lambda arrays: jax.tree_util.tree_leaves(call.run(subject.f, arrays)), call.arrays)
    except (NameError, MeshAxisError) as error:
        if "unbound axis name" not in str(error) and "is not manual here" not in str(error):
            raise
        return replace(subject, kind="mapped")
    return subject


@dataclass(frozen=True)
class CompiledCall:
    """A function compiled for one mesh, and for arguments of certain types.

    Attributes:
      mesh: the mesh.
      form: the form of the call for which it was compiled.
      types: the types and shardings of the results, by their names, ``return[0].loss``.
      forward: computes the results.
      jaxprs: the programs.
      pulled: the results that have cotangents.
      gradients: the names of the gradients, ``grad(w)``.
      pull: computes the gradients from the arrays and the cotangents; None without gradients.
    """

    mesh: Mesh
    form: CallForm
    types: dict[str, jax.ShapeDtypeStruct]
    forward: Callable[..., list[jax.Array]]
    jaxprs: Sequence[Any]
    pulled: Sequence[str] = ()
    gradients: Sequence[str] = ()
    pull: Callable[..., list[jax.Array]] | None = None

    def dim_axes(self, name: str) -> tuple[tuple[str, ...], ...]:
        """The mesh axes over which each dim of a result is sharded; empty if unknown."""
        spec = getattr(getattr(self.types.get(name), "sharding", None), "spec", None)
        return () if spec is None else _jax.array.spec_entries(spec).dim_axes

    def run(self, subject: FunctionUnderTest, arrays: Sequence[jax.Array], seed: int, timeout: float) -> Outcome:
        """Compute the results."""
        pulled = [(at, result) for at, (name, result) in enumerate(self.types.items()) if name in self.pulled]
        with subject.on(self.mesh):
            cotangents = [_cotangent(result, (seed, _COTANGENT_STREAM, at)) for at, result in pulled]
        idle = IDLE if self.mesh.size > 1 and self.mesh.devices.flat[0].platform == "cpu" else inf

        def again(arrays: Sequence[jax.Array], factor: float) -> ArraysByName:
            programs = [partial(self.forward, list(arrays))]
            with subject.on(self.mesh):
                if self.pull is not None:
                    scaled = [jax.device_put((g * factor).astype(g.dtype), g.sharding) for g in cotangents]
                    programs.append(partial(self.pull, list(arrays), scaled))
                # Only this may wait for ever: a compiled program whose shards wait for each other.
                computed = [array for program in programs for array in wait_for(program, timeout, idle)]
            return dict(zip([*self.types, *self.gradients], map(on_host, computed), strict=True))

        return Outcome(self, arrays, cotangents, again(arrays, 1.0), again)


@dataclass(frozen=True)
class Outcome:
    """The results of a function on one mesh.

    Attributes:
      compiled: the compiled call that computed them.
      arrays: the arrays among the arguments.
      cotangents: the cotangents of the results that have them.
      values: results by path, ``return[0].loss``, and gradients by argument, ``grad(w)``; on the host.
      again: computes the values from other arrays, with the cotangents multiplied by a number.
    """

    compiled: CompiledCall
    arrays: Sequence[jax.Array]
    cotangents: Sequence[jax.Array]
    values: ArraysByName
    again: Callable[[Sequence[jax.Array], float], ArraysByName]

    @property
    def is_finite(self) -> bool:
        """Whether all numbers are finite."""
        inexact = (values for values in self.values.values() if _jax.array.is_inexact(values.dtype))
        return all(bool(np.isfinite(values.astype(np.complex128)).all()) for values in inexact)


def compile_call(
    subject: FunctionUnderTest, call: FlatCall, mesh: Mesh, grad: bool, is_excluded: Callable[[str], bool]
) -> CompiledCall:
    """Compile a function for one mesh."""
    f, platform = FlatFunction(subject.mapped(mesh), call), mesh.devices.flat[0].platform
    with subject.on(mesh):
        jaxpr, results, compute = _compile(f.results, platform, call.arrays)
        types = dict(zip(f.names, results, strict=True))
        if not grad:
            return CompiledCall(mesh, call.form, types, compute, [jaxpr])
        pulled = [name for name in types if _jax.array.is_inexact(types[name].dtype) and not is_excluded(name)]
        pullback = partial(f.pullback, pulled)
        of_pullback, _, pull = _compile(pullback, platform, call.arrays, [types[name] for name in pulled])
    return CompiledCall(mesh, call.form, types, compute, [jaxpr, of_pullback], pulled, f.gradient_names, pull)


class FlatFunction:
    """A function from the arrays among its arguments to the leaves of its result.

    Attributes:
      names: the paths of its results, which are known after its trace.
      inexact: for each array whether it is inexact.
    """

    def __init__(self, f: Callable[..., Any], call: FlatCall) -> None:
        self.f, self.call, self.names = f, call, list[str]()
        self.inexact = [at for at, array in enumerate(call.arrays) if _jax.array.is_inexact(array.dtype)]

    @property
    def gradient_names(self) -> list[str]:
        return [f"grad({self.call.names[at]})" for at in self.inexact]

    def results(self, arrays: Sequence[Any]) -> list[Any]:
        leaves = jax.tree_util.tree_leaves_with_path(self.call.run(self.f, arrays))
        self.names[:] = [f"return{jax.tree_util.keystr(path)}" for path, _ in leaves]
        return [_global_array(leaf) for _, leaf in leaves]

    def pullback(self, pulled: Collection[str], arrays: Sequence[Any], cotangents: list[Any]) -> list[Any]:
        """The vector-Jacobian product of some results with respect to all inexact arguments."""

        def pulled_results(changed: list[Any]) -> list[Any]:
            mixed = {**dict(enumerate(arrays)), **dict(zip(self.inexact, changed, strict=True))}
            results = self.results(list(mixed.values()))
            return [value for name, value in zip(self.names, results, strict=True) if name in pulled]

        gradients = jax.vjp(pulled_results, [arrays[at] for at in self.inexact])[1](cotangents)[0]
        return list(map(_global_array, gradients))


def _compile(
    f: Callable[..., list[Any]], platform: str, *args: Any
) -> tuple[Any, list[jax.ShapeDtypeStruct], Callable[..., list[jax.Array]]]:
    """The jaxpr of a function, the types and shardings of its results, and the compiled function, which waits."""
    traced = jax.jit(f).trace(*args)
    compiled = _jax.programs.compile_fast(traced.lower(), platform)
    pairs = zip(traced.jaxpr.out_avals, compiled.output_shardings, strict=True)
    types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding) for aval, sharding in pairs]
    return traced.jaxpr, types, lambda *args: jax.block_until_ready(compiled(*args))


_COTANGENT_STREAM = 2**31 + 1


def _global_array(value: Any) -> Any:
    """A result as a global array; partial sums are summed."""
    value = value if _jax.array.is_jax_array(value) else jax.numpy.asarray(value)
    sharding = _jax.array.explicit_spec(value)
    if sharding is None:
        return value
    entries = _jax.array.spec_entries(sharding.spec)
    if not entries.unreduced and not entries.reduced:
        return value
    return jax.reshard(value, _jax.array.partition_spec(entries.dim_axes))


def on_host(array: jax.Array) -> HostArray:
    """An array on the host; for keys their words."""
    is_key = jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array)


def _cotangent(result: jax.ShapeDtypeStruct, seed: Sequence[int]) -> jax.Array:
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal(result.shape) + 1j * rng.standard_normal(result.shape)
    is_complex = jax.numpy.issubdtype(result.dtype, jax.numpy.complexfloating)
    return jax.device_put((drawn if is_complex else drawn.real).astype(result.dtype), result.sharding)
