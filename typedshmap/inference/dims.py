"""Find which dims of a region are the same, whatever their sizes are.

Each dim of each operand is taken to be sharded over a mesh axis of its own, its label, ahead of those that it is
sharded over. The transfer rules carry the labels through the body. Where an operation needs two dims to be of one size,
their labels are united, and the body is interpreted again.

Invariant: labels are united only if the global sizes are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from .. import _jax
from . import collectives, control_flow, elementwise, reshape
from .interpreter import CLAIM, Interpreter, TransferRule
from .lattice import UNSHARDED, DimFact, ShardingFact
from .region import RULES

Labels = tuple[str | None, ...]
"""The label of each dim of a value; None for a dim that is not one of an operand."""


class ValueDims(NamedTuple):
    """The result of an equation.

    Attributes:
      lines: the files and lines of the user's functions that were running, from the innermost on.
      dims: the labels of its dims.
    """

    lines: tuple[tuple[str, int], ...]
    dims: Labels


class RegionDims(NamedTuple):
    """The dims of a region.

    Attributes:
      operands: the labels of the dims of its equation's operands.
      results: those of its equation's results.
      values: the results of the equations of its body, in their order.
      broadcast: the labels of dims of size 1 that go with any other size.
    """

    operands: tuple[Labels, ...]
    results: tuple[Labels, ...]
    values: tuple[ValueDims, ...]
    broadcast: frozenset[str]


def read_dims(eqn: Any) -> RegionDims:
    """The dims of the region that an equation is."""
    body, labels = eqn.params["jaxpr"], _LabelSet()
    operands = [[labels.add(size) for size in var.aval.shape] for var in eqn.invars]
    while True:
        count = len(labels.united)
        reader = _DimReader(eqn.params, labels)
        specs = zip(eqn.params["in_specs"], operands, strict=True)
        found = reader.interpret(body, [_labelled(spec, map(labels.root, own), reader) for spec, own in specs])
        if len(labels.united) == count:
            break
    results: list[Labels] = []
    for fact, var, outer in zip(found, body.outvars, eqn.outvars, strict=True):
        pairs = zip(reader.labels_of(fact, _shape(var)), outer.aval.shape, strict=True)
        results.append(tuple(label if label and labels.sizes[label] == size else None for label, size in pairs))
    roots = tuple(tuple(map(labels.root, own)) for own in operands)
    return RegionDims(roots, tuple(results), tuple(reader.values), frozenset(reader.broadcast))


def _labelled(spec: Any, labels: Iterator[str], reader: Interpreter) -> ShardingFact:
    own = list(labels)
    fact = control_flow.fact_of_spec(spec, len(own), reader.axes)
    return fact.with_dims(DimFact((label, *(dim.axes or ()))) for label, dim in zip(own, fact.dims, strict=True))


class _LabelSet:
    """Labels with their global sizes, and which of them are united."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.united: dict[str, str] = {}

    def add(self, size: int) -> str:
        label = f"#{len(self.sizes)}"
        self.sizes[label] = size
        return label

    def root(self, label: str) -> str:
        while label in self.united:
            label = self.united[label]
        return label


