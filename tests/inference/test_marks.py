"""Where a mark may be left out: what is equal on all shards fits, however JAX types it, with two exceptions."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    Int,
    TypedShmapError,
    VaryingError,
    all_gather,
    check,
    einsum,
    rearrange,
    typed,
    typed_shard_map,
)

X = Float[Array, "[b/dp] d"]
W = Float[Array, "[d/dp] n"]
Y = Float[Array, "[b/dp] n"]
x, w = np.ones((8, 16), np.float32), np.full((16, 12), 0.5, np.float32)


def gathered(w: Any) -> Any:
    return lax.all_gather(w, "dp", tiled=True)


@typed
def product(x: X, w: Float[Array, "d n"]) -> Y:
    return jnp.tanh(x @ w)


@typed
def halved(w: Float[Array, "d n"]) -> Float[Array, "d n"]:
    return w / 2


USES: dict[str, Callable[[Any, Any], Any]] = {
    "an argument of a helper": product,
    "a result of a helper": lambda x, w: x @ halved(w),
    "a check": lambda x, w: x @ check(w, "d n"),
    "a check of a tree": lambda x, w: x @ check({"w": [w]}, dict[str, list[Float[Array, "d n"]]])["w"][0],
    "a pattern": lambda x, w: einsum(x, w, "[b/dp] d, d n -> [b/dp] n"),
    "a pattern of what a pattern made": lambda x, w: x @ rearrange(rearrange(w, "d n -> n d"), "n d -> d n"),
    "a member of a union": lambda x, w: x @ check(w, Int[Array, "d n"] | Float[Array, "d n"]),
}


def in_a_scan(use: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: lax.scan(lambda c, _: (c + use(x, w), None), 0 * use(x, w), None, length=2)[0]


def differentiated(use: Callable[..., Any]) -> Callable[..., Any]:
    def value_and_gradient(x: Any, w: Any) -> Any:
        return use(x, w) + 0 * jax.grad(lambda x: (use(x, w) ** 2).sum())(x)[:, :12]

    return value_and_gradient


WRAPS: dict[str, Callable[..., Any]] = {
    "alone": lambda use: use,
    "under jit": jax.jit,
    "under a checkpoint": jax.checkpoint,
    "in a scan": in_a_scan,
    "differentiated": differentiated,
    "a checkpoint in a scan, differentiated": lambda use: differentiated(in_a_scan(jax.checkpoint(use))),
    "in a branch": lambda use: lambda x, w: lax.cond(lax.pmax(x.max(), "dp") > 0, use, lambda x, w: -use(x, w), x, w),
}


def form(body: Callable[..., Any], mesh: Mesh, **options: Any) -> Callable[..., Any]:
    return typed_shard_map(lambda x, w: body(x, w), mesh=mesh, in_types=(X, W), out_types=Y, **options)


def trace(f: Callable[..., Any]) -> Any:
    return jax.eval_shape(lambda x, w: f(x, w), x, w)


@pytest.mark.sample(5)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_was_gathered_needs_no_mark(use: Any, wrap: Any, check_vma: bool, mesh: Mesh) -> None:
    wrapped = wrap(lambda x, w: use(x, w))
    trace(form(lambda x, w: wrapped(x, gathered(w)), mesh, check_vma=check_vma))


@pytest.mark.sample(5)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_differs_does(use: Any, wrap: Any, check_vma: bool, mesh: Mesh) -> None:
    wrapped = wrap(lambda x, w: use(x, w))
    with pytest.raises(TypedShmapError) as caught:
        trace(form(lambda x, w: wrapped(x, jnp.tile(w, (4, 1))), mesh, check_vma=check_vma))
    assert "varies over 'dp', which" in str(caught.value).splitlines()[0]


def test_the_place_in_the_users_source_is_reported(mesh: Mesh) -> None:
    def wrong(x: Any, w: Any) -> Any:
        w = jnp.tile(w, (4, 1))
        return x @ check(w, "d n")

    with pytest.raises(VaryingError) as caught:
        trace(form(wrong, mesh))
    line = wrong.__code__.co_firstlineno + 2
    assert f"At: test_marks.py:{line} (" in str(caught.value)


# The two places that stay on JAX's own types


def test_what_leaves_the_region_is_as_jax_types_it(mesh: Mesh) -> None:
    leave = typed_shard_map(gathered, mesh=mesh, in_types=(W,), out_types=Float[Array, "d n"])
    with pytest.raises(VaryingError, match="return value varies over 'dp'"):
        jax.eval_shape(leave, w)
    same = typed_shard_map(
        lambda w: all_gather(w, "[d/dp] n -> d n"), mesh=mesh, in_types=(W,), out_types=Float[Array, "d n"]
    )
    np.testing.assert_array_equal(jax.block_until_ready(same(w)), w)


def test_without_check_vma_what_was_gathered_leaves(mesh: Mesh) -> None:
    leave = typed_shard_map(gathered, mesh=mesh, check_vma=False, in_types=(W,), out_types=Float[Array, "d n"])
    np.testing.assert_array_equal(jax.block_until_ready(leave(w)), w)


@pytest.mark.parametrize(("hint", "is_refused"), [("", True), ("~dp", False), ("1", False)])
def test_a_loss_that_is_typed_as_varying_is_refused(hint: str, is_refused: bool, mesh: Mesh) -> None:
    @typed
    def loss(w: Float[Array, "d n"]) -> Float[Array, hint]:
        return jnp.sum(w) if hint != "1" else jnp.sum(w)[None]

    def body(x: Any, w: Any) -> Any:
        loss(gathered(w))
        return x @ gathered(w)

    if not is_refused:
        trace(form(body, mesh))
        return
    with pytest.raises(VaryingError, match="loss: return value varies over 'dp'"):
        trace(form(body, mesh))


# Traced more than once


def test_a_region_that_is_differentiated_as_it_is_traced_is_read_once(mesh: Mesh) -> None:
    right = form(lambda x, w: product(x, gathered(w)), mesh)
    gradient = jax.grad(lambda w: (right(x / 20, w) ** 2).sum())
    plain = jax.grad(lambda w: (jnp.tanh(x / 20 @ w) ** 2).sum())
    np.testing.assert_allclose(jax.block_until_ready(jax.jit(gradient)(w)), plain(w), rtol=1e-5)
    wrong = form(lambda x, w: product(x, jnp.tile(w, (4, 1))), mesh)
    with pytest.raises(VaryingError):
        jax.eval_shape(jax.grad(lambda w: (wrong(x, w) ** 2).sum()), w)
    with pytest.raises(VaryingError):
        jax.eval_shape(jax.vmap(lambda x: wrong(x, w)), x[None])


def test_what_only_a_gradient_states_is_compared_with_what_was_proven(mesh: Mesh) -> None:
    @jax.custom_vjp
    def scaled(x: Any, w: Any) -> Any:
        return x @ gathered(w)

    def forward(x: Any, w: Any) -> Any:
        return product(x, jnp.tile(w, (4, 1))), None  # the primal function is right, this is not

    scaled.defvjp(forward, lambda _, g: (jnp.zeros((2, 16)), jnp.zeros((4, 12))))
    f = form(scaled, mesh)
    trace(f)
    with pytest.raises(VaryingError):
        jax.eval_shape(jax.grad(lambda w: (f(x, w) ** 2).sum()), w)


def test_a_body_that_raises_gets_a_note_on_what_was_not_found_out(mesh: Mesh) -> None:
    def body(x: Any, w: Any) -> Any:
        check(gathered(w), "d n")
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as caught:
        trace(form(body, mesh))
    (note,) = [note for note in caught.value.__notes__ if note.startswith("typedshmap")]
    assert note.splitlines()[1] == "Not checked: whether checked value of <lambda> is equal over 'dp', as \"d n\" says"


# Where nothing is read


def test_in_a_plain_shard_map_the_types_of_jax_decide(mesh: Mesh) -> None:
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P("dp"), P("dp")), out_specs=P("dp"))
    def plain(x: Any, w: Any) -> Any:
        return product(x, gathered(w))

    with pytest.raises(VaryingError, match="argument 'w' varies over 'dp'"):
        jax.eval_shape(plain, x, w)


def test_isinstance_goes_by_types_and_by_what_operations_know(mesh: Mesh) -> None:
    seen: list[bool] = []

    def body(x: Any, w: Any) -> Any:
        known = all_gather(w, "[d/dp] n -> d n ~dp")
        seen.extend(isinstance(value, Float[Array, "d n"]) for value in (gathered(w), known))
        return x @ known

    trace(form(body, mesh))
    assert seen == [False, True]
