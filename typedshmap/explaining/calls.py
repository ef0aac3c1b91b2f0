"""One call of a function on one mesh: its arguments checked, its program and that of its gradient traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from .. import _jax
from ..decorated import decorated, owner_of
from ..errors import error_of
from ..hints.axes import Naming
from ..hints.binding import Bound, Typed
from ..hints.nodes import Anything, Node, holds_arrays
from ..hints.scope import Region, naming_here, same
from ..hints.walk import Found, Walk
from ..notation.sizes import RETURN, Subject
from ..testing.mapping import mapped
from .meshes import standing_for_all


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument with arrays: where it stands in the call, and where its leaves stand among all."""

    parameter: str
    subject: Subject
    value: Any
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced program, with the types of its results in their structure."""

    program: Any
    results: Any


class Call:
    """One call, which is traced but never run.

    Attributes:
      f: the function, which for a ``typed`` one is mapped over the mesh.
      typed: its hints.
      region: what hints mean on the mesh.
      leaves: the leaves of all arguments, each with its hint.
      sizes: what the names in the hints stand for.
      structs: what the function is traced with: of each array its shape, dtype and sharding.
    """

    def __init__(
        self, f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], mesh: AbstractMesh
    ) -> None:
        self.made_of, self.f, self.mesh = decorated(f, "explain"), f, mesh
        if self.made_of.verb == "typed":
            # Over Explicit axes, so that a sum that it owes may leave.
            self.f, self.mesh = mapped(f, self.made_of), _jax.with_axis_type(mesh, AxisType.Explicit)
        self.owner = owner_of(f)
        self.typed: Typed = self.made_of.hinted.read((*self.owner, *args))
        self.region = _region(self.mesh, naming_here(self.made_of.naming))
        self.bound: Bound = self.typed.bind((*self.owner, *args), kwargs)
        self.arguments: list[Argument] = []
        walk = self._walk()
        self.leaves, self.sizes = walk.leaves, walk.sizes
        self.structs = [self._struct(leaf) for leaf in self.leaves]

    def _walk(self) -> Walk:
        """Check all arguments, and note where the leaves of those with arrays stand."""
        given = self.typed.arguments(self.bound)

        def look(values: Any) -> Walk:
            self.arguments.clear()
            walk = Walk(self.region, self.bound.arguments)
            for (name, subject, node, value), shown in zip(given, values, strict=True):
                first = len(walk.leaves)
                walk.visit(node, shown, subject)
                if _is_traced(node, value):
                    self.arguments.append(Argument(name, subject, value, first, len(walk.leaves)))
                else:
                    del walk.leaves[first:]
            walk.settle()
            return walk

        return self._without_failures(as_traced(look, [value for *_, value in given]))

    def _without_failures(self, walk: Walk) -> Walk:
        if walk.failures:
            raise error_of(self.region.report(self.typed.name, tuple(walk.failures), walk.sizes))
        return walk

    def _struct(self, leaf: Found) -> Any:
        """What stands for a leaf when the function is traced; a Python number stands for itself."""
        if not isinstance(leaf.value, (*_jax.ARRAYS, *_jax.SHAPES)):
            return leaf.value
        dtype = jax.dtypes.canonicalize_dtype(leaf.value.dtype, allow_extended_dtype=True)
        return jax.ShapeDtypeStruct(leaf.value.shape, dtype, sharding=self._sharding(leaf))

    def _sharding(self, leaf: Found) -> Any:
        """Part of a value's type over Explicit axes; on others it says nothing to a program that is traced."""
        if leaf.hint is None or not _jax.explicit_axes(self.mesh):
            return None
        spec = _jax.spec_parts(self.region.spec(leaf.hint, len(leaf.value.shape)))
        explicit = _jax.explicit_axes(self.mesh)
        parts = [tuple(axis for axis in axes if axis in explicit) for axes in spec.parts]
        return NamedSharding(self.mesh, _jax.partition_spec(parts, spec.unreduced, spec.reduced))

    @property
    def traced(self) -> list[int]:
        """Which leaves are traced: arrays, and numbers for which there is a hint."""
        return [at for at, leaf in enumerate(self.leaves) if leaf.hint is not None or _is_array(leaf.value)]

    def run(self, values: Sequence[Any]) -> Any:
        """Call the function with values in the place of what is traced."""
        leaves = [leaf.value for leaf in self.leaves]
        for at, value in zip(self.traced, values, strict=True):
            leaves[at] = value
        parts = [(a.parameter, a.subject, _jax.like(a.value, leaves[a.first : a.last])) for a in self.arguments]
        args, kwargs = self.bound.replaced(parts)
        return self.f(*args[len(self.owner) + len(self.typed.given) :], **kwargs)

    def trace(self) -> Traced:
        """Trace the function alone."""
        structs = [self.structs[at] for at in self.traced]
        with standing_for_all(self.mesh, self.made_of.mesh):
            # A function of its own, since JAX keeps what it traced by the function.
            program, results = jax.make_jaxpr(lambda *values: self.run(values), return_shape=True)(*structs)
        return Traced(program, results)

    def result_leaves(self, results: Any) -> list[Found]:
        """The leaves of the results, each with its hint."""
        node = self.typed.result
        assert node is not None

        def look(value: Any) -> Walk:
            walk = Walk(self.region, self.bound.arguments, self.sizes)
            walk.visit(node, value, RETURN)
            walk.settle()
            return walk

        walk = self._without_failures(as_traced(look, results))
        self.sizes = walk.sizes
        return walk.leaves

    def differentiable(self) -> list[int]:
        """Which of the traced values have a gradient."""
        return [at for at, leaf in enumerate(self.traced) if has_gradient(self.structs[leaf])]

    def trace_gradient(self, results: Any) -> Any:
        """Trace the function and its vector-Jacobian product by all that has a gradient, as one program."""
        chosen = self.differentiable()
        structs = [self.structs[at] for at in self.traced]
        cotangents = [_cotangent(leaf) for leaf in jax.tree_util.tree_leaves(results) if has_gradient(leaf)]

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

        with standing_for_all(self.mesh, self.made_of.mesh):
            return jax.make_jaxpr(both)(structs, cotangents)


