"""``Stacked["layers", Layer]``: leading dims for every array of a hint, in signatures, at rest and through scan."""

import pickle
from typing import Any, Literal, NamedTuple, Optional, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype import beartype
from expecting import numbers
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    PyTree,
    Stacked,
    TypedShmapError,
    axis_rules,
    check,
    partition_specs,
    shard,
    size,
    typed,
    typed_shard_map,
)

X = Float[Array, "[b/dp] m"]
W = Float[Array, "m [f/tp]"]
V = Float[Array, "[f/tp] m"]


class Layer(NamedTuple):
    w: W
    v: V


class Named(TypedDict):
    w: W


x, layers = numbers(8, 4), Layer(numbers(3, 4, 6), numbers(3, 6, 4))


# What it says


@pytest.mark.parametrize(
    ("hint", "specs"),
    [
        (Stacked["layers", W], P(None, None, "tp")),
        (Stacked["[layers/dp]", W], P("dp", None, "tp")),
        (Stacked["[stages/pp] repeats", W], P("pp", None, None, "tp")),
        (Stacked["3", Float[Array, ""]], P(None)),
        (Stacked["", W], P(None, "tp")),
        (Stacked["layers", Stacked["blocks", V]], P(None, None, "tp", None)),
        (Stacked["layers", Layer], Layer(P(None, None, "tp"), P(None, "tp", None))),
        (Stacked["layers", Named], {"w": P(None, None, "tp")}),
        (Stacked["layers", tuple[W, V]], (P(None, None, "tp"), P(None, "tp", None))),
        (Stacked["n", Float[Array, "a b", P("dp")]], P(None, "dp", None)),
        (Stacked[Literal["layers"], W], P(None, None, "tp")),
    ],
)  # fmt: skip
def test_every_array_has_the_leading_dims(hint: Any, specs: Any) -> None:
    assert partition_specs(hint) == specs


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Stacked["n", list[W]], [numbers(3, 4, 6)] * 2),
        (Stacked["n", dict[str, W]], {"a": numbers(3, 4, 6)}),
        (Stacked["n", Optional[W]], None),
        (Stacked["n", W | None], numbers(3, 4, 6)),
        (Stacked["n", PyTree[W]], {"a": [numbers(3, 4, 6)]}),
        (Stacked["n", PyTree[Layer]], [layers]),
        (Stacked["n", Array], numbers(3, 4, 6)),
        (Stacked["3", tuple[W, ...]], (numbers(3, 4, 6),) * 3),
    ],
)
def test_values_of_every_kind_are_stacked(mesh: Mesh, hint: Any, value: Any) -> None:
    f = typed_shard_map(lambda tree: tree, mesh=mesh, in_types=(hint,), out_types=hint)
    jax.tree.map(np.testing.assert_array_equal, jax.block_until_ready(f(value)), value)


def test_isinstance_and_beartype_take_it() -> None:
    @beartype
    def f(layers: Stacked["layers", W]) -> None: ...  # type: ignore[valid-type]

    f(jnp.ones((3, 4, 6)))
    assert isinstance(jnp.ones((3, 4, 6)), Stacked["layers", W])
    assert not isinstance(jnp.ones((4, 6)), Stacked["layers", W])
    with pytest.raises(Exception, match="has 2 dims, but its hint has 3"):
        f(jnp.ones((4, 6)))


def test_it_is_pickled_as_it_was_written() -> None:
    again = pickle.loads(pickle.dumps(Stacked["[layers/dp]", Layer]))
    assert partition_specs(again) == partition_specs(Stacked["[layers/dp]", Layer])


# In use


def forward(x: Any, layers: Any) -> Any:
    for w, v in zip(*layers, strict=True):
        x = x + jnp.maximum(x @ w, 0) @ v
    return x


@typed
def block(x: X, layer: Layer) -> X:
    h = check(jax.nn.relu(x @ layer.w), "[b/dp] [f/tp]")
    return x + jax.lax.psum(h @ layer.v, "tp")


