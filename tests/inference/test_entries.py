"""What `prove` reads entry by entry of random bodies is what every shard computes; of random matrices, too."""

from collections.abc import Callable
from functools import cache
from math import prod
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import MESH, argument, numbers
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from random_bodies import AXES, SIDE, Body, write_sums
from test_soundness import ARGUMENTS, SHARED, SPECS
from tiers import one_in

from typedshmap.testing.proving.entries.rules import ENTRY_RULES
from typedshmap.testing.proving.entries.walk import EntryWalk
from typedshmap.testing.proving.entries.walk import argument as entries_of
from typedshmap.testing.proving.polynomials import Polynomials
from typedshmap.testing.proving.values import NotKnown

ATOMS: dict[str, Callable[..., Any]] = {
    "tanh": np.tanh, "abs": np.abs, "max": max, "sqrt": np.sqrt, "is negative": lambda x: x < 0,
    "is zero": lambda x: abs(x) < 1e-9, "log": np.log, "sum": lambda x: x, "sin": np.sin, "cos": np.cos,
    "sign": np.sign,
}  # fmt: skip


class NotComputed(Exception):
    """Raised for an operation of which a polynomial does not say how it is computed."""


class Evaluation:
    """What polynomials are, of arguments."""

    def __init__(self, table: Polynomials, arguments: list[np.ndarray]) -> None:
        self.table, self.arguments = table, [array.ravel() for array in arguments]
        self.value, self.atom = cache(self.value), cache(self.atom)  # type: ignore[method-assign]

    def value(self, number: int) -> Any:
        return sum(
            float(factor) * self.power(self.table.known_monomials[monomial])
            for monomial, factor in self.table.known[number].items()
        )

    def power(self, monomial: Any) -> Any:
        return prod(self.atom(atom) ** float(exponent) for atom, exponent in monomial)

    def atom(self, number: int) -> Any:
        operation, params, operands = self.table.known_atoms[number]
        if operation == "argument":
            at, entry = params  # type: ignore[misc]
            return float(self.arguments[at][entry])
        if operation == "exp":
            return np.exp(self.power(params))
        values = [self.value(each) for each in operands]
        if operation == "sort" and params[1][0] == 1 and len(values) == params[1][2]:  # type: ignore[index]
            return sorted(values)[params[0]]  # type: ignore[index]
        if operation in ("argmax", "argmin"):
            return int(getattr(np, operation)(values))
        if operation not in ATOMS:
            raise NotComputed(operation)
        return ATOMS[operation](*values)


def compared(table: Polynomials, arguments: list[np.ndarray], entries: np.ndarray, values: np.ndarray) -> int:
    """How many entries were compared, and are what was computed."""
    evaluation, found = Evaluation(table, arguments), 0
    for number, value in zip(entries.ravel().tolist(), values.ravel().tolist(), strict=True):
        if not np.isfinite(value):  # as of a number that is infinite, times zero
            continue
        try:
            np.testing.assert_allclose(evaluation.value(number), value, rtol=2e-3, atol=2e-3)
        except NotComputed:
            continue
        found += 1
    return found


def read(jaxpr: Any, arguments: Callable[[Polynomials], list[Any]]) -> tuple[Polynomials, list[Any]] | None:
    """The entries of a program's results; None where it has an operation that is not read."""
    table = Polynomials()
    try:
        return table, EntryWalk(table, ENTRY_RULES).results(jaxpr, arguments(table))
    except NotKnown:
        return None


@pytest.mark.parametrize("seed", one_in(20, range(120)))
def test_every_entry_of_a_random_body_is_what_its_shard_computes(seed: int, mesh: Mesh) -> None:
    updated = list[bool]()

    def body(*shards: Any) -> Any:
        made = Body(Random(seed), False, seed % 3 == 0, list(shards))
        made.write(len(shards) + 1 + seed % 5)
        updated.extend(
            step is not None and step.name == "updated" and len({*step.operands}) == 1 for step in made.steps
        )
        return made.values[-1][None]

    of_mesh, of_devices = (
        jax.shard_map(body, mesh=each, in_specs=SPECS, out_specs=SHARED, check_vma=False) for each in (MESH, mesh)
    )
    structs = [jax.ShapeDtypeStruct(argument(text)[1], np.int32) for text in ARGUMENTS]
    arrays = [numbers(text, np.int32) for text in ARGUMENTS]
    found = read(
        jax.make_jaxpr(of_mesh)(*structs),
        lambda table: [EntryWalk(table, ENTRY_RULES).constant(each) for each in arrays],
    )
    if found is not None and not any(updated):  # XLA:CPU of 0.12 adds an entry of what it has changed in place by then
        compared(found[0], arrays, found[1][0], np.asarray(jax.block_until_ready(jax.jit(of_devices)(*arrays))))


def combined(random: Random, x: Any) -> Any:
    """What shards make of each other's matrices."""
    axis = random.choice(AXES)
    ring = [(at, (at + 1) % jax.lax.axis_size(axis)) for at in range(jax.lax.axis_size(axis))]
    ways: list[Callable[[Any], Any]] = [
        lambda x: jax.lax.psum(x, axis), lambda x: jax.lax.pmax(x, AXES), lambda x: jax.lax.ppermute(x, axis, ring),
        lambda x: jax.lax.all_gather(x, axis).mean(0), lambda x: jax.lax.pmean(x, axis) * jax.lax.axis_index(axis),
        lambda x: jax.nn.softmax(x) - jax.lax.psum(jnp.exp(x - 3), axis), lambda x: x,
    ]  # fmt: skip
    return random.choice(ways)(x)


@pytest.mark.parametrize("seed", one_in(20, range(120)))
def test_every_entry_of_random_matrices_is_what_its_shard_computes(seed: int, mesh: Mesh) -> None:
    arrays = [
        np.random.default_rng((seed, at)).uniform(-2, 2, (4, SIDE, SIDE, 2)).astype(np.float32) for at in range(3)
    ]

    def body(*shards: Any) -> Any:
        random, values = Random(seed), [shard[0, :, :, 0] for shard in shards]
        for _ in range(1 + seed % 5):
            squares = [value for value in values if value.shape == (SIDE, SIDE)]
            values = write_sums(random, [combined(random, value) for value in squares[-3:]], 1)
        return values[-1][None, ..., None]

    spec = P("dp", None, None, "tp")
    of_mesh, of_devices = (
        jax.shard_map(body, mesh=each, in_specs=spec, out_specs=spec, check_vma=False) for each in (MESH, mesh)
    )
    structs = [jax.ShapeDtypeStruct(array.shape, np.float32) for array in arrays]
    found = read(
        jax.make_jaxpr(of_mesh)(*structs),
        lambda table: [entries_of(table, at, array.shape) for at, array in enumerate(arrays)],
    )
    if found is not None:
        compared(found[0], arrays, found[1][0], np.asarray(jax.block_until_ready(jax.jit(of_devices)(*arrays))))
