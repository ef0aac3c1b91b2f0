"""Sums over mesh axes: what keeps them, what loses them, and what is said of that, in both modes."""

import contextlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from sums import KEPT, LOST, RIGHT, SUSPECT, W, X, Y, tp
from tables import accept, expect_right, in_modes, refuse

from typedshmap import Array, Float, SuspectWarning, TypedShmapError, VaryingError, assume, check, typed_shard_map

ACCEPTED = {**KEPT, **RIGHT}
XW = KEPT["scattered"].args


@pytest.mark.sample(3)
@in_modes(ACCEPTED)
def test_of_a_right_program_nothing_is_said(name: str, check_vma: bool, mesh: Mesh) -> None:
    accept(ACCEPTED[name], mesh, check_vma)


@pytest.mark.slow
@in_modes(ACCEPTED)
def test_a_right_program_is_right(name: str, check_vma: bool, mesh: Mesh) -> None:
    expect_right(ACCEPTED[name], mesh, check_vma)


@pytest.mark.usefixtures("without_cures")
@in_modes(LOST)
def test_losing_a_sum_that_is_marked_is_an_error(name: str, check_vma: bool, mesh: Mesh) -> None:
    refuse(VaryingError, LOST[name], mesh, check_vma)


@pytest.mark.usefixtures("without_cures")
@in_modes(SUSPECT)
def test_losing_one_that_is_not_is_suspect(name: str, check_vma: bool, mesh: Mesh) -> None:
    program = SUSPECT[name]
    with pytest.warns(SuspectWarning) as caught:
        accept(program, mesh, check_vma)
    assert program.said is not None
    assert program.said in str(caught[0].message).splitlines()[0]
    places = [(warning.filename, warning.lineno) for warning in caught]
    assert len(places) == len(set(places))


def step(x: X, w: W) -> Y:
    y = x @ w
    return tp(jax.nn.relu(y))


def mapped(x: X, w: W) -> Y:
    def row(r: Any) -> Any:
        y = r @ w
        return jnp.tanh(2 * y)

    return tp(lax.map(row, x))


def again(x: X, w: W) -> Y:
    first = jax.nn.relu(tp(x @ w))
    y = x @ w
    return first + tp(jax.nn.relu(y))


@pytest.mark.parametrize(("body", "sum_at", "loss_at"), [(step, 1, 2), (mapped, 2, 3), (again, 1, 3)])
def test_a_suspect_has_the_lines_that_the_user_wrote(body: Any, sum_at: int, loss_at: int, mesh: Mesh) -> None:
    for check_vma in (True, False):
        with pytest.warns(SuspectWarning) as caught:
            jax.eval_shape(typed_shard_map(body, mesh=mesh, check_vma=check_vma), *XW)
        (warning,), first = caught, body.__code__.co_firstlineno
        assert warning.lineno == first + loss_at
        assert f", due since test_sums.py:{first + sum_at} (" in str(warning.message)


MEANT = "if this is intended, add the comment # typedshmap: ignore[lost-sum]"


def test_a_suspect_has_the_lines_of_the_loss_and_of_the_sum(mesh: Mesh) -> None:
    with pytest.warns(SuspectWarning) as caught:
        jax.eval_shape(typed_shard_map(step, mesh=mesh), *XW)
    (warning,), first, tp_line = caught, step.__code__.co_firstlineno, tp.__code__.co_firstlineno + 1
    assert (warning.filename, warning.lineno) == (__file__, first + 2)
    assert (
        str(warning.message)
        == f"""\
step: relu is not linear, and its operand is a partial sum over 'tp', due since test_sums.py:{first + 1} (step)

Mesh: dp=4, tp=2
At: test_sums.py:{first + 2} (step)
Hint: psum over 'tp' at test_sums.py:{first + 1}, and leave out the psum over 'tp' at sums.py:{tp_line}; {MEANT}"""
    )


