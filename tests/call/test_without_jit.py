"""Calls outside of jit: each sees values as they are now, and what is traced anew is compiled only if it is new."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import mesh_of
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, Shaped, check, reshard, typed_shard_map

# The programs are about other things, and do not all mean something.
pytestmark = pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")

Rows = Shaped[Array, "[b/dp] m"]
Body = Callable[[Any], Any]
x = np.arange(32, dtype=np.float32).reshape(8, 4) + 0.5


class Lowered:
    """How many programs JAX has lowered."""

    def __init__(self) -> None:
        self.count = 0

    def hear(self, event: str, duration: float, **_: Any) -> None:
        self.count += event == "/jax/core/compile/jaxpr_to_mlir_module_duration"

    def by(self, run: Callable[[], Any]) -> int:
        """How many it lowers in a run."""
        before = self.count
        jax.block_until_ready(run())
        return self.count - before


@pytest.fixture
def lowered() -> Iterator[Lowered]:
    lowered = Lowered()
    jax.monitoring.register_event_duration_secs_listener(lowered.hear)
    yield lowered
    jax.monitoring.unregister_event_duration_listener(lowered.hear)


def mapped(body: Body, mesh: Any, **options: Any) -> Any:
    return typed_shard_map(body, mesh=mesh, in_types=Rows, out_types=Rows, **options)


def by_hand(body: Body, mesh: Any, x: Any) -> Any:
    """What a function that JAX has not seen before returns."""
    return jax.jit(jax.shard_map(lambda x: body(x), mesh=mesh, in_specs=P("dp"), out_specs=P("dp")))(x)


def assert_same(ours: Any, other: Any) -> None:
    assert (ours.dtype, ours.weak_type) == (other.dtype, other.weak_type)
    assert ours.sharding.is_equivalent_to(other.sharding, ours.ndim)
    # Another constant may be folded otherwise.
    np.testing.assert_allclose(*(np.asarray(each, np.float64) for each in (ours, other)), rtol=1e-6)
    np.testing.assert_array_equal(*(np.signbit(np.asarray(each, np.float64)) for each in (ours, other)))


@jax.custom_jvp
def doubled(x: Any) -> Any:
    return x * 2


doubled.defjvp(lambda primals, tangents: (doubled(*primals), tangents[0] * 2))


@jax.custom_vjp
def tripled(x: Any) -> Any:
    return x * 3


tripled.defvjp(lambda x: (x * 3, None), lambda _, cotangent: (cotangent * 3,))


def looped(x: Any) -> Any:
    return jax.lax.scan(lambda carry, row: (check(carry + row, "m ~dp"), row.sum()), jnp.zeros_like(x[0]), x)[0] + x


def resharded(x: Any) -> Any:
    return reshard(reshard(x, "[b/dp] m -> b [m/dp]"), "b [m/dp] -> [b/dp] m")


def checkpointed(x: Any) -> Any:
    policy = jax.checkpoint_policies.save_only_these_names("y")
    return jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda x: jnp.sin(x) * x, policy=policy)(x)))(x)


BODIES: dict[str, Body] = {
    "its argument": lambda x: x,
    "a Python number": lambda x: x * 0.1,
    "functions of jax.numpy": lambda x: jnp.where(x > 1, jnp.sort(x)[:, ::-1], x.at[0, 0].set(1.0)),
    "a psum": lambda x: x / jax.lax.psum(x, "dp"),
    "a rule for gradients": lambda x: jax.nn.relu(doubled(tripled(x))),
    "a gradient": lambda x: jax.grad(lambda x: jnp.sum(doubled(tripled(x))))(x),
    "a policy": checkpointed,
    "a loop with a check": looped,
    "a branch": lambda x: jax.lax.cond(jax.lax.axis_size("dp") > 2, lambda x: x + 1, lambda x: x - 1, x),
    "a while loop": lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * 2, x),
    "another sharding": resharded,
    "random numbers": lambda x: x + jax.random.normal(jax.random.key(3), x.shape),
    "an array": lambda x: x * jnp.arange(4.0) + np.arange(4.0, dtype=np.float32),
    "a jitted function": lambda x: jax.jit(lambda x: x @ jnp.eye(4))(x),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_function_that_computes_the_same_is_compiled_once(body: Body, lowered: Lowered, mesh: Mesh) -> None:
    first, again = (mapped(lambda x: body(x), mesh) for _ in range(2))
    jax.block_until_ready((first(x), by_hand(body, mesh, x)))
    assert lowered.by(lambda: again(x)) == 0
    assert_same(again(x), by_hand(body, mesh, x))


def test_so_it_is_with_new_values_of_a_closed_over_array(lowered: Lowered, mesh: Mesh) -> None:
    state = jnp.ones(4)
    step = mapped(lambda x: x * state, mesh)
    jax.block_until_ready((step(x), state + 1))
    for _ in range(2):
        state = state + 1
        assert lowered.by(lambda: step(x)) == 0
        np.testing.assert_array_equal(step(x), x * state)


def test_a_program_that_jax_has_forgotten_is_compiled_anew(lowered: Lowered, mesh: Mesh) -> None:
    f = mapped(lambda x: x * 17, mesh)
    jax.block_until_ready(f(x))
    jax.clear_caches()
    assert lowered.by(lambda: f(x)) > 0
    assert_same(f(x), by_hand(lambda x: x * 17, mesh, x))


# What a function closes over, and what it does with that.
CHANGES: dict[str, tuple[Callable[[Any, Any], Any], tuple[Any, ...]]] = {
    "a number": (lambda x, v: x * v, (2.0, 3.0)),
    "the sign of zero": (lambda x, v: jnp.copysign(x, v), (0.0, -0.0)),
    "an int, a float and a bool": (lambda x, v: jnp.int32(x) * v, (1, 1.0, True)),
    "a NumPy number": (lambda x, v: jnp.int32(x) * v, (np.int32(1), np.float32(1), np.int8(1))),
    "not a number": (lambda x, v: jnp.isnan(v + x) + x, (float("nan"), 1.0)),
    "an array": (lambda x, v: x * v, (jnp.ones(4), jnp.arange(4.0))),
    "its dtype": (lambda x, v: jnp.bfloat16(x) * v, (jnp.ones(4, jnp.bfloat16), jnp.ones(4), jnp.ones(4, jnp.int8))),
    "its weak type": (lambda x, v: jnp.bfloat16(x) * v, (jnp.asarray(2.0), jnp.float32(2.0))),
    "its shape": (lambda x, v: x * v, (jnp.ones(4), jnp.ones((2, 4)), jnp.ones(()))),
    "a NumPy array": (lambda x, v: x * v, (np.ones(4, np.float32), np.arange(4, dtype=np.float32))),
    "a key": (lambda x, v: x + jax.random.normal(v, x.shape), (jax.random.key(0), jax.random.key(1))),
    "its generator": (
        lambda x, v: x + jax.random.normal(v, x.shape),
        (jax.random.key(0), jax.random.key(0, impl="rbg"), jax.random.key(0, impl="unsafe_rbg")),
    ),
    "a function": (lambda x, v: v(x), (jnp.sin, jnp.cos, lambda x: x, lambda x: -x)),
    "a rule and what it belongs to": (lambda x, v: jax.grad(lambda x: v(x).sum())(x), (doubled, tripled)),
    "a jitted function with an array": (lambda x, v: jax.jit(lambda x: x * v)(x), (jnp.ones(4), jnp.arange(4.0))),
    "a dim": (lambda x, v: jnp.cumsum(x, v), (0, 1)),
    "a shift": (lambda x, v: jnp.roll(x, v, 1), (1, 2)),
    "a permutation": (lambda x, v: jax.lax.ppermute(x, "dp", v), ([(0, 1)], [(1, 0)])),
    "a scan's length": (lambda x, v: jax.lax.fori_loop(0, v, lambda _, y: y * 2, x), (1, 2)),
    "a branch": (lambda x, v: jax.lax.cond(v, lambda x: x, lambda x: -x, x), (True, False)),
    "a precision": (lambda x, v: jax.lax.reduce_precision(x + 0.1, 8, v), (2, 7)),
    "a callback": (
        lambda x, v: jax.pure_callback(lambda x: x * np.float32(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        (2.0, 3.0),
    ),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize(("apply", "values"), CHANGES.values(), ids=CHANGES)
def test_a_change_of_what_is_closed_over_is_seen(apply: Any, values: tuple[Any, ...], mesh: Mesh) -> None:
    value: Any = None
    f = mapped(lambda x: apply(x, value), mesh, check_vma=False)
    for value in (*values, *values):
        expected = jax.shard_map(
            lambda x, value=value: apply(x, value), mesh=mesh, in_specs=P("dp"), out_specs=P("dp"), check_vma=False
        )
        assert_same(f(x), jax.jit(expected)(x))


def test_an_array_that_is_written_in_place_is_seen(mesh: Mesh) -> None:
    table = np.ones(4, np.float32)
    f = mapped(lambda x: x * table, mesh)
    for table[1] in (2, 3):
        np.testing.assert_array_equal(f(x), x * table)


SETTINGS: list[Callable[[], AbstractContextManager[Any]]] = [
    nullcontext,
    lambda: jax.enable_x64(True),
    lambda: jax.threefry_partitionable(False),
    lambda: jax.default_prng_impl("rbg"),
    lambda: jax.debug_nans(True),
    lambda: jax.numpy_dtype_promotion("strict"),
]


@pytest.mark.slow
def test_a_change_of_jaxs_settings_is_seen(mesh: Mesh) -> None:
    def body(x: Any) -> Any:
        return jnp.zeros(4) + x.astype(jnp.zeros(4).dtype) + jax.random.normal(jax.random.key(0), x.shape)

    f = mapped(body, mesh)
    for setting in (*SETTINGS, *SETTINGS):
        with setting():
            assert_same(f(x), by_hand(body, mesh, x))


def test_a_change_of_an_option_for_all_threads_is_seen(mesh: Mesh) -> None:
    f = mapped(lambda x: x + jax.random.normal(jax.random.key(0), x.shape), mesh)
    before = np.asarray(f(x))
    jax.config.update("jax_threefry_partitionable", False)
    try:
        other = np.asarray(f(x))
    finally:
        jax.config.update("jax_threefry_partitionable", True)
    assert not np.allclose(before, other)
    np.testing.assert_array_equal(f(x), before)


def test_a_change_of_an_option_of_the_compiler_is_seen(lowered: Lowered, mesh: Mesh) -> None:
    f = mapped(lambda x: x * 19, mesh)
    before = jax.config.values["jax_traceback_in_locations_limit"]
    jax.block_until_ready(f(x))
    jax.config.update("jax_traceback_in_locations_limit", 3)
    try:
        assert lowered.by(lambda: f(x)) > 0
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)
    assert lowered.by(lambda: f(x)) == 0


MESHES = [
    mesh_of(4, 2),
    Mesh(mesh_of(4, 2).devices[::-1, ::-1], ("dp", "tp")),
    mesh_of(2, 4),
    mesh_of(4, 2, names=("dp", "sp")),
    mesh_of(4, 1),
    mesh_of(4, 2, kind=AxisType.Explicit),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("is_ambient", [False, True], ids=["given", "ambient"])
def test_another_mesh_is_seen(is_ambient: bool) -> None:
    def body(x: Any) -> Any:
        return x + jax.lax.axis_index("dp")

    f = mapped(body, None)
    for mesh in (*MESHES, *MESHES):
        placed = jax.device_put(x, NamedSharding(mesh, P("dp", None)))
        for given in (placed,) if mesh.explicit_axes else (placed, x):
            with jax.set_mesh(mesh) if is_ambient else nullcontext():
                assert_same((f if is_ambient else mapped(body, mesh))(given), by_hand(body, mesh, given))


def placements(mesh: Mesh) -> list[Any]:
    shardings = NamedSharding(mesh_of(1, 1), P()), *(NamedSharding(mesh, spec) for spec in (P("dp"), P(None, "tp")))
    put = [jax.device_put(x, sharding) for sharding in shardings]
    return [x, x.astype(np.float64), jnp.asarray(x), *put, x[:4], jnp.int32(x)]


def test_an_argument_of_another_type_or_place_is_seen(mesh: Mesh) -> None:
    def run(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return type(error)

    f = mapped(lambda x: x + x, mesh)
    for given in (*placements(mesh), *placements(mesh)):
        ours, other = run(lambda given=given: f(given)), run(lambda given=given: by_hand(lambda x: x + x, mesh, given))
        if isinstance(other, type):
            assert isinstance(ours, type)
        else:
            assert_same(ours, other)


def test_a_body_with_an_effect_has_it_at_every_call(mesh: Mesh) -> None:
    seen: list[Any] = []

    def noted(x: Any) -> Any:
        jax.debug.callback(seen.append, jax.lax.axis_index("dp"))
        return x

    f = mapped(noted, mesh)
    for calls in (1, 2):
        jax.block_until_ready(f(x))
        jax.effects_barrier()
        assert len(seen) == 8 * calls


def test_nan_is_found_at_every_call(mesh: Mesh) -> None:
    f = mapped(lambda x: jnp.log(-x), mesh)
    jax.block_until_ready(f(x))
    for _ in range(2):
        with jax.debug_nans(True), pytest.raises(FloatingPointError):
            f(x)


def test_constants_pass_where_transfers_are_forbidden(mesh: Mesh) -> None:
    table, placed = np.arange(4, dtype=np.float32), jax.device_put(x, NamedSharding(mesh, P("dp", None)))
    f = mapped(lambda x: x * table, mesh)
    jax.block_until_ready(f(placed))
    with jax.transfer_guard("disallow"):
        f(placed).block_until_ready()


class Token:
    """Something whose end can be seen."""


def test_what_is_kept_holds_neither_rules_nor_constants(mesh: Mesh) -> None:
    def call() -> tuple[Any, ...]:
        token, table = Token(), jnp.arange(4.0)

        @jax.custom_jvp
        def ruled(x: Any) -> Any:
            return x * 5

        ruled.defjvp(lambda primals, tangents: (ruled(*primals), tangents[0] * len([token])))
        jax.block_until_ready(mapped(lambda x: ruled(x) * table, mesh)(x))
        return weakref.ref(token), weakref.ref(table), weakref.ref(ruled)

    kept = call()
    gc.collect()
    assert [each() for each in kept] == [None, None, None]


def test_named_results_keep_their_own_places(mesh: Mesh) -> None:
    """Two functions that compute the same, of which one shards the result otherwise."""

    def plain(x: Any) -> Any:
        return x

    rows, whole = Float[Array, "[b/dp] m"], Float[Array, "b m"]
    first = typed_shard_map(plain, mesh=mesh, in_types=whole, out_types=whole)(x)
    second = typed_shard_map(plain, mesh=mesh, in_types=rows, out_types=rows)(x)
    assert first.sharding.is_fully_replicated and not second.sharding.is_fully_replicated
