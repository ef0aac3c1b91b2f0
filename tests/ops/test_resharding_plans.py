"""Plans of a reshard as data: their steps, their bytes, their bounds, and what has none."""

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resharded import LAYOUTS, SIZES, cut, planned

from typedshmap import PatternError, ShapeError, plan_reshard
from typedshmap.notation.layout import Layout
from typedshmap.ops.resharding.pieces import moved_axes, rounds
from typedshmap.ops.resharding.plan import Plan, plan

PAIRS = tuple(product(LAYOUTS, LAYOUTS))
# Of all pairs, as bench/reshard.py reads them from the programs of jax 0.10.2 and 0.12.0.1.
XLA_BYTES = 1_529_088


@pytest.mark.parametrize(
    "source, target, steps, elements",
    [
        ("a|", "a|", [], 0),
        ("|", "a|b", ["slice"], 0),
        ("a|", "|", ["all_gather"], 256),
        ("a,b|", "|", ["all_gather"], 3 * 128),
        ("a|", "|a", ["all_to_all"], 128),
        ("a,b|", "|b,a", ["all_to_all"], 96),
        ("a,b|", "b,a|", ["ppermute"], 128),
        ("a|b", "b|a", ["ppermute"], 128),
        ("a|", "b|", ["ppermute"], 256),
        # Half a block is sent, and the other half comes from the shards along c.
        ("a,b|", "b|a", ["ppermute", "all_gather"], 128),
        # Two ppermutes of a piece each send less than an all_to_all and a ppermute.
        ("a,b|c", "c|a,b", ["ppermute"], 64),
        ("| +a", "|", ["psum"], 512),
        ("| +a", "a|", ["psum_scatter"], 256),
        ("c| +a,b", "c|", ["psum"], 384),
        ("c| +a,b", "c|b,a", ["psum_scatter"], 192),
        # The shards along c hold the same, so each sums half.
        ("| +a,b", "|b,a", ["slice", "psum_scatter", "all_gather"], 192 + 64),
        ("| +a", "b| +a", ["slice"], 0),
        ("b| +a,c", "| +c", ["psum", "all_gather"], 128 + 3 * 128),
    ],
)
def test_a_plan_takes_the_cheapest_steps(source: str, target: str, steps: list[str], elements: int) -> None:
    found = planned(source, target)
    assert ([step.kind for step in found.steps], found.elements) == (steps, elements)


@pytest.mark.parametrize(
    ("pattern", "error", "problem"),
    [
        ("x y -> x y +a", PatternError, "there is no partial sum over 'a' before, so none can be left"),
        ("x y +a -> x y +a +b", PatternError, "there is no partial sum over 'b' before, so none can be left"),
        ("x y -> x [y/a,b]", ShapeError, "the result has y=6, which does not divide over 'a', 'b' (4 shards)"),
        ("x [y/a,b] -> x y", ShapeError, "the result has y=6, which does not divide over 'a', 'b' (4 shards)"),
    ],
)
def test_there_is_no_plan_for(pattern: str, error: type[Exception], problem: str) -> None:
    with pytest.raises(error) as raised:
        plan_reshard(pattern, (16, 6), SIZES)
    assert str(raised.value).splitlines()[0] == f"plan_reshard: {problem}"


def test_the_plans_of_all_pairs_are_within_bounds() -> None:
    """No shard is larger than both ends; none sends less than its lower bound, and all 0.7 of what XLA does at most."""
    plans = [planned(*pair) for pair in PAIRS]
    assert [p for p in plans if prod(p.peak) != max(prod(p.shards[0]), prod(p.shards[-1]))] == []
    assert [p for p in plans if p.elements < p.lower_bound] == []
    assert sum(p.bytes for p in plans) <= 0.7 * XLA_BYTES


@pytest.mark.parametrize(
    "source, target, sizes",
    [
        # XLA's partitioner sends as much for each of these, and a plan of fewer collectives would send more.
        ("a|", "b|a", {"a": 2, "b": 4}),
        ("|a", "a|b", {"a": 2, "b": 4}),
        ("a|b", "|a", {"a": 2, "b": 4}),
        ("a|b", "b|a", {"a": 2, "b": 8}),
        ("c|a", "b|", {"a": 2, "b": 2, "c": 4}),
        ("b|c", "|a", {"a": 2, "b": 2, "c": 4}),
    ],
)
def test_a_plan_sends_no_more_than_a_device_lacks(source: str, target: str, sizes: dict[str, int]) -> None:
    found = planned(source, target, **sizes)
    assert found.elements == found.lower_bound


