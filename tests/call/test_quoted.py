"""Single hints that are strings, in a module whose other hints are not."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, TypedDict

import jax
import numpy as np  # noqa: F401 (a hint names it)
import pytest
from expecting import fails, numbers, same
from jax.sharding import Mesh

from typedshmap import AnnotationSyntaxError, Array, Float, ShapeError, typed_shard_map

X = Float[Array, "[b/dp] d"]
x = numbers(8, 4)


def whole(x: "Float[Array, '[b/dp] d']") -> "X":
    return x * 2


def in_list(x: list["X"]) -> X:
    return x[0] * 2


def in_optional(x: Optional["X"] = None) -> "X | None":
    return None if x is None else x * 2


def in_tuple(x: tuple["X", int]) -> tuple["X", "X"]:
    return x[0] * x[1], x[0]


@pytest.mark.parametrize(
    ("function", "value", "expected", "wrong", "name"),
    [
        (whole, x, x * 2, x[0], "x"),
        (in_list, [x], x * 2, [x[0]], "x[0]"),
        (in_tuple, (x, 3), (x * 3, x), (x[0], 3), "x[0]"),
        (in_optional, x, x * 2, x[0], "x"),
        (in_optional, None, None, x[0], "x"),
    ],
)
def test_a_quoted_hint_is_resolved_and_checked(
    function: Any, value: Any, expected: Any, wrong: Any, name: str, mesh: Mesh
) -> None:
    mapped = typed_shard_map(function, mesh=mesh)
    same(mapped(value), expected)
    with fails(ShapeError, f"{function.__name__}: argument '{name}' has 1 dim, but its hint has 2"):
        mapped(wrong)


@jax.tree_util.register_dataclass
@dataclass
class Chain:
    next: "Optional[Chain]"
    at: "X"


class Pair(NamedTuple):
    first: "X"
    second: "Chain"


class Named(TypedDict):
    pair: "Pair"


def test_quoted_fields_of_classes_are_resolved(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def add(named: Named) -> X:
        pair = named["pair"]
        return pair.first + pair.second.at + pair.second.next.at

    same(add({"pair": Pair(x, Chain(Chain(None, x), x))}), 3 * x)
    line = "add: argument 'named['pair'].second.at' has b=4, but argument 'named['pair'].first' has b=8"
    with fails(ShapeError, line):
        add({"pair": Pair(x, Chain(None, x[:4]))})


NO_EXPRESSION = "a hint is a string that is not a Python expression: "
UNREADABLE = [
    ("Float[Array,", f"{NO_EXPRESSION}Float[Array,"),
    ("", NO_EXPRESSION),
    (list["]"], f"{NO_EXPRESSION}]"),
    pytest.param("(" * 3000, f"{NO_EXPRESSION}{'(' * 40}...{'(' * 27}", id="nested too deep"),
    ("np.Never", "the hint of parameter 'x' cannot be read: module 'numpy' has no attribute 'Never'"),
    ("1 / 0", "the hint of parameter 'x' cannot be read: division by zero"),
    (list["{}[0]"], "the hint of parameter 'x' cannot be read: 0"),
]


@pytest.mark.parametrize(("hint", "problem"), UNREADABLE)
def test_a_string_that_cannot_be_read_is_reported(hint: Any, problem: str, mesh: Mesh) -> None:
    def double(x: X, y: int) -> X:
        return x

    double.__annotations__["x"] = hint
    with fails(AnnotationSyntaxError, f"double: {problem}"):
        typed_shard_map(double, mesh=mesh)


def test_a_quoted_hint_that_cannot_be_read_is_reported_as_any_other(mesh: Mesh) -> None:
    def double(x: "Float[Array, 'b/dp d']") -> X: ...

    with fails(AnnotationSyntaxError, "Float[Array, \"b/dp d\"]: 'b/dp' is sharded without brackets"):
        typed_shard_map(double, mesh=mesh)
