"""Which dims of a region are the same, whatever their sizes are.

Each dim of each operand is taken for one that is sharded over a mesh axis of its own, its label, before those that it
is sharded over. The transfer rules of inference carry the labels through the body. Where an operation needs two dims to
be of one size, their labels are one.

Invariant: labels are one only if the global sizes are, and if the operations need it to be so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from .. import _jax
from ..inference import collectives, control_flow, elementwise, reshape
from ..inference.interpreter import CLAIM, Interpreter, TransferRule
from ..inference.lattice import UNSHARDED, DimFact, ShardingFact
from ..inference.region import RULES

Labels = tuple[str | None, ...]
"""The label of each dim of a value; None for one that is not an operand's."""


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
      sizes: the global size of each label.
      contracted: the labels over which a product sums.
      broadcast: the labels of size 1 that go with any other size.
      gathered: the labels of dims whose shards are put together.
    """

    operands: tuple[Labels, ...]
    results: tuple[Labels, ...]
    values: tuple[ValueDims, ...]
    sizes: Mapping[str, int]
    contracted: frozenset[str]
    broadcast: frozenset[str]
    gathered: frozenset[str]


def read_dims(eqn: Any) -> RegionDims:
    """The dims of the region that an equation is."""
    body, labels = eqn.params["jaxpr"], _LabelSet()
    operands = [[labels.add(size) for size in var.aval.shape] for var in eqn.invars]
    while True:
        before = dict(labels.united)
        interpreter = _DimInterpreter(eqn.params, labels)
        specs = zip(eqn.params["in_specs"], operands, strict=True)
        entering = [_labelled(spec, map(labels.root, own), interpreter) for spec, own in specs]
        found = interpreter.interpret(body, entering)
        if labels.united == before:
            break
    results = [
        interpreter.labels_of(fact, outer.aval.shape, var.aval.shape)
        for fact, var, outer in zip(found, body.outvars, eqn.outvars, strict=True)
    ]
    return RegionDims(
        tuple(tuple(map(labels.root, own)) for own in operands),
        tuple(results),
        tuple(interpreter.values),
        labels.sizes,
        frozenset(interpreter.contracted),
        frozenset(interpreter.broadcast),
        frozenset(interpreter.gathered),
    )


def _labelled(spec: Any, labels: Iterator[str], interpreter: Interpreter) -> ShardingFact:
    own = list(labels)
    fact = control_flow.fact_of_spec(spec, len(own), interpreter.axes)
    return fact.with_dims(DimFact((label, *(dim.axes or ()))) for label, dim in zip(own, fact.dims, strict=True))


class _LabelSet:
    """Labels with their global sizes, and which of them are one."""

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

    def unite(self, labels: Sequence[str]) -> None:
        """Make labels one with the first, those that are of its size."""
        roots = [self.root(label) for label in labels]
        for root in dict.fromkeys(roots[1:]):
            if root != roots[0] and self.sizes[root] == self.sizes[roots[0]]:
                self.united[root] = roots[0]


class _DimInterpreter(Interpreter):
    """Carries labels through a body."""

    def __init__(self, params: Mapping[str, Any], labels: _LabelSet) -> None:
        manual = _jax.jaxpr.newly_manual_axes(params)
        sizes = {axis: size for axis, size in params["mesh"].shape_tuple if axis in manual}
        super().__init__(sizes, False, _RULES)
        self.labels = labels
        self.values: list[ValueDims] = []
        self.contracted, self.broadcast, self.gathered = set[str](), set[str](), set[str]()

    def due_sum(self, eqn: Any, fact: ShardingFact, axes: frozenset[str]) -> ShardingFact:
        return fact

    def label_of(self, dim: DimFact, size: int) -> str | None:
        """The label of a dim of so many elements on a shard; None where it is a part of what had one."""
        label, *axes = dim.axes or ("",)
        if label not in self.labels.sizes or not self.axes.issuperset(axes):
            return None
        is_all = self.labels.sizes[label] == size * prod(self.sizes[axis] for axis in axes)
        return self.labels.root(label) if is_all else None

    def labels_of(self, fact: ShardingFact, shape: Sequence[int], shard_shape: Sequence[int]) -> Labels:
        """The labels of the dims of a global value, by what is known of its shards."""
        found = [self.label_of(dim, size) for dim, size in zip(fact.dims, shard_shape, strict=True)]
        pairs = zip(found, shape, strict=True)
        return tuple(label if label and self.labels.sizes[label] == size else None for label, size in pairs)

    def unite(self, dims: Sequence[DimFact], size: int) -> None:
        """Take dims of so many elements on a shard for one."""
        found = [label for dim in dims if (label := self.label_of(dim, size)) is not None]
        if len(found) > 1:
            self.labels.unite(found)

    def unite_values(self, facts: Sequence[ShardingFact], shape: Sequence[int]) -> None:
        """Take all dims of values for those of one."""
        for at, size in enumerate(shape):
            self.unite([fact.dims[at] for fact in facts], size)


def _followed(rule: TransferRule) -> TransferRule:
    """A rule that carries labels: of dims that it takes for one, in one value or in two, none loses its label."""

    def follow(interpreter: Any, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
        places, meaning = _same_dims(eqn), dict[str, list[tuple[DimFact, int]]]()
        given = [
            fact.with_dims(
                _renamed(dim, places.get((which, at), f"{which}.{at}"), size, meaning)
                for at, (dim, size) in enumerate(zip(fact.dims, _shape(atom), strict=True))
            )._replace(number=fact.number)
            for which, (fact, atom) in enumerate(zip(facts, eqn.invars, strict=True))
        ]
        axes: dict[str, tuple[str, ...]] = {}
        for token, dims in meaning.items():
            interpreter.unite([dim for dim, _ in dims], dims[0][1])
            axes[token] = max((dim.axes or () for dim, _ in dims), key=len)
        return [
            fact.with_dims(
                _restored(interpreter, dim, axes, size) for dim, size in zip(fact.dims, _shape(var), strict=True)
            )._replace(number=fact.number)
            for fact, var in zip(rule(interpreter, eqn, given), eqn.outvars, strict=True)
        ]

    return follow


def _renamed(dim: DimFact, token: str, size: int, meaning: dict[str, list[tuple[DimFact, int]]]) -> DimFact:
    """A dim of an operand, with a token for its axes; parts of merged dims have their own."""
    parts = [(axes and (token if axes == dim.axes else f"{token}/{at}",), n) for at, (axes, n) in enumerate(dim.parts)]
    for (own, _), (axes, n) in zip(dim.parts, parts, strict=True):
        if own and own != dim.axes:
            meaning.setdefault(axes[0], []).append((DimFact(own), n))
    if dim.axes:
        meaning.setdefault(token, []).append((dim, size))
        return DimFact((token,), is_movable=dim.is_movable, parts=tuple(parts))
    return DimFact(None, is_movable=dim.is_movable, parts=tuple(parts)) if parts else UNSHARDED


def _restored(interpreter: _DimInterpreter, dim: DimFact, meaning: Mapping[str, tuple[str, ...]], size: int) -> DimFact:
    """A dim of a result, with the axes that tokens stand for; one that has its label is not a part of anything."""

    def axes_of(tokens: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for token in tokens for axis in meaning.get(token, (token,)))

    if dim.axes is None and not dim.parts:
        return UNSHARDED
    found = DimFact(
        None if dim.axes is None else axes_of(dim.axes),
        is_movable=dim.is_movable,
        parts=tuple((axes_of(axes), n) for axes, n in dim.parts),
    )
    return DimFact(found.axes) if interpreter.label_of(found, size) is not None else found


def _same_dims(eqn: Any) -> dict[tuple[int, int], str]:
    """For operands and their dims a token where an operation needs several dims to be of one size."""
    name, params, shapes = eqn.primitive.name, eqn.params, list(map(_shape, eqn.invars))
    if name == "dot_general":
        (contracted, batched), pairs = params["dimension_numbers"], list[tuple[int, int]]()
        for left, right in (contracted, batched):
            pairs += zip(left, right, strict=True)
        return _paired(pairs)
    if name == "conv_general_dilated" and params["feature_group_count"] == params["batch_group_count"] == 1:
        numbers = params["dimension_numbers"]
        return _paired([(numbers.lhs_spec[1], numbers.rhs_spec[1])])
    if name == "gather":
        numbers = params["dimension_numbers"]
        return _paired(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    if _is_elementwise(eqn) or name in ("concatenate", "stack", "sort"):
        along = params["dimension"] if name == "concatenate" else -1
        return {
            (which, at): str(at)
            for which, shape in enumerate(shapes)
            for at, size in enumerate(shape)
            if at != along and size == max(other[at] for other in shapes if len(other) == len(shape))
        }
    return {}


def _shape(atom: Any) -> tuple[int, ...]:
    """The shape of a value; a token has none."""
    return getattr(atom.aval, "shape", ())


def _paired(pairs: Any) -> dict[tuple[int, int], str]:
    return {place: f"={at}" for at, (a, b) in enumerate(pairs) for place in ((0, a), (1, b))}


def _noted(rule: TransferRule) -> TransferRule:
    """A rule whose results are noted, with what is contracted and what is broadcast."""

    def note(interpreter: Any, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
        results = rule(interpreter, eqn, facts)
        lines = tuple(_jax.source.equation_lines(eqn))
        for fact, var in zip(results, eqn.outvars, strict=True):
            dims = tuple(interpreter.label_of(dim, size) for dim, size in zip(fact.dims, _shape(var), strict=True))
            interpreter.values.append(ValueDims(lines, dims))
        if eqn.primitive.name == "dot_general":
            (left, _), _ = eqn.params["dimension_numbers"]
            found = (interpreter.label_of(facts[0].dims[at], eqn.invars[0].aval.shape[at]) for at in left)
            interpreter.contracted.update(filter(None, found))
        for which, at in _grown_dims(eqn):
            label = interpreter.label_of(facts[which].dims[at], 1)
            if label is not None and interpreter.labels.sizes[label] == 1:
                interpreter.broadcast.add(label)
        if _jax.jaxpr.collective_operation(eqn) == "all-gather":
            gathered = interpreter.values[-1].dims[eqn.params["all_gather_dimension"]]
            interpreter.gathered.update(filter(None, [gathered]))
        return results

    return note


def _grown_dims(eqn: Any) -> Iterator[tuple[int, int]]:
    """Operands and their dims of size 1 that become longer."""
    if eqn.primitive.name == "broadcast_in_dim":
        after = [eqn.params["shape"][to] for to in eqn.params["broadcast_dimensions"]]
        operands = eqn.invars[:1]
    elif _is_elementwise(eqn):
        after, operands = eqn.outvars[0].aval.shape, eqn.invars
    else:
        return
    for which, atom in enumerate(operands):
        for at, (size, grown) in enumerate(zip(atom.aval.shape, after, strict=False)):
            if size == 1 != grown:
                yield which, at


def _is_elementwise(eqn: Any) -> bool:
    return RULES.get(eqn.primitive.name) is elementwise.elementwise


def _scan(interpreter: Any, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
    """What is carried has one shape before and after an iteration, and what the loop goes over one length."""
    consts, carried = _jax.jaxpr.scan_counts(eqn.params)
    carry, stacked = facts[consts : consts + carried], facts[consts + carried :]
    items = [fact.with_dims(fact.dims[1:]) for fact in stacked]
    results = interpreter.interpret(eqn.params["jaxpr"], [*facts[:consts], *carry, *items])
    for var, *both in zip(eqn.outvars, carry, results, strict=False):
        interpreter.unite_values(both, var.aval.shape)
    interpreter.unite([fact.dims[0] for fact in stacked], eqn.params["length"])
    return control_flow.scan(interpreter, eqn, facts)


def _while(interpreter: Any, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
    """What is carried has one shape before and after an iteration."""
    _, consts, carry = _jax.jaxpr.while_operands(eqn, facts)
    results = interpreter.interpret(eqn.params["body_jaxpr"], [*consts, *carry])
    for var, *both in zip(eqn.outvars, carry, results, strict=True):
        interpreter.unite_values(both, var.aval.shape)
    return control_flow.while_loop(interpreter, eqn, facts)


def _cond(interpreter: Any, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
    """The results of all branches have one shape."""
    branches = [interpreter.interpret(branch, facts[1:]) for branch in eqn.params["branches"]]
    for var, *each in zip(eqn.outvars, *branches, strict=True):
        interpreter.unite_values(each, var.aval.shape)
    return control_flow.cond(interpreter, eqn, facts)


def _kept(interpreter: Any, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    return facts[: len(eqn.outvars)]


_SIZES_ONLY: dict[str, Callable[..., Any]] = {"sort": _kept, "rev": RULES["slice"], "fft": RULES["slice"]}
"""Of the dims that these mix, only the sizes stay."""
_UNFOLLOWED = {**control_flow.RULES, **collectives.RULES, "dynamic_slice": reshape.RULES["dynamic_slice"]}
_RULES: dict[str, TransferRule] = {
    name: _noted(rule if name in _UNFOLLOWED else _followed(rule))
    for name, rule in {**RULES, **_SIZES_ONLY, "scan": _scan, "while": _while, "cond": _cond, CLAIM: _kept}.items()
}
