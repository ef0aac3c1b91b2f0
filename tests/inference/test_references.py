"""Mutable references: as arguments, and made in a body. What they come to hold is known by all that is written."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, VaryingError, typed_shard_map

SUM, X = Float[jax.Ref, "k"], Float[Array, "[b/dp] k"]
Body = Callable[[Any, Any], Any]


def added(ref: Any, value: Any) -> Any:
    ref[...] += value
    return ref[...]


def in_branch(predicate: Any, ref: Any) -> Any:
    lax.cond(predicate, lambda: added(ref, 1.0) * 0, lambda: jnp.zeros(ref.shape))
    return ref[...]


def made_inside(value: Any) -> Any:
    return added(jax.new_ref(jnp.zeros_like(value)), value)


RIGHT: dict[str, Body] = {
    "read": lambda ref, x: ref[...] * 2,
    "a sum over the shards is added": lambda ref, x: added(ref, lax.psum(x.sum(0), "dp")),
    "added in a scan": lambda ref, x: lax.scan(lambda c, _: (c, added(ref, 1.0)), 0, None, 2)[1][1],
    "made inside": lambda ref, x: made_inside(lax.psum(x.sum(0), "dp")),
    "written where all shards do": lambda ref, x: in_branch(lax.psum(x.sum(), "dp") > 0, ref),
}
WRONG: dict[str, Body] = {
    "a shard's sum is added": lambda ref, x: added(ref, x.sum(0)),
    "added in a scan": lambda ref, x: lax.scan(lambda c, row: (c, added(ref, row)), 0.0, x)[1][1],
    "made inside": lambda ref, x: made_inside(x.sum(0)),
    "written where some shards do": lambda ref, x: in_branch(x.sum() > 0, ref),
}


def traced(body: Body, mesh: Mesh, check_vma: bool) -> None:
    ref, x = jax.new_ref(jnp.zeros(3)), jnp.ones((8, 3))
    f = typed_shard_map(body, mesh=mesh, in_types=(SUM, X), out_types=Float[Array, "k"], check_vma=check_vma)
    jax.jit(lambda x: f(ref, x)).trace(x)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", RIGHT)
def test_what_all_shards_write_is_the_same_on_every_shard(name: str, check_vma: bool, mesh: Mesh) -> None:
    traced(RIGHT[name], mesh, check_vma)


@pytest.mark.parametrize("name", WRONG)
def test_what_a_shard_writes_varies(name: str, mesh: Mesh) -> None:
    with pytest.raises(VaryingError, match="varies over 'dp'"):
        traced(WRONG[name], mesh, check_vma=False)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_sharded_reference_is_an_argument(kind: AxisType) -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("dp",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        ref = jax.new_ref(jax.device_put(jnp.zeros(4), NamedSharding(mesh, P("dp"))))

        def number(ref: Float[jax.Ref, "[b/dp]"]) -> None:
            ref[...] += lax.axis_index("dp").astype("float32")

        jax.block_until_ready(jax.jit(typed_shard_map(number))(ref))
        np.testing.assert_array_equal(np.asarray(ref[...]), [0, 0, 1, 1])
