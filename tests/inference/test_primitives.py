"""What is read of the result of every kind of operation, the same whether JAX types values or not."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import known
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, _jax, typed_shard_map
from typedshmap.inference.lattice import UNSHARDED, DimFact, ShardingFact


class Row(NamedTuple):
    """A body, the arguments, and what is known of the results."""

    body: Callable[..., Any]
    arguments: str
    result: str


RING = ((0, 1), (1, 2), (2, 3), (3, 0))


def varied(x: Any) -> Any:
    """Typed as varying, where values are typed, as the carry of a loop has to be."""
    return (
        _jax.casts.pcast_varying(x, frozenset({"dp", "tp"}))
        if "dp" in _jax.array.manual_type(lax.axis_index("dp")).varying
        else x
    )


SHAPES = {
    "a unary function": Row(jnp.sin, "8/dp 4", "dp _ | dp"),
    "a cast": Row(lambda x: x.astype(jnp.bfloat16), "8/dp 4/tp", "dp tp | dp tp"),
    "a sum of two with the same sharding": Row(lambda x, y: x + y, "8/dp 4, 8/dp 4", "dp _ | dp"),
    "a split and a whole dim": Row(lambda x, y: x + y, "8/dp 4, 2 4", "dp _ | dp"),
    "other dims split": Row(lambda x, y: x + y, "8/dp 4, 2 8/tp", "dp tp | dp tp"),
    "one axis on two dims": Row(lambda x, y: x + y, "16/dp 4, 4 16/dp", "? ? | dp"),
    "a bias": Row(lambda x, b: x + b, "8/dp 4/tp, 4/tp", "dp tp | dp tp"),
    "size 1 beside another": Row(lambda x, y: x * y, "8/dp 4, 4/dp 4", "dp _ | dp"),
    "a scalar": Row(lambda x: 2 * x + 1, "8/dp 4", "dp _ | dp"),
    "a scalar that differs": Row(lambda x: x + lax.axis_index("tp"), "8/dp 4", "dp _ | dp tp"),
    "a constant": Row(lambda x: (jnp.ones(3), jnp.arange(4)), "8/dp", "_ |; _ |"),
    "a choice": Row(lambda x, y: jnp.where(y > 0, x, 0), "8/dp 4, 2 8/tp", "dp tp | dp tp"),
    "a clamp": Row(lambda x: jnp.clip(x, -1, 1), "8/dp 4", "dp _ | dp"),
    "broadcast to more dims": Row(lambda x: jnp.broadcast_to(x, (3, *x.shape)), "8/dp", "_ dp | dp"),
    "broadcast of size 1": Row(lambda x: jnp.broadcast_to(x, (3, 4)), "4/dp 4", "_ _ | dp"),
    "a polynomial": Row(lambda x: jnp.polyval(jnp.ones((2, 4)), x[0, 0]), "8/dp 4", "_ | dp"),
    "a number times a power of two": Row(lambda x: jnp.ldexp(x, 2), "8/dp 4", "dp _ | dp"),
    "transposed": Row(lambda x: x.transpose(2, 0, 1), "8/dp 4/tp 3", "_ dp tp | dp tp"),
    "squeezed": Row(lambda x: x[:, :, 0], "8/dp 4/tp 1", "dp tp | dp tp"),
    "a new dim": Row(lambda x: x[:, None], "8/dp 4", "dp _ _ | dp"),
    "merged": Row(lambda x: x.reshape(-1), "8/dp 4", "dp | dp"),
    "merged into a whole dim": Row(lambda x: x.reshape(-1), "8 8/dp", "? | dp"),
    "merged, both split": Row(lambda x: x.reshape(-1, 3), "8/dp 4/tp 3", "? _ | dp tp"),
    "cut in two": Row(lambda x: x.reshape(2, -1, 4), "16/dp 4", "dp _ _ | dp"),
    "reversed": Row(lambda x: x[::-1, ::-1], "8/dp 4", "? _ | dp"),
    "sliced": Row(lambda x: x[:1, :1], "8/dp 4", "? _ | dp"),
    "sliced whole": Row(lambda x: x[:2], "8/dp 4", "dp _ | dp"),
    "padded": Row(lambda x: jnp.pad(x, ((0, 0), (1, 1))), "8/dp 4", "dp _ | dp"),
    "padded where it is split": Row(lambda x: jnp.pad(x, ((1, 0), (0, 0))), "8/dp 4", "? _ | dp"),
    "sliced from a start that is equal": Row(
        lambda x, i: lax.dynamic_slice(x, (i[0], 0), (1, 4)), "4 4, int 1", "_ _ |"
    ),
    "sliced from a start that differs": Row(
        lambda x: lax.dynamic_slice_in_dim(x, lax.axis_index("tp"), 1, 0), "4 4/dp", "tp dp | dp tp"
    ),
    "every other element": Row(lambda x: x[1::2], "16/dp 4", "dp _ | dp"),
    "every other element of an odd number": Row(lambda x: x[::2], "12/dp 4", "? _ | dp"),
    "every other element, unlike those of the next shard": Row(lambda x: x[3::2], "32/dp 4", "? _ | dp"),
    "written over in full": Row(lambda x, y: lax.dynamic_update_slice(x, y, (0, 1)), "2 4, 8/dp 2", "dp _ | dp"),
    "updated in place": Row(lambda x: lax.dynamic_update_slice(x, x[:1], (0, 0)), "8/dp 4", "dp _ | dp"),
    "updated by what differs": Row(lambda x, y: x.at[0].set(y[0, 0]), "8/dp 4, 2 4/tp", "dp _ | dp tp"),
    "concatenated": Row(lambda x, y: jnp.concatenate([x, y], 1), "8/dp 4, 8/dp 2", "dp _ | dp"),
    "concatenated where split": Row(lambda x: jnp.concatenate([x, x], 0), "8/dp 4", "? _ | dp"),
    "stacked": Row(lambda x: jnp.stack([x, x], 1), "8/dp 4", "dp _ _ | dp"),
    "split": Row(lambda x: tuple(jnp.split(x, 2, 1)), "8/dp 4", "dp _ | dp; dp _ | dp"),
    "split where split": Row(lambda x: tuple(jnp.split(x, 2, 0)), "8/dp 4", "? _ | dp; ? _ | dp"),
    "rolled": Row(lambda x: jnp.roll(x, 1, 1), "8/dp 4", "dp _ | dp"),
    "tiled": Row(lambda x: jnp.tile(x, (1, 2)), "8/dp 4", "dp _ | dp"),
    "sorted": Row(lambda x: jnp.sort(x, 1), "8/dp 4", "dp _ | dp"),
    "sorted where split": Row(lambda x: jnp.sort(x, 0), "8/dp 4", "? _ | dp"),
    "sorted with another": Row(
        lambda x, y: tuple(lax.sort((x, y), num_keys=1)), "8/dp 4, 2 8/tp", "dp ? | dp tp; dp ? | dp tp"
    ),
    "top k": Row(lambda x: tuple(lax.top_k(x, 2)), "8/dp 4", "dp _ | dp; dp _ | dp"),
    "top k where split": Row(lambda x: lax.top_k(x, 1)[0], "8 4/tp", "_ ? | tp"),
    "taken by ids": Row(lambda ids, w: w[ids], "int 8/dp, 16 4/tp", "dp tp | dp tp"),
    "taken from a split table": Row(lambda ids, w: w[ids], "int 8/dp, 16/tp 4", "dp _ | dp tp"),
    "taken along a dim": Row(lambda ids, x: jnp.take_along_axis(x, ids, 1), "int 8/dp 3, 8/dp 4", "dp _ | dp"),
    "scattered into": Row(lambda ids, x: jnp.zeros((5, 4)).at[ids].add(x), "int 8/dp, 8/dp 4", "_ _ | dp"),
    "an iota": Row(lambda x: lax.broadcasted_iota(jnp.int32, (2, 3), 1), "8/dp", "_ _ |"),
}

REDUCTIONS = {
    "a sum": Row(lambda x: x.sum(1), "8/dp 4", "dp | dp"),
    "a sum over what is split": Row(lambda x: x.sum(0), "8/dp 4", "_ | dp"),
    "a maximum": Row(lambda x: x.max(), "8/dp 4/tp", "| dp tp"),
    "an argmax": Row(lambda x: x.argmax(1), "8/dp 4", "dp | dp"),
    "any": Row(lambda x: (x > 0).any(0), "8/dp 4/tp", "tp | dp tp"),
    "a mean": Row(lambda x: x.mean(1, keepdims=True), "8/dp 4", "dp _ | dp"),
    "a cumulative sum": Row(lambda x: jnp.cumsum(x, 1), "8/dp 4", "dp _ | dp"),
    "a logsumexp": Row(lambda x: jax.nn.logsumexp(x, 1), "8/dp 4", "dp | dp"),
    "a window": Row(lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 1), "VALID"), "8/dp 4", "dp _ | dp"),
    "a product": Row(lambda x, w: x @ w, "8/dp 4, 4 6/tp", "dp tp | dp tp"),
    "a product over what is split": Row(lambda x, w: x @ w, "8/dp 4/tp, 4/tp 6", "dp _ | dp tp"),
    "a batched product": Row(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), "8/dp 4/tp 3, 8/dp 3 5", "dp tp _ | dp tp"),
    "batched with what is whole": Row(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), "8/dp 4 3, 2 3 5", "dp _ _ | dp"),
    "one axis on both sides": Row(lambda x, y: x @ y.T, "8/dp 4, 8/dp 4", "? ? | dp"),
    "an outer product": Row(jnp.outer, "8/dp, 6/tp", "dp tp | dp tp"),
    "a convolution": Row(
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME"), "8/dp 2 4 4, 6/tp 2 3 3", "dp tp ? ? | dp tp"
    ),
    "a convolution in groups": Row(
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", feature_group_count=2),
        "8/dp 2 4 4, 4 1 3 3",
        "dp ? ? ? | dp",
    ),
    "a Fourier transform": Row(lambda x: jnp.fft.fft(x).real, "8/dp 4", "dp _ | dp"),
    "a decomposition": Row(lambda x: jnp.linalg.cholesky(x), "8/dp 4 4", "? ? ? | dp"),
}

COLLECTIVES = {
    "a psum": Row(lambda x: lax.psum(x, "tp"), "8/dp 4/tp", "dp _ | dp"),
    "a psum over both": Row(lambda x: lax.psum(x, ("dp", "tp")), "8/dp 4/tp", "_ _ |"),
    "a psum over the minor": Row(lambda x: lax.psum(x, "tp"), "8/dp,tp", "? | dp"),
    "a pmean": Row(lambda x: lax.pmean(x, "dp"), "8/dp 4/tp", "_ tp | tp"),
    "a pmax": Row(lambda x: lax.pmax(x, "tp"), "8/dp 4/tp", "dp _ | dp"),
    "a gather": Row(lambda x: lax.all_gather(x, "tp", axis=1, tiled=True), "8/dp 4/tp", "dp _ | dp"),
    "a gather of the minor": Row(lambda x: lax.all_gather(x, "tp", tiled=True), "8/dp,tp", "dp | dp"),
    "a gather of the major": Row(lambda x: lax.all_gather(x, "dp", tiled=True), "8/dp,tp", "? | tp"),
    "a gather of both": Row(lambda x: lax.all_gather(x, ("dp", "tp"), tiled=True), "8/dp,tp", "_ |"),
    "a gather in another order": Row(lambda x: lax.all_gather(x, ("tp", "dp"), tiled=True), "8/dp,tp", "? |"),
    "a gather one after the other": Row(
        lambda x: lax.all_gather(lax.all_gather(x, "tp", tiled=True), "dp", tiled=True), "8/dp,tp", "_ |"
    ),
    "a gather along another dim": Row(lambda x: lax.all_gather(x, "tp", axis=0, tiled=True), "8/dp 4/tp", "? _ | dp"),
    "a gather of what is whole": Row(lambda x: lax.all_gather(x, "tp", tiled=True), "8 4/dp", "_ dp | dp"),
    "a gather that stacks": Row(lambda x: lax.all_gather(x, "tp"), "8/dp 4/tp", "_ dp _ | dp"),
    "what is computed of a gather": Row(lambda x: lax.all_gather(x * 2, "dp", tiled=True) / 2, "8/dp 4", "_ _ |"),
    "a sum scattered": Row(
        lambda x, w: lax.psum_scatter(x @ w, "tp", scatter_dimension=1, tiled=True),
        "8/dp 4/tp, 4/tp 6",
        "dp tp | dp tp",
    ),
    "a sum scattered in a split dim": Row(
        lambda x, w: lax.psum_scatter(x @ w, "tp", scatter_dimension=0, tiled=True),
        "16/dp 4/tp, 4/tp 6",
        "dp,tp _ | dp tp",
    ),
    "a sum scattered and squeezed": Row(
        lambda x, w: lax.psum_scatter(x @ w, "tp", scatter_dimension=0), "8/dp 4/tp, 4/tp 6", "_ | dp tp"
    ),
    "an exchange": Row(lambda x: lax.all_to_all(x, "tp", 1, 0, tiled=True), "8/tp 4 3", "_ tp _ | tp"),
    "an exchange of the minor": Row(lambda x: lax.all_to_all(x, "tp", 1, 0, tiled=True), "8/dp,tp 4", "dp tp | dp tp"),
    "an exchange of the major": Row(lambda x: lax.all_to_all(x, "dp", 1, 0, tiled=True), "8/dp,tp 4", "? dp | dp tp"),
    "an exchange into a split dim": Row(
        lambda x: lax.all_to_all(x, "tp", 1, 0, tiled=True), "8/tp 16/dp", "_ dp,tp | dp tp"
    ),
    "an exchange of whole dims": Row(lambda x: lax.all_to_all(x, "tp", 1, 0, tiled=True), "4 4", "? ? | tp"),
    "an exchange that stacks": Row(lambda x: lax.all_to_all(x, "tp", 1, 0), "8/tp 2 3", "? ? ? | tp"),
    "an exchange of parts of one dim": Row(lambda x: lax.all_to_all(x, "tp", 0, 0, tiled=True), "4/tp 3", "? ? | tp"),
    "a ring": Row(lambda x: lax.ppermute(x, "dp", RING), "8/dp 4/tp", "dp tp | dp tp"),
    "a ring of what is equal": Row(lambda x: lax.ppermute(x, "dp", RING), "8 4/tp", "_ tp | tp"),
    "a chain of what is equal": Row(lambda x: lax.ppermute(x, "dp", RING[:-1]), "8 4/tp", "_ tp | dp tp"),
    "a ring over both": Row(
        lambda x: lax.ppermute(x, ("dp", "tp"), [(at, (at + 1) % 8) for at in range(8)]), "8/dp 4", "? _ | dp tp"
    ),
    "a ring over both that keeps the columns": Row(
        lambda x: lax.ppermute(x, ("dp", "tp"), [(at, (at + 2) % 8) for at in range(8)]), "8/dp 4", "? _ | dp"
    ),
    "a shuffle over both of what is equal": Row(
        lambda x: lax.ppermute(x, ("dp", "tp"), [(at, 7 - at) for at in range(8)]), "8 4", "_ _ |"
    ),
    "an index": Row(lambda x: lax.axis_index("tp"), "8/dp", "| tp"),
    "an index over both": Row(lambda x: lax.axis_index(("dp", "tp")), "8/dp", "| dp tp"),
    "a size": Row(lambda x: x * lax.axis_size("tp"), "8/dp", "dp | dp"),
}

PROGRAMS = {
    "a jit": Row(jax.jit(lambda x: lax.psum(x, "tp")), "8/dp 4/tp", "dp _ | dp"),
    "a checkpoint": Row(jax.checkpoint(lambda x: jnp.sin(x).T), "8/dp 4", "_ dp | dp"),
    "a custom tangent": Row(jax.nn.relu, "8/dp 4", "dp _ | dp"),
    "a gradient": Row(jax.grad(lambda x: jnp.sin(x).sum()), "8/dp 4", "dp _ | dp"),
    "a branch by what is equal": Row(
        lambda x: lax.cond(lax.psum(x.sum(), "dp") > 0, lambda x: x * 2, lambda x: x, x), "8/dp 4", "dp _ | dp"
    ),
    "a branch by what differs": Row(
        lambda x, w: lax.cond(x.sum() > 0, lambda w: w * 2, lambda w: w, varied(w)), "8/dp, 4/tp", "tp | dp tp"
    ),
    "branches that are sharded in different ways": Row(
        lambda x: lax.cond(lax.psum(x.sum(), "dp") > 0, lambda x: x, lambda x: x.T, x), "16/dp 4", "? ? | dp"
    ),
    "a switch": Row(
        lambda x: lax.switch(lax.axis_index("tp"), [lambda x: x, lambda x: -x, lambda x: x * 2], varied(x)),
        "8/dp",
        "dp | dp tp",
    ),
    "a scan over rows": Row(lambda x: lax.scan(lambda c, r: (c, r * 2), 0.0, x)[1], "8/dp 4", "dp _ | dp"),
    "a scan over layers": Row(
        lambda x, w: lax.scan(lambda h, w: (h @ w, h), varied(x), varied(w)), "8/dp 4, 3 4 4", "dp _ | dp; _ dp _ | dp"
    ),
    "a scan whose carry comes to vary": Row(
        lambda x: lax.scan(lambda c, r: (c + r, c), varied(jnp.zeros(4)), varied(x)), "8/dp 4", "_ | dp; dp _ | dp"
    ),
    "a scan that hands on from carry to carry": Row(
        lambda x: lax.scan(lambda c, _: ((*c[1:], c[-1]), None), (*[varied(jnp.zeros(2))] * 20, varied(x)), None, 30)[
            0
        ][0],
        "8/dp",
        "? | dp",
    ),
    "a scan that turns its carry": Row(
        lambda x: lax.scan(lambda c, _: (c.T, None), varied(x), None, length=3)[0], "16/dp 4", "? ? | dp"
    ),
    "a loop": Row(lambda x: lax.fori_loop(0, 3, lambda _, c: jnp.sin(c), x), "8/dp 4", "dp _ | dp"),
    "a loop that sums": Row(
        lambda x: lax.fori_loop(0, 3, lambda _, c: c + lax.psum(x, "dp").sum(), jnp.zeros(())), "8/dp", "|"
    ),
    "a loop until a test of what is equal": Row(
        lambda x: lax.while_loop(lambda c: lax.pmax(c[1].max(), "dp") > 1, lambda c: (c[0] + 1, c[1] / 2), (0, x))[0],
        "8/dp 4",
        "|",
    ),
    "a loop until a test of what differs": Row(
        lambda x: lax.while_loop(lambda c: c[1].max() > 1, lambda c: (c[0] + 1, c[1] / 2), (varied(0), varied(x)))[0],
        "8/dp 4",
        "| dp",
    ),
    "an associative scan": Row(lambda x: lax.associative_scan(jnp.add, x, axis=1), "8/dp 4", "dp _ | dp"),
    "mapped over rows": Row(jax.vmap(lambda r: r / r.sum()), "8/dp 4", "dp _ | dp"),
    "mapped with a sum": Row(jax.vmap(lambda r: lax.psum(r, "tp")), "8/dp 4/tp", "dp _ | dp"),
    "mapped with a gather": Row(jax.vmap(lambda r: lax.all_gather(r, "tp", tiled=True)), "8/dp 4/tp", "dp _ | dp"),
    "random numbers": Row(lambda x: jax.random.bits(jax.random.key(0), (3,)), "8/dp", "? |"),
    "random numbers of a key that differs": Row(
        lambda x: jax.random.bits(jax.random.fold_in(jax.random.key(0), lax.axis_index("tp")), (3,)), "8/dp", "? | tp"
    ),
    "a solver": Row(
        lambda a, b: lax.custom_linear_solve(lambda v: lax.psum(a.sum(), "dp") * v, b, lambda _, b: b * 2),
        "8/dp, 4/tp",
        "tp | tp",
    ),
    "a callback": Row(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((2,), np.float32), x), "8/dp", "? | dp"),
    "a callback that the host answers as it likes": Row(
        lambda x: jax.experimental.io_callback(lambda: np.float32(0), jax.ShapeDtypeStruct((), np.float32)),
        "8/dp",
        "| dp tp",
    ),
}

ROWS = {
    f"{kind}: {name}": row
    for kind, rows in (
        ("shapes", SHAPES),
        ("reductions", REDUCTIONS),
        ("collectives", COLLECTIVES),
        ("programs", PROGRAMS),
    )
    for name, row in rows.items()
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ROWS)
def test_what_is_known_of_a_result(name: str, check_vma: bool) -> None:
    row = ROWS[name]
    assert known(row.body, *row.arguments.split(", "), check_vma=check_vma) == row.result


def test_a_maximum_over_an_axis_that_vmap_named_takes_its_dim_away() -> None:
    body = jax.vmap(lambda row: row - lax.pmax(row.max(), "rows"), axis_name="rows")
    # With check_vma jax.vmap with names does not work within jax.shard_map.
    assert known(body, "8/dp 4", check_vma=False) == "dp _ | dp"


def nested(x: Any, w: Any) -> Any:
    """Work on a weight over an axis of a region within, then on something split over one of the region around."""
    inner = jax.shard_map(
        lambda w: lax.all_gather(w * 2, "tp", axis=1, tiled=True),
        in_specs=P(None, "tp"),
        out_specs=P(None, None),
        axis_names={"tp"},
        check_vma=False,
    )
    return x + inner(w)


@pytest.mark.parametrize("check_vma", [True, False])
def test_the_axes_of_a_region_within_are_not_those_of_the_region_around(check_vma: bool, mesh: Mesh) -> None:
    f = typed_shard_map(
        nested,
        mesh=mesh,
        axis_names={"dp"},
        check_vma=check_vma,
        in_types=(Float[Array, "d [n/dp]"], Float[Array, "d m"]),
        out_types=Float[Array, "d [n/dp]"],
    )
    assert jax.eval_shape(f, np.ones((2, 16), np.float32), np.ones((2, 4), np.float32)).shape == (2, 16)


def test_a_program_within_that_asks_for_its_place_differs() -> None:
    body = lambda x: lax.custom_root(lambda y: y - lax.axis_index("tp"), 0.0 * x[0], lambda f, y: f(y), lambda g, y: y)  # noqa: E731
    assert known(body, "8", check_vma=False) == "| tp"


OWED = {
    "added to another": (lambda x: x + x, "dp _ | dp +tp"),
    "scaled": (lambda x: 2 * x / 3, "dp _ | dp +tp"),
    "turned": (lambda x: -x.T, "_ dp | dp +tp"),
    "multiplied by a weight": (lambda x: x @ jnp.ones((4, 3)), "dp _ | dp +tp"),
    "summed": (lambda x: lax.psum(x, "tp"), "dp _ | dp"),
    "summed over another axis": (lambda x: lax.psum(x, "dp"), "_ _ | +tp"),
    "multiplied by itself": (lambda x: x * x, "dp _ | dp tp"),
    "a product with itself": (lambda x: jnp.einsum("ij,ij->i", x, x), "dp | dp tp"),
    "with something added": (lambda x: x + 1, "dp _ | dp +tp"),  # which is an error
    "through a function": (jnp.tanh, "dp _ | dp tp"),
    "divided by": (lambda x: 1 / x, "dp _ | dp tp"),
    "a maximum over another axis": (lambda x: lax.pmax(x, "dp"), "_ _ | tp"),
    "gathered": (lambda x: lax.all_gather(x, "dp", tiled=True), "_ _ | +tp"),
    "chosen by what is equal": (
        lambda x: lax.cond(lax.axis_size("dp") > 2, lambda x: x, lambda x: 2 * x, x),
        "dp _ | dp +tp",
    ),
    "chosen by what differs": (
        lambda x: lax.cond(lax.axis_index("tp") > 0, lambda x: x, lambda x: 2 * x, x),
        "dp _ | dp tp",
    ),
}


@pytest.mark.parametrize("name", OWED)
def test_an_unreduced_value(name: str) -> None:
    body, result = OWED[name]
    start = ShardingFact(frozenset({"dp"}), frozenset({"tp"}), (DimFact(("dp",)), UNSHARDED))
    assert known(body, "8/dp 4", check_vma=False, facts=[start]) == result


def in_stages(*stages: list[list[int]], axes: Any = "dp", between: Callable[[Any], Any] = jnp.sin) -> Any:
    """A sum over groups of shards, then over other groups."""

    def body(x: Any) -> Any:
        for groups in stages:
            x = between(lax.psum(x, axes, axis_index_groups=groups))
        return x

    return body


PAIRS, CROSSED = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
IN_ROWS = [[0, 1], [2, 3], [4, 5], [6, 7]]
IN_COLUMNS = [[0, 2, 4, 6], [1, 3, 5, 7]]
IN_GROUPS = {
    "one group": (in_stages([[2, 0, 1, 3]]), "? | tp"),
    "groups": (in_stages(PAIRS), "dp,tp | dp tp"),
    "the same groups twice": (in_stages(PAIRS, PAIRS), "dp,tp | dp tp"),
    "complementary groups": (in_stages(PAIRS, CROSSED), "? | tp"),
    "complementary groups, reshaped between": (
        in_stages(PAIRS, CROSSED, between=lambda x: jnp.cumsum(x.reshape(-1))), "? | tp"
    ),
    "complementary groups of something else": (
        in_stages(PAIRS, CROSSED, between=lambda x: x + lax.axis_index("dp")), "dp,tp | dp tp"
    ),
    "groups along another axis": (in_stages(IN_ROWS, axes=("dp", "tp")), "? | dp"),
    "along both axes": (in_stages(IN_ROWS, IN_COLUMNS, axes=("dp", "tp")), "? |"),
    "a gather from one group": (
        lambda x: lax.all_gather(x, "tp", axis_index_groups=[[0, 1]], tiled=True), "dp | dp"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_GROUPS)
def test_collectives_in_groups_of_shards(name: str) -> None:
    body, result = IN_GROUPS[name]
    assert known(body, "16/dp,tp", check_vma=False) == result
