"""A body may ask for the sizes of its dims: global ones by name, those of a shard by name or dim."""

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from expecting import fails, numbers, traced
from jax.sharding import Mesh

from typedshmap import (
    Array,
    Float,
    PyTree,
    ShapeError,
    check,
    shard_size,
    size,
    sizes,
    typed,
    typed_shard_map,
)

X = Float[Array, "[b/dp] d"]
W = Float[Array, "[d/tp] [f/dp]"]
x, w = numbers(8, 4), numbers(4, 12)


def asked(question: Callable[[], Any], mesh: Mesh, **options: Any) -> Any:
    """The answer that a body with x and w gets."""
    answers: list[Any] = []

    @typed_shard_map(mesh=mesh, **options)
    def body(x: X, w: W) -> None:
        answers.append(question())

    traced(body, x, w)
    return answers[0]


QUESTIONS = [
    (lambda: size("b"), 8),
    (lambda: size("d"), 4),
    (lambda: size("f"), 12),
    (lambda: shard_size("b"), 2),
    (lambda: shard_size("f"), 3),
    (lambda: shard_size("[b/dp]"), 2),
    (lambda: shard_size("[b/tp]"), 4),
    (lambda: shard_size("[b/dp,tp]"), 1),
    (lambda: shard_size("[b/]"), 8),
    (lambda: shard_size("[d/tp]"), 2),
    (lambda: shard_size("[d/]"), 4),
    (lambda: sizes(), {"b": 8, "d": 4, "f": 12}),
]


@pytest.mark.parametrize(("question", "answer"), QUESTIONS)
def test_a_body_may_ask_for_its_sizes(question: Callable[[], Any], answer: Any, mesh: Mesh) -> None:
    got = asked(question, mesh)
    assert (type(got), got) == (type(answer), answer)  # no NumPy integers


