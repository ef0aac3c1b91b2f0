"""Outside of a mesh and without brackets the operations are einops: its results, its types, its refusals."""

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import einops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import typedshmap
from typedshmap import PatternError, TypedShmapError, einsum, rearrange, reduce

REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray(np.random.default_rng(len(shape)).normal(scale=3, size=shape), dtype)


def stacked(kind: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Any]:
    """A list of arrays in place of an array with one dim more."""
    return lambda x: [kind(row) for row in x]


ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "NumPy": np.asarray,
    "JAX": jnp.asarray,
    "list of NumPy": stacked(np.asarray),
    "list of JAX": stacked(jnp.asarray),
}
on_every_array = pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)


def same(got: Any, expected: Any) -> None:
    """Expect an array of the same type, dtype and shape, with the same numbers."""
    assert type(got) is type(expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got, expected)


# What einops accepts

# Patterns in every spelling, of arrays of every kind; the laws below draw other ones of NumPy's.
ACCEPTED: list[tuple[str, str, tuple[tuple[int, ...], ...], dict[str, int]]] = [
    ("rearrange", "...->...", ((2, 3, 4),), {}),
    ("rearrange", "a b ... -> a b (...)", ((2, 3),), {}),
    ("rearrange", "b (h h2) (w w2) c -> (h2 w2 b) h w c", ((2, 4, 6, 3),), {"h2": 2, "w2": 3}),
    ("rearrange", "a b c->c b a", ((2, 3, 4),), {"a": 2, "b": 3, "c": 4}),
    ("rearrange", "(1 a) b -> a () (b 1 1)", ((2, 3),), {}),
    ("rearrange", "a(b)c -> (a)b c", ((2, 3, 4),), {}),
    ("rearrange", "  a   b  ->  b   a  ", ((2, 3),), {}),
    ("rearrange", "batch_size head2 Größe -> Größe batch_size head2", ((2, 3, 4),), {}),
    ("rearrange", "n (a b) -> n a b", ((2, 0),), {"a": 0, "b": 2}),
    ("rearrange", "->", ((),), {}),
    ("rearrange", "-> () 1", ((),), {}),
    ("rearrange", "... -> 1 ...", ((),), {}),
    ("rearrange", "a b -> b a", ((0, 0),), {}),
    ("reduce", "b c (h 2) (w 3) -> b c h w", ((2, 3, 4, 6),), {}),
    ("reduce", "2 3 4 ->", ((2, 3, 4),), {}),
    ("reduce", "... -> 1 1", ((2, 3, 4),), {}),
    ("reduce", "a ... c -> c (...)", ((2, 3, 4, 5),), {}),
    ("repeat", "h w -> (h h2) (w w2)", ((2, 3),), {"h2": 2, "w2": 3}),
    ("repeat", "(h 1) w -> h (w 1 2)", ((2, 3),), {}),
    ("repeat", "a b -> 02 a b 01", ((2, 3),), {}),
    ("repeat", "h w -> h w c", ((2, 3),), {"c": 0}),
    ("einsum", "->", ((),), {}),
    ("einsum", ",->", ((), ()), {}),
    ("einsum", "i i ->", ((3, 3),), {}),
    ("einsum", "a b,b c,c d,d e->a e", ((2, 3), (3, 4), (4, 5), (5, 2)), {}),
    ("einsum", "... i, ... i -> ... i", ((2, 1, 4), (3, 4)), {}),
    ("einsum", "batch_in Größe, Größe out2 -> out2 batch_in", ((2, 3), (3, 4)), {}),
    ("einsum", "a b, a b -> a b", ((2, 3), (1, 3)), {}),
    ("einsum", "a _ -> a", ((2, 3),), {}),
]


ROWS = [
    pytest.param(*row, array, id=f"{row[0]} {row[1]}, {name}")
    for row in ACCEPTED
    for name, array in ARRAYS.items()
    if not name.startswith("list") or (row[0] != "einsum" and row[2][0][:1] > (0,))
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("verb", "pattern", "shapes", "sizes", "array"), ROWS)
def test_what_einops_accepts_has_its_result(verb: str, pattern: str, shapes: Any, sizes: Any, array: Any) -> None:
    values = [array(numbers(*shape)) for shape in shapes]
    for how in REDUCTIONS if verb == "reduce" else [None]:
        args = (*values, pattern) if how is None else (*values, pattern, how)
        same(getattr(typedshmap, verb)(*args, **sizes), getattr(einops, verb)(*args, **sizes))


