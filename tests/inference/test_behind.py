"""A sum forgotten in a loop: JAX refuses the carry before the body is analyzed, and ours says why."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh

from typedshmap import Array, Float, Float32, VaryingError, typed, typed_shard_map

Stream = Float32[Array, "[batch/dp] model"]
Up, Down = Float32[Array, "model [ff/tp]"], Float32[Array, "[ff/tp] model"]
Ups, Downs = Float32[Array, "layers model [ff/tp]"], Float32[Array, "layers [ff/tp] model"]
x, ups, downs = np.ones((8, 4), np.float32), np.ones((3, 4, 16), np.float32), np.ones((3, 16, 4), np.float32)


@typed
def mlp(x: Stream, up: Up, down: Down) -> Stream:
    return jax.nn.relu(x @ up) @ down


@typed
def block(x: Stream, up: Up, down: Down) -> Stream:
    return x + mlp(x, up, down)


def scanned(x: Any, ups: Any, downs: Any) -> Any:
    return lax.scan(lambda x, w: (block(x, *w), None), x, (ups, downs))[0]


def rematerialised(x: Any, ups: Any, downs: Any) -> Any:
    return lax.scan(jax.checkpoint(lambda x, w: (block(x, *w), None)), x, (ups, downs))[0]


def repeated(x: Any, ups: Any, downs: Any) -> Any:
    return lax.fori_loop(0, 2, lambda _, x: block(x, ups[0], downs[0]), x)


def until(x: Any, ups: Any, downs: Any) -> Any:
    return lax.while_loop(lambda x: jnp.all(x < 9), lambda x: block(x, ups[0], downs[0]), x)


def differentiated(x: Any, ups: Any, downs: Any) -> Any:
    return jax.grad(lambda x: scanned(x, ups, downs).sum())(x)


LOOPS: list[Callable[..., Any]] = [scanned, rematerialised, repeated, until, differentiated]


@pytest.mark.parametrize("loop", LOOPS)
def test_the_helper_that_forgot_the_sum_is_named(mesh: Mesh, loop: Callable[..., Any]):
    @typed_shard_map(mesh=mesh)
    def f(x: Stream, ups: Ups, downs: Downs) -> Stream:
        return loop(x, ups, downs)

    with pytest.raises(VaryingError) as raised:
        jax.eval_shape(f, x, ups, downs)
    line = mlp.__wrapped__.__code__.co_firstlineno + 2
    assert str(raised.value) == (
        "mlp: return value varies over 'tp', which its hint does not mention\n"
        "\n"
        '    return: Float32[Array, "[batch/dp] model"]\n'
        "    got f32[2,4]{V:(dp,tp)} per shard\n"
        "\n"
        "Mesh: dp=4, tp=2\n"
        f"At: test_behind.py:{line} (mlp)\n"
        f"Hint: the contraction over ff (sharded over 'tp') at test_behind.py:{line} leaves partial sums: "
        "psum over 'tp', or write '+tp' if its sum is taken later"
    )
    assert isinstance(raised.value.__cause__, TypeError)
    assert "carry" in str(raised.value.__cause__)


# No helper says anything about what is in the loop; the hint of the result does.

Part, Weight, Sum = Float32[Array, "[b/dp] [m/tp]"], Float32[Array, "[m/tp] f"], Float32[Array, "[b/dp] f"]
w = np.ones((4, 5), np.float32)


def nothing(x: Any) -> Any:
    return lax.pcast(jnp.zeros((x.shape[0], 5), np.float32), "dp", to="varying")


def in_scan(x: Any, w: Any) -> Any:
    return lax.scan(lambda total, _: (total + x @ w, None), nothing(x), None, length=3)[0]


def in_fori_loop(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, total: total + x @ w, nothing(x))


def in_while_loop(x: Any, w: Any) -> Any:
    start = (0, nothing(x))
    return lax.while_loop(lambda carry: carry[0] < 3, lambda carry: (carry[0] + 1, carry[1] + x @ w), start)[1]


def in_a_branch(x: Any, w: Any) -> Any:
    return lax.cond(lax.pmax(x.sum(), ("dp", "tp")) > 1, lambda: x @ w, lambda: nothing(x))


def in_one_of_three(x: Any, w: Any) -> Any:
    which = lax.pmax(x.sum(), ("dp", "tp")).astype(int)
    return lax.switch(which, [lambda: nothing(x), lambda: x @ w, lambda: nothing(x) + 1])


def in_a_helper_under_jit(x: Any, w: Any) -> Any:
    return jax.jit(in_scan)(x, w)


def in_a_checkpoint(x: Any, w: Any) -> Any:
    return jax.checkpoint(in_scan)(x, w)


HIDDEN = [in_scan, in_fori_loop, in_while_loop, in_a_branch, in_one_of_three, in_a_helper_under_jit, in_a_checkpoint]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("body", HIDDEN)
def test_a_forgotten_sum_comes_before_what_jax_says_of_types(mesh: Mesh, body: Callable[..., Any], check_vma: bool):
    f = typed_shard_map(body, mesh=mesh, in_types=(Part, Weight), out_types=Sum, check_vma=check_vma)
    with pytest.raises(VaryingError) as raised:
        jax.eval_shape(f, x, w)
    lines = str(raised.value).splitlines()
    assert lines[0] == f"{body.__name__}: return value varies over 'tp', which its hint does not mention"
    assert any(line.startswith("At: test_behind.py:") for line in lines)


@pytest.mark.parametrize("body", HIDDEN)
def test_where_only_types_differ_jax_says_so(mesh: Mesh, body: Callable[..., Any]):
    def summed(x: Any, w: Any) -> Any:
        return lax.psum(body(x, w), "tp")

    f = typed_shard_map(summed, mesh=mesh, in_types=(Part, Weight), out_types=Sum)
    with pytest.raises(TypeError, match="manual ax"):
        jax.eval_shape(f, x, w)


def test_a_gradient_is_not_judged_without_jaxs_types(mesh: Mesh):
    """Without them jax.grad sums nothing, so that the gradient of a replicated weight is of each shard's rows."""

    def gradient(x: Any, w: Any) -> Any:
        loss = jax.grad(lambda w: lax.psum(in_scan(x, w), "tp").sum())
        return loss(w)

    f = typed_shard_map(gradient, mesh=mesh, in_types=(Part, Weight), out_types=Weight)
    with pytest.raises(TypeError, match="manual ax"):
        jax.eval_shape(f, x, w)


def test_another_refusal_of_jax_stays_as_it_is(mesh: Mesh):
    @typed_shard_map(mesh=mesh)
    def f(x: Stream, up: Up, down: Down) -> Stream:
        def step(x: Any, _: None) -> Any:
            mlp(x, up, down)
            return x.astype(jnp.float16), None

        return lax.scan(step, x, None, length=2)[0]

    with pytest.raises(TypeError, match="carry"):
        jax.eval_shape(f, x, ups[0], downs[0])


def test_a_doubt_that_the_reading_dispels_is_no_error(mesh: Mesh):
    """Shards that are equal may be called parts; what is computed of them is equal, though typed as varying."""

    @typed
    def product(x: Stream, up: Up, down: Down) -> Float[Array, "[batch/dp] model"]:
        return lax.pcast(x, "tp", to="varying") @ up @ down

    @typed_shard_map(mesh=mesh)
    def f(x: Stream) -> Stream:
        ones = lax.pcast(jnp.ones((4, 8)), "tp", to="varying")

        def step(total: Any, up: Any) -> Any:
            return total + lax.pmax(product(x, up, up.T), "tp"), None

        return lax.scan(step, x, jnp.stack([ones, ones]))[0]

    assert f(x).shape == (8, 4)
