"""Whatever the inference says of a value is so: of random bodies, on eight devices, value by value."""

from collections.abc import Sequence
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import MESH, SIZES, argument, claim, numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from random_bodies import SIDE, Body, Step, write_sums

from typedshmap.inference import lattice
from typedshmap.inference.control_flow import fact_of_spec
from typedshmap.inference.facts import FactInterpreter
from typedshmap.inference.interpreted_region import RULES
from typedshmap.inference.interpreter import CLAIM
from typedshmap.inference.kinds.region_kinds import Kinds
from typedshmap.inference.lattice import UNSHARDED, DimFact, Part, ShardingFact, invarying
from typedshmap.notation.layout import NO_AXES, Layout

ARGUMENTS = ("8/dp 8/tp", "16/dp,tp 4", "8/tp 4/dp 2", "2 8/tp", "16/tp,dp 2", "4 4", "4 4/dp 2")
SPECS = tuple(argument(text)[0] for text in ARGUMENTS)
SHARED = P(("dp", "tp"))
LENGTH = 36


def has_groups(seed: int) -> bool:
    return seed % 3 == 0


def written(seed: int, is_typed: bool, shards: Any) -> Body:
    body = Body(Random(seed), is_typed, has_groups(seed), list(shards))
    body.write(LENGTH)
    return body


def facts_of(seed: int, is_typed: bool) -> list[ShardingFact]:
    """What is known of every value of a body."""
    found: list[ShardingFact] = []

    def traced(*shards: Any) -> tuple[()]:
        jaxpr = jax.make_jaxpr(lambda *shards: written(seed, is_typed, shards).values)(*shards).jaxpr
        interpreter = FactInterpreter(SIZES, is_typed, {**RULES, CLAIM: claim})
        ranks = [len(shard.shape) for shard in shards]
        facts = [fact_of_spec(*pair, frozenset(SIZES)) for pair in zip(SPECS, ranks, strict=True)]
        found.extend(interpreter.interpret(jaxpr, facts))
        return ()

    structs = [jax.ShapeDtypeStruct(argument(text)[1], np.int32) for text in ARGUMENTS]
    jax.eval_shape(jax.shard_map(traced, mesh=MESH, in_specs=SPECS, out_specs=(), check_vma=is_typed), *structs)
    return found


def run(seed: int, mesh: Mesh) -> tuple[list[np.ndarray], list[Step | None]]:
    """Every shard of every value of a body, by its place in the mesh, and how the values were made."""
    steps: list[Step | None] = []

    def body(*shards: Any) -> list[Any]:
        made = written(seed, False, shards)
        steps.extend(made.steps)
        return [value[None] for value in made.values]

    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=SHARED, check_vma=False))
    values = jax.block_until_ready(mapped(*(numbers(text, np.int32) for text in ARGUMENTS)))
    return [np.asarray(value).reshape(4, 2, *value.shape[1:]) for value in values], steps


def assert_equal_where_said(value: np.ndarray, fact: ShardingFact, what: object) -> None:
    for at, axis in enumerate(SIZES):
        if axis not in fact.varying | fact.unreduced:
            assert (value == value.take([0], axis=at)).all(), (what, fact, axis)


def parts_of_dims(fact: ShardingFact, shape: Sequence[int]) -> list[tuple[Part, ...]] | None:
    """What the dims of a value are merged from; None where that is not known of all."""
    found = [lattice.parts_of(dim, size) for dim, size in zip(fact.dims, shape, strict=True)]
    return None if any(parts is None for parts in found) else [parts or () for parts in found]


def is_known(fact: ShardingFact, value: np.ndarray) -> bool:
    """Whether a fact says all that the global array is made of."""
    split = {axis for dim in fact.dims for axis in lattice.certain(dim).known_axes}
    return parts_of_dims(fact, value.shape[2:]) is not None and fact.varying <= split and not fact.unreduced


def assembled(value: np.ndarray, fact: ShardingFact) -> np.ndarray:
    """The global array that shards make, sharded as a fact says."""
    dims = parts_of_dims(fact, value.shape[2:])
    assert dims is not None
    parts, names = [part for dim in dims for part in dim], list(SIZES)
    split = [axis for axes, _ in parts for axis in axes]
    for at, axis in enumerate(names):
        if axis not in split:
            value = value.take([0], axis=at)
    value = value.reshape(*value.shape[:2], *(size for _, size in parts))
    order: list[int] = []
    for at, (axes, _) in enumerate(parts):
        order += [*map(names.index, axes), at + 2]
    order += [at for at, axis in enumerate(names) if axis not in split]
    sizes = ([size * int(np.prod([SIZES[axis] for axis in axes])) for axes, size in dim] for dim in dims)
    return value.transpose(order).reshape([int(np.prod(of_dim)) for of_dim in sizes])