def xla_compiles_float16() -> bool:
    """XLA converts float16 by an instruction (F16C), and has nothing in its place on a CPU that lacks it."""
    try:
        jnp.ones(2, np.float16).sum().block_until_ready()
    except jax.errors.JaxRuntimeError:
        return False
    return True


@pytest.mark.sample(5)
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_, np.complex64, np.float16, jnp.bfloat16])
@pytest.mark.parametrize("reduction", ["sum", "prod", "any", "all", "max", "min"])
def test_a_reduction_keeps_dtypes_as_einops_does(reduction: str, dtype: Any, array: Any) -> None:
    if dtype is np.float16 and array is jnp.asarray and not xla_compiles_float16():
        pytest.skip("XLA cannot compile float16 for this CPU")
    x = array((numbers(2, 3, 4) > 0).astype(dtype))
    same(reduce(x, "a b c -> c a", reduction), einops.reduce(x, "a b c -> c a", reduction))


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("dtype", [np.int32, np.bool_])
def test_no_mean_is_taken_of_integers(dtype: Any, array: Any) -> None:
    with pytest.raises(NotImplementedError, match="reduce_mean is not available for non-floating tensors"):
        reduce(array(np.ones((2, 3), dtype)), "a b -> a", "mean")


def largest_less_smallest(x: Any, dims: tuple[int, ...]) -> Any:
    return x.max(dims) - x.min(dims)


@on_every_array
@pytest.mark.parametrize("reduction", [np.mean, jnp.var, largest_less_smallest], ids=["mean", "var", "ours"])
def test_a_function_reduces(reduction: Any, array: Any) -> None:
    x = array(numbers(2, 4, 6))
    got = reduce(x, "a (b b2) c -> c b", reduction, b2=2)
    same(got, einops.reduce(x, "a (b b2) c -> c b", reduction, b2=2))


def test_a_function_is_not_called_where_nothing_is_reduced() -> None:
    def never(x: Any, dims: tuple[int, ...]) -> Any:
        raise AssertionError

    same(reduce(numbers(2, 3), "a b -> b a", never), numbers(2, 3).T)


def test_a_number_is_multiplied_by_einsum() -> None:
    x = numbers(2, 3)
    same(einsum(x, 2.0, "a b, -> b a"), einops.einsum(x, 2.0, "a b, -> b a"))


@pytest.mark.parametrize("order", [1, -1])
def test_a_product_of_numpy_and_jax_arrays_is_a_jax_array(order: int) -> None:
    values = [numbers(2, 3), jnp.asarray(numbers(2, 3))][::order]
    assert isinstance(einsum(*values, "a b, a b -> a"), jax.Array)


TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "jit": lambda module, x: jax.jit(lambda x: module.rearrange(x, "(a b) c -> c b a", a=2))(x),
    "jit of einsum": lambda module, x: jax.jit(lambda x: module.einsum(x, x, "a b, c b -> c a"))(x),
    "jit of repeat": lambda module, x: jax.jit(lambda x: module.repeat(x, "a b -> (2 b) a"))(x),
    **{
        f"jit of {how}": lambda module, x, how=how: jax.jit(lambda x: module.reduce(x, "(a 2) b -> b a", how))(x)
        for how in REDUCTIONS
    },
    "grad": lambda module, x: jax.grad(lambda x: (module.reduce(x, "a (b c) -> b a", "sum", c=2) ** 2).sum())(x),
    "vmap": lambda module, x: jax.vmap(lambda row: module.rearrange(row, "(a b) -> b a", a=2))(x),
    "vmap of einsum": lambda module, x: jax.vmap(lambda row: module.einsum(row, x, "b, a b -> a"))(x),
    "jvp": lambda module, x: jax.jvp(lambda x: module.repeat(x, "a b -> (a 2) b"), (x,), (x,))[1],
    "scan": lambda module, x: jax.lax.scan(lambda c, row: (c, module.repeat(row, "b -> b 2")), 0, x)[1],
}


@pytest.mark.parametrize("transformed", TRANSFORMS.values(), ids=TRANSFORMS)
def test_the_operations_are_those_of_einops_under_transformations(transformed: Any) -> None:
    x = jnp.asarray(numbers(4, 6))
    same(transformed(typedshmap, x), transformed(einops, x))


