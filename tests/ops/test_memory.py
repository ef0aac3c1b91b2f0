"""What a hint declared and what an operation returned is remembered: a pattern that contradicts it is refused."""

import gc
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    ShardingError,
    VaryingError,
    all_gather,
    all_to_all,
    assume,
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
    typed,
    typed_shard_map,
)
from typedshmap.hints import context

W = Float[Array, "[m/dp,tp] f"]
XY = Float[Array, "[b/dp] [d/tp]"]
x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)


def trace(use: Callable[[Any], Any], mesh: Mesh, hint: Any = XY, **options: Any) -> None:
    """Trace a body; what it returns is dropped."""

    def body(x: Any) -> None:
        use(x)

    jax.eval_shape(typed_shard_map(body, mesh=mesh, in_types=(hint,), out_types=None, **options), x)


def contradicts(line: str, use: Callable[[Any], Any], mesh: Mesh, hint: Any = XY, **options: Any) -> None:
    with fails(ShardingError, line):
        trace(use, mesh, hint, **options)


in_both_modes = pytest.mark.parametrize("check_vma", [True, False])


# How a layout becomes known: the value, its dims, and who says so


@typed
def helper(w: W) -> None:
    rearrange(w, "[m/tp,dp] f -> f [m/tp,dp]")


@typed
def doubled(w: W) -> W:
    return w * 2


@typed
def checked(w: Any) -> Any:
    return check(w * 2, "[m/dp,tp] f")


def swapped(w: Any) -> Any:
    """Read a value that is split over dp, tp as if it were split over tp, dp."""
    return rearrange(w, "[m/tp,dp] f -> f [m/tp,dp]")


DECLARED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an argument": (swapped, "body's hint of argument 'x'"),
    "an argument of a helper": (lambda w: helper(w * 2), "helper's hint of argument 'w'"),
    "a result of a helper": (lambda w: swapped(doubled(w)), "doubled's hint of return value"),
    "check": (lambda w: swapped(check(w * 2, "[m/dp,tp] f")), "body's hint of checked value"),
    "check in a helper": (lambda w: swapped(checked(w)), "checked's hint of checked value"),
    "a leaf of a tree": (lambda w: swapped(check({"a": w * 2}, dict[str, W])["a"]), "body's hint of checked['a']"),
}


@in_both_modes
@pytest.mark.parametrize(("use", "place"), DECLARED.values(), ids=DECLARED)
def test_a_pattern_that_contradicts_a_hint_is_refused(use: Any, place: str, check_vma: bool, mesh: Mesh) -> None:
    line = f"is read as sharded over 'tp', 'dp' in dim 0, but {place} says sharded over 'dp', 'tp'"
    with pytest.raises(ShardingError, match=f"^.*{re.escape(line)}"):
        trace(use, mesh, W, check_vma=check_vma)


