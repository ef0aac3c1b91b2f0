"""What is not a pattern, an array, a shape or an axis is reported in our words; empty and half-precision arrays fit."""

from collections.abc import Callable
from typing import Any

import einops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails
from jax.sharding import Mesh

from typedshmap import (
    Array,
    DtypeError,
    Float,
    MeshAxisError,
    PatternError,
    ShapeError,
    StructureError,
    TypedShmapError,
    all_gather,
    all_to_all,
    einsum,
    logsumexp,
    plan_reshard,
    pmax,
    pmin,
    ppermute,
    psum,
    psum_scatter,
    rearrange,
    reduce,
    repeat,
    reshard,
    softmax,
    take,
    typed_shard_map,
)

X = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
KEYS = jax.random.split(jax.random.key(0), 3)


def own_key() -> jax.Array:
    """In a region a key of each shard."""
    return jax.random.fold_in(jax.random.key(0), jax.lax.axis_index("dp"))


def refused(dtype: str) -> str:
    """What is said of an array of that dtype, with the words of JAX."""
    reason = f"Dtype {dtype} is not a valid JAX array type. Only arrays of numeric types are supported by JAX."
    return f"a NumPy array that JAX refuses ({reason})"


def inside(mesh: Mesh, body: Callable[[Any], Any], hint: Any, out: Any, array: np.ndarray) -> Any:
    return jax.block_until_ready(jax.jit(typed_shard_map(body, mesh=mesh, in_types=(hint,), out_types=out))(array))


@pytest.mark.parametrize(
    ("call", "error", "line"),
    [
        (lambda mesh: einsum(X), PatternError, "einsum: the pattern is of type NoneType, not a string"),
        (lambda mesh: einsum(), PatternError, "einsum: the pattern has no '->'"),
        (lambda mesh: rearrange("a b -> b a", X), PatternError,  # type: ignore[arg-type]
         "rearrange: the pattern is of type ndarray, not a string"),
        (lambda mesh: rearrange(None, "a b -> b a"), StructureError,
         "rearrange: the operand is None, but the pattern says an array"),
        (lambda mesh: reduce([], "[b/dp] s +tp -> [b/dp] s", np.sum), StructureError,
         "reduce: the operand is an empty list, but the pattern says an array"),
        (lambda mesh: repeat(X, "a b -> a b n", n=np.ones(3, int)), PatternError,  # type: ignore[arg-type]
         "repeat: the size of 'n' is array([1, 1, 1]), which is not an integer"),
        (lambda mesh: repeat(X, "a b -> a b n", n=True), PatternError,
         "repeat: the size of 'n' is True, which is not an integer"),
        (lambda mesh: repeat(X, "a b -> a b n", n=-(10**5000)), PatternError,
         "repeat: the size of 'n' is an int, which is negative"),
        (lambda mesh: logsumexp(np.array([[None]]), "... s -> ..."), StructureError,
         f"logsumexp: the operand is {refused('object')}, but the pattern says an array"),
        (lambda mesh: softmax(np.array(["a"]), "s", "s"), StructureError,
         f"softmax: the operand is {refused('<U1')}, but the pattern says an array"),
        (lambda mesh: einsum(np.array([None]), jnp.ones(1), "a, a -> a"), StructureError,
         f"einsum: operand 1 is {refused('object')}, but the pattern says an array"),
        (lambda mesh: logsumexp(KEYS, "a -> "), DtypeError,
         "logsumexp: the operand has dtype key<fry>, but logsumexp takes numbers"),
        (lambda mesh: softmax(KEYS, "a", "a"), DtypeError,
         "softmax: the operand has dtype key<fry>, but softmax takes numbers"),
        (lambda mesh: einsum(KEYS, "a -> "), DtypeError,
         "einsum: the operand has dtype key<fry>, but einsum takes numbers"),
        (lambda mesh: reduce(X, "a b -> a", 3), PatternError, "reduce: the reduction 3 is not known"),  # type: ignore[arg-type]
        (lambda mesh: softmax(X, "a b", "c"), PatternError, "softmax: 'c' is not a dim of the pattern"),
        (lambda mesh: softmax(X, "a b", 1), PatternError, "softmax: dims=1 names no dim"),  # type: ignore[arg-type]
        (lambda mesh: take(X, X, "v m, a b -> a b m"), DtypeError,
         "take: operand 2 has dtype float32, but ids are integers"),
        (lambda mesh: plan_reshard("[a/dp] -> a", 8, mesh), ShapeError,  # type: ignore[arg-type]
         "plan_reshard: shape=8 is not a tuple of sizes"),
        (lambda mesh: plan_reshard("[a/dp] -> a", (-8,), mesh), ShapeError,
         "plan_reshard: shape=(-8,) has -8, which is not a size"),
        (lambda mesh: plan_reshard("[a/dp] -> a", (8, 8), mesh), PatternError,
         "plan_reshard: the pattern has 1 dim, but the shape (8, 8) has 2"),
        (lambda mesh: plan_reshard("[a/dp] -> a", (8,), 8), MeshAxisError,  # type: ignore[arg-type]
         "mesh= expects a jax.sharding.Mesh or AbstractMesh, got 8 of type int"),
    ],
)  # fmt: skip
def test_bad_input_is_reported(
    mesh: Mesh, call: Callable[[Mesh], Any], error: type[TypedShmapError], line: str
) -> None:
    with fails(error, line):
        call(mesh)


