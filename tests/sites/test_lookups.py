"""A site of sparse embeddings (36): dicts of ids and tables, a None, and a backward pass of its own."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from expecting import numbers
from jax.sharding import PartitionSpec as P
from pairs import close, mesh_of, one_program, whole_numbers

from typedshmap import Array, Float, Int32, typed_shard_map

MESH = mesh_of(data=4)
Ids = dict[str, Int32[Array, "[_/data] ..."]]
Tables = dict[str, Float[Array, "[rows/data] width"]]
Vectors = dict[str, Float[Array, "[_/data] width"]]


def summed(rows: Any) -> Any:
    return rows.reshape(len(rows), -1, rows.shape[-1]).sum(1)


def lookup(
    inputs: dict[str, Int32[Array, "[_/data] ..."]],
    tables: dict[str, Float[Array, "[rows/data] width"]],
    gains: dict[str, Float[Array, "width"]],
    config: None,
    *,
    limit: int,
) -> dict[str, Float[Array, "[_/data] width"]]:
    assert config is None
    whole = {name: jax.lax.all_gather(table, "data", axis=0, tiled=True) for name, table in tables.items()}
    ids = {name: jnp.minimum(each, limit) for name, each in inputs.items()}
    return {name: gains[name] * summed(jnp.take(whole[name], ids[name], axis=0)) for name in inputs}


def lookup_gradient(inputs: Ids, cotangents: Vectors, gains: Any, *, rows: int, limit: int) -> Tables:
    def one(ids: Any, cotangent: Any, gain: Any) -> Any:
        ids = jnp.minimum(ids, limit).reshape(len(ids), -1)
        each = jnp.broadcast_to((gain * cotangent)[:, None], (*ids.shape, cotangent.shape[-1]))
        table = jnp.zeros((rows, cotangent.shape[-1]), cotangent.dtype).at[ids].add(each)
        return jax.lax.psum_scatter(table, "data", scatter_dimension=0, tiled=True)

    return {name: one(inputs[name], cotangents[name], gains[name]) for name in inputs}


ids = {"user": whole_numbers(8, below=20), "items": whole_numbers(12, 3, below=20)}
tables = {name: numbers(16, 5) for name in ids}
gains = {"user": numbers(5), "items": 2 * numbers(5)}
BODY = partial(lookup, limit=15)
typed = typed_shard_map(BODY, mesh=MESH)


def by_hand(inputs: Any, tables: Any, gains: Any) -> Any:
    specs = (P("data"), P("data", None), P(), None)
    return jax.shard_map(BODY, mesh=MESH, in_specs=specs, out_specs=P("data", None))(inputs, tables, gains, None)


def dense(inputs: Any, tables: Any, gains: Any) -> Any:
    return {name: gains[name] * summed(jnp.asarray(tables[name])[np.minimum(inputs[name], 15)]) for name in inputs}


def test_a_lookup_in_tables_is_that_by_hand() -> None:
    got = one_program(by_hand, partial(typed, config=None), ids, tables, gains)
    close(got, dense(ids, tables, gains))


def test_a_lookup_with_a_backward_pass_of_its_own_has_the_gradient_of_a_dense_one() -> None:
    backward = typed_shard_map(
        partial(lookup_gradient, rows=16, limit=15),
        mesh=MESH,
        in_types=(Ids, Vectors, dict[str, Float[Array, "width"]]),
    )

    @jax.custom_vjp
    def sparse(tables: Any) -> Any:
        return typed(ids, tables, gains, None)

    sparse.defvjp(lambda tables: (sparse(tables), ()), lambda _, g: (backward(ids, g, gains),))

    def loss(vectors: Any) -> Any:
        return sum((v**2).sum() for v in vectors.values())

    got = jax.block_until_ready(jax.jit(jax.grad(lambda tables: loss(sparse(tables))))(tables))
    close(got, jax.jit(jax.grad(lambda tables: loss(dense(ids, tables, gains))))(tables))