def test_a_suspect_is_reported_once_by_the_usual_filter(mesh: Mesh) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            jax.eval_shape(typed_shard_map(step, mesh=mesh), *XW)
    assert len(caught) == 1


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_lost_sum_is_an_error_with_both_lines(check_vma: bool, mesh: Mesh) -> None:
    def lost(x: X, w: W) -> Y:
        y = check(x @ w, "[b/dp] n +tp")
        return tp(jnp.tanh(2 * y))

    with pytest.raises(VaryingError) as caught:
        jax.eval_shape(typed_shard_map(lost, mesh=mesh, check_vma=check_vma), *XW)
    first, taken = lost.__code__.co_firstlineno, tp.__code__.co_firstlineno + 1
    assert (
        str(caught.value)
        == f"""\
lost: tanh is not linear, and its operand is a partial sum over 'tp', due since test_sums.py:{first + 1} (lost)

Mesh: dp=4, tp=2
At: test_sums.py:{first + 2} (lost)
Hint: psum over 'tp' at test_sums.py:{first + 1}, and leave out the psum over 'tp' at sums.py:{taken}"""
    )


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["a bias", "a relu"])
def test_over_an_axis_of_size_one_nothing_is_due(name: str, check_vma: bool, mesh: Mesh) -> None:
    row = Mesh(mesh.devices.reshape(8, 1), ("dp", "tp"))
    for program in (LOST[name], SUSPECT[name]):
        accept(program, row, check_vma)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_gradient_is_a_sum_like_others(check_vma: bool, is_whole: bool, mesh: Mesh) -> None:
    """Without types the gradient of a weight is a sum over shards' rows, which the program has to take."""

    def trained(x: X, w: W) -> W:
        shards = 1 if check_vma else lax.axis_size("tp")
        gradient = jax.grad(lambda w: (tp(x @ w) ** 2).sum() / shards)(w)
        if is_whole and not check_vma:
            gradient = lax.psum(gradient, "dp")
        scaled = gradient / (1e-6 + jnp.abs(gradient))
        return w - (scaled if check_vma or is_whole else lax.pmean(scaled, "dp"))

    suspected = (
        contextlib.nullcontext() if check_vma or is_whole else pytest.warns(SuspectWarning, match="abs is not linear")
    )
    with suspected:
        jax.eval_shape(typed_shard_map(trained, mesh=mesh, check_vma=check_vma), *XW)


@pytest.mark.parametrize("check_vma", [True, False])
def test_nor_what_the_gradient_of_a_jitted_function_makes(check_vma: bool, mesh: Mesh) -> None:
    """Of one row on each shard, JAX sums over the rows what it had broadcast."""
    normed = jax.jit(lambda x, g: x * lax.rsqrt((x * x).mean(1, keepdims=True)) * g)

    def trained(x: Float[Array, "[b/dp] k"], g: Float[Array, "k"]) -> Float[Array, "k"]:
        gradient = jax.grad(lambda g: (jax.nn.softmax(normed(normed(x, g), g)) ** 2).sum())(g)
        return gradient if check_vma else lax.psum(gradient, "dp")

    jax.eval_shape(typed_shard_map(trained, mesh=mesh, check_vma=check_vma), XW[0][:4], XW[0][0])


def test_a_sum_leaves_through_an_explicit_axis_as_unreduced() -> None:
    mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)

    @typed_shard_map(mesh=mesh)
    def left(x: X, w: W) -> Float[Array, "[b/dp] n +tp"]:
        return 2 * check(x @ w, "[b/dp] n +tp")

    with jax.set_mesh(mesh):
        x, w = (jax.device_put(value, spec) for value, spec in zip(XW, (P("dp", "tp"), P("tp", None)), strict=True))
        kept = jax.jit(lambda x, w: jax.reshard(left(x, w), P("dp", None)))(x, w)
    np.testing.assert_allclose(jax.block_until_ready(kept), 2 * XW[0] @ XW[1], rtol=1e-5)


def test_what_jax_types_as_unreduced_stays_accepted(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def by_jax(x: X, w: W) -> Y:
        y = lax.pcast(x @ w, "tp", to="unreduced")
        return lax.psum(check(y, "[b/dp] n +tp").T.reshape(2, -1, y.shape[0])[1].T + y[:, 6:], "tp").repeat(2, 1)

    jax.eval_shape(by_jax, *XW)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_value_that_is_assumed_to_be_summed_is_no_addend_any_more(check_vma: bool, mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh, check_vma=check_vma)
    def by_hand(x: X, w: W) -> Y:
        y = check(x @ w, "[b/dp] n +tp")
        for_all = assume(y + lax.ppermute(y, "tp", [(0, 1), (1, 0)]), "[b/dp] n")
        return lax.pmean(jax.nn.relu(for_all), "tp")

    jax.eval_shape(by_hand, *XW)


def test_an_error_is_raised_before_suspects_are_reported(mesh: Mesh) -> None:
    def both(x: X, w: W) -> Y:
        return jax.nn.relu(x @ w)

    with pytest.raises(TypedShmapError, match="return value varies over 'tp'"):
        jax.eval_shape(typed_shard_map(both, mesh=mesh, check_vma=False), *XW)
