"""What operations send, and what their gradients send, read in compiled programs."""

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
    Int,
    all_gather,
    all_to_all,
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

GATHER, REDUCE, SCATTER, EXCHANGE, SHIFT = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@dataclass(frozen=True)
class Program:
    """A body on shards.

    Attributes:
      hints: of the arguments that are differentiated.
      result: the result's hint.
      body: what is done.
      shapes: of the arguments.
    """

    hints: tuple[str, ...]
    result: str
    body: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]

    def over(self, mesh: Mesh, **options: Any) -> Callable[..., Any]:
        types = tuple(Float[Array, hint] for hint in self.hints)
        return typed_shard_map(self.body, mesh=mesh, in_types=types, out_types=Float[Array, self.result], **options)

    @property
    def args(self) -> list[np.ndarray]:
        return [numbers(*shape) for shape in self.shapes]


def kinds(reader: Any, function: Callable[..., Any], *args: Any) -> Counter[str]:
    text = jax.jit(function).lower(*args).compile().as_text()
    return Counter(one.kind for one in reader.collectives(text))


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The value of a function together with its gradients, for a cotangent that is not known to the compiler."""

    def both(ct: Any, *args: Any) -> Any:
        value, pull = jax.vjp(function, *args)
        return value, pull(ct)

    return both


def sent(reader: Any, program: Program, mesh: Mesh) -> tuple[Counter[str], Counter[str]]:
    """The collectives of a program, and those that its gradients add."""
    function, args = program.over(mesh), program.args
    ct = numbers(*jax.eval_shape(function, *args).shape)
    forward = kinds(reader, function, *args)
    both = kinds(reader, with_gradients(function), ct, *args)
    assert not forward - both
    return forward, both - forward


def expect(reader: Any, program: Program, mesh: Mesh, forward: dict[str, int], backward: dict[str, int]) -> None:
    assert sent(reader, program, mesh) == (forward, backward)


# A pattern without communication sends nothing, forward and backward

ids = np.array([[1, 5, 2, 9], [3, 1, 0, 7], [2, 2, 8, 4], [6, 0, 1, 3]] * 2, np.int32)
QUIET: dict[str, Program] = {
    "rearrange": Program(
        ("[b/dp] [d/tp]",), "[d/tp] [b/dp]", lambda x: rearrange(x, "[b/dp] [d/tp] -> [d/tp] [b/dp]"), ((8, 8),)
    ),
    "merge": Program(
        ("[b/dp] s [d/tp]",),
        "[_/dp] [d/tp]",
        lambda x: rearrange(x, "[b/dp] s [d/tp] -> [(b s)/dp] [d/tp]"),
        ((8, 3, 8),),
    ),
    "split": Program(
        ("[b/dp] [hd/tp]",),
        "[b/dp] [h/tp] d",
        lambda x: rearrange(x, "[b/dp] [(h d)/tp] -> [b/dp] [h/tp] d", h=4),
        ((8, 8),),
    ),
    "repeat": Program(
        ("[b/dp] [d/tp]",),
        "[b/dp] [_/tp]",
        lambda x: repeat(x, "[b/dp] [d/tp] -> [b/dp] [(d 2)/tp]"),
        ((8, 8),),
    ),
    "reduce": Program(
        ("[b/dp] s [d/tp]",),
        "[b/dp] [d/tp]",
        lambda x: reduce(x, "[b/dp] s [d/tp] -> [b/dp] [d/tp]", "mean"),
        ((8, 3, 8),),
    ),
    "max": Program(
        ("[b/dp] s [d/tp]",),
        "[b/dp] [d/tp]",
        lambda x: reduce(x, "[b/dp] s [d/tp] -> [b/dp] [d/tp]", "max"),
        ((8, 3, 8),),
    ),
    "einsum of what is sharded the same way": Program(
        ("[b/dp] [h/tp] q d", "[b/dp] [h/tp] k d"),
        "[b/dp] [h/tp] q k",
        lambda q, k: einsum(q, k, "[b/dp] [h/tp] q d, [b/dp] [h/tp] k d -> [b/dp] [h/tp] q k"),
        ((4, 2, 3, 5), (4, 2, 6, 5)),
    ),
    "take": Program(
        ("[b/dp] v [d/tp]",),
        "[b/dp] s [d/tp]",
        lambda t: take(t, jnp.asarray(ids[:2]), "[b/dp] v [d/tp], [b/dp] s -> [b/dp] s [d/tp]"),
        ((8, 10, 8),),
    ),
    "softmax": Program(
        ("[b/dp] [h/tp] k",), "[b/dp] [h/tp] k", lambda x: softmax(x, "[b/dp] [h/tp] k", "k"), ((8, 4, 6),)
    ),
    "logsumexp": Program(
        ("[b/dp] [h/tp] k",), "[b/dp] [h/tp]", lambda x: logsumexp(x, "[b/dp] [h/tp] k -> [b/dp] [h/tp]"), ((8, 4, 6),)
    ),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("program", QUIET.values(), ids=QUIET)
def test_what_a_pattern_does_not_show_is_not_sent(program: Program, reader: Any, mesh: Mesh) -> None:
    expect(reader, program, mesh, {}, {})


@pytest.mark.parametrize("program", QUIET.values(), ids=QUIET)
def test_without_jaxs_types_nothing_is_sent_either(program: Program, reader: Any, mesh: Mesh) -> None:
    assert kinds(reader, program.over(mesh, check_vma=False), *program.args) == {}


FREE: dict[str, Program] = {
    "left unreduced, then summed": Program(
        ("[b/dp] [d/tp]",),
        "",
        lambda x: psum(reduce(x, "[b/dp] [d/tp] -> +dp +tp", "sum"), "+dp +tp ->"),
        ((8, 8),),
    ),
    "summed at once": Program(("[b/dp] [d/tp]",), "", lambda x: reduce(x, "[b/dp] [d/tp] ->", "sum"), ((8, 8),)),
    "averaged": Program(
        ("[b/dp] [d/tp]",), "[b/dp]", lambda x: reduce(x, "[b/dp] [d/tp] -> [b/dp]", "mean"), ((8, 8),)
    ),
    "pmean": Program(("[b/dp] d",), "one d", lambda x: pmean(x, "b d ~dp -> b d"), ((4, 8),)),
}


@pytest.mark.parametrize("program", FREE.values(), ids=FREE)
def test_a_sum_is_one_reduction_and_its_gradient_is_free(program: Program, reader: Any, mesh: Mesh) -> None:
    expect(reader, program, mesh, {REDUCE: 1}, {})


# Each collective and its mirror

MIRRORS: dict[str, tuple[Program, dict[str, int], dict[str, int]]] = {
    "all_gather, invarying": (
        Program(("[b/dp] d",), "b d", lambda x: all_gather(x, "[b/dp] d -> b d"), ((8, 8),)),
        {GATHER: 1},
        {},
    ),
    "psum_scatter": (
        Program(("[b/dp] d",), "one [d/dp]", lambda x: psum_scatter(x, "b d ~dp -> b [d/dp]"), ((4, 8),)),
        {SCATTER: 1},
        {GATHER: 1},
    ),
    "all_to_all": (
        Program(("[b/dp] d",), "b [d/dp]", lambda x: all_to_all(x, "[b/dp] d -> b [d/dp]"), ((8, 8),)),
        {EXCHANGE: 1},
        {EXCHANGE: 1},
    ),
    "ppermute": (
        Program(("[b/dp] d",), "[b/dp] d", lambda x: ppermute(x, "[b/dp] d", shift=1), ((8, 8),)),
        {SHIFT: 1},
        {SHIFT: 1},
    ),
    "repeat in parts": (
        Program(("[b/dp] d",), "[b/dp] d [r/tp]", lambda x: repeat(x, "[b/dp] d -> [b/dp] d [r/tp]", r=4), ((8, 8),)),
        {},
        {REDUCE: 1},
    ),
    "reduce, scattered": (
        Program(
            ("[b/dp] d",), "[d/dp]", lambda x: reduce(x, "[b/dp] d -> [d/dp]", "sum"), ((8, 8),)
        ),
        {SCATTER: 1},
        {GATHER: 1},
    ),
    "all_gather over two axes": (
        Program(("[b/dp,tp] d",), "b d", lambda x: all_gather(x, "[b/dp,tp] d -> b d"), ((8, 8),)),
        {GATHER: 1},
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("program", "forward", "backward"), MIRRORS.values(), ids=MIRRORS)
def test_a_collective_has_its_mirror_as_gradient(
    program: Program, forward: dict[str, int], backward: dict[str, int], reader: Any, mesh: Mesh
) -> None:
    expect(reader, program, mesh, forward, backward)


# A gathered weight: the mark says what the gradient will be

MARKS = [("~dp", {SCATTER: 1}), ("-dp", {SCATTER: 1}), ("", {REDUCE: 1})]


@pytest.mark.parametrize(("mark", "backward"), MARKS)
def test_the_mark_of_a_gathered_weight_says_what_its_gradient_sends(
    mark: str, backward: dict[str, int], reader: Any, mesh: Mesh
) -> None:
    def body(x: Any, w: Any) -> Any:
        return einsum(x, all_gather(w, f"[m/dp] f -> m f {mark}"), "[b/dp] m, m f -> [b/dp] f")

    program = Program(("[b/dp] m", "[m/dp] f"), "[b/dp] f", body, ((8, 16), (16, 32)))
    expect(reader, program, mesh, {GATHER: 1}, backward)


@pytest.mark.parametrize(("mark", "backward"), MARKS)
def test_a_gathered_weight_that_is_transposed_has_the_same_gradient(
    mark: str, backward: dict[str, int], reader: Any, mesh: Mesh
) -> None:
    def body(x: Any, w: Any) -> Any:
        w = all_gather(w, f"[m/dp] f -> m f {mark}")
        return einsum(x, rearrange(w, f"m f {mark} -> f m {mark}" if mark else "m f -> f m"), f"[b/dp] m, f m {mark} "
                      "-> [b/dp] f")  # fmt: skip

    program = Program(("[b/dp] m", "[m/dp] f"), "[b/dp] f", body, ((8, 16), (16, 32)))
    expect(reader, program, mesh, {GATHER: 1}, backward)


@pytest.mark.parametrize("mark", ["~dp", "-dp"])
def test_weights_gathered_layer_by_layer_are_scattered_layer_by_layer(mark: str, reader: Any, mesh: Mesh) -> None:
    def body(x: Any, w: Any, v: Any) -> Any:
        h = jnp.tanh(einsum(x, all_gather(w, f"[m/dp] f -> m f {mark}"), "[b/dp] m, m f -> [b/dp] f"))
        return einsum(h, all_gather(v, f"[f/dp] m -> f m {mark}"), "[b/dp] f, f m -> [b/dp] m")

    program = Program(("[b/dp] m", "[m/dp] f", "[f/dp] m"), "[b/dp] m", body, ((8, 16), (16, 32), (32, 16)))
    forward, backward = sent(reader, program, mesh)
    assert forward == {GATHER: 2}
    assert backward[SCATTER] == 2
    assert backward[REDUCE] == 0


# Megatron: a sequence-sharded activation is gathered, and its result is scattered


def megatron(x: Any, w: Any, v: Any) -> Any:
    x = all_gather(x, "[b/dp] [s/tp] m -> [b/dp] s m ~tp")
    h = einsum(x, w, "[b/dp] s m, m [f/tp] -> [b/dp] s [f/tp]")
    return einsum(jax.nn.gelu(h), v, "[b/dp] s [f/tp], [f/tp] m -> [b/dp] [s/tp] m")


def of_weights(w: np.ndarray, v: np.ndarray) -> Program:
    return Program(("[b/dp] [s/tp] m",), "[b/dp] [s/tp] m", lambda x: megatron(x, *weights(w, v)), ((4, 8, 16),))


def weights(w: np.ndarray, v: np.ndarray) -> tuple[Any, Any]:
    """This shard's part of weights that are known to every shard."""
    at = jax.lax.axis_index("tp")
    half = w.shape[1] // 2
    return (jax.lax.dynamic_slice_in_dim(jnp.asarray(w), at * half, half, 1),
            jax.lax.dynamic_slice_in_dim(jnp.asarray(v), at * half, half, 0))  # fmt: skip


