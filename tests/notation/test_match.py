"""Matching shapes with plain dicts and tuples: sizes that are bound, or the one thing that is wrong."""

from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_strategies import chains

from typedshmap.errors.failures import Bound, Subject
from typedshmap.notation.layout import resolve
from typedshmap.notation.match import (
    BadExpression,
    Indivisible,
    Match,
    OutsideTree,
    RankMismatch,
    SizeMismatch,
    Sizes,
    compile_dims,
    match,
)
from typedshmap.notation.spec import Anything, Axes, Binary, Call, Dim, Group, Name, Negative, Number, Rest, Spec, parse

X, Y = Subject("argument", "x"), Subject("argument", "y")


def known(**sizes):
    """Sizes that argument x bound, name by name from its first dim."""
    return Sizes({name: Bound(size, X, dim, frozenset({()})) for dim, (name, size) in enumerate(sizes.items())})


def matched(dims, shape, sizes=Sizes(), *, held={}, split={}, arguments={}, leaf=None):  # noqa: B006, B008
    spec = parse(dims) if isinstance(dims, str) else dims
    return match(shape, compile_dims(spec, resolve(spec, {}, None), {**held, **split}, held), sizes, Y, arguments, leaf)


def dim(text):
    return parse(text).dims[0]


A4 = known(a=4).get("a")


@pytest.mark.parametrize(
    ("dims", "shape", "sizes", "mismatch"),
    [
        ("a b", (2,), known(), RankMismatch(2, False, 1)),
        ("a b", (2, 3, 4), known(), RankMismatch(2, False, 3)),
        ("a ... b", (2,), known(), RankMismatch(2, True, 1)),
        ("4", (5,), known(), SizeMismatch(dim("4"), 0, 5, None, (), 4, None, (0, 1))),
        ("a", (5,), known(a=4), SizeMismatch(dim("a"), 0, 5, None, (), 4, A4, (0, 1))),
        ("#a", (5,), known(a=4), SizeMismatch(dim("#a"), 0, 5, None, (), 4, A4, (1, 2))),
        ("a", (1,), known(a=4), SizeMismatch(dim("a"), 0, 1, None, (), 4, A4, (0, 1))),
        ("a a", (2, 3), known(), SizeMismatch(dim("a"), 1, 3, None, (), 2, Bound(2, Y, 0, frozenset({()})), (2, 3))),
        ("a *n", (9, 2, 4), matched("*n", (2, 3)).sizes,
         SizeMismatch(dim("*n"), 1, (2, 4), None, (), (2, 3), Bound((2, 3), Y, 0), (2, 4))),
        ("[a/dp] b", (6, 2), known(a=4), SizeMismatch(dim("[a/dp]"), 0, 6, None, (), 4, A4, (1, 2))),
        ("d [a/dp,tp]", (2, 12), known(), Indivisible(dim("[a/dp,tp]"), 1, 12, ("dp", "tp"), 8, (2, 11))),
        ("[a/sp,tp]", (3,), known(), Indivisible(dim("[a/sp,tp]"), 0, 3, ("tp",), 2, (0, 9))),
        ("a+1", (4,), known(a=4), SizeMismatch(dim("a+1"), 0, 4, None, (), 5, None, (0, 3))),
        ("?n", (4,), known(), OutsideTree(dim("?n"), (0, 2))),
        ("a//0", (4,), known(a=4), BadExpression(dim("a//0"), 0, "'a//0' divides by zero, since 0=0", (0, 4))),
        ("a%(a-4)", (4,), known(a=4),
         BadExpression(dim("a%(a-4)"), 0, "'a%(a-4)' divides by zero, since (a-4)=0", (0, 7))),
        ("2**-a", (4,), known(a=4),
         BadExpression(dim("2**-a"), 0, "'2**-a' has exponent -4; 0 to 64 are allowed", (0, 5))),
        ("2**65", (4,), known(),
         BadExpression(dim("2**65"), 0, "'2**65' has exponent 65; 0 to 64 are allowed", (0, 5))),
    ],
)  # fmt: skip
def test_a_shape_that_does_not_fit_is_one_mismatch(dims, shape, sizes, mismatch):
    assert matched(dims, shape, sizes, split={"dp": 4, "tp": 2}) == mismatch


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{n}*2", 10),
        ("{self.sizes[1]}", 12),
        ("{table[0]}", 8),
        ("{np}", 11),
        ("{ 2 * (n - self.heads) }", -2),
        ("{min(self.sizes[-1], a)}-b", 4),
        ("{flag}", 1),
    ],
)
def test_braces_have_the_value_of_an_argument(text, value):
    class Table(dict):
        rows = 9

    config = SimpleNamespace(heads=6, sizes=(11, 12))
    arguments = {"n": 5, "self": config, "table": Table({0: 8}), "np": np.int64(11), "flag": True}
    result = matched(f"x={text}", (-99,), known(a=7, b=3), arguments=arguments)
    assert result.expected == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{n.heads}", "'{n.heads}' names no argument of this call (arguments: x, self)"),
        ("{x}+1", "'{x}' is str, not an integer"),
        ("{x[7]}", "'{x[7]}' cannot be read: IndexError: string index out of range"),
        ("{self.heads}", "'{self.heads}' cannot be read: AttributeError: no heads"),
        ("4//{self.zero}", "'4//{self.zero}' divides by zero, since {self.zero}=0"),
    ],
)
def test_an_argument_that_gives_no_size_is_reported(text, reason):
    class Config:
        rate, zero = 0.5, 0

        @property
        def heads(self):
            raise AttributeError("no heads")

    result = matched(text, (4,), arguments={"x": "text", "self": Config()})
    assert result == BadExpression(dim(text), 0, reason, (0, len(text)))


