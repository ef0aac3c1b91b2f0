"""What is like a value that fitted fits, and what only looks like one is found all the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import mesh_of
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, TypedShmapError, all_gather, check, typed, typed_jit, typed_shard_map

Wide = Float[Array, "[b/dp] d"]
x = jnp.ones((8, 4))


def of_literal() -> Callable[[Any], Any]:
    @typed
    def f(mode: Literal["sum", "mean"]) -> None: ...

    return f


def of_flag() -> Callable[[Any], Any]:
    @typed
    def f(flag: bool) -> None: ...

    return f


def of_option() -> Callable[[Any], Any]:
    @typed
    def f(x: Float[Array, "b d"], axis: int | None) -> None: ...

    return lambda axis: f(x, axis)


def of_size() -> Callable[[Any], Any]:
    @typed
    def f(x: Float[Array, "b {size}"], size: int) -> None: ...

    return lambda size: f(x, size)


def of_keyword() -> Callable[[Any], Any]:
    @typed
    def f(
        x: Float[Array, "b d"], y: Float[Array, "b d"] | None = None, z: Float[Array, "d b"] | None = None
    ) -> None: ...

    return lambda name: f(x, **{name: x})


def of_placed() -> Callable[[Any], Any]:
    return lambda spec: check(jax.device_put(x, NamedSharding(mesh_of(4, 2), spec)), Wide)


def of_numpy() -> Callable[[Any], Any]:
    @typed_jit(mesh=mesh_of(4, 2))
    def f(x: Wide) -> Wide:
        return x

    return lambda dtype: f(np.ones((8, 4), dtype))


def of_varying() -> Callable[[Any], Any]:
    """A shard of ``y`` has the type of all of ``x``, gathered so that JAX types it as varying."""

    @typed
    def same(z: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return z

    @typed_shard_map(mesh=mesh_of(4, 2))
    def f(x: Wide, y: Float[Array, "[c/dp] d"], names: str) -> Wide:
        gathered = all_gather(x, "[b/dp] d -> b d ~dp")
        for name in names:
            same(gathered if name == "x" else y)
        return x

    return lambda names: jax.eval_shape(lambda x, y: f(x, y, names), x, jnp.ones((32, 4)))


class Layer(NamedTuple):
    gain: Float[Array, "d"]
    others: list[Float[Array, "..."]]


def of_tree(check_vma: bool) -> Callable[[Any], Any]:
    """Trees of which the arrays are gathered, or of one shard."""

    @typed
    def scaled(x: Wide, layer: Layer) -> tuple[Wide, Layer]:
        return x * layer.gain, layer

    @typed_shard_map(mesh=mesh_of(4, 2), check_vma=check_vma)
    def f(x: Wide, gain: Float[Array, "[d/dp]"], kinds: list[str]) -> Wide:
        whole = jax.lax.all_gather(gain, "dp", tiled=True)
        layers = {
            "gathered": Layer(whole, [whole]),
            "doubled": Layer(2 * whole, [whole]),
            "with more": Layer(whole, [whole, whole]),
            "with less": Layer(whole, []),
            "of a shard": Layer(jnp.tile(gain, 4), [whole]),
            "by shard": Layer(whole * jax.lax.axis_index("dp"), [whole]),
            "of another size": Layer(jnp.tile(whole, 2), [whole]),
            "with one of a shard": Layer(whole, [whole, x]),
        }
        for kind in kinds:
            x, layer = scaled(x, layers[kind])
            assert layer.gain is layers[kind].gain
        return x

    return lambda kinds: jax.eval_shape(lambda x, gain: f(x, gain, kinds), x, jnp.ones(4))


FITTED = ["gathered", "gathered", "doubled", "with more", "with less"]


def of_stated() -> Callable[[Any], Any]:
    """Tracers of one type, of which the hints of the function state other shardings."""

    @typed
    def wide(z: Wide) -> None: ...

    @typed_jit(mesh=mesh_of(4, 2))
    def f(x: Wide, y: Float[Array, "b [d/tp]"], names: str) -> Wide:
        for name in names:
            wide(x if name == "x" else y)
        return x

    return lambda names: f.eval_shape(x, x, names)


class Config:
    heads = 4


def of_object() -> Callable[[Any], Any]:
    @typed
    def f(x: Float[Array, "b d"], config: Config) -> None: ...

    return lambda config: f(x, config)


CASES: dict[str, tuple[Callable[[], Callable[[Any], Any]], Any, Any]] = {
    "another literal": (of_literal, "sum", "max"),
    "a number equal to True": (of_flag, True, 1),
    "a value beside an array": (of_option, None, "rows"),
    "the size that an argument says": (of_size, 4, 5),
    "another parameter": (of_keyword, "y", "z"),
    "another sharding": (of_placed, P("dp", None), P(None, "tp")),
    "another dtype of NumPy": (of_numpy, np.float32, np.int32),
    "another sharding that is stated": (of_stated, "xx", "xy"),
    "another object": (of_object, Config(), Config),
    "a shard of the type of a gathered one": (of_varying, "x", "y"),
    "the same in one trace": (of_varying, "xx", "xy"),
    **{
        f"a tree {kind}, {check_vma=}": (partial(of_tree, check_vma), FITTED, [*FITTED, kind])
        for kind in ("of a shard", "by shard", "of another size", "with one of a shard")
        for check_vma in (True, False)
    },
}


def said(f: Callable[[Any], Any], value: Any) -> str | None:
    try:
        f(value)
    except TypedShmapError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("make", "right", "wrong"), CASES.values(), ids=CASES)
def test_what_only_looks_like_a_value_that_fitted_is_found(make: Any, right: Any, wrong: Any) -> None:
    alone, f = said(make(), wrong), make()
    assert alone is not None
    assert [said(f, right), said(f, wrong), said(f, right)] == [None, alone, None]
