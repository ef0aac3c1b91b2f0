"""How call sites write the call: at once, on closures and methods, with any number of arguments and nested hints."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import numbers
from jax.sharding import PartitionSpec as P
from pairs import mesh_of, one_program, said

from typedshmap import Array, Float, Int32, typed_shard_map

MESH = mesh_of(dp=4, tp=2)
X, Y, W = Float[Array, "[b/dp] d"], Float[Array, "[b/dp] [f/tp]"], Float[Array, "d [f/tp]"]
x, w = numbers(8, 4), numbers(4, 6)
ROWS, COLUMNS, BOTH = P("dp", None), P(None, "tp"), P("dp", "tp")


Pair = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]
"""One program twice, by hand and typed, and the arguments of both."""


def by_hand(body: Callable[..., Any], in_specs: Any, out_specs: Any, **options: Any) -> Any:
    return jax.shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options)


def matmul(x: X, w: W) -> Y:
    return x @ w


def called_at_once() -> Pair:
    return (
        lambda x, w: by_hand(matmul, (ROWS, COLUMNS), BOTH)(x, w),
        lambda x, w: typed_shard_map(matmul, mesh=MESH)(x, w),
        (x, w),
    )


def a_nested_function_that_closes_over_a_config_and_an_array() -> Pair:
    @dataclass(frozen=True)
    class Config:
        scale: float
        axis: str

    config, bias = Config(0.5, "dp"), jnp.asarray(numbers(4))

    def body(x: X) -> X:
        return config.scale * x + bias + jax.lax.axis_index(config.axis)

    return by_hand(body, ROWS, ROWS), typed_shard_map(mesh=MESH)(body), (x,)


def a_method() -> Pair:
    class Model:
        def __init__(self, w: Any) -> None:
            self.w, self.features = w, w.shape[1]

        @typed_shard_map(mesh=MESH)
        def __call__(self, x: X) -> Float[Array, "[b/dp] {self.features}"]:
            return jnp.tanh(x @ self.w)

    model = Model(w)
    return by_hand(lambda x: jnp.tanh(x @ model.w), ROWS, ROWS), model, (x,)


def any_number_of_arguments() -> Pair:
    def total(*parts: X) -> X:
        return sum(parts[1:], parts[0])

    return by_hand(total, (ROWS,) * 3, ROWS), typed_shard_map(mesh=MESH)(total), (x, 2 * x, x * x)


def hints_nested_as_specs_are() -> Pair:
    def body(tree: Any, scales: Any) -> Any:
        products = [a @ w for a, w in tree["layers"]]
        return products, {"total": sum(products), "scales": (scales[0], None)}

    rows, columns = (ROWS, COLUMNS), (X, W)
    typed = typed_shard_map(
        body,
        mesh=MESH,
        in_types=({"layers": [columns] * 2}, [Float[Array, ""], int]),
        out_types=([Y, Y], {"total": Y, "scales": (Float[Array, ""], None)}),
    )
    hand = by_hand(body, ({"layers": [rows] * 2}, [P(), None]), ([BOTH] * 2, {"total": BOTH, "scales": (P(), None)}))
    tree = {"layers": [(x, w), (2 * x, 2 * w)]}
    return (
        lambda tree, scale: hand(tree, [scale, 3]),
        lambda tree, scale: typed(tree, [scale, 3]),
        (tree, np.float32(2)),
    )


def collectives_of_every_kind() -> Pair:
    def body(x: X, w: W) -> tuple[Y, X, Float[Array, "b d"]]:
        shifted = jax.lax.ppermute(x, "dp", [(i, (i + 1) % 4) for i in range(4)])
        swapped = jax.lax.all_to_all(x.repeat(2, axis=0), "dp", split_axis=0, concat_axis=0, tiled=True)
        scattered = jax.lax.psum_scatter(swapped.repeat(2, axis=0), "dp", scatter_dimension=0, tiled=True)
        whole = jax.lax.all_gather(x, "dp", axis=0, tiled=True, to="invarying")
        return (shifted + scattered) @ w, jax.lax.pmax(x, "tp") + jax.lax.axis_index("dp"), whole

    return by_hand(body, (ROWS, COLUMNS), (BOTH, ROWS, P(None, None))), typed_shard_map(mesh=MESH)(body), (x, w)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "pair",
    [
        called_at_once,
        a_nested_function_that_closes_over_a_config_and_an_array,
        a_method,
        any_number_of_arguments,
        hints_nested_as_specs_are,
        collectives_of_every_kind,
    ],
)
def test_a_way_to_write_the_call_is_that_by_hand(pair: Callable[[], Pair]) -> None:
    hand, typed, args = pair()
    one_program(hand, typed, *args)


def test_a_decorator_without_arguments_takes_the_ambient_mesh() -> None:
    @typed_shard_map
    def product(x: X, w: W) -> Y:
        return x @ w

    with jax.set_mesh(MESH):
        one_program(jax.shard_map(matmul, in_specs=(ROWS, COLUMNS), out_specs=BOTH), product, x, w)


def shifted(x: Float[Array, "[stages/dp] ..."]) -> Float[Array, "[stages/dp] ..."]:
    return x


def ranked(x: X, rank: Int32[Array, "[ranks=4/dp]"]) -> X:
    return x + rank[0]


def biased(x: X, bias: Float[Array, "d"] = None) -> X:  # type: ignore[assignment]
    return x if bias is None else x + bias


def renamed(x: Float[Array, "[b/batch] d"]) -> Float[Array, "[b/batch] d"]:
    return x


MISTAKES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[str]]] = {
    "no dim of stages": (
        typed_shard_map(shifted, mesh=MESH),
        (np.float32(1),),
        ["ShapeError: shifted: argument 'x' has 0 dims, but its hint has at least 1"],
    ),
    "a dim without a name that does not divide": (
        typed_shard_map(lambda x: x, mesh=MESH, in_types=Float[Array, "[_/dp,tp] d"], out_types=Float[Array, "..."]),
        (numbers(12, 4),),
        [
            "ShapeError: <lambda>: argument 'x' has size 12 in dim 0, which does not divide over 'dp', 'tp' (8 shards)",
            "Hint: make dim 0 a multiple of 8, or pad it and mask the rest",
        ],
    ),
    "more ranks than the label says": (
        typed_shard_map(ranked, mesh=MESH),
        (x, np.arange(8, dtype=np.int32)),
        ["ShapeError: ranked: argument 'rank' has ranks=8, but its hint says 4"],
    ),
    "a default of None that the hint does not say": (
        typed_shard_map(biased, mesh=MESH),
        (x,),
        [
            "StructureError: biased: argument 'bias' is None, but its hint says Array",
            "Hint: write '| None' after its hint if it may be absent",
        ],
    ),
    "an alias of an alias": (
        typed_shard_map(renamed, mesh=MESH, axes={"batch": "rows", "rows": "dp"}),
        (x,),
        [
            "MeshAxisError: renamed: argument 'x' names mesh axis 'rows' (as 'batch'), which is not among the mesh's "
            "axes 'dp', 'tp'",
            "Hint: let 'batch' stand for axes of the mesh",
        ],
    ),
}


@pytest.mark.parametrize(("typed", "args", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_of_a_call_site_is_named_with_its_cure(typed: Any, args: Any, words: list[str]) -> None:
    assert said(typed, *args) == words
