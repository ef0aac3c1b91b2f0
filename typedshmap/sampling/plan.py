"""Plan the arguments of a call from its hints, draw their sizes and values, and place them on any mesh.

Invariant: the values are the same on every mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh

from .. import _jax
from ..axis_names import AxisNaming
from ..errors import ShapeError, StructureError
from ..errors.failures import RETURN
from ..errors.phrases import value_text
from ..hints.array_hint import ArrayHint
from ..hints.check_tree import CheckedLeaf, check_arguments
from ..hints.context import current_axis_naming
from ..hints.signature import EMPTY
from ..hints.structure import array_hints, holds_arrays
from ..introspection import bound_self, require_decorated
from ..notation.spec import Rest, names_in_expression
from ..placement.context import placement_context_over
from ..placement.structs import default_dtype, names_of, refuse_wrong_sizes
from . import draws
from .arguments import ArrayMaker, ArrayToDraw, CallArgument, Inputs, arguments_of, unknown_name_text
from .draws import SizeRequirement, SizeValues, factors_of, size_requirements
from .meshes import argument_hints, result_hints

_SIZE_STREAM = 2**31
_TRIES = 2000


def plan_inputs(
    f: Callable[..., Any],
    meshes: Sequence[_jax.mesh.AnyMesh | None],
    given: Mapping[str, Any] = MappingProxyType({}),
    arguments: Mapping[str, Any] | None = None,
    verb: str = "inputs",
) -> InputPlan:
    """Plan the arguments of a call, with sizes that divide over the axes of several meshes.

    Args:
      f: a decorated function, or a method of an instance.
      meshes: the meshes; None where there is none.
      given: sizes by the names of dims, and arguments by their names.
      arguments: more arguments, by name or by path.
      verb: the function that messages name.

    Raises:
      StructureError: for arguments that are not given and cannot be made from a hint.
      ShapeError: for a value that is not a size, and a size that no hint names.
      MeshAxisError: for an axis that a mesh does not have.
    """
    made_of, owner = require_decorated(f, verb), bound_self(f)
    require_dict(arguments, verb)
    typed, naming = made_of.signature.read(owner), current_axis_naming(made_of.naming)
    parameters, source = typed.signature.parameters, f"{verb}: {typed.name}"
    sizes = sizes_among(f, given)
    values = {name: value for name, value in given.items() if name not in sizes}
    found = arguments_of(typed, owner, verb, {**values, **(arguments or {})})
    contexts = [placement_context_over(source, mesh, naming) for mesh in meshes]
    hints = [*(hint for each in found for hint in array_hints(each.node)), *result_hints(typed)]
    names = names_of(hints)
    if unknown := [name for name in sizes if name not in names]:
        raise StructureError(f"{source}: {unknown_name_text(unknown[0], [*names, *parameters])}")
    refuse_wrong_sizes(source, hints, sizes, must_all=False)
    named = {name: parameter.default for name, parameter in parameters.items() if parameter.default is not EMPTY}
    named.update(zip(parameters, (*typed.given, *owner), strict=False))
    named.update((each.subject.name, each.value) for each in found if not each.subject.path)
    # Arguments that are given in full bind sizes.
    in_full = [(each.subject.name, each.subject, each.node, each.value) for each in found if not each.arrays_to_draw]
    checked = check_arguments(in_full, named, contexts[0].context)
    if checked.failures:
        raise contexts[0].error(checked.failures, checked.sizes)
    bound = {name.removeprefix("*"): size.size for name, size in checked.sizes if " at " not in name}
    drawn = [(each.subject, array.hint) for each in found for array in each.arrays_to_draw]
    requirements = size_requirements([*drawn, *((RETURN, hint) for hint in result_hints(typed))], contexts)
    return InputPlan(source, naming, found, named, [hint for _, hint in drawn], requirements, {**bound, **sizes})


def taken_names(f: Callable[..., Any]) -> set[str]:
    """The names of the dims in a function's hints, and of its parameters."""
    typed = require_decorated(f, "inputs").signature.read(bound_self(f))
    return {*names_of([*argument_hints(typed), *result_hints(typed)]), *typed.signature.parameters}


