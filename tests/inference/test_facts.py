"""What is known of values, as data: tables, and laws that hold without a device."""

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from typedshmap.inference import lattice
from typedshmap.inference.lattice import (
    UNKNOWN,
    UNSHARDED,
    DimFact,
    Part,
    ShardingFact,
    add_varying,
    drop_repeated_axes,
    invarying,
    is_conflict,
    is_within,
    join,
    join_dims,
    varying_of,
)
from typedshmap.inference.reshape import reshape_dims
from typedshmap.notation.layout import NO_AXES

AXES = {"a": 2, "b": 3, "c": 2}
A, B, AB, BA = DimFact(("a",)), DimFact(("b",)), DimFact(("a", "b")), DimFact(("b", "a"))
TAUGHT, LOOSE = DimFact(("a",), from_claim=True), DimFact(("a",), is_movable=True)
GATHERED = DimFact(None, gathered=("b", "a"))
WOVEN = DimFact((), woven=("a",))


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        (UNSHARDED, UNSHARDED, UNSHARDED),
        (UNSHARDED, A, A),
        (A, A, A),
        (A, B, UNKNOWN),
        (AB, BA, UNKNOWN),
        (AB, A, UNKNOWN),
        (A, UNKNOWN, UNKNOWN),
        (UNSHARDED, UNKNOWN, UNKNOWN),
        (A, TAUGHT, A),
        (A, LOOSE, A),
        (TAUGHT, LOOSE, A),
        (TAUGHT, TAUGHT, TAUGHT),
        (UNSHARDED, GATHERED, GATHERED),
        (GATHERED, GATHERED, GATHERED),
        (GATHERED, A, UNKNOWN),
        (GATHERED, UNKNOWN, UNKNOWN),
    ],
    ids=str,
)
def test_two_dims_meet(first: DimFact, second: DimFact, result: DimFact) -> None:
    assert join_dims(first, second) == join_dims(second, first) == result


@pytest.mark.parametrize(
    ("first", "second", "at_odds"),
    [(A, B, True), (AB, BA, True), (AB, A, False), (AB, B, False), (A, UNSHARDED, False), (A, UNKNOWN, False),
     (B, LOOSE, False), (B, TAUGHT, True), (A, A, False), (A, WOVEN, True), (AB, WOVEN, True), (B, WOVEN, False),
     (A, WOVEN._replace(from_claim=True), False), (LOOSE, WOVEN, False), (WOVEN, WOVEN, False),
     (A, DimFact(None, is_movable=True, parts=(((), 2), (("a",), 3))), True)],
    ids=str,
)  # fmt: skip
def test_two_dims_are_at_odds(first: DimFact, second: DimFact, at_odds: bool) -> None:
    assert is_conflict(first, second) is is_conflict(second, first) is at_odds


@pytest.mark.parametrize(
    ("axes", "others", "within"),
    [("", "", True), ("", "ab", True), ("a", "ab", True), ("b", "ab", True), ("ab", "ab", True), ("ac", "abc", True),
     ("ba", "ab", False), ("aa", "a", False), ("c", "ab", False), ("ab", "a", False)],
)  # fmt: skip
def test_axes_stand_among_others_in_their_order(axes: str, others: str, within: bool) -> None:
    assert is_within(tuple(axes), tuple(others)) is within


@pytest.mark.parametrize(
    ("known", "settled"),
    [
        ((A, UNSHARDED, AB, DimFact(("c",))), (UNKNOWN, UNSHARDED, UNKNOWN, DimFact(("c",)))),
        ((A, UNKNOWN, B), (A, UNKNOWN, B)),
    ],
    ids=["two dims", "one each"],
)
def test_an_axis_that_splits_two_dims_makes_both_unknown(known: tuple[DimFact, ...], settled: Any) -> None:
    assert drop_repeated_axes(known) == settled


def test_an_axis_is_unreduced_where_it_is_so_on_both_sides_and_else_varies() -> None:
    partial = ShardingFact(frozenset("b"), frozenset("a"), (B,))
    assert join(partial, ShardingFact(NO_AXES, frozenset("a"), (UNSHARDED,))) == partial
    assert join(partial, invarying(1)) == ShardingFact(frozenset("ab"), NO_AXES, (B,))