RETURNED: list[tuple[str, Callable[..., Any], str, str, str]] = [
    ("rearrange", rearrange, "[b/dp] [d/tp] -> [d/tp] [b/dp]", "[d/dp] [b/tp]",
     "read as sharded over 'dp' in dim 0, but rearrange in body says sharded over 'tp'"),
    ("repeat", repeat, "[b/dp] [d/tp] -> 2 [b/dp] [d/tp]", "n [b/tp] [d/dp]",
     "read as sharded over 'tp' in dim 1, but repeat in body says sharded over 'dp'"),
    ("reduce", lambda x, p: reduce(x, p, "sum"), "[b/dp] [d/tp] -> [d/tp,dp]", "[d/dp,tp]",
     "read as sharded over 'dp', 'tp' in dim 0, but reduce in body says sharded over 'tp', 'dp'"),
    ("einsum", einsum, "[b/dp] [d/tp] -> [d/tp] [b/dp]", "[d/dp] [b/tp]",
     "read as sharded over 'dp' in dim 0, but einsum in body says sharded over 'tp'"),
    ("all_gather", all_gather, "[b/dp] [d/tp] -> b [d/tp]", "[b/tp] d",
     "read as sharded over 'tp' in dim 0, but all_gather in body says unsharded"),
    ("psum", psum, "b [d/tp] ~dp -> b [d/tp]", "[b/tp] d",
     "read as sharded over 'tp' in dim 0, but psum in body says unsharded"),
    ("psum_scatter", psum_scatter, "b [d/tp] ~dp -> b [d/tp,dp]", "b [d/dp,tp]",
     "read as sharded over 'dp', 'tp' in dim 1, but psum_scatter in body says sharded over 'tp', 'dp'"),
    ("all_to_all", all_to_all, "[b/dp] [d/tp] -> b [d/tp,dp]", "b [d/dp,tp]",
     "read as sharded over 'dp', 'tp' in dim 1, but all_to_all in body says sharded over 'tp', 'dp'"),
    ("ppermute", lambda x, p: ppermute(x, p, shift=1, axis="dp"), "[b/dp] [d/tp]", "[b/tp] [d/dp]",
     "read as sharded over 'tp' in dim 0, but ppermute in body says sharded over 'dp'"),
    ("softmax", lambda x, p: softmax(x, p, "d"), "[b/dp] [d/tp]", "[b/tp] [d/dp]",
     "read as sharded over 'tp' in dim 0, but softmax in body says sharded over 'dp'"),
    ("logsumexp", lambda x, p: logsumexp(x[:, None], p), "[b/dp] n [d/tp] -> [b/dp] n", "b [n/dp]",
     "read as unsharded in dim 0, but logsumexp in body says sharded over 'dp'"),
    ("take", lambda x, p: take(x, np.array([1, 2]), p), "[b/dp] [d/tp], i -> i [d/tp]", "[i/tp] d",
     "read as sharded over 'tp' in dim 0, but take in body says unsharded"),
]  # fmt: skip


@pytest.mark.sample(5)
@in_both_modes
@pytest.mark.parametrize(
    ("operation", "pattern", "read", "line"), [row[1:] for row in RETURNED], ids=[row[0] for row in RETURNED]
)
def test_a_pattern_that_contradicts_what_an_operation_returned_is_refused(
    operation: Any, pattern: str, read: str, line: str, check_vma: bool, mesh: Mesh
) -> None:
    def use(x: Any) -> Any:
        # A value that is not remembered may be read in any way that its type allows.
        value = operation(x * 2, pattern)
        rearrange(value, f"{read} -> {read}")

    contradicts(f'rearrange in body: the operand is {line} ("{pattern}")', use, mesh, check_vma=check_vma)


# What a later pattern may not say

CLAIMS: list[tuple[str, str]] = [
    ("[m/tp,dp] f", "sharded over 'tp', 'dp' in dim 0"),
    ("m [f/dp,tp]", "unsharded in dim 0"),
    ("[m/dp] [f/tp]", "sharded over 'dp' in dim 0"),
    ("[m/tp] [f/dp]", "sharded over 'tp' in dim 0"),
    ("[m/dp] f +tp", "sharded over 'dp' in dim 0"),
    ("m f +dp +tp", "unsharded in dim 0"),
    ("m [f/tp] ~dp", "unsharded in dim 0"),
    ("[m/tp,dp] ...", "sharded over 'tp', 'dp' in dim 0"),
    ("... [f/dp,tp]", "unsharded in dim 0"),
]


@in_both_modes
@pytest.mark.parametrize(("claim", "words"), CLAIMS)
def test_another_layout_of_a_remembered_value_is_refused(claim: str, words: str, check_vma: bool, mesh: Mesh) -> None:
    hint = "body's hint of argument 'x' says sharded over 'dp', 'tp' (x: Float[Array, \"[m/dp,tp] f\"])"
    line = f"rearrange in body: the operand is read as {words}, but {hint}"
    contradicts(line, lambda w: rearrange(w, f"{claim} -> {claim}"), mesh, W, check_vma=check_vma)


RIGHT = ["[m/dp,tp] f", "[m/dp,tp] ...", "m f ~dp ~tp", "[m/dp] f ~tp", "[m/tp] f ~dp"]


@in_both_modes
@pytest.mark.parametrize("claim", RIGHT)
def test_a_layout_that_agrees_or_says_less_is_accepted(claim: str, check_vma: bool, mesh: Mesh) -> None:
    trace(lambda w: rearrange(w, f"{claim} -> {claim}"), mesh, W, check_vma=check_vma)


