"""Read a traced program entry by entry: what every shard of a mesh computes, as polynomials of the arguments' entries.

Loops are run through, shards have their own values, and what only moves entries is done. So a loop that is as long as
the mesh, and what goes from shard to shard, are read as well as anything else; but only at the sizes at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np

from ... import _jax
from ...inference.interpreter import CLAIM
from .cases import Undecided, decided_order, decisions_of
from .control import CALL_NAMES
from .elementwise import ELEMENTWISE_NAMES, SAME_NAMES, is_narrow
from .polynomials import Polynomials, number_key
from .values import NotKnown
from .walk import fraction_of, params_key

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
    """

    def __init__(self, polynomials: Polynomials) -> None:
        self.polynomials = polynomials
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
            found = RULES.get(eqn.primitive.name, _opaque)(self, eqn, list(map(read, eqn.invars)))
            for var, numbers in zip(eqn.outvars, found, strict=True):
                if numbers.shape[self.lead :] != var.aval.shape:
                    raise NotKnown(f"nothing is known of {eqn.primitive.name}")
                known[var] = np.broadcast_to(numbers, (*self.mesh.values(), *var.aval.shape))
            self.polynomials.spend(sum(prod(var.aval.shape) for var in eqn.outvars) * prod(self.mesh.values()) // 8)
        return list(map(read, opened.outvars))

    def constant(self, value: Any) -> Numbers:
        """A constant, which all shards have."""
        if not hasattr(value, "dtype") or _kind(value.dtype) == "k":
            raise NotKnown("a constant that is no array of numbers")
        array = np.asarray(value)
        numbers = np.array([self.number(entry, array.dtype) for entry in array.ravel()], np.int64)
        return np.broadcast_to(numbers.reshape(array.shape), (*self.mesh.values(), *array.shape))

    def number(self, entry: Any, dtype: Any) -> int:
        if _kind(dtype) in "biu":
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


# Entries by themselves


def _kind(dtype: Any) -> str:
    """``"b"`` of truth values, ``"i"`` and ``"u"`` of whole numbers, ``"f"`` and ``"c"``; ``"k"`` of keys."""
    kinds = {"b": jnp.bool_, "u": jnp.unsignedinteger, "i": jnp.signedinteger, "f": jnp.floating,
             "c": jnp.complexfloating}  # fmt: skip
    return next((kind for kind, of in kinds.items() if jnp.issubdtype(dtype, of)), "k")


def _kinds(eqn: Any) -> set[str]:
    return {_kind(var.aval.dtype) for var in eqn.invars}


def _params_of(eqn: Any) -> Any:
    return params_key(eqn, "accuracy", "sharding", "out_sharding")


def _elementwise(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    """An operation of which only its name is known; of whole numbers that are known, what it makes of them."""
    name, params, dtypes = eqn.primitive.name, _params_of(eqn), tuple(str(var.aval.dtype) for var in eqn.invars)
    is_truth = _kind(eqn.outvars[0].aval.dtype) == "b"
    make = _INTEGER.get(name) if _kinds(eqn) <= set("biu") else None

    def made(*entries: int, at: int = 0) -> int:
        values = [walk.polynomials.value_of(entry) for entry in entries]
        if make is not None and None not in values:
            arrays = [np.array(value).astype(dtype) for value, dtype in zip(values, dtypes, strict=True)]
            with np.errstate(all="ignore"):
                return walk.number(make(*arrays).astype(eqn.outvars[0].aval.dtype), eqn.outvars[0].aval.dtype)
        return walk.polynomials.atom(name, (at, params, dtypes), entries, is_truth)

    return [
        walk.each(lambda *entries, at=at: made(*entries, at=at), *operands) for at in range(len(eqn.outvars))
    ]  # fmt: skip


_INTEGER: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert, "sign": np.sign,
    "abs": np.abs, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip


def _division(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    """Of floats by the inverse; of whole numbers towards zero, as in C."""
    name, table, dtype = eqn.primitive.name, walk.polynomials, eqn.outvars[0].aval.dtype

    def made(one: int, other: int) -> int:
        a, b = table.value_of(one), table.value_of(other)
        if name == "div" and _kind(dtype) in "fc":
            return _rounded(table, table.product(one, table.inverse(other)), dtype)
        if _kind(dtype) == "f" or a is None or not b:
            return table.atom(name, str(dtype), (one, other))
        quotient = abs(int(a)) // abs(int(b)) * (1 if (a < 0) == (b < 0) else -1)
        return table.constant(quotient if name == "div" else int(a - quotient * b))

    return [walk.each(made, *operands)]


def _rounded(table: Polynomials, number: int, dtype: Any) -> int:
    """A result of arithmetic as a float of few bits, where that may be another number."""
    value = table.value_of(number)
    is_exact = value is not None and abs(value) <= 128 and Fraction(value).denominator in (1, 2, 4)
    return number if is_exact or not is_narrow(dtype) else table.atom("convert", str(dtype), [number])


def _arithmetic(make: Callable[..., int], kinds: str = "bifc", is_exact: bool = False) -> EntryRule:
    """What polynomials are made for: not of whole numbers that go round, unless all are known."""

    def rule(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
        if _kinds(eqn) - set(kinds):
            return _elementwise(walk, eqn, operands)
        table, dtype = walk.polynomials, eqn.outvars[0].aval.dtype
        most = jnp.iinfo(dtype).max if _kind(dtype) == "i" else None

        def made(*entries: int) -> int:
            found = make(table, eqn, *entries)
            found = found if is_exact else _rounded(table, found, dtype)
            if most is not None and abs(table.value_of(found) or 0) > most:
                raise NotKnown("its whole numbers overflow")
            return found

        return [walk.each(made, *operands)]

    return rule


def _same(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    return operands


def _convert(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    """Rounding is an operation of which nothing is known; what only widens is none."""
    table, (entries,), old, new = walk.polynomials, operands, eqn.invars[0].aval.dtype, eqn.params["new_dtype"]
    before, after = _kind(old), _kind(new)

    def cast(entry: int) -> int:
        value = table.value_of(entry)
        if value is not None and before in "biu" and after in "biu":
            return walk.number(np.array(value).astype(old).astype(new), new)
        if before == "f" and after == "i" and table.is_integer(entry):
            return entry
        is_small = value is not None and abs(value) <= 128 and Fraction(value).denominator == 1
        return entry if is_small else table.atom("convert", str(new), [entry])

    if old == new:
        return operands
    if after == "b":
        return [walk.each(lambda entry: table.denied(table.is_zero(entry)), entries)]
    if before == after or before + after == "fc":  # numbers that the one dtype has, and the other has them all
        limits = [jnp.iinfo(each).bits if before in "iu" else jnp.finfo(each).nmant for each in (old, new)]
        ranges = [0 if before in "biu" else jnp.finfo(each).maxexp for each in (old, new)]
        holds_all = limits[0] <= limits[1] and ranges[0] <= ranges[1]
    else:
        holds_all = before == "b" or (before in "iu" and after in "fc" and np.dtype(new).itemsize >= 4)
    return [entries if holds_all else walk.each(cast, entries)]


def _compared(name: str) -> EntryRule:
    def make(table: Polynomials, eqn: Any, one: int, other: int) -> int:
        one, other = (other, one) if name in ("gt", "le") else (one, other)
        found = (table.is_zero if name in ("eq", "ne") else table.is_negative)(table.total([(one, 1), (other, -1)]))
        return table.denied(found) if name in ("ne", "le", "ge") else found

    return _arithmetic(make, "fib", is_exact=True)


def _logical(make: Callable[..., int]) -> EntryRule:
    def rule(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
        if _kind(eqn.outvars[0].aval.dtype) != "b":
            return _elementwise(walk, eqn, operands)
        return [walk.each(lambda *entries: make(walk.polynomials, *entries), *operands)]

    return rule


def _either(table: Polynomials, one: int, other: int) -> int:
    return table.total([(one, 1), (other, 1), (table.product(one, other), -1)])


def _chosen(walk: EntryWalk, which: Numbers, cases: list[Numbers], is_truth: bool) -> Numbers:
    """One of some arrays, by numbers of the same or of no shape."""
    table = walk.polynomials

    def made(number: int, *entries: int) -> int:
        value = table.value_of(number)
        if value is not None:
            return entries[max(0, min(int(value), len(entries) - 1))]
        if len(set(entries)) == 1:
            return entries[0]
        if len(entries) == 2 and (is_truth or table.is_truth(number)):
            return table.chosen(number, *entries)
        return table.atom("case", len(entries), (number, *entries))

    return walk.each(made, which, *cases)


def _select(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    return [_chosen(walk, operands[0], operands[1:], _kind(eqn.invars[0].aval.dtype) == "b")]


# Some dims


def _reduced(walk: EntryWalk, eqn: Any, numbers: Numbers, function: Callable[[list[int]], int]) -> list[Numbers]:
    """A function of all entries along some dims."""
    axes = [walk.lead + axis for axis in eqn.params["axes"]]
    kept = [at for at in range(numbers.ndim) if at not in axes]
    rows = numbers.transpose(*kept, *axes).reshape(*[numbers.shape[at] for at in kept], -1)
    walk.polynomials.spend(rows.size)
    flat = rows.reshape(-1, rows.shape[-1]).tolist()
    return [np.array([function(row) for row in flat], np.int64).reshape(rows.shape[:-1])]


def _reduction(make: Callable[[Polynomials, list[int]], int], kinds: str, is_exact: bool = False) -> EntryRule:
    def rule(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
        dtype, table = eqn.invars[0].aval.dtype, walk.polynomials

        def made(row: list[int]) -> int:
            if _kind(dtype) not in kinds:
                return table.atom(eqn.primitive.name, str(dtype), row)
            return make(table, row) if is_exact else _rounded(table, make(table, row), dtype)

        return _reduced(walk, eqn, operands[0], made)

    return rule


def _sum(table: Polynomials, row: list[int]) -> int:
    return table.total((number, 1) for number in row)


def _smallest(table: Polynomials, row: list[int]) -> int:
    return table.largest(row, -1)


def _product(table: Polynomials, row: list[int]) -> int:
    found = table.one
    for number in row:
        found = table.product(found, number)
    return found


def _place_of_largest(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    name, table = eqn.primitive.name, walk.polynomials
    sign = 1 if name == "argmin" else -1

    def place(row: list[int]) -> int:
        values = [table.value_of(number) for number in row]
        if None in values:
            return table.atom(name, (), row)
        return table.constant(min(range(len(row)), key=lambda at: sign * (values[at] or 0)))

    return _reduced(walk, eqn, operands[0], place)


def _cumulative(make: Callable[[Polynomials, int, int], int]) -> EntryRule:
    def rule(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
        if "u" in _kinds(eqn) or is_narrow(eqn.invars[0].aval.dtype):
            return _opaque(walk, eqn, operands)
        rows = np.moveaxis(operands[0], walk.lead + eqn.params["axis"], 0)
        order = list(range(len(rows)))[:: -1 if eqn.params["reverse"] else 1]
        found, before = rows.copy(), None
        for at in order:
            if before is not None:
                found[at] = walk.each(lambda x, y: make(walk.polynomials, x, y), found[before], rows[at])
            before = at
        return [np.moveaxis(found, 0, walk.lead + eqn.params["axis"])]

    return rule


def _dot(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    if "u" in _kinds(eqn):
        return _opaque(walk, eqn, operands)
    contracted, batched = eqn.params["dimension_numbers"]
    mesh, arrays, free = tuple(walk.mesh.values()), list[Numbers](), list[tuple[int, ...]]()
    batch: tuple[int, ...] = ()
    for numbers, over, batch_dims in zip(operands, contracted, batched, strict=True):
        over, batch_dims = ([walk.lead + dim for dim in dims] for dims in (over, batch_dims))
        own = [dim for dim in range(walk.lead, numbers.ndim) if dim not in (*over, *batch_dims)]
        sizes = [prod(numbers.shape[dim] for dim in dims) for dims in (own, over)]
        batch, free = tuple(numbers.shape[dim] for dim in batch_dims), [*free, tuple(numbers.shape[dim] for dim in own)]
        arrays.append(
            numbers.transpose(*range(walk.lead), *batch_dims, *own, *over).reshape(prod(mesh + batch), *sizes)
        )
    one, other = arrays
    known, found = dict[Any, int](), list[int]()
    for left, right in zip(one.tolist(), other.tolist(), strict=True):
        for row in map(tuple, left):
            for column in map(tuple, right):
                if (number := known.get((row, column))) is None:
                    number = walk.polynomials.contraction(zip(row, column, strict=True))
                    number = known[row, column] = _rounded(walk.polynomials, number, eqn.outvars[0].aval.dtype)
                found.append(number)
    return [np.array(found, np.int64).reshape((*mesh, *batch, *free[0], *free[1]))]


def _rows(walk: EntryWalk, eqn: Any, operands: list[Numbers], rank: int) -> list[Numbers]:
    """An operation of which only its name is known, and that the first dims, as many, are done each by itself."""
    batch = operands[0].shape[: walk.lead + rank]
    flat = [np.broadcast_to(each, (*batch, *each.shape[len(batch) :])).reshape(prod(batch), -1) for each in operands]
    shapes = tuple(each.shape[len(batch) :] for each in operands)
    params, found = (_params_of(eqn), shapes), list[Numbers]()
    for at, var in enumerate(eqn.outvars):
        shape = var.aval.shape[rank:]
        walk.polynomials.spend(prod(batch) * (prod(shape) + sum(each.shape[1] for each in flat)))
        is_truth = _kind(var.aval.dtype) == "b"
        made = [
            walk.polynomials.atom(eqn.primitive.name, (at, entry, params), of, is_truth)
            for of in np.concatenate(flat, 1).tolist()
            for entry in range(prod(shape))
        ]
        found.append(np.array(made, np.int64).reshape((*batch, *shape)))
    return found


def _opaque(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    """An operation of which only its name is known."""
    name = eqn.primitive.name
    does_more = "callback" in name or "pallas" in name or "reshard" in name or _jax.jaxpr.has_effects(eqn)
    if does_more or _jax.jaxpr.inner_jaxprs(eqn) or set(_jax.jaxpr.named_axes(eqn)) & walk.mesh.keys():
        raise NotKnown(f"nothing is known of {name}")
    return _rows(walk, eqn, operands, 0)


def _sort(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    at, keys = walk.lead + eqn.params["dimension"], eqn.params["num_keys"]
    moved = [np.moveaxis(each, at, -1) for each in operands]
    length, table = moved[0].shape[-1], walk.polynomials
    params = (keys, eqn.params["is_stable"], length)
    rows = np.stack(moved, -2).reshape(-1, len(moved), length).tolist()
    walk.polynomials.spend(2 * len(rows) * len(moved) * length)

    def made(row: list[list[int]]) -> list[list[int]]:
        values = [list(map(table.value_of, key)) for key in row[:keys]]
        order = list[int]()
        if params[1] and not any(None in each for each in values):
            order = sorted(range(length), key=lambda place: [each[place] or 0 for each in values])
        elif params[1] and keys == 1:
            order = decided_order(table, "sort", params, row[0], length)
        if order or not length:
            return [[each[place] for place in order] for each in row]
        flat = [number for each in row for number in each]
        atoms = [table.atom("sort", (entry, params), flat) for entry in range(len(flat))]
        return [atoms[first : first + length] for first in range(0, len(flat), length)]

    found = np.array([made(row) for row in rows], np.int64).reshape(*moved[0].shape[:-1], len(moved), length)
    return [np.moveaxis(found[..., each, :], -1, at) for each in range(len(moved))]


def _top_k(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    """The largest entries of each row, and their places."""
    at = walk.lead + eqn.params.get("axis", len(eqn.invars[0].aval.shape) - 1)
    count, table = eqn.params["k"], walk.polynomials
    params = (count, int(eqn.params.get("is_stable", True)))
    moved = np.moveaxis(operands[0], at, -1)
    walk.polynomials.spend(2 * moved.size)

    def made(row: list[int]) -> list[list[int]]:
        if order := decided_order(table, "top_k", params, row, count):
            return [[row[place] for place in order], list(map(table.constant, order))]
        return [[table.atom("top_k", (which, entry, params), row) for entry in range(count)] for which in range(2)]

    rows = moved.reshape(-1, moved.shape[-1]).tolist()
    found = np.array([made(row) for row in rows], np.int64).reshape(*moved.shape[:-1], 2, count)
    return [np.moveaxis(found[..., which, :], -1, at) for which in range(2)]


def _random(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    """Random bits of each key; a key from each key and number."""
    if eqn.primitive.name == "random_fold_in":
        return [walk.each(lambda *entries: walk.polynomials.atom("fold in", (), entries), *operands)]
    before = len(eqn.invars[0].aval.shape) - (eqn.primitive.name == "random_wrap")
    return _rows(walk, eqn, operands, before)


# Entries in other places


def _iota(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    shape, dim, dtype = eqn.params["shape"], eqn.params["dimension"], eqn.params["dtype"]
    if operands:
        raise NotKnown("its shape is computed")
    return [walk.constant(np.indices(shape)[dim].astype(dtype))]


def _broadcast(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    shape, at = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    sizes = [1] * len(shape)
    for dim, to in enumerate(at):
        sizes[to] = operands[0].shape[walk.lead + dim]
    mesh = tuple(walk.mesh.values())
    return [np.broadcast_to(operands[0].reshape((*mesh, *sizes)), (*mesh, *shape))]


def _reshape(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    if eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None:
        raise NotKnown("it reorders dims")
    return [operands[0].reshape((*walk.mesh.values(), *eqn.outvars[0].aval.shape))]


def _transpose(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    order = [walk.lead + dim for dim in eqn.params["permutation"]]
    return [operands[0].transpose(*range(walk.lead), *order)]


def _slice(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    params = eqn.params
    strides = params["strides"] or (1,) * len(params["start_indices"])
    parts = [slice(*each) for each in zip(params["start_indices"], params["limit_indices"], strides, strict=True)]
    return [operands[0][(..., *parts)]]


def _reversed(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    return [np.flip(operands[0], tuple(walk.lead + dim for dim in eqn.params["dimensions"]))]


def _concatenate(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    return [np.concatenate(operands, walk.lead + eqn.params["dimension"])]


def _stack(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    return [np.stack(operands, walk.lead + eqn.params["axis"])]


def _unstack(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    return list(np.moveaxis(operands[0], walk.lead + eqn.params["axis"], 0))


def _split(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    ends = np.cumsum(eqn.params["sizes"])[:-1]
    return np.split(operands[0], ends, walk.lead + eqn.params["axis"])


def _pad(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    numbers, filler = operands
    for dim, (low, high, interior) in enumerate(eqn.params["padding_config"]):
        rows = np.moveaxis(numbers, walk.lead + dim, 0)
        length = len(rows) + interior * max(len(rows) - 1, 0)
        ones = [1] * (rows.ndim - walk.lead - 1)
        total = max(0, low) + length + max(0, high)
        spread = np.broadcast_to(filler.reshape((*filler.shape, *ones)), (total, *rows.shape[1:])).copy()
        spread[max(0, low) : max(0, low) + length : interior + 1] = rows
        numbers = np.moveaxis(spread[max(0, -low) : total - max(0, -high)], 0, walk.lead + dim)
    return [numbers]


def _parts(walk: EntryWalk, eqn: Any, starts: list[Numbers], shape: Sequence[int], sizes: Sequence[int]) -> Any:
    """On each shard, where a part of an array of a shape begins, moved so that it is within."""
    for at in np.ndindex(*walk.mesh.values()):
        firsts = [int(walk.integers(start)[at]) for start in starts]
        firsts = [max(0, min(first, long - size)) for first, long, size in zip(firsts, shape, sizes, strict=True)]
        yield at, tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


def _dynamic_slice(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    numbers, *starts = operands
    sizes, shape = eqn.params["slice_sizes"], numbers.shape[walk.lead :]
    found = np.empty((*walk.mesh.values(), *sizes), np.int64)
    for at, part in _parts(walk, eqn, starts[: len(shape)], shape, sizes):
        found[at] = numbers[at][part]
    return [found]


def _dynamic_update_slice(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    into, new, *starts = operands
    found = into.copy()
    for at, part in _parts(walk, eqn, starts, into.shape[walk.lead :], new.shape[walk.lead :]):
        found[(*at, *part)] = new[at]
    return [found]


class _Places:
    """Where a gather takes entries from, or a scatter puts them: the same of both."""

    def __init__(self, eqn: Any, window: Any, gone: Any, by: Any, batching: Any, batching_of_indices: Any) -> None:
        self.window, self.gone, self.by = tuple(window), tuple(gone), tuple(by)
        self.batching, self.batching_of_indices = tuple(batching), tuple(batching_of_indices)
        self.is_moved = "CLIP" in str(eqn.params["mode"])

    def of(self, indices: Numbers, shape: tuple[int, ...], sizes: Sequence[int], rank: int) -> Numbers:
        """The places in an array of a shape, flat; -1 for those without."""
        batch = indices.shape[:-1]
        starts = np.zeros((*batch, len(shape)), np.int64)
        starts[..., list(self.by)] = indices
        for dim, of in zip(self.batching, self.batching_of_indices, strict=True):
            starts[..., dim] = np.arange(batch[of]).reshape([-1 if at == of else 1 for at in range(len(batch))])
        limits = np.array(shape) - np.array(sizes)
        is_within = np.all((starts >= 0) & (starts <= limits), -1) | self.is_moved
        starts = np.clip(starts, 0, limits)
        left = [dim for dim in range(len(shape)) if dim not in (*self.gone, *self.batching)]
        steps = np.indices([sizes[dim] for dim in left])
        offsets = np.zeros((*steps.shape[1:], len(shape)), np.int64)
        for dim, step in zip(left, steps, strict=True):
            offsets[..., dim] = step
        places = starts[(..., *[None] * len(left), slice(None))] + offsets
        flat = np.ravel_multi_index(tuple(np.moveaxis(places, -1, 0)), shape) if shape else places.sum(-1)
        flat = np.where(np.expand_dims(is_within, tuple(range(len(batch), len(batch) + len(left)))), flat, -1)
        others = iter(range(len(batch)))
        windows = iter(range(len(batch), len(batch) + len(left)))
        return flat.transpose([next(windows) if dim in self.window else next(others) for dim in range(rank)])


def _gather(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    numbers, indices = operands
    params, of = eqn.params, eqn.params["dimension_numbers"]
    places = _Places(
        eqn, of.offset_dims, of.collapsed_slice_dims, of.start_index_map, of.operand_batching_dims,
        of.start_indices_batching_dims,
    )  # fmt: skip
    shape, known = numbers.shape[walk.lead :], walk.integers(indices)
    found = np.empty((*walk.mesh.values(), *eqn.outvars[0].aval.shape), np.int64)
    outside = walk.polynomials.atom("outside", (str(params["mode"]), repr(params.get("fill_value"))))
    has_filler = "FILL" in str(params["mode"])
    for at in np.ndindex(*walk.mesh.values()):
        flat = places.of(known[at], shape, params["slice_sizes"], found.ndim - walk.lead)
        if not has_filler and (flat < 0).any():
            raise NotKnown("it takes entries from outside of an array")
        found[at] = np.where(flat < 0, outside, numbers[at].ravel()[flat])
    return [found]


def _scatter(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    into, indices, updates = operands
    of, table, is_sum = eqn.params["dimension_numbers"], walk.polynomials, eqn.primitive.name == "scatter-add"
    if is_sum and (_kind(eqn.invars[0].aval.dtype) == "u" or is_narrow(eqn.invars[0].aval.dtype)):
        raise NotKnown("it adds numbers that go round, or are rounded")
    places = _Places(
        eqn, of.update_window_dims, of.inserted_window_dims, of.scatter_dims_to_operand_dims,
        of.operand_batching_dims, of.scatter_indices_batching_dims,
    )  # fmt: skip
    shape, known = into.shape[walk.lead :], walk.integers(indices)
    window = iter([updates.shape[walk.lead + dim] for dim in of.update_window_dims])
    gone = (*of.inserted_window_dims, *of.operand_batching_dims)
    sizes = [1 if dim in gone else next(window) for dim in range(len(shape))]
    found = into.copy()
    for at in np.ndindex(*walk.mesh.values()):
        flat = places.of(known[at], shape, sizes, updates.ndim - walk.lead).ravel()
        taken, made = flat[flat >= 0], found[at].ravel()
        if not is_sum and len(set(taken.tolist())) < len(taken):
            raise NotKnown("it writes twice at the same place")
        for place, number in zip(flat.tolist(), updates[at].ravel().tolist(), strict=True):
            if place >= 0:
                made[place] = table.total([(int(made[place]), 1), (number, 1)]) if is_sum else number
        found[at] = made.reshape(shape)
        walk.polynomials.spend(len(flat))
    return [found]


# What goes from shard to shard


def _all_reduce(make: Callable[[Polynomials, list[int]], int], is_exact: bool = False) -> EntryRule:
    def rule(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
        if "u" in _kinds(eqn):
            raise NotKnown("it adds whole numbers that go round")
        table, found = walk.polynomials, list[Numbers]()
        for each, var in zip(operands, eqn.invars, strict=True):
            members, rounds = walk.members(each, eqn)[0], not is_exact and is_narrow(var.aval.dtype)
            if rounds and len(members) > 1:
                found.append(walk.each(lambda *row: table.atom("rounded sum", (), sorted(row)), *members))
            else:
                found.append(walk.each(lambda *row: make(table, list(row)), *members))
        return found

    return rule


def _all_gather(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    at = walk.lead + eqn.params["all_gather_dimension"]
    join = np.concatenate if eqn.params["tiled"] else np.stack
    return [join(list(walk.members(each, eqn)[0]), at) for each in operands]


def _own(walk: EntryWalk, parts: Sequence[Numbers], place: Numbers) -> Numbers:
    """That of some arrays which is as many from the first as the shard stands in its group."""
    where = place.reshape((*place.shape[: walk.lead], *[1] * (parts[0].ndim - walk.lead)))
    return np.take_along_axis(np.stack(parts), np.broadcast_to(where, parts[0].shape)[None], 0)[0]


def _reduce_scatter(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    at, found = walk.lead + eqn.params["scatter_dimension"], list[Numbers]()
    for each in operands:
        members, place = walk.members(each, eqn)
        if is_narrow(eqn.invars[0].aval.dtype) or "u" in _kinds(eqn):
            raise NotKnown("it adds numbers that go round, or are rounded")
        total = walk.each(lambda *row: _sum(walk.polynomials, list(row)), *members)
        parts = np.split(total, len(members), at)
        found.append(_own(walk, [part if eqn.params["tiled"] else part.squeeze(at) for part in parts], place))
    return found


def _all_to_all(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    split, to = walk.lead + eqn.params["split_axis"], walk.lead + eqn.params["concat_axis"]
    members, place = walk.members(operands[0], eqn)
    sent = [_own(walk, np.split(each, len(members), split), place) for each in members]
    return [np.concatenate(sent, to)]  # what is not tiled has dims of one entry for it


def _ppermute(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    sources, found = {to: source for source, to in eqn.params["perm"]}, list[Numbers]()
    for each in operands:
        members, place = walk.members(each, eqn)
        zero = np.full_like(each, walk.polynomials.zero)
        parts = [members[sources[at]] if at in sources else zero for at in range(len(members))]
        found.append(_own(walk, parts, place))
    return found


def _axis_index(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    place = walk.members(np.full(tuple(walk.mesh.values()), walk.polynomials.zero), eqn)[1]
    numbers = np.array([walk.polynomials.constant(at) for at in range(int(place.max()) + 1)])
    return [numbers[place]]


# Calls, regions, branches and loops


def _call(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    name = next((name for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in eqn.params), None)
    if name is None:
        raise NotKnown(f"nothing is known of {eqn.primitive.name}")
    return walk.results(eqn.params[name], operands)


def _region(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    params, before = eqn.params, dict(walk.mesh)
    manual = _jax.jaxpr.newly_manual_axes(params)
    added = {axis: size for axis, size in params["mesh"].shape.items() if axis in manual}
    places = {axis: walk.lead + at for at, axis in enumerate(added)}
    entering = list[Numbers]()
    for numbers, spec, var in zip(operands, params["in_specs"], eqn.invars, strict=True):
        entries = _jax.array.spec_entries(spec, len(var.aval.shape))
        if set(entries.unreduced) & manual:
            raise NotKnown("it enters the region with partial sums")
        split, front = list(numbers.shape[: walk.lead]), dict[str, int]()
        for size, axes in zip(var.aval.shape, entries.dim_axes, strict=True):
            for axis in axes:
                if axis in added:
                    front[axis] = len(split)
                    split.append(added[axis])
                    size //= added[axis]
            split.append(size)
        parts = numbers.reshape(split)
        rest = [at for at in range(walk.lead, len(split)) if at not in front.values()]
        parts = parts.transpose(*range(walk.lead), *(front[axis] for axis in added if axis in front), *rest)
        lacking = [places[axis] for axis in added if axis not in front]
        shape = [*before.values(), *added.values(), *(split[at] for at in rest)]
        entering.append(np.broadcast_to(np.expand_dims(parts, tuple(lacking)), shape))
    walk.mesh = {**before, **added}
    try:
        found = walk.results(params["jaxpr"], entering)
    finally:
        walk.mesh = before
    return [
        _leaving(walk, numbers, spec, var.aval, added)
        for numbers, spec, var in zip(found, params["out_specs"], eqn.outvars, strict=True)
    ]


def _leaving(walk: EntryWalk, numbers: Numbers, spec: Any, aval: Any, added: dict[str, int]) -> Numbers:
    """The global array of which a region's shards hold parts."""
    entries = _jax.array.spec_entries(spec, len(aval.shape))
    if set(entries.unreduced) & added.keys():
        raise NotKnown("a result of the region is not reduced")
    names = [axis for axes in entries.dim_axes for axis in axes if axis in added]
    for axis in reversed(added):
        if axis not in names:
            copies = np.moveaxis(numbers, walk.lead + list(added).index(axis), 0)
            if (copies != copies[0]).any():
                raise NotKnown("a result of the region is not the same on all shards")
    kept = [axis for axis in added if axis in names]
    numbers = numbers[(*[slice(None)] * walk.lead, *[slice(None) if axis in names else 0 for axis in added])]
    order = list(range(walk.lead))
    for dim, axes in enumerate(entries.dim_axes):
        order += [walk.lead + kept.index(axis) for axis in axes if axis in kept]
        order.append(walk.lead + len(kept) + dim)
    return numbers.transpose(order).reshape((*walk.mesh.values(), *aval.shape))


def _cond(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    which, *given = operands
    branches, numbers = eqn.params["branches"], set(which.ravel().tolist())
    value = walk.polynomials.value_of(next(iter(numbers)))
    if len(numbers) == 1 and value is not None:
        return walk.results(branches[max(0, min(int(value), len(branches) - 1))], given)
    if len(numbers) > 1 and any(
        _jax.jaxpr.collective_operation(each) is not None
        for branch in branches
        for each in _jax.jaxpr.all_equations(branch)
    ):
        raise NotKnown("some shards may wait for others")
    ways = [walk.results(branch, given) for branch in branches]
    return [_chosen(walk, which, list(cases), is_truth=False) for cases in zip(*ways, strict=True)]


def _scan(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    params = eqn.params
    constants, carried = _jax.jaxpr.scan_counts(params)
    given, carry = operands[:constants], operands[constants : constants + carried]
    items = [np.moveaxis(each, walk.lead, 0) for each in operands[constants + carried :]]
    order = list(range(params["length"]))[:: -1 if params["reverse"] else 1]
    made = dict[int, list[Numbers]]()
    for at in order:
        results = walk.results(params["jaxpr"], [*given, *carry, *(item[at] for item in items)])
        carry, made[at] = results[:carried], results[carried:]
    if not order:
        raise NotKnown("it has no iteration")
    stacked = [np.stack([made[at][each] for at in sorted(made)], walk.lead) for each in range(len(made[order[0]]))]
    return [*carry, *stacked]


def _while(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    asked, given, carry = _jax.jaxpr.while_operands(eqn, operands)
    while True:
        (goes_on,) = walk.results(eqn.params["cond_jaxpr"], [*asked, *carry])
        values = {walk.polynomials.value_of(number) for number in goes_on.ravel().tolist()}
        if len(values) > 1 or None in values:
            raise NotKnown("how long it goes on depends on the arguments or on the shard")
        if values == {0}:
            return carry
        walk.polynomials.spend(100)
        carry = walk.results(eqn.params["body_jaxpr"], [*given, *carry])


RULES: dict[str, EntryRule] = {
    **dict.fromkeys(("threefry2x32", *ELEMENTWISE_NAMES.split()), _elementwise),
    **dict.fromkeys(SAME_NAMES.split(), _same),
    CLAIM: _same,
    **dict.fromkeys(("add", "add_any"), _arithmetic(lambda table, _, one, other: table.total([(one, 1), (other, 1)]))),
    "sub": _arithmetic(lambda table, _, one, other: table.total([(one, 1), (other, -1)])),
    "neg": _arithmetic(lambda table, _, one: table.total([(one, -1)]), is_exact=True),
    "mul": _arithmetic(lambda table, _, one, other: table.product(one, other)),
    "div": _division,
    "square": _arithmetic(lambda table, _, one: table.product(one, one)),
    "integer_pow": _arithmetic(lambda table, eqn, one: table.power(one, eqn.params["y"]), "fc"),
    "one_minus_square": _arithmetic(lambda table, _, one: table.denied(table.product(one, one))),
    "exp": _arithmetic(lambda table, _, one: table.exponential(one), "fc"),
    "expm1": _arithmetic(lambda table, _, one: table.total([(table.exponential(one), 1), (table.one, -1)]), "fc"),
    "log": _arithmetic(lambda table, _, one: table.logarithm(one), "f"),
    "log1p": _arithmetic(lambda table, _, one: table.logarithm(table.total([(one, 1), (table.one, 1)])), "f"),
    "rsqrt": _arithmetic(lambda table, _, one: table.inverse(table.atom("sqrt", (), [one])), "f"),
    "sqrt": _arithmetic(lambda table, _, one: table.atom("sqrt", (), [one]), "f"),
    "max": _arithmetic(lambda table, _, one, other: table.largest([one, other]), "fi", is_exact=True),
    "min": _arithmetic(lambda table, _, one, other: table.largest([one, other], -1), "fi", is_exact=True),
    "clamp": _arithmetic(
        lambda table, _, low, one, high: table.largest([table.largest([low, one]), high], -1), "fi", is_exact=True
    ),
    "rem": _division,
    **{name: _compared(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "and": _logical(Polynomials.product),
    "or": _logical(_either),
    "not": _logical(Polynomials.denied),
    "select_n": _select,
    "convert_element_type": _convert,
    "reduce_sum": _reduction(_sum, "bifc"),
    "reduce_max": _reduction(Polynomials.largest, "fi", is_exact=True),
    "reduce_min": _reduction(_smallest, "fi", is_exact=True),
    "reduce_and": _reduction(_product, "b"),
    "reduce_or": _reduction(lambda table, row: table.denied(_product(table, list(map(table.denied, row)))), "b"),
    "reduce_prod": _reduction(_product, "bifc"),
    **dict.fromkeys(("argmax", "argmin"), _place_of_largest),
    "cumsum": _cumulative(lambda table, one, other: table.total([(one, 1), (other, 1)])),
    "cumprod": _cumulative(Polynomials.product),
    "cummax": _cumulative(lambda table, one, other: table.largest([one, other])),
    "cummin": _cumulative(lambda table, one, other: table.largest([one, other], -1)),
    "dot_general": _dot,
    "sort": _sort,
    "top_k": _top_k,
    "fft": lambda walk, eqn, operands: _rows(
        walk, eqn, operands, len(eqn.invars[0].aval.shape) - len(eqn.params["fft_lengths"])
    ),
    **dict.fromkeys(
        ("random_wrap", "random_unwrap", "random_seed", "random_split", "random_bits", "random_fold_in"), _random
    ),
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "transpose": _transpose,
    "slice": _slice,
    "rev": _reversed,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "split": _split,
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    **dict.fromkeys(("scatter", "scatter-add"), _scatter),
    **dict.fromkeys(("psum", "psum_invariant", "unreduced_psum"), _all_reduce(_sum)),
    **dict.fromkeys(("pmax", "pmax_invariant", "unreduced_pmax"), _all_reduce(Polynomials.largest, is_exact=True)),
    **dict.fromkeys(
        ("pmin", "pmin_invariant", "unreduced_pmin"),
        _all_reduce(lambda table, row: table.largest(row, -1), is_exact=True),
    ),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), _all_gather),
    **dict.fromkeys(("reduce_scatter", "unreduced_reduce_scatter"), _reduce_scatter),
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "axis_index": _axis_index,
    **dict.fromkeys(CALL_NAMES.split(), _call),
    "shard_map": _region,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
"""By primitive what its results are; of any other only its name is known."""