# What einops refuses

REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str, str | None]] = [
    # A pattern that cannot be read.
    ("rearrange", ("a b c",), {}, "the pattern has no '->'", None),
    ("rearrange", ("",), {}, "the pattern has no '->'", None),
    ("rearrange", ("a b c -> a -> b",), {}, "the pattern has two arrows", "->"),
    ("rearrange", ("a b c -> (a b c",), {}, "'(' is never closed", "("),
    ("rearrange", ("a b c -> a b) c",), {}, "')' closes nothing", ")"),
    ("rearrange", ("a b c -> ((a b) c)",), {}, "the pattern has parentheses inside parentheses", "("),
    ("rearrange", ("a b c -> a b c.",), {}, "the pattern has an unexpected '.'", "."),
    ("rearrange", ("a .. c -> a c",), {}, "the pattern has an unexpected '.'", "."),
    ("rearrange", ("a b c -> a b $",), {}, "unexpected character '$'", "$"),
    ("rearrange", ("_a b c -> b c _a",), {}, "the pattern has '_a'; a name neither starts nor ends with an underscore",
     "_a"),
    ("rearrange", ("a b_ c -> b_ c a",), {}, "the pattern has 'b_'; a name neither starts nor ends with an underscore",
     "b_"),
    ("rearrange", ("_ b c -> b c",), {}, "the pattern has '_'; a name neither starts nor ends with an underscore", "_"),
    ("rearrange", ("2a b c -> b c 2a",), {}, "the pattern has '2a', which is not a name", "2a"),
    ("rearrange", ("² b c -> b c ²",), {}, "the pattern has '²', which is not a name", "²"),
    ("rearrange", ("a b ...c -> a b c ...",), {}, "the pattern has '...' without a space beside it", "..."),
    ("rearrange", ("a b... -> a ... b",), {}, "the pattern has '...' without a space beside it", "..."),
    # Names and numbers that do not fit together.
    ("rearrange", ("a a c -> a c",), {}, "the pattern has 'a' twice on one side", "a"),
    ("repeat", ("a b c -> a b c b",), {}, "the pattern has 'b' twice on one side", "b"),
    ("rearrange", ("a b c -> a b",), {}, "the pattern has 'c' only on the left", "c"),
    ("rearrange", ("a b c -> a b c d",), {}, "the pattern has 'd' only on the right", "d"),
    ("reduce", ("a b c -> a d", "sum"), {}, "the pattern has 'd' only on the right", "d"),
    ("repeat", ("a b c -> a b 2",), {}, "the pattern has 'c' only on the left", "c"),
    ("repeat", ("a b c -> a b c d",), {}, "the size of 'd' is not known", "d"),
    ("rearrange", ("a 3 c -> a 3 c",), {}, "the pattern has the number 3 on the left", "3"),
    ("repeat", ("a 3 c -> a 3 c",), {}, "the pattern has the number 3 on the left", "3"),
    ("rearrange", ("a b c -> a b c 2",), {}, "the pattern has the number 2 on the right", "2"),
    ("reduce", ("a b c -> a 2", "sum"), {}, "the pattern has the number 2 on the right", "2"),
    ("repeat", ("a b c -> a b c 0",), {}, None, None),
    ("reduce", ("a b 0 -> a b", "sum"), {}, "the operand has size 4 in dim 2, but the pattern says 0", "0"),
    # Dots.
    ("rearrange", ("a b c ... ... -> a b c",), {}, "the pattern has '...' twice for one array", "..."),
    ("rearrange", ("(...) c -> c ...",), {}, "the pattern has '...' in parentheses on the left", "..."),
    ("rearrange", ("a b c -> a b c ...",), {}, "the pattern has '...' only on the right", "..."),
    ("reduce", ("a b c -> (a ...)", "max"), {}, "the pattern has '...' only on the right", "..."),
    ("rearrange", ("a ... -> a",), {}, "the pattern has '...' only on the left", "..."),
    ("repeat", ("a ... -> a 2",), {}, "the pattern has '...' only on the left", "..."),
    # Sizes.
    ("rearrange", ("a b -> b a",), {}, "the operand has 3 dims, but the pattern has 2", "a b"),
    ("rearrange", ("a b c d ... -> a b c d ...",), {}, "the operand has 3 dims, but the pattern has at least 4",
     "a b c d ..."),
    ("rearrange", ("() b c -> b c",), {}, "the operand has ()=2, which is not the product of 1", "()"),
    ("rearrange", ("1 b c -> b c",), {}, "the operand has size 2 in dim 0, but the pattern says 1", "1"),
    ("reduce", ("a b 5 -> a b", "sum"), {}, "the operand has size 4 in dim 2, but the pattern says 5", "5"),
    ("rearrange", ("a b (c d) -> a b c d",), {}, "the sizes of 'c' and 'd' in '(c d)' are not known", "(c d)"),
    ("rearrange", ("a b (c d) -> a b c d",), {"d": 3}, "the operand has (c d)=4, which does not divide by d=3",
     "(c d)"),
    ("rearrange", ("a b (c d) -> a b c d",), {"c": 3, "d": 2},
     "the operand has (c d)=4, which is not the product of c=3 d=2", "(c d)"),
    ("rearrange", ("a b c -> c b a",), {"a": 3}, "the operand has a=2, but a=3 was passed", "a"),
    ("rearrange", ("a b c -> c b a",), {"d": 3}, "'d' is passed as a size, but the pattern does not name it", None),
    ("repeat", ("a b c -> a b c d",), {"d": 2, "e": 3}, "'e' is passed as a size, but the pattern does not name it",
     None),
    ("rearrange", ("a b c -> c b a",), {"a b": 3}, "'a b' is passed as a size, but the pattern does not name it", None),
    ("rearrange", ("a b (c d) -> a b c d",), {"d": "2"}, "the size of 'd' is '2', which is not an integer", "d"),
    ("repeat", ("a b c -> a b c d",), {"d": 2.5}, "the size of 'd' is 2.5, which is not an integer", "d"),
    ("repeat", ("a b c -> a b c d",), {"d": -1}, "the size of 'd' is -1, which is negative", "d"),
    # Reductions.
    ("reduce", ("a b c -> a", "median"), {}, "the reduction 'median' is not known", None),
    ("reduce", ("a b c -> a", None), {}, "the reduction None is not known", None),
    ("reduce", ("a b c -> a b c", None), {}, "the reduction None is not known", None),
    ("reduce", ("a b c -> a", 3), {}, "the reduction 3 is not known", None),
]  # fmt: skip


