"""A class that makes arrays of what it is given goes through tools too; test_classes.py has it in every verb."""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    UInt32,
    audit,
    check,
    choose_mesh,
    explain,
    shape_structs,
    shard,
    show,
    typed_jit,
    typed_shard_map,
)
from typedshmap.testing import assert_cost, assert_mesh_invariant, prove


@flax.struct.dataclass
class UInt64:
    """As Brax has it."""

    hi: UInt32[Array, ""]
    lo: UInt32[Array, "[b/dp]"]

    def __post_init__(self) -> None:
        object.__setattr__(self, "hi", jnp.uint32(self.hi))
        object.__setattr__(self, "lo", jnp.asarray(self.lo, jnp.uint32))


X = Float[Array, "[b/dp] d"]
x = np.ones((8, 4), np.float32)


def count() -> UInt64:
    return UInt64(1, np.arange(8))  # type: ignore[arg-type]


def scaled(u: UInt64, x: X) -> X:
    u, _ = jax.lax.scan(lambda u, _: (check(u, UInt64), None), u, None, length=2)
    return x * u.lo[:, None].astype(x.dtype)


def returned(u: UInt64, x: X) -> UInt64:
    return u


def audited(f: Callable[..., Any]) -> Any:
    with audit() as report:
        f(count(), x)
    return report


def placed(mesh: Mesh) -> tuple[UInt64, Any]:
    return shard(count(), UInt64, mesh), shard(x, X, mesh)


PLACED: dict[str, Callable[[Mesh], Any]] = {
    "sanitized": lambda mesh: typed_shard_map(returned, mesh=mesh, sanitize=1)(*placed(mesh)),
    "typed_jit with donation": lambda mesh: typed_jit(returned, mesh=mesh, donate_argnames=("u",))(*placed(mesh)),
    "from its hints alone": lambda mesh: jax.tree.map(
        lambda struct: jnp.zeros(struct.shape, struct.dtype, device=struct.sharding), shape_structs(UInt64, mesh, b=8)
    ),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("verb", PLACED.values(), ids=PLACED)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_it_is_sharded_by_its_hints(verb: Callable[[Mesh], Any], kind: AxisType) -> None:
    mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        got = jax.block_until_ready(verb(mesh))
    assert isinstance(got, UInt64)
    assert (got.lo.sharding.spec, got.hi.sharding.is_fully_replicated) == (P("dp"), True)
    assert got.lo.dtype == jnp.uint32


@pytest.mark.parametrize("f", [scaled, returned])
def test_tools_take_it(mesh: Mesh, f: Callable[..., Any]) -> None:
    mapped = typed_shard_map(f, mesh=mesh)
    assert explain(mapped, mesh=mesh, b=8, d=4).flops is not None
    assert explain(typed_jit(f, mesh=mesh), mesh=mesh.abstract_mesh, b=8, d=4).collectives == ()
    assert "lo" in str(show(UInt64, mesh, b=8))
    assert choose_mesh(mapped, devices=8, hardware="v5p", b=8, d=4).best.mesh is not None
    assert audited(mapped).findings == []
    assert_cost(mapped, mesh=mesh, collectives={}, b=8, d=4)


@pytest.mark.parametrize("f", [scaled, returned])
def test_proofs_and_trials_take_it(f: Callable[..., Any]) -> None:
    assert prove(typed_shard_map(f), b=8, d=4).verdict == "proved"
    assert_mesh_invariant(typed_shard_map(f), meshes=["dp=4", "dp=2,tp=2"], b=8, d=4)


def test_its_program_is_that_of_one_that_converts_nothing(mesh: Mesh) -> None:
    @flax.struct.dataclass
    class Plain:
        hi: UInt32[Array, ""]
        lo: UInt32[Array, "[b/dp]"]

    def plain(u: Plain, x: X) -> X:
        return x * u.lo[:, None].astype(x.dtype)

    def converting(u: UInt64, x: X) -> X:
        return x * u.lo[:, None].astype(x.dtype)

    texts = []
    for f, u in ((plain, Plain(jnp.uint32(1), jnp.arange(8, dtype=jnp.uint32))), (converting, count())):
        f.__name__ = f.__qualname__ = "f"
        texts.append(str(jax.make_jaxpr(typed_shard_map(f, mesh=mesh))(u, x)))  # JAX itself lowers none that converts
    assert texts[0] == texts[1]