def test_scan_goes_through_stacked_layers(mesh: Mesh) -> None:
    @jax.jit
    @typed_shard_map(mesh=mesh)
    def run(x: X, layers: Stacked["layers", Layer]) -> X:
        assert (size("layers"), layers.w.shape) == (3, (3, 4, 3))
        return jax.lax.scan(lambda x, layer: (block(x, layer), None), x, layers)[0]

    np.testing.assert_allclose(jax.block_until_ready(run(x, layers)), forward(x, layers), rtol=1e-5)


def test_gradients_come_back_stacked(mesh: Mesh) -> None:
    @jax.jit
    @typed_shard_map(mesh=mesh)
    def gradients(x: X, layers: Stacked["layers", Layer]) -> Stacked["layers", Layer]:
        def loss(layers: Layer) -> Any:
            y = jax.lax.scan(lambda x, layer: (block(x, layer), None), x, layers)[0]
            return jax.lax.psum((y * y).sum(), "dp")

        return jax.grad(loss)(layers)

    expected = jax.jit(jax.grad(lambda layers: (forward(x, layers) ** 2).sum()))(layers)
    for got, want in zip(jax.block_until_ready(gradients(x, layers)), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_layers_that_are_split_among_stages_vary_row_by_row(mesh: Mesh) -> None:
    @typed
    def row(x: Float[Array, "b m ~dp"], w: Float[Array, "m [f/tp] ~dp"]) -> Float[Array, "b [f/tp] ~dp"]:
        return x @ w

    @jax.jit
    @typed_shard_map(mesh=mesh)
    def run(x: Float[Array, "b m"], ws: Stacked["[layers/dp]", W]) -> Float[Array, "[layers/dp] b [f/tp]"]:
        return jax.lax.scan(lambda _, w: (None, row(x, w)), None, ws)[1]

    ws = numbers(8, 4, 6)
    np.testing.assert_allclose(jax.block_until_ready(run(x, ws)), np.einsum("bm,lmf->lbf", x, ws), rtol=1e-5)


def test_rules_know_the_leading_dim(mesh: Mesh) -> None:
    with axis_rules({"layers": "dp"}):
        assert partition_specs(Stacked["layers", W]) == P("dp", None, "tp")


# What it refuses


class Recursive(NamedTuple):
    w: W
    inner: Optional["Recursive"]


def test_a_class_that_holds_itself_is_stacked_at_every_level(mesh: Mesh) -> None:
    placed = shard(Recursive(numbers(3, 4, 6), Recursive(numbers(3, 4, 6), None)), Stacked["n", Recursive], mesh)
    assert placed.inner.w.sharding.spec == P(None, None, "tp")


class Endless(NamedTuple):
    w: W
    inner: "Optional[Stacked['n', Endless]]"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Stacked["layers"],
            'Stacked[...]: expects leading dims and a hint, as in Stacked["layers", Layer]',
        ),
        (lambda: Stacked[W, "layers"], "Stacked[Float[Array, \"m [f/tp]\"], ...]: the leading dims are a string"),
        (lambda: partition_specs(Stacked["layers", int]), "Stacked['layers', int]: int holds no arrays"),
        (lambda: partition_specs(Stacked["layers", Any]), "Stacked['layers', Any]: Any holds no arrays"),
        (lambda: partition_specs(Stacked["a, b", W]), 'Stacked["a, b", Float[Array, "m [f/tp]"]]: '),
        (lambda: partition_specs(Stacked["...", Float[Array, "... d"]]), 'Float[Array, "... ... d"]: '),
        (lambda: partition_specs(Stacked["[a/tp]", W]), "mesh axis 'tp' is used twice"),
        (lambda: partition_specs(Stacked), "expects leading dims and a hint"),
        (lambda: partition_specs(Endless), "Stacked['n', Endless] is inside of Endless itself"),
    ],
)  # fmt: skip
def test_what_cannot_be_stacked_is_refused(make: Any, message: str) -> None:
    with pytest.raises(TypedShmapError) as caught:
        make()
    assert message in str(caught.value).splitlines()[0]
