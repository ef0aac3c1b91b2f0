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


UNDER_VMAP = "the mesh's axes are 'dp', 'tp'; over an axis that jax.vmap names, JAX allows collectives only "
UNDER_VMAP += "under check_vma=False"
UNKNOWN = f"JAX raises this for a collective over an axis that the mesh does not have; {UNDER_VMAP}"
ALIAS = "'rows' stands for 'dp', 'tp' here; 'none' stands for no axis here: axis_index, axis_size and the "
ALIAS += "collectives of typedshmap accept aliases, those of JAX do not"
SAME = "the value is the same on every shard of 'tp': leave out 'tp'"
EXTREME = "has no derivative: give it jax.lax.stop_gradient(x), as for the shift of a softmax"


def of_rows(x: Any) -> Any:
    return jax.vmap(lambda row: row - jax.lax.pmean(row, ("i", "dp")), axis_name="i")(x)


@pytest.mark.parametrize(
    ("use", "error", "cure"),
    [
        (lambda x: jax.lax.psum(x, "model"), AssertionError, UNKNOWN),
        (lambda x: jax.lax.axis_index("rows"), NameError, ALIAS),
        (lambda x: jax.lax.all_gather(x, "rows"), NameError, ALIAS),
        (lambda x: jax.lax.psum(x, "rows"), AssertionError, f"{UNKNOWN}; {ALIAS}"),
        (lambda x: jax.lax.psum(x.max(), ("tp", "dp")), ValueError, SAME),
        (lambda x: jax.lax.pmean(x.max(), ("tp", "dp")), ValueError, SAME),
        (jax.grad(lambda x: jax.lax.pmax(x.max(), "dp")), NotImplementedError, f"pmax {EXTREME}"),
        (jax.grad(lambda x: jax.lax.pmin(x.max(), "dp")), NotImplementedError, f"pmin {EXTREME}"),
        (of_rows, ValueError, UNDER_VMAP),
    ],
)
def test_what_jax_says_of_axes_and_extremes_is_explained(use: Any, error: Any, cure: str, mesh: Mesh) -> None:
    def fail(x: X, w: W) -> X:
        return use(x)

    axes = {"rows": ("dp", "tp"), "none": None} if ALIAS in cure else None
    call = typed_shard_map(fail, mesh=mesh, axes=axes)
    assert notes_of(lambda: traced(call, x, w), error) == [f"{NOTE}\nHint: {cure}"]


def test_without_check_vma_jax_takes_collectives_over_an_axis_that_vmap_names(mesh: Mesh) -> None:
    mapped = typed_shard_map(of_rows, mesh=mesh, check_vma=False, in_types=X, out_types=X)
    assert traced(mapped, x).shape == x.shape


def test_notes_of_the_users_stay_and_ours_comes_last(mesh: Mesh) -> None:
    error = Mistake()
    error.add_note("mine")
    assert notes_of(lambda: traced(typed_shard_map(failing(error), mesh=mesh), x, w), Mistake) == ["mine", NOTE]


def test_leaves_of_trees_are_reported_by_their_paths_and_many_are_cut_short(mesh: Mesh) -> None:
    def fail(tree: dict[str, list[X]]) -> X:
        raise Mistake

    (note,) = notes_of(lambda: traced(typed_shard_map(fail, mesh=mesh), {"a": [x] * 30}), Mistake)
    lines = note.splitlines()
    assert lines[1:25] == [f"    tree['a'][{at}]: Float[Array, \"[b/dp] d\"]  is f32[2,4]{{V:dp}}" for at in range(24)]
    assert lines[25] == "    and 6 more" and len(lines) == 28


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
