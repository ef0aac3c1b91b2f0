"""The links of each mesh axis, and the bytes that a device sends over them per second.

Links have levels, the fastest innermost: two devices of a chip, a torus of chips or a switch, and the network. The last
mesh axes are innermost, as in JAX's meshes; on a torus as in `jax.experimental.mesh_utils`.

Invariant: rates are peaks, with all links of a group of devices in use at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, inf, isqrt, prod

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Torus:
    """The links of TPUs, which form a grid.

    Attributes:
      dims: the number of dims of the grid.
      ring: a dim whose size is a multiple of this number is a closed ring; in three dims only if all dims are.
      pair: the bytes per second that one device of a chip sends to the other; 0 if a chip is one device.
      topology: the chips along each dim; by default those of a slice with the number of devices of the mesh.
    """

    dims: int
    ring: int
    pair: float = 0
    topology: Shape = ()

    @property
    def devices_per_chip(self) -> int:
        return 2 if self.pair else 1

    @property
    def devices(self) -> int:
        """The number of devices of a given topology; 0 without a topology."""
        return prod(self.topology) * self.devices_per_chip if self.topology else 0

    def rates(self, sizes: Shape, link: float) -> list[float]:
        """The bytes that a device sends per second over each axis of a mesh that fills the torus.

        An axis over several dims sends over all of them at once. Over a part of a dim it sends in a line, in one
        direction only; over every n-th chip it shares the links with n - 1 others.

        Args:
          sizes: the sizes of the axes.
          link: the bytes per second that a device sends over one dim, in both directions.
        """
        shape = self.topology if prod(self.topology) == prod(sizes) else slice_shape(prod(sizes), self.dims)
        multiples = [size % self.ring == 0 for size in shape]
        are_closed = multiples if self.dims < 3 else [all(multiples)] * len(shape)
        stride, rates = [1] * len(shape), [0.0] * len(sizes)
        for axis, parts in reversed([*enumerate(place_on_torus(sizes, shape))]):
            for dim, part in enumerate(parts):
                is_ring = are_closed[dim] and part * stride[dim] == shape[dim]
                rates[axis] += link / stride[dim] / (1 if is_ring else 2) if part > 1 else 0.0
                stride[dim] *= part
        return rates


@lru_cache(maxsize=1024)
def place_on_torus(sizes: Shape, shape: Shape) -> tuple[Shape, ...]:
    """The size of each mesh axis along each dim of a torus, as JAX chooses them, from the last axis on."""
    # Whole dims come first, and as many as possible, as in `create_device_mesh` of `jax.experimental.mesh_utils` with
    # `allow_split_physical_axes=True`.
    taken, places = [1] * len(shape), list[Shape]()
    for size in reversed(sizes):

        def preference(parts: Shape, taken: Sequence[int] = tuple(taken)) -> tuple[int, int, int, Shape]:
            full = [part for part, length in zip(parts, shape, strict=True) if part == length]
            shared = prod(part for part, used in zip(parts, taken, strict=True) if used > 1)
            return prod(full), sum(length > 1 for length in full), shared, parts

        free = [length // used for length, used in zip(shape, taken, strict=True)]
        parts = max(products(size, free), key=preference)
        taken = [used * part for used, part in zip(taken, parts, strict=True)]
        places.append(parts)
    return tuple(reversed(places))


def products(size: int, free: Sequence[int]) -> Iterator[Shape]:
    """All ways to write a size as a product of divisors of some numbers, the largest first divisor first."""
    if not free:
        yield from [()] if size == 1 else []
        return
    for part in reversed(divisors(gcd(size, free[0]))):
        for rest in products(size // part, free[1:]):
            yield (part, *rest)


@lru_cache(maxsize=1024)
def slice_shape(chips: int, dims: int) -> Shape:
    """The most cubic grid of a number of chips, like those of slices: 2,048 in three dims are 8, 16 and 16."""
    shapes = (tuple(sorted(shape)) for shape in products(chips, [chips] * dims))
    return min(shapes, key=lambda shape: (sum(shape), shape))


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, the smallest first."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))


def link_rates(sizes: Shape, link: float, domain: int, network: float, torus: Torus | None) -> list[float]:
    """The bytes that a device sends per second over each axis of a mesh; 0 if unknown.

    Args:
      sizes: the sizes of the axes.
      link: the rate over one dim of a torus, or into a switch.
      domain: the largest number of devices connected in this way; 0 for all.
      network: the rate of a device over further axes; a group of 8 GPUs has 8 times this rate.
      torus: the torus; None for a switch.
    """
    domain = max(speed for speed in divisors(prod(sizes)) if speed <= (domain or inf))
    cores, chips = _cut(sizes, gcd(domain, torus.devices_per_chip if torus else 1))
    within, nodes = _cut(chips, domain // prod(cores))
    pair, local = (torus.pair, torus.rates(within, link)) if torus else (0.0, [link] * len(sizes))
    rates: list[float] = []
    for axis, size in enumerate(sizes):
        levels = ((cores[axis], pair), (within[axis], local[axis]), (nodes[axis], network))
        inner, rate = 1, inf
        for count, speed in levels:
            rate = min(rate, inner * speed) if count > 1 else rate
            inner *= count
        rates.append(link if size == 1 else rate)
    return rates


def _cut(sizes: Shape, count: int) -> tuple[Shape, Shape]:
    """The part of each axis within a group of ``count`` neighbours, the last axes first, and the rest of each axis."""
    inner: list[int] = []
    for size in reversed(sizes):
        inner.append(gcd(size, count))
        count //= inner[-1]
    inner.reverse()
    return tuple(inner), tuple(size // part for size, part in zip(sizes, inner, strict=True))
