"""Replicas that differ are found where hints say that they are the same, within the calls that were asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from drifting import drifting
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    ReplicaError,
    StructureError,
    TypedShmapError,
    assume,
    sanitize,
    typed_jit,
    typed_shard_map,
)
from typedshmap.tools.sanitize.checksums import checksum

MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))
X, W, Y = Float[Array, "[b/dp] [m/tp]"], Float[Array, "[m/tp] f"], Float[Array, "[b/dp] f"]
w, x = np.arange(128, dtype=np.float32).reshape(8, 16), np.ones((8, 8), np.float32)


def placed() -> Array:
    return jax.device_put(x, NamedSharding(MESH, P("dp", "tp")))


def multiply(x: X, w: W) -> Y:
    return jax.lax.psum(x @ w, "tp")


def region() -> Any:
    return typed_shard_map(multiply, mesh=MESH)


def step(x: X, w: W) -> W:
    return w + region()(x, w).sum()


def in_scan(x: Array, w: Array) -> Array:
    inner = region()
    return jax.lax.scan(lambda x, _: (jnp.tile(inner(x, w)[:, :8], 1), None), x, None, length=2)[0]


def nested(x: Float[Array, "[b/dp] m"], w: Float[Array, "m f"]) -> Y:
    return typed_shard_map(multiply, axis_names={"tp"})(x, w)


WAYS: dict[str, Callable[[], Any]] = {
    "computed": region,
    "jax.jit": lambda: jax.jit(region()),
    "typed_jit": lambda: typed_jit(step, mesh=MESH),
    "gradient": lambda: jax.jit(jax.grad(lambda x, w: region()(x, w).sum())),
    "remat": lambda: jax.jit(jax.grad(lambda x, w: jax.checkpoint(region())(x, w).sum())),
    "scan": lambda: jax.jit(in_scan),
    "typed_jit in jax.jit": lambda: jax.jit(typed_jit(step, mesh=MESH)),
    "vmap": lambda: jax.jit(lambda x, w: jax.vmap(region(), (0, None))(jnp.stack([x, x]), w)),
    "nested": lambda: jax.jit(typed_shard_map(nested, mesh=MESH, axis_names={"dp"})),
}
SLOW = {"remat", "typed_jit in jax.jit", "vmap", "nested", "scan"}


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.slow] * (way in SLOW)) for way in WAYS])
def test_a_flipped_bit_is_found_within_the_calls_asked_for_and_nothing_else(way: str) -> None:
    f, right = WAYS[way](), jax.device_put(w, NamedSharding(MESH, P("tp", None)))
    wrong = drifting(MESH, P("tp", None), w, 5, byte=200, bit=3)
    with sanitize(every=2):
        for _ in range(3):
            jax.block_until_ready(f(placed(), right))
    with (
        pytest.raises(
            ReplicaError, match="argument 'w' differs over 'dp', where its hint says that it is the same: dp=2"
        ),
        sanitize(every=2),
    ):
        for _ in range(2):
            jax.block_until_ready(f(placed(), wrong))


def test_the_message_has_the_value_the_axis_the_shards_and_the_place() -> None:
    with pytest.raises(ReplicaError) as caught, sanitize(every=1):
        jax.block_until_ready(region()(placed(), drifting(MESH, P("tp", None), w, 5)))
    line = multiply.__code__.co_firstlineno
    assert str(caught.value) == (
        "multiply: argument 'w' differs over 'dp', where its hint says that it is the same: "
        "dp=2, tp=1 (device 5) differs bitwise from the other 3\n\n"
        '    w: Float[Array, "[m/tp] f"]\n'
        "    got f32[8,16]\n\n"
        "Mesh: dp=4, tp=2\n"
        f"At: test_sanitize.py:{line} (multiply)\n"
        "Hint: the cause may be an update or a placement that is not the same on all shards, a nondeterministic "
        "kernel, or a faulty device"
    )


@pytest.mark.parametrize("kind", [AxisType.Auto, pytest.param(AxisType.Explicit, marks=pytest.mark.slow)])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, typed_jit], ids=["computed", "jax.jit", "typed_jit"])
def test_the_devices_of_an_ambient_mesh_are_named(wrap: Any, kind: AxisType) -> None:
    mesh = Mesh(MESH.devices, MESH.axis_names, axis_types=(kind,) * 2)

    @typed_shard_map
    def doubled(w: Float[Array, "[m/tp] f"]) -> Float[Array, "[m/tp] f"]:
        return 2 * w

    named = pytest.raises(ReplicaError, match=r"dp=2, tp=1 \(device 5\) differs bitwise")
    with jax.set_mesh(mesh), named, sanitize(every=1):
        jax.block_until_ready(wrap(doubled)(drifting(mesh, P("tp", None), w, 5)))


def test_a_difference_is_raised_by_the_next_call_also_under_plain_jit() -> None:
    f, wrong = jax.jit(region()), drifting(MESH, P("tp", None), w, 5)
    with pytest.raises(ReplicaError), sanitize(every=1):
        for _ in range(1000):
            jax.block_until_ready(f(placed(), wrong))
        pytest.fail("no call raised")


def test_wait_raises_what_is_under_way_and_forgets_it() -> None:
    f = typed_shard_map(multiply, mesh=MESH, sanitize=3)
    f(placed(), drifting(MESH, P("tp", None), w, 0))
    with pytest.raises(ReplicaError):
        sanitize.wait()
    sanitize.wait()


def test_every_third_call_is_compared() -> None:
    f, right = jax.jit(region()), jax.device_put(w, NamedSharding(MESH, P("tp", None)))
    wrong = drifting(MESH, P("tp", None), w, 0)
    with sanitize(every=3):
        for given in (right, wrong, wrong, right):
            jax.block_until_ready(f(placed(), given))
        sanitize.wait()
        with pytest.raises(ReplicaError):
            for given in (wrong, wrong, wrong):
                jax.block_until_ready(f(placed(), given))
            sanitize.wait()


def test_what_a_body_assumes_is_compared() -> None:
    @typed_shard_map(mesh=MESH)
    def exchanged(x: X, more: Float[Array, ""]) -> Float[Array, "[b/dp]"]:
        total = jax.lax.psum(x.sum(1), "tp") + more * jax.lax.axis_index("tp")
        return jax.lax.pmean(assume(total, "[b/dp]"), "tp")

    with sanitize(every=1):
        jax.block_until_ready(exchanged(placed(), np.float32(0)))
    with pytest.raises(ReplicaError, match="assumed value differs over 'tp'"), sanitize(every=1):
        jax.block_until_ready(exchanged(placed(), np.float32(1)))


@pytest.mark.slow
def test_what_is_assumed_where_not_all_shards_get_waits_for_none() -> None:
    @typed_shard_map(mesh=MESH)
    def some(x: X) -> Float[Array, ""]:
        def take(y: Array) -> Array:
            return assume(y, "")

        total = jax.lax.pcast(jax.lax.psum(x.sum(), ("dp", "tp")), "dp", to="varying")
        first = jax.lax.axis_index("dp") == 0
        return jax.lax.pmean(jax.lax.cond(first, take, lambda y: y, total), "dp")

    with sanitize(every=1):
        jax.block_until_ready(jax.jit(some)(placed()))


def test_a_result_is_compared() -> None:
    @typed_shard_map(mesh=MESH, check_vma=False)
    def wrong(x: X) -> Float[Array, "[b/dp]"]:
        total = jax.lax.psum(x.sum(1), "tp")
        return assume(total + jax.lax.axis_index("tp"), "[b/dp]")

    with pytest.raises(ReplicaError, match="wrong: "), sanitize(every=1):
        jax.block_until_ready(jax.jit(wrong)(placed()))


DTYPES = {
    "bool": np.arange(32) % 3 == 0,
    "int4": np.arange(32).astype(ml_dtypes.int4),
    "int8": np.arange(32, dtype=np.int8),
    "float8_e4m3fn": np.arange(32).astype(ml_dtypes.float8_e4m3fn),
    "bfloat16": np.arange(32).astype(ml_dtypes.bfloat16),
    "float16": np.arange(32, dtype=np.float16),
    "int32": np.arange(32, dtype=np.int32),
    "float32 with NaN": np.where(np.arange(32) % 5, np.float32(np.nan), np.float32(-0.0)),
    "complex64": np.arange(32, dtype=np.complex64) * (1 + 2j),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_and_every_place_counts_for_a_checksum(dtype: str) -> None:
    value, sums = DTYPES[dtype], jax.jit(jax.vmap(checksum))
    variants = [value]
    bits = 1 if value.dtype == bool else 4 if value.dtype == ml_dtypes.int4 else 8 * value.dtype.itemsize
    for bit in range(bits):
        changed = value.copy()
        changed.view(np.uint8)[5 * value.dtype.itemsize + bit // 8] ^= 1 << bit % 8
        variants.append(changed)
    variants.append(np.concatenate([value[1:], value[:1]]))
    found = sums(np.stack(variants))
    assert len(set(found.tolist())) == len(variants)


def test_keys_and_doubles_have_checksums() -> None:
    with jax.enable_x64(True):
        for values in (jax.random.split(jax.random.key(0), 3), jnp.array([1.0, 1.0 + 2.0**-52, -1.0])):
            assert len(set(jax.jit(jax.vmap(checksum))(values).tolist())) == 3


MISUSE: dict[str, tuple[Callable[[], Any], str]] = {
    "zero": (lambda: sanitize(every=0), "sanitize: every= is 0; the least is 1, which compares at every call"),
    "negative": (lambda: sanitize(every=-1), "sanitize: every= is -1"),
    "text": (
        lambda: sanitize(every="x"),
        "sanitize: every= expects a number of calls, as in sanitize(every=100); got 'x'",
    ),
    "an array": (
        lambda: sanitize(every=np.ones(3)),
        "sanitize: every= expects a number of calls, as in sanitize(every=100); got array([1., 1., 1.])",
    ),
    "true": (
        lambda: sanitize(every=True),
        "sanitize: every= expects a number of calls, as in sanitize(every=100); got True",
    ),
    "decorator": (
        lambda: typed_shard_map(multiply, mesh=MESH, sanitize="x"),
        "sanitize= expects a number of calls, as in typed_shard_map(sanitize=100); got 'x'",
    ),
}


@pytest.mark.parametrize("name", MISUSE)
def test_a_wrong_number_of_calls_is_refused(name: str) -> None:
    use, begins = MISUSE[name]
    with pytest.raises(StructureError) as caught:
        use()
    assert str(caught.value).startswith(begins)


def test_one_inside_of_another_is_refused() -> None:
    refused = pytest.raises(TypedShmapError, match="sanitize: every=3 is inside of another sanitize, with every=2")
    with sanitize(every=2), refused, sanitize(every=3):
        pass


def test_nothing_is_in_a_program_where_it_is_off() -> None:
    arguments = (placed(), jax.device_put(w, NamedSharding(MESH, P("tp", None))))
    before = jax.jit(region()).lower(*arguments).as_text()
    with sanitize(every=2):
        assert jax.jit(region()).lower(*arguments).as_text() != before
    assert jax.jit(region()).lower(*arguments).as_text() == before


@pytest.mark.slow
def test_steps_of_the_example_transformer_raise_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import transformer

    source = transformer.standard_library()
    with jax.set_mesh(Mesh(MESH.devices, ("fsdp", "tp"))):
        state = transformer.init(jax.random.key(0))
        with sanitize(every=2):
            for step in range(8):
                batch = transformer.sample(source, step)
                state, _ = jax.block_until_ready(transformer.train_step(state, *batch))
