"""How a global array is sharded: concrete, under transformations, in compiled programs, on Explicit meshes.

Every verdict on a sharding is held against JAX's own: the sharding of what a program returns.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from expecting import fails, numbers, same
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    MeshAxisError,
    PyTree,
    ShardingError,
    axis_aliases,
    axis_rules,
    check,
    partition_specs,
    shard,
    typed,
    typed_jit,
    typed_shard_map,
)
from typedshmap.hints.global_sharding import original_error

x = numbers(8, 16)
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


def mesh_of(*kinds: AxisType, shape: tuple[int, int] = (4, 2), names: tuple[str, str] = ("dp", "tp")) -> Mesh:
    devices = np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape)
    return Mesh(devices, names, axis_types=kinds or (AUTO, AUTO))


def put(spec: P, mesh: Mesh | None = None, array: Any = x) -> jax.Array:
    return jax.device_put(array, NamedSharding(mesh or mesh_of(), spec))


ROWS = put(P("dp"))


def run(program: Callable[..., Any], *args: Any) -> Any:
    return jax.block_until_ready(program(*args))


def compiled(*hints: str) -> Callable[[Any], Any]:
    """A new program that checks what it works out, against one hint after the other."""

    def program(x: Any) -> Any:
        y = x * 2
        for hint in hints:
            check(y, hint)
        return y

    return jax.jit(program)


def checking(hint: Any) -> Callable[[Any], Any]:
    return jax.jit(lambda x: check(x, hint))


@contextlib.contextmanager
def fails_to_compile(error: type[Exception], line: str) -> Any:
    """Expect an error of JAX with a whole message of ours in it, and ours to be found again."""
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        yield
    ours = original_error(caught.value)
    assert type(ours) is error
    assert str(ours).splitlines()[0] == line
    assert f"{error.__name__}: {ours}" in str(caught.value)


def wrong(got: str, said: str, what: str = "value") -> str:
    """The first line of what a check says."""
    return f"check: checked{what if what.startswith('[') else ' ' + what} is sharded {got}, but its hint says {said}"


# Concrete arrays


LIES = [
    (P("dp", None), "[b/dp] d", True),
    (P("dp"), "[b/dp] d", True),
    (P("dp", "tp"), "[b/dp] [d/tp]", True),
    (P(("dp", "tp")), "[b/dp,tp] d", True),
    (P(("dp", "tp")), "[b/tp,dp] d", False),
    (P(("dp", "tp")), "[b/dp] d", False),
    (P(), "b d", True),
    (P(), "b [d/]", True),
    (P(), "[b/dp] d", False),
    # Of the sharding a hint says nothing, or all.
    (P("dp"), "b d", True),
    (P("dp", "tp"), "b d", True),
    (P("dp"), "...", True),
    (P("dp"), "b [d/]", False),
    (P("dp"), "[b/] ...", False),
    (P("dp"), "[b/] [d/]", False),
    (P("dp"), "[b/dp] [d/]", True),
    (P(None, "tp"), "[b/dp] d", False),
]

UNSHARDED = ("b [d/]", "[b/] ...", "[b/] [d/]")


def by_check(array: Any, hint: str) -> None:
    check(array, hint)


def by_isinstance(array: Any, hint: str) -> None:
    if not isinstance(array, Float[Array | np.ndarray, hint]):
        raise ShardingError("no")


def by_beartype(array: Any, hint: str) -> None:
    @beartype
    def take(x: Float[Array | np.ndarray, hint]) -> None: ...

    take(array)


def by_typed(array: Any, hint: str) -> None:
    @typed
    def take(x: Float[Array | np.ndarray, hint]) -> None: ...

    take(array)


ASKED = pytest.mark.parametrize("ask", [by_check, by_isinstance, by_beartype, by_typed])
REFUSED = (ShardingError, MeshAxisError, BeartypeCallHintViolation)


def verdict(ask: Callable[[Any, str], None], array: Any, hint: str) -> bool:
    try:
        ask(array, hint)
    except REFUSED:
        return False
    return True


@ASKED
@pytest.mark.parametrize(("spec", "hint", "fits"), LIES)
def test_all_agree_on_a_committed_array(spec: P, hint: str, fits: bool, ask: Any, mesh: Mesh) -> None:
    assert verdict(ask, put(spec), hint) is fits
    with jax.set_mesh(mesh):
        assert verdict(ask, put(spec), hint) is fits


@pytest.mark.sample(3)
@ASKED
@pytest.mark.parametrize(("spec", "hint", "fits"), LIES)
def test_all_agree_on_an_array_on_explicit_axes(spec: P, hint: str, fits: bool, ask: Any) -> None:
    array = put(spec, mesh_of(EXPLICIT, EXPLICIT))
    found = [verdict(ask, array, hint)]
    run(jax.jit(lambda x: found.append(verdict(ask, x, hint)) or x), array)
    assert found == [fits, fits]


@ASKED
@pytest.mark.parametrize(
    "array",
    [
        pytest.param(x, id="NumPy"),
        pytest.param(jnp.asarray(x), id="uncommitted"),
        pytest.param(jax.device_put(x, jax.devices()[0]), id="on one device"),
    ],
)
def test_an_array_that_is_not_on_a_mesh_fits_any_sharding(array: Any, ask: Callable[[Any, str], None]) -> None:
    assert verdict(ask, array, "[b/dp] [d/tp]")


@ASKED
def test_what_fitted_before_says_nothing_of_an_array_that_is_placed_otherwise(ask: Any, mesh: Mesh) -> None:
    meshes = (mesh, Mesh(mesh.devices.reshape(2, 4), mesh.axis_names))
    shardings = [NamedSharding(on, spec) for spec in (P("dp"), P("tp"), P("dp"), P()) for on in meshes]
    arrays = [*(jax.device_put(jnp.ones((8, 16)), sharding) for sharding in shardings), jnp.ones((8, 16))]
    for _ in range(2):
        fits = [verdict(ask, array, "[b/dp] d") for array in arrays]
        assert fits == [True, True, False, False, True, True, False, False, True]


def test_an_array_committed_to_one_device_is_not_sharded_over_a_mesh_that_is_known(mesh: Mesh) -> None:
    array = jax.device_put(x, jax.devices()[3])
    with jax.set_mesh(mesh):
        assert check(array, "b d") is array
        line = "check: checked value is on device 3, not on the mesh, but its hint says P('dp', None)"
        with fails(ShardingError, line):
            check(array, "[b/dp] d")


@ASKED
def test_an_axis_that_the_arrays_own_mesh_does_not_have_is_refused(ask: Callable[[Any, str], None], mesh: Mesh) -> None:
    array = put(P("rows"), mesh_of(names=("rows", "columns")))
    assert not verdict(ask, array, "[b/dp] d")
    assert verdict(ask, array, "[b/rows] d")
    with jax.set_mesh(mesh):
        assert not verdict(ask, array, "[b/dp] d")
        assert verdict(ask, array, "[b/rows] d")


UNKNOWN = "check: checked value names mesh axis 'dp', which is not among the mesh's axes 'rows', 'columns'"


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.grad], ids=["concrete", "traced", "differentiated"])
def test_an_unknown_axis_is_reported_with_the_arrays_own_mesh(wrap: Any, mesh: Mesh) -> None:
    array = put(P("rows"), mesh_of(names=("rows", "columns")))
    with fails(MeshAxisError, UNKNOWN):
        wrap(lambda x: check(x, "[b/dp] d").sum())(array)
    with jax.set_mesh(mesh), fails(MeshAxisError, UNKNOWN):
        check(array, "[b/dp] d")


def test_aliases_stand_for_the_axes_of_the_arrays_own_mesh() -> None:
    array = put(P(("rows", "columns")), mesh_of(names=("rows", "columns")))
    with axis_aliases(dp=("rows", "columns")):
        assert check(array, "[b/dp] d") is array
        run(compiled("[b/dp] d"), array)
    with (
        axis_aliases(dp="rows"),
        fails_to_compile(ShardingError, wrong("P(('rows', 'columns'), None)", "P('rows', None)")),
    ):
        run(compiled("[b/dp] d"), array)


def test_axes_of_size_one_make_no_difference() -> None:
    row = mesh_of(shape=(8, 1))
    check(put(P("dp"), row), "[b/dp] [d/tp]")
    run(compiled("[b/dp] [d/tp]", "[b/tp,dp] d"), put(P("dp"), row))


def test_an_array_in_the_memory_of_the_host_has_a_sharding_as_well() -> None:
    kinds = {memory.kind for memory in jax.devices()[0].addressable_memories()}
    for kind in kinds:
        array = jax.device_put(x, NamedSharding(mesh_of(), P("dp"), memory_kind=kind))
        assert check(array, "[b/dp] d") is array
        assert not isinstance(array, Float[Array, "[b/] d"])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["concrete", "traced"])
@pytest.mark.parametrize("sign", "+-")
def test_a_mark_over_an_auto_axis_is_refused(sign: str, wrap: Any) -> None:
    line = f"check: checked value is marked '{sign}tp' in its hint, but mesh axis 'tp' is of type Auto, "
    with fails(ShardingError, line + "and JAX has unreduced and reduced arrays over Explicit axes only"):
        wrap(lambda x: check(x, f"[b/dp] d {sign}tp"))(ROWS)


def test_a_rule_that_applies_says_how_the_whole_array_is_sharded(mesh: Mesh) -> None:
    hint, array = Float[Array, "b d"], ROWS
    for rules, fits in (
        ([("b", "dp")], True),
        ([("d", "tp")], False),
        ([("b", None)], False),
        ([("heads", "tp")], True),  # of no dim of this array
        ([("b", "tp"), ("d", "tp")], False),
    ):
        with axis_rules(rules):
            assert isinstance(array, hint) is fits
            assert (message(lambda: checking(hint)(array)) is None) is fits


def test_a_hint_without_sharding_asks_nothing() -> None:
    program = jax.jit(lambda x: check(2 * x, Float[Array, "b d"] | Float[Array, "[b/tp] d"]))
    assert "ask_sharding" not in str(jax.make_jaxpr(program)(ROWS))


def test_verbs_that_place_read_a_hint_without_brackets_as_unsharded(mesh: Mesh) -> None:
    @typed_jit(mesh=mesh)
    def double(x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return 2 * x

    assert partition_specs(Float[Array, "b d"]) == P(None, None)
    assert shard(x, Float[Array, "b d"], mesh).sharding.is_fully_replicated
    assert double(x).sharding.is_fully_replicated
    with fails(ShardingError, "double: argument 'x' is sharded P('dp'), but its hint says P(None, None)"):
        double(ROWS)


# Transformations that compute at once


MAPPED = [
    (0, "d", None),
    (0, "[d/tp]", "P(None), but its hint says P('tp')"),
    (0, "[d/dp]", "P(None), but its hint says P('dp')"),
    (1, "[b/dp]", None),
    (1, "b", None),
    (1, "[b/]", "P('dp'), but its hint says P(None)"),
    (1, "[b/tp]", "P('dp'), but its hint says P('tp')"),
]


@pytest.mark.sample(3)
@ASKED
@pytest.mark.parametrize(("at", "hint", "problem"), MAPPED)
def test_all_agree_on_a_value_that_is_mapped_and_differentiated_at_once(
    at: int, hint: str, problem: str | None, ask: Callable[[Any, str], None]
) -> None:
    found: list[bool] = []

    def row_sum(row: Any) -> Any:
        found.append(verdict(ask, row, hint))
        return row.sum()

    jax.vmap(jax.grad(row_sum), in_axes=at)(ROWS)
    jax.grad(lambda x: jax.vmap(row_sum, in_axes=at)(x).sum())(ROWS)
    assert found == [problem is None] * 2


VMAPS: dict[str, Callable[[Any, int], Any]] = {
    "jit(vmap)": lambda f, at: jax.jit(jax.vmap(f, in_axes=at)),
    "vmap(jit)": lambda f, at: jax.vmap(jax.jit(f), in_axes=at),
    "jit(vmap(jit))": lambda f, at: jax.jit(jax.vmap(jax.jit(f), in_axes=at)),
    "jit(vmap(grad))": lambda f, at: jax.jit(jax.vmap(jax.grad(lambda x: f(x).sum()), in_axes=at)),
    "jit(grad(vmap))": lambda f, at: jax.jit(jax.grad(lambda x: jax.vmap(f, in_axes=at)(x).sum())),
    "jit(vmap(cond))": lambda f, at: jax.jit(
        jax.vmap(lambda x: jax.lax.cond(x.sum() > 0, f, lambda x: x, x), in_axes=at)
    ),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", VMAPS)
@pytest.mark.parametrize(("at", "hint", "problem"), MAPPED)
def test_a_compiled_vmap_knows_which_dim_is_mapped(name: str, at: int, hint: str, problem: str | None) -> None:
    program = VMAPS[name](lambda row: check(row, hint), at)
    if problem is None:
        run(program, ROWS)
        return
    with fails_to_compile(ShardingError, f"check: checked value is sharded {problem}"):
        run(program, ROWS)


@pytest.mark.parametrize(("hint", "fits"), [("[a/tp]", True), ("a", True), ("[a/]", False), ("[a/dp]", False)])
def test_several_dims_may_be_mapped(hint: str, fits: bool) -> None:
    array = put(P("dp", None, "tp"), array=numbers(8, 4, 8))
    twice = jax.vmap(jax.vmap(lambda row: check(row, hint), in_axes=0), in_axes=0)
    assert (message(lambda: twice(array)) is None) is fits
    assert (message(lambda: jax.jit(jax.vmap(jax.vmap(lambda row: check(row, hint))))(array)) is None) is fits


def message(call: Callable[[], Any]) -> str | None:
    """The first line of ours that a call ends with."""
    try:
        jax.block_until_ready(call())
    except (ShardingError, MeshAxisError) as error:
        return str(error).splitlines()[0]
    except jax.errors.JaxRuntimeError as error:
        ours = original_error(error)
        assert ours is not None, error
        return str(ours).splitlines()[0]
    return None


# Compiled programs on Auto axes


@pytest.mark.parametrize(("spec", "hint", "fits"), LIES)
def test_a_compiled_program_compares_as_jax_does(spec: P, hint: str, fits: bool) -> None:
    answer = message(lambda: compiled(hint)(put(spec)))
    assert (answer is None) is fits
    if hint in UNSHARDED:
        unsharded = NamedSharding(mesh_of(), P())
        assert jax.jit(lambda x: x * 2)(put(spec)).sharding.is_equivalent_to(unsharded, 2) is fits


def test_an_error_of_jax_says_which_of_ours_it_comes_from() -> None:
    program = compiled("b [d/dp]")
    line = wrong("P('dp', None)", "P(None, 'dp')")
    for _ in range(2):  # JAX compiles again what failed
        with fails_to_compile(ShardingError, line):
            program(ROWS)


def test_an_error_that_is_not_ours_is_recognized() -> None:
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        compiled("b [d/dp]")(ROWS)
    assert original_error(jax.errors.JaxRuntimeError("INTERNAL: out of memory")) is None


def test_the_name_of_the_function_around_is_reported() -> None:
    @jax.jit
    @typed
    def step(x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return check(x * 2, "[b/tp] d")

    with fails_to_compile(
        ShardingError, "step: checked value is sharded P('dp', None), but its hint says P('tp', None)"
    ):
        step(ROWS)


def product(hint: str) -> Any:
    """What XLA chooses a sharding for."""
    return jax.jit(lambda x, w: jnp.sin(check(x @ w, hint)))


def constrained(hint: str) -> Any:
    return jax.jit(lambda x: check(jax.lax.with_sharding_constraint(x, NamedSharding(mesh_of(), P("tp", "dp"))), hint))


def backward(hint: str) -> Any:
    """A cotangent, which is sharded as the value is."""

    @jax.custom_vjp
    def same_value(x: Any) -> Any:
        return x

    same_value.defvjp(lambda x: (x, None), lambda _, g: (check(g, hint),))
    return jax.jit(jax.grad(lambda x: (same_value(x) ** 2).sum()))


COLUMNS, W = put(P(None, "tp")), put(P(None, "tp"), array=numbers(16, 6))
KEYS = put(P("dp"), array=jax.random.split(jax.random.key(0), 8))
PAIR = tuple[Float[Array, "[b/dp] d"], Float[Array, "b [d/dp]"]] | None
SAID: dict[str, tuple[Callable[[], Any], str | None]] = {
    "what XLA chooses": (lambda: product("[b/dp] [f/tp]")(ROWS, W), None),
    "something else": (lambda: product("[b/dp] f")(ROWS, W), wrong("P('dp', 'tp')", "P('dp', None)")),
    "a constraint": (lambda: constrained("[b/tp] [d/dp]")(ROWS), None),
    "another constraint": (lambda: constrained("[b/dp] d")(ROWS), wrong("P('tp', 'dp')", "P('dp', None)")),
    "a cotangent": (lambda: backward("[b/dp] d")(ROWS), None),
    "a cotangent of another sharding": (lambda: backward("[b/tp] d")(ROWS), wrong("P('dp', None)", "P('tp', None)")),
    "two checks": (lambda: compiled("[b/dp] d", "[b/dp] d")(ROWS), None),
    "the second of two": (lambda: compiled("[b/dp] d", "b [d/tp]")(ROWS), wrong("P('dp', None)", "P(None, 'tp')")),
    "a leaf": (
        lambda: checking(PyTree[Float[Array, "[b/dp] d"]])({"a": ROWS, "b": [ROWS, COLUMNS]}),
        wrong("P(None, 'tp')", "P('dp', None)", "['b'][1]"),
    ),
    "keys": (lambda: checking("[b/dp]")(KEYS), None),
    "keys of another sharding": (lambda: checking("[b/]")(KEYS), wrong("P('dp')", "P(None)")),
    "what may be absent": (lambda: checking(PAIR)((ROWS, ROWS)), wrong("P('dp', None)", "P(None, 'dp')", "[1]")),
    "a gradient that is worked out at once": (
        lambda: jax.grad(lambda x: check(x, "[b/] d").sum())(ROWS),
        wrong("P('dp')", "P(None, None)"),
    ),
}


@pytest.mark.parametrize(("call", "line"), SAID.values(), ids=SAID)
def test_a_check_compares_with_the_sharding_that_the_value_has(call: Callable[[], Any], line: str | None) -> None:
    assert message(call) == line


@pytest.mark.parametrize(("spec", "hint", "fits"), LIES)
def test_under_an_ambient_mesh_a_constraint_says_it_too(spec: P, hint: str, fits: bool, mesh: Mesh) -> None:
    with jax.set_mesh(mesh):
        program = jax.jit(lambda x: check(jax.lax.with_sharding_constraint(x, spec), hint))
        assert (message(lambda: program(x)) is None) is fits


def test_under_an_ambient_mesh_an_array_of_numpy_is_unsharded(mesh: Mesh) -> None:
    with jax.set_mesh(mesh):
        run(compiled("b d", "...", "b [d/]"), x)
        with fails_to_compile(ShardingError, wrong("P(None, None)", "P('dp', None)")):
            compiled("[b/dp] d")(x)


SHUFFLED = Mesh(np.array(jax.devices())[[3, 1, 4, 0, 5, 7, 2, 6]].reshape(2, 2, 2), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("spec", "hint", "problem"),
    [
        (P(("c", "a"), "b"), "[m/c,a] [n/b]", None),
        (P(None, ("b", "a", "c")), "m [n/b,a,c]", None),
        (P(("c", "a"), "b"), "[m/a,c] [n/b]", "P(('c', 'a'), 'b'), but its hint says P(('a', 'c'), 'b')"),
        (P("b"), "m [n/b]", "P('b', None), but its hint says P(None, 'b')"),
    ],
)
def test_devices_in_another_order_are_those_of_the_mesh(spec: P, hint: str, problem: str | None) -> None:
    with jax.set_mesh(SHUFFLED):
        program = jax.jit(lambda x: check(jax.lax.with_sharding_constraint(x, spec), hint))
        assert message(lambda: program(x)) == (
            None if problem is None else f"check: checked value is sharded {problem}"
        )


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
@pytest.mark.parametrize(
    ("hint", "line"),
    [
        ("[b/dp] d", None),
        ("b [d/dp]", "is sharded P('dp', None), but its hint says P(None, 'dp')"),
        ("[b/data] d", "names mesh axis 'data', which is not among the mesh's axes 'dp', 'tp'"),
    ],
)
def test_in_shardings_tell_the_mesh_when_the_program_is_compiled(kind: AxisType, hint: str, line: str | None) -> None:
    where = NamedSharding(mesh_of(kind, kind), P("dp"))
    program = jax.jit(lambda x: check(x, hint), in_shardings=where)
    answer = message(lambda: program(x))
    assert answer == (None if line is None else f"check: checked value {line}")


def test_a_dim_that_is_sharded_over_a_part_of_an_axis_is_reported(mesh: Mesh) -> None:
    def program(x: Any) -> Any:
        return check(x.reshape(2, 4, 16), "[a/] b d")

    line = "check: checked value is sharded in (2, 2, 1) parts, which no PartitionSpec describes, "
    line += "but its hint says P(None, None, None)"
    assert message(lambda: jax.jit(program)(ROWS)) == line
    with jax.set_mesh(mesh):
        assert message(lambda: jax.jit(lambda x: program(x))(ROWS)) == line


def test_without_a_mesh_brackets_cannot_be_compared() -> None:
    same(compiled("b d", "...")(x), 2 * x)
    line = "check: checked value names mesh axes 'dp', 'tp' in its hint, but no mesh is known"
    with fails(MeshAxisError, line):
        compiled("[b/dp] [d/tp]")(x)


TRANSFORMED: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "jit": jax.jit,
    "jit(jit)": lambda f: jax.jit(lambda x: jax.jit(f)(x)),
    "jit(grad)": lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
    "grad(jit)": lambda f: jax.grad(lambda x: jax.jit(f)(x).sum()),
    "jit(value_and_grad(remat))": lambda f: jax.jit(jax.value_and_grad(lambda x: jax.checkpoint(f)(x).sum())),
    "jit(jvp)": lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x,))),
    "jit(hessian)": lambda f: jax.jit(lambda x: jax.jvp(jax.grad(lambda x: f(x).sum()), (x,), (x,))[1]),
    "jit(cond)": lambda f: jax.jit(lambda x: jax.lax.cond(x.sum() > 0, f, lambda x: x, x)),
    "jit(while)": lambda f: jax.jit(
        lambda x: jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, f(c[1])), (0, x))
    ),
    "jit(fori)": lambda f: jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, x: f(x), x)),
    "jit(scan)": lambda f: jax.jit(lambda x: jax.lax.scan(lambda x, _: (f(x), None), x, length=2)[0]),
    "scan": lambda f: lambda x: jax.lax.scan(lambda x, _: (f(x), None), x, length=2)[0],
    "lower.compile": lambda f: lambda x: jax.jit(f).lower(x).compile()(x),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_check_works_in_every_transformation(name: str) -> None:
    right = TRANSFORMED[name](lambda x: check(jnp.sin(x), "[b/dp] d"))
    plain = TRANSFORMED[name](jnp.sin)
    same(right(ROWS), plain(x))
    line = wrong("P('dp', None)", "P(None, None)")
    with fails_to_compile(ShardingError, line):
        run(TRANSFORMED[name](lambda x: check(jnp.sin(x), "b [d/]")), ROWS)


def test_a_check_works_in_a_function_with_its_own_gradient() -> None:
    @jax.custom_vjp
    def doubled(x: Any) -> Any:
        return check(2 * x, "[b/dp] d")

    doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (2 * g,))
    gradient = jax.jit(jax.grad(lambda x: doubled(x).sum()))
    same(gradient(ROWS), np.full_like(x, 2))
    assert message(lambda: jax.jit(jax.grad(lambda x: doubled(x).sum()))(put(P(None, "dp")))) == (
        wrong("P(None, 'dp')", "P('dp', None)")
    )


UNION = Float[Array, "b [d/dp]"] | Float[Array, "[b/dp] d"]
PAIRS = tuple[Float[Array, "b [d/dp]"], int] | tuple[Float[Array, "[b/dp] d"], int]


@pytest.mark.parametrize(
    ("wrap", "hint"), [(lambda x: x, UNION), (lambda x: [x], list[UNION]), (lambda x: (x, 1), PAIRS)]
)
def test_any_member_of_a_union_may_say_how_a_value_is_sharded(wrap: Callable[[Any], Any], hint: Any) -> None:
    program = jax.jit(lambda x: check(wrap(x), hint))
    assert message(lambda: program(ROWS)) is None
    assert message(lambda: program(put(P(None, "dp")))) is None
    problem = "is sharded P('tp', None), but its hint says"
    assert problem in (message(lambda: program(put(P("tp")))) or "")


def test_a_program_that_is_only_traced_asks_nothing_and_only_check_asks() -> None:
    @typed
    def helper(x: Float[Array, "[b/tp] d"]) -> Float[Array, "[b/tp] d"]:
        assert isinstance(x, Float[Array, "[b/tp] d"])
        return x

    for trace in (jax.eval_shape, lambda f, x: jax.make_jaxpr(f)(x)):
        trace(lambda x: check(x, "[b/tp] d"), ROWS)
    run(jax.jit(lambda x: beartype(helper)(x)), ROWS)


# One device


ONE = mesh_of(shape=(1, 1))


def test_on_one_device_every_sharding_is_the_same() -> None:
    program = compiled("[b/dp] d", "b [d/dp,tp]", "b [d/]")
    assert "ask_sharding" not in str(jax.make_jaxpr(program)(put(P("dp"), ONE)))
    run(program, put(P("dp"), ONE))
    run(jax.jit(lambda x: check(x, "[b/dp] d"), in_shardings=NamedSharding(ONE, P())), x)
    with jax.set_mesh(ONE):
        run(compiled("[b/dp] d", "b [d/]"), x)


def test_on_one_device_an_unknown_axis_is_refused() -> None:
    line = "check: checked value names mesh axis 'data', which is not among the mesh's axes 'dp', 'tp'"
    with fails(MeshAxisError, line):
        compiled("[b/data] d")(put(P("dp"), ONE))
    with fails(MeshAxisError, line):
        jax.jit(lambda x: check(x, "[b/data] d"), in_shardings=NamedSharding(ONE, P()))(x)


ALONE = """
import sys, jax, numpy as np
from typedshmap import check
program = jax.jit(lambda x: check(2 * x, "b [d/]"))
print("ask_sharding" in str(jax.make_jaxpr(program)(np.ones((4, 2)))), program(np.ones((4, 2))).sum())
print("flax" in sys.modules)
"""


@pytest.mark.slow
def test_where_there_is_one_device_only_nothing_is_asked_and_flax_is_not_imported() -> None:
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [sys.executable, "-c", ALONE], env=environment, capture_output=True, encoding="utf-8", timeout=120
    )
    assert ended.stdout.split() == ["False", "16.0", "False"], ended.stderr


# Explicit axes


def test_a_type_on_explicit_axes_is_checked_at_trace_time() -> None:
    array = put(P("dp", "tp"), mesh_of(EXPLICIT, EXPLICIT))
    program = jax.jit(lambda x: check(jnp.sin(x), "[b/dp] [d/tp]"))
    assert "ask_sharding" not in str(jax.make_jaxpr(program)(array))
    assert program(array).sharding.spec == P("dp", "tp")
    with fails(ShardingError, wrong("P('dp', 'tp')", "P('dp', None)")):
        jax.eval_shape(lambda x: check(jnp.sin(x), "[b/dp] d"), array)


def test_a_type_on_an_explicit_mesh_without_devices_is_checked_as_well() -> None:
    mesh = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(EXPLICIT, EXPLICIT))
    like = jax.ShapeDtypeStruct((8, 16), "float32", sharding=NamedSharding(mesh, P("dp")))
    with jax.sharding.use_abstract_mesh(mesh):
        assert jax.eval_shape(lambda x: check(x, "[b/dp] d"), like).shape == (8, 16)
        with fails(ShardingError, wrong("P('dp', None)", "P('tp', None)")):
            jax.eval_shape(lambda x: check(x, "[b/tp] d"), like)


MIXED = [
    (P("dp", "tp"), "[b/dp] [d/tp]", True),
    (P("dp", "tp"), "[b/dp] d", False),
    (P("dp", "tp"), "b [d/tp]", False),
    (P(("dp", "tp")), "[b/dp,tp] d", False),  # a dim over axes of both types
    (P(("dp", "tp")), "[b/tp,dp] d", False),
    (P(("tp", "dp")), "[b/tp,dp] d", False),
    (P("tp"), "[b/tp] d", True),
    (P("tp"), "b [d/]", False),
    (P("tp"), "b d", True),
]


@pytest.mark.parametrize("kinds", [(EXPLICIT, AUTO), (AUTO, EXPLICIT)], ids=["dp", "tp"])
@pytest.mark.parametrize(("spec", "hint", "fits"), MIXED)
def test_axes_of_both_types_are_compared(spec: P, hint: str, fits: bool, kinds: tuple[AxisType, AxisType]) -> None:
    array = put(spec, mesh_of(*kinds))
    assert isinstance(array, Float[Array, hint]) is fits
    assert (message(lambda: checking(hint)(array)) is None) is fits


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
@pytest.mark.parametrize(
    ("hint", "problem"),
    [
        ("b f +dp", None),
        ("b f", None),
        ("[b/] f", "is sharded P(None, None, unreduced={'dp'}), but its hint says P(None, None)"),
        ("b [f/dp]", "is sharded P(None, None, unreduced={'dp'}), but its hint says P(None, 'dp')"),
        ("b f -dp", "is sharded P(None, None, unreduced={'dp'}), but its hint says P(None, None, reduced={'dp'})"),
    ],
)
def test_a_partial_sum_over_an_explicit_axis_is_in_the_type(hint: str, problem: str | None, kind: AxisType) -> None:
    mesh = mesh_of(EXPLICIT, kind)

    @jax.jit
    def program(x: Any, w: Any) -> Any:
        addends = jnp.einsum("bm,mf->bf", x, w, out_sharding=P(None, None, unreduced={"dp"}))
        return jax.reshard(check(addends, hint), P(None, None))

    with jax.set_mesh(mesh):
        args = put(P(None, "dp"), mesh), put(P("dp"), mesh, numbers(16, 8))
        assert message(lambda: program(*args)) == (None if problem is None else f"check: checked value {problem}")


@pytest.mark.parametrize("sign", "+-")
def test_a_value_whose_type_knows_no_mesh_bears_no_mark(sign: str) -> None:
    mesh, word = mesh_of(EXPLICIT, EXPLICIT), {"+": "unreduced", "-": "reduced"}[sign]
    line = "check: checked value is neither unreduced nor reduced in JAX's type, but its hint says "
    line += f"P(None, None, {word}={{'dp'}})"
    program = jax.jit(lambda x: check(x, f"b d {sign}dp"), in_shardings=NamedSharding(mesh, P()))
    assert message(lambda: program(x)) == line
    with jax.set_mesh(mesh):
        assert message(lambda: checking(f"b d {sign}dp")(x)) == line


def test_of_axes_of_both_types_only_explicit_ones_are_known_at_trace_time() -> None:
    array = put(P("dp", "tp"), mesh_of(EXPLICIT, AUTO))
    seen: list[bool] = []
    hints = ["[b/dp] [d/tp]", "[b/dp] d", "[b/dp,tp] d", "[b/tp,dp] d", "b [d/tp]"]
    jax.eval_shape(lambda x: seen.extend(isinstance(x, Float[Array, hint]) for hint in hints), array)
    assert seen == [True, True, False, False, False]


# Meshes without devices, and programs that are exported


NO_DEVICES = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AUTO, AUTO))
LIKE = jax.ShapeDtypeStruct((8, 16), "float32", sharding=NamedSharding(NO_DEVICES, P("dp")))


@pytest.mark.parametrize("hint", ["[b/dp] d", "b [d/tp]"])
def test_a_mesh_without_devices_has_nobody_to_ask(hint: str) -> None:
    lowered = compiled(hint).trace(LIKE).lower(lowering_platforms=("tpu",))
    assert lowered.as_text() == compiled().trace(LIKE).lower(lowering_platforms=("tpu",)).as_text()


def test_a_mesh_without_devices_knows_its_axes() -> None:
    line = "check: checked value names mesh axis 'data', which is not among the mesh's axes 'dp', 'tp'"
    with fails(MeshAxisError, line):
        jax.eval_shape(lambda x: check(x, "[b/data] d"), LIKE)


def test_an_exported_program_asks_nothing() -> None:
    exported = jax.export.export(compiled("[b/tp] d"))(ROWS)
    same(jax.jit(exported.call)(ROWS), 2 * x)


# Manual regions


@pytest.mark.parametrize(("axes", "hint"), [({"dp", "tp"}, "[b/dp] d"), ({"dp"}, "[b/dp] [d/tp]")])
def test_in_a_manual_region_nothing_is_asked(axes: set[str], hint: str, mesh: Mesh) -> None:
    @partial(typed_shard_map, mesh=mesh, axis_names=axes)
    def body(x: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/dp] d"]:
        return check(2 * x, hint)

    assert "ask_sharding" not in str(jax.make_jaxpr(body)(x))
    same(jax.jit(lambda x: body(x))(ROWS), 2 * x)


# What it costs


def test_a_check_leaves_the_compiled_program_as_it_is() -> None:
    def program(x: Any, w: Any, v: Any) -> Any:
        return jax.nn.relu(x @ w) @ v

    def checked(x: Any, w: Any, v: Any) -> Any:
        h = check(jax.nn.relu(check(x @ w, "[b/dp] [f/tp]")), "[b/dp] [f/tp]")
        return check(h @ v, "[b/dp] m")

    checked.__name__ = checked.__qualname__ = "program"
    args = ROWS, put(P(None, "tp"), array=numbers(16, 32)), put(P("tp"), array=numbers(32, 16))
    texts = [jax.jit(f).lower(*args).compile().as_text() for f in (program, checked)]
    assert operations(texts[0]) == operations(texts[1])
    assert "all-reduce" in operations(texts[0])


def operations(text: str) -> list[str]:
    """The operations of a compiled program, in order of their names."""
    lines = (line.split(" = ", 1)[1] for line in text.splitlines() if " = " in line and line.startswith(" "))
    return sorted(line.split("(")[0].split()[-1] for line in lines)
