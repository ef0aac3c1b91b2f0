"""What `typed_shard_map` costs, as ratios against `jax.shard_map` written by hand, measured in one run.

    python bench/cost.py            all rows, about a minute
    python bench/cost.py --quick    without the row for which JAX alone takes half a minute

The two sides take turns, and the smallest of several times counts where a time is long, the median
of many where it is short. Every row says which number would be bad.
"""

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import jax
import numpy as np
import programs
import unrolled
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, partition_specs, typed_jit, typed_shard_map

BY_HAND = "jax.shard_map"
LAYERS = 12
LAYERS_OF_1000_LEAVES = 125  # 8 leaves each, and 3 beside them


class Row(NamedTuple):
    """One line of the table."""

    what: str
    ours: str
    other: str
    ratio: str
    against: str
    bad: str
    is_bad: bool


def seconds(run: Callable[[], Any]) -> float:
    """How long a call takes, its results awaited."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


class Times(NamedTuple):
    ours: list[float]
    other: list[float]

    def by(self, choose: Callable[[list[float]], float]) -> tuple[float, float, float]:
        """Our time, the other's, and their ratio."""
        ours, other = choose(self.ours), choose(self.other)
        return ours, other, ours / other


def take_turns(ours: Callable[[], Any], other: Callable[[], Any], count: int, is_long: bool = True) -> Times:
    """Times of two calls, each after the other and both first in turn.

    Long ones start without the garbage of those before, which is not theirs to collect.
    """
    times = Times([], [])
    ours(), other()
    for turn in range(count):
        sides = [(ours, times.ours), (other, times.other)]
        for run, seen in sides if turn % 2 else reversed(sides):
            if is_long:
                gc.collect()
            seen.append(seconds(run))
    return times


def text(duration: float) -> str:
    units = ((1, "s"), (1e-3, "ms"), (1e-6, "us"))
    scale, unit = next((u for u in units if duration >= u[0]), units[-1])
    return f"{duration / scale:.3g} {unit}"


def ratio_row(what: str, measured: tuple[float, float, float], limit: float, against: str = BY_HAND) -> Row:
    ours, other, ratio = measured
    return Row(what, text(ours), text(other), f"{ratio:.3f}", against, f"ratio over {limit}", ratio > limit)


def devices(mesh: Mesh | AbstractMesh) -> str:
    return f"{mesh.size:,} device{'s' if mesh.size > 1 else ''}"


def make_mesh(*shape: int) -> Mesh:
    count = int(np.prod(shape))
    return Mesh(np.array(jax.devices()[:count]).reshape(shape), ("dp", "tp"))


def lowered_text(mesh: Mesh) -> Row:
    pairs = [make(mesh) for make in programs.PAIRS.values()]
    equal = sum(
        programs.lowered(typed, args).as_text() == programs.lowered(by_hand, args).as_text()
        for by_hand, typed, args in pairs
    )
    total = len(pairs)
    what = "programs lowered to the same text"
    return Row(what, str(equal), str(total), "", BY_HAND, "fewer than all", equal < total)


def dispatch(mesh: Mesh) -> Row:
    pair = programs.PAIRS["abstract_mesh"](mesh)  # its arguments are placed already
    typed, by_hand = jax.jit(pair.typed), jax.jit(pair.by_hand)
    times = take_turns(partial(typed, *pair.args), partial(by_hand, *pair.args), 2000, is_long=False)
    return ratio_row(f"call, jitted and compiled, {devices(mesh)}", times.by(statistics.median), 1.05)


def jit_dispatch(mesh: Mesh, limit: float) -> Row:
    """A call of `typed_jit` checks its arguments each time, which `jax.jit` leaves to its own cache."""
    args = programs.PAIRS["abstract_mesh"](mesh).args  # placed already
    specs = programs.MLP_SPECS
    shardings = [NamedSharding(mesh, spec) for spec in (*specs["in_specs"], specs["out_specs"])]
    mapped = jax.shard_map(programs.mlp, mesh=mesh, **specs)
    by_hand = jax.jit(mapped, in_shardings=tuple(shardings[:-1]), out_shardings=shardings[-1])
    typed = typed_jit(typed_shard_map(programs.mlp, mesh=mesh), mesh=mesh)
    times = take_turns(partial(typed, *args), partial(by_hand, *args), 2000, is_long=False)
    return ratio_row(f"call, typed_jit, {devices(mesh)}", times.by(statistics.median), limit, "jax.jit(in_shardings=)")


