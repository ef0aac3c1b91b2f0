"""The four cases of multiplying sharded matrices, as "How to Scale Your Model" describes them.

1. Neither operand is sharded along the contracted dim: nothing is sent.
2. One of them is: it is gathered first.
3. Both are, over the same axes: each shard has an addend, which is summed or scattered.
4. Both are sharded over one mesh axis, along dims that are kept: one of them is gathered first.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from typedshmap import (
    Array,
    Float,
    PatternError,
    all_gather,
    all_to_all,
    check,
    einsum,
    psum,
    psum_scatter,
    typed_shard_map,
)

x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
w = np.random.default_rng(1).normal(size=(16, 32)).astype(np.float32)
ct = np.random.default_rng(2).normal(size=(8, 32)).astype(np.float32)


def compiled(function: Callable[..., Any], *args: Any) -> str:
    return jax.jit(function).lower(*args).compile().as_text()


@dataclass(frozen=True)
class Case:
    """A product of two matrices, and what it sends.

    Attributes:
      hints: how the operands and the result are sharded.
      body: the program on shards.
      forward: the collectives of the product.
      backward: those of its gradients with respect to both operands.
    """

    hints: tuple[str, str, str]
    body: Callable[[Any, Any], Any]
    forward: dict[str, int]
    backward: dict[str, int]

    def over(self, mesh: Mesh, **options: Any) -> Callable[..., Any]:
        a, b, result = (Float[Array, hint] for hint in self.hints)
        return typed_shard_map(self.body, mesh=mesh, in_types=(a, b), out_types=result, **options)


def pattern(text: str) -> Callable[[Any, Any], Any]:
    return lambda x, w: einsum(x, w, text)


GATHER, REDUCE, SCATTER = "all-gather", "all-reduce", "reduce-scatter"

CASES = {
    "1: nothing sharded": Case(("b m", "m f", "b f"), pattern("b m, m f -> b f"), {}, {}),
    "1: rows and columns": Case(
        ("[b/dp] m", "m [f/tp]", "[b/dp] [f/tp]"), pattern("[b/dp] m, m [f/tp] -> [b/dp] [f/tp]"), {}, {REDUCE: 2}
    ),
    "1: rows over both axes": Case(
        ("[b/dp,tp] m", "m f", "[b/dp,tp] f"), pattern("[b/dp,tp] m, m f -> [b/dp,tp] f"), {}, {REDUCE: 1}
    ),
    "1: rows over both axes, minor first": Case(
        ("[b/tp,dp] m", "m f", "[b/tp,dp] f"), pattern("[b/tp,dp] m, m f -> [b/tp,dp] f"), {}, {REDUCE: 1}
    ),
    "2: the left one gathered": Case(
        ("[b/dp] [m/tp]", "m f", "[b/dp] f"),
        lambda x, w: einsum(all_gather(x, "[b/dp] [m/tp] -> [b/dp] m"), w, "[b/dp] m, m f -> [b/dp] f"),
        {GATHER: 1},
        {GATHER: 1, REDUCE: 1},
    ),
    "2: the right one gathered, reduced": Case(
        ("[b/dp] m", "[m/dp] f", "[b/dp] f"),
        lambda x, w: einsum(x, all_gather(w, "[m/dp] f -> m f -dp"), "[b/dp] m, m f -> [b/dp] f"),
        {GATHER: 1},
        {GATHER: 1, SCATTER: 1},
    ),
    "2: the right one gathered, varying": Case(
        ("[b/dp] m", "[m/dp] [f/tp]", "[b/dp] [f/tp]"),
        lambda x, w: einsum(x, all_gather(w, "[m/dp] [f/tp] -> m [f/tp] ~dp"), "[b/dp] m, m [f/tp] -> [b/dp] [f/tp]"),
        {GATHER: 1},
        {GATHER: 1, SCATTER: 1, REDUCE: 1},
    ),
    "3: summed": Case(
        ("[b/dp] [m/tp]", "[m/tp] f", "[b/dp] f"),
        pattern("[b/dp] [m/tp], [m/tp] f -> [b/dp] f"),
        {REDUCE: 1},
        {REDUCE: 1},
    ),
    "3: scattered along the columns": Case(
        ("[b/dp] [m/tp]", "[m/tp] f", "[b/dp] [f/tp]"),
        pattern("[b/dp] [m/tp], [m/tp] f -> [b/dp] [f/tp]"),
        {SCATTER: 1},
        {GATHER: 1, REDUCE: 1},
    ),
    "3: scattered along the rows": Case(
        ("b [m/dp]", "[m/dp] [f/tp]", "[b/dp] [f/tp]"),
        pattern("b [m/dp], [m/dp] [f/tp] -> [b/dp] [f/tp]"),
        {SCATTER: 1},
        {GATHER: 1, REDUCE: 1},
    ),
    "3: left unreduced, then summed": Case(
        ("[b/dp] [m/tp]", "[m/tp] f", "[b/dp] f"),
        lambda x, w: psum(einsum(x, w, "[b/dp] [m/tp], [m/tp] f -> [b/dp] f +tp"), "[b/dp] f +tp -> [b/dp] f"),
        {REDUCE: 1},
        {REDUCE: 1},
    ),
    "3: left unreduced, then scattered": Case(
        ("[b/dp] [m/tp]", "[m/tp] f", "[b/dp] [f/tp]"),
        lambda x, w: psum_scatter(
            einsum(x, w, "[b/dp] [m/tp], [m/tp] f -> [b/dp] f +tp"), "[b/dp] f +tp -> [b/dp] [f/tp]"
        ),
        {SCATTER: 1},
        {GATHER: 1, REDUCE: 1},
    ),
    "3: left varying, scaled, then summed": Case(
        ("[b/dp] [m/tp]", "[m/tp] f", "[b/dp] f"),
        lambda x, w: psum(
            einsum(x, w, "[b/dp] [m/tp], [m/tp] f -> [b/dp] f ~tp") * 2 * 0.5, "[b/dp] f ~tp -> [b/dp] f"
        ),
        {REDUCE: 1},
        {REDUCE: 1},
    ),
    "3: over two axes at once": Case(
        ("b [m/dp,tp]", "[m/dp,tp] f", "b f"), pattern("b [m/dp,tp], [m/dp,tp] f -> b f"), {REDUCE: 1}, {}
    ),
    "3: over two axes, one scattered and one summed": Case(
        ("b [m/dp,tp]", "[m/dp,tp] f", "[b/dp] f"),
        pattern("b [m/dp,tp], [m/dp,tp] f -> [b/dp] f"),
        {SCATTER: 1, REDUCE: 1},
        {GATHER: 1},
    ),
    "3: over two axes, both scattered": Case(
        ("b [m/dp,tp]", "[m/dp,tp] f", "[b/dp] [f/tp]"),
        pattern("b [m/dp,tp], [m/dp,tp] f -> [b/dp] [f/tp]"),
        {SCATTER: 2},
        {GATHER: 2},
    ),
    "4: the right one gathered": Case(
        ("[b/tp] m", "m [f/tp]", "[b/tp] f"),
        lambda x, w: einsum(x, all_gather(w, "m [f/tp] -> m f ~tp"), "[b/tp] m, m f -> [b/tp] f"),
        {GATHER: 1},
        {GATHER: 1, SCATTER: 1},
    ),
    "4: the left one gathered": Case(
        ("[b/tp] m", "m [f/tp]", "b [f/tp]"),
        lambda x, w: einsum(all_gather(x, "[b/tp] m -> b m ~tp"), w, "b m, m [f/tp] -> b [f/tp]"),
        {GATHER: 1},
        {GATHER: 1, SCATTER: 1},
    ),
}
in_every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.mark.sample(5)
@in_every_case
@pytest.mark.parametrize("check_vma", [True, False])
def test_the_product_is_that_of_the_global_matrices(case: Case, check_vma: bool, mesh: Mesh) -> None:
    got = jax.block_until_ready(jax.jit(case.over(mesh, check_vma=check_vma))(x, w))
    np.testing.assert_allclose(got, x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.sample(5)
@in_every_case
def test_the_gradients_are_those_of_the_global_matrices(case: Case, mesh: Mesh) -> None:
    got = jax.block_until_ready(jax.jit(lambda *args: jax.vjp(case.over(mesh), *args)[1](ct))(x, w))
    for gradient, expected in zip(got, (ct @ w.T, x.T @ ct), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.sample(5)
@in_every_case
@pytest.mark.parametrize("check_vma", [True, False])
def test_the_product_sends_what_its_pattern_shows(case: Case, check_vma: bool, reader: Any, mesh: Mesh) -> None:
    found = reader.collectives(compiled(case.over(mesh, check_vma=check_vma), x, w))
    assert Counter(one.kind for one in found) == case.forward


@pytest.mark.sample(5)
@in_every_case
def test_the_gradients_send_the_mirror_of_it(case: Case, reader: Any, mesh: Mesh) -> None:
    text = compiled(lambda ct, *args: jax.vjp(case.over(mesh), *args)[1](ct), ct, x, w)
    assert Counter(one.kind for one in reader.collectives(text)) == case.backward


def test_a_scattered_sum_sends_half_of_an_all_reduce(reader: Any, mesh: Mesh) -> None:
    whole, part = (
        reader.sent(compiled(CASES[name].over(mesh), x, w)) for name in ("3: summed", "3: scattered along the columns")
    )
    assert whole == 2 * part == 2 * (2 - 1) / 2 * (8 // 4) * 32 * 4


def test_a_gather_sends_the_other_shards(reader: Any, mesh: Mesh) -> None:
    text = compiled(CASES["2: the right one gathered, reduced"].over(mesh), x, w)
    assert reader.sent(text) == (4 - 1) * (16 // 4) * 32 * 4


# What no shard could compute

WRONG: dict[str, tuple[tuple[str, str, str], str, str, str]] = {
    "2: the right one is whole": (
        ("[b/dp] [m/tp]", "m f", "[b/dp] f"),
        "'m' is sharded over 'tp' in operand 1, but unsharded in operand 2",
        "m",
        "gather it in operand 1 first (all_gather), or reshard the other operand",
    ),
    "2: the left one is whole": (
        ("[b/dp] m", "[m/tp] f", "[b/dp] f"),
        "'m' is unsharded in operand 1, but sharded over 'tp' in operand 2",
        "[m/tp]",
        "gather it in operand 2 first (all_gather), or reshard the other operand",
    ),
    "2: the axis of another dim": (
        ("[b/tp] m", "[m/tp] f", "[b/tp] f"),
        "'m' is unsharded in operand 1, but sharded over 'tp' in operand 2",
        "[m/tp]",
        "gather it in operand 2 first (all_gather), or reshard the other operand",
    ),
    "3: other axes": (
        ("b [m/tp]", "[m/dp] f", "b f"),
        "'m' is sharded over 'tp' in operand 1, but sharded over 'dp' in operand 2",
        "[m/dp]",
        "gather it in operand 2 first (all_gather), or reshard the other operand",
    ),
    "3: another order of axes": (
        ("b [m/tp,dp]", "[m/dp,tp] f", "b f"),
        "'m' is sharded over 'tp', 'dp' in operand 1, but sharded over 'dp', 'tp' in operand 2",
        "[m/dp,tp]",
        "gather it in operand 2 first (all_gather), or reshard the other operand",
    ),
    "4": (
        ("[b/tp] m", "m [f/tp]", "[b/tp] f"),
        "'b' in operand 1 and 'f' in operand 2 are both sharded over 'tp', so no shard has all of either",
        "[f/tp]",
        "gather one of them first (all_gather)",
    ),
    "4: with one of two axes": (
        ("[b/tp,dp] m", "m [f/tp]", "[b/tp,dp] f"),
        "'b' in operand 1 and 'f' in operand 2 are both sharded over 'tp', so no shard has all of either",
        "[f/tp]",
        "gather one of them first (all_gather)",
    ),
    "a dim that the result gathers": (
        ("[b/dp] m", "m f", "b f"),
        "'b' is sharded over 'dp' in the operands, but unsharded in the result",
        "b",
        "write [b/dp]; all_gather, all_to_all and reshard move shards",
    ),
    "a dim that the result splits": (
        ("[b/dp] m", "m f", "[b/dp] [f/tp]"),
        "'f' is unsharded in the operands, but sharded over 'tp' in the result, and there is no partial sum over 'tp'",
        "[f/tp]",
        "write f; all_gather, all_to_all and reshard move shards",
    ),
    "a dim that the result splits otherwise": (
        ("[b/dp,tp] m", "m f", "[b/tp,dp] f"),
        "'b' is sharded over 'dp', 'tp' in the operands, but sharded over 'tp', 'dp' in the result",
        "[b/tp,dp]",
        "write [b/dp,tp]; all_gather, all_to_all and reshard move shards",
    ),
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(("hints", "problem", "place", "cure"), WRONG.values(), ids=WRONG)
def test_a_product_that_no_shard_could_compute_is_refused_with_its_cure(
    hints: tuple[str, str, str], problem: str, place: str, cure: str, check_vma: bool, mesh: Mesh
) -> None:
    text = f"{hints[0]}, {hints[1]} -> {hints[2]}"
    case = Case(hints, pattern(text), {}, {})
    with pytest.raises(PatternError) as caught:
        jax.eval_shape(case.over(mesh, check_vma=check_vma), x, w)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"einsum in <lambda>: {problem}"
    assert lines[2:4] == [f'    pattern: "{text}"', lines[3]]
    assert lines[2][lines[3].index("^") : lines[3].rindex("^") + 1] == place
    assert lines[-1] == f"Hint: {cure}"


def test_the_fourth_case_becomes_the_third_by_two_exchanges(mesh: Mesh) -> None:
    case = Case(
        ("[b/tp] m", "m [f/tp]", "b f"),
        lambda x, w: einsum(
            all_to_all(x, "[b/tp] m -> b [m/tp]"), all_to_all(w, "m [f/tp] -> [m/tp] f"), "b [m/tp], [m/tp] f -> b f"
        ),
        {},
        {},
    )
    np.testing.assert_allclose(jax.block_until_ready(jax.jit(case.over(mesh))(x, w)), x @ w, rtol=1e-4, atol=1e-4)


# Products of more than two, and of more dims


def test_three_operands_are_summed_once(reader: Any, mesh: Mesh) -> None:
    def body(x: Any, w: Any, v: Any) -> Any:
        return einsum(x, w, v, "[b/dp] [m/tp], [m/tp] f, [m/tp] f -> [b/dp] f")

    hints = [Float[Array, hint] for hint in ("[b/dp] [m/tp]", "[m/tp] f", "[m/tp] f")]
    call = typed_shard_map(body, mesh=mesh, in_types=tuple(hints), out_types=Float[Array, "[b/dp] f"])
    args = (x, w, w)
    got = jax.block_until_ready(jax.jit(call)(*args))
    np.testing.assert_allclose(got, x @ (w * w), rtol=1e-4, atol=1e-4)
    assert [one.kind for one in reader.collectives(compiled(call, *args))] == [REDUCE]


def test_heads_split_over_an_axis_are_summed_by_the_output_projection(reader: Any, mesh: Mesh) -> None:
    q, o = (
        np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        for seed, shape in ((3, (4, 8, 4, 8)), (4, (4, 8, 16)))
    )

    def body(q: Float[Array, "[b/dp] s [h/tp] d"], o: Float[Array, "[h/tp] d m"]) -> Float[Array, "[b/dp] [s/tp] m"]:
        return einsum(q, o, "[b/dp] s [h/tp] d, [h/tp] d m -> [b/dp] [s/tp] m")

    call = typed_shard_map(body, mesh=mesh)
    got = jax.block_until_ready(jax.jit(call)(q, o))
    np.testing.assert_allclose(got, np.einsum("bshd,hdm->bsm", q, o), rtol=1e-4, atol=1e-4)
    assert [one.kind for one in reader.collectives(compiled(call, q, o))] == [SCATTER]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_over_the_mesh_are_taken_in_the_preferred_type(dtype: str, mesh: Mesh) -> None:
    def body(x: Float[Array, "[b/dp] [m/tp]"], w: Float[Array, "[m/tp] f"]) -> Float[Array, "[b/dp] f"]:
        pattern = "[b/dp] [m/tp], [m/tp] f -> [b/dp] f"
        return einsum(x, w, pattern, preferred_element_type=jnp.dtype(dtype), precision="highest")

    halves = (jnp.asarray(x, "bfloat16"), jnp.asarray(w, "bfloat16"))
    got = jax.block_until_ready(jax.jit(typed_shard_map(body, mesh=mesh))(*halves))
    assert got.dtype == dtype
    expected = np.asarray(halves[0], np.float32) @ np.asarray(halves[1], np.float32)
    np.testing.assert_allclose(
        np.asarray(got, np.float32), expected, rtol=1e-5 if dtype == "float32" else 0.1, atol=0.1
    )


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_marked_sum_that_is_left_unmarked_is_taken_later(check_vma: bool) -> None:
    """Where a result is scattered over an axis of size 1, too."""
    mesh = Mesh(np.array(jax.devices()[:6]).reshape(2, 3, 1), ("sp", "tp", "dp"))

    def summed(x: Float[Array, "[s/sp] d b [c/dp]"], y: Float[Array, "d"]) -> Float[Array, "[b/dp]"]:
        part = einsum(check(x.sum(0), "d b [c/dp] +sp"), y, "d b [c/dp] +sp, d -> [b/dp] ~sp")
        return psum(part, "[b/dp] ~sp -> [b/dp]")

    jax.eval_shape(typed_shard_map(summed, mesh=mesh, check_vma=check_vma), jnp.ones((4, 2, 1, 1)), jnp.ones(2))
