"""Run a function on one mesh: its results, and its vector-Jacobian products, as arrays on the host."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from ... import _jax
from ...decorated import Decorated
from ...errors import MeshAxisError, StructureError
from ...hints.binding import Typed
from ...hints.nodes import array_hints
from ...meshes import instead_of_own
from ..call import Apart, Inputs
from ..mapping import has_marks, is_of_regions, mapped
from ..written import refuse_no_answer
from .choice import twofold

Arrays = dict[str, np.ndarray[Any, Any]]
Kind = Literal["as it is", "global", "mapped"]


@dataclass(frozen=True)
class Subject:
    """What is tried.

    Attributes:
      f: the function.
      made_of: what it is made of.
      typed: its hints.
      kind: how it is called: as it is; as a function of global arrays; or mapped over all mesh axes.
      is_ambient: whether its mesh is made the ambient one.
    """

    f: Callable[..., Any]
    made_of: Decorated
    typed: Typed
    kind: Kind
    is_ambient: bool

    @property
    def name(self) -> str:
        return self.typed.name

    def meant(self, mesh: Mesh) -> Mesh:
        """The mesh that it is tried on in the place of one: sums are owed on Explicit axes, and not by one device."""
        if self.kind == "mapped":
            mesh = _jax.with_axis_type(mesh, AxisType.Explicit)
        return twofold(mesh) if mesh.size == 1 and self._owes() else mesh

    def _owes(self) -> bool:
        result = self.typed.result
        hints = array_hints(result) if result is not None and self.kind != "global" else ()
        return any(mark.sign == "+" for hint in hints for mark in hint.spec.marks)

    def callee(self, mesh: Mesh) -> Callable[..., Any]:
        """What is called on a mesh."""
        if self.kind != "mapped":
            return self.f
        return mapped(self.f, self.made_of, mesh)

    @contextmanager
    def on(self, mesh: Mesh) -> Generator[None]:
        """Let a mesh be the function's."""
        with ExitStack() as stack:
            stack.enter_context(instead_of_own(mesh))
            if self.is_ambient:
                stack.enter_context(jax.set_mesh(mesh))
            yield


def subject_of(f: Callable[..., Any], made_of: Decorated, typed: Typed, manual: bool | None) -> Subject:
    """How a function is to be tried.

    Args:
      f: the function.
      made_of: what it is made of.
      typed: its hints.
      manual: whether a helper is one of manual regions; by None its marks, and its collectives, tell.

    Raises:
      StructureError: for ``manual=`` of a function that is no helper.
    """
    refuse_no_answer("assert_mesh_invariant", "manual", manual)
    if made_of.verb != "typed" and manual is not None:
        raise StructureError(
            f"assert_mesh_invariant: {typed.name}: manual= is for helpers made by typed; this one is made by "
            f"{made_of.verb}"
        )
    is_ambient = made_of.mesh is None or not _jax.context_mesh().empty
    if made_of.verb != "typed":
        return Subject(f, made_of, typed, "as it is", is_ambient)
    is_mapped = has_marks(typed) if manual is None else manual
    return Subject(f, made_of, typed, "mapped" if is_mapped else "global", is_ambient)


def communicates(subject: Subject, made: Inputs, mesh: Mesh) -> bool:
    """Whether a helper cannot be traced with global arrays, since it speaks of manual axes."""
    call = Call.of(made)
    try:
        with subject.on(mesh):
            jax.eval_shape(lambda arrays: call.run(subject.f, arrays), call.arrays)
    except (NameError, MeshAxisError) as error:
        if is_of_regions(error):
            return True
        raise
    return False


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
      arrays: the arrays of JAX among the arguments' leaves.
      names: the name of each, ``state.w`` or ``xs[0]``.
      apart: the arguments.
    """

    arrays: list[jax.Array]
    names: list[str]
    apart: Apart

    @staticmethod
    def of(made: Inputs) -> Call:
        """Take the arguments of a call apart."""
        labels = [f"{name}[{at}]" if made.names.count(name) > 1 else name for at, name in enumerate(made.names)]
        apart = Apart.of(made, jax.Array)
        return Call([leaf for _, leaf in apart.arrays], [_label(path, labels) for path, _ in apart.arrays], apart)

    def run(self, f: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """Call a function with other arrays in the places of these."""
        return self.apart.run(f, arrays)

    @property
    def inexact(self) -> list[int]:
        """Where the arrays stand that have gradients."""
        return [at for at, array in enumerate(self.arrays) if _jax.is_inexact(array.dtype)]


def _label(path: Any, labels: Sequence[str]) -> str:
    kind, first = path[0].idx, path[1]
    return f"{first.key if kind else labels[first.idx]}{jax.tree_util.keystr(path[2:])}"


@dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
      names: what it gives, by path.
      traced: its equations.
      compute: computes it.
    """

    names: list[str]
    traced: Any
    compute: Callable[..., list[jax.Array]]

    def __call__(self, *args: Any) -> dict[str, jax.Array]:
        return dict(zip(self.names, jax.block_until_ready(self.compute(*args)), strict=True))


def _compiled(f: Callable[..., Any], names: list[str], *args: Any) -> Program:
    traced = jax.jit(f).trace(*args)
    return Program(names, traced.jaxpr, traced.lower().compile())