def lower(f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    # jit caches by function, so each time it is given a new one.
    return jax.jit(lambda *args: f(*args)).lower(*args)


def trace(f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return jax.jit(lambda *args: f(*args)).trace(*args)


def tracing(mesh: Mesh) -> Iterator[Row]:
    quickstart = programs.quickstart(mesh)
    training = programs.training(mesh, LAYERS)
    inference = programs.inference(mesh, LAYERS)
    for name, limit, pair in (
        ("quickstart's step with its patterns, trace and lower", 1.2, quickstart),
        (f"step of {LAYERS} layers, trace and lower", 1.15, training),
        (f"forward pass of {LAYERS} layers, trace and lower", 1.15, inference),
    ):
        times = take_turns(partial(lower, pair.typed, pair.args), partial(lower, pair.by_hand, pair.args), 15)
        yield ratio_row(name, times.by(min), limit)
    gradient = programs.PAIRS["gradient"](mesh)
    for name, pair in (
        ("quickstart's step with its patterns, trace", quickstart),
        (f"step of {LAYERS} layers, trace", training),
        (f"forward pass of {LAYERS} layers, trace", inference),
        # Here the body is traced twice: once to be read, once to be differentiated.
        ("small gradient around a region, trace", gradient),
    ):
        times = take_turns(partial(trace, pair.typed, pair.args), partial(trace, pair.by_hand, pair.args), 15)
        yield ratio_row(name, times.by(min), 1.4)
    again = take_turns(*[partial(lower, quickstart.by_hand, quickstart.args)] * 2, 15)
    yield ratio_row("the noise: jax.shard_map for both, quickstart", again.by(min), 1.05)


def unjitted(mesh: Mesh) -> Row:
    by_hand, typed, args = programs.inference(mesh, LAYERS)
    ours = min(seconds(partial(typed, *args)) for _ in range(3))
    start = time.perf_counter()
    expected = jax.block_until_ready(by_hand(*args))
    other = time.perf_counter() - start
    np.testing.assert_allclose(typed(*args), expected, rtol=1e-3, atol=1e-4)
    return ratio_row(f"call without jit, {LAYERS} layers", (ours, other, ours / other), 0.05)


def stale(mesh: Mesh) -> Row:
    """Results of a closed-over value that is no longer the value."""
    factor = 0.0

    @typed_shard_map(mesh=mesh)
    def scaled(x: Float[Array, "[b/dp] m"]) -> Float[Array, "[b/dp] m"]:
        return x * factor

    x, wrong = programs.numbers(8, 4), 0
    for turn in range(5):
        factor = float(turn)
        wrong += not np.array_equal(scaled(x), x * np.float32(factor))
    what, against = "calls without jit that saw an old value", "calls after a change"
    return Row(what, str(wrong), "5", "", against, "over 0", wrong > 0)


def read_specs(mesh: AbstractMesh, layers: int) -> Callable[[], Any]:
    weights = unrolled.shapes(layers)

    def read() -> Any:
        with jax.sharding.use_abstract_mesh(mesh):
            return partition_specs(unrolled.Weights, like=weights)

    assert read() == unrolled.specs(layers)
    return read


def specs(small: AbstractMesh, large: AbstractMesh) -> Iterator[Row]:
    many, few = read_specs(small, LAYERS_OF_1000_LEAVES), read_specs(small, LAYERS_OF_1000_LEAVES // 10)
    what, plain = "partition_specs of 1,000 leaves", partial(leaf_specs, unrolled.shapes(LAYERS_OF_1000_LEAVES))
    ours, other, ratio = take_turns(many, plain, 25).by(min)
    yield ratio_row(what, (ours, other, ratio), 6, "a P per leaf by tree.map")
    on_large = read_specs(large, LAYERS_OF_1000_LEAVES)
    yield ratio_row(f"{what}, {devices(large)}", take_turns(on_large, many, 25).by(min), 1.1, devices(small))
    yield ratio_row(what, take_turns(many, few, 25).by(min), 12, "100 leaves")


def leaf_specs(weights: Any) -> Any:
    return jax.tree.map(lambda leaf: P(*(None,) * len(leaf.shape)), weights)


def boundary(small: AbstractMesh, large: AbstractMesh) -> Iterator[Row]:
    """A body that does next to nothing with 1,000 leaves: all that remains is taking them in."""
    weights = unrolled.shapes(LAYERS_OF_1000_LEAVES, m=4096, heads=64, ff=4096)

    def norm(weights: unrolled.Weights) -> Float[Array, " m"]:
        return weights.before_head

    def call(f: Callable[..., Any]) -> Any:
        return jax.eval_shape(lambda weights: f(weights), weights)

    def typed(mesh: AbstractMesh) -> Callable[[], Any]:
        return partial(call, typed_shard_map(norm, mesh=mesh))

    in_specs = (unrolled.specs(LAYERS_OF_1000_LEAVES),)
    by_hand = partial(call, jax.shard_map(norm, mesh=small, in_specs=in_specs, out_specs=P(None)))
    what = "call with 1,000 leaves, eval_shape"
    yield ratio_row(what, take_turns(typed(small), by_hand, 15).by(min), 2)
    times = take_turns(typed(large), typed(small), 15)
    yield ratio_row(f"{what}, {devices(large)}", times.by(min), 1.1, devices(small))


IMPORT = """
from time import perf_counter
start = perf_counter()
import jax
middle = perf_counter()
import typedshmap
USE
print(middle - start, perf_counter() - middle)
"""


def imports(what: str, limit: float, use: str = "") -> Row:
    """What `import typedshmap`, and the use of its names, adds to `import jax`, each time in a new process.

    Bytecode is read from a cache, as that of an installed package is; the first process fills it.
    """
    command = [sys.executable, "-c", IMPORT.replace("USE", use)]
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        outputs = [subprocess.check_output(command, env=env, text=True) for _ in range(10)][1:]
    columns = zip(*(map(float, output.split()) for output in outputs), strict=True)
    other, added = map(statistics.median, columns)
    ratio = (other + added) / other
    bad = f"ratio over {limit}"
    return Row(what, f"+{text(added)}", text(other), f"{ratio:.3f}", "import jax alone", bad, ratio > limit)


def rows(quick: bool) -> Iterator[Row]:
    mesh, one = make_mesh(4, 2), make_mesh(1, 1)
    small, large = (AbstractMesh(shape, ("dp", "tp"), axis_types=mesh.axis_types) for shape in ((4, 2), (64, 64)))
    yield lowered_text(mesh)
    yield dispatch(one)
    yield dispatch(mesh)
    yield jit_dispatch(one, 3)
    yield jit_dispatch(mesh, 1.5)
    yield from tracing(mesh)
    yield stale(mesh)
    if not quick:
        yield unjitted(mesh)
    yield from specs(small, large)
    yield from boundary(small, large)
    yield imports("import", 1.25)
    yield imports("import, and use of every room", 1.45, "typedshmap.einsum, typedshmap.shard, typedshmap.typed_jit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out JAX's un-jitted call of a long body")
    show("", "ours", "other", "ratio", "other is", "bad is")
    for row in rows(parser.parse_args().quick):
        show(*row[:-1], "  <-- BAD" if row.is_bad else "")


def show(what: str, ours: str, other: str, ratio: str, against: str, bad: str, mark: str = "") -> None:
    print(f"{what:50} {ours:>8} {other:>8} {ratio:>6}  {against:24} {bad}{mark}", flush=True)


if __name__ == "__main__":
    main()
