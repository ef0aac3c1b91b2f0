"""The meshes, the value and the transformations under which the tests here place it."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
U = P.UNCONSTRAINED
MESHES = {
    "Auto": jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AUTO, AUTO)),
    "Explicit": jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(EXPLICIT, EXPLICIT)),
    "mixed": jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AUTO, EXPLICIT)),
    "mixed, the other way": jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(EXPLICIT, AUTO)),
}
X = np.arange(128.0, dtype=np.float32).reshape(8, 16)
every_mesh = pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
either_mesh = pytest.mark.parametrize("mesh", [MESHES["Auto"], MESHES["Explicit"]], ids=["Auto", "Explicit"])

RUN: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "jit": lambda f: jax.jit(lambda x: f(x)),
    "remat": lambda f: jax.jit(jax.checkpoint(lambda x: f(x))),
    "cond": lambda f: jax.jit(lambda x: jax.lax.cond(x.sum() > 0, lambda y: f(y), lambda y: f(y), x)),
}


def put(mesh: Mesh, spec: P | None = None, **options: Any) -> Any:
    return jax.device_put(X, NamedSharding(mesh, P("dp") if spec is None else spec, **options))


def is_sharded(got: Any, mesh: Mesh, spec: P) -> bool:
    np.testing.assert_array_equal(np.asarray(jax.block_until_ready(got)), X)
    wanted = NamedSharding(mesh, spec, memory_kind=got.sharding.memory_kind)
    return bool(got.sharding.is_equivalent_to(wanted, got.ndim))
