"""Exceptions of the user's code and of JAX pass through as they are, with one note; threads are apart."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from expecting import numbers, traced
from jax.sharding import Mesh

from typedshmap import Array, Float, ShapeError, TypedShmapError, check, size, sizes, typed, typed_shard_map

X = Float[Array, "[b/dp] d"]
W = Float[Array, "[d/tp] f"]
x, w = numbers(8, 4), numbers(4, 6)


class Mistake(Exception):
    """An exception of the user's."""


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(x: X, w: W, n: int = 3) -> X:
        raise error

    return fail


def notes(error: BaseException) -> list[str]:
    """An exception's notes, without the one that JAX adds about its frames."""
    return [note for note in getattr(error, "__notes__", ()) if not note.startswith("-----")]


def notes_of(call: Callable[[], Any], error: type[BaseException]) -> list[str]:
    with pytest.raises(error) as caught:
        call()
    return notes(caught.value)


NOTE = """typedshmap: in fail, where the values are shards:
    x: Float[Array, "[b/dp] d"]  is f32[2,4]{V:dp}
    w: Float[Array, "[d/tp] f"]  is f32[2,6]{V:tp}
Mesh: dp=4, tp=2
Sizes: b=8 (x dim 0), d=4 (x dim 1), f=6 (w dim 1)"""


CALLS = [
    pytest.param(lambda f: f(x, w), id="unjitted"),
    pytest.param(lambda f: jax.jit(f)(x, w), id="jit"),
    pytest.param(lambda f: jax.eval_shape(f, x, w), id="eval_shape"),
    pytest.param(lambda f: jax.grad(lambda x: f(x, w).sum())(x), id="grad"),
    pytest.param(lambda f: jax.jit(jax.checkpoint(f))(x, w), id="checkpoint"),
]


@pytest.mark.parametrize("call", CALLS)
def test_an_exception_of_the_users_code_passes_with_a_note(call: Callable[..., Any], mesh: Mesh) -> None:
    error = Mistake("it is 3", 3)
    with pytest.raises(Mistake) as caught:
        call(typed_shard_map(failing(error), mesh=mesh))
    assert caught.value is error
    assert (type(error), error.args, str(error)) == (Mistake, ("it is 3", 3), "('it is 3', 3)")
    assert notes(error) == [NOTE]


