"""Control flow, rematerialisation and derivatives are those of hand-written ``jax.shard_map``, checks and all.

Each body is written once, for two vocabularies: ours, and one in which a check is nothing and an
operation is its mathematics in plain JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import expect_same_program
from expecting import fails, same
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, ShapeError, check, einsum, typed, typed_shard_map

# The programs are about other things, and do not all mean something.
pytestmark = pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")

X, U, V = Float[Array, "[b/dp] d"], Float[Array, "d [f/tp]"], Float[Array, "[f/tp] d"]
BY_ROWS = P("dp", None)
x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
up, down = x[:4, :2].repeat(3, 1) / 3, x[2:].copy() / 3
ARGS = (x, up, down)

OURS = SimpleNamespace(
    check=check,
    typed=typed,
    up=lambda x, w: einsum(x, w, "[b/dp] d, d [f/tp] -> [b/dp] [f/tp]"),
    down=lambda h, w: einsum(h, w, "[b/dp] [f/tp], [f/tp] d -> [b/dp] d"),
)
PLAIN = SimpleNamespace(
    check=lambda x, _: x,
    typed=lambda f: f,
    up=lambda x, w: jnp.einsum("bd,df->bf", x, w),
    down=lambda h, w: jax.lax.psum(jnp.einsum("bf,fd->bd", h, w), "tp"),
)
Body = Callable[[Any], Callable[..., Any]]


def block(of: Any) -> Callable[..., Any]:
    @of.typed
    def block(x: X, up: U, down: V) -> X:
        h = checkpoint_name(of.check(jnp.tanh(of.up(x, up)), "[b/dp] [f/tp]"), "h")
        return x + of.down(h, down)

    return block


def total(of: Any) -> Callable[..., Any]:
    def total(x: X, up: U, down: V) -> Float[Array, ""]:
        return of.check(jax.lax.psum((block(of)(x, up, down) ** 2).sum(), "dp"), "")

    return total


def twice(body: Body, mesh: Mesh, out: Any = X, spec: P = BY_ROWS, **options: Any) -> tuple[Any, Any]:
    """A body mapped by its hints, and by hand."""
    hints = {"in_types": (X, U, V), "out_types": out}
    specs = {"in_specs": (P("dp", None), P(None, "tp"), P("tp", None)), "out_specs": spec}
    return (
        typed_shard_map(body(OURS), mesh=mesh, **hints, **options),
        jax.shard_map(body(PLAIN), mesh=mesh, **specs, **options),
    )


# Inside of a body


def of_scan(of: Any) -> Callable[..., Any]:
    def step(x: Any, layer: Any) -> Any:
        return of.check(block(of)(x, *layer), "[b/dp] d"), of.check(x.sum(-1), "[b/dp]")

    return lambda x, up, down: jax.lax.scan(step, x, (jnp.stack([up] * 3), jnp.stack([down] * 3)))[0]


def of_reversed_scan(of: Any) -> Callable[..., Any]:
    def step(x: Any, _: Any) -> Any:
        return of.check(x * 2, "[b/dp] d"), of.check(x[0], "d ~dp")

    return lambda x, up, down: jax.lax.scan(step, x, length=2, reverse=True, unroll=2)[0]


def of_while(of: Any) -> Callable[..., Any]:
    def step(carry: Any) -> Any:
        return carry[0] + 1, of.check(carry[1] * 2, "[b/dp] d")

    return lambda x, up, down: jax.lax.while_loop(lambda carry: carry[0] < 3, step, (0, x))[1]


def of_while_until_all_agree(of: Any) -> Callable[..., Any]:
    def more(x: Any) -> Any:
        return of.check(jax.lax.psum((x**2).sum(), "dp"), "") < 1000

    return lambda x, up, down: jax.lax.while_loop(more, lambda x: of.check(x * 2, "[b/dp] d"), x)


def of_fori(of: Any) -> Callable[..., Any]:
    return lambda x, up, down: jax.lax.fori_loop(0, 3, lambda _, x: of.check(block(of)(x, up, down), "[b/dp] d"), x)


def of_cond(of: Any) -> Callable[..., Any]:
    def run(x: Any, up: Any, down: Any) -> Any:
        return jax.lax.cond(x.max() > 0, lambda x: of.check(x * 2, "[b/dp] d"), lambda x: of.check(-x, "[b/dp] d"), x)

    return run


def of_switch(of: Any) -> Callable[..., Any]:
    branches = [lambda x, up, down: x, lambda *args: block(of)(*args), lambda x, up, down: of.check(-x, "[b/dp] d")]
    return lambda *args: jax.lax.switch(1, branches, *args)


def of_map(of: Any) -> Callable[..., Any]:
    return lambda x, up, down: jax.lax.map(lambda row: of.check(jnp.sin(row), "d ~dp"), x)


def of_map_in_batches(of: Any) -> Callable[..., Any]:
    return lambda x, up, down: jax.lax.map(lambda row: of.check(jnp.sin(row), "d ~dp"), x, batch_size=2)


def of_associative_scan(of: Any) -> Callable[..., Any]:
    return lambda x, up, down: of.check(jax.lax.associative_scan(jnp.multiply, x, axis=1), "[b/dp] d")


def of_vmap(of: Any) -> Callable[..., Any]:
    def row(x: Any, up: Any, down: Any) -> Any:
        return of.check(x * 2, "d ~dp") + of.check(down, "[f/tp] d").sum()

    return lambda x, up, down: jax.lax.pmean(jax.vmap(row, (0, None, None))(x, up, down), "tp")


def of_vmap_in_vmap(of: Any) -> Callable[..., Any]:
    return lambda x, up, down: jax.vmap(jax.vmap(lambda one: of.check(jnp.exp(one), "~dp")))(x)


def of_gradient(of: Any) -> Callable[..., Any]:
    return lambda x, up, down: of.check(jax.grad(lambda x: total(of)(x, up, down))(x), "[b/dp] d")


def of_linear_transpose(of: Any) -> Callable[..., Any]:
    return lambda x, up, down: jax.linear_transpose(lambda x: of.check(3 * x, "[b/dp] d"), x)(x)[0]


def of_jit(of: Any) -> Callable[..., Any]:
    @jax.jit
    @of.typed
    @jax.jit
    def doubled(x: X) -> X:
        return of.check(x * 2, "[b/dp] d")

    return lambda x, up, down: doubled(x)


def of_value_and_gradient(of: Any) -> Callable[..., Any]:
    def run(x: Any, up: Any, down: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda x: jax.lax.psum((x**2).sum(), "dp"))(x)
        return gradient * of.check(value, "") / value

    return run


def of_vmap_over_columns(of: Any) -> Callable[..., Any]:
    return lambda x, up, down: jax.vmap(lambda column: of.check(column * 2, "[b/dp]"), in_axes=1, out_axes=1)(x)


def of_vmap_of_a_helper(of: Any) -> Callable[..., Any]:
    @of.typed
    def helper(row: Float[Array, "d ~dp"], w: Float[Array, ""]) -> Float[Array, "d ~dp"]:
        return row * w

    return lambda x, up, down: jax.vmap(helper, in_axes=(0, None))(x, jnp.float32(2))


def of_checkpoint(of: Any) -> Callable[..., Any]:
    return lambda x, up, down: jax.checkpoint(lambda x: of.check(x * 2, "[b/dp] d"))(x)


def of_custom_vjp(of: Any) -> Callable[..., Any]:
    @jax.custom_vjp
    @of.typed
    def doubled(x: X) -> X:
        return x * 2

    doubled.defvjp(
        lambda x: (of.check(x * 2, "[b/dp] d"), None), lambda _, cotangent: (of.check(cotangent * 5, "[b/dp] d"),)
    )
    return lambda x, up, down: doubled(x)


def of_custom_jvp(of: Any) -> Callable[..., Any]:
    @jax.custom_jvp
    @of.typed
    def doubled(x: X) -> X:
        return x * 2

    doubled.defjvp(lambda primals, tangents: tuple(of.check(2 * each[0], "[b/dp] d") for each in (primals, tangents)))
    return lambda x, up, down: doubled(x)


def of_linearize(of: Any) -> Callable[..., Any]:
    return lambda x, up, down: jax.linearize(lambda x: of.check(2 * x, "[b/dp] d"), x)[1](x)


def of_jacfwd(of: Any) -> Callable[..., Any]:
    return lambda x, up, down: jnp.einsum("bdbd->bd", jax.jacfwd(lambda x: of.check(x**2, "[b/dp] d"))(x))


BODIES = {name.removeprefix("of_"): body for name, body in dict(globals()).items() if name.startswith("of_")}


# Without check_vma JAX leaves a gradient unsummed over "tp", which is what its check says.
@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("name", "check_vma"), [(name, vma) for name in BODIES for vma in (True, False) if vma or name != "gradient"]
)
def test_a_body_is_lowered_as_by_hand(name: str, check_vma: bool, mesh: Mesh) -> None:
    expect_same_program(*twice(BODIES[name], mesh, check_vma=check_vma), *ARGS)


# JAX differentiates no while_loop backwards.
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [name for name in BODIES if "while" not in name])
def test_the_gradient_of_a_body_is_lowered_as_by_hand(name: str, mesh: Mesh) -> None:
    if name == "associative_scan" and jax.__version__.startswith("0.11."):
        pytest.skip("XLA ends the process when it compiles the hand-written gradient")
    programs = [jax.grad(lambda *args, f=f: (f(*args) ** 2).sum(), (0, 1, 2)) for f in twice(BODIES[name], mesh)]
    expect_same_program(*programs, *ARGS)


# Checkpoint policies

POLICIES = jax.checkpoint_policies
TAKING_NAMES = {
    "save_any_names_but_these": POLICIES.save_any_names_but_these("h"),
    "save_anything_except_these_names": POLICIES.save_anything_except_these_names("h"),
    "save_only_these_names": POLICIES.save_only_these_names("h"),
    "save_from_both_policies": POLICIES.save_from_both_policies(
        POLICIES.dots_saveable, POLICIES.save_only_these_names("h")
    ),
    "save_and_offload_only_these_names": POLICIES.save_and_offload_only_these_names(
        names_which_can_be_saved=["h"], names_which_can_be_offloaded=[], offload_src="device", offload_dst="pinned_host"
    ),
    "offload_dot_with_no_batch_dims": POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host"),
}


def policies() -> list[str]:
    # jax 0.11 shows the classes of some, too.
    return [
        name for name in dir(POLICIES) if not name.startswith("_") and not isinstance(getattr(POLICIES, name), type)
    ]


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", policies())
@pytest.mark.parametrize("where", ["inside", "around"])
def test_every_policy_of_checkpoint_keeps_the_text(name: str, where: str, mesh: Mesh) -> None:
    policy = TAKING_NAMES.get(name) or getattr(POLICIES, name)
    if where == "inside":
        pair = twice(lambda of: jax.checkpoint(total(of), policy=policy), mesh, Float[Array, ""], P())
    else:
        pair = [jax.checkpoint(f, policy=policy) for f in twice(total, mesh, Float[Array, ""], P())]
    expect_same_program(*(jax.grad(f, (0, 1, 2)) for f in pair), *ARGS)


# Around


def by_linear_transpose(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, up, down: jax.linear_transpose(lambda down: f(0 * x, 0 * up, down), down)(jnp.ones_like(x))


def by_vjp(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        value, pull = jax.vjp(f, *args)
        return value, pull(jnp.ones_like(value))

    return run


def by_linearize(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        value, push = jax.linearize(f, *args)
        return value, push(*args), jax.vmap(push)(*(jnp.stack([arg, arg]) for arg in args))

    return run


def in_custom_vjp(f: Callable[..., Any]) -> Callable[..., Any]:
    g = jax.custom_vjp(f)
    g.defvjp(lambda *args: (f(*args), args), lambda args, ct: tuple(2 * jnp.ones_like(arg) * ct.sum() for arg in args))
    return jax.grad(lambda *args: g(*args).sum(), argnums=(0, 1, 2))


AROUND: dict[str, Callable[..., Any]] = {
    "jacfwd": lambda f: jax.jacfwd(f, argnums=2),
    "jacrev": lambda f: jax.jacrev(f, argnums=0),
    "hessian": lambda f: jax.hessian(f, argnums=2),
    "jacfwd of jacrev of two": lambda f: jax.jacfwd(jax.jacrev(f, argnums=1), argnums=2),
    "linearize": by_linearize,
    "vjp": by_vjp,
    "jvp": lambda f: lambda *args: jax.jvp(f, args, args),
    "jvp of grad": lambda f: lambda *args: jax.jvp(jax.grad(f), args, args),
    "vmap": lambda f: lambda x, up, down: jax.vmap(f, (0, None, None))(jnp.stack([x, 2 * x]), up, down),
    "vmap of grad": lambda f: (
        lambda x, up, down: jax.vmap(jax.grad(f, 1), (None, 0, 0))(x, jnp.stack([up] * 2), jnp.stack([down] * 2))
    ),
    "scan over a vmap": lambda f: (
        lambda x, up, down: jax.lax.scan(
            lambda c, w: (c + jax.vmap(f, (0, None, None))(jnp.stack([x, x]), up, w).sum(), w),
            0.0,
            jnp.stack([down, down]),
        )
    ),
}


def twins(*arrays: Any, at: tuple[int, ...] = (0, 0, 0)) -> tuple[Any, ...]:
    return tuple(jnp.stack([array] * 2, dim) for array, dim in zip(arrays, at, strict=False))


AROUND_BLOCK: dict[str, Callable[..., Any]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "vmap over all": lambda f: lambda *args: jax.vmap(f, (2, 1, 0))(*twins(*args, at=(2, 1, 0))),
    "vmap in vmap": lambda f: lambda *args: jax.vmap(jax.vmap(f, (None, 0, 0)), (0, None, None))(*twins(*args)),
    "scan": lambda f: lambda x, *ws: jax.lax.scan(lambda x, w: (f(x, *w), x.sum()), x, twins(*ws)),
    "while": lambda f: lambda x, up, down: jax.lax.fori_loop(0, 3, lambda _, x: f(x, up, down), x),
    "cond": lambda f: lambda x, up, down: jax.lax.cond(x[0, 0] > 9, lambda x: x, lambda x: f(x, up, down), x),
    "map": lambda f: lambda x, up, down: jax.lax.map(lambda x: f(x, up, down), jnp.stack([x, 2 * x])),
    "custom_vjp": in_custom_vjp,
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", AROUND_BLOCK)
def test_a_transformed_block_is_lowered_as_by_hand(name: str, mesh: Mesh) -> None:
    expect_same_program(*map(AROUND_BLOCK[name], twice(block, mesh)), *ARGS)


@pytest.mark.parametrize("around", AROUND_BLOCK.values(), ids=AROUND_BLOCK)
def test_a_wrong_argument_is_reported_under_every_transformation(around: Callable[..., Any], mesh: Mesh) -> None:
    wrong = around(typed_shard_map(block(OURS), mesh=mesh))
    with fails(ShapeError, "block: argument 'up' has d=3, but argument 'x' has d=4"):
        jax.eval_shape(wrong, x, up[:3], down)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", AROUND)
def test_a_transformed_loss_is_lowered_as_by_hand(name: str, mesh: Mesh) -> None:
    expect_same_program(*map(AROUND[name], twice(total, mesh, Float[Array, ""], P())), *ARGS)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [name for name in AROUND if "jvp" not in name])
def test_a_transformed_loss_has_the_values_of_plain_jax(name: str, mesh: Mesh) -> None:
    def plain(x: Any, up: Any, down: Any) -> Any:
        return ((x + jnp.tanh(x @ up) @ down) ** 2).sum()

    got = jax.jit(AROUND[name](twice(total, mesh, Float[Array, ""], P())[0]))(*ARGS)
    same(got, jax.jit(AROUND[name](plain))(*ARGS))


def test_a_linear_function_is_transposed_as_by_hand(mesh: Mesh) -> None:
    def linear(of: Any) -> Callable[..., Any]:
        return lambda x, up, down: of.down(of.check(x[:, :1] + jnp.ones((2, 3)) + up[:1], "[b/dp] [f/tp]"), down)

    expect_same_program(*map(by_linear_transpose, twice(linear, mesh)), *ARGS)


@pytest.mark.parametrize("spmd", ["dp", None])
@pytest.mark.parametrize("check_vma", [True, False])
def test_vmap_over_a_mesh_axis_is_lowered_as_by_hand(spmd: str | None, check_vma: bool, mesh: Mesh) -> None:
    hints = {"in_types": (Float[Array, "n d"], U, V), "out_types": Float[Array, "n d"]}
    specs = {"in_specs": (P(None, None), P(None, "tp"), P("tp", None)), "out_specs": P(None, None)}
    # JAX itself does not lower it where "dp" is not manual.
    options = {"mesh": mesh, "check_vma": check_vma}

    def body(of: Any) -> Callable[..., Any]:
        return lambda x, up, down: of.check(jax.lax.psum(jnp.tanh(x @ up) @ down, "tp"), "n d")

    pair = typed_shard_map(body(OURS), **hints, **options), jax.shard_map(body(PLAIN), **specs, **options)
    over = [jax.vmap(f, (0, None, None), spmd_axis_name=spmd) for f in pair]
    expect_same_program(*over, np.stack([x] * 4), up, down)
