"""What operations send, and what their gradients send, read in compiled programs; what they compute, laws compare.

The products are the four cases of sharded matrices in "How to Scale Your Model": neither operand is sharded along the
contracted dim, and nothing is sent (1); one of them is, and is gathered first (2); both are, over the same axes, and
each shard has an addend (3); both are sharded over one mesh axis along other dims, and one is gathered first (4).
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import numbers
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    Int,
    PatternError,
    all_gather,
    all_to_all,
    check,
    einsum,
    logsumexp,
    pmean,
    ppermute,
    psum,
    psum_scatter,
    rearrange,
    reduce,
    repeat,
    softmax,
    take,
    typed_shard_map,
)

GATHER, REDUCE, SCATTER = "all-gather", "all-reduce", "reduce-scatter"
EXCHANGE, SHIFT = "all-to-all", "collective-permute"
SIZES = {"b": 8, "d": 8, "f": 32, "h": 4, "k": 6, "m": 16, "q": 3, "s": 4, "v": 10}
ids = np.array([[1, 5, 2, 9], [3, 1, 0, 7], [2, 2, 8, 4], [6, 0, 1, 3]] * 2, np.int32)


def shape_of(hint: str) -> tuple[int, ...]:
    dims = re.findall(r"\([^)]*\)|\w+", re.sub(r"\[|/[\w,]+\]", "", hint))
    return tuple(prod(SIZES[name] for name in re.findall(r"\w+", dim)) for dim in dims)


@dataclass(frozen=True)
class Program:
    """A body on shards.

    Attributes:
      sides: the arguments that are differentiated, as a pattern has them.
      result: the result.
      body: what is done.
      forward: the collectives of the program.
      backward: those that its gradients add.
    """

    sides: tuple[str, ...]
    result: str
    body: Callable[..., Any]
    forward: Mapping[str, int] = field(default_factory=dict)
    backward: Mapping[str, int] = field(default_factory=dict)

    def over(self, mesh: Mesh, **options: Any) -> Callable[..., Any]:
        *types, result = (Float[Array, re.sub(r"\([^)]*\)", "_", side)] for side in (*self.sides, self.result))
        return typed_shard_map(self.body, mesh=mesh, in_types=tuple(types), out_types=result, **options)

    @property
    def args(self) -> list[np.ndarray]:
        return [numbers(*shape_of(side)) for side in self.sides]


def of(verb: Any, pattern: str, *args: Any, forward: Any = None, backward: Any = None, **options: Any) -> Program:
    """The program of one operation, whose pattern says how its operands and its result are sharded."""
    left, _, right = pattern.partition("->")
    sides = tuple(map(str.strip, re.split(r", ", left)))
    body = lambda *shards: verb(*shards, pattern, *args, **options)  # noqa: E731
    return Program(sides, right.strip() if "->" in pattern else left, body, forward or {}, backward or {})


def shard_of(ids: np.ndarray) -> Any:
    """The rows that this shard of the data looks up."""
    rows = len(ids) // jax.lax.axis_size("dp")
    return jax.lax.dynamic_slice_in_dim(jnp.asarray(ids), jax.lax.axis_index("dp") * rows, rows, 0)


def megatron(x: Any, w: Any, v: Any) -> Any:
    """A sequence-sharded activation is gathered, and the result is scattered."""
    x = all_gather(x, "[b/dp] [s/tp] m -> [b/dp] s m ~tp")
    h = einsum(x, w, "[b/dp] s m, m [f/tp] -> [b/dp] s [f/tp]")
    return einsum(jax.nn.gelu(h), v, "[b/dp] s [f/tp], [f/tp] m -> [b/dp] [s/tp] m")


def weighted(mark: str, backward: dict[str, int], is_transposed: bool) -> Program:
    """A weight is gathered: the mark says what the gradient sends."""

    def body(x: Any, w: Any) -> Any:
        w = all_gather(w, f"[m/dp] f -> m f {mark}")
        if is_transposed:
            return einsum(x, rearrange(w, f"m f {mark} -> f m {mark}"), f"[b/dp] m, f m {mark} -> [b/dp] f")
        return einsum(x, w, "[b/dp] m, m f -> [b/dp] f")

    return Program(("[b/dp] m", "[m/dp] f"), "[b/dp] f", body, {GATHER: 1}, backward)


MARKS = {"~dp": {SCATTER: 1}, "-dp": {SCATTER: 1}, "": {REDUCE: 1}}
TARGETS = "[b/dp] [v/tp], [b/dp] -> [b/dp]"

# A pattern without communication sends nothing, forward and backward.
QUIET = {
    "rearrange": of(rearrange, "[b/dp] [d/tp] -> [d/tp] [b/dp]"),
    "merge": of(rearrange, "[b/dp] s [d/tp] -> [(b s)/dp] [d/tp]"),
    "split": of(rearrange, "[b/dp] [(h d)/tp] -> [b/dp] [h/tp] d", h=4),
    "repeat": of(repeat, "[b/dp] [d/tp] -> [b/dp] [(d 2)/tp]"),
    "reduce": of(reduce, "[b/dp] s [d/tp] -> [b/dp] [d/tp]", "mean"),
    "max": of(reduce, "[b/dp] s [d/tp] -> [b/dp] [d/tp]", "max"),
    "einsum of the same heads": of(einsum, "[b/dp] [h/tp] q d, [b/dp] [h/tp] k d -> [b/dp] [h/tp] q k"),
    "take": Program(
        ("[b/dp] v [d/tp]",), "[b/dp] s [d/tp]",
        lambda t: take(t, shard_of(ids), "[b/dp] v [d/tp], [b/dp] s -> [b/dp] s [d/tp]")),
    "softmax": of(softmax, "[b/dp] [h/tp] k", "k"),
    "logsumexp": of(logsumexp, "[b/dp] [h/tp] k -> [b/dp] [h/tp]"),
}  # fmt: skip
PROGRAMS = {
    **QUIET,
    # A sum is one reduction, and its gradient is free.
    "left unreduced, then summed": Program(
        ("[b/dp] [d/tp]",), "",
        lambda x: psum(reduce(x, "[b/dp] [d/tp] -> +dp +tp", "sum"), "+dp +tp ->"), {REDUCE: 1}),
    "summed at once": of(reduce, "[b/dp] [d/tp] ->", "sum", forward={REDUCE: 1}),
    "averaged": of(reduce, "[b/dp] [d/tp] -> [b/dp]", "mean", forward={REDUCE: 1}),
    "pmean": Program(("[b/dp] d",), "d", lambda x: pmean(x.mean(0), "d ~dp -> d"), {REDUCE: 1}),
    # A collective has its mirror as gradient.
    "all_gather, invarying": of(all_gather, "[b/dp] d -> b d", forward={GATHER: 1}),
    "all_gather over two axes": of(all_gather, "[b/dp,tp] d -> b d", forward={GATHER: 1}),
    "psum_scatter": Program(
        ("[b/dp] d",), "[d/dp]",
        lambda x: psum_scatter(reduce(x, "[b/dp] d -> d +dp", "sum"), "d +dp -> [d/dp]"), {SCATTER: 1}, {GATHER: 1}),
    "reduce, scattered": of(reduce, "[b/dp] d -> [d/dp]", "sum", forward={SCATTER: 1}, backward={GATHER: 1}),
    "all_to_all": of(all_to_all, "[b/dp] d -> b [d/dp]", forward={EXCHANGE: 1}, backward={EXCHANGE: 1}),
    "repeat in parts": of(repeat, "[b/dp] d -> [b/dp] d [r/tp]", r=4, backward={REDUCE: 1}),
    **{f"a weight gathered, {mark}": weighted(mark, sent, False) for mark, sent in MARKS.items()},
    **{f"a weight gathered and transposed, {mark}": weighted(mark, sent, True) for mark, sent in MARKS.items()},
    # Lookups, softmax and logsumexp over a sharded dim.
    "rows summed": Program(
        ("[v/tp] d",), "[b/dp] s d",
        lambda t: take(t, shard_of(ids), "[v/tp] d, [b/dp] s -> [b/dp] s d"), {REDUCE: 1}, {REDUCE: 1}),
    "rows scattered": Program(
        ("[v/tp] d",), "[b/dp] [s/tp] d",
        lambda t: take(t, shard_of(ids), "[v/tp] d, [b/dp] s -> [b/dp] [s/tp] d"),
        {SCATTER: 1}, {GATHER: 1, REDUCE: 1}),
    "the target's logit": Program(
        ("[b/dp] [v/tp]",), "[b/dp]", lambda x: take(x, shard_of(ids)[:, 0], TARGETS), {REDUCE: 1}),
    "logsumexp over tp": of(logsumexp, "[b/dp] [v/tp] -> [b/dp]", forward={REDUCE: 2}),
    "logsumexp over both": of(logsumexp, "[b/dp] [v/tp] ->", forward={REDUCE: 2}),
    "softmax over tp": of(softmax, "[b/dp] [v/tp]", "v", forward={REDUCE: 2}, backward={REDUCE: 1}),
    # Products.
    "1: nothing sharded": of(einsum, "b m, m f -> b f"),
    "1: rows and columns": of(einsum, "[b/dp] m, m [f/tp] -> [b/dp] [f/tp]", backward={REDUCE: 2}),
    "1: rows over both axes": of(einsum, "[b/dp,tp] m, m f -> [b/dp,tp] f", backward={REDUCE: 1}),
    "1: rows over both axes, minor first": of(einsum, "[b/tp,dp] m, m f -> [b/tp,dp] f", backward={REDUCE: 1}),
    "2: the left one gathered": Program(
        ("[b/dp] [m/tp]", "m f"), "[b/dp] f",
        lambda x, w: einsum(all_gather(x, "[b/dp] [m/tp] -> [b/dp] m"), w, "[b/dp] m, m f -> [b/dp] f"),
        {GATHER: 1}, {REDUCE: 1}),
    "2: the right one gathered": Program(
        ("[b/dp] m", "[m/dp] [f/tp]"), "[b/dp] [f/tp]",
        lambda x, w: einsum(x, all_gather(w, "[m/dp] [f/tp] -> m [f/tp] ~dp"), "[b/dp] m, m [f/tp] -> [b/dp] [f/tp]"),
        {GATHER: 1}, {SCATTER: 1, REDUCE: 1}),
    "3: summed": of(einsum, "[b/dp] [m/tp], [m/tp] f -> [b/dp] f", forward={REDUCE: 1}, backward={REDUCE: 1}),
    "3: scattered along the columns": of(
        einsum, "[b/dp] [m/tp], [m/tp] f -> [b/dp] [f/tp]", forward={SCATTER: 1}, backward={GATHER: 1, REDUCE: 1}),
    "3: scattered along the rows": of(
        einsum, "b [m/dp], [m/dp] [f/tp] -> [b/dp] [f/tp]", forward={SCATTER: 1}, backward={GATHER: 1, REDUCE: 1}),
    "3: left unreduced, then summed": Program(
        ("[b/dp] [m/tp]", "[m/tp] f"), "[b/dp] f",
        lambda x, w: psum(einsum(x, w, "[b/dp] [m/tp], [m/tp] f -> [b/dp] f +tp"), "[b/dp] f +tp -> [b/dp] f"),
        {REDUCE: 1}, {REDUCE: 1}),
    "3: left varying, scaled, then summed": Program(
        ("[b/dp] [m/tp]", "[m/tp] f"), "[b/dp] f",
        lambda x, w: psum(einsum(x, w, "[b/dp] [m/tp], [m/tp] f -> [b/dp] f ~tp") * 2, "[b/dp] f ~tp -> [b/dp] f") / 2,
        {REDUCE: 1}, {REDUCE: 1}),
    "3: over two axes at once": of(einsum, "b [m/dp,tp], [m/dp,tp] f -> b f", forward={REDUCE: 1}),
    "3: over two axes, one scattered and one summed": of(
        einsum, "b [m/dp,tp], [m/dp,tp] f -> [b/dp] f", forward={SCATTER: 1, REDUCE: 1}, backward={GATHER: 1}),
    "3: over two axes, both scattered": of(
        einsum, "b [m/dp,tp], [m/dp,tp] f -> [b/dp] [f/tp]", forward={SCATTER: 2}, backward={GATHER: 2}),
    "3: of three operands": of(
        einsum, "[b/dp] [m/tp], [m/tp] f, [m/tp] f -> [b/dp] f", forward={REDUCE: 1}, backward={REDUCE: 1}),
    "3: heads in an output projection": of(
        einsum, "[b/dp] s [h/tp] d, [h/tp] d m -> [b/dp] [s/tp] m",
        forward={SCATTER: 1}, backward={GATHER: 1, REDUCE: 1}),
    "4: the right one gathered": Program(
        ("[b/tp] m", "m [f/tp]"), "[b/tp] f",
        lambda x, w: einsum(x, all_gather(w, "m [f/tp] -> m f ~tp"), "[b/tp] m, m f -> [b/tp] f"),
        {GATHER: 1}, {SCATTER: 1}),
    "4: the left one gathered": Program(
        ("[b/tp] m", "m [f/tp]"), "b [f/tp]",
        lambda x, w: einsum(all_gather(x, "[b/tp] m -> b m ~tp"), w, "b m, m [f/tp] -> b [f/tp]"),
        {GATHER: 1}, {SCATTER: 1}),
    "4: by two exchanges the third": Program(
        ("[b/tp] m", "m [f/tp]"), "b f",
        lambda x, w: einsum(all_to_all(x, "[b/tp] m -> b [m/tp]"), all_to_all(w, "m [f/tp] -> [m/tp] f"),
                            "b [m/tp], [m/tp] f -> b f"),
        {EXCHANGE: 2, REDUCE: 1}, {EXCHANGE: 2}),
    "a Megatron pair": Program(
        ("[b/dp] [s/tp] m", "m [f/tp]", "[f/tp] m"), "[b/dp] [s/tp] m", megatron,
        {GATHER: 1, SCATTER: 1}, {GATHER: 1, SCATTER: 1, REDUCE: 1}),
}  # fmt: skip
every_program = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


def compiled(function: Callable[..., Any], *args: Any) -> Any:
    return jax.jit(function).lower(*args).compile()


def kinds(reader: Any, program: Any) -> Counter[str]:
    return Counter(collective.kind for collective in reader.collectives(program.as_text()))


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The value of a function together with its gradients, for a cotangent that is not known to the compiler."""

    def both(ct: Any, *args: Any) -> Any:
        value, pull = jax.vjp(function, *args)
        return value, pull(ct)

    return both


