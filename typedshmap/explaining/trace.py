"""One call of a function on each mesh that it is explained on: its arguments checked, it and its gradient traced."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from .. import _jax
from ..axis_names import AxisNaming
from ..errors import MeshAxisError, error_of
from ..errors.phrases import value_text
from ..hints.check_tree import CheckedLeaf, TreeCheck, check_arguments_as_traced, check_as_traced, check_value
from ..hints.context import MeshContext, current_axis_naming
from ..hints.signature import BoundCall, HintedSignature
from ..hints.structure import holds_arrays
from ..inference.analysis import keep_all_claims
from ..introspection import bound_self, require_decorated
from ..meshes import override_mesh, read_mesh
from ..notation.match import RETURN
from ..sampling.meshes import map_over_shards, mesh_sizes


@dataclass(frozen=True, slots=True)
class TracedFunction:
    """A jaxpr, with the types of its results in their structure."""

    jaxpr: Any
    results: Any


class ExplainedCall:
    """One call, which is traced but never run.

    Attributes:
      f: the function, which for a ``typed`` one is mapped over the mesh.
      typed: its hints.
      region: what hints mean on the mesh.
      leaves: the leaves of all arguments, each with its hint.
      sizes: the sizes of the names in the hints.
      structs: what the function is traced with: of each array its shape, dtype and sharding.
    """

    def __init__(
        self, f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], mesh: AbstractMesh
    ) -> None:
        self.made_of, self.f, self.mesh = require_decorated(f, "explain"), f, mesh
        if self.made_of.verb == "typed":
            # Over Explicit axes, so that a result may be unreduced.
            self.f, self.mesh = map_over_shards(f, self.made_of), _jax.mesh.with_axis_type(mesh, AxisType.Explicit)
        self.owner = bound_self(f)
        self.typed: HintedSignature = self.made_of.signature.read((*self.owner, *args))
        self.region = _global_context(self.mesh, current_axis_naming(self.made_of.naming))
        self.bound: BoundCall = self.typed.bind((*self.owner, *args), kwargs)
        # Without the shardings of structs, which are those of the hints: what is given need not be placed yet.
        self.checked = check_arguments_as_traced(
            self.typed.arguments(self.bound), self.bound.arguments, self.region, has_shardings=False
        )
        self._raise(self.checked)
        self.leaves, self.sizes = self.checked.leaves, self.checked.sizes
        self.structs = [self._struct(leaf) for leaf in self.leaves]

    def _raise(self, checked: TreeCheck) -> None:
        if checked.failures:
            raise error_of(self.region.report(self.typed.name, tuple(checked.failures), checked.sizes))

    def _struct(self, leaf: CheckedLeaf) -> Any:
        """What a leaf is traced as; a Python number as itself."""
        if not _is_array(leaf.value):
            return leaf.value
        sharding, explicit = None, _jax.mesh.explicit_axes(self.mesh)
        # Part of a value's type over Explicit axes; over others it says nothing to a trace.
        if leaf.hint is not None and explicit:
            spec = _jax.array.spec_entries(self.region.spec(leaf.hint, len(leaf.value.shape)))
            dim_axes = [tuple(axis for axis in axes if axis in explicit) for axes in spec.dim_axes]
            sharding = NamedSharding(self.mesh, _jax.array.partition_spec(dim_axes, spec.unreduced, spec.reduced))
        dtype = jax.dtypes.canonicalize_dtype(leaf.value.dtype, allow_extended_dtype=True)
        return jax.ShapeDtypeStruct(leaf.value.shape, dtype, sharding=sharding)

    @property
    def traced_leaves(self) -> list[int]:
        """Which leaves are traced: arrays, and numbers for which there is a hint."""
        return [at for at, leaf in enumerate(self.leaves) if leaf.hint is not None or _is_array(leaf.value)]

    def run(self, values: Sequence[Any]) -> Any:
        """Call the function with values in the place of what is traced."""
        leaves = [leaf.value for leaf in self.leaves]
        for at, value in zip(self.traced_leaves, values, strict=True):
            leaves[at] = value
        changed = [
            (name, subject, _jax.tree.unflatten_like(value, leaves[first:last]))
            for (name, subject, node, value), (first, last) in zip(self.checked.given, self.checked.spans, strict=True)
            if holds_arrays(node) or any(_is_array(leaf.value) for leaf in self.leaves[first:last])
        ]
        args, kwargs = self.bound.with_arguments(changed)
        return self.f(*args[len(self.owner) + len(self.typed.given) :], **kwargs)

    def trace(self) -> TracedFunction:
        """Trace the function alone."""
        structs = [self.structs[at] for at in self.traced_leaves]
        with replace_meshes(self.mesh, self.made_of.mesh):
            # A function of its own, since JAX keeps what it traced by the function.
            jaxpr, results = jax.make_jaxpr(lambda *values: self.run(values), return_shape=True)(*structs)
        return TracedFunction(jaxpr, results)

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

    def differentiable(self) -> list[int]:
        """Which of the traced values have a gradient."""
        return [at for at, leaf in enumerate(self.traced_leaves) if has_gradient(self.structs[leaf])]

    def trace_gradient(self, results: Any) -> Any:
        """Trace the function and its vector-Jacobian product by all that has a gradient, to one jaxpr."""
        chosen = self.differentiable()
        structs = [self.structs[at] for at in self.traced_leaves]
        cotangents: list[jax.ShapeDtypeStruct] = []
        for leaf in filter(has_gradient, jax.tree_util.tree_leaves(results)):
            # A cotangent is reduced where its result is unreduced, and the other way round.
            sharding, given = None, getattr(leaf, "sharding", None)
            if isinstance(given, NamedSharding):
                spec = _jax.array.spec_entries(given.spec)
                swapped = _jax.array.partition_spec(spec.dim_axes, spec.reduced, spec.unreduced)
                sharding = NamedSharding(given.mesh, swapped)
            cotangents.append(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding))

        def both(values: list[Any], cotangents: list[Any]) -> Any:
            def only(*some: Any) -> Any:
                now = list(values)
                for at, value in zip(chosen, some, strict=True):
                    now[at] = value
                leaves = jax.tree_util.tree_leaves(self.run(now))
                inexact = [leaf for leaf in leaves if has_gradient(leaf)]
                return inexact, [leaf for leaf in leaves if not has_gradient(leaf)]

            out, pull, others = jax.vjp(only, *(values[at] for at in chosen), has_aux=True)
            return out, others, pull(cotangents)

        with replace_meshes(self.mesh, self.made_of.mesh):
            return jax.make_jaxpr(both)(structs, cotangents)


def _global_context(mesh: AbstractMesh, naming: AxisNaming) -> MeshContext:
    """Where global arrays are; no boundary is crossed here, since the function itself says what it refuses."""
    return MeshContext.over(mesh, naming, "boundary", entering=mesh.shape_tuple)


def _is_array(value: Any) -> bool:
    return isinstance(value, (*_jax.array.ARRAYS, *_jax.array.SHAPES))


def has_gradient(value: Any) -> bool:
    """Whether a value is of a dtype that has gradients."""
    return _jax.array.is_inexact(np.result_type(value) if not hasattr(value, "dtype") else value.dtype)


def meshes_of(verb: str, given: Any, own: _jax.mesh.AnyMesh | None, values: Iterable[Any]) -> tuple[AbstractMesh, ...]:
    """One mesh or several, without their devices.

    Args:
      verb: the function that messages name.
      given: a mesh, a dict of sizes, a text as in ``"dp=4,tp=2"``, or a list of such; None to find one.
      own: the decorator's mesh, which comes first where none is given, and says what type axes have.
      values: the call's arguments, which may be placed on a mesh.

    Raises:
      MeshAxisError: for what is not a mesh, and where none is found.
    """
    if isinstance(given, (list, tuple)):
        if not given:
            raise MeshAxisError(f"{verb}: mesh= is empty")
        return tuple(_read_mesh(verb, each, own) for each in given)
    found = given if given is not None else own or _ambient_mesh()
    if found is None:
        leaves = (leaf for value in values for leaf in jax.tree_util.tree_leaves(value))
        found = next((mesh for leaf in leaves if (mesh := _jax.mesh.value_mesh(leaf)) is not None), None)
    if found is None:
        raise MeshAxisError(
            f"{verb}: no mesh is known: mesh= is not given, none is ambient, and no argument was placed on one\n\n"
            'Hint: pass mesh=, as in mesh={"dp": 4, "tp": 2}; it needs no devices'
        )
    return (_read_mesh(verb, found, own),)


def _ambient_mesh() -> _jax.mesh.AnyMesh | None:
    mesh = _jax.mesh.context_mesh()
    return None if mesh.empty else mesh


def _read_mesh(verb: str, given: Any, own: _jax.mesh.AnyMesh | None) -> AbstractMesh:
    if isinstance(given, (Mesh, AbstractMesh)):
        mesh = read_mesh(given)
        if mesh is None:
            raise MeshAxisError(f"{verb}: the mesh has no axes")
        return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types)
    sizes = mesh_sizes(given)
    if sizes is None:
        raise MeshAxisError(
            f"{verb}: mesh= is {value_text(given)}\n\n"
            'Hint: a mesh is a jax.sharding.Mesh or AbstractMesh, a dict of sizes, or a text as in "dp=4,tp=2"'
        )
    like = own or _ambient_mesh()
    types = dict(zip(like.axis_names, like.axis_types, strict=True)) if like is not None else {}
    kinds = tuple(types.get(name, AxisType.Auto) for name in sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


@contextmanager
def replace_meshes(mesh: AbstractMesh, own: _jax.mesh.AnyMesh | None) -> Generator[None]:
    """Replace a function's own mesh by another, and the ambient one where a function looks for that."""
    with ExitStack() as stack:
        if own is None or not _jax.mesh.context_mesh().empty:
            stack.enter_context(_jax.mesh.without_ambient())
            stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
        stack.enter_context(override_mesh(mesh))
        stack.enter_context(keep_all_claims())
        yield