WRONG_QUESTIONS = [
    (lambda: size("heads"), "size: nothing binds 'heads' in body (bound: b=8, d=4, f=12)"),
    (lambda: shard_size("heads"), "shard_size: nothing binds 'heads' in body (bound: b=8, d=4, f=12)"),
    (lambda: shard_size("[heads/tp]"), "size: nothing binds 'heads' in body (bound: b=8, d=4, f=12)"),
    (lambda: shard_size("d"), "shard_size: 'd' is sharded in several ways here: [d/] and [d/tp]"),
    (lambda: shard_size("[d/tp] [b/dp]"), "shard_size: '[d/tp] [b/dp]' is not one dim over the axes of this mesh"),
    (lambda: shard_size("[b/pp]"), "shard_size: '[b/pp]' is not one dim over the axes of this mesh"),
    pytest.param(lambda: shard_size("[b]"), "shard_size: \"[b]\": '[b]' names no mesh axis"),
    (lambda: size("[b/dp]"), "size: nothing binds '[b/dp]' in body (bound: b=8, d=4, f=12)"),
    (lambda: size(3), "size: 3 is not the name of a dim"),  # type: ignore[arg-type]
    (lambda: size(["b"]), "size: ['b'] is not the name of a dim"),  # type: ignore[arg-type]
    (lambda: shard_size(np.ones(2)), "shard_size: array([1., 1.]) is not the name of a dim"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("question", "line"), WRONG_QUESTIONS)
def test_a_question_that_has_no_answer_is_refused(question: Callable[[], Any], line: str, mesh: Mesh) -> None:
    with fails(ShapeError, line):
        asked(question, mesh)


@pytest.mark.parametrize("verb", [size, shard_size])
def test_sizes_are_known_only_in_a_call(verb: Callable[[str], int], mesh: Mesh) -> None:
    line = f"{verb.__name__}: 'b' is not bound outside of a typed_shard_map, typed_jit or typed function"
    with fails(ShapeError, line):
        verb("b")
    plain = jax.shard_map(
        lambda x: [verb("b")], mesh=mesh, in_specs=jax.sharding.PartitionSpec(), out_specs=jax.sharding.PartitionSpec()
    )
    with fails(ShapeError, line):
        traced(plain, x)


def test_sizes_are_gone_after_a_call(mesh: Mesh) -> None:
    asked(lambda: None, mesh)
    with pytest.raises(ZeroDivisionError):
        asked(lambda: 1 // 0, mesh)
    assert sizes() == {}


def test_axes_that_are_not_manual_do_not_divide_a_shard(mesh: Mesh) -> None:
    assert asked(lambda: (shard_size("b"), shard_size("[d/tp]")), mesh, axis_names={"dp"}) == (2, 4)
    assert asked(lambda: shard_size("d"), mesh, axis_names={"dp"}) == 4


def test_aliases_are_read_in_brackets(mesh: Mesh) -> None:
    assert asked(lambda: shard_size("[b/rows]"), mesh, axes={"rows": ("dp", "tp")}) == 1


def test_a_program_for_export_has_sizes_that_are_symbols(mesh: Mesh) -> None:
    answers: list[Any] = []

    @typed_shard_map(mesh=mesh)
    def body(x: X) -> Float[Array, "[b/dp]"]:
        answers.append((size("b"), shard_size("b"), shard_size("[b/]"), sizes()))
        return x.sum(1)

    (rows,) = jax.export.symbolic_shape("8*n")
    exported = jax.export.export(jax.jit(body))(jax.ShapeDtypeStruct((rows, 4), "float32"))
    assert str(answers) == "[(8*n, 2*n, 8*n, {'b': 8*n, 'd': 4})]"
    assert str(exported.out_avals[0].shape) == "(8*n,)"


def test_a_global_array_has_its_global_size() -> None:
    @typed
    def helper(x: X) -> tuple[int, int, int]:
        return size("b"), shard_size("b"), shard_size("[b/dp]")

    assert helper(jax.numpy.asarray(x)) == (8, 8, 8)


# What is bound


def test_a_failed_check_binds_nothing(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def body(x: X) -> None:
        with pytest.raises(ShapeError):
            check(x, "[rows/dp] 5")
        assert not isinstance(x, Float[Array, "[rows/dp] 5"])
        assert sizes() == {"b": 8, "d": 4}

    traced(body, x)


def test_outside_of_a_call_a_name_holds_for_one_check() -> None:
    check(x, "n _")
    check(w, "n _")
    with fails(ShapeError, "check: checked value has n=4 in dim 1, but n=8 in dim 0"):
        check(x, "n n")


def test_names_of_single_leaves_are_not_among_the_sizes(mesh: Mesh) -> None:
    answers: list[Any] = []
    hint = PyTree[Float[Array, "?n [d/tp]"], "S"]
    body = typed_shard_map(lambda tree: answers.append(sizes()), mesh=mesh, in_types=(hint,), out_types=None)
    traced(body, {"a": x, "b": w[:, :4]})
    assert answers == [{"d": 4}]


def test_a_helper_has_sizes_of_its_own(mesh: Mesh) -> None:
    answers: list[Any] = []

    @typed
    def helper(y: Float[Array, "[d/dp] b"]) -> None:
        answers.append((sizes(), shard_size("d")))

    @typed_shard_map(mesh=mesh)
    def body(x: X) -> None:
        helper(x)
        helper(x[:, :3])
        answers.append((sizes(), shard_size("b")))

    traced(body, x)
    assert answers == [({"d": 8, "b": 4}, 2), ({"d": 8, "b": 3}, 2), ({"b": 8, "d": 4}, 2)]


PAIR = tuple[Float[Array, "[b/dp] k"], Float[Array, "[b/dp] k"]]
REFUSED: dict[str, tuple[Any, Any, Any, str]] = {
    "a check of another size than what is bound": (
        lambda x: check(x, "[d/dp] d"), X, None,
        "<lambda>: checked value has d=8 (2 per shard over 'dp'), but argument 'x' has d=4",
    ),
    "a name that a check bound, in another one": (
        lambda x: [check(x, "[rows/dp] _"), check(x, "_ rows ~dp"), None][2], X, None,
        "<lambda>: checked value has rows=4 in dim 1, but rows=8 in dim 0",
    ),
    "a name that a check bound, in the result": (
        lambda x: check(x, "[rows/dp] d"), X, Float[Array, "[b/dp] rows"],
        "<lambda>: return value has rows=4, but checked value has rows=8",
    ),
    "a name in a result, which is bound by it": (
        lambda x: (x[:, :3], x[:, :2]), X, PAIR, "<lambda>: return[1] has k=2, but return[0] has k=3",
    ),
    "the size of a name that nothing binds": (
        lambda x: size("b"), Float[Array, "_ _"], None, "size: nothing binds 'b' in <lambda> (bound: none)",
    ),
    "the one size of a name for several dims": (
        lambda x: size("*rest"), Float[Array, "*rest"], None,
        "size: '*rest' stands for several dims, of sizes (8, 4)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "hint", "result", "line"), REFUSED.values(), ids=REFUSED)
def test_a_body_is_refused(body: Any, hint: Any, result: Any, line: str, mesh: Mesh) -> None:
    with fails(ShapeError, line):
        traced(typed_shard_map(body, mesh=mesh, in_types=(hint,), out_types=result), x)