ADDENDS = "[b/dp] [d/tp] -> [b/dp] +tp"
TURNED = "[b/dp] [d/tp] -> [d/tp] [b/dp]"
GATHER = "[b/dp] [d/tp] -> b d ~dp ~tp"
READ_WRONGLY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "the second operand": (
        lambda x: einsum(x * 2, rearrange(x, TURNED), "[b/dp] [d/tp], [c/dp] [d/tp] -> b c"),
        "einsum in body: operand 2 is read as sharded over 'dp' in dim 0, but rearrange in body says sharded over 'tp' "
        f'("{TURNED}")'),
    "a partial sum as a split dim": (
        lambda x: rearrange(reduce(x, ADDENDS, "sum"), "[b/dp,tp] -> 1 [b/dp,tp]"),
        "rearrange in body: the operand is read as sharded over 'dp', 'tp' in dim 0, but reduce in body says sharded "
        f'over \'dp\' ("{ADDENDS}")'),
    "a gathered value as a split one": (
        lambda x: rearrange(all_gather(x, GATHER), "[b/dp,tp] d -> d [b/dp,tp]"),
        "rearrange in body: the operand is read as sharded over 'dp', 'tp' in dim 0, but all_gather in body says "
        f'unsharded ("{GATHER}")'),
}  # fmt: skip


@in_both_modes
@pytest.mark.parametrize(("use", "line"), READ_WRONGLY.values(), ids=READ_WRONGLY)
def test_what_an_operation_returned_is_not_read_otherwise(use: Any, line: str, check_vma: bool, mesh: Mesh) -> None:
    contradicts(line, use, mesh, check_vma=check_vma)


# Partial sums


def test_a_sum_that_was_taken_is_not_taken_again_where_jax_has_no_types(mesh: Mesh) -> None:
    def use(x: Any) -> None:
        psum(psum(reduce(x, ADDENDS, "sum"), "[b/dp] +tp -> [b/dp]"), "[b/dp] +tp -> [b/dp]")

    line = "psum in body: the operand is read as unreduced over 'tp', but psum in body says not unreduced"
    contradicts(f'{line} ("[b/dp] +tp -> [b/dp]")', use, mesh, check_vma=False)


SAME: dict[str, Callable[[Any], Any]] = {
    "psum": lambda x: psum(reduce(x, ADDENDS, "sum"), "[b/dp] +tp -> [b/dp]"),
    "reduce": lambda x: reduce(x, "[b/dp] [d/tp] -> [b/dp]", "sum"),
    "all_gather": lambda x: all_gather(x, "[b/dp] [d/tp] -> [b/dp] d ~tp"),
    "a hint": lambda x: assume(x.sum(1) * 0, "[b/dp]"),
}


@pytest.mark.parametrize(("place", "make"), SAME.items(), ids=SAME)
def test_a_tree_of_what_is_known_to_be_equal_is_not_summed_where_jax_has_no_types(
    place: str, make: Any, mesh: Mesh
) -> None:
    who = "body's hint of assumed value" if place == "a hint" else f"{place} in body"
    line = f"psum in body: argument 'tree['y']' is the same on every shard of 'tp' by {who}, so a psum over it"
    with fails(VaryingError, f"{line} would count it 2 times"):
        trace(lambda x: psum({"y": make(x)}, "tp"), mesh, check_vma=False)


def test_the_mean_of_equal_shards_gives_back_what_jax_types_as_varying(mesh: Mesh) -> None:
    def body(x: XY) -> Float[Array, "[b/dp] d"]:
        return pmean(all_gather(x, "[b/dp] [d/tp] -> [b/dp] d ~tp"), "tp")

    np.testing.assert_allclose(jax.jit(typed_shard_map(body, mesh=mesh))(x), x, rtol=1e-6)


GATHERED: dict[str, Callable[[Any], Any]] = {
    "read without its mark": lambda g: rearrange(g, "b d -> d b"),
    "read with its mark": lambda g: rearrange(g, "b d ~dp ~tp -> d b ~dp ~tp"),
    "multiplied": lambda g: einsum(g, g, "b d, c d -> b c"),
    "read twice": lambda g: reduce(rearrange(g, "b d -> d b"), "d b -> b", "sum"),
}


@pytest.mark.parametrize("use", GATHERED.values(), ids=GATHERED)
def test_a_gathered_value_is_known_to_be_equal_on_all_shards(use: Any, mesh: Mesh) -> None:
    trace(lambda x: use(all_gather(x, GATHER)), mesh)


