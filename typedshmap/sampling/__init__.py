"""``inputs`` and ``strategies``: arguments made from the hints of a function, once or as a hypothesis strategy.

A plan is made from the hints first; sizes and values are drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from .. import _jax
from ..axis_names import AxisNaming
from ..errors import ShapeError, StructureError
from ..errors.phrases import value_text
from ..hints.array_hint import ArrayHint
from ..hints.check_call import check_arguments
from ..hints.context import current_axis_naming
from ..hints.signature import HintedSignature
from ..hints.structure import Node, array_hints, holds_arrays
from ..introspection import bound_self, require_decorated
from ..meshes import read_mesh
from ..notation.match import RETURN
from ..placement.context import PlacementContext, placement_context_over
from ..placement.structs import names_of, refuse_wrong_sizes
from .arguments import (
    CallArgument,
    GivenArguments,
    Inputs,
    arguments_of,
    needed_arguments,
    statics,
    unknown_name_text,
)
from .meshes import argument_hints
from .sizes import SizeRequirement, SizeValues, draw_sizes, factors_of, size_requirements
from .values import UnplacedInputs

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def inputs(
    f: Callable[..., Any],
    /,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    seed: int = 0,
    arguments: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Inputs:
    """Arguments for a function, made from its hints: random global arrays of the right dtype, shape and sharding.

    The size of each name is drawn: a multiple of what its mesh axes need, with at least two elements per
    shard, different for each name, and even where nothing is sharded. All ``...`` have the same sizes, and so
    have all ``_``. Floats are normal, keys are keys, integers are small enough to be positions in the arrays
    that they may index: below the last dim of an array that they share dims with (labels of logits), below the
    first of one that they share none with (ids of a table). A union becomes its first member with arrays, so
    that an optional array is present; lists, dicts and trees of any length have two items.

    ```python
    made = inputs(mlp, mesh=mesh, batch=32, ids=lambda key, shape: jax.random.randint(key, shape, 0, 50))
    mlp(*made)
    ```

    Args:
      f: a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also under ``jax.jit``; a method of
        an instance.
      mesh: the mesh of the arrays; by default the function's own, else the ambient one, else none. On an
        AbstractMesh they are ``jax.ShapeDtypeStruct``s.
      seed: what sizes and values are drawn from.
      arguments: arguments by name, also for names that are dims as well, and by path for fields,
        ``{"state.step": 3}``.
      **sizes: a global size by the name of a dim (an integer; a tuple for ``*name``), or an argument by its
        name: a value, or a function of a key and the global shape that makes it.

    Returns:
      The arguments, without those that have defaults and no arrays.

    Raises:
      StructureError: for a function without hints, and for arguments that no hint can make (a config, ``Any``,
        an ``int``): pass them.
      ShapeError: for sizes that no hint names, or that do not fit.
      MeshAxisError: for an axis that the mesh does not have.
      ShardingError: for an argument marked ``+`` or ``~``, which cannot be placed.
    """
    here = mesh_of(f, mesh, "inputs")
    return plan_inputs(f, () if here is None else (here,), sizes, arguments, "inputs").draw(seed).on(here)


def mesh_of(f: Callable[..., Any], mesh: Any, verb: str) -> _jax.mesh.AnyMesh | None:
    """The given mesh, else the function's own, else the ambient one, if there is one.

    Raises:
      StructureError: for a function without hints.
      MeshAxisError: for something that is not a mesh.
    """
    context = _jax.mesh.context_mesh()
    ambient = None if context.empty else _jax.mesh.ambient_devices() or context
    return read_mesh(mesh) or require_decorated(f, verb).mesh or ambient


def draw(
    f: Callable[..., Any],
    meshes: Sequence[_jax.mesh.AnyMesh],
    *,
    seed: int = 0,
    given: Mapping[str, Any] = MappingProxyType({}),
    arguments: Mapping[str, Any] | None = None,
    verb: str = "inputs",
) -> UnplacedInputs:
    """Arguments for a function whose sizes fit all of several meshes, and whose values are the same on each.

    Args:
      f: as for `inputs`.
      meshes: the meshes.
      seed: what sizes and values are drawn from.
      given: sizes by the names of dims, and arguments by theirs.
      arguments: more arguments, by name or by path.
      verb: the function that messages name.

    Raises:
      TypedShmapError: as for `inputs`.
    """
    return plan_inputs(f, meshes, given, arguments, verb).draw(seed)


_MOST = 4
_SEEDS = 2**32 - 1


def strategies(
    f: Callable[..., Any],
    /,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    arguments: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> SearchStrategy[Inputs]:
    """A strategy of hypothesis that draws what `inputs` makes.

    Each size is one to four times what its mesh axes need, so that sizes may be equal and shards may have one
    element; a failing example shrinks to small sizes.

    ```python
    @given(strategies(mlp, mesh=mesh))
    def test_mlp(made):
        np.testing.assert_allclose(mlp(*made), plain_mlp(*made), rtol=1e-5)
    ```

    Args:
      f: as for `inputs`.
      mesh: as for `inputs`.
      arguments: as for `inputs`.
      **sizes: as for `inputs`.

    Raises:
      StructureError: where hypothesis is not installed, and as `inputs` does.
      ShapeError, MeshAxisError: as `inputs` does.
    """
    try:
        # hypothesis is a tool for tests, which only this needs.
        from hypothesis import reject
        from hypothesis import strategies as st
    except ModuleNotFoundError:
        raise StructureError("strategies: wants hypothesis, which is not installed: pip install hypothesis") from None
    here = mesh_of(f, mesh, "strategies")
    made = plan_inputs(f, () if here is None else (here,), sizes, arguments, "strategies")
    multiples = st.fixed_dictionaries({name: st.integers(1, _MOST) for name in made.factors})

    def draw(seed: int, times: dict[str, int]) -> Inputs:
        try:
            drawn = made.draw(seed, {name: times[name] * factor for name, factor in made.factors.items()})
        except ShapeError:
            reject()
        return drawn.on(here)

    return st.builds(draw, st.integers(0, _SEEDS), multiples)


_OF_SIZES = 2**31


@dataclass(frozen=True)
class InputPlan:
    """The arguments of a function, before they are drawn.

    Attributes:
      verb: the function that messages name.
      typed: the function, with its hints.
      naming: what names in its hints mean.
      places: the meshes over which its sizes must divide.
      arguments: its arguments, with an `ArrayToDraw` for each array.
      statics: the values for ``{argument}`` in a hint.
      given: the sizes that are fixed.
    """

    verb: str
    typed: HintedSignature
    naming: AxisNaming
    places: tuple[PlacementContext, ...]
    arguments: tuple[CallArgument, ...]
    statics: Mapping[str, Any]
    given: SizeValues

    @cached_property
    def hints(self) -> list[ArrayHint]:
        """The hints of the arrays that are drawn."""
        return [array.hint for each in self.arguments for array in each.arrays_to_draw]

    @cached_property
    def requirements(self) -> list[SizeRequirement]:
        """The requirements of arguments and result on the sizes."""
        found = [(each.subject, array.hint) for each in self.arguments for array in each.arrays_to_draw]
        result = array_hints(self.typed.result) if self.typed.result is not None else ()
        return size_requirements([*found, *((RETURN, hint) for hint in result)], self.places)

    @cached_property
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
        rng, given = np.random.default_rng([seed, _OF_SIZES]), {**(sizes or {}), **self.given}
        chosen = draw_sizes(self.hints, self.requirements, given, self.statics, rng, f"{self.verb}: {self.typed.name}")
        return UnplacedInputs(self.verb, self.typed.name, self.naming, self.arguments, self.statics, chosen, seed)


def plan_inputs(
    f: Callable[..., Any],
    meshes: Sequence[_jax.mesh.AnyMesh],
    given: Mapping[str, Any],
    arguments: Mapping[str, Any] | None,
    verb: str,
) -> InputPlan:
    """Read the arguments of a call from the hints.

    Args:
      f: a decorated function, or a method of an instance.
      meshes: the meshes over which the sizes must divide, all of them.
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
    sizes = _sizes_among(given, typed)
    values = {name: value for name, value in given.items() if name not in sizes}
    found = arguments_of(typed, owner, GivenArguments(verb, {**values, **(arguments or {})}))
    source = f"{verb}: {typed.name}"
    places = tuple(placement_context_over(source, mesh, naming) for mesh in meshes or (None,))
    known = statics(found, typed, owner)
    hints = [hint for each in found for hint in array_hints(each.node)]
    hints += array_hints(typed.result) if typed.result is not None else []
    names = names_of(hints)
    if unknown := [name for name in sizes if name not in names]:
        raise StructureError(f"{source}: {unknown_name_text(unknown[0], [*names, *typed.signature.parameters])}")
    refuse_wrong_sizes(source, hints, sizes, must_all=False)
    bound = _sizes_of_given(found, places[0], known)
    return InputPlan(verb, typed, naming, places, tuple(found), known, {**bound, **sizes})


