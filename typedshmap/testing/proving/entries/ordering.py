"""Entries in the order of their size, and the places of the largest, where that is known or decided."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cases import decided_order
from .arithmetic import reduced
from .walk import EntryRule, EntryWalk, Numbers


def _place_of_largest(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    name, table = eqn.primitive.name, walk.polynomials
    sign = 1 if name == "argmin" else -1

    def place(row: list[int]) -> int:
        values = [table.value_of(number) for number in row]
        if None in values:
            return table.atom(name, (), row)
        return table.constant(min(range(len(row)), key=lambda at: sign * (values[at] or 0)))

    return reduced(walk, eqn, operands[0], place)


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


ORDERING_RULES: dict[str, EntryRule] = {
    **dict.fromkeys(("argmax", "argmin"), _place_of_largest),
    "sort": _sort,
    "top_k": _top_k,
}