@pytest.mark.parametrize(
    ("body", "error", "line"),
    [
        (lambda x: ppermute(x, "[b/dp] m", shift=1.5), PatternError, "ppermute in f: shift=1.5 is not an integer"),  # type: ignore[arg-type]
        (lambda x: ppermute(x, "[b/dp] m", shift=1, axis="zz"), MeshAxisError,
         "ppermute in f: the pattern names mesh axis 'zz', which is not among the mesh's axes 'dp', 'tp'"),
        (lambda x: psum({"a": x, "b": "text"}, "dp")["a"], StructureError,
         "psum in f: argument 'tree['b']' is 'text' (str), and not an array"),
        (lambda x: psum({1: x, "b": x}, "dp")["b"], StructureError,
         "psum in f: argument 'tree' is not a pytree: "
         "Comparator raised exception while sorting pytree dictionary keys."),
        (lambda x: pmin(np.zeros(8, [("a", "f4")]), "dp"), StructureError,
         "pmin in f: argument 'tree' is " + refused("[('a', '<f4')]")),
        (lambda x: all_gather(np.array(["a"]), "[a/dp] -> a"), StructureError,
         f"all_gather in f: the operand is {refused('<U1')}, but the pattern says an array"),
        (lambda x: psum({"a": x, "key": own_key()}, "dp")["a"], DtypeError,
         "psum in f: argument 'tree['key']' has dtype key<fry>, but psum takes numbers"),
        (lambda x: pmax(own_key(), "~dp -> "), DtypeError,
         "pmax in f: the operand has dtype key<fry>, but pmax takes numbers"),
        (lambda x: reduce(x[:, :6], "[b/dp] m -> [m/dp]", "sum"), ShapeError,
         "reduce in f: the result has m=6 on each shard, which cannot be scattered over 'dp' (4 shards)"),
        (lambda x: psum(x, ("dp", "dp")), PatternError, "psum in f: mesh axis 'dp' is named twice"),
        (lambda x: psum(x, ()), PatternError, "psum in f: no mesh axis is named"),
        (lambda x: psum(x, 10**5000), PatternError, "psum in f: an int is neither a pattern nor a mesh axis"),
    ],
)  # fmt: skip
def test_bad_input_in_a_region_is_reported(
    mesh: Mesh, body: Callable[[Any], Any], error: type[TypedShmapError], line: str
) -> None:
    def f(x: Float[Array, "[b/dp] m"]) -> Float[Array, "..."]:
        return body(x)

    with fails(error, line):
        jax.eval_shape(typed_shard_map(f, mesh=mesh), X)


@pytest.mark.parametrize(
    ("hint", "out", "body", "shape"),
    [
        ("[b/dp] s [m/tp]", "b s m", lambda x: all_gather(x, "[b/dp] s [m/tp] -> b s m"), (8, 0, 16)),
        ("b [s/dp] m", "b s m", lambda x: all_gather(x, "b [s/dp] m -> b s m"), (8, 0, 16)),
        ("b [s/dp] m", "b [s/tp] m", lambda x: reshard(x, "b [s/dp] m -> b [s/tp] m"), (8, 0, 16)),
        ("[b/dp] s [m/tp]", "[b/tp] s [m/dp]", lambda x: reshard(x, "[b/dp] s [m/tp] -> [b/tp] s [m/dp]"), (8, 0, 16)),
        ("[b/dp] s m", "[n/dp] m", lambda x: rearrange(x, "[b/dp] s m -> [(b s)/dp] m"), (0, 16)),
        ("[b/dp] s [m/tp]", "[b/dp] s", lambda x: logsumexp(x, "[b/dp] s [m/tp] -> [b/dp] s"), (8, 0)),
    ],
)
def test_empty_arrays_go_through(mesh: Mesh, hint: str, out: str, body: Any, shape: tuple[int, ...]) -> None:
    assert inside(mesh, body, Float[Array, hint], Float[Array, out], np.zeros((8, 0, 16), np.float32)).shape == shape