class _DimReader(Interpreter):
    """Carries labels through a body."""

    def __init__(self, params: Mapping[str, Any], labels: _LabelSet) -> None:
        manual = _jax.jaxpr.newly_manual_axes(params)
        sizes = {axis: size for axis, size in params["mesh"].shape_tuple if axis in manual}
        super().__init__(sizes, False, _RULES)
        self.labels, self.values, self.broadcast = labels, list[ValueDims](), set[str]()

    def due_sum(self, eqn: Any, fact: ShardingFact, axes: frozenset[str]) -> ShardingFact:
        return fact

    def label_of(self, dim: DimFact, size: int) -> str | None:
        """The label of a dim of so many elements on a shard; None where it is only a part of what has the label."""
        label, *axes = dim.axes or ("",)
        if label not in self.labels.sizes or not self.axes.issuperset(axes):
            return None
        is_all = self.labels.sizes[label] == size * prod(self.sizes[axis] for axis in axes)
        return self.labels.root(label) if is_all else None

    def labels_of(self, fact: ShardingFact, shape: Sequence[int]) -> Labels:
        return tuple(self.label_of(dim, size) for dim, size in zip(fact.dims, shape, strict=True))

    def unite(self, dims: Sequence[DimFact], size: int) -> None:
        """Take dims of so many elements on a shard for one."""
        first, *others = [label for dim in dims if (label := self.label_of(dim, size)) is not None] or [""]
        for label in others:
            if self.labels.root(label) != first and self.labels.sizes[label] == self.labels.sizes[first]:
                self.labels.united[label] = first

    def unite_values(self, facts: Sequence[ShardingFact], shape: Sequence[int]) -> None:
        """Take the dims of values for those of one."""
        for size, *dims in zip(shape, *(fact.dims for fact in facts), strict=True):
            self.unite(dims, size)

    def note_broadcast(self, eqn: Any, facts: Sequence[ShardingFact]) -> None:
        """Note which dims of size 1 become longer."""
        after, operands = (_shape(eqn.outvars[0]), eqn.invars) if _is_elementwise(eqn) else ((), ())
        if eqn.primitive.name == "broadcast_in_dim":
            after, operands = [eqn.params["shape"][to] for to in eqn.params["broadcast_dimensions"]], eqn.invars[:1]
        for fact, atom in zip(facts, operands, strict=False):
            sizes = _shape(atom)
            for label, size, longer in zip(self.labels_of(fact, sizes), sizes, after, strict=False):
                if label is not None and size == self.labels.sizes[label] == 1 != longer:
                    self.broadcast.add(label)