names = st.sampled_from(("a", "b"))
mesh_sizes = st.fixed_dictionaries({axis: st.integers(1, 5) for axis in ("dp", "tp", "sp")})


@st.composite
def sharded_shapes(draw):
    """A mesh, a spec over its axes, and a global shape that fits and divides."""
    mesh = draw(mesh_sizes)
    free = list(draw(st.permutations(tuple(mesh))))
    whole = {name: draw(st.integers(0, 4)) * prod(mesh.values()) for name in ("a", "b")}
    dims, shape = [], []
    for _ in range(draw(st.integers(1, 4))):
        name = draw(names)
        size, total = draw(
            st.sampled_from(
                (
                    (Name(name), whole[name]),
                    (Number(whole[name]), whole[name]),
                    (Anything(), whole[name]),
                    (Binary(Number(2), "*", Name(name)), 2 * whole[name]),
                )
            )
        )
        axes = Axes(tuple(free.pop() for _ in range(draw(st.integers(0, min(2, len(free)))))))
        dims.append(Dim(size, axes))
        shape.append(total)
    if draw(st.booleans()):
        at = draw(st.integers(0, len(dims)))
        extra = draw(st.lists(st.integers(0, 4), max_size=2))
        dims.insert(at, draw(st.sampled_from((Rest(), Rest("n")))))
        shape[at:at] = extra
    return mesh, Spec(tuple(dims)), tuple(shape)


def shard_of(shape, spec, mesh):
    """The shape of one shard, by the rule's own words."""
    extra = len(shape) - len(spec.dims) + 1
    shards = []
    for item in spec.dims:
        shards += [1] * extra if isinstance(item, Rest) else [prod(mesh[axis] for axis in item.axes.names)]
    return tuple(size // count for size, count in zip(shape, shards, strict=True))


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(sharded_shapes())
def test_a_global_shape_and_its_shard_bind_the_same_sizes(drawn):
    mesh, spec, shape = drawn
    whole = matched(spec, shape, split=mesh)
    shard = matched(spec, shard_of(shape, spec, mesh), held=mesh)
    assert isinstance(whole, Match)
    assert shard == whole


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(sharded_shapes(), st.sampled_from(("dp", "tp", "sp")))
def test_in_a_partly_manual_region_the_same_sizes_are_bound(drawn, axis):
    mesh, spec, shape = drawn
    manual = {axis: mesh[axis]}
    shard = matched(spec, shard_of(shape, spec, {name: manual.get(name, 1) for name in mesh}), held=manual)
    assert shard == matched(spec, shape)


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(sharded_shapes(), st.integers(1, 3))
def test_a_failed_match_binds_nothing(drawn, wrong):
    mesh, spec, shape = drawn
    sizes = known(c=9)
    longer = Spec((*spec.dims, Dim(Number(wrong + 1))))
    result = matched(longer, (*shape, wrong), sizes, split=mesh)
    assert isinstance(result, SizeMismatch)
    assert sizes == known(c=9)


def over_names(inner):
    arguments = st.lists(inner, min_size=2, max_size=3).map(tuple)
    calls = st.builds(Call, st.sampled_from(("min", "max")), arguments)
    atoms = st.one_of(st.builds(Number, st.integers(0, 5)), st.builds(Name, names), calls, st.builds(Group, inner))
    powers = st.builds(Binary, atoms, st.just("**"), st.builds(Number, st.integers(0, 2)))
    unary = st.one_of(atoms, powers, st.builds(Negative, atoms), st.builds(Negative, powers))
    return chains(chains(unary, "*", "//", "%"), "+", "-")


arithmetic = st.recursive(over_names(st.builds(Name, names)), over_names, max_leaves=4)


@settings(max_examples=5 * settings.default.max_examples, deadline=None)
@given(arithmetic, st.integers(0, 9), st.integers(0, 9))
def test_an_expression_has_the_value_that_python_gives_its_text(expression, a, b):
    result = matched(Spec((Dim(expression),)), (10**400,), known(a=a, b=b))
    try:
        value = eval(str(expression), {"a": a, "b": b})
    except ZeroDivisionError:
        assert isinstance(result, BadExpression)
    else:
        assert result.expected == value