def as_traced(look: Callable[[Any], Walk], value: Any) -> Walk:
    """Check a value in which ShapeDtypeStructs stand for arrays: each as what it is traced as.

    Args:
      look: checks a value; its walk is given back with the structs in their places.
      value: what is checked.
    """
    leaves, structure = jax.tree_util.tree_flatten(value)
    shapes = {at: leaf for at, leaf in enumerate(leaves) if isinstance(leaf, _jax.SHAPES)}
    found: list[Walk] = []

    def trace(*tracers: Any) -> None:
        traced = dict(zip(shapes, tracers, strict=True))
        structs = {id(tracer): shapes[at] for at, tracer in traced.items()}
        walk = look(structure.unflatten([traced.get(at, leaf) for at, leaf in enumerate(leaves)]))
        walk.leaves = [leaf._replace(value=structs.get(id(leaf.value), leaf.value)) for leaf in walk.leaves]
        found.append(walk)

    # Without shardings, which are those of the hints: what is given need not be placed yet.
    jax.eval_shape(trace, *(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in shapes.values()))
    return found[0]


def _region(mesh: AbstractMesh, naming: Naming) -> Region:
    """Where global arrays are; no boundary is crossed here, since the function itself says what it refuses."""
    axes, explicit = mesh.shape_tuple, _jax.explicit_axes(mesh)
    return same(Region(axes, (), axes, aliases=naming.aliases, role="boundary", explicit=explicit, rules=naming.rules))


def _is_traced(node: Node, value: Any) -> bool:
    is_any = isinstance(node, Anything) and any(_is_array(leaf) for leaf in jax.tree_util.tree_leaves(value))
    return is_any or holds_arrays(node)


def _is_array(value: Any) -> bool:
    return isinstance(value, (*_jax.ARRAYS, *_jax.SHAPES))


def has_gradient(value: Any) -> bool:
    """Whether a value is of a dtype that has gradients."""
    return _jax.is_inexact(np.result_type(value) if not hasattr(value, "dtype") else value.dtype)


def _cotangent(result: Any) -> Any:
    """The type of a result's cotangent: where the result is unreduced, it is reduced, and the other way round."""
    sharding = getattr(result, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return jax.ShapeDtypeStruct(result.shape, result.dtype)
    spec = _jax.spec_parts(sharding.spec)
    turned = NamedSharding(sharding.mesh, _jax.partition_spec(spec.parts, spec.reduced, spec.unreduced))
    return jax.ShapeDtypeStruct(result.shape, result.dtype, sharding=turned)