def sizes_among(f: Callable[..., Any], given: Mapping[str, Any]) -> SizeValues:
    """The sizes among keywords: integers by the names of dims, unless an argument without arrays has that name."""
    typed = require_decorated(f, "inputs").signature.read(bound_self(f))
    dims = names_of(argument_hints(typed))

    def is_size(name: str, value: Any) -> bool:
        is_number = isinstance(value, (int, np.integer, tuple)) and not isinstance(value, bool)
        if name not in typed.signature.parameters:
            return is_number or name in dims
        return is_number and name in dims and name in typed.parameters and holds_arrays(typed.parameters[name])

    return {name: value for name, value in given.items() if is_size(name, value)}


def require_dict(arguments: Any, verb: str) -> None:
    """Refuse an ``arguments=`` that is not a dict of arguments by name.

    Raises:
      StructureError: for anything but None and such a dict.
    """
    if not isinstance(arguments, Mapping | None) or not all(isinstance(name, str) for name in arguments or ()):
        raise StructureError(
            f"{verb}: arguments= wants a dict of arguments by name or path, got {value_text(arguments)}"
        )


@dataclass(frozen=True)
class InputPlan:
    """The arguments of a call, before their sizes and values are drawn.

    Attributes:
      source: how messages begin: the verb and the function's name.
      naming: the function's aliases and rules.
      arguments: the arguments, with an `ArrayToDraw` for each array that is not given.
      named: all arguments by name, for ``{argument}`` in a hint.
      hints: the hints of the arrays that are drawn.
      requirements: the requirements of arguments and result on the sizes.
      given: the sizes that are given.
    """

    source: str
    naming: AxisNaming
    arguments: Sequence[CallArgument]
    named: Mapping[str, Any]
    hints: Sequence[ArrayHint]
    requirements: Sequence[SizeRequirement]
    given: SizeValues

    @property
    def factors(self) -> Mapping[str, int]:
        """A divisor of the size of each name that is not given, so that it divides over its mesh axes."""
        return {name: n for name, n in factors_of(self.hints, self.requirements).items() if name not in self.given}

    def draw(self, seed: int, sizes: Mapping[str, Any] | None = None) -> UnplacedInputs:
        """Draw sizes and values.

        Args:
          seed: the seed.
          sizes: sizes for this draw, besides those that are given.

        Raises:
          ShapeError: where no sizes fit.
        """
        rng, given = np.random.default_rng([seed, _SIZE_STREAM]), {**(sizes or {}), **self.given}
        dims = [dim for hint in self.hints for dim in hint.spec.dims]
        rests = dict.fromkeys(dim.name or draws.REST for dim in dims if isinstance(dim, Rest))
        factors = factors_of(self.hints, self.requirements)
        # The check of the arguments reports given sizes that do not divide, with the argument and the mesh.
        undetermined = [
            each
            for each in self.requirements
            if not given.keys() >= {*names_in_expression(each.expression)} or each.misfit(given, self.named, 1)
        ]
        misfits: list[str] = []
        for attempt in range(_TRIES):
            drawn = {**draws.draw_once(factors, rests, given, rng, spread=4 + attempt // 50), **given}
            misfits = [misfit for each in undetermined if (misfit := each.misfit(drawn, self.named, each.factor))]
            if not misfits and (attempt >= _TRIES // 4 or draws.are_distinct(drawn, factors, given)):
                return UnplacedInputs(self, drawn, seed)
        problem = misfits[0] if misfits else "no two sizes are different"
        example = ", ".join(f"{name}={4 * factor}" for name, factor in list(factors.items())[:3]) or "x=..."
        raise ShapeError(f"{self.source}: no sizes were found that fit: {problem}\n\nHint: pass sizes, as in {example}")


@dataclass(frozen=True)
class UnplacedInputs:
    """The arguments of one call, before they are placed on a mesh.

    Attributes:
      plan: the plan that they were drawn from.
      sizes: the size of each name.
      seed: the seed that they were drawn from.
    """

    plan: InputPlan
    sizes: SizeValues
    seed: int

    def on(self, mesh: _jax.mesh.AnyMesh | None) -> Inputs:
        """The arguments, sharded over a mesh by their hints; structs on an AbstractMesh.

        Raises:
          TypedShmapError: for an argument that does not fit the mesh.
        """
        return self.structs(mesh) if isinstance(mesh, AbstractMesh) else self._place(mesh, self._values, _put)

    def structs(self, mesh: _jax.mesh.AnyMesh | None) -> Inputs:
        """The arguments with ``jax.ShapeDtypeStruct``s for arrays, which need no devices.

        Raises:
          TypedShmapError: for an argument that does not fit the mesh.
        """
        return self._place(mesh, self._fill_arrays(as_structs=True), _struct)

    @cached_property
    def _values(self) -> list[Any]:
        return self._fill_arrays(as_structs=False)

    def _fill_arrays(self, as_structs: bool) -> list[Any]:
        """The arguments with an array, or its struct, for each `ArrayToDraw`."""
        numbers = count()

        def fill(leaf: Any) -> Any:
            if not isinstance(leaf, ArrayToDraw):
                return leaf
            hint, seed = leaf.hint, (self.seed, next(numbers))
            shape, dtype = draws.shape_of(hint, self.sizes, self.plan.named), default_dtype(hint)
            if leaf.make is not None:
                key, make = draws.key_of(seed), partial(self._make, leaf.make, hint, shape)
                return jax.eval_shape(make, key) if as_structs else make(key)
            if as_structs:
                return jax.ShapeDtypeStruct(shape, dtype)
            return draws.draw_value(shape, dtype, draws.bound_of(hint, self.plan.hints, self.sizes), seed)

        found = self.plan.arguments
        return [jax.tree.map(fill, each.value) if each.arrays_to_draw else each.value for each in found]

    def _make(self, make: ArrayMaker, hint: ArrayHint, shape: tuple[int, ...], key: Any) -> Any:
        """The result of the user's function, which must be an array."""
        value = make(key, shape)
        if isinstance(value, (*_jax.array.ARRAYS, *_jax.array.SCALARS)):
            return value
        problem = f"the function that makes {hint.text} returned {value_text(value)}, which is not an array"
        raise StructureError(f"{self.plan.source}: {problem}")

    def _place(self, mesh: _jax.mesh.AnyMesh | None, values: Sequence[Any], put: Callable[[Any, Any], Any]) -> Inputs:
        """Check the arguments against their hints, and place their arrays."""
        arguments, context = self.plan.arguments, placement_context_over(self.plan.source, mesh, self.plan.naming)
        given = [(a.subject.name, a.subject, a.node, value) for a, value in zip(arguments, values, strict=True)]
        checked = check_arguments(given, self.plan.named, context.context)
        if checked.failures:
            raise context.error(checked.failures, checked.sizes)

        def put_leaf(leaf: CheckedLeaf) -> Any:
            if leaf.hint is None or not (leaf.hint.array_type is Any or issubclass(jax.Array, leaf.hint.array_type)):
                return leaf.value
            return put(leaf.value, context.sharding(leaf.hint, len(np.shape(leaf.value))))

        placed = [
            _jax.tree.unflatten_like(value, map(put_leaf, leaves)) if holds_arrays(node) else value
            for (_, _, node, value), leaves in checked.by_argument()
        ]
        pairs = list(zip(arguments, placed, strict=True))
        args = [(each.subject.name, value) for each, value in pairs if not each.is_keyword]
        kwargs = {each.subject.name: value for each, value in pairs if each.is_keyword}
        names, positional = tuple(name for name, _ in args), tuple(value for _, value in args)
        return Inputs.of(positional, names, kwargs, self.sizes, self.seed)


def _put(value: Any, sharding: Any) -> Any:
    return jax.numpy.asarray(value) if sharding is None else jax.device_put(value, sharding)


def _struct(value: Any, sharding: Any) -> Any:
    value = value if hasattr(value, "dtype") else np.asarray(value)
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