def held(
    partition: Layout, device: dict[str, int], sizes: dict[str, int], shape: tuple[int, ...]
) -> set[tuple[int, ...]]:
    """The elements that a device holds, one by one."""
    ranges: list[range] = []
    for size, axes in zip(shape, partition.dim_axes, strict=True):
        block, blocks = 0, 1
        for axis in axes:
            block, blocks = block * sizes[axis] + device[axis], blocks * sizes[axis]
        ranges.append(range(block * size // blocks, (block + 1) * size // blocks))
    return set(product(*ranges))


@pytest.mark.parametrize("source, target", PAIRS[::37], ids=str)
def test_the_lower_bound_is_what_some_device_lacks(source: Layout, target: Layout) -> None:
    shape = (8, 8)
    devices = [dict(zip(SIZES, at, strict=True)) for at in product(*map(range, SIZES.values()))]
    lacking = [len(held(target, d, SIZES, shape) - held(source, d, SIZES, shape)) for d in devices]
    assert planned(source, target, shape).lower_bound == max(lacking)


MESHES = (
    {"a": 2, "b": 2, "c": 2},
    {"a": 4, "b": 2},
    {"a": 2, "b": 3},
    {"a": 6},
    {"a": 1, "b": 2, "c": 4},
    {"a": 1, "b": 1},
)


@st.composite
def tasks(draw: st.DrawFn) -> tuple[Layout, Layout, tuple[int, ...], dict[str, int]]:
    sizes = draw(st.sampled_from(MESHES))
    rank = draw(st.integers(1, 3))
    unreduced_axes = draw(st.frozensets(st.sampled_from(sorted(sizes))))
    kept = draw(st.frozensets(st.sampled_from(sorted(unreduced_axes)))) if unreduced_axes else unreduced_axes
    ends = [_end(draw, sorted(set(sizes) - marks), rank, marks) for marks in (unreduced_axes, kept)]
    least = [prod(sizes[a] for a in {*x, *y}) for x, y in zip(ends[0].dim_axes, ends[1].dim_axes, strict=True)]
    return ends[0], ends[1], tuple(n * draw(st.integers(1, 3)) for n in least), sizes


def _end(draw: st.DrawFn, axes: list[str], rank: int, unreduced_axes: frozenset[str]) -> Layout:
    order = draw(st.permutations(axes))
    places = draw(st.lists(st.integers(-1, rank - 1), min_size=len(order), max_size=len(order)))
    parts = tuple(tuple(a for a, place in zip(order, places, strict=True) if place == i) for i in range(rank))
    return Layout(parts, unreduced_axes)


@given(tasks())
def test_the_steps_lead_from_the_source_to_the_target(
    task: tuple[Layout, Layout, tuple[int, ...], dict[str, int]],
) -> None:
    source, target, shape, sizes = task
    found = plan(source, target, shape, sizes)
    assert isinstance(found, Plan)
    ends = [(step.before, step.after) for step in found.steps]
    proper = [_without_units(end, sizes) for end in (source, target)]
    chain = [end for pair in ends for end in pair] or [proper[0]] * 2
    assert _without_units(chain[0], sizes) == proper[0]
    assert _without_units(chain[-1], sizes) == proper[1]
    assert all(
        _without_units(chain[i], sizes) == _without_units(chain[i + 1], sizes) for i in range(1, len(chain) - 1, 2)
    )


def _without_units(partition: Layout, sizes: dict[str, int]) -> Layout:
    parts = tuple(tuple(a for a in axes if sizes[a] > 1) for axes in partition.dim_axes)
    return Layout(parts, frozenset(a for a in partition.unreduced if sizes[a] > 1))


@given(tasks())
def test_every_step_divides_its_dims(task: tuple[Layout, Layout, tuple[int, ...], dict[str, int]]) -> None:
    source, target, shape, sizes = task
    found = plan(source, target, shape, sizes)
    assert isinstance(found, Plan)
    for step in found.steps:
        blocks = [prod(sizes[a] for a in axes) for axes in step.after.dim_axes]
        assert tuple(n * k for n, k in zip(step.shard_after, blocks, strict=True)) == shape


def test_where_nothing_else_divides_the_plan_says_that_it_needs_a_larger_shard() -> None:
    found = planned("a|", "b|", (12, 1), a=4, b=6)
    assert ([step.kind for step in found.steps], found.is_within_ends) == (["all_gather", "slice"], False)


@pytest.mark.parametrize("source, target", [("a,u|", "a|u"), ("a,u|", "a|"), ("a| +u", "a|"), ("a|", "a|u")])
def test_axes_of_size_1_cost_nothing(source: str, target: str) -> None:
    assert planned(source, target, a=2, u=1).steps == ()


@pytest.mark.parametrize(
    "before, after, sent",
    [
        ("a|", "b|", [[(0, 0), (2, 1), (1, 2), (3, 3)]]),
        ("a,b|", "b,a|", [[(0, 0), (2, 1), (1, 2), (3, 3)]]),
        ("a|b", "b|a", [[(0, 0), (2, 1), (1, 2), (3, 3)]]),
        # Every device keeps one piece, and gets the other.
        ("a|", "|a", [[], [(1, 0), (0, 1)]]),
    ],
)
def test_a_device_that_has_a_piece_of_its_block_keeps_it(
    before: str, after: str, sent: list[list[tuple[int, int]]]
) -> None:
    ends, sizes = (cut(before).dim_axes, cut(after).dim_axes), {"a": 2, "b": 2}
    found = rounds(*ends, moved_axes(*ends, sizes), tuple(sizes.items()))
    assert [list(each.pairs) for each in found] == sent


def test_a_mesh_of_131072_devices_is_planned_as_quickly() -> None:
    found = planned("a,b|c|d", "d|c|b,a", (2**14, 2**14, 2**14), a=16, b=32, c=16, d=16)
    assert isinstance(found, Plan)
    assert found.is_within_ends


def test_a_mesh_of_eight_axes_is_planned_too() -> None:
    sizes = dict.fromkeys("abcdefgh", 2)
    found = planned("a,b,c|d|e", "a,c,b|e|d", (256, 256, 256), **sizes)
    assert found.is_within_ends


def test_a_plan_prints_as_a_table() -> None:
    assert str(planned("a|b", "b|", a=2, b=4)) == "\n".join([
        "reshard [16/a] [32/b] -> [16/b] 32 on a=2, b=4",
        "  step         axes  shard         bytes",
        "  ppermute x2  a,b   8x8 -> 4x16     256",
        "  all_gather   a     4x16 -> 4x32    256",
        "  total                              512",
        "peak shard 4x32 (512 bytes)",
        "lower bound 512 bytes",
    ])  # fmt: skip


def test_a_plan_of_a_scalar_prints_too() -> None:
    found = plan(Layout((), frozenset("a")), Layout(()), (), SIZES)
    assert str(found).splitlines()[2] == "  psum   a     scalar -> scalar      4"
