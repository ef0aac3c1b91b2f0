"""A dim that its hint shards must divide over its mesh axes, wherever the mesh is known."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, ShapeError, check, shard, typed, typed_jit, typed_shard_map

X, UNSHARDED = Float[Array, "[b/dp] d"], Float[Array, "b d"]
KINDS = {"Auto": AxisType.Auto, "Explicit": AxisType.Explicit}


def f(x: X) -> X:
    return x


def is_instance(x: Any) -> Any:
    return x if isinstance(x, X) else check(x, X)


def in_plain_region(x: Any) -> Any:
    """Manual over tp only, so that dp shards nothing yet."""
    mapped = jax.shard_map(f_checked, in_specs=P(), out_specs=P(), axis_names={"tp"}, check_vma=False)
    return jax.jit(mapped)(x)  # JAX runs no such region eagerly


def f_checked(x: Any) -> Any:
    return check(x, X)


VERBS: dict[str, Callable[[Any], Any]] = {
    "check": lambda x: check(x, X),
    "isinstance": is_instance,
    "typed": typed(f),
    "typed_jit": typed_jit(f),
    "typed_shard_map": typed_shard_map(f),
    "typed_shard_map over another axis": typed_shard_map(f, axis_names={"tp"}),
    "check in a region over another axis": in_plain_region,
    "shard": lambda x: shard(x, X),
}
HERE: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "eagerly": lambda verb: verb,
    "under jit": lambda verb: jax.jit(lambda x: verb(x * 2)),
    "traced": lambda verb: lambda x: jax.eval_shape(lambda x: verb(x * 2), x),
    "under grad": lambda verb: jax.jit(jax.grad(lambda x: verb(x * 2).sum())),
}


def refuses(call: Callable[[Any], Any], x: Any) -> None:
    with pytest.raises(ShapeError) as caught:
        call(x)
    assert "has b=6, which does not divide over 'dp' (4 shards)" in str(caught.value).splitlines()[0]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("here", HERE.values(), ids=HERE)
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_dim_that_does_not_divide_is_refused(verb: Any, here: Any, kind: AxisType) -> None:
    with jax.set_mesh(jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(kind,) * 2)):
        refuses(here(lambda x: verb(x)), jnp.ones((6, 4)))


def test_on_an_abstract_mesh_it_is_refused(mesh: Mesh) -> None:
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        for verb in (VERBS["check"], VERBS["typed"], VERBS["isinstance"]):
            refuses(
                lambda x, verb=verb: jax.eval_shape(lambda x: verb(x), x), jax.ShapeDtypeStruct((6, 4), jnp.float32)
            )


def test_where_only_the_compiler_knows_the_mesh_it_is_refused_then(mesh: Mesh) -> None:
    placed = shard(np.ones((8, 4), np.float32), X, mesh)
    for sliced in (lambda x: x[:6], lambda x: jax.lax.with_sharding_constraint(x[:6], NamedSharding(mesh, P("dp")))):
        errors = (ShapeError, jax.errors.JaxRuntimeError)
        with pytest.raises(errors, match="has b=6, which does not divide over 'dp'"):
            jax.jit(lambda x, sliced=sliced: check(sliced(x), X))(placed)
    jax.block_until_ready(jax.jit(lambda x: check(x * 2, X))(placed))


def test_what_is_not_sharded_need_not_divide(mesh: Mesh) -> None:
    def unsharded(x: UNSHARDED) -> UNSHARDED:
        return x

    with jax.set_mesh(mesh):
        for verb in (typed(unsharded), typed_jit(unsharded), typed_shard_map(unsharded), lambda x: check(x, "b d")):
            assert jax.block_until_ready(verb(jnp.ones((6, 4)))).shape == (6, 4)
        with jax.set_mesh(jax.make_mesh((1, 8), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)):
            check(jnp.ones((6, 4)), X)


def test_a_symbolic_size_may_divide(mesh: Mesh) -> None:
    (size,) = jax.export.symbolic_shape("b")
    with jax.set_mesh(mesh):
        struct = jax.ShapeDtypeStruct((size, 4), jnp.float32)
        jax.export.export(jax.jit(lambda x: typed(f)(x * 2)))(struct)
        with pytest.raises(ShapeError, match="has b=b, which does not divide"):
            jax.export.export(jax.jit(typed_shard_map(f)))(struct)