# Of an axis that JAX does not know, its own are assertions, too; the sets of a type that it prints say nothing.
ERRORS = [
    *(ValueError("x"), KeyError("x"), StopIteration("x"), NotImplementedError(), AssertionError(), AssertionError("x")),
    ValueError("ManualAxisType(varying=frozenset({'dp'}), unreduced=frozenset(), reduced=frozenset())"),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_exceptions_of_every_class_have_a_note(error: Exception, mesh: Mesh) -> None:
    assert notes_of(lambda: traced(typed_shard_map(failing(error), mesh=mesh), x, w), type(error)) == [NOTE]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_what_ends_a_program_has_no_note(error: BaseException, mesh: Mesh) -> None:
    assert notes_of(lambda: traced(typed_shard_map(failing(error), mesh=mesh), x, w), type(error)) == []


def test_an_exception_of_jax_passes_with_a_note(mesh: Mesh) -> None:
    def fail(x: X, w: W) -> X:
        return x @ w

    with pytest.raises(TypeError) as caught:
        traced(typed_shard_map(fail, mesh=mesh), x, w)
    assert str(caught.value) == "dot_general requires contracting dimensions to have the same shape, got (4,) and (2,)."
    assert not isinstance(caught.value, TypedShmapError)
    assert notes(caught.value) == [NOTE]


ENDS_SO = (
    "Hint: JAX raises this for a collective over an axis that the mesh does not have; the mesh's axes are 'dp', 'tp'; "
)
ENDS_SO += "over an axis that jax.vmap names, JAX takes collectives under check_vma=False only"


def test_an_axis_that_jax_does_not_know_is_reported_in_the_note(mesh: Mesh) -> None:
    def fail(x: X, w: W) -> X:
        return jax.lax.psum(x, "model")

    assert notes_of(lambda: traced(typed_shard_map(fail, mesh=mesh), x, w), AssertionError) == [f"{NOTE}\n{ENDS_SO}"]


KNOWN_TO_US = "'rows' stands for 'dp', 'tp' here; 'none' stands for no axis here: axis_index, axis_size and the "
KNOWN_TO_US += "collectives of typedshmap take it, those of JAX do not"


@pytest.mark.parametrize(
    ("use", "error", "cure"),
    [
        (lambda x: jax.lax.axis_index("rows"), NameError, f"Hint: {KNOWN_TO_US}"),
        (lambda x: jax.lax.all_gather(x, "rows"), NameError, f"Hint: {KNOWN_TO_US}"),
        (lambda x: jax.lax.psum(x, "rows"), AssertionError, f"{ENDS_SO}; {KNOWN_TO_US}"),
    ],
    ids=["axis_index", "all_gather", "psum"],
)
def test_an_alias_that_jax_does_not_know_is_explained(use: Any, error: Any, cure: str, mesh: Mesh) -> None:
    def fail(x: X, w: W) -> X:
        return use(x)

    call = typed_shard_map(fail, mesh=mesh, axes={"rows": ("dp", "tp"), "none": None})
    assert notes_of(lambda: traced(call, x, w), error) == [f"{NOTE}\n{cure}"]


def test_notes_of_the_users_stay_and_ours_comes_last(mesh: Mesh) -> None:
    error = Mistake()
    error.add_note("mine")
    assert notes_of(lambda: traced(typed_shard_map(failing(error), mesh=mesh), x, w), Mistake) == ["mine", NOTE]


def test_an_exception_that_the_body_catches_has_no_note(mesh: Mesh) -> None:
    error = Mistake()

    @typed_shard_map(mesh=mesh)
    def careful(x: X) -> X:
        try:
            raise error
        except Mistake:
            return x

    traced(careful, x)
    assert notes(error) == []


def test_leaves_of_trees_are_reported_by_their_paths(mesh: Mesh) -> None:
    def fail(tree: dict[str, list[X]]) -> X:
        raise Mistake

    (note,) = notes_of(lambda: traced(typed_shard_map(fail, mesh=mesh), {"a": [x, x]}), Mistake)
    assert note.splitlines()[1:3] == [
        "    tree['a'][0]: Float[Array, \"[b/dp] d\"]  is f32[2,4]{V:dp}",
        "    tree['a'][1]: Float[Array, \"[b/dp] d\"]  is f32[2,4]{V:dp}",
    ]


def test_many_leaves_are_cut_short(mesh: Mesh) -> None:
    def fail(xs: list[X]) -> X:
        raise Mistake

    (note,) = notes_of(lambda: traced(typed_shard_map(fail, mesh=mesh), [x] * 30), Mistake)
    lines = note.splitlines()
    assert lines[24:26] == ['    xs[23]: Float[Array, "[b/dp] d"]  is f32[2,4]{V:dp}', "    and 6 more"]
    assert len(lines) == 28


def test_only_the_innermost_region_speaks(mesh: Mesh) -> None:
    @typed_shard_map(axis_names={"tp"})
    def inner(y: Float[Array, "[b/dp] [d/tp]"]) -> Float[Array, "[b/dp] [d/tp]"]:
        raise Mistake

    outer = typed_shard_map(lambda x: inner(x), mesh=mesh, axis_names={"dp"}, in_types=(X,), out_types=X)
    (note,) = notes_of(lambda: traced(outer, x), Mistake)
    assert note.splitlines()[:2] == [
        "typedshmap: in inner, where the values are shards:",
        '    y: Float[Array, "[b/dp] [d/tp]"]  is f32[2,2]{V:(dp,tp)}',
    ]


def test_a_helper_adds_no_note_of_its_own(mesh: Mesh) -> None:
    @typed
    def helper(x: X) -> X:
        raise Mistake

    (note,) = notes_of(
        lambda: traced(typed_shard_map(lambda x: helper(x), mesh=mesh, in_types=(X,), out_types=X), x), Mistake
    )
    assert note.startswith("typedshmap: in <lambda>, where the values are shards:")
    assert notes_of(lambda: helper(jnp.asarray(x)), Mistake) == []


OURS = [
    pytest.param(lambda x: check(x, "[b/dp] 3"), id="check"),
    pytest.param(lambda x: size("heads"), id="size"),
    pytest.param(lambda x: x[0], id="result"),
    pytest.param(lambda x: typed_shard_map(lambda y: y, in_types=(W,), out_types=W)(x[0]), id="nested call"),
]


@pytest.mark.parametrize("body", OURS)
def test_our_own_errors_have_no_note(body: Callable[[Any], Any], mesh: Mesh) -> None:
    mapped = typed_shard_map(body, mesh=mesh, in_types=(X,), out_types=X)
    assert notes_of(lambda: traced(mapped, x), TypedShmapError) == []


def test_a_wrong_argument_has_no_note(mesh: Mesh) -> None:
    assert notes_of(lambda: typed_shard_map(failing(Mistake()), mesh=mesh)(x[0], w), ShapeError) == []


def test_a_user_who_wraps_our_error_gets_a_note_on_the_own_one(mesh: Mesh) -> None:
    def fail(x: X, w: W) -> X:
        try:
            return check(x, "3")
        except ShapeError as error:
            raise Mistake from error

    with pytest.raises(Mistake) as caught:
        traced(typed_shard_map(fail, mesh=mesh), x, w)
    assert notes(caught.value) == [NOTE]
    assert notes(caught.value.__cause__) == []


# Threads


def test_a_thread_started_in_a_body_sees_no_sizes(mesh: Mesh) -> None:
    def body(x: X) -> None:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(sizes).result() == {}

    traced(typed_shard_map(body, mesh=mesh), x)


@pytest.mark.parametrize("collective", [jax.lax.psum, jax.lax.pmean])
def test_of_axes_over_some_of_which_a_value_is_the_same_a_note_names_those(collective: Any, mesh: Mesh) -> None:
    def f(x: X) -> Float[Array, ""]:
        return collective(x.max(), ("tp", "dp"))

    (note,) = notes_of(lambda: typed_shard_map(f, mesh=mesh)(x), ValueError)
    assert note.endswith("\nHint: the value is the same on every shard of 'tp': leave out 'tp'")


@pytest.mark.parametrize("extreme", [jax.lax.pmax, jax.lax.pmin])
def test_of_a_maximum_that_is_differentiated_a_note_says_what_stops_that(extreme: Any, mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def f(x: X) -> Float[Array, "[b/dp] d"]:
        return jax.grad(lambda x: extreme(x.max(), "dp"))(x)

    (note,) = notes_of(lambda: f(x), NotImplementedError)
    name = extreme.__name__
    assert note.endswith(
        f"\nHint: {name} has no derivative: give it jax.lax.stop_gradient(x), as for the shift of a softmax"
    )


def test_of_an_axis_that_vmap_names_a_note_says_where_jax_takes_it(mesh: Mesh) -> None:
    def f(x: X) -> X:
        return jax.vmap(lambda row: row - jax.lax.pmean(row, ("i", "dp")), axis_name="i")(x)

    (note,) = notes_of(lambda: typed_shard_map(f, mesh=mesh)(x), ValueError)
    assert note.endswith("over an axis that jax.vmap names, JAX takes collectives under check_vma=False only")
    assert traced(typed_shard_map(f, mesh=mesh, check_vma=False), x).shape == x.shape
