"""What a planned reshard sends, as a ratio against XLA's own partitioner for the same pair of shardings.

    python bench/reshard.py            all pairs on most meshes, about five minutes
    python bench/reshard.py --quick    one pair in ten
    python bench/reshard.py --times    how long both take for some pairs on a 2x2x2 mesh, taking turns

XLA's side is `jit(lambda x: x, in_shardings=..., out_shardings=...)`, compiled in a child process, since
XLA aborts on some pairs; its bytes are read from its compiled text. Where the source is unreduced, XLA
is credited with a reduce-scatter along the dim that the target shards over the axis of the sum, else
with an all-reduce, before what it then does; in one more row, with the best reduce-scatter along any
dim. Bytes are those of the busiest device by ring formulas. Every row says which number would be bad.

No plan can send less than what a device lacks, its lower bound; the column of that name is the mean of
the ratios that plans at their lower bounds would have.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import combinations, pairwise, permutations, product
from math import prod
from typing import Any, NamedTuple

# jax reads these when it starts; the last keeps XLA from warning of what it does on many pairs.
os.environ["JAX_PLATFORMS"] = "cpu"
if "device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import jax
import numpy as np
from collectives import collectives
from costs.timing import WALL, Effort, Turns, median, take_turns
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap.notation.layout import Layout
from typedshmap.ops.resharding.plan import Plan, plan
from typedshmap.ops.resharding.run_plan import run

Parts = tuple[tuple[str, ...], ...]
Pair = tuple[Parts, Parts]
AXES = ("a", "b", "c", "d")


class Task(NamedTuple):
    """A mesh and a global shape."""

    mesh: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(AXES, self.mesh, strict=False))

    @property
    def name(self) -> str:
        return f"{'x'.join(map(str, self.mesh))}, shape {'x'.join(map(str, self.shape))}"


CUBE = Task((2, 2, 2), (16, 32))
OTHERS = (
    Task((2, 2, 2), (8, 8)),
    Task((2, 2, 2), (8, 16, 8)),
    Task((4, 2), (16, 32)),
    Task((2, 4), (8, 8)),
    Task((8,), (16, 32)),
    Task((2, 3), (12, 24)),
    Task((3, 2), (6, 6)),
    Task((1, 8), (8, 16)),
    Task((2, 1, 4), (16, 16)),
    Task((4, 4), (16, 32)),
    Task((2, 8), (16, 16)),
    Task((2, 2, 4), (16, 32)),
    Task((2, 2, 2, 2), (16, 32)),
)
# Of some meshes there are many pairs, which are much the same.
ONE_IN = {Task((2, 2, 2), (8, 16, 8)): 23, Task((2, 2, 4), (16, 32)): 7, Task((2, 2, 2, 2), (16, 32)): 197}


def layouts(axes: tuple[str, ...], dims: int) -> list[Parts]:
    """All ways to split some dims over some of the axes."""
    found: list[Parts] = []
    for count in range(len(axes) + 1):
        for order in (order for some in combinations(axes, count) for order in permutations(some)):
            for cuts in product(range(count + 1), repeat=dims - 1):
                if list(cuts) == sorted(cuts):
                    ends = (0, *cuts, count)
                    found.append(tuple(order[a:b] for a, b in pairwise(ends)))
    return found


def pairs(task: Task) -> list[Pair]:
    found = layouts(AXES[: len(task.mesh)], len(task.shape))
    return list(product(found, found))


def sample(task: Task, step: int) -> list[Pair]:
    """One pair in so many, or in more of a mesh that has many; at least ten."""
    found = pairs(task)
    return found[:: max(1, min(step * ONE_IN.get(task, 1), len(found) // 10))]


def ours(task: Task, source: Parts, target: Parts, unreduced: frozenset[str] = frozenset()) -> Plan:
    found = plan(Layout(source, unreduced), Layout(target), task.shape, task.sizes)
    assert isinstance(found, Plan), found
    return found


class Sent(NamedTuple):
    """What XLA's program for a pair sends, in bytes and in collectives."""

    bytes: Fraction
    collectives: int


def xla(task: Task, some: list[Pair]) -> dict[Pair, Sent | None]:
    """What XLA's programs send; None for a pair on which it aborts."""
    found: dict[Pair, Sent | None] = {}
    while len(found) < len(some):
        rest = some[len(found) :]
        for pair, one in zip(rest, _child(task, rest), strict=False):
            found[pair] = one
        if len(found) < len(some):
            found[some[len(found)]] = None
    return found


def _child(task: Task, some: list[Pair]) -> list[Sent]:
    """What is sent for as many pairs as a child process gets through before XLA aborts it."""
    command = [sys.executable, __file__, "--child"]
    flags = f"--xla_force_host_platform_device_count={prod(task.mesh)}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XLA_FLAGS": flags}
    done = subprocess.run(
        command, input=json.dumps([task, some]), encoding="utf-8", capture_output=True, env=env, check=False
    )
    if done.returncode > 0:
        raise RuntimeError(done.stderr)
    lines = map(str.split, done.stdout.splitlines())
    return [Sent(Fraction(sent), int(count)) for sent, count in lines]


