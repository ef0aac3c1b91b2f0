"""Random bodies: each a list of values, every one made of earlier ones by one step.

A step that only moves elements, or computes along whole dims, has a form for global arrays, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from typedshmap import _jax

AXES = ("dp", "tp")
SIZES = {"dp": 4, "tp": 2}
MOST = 1024

Global = Callable[..., Any]
"""From the global operands of a step, and how many elements per shard its result has in each dim, to its result."""


@dataclass(frozen=True)
class Step:
    """How one value was made.

    Attributes:
      name: of what kind.
      operands: the numbers of the values that went in.
      along: the dims of the first operand that have to be whole for the global form to be the same.
      globally: the same for global arrays; None where there is no such form.
    """

    name: str
    operands: tuple[int, ...]
    along: tuple[int, ...]
    globally: Global | None


@dataclass
class Body:
    """A body that is being written.

    Attributes:
      random: draws it.
      is_typed: whether JAX types its values.
      has_groups: whether some collectives go over groups of shards, which untyped ones alone may.
      values: all of them.
      steps: how each was made; None for arguments.
    """

    random: Random
    is_typed: bool
    has_groups: bool
    values: list[Any]
    steps: list[Step | None] = field(default_factory=list)

    def write(self, count: int) -> None:
        self.steps = [None] * len(self.values)
        while len(self.values) < count:
            name = self.random.choice(sorted(KINDS))
            at = self.random.randrange(len(self.values))
            made = KINDS[name](self, self.values[at])
            if made is None:
                continue
            value, others, along, globally = made
            if value.size <= MOST and 1 <= value.ndim <= 4:
                self.values.append(value)
                self.steps.append(Step(name, (at, *others), along, globally))

    def axis(self) -> str:
        return self.random.choice(AXES)

    def some_axes(self) -> tuple[str, ...]:
        return self.random.choice((("dp",), ("tp",), ("dp", "tp"), ("tp", "dp")))

    def dim(self, x: Any, divisor: int = 1) -> int | None:
        fitting = [at for at, size in enumerate(x.shape) if size % divisor == 0 and size]
        return self.random.choice(fitting) if fitting else None

    def index_like(self, x: Any) -> int:
        """The number of a value of the same shape."""
        return self.random.choice([at for at, other in enumerate(self.values) if other.shape == x.shape])

    def vary(self, x: Any) -> Any:
        """The value, typed as varying over all: loops and branches want one type."""
        return _jax.casts.pcast_varying(x, frozenset(AXES)) if self.is_typed else x


Made = tuple[Any, tuple[int, ...], tuple[int, ...], Global | None]
KINDS: dict[str, Callable[[Body, Any], Made | None]] = {}


def kind(make: Callable[[Body, Any], Made | None]) -> Callable[[Body, Any], Made | None]:
    KINDS[make.__name__] = make
    return make


def moved(f: Callable[..., Any], x: Any, along: Sequence[int] = ()) -> Made:
    """A step that is the same for a shard and for the whole."""
    return f(x), (), tuple(along), lambda x, _: f(x)


def count_of(axes: Sequence[str]) -> int:
    return prod(SIZES[axis] for axis in axes)


def unmoved(x: Any, shape: tuple[int, ...]) -> Any:
    return x if x.shape == shape else None


@kind
def elementwise(body: Body, x: Any) -> Made:
    return moved(body.random.choice((lambda x: x * 2 + 1, jnp.abs, lambda x: -x, jnp.sign)), x)


@kind
def combined(body: Body, x: Any) -> Made:
    at = body.index_like(x)
    f = body.random.choice((jnp.add, jnp.maximum, jnp.subtract))
    return f(x, body.values[at]), (at,), (), lambda x, y, _: f(x, y)


@kind
def chosen(body: Body, x: Any) -> Made:
    at = body.index_like(x)
    return jnp.where(lax.axis_index(body.axis()) == 1, x, body.values[at]), (at,), (), None


@kind
def transposed(body: Body, x: Any) -> Made:
    order = body.random.sample(range(x.ndim), x.ndim)
    return moved(lambda x: jnp.transpose(x, order), x)


@kind
def reshaped(body: Body, x: Any) -> Made:
    sizes = list(x.shape)
    for _ in range(body.random.randint(1, 3)):
        at = body.random.randrange(len(sizes))
        if sizes[at] % 2 == 0 and body.random.random() < 0.4:
            sizes[at : at + 1] = body.random.choice(([2, sizes[at] // 2], [sizes[at] // 2, 2]))
        elif at + 1 < len(sizes) and body.random.random() < 0.8:
            sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
        else:
            sizes.insert(at, 1)
    return x.reshape(sizes), (), (), lambda x, shape: x.reshape(shape)


@kind
def squeezed(body: Body, x: Any) -> Made | None:
    at = next((at for at, size in enumerate(x.shape) if size == 1), None)
    return None if at is None or x.ndim == 1 else moved(lambda x: jnp.squeeze(x, at), x, along=[at])


@kind
def cut(body: Body, x: Any) -> Made:
    at = body.random.randrange(x.ndim)
    size = max(1, x.shape[at] // 2)
    start = body.random.randint(0, x.shape[at] - size)
    return moved(lambda x: lax.slice_in_dim(x, start, start + size, axis=at), x, along=[at])


@kind
def turned(body: Body, x: Any) -> Made:
    at = body.random.randrange(x.ndim)
    f = body.random.choice((lambda x: jnp.flip(x, at), lambda x: jnp.sort(x, at), lambda x: jnp.cumsum(x, at)))
    return moved(f, x, along=[at])


@kind
def reduced(body: Body, x: Any) -> Made | None:
    at = body.random.randrange(x.ndim)
    f = body.random.choice((jnp.sum, jnp.max, jnp.argmax))
    return None if x.ndim == 1 else moved(lambda x: f(x, axis=at).astype(x.dtype), x, along=[at])


@kind
def spread(body: Body, x: Any) -> Made:
    at, times = body.random.randrange(x.ndim + 1), body.random.choice((1, 2, 3))
    return moved(lambda x: jnp.repeat(jnp.expand_dims(x, at), times, axis=at), x)


@kind
def joined(body: Body, x: Any) -> Made:
    at, other = body.random.randrange(x.ndim), body.index_like(x)
    y = body.values[other]
    return jnp.concatenate([x, y], at), (other,), (at,), lambda x, y, _: jnp.concatenate([x, y], at)


@kind
def padded(body: Body, x: Any) -> Made:
    at = body.random.randrange(x.ndim)
    widths = [(1, 1) if dim == at else (0, 0) for dim in range(x.ndim)]
    return moved(lambda x: jnp.pad(x, widths), x, along=[at])


@kind
def taken(body: Body, x: Any) -> Made:
    at = body.random.randrange(x.ndim)
    rows = np.array([body.random.randrange(x.shape[at]) for _ in range(3)])
    return moved(lambda x: jnp.take(x, rows, axis=at), x, along=[at])


@kind
def taken_by_another(body: Body, x: Any) -> Made:
    at, other = body.random.randrange(x.ndim), body.random.randrange(len(body.values))
    size = x.shape[at]
    f = lambda x, ids: jnp.take(x, jnp.ravel(ids)[:4] % size, axis=at)  # noqa: E731
    return f(x, body.values[other]), (other,), (), None


@kind
def multiplied(body: Body, x: Any) -> Made:
    at, f = body.random.randrange(x.ndim), lambda x, y: jnp.tensordot(x, y, ((at,), (at,)))
    other = body.index_like(x)
    return f(x, body.values[other]), (other,), (at,), lambda x, y, _: f(x, y)


@kind
def paired(body: Body, x: Any) -> Made:
    other = body.index_like(x)
    f = lambda x, y: x[..., :, None] - y[..., None, :]  # noqa: E731
    return f(x, body.values[other]), (other,), (), lambda x, y, _: f(x, y)


@kind
def cut_by_index(body: Body, x: Any) -> Made:
    at, axis = body.random.randrange(x.ndim), body.axis()
    size = max(1, x.shape[at] // SIZES[axis])
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axis) * size, size, at), (), (), unmoved


@kind
def cut_by_both_indices(body: Body, x: Any) -> Made | None:
    """Each shard's own part along both axes, in either order, or one of the others'."""
    at, (major, minor) = body.dim(x, 8), body.random.choice((AXES, AXES[::-1]))
    if at is None:
        return None
    size, by = x.shape[at] // 8, body.random.choice((0, 0, 1))
    number = lax.axis_index(major) * SIZES[minor] + (lax.axis_index(minor) + by) % SIZES[minor]
    return lax.dynamic_slice_in_dim(x, number * size, size, at), (), (), unmoved if not by else None


@kind
def cut_by_value(body: Body, x: Any) -> Made:
    at, other = body.random.randrange(x.ndim), body.random.randrange(len(body.values))
    return lax.dynamic_slice_in_dim(x, jnp.ravel(body.values[other])[0], 1, at), (other,), (), None


@kind
def updated(body: Body, x: Any) -> Made:
    other = body.random.randrange(len(body.values))
    return x.at[..., 0].add(jnp.ravel(body.values[other])[0]), (other,), (), None


@kind
def stamped(body: Body, x: Any) -> Made:
    return x + lax.axis_index(body.some_axes()), (), (), None


@kind
def totalled(body: Body, x: Any) -> Made:
    return body.random.choice((lax.psum, lax.pmax, lax.pmin))(body.vary(x), body.some_axes()), (), (), None


@kind
def totalled_in_stages(body: Body, x: Any) -> Made | None:
    """Over groups of shards, then over other groups, which may bring all shards together, or some, or none."""
    if not body.has_groups:
        return None
    axes = body.random.choice((("dp",), ("dp", "tp"), ("tp", "dp")))
    for _ in range(body.random.randint(1, 3)):
        x = lax.psum(x, axes, axis_index_groups=_groups(body, 4 if len(axes) == 1 else 8)) + 1
    return x, (), (), None


def _groups(body: Body, count: int) -> list[list[int]]:
    """All shards in groups of one size, by their bits or at random."""
    size, order = body.random.choice((2, 2, 4)), list(range(count))
    if body.random.random() < 0.3:
        body.random.shuffle(order)
    else:
        bits = body.random.sample((1, 2, 4)[: count.bit_length() - 1], count.bit_length() - 1)
        order.sort(key=lambda shard: [shard & bit for bit in bits])
    return [order[at : at + size] for at in range(0, count, size)]


@kind
def gathered_in_groups(body: Body, x: Any) -> Made | None:
    if not body.has_groups:
        return None
    groups = body.random.choice(([[0, 1], [2, 3]], [[0, 2], [1, 3]]))
    return lax.all_gather(x, "dp", axis_index_groups=groups, tiled=body.random.random() < 0.5), (), (), None


@kind
def gathered(body: Body, x: Any) -> Made:
    axes, at = body.some_axes(), body.random.randrange(x.ndim)
    return lax.all_gather(x, axes, axis=at, tiled=True), (), (), unmoved


@kind
def gathered_and_stacked(body: Body, x: Any) -> Made:
    return lax.all_gather(x, body.some_axes(), axis=body.random.randrange(x.ndim + 1)), (), (), None


@kind
def exchanged(body: Body, x: Any) -> Made | None:
    axes = body.some_axes()
    at, to = body.random.randrange(x.ndim), body.dim(x, count_of(axes))
    if to is None or at == to:
        return None
    return lax.all_to_all(x, axes, to, at, tiled=True), (), (), unmoved


@kind
def scattered(body: Body, x: Any) -> Made | None:
    axes = body.some_axes()
    at = body.dim(x, count_of(axes))
    if at is None:
        return None
    return lax.psum_scatter(body.vary(x), axes, scatter_dimension=at, tiled=True), (), (), None


@kind
def scattered_of_one(body: Body, x: Any) -> Made | None:
    """A sum that one shard has all of: what is unsharded over the axis is cut."""
    axis = body.axis()
    at = body.dim(x, SIZES[axis])
    if at is None:
        return None
    only = jnp.where(lax.axis_index(axis) == 0, x, 0)
    return lax.psum_scatter(only, axis, scatter_dimension=at, tiled=True), (), (), None


@kind
def sent_to_some(body: Body, x: Any) -> Made:
    axes = body.random.choice((("dp",), ("tp",), AXES))
    count = count_of(axes)
    targets = body.random.sample(range(count), count)
    pairs = [(at, to) for at, to in enumerate(targets) if body.random.random() < 0.9]
    return lax.ppermute(x, axes, pairs), (), (), None


@kind
def sent_in_planes(body: Body, x: Any) -> Made:
    """Along both axes at once, but each shard stays in its row or in its column."""
    by, is_row = body.random.randint(0, 3), body.random.random() < 0.5
    to = (lambda d, t: (d, (t + by) % 2)) if is_row else (lambda d, t: ((d + by) % 4, t))
    pairs = [(d * 2 + t, to(d, t)[0] * 2 + to(d, t)[1]) for d in range(4) for t in range(2)]
    return lax.ppermute(x, AXES, pairs), (), (), None


@kind
def looped(body: Body, x: Any) -> Made:
    """Scanned over the leading dim."""
    start = body.vary(jnp.zeros(x.shape[1:], x.dtype))
    _, out = lax.scan(lambda c, row: (c + row, row - c), start, body.vary(x))
    return out, (), (0,), lambda x, _: x - (jnp.cumsum(x, 0) - x)


@kind
def carried(body: Body, x: Any) -> Made:
    """A loop that hands values from one carry to the next."""
    other = body.index_like(x)
    step = lambda _, c: (c[1] * 2, c[2], jnp.sign(c[2]))  # noqa: E731
    start = (body.vary(x), body.vary(x + 1), body.vary(body.values[other]))
    return lax.fori_loop(0, body.random.randint(1, 3), step, start)[0], (other,), (), None


@kind
def looped_until(body: Body, x: Any) -> Made:
    """A loop that ends when another value says so."""
    other = body.random.randrange(len(body.values))
    asked = jnp.abs(jnp.ravel(body.values[other])[0]) % 3
    start = (body.vary(jnp.zeros((), asked.dtype)), body.vary(asked), body.vary(x))
    out = lax.while_loop(lambda c: c[0] < c[1], lambda c: (c[0] + 1, c[1], c[2] * 2 + 1), start)
    return out[2], (other,), (), None


@kind
def branched(body: Body, x: Any) -> Made:
    other, third = body.random.randrange(len(body.values)), body.index_like(x)
    which = jnp.abs(jnp.ravel(body.values[other])[0]) % 2
    mine, yours = body.vary(x), body.vary(body.values[third])
    return lax.switch(which, [lambda x, y: x, lambda x, y: y + 1], mine, yours), (other, third), (), None


@kind
def called(body: Body, x: Any) -> Made:
    f = body.random.choice((jax.jit, jax.checkpoint))
    return moved(lambda x: f(lambda x: jnp.transpose(x) * 3)(x), x)


@kind
def mapped(body: Body, x: Any) -> Made:
    axis = body.axis()
    return jax.vmap(lambda row: lax.psum(row, axis) + row.sum())(x), (), (), None


@kind
def differentiated(body: Body, x: Any) -> Made:
    """The gradient of a local function, of floating point numbers."""
    gradient = jax.grad(lambda y: (jnp.sin(y) * y).sum())
    return moved(lambda x: (gradient(x.astype(jnp.float32)) * 8).astype(x.dtype), x)


@kind
def drawn(body: Body, x: Any) -> Made:
    other = body.random.randrange(len(body.values))
    key = jax.random.fold_in(jax.random.key(0), jnp.ravel(body.values[other])[0])
    return x + jax.random.randint(key, x.shape, 0, 9, x.dtype), (other,), (), None


# Bodies of square matrices, of which some are addends of a sum over shards

SIDE = 3
LINEAR: tuple[Callable[..., Any], ...] = (
    lambda x: 2 * x,
    lambda x: -x.T,
    lambda x: x / 3,
    lambda x: jnp.flip(jnp.cumsum(x, 0), 1),
    lambda x: x @ jnp.arange(9.0).reshape(3, 3),
    lambda x: jnp.concatenate([x, x])[1:4],
    lambda x: jnp.pad(x, 1)[:3, 1:],
    lambda x: x.reshape(9)[jnp.arange(9) // 2].reshape(3, 3),
    lambda x: jnp.where(jnp.arange(3) > 1, x, 0),
    lambda x: jnp.zeros_like(x).at[1:].set(x[1:]),
    lambda x: jnp.broadcast_to(x.sum(0), x.shape) + x.mean(),
    lambda x: lax.dynamic_slice(jnp.tile(x, 2), (0, 2), x.shape),
    lambda x: lax.fori_loop(0, 2, lambda _, c: 2 * c, x),
    lambda x: lax.scan(lambda c, _: (c / 2, c), x, None, length=2)[1].sum(0),
    lambda x: jax.jit(lambda x: x * 5)(x),
    lambda x: lax.cond(jnp.arange(3)[1] > 0, lambda x: x, lambda x: 2 * x, x),
    lambda x: jax.jvp(lambda x: 3 * x, (x,), (x,))[1],
    lambda x: jnp.fft.fft(x).real,
)
OTHERS: tuple[Callable[..., Any], ...] = (
    jnp.tanh, jnp.abs, jnp.exp, jnp.square, lambda x: jnp.maximum(x, 1), lambda x: x + 1, lambda x: 1 / (x + 9),
    lambda x: jnp.where(x > 1, x, 0), lambda x: jnp.sort(x), lambda x: x[jnp.argmax(x, 0)], lambda x: jnp.ones_like(x),
    jax.nn.relu, jax.nn.softmax, lambda x: x * 0, lambda x: jnp.linalg.norm(x) * x,
)  # fmt: skip
PAIRED: tuple[Callable[..., Any], ...] = (
    jnp.add, jnp.subtract, jnp.multiply, jnp.matmul, lambda x, y: x / (y + 9), lambda x, y: jnp.where(y > 1, x, 0),
    lambda x, y: jnp.where(jnp.arange(3) > 0, x, y), lambda x, y: jnp.concatenate([x[:1], y[1:]]), jnp.maximum,
    lambda x, y: x.at[0].add(y[1]),
)  # fmt: skip


def write_sums(random: Random, matrices: Sequence[Any], count: int) -> list[Any]:
    """Matrices, and others that are computed from them, most of them by what is linear."""
    values = list(matrices)
    for _ in range(count):
        x, y = random.choice(values), random.choice(values)
        kinds, operands = random.choice(((LINEAR, (x,)), (LINEAR, (x,)), (OTHERS, (x,)), (PAIRED, (x, y))))
        values.append(random.choice(kinds)(*operands))
    return values
