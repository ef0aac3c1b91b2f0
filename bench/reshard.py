"""What a planned reshard sends, as a ratio against XLA's own partitioner for the same pair of shardings.

    python bench/reshard.py            all pairs on most meshes, about four minutes
    python bench/reshard.py --quick    one pair in ten

XLA's side is `jit(lambda x: x, in_shardings=..., out_shardings=...)`, compiled in a child process, since
XLA aborts on some pairs; its bytes are read from its compiled text. Where the source is unreduced, XLA
is credited with a reduce-scatter along the dim that the target shards over the axis of the sum, else
with an all-reduce, before what it then does; in one more row, with the best reduce-scatter along any
dim. Bytes are those of the busiest device by ring formulas. Every row says which number would be bad.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, pairwise, permutations, product
from math import prod
from typing import NamedTuple

# jax reads these when it starts; the last keeps XLA from warning of what it does on many pairs.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import jax
import numpy as np
from collectives import sent
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap.notation.layout import Layout
from typedshmap.ops.resharding.plan import Plan, plan

Parts = tuple[tuple[str, ...], ...]
Pair = tuple[Parts, Parts]
AXES = ("a", "b", "c")


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
    Task((2, 3), (12, 24)),
    Task((3, 2), (6, 6)),
    Task((1, 8), (8, 16)),
    Task((2, 1, 4), (16, 16)),
)


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


def ours(task: Task, source: Parts, target: Parts, unreduced: frozenset[str] = frozenset()) -> Plan:
    found = plan(Layout(source, unreduced), Layout(target), task.shape, task.sizes)
    assert isinstance(found, Plan), found
    return found


def xla(task: Task, some: list[Pair]) -> dict[Pair, Fraction | None]:
    """The bytes that XLA's programs send; None for a pair on which it aborts."""
    found: dict[Pair, Fraction | None] = {}
    while len(found) < len(some):
        rest = some[len(found) :]
        for pair, count in zip(rest, _child(task, rest), strict=False):
            found[pair] = count
        if len(found) < len(some):
            found[some[len(found)]] = None
    return found


def _child(task: Task, some: list[Pair]) -> list[Fraction]:
    """The bytes of as many pairs as a child process gets through before XLA aborts it."""
    command = [sys.executable, __file__, "--child"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, input=json.dumps([task, some]), encoding="utf-8", capture_output=True, env=env, check=False
    )
    if done.returncode > 0:
        raise RuntimeError(done.stderr)
    return [Fraction(line) for line in done.stdout.splitlines()]


def child() -> None:
    (mesh, shape), some = json.load(sys.stdin)
    devices = Mesh(np.array(jax.devices()[: prod(mesh)]).reshape(mesh), AXES[: len(mesh)])
    for source, target in some:
        print(sent(_compiled(devices, source, target, shape)), flush=True)


def _compiled(mesh: Mesh, source: Parts, target: Parts, shape: tuple[int, ...]) -> str:
    before, after = (NamedSharding(mesh, P(*(tuple(axes) or None for axes in parts))) for parts in (source, target))
    identity = jax.jit(lambda x: x, in_shardings=before, out_shardings=after)
    return identity.lower(jax.ShapeDtypeStruct(tuple(shape), np.float32)).compile().as_text()


def credited(task: Task, pair: Pair, axis: str, known: dict[Pair, Fraction | None], is_free: bool) -> Fraction:
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
    return min(first + then for first, then in costs if then is not None)


class Count(NamedTuple):
    """One pair: our plan and XLA's bytes."""

    plan: Plan
    xla: Fraction

    @property
    def ratio(self) -> Fraction:
        return self.plan.elements * 4 / self.xla


def row(name: str, counts: list[Count], aborts: int, is_promised: bool) -> tuple[str, ...]:
    """One line of the table; ``is_promised`` where no pair may be dearer than XLA's."""
    total, reference = sum(c.plan.elements * 4 for c in counts), sum(c.xla for c in counts)
    ratios = [float(c.ratio) for c in counts if c.xla]
    dearer = sum(c.plan.elements * 4 > c.xla for c in counts)
    larger = sum(not c.plan.is_within_ends for c in counts)
    is_bad = is_promised and (dearer > 0 or larger > 0 or total > Fraction(7, 10) * reference)
    return (
        name,
        f"{len(counts):,}",
        f"{float(total / reference):.3f}",
        f"{sum(ratios) / len(ratios):.3f}",
        str(dearer),
        f"{max(ratios):.2f}",
        str(larger),
        str(aborts),
        ("total over 0.7, XLA cheaper or larger over 0" if is_promised else "") + (" BAD" if is_bad else ""),
    )


HEADER = ("mesh", "pairs", "total", "mean", "XLA cheaper", "worst", "larger", "XLA aborts", "would be bad")


# Pairs that are printed for each mesh; the rest are counted in the table.
MOST = 8


def dearer_pairs(name: str, counts: list[Count]) -> Iterator[str]:
    """Where XLA is cheaper: each pair with its ratio, the worst first."""
    found = sorted((c for c in counts if c.plan.elements * 4 > c.xla), key=lambda c: -c.ratio)
    for c in found[:MOST]:
        plan = c.plan
        yield f"  {name}: {plan.source.text(plan.shape)} -> {plan.target.text(plan.shape)}  {float(c.ratio):.2f}"
    if len(found) > MOST:
        yield f"  {name}: {len(found) - MOST} more"


def rows(step: int, cheaper: list[str]) -> Iterator[tuple[str, ...]]:
    """The lines of the table; the pairs where XLA is cheaper are added to ``cheaper``."""
    known = xla(CUBE, pairs(CUBE) if step == 1 else pairs(CUBE)[::step])
    yield _row_of(CUBE, known, True, cheaper)
    if step == 1:
        yield _unreduced_row("the same, unreduced", known, False, True, cheaper)
        yield _unreduced_row("the same, scattered by choice", known, True, False, cheaper)
    for task in OTHERS:
        # There are many pairs of three dims, and they are much the same.
        yield _row_of(task, xla(task, pairs(task)[:: step * (23 if len(task.shape) > 2 else 1)]), False, cheaper)


def _row_of(task: Task, known: dict[Pair, Fraction | None], is_promised: bool, cheaper: list[str]) -> tuple[str, ...]:
    counts = [Count(ours(task, *pair), count) for pair, count in known.items() if count is not None]
    cheaper.extend(dearer_pairs(task.name, counts))
    return row(task.name, counts, len(known) - len(counts), is_promised)


def _unreduced_row(
    name: str, known: dict[Pair, Fraction | None], is_free: bool, is_promised: bool, cheaper: list[str]
) -> tuple[str, ...]:
    """All pairs whose source is unreduced over one axis."""
    counts: list[Count] = []
    for pair, axis in product(known, AXES):
        if not any(axis in axes for axes in pair[0]):
            reference = credited(CUBE, pair, axis, known, is_free)
            counts.append(Count(ours(CUBE, *pair, frozenset({axis})), reference))
    cheaper.extend(dearer_pairs(name, counts))
    return row(name, counts, 0, is_promised)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one pair in ten")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child()
        return
    print(f"jax {jax.__version__}; bytes of a planned reshard against XLA's partitioner")
    print("total: ours by XLA's, added up; mean: of the pairs' ratios where XLA sends anything; worst: the largest")
    print("larger: plans with a shard larger than both ends")
    cheaper: list[str] = []
    table = [HEADER, *rows(10 if options.quick else 1, cheaper)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print("\n".join(["where XLA is cheaper, and our bytes by its:", *(cheaper or ["  nowhere"])]))


if __name__ == "__main__":
    main()