def child() -> None:
    (mesh, shape), some = json.load(sys.stdin)
    for source, target in some:
        compiled = _compiled(Task(tuple(mesh), tuple(shape)), (source, target))
        found = [one.sent for one in collectives(compiled.as_text()) if one.sent]
        print(sum(found, Fraction(0)), len(found), flush=True)


def placements(task: Task, pair: Pair) -> list[NamedSharding]:
    devices = np.array(jax.devices()[: prod(task.mesh)]).reshape(task.mesh)
    mesh = Mesh(devices, AXES[: len(task.mesh)])
    return [NamedSharding(mesh, P(*(tuple(axes) or None for axes in parts))) for parts in pair]


def _compiled(task: Task, pair: Pair) -> Any:
    """XLA's own program."""
    before, after = placements(task, pair)
    identity = jax.jit(lambda x: x, in_shardings=before, out_shardings=after)
    return identity.lower(jax.ShapeDtypeStruct(task.shape, np.float32)).compile()


def credited(task: Task, pair: Pair, axis: str, known: dict[Pair, Sent | None], is_free: bool) -> Sent:
    """The least that XLA sends if a sum over an axis is taken first, by an all-reduce or scattered.

    Args:
      task: the mesh and the shape.
      pair: the shardings before and after.
      axis: the axis over which the source is unreduced.
      known: what XLA sends for every pair.
      is_free: whether the sum may be scattered along any dim, or only along one that the target shards over the axis.
    """
    source, target = pair
    n, shard = task.sizes[axis], 4 * prod(task.shape) // prod(task.sizes[a] for axes in source for a in axes)
    options = [(2, source)]
    for dim, axes in enumerate(source):
        if is_free or axis in target[dim]:
            options.append((1, (*source[:dim], (*axes, axis), *source[dim + 1 :])))
    costs = [(Fraction(share * (n - 1) * shard, n), known[start, target]) for share, start in options]
    return min(Sent(first + then.bytes, 1 + then.collectives) for first, then in costs if then is not None)


class Count(NamedTuple):
    """One pair: our plan, and what XLA sends."""

    plan: Plan
    xla: Sent

    @property
    def bytes(self) -> Fraction:
        return self.plan.elements * 4

    @property
    def ratio(self) -> Fraction:
        return self.bytes / self.xla.bytes

    @property
    def is_dearer(self) -> bool:
        return self.bytes > self.xla.bytes

    @property
    def collectives(self) -> int:
        return sum(step.rounds for step in self.plan.steps)


def row(name: str, counts: list[Count], aborts: int, most: Fraction | None, is_promised: bool) -> tuple[str, ...]:
    """One line of the table.

    Args:
      name: of the mesh.
      counts: its pairs.
      aborts: those on which XLA aborts.
      most: what all plans together may send, as a share of what XLA does.
      is_promised: whether no pair may be dearer than XLA's.
    """
    total = sum(c.bytes for c in counts) / sum(c.xla.bytes for c in counts)
    moving = [c for c in counts if c.xla.bytes]
    ratios = [float(c.ratio) for c in moving]
    bounds = [float(c.plan.lower_bound * 4 / c.xla.bytes) for c in moving]
    dearer = sum(c.is_dearer for c in counts)
    larger = sum(not c.plan.is_within_ends for c in counts)
    is_bad = (is_promised and dearer + larger > 0) or (most is not None and total > most)
    limits = ["XLA cheaper or larger over 0"] if is_promised else []
    limits += [] if most is None else [f"total over {float(most)}"]
    return (
        name,
        f"{len(counts):,}",
        f"{float(total):.3f}",
        f"{sum(ratios) / len(ratios):.3f}",
        f"{sum(bounds) / len(bounds):.3f}",
        str(dearer),
        f"{max(ratios):.2f}",
        f"{sum(c.collectives for c in counts) / sum(c.xla.collectives for c in counts):.3f}",
        str(larger),
        str(aborts),
        ", ".join(limits) + (" BAD" if is_bad else ""),
    )


HEADER = (
    "mesh",
    "pairs",
    "total",
    "mean",
    "lower bound",
    "XLA cheaper",
    "worst",
    "collectives",
    "larger",
    "XLA aborts",
    "would be bad",
)


# Pairs that are printed for each mesh; the rest are counted in the table.
MOST = 8


def change_text(plan: Plan) -> str:
    """``[16/a] 32 -> 16 [32/a]``"""
    return str(plan).splitlines()[0].removeprefix("reshard ").partition(" on ")[0]


