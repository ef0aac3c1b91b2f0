"""`assert_same_program`: right pairs pass, and of wrong ones the first line that differs is shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, StructureError, typed_shard_map
from typedshmap.testing import assert_same_program

MESH = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
x, w = np.ones((8, 16), np.float32), np.ones((16, 4), np.float32)
Function = Callable[..., Any]


def step(x: Float[Array, "[b/dp] d"], w: Float[Array, "d f"]) -> Float[Array, "[b/dp] f"]:
    return jnp.tanh(x @ w)


def other_step(x, w):
    return jnp.sin(x @ w)


SPECS: dict[str, Any] = {"mesh": MESH, "in_specs": (P("dp"), P()), "out_specs": P("dp")}
by_specs = partial(jax.shard_map, **SPECS)
typed, plain = typed_shard_map(step, mesh=MESH), by_specs(step)
double, triple = jax.jit(lambda x: x * 2.0), jax.jit(lambda x: x * 3.0)


def gradient(f: Function) -> Function:
    return jax.grad(lambda x, w: f(x, w).sum(), (0, 1))


def branching(f: Function) -> Function:
    return lambda x: lax.cond(x.sum() > 0, f, lambda x: x, x)


def kernel(name: str) -> Function:
    return lambda x: jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


SAME: dict[str, tuple[Function, Function, tuple[Any, ...]]] = {
    "typed by hints and plain": (typed, plain, (x, w)),
    "typed by specs and plain": (typed_shard_map(other_step, **SPECS), by_specs(other_step), (x, w)),
    "gradients": (gradient(typed), gradient(plain), (x, w)),
    "one under jit": (jax.jit(typed), plain, (x, w)),
    "structs": (typed, plain, (jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((16, 4), "float32"))),
    "other names": (
        lambda a: {"a": double(a["x"])},
        lambda b: {"b": jax.jit(lambda c: c * 2.0)(b["x"])},
        ({"x": x},),
    ),
    "constants that are given otherwise": (lambda x: x * 2.0, lambda x: x * np.float32(2), (x,)),
    "what is not an array": (lambda x, n, name: x * n, lambda x, n, name: x * n, (x, 3, "name")),
}
# Of each the operations that differ; of a program that is longer, what is more.
OTHER: dict[str, tuple[Function, Function, tuple[Any, ...], str, str]] = {
    "an operation": (typed, by_specs(other_step), (x, w), "tanh", "sine"),
    "a longer one": (typed, lambda x, w: plain(x, w) + 1, (x, w), "return", "constant dense<1.0"),
    "its gradient": (gradient(typed), gradient(by_specs(other_step)), (x, w), "", ""),
    "a number": (lambda x: x + 1.0, lambda x: x + 2.0, (x,), "dense<1.0", "dense<2.0"),
    "a number in a branch": (branching(lambda x: x * 2), branching(lambda x: x * 3), (x,), "dense<2.0", "dense<3.0"),
    "an order of calls": (
        lambda x: double(x) - triple(x),
        lambda x: triple(x) - double(x),
        (x,),
        "dense<2.0",
        "dense<3.0",
    ),
    "another kernel": (kernel("first"), kernel("second"), (x,), "@first", "@second"),
    "an order of operands": (lambda x, y: x - y, lambda x, y: y - x, (x, x), "subtract %0, %1", "subtract %1, %0"),
    "an operand that is taken twice": (lambda x, y: x + x, lambda x, y: x + y, (x, x), "", ""),
    "a spec": (
        by_specs(step),
        by_specs(step, out_specs=P(("dp", "tp")), check_vma=False),
        (x, w),
        "",
        "",
    ),
    "a donation": (double, jax.jit(lambda x: x * 2.0, donate_argnums=0), (x,), "", "aliasing_output"),
    "a dtype": (lambda x: x + 1, lambda x: x + np.float64(1), (np.ones(3, np.int32),), "i32", "f32"),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_program(name: str):
    f, g, args = SAME[name]
    assert_same_program(f, g, *args)


@pytest.mark.parametrize("name", OTHER)
def test_another_program_is_shown_by_its_first_line_that_differs(name: str):
    f, g, args, in_first, in_second = OTHER[name]
    with pytest.raises(AssertionError, match=r"are not the same program: line \d+ differs") as caught:
        assert_same_program(f, g, *args)
    first, second = [line for line in str(caught.value).splitlines() if line.startswith("    ") and line[4] != " "]
    assert in_first in first and in_second in second and first.partition(": ")[2] != second.partition(": ")[2]


def test_the_message_names_both_lines_and_their_places():
    with pytest.raises(AssertionError) as caught:
        assert_same_program(typed, by_specs(other_step), x, w)
    first, second = (inspect.getsourcelines(f)[1] + 1 for f in (step, other_step))
    assert str(caught.value) == (
        "assert_same_program: step and other_step are not the same program: line 6 differs\n\n"
        "    step: %6 = stablehlo.tanh %5 : tensor<2x4xf32>\n"
        f"        at test_same_program.py:{first}\n"
        "    other_step: %6 = stablehlo.sine %5 : tensor<2x4xf32>\n"
        f"        at test_same_program.py:{second}"
    )


def test_a_long_line_is_shown_around_what_differs():
    table = np.arange(4096, dtype=np.float32)
    other = np.where(table == 3000, 0, table).astype(np.float32)
    with pytest.raises(AssertionError) as caught:
        assert_same_program(lambda x: x + table, lambda x: x + other, table)
    lines = [line.partition(": ")[2] for line in str(caught.value).splitlines() if line.startswith("    <lambda>")]
    assert len(lines) == 2 and lines[0] != lines[1]
    assert all(line.startswith("...") and line.endswith("...") and len(line) < 310 for line in lines)


def test_two_functions_of_one_name_are_told_apart():
    with pytest.raises(AssertionError, match=r"<lambda> \(first\) and <lambda> \(second\) are not the same program"):
        assert_same_program(lambda x: x + 1, lambda x: x + 2, x)


def test_arguments_may_be_given_by_name():
    assert_same_program(lambda x, w: x @ w, lambda x, *, w: x @ w, x, w=w)


def test_what_is_not_a_function_is_an_error():
    with pytest.raises(
        StructureError, match=r"^assert_same_program: expects two functions and their arguments; got 3$"
    ):
        assert_same_program(3, plain, x, w)  # type: ignore[arg-type]


def test_what_a_function_raises_passes_through():
    with pytest.raises(ZeroDivisionError):
        assert_same_program(lambda x: 1 / 0, plain, x)
