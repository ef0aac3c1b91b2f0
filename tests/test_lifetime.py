"""How long things live: nothing of a call outlives it, caches are bounded, and no call sees yesterday's values."""

import functools
import gc
import importlib
import inspect
import pkgutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tiers import one_in

import typedshmap
from typedshmap import (
    Array,
    Float,
    ShapeError,
    VaryingError,
    check,
    partition_specs,
    shard,
    typed,
    typed_shard_map,
)

Rows = Float[Array, "[b/dp] m"]
ones = np.ones((8, 4), np.float32)


class Token:
    """Something whose end can be seen."""


def is_freed(ref: Any) -> bool:
    gc.collect()
    return ref() is None


def grad(f: Any, x: Any) -> Any:
    return jax.grad(lambda x: f(x).sum())(x)


CALLS = {
    "without jit": lambda f, x: f(x),
    "jit": lambda f, x: jax.jit(f)(x),
    "eval_shape": lambda f, x: jax.eval_shape(f, x),
    "grad": grad,
    "jit of grad": lambda f, x: jax.jit(functools.partial(grad, f))(x),
    "vmap": lambda f, x: jax.vmap(f)(x[None]),
}
in_every_way = pytest.mark.parametrize("call", one_in(3, [pytest.param(call, id=way) for way, call in CALLS.items()]))


@pytest.fixture
def doubled(mesh: Mesh) -> Callable[..., Any]:
    return typed_shard_map(lambda x: x * 2, mesh=mesh, in_types=(Rows,), out_types=Rows)


@in_every_way
@pytest.mark.parametrize("array", [jnp.asarray, np.asarray])
def test_a_call_keeps_no_argument_alive(array: Any, call: Any, doubled: Any) -> None:
    x = array(np.ones((8, 4), np.float32))
    ref = weakref.ref(x)
    jax.block_until_ready(call(doubled, x))
    del x
    assert is_freed(ref)


@pytest.mark.parametrize("call", [CALLS[way] for way in ("without jit", "jit", "grad", "jit of grad", "vmap")])
def test_a_call_keeps_no_result_alive(call: Any, doubled: Any) -> None:
    result = jax.block_until_ready(call(doubled, ones))
    ref = weakref.ref(result)
    del result
    assert is_freed(ref)


@in_every_way
def test_a_call_keeps_nothing_of_its_caller_alive(call: Any, doubled: Any) -> None:
    def caller() -> Any:
        token = Token()
        jax.block_until_ready(call(doubled, ones))
        return weakref.ref(token)

    assert is_freed(caller())