def test_what_a_condition_chooses_is_not_unreduced_where_that_differs() -> None:
    partial = ShardingFact(NO_AXES, frozenset("a"), (UNSHARDED,))
    assert add_varying(partial, frozenset("a")) == ShardingFact(frozenset("a"), NO_AXES, (UNSHARDED,))


def test_a_dim_without_axes_is_unsharded_however_it_came_to_be() -> None:
    assert TAUGHT.with_axes(()) == LOOSE.with_axes(()) == UNSHARDED


orders = st.permutations(list(AXES)).flatmap(
    lambda axes: st.integers(0, len(axes)).map(lambda count: tuple(axes[:count]))
)
split_dims = st.builds(DimFact, orders.filter(len), st.booleans(), st.just(()), st.booleans())
dims = st.one_of(
    st.just(UNSHARDED), st.just(UNKNOWN), split_dims, st.builds(DimFact, st.none(), st.just(False), orders)
)
names = st.frozensets(st.sampled_from(list(AXES)))
facts = st.builds(
    lambda varying, unreduced_axes, known: ShardingFact(varying, unreduced_axes - varying, drop_repeated_axes(known)),
    names,
    names,
    st.tuples(dims, dims),
)


def known_of(dim: DimFact) -> int:
    """How much is excluded: the order whole, split, not known."""
    return 0 if dim == UNSHARDED else 1 if dim.axes or dim.gathered else 2


@given(dims, dims, dims)
def test_dims_meet_as_in_a_semilattice(a: DimFact, b: DimFact, c: DimFact) -> None:
    met = join_dims(a, b)
    assert met == join_dims(b, a) == join_dims(met, b)
    assert join_dims(met, c) == join_dims(a, join_dims(b, c))
    assert known_of(met) >= max(known_of(a), known_of(b))


@given(facts, facts, facts)
def test_facts_meet_in_no_order_and_no_grouping(a: ShardingFact, b: ShardingFact, c: ShardingFact) -> None:
    assert drop_repeated_axes(a.dims) == a.dims
    assert join(a, b) == join(b, a)
    assert join(a, ShardingFact(*a)) == a
    left, right = join(join(a, b), c), join(a, join(b, c))
    assert (left.varying, left.unreduced) == (right.varying, right.unreduced)


@given(facts, facts)
def test_either_may_differ_wherever_one_does(a: ShardingFact, b: ShardingFact) -> None:
    met = join(a, b)
    assert met.varying >= a.varying | b.varying
    assert met.varying | met.unreduced == varying_of([a, b])
    assert not met.varying & met.unreduced


@given(facts, facts, names)
def test_either_of_more_that_differs_differs_no_less(a: ShardingFact, b: ShardingFact, more: frozenset[str]) -> None:
    assert join(add_varying(a, more), b).varying >= join(a, b).varying


@given(facts, facts)
def test_an_axis_is_known_to_split_one_dim_at_most(a: ShardingFact, b: ShardingFact) -> None:
    axes = [axis for dim in join(a, b).dims for axis in dim.axes or ()]
    assert len(axes) == len(set(axes))


@given(orders, orders, orders)
def test_standing_among_others_is_an_order(a: tuple[str, ...], b: tuple[str, ...], c: tuple[str, ...]) -> None:
    assert is_within(a, a)
    assert not (is_within(a, b) and is_within(b, a)) or a == b
    assert not (is_within(a, b) and is_within(b, c)) or is_within(a, c)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[DimFact, ...], tuple[int, ...], tuple[int, ...]]:
    """Dims, the shape of a shard, and another of as many elements."""
    after = draw(st.lists(st.sampled_from([1, 2, 3, 4]), max_size=4))
    pieces = [size for size in after for size in ([2, 2] if size == 4 and draw(st.booleans()) else [size])]
    before: list[int] = []
    for size in pieces:
        if before and draw(st.booleans()):
            before[-1] *= size
        else:
            before.append(size)
    left = draw(st.permutations(list(AXES)))
    counts = [draw(st.sampled_from([0, 0, 1, 2])) for _ in before]
    known = []
    for count in counts:
        known.append(DimFact(tuple(left[:count])))
        left = left[count:]
    return tuple(known), tuple(before), tuple(after)


