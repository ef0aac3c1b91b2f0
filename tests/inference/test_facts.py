"""What is known of values, as data: tables, and laws that hold without a device."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from typedshmap.inference.facts import (
    NONE,
    UNKNOWN,
    WHOLE,
    Dim,
    Fact,
    are_at_odds,
    differing,
    either,
    equal,
    is_within,
    meet,
    settled,
    varying_of,
)
from typedshmap.inference.rules.shapes import reshaped

AXES = {"a": 2, "b": 3, "c": 2}
A, B, AB, BA = Dim(("a",)), Dim(("b",)), Dim(("a", "b")), Dim(("b", "a"))
TAUGHT, LOOSE = Dim(("a",), is_taught=True), Dim(("a",), is_loose=True)
GATHERED = Dim(None, gathered=("b", "a"))


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        (WHOLE, WHOLE, WHOLE),
        (WHOLE, A, A),
        (A, A, A),
        (A, B, UNKNOWN),
        (AB, BA, UNKNOWN),
        (AB, A, UNKNOWN),
        (A, UNKNOWN, UNKNOWN),
        (WHOLE, UNKNOWN, UNKNOWN),
        (A, TAUGHT, A),
        (A, LOOSE, A),
        (TAUGHT, LOOSE, A),
        (TAUGHT, TAUGHT, TAUGHT),
        (WHOLE, GATHERED, GATHERED),
        (GATHERED, GATHERED, GATHERED),
        (GATHERED, A, UNKNOWN),
        (GATHERED, UNKNOWN, UNKNOWN),
    ],
    ids=str,
)
def test_two_dims_meet(first: Dim, second: Dim, result: Dim) -> None:
    assert meet(first, second) == meet(second, first) == result


@pytest.mark.parametrize(
    ("first", "second", "at_odds"),
    [(A, B, True), (AB, BA, True), (AB, A, False), (AB, B, False), (A, WHOLE, False), (A, UNKNOWN, False),
     (B, LOOSE, False), (B, TAUGHT, True), (A, A, False)],
    ids=str,
)  # fmt: skip
def test_two_dims_are_at_odds(first: Dim, second: Dim, at_odds: bool) -> None:
    assert are_at_odds(first, second) is are_at_odds(second, first) is at_odds


@pytest.mark.parametrize(
    ("axes", "others", "within"),
    [("", "", True), ("", "ab", True), ("a", "ab", True), ("b", "ab", True), ("ab", "ab", True), ("ac", "abc", True),
     ("ba", "ab", False), ("aa", "a", False), ("c", "ab", False), ("ab", "a", False)],
)  # fmt: skip
def test_axes_stand_among_others_in_their_order(axes: str, others: str, within: bool) -> None:
    assert is_within(tuple(axes), tuple(others)) is within


def test_an_axis_that_splits_two_dims_makes_both_unknown() -> None:
    assert settled((A, WHOLE, AB, Dim(("c",)))) == (UNKNOWN, WHOLE, UNKNOWN, Dim(("c",)))


def test_axes_that_split_one_dim_each_stay() -> None:
    assert settled((A, UNKNOWN, B)) == (A, UNKNOWN, B)


def test_a_sum_owed_on_one_side_only_is_something_that_varies() -> None:
    one, other = Fact(NONE, frozenset("a"), (WHOLE,)), equal(1)
    assert either(one, other) == Fact(frozenset("a"), NONE, (WHOLE,))


def test_a_sum_owed_on_both_sides_is_owed() -> None:
    owing = Fact(frozenset("b"), frozenset("a"), (B,))
    assert either(owing, Fact(NONE, frozenset("a"), (WHOLE,))) == owing


def test_what_a_condition_chooses_owes_nothing_where_that_differs() -> None:
    owing = Fact(NONE, frozenset("a"), (WHOLE,))
    assert differing(owing, frozenset("a")) == Fact(frozenset("a"), NONE, (WHOLE,))


def test_a_dim_without_axes_is_whole_however_it_came_to_be() -> None:
    assert TAUGHT.over(()) == LOOSE.over(()) == WHOLE


orders = st.permutations(list(AXES)).flatmap(
    lambda axes: st.integers(0, len(axes)).map(lambda count: tuple(axes[:count]))
)
split_dims = st.builds(Dim, orders.filter(len), st.booleans(), st.just(()), st.booleans())
dims = st.one_of(st.just(WHOLE), st.just(UNKNOWN), split_dims, st.builds(Dim, st.none(), st.just(False), orders))
names = st.frozensets(st.sampled_from(list(AXES)))
facts = st.builds(
    lambda varying, owed, known: Fact(varying, owed - varying, settled(known)),
    names,
    names,
    st.tuples(dims, dims),
)


def known_of(dim: Dim) -> int:
    """How much is excluded: the order whole, split, not known."""
    return 0 if dim == WHOLE else 1 if dim.is_split or dim.gathered else 2


@given(dims, dims)
def test_meeting_has_no_order(a: Dim, b: Dim) -> None:
    assert meet(a, b) == meet(b, a)


@given(dims, dims, dims)
def test_meeting_has_no_grouping(a: Dim, b: Dim, c: Dim) -> None:
    assert meet(meet(a, b), c) == meet(a, meet(b, c))


@given(dims, dims)
def test_meeting_again_changes_nothing(a: Dim, b: Dim) -> None:
    assert meet(meet(a, b), b) == meet(a, b)


@given(dims, dims)
def test_meeting_goes_up(a: Dim, b: Dim) -> None:
    assert known_of(meet(a, b)) >= max(known_of(a), known_of(b))


@given(facts, facts)
def test_either_has_no_order(a: Fact, b: Fact) -> None:
    assert either(a, b) == either(b, a)


@given(facts)
def test_either_of_the_same_is_the_same(a: Fact) -> None:
    assert either(a, Fact(*a)) == a


@given(facts, facts, facts)
def test_what_varies_has_no_grouping(a: Fact, b: Fact, c: Fact) -> None:
    left, right = either(either(a, b), c), either(a, either(b, c))
    assert (left.varying, left.owed) == (right.varying, right.owed)


@given(facts, facts)
def test_either_may_differ_wherever_one_does(a: Fact, b: Fact) -> None:
    met = either(a, b)
    assert met.varying >= a.varying | b.varying
    assert met.varying | met.owed == varying_of([a, b])
    assert not met.varying & met.owed


@given(facts, facts, names)
def test_either_of_more_that_differs_differs_no_less(a: Fact, b: Fact, more: frozenset[str]) -> None:
    assert either(differing(a, more), b).varying >= either(a, b).varying


@given(facts, facts)
def test_an_axis_is_known_to_split_one_dim_at_most(a: Fact, b: Fact) -> None:
    axes = [axis for dim in either(a, b).dims for axis in dim.axes or ()]
    assert len(axes) == len(set(axes))


@given(st.lists(dims, max_size=4).map(tuple))
def test_settled_dims_are_settled(known: tuple[Dim, ...]) -> None:
    assert settled(settled(known)) == settled(known)


@given(orders, orders, orders)
def test_standing_among_others_is_an_order(a: tuple[str, ...], b: tuple[str, ...], c: tuple[str, ...]) -> None:
    assert is_within(a, a)
    assert not (is_within(a, b) and is_within(b, a)) or a == b
    assert not (is_within(a, b) and is_within(b, c)) or is_within(a, c)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[Dim, ...], tuple[int, ...], tuple[int, ...]]:
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
        known.append(Dim(tuple(left[:count])))
        left = left[count:]
    return tuple(known), tuple(before), tuple(after)


def whole_shape(shape: tuple[int, ...], known: tuple[Dim, ...]) -> list[int]:
    return [size * prod(AXES[axis] for axis in dim.axes or ()) for size, dim in zip(shape, known, strict=True)]


def shard(array: np.ndarray, known: tuple[Dim, ...], place: dict[str, int]) -> np.ndarray:
    """One shard of a global array."""
    for at, dim in enumerate(known):
        for axis in dim.axes or ():
            array = np.split(array, AXES[axis], axis=at)[place[axis]]
    return array


@given(reshapes())
def test_a_reshape_of_shards_is_what_it_says_of_the_whole(
    case: tuple[tuple[Dim, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    known, before, after = case
    result = tuple(reshaped(known, before, after))
    assert len(result) == len(after)
    assume(all(dim.axes is not None for dim in result))
    sizes = whole_shape(after, result)
    array = np.arange(prod(whole_shape(before, known))).reshape(whole_shape(before, known))
    assume(prod(sizes) == array.size)  # else a dim of size 1 went, and its axes with it
    for place in (dict(zip(AXES, at, strict=True)) for at in product(*map(range, AXES.values()))):
        made = shard(array, known, place).reshape(after)
        np.testing.assert_array_equal(made, shard(array.reshape(sizes), result, place))


@given(reshapes())
def test_a_reshape_splits_no_dim_over_another_axis(
    case: tuple[tuple[Dim, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    known, before, after = case
    orders = {dim.axes for dim in known}
    assert {dim.axes for dim in reshaped(known, before, after) if dim.is_split} <= orders


SPLIT = Dim(("a", "b"))


@pytest.mark.parametrize(
    ("known", "before", "after", "result"),
    [
        ((SPLIT, WHOLE), (4, 6), (24,), (SPLIT,)),
        ((WHOLE, SPLIT), (4, 6), (24,), (UNKNOWN,)),
        ((SPLIT, WHOLE), (24, 2), (4, 6, 2), (SPLIT._replace(is_loose=True), WHOLE, WHOLE)),
        ((SPLIT, WHOLE), (4, 6), (4, 2, 3), (SPLIT, WHOLE, WHOLE)),
        ((SPLIT, WHOLE), (4, 6), (1, 4, 6), (WHOLE, SPLIT._replace(is_loose=True), WHOLE)),
        ((SPLIT, WHOLE), (4, 6), (4, 1, 6), (SPLIT._replace(is_loose=True), WHOLE, WHOLE)),
        ((SPLIT, WHOLE), (4, 6), (4, 6, 1), (SPLIT, WHOLE, WHOLE)),
        ((SPLIT, WHOLE), (1, 6), (6,), (WHOLE,)),
        ((SPLIT, WHOLE), (6, 4), (4, 6), (SPLIT._replace(is_loose=True), WHOLE)),
        ((SPLIT._replace(is_taught=True), WHOLE), (4, 6), (24,), (UNKNOWN,)),
        ((SPLIT._replace(is_taught=True), WHOLE), (4, 6), (4, 2, 3), (SPLIT._replace(is_taught=True), WHOLE, WHOLE)),
        ((UNKNOWN, WHOLE), (4, 6), (24,), (UNKNOWN,)),
        ((SPLIT, WHOLE), (4, 0), (0,), (UNKNOWN,)),
        ((), (), (1,), (WHOLE,)),
        ((SPLIT,), (1,), (), ()),
    ],
    ids=str,
)  # fmt: skip
def test_a_reshape_keeps_axes_on_the_most_major_dim(
    known: tuple[Dim, ...], before: tuple[int, ...], after: tuple[int, ...], result: tuple[Dim, ...]
) -> None:
    assert tuple(reshaped(known, before, after)) == result
