"""One call of a function on each mesh that it is explained on: its arguments checked, it and its gradient traced."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from .. import _jax
from ..errors import MeshAxisError, error_of
from ..errors.failures import RETURN
from ..errors.phrases import value_text
from ..hints.check_tree import CheckedLeaf, TreeCheck, check_arguments_as_traced, check_as_traced, check_value
from ..hints.context import MeshContext, current_axis_naming
from ..inference.analysis import keep_all_claims
from ..introspection import bound_self, require_decorated
from ..meshes import override_mesh
from ..sampling.arguments import Inputs
from ..sampling.meshes import map_over_shards, mesh_like, mesh_sizes


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
        self.region = MeshContext.over(self.mesh, naming, "boundary", entering=self.mesh.shape_tuple)
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
            raise error_of(self.region.report(self.typed.name, tuple(checked.failures), checked.sizes))

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
        leaves = [leaf.value for leaf in self.checked.leaves]
        for at, value in zip(self.traced, values, strict=True):
            leaves[at] = value
        changed = [
            (name, subject, _jax.tree.unflatten_like(value, leaves[first:last]))
            for (name, subject, _, value), (first, last) in zip(self.checked.given, self.checked.spans, strict=True)
            if any(first <= at < last for at in self.traced)
        ]
        args, kwargs = self.bound.with_arguments(changed)
        return self.f(*args[len(self.owner) + len(self.typed.given) :], **kwargs)

    def trace(self) -> tuple[Any, Any]:
        """The jaxpr of the function alone, and the types of its results in their structure."""
        with self._replace_meshes():
            # A function of its own, since JAX keeps what it traced by the function.
            return jax.make_jaxpr(lambda *values: self.run(values), return_shape=True)(*self.structs)

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
            # A cotangent is reduced where its result is unreduced, and the other way round.
            sharding = getattr(leaf, "sharding", None)
            if isinstance(sharding, NamedSharding):
                spec = _jax.array.spec_entries(sharding.spec)
                swapped = _jax.array.partition_spec(spec.dim_axes, spec.reduced, spec.unreduced)
                sharding = NamedSharding(sharding.mesh, swapped)
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
        with _jax.mesh.without_ambient(), ambient, override_mesh(self.mesh), keep_all_claims(True):
            yield


def _is_array(value: Any) -> bool:
    return isinstance(value, (*_jax.array.ARRAYS, *_jax.array.SHAPES))


def has_gradient(value: Any) -> bool:
    """Whether a value is of a dtype that has gradients."""
    return _jax.array.is_inexact(np.result_type(value) if not hasattr(value, "dtype") else value.dtype)


def meshes_of(given: Any, own: _jax.mesh.AnyMesh | None, values: Iterable[Any]) -> tuple[AbstractMesh, ...]:
    """One mesh or several, without their devices.

    Args:
      given: a mesh, a dict of sizes, a text as in ``"dp=4,tp=2"``, or a list of such; None to find one.
      own: the decorator's mesh, which comes first where none is given, and says what type axes have.
      values: the call's arguments, which may be placed on a mesh.

    Raises:
      MeshAxisError: for what is not a mesh, and where none is found.
    """
    ambient = _jax.mesh.context_mesh()
    default = own or (None if ambient.empty else ambient)
    if isinstance(given, (list, tuple)):
        if not given:
            raise MeshAxisError("explain: mesh= is empty")
        return tuple(_read_mesh(each, default) for each in given)
    if given is None and default is None:
        leaves = (leaf for value in values for leaf in jax.tree_util.tree_leaves(value))
        default = next((mesh for leaf in leaves if (mesh := _jax.mesh.value_mesh(leaf)) is not None), None)
    if given is None and default is None:
        raise MeshAxisError(
            "explain: no mesh is known: mesh= is not given, none is ambient, and no argument was placed on one\n\n"
            'Hint: pass mesh=, as in mesh={"dp": 4, "tp": 2}; it needs no devices'
        )
    return (_read_mesh(default if given is None else given, default),)


def _read_mesh(given: Any, like: _jax.mesh.AnyMesh | None) -> AbstractMesh:
    """A mesh without its devices; of one that is written down the axes have the types of another mesh."""
    if isinstance(given, (Mesh, AbstractMesh)):
        if given.empty:
            raise MeshAxisError("explain: the mesh has no axes")
        return AbstractMesh(given.axis_sizes, given.axis_names, axis_types=given.axis_types)
    sizes = mesh_sizes(given)
    if sizes is None:
        raise MeshAxisError(
            f"explain: mesh= is {value_text(given)}\n\n"
            'Hint: a mesh is a jax.sharding.Mesh or AbstractMesh, a dict of sizes, or a text as in "dp=4,tp=2"'
        )
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
    return mesh_like(mesh, like)
