"""The plan of a call's arguments, made from the hints; sizes and values are drawn from it, and placed on any mesh.

Invariant: the values are the same on every mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh

from .. import _jax
from ..axis_names import AxisNaming
from ..errors import StructureError
from ..errors.phrases import value_text
from ..hints.array_hint import ArrayHint
from ..hints.check_tree import check_arguments
from ..hints.context import current_axis_naming
from ..hints.signature import EMPTY
from ..hints.structure import array_hints, holds_arrays
from ..introspection import bound_self, require_decorated
from ..notation.match import RETURN
from ..placement.context import placement_context_over
from ..placement.structs import default_dtype, names_of, refuse_wrong_sizes
from .arguments import ArrayToDraw, CallArgument, Inputs, arguments_of, unknown_name_text
from .meshes import argument_hints, result_hints
from .sizes import SizeRequirement, SizeValues, draw_sizes, factors_of, shape_of, size_requirements
from .values import bound_of, draw_value, key_of

_OF_SIZES = 2**31


def plan_inputs(
    f: Callable[..., Any],
    meshes: Sequence[_jax.mesh.AnyMesh],
    given: Mapping[str, Any] = MappingProxyType({}),
    arguments: Mapping[str, Any] | None = None,
    verb: str = "inputs",
) -> InputPlan:
    """Plan the arguments of a call, whose sizes are to fit all of several meshes.

    Args:
      f: a decorated function, or a method of an instance.
      meshes: the meshes over which the sizes must divide.
      given: sizes by the names of dims, and arguments by theirs.
      arguments: more arguments, by name or by path.
      verb: the function that messages name.

    Raises:
      StructureError: for arguments that no hint can make and that are not given.
      ShapeError: for what is not a size, or that no hint names.
      MeshAxisError: for an axis that a mesh does not have.
    """
    made_of, owner = require_decorated(f, verb), bound_self(f)
    require_dict(arguments, verb)
    typed, naming = made_of.signature.read(owner), current_axis_naming(made_of.naming)
    parameters, source = typed.signature.parameters, f"{verb}: {typed.name}"
    sizes = sizes_among(f, given)
    values = {name: value for name, value in given.items() if name not in sizes}
    found = arguments_of(typed, owner, verb, {**values, **(arguments or {})})
    places = [placement_context_over(source, mesh, naming) for mesh in meshes or (None,)]
    hints = [*(hint for each in found for hint in array_hints(each.node)), *result_hints(typed)]
    names = names_of(hints)
    if unknown := [name for name in sizes if name not in names]:
        raise StructureError(f"{source}: {unknown_name_text(unknown[0], [*names, *parameters])}")
    refuse_wrong_sizes(source, hints, sizes, must_all=False)
    named = {name: parameter.default for name, parameter in parameters.items() if parameter.default is not EMPTY}
    named.update(zip(parameters, (*typed.given, *owner), strict=False))
    named.update((each.subject.name, each.value) for each in found if not each.subject.path)
    # Arrays that are given in full bind sizes.
    in_full = [(each.subject.name, each.subject, each.node, each.value) for each in found if not each.arrays_to_draw]
    checked = check_arguments(in_full, named, places[0].context)
    if checked.failures:
        raise places[0].error(checked.failures, checked.sizes)
    bound = {name.removeprefix("*"): size.size for name, size in checked.sizes if " at " not in name}
    drawn = [(each.subject, array.hint) for each in found for array in each.arrays_to_draw]
    requirements = size_requirements([*drawn, *((RETURN, hint) for hint in result_hints(typed))], places)
    return InputPlan(source, naming, found, named, [hint for _, hint in drawn], requirements, {**bound, **sizes})


def taken_names(f: Callable[..., Any]) -> set[str]:
    """The names of the dims in a function's hints, and of its parameters."""
    typed = require_decorated(f, "inputs").signature.read(bound_self(f))
    return {*names_of([*argument_hints(typed), *result_hints(typed)]), *typed.signature.parameters}


def sizes_among(f: Callable[..., Any], given: Mapping[str, Any]) -> SizeValues:
    """The sizes among keywords: an integer by the name of a dim, unless an argument without arrays has that name."""
    typed = require_decorated(f, "inputs").signature.read(bound_self(f))
    dims = names_of(argument_hints(typed))

    def is_size(name: str, value: Any) -> bool:
        is_number = isinstance(value, (int, np.integer, tuple)) and not isinstance(value, bool)
        if name not in typed.signature.parameters:
            return is_number or name in dims
        return is_number and name in dims and name in typed.parameters and holds_arrays(typed.parameters[name])

    return {name: value for name, value in given.items() if is_size(name, value)}


def require_dict(arguments: Any, verb: str) -> None:
    """Refuse what is not a dict of arguments by name.

    Raises:
      StructureError: for anything else but None.
    """
    if not isinstance(arguments, Mapping | None) or not all(isinstance(name, str) for name in arguments or ()):
        raise StructureError(
            f"{verb}: arguments= wants a dict of arguments by name or path, got {value_text(arguments)}"
        )