def test_a_megatron_pair_sends_one_gather_and_one_scatter_and_back_the_mirror(reader: Any, mesh: Mesh) -> None:
    program = of_weights(numbers(16, 32), numbers(32, 16))
    expect(reader, program, mesh, {GATHER: 1, SCATTER: 1}, {GATHER: 1, SCATTER: 1})


def test_the_weights_of_a_megatron_pair_are_summed_over_the_data_alone(reader: Any, mesh: Mesh) -> None:
    hints = ("[b/dp] [s/tp] m", "m [f/tp]", "[f/tp] m")
    program = Program(hints, hints[0], megatron, ((4, 8, 16), (16, 32), (32, 16)))
    function, args = program.over(mesh), program.args
    text = jax.jit(with_gradients(function)).lower(numbers(4, 8, 16), *args).compile().as_text()
    sums = [one for one in reader.collectives(text) if one.kind == REDUCE]
    assert {one.group_size for one in sums} == {4}
    assert sum(one.bytes_in for one in sums) == 2 * (16 * 32 // 2) * 4
    assert sent(reader, program, mesh)[0] == {GATHER: 1, SCATTER: 1}


# Lookups, softmax and logsumexp over a sharded dim


def looked_up(pattern: str, result: str) -> Program:
    return Program(
        ("[v/tp] m",), result, lambda t: take(t, shard_of(ids), pattern), ((10, 8),)
    )  # fmt: skip


def shard_of(ids: np.ndarray) -> Any:
    """The rows that this shard of the data looks up."""
    return jax.lax.dynamic_slice_in_dim(jnp.asarray(ids), jax.lax.axis_index("dp") * 2, 2, 0)


TAKEN: dict[str, tuple[Program, dict[str, int], dict[str, int]]] = {
    "summed": (looked_up("[v/tp] m, [b/dp] s -> [b/dp] s m", "[b/dp] s m"), {REDUCE: 1}, {REDUCE: 1}),
    "scattered": (looked_up("[v/tp] m, [b/dp] s -> [b/dp] [s/tp] m", "[b/dp] [s/tp] m"), {SCATTER: 1},
                  {GATHER: 1, REDUCE: 1}),
    "the target's logit": (
        Program(("[b/dp] [v/tp]",), "[b/dp]",
                lambda t: take(t, shard_of(ids)[:, 0], "[b/dp] [v/tp], [b/dp] -> [b/dp]"), ((8, 10),)),
        {REDUCE: 1}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("program", "forward", "backward"), TAKEN.values(), ids=TAKEN)
def test_a_lookup_sends_its_rows_and_back_the_sums_of_a_replicated_table_alone(
    program: Program, forward: dict[str, int], backward: dict[str, int], reader: Any, mesh: Mesh
) -> None:
    expect(reader, program, mesh, forward, backward)


def test_the_gradient_of_a_lookup_is_summed_over_the_data_and_not_over_the_vocabulary(reader: Any, mesh: Mesh) -> None:
    program = TAKEN["summed"][0]
    text = jax.jit(lambda ct, t: jax.vjp(program.over(mesh), t)[1](ct)).lower(numbers(8, 4, 8), *program.args)
    (one,) = reader.collectives(text.compile().as_text())
    assert (one.kind, one.group_size, one.bytes_in) == (REDUCE, 4, 10 // 2 * 8 * 4)


NORMALISED: dict[str, tuple[Program, dict[str, int], dict[str, int]]] = {
    "logsumexp": (
        Program(("[b/dp] [v/tp]",), "[b/dp]", lambda x: logsumexp(x, "[b/dp] [v/tp] -> [b/dp]"), ((8, 10),)),
        {REDUCE: 2}, {}),
    "logsumexp over both": (
        Program(("[b/dp] [v/tp]",), "", lambda x: logsumexp(x, "[b/dp] [v/tp] ->"), ((8, 10),)), {REDUCE: 2}, {}),
    "softmax": (
        Program(("[b/dp] [v/tp]",), "[b/dp] [v/tp]", lambda x: softmax(x, "[b/dp] [v/tp]", "v"), ((8, 10),)),
        {REDUCE: 2}, {REDUCE: 1}),
}  # fmt: skip


@pytest.mark.parametrize(("program", "forward", "backward"), NORMALISED.values(), ids=NORMALISED)
def test_normalising_sends_a_maximum_and_a_sum_and_back_no_more_than_is_needed(
    program: Program, forward: dict[str, int], backward: dict[str, int], reader: Any, mesh: Mesh
) -> None:
    expect(reader, program, mesh, forward, backward)


def test_a_cross_entropy_over_a_sharded_vocabulary_sends_rows_and_no_logits(reader: Any, mesh: Mesh) -> None:
    def body(x: Any) -> Any:
        chosen = take(x, shard_of(ids)[:, 0], "[b/dp] [v/tp], [b/dp] -> [b/dp]")
        return logsumexp(x, "[b/dp] [v/tp] -> [b/dp]") - chosen

    program = Program(("[b/dp] [v/tp]",), "[b/dp]", body, ((8, 10),))
    text = jax.jit(with_gradients(program.over(mesh))).lower(numbers(8), *program.args).compile().as_text()
    found = reader.collectives(text)
    assert {one.kind for one in found} == {REDUCE}
    assert sum(one.bytes_in for one in found) == 3 * (8 // 4) * 4


# A maximum over the mesh has no derivative, and is not differentiated by accident


def test_the_maximum_that_keeps_a_softmax_stable_is_not_differentiated(mesh: Mesh) -> None:
    program = NORMALISED["softmax"][0]
    args, ct = program.args, numbers(8, 10)
    got = jax.block_until_ready(jax.jit(with_gradients(program.over(mesh)))(ct, *args))
    expected = with_gradients(lambda x: jax.nn.softmax(x, axis=1))(ct, *args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, expected)


def test_an_integer_argument_takes_no_part_in_a_gradient(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def rows(t: Float[Array, "[v/tp] m"], i: Int[Array, "[b/dp] s"]) -> Float[Array, "[b/dp] s m"]:
        return take(t, i, "[v/tp] m, [b/dp] s -> [b/dp] s m")

    table, ct = numbers(10, 8), numbers(8, 4, 8)
    got = jax.block_until_ready(jax.jit(jax.grad(lambda t: (rows(t, ids) * ct).sum()))(table))
    expected = np.zeros_like(table)
    np.add.at(expected, ids, ct)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.sample(2)
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_table_without_rows_gives_zeros(check_vma: bool, mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh, check_vma=check_vma)
    def rows(t: Float[Array, "[v/tp] m"], i: Int[Array, "[b/dp] s"]) -> Float[Array, "[b/dp] s m"]:
        return take(t, i, "[v/tp] m, [b/dp] s -> [b/dp] s m")

    table = np.zeros((0, 8), np.float32)
    found, back = jax.vjp(lambda t: rows(t, ids), table)
    np.testing.assert_array_equal(found, np.zeros((8, 4, 8), np.float32))
    assert jax.block_until_ready(back(found))[0].shape == (0, 8)
