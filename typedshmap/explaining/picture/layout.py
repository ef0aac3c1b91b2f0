"""Where the values and collectives of a program stand in its picture: from left to right, as they depend on each other.

Invariant: an edge goes from a column to one further right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..model import Collective, Explained, Value

CHARACTER = 7.25
"""The width of a character, in pixels: the text is 12 px high, of one width."""
ROW, TITLE, PAD, GAP, BETWEEN, MARGIN = 22, 24, 8, 16, 70, 20


@dataclass(frozen=True, slots=True)
class Group:
    """Values that are drawn as one box with a row each: the leaves of one argument, or of the result."""

    title: str
    values: tuple[Value, ...]

    @property
    def idents(self) -> tuple[int, ...]:
        return tuple(value.ident for value in self.values)

    @property
    def before(self) -> tuple[int, ...]:
        return tuple(before for value in self.values for before in value.after)

    @property
    def height(self) -> float:
        return TITLE * self.has_title + ROW * len(self.values) + PAD

    @property
    def has_title(self) -> bool:
        return [value.name for value in self.values] != [self.title]


@dataclass(frozen=True, slots=True)
class Arrow:
    """A collective, drawn as an arrow."""

    collective: Collective
    height: float

    @property
    def idents(self) -> tuple[int, ...]:
        return (self.collective.ident,)

    @property
    def before(self) -> tuple[int, ...]:
        return self.collective.after


Node = Group | Arrow


@dataclass(frozen=True, slots=True)
class Placed:
    """A node at its place, in pixels."""

    node: Node
    x: float
    y: float
    width: float

    def anchor(self, ident: int) -> float:
        """How far down the row of a value stands, or the middle of an arrow."""
        if isinstance(self.node, Arrow):
            return self.y + self.node.height / 2
        return self.y + TITLE * self.node.has_title + PAD / 2 + ROW * (self.node.idents.index(ident) + 0.5)


@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes at their places, and between which there are lines.

    Attributes:
      nodes: the nodes, in the program's order.
      lines: pairs of the values or collectives that lines go from and to.
      width: of all, in pixels.
      height: of all, in pixels.
    """

    nodes: tuple[Placed, ...]
    lines: tuple[tuple[int, int], ...]
    width: float
    height: float


def lay_out(explained: Explained, widths: Mapping[int, float]) -> Picture:
    """Place a function's values, and the collectives that its results depend on.

    Args:
      explained: what is told of the function.
      widths: how wide the row of a value, or an arrow, has to be.
    """
    nodes = [*_groups(explained.values), *_arrows(_used(explained))]
    drawn = {ident for node in nodes for ident in node.idents}
    columns = _columns(nodes, drawn)
    placed: dict[int, Placed] = {}
    x, found = float(MARGIN), list[Placed]()
    for column in columns:
        width = max(widths[ident] for node in column for ident in node.idents)
        found += _stacked(column, x, width, placed)
        placed.update((ident, each) for each in found[-len(column) :] for ident in each.node.idents)
        x += width + BETWEEN
    lines = [(before, ident) for node in nodes for ident, before in _lines_to(node) if before in drawn]
    height = max((each.y + each.node.height for each in found), default=0.0) + MARGIN
    return Picture(tuple(found), tuple(dict.fromkeys(lines)), x - BETWEEN + MARGIN, height)


def _lines_to(node: Node) -> Iterable[tuple[int, int]]:
    if isinstance(node, Arrow):
        return ((node.collective.ident, before) for before in node.before)
    return ((value.ident, before) for value in node.values for before in value.after)


def _groups(values: Sequence[Value]) -> list[Group]:
    """One box for each argument and for the result; one for each value that is checked."""
    found: list[Group] = []
    for kind in ("argument", "result"):
        of_kind = [value for value in values if value.kind == kind]
        found += [Group(root, tuple(group)) for root, group in groupby(of_kind, key=lambda value: root_of(value.name))]
    return found + [Group(value.name, (value,)) for value in values if value.kind == "check"]


def root_of(name: str) -> str:
    """The argument that a path begins with."""
    return name.partition(".")[0].partition("[")[0]


def _used(explained: Explained) -> list[Collective]:
    """What results depend on; what is there only where the function is differentiated from outside is not drawn."""
    before = {each.ident: each.after for each in (*explained.values, *explained.collectives)}
    found: set[int] = set()
    waiting = [value.ident for value in explained.values if value.kind != "argument"]
    while waiting:
        ident = waiting.pop()
        if ident not in found:
            found.add(ident)
            waiting += before.get(ident, ())
    return [each for each in explained.collectives if each.ident in found]


def _arrows(collectives: Iterable[Collective]) -> list[Arrow]:
    """Arrows, of which those that send more are thicker."""
    return [Arrow(each, 44 + min(24, 1.2 * (each.wire * each.times).bit_length())) for each in collectives]


def _columns(nodes: Sequence[Node], drawn: set[int]) -> list[list[Node]]:
    """Each node right of all that it depends on; arguments first, results last."""
    by_ident = {ident: node for node in nodes for ident in node.idents}
    ranks: dict[int, int] = {}
    for node in sorted(nodes, key=lambda node: max(node.idents)):
        before = [ranks[id(by_ident[each])] for each in node.before if each in drawn and id(by_ident[each]) in ranks]
        ranks[id(node)] = 0 if _is(node, "argument") else max(before, default=0) + 1
    last = max(ranks.values(), default=0) + 1
    ranks.update((id(node), last) for node in nodes if _is(node, "result"))
    used = sorted(set(ranks.values()))
    return [[node for node in nodes if ranks[id(node)] == rank] for rank in used]


def _is(node: Node, kind: str) -> bool:
    return isinstance(node, Group) and node.values[0].kind == kind


def _stacked(column: Sequence[Node], x: float, width: float, placed: Mapping[int, Placed]) -> list[Placed]:
    """A column's nodes from the top down, each as near as may be to what it depends on."""
    wanted = {id(node): _wanted(node, placed) for node in column}
    found: list[Placed] = []
    y = float(MARGIN)
    for node in sorted(column, key=lambda node: wanted[id(node)]):
        y = max(y, wanted[id(node)] - node.height / 2)
        found.append(Placed(node, x, y, width))
        y += node.height + GAP
    return found


def _wanted(node: Node, placed: Mapping[int, Placed]) -> float:
    heights = [placed[before].anchor(before) for before in node.before if before in placed]
    return sum(heights) / len(heights) if heights else 0.0
