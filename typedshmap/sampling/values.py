"""Random values for the arrays that hints declare, drawn on the host and placed on one mesh or another.

Invariant: the values are the same on every mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh

from .. import _jax
from ..axis_names import AxisNaming
from ..errors import StructureError
from ..errors.phrases import value_text
from ..hints.array_hint import ArrayHint
from ..hints.check_call import check_arguments
from ..hints.structure import holds_arrays
from ..notation.spec import Dim, Name
from ..placement.context import placement_context_over
from ..placement.structs import default_dtype, names_of
from .arguments import ArrayToDraw, CallArgument, Inputs
from .sizes import SizeValues, shape_of


@dataclass(frozen=True)
class UnplacedInputs:
    """The arguments of one call, before they are placed on a mesh.

    Attributes:
      verb: the function that messages name.
      function: the name of the function.
      naming: what names in its hints mean.
      arguments: its arguments, with an `ArrayToDraw` for each array.
      statics: the values for ``{argument}`` in a hint.
      sizes: the size of each name.
      seed: what it was drawn from.
    """

    verb: str
    function: str
    naming: AxisNaming
    arguments: tuple[CallArgument, ...]
    statics: Mapping[str, Any]
    sizes: SizeValues
    seed: int

    def on(self, mesh: _jax.mesh.AnyMesh | None) -> Inputs:
        """The arguments, placed on a mesh as their hints say; structs on an AbstractMesh.

        Raises:
          TypedShmapError: for what does not fit there.
        """
        if isinstance(mesh, AbstractMesh):
            return self.structs(mesh)
        return self._build_inputs(mesh, self._values, _device_put)

    def structs(self, mesh: _jax.mesh.AnyMesh | None) -> Inputs:
        """The arguments with ``jax.ShapeDtypeStruct``s for arrays, which need no devices.

        Raises:
          TypedShmapError: for what does not fit there.
        """
        return self._build_inputs(mesh, self._fill_arrays(self._struct), _struct)

    @cached_property
    def _values(self) -> list[Any]:
        return self._fill_arrays(self._value)

    def _fill_arrays(self, make: Callable[[ArrayToDraw, int], Any]) -> list[Any]:
        """The arguments with an array for each `ArrayToDraw`, made with its number."""
        at = count()

        def fill(leaf: Any) -> Any:
            return make(leaf, next(at)) if isinstance(leaf, ArrayToDraw) else leaf

        return [
            jax.tree_util.tree_map(fill, each.value) if each.arrays_to_draw else each.value for each in self.arguments
        ]

    def _value(self, place: ArrayToDraw, at: int) -> Any:
        shape, seed = shape_of(place.hint, self.sizes, self.statics), (self.seed, at)
        if place.make is not None:
            return self._maker(place)(key_of(seed), shape)
        hints = [other.hint for each in self.arguments for other in each.arrays_to_draw]
        return draw_value(shape, default_dtype(place.hint), bound_of(place.hint, hints, self.sizes), seed)

    def _struct(self, place: ArrayToDraw, at: int) -> Any:
        shape = shape_of(place.hint, self.sizes, self.statics)
        if place.make is None:
            return jax.ShapeDtypeStruct(shape, default_dtype(place.hint))
        return jax.eval_shape(lambda key: self._maker(place)(key, shape), key_of((self.seed, at)))

    def _maker(self, place: ArrayToDraw) -> Callable[[Any, tuple[int, ...]], Any]:
        """The user's function that makes an array, and must return one."""
        make = place.make
        assert make is not None

        def made(key: Any, shape: tuple[int, ...]) -> Any:
            value = make(key, shape)
            if isinstance(value, (*_jax.array.ARRAYS, *_jax.array.SCALARS)):
                return value
            problem = f"the function that makes {place.hint.text} returned {value_text(value)}, which is not an array"
            raise StructureError(f"{self.verb}: {self.function}: {problem}")

        return made

    def _build_inputs(
        self, mesh: _jax.mesh.AnyMesh | None, values: list[Any], put: Callable[[Any, Any], Any]
    ) -> Inputs:
        """Check each argument against its hint, and place its arrays as that says."""
        place = placement_context_over(f"{self.verb}: {self.function}", mesh, self.naming)
        given = [(a.subject.name, a.subject, a.node, value) for a, value in zip(self.arguments, values, strict=True)]
        checked = check_arguments(given, self.statics, place.context)
        if checked.failures:
            raise place.error(checked.failures, checked.sizes)
        args: list[tuple[str, Any]] = []
        kwargs: dict[str, Any] = {}
        for each, ((_, _, node, value), leaves) in zip(self.arguments, checked.by_argument(), strict=True):
            placed = value
            if holds_arrays(node):
                arrays = [
                    put(leaf.value, place.sharding(leaf.hint, len(np.shape(leaf.value))))
                    if leaf.hint is not None and _takes_jax(leaf.hint)
                    else leaf.value
                    for leaf in leaves
                ]
                placed = _jax.tree.unflatten_like(value, arrays)
            if each.is_keyword:
                kwargs[each.subject.name] = placed
            else:
                args.append((each.subject.name, placed))
        names, positional = tuple(name for name, _ in args), tuple(value for _, value in args)
        return Inputs.of(positional, names, kwargs, self.sizes, self.seed)


def _takes_jax(hint: ArrayHint) -> bool:
    kind = hint.array_type
    return kind is Any or any(issubclass(jax.Array, each) for each in (kind if isinstance(kind, tuple) else (kind,)))


def _device_put(value: Any, sharding: Any) -> Any:
    return jax.numpy.asarray(value) if sharding is None else jax.device_put(value, sharding)


def _struct(value: Any, sharding: Any) -> Any:
    if not hasattr(value, "dtype"):
        value = np.asarray(value)
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)


def draw_value(shape: tuple[int, ...], dtype: Any, below: int, seed: Sequence[int]) -> Any:
    """A random global array on the host: normal floats, small integers, keys.

    Args:
      shape: its global shape.
      dtype: its dtype.
      below: the bound of integers, which are less.
      seed: what it is drawn from, and from nothing else.
    """
    jnp = jax.numpy
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        key = key_of(seed)
        return jax.random.split(key, prod(shape)).reshape(shape) if shape else key
    rng = np.random.default_rng(seed)
    if jnp.issubdtype(dtype, jnp.floating):
        return rng.standard_normal(shape).astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if jnp.issubdtype(dtype, jnp.bool_):
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, max(1, min(below, int(jnp.iinfo(dtype).max))), shape).astype(dtype)


def key_of(seed: Sequence[int]) -> jax.Array:
    """A key that only this seed gives."""
    state = np.random.SeedSequence(seed).generate_state(1)
    return jax.random.key(int(state[0]))


def bound_of(hint: ArrayHint, others: Iterable[ArrayHint], chosen: SizeValues) -> int:
    """The bound of drawn integers, so that they may be positions in whichever array they index.

    It is the smallest dim that they may index: in an array that shares dims with them (logits and their labels) its
    last one, in an array that shares none (a table) its first one.
    """
    own = set(names_of([hint]))
    counted = {name for other in others if other is not hint and (name := _indexed_name(other, own)) is not None}
    sizes = [chosen[name] for name in counted if isinstance(chosen.get(name), int)]
    return min(sizes, default=2)


def _indexed_name(other: ArrayHint, own: set[str]) -> str | None:
    names = [dim.size.name for dim in other.spec.dims if isinstance(dim, Dim) and isinstance(dim.size, Name)]
    free = [name for name in names if name not in own]
    if not free or len(other.spec.dims) < 2:
        return None
    return free[-1] if len(free) < len(names) else free[0]
