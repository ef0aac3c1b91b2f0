"""Read a traced program entry by entry: what every shard of a mesh computes, as polynomials of the arguments' entries.

Loops are run through, shards have their own values, and what only moves entries is done. So a loop that is as long as
the mesh, and what goes from shard to shard, are read as well as anything else; but only at the sizes at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np

from .... import _jax
from ..cases import Undecided, decisions_of
from ..polynomials import Polynomials, number_key
from ..values import NotKnown
from ..walk import fraction_of, params_key

Numbers = np.ndarray[Any, Any]
"""The numbers of polynomials: of all shards, one dim for each axis of the mesh, and then of all entries."""
EntryRule = Callable[["EntryWalk", Any, list[Numbers]], list[Numbers]]


def argument(polynomials: Polynomials, at: int, shape: tuple[int, ...]) -> Numbers:
    """The entries of an argument, of which nothing is known."""
    entries = [polynomials.atom("argument", (at, entry)) for entry in range(prod(shape))]
    return np.array(entries, np.int64).reshape(shape)


class EntryWalk:
    """What each value of a program is, entry by entry.

    Args:
      polynomials: those of this program and of the one that it is compared with.
      rules: by primitive, what its results are.
    """

    def __init__(self, polynomials: Polynomials, rules: Mapping[str, EntryRule]) -> None:
        self.polynomials, self.rules = polynomials, rules
        self.mesh = dict[str, int]()

    @property
    def lead(self) -> int:
        """How many dims stand before those of a shard."""
        return len(self.mesh)

    def results(self, jaxpr: Any, operands: Sequence[Numbers]) -> list[Numbers]:
        """What the results of a jaxpr are, of operands.

        Raises:
          NotKnown: where nothing is known of an equation.
        """
        opened = _jax.jaxpr.open_jaxpr(jaxpr)
        known = dict[Any, Numbers](zip(opened.invars, operands, strict=True))
        known |= zip(opened.constvars, map(self.constant, getattr(jaxpr, "consts", ())), strict=True)

        def read(atom: Any) -> Numbers:
            return self.constant(atom.val) if _jax.jaxpr.is_literal(atom) else known[atom]

        for eqn in opened.eqns:
            found = self.rules.get(eqn.primitive.name, self.rules[""])(self, eqn, list(map(read, eqn.invars)))
            for var, numbers in zip(eqn.outvars, found, strict=True):
                if numbers.shape[self.lead :] != var.aval.shape:
                    raise NotKnown(f"nothing is known of {eqn.primitive.name}")
                known[var] = np.broadcast_to(numbers, (*self.mesh.values(), *var.aval.shape))
            self.polynomials.spend(sum(prod(var.aval.shape) for var in eqn.outvars) * prod(self.mesh.values()) // 8)
        return list(map(read, opened.outvars))

    def constant(self, value: Any) -> Numbers:
        """A constant, which all shards have."""
        if not hasattr(value, "dtype") or kind_of(value.dtype) == "k":
            raise NotKnown("a constant that is no array of numbers")
        array = np.asarray(value)
        numbers = np.array([self.number(entry, array.dtype) for entry in array.ravel()], np.int64)
        return np.broadcast_to(numbers.reshape(array.shape), (*self.mesh.values(), *array.shape))

    def number(self, entry: Any, dtype: Any) -> int:
        if kind_of(dtype) in "biu":
            return self.polynomials.constant(int(entry))
        if complex(entry).imag or not np.isfinite(complex(entry).real):
            return self.polynomials.atom("constant", repr(complex(entry)))
        entry = complex(entry).real
        return self.polynomials.constant(number_key(fraction_of(float(entry))) if entry else 0)

    def each(self, function: Callable[..., Any], *operands: Numbers) -> Numbers:
        """A function of the entries at each place; it is called once for those that are equal."""
        rank = max(each.ndim for each in operands)  # a scalar may stand beside arrays
        arrays = np.broadcast_arrays(*(each.reshape((*each.shape, *[1] * (rank - each.ndim))) for each in operands))
        rows = np.stack([array.ravel() for array in arrays], 1)
        different, places = np.unique(rows, axis=0, return_inverse=True)
        self.polynomials.spend(len(different))
        found = np.array([function(*row) for row in different.tolist()], np.int64)
        return found[places.ravel()].reshape(arrays[0].shape)

    def integers(self, numbers: Numbers) -> Numbers:
        """The whole numbers that some polynomials are.

        Raises:
          Undecided: where they depend on the arguments.
        """
        values = [self.polynomials.value_of(number) for number in numbers.ravel().tolist()]
        if any(value is None for value in values):
            raise Undecided(decisions_of(self.polynomials, numbers.ravel().tolist()))
        return np.array(values, np.int64).reshape(numbers.shape)

    def members(self, numbers: Numbers, eqn: Any) -> tuple[Numbers, Numbers]:
        """What all shards of a group have, in a new first dim, on each of them; and the place of each in its group."""
        axes = [axis for axis in _jax.jaxpr.named_axes(eqn) if axis in self.mesh]
        sizes = [self.mesh[axis] for axis in axes]
        count, groups = prod(sizes), eqn.params.get("axis_index_groups") or [range(prod(sizes))]
        beside = [at for at, axis in enumerate(self.mesh) if axis not in axes]
        order = [*(list(self.mesh).index(axis) for axis in axes), *beside, *range(self.lead, numbers.ndim)]
        flat = numbers.transpose(order).reshape(count, *[numbers.shape[at] for at in order[len(axes) :]])
        found = np.empty((len(groups[0]), *flat.shape), np.int64)
        place = np.empty((count, *[1] * len(beside)), np.int64)
        for group in groups:
            for at, shard in enumerate(group):
                found[:, shard], place[shard] = flat[list(group)], at
        return self._back(found, axes, 1), self._back(place, axes, 0)

    def _back(self, flat: Numbers, axes: list[str], before: int) -> Numbers:
        """Numbers by the shards of some axes, the major first, by those of all."""
        split = flat.reshape((*flat.shape[:before], *(self.mesh[axis] for axis in axes), *flat.shape[before + 1 :]))
        now = [*axes, *(axis for axis in self.mesh if axis not in axes)]
        return split.transpose(
            *range(before), *(before + now.index(axis) for axis in self.mesh), *range(before + self.lead, split.ndim)
        )


def kind_of(dtype: Any) -> str:
    """``"b"`` of truth values, ``"i"`` and ``"u"`` of whole numbers, ``"f"`` and ``"c"``; ``"k"`` of keys."""
    kinds = {"b": jnp.bool_, "u": jnp.unsignedinteger, "i": jnp.signedinteger, "f": jnp.floating,
             "c": jnp.complexfloating}  # fmt: skip
    return next((kind for kind, of in kinds.items() if jnp.issubdtype(dtype, of)), "k")


def kinds_of(eqn: Any) -> set[str]:
    """The kinds of an equation's operands."""
    return {kind_of(var.aval.dtype) for var in eqn.invars}


def params_of(eqn: Any) -> Any:
    """What tells an operation from others of its name: not where JAX would lay out its result."""
    return params_key(eqn, "accuracy", "sharding", "out_sharding")
