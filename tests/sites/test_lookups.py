"""A site of sparse embeddings (36): dicts of ids and tables, and a None."""

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


ids = {"user": whole_numbers(8, below=20), "items": whole_numbers(12, 3, below=20)}
tables = {name: numbers(16, 5) for name in ids}
gains = {"user": numbers(5), "items": 2 * numbers(5)}
BODY = partial(lookup, limit=15)


def by_hand(inputs: Any, tables: Any, gains: Any) -> Any:
    specs = (P("data"), P("data", None), P(), None)
    return jax.shard_map(BODY, mesh=MESH, in_specs=specs, out_specs=P("data", None))(inputs, tables, gains, None)


def dense(inputs: Any, tables: Any, gains: Any) -> Any:
    return {name: gains[name] * summed(jnp.asarray(tables[name])[np.minimum(inputs[name], 15)]) for name in inputs}


def test_a_lookup_in_tables_is_that_by_hand() -> None:
    got = one_program(by_hand, partial(typed_shard_map(BODY, mesh=MESH), config=None), ids, tables, gains)
    close(got, dense(ids, tables, gains))
