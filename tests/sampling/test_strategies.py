"""The same as a strategy of hypothesis."""

import sys

import jax
import numpy as np
import pytest
from hypothesis import find, given, settings
from jax.sharding import AbstractMesh, Mesh

import typedshmap as ts
from typedshmap import Array, Float, Int, typed_shard_map
from typedshmap.testing import Inputs, strategies

MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))


@typed_shard_map
def mlp(
    x: Float[Array, "[b/dp] m"], w: Float[Array, "m [f/tp]"], ids: Int[Array, "m-1"]
) -> Float[Array, "[b/dp] [f/tp]"]:
    return x @ w


@given(strategies(mlp, mesh=MESH))
@settings(max_examples=settings.default.max_examples // 2)
def test_what_is_drawn_can_be_called(made: Inputs) -> None:
    x, w, ids = made
    with jax.set_mesh(MESH):
        got = jax.block_until_ready(mlp(*made))
    np.testing.assert_allclose(got, np.asarray(x) @ np.asarray(w), rtol=1e-4, atol=1e-5)
    assert ids.shape == (made.sizes["m"] - 1,)


@given(strategies(mlp, mesh=AbstractMesh((256, 16), ("dp", "tp")), b=512))
def test_given_sizes_stay_and_shapes_need_no_devices(made: Inputs) -> None:
    assert made["x"].shape[0] == 512 and made["w"].shape[1] % 16 == 0
    assert isinstance(made["x"], jax.ShapeDtypeStruct)


@pytest.mark.slow
def test_an_example_shrinks_to_small_sizes_that_may_be_equal() -> None:
    made = find(strategies(mlp, mesh=MESH), lambda made: True)
    assert made.sizes == {"b": 4, "m": 1, "f": 2} and made.seed == 0
    equal = find(strategies(mlp, mesh=MESH), lambda made: made.sizes["b"] == made.sizes["f"])
    assert equal.sizes == {"b": 4, "m": 1, "f": 4}


def test_that_hypothesis_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    line = "strategies: needs hypothesis, which is not installed: pip install hyp"
    with pytest.raises(ts.StructureError, match=line):
        strategies(mlp, mesh=MESH)
