"""Programs that types accept, and whose results depend on the mesh; and right ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("sp", "tp"), axis_types=(AxisType.Auto,) * 2)
X = np.arange(128, dtype=np.float32).reshape(16, 8) ** 0.5
W = np.cos(np.arange(64, dtype=np.float32)).reshape(8, 8)
IDS = np.array([3, 1, 15, 7, 0, 2, 14, 9], np.int32)


class Program(NamedTuple):
    """A program: its body, how it is mapped, what it is called with."""

    body: Callable[..., Any]
    in_specs: Any
    out_specs: Any
    args: tuple[Any, ...]
    check_vma: bool = False


def forward(axis: str = "sp", by: int = 1) -> list[tuple[int, int]]:
    size = lax.axis_size(axis)
    return [(at, (at + by) % size) for at in range(size)]


def chain(by: int) -> list[tuple[int, int]]:
    size = lax.axis_size("sp")
    return [(at, at + by) for at in range(size) if 0 <= at + by < size]


def ring_sum(by: int) -> Callable[[Any], Any]:
    """Each shard weighs its rows with the rows of every shard, in the order in which they come round."""

    def ring(x: Any) -> Any:
        size, index = lax.axis_size("sp"), lax.axis_index("sp")
        rows = x.shape[0]
        found, block = jnp.zeros_like(x), x
        for step in range(size):
            owner = (index - step) % size  # whose block it is, if blocks go forward
            weights = jnp.sin((owner * rows + jnp.arange(rows)).astype(x.dtype))
            found = found + (weights[:, None] * block).sum(0)
            block = lax.ppermute(block, "sp", forward(by=by))
        return found

    return ring


def difference(by: int, has_halo: bool = True) -> Callable[[Any], Any]:
    """Each row less the one before it; the first less zero."""

    def stencil(x: Any) -> Any:
        halo = lax.ppermute(x[-1:], "sp", chain(by)) if has_halo else jnp.zeros_like(x[:1])
        return x - jnp.concatenate([halo, x[:-1]])

    return stencil


def unequal_mean(x: Any) -> Any:
    kept = x > 4.1
    return lax.pmean(jnp.where(kept, x, 0).sum() / jnp.maximum(kept.sum(), 1), "sp")


def equal_mean(x: Any) -> Any:
    kept = x > 4.1
    return lax.psum(jnp.where(kept, x, 0).sum(), "sp") / lax.psum(kept.sum(), "sp")


def positions(by_rows: bool) -> Callable[[Any], Any]:
    def add(x: Any) -> Any:
        start = lax.axis_index("sp") * (x.shape[0] if by_rows else 1)
        return x + (start + jnp.arange(x.shape[0]))[:, None]

    return add


def lookup(has_offset: bool) -> Callable[[Any, Any], Any]:
    def take(table: Any, ids: Any) -> Any:
        rows = table.shape[0]
        local = ids - (lax.axis_index("sp") * rows if has_offset else 0)
        is_here = (local >= 0) & (local < rows)
        return lax.psum(jnp.where(is_here[:, None], table[jnp.clip(local, 0, rows - 1)], 0), "sp")

    return take


def product(x: Any, w: Any) -> Any:
    return lax.psum(x @ w, "tp")


def reduced(backward: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """A product whose sum has a gradient of its own, as those of other libraries."""

    @jax.custom_vjp
    def total(x: Any) -> Any:
        return lax.psum(x, "tp")

    total.defvjp(lambda x: (total(x), None), lambda _, g: (backward(g),))
    return lambda x, w: total(jnp.tanh(x @ w) @ w.T)


def dropout(x: Any) -> Any:
    key = jax.random.fold_in(jax.random.key(0), lax.axis_index("sp"))
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)


def whole_dropout(x: Any) -> Any:
    kept = jax.random.bernoulli(jax.random.key(0), 0.5, (lax.axis_size("sp") * x.shape[0], x.shape[1]))
    return jnp.where(lax.dynamic_slice_in_dim(kept, lax.axis_index("sp") * x.shape[0], x.shape[0]), x, 0)


ROWS = (P("sp"), P("sp"))
WRONG = {
    "a ring turned the wrong way": Program(ring_sum(-1), *ROWS, (X,)),
    "a halo dropped": Program(difference(1, has_halo=False), *ROWS, (X,)),
    "a shift of the wrong sign": Program(difference(-1), *ROWS, (X,)),
    "a mean of unequal parts": Program(unequal_mean, P("sp"), P(), (X,)),
    "an index for an offset": Program(positions(False), *ROWS, (X,)),
    "a lookup without its offset": Program(lookup(False), (P("sp"), P()), P(), (X, IDS)),
}
RIGHT = {
    "a ring": Program(ring_sum(1), *ROWS, (X,)),
    "a halo": Program(difference(1), *ROWS, (X,)),
    "a mean": Program(equal_mean, P("sp"), P(), (X,)),
    "an offset": Program(positions(True), *ROWS, (X,)),
    "a lookup": Program(lookup(True), (P("sp"), P()), P(), (X, IDS)),
    "a product": Program(product, (P("sp", "tp"), P("tp")), P("sp"), (X, W)),
    "a part of the random numbers": Program(whole_dropout, *ROWS, (X,)),
}
PRODUCT = ((P(), P(None, "tp")), P(), (X, W))
# Under check_vma=False a psum transposes to a psum.
WRONG_GRADIENTS = {
    "a psum without its transpose": Program(reduced(lambda g: g), *PRODUCT),
    "a psum too many": Program(reduced(lambda g: lax.psum(lax.psum(g, "tp"), "tp")), *PRODUCT),
    "a mean for a sum": Program(reduced(lambda g: lax.pmean(g, "tp")), *PRODUCT),
}
RIGHT_GRADIENTS = {
    "a psum of its own": Program(reduced(lambda g: lax.psum(g, "tp")), *PRODUCT),
    **{name: RIGHT[name] for name in ("a ring", "a halo", "a product", "a mean", "a lookup")},
}
RANDOM = Program(dropout, *ROWS, (X,))
