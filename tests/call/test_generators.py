"""A typed generator or coroutine has the scope of its call whenever its body runs, and nowhere else."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest
from beartype import beartype
from beartype.roar import BeartypeException

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    Float,
    Int,
    ShapeError,
    StructureError,
    check,
    size,
    sizes,
    typed,
    typed_shard_map,
)

Vector = Float[np.ndarray, "n"]


def ones(*shape):
    return np.ones(shape, np.float32)


@typed
def halves(x: Vector) -> Iterator[Float[np.ndarray, "n//2"]]:
    yield x[: size("n") // 2]
    check(ones(3), "m")
    yield x[size("n") // 2 :]
    assert sizes() == {"n": 4, "m": 3}


def test_the_names_of_generators_in_turn_stay_bound_across_their_steps():
    pairs = zip(halves(ones(4)), halves(ones(4)), strict=True)
    assert [(a.shape, b.shape) for a, b in pairs] == [((2,), (2,))] * 2
    assert sizes() == {}


def test_the_names_of_a_generator_are_not_those_of_its_caller():
    @typed
    def caller(y: Float[np.ndarray, "n k"]) -> list[dict[str, Any]]:
        found = []
        for _ in halves(ones(4)):
            found.append(sizes())
        return [*found, sizes()]

    assert caller(ones(7, 5)) == [{"n": 7, "k": 5}] * 3


def test_what_a_generator_takes_yields_and_returns_is_checked():
    @typed
    def wrong(x: Vector) -> Generator[Vector, None, Vector]:
        if x[0] == 1:
            yield x[1:]
        return x[1:]

    with pytest.raises(ShapeError, match=r"^wrong: argument 'x' has 2 dims, but its hint has 1\n"):
        wrong(ones(4, 4))
    with pytest.raises(ShapeError, match=r"^wrong: yielded value has n=3, but argument 'x' has n=4\n"):
        next(wrong(ones(4)))
    with pytest.raises(ShapeError, match=r"^wrong: return value has n=3, but argument 'x' has n=4\n"):
        list(wrong(0 * ones(4)))


def test_a_generator_may_yield_arrays_of_other_sizes():
    @typed
    def batches(x: Vector) -> Iterable[Float[np.ndarray, "batch"]]:
        yield x[:3]
        yield x[3:]

    assert [batch.size for batch in batches(ones(4))] == [3, 1]


@typed
def echo(x: Vector) -> Generator[Float[np.ndarray, "_"], Any, Vector]:
    sent = x
    while sent is not None:
        try:
            sent = yield sent
        except KeyError:
            sent = ones(size("n"))
        finally:
            assert sizes() == {"n": 4}
    return x if size("n") == 4 else None


def test_a_generator_takes_what_is_sent_and_thrown_and_returns_its_result():
    steps = echo(ones(4))
    assert next(steps).shape == (4,)
    assert steps.send(ones(2)).shape == (2,)
    assert steps.throw(KeyError()).shape == (4,)
    with pytest.raises(StopIteration) as end:
        steps.send(None)
    assert end.value.value.shape == (4,)


def test_a_generator_is_closed_in_its_scope():
    closed = []

    @typed
    def steps(x: Vector) -> Iterator[Vector]:
        try:
            yield x
        finally:
            closed.append(sizes())

    running = steps(ones(4))
    next(running)
    running.close()
    with pytest.raises(ZeroDivisionError):
        running = steps(ones(5))
        next(running)
        running.throw(ZeroDivisionError())
    assert closed == [{"n": 4}, {"n": 5}]


@typed
async def doubled(x: Vector) -> Vector:
    await asyncio.sleep(0)
    assert sizes() == {"n": x.size}
    await asyncio.sleep(0)
    return 2 * x if size("n") != 3 else x[1:]


def test_coroutines_that_run_in_turn_have_names_of_their_own():
    async def all_of_them():
        return await asyncio.gather(*(doubled(ones(rows)) for rows in (4, 5, 6)))

    assert [result.shape for result in asyncio.run(all_of_them())] == [(4,), (5,), (6,)]
    assert inspect.iscoroutinefunction(doubled)


def test_the_arguments_and_the_result_of_a_coroutine_are_checked():
    with pytest.raises(ShapeError, match=r"^doubled: argument 'x' has 2 dims"):
        asyncio.run(doubled(ones(4, 4)))
    with pytest.raises(ShapeError, match=r"^doubled: return value has n=2, but argument 'x' has n=3\n"):
        asyncio.run(doubled(ones(3)))


@typed
async def rows_of(x: Float[np.ndarray, "n k"]) -> AsyncIterator[Float[np.ndarray, "k"]]:
    try:
        for row in x:
            await asyncio.sleep(0)
            assert sizes() == {"n": 2, "k": 3}
            yield row
        yield x
    finally:
        await asyncio.sleep(0)
        assert size("k") == 3


def test_an_asynchronous_generator_has_its_scope_and_is_checked():
    async def collected():
        found = []
        async for row in rows_of(ones(2, 3)):
            found.append(row.shape)
            if len(found) == 2:
                break
        steps = rows_of(ones(2, 3))
        await steps.__anext__()
        await steps.aclose()
        with pytest.raises(ShapeError, match=r"^rows_of: yielded value has 2 dims, but its hint has 1\n"):
            async for _ in rows_of(ones(2, 3)):
                pass
        return found

    assert asyncio.run(collected()) == [(3,), (3,)]


def test_a_generator_runs_in_a_region(mesh):
    @typed
    def blocks(x: Float[Array, "[b/dp] d"]) -> Iterator[Float[Array, "[b/dp] _"]]:
        for at in range(size("d") // 2):
            yield x[:, 2 * at : 2 * at + 2]

    @typed_shard_map(mesh=mesh)
    def total(x: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/dp] 2"]:
        return sum(check(block, "[b/dp] 2") for block in blocks(x))

    np.testing.assert_array_equal(jax.block_until_ready(total(ones(8, 6))), 3 * ones(8, 2))


def test_a_generator_makes_a_context_manager_above_and_below_typed():
    def opened(x: Vector) -> Iterator[Vector]:
        yield x

    for decorated in (contextmanager(typed(opened)), opened := typed(contextmanager(opened))):
        with decorated(ones(4)) as x:
            assert x.shape == (4,)
    with pytest.raises(StructureError, match=r"^opened: argument 'x' is a list"):
        opened([1.0])


def test_a_generator_that_beartype_checks_has_its_scope():
    @typed
    @beartype
    def steps(x: Vector) -> Iterator[Vector]:
        yield size("n") * x
        yield ones(5)

    assert next(steps(ones(4))).tolist() == [4] * 4
    with pytest.raises((ShapeError, BeartypeException)):
        list(steps(ones(4)))


@pytest.mark.parametrize("hint", [Vector, Int[Array, ""], int])
def test_a_generator_with_the_hint_of_something_else_is_an_error(hint):
    def steps() -> hint:
        yield 1

    with pytest.raises(AnnotationSyntaxError, match=r"steps: a generator's hint is Iterator\[...\], got "):
        typed(steps)
