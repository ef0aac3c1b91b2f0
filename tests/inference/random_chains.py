"""Random programs that are chains of steps: each moves, cuts, joins or communicates what is sharded.

They say nothing about what they compute, and are the same on every mesh; run on one device they are what the others are
compared with.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from random import Random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from bodies import argument
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

AXES = ("dp", "tp")
SHAPES = ((1, 1), (4, 2), (2, 4))
ARGUMENTS = (
    "64/dp 16", "64/dp 32/tp", "64/dp,tp 16", "64/tp,dp 16", "16 64/tp", "16/tp 32/dp 8", "128/dp", "64 16", "64/tp",
    "8 32/dp 8",
)  # fmt: skip
# By how many shards a dim is cut on the second mesh and on the third.
_SHARDED: dict[tuple[int, int], tuple[tuple[str, ...], ...]] = {
    (1, 1): ((),), (4, 2): (("dp",),), (2, 4): (("tp",),), (8, 8): (AXES, AXES[::-1]),
}  # fmt: skip


class Step(NamedTuple):
    """One step: its name, what it does with a shard, and of how many dims its result is."""

    name: str
    run: Callable[[Any], Any]
    rank: int


class Chain(NamedTuple):
    """A program of one argument.

    Attributes:
      argument: its global shape, and how it is sharded.
      steps: what is done with a shard.
      spec: how the result is taken to be sharded, so that its shape is the same on every mesh.
    """

    argument: str
    steps: tuple[Step, ...]
    spec: P

    def body(self, x: Any) -> Any:
        for step in self.steps:
            x = step.run(x)
        return x

    def mapped(self, mesh: Mesh | AbstractMesh) -> Any:
        spec, _ = argument(self.argument)
        # A function of its own, so that it is traced anew.
        return jax.shard_map(lambda x: self.body(x), mesh=mesh, in_specs=spec, out_specs=self.spec, check_vma=False)

    def numbers(self) -> np.ndarray:
        _, shape = argument(self.argument)
        return np.random.default_rng(prod(shape)).permutation(prod(shape)).reshape(shape).astype(np.float32)

    def on(self, mesh: Mesh) -> np.ndarray:
        return np.asarray(jax.block_until_ready(jax.jit(self.mapped(mesh))(self.numbers())))

    def __str__(self) -> str:
        return f"{self.argument}: {', '.join(step.name for step in self.steps)} -> {self.spec}"


def draw_chain(random: Random, longest: int) -> Chain | None:
    """A chain; None for one whose result has not the same shape on every mesh, or that one cannot run."""
    text = random.choice(ARGUMENTS)
    spec, shape = argument(text)
    steps, rank = list[Step](), len(shape)
    for _ in range(random.randint(1, longest)):
        step = KINDS[random.choice([*sorted(KINDS), "cut", "merged"])](random, rank)
        if step is not None and step.rank <= 5:
            steps.append(step)
            rank = step.rank
    drawn = Chain(text, tuple(steps), P())
    shapes: list[tuple[int, ...]] = []

    def traced(x: Any) -> tuple[()]:
        shapes.append(drawn.body(x).shape)
        return ()

    for sizes in SHAPES:
        mesh = AbstractMesh(sizes, AXES, (AxisType.Auto,) * 2)
        try:
            jax.eval_shape(
                jax.shard_map(partial(traced), mesh=mesh, in_specs=spec, out_specs=(), check_vma=False),
                jax.ShapeDtypeStruct(shape, np.float32),
            )
        except (TypeError, ValueError, IndexError, ZeroDivisionError):  # a dim does not divide, or is empty
            return None
    parts: list[tuple[str, ...]] = []
    for whole, *others in zip(*shapes, strict=True):
        counts = tuple(whole // other if other and whole % other == 0 else 0 for other in others)
        if counts not in _SHARDED:
            return None
        parts.append(random.choice(_SHARDED[counts]))
    used = [axis for part in parts for axis in part]
    return drawn._replace(spec=P(*(part or None for part in parts))) if len(used) == len({*used}) else None


Kind = Callable[[Random, int], Step | None]
KINDS: dict[str, Kind] = {}


def kind(draw: Kind) -> Kind:
    KINDS[draw.__name__] = draw
    return draw


def _axes(random: Random) -> tuple[str, ...]:
    return random.choice((("dp",), ("tp",), ("dp",), ("tp",), AXES, AXES[::-1]))


def _count(axes: tuple[str, ...]) -> int:
    return prod(lax.axis_size(axis) for axis in axes)


def _number(axes: tuple[str, ...]) -> Any:
    number: Any = 0
    for axis in axes:
        number = number * lax.axis_size(axis) + lax.axis_index(axis)
    return number


@kind
def cut(random: Random, rank: int) -> Step:
    at, by, is_major = random.randrange(rank), random.choice((2, 4, "dp", "tp")), random.random() < 0.5

    def run(x: Any) -> Any:
        size = lax.axis_size(by) if isinstance(by, str) else by
        return x.reshape(*x.shape[:at], *((size, -1) if is_major else (-1, size)), *x.shape[at + 1 :])

    return Step(f"dim {at} cut by {by}, {'major' if is_major else 'minor'}", run, rank + 1)


@kind
def merged(random: Random, rank: int) -> Step | None:
    if rank == 1:
        return None
    at = random.randrange(rank - 1)
    return Step(f"dim {at} merged", lambda x: x.reshape(*x.shape[:at], -1, *x.shape[at + 2 :]), rank - 1)


@kind
def transposed(random: Random, rank: int) -> Step:
    order = random.sample(range(rank), rank)
    return Step(f"transposed {order}", lambda x: x.transpose(order), rank)


@kind
def with_unit(random: Random, rank: int) -> Step:
    at = random.randrange(rank + 1)
    return Step(f"dim {at} of size 1", lambda x: x.reshape(*x.shape[:at], 1, *x.shape[at:]), rank + 1)


@kind
def sliced(random: Random, rank: int) -> Step:
    at, start, step = random.randrange(rank), random.choice((0, 1)), random.choice((1, 2))

    def run(x: Any) -> Any:
        half = x.shape[at] // 2
        if step == 2:
            return lax.slice_in_dim(x, start, None, 2, axis=at)
        return lax.slice_in_dim(x, start * half, start * half + half, axis=at)

    return Step(f"dim {at} sliced, half {start} by {step}", run, rank)


@kind
def joined(random: Random, rank: int) -> Step:
    at, way = random.randrange(rank), random.choice(("twice", "every other", "halves swapped"))

    def run(x: Any) -> Any:
        half, cut = x.shape[at] // 2, partial(lax.slice_in_dim, x, axis=at)
        parts = {
            "twice": lambda: [x, x * 2],
            "every other": lambda: [cut(0, None, 2), cut(1, None, 2)],
            "halves swapped": lambda: [cut(half, None), cut(0, half)],
        }
        return jnp.concatenate(parts[way](), at)

    return Step(f"dim {at} joined, {way}", run, rank)


@kind
def turned(random: Random, rank: int) -> Step:
    at, f = random.randrange(rank), random.choice((jnp.flip, partial(jnp.roll, shift=1), jnp.cumsum))
    return Step(f"dim {at} turned by {f}", lambda x: f(x, axis=at), rank)


@kind
def tiled(random: Random, rank: int) -> Step:
    at = random.randrange(rank)
    return Step(f"dim {at} tiled", lambda x: jnp.tile(x, [2 if dim == at else 1 for dim in range(rank)]), rank)


@kind
def padded(random: Random, rank: int) -> Step:
    at = random.randrange(rank)
    widths = [(0, 2) if dim == at else (0, 0) for dim in range(rank)]
    return Step(f"dim {at} padded", lambda x: jnp.pad(x, widths), rank)


@kind
def stacked(random: Random, rank: int) -> Step:
    at = random.randrange(rank + 1)
    return Step(f"stacked at {at}", lambda x: jnp.stack([x, 2 * x], at), rank + 1)


@kind
def reduced(random: Random, rank: int) -> Step | None:
    at, f = random.randrange(rank), random.choice((jnp.sum, jnp.max))
    return None if rank == 1 else Step(f"dim {at} reduced", lambda x: f(x, axis=at), rank - 1)


@kind
def picked(random: Random, rank: int) -> Step | None:
    at, which = random.randrange(rank), random.choice((0, -1))
    run = lambda x: lax.index_in_dim(x, which, at, keepdims=False)  # noqa: E731
    return None if rank == 1 else Step(f"dim {at} picked at {which}", run, rank - 1)


@kind
def scaled(random: Random, rank: int) -> Step:
    at = random.randrange(rank)
    return random.choice(
        (
            Step("scaled", lambda x: x * 2 + 1, rank),
            Step(f"added to itself, turned along {at}", lambda x: x + 2 * jnp.flip(x, at), rank),
        )
    )


@kind
def written(random: Random, rank: int) -> Step:
    at = random.randrange(rank)

    def run(x: Any) -> Any:
        return lax.dynamic_update_slice_in_dim(jnp.zeros_like(jnp.concatenate([x, x], at)), x, 0, at)

    return Step(f"written along {at}", run, rank)


@kind
def gathered(random: Random, rank: int) -> Step:
    axes, at = _axes(random), random.randrange(rank)
    return Step(f"gathered over {axes} at {at}", lambda x: lax.all_gather(x, axes, axis=at, tiled=True), rank)


@kind
def gathered_along_new(random: Random, rank: int) -> Step:
    axes, at = _axes(random), random.randrange(rank + 1)
    return Step(f"gathered over {axes} along a new dim {at}", lambda x: lax.all_gather(x, axes, axis=at), rank + 1)


@kind
def gathered_and_picked(random: Random, rank: int) -> Step:
    axes, at = _axes(random), random.randrange(rank + 1)

    def run(x: Any) -> Any:
        return lax.dynamic_index_in_dim(lax.all_gather(x, axes, axis=at), _number(axes), at, keepdims=False)

    return Step(f"gathered over {axes} at {at}, and its own picked", run, rank)


@kind
def exchanged(random: Random, rank: int) -> Step | None:
    if rank == 1:
        return None
    axes, (at, to) = _axes(random), random.sample(range(rank), 2)
    return Step(f"exchanged over {axes}, {to} for {at}", lambda x: lax.all_to_all(x, axes, to, at, tiled=True), rank)


@kind
def scattered(random: Random, rank: int) -> Step:
    axes, at = _axes(random), random.randrange(rank)
    run = lambda x: lax.psum_scatter(x, axes, scatter_dimension=at, tiled=True)  # noqa: E731
    return Step(f"scattered over {axes} at {at}", run, rank)


@kind
def totalled(random: Random, rank: int) -> Step:
    axes, f = _axes(random), random.choice((lax.psum, lax.pmax))
    return Step(f"totalled over {axes}", lambda x: f(x, axes), rank)


@kind
def cut_by_index(random: Random, rank: int) -> Step:
    """A shard's own part, or what would be that if both axes counted."""
    axes, at, is_whole = _axes(random), random.randrange(rank), random.random() < 0.7

    def run(x: Any) -> Any:
        size = x.shape[at] // _count(axes if is_whole else AXES)
        return lax.dynamic_slice_in_dim(x, _number(axes) * size, size, at)

    return Step(f"dim {at} cut by the index over {axes}{'' if is_whole else ' of both'}", run, rank)


@kind
def sent_around(random: Random, rank: int) -> Step:
    axis = random.choice(AXES)

    def run(x: Any) -> Any:
        count = lax.axis_size(axis)
        return lax.ppermute(x, axis, [(at, (at + 1) % count) for at in range(count)])

    return Step(f"sent around {axis}", run, rank)


@kind
def sent_into_another_order(random: Random, rank: int) -> Step:
    axes = random.choice((AXES, AXES[::-1]))

    def run(x: Any) -> Any:
        major, minor = map(lax.axis_size, axes)
        return lax.ppermute(x, axes, [(at, at % major * minor + at // major) for at in range(major * minor)])

    return Step(f"sent into another order of {axes}", run, rank)