@dataclass(frozen=True)
class Outcome:
    """What a function gave on one mesh.

    Attributes:
      mesh: the mesh.
      values: results by path, ``return[0].loss``, and gradients by argument, ``grad(w)``; on the host.
      specs: of each result, per dim, the mesh axes that it lies over.
      traced: the programs that computed them.
      call: the arguments.
      gradients: which of the values are.
      again: computes the same of other arrays, and of cotangents times a number.
    """

    mesh: Mesh
    values: Arrays
    specs: Mapping[str, tuple[tuple[str, ...], ...]]
    traced: tuple[Any, ...]
    call: Call
    gradients: frozenset[str]
    again: Callable[[Sequence[jax.Array], float], Arrays]


def run(
    subject: Subject, made: Inputs, mesh: Mesh, grad: bool, seed: int, is_excluded: Callable[[str], bool]
) -> Outcome:
    """Run a function on one mesh.

    Args:
      subject: the function.
      made: its arguments, placed there.
      mesh: the mesh.
      grad: whether to compute vector-Jacobian products, of all results and in all inexact arguments.
      seed: what the cotangents are drawn from.
      is_excluded: whether a result, by its path, takes no part in them.
    """
    call = Call.of(made)
    names, forward = _forward(call, subject.callee(mesh))
    with subject.on(mesh):
        program = _compiled(forward, names, call.arrays)
        results = program(call.arrays)
        programs: list[tuple[Program, tuple[Any, ...]]] = [(program, ())]
        if grad:
            pulled = [name for name in names if _jax.is_inexact(results[name].dtype) and not is_excluded(name)]
            cotangents = [_cotangent(results[name], (seed, _OF_COTANGENTS, names.index(name))) for name in pulled]
            labels = [f"grad({call.names[at]})" for at in call.inexact]
            pullback = _pullback(forward, call, [names.index(name) for name in pulled])
            programs.append((_compiled(pullback, labels, call.arrays, cotangents), (cotangents,)))

    def again(arrays: Sequence[jax.Array], factor: float) -> Arrays:
        with subject.on(mesh):
            found = [each(list(arrays), *_times(factor, more)) for each, more in programs]
        return {name: _host(array) for part in found for name, array in part.items()}

    gradients = frozenset(name for each, _ in programs[1:] for name in each.names)
    specs = {name: _parts(array) for name, array in results.items()}
    return Outcome(
        mesh, again(call.arrays, 1.0), specs, tuple(each.traced for each, _ in programs), call, gradients, again
    )


_OF_COTANGENTS = 2**31 + 1


def _forward(call: Call, f: Callable[..., Any]) -> tuple[list[str], Callable[[Sequence[Any]], list[Any]]]:
    """The function from arrays to arrays, and their paths, which are known once it is traced."""
    names: list[str] = []

    def forward(arrays: Sequence[Any]) -> list[Any]:
        found = jax.tree_util.tree_flatten_with_path(call.run(f, arrays))[0]
        names[:] = [f"return{jax.tree_util.keystr(path)}" for path, _ in found]
        return [_whole(leaf) for _, leaf in found]

    return names, forward


def _whole(value: Any) -> Any:
    """A global array; one that is left as addends is summed."""
    value = value if _jax.is_jax_array(value) else jax.numpy.asarray(value)
    sharding = _jax.explicit_spec(value)
    if sharding is None:
        return value
    parts = _jax.spec_parts(sharding.spec)
    return jax.reshard(value, _jax.partition_spec(parts.parts)) if parts.unreduced or parts.reduced else value


def _pullback(
    forward: Callable[[Sequence[Any]], list[Any]], call: Call, pulled: Sequence[int]
) -> Callable[[Sequence[Any], list[Any]], list[Any]]:
    """The vector-Jacobian product of some results, in all inexact arguments."""

    def pullback(arrays: Sequence[Any], cotangents: list[Any]) -> list[Any]:
        def some(inexact: list[Any]) -> list[Any]:
            mixed = list(arrays)
            for at, array in zip(call.inexact, inexact, strict=True):
                mixed[at] = array
            results = forward(mixed)
            return [results[at] for at in pulled]

        gradients = jax.vjp(some, [arrays[at] for at in call.inexact])[1](cotangents)[0]
        return [_whole(gradient) for gradient in gradients]

    return pullback


def _cotangent(result: jax.Array, seed: Sequence[int]) -> jax.Array:
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal(result.shape) + 1j * rng.standard_normal(result.shape)
    is_complex = jax.numpy.issubdtype(result.dtype, jax.numpy.complexfloating)
    return jax.device_put((drawn if is_complex else drawn.real).astype(result.dtype), result.sharding)


def _times(factor: float, cotangents: Any) -> Any:
    return jax.tree.map(lambda each: jax.device_put((each * factor).astype(each.dtype), each.sharding), cotangents)


def _host(array: jax.Array) -> np.ndarray[Any, Any]:
    is_key = jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array)


def _parts(array: jax.Array) -> tuple[tuple[str, ...], ...]:
    sharding = array.sharding
    return _jax.spec_parts(sharding.spec).parts if isinstance(sharding, NamedSharding) else ()
