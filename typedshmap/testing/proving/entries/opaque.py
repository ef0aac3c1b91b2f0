"""Operations of which only the name is known: what they make of equal entries is equal."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from .... import _jax
from ..elementwise import ELEMENTWISE_NAMES
from ..values import NotKnown
from .walk import EntryRule, EntryWalk, Numbers, kind_of, kinds_of, params_of


def elementwise(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    """An operation of which only its name is known; of whole numbers that are known, what it makes of them."""
    name, params, dtypes = eqn.primitive.name, params_of(eqn), tuple(str(var.aval.dtype) for var in eqn.invars)
    is_truth = kind_of(eqn.outvars[0].aval.dtype) == "b"
    make = _INTEGER.get(name) if kinds_of(eqn) <= set("biu") else None

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


def rows_of(walk: EntryWalk, eqn: Any, operands: list[Numbers], rank: int) -> list[Numbers]:
    """An operation of which only its name is known, and that the first dims, as many, are done each by itself."""
    batch = operands[0].shape[: walk.lead + rank]
    flat = [np.broadcast_to(each, (*batch, *each.shape[len(batch) :])).reshape(prod(batch), -1) for each in operands]
    shapes = tuple(each.shape[len(batch) :] for each in operands)
    params, found = (params_of(eqn), shapes), list[Numbers]()
    for at, var in enumerate(eqn.outvars):
        shape = var.aval.shape[rank:]
        walk.polynomials.spend(prod(batch) * (prod(shape) + sum(each.shape[1] for each in flat)))
        is_truth = kind_of(var.aval.dtype) == "b"
        made = [
            walk.polynomials.atom(eqn.primitive.name, (at, entry, params), of, is_truth)
            for of in np.concatenate(flat, 1).tolist()
            for entry in range(prod(shape))
        ]
        found.append(np.array(made, np.int64).reshape((*batch, *shape)))
    return found


def opaque(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    """An operation of which only its name is known."""
    name = eqn.primitive.name
    does_more = "callback" in name or "pallas" in name or "reshard" in name or _jax.jaxpr.has_effects(eqn)
    if does_more or _jax.jaxpr.inner_jaxprs(eqn) or set(_jax.jaxpr.named_axes(eqn)) & walk.mesh.keys():
        raise NotKnown(f"nothing is known of {name}")
    return rows_of(walk, eqn, operands, 0)


def _random(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    """Random bits of each key; a key from each key and number."""
    if eqn.primitive.name == "random_fold_in":
        return [walk.each(lambda *entries: walk.polynomials.atom("fold in", (), entries), *operands)]
    before = len(eqn.invars[0].aval.shape) - (eqn.primitive.name == "random_wrap")
    return rows_of(walk, eqn, operands, before)


OPAQUE_RULES: dict[str, EntryRule] = {
    **dict.fromkeys(("threefry2x32", *ELEMENTWISE_NAMES.split()), elementwise),
    "fft": lambda walk, eqn, operands: rows_of(
        walk, eqn, operands, len(eqn.invars[0].aval.shape) - len(eqn.params["fft_lengths"])
    ),
    **dict.fromkeys(
        ("random_wrap", "random_unwrap", "random_seed", "random_split", "random_bits", "random_fold_in"), _random
    ),
}
