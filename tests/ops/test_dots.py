"""A product of two traced arrays is the operation that ``jax.numpy.einsum`` makes of it, and named as there."""

from __future__ import annotations

import cProfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import _jax, einsum
from typedshmap.ops.contraction import plan_dot

SIZE = dict(zip("abcdef", range(2, 8), strict=True))


def structs(letters: str, *dtypes: str) -> list[jax.ShapeDtypeStruct]:
    sides = letters.partition("->")[0].split(",")
    pairs = zip(sides, dtypes or ["float32"] * len(sides), strict=True)
    return [jax.ShapeDtypeStruct([SIZE[name] for name in side], dtype) for side, dtype in pairs]


def pattern(letters: str) -> str:
    return " ".join(letters.replace(",", ", ").replace("->", " -> ")).replace(" ,", ",").replace("- >", "->")


def program(f: Any, *args: Any) -> str:
    """The program, as it is traced and as it is lowered."""
    lowered = jax.jit(lambda *args: f(*args)).lower(*args)
    return str(jax.make_jaxpr(lambda *args: f(*args))(*args)) + lowered.as_text()


def in_order(letters: str) -> str:
    """The same with its letters in alphabetical order: which are contracted first depends on that."""
    seen = dict.fromkeys(name for name in letters if name.isalpha())
    return letters.translate(str.maketrans("".join(seen), "abcdef"[: len(seen)]))


def agree(letters: str, *dtypes: str, **options: Any) -> None:
    args = structs(letters, *dtypes)
    ours = program(lambda *args: einsum(*args, pattern(letters), **options), *args)
    assert ours == program(lambda *args: jnp.einsum(in_order(letters), *args, **options), *args)


OTHERS = ["ab,bc->a", "ab,bc->c", "aab,bc->ac", "abc->ca", "ab,bc,cd->ad", "ab->", "ab,cd->ad"]


@pytest.mark.parametrize("letters", OTHERS)
def test_what_is_more_than_a_product_is_left_to_jax(letters: str):
    assert plan_dot(letters) is None
    agree(letters)


@st.composite
def products(draw: st.DrawFn) -> str:
    """Letters of two operands; those that are in one only are in the result."""
    names = st.lists(st.sampled_from("abcdef"), unique=True, max_size=4)
    first, second = draw(names), draw(names)
    apart = [name for name in (*first, *second) if (name in first) != (name in second)]
    kept = draw(st.lists(st.sampled_from(sorted(set(first) & set(second)) or ["a"]), unique=True, max_size=2))
    result = draw(st.permutations([*apart, *(name for name in kept if name in first and name in second)]))
    return f"{''.join(first)},{''.join(second)}->{''.join(result)}"


@settings(deadline=None)
@forall(products())
def test_every_product_is_that_of_jax(letters: str):
    assert plan_dot(letters) is not None
    agree(letters)


@pytest.mark.parametrize(
    ("dtypes", "options"),
    [
        *[((dtype, dtype), {}) for dtype in ("bfloat16", "int8", "bool", "complex64")],
        *[((dtype, "float32"), {}) for dtype in ("bfloat16", "int32")],
        (("bfloat16", "bfloat16"), {"precision": "highest"}),
        (("bfloat16", "bfloat16"), {"precision": jax.lax.Precision.HIGH}),
        (("bfloat16", "bfloat16"), {"preferred_element_type": jnp.float32}),
    ],
)
def test_dtypes_and_options_are_those_of_jax(dtypes: tuple[str, str], options: dict[str, Any]):
    agree("abc,cde->adbe", *dtypes, **options)


def test_a_dim_of_size_1_is_left_to_jax():
    x, y = jax.ShapeDtypeStruct((2, 3), "float32"), jax.ShapeDtypeStruct((1, 3), "float32")
    ours = program(lambda x, y: einsum(x, y, "a b, a b -> a b"), x, y)
    assert ours == program(lambda x, y: jnp.einsum("ab,ab->ab", x, y), x, y)


def test_a_number_promotes_weakly():
    x = jax.ShapeDtypeStruct((), "bfloat16")
    ours = program(lambda x: einsum(x, jnp.asarray(2.0), ", ->"), x)
    assert ours == program(lambda x: jnp.einsum(",->", x, jnp.asarray(2.0)), x)


def test_it_is_named_as_by_jax():
    args = structs("abc,cde->adbe")
    texts = [
        jax.jit(lambda *args, f=f: f(*args)).lower(*args).as_text(debug_info=True)
        for f in (lambda x, w: einsum(x, w, "a b c, c d e -> a d b e"), lambda x, w: jnp.einsum("abc,cde->adbe", x, w))
    ]
    assert all("abc,cde->adbe/dot_general" in text and "abc,cde->adbe/transpose" in text for text in texts)


