"""What a call costs that has nothing to trace; and one outside of `jit`."""

import time
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import programs
from jax.sharding import NamedSharding, PartitionSpec

from typedshmap import Array, Float, typed_jit, typed_shard_map

from ..benchmark import Benchmark, Result, benchmark, counted, of_counts, of_times, over
from ..meshes import make_mesh
from ..timing import WALL, Effort, Turns, seconds, take_turns
from ..tracing import calls, trace

GROUP = "calls"
LAYERS = 12
MANY = 1000


@cache
def _jitted(*shape: int) -> tuple[Any, Any, tuple[Any, ...]]:
    pair = programs.PAIRS["abstract_mesh"](make_mesh(*shape))  # its arguments are placed already
    return jax.jit(pair.typed), jax.jit(pair.by_hand), pair.args


def _turns(ours: Any, other: Any, args: tuple[Any, ...], effort: Effort) -> Result:
    return of_times(take_turns(partial(ours, *args), partial(other, *args), effort, WALL, is_long=False))


@benchmark(GROUP, "noise: a jitted call against itself, 8 devices", over(1.05), is_noise=True)
def noise(effort: Effort) -> Result:
    """The same call on both sides; what it is off 1 is the machine's doing."""
    _, by_hand, args = _jitted(4, 2)
    return _turns(by_hand, by_hand, args, effort)


@benchmark(GROUP, "call, jitted and compiled, 1 device", over(1.05))
def one_device(effort: Effort) -> Result:
    """A small mlp under `jax.jit`, its arguments placed: what remains of the library when a program is compiled."""
    return _turns(*_jitted(1, 1), effort)


@benchmark(GROUP, "call, jitted and compiled, 8 devices", over(1.05))
def eight_devices(effort: Effort) -> Result:
    """The same on eight."""
    return _turns(*_jitted(4, 2), effort)


@cache
def _typed_jit() -> tuple[Any, Any, tuple[Any, ...]]:
    """A small mlp of three arguments, typed and by hand."""
    mesh = make_mesh(4, 2)
    specs, args = programs.MLP_SPECS, _jitted(4, 2)[2]
    shardings = [NamedSharding(mesh, spec) for spec in (*specs["in_specs"], specs["out_specs"])]
    mapped = jax.shard_map(programs.mlp, mesh=mesh, **specs)
    by_hand = jax.jit(mapped, in_shardings=tuple(shardings[:-1]), out_shardings=shardings[-1])
    return typed_jit(typed_shard_map(programs.mlp, mesh=mesh), mesh=mesh), by_hand, args


@benchmark(GROUP, "call, typed_jit, 8 devices", over(1.15), "jax.jit(in_shardings=)")
def typed_jit_on_eight(effort: Effort) -> Result:
    """`typed_jit` finds the program of the call's form; whether it has seen such arguments, `jax.jit` knows."""
    return _turns(*_typed_jit(), effort)


@counted(GROUP, "call, typed_jit, 3 arguments, calls", "3 arguments")
def typed_jit_of_3_in_calls(effort: Effort) -> Result:
    """The calls that Python makes for the same, where `jax.jit` makes none."""
    typed, _, args = _typed_jit()
    return of_counts(calls(partial(typed, *args)), len(args))


def _first(leaves: list[Float[Array, "[b/dp] d"]]) -> Float[Array, "[b/dp] d"]:
    return leaves[0]


@cache
def _of_leaves(count: int) -> tuple[Any, Any, tuple[Any, ...]]:
    """A call of so many placed leaves, which does nothing with them, typed and by hand."""
    mesh = make_mesh(1, 1)
    sharding = NamedSharding(mesh, PartitionSpec("dp", None))
    leaves = [jax.device_put(np.ones((8, 4), np.float32), sharding) for _ in range(count)]
    by_hand = jax.jit(_first, in_shardings=([sharding] * count,), out_shardings=sharding)
    return typed_jit(_first, mesh=mesh), by_hand, (leaves,)


@benchmark(GROUP, "call, typed_jit, 100 leaves", over(1.15), "jax.jit(in_shardings=)")
def typed_jit_of_100(effort: Effort) -> Result:
    """A call like one before is not compared leaf by leaf, but by `jax.jit`."""
    return _turns(*_of_leaves(100), effort)


@benchmark(GROUP, f"call, typed_jit, {MANY:,} leaves", over(1.15), "jax.jit(in_shardings=)")
def typed_jit_of_many(effort: Effort) -> Result:
    """The same with many leaves."""
    return _turns(*_of_leaves(MANY), effort)


@counted(GROUP, f"call, typed_jit, {MANY:,} leaves, calls", f"{MANY:,} leaves")
def typed_jit_in_calls(effort: Effort) -> Result:
    """The calls that Python makes for the same: none of them is for a leaf."""
    typed, _, args = _of_leaves(MANY)
    return of_counts(calls(partial(typed, *args)), MANY)


def _unjitted() -> tuple[Any, Any]:
    """A call outside of jit that is like the one before, and its trace."""
    typed, args = programs.PAIRS["forward"](make_mesh(4, 2)).typed, _jitted(4, 2)[2]
    return partial(typed, *args), partial(trace, typed, args)


@benchmark(GROUP, "call without jit of a small function", None, "its trace")
def without_jit_of_small(effort: Effort) -> Result:
    """A function that computes what it did in the call before: it is traced, and neither lowered nor compiled."""
    ours, other = _unjitted()
    return of_times(take_turns(ours, other, effort, WALL))


@counted(GROUP, "call without jit of a small function, calls", "its trace")
def without_jit_in_calls(effort: Effort) -> Result:
    """The calls that Python makes for the same: what is added is the comparison of what it computes."""
    return of_counts(*map(calls, _unjitted()))


@benchmark(GROUP, f"call without jit, {LAYERS} layers", over(0.1), is_slow=True)
def without_jit(effort: Effort) -> Result:
    """A forward pass called as it is: `jax.shard_map` evaluates it operation by operation, we compile it once."""
    by_hand, typed, args = programs.inference(make_mesh(4, 2), LAYERS)
    ours = tuple(seconds(partial(typed, *args), WALL) for _ in range(3))
    start = time.perf_counter()
    expected = jax.block_until_ready(by_hand(*args))
    other = time.perf_counter() - start  # half a minute: once is enough, and its result is the other's test
    np.testing.assert_allclose(jax.block_until_ready(typed(*args)), expected, rtol=1e-3, atol=1e-4)
    return of_times(Turns(ours, (other,) * len(ours)))


ROWS: tuple[Benchmark, ...] = (
    noise,
    one_device,
    eight_devices,
    typed_jit_on_eight,
    typed_jit_of_3_in_calls,
    typed_jit_of_100,
    typed_jit_of_many,
    typed_jit_in_calls,
    without_jit_of_small,
    without_jit_in_calls,
    without_jit,
)