def whole_parts(dim: DimFact, size: int) -> list[tuple[tuple[str, ...], int]]:
    """The parts of a dim, with their global sizes."""
    parts = lattice.parts_of(dim, size) or ()
    return [(axes, count * prod(AXES[axis] for axis in axes)) for axes, count in parts]


def whole_shape(shape: tuple[int, ...], known: tuple[DimFact, ...]) -> list[int]:
    return [prod(count for _, count in whole_parts(dim, size)) for size, dim in zip(shape, known, strict=True)]


def shard(array: np.ndarray, shape: tuple[int, ...], known: tuple[DimFact, ...], place: dict[str, int]) -> np.ndarray:
    """One shard, of that shape, of a global array."""
    parts = [part for dim, size in zip(known, shape, strict=True) for part in whole_parts(dim, size)]
    array = array.reshape([count for _, count in parts])
    for at, (axes, _) in enumerate(parts):
        for axis in axes:
            array = np.split(array, AXES[axis], axis=at)[place[axis]]
    return array.reshape(shape)


Reshape = tuple[tuple[DimFact, ...], tuple[int, ...], tuple[int, ...]]


@given(reshapes())
def test_a_reshape_of_shards_is_what_it_is_of_the_global_array(case: Reshape) -> None:
    known, before, after = case
    result = tuple(reshape_dims(known, before, after))
    assert len(result) == len(after)
    assume(all(lattice.parts_of(dim, size) is not None for dim, size in zip(result, after, strict=True)))
    sizes = whole_shape(after, result)
    array = np.arange(prod(whole_shape(before, known))).reshape(whole_shape(before, known))
    assume(prod(sizes) == array.size)  # else a dim of size 1 went, and its axes with it
    for place in (dict(zip(AXES, at, strict=True)) for at in product(*map(range, AXES.values()))):
        made = shard(array, before, known, place).reshape(after)
        np.testing.assert_array_equal(made, shard(array.reshape(sizes), after, result, place))


@given(reshapes())
def test_a_reshape_splits_no_dim_over_another_axis(case: Reshape) -> None:
    known, before, after = case
    orders = {axis for dim in known for axis in dim.axes or ()}
    found = [axis for dim in reshape_dims(known, before, after) for axis in dim.known_axes]
    assert len(found) == len(set(found))
    assert set(found) <= orders


SPLIT = DimFact(("a", "b"))


def merged(*parts: Part) -> DimFact:
    """A dim whose shards are interleaved."""
    return DimFact(None, is_movable=True, parts=parts)


def cut(size: int) -> DimFact:
    """The major piece of a dim that was cut on the shard."""
    return SPLIT._replace(is_movable=True, parts=((("a", "b"), size),))


def rest(size: int, *axes: str) -> DimFact:
    """A minor piece of a dim that was cut on the shard."""
    return DimFact((), parts=(((), size),), woven=axes or ("a", "b"))


def either(size: int) -> DimFact:
    """A dim that is sharded unless the dim beside it is."""
    return cut(size)._replace(is_either=True)


STACKED, APART = DimFact((), gathered=("a", "b")), DimFact((), apart=("a", "b"))
ASTRAY = DimFact(None, gathered=("a", "b"), is_movable=True)
INTERLEAVED = merged(((), 4), (("a", "b"), 6))