@pytest.mark.parametrize(
    ("use", "line"),
    [
        (
            lambda g: reduce(g, "b d -> b +dp", "sum"),
            "the result is the same on every shard of 'dp', but the pattern says",
        ),
        (lambda g: psum(g, "b d ~dp ~tp -> b d"), "the operand is the same on every shard of 'dp'"),
    ],
)
def test_a_gathered_value_is_not_an_addend(use: Any, line: str, mesh: Mesh) -> None:
    with pytest.raises(VaryingError, match=line):
        trace(lambda x: use(all_gather(x, GATHER)), mesh)


LEFT: dict[str, Callable[[Any], Any]] = {
    "a contraction": lambda x: einsum(x, jnp.ones((3, 4)), "[b/dp] [d/tp], c [d/tp] -> [b/dp] c ~tp"),
    "a sum": lambda x: reduce(x, "[b/dp] [d/tp] -> [b/dp] 1 ~tp", "sum"),
    "a lookup": lambda x: take(x.T, jnp.arange(4), "[d/tp] [b/dp], c -> [b/dp] c ~tp"),
}


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_an_addend_is_not_read_as_a_sum_though_jax_would_refuse_a_loop_first(make: Any, mesh: Mesh) -> None:
    def step(carry: Any, _: Any) -> Any:
        return rearrange(make(carry), "[b/dp] c -> c [b/dp]"), None  # varies over another axis than the carry

    with fails(VaryingError, "rearrange in body: the operand varies over 'tp', which the pattern does not mention"):
        trace(lambda x: jax.lax.scan(step, x, None, length=2), mesh)


def test_a_sum_of_equal_shards_that_is_left_is_found_out_to_be_equal(mesh: Mesh) -> None:
    def use(_: Any) -> None:
        rearrange(reduce(jnp.ones((4, 3)), "[d/tp] f -> f ~tp", "sum"), "f -> f 1")

    trace(use, mesh)


SCALARS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a mean": (
        "reduce in body: the operand",
        lambda x: reduce(jax.nn.logsumexp(x, 1), "[b/dp] ->", "mean"),
        "the logsumexp at {} covers only each shard's part of d (sharded over 'tp'): gather it first",
    ),
    "a contraction": (
        "einsum in body: operand 2",
        lambda x: einsum(jnp.ones(2), x[:, 0], "[b/dp], [b/dp] ->"),
        "the slice at {} covers only each shard's part of d (sharded over 'tp'): gather it first",
    ),
    "a partial sum": (
        "psum in body: the operand",
        lambda x: psum(x.sum(), "~dp ->"),
        "the sum over d (sharded over 'tp') at {} leaves partial sums: psum over 'tp' of x.sum(), "
        "or write '+tp' if its sum is taken later",
    ),
}


@pytest.mark.parametrize(("who", "use", "cure"), SCALARS.values(), ids=SCALARS)
def test_of_a_scalar_that_is_typed_as_varying_it_is_said_since_when(who: str, use: Any, cure: str, mesh: Mesh) -> None:
    with pytest.raises(VaryingError) as caught:
        trace(use, mesh)
    line, *_, hint = str(caught.value).splitlines()
    assert line == f"{who} varies over 'tp', which the pattern does not mention"
    assert hint == f"Hint: {cure.format(f'test_memory.py:{use.__code__.co_firstlineno}')}"


# Where a value is differentiated, closed over, or put through a helper


def gathered(w: Any) -> Any:
    return all_gather(w, "[m/tp,dp] f -> m f").sum()


TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "grad": jax.grad(gathered),
    "value_and_grad": jax.value_and_grad(gathered),
    "grad of grad": jax.grad(lambda w: jax.grad(lambda v: gathered(w) * v)(1.0)),
    "jvp": lambda w: jax.jvp(gathered, (w,), (w,)),
    "vjp": lambda w: jax.vjp(gathered, w),
    "linearize": lambda w: jax.linearize(gathered, w),
    "checkpoint": lambda w: jax.checkpoint(lambda: gathered(w))(),
    "grad with a checkpoint": jax.grad(lambda w: jax.checkpoint(lambda: gathered(w))()),
    "scan": lambda w: jax.lax.scan(lambda c, _: (c, gathered(w)), 0, None, length=2),
    "cond": lambda w: jax.lax.cond(True, lambda: gathered(w), lambda: gathered(w)),
    "a nested helper": lambda w: typed(lambda v: gathered(v))(w),
    "a helper in a gradient": jax.grad(typed(gathered)),
}