@pytest.mark.parametrize(
    ("hint", "pattern", "out", "plain"),
    [
        ("b m", "b m -> [(r b)/dp] m", "[_/dp] m", "b m -> (r b) m"),
        ("b m", "b m -> [(r b)/dp,tp] m", "[_/dp,tp] m", "b m -> (r b) m"),
        ("b [m/tp]", "b [m/tp] -> [(r b)/dp] [m/tp]", "[_/dp] [m/tp]", "b m -> (r b) m"),
        ("[b/dp] m", "[b/dp] m -> [(b r)/dp] m", "[_/dp] m", "b m -> (b r) m"),
        ("b m", "b m -> [r/dp] b m", "[_/dp] b m", "b m -> r b m"),
    ],
)
def test_a_new_factor_is_made_in_the_parts_that_are_asked_for(
    mesh: Mesh, hint: str, pattern: str, out: str, plain: str
) -> None:
    got = inside(mesh, lambda x: repeat(x, pattern, r=8), Float[Array, hint], Float[Array, out], X)
    np.testing.assert_array_equal(got, einops.repeat(X, plain, r=8))


def test_a_new_factor_before_a_split_one_interleaves(mesh: Mesh) -> None:
    body, hint = lambda x: repeat(x, "[b/dp] m -> [(r b)/dp] m", r=8), Float[Array, "[_/dp] m"]
    with pytest.raises(PatternError, match="would interleave the shards of 'b', since 'r' is before it"):
        inside(mesh, body, hint, hint, X)


@pytest.mark.parametrize("operation", [lambda x: logsumexp(x, "b s -> b"), lambda x: rearrange(x, "b s -> s b")])
def test_what_has_no_values_is_refused(operation: Callable[[Any], Any]) -> None:
    with pytest.raises(StructureError, match=r"ShapeDtypeStruct that JAX refuses \(it has no values\)"):
        operation(jax.ShapeDtypeStruct((8, 16), jnp.float32))


REFUSED_BY_JAX = {
    "a string": np.str_("ab"),
    "strings": np.array("ab"),
    "an object": np.array(None, object),
    "a date": np.datetime64("2020-01-01"),
    "a structure": np.zeros((), [("a", int)])[()],
}
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "all_gather": lambda x: all_gather(x, "->"),
    "all_to_all": lambda x: all_to_all(x, "->"),
    "einsum": lambda x: einsum(x, "->"),
    "logsumexp": lambda x: logsumexp(x, "->"),
    "pmax": lambda x: pmax(x, "dp"),
    "ppermute": lambda x: ppermute(x, "", shift=1),
    "psum": lambda x: psum(x, "->"),
    "psum of a tree": lambda x: psum({"a": x}, "dp"),
    "psum_scatter": lambda x: psum_scatter(x, "->"),
    "rearrange": lambda x: rearrange(x, "->"),
    "rearrange of a list": lambda x: rearrange([x, x], "a -> a"),
    "reduce": lambda x: reduce(x, "->", "sum"),
    "repeat": lambda x: repeat(x, "-> 2"),
    "reshard": lambda x: reshard(x, "->"),
    "softmax": lambda x: softmax(x, "", "s"),
    "take": lambda x: take(jnp.ones((4, 4)), x, "v m, -> m"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_jax_refuses_is_refused_in_a_region(name: str, mesh: Mesh) -> None:
    def body(w: Any) -> Any:
        for kind, value in REFUSED_BY_JAX.items():
            with pytest.raises(TypedShmapError, match=f"^{name.split()[0]} in body: "):
                OPERATIONS[name](value)
            refused.append(kind)
        return w

    for check_vma in (True, False):
        refused = list[str]()
        hint = Float[Array, "b"]
        f = typed_shard_map(body, mesh=mesh, in_types=(hint,), out_types=hint, check_vma=check_vma)
        jax.eval_shape(f, np.ones(4, np.float32))
        assert refused == [*REFUSED_BY_JAX]


@pytest.mark.parametrize(
    ("call", "cure"),
    [
        (lambda: einsum(X, X, "bm,nm->bn"), '"b m, n m -> b n"'),
        (lambda: einsum(X, X, "bm, nm -> bn"), '"b m, n m -> b n"'),
        (lambda: rearrange(X, "bm->mb"), '"b m -> m b"'),
        (lambda: reduce(X, "bm->b", "sum"), '"b m -> b"'),
        (lambda: reduce(X, "batch->", "sum"), None),
        (lambda: reduce(X, "batch -> b", "sum"), None),
        (lambda: rearrange(X, "batch model -> model"), None),
    ],
)
def test_names_without_spaces_between_them_are_recognised(call: Callable[[], Any], cure: str | None) -> None:
    with pytest.raises(PatternError) as raised:
        call()
    hints = [line for line in str(raised.value).splitlines() if line.startswith("Hint: ")]
    assert hints == ([f"Hint: names are separated by spaces: {cure}"] if cure is not None else [])
