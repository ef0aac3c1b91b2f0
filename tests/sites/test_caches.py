"""Sites of caches: pages (18), and an update annotated by hand (38)."""

from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from expecting import numbers
from jax.sharding import PartitionSpec as P
from pairs import mesh_of, one_program

import typedshmap
from typedshmap import Array, Float, Int, typed_shard_map

# 18. A paged cache: new tokens go where a table of pages says. The mesh comes from a getter.

CACHE = mesh_of(data=2, model=4)
Pool = Float[Array, "[g/model] pages page d"]


def write_pages(
    pool: Pool, new: Float[Array, "[g/model] b s d"], tables: Int[Array, "b n"], lengths: Int[Array, "b"]
) -> Pool:
    page = pool.shape[2]
    at = lengths[:, None] + jnp.arange(new.shape[2])
    pages = jnp.take_along_axis(tables, at // page, axis=1)
    return pool.at[:, pages, at % page].set(new)


pool, new = numbers(4, 6, 2, 3), numbers(4, 2, 3, 3)
tables, lengths = np.array([[0, 2, 4], [5, 1, 3]], np.int32), np.array([1, 3], np.int32)


def written_by_hand() -> Any:
    heads = P("model", None, None, None)
    specs = (heads, heads, P(None, None), P(None))
    return jax.shard_map(write_pages, mesh=CACHE, in_specs=specs, out_specs=heads, check_vma=False)


def test_a_write_to_pages_is_that_by_hand() -> None:
    with jax.set_mesh(CACHE):
        typed = typed_shard_map(mesh=jax.sharding.get_abstract_mesh(), check_vma=False)(write_pages)
        got = one_program(written_by_hand(), typed, pool, new, tables, lengths)
    np.testing.assert_array_equal(got, write_pages(jnp.asarray(pool), new, tables, lengths))


def test_a_getter_asked_before_there_is_a_mesh_means_the_mesh_of_the_call() -> None:
    typed = typed_shard_map(mesh=jax.sharding.get_abstract_mesh(), check_vma=False)(write_pages)
    with jax.set_mesh(CACHE):
        one_program(written_by_hand(), typed, pool, new, tables, lengths)


# 38. An update of a cache whose hints jaxtyping made.

EASY = mesh_of(dp=2, tp=2, sp=2)


def slots_of(module: Any, page_axis: Any) -> Any:
    """The body, with hints of this library or of jaxtyping."""
    dtype, index = module.Float, module.Int32

    def write(
        tokens: dtype[jax.Array, "t [g/tp] d"],
        slots: index[jax.Array, "t"],
        pool: dtype[jax.Array, "[pages/page] page [g/tp] d"],
    ) -> dtype[jax.Array, "[pages/page] page [g/tp] d"]:
        rows = pool.reshape(-1, *pool.shape[2:])
        first = 0 if page_axis is None else jax.lax.axis_index(page_axis) * len(rows)
        here = (slots >= first) & (slots < first + len(rows))
        return rows.at[jnp.where(here, slots - first, len(rows))].set(tokens, mode="drop").reshape(pool.shape)

    return write


fresh, slots, paged = numbers(5, 4, 3), np.array([0, 9, 7, 15, 2], np.int32), numbers(8, 2, 4, 3)


@pytest.mark.sample(3)
@pytest.mark.parametrize("module", [typedshmap, jaxtyping], ids=["typedshmap", "jaxtyping"])
@pytest.mark.parametrize(
    ("page_axis", "kv_axis"), [("sp", "tp"), (None, "tp"), (("dp", "sp"), None), (("sp", "dp"), ("tp",))]
)
def test_a_write_to_slots_is_that_by_hand(module: Any, page_axis: Any, kv_axis: Any) -> None:
    body = slots_of(module, page_axis)
    pages = P(page_axis, None, kv_axis, None)
    specs = (P(None, kv_axis, None), P(None), pages)
    by_hand = jax.shard_map(body, mesh=EASY, in_specs=specs, out_specs=pages, check_vma=False)
    typed = typed_shard_map(mesh=EASY, axes={"page": page_axis, "tp": kv_axis}, check_vma=False)(body)
    got = one_program(by_hand, typed, fresh, slots, paged)
    expected = paged.reshape(16, 4, 3).copy()
    expected[slots] = fresh
    np.testing.assert_array_equal(got, expected.reshape(paged.shape))