def dearer_pairs(name: str, counts: list[Count]) -> Iterator[str]:
    """Where XLA is cheaper: each pair with its ratio, the worst first."""
    found = sorted((c for c in counts if c.is_dearer), key=lambda c: -c.ratio)
    for c in found[:MOST]:
        yield f"  {name}: {change_text(c.plan)}  {float(c.ratio):.2f}"
    if len(found) > MOST:
        yield f"  {name}: {len(found) - MOST} more"


SEVEN_TENTHS = Fraction(7, 10)


def rows(step: int, cheaper: list[str]) -> Iterator[tuple[str, ...]]:
    """The lines of the table; the pairs where XLA is cheaper are added to ``cheaper``."""
    known = xla(CUBE, sample(CUBE, step))
    yield _row_of(CUBE, known, SEVEN_TENTHS, cheaper)
    if step == 1:
        yield _unreduced_row("the same, unreduced", known, False, cheaper)
        yield _unreduced_row("the same, scattered by choice", known, True, cheaper)
    for task in OTHERS:
        yield _row_of(task, xla(task, sample(task, step)), None, cheaper)


def _row_of(task: Task, known: dict[Pair, Sent | None], most: Fraction | None, cheaper: list[str]) -> tuple[str, ...]:
    counts = [Count(ours(task, *pair), one) for pair, one in known.items() if one is not None]
    cheaper.extend(dearer_pairs(task.name, counts))
    return row(task.name, counts, len(known) - len(counts), most, prod(task.mesh) in (8, 16))


def _unreduced_row(name: str, known: dict[Pair, Sent | None], is_free: bool, cheaper: list[str]) -> tuple[str, ...]:
    """All pairs whose source is unreduced over one axis."""
    counts: list[Count] = []
    for pair, axis in product(known, AXES[:3]):
        if not any(axis in axes for axes in pair[0]):
            reference = credited(CUBE, pair, axis, known, is_free)
            counts.append(Count(ours(CUBE, *pair, frozenset({axis})), reference))
    cheaper.extend(dearer_pairs(name, counts))
    return row(name, counts, 0, None if is_free else SEVEN_TENTHS, not is_free)


TIMED = Task((2, 2, 2), (1024, 1024))
TURNS = Effort(seconds=5.0, least=15, most=15, precision=0.0)
SLOWER = 1.1


def timed_pairs() -> list[Pair]:
    """Some twenty pairs that send anything, and `m [n/c] -> m [n/a]`, which one ppermute can do."""
    some = [(((), ("c",)), ((), ("a",))), *pairs(TIMED)[::107]]
    return [pair for pair in some if any(step.rounds for step in ours(TIMED, *pair).steps)]


def timed(pair: Pair, effort: Effort) -> Turns:
    """How long our program and XLA's take for a pair, taking turns."""
    before, after = placements(TIMED, pair)
    body = partial(run, planned=ours(TIMED, *pair), has_vma=True)
    program = jax.jit(jax.shard_map(body, mesh=before.mesh, in_specs=before.spec, out_specs=after.spec))
    x, theirs = jax.device_put(np.zeros(TIMED.shape, np.float32), before), _compiled(TIMED, pair)
    return take_turns(partial(program, x), partial(theirs, x), effort, WALL)


def show_times() -> None:
    """The times of each pair, and their sum."""
    print(f"jax {jax.__version__}; {TIMED.name}, float32; the medians of {TURNS.least} turns")
    print("over: pairs whose whole interval is")
    sums, over = [0.0, 0.0], 0
    for pair in timed_pairs():
        turns, found = timed(pair, TURNS), ours(TIMED, *pair)
        mine, theirs, ratio = median(turns.ours).value, median(turns.other).value, turns.ratio
        steps = ", ".join(f"{step.kind} x{step.rounds}" if step.rounds > 1 else step.kind for step in found.steps)
        change = change_text(found)
        interval = f"{ratio.low:.2f} to {ratio.high:.2f}"
        print(f"{ratio.value:5.2f}  {interval}  ours {mine * 1e3:.2f} ms, XLA {theirs * 1e3:.2f} ms  {change}  {steps}")
        sums, over = [sums[0] + mine, sums[1] + theirs], over + (ratio.low > SLOWER)
    print(f"{sums[0] / sums[1]:5.2f}  in sum, {over} over {SLOWER}; would be bad: sum over 1, any over {SLOWER}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one pair in ten")
    parser.add_argument("--times", action="store_true", help="times of some pairs")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child()
        return
    if options.times:
        show_times()
        return
    print(f"jax {jax.__version__}; bytes of a planned reshard against XLA's partitioner")
    print("total: ours by XLA's, added up; mean: of the pairs' ratios where XLA sends anything; worst: the largest")
    print("collectives: ours by XLA's, added up; larger: plans with a shard larger than both ends")
    cheaper: list[str] = []
    table = [HEADER, *rows(10 if options.quick else 1, cheaper)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print("\n".join(["where XLA is cheaper, and our bytes by its:", *(cheaper or ["  nowhere"])]))


if __name__ == "__main__":
    main()