def outcome(module: Any, verb: str, *args: Any, **sizes: Any) -> Any:
    """What a call gives or raises; warnings of keywords as names are einops' own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return getattr(module, verb)(*args, **sizes)
        except Exception as error:
            return error


def pointed_at(error: Exception) -> str | None:
    """The text over the carets of a message; None without carets."""
    lines = str(error).splitlines()
    for above, line in pairwise(lines):
        if line.strip() and not line.strip("^ "):
            return above[line.index("^") : line.rindex("^") + 1]
    return None


REFUSED_PRODUCTS: list[tuple[str, tuple[tuple[int, ...], ...], str, str | None]] = [
    ("a b", ((2, 3),), "the pattern has no '->'", None),
    ("a b -> a -> b", ((2, 3),), "the pattern has two arrows", "->"),
    ("a b -> a, b", ((2, 3),), "the pattern has a comma in its result", "b"),
    ("a b, b c -> a c", ((2, 3),), "the pattern has 2 operands, but 1 array was given", None),
    ("a b -> a", ((2, 3), (2, 3)), "the pattern has 1 operand, but 2 arrays were given", None),
    ("a b -> a", ((2,),), "the operand has 1 dim, but the pattern has 2", "a b"),
    ("a b, b c -> a c", ((2, 3), (4, 5)), "operand 2 has b=4, but operand 1 has b=3", "b"),
    ("i i -> i", ((2, 3),), "the operand has i=3 in dim 1, but i=2 in dim 0", "i"),
    ("a b -> a c", ((2, 3),), "the pattern has 'c' only on the right", "c"),
    ("a b -> a a", ((2, 3),), "the pattern has 'a' twice in its result", "a"),
    ("a (b c) -> a", ((2, 6),), "einsum accepts names only, not '(b c)'", "(b c)"),
    ("a 3 -> a", ((2, 3),), "einsum accepts names only, not '3'", "3"),
    ("a 1 -> a", ((2, 1),), "einsum accepts names only, not '1'", "1"),
    ("a b -> a ()", ((2, 3),), "einsum accepts names only, not '()'", "()"),
    ("a ... ... -> a", ((2, 3),), "the pattern has '...' twice for one array", "..."),
    ("a b_ -> a", ((2, 3),), "the pattern has 'b_'; a name neither starts nor ends with an underscore", "b_"),
    ("a ...b -> a", ((2, 3),), "the pattern has '...' without a space beside it", "..."),
]
REFUSED_CALLS = [(verb, ((2, 3, 4),), *row) for verb, *row in REFUSED]
REFUSED_CALLS += [("einsum", shapes, (source,), {}, *said) for source, shapes, *said in REFUSED_PRODUCTS]


@pytest.mark.parametrize(("verb", "shapes", "options", "sizes", "problem", "place"), REFUSED_CALLS)
def test_what_einops_refuses_is_refused_in_place(
    verb: str, shapes: Any, options: tuple[Any, ...], sizes: dict[str, Any], problem: str | None, place: str | None
) -> None:
    values = [numbers(*shape) for shape in shapes]
    theirs, ours = (outcome(module, verb, *values, *options, **sizes) for module in (einops, typedshmap))
    assert isinstance(theirs, Exception)
    assert isinstance(ours, PatternError)
    assert f'pattern: "{options[0]}"\n' in f"{ours}\n"
    if problem is not None:
        assert str(ours).splitlines()[0] == f"{verb}: {problem}"
    if place is not None:
        assert pointed_at(ours) == place


def test_a_pattern_error_is_caught_as_that_of_einops() -> None:
    with pytest.raises(einops.EinopsError):
        rearrange(numbers(2, 3), "a b -> a c")


@pytest.mark.parametrize("verb", ["rearrange", "repeat"])
def test_an_empty_list_is_refused_as_einops_refuses_it(verb: str) -> None:
    with pytest.raises(TypeError, match="empty list"):
        getattr(typedshmap, verb)([], "a b -> b a")


@pytest.mark.parametrize("value", [3.0, None, "text", (1, 2)])
def test_what_is_no_array_is_refused(value: Any) -> None:
    with pytest.raises(TypedShmapError, match="but the pattern says an array"):
        rearrange(value, "a -> a")


# Whatever einops does


WORDS = ("a", "b", "c", "d", "e")
NOISE = (
    *WORDS,
    *["...", "(", ")", "()", "1", "2", "0", "->", ",", "_", "b_", "_b", "2a", ".", "$", "é", "3"],
    "( a",
    "b )",
)


@st.composite
def sides(draw: st.DrawFn, factors: list[str]) -> list[list[str]]:
    """Dims, each a list of factors: neighbours may be merged, dims of size 1 may stand between them."""
    dims: list[list[str]] = []
    for factor in factors:
        merge = bool(dims) and factor != "..." and dims[-1] != ["..."] and draw(st.integers(0, 2)) == 0
        dims = [*dims[:-1], [*dims[-1], factor]] if merge else [*dims, [factor]]
        if draw(st.integers(0, 7)) == 0:
            dims.append(draw(st.sampled_from([[], ["1"]])))
    return dims


def text_of(dims: list[list[str]], dots_in_group: bool = False) -> str:
    return " ".join(
        f"({' '.join(dim)})" if len(dim) != 1 or (dots_in_group and dim == ["..."]) else dim[0] for dim in dims
    )


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, tuple[int, ...], list[str], tuple[Any, ...], dict[str, int]]:
    """A call that einops accepts but for rare cases: verb, shape, words of the pattern, options, sizes."""
    verb = draw(st.sampled_from(["rearrange", "reduce", "repeat"]))
    extents = {name: draw(st.sampled_from([2, 3, 1, 4, 0])) for name in draw(st.sets(st.sampled_from(WORDS)))}
    dots = draw(st.none() | st.lists(st.sampled_from([2, 1, 3]), max_size=2))
    factors = [*extents, *([] if dots is None else ["..."])]
    anonymous = draw(st.lists(st.sampled_from(["2", "3"]), max_size=2)) if verb == "reduce" else []
    left = draw(sides(draw(st.permutations([*factors, *anonymous]))))
    kept = factors
    if verb == "reduce":
        kept = [f for f in factors if draw(st.booleans())]
    if verb == "repeat":
        added = {f"n{i}": draw(st.integers(0, 3)) for i in range(draw(st.integers(0, 2)))}
        extents |= added
        kept = [*factors, *added, *draw(st.lists(st.sampled_from(["2", "3"]), max_size=1))]
    right = draw(sides(draw(st.permutations(kept))))
    shape: list[int] = []
    lengths = {name: extents[name] for name in extents if name.startswith("n") or draw(st.integers(0, 5)) == 0}
    for dim in left:
        if dim == ["..."]:
            shape += dots or []
            continue
        named = [f for f in dim if f in extents]
        lengths |= {f: extents[f] for f in named[1:]}
        shape.append(int(np.prod([extents[f] if f in extents else int(f) for f in dim])))
    source = f"{text_of(left)} -> {text_of(right, draw(st.booleans()))}"
    options = (draw(st.sampled_from(REDUCTIONS)),) if verb == "reduce" else ()
    return verb, tuple(shape), source.split(" "), options, lengths


@st.composite
def broken(draw: st.DrawFn) -> Any:
    """A call with something changed: a word of the pattern, a size, or the shape."""
    verb, shape, words, options, lengths = draw(calls())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(words)))
        words = [
            *words[:at],
            *draw(st.sampled_from([(), *((w,) for w in NOISE)])),
            *words[at + draw(st.integers(0, 1)) :],
        ]
    if draw(st.booleans()) and lengths:
        name = draw(st.sampled_from(sorted(lengths)))
        lengths = {n: s for n, s in lengths.items() if n != name} | draw(st.sampled_from([{}, {name: 5}, {"z": 2}]))
    if draw(st.integers(0, 4)) == 0:
        shape = (*shape, 2)
    return verb, shape, words, options, lengths


def agree(theirs: Any, ours: Any, pattern: str) -> None:
    """Expect what einops gives, or a `PatternError` for what it refuses."""
    if not isinstance(theirs, Exception):
        assert not isinstance(ours, Exception), f"{pattern}: {ours}"
        assert (type(ours), ours.dtype, ours.shape) == (type(theirs), theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    elif type(theirs) is not type(ours) or isinstance(theirs, einops.EinopsError):
        assert isinstance(ours, PatternError), f"{pattern}: {theirs!r}, but {ours!r}"
        assert f'"{pattern}"' in str(ours)
        what: Any = ours.failures[0].what
        assert (pointed_at(ours) is None) == (what.span is None or what.span[0] == what.span[1])


many_examples = settings(
    max_examples=8 * settings.default.max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@many_examples
@given(calls() | broken())
def test_whatever_einops_does_is_done(call: Any) -> None:
    verb, shape, words, options, lengths = call
    x, pattern = numbers(*shape), " ".join(words)
    theirs, ours = (outcome(module, verb, x, pattern, *options, **lengths) for module in (einops, typedshmap))
    agree(theirs, ours, pattern)


@st.composite
def products(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[str]]:
    """Shapes and the words of an einsum's pattern, some of them wrong."""
    extents = {name: draw(st.integers(2, 4)) for name in WORDS[: draw(st.integers(1, 5))]}
    dots = draw(st.none() | st.lists(st.integers(2, 3), max_size=2))
    shapes: list[tuple[int, ...]] = []
    words: list[str] = []
    used: list[str] = []
    for at in range(draw(st.integers(1, 3))):
        names = draw(st.lists(st.sampled_from(sorted(extents)), max_size=3))
        place = draw(st.integers(0, len(names))) if dots is not None and draw(st.booleans()) else None
        shape = [extents[name] for name in names]
        if place is not None and dots is not None:
            shape[place:place], names = dots, [*names[:place], "...", *names[place:]]
        shapes.append(tuple(shape))
        words += [*([","] if at else []), *names]
        used += [name for name in names if name not in used]
    result = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    result += ["..."] if "..." in used and "..." not in result else []
    words += ["->", *result]
    if draw(st.booleans()):
        at = draw(st.integers(0, len(words)))
        words = [*words[:at], draw(st.sampled_from(NOISE)), *words[at + draw(st.integers(0, 1)) :]]
    return shapes, words


@many_examples
@given(products())
def test_einsum_does_what_that_of_einops_does(call: Any) -> None:
    shapes, words = call
    values, pattern = [numbers(*shape) for shape in shapes], " ".join(words)
    theirs, ours = (outcome(module, "einsum", *values, pattern) for module in (einops, typedshmap))
    agree(theirs, ours, pattern)