@in_both_modes
@pytest.mark.parametrize("use", TRANSFORMED.values(), ids=TRANSFORMED)
def test_a_layout_is_remembered_through(use: Any, check_vma: bool, mesh: Mesh) -> None:
    with pytest.raises(ShardingError, match="is read as sharded over 'tp', 'dp' in dim 0, but body's hint of argument"):
        trace(use, mesh, W, check_vma=check_vma)


def test_a_layout_is_remembered_without_jit(mesh: Mesh) -> None:
    def body(w: W) -> None:
        gathered(w)

    with pytest.raises(ShardingError, match="is read as sharded over 'tp', 'dp' in dim 0"):
        typed_shard_map(body, mesh=mesh)(x)


# Right programs


def turned_row(row: Any) -> Any:
    return rearrange(row, "f ~dp ~tp -> f 1 ~dp ~tp")


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "one layout through several operations": lambda w: rearrange(
        repeat(rearrange(w, "[m/dp,tp] f -> f [m/dp,tp]"), "f [m/dp,tp] -> 2 f [m/dp,tp]"),
        "n f [m/dp,tp] -> [m/dp,tp] (n f)",
    ),
    "a value and what was made of it": lambda w: (
        rearrange(w, "[m/dp,tp] f -> f [m/dp,tp]"),
        all_gather(w, "[m/dp,tp] f -> m f"),
        all_gather(w, "[m/dp,tp] f -> [m/dp] f ~tp"),
    ),
    "a dim merged and split": lambda w: rearrange(
        rearrange(w, "[(m k)/dp,tp] f -> [m/dp,tp] (k f)", k=1), "[m/dp,tp] (k f) -> [(m k)/dp,tp] f", k=2
    ),
    "transposed by jnp": lambda w: rearrange(w.T, "f [m/dp,tp] -> [m/dp,tp] f"),
    "reshaped by jnp": lambda w: rearrange(jnp.reshape(w, (8, 1)), "f [m/dp,tp] -> [m/dp,tp] f"),
    "sliced": lambda w: rearrange(w[:, :2], "[m/dp,tp] f -> f [m/dp,tp]"),
    "vmap": lambda w: jax.vmap(turned_row)(w),
    "vmap of the other dim": lambda w: jax.vmap(lambda c: all_gather(c, "[m/dp,tp] -> m"), in_axes=1)(w),
    "scan over the shard's rows": lambda w: jax.lax.scan(lambda c, row: (c, turned_row(row)), 0, w),
    "scan with the value as carry": lambda w: jax.lax.scan(
        lambda c, _: (rearrange(c, "[m/dp,tp] f -> [m/dp,tp] f"), None), w, None, length=2
    ),
    "summed later": lambda w: psum(
        rearrange(reduce(w, "[m/dp,tp] f -> f ~dp ~tp", "sum") / 2, "f ~dp ~tp -> 1 f ~dp ~tp"), "n f ~dp ~tp -> n f"
    ),
    "left varying and read as addends": lambda w: psum(reduce(w, "[m/dp,tp] f -> f ~dp ~tp", "sum"), "f +dp +tp -> f"),
    "a helper": lambda w: rearrange(doubled(w), "[m/dp,tp] f -> f [m/dp,tp]"),
    "a gradient": jax.grad(lambda w: reduce(doubled(w), "[m/dp,tp] f -> ", "sum")),
    "a checkpoint in a gradient": jax.grad(jax.checkpoint(lambda w: reduce(doubled(w), "[m/dp,tp] f -> ", "sum"))),
    "a value that jnp gives back as it is": lambda w: rearrange(jnp.asarray(w), "[m/dp,tp] f -> f [m/dp,tp]"),
    "vmap with an axis name": lambda w: jax.vmap(turned_row, axis_name="row")(w),
}


@in_both_modes
@pytest.mark.parametrize("use", PROGRAMS.values(), ids=PROGRAMS)
def test_a_right_program_is_accepted_and_nothing_of_it_is_kept(use: Any, check_vma: bool, mesh: Mesh) -> None:
    before = set(context._known)
    trace(use, mesh, W, check_vma=check_vma)
    gc.collect()
    assert not set(context._known) - before