@dataclass(frozen=True)
class InputPlan:
    """The arguments of a function, before they are drawn.

    Attributes:
      source: the verb and the function that messages name.
      naming: what names in its hints mean.
      arguments: its arguments, with an `ArrayToDraw` for each array.
      named: all arguments by their names, for ``{argument}`` in a hint.
      hints: the hints of the arrays that are drawn.
      requirements: the requirements of arguments and result on the sizes.
      given: the sizes that are fixed.
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
        """The number that the size of each name must be a multiple of, for names that are not given."""
        return {name: n for name, n in factors_of(self.hints, self.requirements).items() if name not in self.given}

    def draw(self, seed: int, sizes: Mapping[str, Any] | None = None) -> UnplacedInputs:
        """Draw sizes and values.

        Args:
          seed: what they are drawn from.
          sizes: sizes that are fixed in this draw, besides those that are given.

        Raises:
          ShapeError: where no sizes fit.
        """
        rng, fixed = np.random.default_rng([seed, _OF_SIZES]), {**(sizes or {}), **self.given}
        drawn = draw_sizes(self.hints, self.requirements, fixed, self.named, rng, self.source)
        return UnplacedInputs(self, drawn, seed)


@dataclass(frozen=True)
class UnplacedInputs:
    """The arguments of one call, before they are placed on a mesh.

    Attributes:
      plan: what they were drawn for.
      sizes: the size of each name.
      seed: what they were drawn from.
    """

    plan: InputPlan
    sizes: SizeValues
    seed: int

    def on(self, mesh: _jax.mesh.AnyMesh | None) -> Inputs:
        """The arguments, placed on a mesh as their hints say; structs on an AbstractMesh.

        Raises:
          TypedShmapError: for what does not fit there.
        """
        if isinstance(mesh, AbstractMesh):
            return self.structs(mesh)

        def put(value: Any, sharding: Any) -> Any:
            return jax.numpy.asarray(value) if sharding is None else jax.device_put(value, sharding)

        return self._build_inputs(mesh, self._values, put)

    def structs(self, mesh: _jax.mesh.AnyMesh | None) -> Inputs:
        """The arguments with ``jax.ShapeDtypeStruct``s for arrays, which need no devices.

        Raises:
          TypedShmapError: for what does not fit there.
        """

        def struct(value: Any, sharding: Any) -> Any:
            value = value if hasattr(value, "dtype") else np.asarray(value)
            return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)

        return self._build_inputs(mesh, self._fill_arrays(self._struct), struct)

    @cached_property
    def _values(self) -> list[Any]:
        return self._fill_arrays(self._value)

    def _fill_arrays(self, make: Callable[[ArrayToDraw, tuple[int, ...], tuple[int, int]], Any]) -> list[Any]:
        """The arguments with an array for each `ArrayToDraw`, made of its shape and its seed."""
        numbers = count()

        def fill(leaf: Any) -> Any:
            if not isinstance(leaf, ArrayToDraw):
                return leaf
            return make(leaf, shape_of(leaf.hint, self.sizes, self.plan.named), (self.seed, next(numbers)))

        found = self.plan.arguments
        return [jax.tree.map(fill, each.value) if each.arrays_to_draw else each.value for each in found]

    def _value(self, array: ArrayToDraw, shape: tuple[int, ...], seed: tuple[int, int]) -> Any:
        if array.make is not None:
            return self._made(array, key_of(seed), shape)
        return draw_value(shape, default_dtype(array.hint), bound_of(array.hint, self.plan.hints, self.sizes), seed)

    def _struct(self, array: ArrayToDraw, shape: tuple[int, ...], seed: tuple[int, int]) -> Any:
        if array.make is not None:
            return jax.eval_shape(lambda key: self._made(array, key, shape), key_of(seed))
        return jax.ShapeDtypeStruct(shape, default_dtype(array.hint))

    def _made(self, array: ArrayToDraw, key: Any, shape: tuple[int, ...]) -> Any:
        """What the user's function makes, which must be an array."""
        assert array.make is not None
        value = array.make(key, shape)
        if isinstance(value, (*_jax.array.ARRAYS, *_jax.array.SCALARS)):
            return value
        problem = f"the function that makes {array.hint.text} returned {value_text(value)}, which is not an array"
        raise StructureError(f"{self.plan.source}: {problem}")

    def _build_inputs(
        self, mesh: _jax.mesh.AnyMesh | None, values: Sequence[Any], put: Callable[[Any, Any], Any]
    ) -> Inputs:
        """Check each argument against its hint, and place its arrays as that says."""
        arguments, place = self.plan.arguments, placement_context_over(self.plan.source, mesh, self.plan.naming)
        given = [(a.subject.name, a.subject, a.node, value) for a, value in zip(arguments, values, strict=True)]
        checked = check_arguments(given, self.plan.named, place.context)
        if checked.failures:
            raise place.error(checked.failures, checked.sizes)
        args, names, kwargs = list[Any](), list[str](), dict[str, Any]()
        for argument, ((name, _, node, value), leaves) in zip(arguments, checked.by_argument(), strict=True):
            if holds_arrays(node):
                arrays = [
                    put(leaf.value, place.sharding(leaf.hint, len(np.shape(leaf.value))))
                    if leaf.hint is not None and _takes_jax(leaf.hint)
                    else leaf.value
                    for leaf in leaves
                ]
                value = _jax.tree.unflatten_like(value, arrays)
            if argument.is_keyword:
                kwargs[name] = value
            else:
                args.append(value)
                names.append(name)
        return Inputs.of(tuple(args), tuple(names), kwargs, self.sizes, self.seed)


def _takes_jax(hint: ArrayHint) -> bool:
    return hint.array_type is Any or issubclass(jax.Array, hint.array_type)
