"""What a call of a function takes, read off its hints before sizes and values are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np

from .. import _jax
from ..decorated import decorated, owner_of
from ..errors import StructureError
from ..errors.phrases import shown
from ..hints.array import ArrayHint
from ..hints.axes import Naming
from ..hints.binding import Typed
from ..hints.nodes import Node, array_hints, holds_arrays
from ..hints.scope import naming_here
from ..hints.walk import Walk
from ..notation.sizes import RETURN
from ..placement.places import Place, place_over
from ..placement.structs import names_of, refuse_wrong_sizes
from .drawn import Drawn
from .parameters import Argument, Given, arguments_of, needed_of, statics
from .sizes import Chosen, Wanted, draw_sizes, factors_of, wanted

_OF_SIZES = 2**31


@dataclass(frozen=True)
class Plan:
    """A function's arguments, before they are drawn.

    Attributes:
      verb: the function that messages name.
      typed: the function, with its hints.
      naming: what names in its hints mean.
      places: the meshes over which its sizes must divide.
      arguments: its arguments, with places for the arrays.
      statics: what ``{argument}`` in a hint may speak of.
      given: the sizes that are fixed.
    """

    verb: str
    typed: Typed
    naming: Naming
    places: tuple[Place, ...]
    arguments: tuple[Argument, ...]
    statics: Mapping[str, Any]
    given: Chosen

    @cached_property
    def hints(self) -> list[ArrayHint]:
        """The hints of the arrays that are drawn."""
        return [place.hint for each in self.arguments for place in each.undrawn]

    @cached_property
    def wants(self) -> list[Wanted]:
        """What the dims of arguments and result want of the sizes."""
        found = [(each.subject, place.hint) for each in self.arguments for place in each.undrawn]
        result = array_hints(self.typed.result) if self.typed.result is not None else ()
        return wanted([*found, *((RETURN, hint) for hint in result)], self.places)

    @cached_property
    def factors(self) -> Mapping[str, int]:
        """What the size of each name that is not given must be a multiple of."""
        return {name: n for name, n in factors_of(self.hints, self.wants).items() if name not in self.given}

    def drawn(self, seed: int, sizes: Mapping[str, Any] | None = None) -> Drawn:
        """Draw sizes and values.

        Args:
          seed: what they are drawn from.
          sizes: sizes that are fixed in this draw, besides those that are given.

        Raises:
          ShapeError: where no sizes fit.
        """
        rng, given = np.random.default_rng([seed, _OF_SIZES]), {**(sizes or {}), **self.given}
        chosen = draw_sizes(self.hints, self.wants, given, self.statics, rng, f"{self.verb}: {self.typed.name}")
        return Drawn(self.verb, self.typed.name, self.naming, self.arguments, self.statics, chosen, seed)


def plan(
    f: Callable[..., Any],
    meshes: Sequence[_jax.AnyMesh],
    given: Mapping[str, Any],
    arguments: Mapping[str, Any] | None,
    verb: str,
) -> Plan:
    """Read what a call takes.

    Args:
      f: a decorated function, or a method of an instance.
      meshes: the meshes over which the sizes must divide, all of them.
      given: sizes by the names of dims, and arguments by theirs.
      arguments: more arguments, by name or by path.
      verb: the function that messages name.

    Raises:
      StructureError: for arguments that no hint can make and that are not given.
      ShapeError: for sizes that are none, or that no hint names.
      MeshAxisError: for an axis that a mesh does not have.
    """
    made_of = decorated(f, verb)
    refuse_no_dict(arguments, verb)
    owner = owner_of(f)
    typed = made_of.hinted.read(owner)
    naming = naming_here(made_of.naming)
    sizes, values = _parted(given, typed)
    found = arguments_of(typed, owner, Given(verb, {**values, **(arguments or {})}))
    told_by = f"{verb}: {typed.name}"
    places = tuple(place_over(told_by, mesh, naming) for mesh in meshes or (None,))
    known = statics(found, typed, owner)
    _refuse_wrong_sizes(verb, found, typed, sizes)
    return Plan(verb, typed, naming, places, tuple(found), known, {**_sizes_of_given(found, places[0], known), **sizes})


def refuse_no_dict(arguments: Any, verb: str) -> None:
    """Refuse what is no dict of arguments by name.

    Raises:
      StructureError: for anything else but None.
    """
    if not isinstance(arguments, Mapping | None) or not all(isinstance(name, str) for name in arguments or ()):
        raise StructureError(f"{verb}: arguments= wants a dict of arguments by name or path, got {shown(arguments)}")


def _parted(given: Mapping[str, Any], typed: Typed) -> tuple[Chosen, dict[str, Any]]:
    """Sizes, and arguments: an integer by the name of a dim is its size, if the argument of that name holds arrays."""
    hints = [hint for node in (*typed.parameters.values(), *typed.positional) for hint in array_hints(node)]
    dims = names_of(hints)
    sizes = {name: value for name, value in given.items() if _is_size(name, value, dims, typed)}
    return sizes, {name: value for name, value in given.items() if name not in sizes}


def _is_size(name: str, value: Any, dims: Mapping[str, bool], typed: Typed) -> bool:
    is_number = isinstance(value, (int, np.integer, tuple)) and not isinstance(value, bool)
    node = typed.parameters.get(name)
    if name not in typed.signature.parameters:
        return is_number or name in dims
    return name in dims and is_number and node is not None and holds_arrays(node)


def _refuse_wrong_sizes(verb: str, found: Sequence[Argument], typed: Typed, sizes: Chosen) -> None:
    hints = [hint for each in found for hint in array_hints(each.node)]
    result = list(array_hints(typed.result)) if typed.result is not None else []
    names = {*names_of([*hints, *result])}
    unknown = [name for name in sizes if name not in names]
    if unknown:
        known = [*names, *typed.signature.parameters]
        close = get_close_matches(unknown[0], known, n=1)
        did = f" (did you mean '{close[0]}'?)" if close else ""
        told = f"neither a dim of its hints nor an argument is called '{unknown[0]}'{did}"
        raise StructureError(f"{verb}: {typed.name}: {told}")
    refuse_wrong_sizes(f"{verb}: {typed.name}", [*hints, *result], sizes, must_all=False)


def _sizes_of_given(found: Sequence[Argument], place: Place, known: Mapping[str, Any]) -> Chosen:
    """The sizes that arrays bind which were given whole."""
    walk = Walk(place.region, known)
    for each in found:
        if not each.undrawn:
            walk.visit(each.node, each.value, each.subject)
    walk.settle()
    if walk.failures:
        raise place.error(walk.failures, walk.sizes)
    return {name.removeprefix("*"): bound.size for name, bound in walk.sizes if " at " not in name}


def names_taken(f: Callable[..., Any]) -> set[str]:
    """The names of the dims in a function's hints, and of its parameters."""
    typed = decorated(f, "inputs").hinted.read(owner_of(f))
    nodes = [*typed.parameters.values(), *typed.positional, *([typed.result] if typed.result is not None else [])]
    return {*names_of(hint for node in nodes for hint in array_hints(node)), *typed.signature.parameters}


def arguments_needed(f: Callable[..., Any]) -> dict[str, Node]:
    """The arguments of a function that no hint makes and that have no default, each with what its hint says."""
    owner = owner_of(f)
    return needed_of(decorated(f, "inputs").hinted.read(owner), owner)


def sizes_among(f: Callable[..., Any], given: Mapping[str, Any]) -> Chosen:
    """What of the sizes and arguments that are given to a function by name are sizes."""
    return _parted(given, decorated(f, "inputs").hinted.read(owner_of(f)))[0]