def require_dict(arguments: Any, verb: str) -> None:
    """Refuse what is not a dict of arguments by name.

    Raises:
      StructureError: for anything else but None.
    """
    if not isinstance(arguments, Mapping | None) or not all(isinstance(name, str) for name in arguments or ()):
        raise StructureError(
            f"{verb}: arguments= wants a dict of arguments by name or path, got {value_text(arguments)}"
        )


def _sizes_among(given: Mapping[str, Any], typed: HintedSignature) -> SizeValues:
    """The sizes among keywords: an integer by the name of a dim, unless an argument without arrays has that name."""
    dims = names_of(argument_hints(typed))
    sizes: SizeValues = {}
    for name, value in given.items():
        is_number = isinstance(value, (int, np.integer, tuple)) and not isinstance(value, bool)
        node = typed.parameters.get(name)
        if name not in typed.signature.parameters:
            is_size = is_number or name in dims
        else:
            is_size = is_number and name in dims and node is not None and holds_arrays(node)
        sizes.update({name: value} if is_size else {})
    return sizes


def _sizes_of_given(found: Sequence[CallArgument], place: PlacementContext, known: Mapping[str, Any]) -> SizeValues:
    """The sizes that arrays bind which were given whole."""
    given = [(each.subject.name, each.subject, each.node, each.value) for each in found if not each.arrays_to_draw]
    checked = check_arguments(given, known, place.context)
    if checked.failures:
        raise place.error(checked.failures, checked.sizes)
    return {name.removeprefix("*"): bound.size for name, bound in checked.sizes if " at " not in name}


def taken_names(f: Callable[..., Any]) -> set[str]:
    """The names of the dims in a function's hints, and of its parameters."""
    typed = require_decorated(f, "inputs").signature.read(bound_self(f))
    result = array_hints(typed.result) if typed.result is not None else ()
    return {*names_of([*argument_hints(typed), *result]), *typed.signature.parameters}


def required_arguments(f: Callable[..., Any]) -> dict[str, Node]:
    """The arguments of a function that no hint makes and that have no default, each with its hint."""
    owner = bound_self(f)
    return needed_arguments(require_decorated(f, "inputs").signature.read(owner), owner)


def sizes_among(f: Callable[..., Any], given: Mapping[str, Any]) -> SizeValues:
    """The sizes among sizes and arguments that are given to a function by name."""
    return _sizes_among(given, require_decorated(f, "inputs").signature.read(bound_self(f)))
