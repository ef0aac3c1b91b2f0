"""Programs that a static checker accepts: to it a hint is the array type that stands in it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, assert_type

import jax
import numpy as np
import optax  # type: ignore[import-untyped]
from jax.sharding import Mesh, PartitionSpec

from typedshmap import (
    Array,
    BFloat16,
    Float,
    Int,
    Key,
    Like,
    PRNGKeyArray,
    PyTree,
    Scalar,
    Stacked,
    axis_aliases,
    axis_index,
    axis_rules,
    axis_size,
    check,
    einsum,
    explain,
    partition_specs,
    rearrange,
    reduce,
    shard,
    shard_size,
    size,
    sizes,
    typed,
    typed_jit,
    typed_shard_map,
)
from typedshmap.testing import Inputs, assert_mesh_invariant, inputs, mesh_invariant
from typedshmap.tools.explain import Comparison, Explanation

P = PartitionSpec


@typed_shard_map
def mlp(x: Float[Array, "[batch/dp] model"], w: Float[Array, "model [ff/tp]"]) -> Float[Array, "[batch/dp] [ff/tp]"]:
    return jax.nn.relu(x @ w)


def called(x: Array, w: Array) -> None:
    assert_type(mlp(x, w), Array)
    assert_type(mlp(x, w=w).mT, Array)


class Table:
    """Methods that are decorated from outside."""

    rows: Array

    @typed
    @classmethod
    def doubled(cls, x: Float[Array, "[n/dp]"]) -> Float[Array, "[n/dp]"]:
        return 2 * x

    @typed  # type: ignore[prop-decorator]  # which mypy supports nowhere
    @property
    def total(self) -> Float[Array, ""]:
        return self.rows.sum()

    @typed_shard_map
    @staticmethod
    def halved(x: Float[Array, "[n/dp]"], by: float = 2.0) -> Float[Array, "[n/dp]"]:
        return x / by


def descriptors(table: Table, x: Array) -> None:
    assert_type(Table.doubled(x), Array)
    assert_type(table.total, Array)
    assert_type(table.halved(x, by=3), Array)


def one_hint(mesh: Mesh) -> None:
    typed_shard_map(lambda x: x, mesh=mesh, in_types=Float[Array, "[n/dp]"], out_types=Float[Array, "[n/dp]"])


def decorated(mesh: Mesh) -> Callable[[Array], Array]:
    @typed_shard_map(mesh=mesh, axis_names={"dp"}, check_vma=False, axes={"rows": ("dp", "tp"), "columns": None})
    def double(x: Float[Array, "[n/rows] [m/columns]"]) -> Float[Array, "[n/rows] [m/columns]"]:
        return 2 * x

    return double


@typed
def helper(x: Float[Array, "n d"], scale: float = 1.0, *, ids: Int[Array, " n"] | None = None) -> Float[Array, "n d"]:
    del ids
    return check(x * scale, "n d") / size("n") * shard_size("d") + sizes()["n"]


@dataclass
class Weights:
    embed: Float[Array, "[vocab/tp] model"]
    layers: list[BFloat16[Array, "model [ff/tp]", P(None, "tp")]]
    key: PRNGKeyArray
    rest: PyTree[Float[Array, "..."], Literal["S"]]
    step: Scalar

    @typed
    def apply(self, x: Float[Array, "b model"]) -> Float[Array, "b ff"]:
        return x @ self.layers[0]


def first_embed(stacked: Stacked[Literal["layers"], Weights]) -> Array:
    assert_type(stacked, Weights)
    return stacked.embed[0]


class Line(NamedTuple):
    slope: Float[Array, "n [d/tp]"]
    offset: Float[Array, "[d/tp]"]


State = Like[optax.OptState, Line]


@dataclass
class Training:
    line: Line
    state: Like[optax.OptState, Line]
    anything: Like[Any, dict[str, Float[Array, "n [d/tp]"]]]


@typed_jit
def update(line: Line, state: State) -> tuple[Line, Like[optax.OptState, Line]]:
    changes, state = optax.adam(1e-3).update(line, state)
    assert_type(Training(line, state, 3).state, optax.OptState)
    changed: Any = optax.apply_updates(line, changes)
    return changed, state


def updated(line: Line) -> Line:
    return update(line, optax.adam(1e-3).init(line))[0]


@typed_shard_map(rules=[("batch", ("data", "fsdp")), ("ff", None)])
def ruled(x: Float[Array, "batch ff"]) -> Float[Array, "batch ff"]:
    return x


RULES = axis_rules({"batch": ("data", "fsdp"), "ff": "tp"}, fallback="error")


@typed(rules=RULES)
def placed_by_rules(weights: Weights) -> Weights:
    with RULES, axis_rules({"vocab": None}):
        return weights


def placed(weights: Weights, mesh: Mesh) -> Weights:
    partition_specs(Weights, like=weights)
    with axis_aliases(dp=("data", "fsdp"), tp=None):
        return shard(weights, Weights, mesh)


@typed_jit(donate_argnames="w", axes={"tp": None}, keep_unused=True)
def step(w: Float[Array, "m [f/tp]"], x: Float[Array, "[b/dp] m"], rate: float = 0.1) -> Float[Array, "m [f/tp]"]:
    return w - rate * x.sum()


class Scaled:
    @typed_jit
    def apply(self, x: Float[Array, "[b/dp] m"], by: float = 2.0) -> Float[Array, "[b/dp] m"]:
        return x * by


def stepped(w: Array, x: Array) -> str:
    gradient: Array = jax.grad(step)(step(w, x=x), Scaled().apply(x, by=3.0))
    step.clear_cache()
    Scaled().apply.trace(x)
    return step.lower(w, jax.ShapeDtypeStruct((8, 16), "float32"), rate=0.2).as_text() + str(gradient)


def numpy_hint(x: Float[np.ndarray, "n d"], key: Key[Array, ""]) -> float:
    del key
    return float(x.sum())


def scaled(x: Array, by: float) -> Array:
    return x * by


twice = typed_shard_map(partial(scaled, by=2.0), in_types=(Float[Array, "n"],), out_types=Float[Array, "n"])


def contracted(x: Float[Array, "[b/dp] m"], w: Float[Array, "m [f/tp]"]) -> Float[Array, "[b/dp] [f/tp]"]:
    w = rearrange(w, "m [(f g)/tp] -> m [(f g)/tp]", g=2)
    total: Array = reduce(x, "[b/dp] m -> m", "sum")
    del total
    return einsum(x, w, "[b/dp] m, m [f/tp] -> [b/dp] [f/tp]")


@mesh_invariant(grad=True, b=8)
@typed_shard_map
def marked(x: Float[Array, "[b/dp] m"]) -> Float[Array, "[b/dp] m"]:
    return x


def tools(x: Array) -> str:
    one: Explanation = explain(marked, mesh="dp=4", b=8, bandwidth={"dp": "400GB/s"})
    many: Comparison = explain(marked, meshes=["dp=4", {"dp": 8}])
    made: Inputs = inputs(marked, x=x)
    assert_mesh_invariant(marked, [{"dp": 2}], exclude="[0]", m=4)
    again: Array = marked(made["x"])
    return f"{one.memory.peak} {len(many)} {again.shape}"


def placed_by_shard(x: Array, tree: dict[str, Array], weights: Weights, mesh: Mesh) -> None:
    assert_type(shard(np.ones((8, 4), np.float32), Float[Array, "[b/dp] d"], mesh), Array)
    assert_type(shard(x, "[b/dp] d", mesh), Array)
    assert_type(shard(3.0, Float[Array, ""], mesh), Array)
    assert_type(shard(tree, dict[str, Float[Array, "d"]], mesh), dict[str, Array])
    assert_type(shard(weights, Weights, mesh), Weights)
    mark: Array = marked(shard(np.ones((8, 4), np.float32), Float[Array, "[b/dp] d"], mesh))
    assert_type(axis_size("dp"), int)
    assert_type(axis_index(("dp", "tp")) + mark, Array)
