"""Which values fit which hints in a manual region: the shards may differ only where the hint says so."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails, mesh_of, numbers, same, traced
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    ShapeError,
    TypedShmapError,
    VaryingError,
    _jax,
    check,
    sizes,
    typed,
    typed_shard_map,
)

XY = Float[Array, "[b/dp] [d/tp]"]
OWED = Float[Array, "[b/dp] +tp"]
M = Float[Array, "[b/dp] m"]
BY_ROWS, Row = Float[Array, "[b/dp]"], Float[Array, "[d/tp]"]
x = numbers(8, 4)


# The rule, as a table: how a value is made in the body, its hint, and what is wrong, if anything


VALUES: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: jax.lax.psum(x.sum(), ("dp", "tp")),
    "V:dp": lambda x: jax.lax.psum(x.sum(), "tp"),
    "V:tp": lambda x: jax.lax.psum(x.sum(), "dp"),
    "V:(dp,tp)": lambda x: x.sum(),
    "U:tp": lambda x: jax.lax.pcast(jax.lax.psum(x.sum(), "dp"), "tp", to="unreduced"),
    "V:dp, U:tp": lambda x: jax.lax.pcast(x.sum(), "tp", to="unreduced"),
    "U:(dp,tp)": lambda x: jax.lax.pcast(x.sum(), ("dp", "tp"), to="unreduced"),
    "R:tp": lambda x: jax.lax.pcast(jax.lax.psum(x.sum(), ("dp", "tp")), "tp", to="reduced"),
}

DP = "varies over 'dp', which its hint does not mention"
TP = "varies over 'tp', which its hint does not mention"
BOTH = "varies over 'dp', 'tp', which its hint does not mention"
OWES_TP = "is unreduced over 'tp', which its hint does not mention"
OWES_BOTH = "is unreduced over 'dp', 'tp', which its hint does not mention"
NOT_DP = "is the same on every shard of 'dp', but its hint says '+dp'"
NOT_TP = "is the same on every shard of 'tp', but its hint says '+tp'"

RULE = [
    ("none", "", None),
    ("none", "+tp", NOT_TP),
    ("none", "+dp", NOT_DP),
    ("none", "+dp +tp", NOT_DP),
    ("none", "~tp", None),
    ("none", "~dp ~tp", None),
    ("none", "-tp", None),
    ("V:dp", "", DP),
    ("V:dp", "+dp", None),
    ("V:dp", "~dp", None),
    ("V:dp", "+tp", DP),
    ("V:dp", "~tp", DP),
    ("V:dp", "-dp", DP),
    ("V:dp", "~dp +tp", NOT_TP),
    ("V:dp", "~dp ~tp", None),
    ("V:tp", "", TP),
    ("V:tp", "+tp", None),
    ("V:tp", "+dp ~tp", NOT_DP),
    ("V:(dp,tp)", "", BOTH),
    ("V:(dp,tp)", "+dp", TP),
    ("V:(dp,tp)", "~tp", DP),
    ("V:(dp,tp)", "+dp +tp", None),
    ("V:(dp,tp)", "~dp +tp", None),
    ("V:(dp,tp)", "~dp ~tp", None),
    ("U:tp", "", OWES_TP),
    ("U:tp", "~tp", OWES_TP),
    ("U:tp", "+tp", None),
    ("U:tp", "+tp ~dp", None),
    ("U:tp", "+dp +tp", NOT_DP),
    ("V:dp, U:tp", "", DP),
    ("V:dp, U:tp", "~dp", OWES_TP),
    ("V:dp, U:tp", "+tp", DP),
    ("V:dp, U:tp", "~dp +tp", None),
    ("V:dp, U:tp", "+dp +tp", None),
    ("U:(dp,tp)", "", OWES_BOTH),
    ("U:(dp,tp)", "+dp", OWES_TP),
    ("U:(dp,tp)", "+dp +tp", None),
    ("R:tp", "", None),
    ("R:tp", "-tp", None),
    ("R:tp", "~tp", None),
    ("R:tp", "+tp", NOT_TP),
]


def in_body(use: Callable[[Any], Any], mesh: Mesh, **options: Any) -> None:
    """Trace a body under jit, where a value may be unreduced on any mesh."""
    traced(typed_shard_map(use, mesh=mesh, in_types=(XY,), out_types=None, **options), x)


def with_verdict(use: Callable[[], None], name: str, problem: str | None) -> None:
    if problem is None:
        use()
        return
    with fails(VaryingError, f"{name} {problem}"):
        use()


@pytest.mark.parametrize("type_", VALUES)
def test_the_values_of_the_table_have_these_types(type_: str, mesh: Mesh) -> None:
    seen: list[str] = []
    in_body(lambda x: seen.append(str(jax.typeof(VALUES[type_](x)))), mesh)
    (text,) = seen
    # jax 0.9 has several unreduced axes in no order.
    assert text.replace("U:(tp,dp)", "U:(dp,tp)") == ("float32[]" if type_ == "none" else f"float32[]{{{type_}}}")


def by_check(value: Any, hint: str) -> Any:
    return check(value, hint)


def of_argument(value: Any, hint: str) -> Any:
    @typed
    def helper(value: Float[Array, hint]) -> None: ...

    return helper(value)


def of_result(value: Any, hint: str) -> Any:
    @typed
    def helper() -> Float[Array, hint]:
        return value

    return helper()


ASK = {"by_check": "use: checked value", "of_argument": "helper: argument 'value'", "of_result": "helper: return value"}


@pytest.mark.sample(2)
@pytest.mark.parametrize(("type_", "hint", "problem"), RULE)
@pytest.mark.parametrize("ask", [by_check, of_argument, of_result])
def test_a_value_fits_its_hint_or_not(ask: Any, type_: str, hint: str, problem: str | None, mesh: Mesh) -> None:
    def use(x: Any) -> None:
        ask(VALUES[type_](x), hint)

    with_verdict(lambda: in_body(use, mesh), ASK[ask.__name__], problem)


@pytest.mark.parametrize(("type_", "hint", "problem"), RULE)
def test_isinstance_answers_by_the_same_rule(type_: str, hint: str, problem: str | None, mesh: Mesh) -> None:
    seen: list[bool] = []
    in_body(lambda x: seen.append(isinstance(VALUES[type_](x), Float[Array, hint])), mesh)
    assert seen == [problem is None]


# Brackets


BRACKETS = [
    (lambda x: x, "[b/dp] [d/tp]", None),
    (lambda x: x.T, "[d/tp] [b/dp]", None),
    (lambda x: x.sum(1), "[b/dp]", TP),
    (lambda x: x.sum(1), "[b/dp] +tp", None),
    (lambda x: x.sum(1), "[b/dp] ~tp", None),
    (lambda x: jax.lax.psum(x.sum(1), "tp"), "[b/dp]", None),
    (lambda x: jax.lax.psum(x.sum(1), "tp"), "[b/dp] +tp", NOT_TP),
    (lambda x: jnp.zeros((2, 2)), "[b/dp] [d/tp]", None),
    (lambda x: jax.lax.psum(x, ("dp", "tp")), "[b/dp] [d/tp]", None),
    (lambda x: jax.lax.all_gather(x, "tp", axis=1, tiled=True), "[b/dp] d", None),
    (lambda x: jax.lax.all_gather(x, "tp", axis=1, tiled=True)[:, :1], "[b/dp] 1", None),
    (lambda x: jax.lax.all_gather(x, "tp", axis=1, tiled=True) + x[:, :1], "[b/dp] d", TP),
    (lambda x: jax.lax.all_gather(x, "tp", axis=1, tiled=True), "[b/dp] d ~tp", None),
    (lambda x: _jax.casts.all_gather(x, ("tp",), 1, "invarying", has_vma=True), "[b/dp] d", None),
    (lambda x: x + jnp.ones(2), "[b/dp] [d/tp]", None),
    (lambda x: jnp.ones(4) + jax.lax.axis_index("tp"), "[d/]", TP),
]


@pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")  # a sum of different rows
@pytest.mark.parametrize(("make", "hint", "problem"), BRACKETS)
def test_a_value_may_vary_over_the_axes_that_shard_it(make: Any, hint: str, problem: Any, mesh: Mesh) -> None:
    def use(x: Any) -> None:
        check(make(x), hint)

    with_verdict(lambda: in_body(use, mesh), "use: checked value", problem)


EXPLICIT = mesh_of(4, 2, kind=AxisType.Explicit)


@pytest.mark.parametrize(
    ("mesh", "check_vma"),
    [(mesh_of(4, 2), True), (mesh_of(4, 2), False), (mesh_of(8, 1), True), (EXPLICIT, True), (EXPLICIT, False)],
)
@pytest.mark.parametrize(
    ("body", "hint", "name", "problem"),
    [
        (lambda x: x.sum(1), BY_ROWS, "return value", TP),
        (lambda x: (x, x.sum()), tuple[XY, Float[Array, ""]], "return[1]", BOTH),
        (lambda x: {"a": [x.sum(0)]}, dict[str, list[Row]], "return['a'][0]", DP),
    ],
)
def test_what_leaves_a_region_may_not_vary_over_what_its_hint_does_not_mention(
    body: Callable[[Any], Any], hint: Any, name: str, problem: str, mesh: Mesh, check_vma: bool
) -> None:
    mapped = typed_shard_map(body, mesh=mesh, check_vma=check_vma, in_types=XY, out_types=hint)
    with fails(VaryingError, f"<lambda>: {name} {problem}"):
        traced(mapped, jax.device_put(x, NamedSharding(mesh, P("dp", "tp"))))


def test_every_leaf_that_varies_is_reported(mesh: Mesh) -> None:
    body = typed_shard_map(lambda x: (x.sum(0), x.sum(1)), mesh=mesh, in_types=(XY,), out_types=tuple[Row, BY_ROWS])
    with pytest.raises(VaryingError) as caught:
        traced(body, x)
    assert [str(failure.subject) for failure in caught.value.failures] == ["return[0]", "return[1]"]
    assert f"Also: return[1] {TP}" in str(caught.value)


CURES = [(AxisType.Auto, ""), (AxisType.Explicit, ", or write '+dp +tp' if its sum is taken later")]


@pytest.mark.parametrize(("kind", "cure"), CURES)
def test_a_value_may_stay_unreduced_at_the_boundary_over_explicit_axes_only(kind: AxisType, cure: str) -> None:
    mesh = mesh_of(4, 2, kind=kind)
    body = typed_shard_map(lambda x: x.sum(), mesh=mesh, in_types=(XY,), out_types=Float[Array, ""])
    with jax.set_mesh(mesh), pytest.raises(VaryingError) as caught:
        traced(body, jax.device_put(x, NamedSharding(mesh, P("dp", "tp"))))
    hint = str(caught.value).splitlines()[-1]
    begins = "Hint: the sum over b (sharded over 'dp') and d (sharded over 'tp') at test_varying.py:"
    assert hint.startswith(begins) and hint.endswith(f" leaves partial sums: psum over 'dp', 'tp' of x.sum(){cure}")


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_cure_names_the_axes_of_one_argument(mesh: Mesh, check_vma: bool) -> None:
    hints = (BY_ROWS, Row)
    outer = typed_shard_map(
        lambda x, y: x[:, None] * y, mesh=mesh, check_vma=check_vma, in_types=hints, out_types=Float[Array, "_ _"]
    )
    with pytest.raises(VaryingError) as caught:
        traced(outer, x[:, 0], x[0])
    cure = "Hint: b of argument 'x' is still sharded over 'dp': write [b/dp], or gather it (all_gather)"
    assert str(caught.value).splitlines()[-1] == cure


def test_an_argument_that_is_unreduced_is_named() -> None:
    mesh = mesh_of(4, 2, kind=AxisType.Explicit)
    doubled = typed_shard_map(
        lambda x: 2 * x, mesh=mesh, check_vma=False, in_types=Float[Array, "b d +tp"], out_types=Float[Array, "b d"]
    )
    with jax.set_mesh(mesh), pytest.raises(VaryingError) as caught:
        unreduced = NamedSharding(mesh, P(None, None, unreduced={"tp"}))
        traced(doubled, jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=unreduced))
    assert "Hint: the hint of argument 'x' leaves partial sums: psum over 'tp'" in str(caught.value)


def test_within_a_region_a_value_may_stay_unreduced_over_any_axis(mesh: Mesh) -> None:
    with pytest.raises(VaryingError) as caught:
        in_body(lambda x: [check(x.sum(), "~dp"), None][1], mesh)
    cure = "leaves partial sums: psum over 'tp' of x.sum(), or write '+tp' if its sum is taken later"
    assert str(caught.value).splitlines()[-1].endswith(cure)


# Handed on at the type of the hint


@typed
def made(x: XY) -> tuple[OWED, XY]:
    return x.sum(1), x


ROWS, BLOCK, SCALAR = "float32[2]{V:(dp,tp)}", "float32[2,2]{V:(dp,tp)}", "float32[]{V:(dp,tp)}"
HANDED_ON: dict[str, tuple[Callable[[Any], Any], str]] = {
    "what may differ": (lambda x: check(x.sum(), "~dp ~tp"), SCALAR),
    "a partial sum": (lambda x: check(x.sum(), "+dp +tp"), SCALAR),
    "what is both": (lambda x: check(x.sum(), "~dp +tp"), SCALAR),
    "what JAX types as unreduced": (
        lambda x: check(jax.lax.pcast(x.sum(1), "tp", to="unreduced"), "[b/dp] +tp"),
        "float32[2]{V:dp, U:tp}",
    ),
    "what is sharded": (lambda x: check(x, "[b/dp] [d/tp]"), BLOCK),
    "dims of any kind": (lambda x: check(x, "_ _ ~dp ~tp"), BLOCK),
    "the first of a union": (lambda x: check(x.sum(1), OWED | BY_ROWS), ROWS),
    "the last of a union": (lambda x: check(x.sum(1), BY_ROWS | OWED), ROWS),
    "a leaf": (lambda x: check({"a": x, "b": x.sum(1)}, dict[str, OWED | XY])["b"], ROWS),
    "another leaf": (lambda x: check({"a": x, "b": x.sum(1)}, dict[str, OWED | XY])["a"], BLOCK),
    "a result of a helper": (lambda x: made(x)[0], ROWS),
    "another result": (lambda x: made(x)[1], BLOCK),
}


@pytest.mark.parametrize(("use", "type_"), HANDED_ON.values(), ids=HANDED_ON)
def test_a_partial_sum_is_handed_on_typed_as_varying_and_all_else_as_it_is(use: Any, type_: str, mesh: Mesh) -> None:
    seen: list[str] = []
    in_body(lambda x: seen.append(str(jax.typeof(use(x)))), mesh)
    assert seen == [type_]


@typed
def types_of(at: OWED, pair: tuple[OWED, int], *more: OWED, by: OWED, **named: OWED) -> list[str]:
    return [str(jax.typeof(y)) for y in (at, pair[0], *more, by, *named.values())]


def test_a_helper_gets_partial_sums_typed_as_varying(mesh: Mesh) -> None:
    seen: list[str] = []
    in_body(lambda x: seen.extend(types_of(y := x.sum(1), (y, 3), y, y, by=y, a=y, b=y)), mesh)
    assert seen == [ROWS] * 7


def test_a_partial_sum_refuses_what_is_not_linear(mesh: Mesh) -> None:
    def use(x: Any) -> None:
        jnp.sin(check(x.sum(1), "[b/dp] +tp"))

    line = use.__code__.co_firstlineno + 1
    due = f"sin is not linear, and its operand is a partial sum over 'tp', due since test_varying.py:{line} (use)"
    with fails(VaryingError, f"use: {due}"):
        in_body(use, mesh)


# The un-jitted gradient on an Auto mesh, where JAX has no unreduced values


def test_an_unjitted_gradient_goes_through_a_partial_sum(mesh: Mesh) -> None:
    @typed
    def partial_rows(x: XY) -> OWED:
        return x.sum(1)

    @typed_shard_map(mesh=mesh)
    def loss(x: XY) -> Float[Array, ""]:
        rows = jax.lax.psum(check(partial_rows(x), "[b/dp] +tp"), "tp")
        return jax.lax.psum((rows**2).sum(), "dp")

    expected = jax.grad(lambda x: (x.sum(1) ** 2).sum())(x)
    same(jax.grad(loss)(x), expected)
    same(jax.jit(jax.grad(loss))(x), expected)
    same(loss(x), (x.sum(1) ** 2).sum())


def test_an_unjitted_region_checks_the_rule_all_the_same(mesh: Mesh) -> None:
    loss = typed_shard_map(lambda x: x.sum(1), mesh=mesh, in_types=(XY,), out_types=BY_ROWS)
    with fails(VaryingError, f"<lambda>: return value {TP}"):
        jax.grad(lambda x: loss(x).sum())(x)
    with jax.disable_jit(), fails(VaryingError, f"<lambda>: return value {TP}"):
        loss(x)


# check_vma=False


@pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")  # a mean of partial sums
@pytest.mark.sample(2)
@pytest.mark.parametrize(("type_", "hint", "problem"), [row for row in RULE if "U" not in row[0] and "R" not in row[0]])
@pytest.mark.parametrize("ask", [by_check, of_argument])
def test_without_check_vma_the_same_is_inferred(ask: Any, type_: str, hint: str, problem: Any, mesh: Mesh) -> None:
    def use(x: Any) -> None:
        ask(VALUES[type_](x), hint)

    with_verdict(lambda: in_body(use, mesh, check_vma=False), ASK[ask.__name__], problem)


def test_without_check_vma_isinstance_asks_for_shapes_only(mesh: Mesh) -> None:
    seen: list[bool] = []
    in_body(lambda x: seen.append(isinstance(x.sum(), Float[Array, ""])), mesh, check_vma=False)
    assert seen == [True]


def test_without_check_vma_shapes_are_checked(mesh: Mesh) -> None:
    def use(x: Any) -> None:
        check(x, "[b/dp] [b/tp]")

    with fails(ShapeError, "use: checked value has b=4 (2 per shard over 'tp'), but argument 'x' has b=8"):
        in_body(use, mesh, check_vma=False)
    wrong = typed_shard_map(lambda x: x[:1], mesh=mesh, check_vma=False, in_types=(XY,), out_types=XY)
    with fails(ShapeError, "<lambda>: return value has b=4 (1 per shard over 'dp'), but argument 'x' has b=8"):
        traced(wrong, x)


# Partial-manual and nested regions


@pytest.mark.parametrize(
    ("inside", "result", "after", "line"),
    [
        (lambda row: check(row, "[d/tp]"), Row, lambda row: row, None),
        (lambda row: [check(row.sum(), "")][1:] or None, None, lambda _: None, f"<lambda>: checked value {TP}"),
        (lambda row: row, Row, lambda row: check(row, "[d/tp]"), f"outer: checked value {DP}"),
    ],
    ids=["none of those around", "its own", "those around, after it"],
)
def test_a_hint_in_a_nested_region_must_mention_its_axes(
    inside: Any, result: Any, after: Any, line: str | None, mesh: Mesh
) -> None:
    inner = typed_shard_map(inside, axis_names={"tp"}, in_types=Row, out_types=result)

    @typed_shard_map(mesh=mesh, axis_names={"dp"})
    def outer(x: XY) -> None:
        after(inner(x[0]))

    with nullcontext() if line is None else fails(VaryingError, line):
        traced(outer, x)


def test_axes_that_are_not_manual_do_not_vary(mesh: Mesh) -> None:
    def use(x: Any) -> None:
        check(x.sum(1), "[b/dp]")

    in_body(use, mesh, axis_names={"dp"})
    with fails(VaryingError, f"<lambda>: checked value {DP}"):
        in_body(lambda x: [check(x.sum(0), "d")][1:] or None, mesh, axis_names={"dp"})


def test_a_mark_over_an_axis_that_is_not_manual_says_nothing(mesh: Mesh) -> None:
    for hint in ("[b/dp] +tp", "[b/dp] ~tp"):
        in_body(lambda x, hint=hint: [check(x.sum(1), hint)][1:] or None, mesh, axis_names={"dp"})


# Regions that are not ours


def test_a_plain_shard_map_inside_is_a_region_like_others(mesh: Mesh) -> None:
    seen: list[bool] = []

    @typed
    def helper(x: XY) -> XY:
        check(x, "[b/dp] [d/tp]")
        seen.append(isinstance(x.sum(1), BY_ROWS))
        return x

    @typed_shard_map(mesh=mesh, axis_names={"dp"})
    def outer(x: XY) -> XY:
        return jax.shard_map(helper, axis_names={"tp"}, in_specs=P(None, "tp"), out_specs=P(None, "tp"))(x)

    same(outer(x), x)
    assert seen == [False]


def test_a_plain_shard_map_outside_is_a_region_like_others(mesh: Mesh) -> None:
    seen: list[Any] = []

    @typed
    def helper(x: XY) -> OWED:
        seen.append(isinstance(x, XY))
        seen.append(isinstance(x.sum(1), BY_ROWS))
        return x.sum(1)

    def body(x: Any) -> Any:
        seen.append(str(jax.typeof(helper(x))))
        return check(x, "[b/dp] [d/tp]")

    plain = jax.shard_map(body, mesh=mesh, in_specs=P("dp", "tp"), out_specs=P("dp", "tp"))
    same(jax.jit(plain)(x), x)
    assert seen == [True, False, "float32[2]{V:(dp,tp)}"]


@typed
def rows(x: XY) -> BY_ROWS:
    return x.sum(1)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        pytest.param(lambda x: check(x.sum(1), "[b/dp]"), f"check: checked value {TP}", id="check"),
        pytest.param(rows, f"rows: return value {TP}", id="typed"),
    ],
)
def test_a_plain_shard_map_is_checked_as_ours(body: Callable[[Any], Any], line: str, mesh: Mesh) -> None:
    plain = jax.shard_map(body, mesh=mesh, in_specs=P("dp", "tp"), out_specs=P("dp"))
    with fails(VaryingError, line):
        traced(plain, x)


def test_a_plain_shard_map_without_check_vma_gives_no_types(mesh: Mesh) -> None:
    plain = jax.shard_map(rows, mesh=mesh, in_specs=P("dp", "tp"), out_specs=P("dp"), check_vma=False)
    assert traced(plain, x).shape == (8,)


# Values of one type that fit a hint or not: what fitted says nothing of the next one but by its type


@typed
def scaled(x: M, gain: Float[Array, " m"]) -> M:
    return x * gain


@typed
def with_four(x: M, m: int = 0) -> M:
    return check(x, "[b/dp] 4") if m else x


def first_line_of(body: Callable[..., Any], *args: Any) -> str:
    """The first line of the error of a call; nothing where there is none."""
    try:
        traced(body, *args)
    except TypedShmapError as error:
        return str(error).splitlines()[0]
    return ""


@pytest.mark.parametrize("shape", [(8, 4), (16, 4), (8, 6)])
def test_after_what_fitted_sizes_are_those_of_the_call(shape: tuple[int, int], mesh: Mesh) -> None:
    seen: list[Any] = []

    @typed
    def noted(x: M) -> M:
        seen.append(sizes())
        return x

    @typed_shard_map(mesh=mesh)
    def body(x: M) -> M:
        first = noted(noted(x))
        noted(x[:, :2])
        return noted(first)

    traced(body, numbers(*shape))
    whole = {"b": shape[0], "m": shape[1]}
    assert [dict(each) for each in seen] == [whole, whole, {**whole, "m": 2}, whole]


def test_after_what_fitted_a_helper_in_another_region_is_looked_at_anew(mesh: Mesh) -> None:
    def body(x: M, gain: Float[Array, " m"]) -> M:
        return scaled(x, gain)

    other = Mesh(mesh.devices.reshape(2, 4), ("dp", "tp"))
    for of in (mesh, other, mesh):
        traced(typed_shard_map(body, mesh=of), numbers(8, 4), numbers(4))
    over_tp = typed_shard_map(body, mesh=mesh, axis_names={"tp"})
    traced(over_tp, numbers(8, 4), numbers(4))
    wrong = Mesh(mesh.devices, ("data", "tp"))
    assert "names mesh axis 'dp'" in first_line_of(typed_shard_map(body, mesh=wrong), numbers(8, 4), numbers(4))


def test_after_a_result_that_fitted_one_that_does_not_is_refused(mesh: Mesh) -> None:
    values = iter([lambda x: x, lambda x: x, lambda x: x * (1 + jax.lax.axis_index("tp"))])

    @typed
    def made(x: Float[Array, "[b/dp] m ~tp"]) -> M:
        return next(values)(x)

    @typed_shard_map(mesh=mesh)
    def body(x: M, w: Float[Array, "[m/tp]"]) -> M:
        x = x * jax.lax.all_gather(w, "tp", tiled=True)
        return jax.lax.pmean(made(made(x)) + made(x), "tp")

    assert "made: return value varies over 'tp'" in first_line_of(body, numbers(8, 4), numbers(4))


def test_a_default_is_among_the_arguments_of_each_call(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def body(x: M) -> M:
        return with_four(with_four(with_four(with_four(x)), 1), m=1)

    traced(body, numbers(8, 4))
    assert "size 5 in dim 1" in first_line_of(body, numbers(8, 5))


@typed
def row_product(x: Float[Array, "[b/dp] d"], w: Float[Array, "d"]) -> BY_ROWS:
    return x @ w


@typed
def marked_row_product(x: Float[Array, "[b/dp] d ~tp"], w: Float[Array, "d ~tp"]) -> Float[Array, "[b/dp] ~tp"]:
    return x @ w


IN_TURN = "a loop runs over h (sharded over 'tp')"
MAPPED = "jax.vmap maps over h (sharded over 'tp')"
OVER_ROWS: list[tuple[str, Callable[..., Any]]] = [
    (IN_TURN, lambda f: lambda x, w: jax.lax.scan(lambda carry, each: (carry, f(*each)), None, (x, w))[1]),
    (MAPPED, jax.vmap),
    (MAPPED, lambda f: jax.jit(jax.vmap(f))),
]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(("cause", "over_rows"), OVER_ROWS, ids=["scan", "vmap", "vmap in jit"])
def test_a_helper_that_is_called_for_each_row_of_a_sharded_dim_is_told_to_mark_it(
    cause: str, over_rows: Callable[..., Any], check_vma: bool, mesh: Mesh
) -> None:
    def over_heads(f: Callable[..., Any]) -> Callable[..., Any]:
        hints = (Float[Array, "[h/tp] [b/dp] d"], Float[Array, "[h/tp] d"])
        result = Float[Array, "[h/tp] [b/dp]"]
        return typed_shard_map(over_rows(f), mesh=mesh, check_vma=check_vma, in_types=hints, out_types=result)

    heads, weights = np.ones((4, 8, 3), np.float32), np.ones((4, 3), np.float32)
    with pytest.raises(VaryingError) as caught:
        traced(over_heads(row_product), heads, weights)
    message = re.sub(r"py:\d+", "py:LINE", str(caught.value))
    assert "got f32[2,3]{V:(dp,tp)} per shard" in message
    assert f"\nHint: {cause}: write '~tp'\n" in f"{message}\n"
    traced(over_heads(marked_row_product), heads, weights)


def test_a_helpers_result_that_is_the_callers_too_is_listed_once(mesh: Mesh) -> None:
    @typed
    def moments(x: XY) -> tuple[XY, Row, Row]:
        return x, x.mean(0), (x**2).mean(0)

    def f(x: XY) -> tuple[XY, Row, Row]:
        return moments(x)

    with pytest.raises(VaryingError) as caught:
        traced(typed_shard_map(f, mesh=mesh), x)
    assert str(caught.value).count("return[2] varies over 'dp'") == 1
