"""Waves on a torus: a stencil over a mesh in two directions, with halos from four neighbours.

The field is split in both of its dims, rows over y and columns over x. A step needs the four
neighbours of every point, those on other shards included, so each shard first gets a halo: the edges
of the shards beside it, by one `ppermute` in each direction. Columns first, and then rows of what is
wider by now, which brings the corners without a message of their own.

A halo of several points allows as many steps before the next one: fewer and larger messages, and some
points computed twice. Its depth is a static argument; the results are the same.

    python examples/stencil.py

It prints the waves after some time, compares them with NumPy, once for each depth, and shows what
deeper halos do to the messages. The exit code is 1 if a field differs or its energy was not kept.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from typedshmap import Array, Float32, explain, ppermute, reduce, typed, typed_jit, typed_shard_map

HEIGHT, WIDTH, STEPS, DEPTHS = 64, 128, 96, (1, 4, 8)
SPEED = 0.4  # points per step, the Courant number: stable below 1 / sqrt(2)

# XLA and NumPy sum the neighbours in another order: each step rounds values near 1 by 6e-8, and 96 steps by up to 6e-6.
TOLERANCE = 1e-5

Field = Float32[Array, "[height/y] [width/x]"]
Piece = Float32[Array, "_ _ ~y ~x"]  # of a shard, with or without its halo
Energy = Float32[Array, ""]


@typed
def with_edges(piece: Piece, dim: int, depth: int) -> Piece:
    """What a shard has, between the edges of the two beside it."""
    first = jax.lax.slice_in_dim(piece, 0, depth, axis=dim)
    last = jax.lax.slice_in_dim(piece, piece.shape[dim] - depth, None, axis=dim)
    before = ppermute(last, "[h/y] [w/x]", shift=1, axis="yx"[dim])
    after = ppermute(first, "[h/y] [w/x]", shift=-1, axis="yx"[dim])
    return jnp.concatenate([before, piece, after], dim)


@typed
def with_halo(field: Field, depth: int) -> Piece:
    return with_edges(with_edges(field, 1, depth), 0, depth) if depth else field


def inner(piece: Piece) -> Piece:
    return piece[1:-1, 1:-1]


@typed
def leap(height: Piece, speed: Piece) -> tuple[Piece, Piece]:
    """One step of all points but the outermost, which have no neighbours here."""
    around = height[:-2, 1:-1] + height[2:, 1:-1] + height[1:-1, :-2] + height[1:-1, 2:]
    speed = inner(speed) + SPEED**2 * (around - 4 * inner(height))
    return inner(height) + speed, speed


@typed
def leaps(height: Field, speed: Field, depth: int) -> tuple[Field, Field]:
    """As many steps as the halo is deep."""
    height = with_halo(height, depth)
    speed = jnp.pad(with_halo(speed, depth - 1), 1)  # the outermost is never read
    for _ in range(depth):
        height, speed = leap(height, speed)
    return height, speed


@typed
def slopes(field: Field) -> tuple[Field, Field]:
    wide = with_halo(field, 1)
    return field - wide[:-2, 1:-1], field - wide[1:-1, :-2]


@typed
def energy(height: Field, speed: Field) -> Energy:
    """What these steps conserve: the slopes are those of two times, one step apart."""
    pairs = zip(slopes(height), slopes(height - speed), strict=True)
    density = speed**2 + SPEED**2 * sum(now * before for now, before in pairs)
    return reduce(density, "[h/y] [w/x] ->", "sum")


@typed_jit
@typed_shard_map
def simulate(height: Field, speed: Field, iterations: int = STEPS, depth: int = 1) -> tuple[Field, Field, Energy]:
    """Iterations of as many steps as the halo is deep."""

    def iterate(state, _):
        return leaps(*state, depth), None

    height, speed = jax.lax.scan(iterate, (height, speed), length=iterations)[0]
    return height, speed, energy(height, speed)


def plain(height: np.ndarray, speed: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    for _ in range(steps):
        around = sum(np.roll(height, by, axis) for by in (1, -1) for axis in (0, 1))
        speed = speed + np.float32(SPEED**2) * (around - 4 * height)
        height = height + speed
    return height, speed


def drops(rng: np.random.Generator) -> np.ndarray:
    """A few drops, falling on still water."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    field = np.zeros((HEIGHT, WIDTH))
    for row, column in rng.uniform(size=(3, 2)) * (HEIGHT, WIDTH):
        field += np.exp(-((y - row) ** 2 + (x - column) ** 2) / 8)
    return field.astype(np.float32)


def draw(field: np.ndarray) -> None:
    shades = " .:-=+*#%@"
    rows = field.reshape(HEIGHT // 4, 4, WIDTH // 2, 2).mean((1, 3))
    levels = np.clip((rows - rows.min()) / np.ptp(rows) * len(shades), 0, len(shades) - 1).astype(int)
    print("\n".join("".join(shades[level] for level in row) for row in levels))


def show_messages() -> None:
    """What a device sends, on 256 of them, for each depth of the halo."""
    print("\non y=16, x=16, a field of 16384 x 16384, 96 steps:\n\ndepth  messages   each on average     in all")
    for depth in DEPTHS:
        how = {"iterations": STEPS // depth, "depth": depth, "height": 2**14, "width": 2**14}
        found = explain(simulate, mesh="y=16,x=16", grad=False, **how)
        sent = [each for each in found.collectives if each.operation == "collective-permute"]
        times, wire = sum(each.times for each in sent), sum(each.times * each.wire for each in sent)
        print(f"{depth:5}{times:10}{wire / times / 1024:14.1f} KiB{wire / 2**20:7.2f} MiB")


def main() -> int:
    mesh = jax.make_mesh((2, 4), ("y", "x"), axis_types=(AxisType.Auto,) * 2)
    start, still = drops(np.random.default_rng(0)), np.zeros((HEIGHT, WIDTH), np.float32)
    expected = plain(start, still, STEPS)
    is_right = True
    with jax.set_mesh(mesh):
        *_, at_start = jax.block_until_ready(simulate(start, still, iterations=0))
        for depth in DEPTHS:
            *ours, at_end = jax.device_get(simulate(start, still, iterations=STEPS // depth, depth=depth))
            worst = np.max([np.abs(a - b).max() for a, b in zip(ours, expected, strict=True)])
            lost = abs(at_end / at_start - 1)
            print(f"depth {depth}: differs from NumPy by {worst:.1e}, from the energy at the start by {lost:.1e}")
            is_right &= bool(worst < TOLERANCE and lost < TOLERANCE)
    draw(ours[0])
    show_messages()
    print("\nThe waves are those of NumPy." if is_right else f"\nFAILED: off by more than {TOLERANCE:.0e}")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
