"""What was drawn for one call: sizes, and values on the host, which are placed on one mesh or another.

Invariant: the values are the same on every mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import jax
import numpy as np

from .. import _jax
from ..errors import StructureError
from ..errors.phrases import shown
from ..hints.array import ArrayHint
from ..hints.axes import Naming
from ..hints.nodes import holds_arrays
from ..hints.walk import Found, Walk
from ..placement.places import Place, place_over
from ..placement.structs import default_dtype
from .call import Inputs
from .parameters import Argument, Undrawn
from .sizes import Chosen, shape_of
from .values import Slot, bound_of, draw_value, key_of


@dataclass(frozen=True)
class Drawn:
    """The arguments of one call, on no mesh yet.

    Attributes:
      verb: the function that messages name.
      function: the name of the function that they are for.
      naming: what names in its hints mean.
      arguments: what it takes, with places for what is drawn.
      statics: what ``{argument}`` in a hint may speak of.
      sizes: the size of each name.
      seed: what it was drawn from.
    """

    verb: str
    function: str
    naming: Naming
    arguments: tuple[Argument, ...]
    statics: Mapping[str, Any]
    sizes: Chosen
    seed: int

    def on(self, mesh: _jax.AnyMesh | None) -> Inputs:
        """The arguments, placed on a mesh as their hints say.

        Raises:
          TypedShmapError: for what does not fit there.
        """
        return self._made(mesh, self._values, _placed)

    def structs(self, mesh: _jax.AnyMesh | None) -> Inputs:
        """The arguments with ``jax.ShapeDtypeStruct``s for arrays, which need no devices.

        Raises:
          TypedShmapError: for what does not fit there.
        """
        return self._made(mesh, self._shapes, _struct)

    @cached_property
    def _values(self) -> list[Any]:
        return self._filled(self._value)

    @cached_property
    def _shapes(self) -> list[Any]:
        return self._filled(self._struct)

    def _filled(self, array: Callable[[Undrawn, int], Any]) -> list[Any]:
        """The arguments with arrays in the places for them, which are counted."""
        at = count()

        def fill(leaf: Any) -> Any:
            return array(leaf, next(at)) if isinstance(leaf, Undrawn) else leaf

        return [jax.tree_util.tree_map(fill, each.value) if each.undrawn else each.value for each in self.arguments]

    def _value(self, place: Undrawn, at: int) -> Any:
        shape, seed = shape_of(place.hint, self.sizes, self.statics), (self.seed, at)
        if place.make is not None:
            return self._maker(place)(key_of(seed), shape)
        hints = [other.hint for each in self.arguments for other in each.undrawn]
        return draw_value(Slot(shape, default_dtype(place.hint), bound_of(place.hint, hints, self.sizes)), seed)

    def _struct(self, place: Undrawn, at: int) -> Any:
        shape = shape_of(place.hint, self.sizes, self.statics)
        if place.make is None:
            return jax.ShapeDtypeStruct(shape, default_dtype(place.hint))
        return jax.eval_shape(lambda key: self._maker(place)(key, shape), key_of((self.seed, at)))

    def _maker(self, place: Undrawn) -> Callable[[Any, tuple[int, ...]], Any]:
        """The user's function that makes an array, and nothing else."""
        make = place.make
        assert make is not None

        def made(key: Any, shape: tuple[int, ...]) -> Any:
            value = make(key, shape)
            if not isinstance(value, (*_jax.ARRAYS, *_jax.SCALARS)):
                told = f"the function that makes {place.hint.text} returned {shown(value)}, which is no array"
                raise StructureError(f"{self.verb}: {self.function}: {told}")
            return value

        return made

    def _made(self, mesh: _jax.AnyMesh | None, values: list[Any], put: Callable[[Any, Any], Any]) -> Inputs:
        place = place_over(f"{self.verb}: {self.function}", mesh, self.naming)
        placed = list(zip(self.arguments, self._put(place, values, put), strict=True))
        args = [(each.subject.name, value) for each, value in placed if not each.is_keyword]
        kwargs = {each.subject.name: value for each, value in placed if each.is_keyword}
        names = tuple(name for name, _ in args)
        return Inputs.of(tuple(value for _, value in args), names, kwargs, self.sizes, self.seed)

    def _put(self, place: Place, values: list[Any], put: Callable[[Any, Any], Any]) -> list[Any]:
        """Each argument checked against its hint, and its arrays where that says."""
        walk, spans = Walk(place.region, self.statics), list[tuple[int, int]]()
        for each, value in zip(self.arguments, values, strict=True):
            first = len(walk.leaves)
            walk.visit(each.node, value, each.subject)
            spans.append((first, len(walk.leaves)))
        walk.settle()
        if walk.failures:
            raise place.error(walk.failures, walk.sizes)
        leaves = [_put(found, place, put) for found in walk.leaves]
        return [
            _jax.like(value, leaves[first:last]) if holds_arrays(each.node) else value
            for each, value, (first, last) in zip(self.arguments, values, spans, strict=True)
        ]


def _put(found: Found, place: Place, put: Callable[[Any, Any], Any]) -> Any:
    if found.hint is None or not _takes_jax(found.hint):
        return found.value
    return put(found.value, place.sharding(found.hint, len(np.shape(found.value))))


def _takes_jax(hint: ArrayHint) -> bool:
    kind = hint.array_type
    return kind is Any or any(issubclass(jax.Array, each) for each in (kind if isinstance(kind, tuple) else (kind,)))


def _placed(value: Any, sharding: Any) -> Any:
    return jax.numpy.asarray(value) if sharding is None else jax.device_put(value, sharding)


def _struct(value: Any, sharding: Any) -> Any:
    if not hasattr(value, "dtype"):
        value = np.asarray(value)
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