@pytest.mark.parametrize(
    ("known", "before", "after", "result"),
    [
        ((SPLIT, UNSHARDED), (4, 6), (24,), (SPLIT,)),
        ((UNSHARDED, SPLIT), (4, 6), (24,), (INTERLEAVED,)),
        ((INTERLEAVED,), (24,), (4, 6), (UNSHARDED, SPLIT)),
        ((INTERLEAVED,), (24,), (2, 2, 6), (UNSHARDED, UNSHARDED, SPLIT)),
        ((INTERLEAVED,), (24,), (8, 3), (merged(((), 4), (("a", "b"), 2)), rest(3))),
        ((INTERLEAVED,), (24,), (3, 8), (UNKNOWN, UNKNOWN)),
        ((UNSHARDED, SPLIT), (4, 6), (2, 12), (UNSHARDED, merged(((), 2), (("a", "b"), 6)))),
        ((UNSHARDED, SPLIT), (4, 6), (12, 2), (merged(((), 4), (("a", "b"), 3)), rest(2))),
        ((DimFact(("a",)), DimFact(("b",))), (4, 6), (24,), (merged((("a",), 4), (("b",), 6)),)),
        ((DimFact(("a",)), DimFact(("b",))), (1, 6), (6,), (DimFact(("a", "b")),)),
        ((SPLIT, UNSHARDED), (24, 2), (4, 6, 2), (cut(4), rest(6), UNSHARDED)),
        ((SPLIT, UNSHARDED), (24, 2), (4, 3, 2, 2), (cut(4), rest(3), rest(2), UNSHARDED)),
        ((cut(4), rest(6)), (4, 6), (24,), (SPLIT,)),
        ((cut(4), rest(6)), (4, 6), (4, 2, 3), (cut(4), rest(2), rest(3))),
        ((rest(6), UNSHARDED), (6, 4), (24,), (rest(24),)),
        ((SPLIT, UNSHARDED), (4, 6), (4, 2, 3), (SPLIT, UNSHARDED, UNSHARDED)),
        ((SPLIT, UNSHARDED), (4, 6), (1, 4, 6), (either(1), UNSHARDED, UNSHARDED)),
        ((UNSHARDED, SPLIT), (6, 4), (6, 1, 4), (UNSHARDED, either(1), UNSHARDED)),
        ((either(1), UNSHARDED), (1, 4), (4,), (SPLIT,)),
        ((SPLIT, UNSHARDED), (1, 8), (2, 4), (cut(2), rest(4))),
        (
            (UNSHARDED, SPLIT, UNSHARDED),
            (6, 1, 4),
            (6, 4),
            (UNSHARDED._replace(woven=("a", "b")), either(4)._replace(parts=())),
        ),
        ((UNSHARDED, SPLIT), (6, 1), (6,), (UNSHARDED._replace(woven=("a", "b")),)),
        ((SPLIT, UNSHARDED), (4, 6), (4, 1, 6), (SPLIT, UNSHARDED, UNSHARDED)),
        ((SPLIT, UNSHARDED), (4, 6), (4, 6, 1), (SPLIT, UNSHARDED, UNSHARDED)),
        ((SPLIT, UNSHARDED), (1, 6), (6,), (SPLIT,)),
        ((SPLIT, UNSHARDED), (6, 4), (4, 6), (cut(4), rest(6))),
        ((SPLIT._replace(from_claim=True), UNSHARDED), (4, 6), (24,), (UNKNOWN,)),
        (
            (SPLIT._replace(from_claim=True), UNSHARDED),
            (4, 6),
            (4, 2, 3),
            (SPLIT._replace(from_claim=True), UNSHARDED, UNSHARDED),
        ),
        ((UNKNOWN, UNSHARDED), (4, 6), (24,), (UNKNOWN,)),
        ((SPLIT, UNSHARDED), (4, 0), (0,), (UNKNOWN,)),
        ((STACKED, APART), (4, 6), (24,), (UNSHARDED,)),
        ((STACKED, UNSHARDED, APART), (4, 1, 6), (24,), (UNSHARDED,)),
        ((STACKED, APART, UNSHARDED), (4, 6, 2), (48,), (UNSHARDED,)),
        ((STACKED, DimFact(("c",), apart=("a", "b"))), (4, 6), (24,), (DimFact(("c",)),)),
        ((APART, STACKED), (6, 4), (24,), (ASTRAY,)),
        ((STACKED, UNSHARDED, APART), (4, 2, 6), (48,), (ASTRAY,)),
        ((STACKED, UNSHARDED, APART), (4, 2, 6), (2, 24), (ASTRAY, UNKNOWN)),
        ((DimFact((), gathered=("b", "a")), APART), (4, 6), (24,), (ASTRAY._replace(gathered=("b", "a")),)),
        ((ASTRAY, UNSHARDED), (4, 6), (24,), (ASTRAY,)),
        ((ASTRAY,), (24,), (4, 6), (UNKNOWN, UNKNOWN)),
        ((), (), (1,), (UNSHARDED,)),
        ((SPLIT,), (1,), (), ()),
    ],
    ids=str,
)  # fmt: skip
def test_a_reshape_keeps_axes_on_the_most_major_dim(
    known: tuple[DimFact, ...], before: tuple[int, ...], after: tuple[int, ...], result: tuple[DimFact, ...]
) -> None:
    assert tuple(reshape_dims(known, before, after)) == result
