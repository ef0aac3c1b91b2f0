"""``TYPEDSHMAP_CHECKS=off``: nothing is checked, read or stated, and the specs stay what they are."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    SuspectWarning,
    assume,
    check,
    psum,
    shard_size,
    size,
    typed,
    typed_jit,
    typed_shard_map,
)
from typedshmap.hints import enforcement

ROWS, WEIGHT = Float[Array, "[b/dp] [m/tp]"], Float[Array, "[m/tp] f"]
X, W = np.arange(32, dtype=np.float32).reshape(8, 4), np.ones((4, 6), np.float32)


@pytest.fixture(scope="module", autouse=True)
def off() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enforcement, "IS_ON", False)
        yield
    jax.clear_caches()  # once: whatever runs then is compiled anew


@typed
def halved(x: Float[Array, "[c/dp] f"]) -> Float[Array, "[c/dp] f"]:
    assert (size("c"), shard_size("c")) == (8, 2)
    return x / 2


def product(x: ROWS, w: WEIGHT) -> Float[Array, "[b/dp] f"]:
    y = psum(check(x @ w, "[b/dp] f +tp"), "[b/dp] f +tp -> [b/dp] f")
    return halved(assume(y, "[b/dp] f")) * size("b")


def by_hand(x: Any, w: Any) -> Any:
    return jax.lax.psum(x @ w, "tp") / 2 * 8


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_right_program_is_the_same_one(check_vma: bool, mesh: Mesh) -> None:
    ours = typed_shard_map(product, mesh=mesh, check_vma=check_vma)
    product_by_hand = lambda x, w: by_hand(x, w)  # noqa: E731 - its name is in the text
    product_by_hand.__name__ = product_by_hand.__qualname__ = "product"
    specs: dict[str, Any] = {"in_specs": (P("dp", "tp"), P("tp", None)), "out_specs": P("dp", None)}
    plain = jax.shard_map(product_by_hand, mesh=mesh, check_vma=check_vma, **specs)
    texts = [jax.jit(lambda x, w, f=f: f(x, w)).lower(X, W).as_text() for f in (ours, plain)]
    assert texts[0] == texts[1]
    np.testing.assert_allclose(jax.block_until_ready(ours(X, W)), X @ W * 4)


def own(x: Any) -> Any:
    return x + jax.lax.axis_index("tp")


WRONG: dict[str, tuple[Callable[..., Any], str, str]] = {
    "a dtype": (lambda x: x, "[b/dp] m", "[b/dp] m"),
    "a name of two sizes": (lambda x: x.T, "[b/dp] b", "b [b/dp]"),
    "a value that is not the same": (own, "[b/dp] m", "[b/dp] m"),
    "a check": (lambda x: check(x, "b c d"), "[b/dp] m", "[b/dp] m"),
    "an order": (lambda x: x, "[b/dp,tp] m", "[b/tp,dp] m"),
    "a static value": (lambda x, n="three": x * len(n), "[b/dp] m", "[b/dp] m"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_taken(name: str, mesh: Mesh) -> None:
    body, given, result = WRONG[name]
    x = X.astype(np.int32) if name == "a dtype" else X
    hints = {"in_types": Float[Array, given], "out_types": Float[Array, result]}
    f = typed_shard_map(body, mesh=mesh, check_vma=False, **hints)
    assert jax.block_until_ready(f(x)).size == x.size


def test_no_suspicion_is_told_and_no_body_runs_twice(mesh: Mesh, recwarn: pytest.WarningsRecorder) -> None:
    runs: list[int] = []

    @typed_shard_map(mesh=mesh)
    def grows(x: Float[Array, "[b/dp] m"]) -> Float[Array, ""]:
        runs.append(1)
        return jax.lax.psum(jnp.mean(x) / (4 * x.shape[0]), "dp")

    jax.block_until_ready(grows(X))
    assert runs == [1] and not [each for each in recwarn if each.category is SuspectWarning]


def test_helpers_and_typed_jit_take_what_does_not_fit(mesh: Mesh) -> None:
    @typed
    def helper(x: Float[Array, "a b c"]) -> Float[Array, "a"]:
        return x

    @typed_jit(mesh=mesh)
    def step(x: Float[Array, "[b/dp] b"]) -> Float[Array, "[b/dp] b"]:
        return helper(x)

    got = jax.block_until_ready(step(X))
    assert got.shape == X.shape and got.sharding.spec == P("dp", None)


def test_what_asks_still_answers() -> None:
    assert isinstance(X, Float[np.ndarray, "b m"]) and not isinstance(X, Float[np.ndarray, "b m k"])


PROGRAM = """
import jax, numpy as np
from typedshmap import Array, Float, typed_shard_map
SQUARE = Float[Array, "[b/dp] b"]
mesh = jax.make_mesh((1,), ("dp",), axis_types=(jax.sharding.AxisType.Auto,))
f = typed_shard_map(lambda x: x, mesh=mesh, in_types=SQUARE, out_types=SQUARE)
f(np.ones((4, 3), np.float32))
"""


@pytest.mark.slow
def test_the_environment_turns_checks_off_in_a_program() -> None:
    environment = os.environ | {"TYPEDSHMAP_CHECKS": "off"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("value", "is_on"), [("off", False), (" OFF ", False), ("on", True), ("", True), ("no", None)])
def test_the_environment_decides(value: str, is_on: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TYPEDSHMAP_CHECKS", value)
    spec = importlib.util.find_spec(enforcement.__name__)
    anew = importlib.util.module_from_spec(spec)
    if is_on is not None:
        spec.loader.exec_module(anew)
        assert anew.IS_ON is is_on
        return
    with pytest.raises(ValueError, match="TYPEDSHMAP_CHECKS in the environment must be 'on' or 'off', got 'no'"):
        spec.loader.exec_module(anew)