def test_a_call_keeps_no_static_argument_alive(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def named(x: Rows, token: Token) -> Rows:
        return x * 2

    token = Token()
    ref = weakref.ref(token)
    jax.block_until_ready(named(ones, token))
    del token
    assert is_freed(ref)


def test_a_call_keeps_no_shard_alive(mesh: Mesh) -> None:
    shards = []

    @typed_shard_map(mesh=mesh)
    def noting(x: Rows) -> Rows:
        shards.append(weakref.ref(x))
        return x * 2

    jax.block_until_ready(noting(ones))
    assert is_freed(shards.pop())


@pytest.mark.parametrize(
    "verb",
    [
        typed(lambda x: x * 2),
        lambda x: check(x, Rows),
        lambda x: check(x, "b m"),
        lambda x: isinstance(x, Rows),
        lambda x: partition_specs(Rows, like=x),
    ],
    ids=["typed", "check", "check by dims", "isinstance", "partition_specs"],
)
def test_a_verb_keeps_no_argument_alive(verb: Any) -> None:
    x = jnp.ones((8, 4))
    ref = weakref.ref(x)
    verb(x)
    del x
    assert is_freed(ref)


def test_shard_keeps_neither_argument_nor_result_alive(mesh: Mesh) -> None:
    x = jnp.ones((8, 4))
    placed = shard(x, Rows, mesh)
    refs = weakref.ref(x), weakref.ref(placed)
    del x, placed
    assert all(map(is_freed, refs))


def raising(x: Rows) -> Rows:
    raise RuntimeError("of the body")


def varying(x: Rows) -> Float[Array, " m"]:
    return x.sum(0)


def on(mesh: Mesh, body: Any) -> Any:
    return typed_shard_map(body, mesh=mesh)


FAILURES = [(raising, RuntimeError), (varying, VaryingError), (varying, ShapeError)]


def fail(call: Any, f: Any, x: Any, error: type[Exception]) -> Any:
    """Call, see the error, let go of it; the weak reference is to a local of the frame that called."""
    token = Token()
    with pytest.raises(error):
        call(f, x)
    return weakref.ref(token)


@pytest.mark.parametrize("call", [CALLS[way] for way in ("without jit", "jit", "eval_shape")])
@pytest.mark.parametrize(("body", "error"), FAILURES, ids=["in the body", "by its result", "by its argument"])
def test_a_failing_call_keeps_neither_argument_nor_frame_alive(body: Any, error: Any, call: Any, mesh: Mesh) -> None:
    x = jnp.ones((6 if error is ShapeError else 8, 4))
    argument = weakref.ref(x)
    local = fail(call, on(mesh, body), x, error)
    del x
    assert is_freed(argument) and is_freed(local)


def decorated_plainly(mesh: Mesh) -> Any:
    token = Token()

    @typed_shard_map(mesh=mesh)
    def f(x: Rows) -> Rows:
        return x

    return f, weakref.ref(token)


def decorated_by_string(mesh: Mesh) -> Any:
    token, Local = Token(), Float[Array, "[b/dp] m"]

    @typed_shard_map(mesh=mesh)
    def f(x: "Local") -> "Local":
        return x

    return f, weakref.ref(token)


def decorated_before_its_hint(mesh: Mesh) -> Any:
    token = Token()

    @typed_shard_map(mesh=mesh)
    def f(x: "Rows", later: "Later" = None) -> "Rows":
        return x

    return f, weakref.ref(token)


def decorated_as_helper(mesh: Mesh) -> Any:
    token = Token()

    @typed
    def f(x: Rows) -> Rows:
        return x

    return f, weakref.ref(token)


def decorated_in_a_class(mesh: Mesh) -> Any:
    token = Token()

    class Model:
        @typed_shard_map(mesh=mesh)
        def f(self, x: Rows) -> Rows:
            return x

    return Model, weakref.ref(token)


@pytest.mark.parametrize(
    "decorate",
    [decorated_plainly, decorated_by_string, decorated_before_its_hint, decorated_as_helper, decorated_in_a_class],
)
def test_decoration_keeps_no_local_of_the_enclosing_function_alive(decorate: Any, mesh: Mesh) -> None:
    made, token = decorate(mesh)
    assert is_freed(token), made


def decorated_around_a_local(mesh: Mesh) -> Any:
    token = Token()

    @typed_shard_map(mesh=mesh)
    def f(x: Rows) -> Rows:
        return x * len([token])

    return f, weakref.ref(token)


@in_every_way
def test_a_decorated_function_lives_as_long_as_its_owner_keeps_it(call: Any, mesh: Mesh) -> None:
    f, token = decorated_around_a_local(mesh)
    jax.block_until_ready(call(f, ones))
    assert not is_freed(token)
    del f
    assert is_freed(token)


Cache = type(functools.lru_cache(is_freed))


OLD_PATHS = {"typedshmap.auditing", "typedshmap.explaining"}  # which warn


def caches() -> list[Any]:
    """Every cache of the package, wherever it stands."""
    for module in pkgutil.walk_packages(typedshmap.__path__, "typedshmap."):
        if module.name not in OLD_PATHS:
            importlib.import_module(module.name)
    gc.unfreeze()
    found = [c for c in gc.get_objects() if isinstance(c, Cache) and (c.__module__ or "").startswith("typedshmap")]
    gc.freeze()
    return found


def test_the_caches_of_the_package_are_found() -> None:
    assert {"parse", "_hint_class"} <= {cache.__name__ for cache in caches()}


def test_every_cache_of_a_function_with_parameters_is_bounded() -> None:
    unbounded = [cache for cache in caches() if cache.cache_parameters()["maxsize"] is None]
    assert [cache for cache in unbounded if inspect.signature(cache).parameters] == []


def live() -> int:
    """How many objects of the package's classes there are."""
    gc.collect()
    return sum(str(type(thing).__module__).startswith("typedshmap") for thing in gc.get_objects())


def shape(size: int) -> Any:
    return jax.ShapeDtypeStruct((4, size), jnp.float32)


def use_fresh_function(mesh: Mesh, size: int) -> None:
    jax.eval_shape(typed_shard_map(lambda x: x * 2, mesh=mesh, in_types=(Rows,), out_types=Rows), shape(2))


def jitted(f: Any, _: Mesh) -> Callable[[int], Any]:
    program = jax.jit(f)
    return lambda size: program.trace(shape(size))


# What is done with sizes from 1 on, and for how many of them after the first ten, of which some are kept.
USES: dict[str, tuple[Callable[[Any, Mesh], Callable[[int], Any]], int]] = {
    "a jitted function": (jitted, 40),
    "shapes": (lambda f, mesh: lambda size: jax.eval_shape(f, shape(size)), 200),
    "without jit": (lambda f, mesh: lambda size: jax.block_until_ready(f(np.ones((4, size), np.float32))), 10),
    "fresh functions": (lambda f, mesh: functools.partial(use_fresh_function, mesh), 200),
}


@pytest.mark.parametrize(("use_of", "count"), one_in(len(USES), USES.values()), ids=USES)
def test_calls_of_many_sizes_leave_no_objects_behind(use_of: Any, count: int, doubled: Any, mesh: Mesh) -> None:
    use = use_of(doubled, mesh)
    for size in range(1, 11):
        use(size)
    before = live()
    for size in range(11, 11 + count):
        use(size)
    assert live() <= before


def test_objects_that_are_kept_are_counted(mesh: Mesh) -> None:
    before = live()
    kept = [typed_shard_map(raising, mesh=mesh) for _ in range(3)]
    assert live() > before, kept


factor = 1.0


def change_a_number(mesh: Mesh) -> Iterator[Any]:
    number = 1.0

    @typed_shard_map(mesh=mesh)
    def f(x: Rows) -> Rows:
        return x * number

    for number in (2.0, 3.0):  # noqa: B007 (f reads it)
        yield f(ones)


def change_an_array(mesh: Mesh) -> Iterator[Any]:
    array = jnp.ones(4)

    @typed_shard_map(mesh=mesh)
    def f(x: Rows) -> Rows:
        return x * array

    for array in (jnp.full(4, 2.0), jnp.full(4, 3.0)):  # noqa: B007 (f reads it)
        yield f(ones)


def change_a_global(mesh: Mesh) -> Iterator[Any]:
    global factor

    @typed_shard_map(mesh=mesh)
    def f(x: Rows) -> Rows:
        return x * factor

    for factor in (2.0, 3.0):  # noqa: B007 (f reads it)
        yield f(ones)


def change_an_attribute(mesh: Mesh) -> Iterator[Any]:
    @dataclass
    class Model:
        scale: float

        @typed_shard_map(mesh=mesh)
        def f(self, x: Rows) -> Rows:
            return x * self.scale

    model = Model(1.0)
    for model.scale in (2.0, 3.0):
        yield model.f(ones)


def change_a_partial(mesh: Mesh) -> Iterator[Any]:
    @typed_shard_map(mesh=mesh)
    def f(x: Rows, scale: float) -> Rows:
        return x * scale

    made = functools.partial(f, scale=1.0)
    for made.keywords["scale"] in (2.0, 3.0):
        yield made(ones)


def change_a_static_argument(mesh: Mesh) -> Iterator[Any]:
    @typed_shard_map(mesh=mesh)
    def f(x: Rows, scales: list[float]) -> Rows:
        return x * scales[0]

    scales = [1.0]
    for scales[0] in (2.0, 3.0):
        yield f(ones, scales)


CHANGES = [
    change_a_number,
    change_an_array,
    change_a_global,
    change_an_attribute,
    change_a_partial,
    change_a_static_argument,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_call_without_jit_sees_values_as_they_are_now(change: Any, mesh: Mesh) -> None:
    results = [np.asarray(jax.block_until_ready(result)) for result in change(mesh)]
    np.testing.assert_array_equal(results, [ones * 2, ones * 3])


class Counts:
    """How often a body ran, and how often JAX lowered a program."""

    def __init__(self) -> None:
        self.traced = self.lowered = 0

    def hear(self, event: str, duration: float, **_: Any) -> None:
        self.lowered += event == "/jax/core/compile/jaxpr_to_mlir_module_duration"


@pytest.fixture
def counts() -> Iterator[Counts]:
    counts = Counts()
    jax.monitoring.register_event_duration_secs_listener(counts.hear)
    yield counts
    jax.monitoring.unregister_event_duration_listener(counts.hear)


def counted(counts: Counts, mesh: Any) -> Any:
    @typed_shard_map(mesh=mesh)
    def total(x: Float[Array, "[b/dp] [m/tp]"]) -> Float[Array, "[b/dp]"]:
        counts.traced += 1
        return jax.lax.psum(x.sum(1), "tp")

    return jax.jit(total)


def two_meshes() -> list[Mesh]:
    """The same axes over the devices in order, and in the opposite order."""
    devices = np.array(jax.devices())
    return [Mesh(order.reshape(4, 2), ("dp", "tp")) for order in (devices, devices[::-1])]


NUMBERS = np.arange(32, dtype=np.float32).reshape(8, 4)


def on_arrays_of(mesh: Mesh, jitted: Any) -> Any:
    return jax.block_until_ready(jitted(jax.device_put(NUMBERS, NamedSharding(mesh, P("dp", "tp")))))


def under_ambient(mesh: Mesh, jitted: Any) -> Any:
    with jax.set_mesh(mesh):
        return on_arrays_of(mesh, jitted)


@contextmanager
def nothing_new(counts: Counts) -> Iterator[None]:
    before = vars(counts).copy()
    yield
    assert vars(counts) == before


@pytest.mark.parametrize(
    ("is_given", "call"),
    [(True, on_arrays_of), (True, under_ambient), (False, under_ambient), (False, on_arrays_of)],
    ids=["abstract, arrays", "abstract, ambient", "ambient", "arrays"],
)
def test_two_meshes_of_one_abstract_mesh_share_one_traced_and_lowered_program(
    is_given: bool, call: Any, counts: Counts
) -> None:
    first, second = two_meshes()
    jitted = counted(counts, first.abstract_mesh if is_given else None)
    call(first, jitted)
    assert counts.traced == 1 and counts.lowered >= 1
    with nothing_new(counts):
        result = call(second, jitted)
    np.testing.assert_array_equal(result, NUMBERS.sum(1))
    assert result.sharding.mesh == second


def test_a_second_concrete_mesh_is_traced_again(counts: Counts) -> None:
    first, second = two_meshes()
    on_arrays_of(first, counted(counts, first))
    on_arrays_of(second, counted(counts, second))
    assert counts.traced == 2


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["without jit", "jit"])
def test_one_callable_serves_ambient_meshes_of_different_shapes(wrap: Any) -> None:
    shapes = []

    @typed_shard_map
    def noting(x: Float[Array, "[b/dp] [m/tp]"]) -> Float[Array, "[b/dp]"]:
        shapes.append(x.shape)
        return jax.lax.psum(x.sum(1), "tp")

    called = wrap(noting)
    for shape in ((4, 2), (2, 4), (4, 2)):
        with jax.set_mesh(Mesh(np.array(jax.devices()).reshape(shape), ("dp", "tp"))):
            np.testing.assert_array_equal(jax.block_until_ready(called(NUMBERS)), NUMBERS.sum(1))
    assert shapes[:2] == [(2, 2), (4, 1)]
