"""A boundary of 1,000 leaves: its specs, and a call that does next to nothing with them."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import unrolled
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, partition_specs, typed_shard_map

from ..benchmark import Benchmark, Result, benchmark, counted, of_counts, of_times, over
from ..meshes import devices, make_abstract
from ..timing import Effort, take_turns
from ..tracing import calls

GROUP = "boundary"
LAYERS = 125  # 8 leaves each, and 3 beside them
SMALL, LARGE = (4, 2), (64, 64)
ON_LARGE = f"{LARGE[0] * LARGE[1]:,} devices"


@cache
def weights(layers: int = LAYERS) -> unrolled.Weights:
    return unrolled.shapes(layers, m=4096, heads=64, ff=4096)


def norm(weights: unrolled.Weights) -> Float[Array, " m"]:
    return weights.before_head


def _call(f: Callable[..., Any]) -> Any:
    return jax.eval_shape(lambda weights: f(weights), weights())


def _typed(mesh: AbstractMesh) -> Callable[[], Any]:
    return partial(_call, typed_shard_map(norm, mesh=mesh))


def by_hand(mesh: AbstractMesh) -> Callable[..., Any]:
    return jax.shard_map(norm, mesh=mesh, in_specs=(unrolled.specs(LAYERS),), out_specs=P(None))


@benchmark(GROUP, "noise: a call with 1,000 leaves against itself", over(1.03), is_noise=True)
def noise(effort: Effort) -> Result:
    """By hand on both sides; what it is off 1 is the machine's doing."""
    call = partial(_call, by_hand(make_abstract(*SMALL)))
    return of_times(take_turns(call, call, effort))


@benchmark(GROUP, "call with 1,000 leaves", None)
def call(effort: Effort) -> Result:
    """A body that does next to nothing, by `jax.eval_shape`: all that remains is taking 1,000 leaves in."""
    mesh = make_abstract(*SMALL)
    return of_times(take_turns(_typed(mesh), partial(_call, by_hand(mesh)), effort))


@counted(GROUP, "call with 1,000 leaves, calls")
def call_in_calls(effort: Effort) -> Result:
    """The calls that Python makes meanwhile."""
    mesh = make_abstract(*SMALL)
    return of_counts(calls(_typed(mesh)), calls(partial(_call, by_hand(mesh))))


@counted(GROUP, "call with 1,000 leaves by specs, calls", "hints")
def call_by_specs_in_calls(effort: Effort) -> Result:
    """The same call by `in_specs` and `out_specs`, where the function has no hints."""
    mesh = make_abstract(*SMALL)
    by_specs = typed_shard_map(
        lambda weights: norm(weights), mesh=mesh, in_specs=(unrolled.specs(LAYERS),), out_specs=P()
    )
    return of_counts(calls(partial(_call, by_specs)), calls(_typed(mesh)))


@benchmark(GROUP, f"call with 1,000 leaves, {ON_LARGE}", over(1.1), devices(make_abstract(*SMALL)))
def call_on_large(effort: Effort) -> Result:
    """The same call, on a mesh of many devices against one of few."""
    return of_times(take_turns(_typed(make_abstract(*LARGE)), _typed(make_abstract(*SMALL)), effort))


def _specs(mesh: AbstractMesh, layers: int) -> Callable[[], Any]:
    like = weights(layers)

    def read() -> Any:
        with jax.sharding.use_abstract_mesh(mesh):
            return partition_specs(unrolled.Weights, like=like)

    assert read() == unrolled.specs(layers)
    return read


def _leaf_specs() -> Any:
    return jax.tree.map(lambda leaf: P(*(None,) * len(leaf.shape)), weights())


@benchmark(GROUP, "partition_specs of 1,000 leaves", over(6), "a P per leaf by tree.map")
def specs(effort: Effort) -> Result:
    """All specs of a class of hints, against the least that can be done for every leaf."""
    return of_times(take_turns(_specs(make_abstract(*SMALL), LAYERS), _leaf_specs, effort))


@benchmark(GROUP, f"partition_specs of 1,000 leaves, {ON_LARGE}", over(1.1), devices(make_abstract(*SMALL)))
def specs_on_large(effort: Effort) -> Result:
    """The same specs, on a mesh of many devices against one of few."""
    ours, other = (_specs(make_abstract(*shape), LAYERS) for shape in (LARGE, SMALL))
    return of_times(take_turns(ours, other, effort))


@benchmark(GROUP, "partition_specs, 1,000 leaves for 100", over(12), "100 leaves")
def specs_of_many(effort: Effort) -> Result:
    """Ten times the leaves, in at most some ten times the time."""
    ours, other = (_specs(make_abstract(*SMALL), layers) for layers in (LAYERS, LAYERS // 10))
    return of_times(take_turns(ours, other, effort))


ROWS: tuple[Benchmark, ...] = (
    noise,
    call,
    call_in_calls,
    call_by_specs_in_calls,
    call_on_large,
    specs,
    specs_on_large,
    specs_of_many,
)