def assert_lies_as_said(number: int, step: Step, values: list[np.ndarray], facts: list[ShardingFact]) -> bool:
    """Hold that a step makes of the global arrays of its operands that of its result; whether it could be compared."""
    first = facts[step.operands[0]]
    if step.globally is None or not all(is_known(facts[at], values[at]) for at in (*step.operands, number)):
        return False
    if any(lattice.certain(facts[at].dims[dim]).known_axes for at in step.operands for dim in step.along):
        return False
    if len(step.operands) > 1 and any(facts[at].dims != first.dims for at in step.operands):
        return False  # a whole dim goes with one that is split, which for global arrays it does not
    made = assembled(values[number], facts[number])
    globally = step.globally(*(jnp.asarray(assembled(values[at], facts[at])) for at in step.operands), made.shape)
    if globally is None:
        return False
    np.testing.assert_array_equal(made, globally, err_msg=f"{step}, {first} to {facts[number]}")
    return True


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_what_is_said_of_random_values_is_so(seed: int, mesh: Mesh) -> None:
    values, steps = run(seed, mesh)
    compared = 0
    for is_typed in (False,) if has_groups(seed) else (False, True):
        facts = facts_of(seed, is_typed)
        for number, (value, fact, step) in enumerate(zip(values, facts, steps, strict=True)):
            assert_equal_where_said(value, fact, (number, step))
            if step is not None:
                compared += assert_lies_as_said(number, step, values, facts)
    assert compared, "no layout of a whole body was known"


COLUMNS = ShardingFact(frozenset({"dp"}), NO_AXES, (UNSHARDED, DimFact(("dp",))))
ROWS = ShardingFact(frozenset({"dp"}), NO_AXES, (DimFact(("dp",)), UNSHARDED))
SHARDS = np.repeat(np.arange(16).reshape(4, 1, 2, 2), 2, axis=1)


def test_a_value_that_differs_is_found() -> None:
    assert_equal_where_said(SHARDS, ROWS, "rows")
    with pytest.raises(AssertionError):
        assert_equal_where_said(SHARDS, invarying(2), "rows")


def test_a_dim_that_is_sharded_otherwise_is_found() -> None:
    step = Step("transposed", (0,), (), lambda x, _: x.T)
    values = [SHARDS, SHARDS.swapaxes(2, 3)]
    assert assert_lies_as_said(1, step, values, [ROWS, COLUMNS])
    with pytest.raises(AssertionError):
        assert_lies_as_said(1, step, values, [ROWS, ROWS])


ADDEND = ShardingFact(NO_AXES, frozenset({"tp"}), (UNSHARDED,) * 2)
OWN = ShardingFact(frozenset({"tp"}), NO_AXES, (UNSHARDED,) * 2)
MATRICES = (ADDEND, ADDEND, invarying(2), OWN)


def said_of_sums(seed: int, count: int, is_typed: bool) -> list[str]:
    """Of every value of a body of matrices, whether it is said to be an addend, or not to be one."""
    said: list[str] = []

    def traced(*shards: Any) -> tuple[()]:
        matrices = [shard[0] for shard in shards]
        jaxpr = jax.make_jaxpr(lambda *values: write_sums(Random(seed), values, count))(*matrices).jaxpr
        addends = dict.fromkeys(range(len(jaxpr.outvars)), Layout(((), ()), frozenset({"tp"})))
        verdicts = Kinds(jaxpr, MATRICES, addends, SIZES).over("tp").verdicts
        said.extend(verdicts[at].says for at in addends)
        return ()

    specs = tuple(P("tp") if fact.varying | fact.unreduced else P() for fact in MATRICES)
    shapes = [jax.ShapeDtypeStruct((2 if spec == P("tp") else 1, SIDE, SIDE), np.float32) for spec in specs]
    jax.eval_shape(jax.shard_map(traced, mesh=MESH, in_specs=specs, out_specs=(), check_vma=is_typed), *shapes)
    return said


def is_addend(seed: int, count: int) -> list[bool]:
    """Of every value whether its sum over shards is what the same steps make of the sums of the addends."""
    return [all(of_value) for of_value in zip(*(are_addends(seed, count, draw) for draw in range(2)), strict=True)]


def are_addends(seed: int, count: int, draw: int) -> list[bool]:
    """The same of values that are drawn."""
    drawn = np.random.default_rng((seed, draw)).uniform(-2, 2, (4, 2, SIDE, SIDE)).astype(np.float32)
    drawn[2, 1] = drawn[2, 0]
    first, second = (write_sums(Random(seed), list(map(jnp.asarray, drawn[:, at])), count) for at in (0, 1))
    summed = [drawn[0].sum(0), drawn[1].sum(0), drawn[2, 0], drawn[3, 0]]
    total = write_sums(Random(seed), list(map(jnp.asarray, summed)), count)
    return [np.allclose(a + b, c, rtol=1e-3, atol=1e-3) for a, b, c in zip(first, second, total, strict=True)]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**20), count=st.integers(1, 6))
def test_what_is_said_to_be_an_addend_is_one(seed: int, count: int) -> None:
    addends = is_addend(seed, count)
    for is_typed in (False, True):
        for number, (says, is_one) in enumerate(zip(said_of_sums(seed, count, is_typed), addends, strict=True)):
            assert is_one or says != "right", number


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_what_is_said_to_lose_a_sum_makes_no_addend(seed: int) -> None:
    if said_of_sums(seed, 1, False)[-1] == "wrong":
        assert not is_addend(seed, 1)[-1]
