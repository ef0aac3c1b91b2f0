"""Threads that call at once do not see each other: meshes, aliases, rules, sizes, and first uses."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh

from typedshmap import (
    Array,
    Float,
    ShapeError,
    axis_aliases,
    axis_rules,
    check,
    partition_specs,
    rearrange,
    shard_size,
    size,
    sizes,
    typed,
    typed_jit,
    typed_shard_map,
)

THREADS, ROUNDS = 8, 6
MESHES = [AbstractMesh((n, 8 // n), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2) for n in (1, 2, 4, 8)]
X = Float[Array, "[b/dp] [d/tp]"]


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What a function gives for each number, called in as many threads that start together."""
    gate = threading.Barrier(threads)

    def start(number: int) -> Any:
        gate.wait(timeout=60)
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(start, range(threads)))


def struct(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, np.float32)


def test_names_are_bound_for_each_call() -> None:
    together = threading.Barrier(THREADS)

    def body(x: X) -> X:
        together.wait(timeout=60)  # every thread is inside of its call
        seen.append((threading.get_ident(), sizes(), shard_size("b"), shard_size("d")))
        return x

    seen: list[Any] = []

    def work(number: int) -> dict[int, Any]:
        f = typed_shard_map(lambda x: body(x), mesh=MESHES[number % 4], in_types=(X,), out_types=X)
        jax.eval_shape(f, struct(8 * (number + 1), 16))
        return {threading.get_ident(): number}

    numbers = {ident: number for found in at_once(work) for ident, number in found.items()}
    got = {numbers[ident]: facts for ident, *facts in seen}
    shards = [(1, 8), (2, 4), (4, 2), (8, 1)]
    assert got == {
        n: [{"b": 8 * (n + 1), "d": 16}, 8 * (n + 1) // shards[n % 4][0], 16 // shards[n % 4][1]]
        for n in range(THREADS)
    }


def test_one_function_is_called_over_many_meshes() -> None:
    @typed_shard_map
    def f(x: X) -> X:
        return check(x * size("b"), "[b/dp] [d/tp]")

    def work(number: int) -> list[Any]:
        found = []
        for step in range(ROUNDS):
            with jax.sharding.use_abstract_mesh(MESHES[(number + step) % 4]):
                shape = (8 * (number + step + 1), 16)
                found.append(jax.eval_shape(lambda x: f(x), struct(*shape)).shape == shape)
        return found

    assert at_once(work) == [[True] * ROUNDS] * THREADS


def test_errors_name_the_sizes_of_their_own_call() -> None:
    @typed
    def f(x: Float[np.ndarray, "b d"], y: Float[np.ndarray, "b"]) -> Float[np.ndarray, "b d"]:
        return x

    def work(number: int) -> list[str]:
        lines = []
        for step in range(ROUNDS):
            with pytest.raises(ShapeError) as caught:
                f(np.ones((number + 1, step), np.float32), np.ones(100 + number, np.float32))
            lines.append(str(caught.value).splitlines()[-1])
        return lines

    expected = [[f"Sizes: b={n + 1} (x dim 0), d={step} (x dim 1)" for step in range(ROUNDS)] for n in range(THREADS)]
    assert at_once(work) == expected


@pytest.mark.parametrize("kind", ["aliases", "rules"])
def test_contexts_hold_in_their_own_thread(kind: str) -> None:
    inside = threading.Barrier(THREADS)
    hint = Float[Array, "[b/rows] s"] if kind == "aliases" else Float[Array, "b s"]

    def work(number: int) -> str:
        axis = f"axis{number}"
        with axis_aliases(rows=axis) if kind == "aliases" else axis_rules({"b": axis}):
            inside.wait(timeout=60)
            spec = str(partition_specs(hint))
            inside.wait(timeout=60)
        return spec

    found = at_once(work)
    assert [text.count(f"'axis{n}'") for n, text in enumerate(found)] == [1] * THREADS
    assert "axis" not in str(partition_specs(Float[Array, "b s"]))


def test_one_string_of_dims_is_read_by_many_threads() -> None:
    def work(number: int) -> list[bool]:
        mesh, found = MESHES[number % 4], []
        for step in range(ROUNDS):
            names = [f"t{step}a", f"t{step}b"]  # a string that no thread has read before

            def body(x: Any, names: Any = names) -> Any:
                check(x, f"[{names[0]}/dp] [{names[1]}/tp]")
                y = rearrange(x, f"[{names[0]}/dp] [{names[1]}/tp] -> [{names[1]}/tp] [{names[0]}/dp]")
                found.append((size(names[0]), size(names[1])) == (8, 16))
                return rearrange(y, "[b/tp] [a/dp] -> [a/dp] [b/tp]")

            jax.eval_shape(typed_shard_map(body, mesh=mesh, in_types=(X,), out_types=X), struct(8, 16))
        return found

    assert at_once(work) == [[True] * ROUNDS] * THREADS


@pytest.mark.parametrize("verb", [lambda f, **on: jax.jit(typed_shard_map(f, **on)), typed_jit])
def test_programs_run_from_many_threads(verb: Any, mesh: Mesh) -> None:
    @partial(verb, mesh=mesh)
    def double(x: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/dp] d"]:
        return x * 2

    def work(number: int) -> bool:
        x = np.full((8, number + 1), number, np.float32)
        return all(np.array_equal(jax.block_until_ready(double(x)), 2 * x) for _ in range(ROUNDS))

    assert at_once(work) == [True] * THREADS


FIRST_USES = """
import threading
from concurrent.futures import ThreadPoolExecutor
import jax, numpy as np
from jax.sharding import AbstractMesh, AxisType
import typedshmap
from typedshmap import Array, Float

mesh = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
gate = threading.Barrier(8)
X = Float[Array, "[b/dp] [s/tp]"]

class Config:
    pass

def work(number):
    gate.wait(timeout=60)
    @typedshmap.typed_shard_map(mesh=mesh)
    def f(x: X, n: Config | None) -> X:
        y = typedshmap.rearrange(x, "[b/dp] [s/tp] -> [s/tp] [b/dp]")
        y = typedshmap.einsum(y, "[s/tp] [b/dp] -> [b/dp] [s/tp]")
        return typedshmap.reshard(typedshmap.check(y, X), "[b/dp] [s/tp] -> [b/dp] [s/tp]")
    assert jax.eval_shape(lambda x: f(x, None), np.ones((8, 16), np.float32)).shape == (8, 16)
    typedshmap.partition_specs(X), typedshmap.typed_jit(f), typedshmap.shape_structs(X, mesh, b=8, s=16)
    return number

with ThreadPoolExecutor(8) as pool:
    assert list(pool.map(work, range(8))) == list(range(8))
"""


@pytest.mark.slow
def test_first_uses_may_race() -> None:
    subprocess.run([sys.executable, "-c", FIRST_USES], check=True, timeout=120)