def layers(f: Any, count: int) -> Any:
    def loss(x: Any, w: Any) -> Any:
        for _ in range(count):
            x = jnp.tanh(f(x, w))
        return x.sum()

    return jax.grad(loss, (0, 1))


def calls(f: Any) -> int:
    args = structs("ab,bb->ab")
    jax.make_jaxpr(lambda *args: f(*args))(*args)
    profile = cProfile.Profile()
    profile.runcall(jax.make_jaxpr(lambda *args: f(*args)), *args)
    return sum(entry.callcount for entry in profile.getstats())


def test_a_gradient_linearises_a_product_once():
    ours = layers(lambda x, w: einsum(x, w, "a b, b c -> a c"), 8)
    assert calls(ours) < 1.1 * calls(layers(lambda x, w: jnp.einsum("ab,bc->ac", x, w), 8))


GRADIENTS = {
    "grad": lambda f: jax.grad(lambda x, w: f(x, w).sum(), (0, 1)),
    "jvp": lambda f: lambda x, w: jax.jvp(f, (x, w), (x, w)),
    "linearize": lambda f: lambda x, w: jax.linearize(f, x, w)[1](x, w),
    "of vmap": lambda f: jax.grad(lambda x, w: jax.vmap(lambda s: f(s * x, w))(jnp.arange(3.0)).sum(), (0, 1)),
    "in vmap": lambda f: lambda x, w: jax.vmap(lambda s: jax.grad(lambda w: f(s * x, w).sum())(w))(jnp.arange(3.0)),
    "of remat": lambda f: jax.grad(lambda x, w: jax.checkpoint(f)(x, w).sum(), (0, 1)),
    "of scan": lambda f: jax.grad(
        lambda x, w: jax.lax.scan(lambda x, _: (f(x, w), None), x, length=3)[0].sum(), (0, 1)
    ),
    "twice": lambda f: jax.grad(lambda x, w: jax.grad(lambda x: f(x, w).sum())(x).sum(), (0, 1)),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_gradients_inside_of_a_region_and_around_it_are_those_of_jax(gradient: str, check_vma: bool):
    mesh, specs = Mesh(np.array(jax.devices()), ("dp",)), {"in_specs": (P("dp"), P()), "out_specs": P("dp")}

    def region(dot: Any, wrap: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            return dot(jnp.tanh(dot(x, w)) * jnp.tanh(dot(x, w)) + dot(x, w), w)

        return jax.shard_map(wrap(body), mesh=mesh, check_vma=check_vma, **specs)

    def inside(f: Any) -> Any:
        return lambda x, w: jax.tree.leaves(GRADIENTS[gradient](f)(x, w))[0].reshape(-1, 6)

    def ours(x: Any, w: Any) -> Any:
        return einsum(x, w, "[a/dp] b, b c -> [a/dp] c")

    def by_hand(x: Any, w: Any) -> Any:
        return jnp.einsum("ab,bc->ac", x, w)

    args = (jax.ShapeDtypeStruct((8, 6), "float32"), jax.ShapeDtypeStruct((6, 6), "float32"))
    around = [GRADIENTS[gradient](region(dot, lambda f: f)) for dot in (ours, by_hand)]
    assert program(around[0], *args) == program(around[1], *args)
    within = [region(dot, inside) for dot in (ours, by_hand)]
    assert program(within[0], *args) == program(within[1], *args)


def test_products_of_equal_shapes_have_lines_of_their_own_under_a_gradient():
    def loss(x: Any, w: Any) -> Any:
        x = jnp.tanh(einsum(x, w, "a b, b c -> a c"))
        return jnp.tanh(einsum(x, w, "a b, b c -> a c")).sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss))(*structs("ab,bb->ab"))
    dots = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
    start = loss.__code__.co_firstlineno
    assert [next(_jax.source.equation_lines(eqn))[1] - start for eqn in dots] == [1, 2, 2, 1]
    assert {_jax.source.called_function(eqn) for eqn in dots} == {"einsum"}


@pytest.mark.parametrize("precision", [["highest", "default"], ("highest", "default"), jax.lax.Precision.HIGH])
def test_a_precision_per_operand_is_taken_under_a_gradient(precision: Any):
    gradient = jax.grad(lambda x, w: einsum(x, w, "a b, b c -> a c", precision=precision).sum())
    assert "precision" in str(jax.make_jaxpr(gradient)(*structs("ab,bc->ac")))
