"""What the tests of resharding share: the mesh's sizes, all layouts of two dims over its axes, specs and plans."""

from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any

from jax.sharding import PartitionSpec as P

from typedshmap.notation.layout import Layout
from typedshmap.ops.resharding.plan import Plan, plan

AXES = ("a", "b", "c")
SIZES = dict.fromkeys(AXES, 2)
SHAPE = (16, 32)


def layouts(axes: Sequence[str]) -> list[Layout]:
    """All ways to split two dims over some of the axes."""
    orders = [order for n in range(len(axes) + 1) for some in combinations(axes, n) for order in permutations(some)]
    return [Layout((order[:at], order[at:])) for order in orders for at in range(len(order) + 1)]


LAYOUTS = layouts(AXES)


def cut(text: str) -> Layout:
    """A layout: ``a,b|c +d`` has two dims, and is unreduced over d."""
    dims, _, unreduced = text.partition(" +")
    parts = tuple(tuple(dim.split(",")) if dim else () for dim in dims.split("|"))
    return Layout(parts, frozenset(unreduced.split(",")) if unreduced else frozenset())


def spec(layout: Layout) -> P:
    return P(*(axes or None for axes in layout.dim_axes))


def planned(source: Layout | str, target: Layout | str, shape: tuple[int, ...] = SHAPE, **sizes: Any) -> Plan:
    """The plan between two layouts, or the texts of them."""
    ends = [cut(end) if isinstance(end, str) else end for end in (source, target)]
    found = plan(*ends, shape, sizes or SIZES)
    assert isinstance(found, Plan)
    return found