@pytest.mark.sample(5)
@every_program
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_program_sends_what_its_pattern_shows(program: Program, check_vma: bool, reader: Any, mesh: Mesh) -> None:
    run = compiled(program.over(mesh, check_vma=check_vma), *program.args)
    assert kinds(reader, run) == program.forward


@pytest.mark.sample(5)
@every_program
def test_its_gradients_send_the_mirror_of_it(program: Program, reader: Any, mesh: Mesh) -> None:
    function, args = program.over(mesh), program.args
    ct = numbers(*jax.eval_shape(function, *args).shape)
    both = compiled(with_gradients(function), ct, *args)
    assert kinds(reader, both) - kinds(reader, compiled(function, *args)) == program.backward


def test_a_ring_sends_once_and_back_once(reader: Any, mesh: Mesh) -> None:
    function, x = of(ppermute, "[b/dp] d", shift=1).over(mesh), numbers(8, 8)
    assert kinds(reader, compiled(function, x)) == {SHIFT: 1}
    assert kinds(reader, compiled(with_gradients(function), x, x)) == {SHIFT: 2}


# How many bytes, and among which devices


def test_the_weights_of_a_megatron_pair_are_summed_over_the_data_alone(reader: Any, mesh: Mesh) -> None:
    program = PROGRAMS["a Megatron pair"]
    text = compiled(with_gradients(program.over(mesh)), numbers(8, 4, 16), *program.args).as_text()
    sums = [collective for collective in reader.collectives(text) if collective.kind == REDUCE]
    assert {collective.group_size for collective in sums} == {4}
    assert sum(collective.bytes_in for collective in sums) == 2 * (16 * 32 // 2) * 4


def test_the_gradient_of_a_lookup_is_summed_over_the_data_and_not_over_the_vocabulary(reader: Any, mesh: Mesh) -> None:
    program = PROGRAMS["rows summed"]
    gradient = compiled(lambda ct, t: jax.vjp(program.over(mesh), t)[1](ct), numbers(8, 4, 8), *program.args)
    (collective,) = reader.collectives(gradient.as_text())
    assert (collective.kind, collective.group_size, collective.bytes_in) == (REDUCE, 4, 10 // 2 * 8 * 4)


def test_a_cross_entropy_over_a_sharded_vocabulary_sends_rows_and_no_logits(reader: Any, mesh: Mesh) -> None:
    def body(x: Any) -> Any:
        return logsumexp(x, "[b/dp] [v/tp] -> [b/dp]") - take(x, shard_of(ids)[:, 0], TARGETS)

    program = Program(("[b/dp] [v/tp]",), "[b/dp]", body)
    both = compiled(with_gradients(program.over(mesh)), numbers(8), *program.args)
    assert kinds(reader, both).keys() == {REDUCE}
    assert sum(collective.bytes_in for collective in reader.collectives(both.as_text())) == 3 * (8 // 4) * 4


# What no shard could compute

GATHER_IT = "gather it in operand {} first (all_gather), or reshard the other operand"
GATHER_ONE = "gather one of them first (all_gather)"
KEEP = "write {}; all_gather, all_to_all and reshard move shards"
WRONG: dict[str, tuple[str, str, str, str]] = {
    "2: the right one is whole": (
        "[b/dp] [m/tp], m f -> [b/dp] f", "m",
        "'m' is sharded over 'tp' in operand 1, but unsharded in operand 2", GATHER_IT.format(1)),
    "2: the axis of another dim": (
        "[b/tp] m, [m/tp] f -> [b/tp] f", "[m/tp]",
        "'m' is unsharded in operand 1, but sharded over 'tp' in operand 2", GATHER_IT.format(2)),
    "3: other axes": (
        "b [m/tp], [m/dp] f -> b f", "[m/dp]",
        "'m' is sharded over 'tp' in operand 1, but sharded over 'dp' in operand 2", GATHER_IT.format(2)),
    "3: another order of axes": (
        "b [m/tp,dp], [m/dp,tp] f -> b f", "[m/dp,tp]",
        "'m' is sharded over 'tp', 'dp' in operand 1, but sharded over 'dp', 'tp' in operand 2", GATHER_IT.format(2)),
    "4: with one of two axes": (
        "[b/tp,dp] m, m [f/tp] -> [b/tp,dp] f", "[f/tp]",
        "'b' in operand 1 and 'f' in operand 2 are both sharded over 'tp', so no shard has all of either", GATHER_ONE),
    "a dim that the result gathers": (
        "[b/dp] m, m f -> b f", "b",
        "'b' is sharded over 'dp' in the operands, but unsharded in the result", KEEP.format("[b/dp]")),
    "a dim that the result splits": (
        "[b/dp] m, m f -> [b/dp] [f/tp]", "[f/tp]",
        "'f' is unsharded in the operands, but sharded over 'tp' in the result, and there is no partial sum over 'tp'",
        KEEP.format("f")),
    "a dim that the result splits otherwise": (
        "[b/dp,tp] m, m f -> [b/tp,dp] f", "[b/tp,dp]",
        "'b' is sharded over 'dp', 'tp' in the operands, but sharded over 'tp', 'dp' in the result",
        KEEP.format("[b/dp,tp]")),
}  # fmt: skip


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(("pattern", "place", "problem", "cure"), WRONG.values(), ids=WRONG)
def test_a_product_that_no_shard_could_compute_is_refused_with_its_cure(
    pattern: str, place: str, problem: str, cure: str, check_vma: bool, mesh: Mesh
) -> None:
    program = of(einsum, pattern)
    with pytest.raises(PatternError) as caught:
        jax.eval_shape(program.over(mesh, check_vma=check_vma), *program.args)
    first, _, hint, carets, *_, last = str(caught.value).splitlines()
    assert first == f"einsum in <lambda>: {problem}"
    assert hint == f'    pattern: "{pattern}"'
    assert hint[carets.index("^") : carets.rindex("^") + 1] == place
    assert last == f"Hint: {cure}"


# By pattern: how its dims change.
NOT_EXCHANGED = {
    "[b/dp] d -> [b/dp] [d/tp]": "dim 'd' gains 'tp' and no dim loses an axis",
    "[b/dp] d -> b [d/tp]": "dim 'b' loses 'dp' and dim 'd' gains 'tp'",
    "[b/dp] [d/tp] k -> b d [k/tp,dp]": "dim 'b' loses 'dp', dim 'd' loses 'tp' and dim 'k' gains 'tp', 'dp'",
}


@pytest.mark.parametrize(("pattern", "changes"), NOT_EXCHANGED.items())
def test_an_exchange_that_one_all_to_all_cannot_make_names_the_change_of_each_dim(
    pattern: str, changes: str, mesh: Mesh
) -> None:
    dims = pattern.partition(" -> ")[0]
    spec = P(*(re.findall(r"/(\w+)", dim)[0] if "/" in dim else None for dim in dims.split()))
    x = jax.ShapeDtypeStruct((8,) * len(spec), jnp.float32)
    program = jax.shard_map(lambda x: all_to_all(x, pattern), mesh=mesh, in_specs=spec, out_specs=P())
    with pytest.raises(PatternError) as caught:
        jax.eval_shape(program, x)
    first, *_ = str(caught.value).splitlines()
    assert first == f"all_to_all: {changes}: an all_to_all moves minor axes from one dim to another"


# Dtypes, marks and tables without rows


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.1)])
def test_sums_over_the_mesh_are_taken_in_the_preferred_type(dtype: str, tolerance: float, mesh: Mesh) -> None:
    def body(x: Float[Array, "[b/dp] [m/tp]"], w: Float[Array, "[m/tp] f"]) -> Float[Array, "[b/dp] f"]:
        pattern = "[b/dp] [m/tp], [m/tp] f -> [b/dp] f"
        return einsum(x, w, pattern, preferred_element_type=jnp.dtype(dtype), precision="highest")

    halves = jnp.asarray(numbers(8, 16), "bfloat16"), jnp.asarray(numbers(16, 32), "bfloat16")
    got = jax.block_until_ready(jax.jit(typed_shard_map(body, mesh=mesh))(*halves))
    assert got.dtype == dtype
    x, w = (np.asarray(half, np.float32) for half in halves)  # of which products are exact
    np.testing.assert_allclose(np.asarray(got, np.float32), x @ w, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_marked_sum_that_is_left_unmarked_is_taken_later(check_vma: bool) -> None:
    """Where a result is scattered over an axis of size 1, too."""
    mesh = Mesh(np.array(jax.devices()[:6]).reshape(2, 3, 1), ("sp", "tp", "dp"))

    def summed(x: Float[Array, "[s/sp] d b [c/dp]"], y: Float[Array, "d"]) -> Float[Array, "[b/dp]"]:
        part = einsum(check(x.sum(0), "d b [c/dp] +sp"), y, "d b [c/dp] +sp, d -> [b/dp] ~sp")
        return psum(part, "[b/dp] ~sp -> [b/dp]")

    jax.eval_shape(typed_shard_map(summed, mesh=mesh, check_vma=check_vma), jnp.ones((4, 2, 1, 1)), jnp.ones(2))


@pytest.mark.sample(2)
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_table_without_rows_gives_zeros(check_vma: bool, mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh, check_vma=check_vma)
    def rows(t: Float[Array, "[v/tp] m"], i: Int[Array, "[b/dp] s"]) -> Float[Array, "[b/dp] s m"]:
        return take(t, i, "[v/tp] m, [b/dp] s -> [b/dp] s m")

    value, pull = jax.vjp(lambda t: rows(t, ids), np.zeros((0, 8), np.float32))
    np.testing.assert_array_equal(value, np.zeros((8, 4, 8), np.float32))
    assert jax.block_until_ready(pull(value))[0].shape == (0, 8)