@pytest.mark.parametrize("is_jitted", [True, False], ids=["jit", "without jit"])
def test_one_array_may_be_given_in_two_layouts(is_jitted: bool, mesh: Mesh) -> None:
    def body(a: Float[Array, "[m/dp] f"], b: Float[Array, "m [f/dp]"]) -> Float[Array, "m f"]:
        return all_gather(a, "[m/dp] f -> m f") + all_gather(b, "m [f/dp] -> m f")

    call = typed_shard_map(body, mesh=mesh)
    array = jnp.asarray(x)
    np.testing.assert_allclose(jax.block_until_ready((jax.jit(call) if is_jitted else call)(array, array)), 2 * x)


def test_a_constant_is_shared_by_two_functions(mesh: Mesh) -> None:
    constant = jnp.arange(8.0)

    def rows(x: XY) -> XY:
        return x + rearrange(check(constant[:2], "[b/dp]"), "[b/dp] -> [b/dp] 1")

    def columns(x: XY) -> XY:
        return x + rearrange(check(constant[:4], "[d/tp]"), "[d/tp] -> 1 [d/tp]")

    for body in (rows, columns, rows):
        jax.eval_shape(typed_shard_map(body, mesh=mesh), x)


def test_a_traced_constant_is_shared_by_two_functions(mesh: Mesh) -> None:
    def both(x: Any, scale: Any) -> Any:
        def rows(x: XY) -> XY:
            return x + rearrange(scale, "b d -> d b")[0, 0]

        def columns(x: Float[Array, "[b/tp] [d/dp]"]) -> Float[Array, "[b/tp] [d/dp]"]:
            return x + rearrange(check(scale, "b d"), "d b -> b d")[0, 0]

        return typed_shard_map(columns, mesh=mesh)(typed_shard_map(rows, mesh=mesh)(x))

    np.testing.assert_allclose(jax.block_until_ready(jax.jit(both)(x, x)), x + 2 * x[0, 0], rtol=1e-5)


def test_a_value_is_read_in_a_nested_region_as_it_is_sharded_there(mesh: Mesh) -> None:
    def as_it_is(x: Any) -> Any:
        return rearrange(x, "[b/dp] [d/tp] -> [b/dp] [d/tp]")

    def outer(x: XY) -> XY:
        spec = P(None, "tp")
        return jax.shard_map(as_it_is, in_specs=spec, out_specs=spec, axis_names={"tp"})(as_it_is(x))

    jax.eval_shape(typed_shard_map(outer, mesh=mesh, axis_names={"dp"}), x)


def test_a_hint_says_nothing_of_the_axes_of_the_regions_around(mesh: Mesh) -> None:
    def inner(x: Float[Array, "rows [d/tp]"]) -> Float[Array, "[d/tp] rows"]:
        return rearrange(x, TURNED)

    def outer(x: XY) -> Float[Array, "[d/tp] [b/dp]"]:
        return typed_shard_map(inner, mesh=mesh, axis_names={"tp"})(x)

    jax.eval_shape(typed_shard_map(outer, mesh=mesh, axis_names={"dp"}), x)


def test_a_helper_that_says_less_of_a_gathered_value_leaves_it_known_to_be_equal(mesh: Mesh) -> None:
    @typed
    def total(g: Float[Array, "m f ~dp"]) -> Float[Array, "~dp"]:
        return jnp.sum(g)

    def both(w: Float[Array, "[m/dp] f"], x: Float[Array, "[b/dp] m"]) -> Float[Array, "[b/dp] f"]:
        g = all_gather(w, "[m/dp] f -> m f ~dp")
        total(g)
        return einsum(x, g, "[b/dp] m, m f -> [b/dp] f")

    jax.eval_shape(typed_shard_map(both, mesh=mesh), x, x)


# What is kept


def test_an_error_that_is_kept_keeps_nothing_known(mesh: Mesh) -> None:
    before = set(context._known)
    with pytest.raises(ShardingError) as caught:
        trace(gathered, mesh, W)
    error = caught.value.with_traceback(None)  # kept
    del caught
    gc.collect()
    assert error and not set(context._known) - before