def _followed(rule: TransferRule) -> TransferRule:
    """A rule that carries labels: of dims that it takes for one, in one value or in two, none loses its label."""

    def follow(reader: Any, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
        groups, places = dict[str, list[tuple[DimFact, int]]](), _places(eqn)
        for which, (fact, atom) in enumerate(zip(facts, eqn.invars, strict=True)):
            for at, pair in enumerate(zip(fact.dims, _shape(atom), strict=True)):
                groups.setdefault(places.get((which, at), f"{which}.{at}"), []).append(pair)
        own = dict[str, DimFact]()
        for place, pairs in groups.items():
            reader.unite([dim for dim, _ in pairs], pairs[0][1])
            dim = max((dim for dim, _ in pairs), key=lambda dim: len(dim.known_axes))
            # An axis may stand twice in a value: each place has its own name for it.
            own[place] = _renamed(dim, lambda axis, place=place: f"{axis}@{place}")
        given = [
            fact._replace(dims=tuple(own[places.get((which, at), f"{which}.{at}")] for at in range(len(fact.dims))))
            for which, fact in enumerate(facts)
        ]
        return [
            fact._replace(
                dims=tuple(
                    DimFact(found.axes) if reader.label_of(found, size) is not None else found
                    for dim, size in zip(fact.dims, _shape(var), strict=True)
                    for found in (_renamed(dim, lambda axis: axis.rpartition("@")[0]),)
                )
            )
            for fact, var in zip(rule(reader, eqn, given), eqn.outvars, strict=True)
        ]

    return follow


def _renamed(dim: DimFact, rename: Callable[[str], str]) -> DimFact:
    """A dim with other names for its axes; one of which nothing is known goes with any other, as a constant's does."""
    if not dim.known_axes:
        return UNSHARDED
    parts = tuple((tuple(map(rename, axes)), size) for axes, size in dim.parts)
    axes = None if dim.axes is None else tuple(map(rename, dim.axes))
    return DimFact(axes, is_movable=dim.is_movable, parts=parts)


def _places(eqn: Any) -> dict[tuple[int, int], str]:
    """For operands and their dims a place that is the same for dims which the operation needs to be of one size."""
    name, params, shapes = eqn.primitive.name, eqn.params, list(map(_shape, eqn.invars))
    pairs: list[tuple[int, int]] = []
    if name == "dot_general":
        pairs = [pair for both in params["dimension_numbers"] for pair in zip(*both, strict=True)]
    elif name == "conv_general_dilated" and params["feature_group_count"] == params["batch_group_count"] == 1:
        pairs = [(params["dimension_numbers"].lhs_spec[1], params["dimension_numbers"].rhs_spec[1])]
    elif name == "gather":
        numbers = params["dimension_numbers"]
        pairs = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    elif _is_elementwise(eqn) or name in ("concatenate", "stack", "sort"):
        along = params["dimension"] if name == "concatenate" else None
        largest = list(map(max, zip(*filter(None, shapes), strict=False)))
        return {
            (which, at): str(at)
            for which, shape in enumerate(shapes)
            for at, size in enumerate(shape)
            if at != along and size == largest[at]
        }
    return {place: f"={at}" for at, (a, b) in enumerate(pairs) for place in ((0, a), (1, b))}


def _is_elementwise(eqn: Any) -> bool:
    return RULES.get(eqn.primitive.name) is elementwise.elementwise


def _shape(atom: Any) -> tuple[int, ...]:
    """The shape of a value; a token has none."""
    return getattr(atom.aval, "shape", ())


def _noted(rule: TransferRule) -> TransferRule:
    """A rule whose results are noted."""

    def note(reader: Any, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
        results, lines = rule(reader, eqn, facts), tuple(_jax.source.equation_lines(eqn))
        for fact, var in zip(results, eqn.outvars, strict=True):
            reader.values.append(ValueDims(lines, reader.labels_of(fact, _shape(var))))
        reader.note_broadcast(eqn, facts)
        return results

    return note


def _scan(reader: Any, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
    """What is carried has one shape before and after an iteration, and what the loop goes over one length."""
    consts, carried = _jax.jaxpr.scan_counts(eqn.params)
    carry, stacked = facts[consts : consts + carried], facts[consts + carried :]
    items = [fact.with_dims(fact.dims[1:]) for fact in stacked]
    results = reader.interpret(eqn.params["jaxpr"], [*facts[:consts], *carry, *items])
    for var, *both in zip(eqn.outvars, carry, results, strict=False):
        reader.unite_values(both, _shape(var))
    reader.unite([fact.dims[0] for fact in stacked], eqn.params["length"])
    return control_flow.scan(reader, eqn, facts)


def _while(reader: Any, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
    """What is carried has one shape before and after an iteration."""
    _, consts, carry = _jax.jaxpr.while_operands(eqn, facts)
    for var, *both in zip(
        eqn.outvars, carry, reader.interpret(eqn.params["body_jaxpr"], [*consts, *carry]), strict=True
    ):
        reader.unite_values(both, _shape(var))
    return control_flow.while_loop(reader, eqn, facts)


def _cond(reader: Any, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
    """The results of all branches have one shape."""
    branches = [reader.interpret(branch, facts[1:]) for branch in eqn.params["branches"]]
    for var, *each in zip(eqn.outvars, *branches, strict=True):
        reader.unite_values(each, _shape(var))
    return control_flow.cond(reader, eqn, facts)


def _kept(reader: Any, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    return facts[: len(eqn.outvars)]


# Of the dims that these mix, the sizes stay.
_RESIZING: dict[str, TransferRule] = {"sort": _kept, "rev": RULES["pad"], "fft": RULES["pad"]}
_UNFOLLOWED = {**control_flow.RULES, **collectives.RULES, "dynamic_slice": reshape.RULES["dynamic_slice"]}
_RULES: dict[str, TransferRule] = {
    name: _noted(rule if name in _UNFOLLOWED else _followed(rule))
    for name, rule in {**RULES, **_RESIZING, "scan": _scan, "while": _while, "cond": _cond, CLAIM: _kept}.items()
}
