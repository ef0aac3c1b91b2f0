"""Find the cause of an error: where a value began to contradict its hint, and the edits that make it right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ... import _jax
from ...errors.causes import Cause, Cure
from .cures import find_cure, is_right_when_gathered
from .origins import ValueOrigin, is_extreme
from .reading import JaxprRun, Reading
from .region_kinds import Kinds, RegionReading
from .suspects import problem_of
from .value import NO_PARTS, Share, is_negative

_MEANS = frozenset(["mean", "nanmean", "average"])
_CONTRACTIONS = frozenset(
    [name for name, primitive in _jax.primitives.PRIMITIVES.items() if primitive.kind == "product" and primitive.along]
)
_OVER_DIMS = _jax.primitives.names_of("reducing") | _CONTRACTIONS | {"gather"}
_OF_DIMS = frozenset(["derived", "part", "item", "mapped", "ring"])
_SUMS = frozenset(["sum", "contraction", "gradient", "hint", "pattern"])


class AxisCause(NamedTuple):
    """Why a value differs between the shards of one axis.

    Attributes:
      kind: as in `Cause`.
      origin: where it began to differ.
      eqn: the equation that made a part, if it is in a loop that is the origin.
    """

    kind: str
    origin: ValueOrigin
    eqn: Any = None

    @property
    def key(self) -> Any:
        """A key that is equal for axes with the same cause: one operation, or one dim of an argument."""
        return self.kind, id(self.origin.eqn) if self.origin.eqn is not None else self.origin.name

    @property
    def made(self) -> Any:
        """The equation that made the value."""
        return self.origin.eqn if self.eqn is None else self.eqn

    @property
    def is_over_dims(self) -> bool:
        """Whether an operation along sharded dims is the cause."""
        is_along = self.made is not None and self.made.primitive.name in _OVER_DIMS
        return is_along or self.made is not self.origin.eqn or self.kind in _OF_DIMS


def cause_of(kinds: Kinds, axes: Sequence[str], key: int, wants_cure: bool = True) -> Cause | None:
    """The cause for which a value varies over the first of some axes, and the other axes with the same cause.

    Args:
      kinds: the kinds of the region's values.
      axes: the mesh axes.
      key: the index of a result, or the id of the equation of a claim.
      wants_cure: whether to search for a cure.
    """
    kinds.ask_for(key)
    causes = {axis: cause for axis in axes if (cause := _axis_cause(kinds, axis, key)) is not None}
    if not causes:
        return None
    axis, first = next(iter(causes.items()))
    origin, shared = first.origin, tuple(other for other, cause in causes.items() if cause.key == first.key)
    dims = dict[str, tuple[str, ...]]()
    for other in shared if first.is_over_dims else ():
        name = causes[other].origin.name[0]
        dims[name] = (*dims.get(name, ()), other)
    mark = _mark(kinds, axes, key)
    cause = Cause(first.kind, shared, _what(first), origin.place, tuple(dims.items()), origin.name[1], mark)
    if wants_cure and first.kind in ("sum", "extreme"):
        cause = _with_cure(kinds, cause, first, axis, axes, key)
    elif wants_cure and first.kind in ("mean", "derived", "other"):
        cause = _with_cure_of_unknown(kinds, cause, first, axes, key)
    if cause.kind not in ("part", "item", "mapped", "derived"):
        return cause
    return cause._replace(may_gather=all(_may_gather(kinds, other, causes[other], key) for other in shared))


def _with_cure(kinds: Kinds, cause: Cause, first: AxisCause, axis: str, axes: Sequence[str], key: int) -> Cause:
    """The cause of a value that is computed from parts, with the cure, or with the operation that loses the parts."""
    read, cures = kinds.reading_of(axis, key), _cures(kinds, cause.axes, axes, key)
    losses = read.reading.losses_of(read.values[key])
    if not cures:
        site = _jax.source.call_site(first.origin.written)[1]
        if site is not None and any(_jax.source.call_site(loss.eqn)[1] == site for loss in losses):
            # The function that made the part also uses it: no collective can be inserted between.
            return cause._replace(kind="derived", what=_jax.source.called_function(first.origin.written))
    cure = _in_words(cures, first.origin.place)
    edits = [edit for tried in cures for edit in (*tried.changes, *tried.results)]
    lost = problem_of(read.reading, losses) if losses and not cures else ""
    is_of_rows = first.made is not None and first.made.primitive.name == "reduce_sum" and cause.what not in _SUMS
    is_mean = cure.startswith("pmean") or (is_of_rows and not cure.startswith("psum"))
    return cause._replace(
        kind="mean" if is_mean and cause.kind == "sum" else cause.kind,
        is_waiting=len(edits) == 1 and _is_sum_alone(read, key),
        cure=cure,
        lost=lost,
    )


def _with_cure_of_unknown(kinds: Kinds, cause: Cause, first: AxisCause, axes: Sequence[str], key: int) -> Cause:
    """The cause of a value of unknown kind, such as a carry, with the edits that make it right."""
    cures = _cures(kinds, cause.axes, axes, key)
    if not cures:
        return cause
    cure = _in_words(cures, first.origin.place)
    kind = "sum" if cure.startswith("psum") else "mean"
    return cause._replace(kind=kind, what=_what(first._replace(kind=kind)), cure=cure)


def _may_gather(kinds: Kinds, axis: str, cause: AxisCause, key: int) -> bool:
    """Whether a value is right after a gather of its sharded dim, or of the sharded dim of an operand."""
    read, name = kinds.reading_of(axis, key), cause.origin.name
    if cause.kind == "part":
        value = read.values[key]
        is_in_order = value.kind == "sharded" and not value.order
        return is_in_order and read.reading.numbers.is_degree(value.degree, 0) is True
    return name != ("", "") and is_right_when_gathered(kinds, axis, read, name, key)


def _is_sum_alone(read: RegionReading, key: int) -> bool:
    """Whether a value is just a partial sum of degree 0."""
    value = read.values[key]
    is_sum = value.kind == "sum" and value.beside is None and not value.symbols
    return is_sum and read.reading.numbers.is_degree(value.degree, 0) is True


def predicate_cause(kinds: Kinds, eqn: Any, axis: str) -> Cause | None:
    """The cause for which the predicate of a branch, or the condition of a loop, varies over an axis."""
    reading = kinds.first(axis).reading
    value = reading.predicates.get(id(eqn))
    cause = None if value is None else _cause_of(reading, value, value.reduced)
    if cause is None:
        return None
    if cause.kind == "derived" and eqn.primitive.name == "while":  # the carry varies: name what makes it a scalar
        equations = reversed(_jax.jaxpr.open_jaxpr(eqn.params["cond_jaxpr"]).eqns)
        reduction = next((inner for inner in equations if inner.primitive.name in _OVER_DIMS), None)
        cause = cause if reduction is None else cause._replace(origin=ValueOrigin(reduction, (eqn,)))
    return Cause(cause.kind, (axis,), _what(cause), cause.origin.place)


def _mark(kinds: Kinds, axes: Sequence[str], key: int) -> str:
    """The mark that would make the hint of a value true, and all results right; empty if unknown."""
    signs = set[str]()
    for axis in axes:
        if key in kinds.results or axis not in kinds.sizes:
            return ""
        read = kinds.reading_of(axis, key)
        others = {at: verdict.says for at, verdict in read.verdicts.items() if at != key}
        is_assumed = any(claim.assertion.is_assumed for _, claim, _ in read.reading.claimed)
        if is_assumed or kinds.results.keys().isdisjoint(others) or {*others.values()} != {"right"}:
            return ""
        signs.add("+" if _is_sum_alone(read, key) else "~")
    return signs.pop() if len(signs) == 1 else ""


def _cures(kinds: Kinds, shared: Sequence[str], axes: Sequence[str], key: int) -> list[Cure]:
    """The edits that make a value right over all axes; empty if they are unknown for an axis."""
    cures = list[tuple[Cure, tuple[str, ...]]]()
    for axis in (*shared, *(axis for axis in kinds.sizes if axis not in shared)):
        read = kinds.reading_of(axis, key)
        verdict = read.verdicts.get(key)
        is_wrong = verdict is not None and (verdict.says == "wrong" or (verdict.says == "unknown" and axis in axes))
        if axis not in axes and not is_wrong:
            continue
        cure = find_cure(kinds, axis, read, key) if is_wrong else None
        if cure is None:
            return []
        # The same edit over several axes is named once.
        at = next(
            (at for at, (same, over) in enumerate(cures) if str(same.over(over, (axis,))) == str(cure)), len(cures)
        )
        over = (*cures[at][1], axis) if at < len(cures) else (axis,)
        cures[at : at + 1] = [(cure.over((axis,), over), over)]
    return [cure for cure, _ in cures]


def _in_words(cures: Sequence[Cure], place: str) -> str:
    """The words of all cures; for a single cure without its line, if the message has named the line."""
    if len(cures) != 1:
        return ", and ".join(map(str, cures))
    (cure,) = cures
    line = place.partition(" ")[0]
    if not line:
        return str(cure).removesuffix(" of what is returned")
    is_there = cure.line == line and not cure.other and not any(change.replaces for change in cure.changes)
    return str(cure).removesuffix(f" at {line}") if is_there and cure.weight < 4 else str(cure)


def _axis_cause(kinds: Kinds, axis: str, key: int) -> AxisCause | None:
    if axis not in kinds.sizes:  # it has one shard; only the type of a gather is wrong on every mesh
        maker = _jax.jaxpr.maker_of(kinds.body, kinds.variable(key)) if key in kinds.results else None
        is_gather = maker is not None and maker.primitive.name == "all_gather"
        return AxisCause("agreement" if is_gather else "alone", ValueOrigin(maker))
    read = kinds.reading_of(axis, key)
    value = read.values.get(key)
    if value is None:
        return None
    cause = _cause_of(read.reading, value) or _agreement(kinds, read, axis, key)
    if cause is None and value.is_common and read.reading.sent:  # a ring has summed the shards, which specs may state
        return AxisCause("ring", read.reading.sent[0])
    is_mapped = cause is not None and cause.kind == "item" and read.is_mapped(key)
    return cause._replace(kind="mapped") if cause is not None and is_mapped else cause


def _cause_of(reading: Reading, value: Share, ignored: frozenset[Any] = NO_PARTS) -> AxisCause | None:
    """The cause why a value is each shard's own, a part, or unknown; None for a value of kind ``same``.

    Args:
      reading: the reading.
      value: the value.
      ignored: the parts that are not at fault if there are other parts.
    """
    losses = reading.losses_of(value)
    losses = [loss for loss in losses if not loss.is_common] or losses
    parts = {value.part} | {part for loss in losses for part in loss.parts}
    parts = {part[1] if is_negative(part) else part for part in parts}
    parts = (parts - ignored) or parts
    part = next((part for part in reading.makers if part in parts), None)
    if part is not None:
        if value.is_reached and reading.sent and not losses:
            return AxisCause("ring", reading.sent[0])
        while part in reading.earlier:
            part = reading.earlier[part]
        maker = reading.makers[part]
        kind, made = "extreme" if is_extreme(maker) else "sum", maker.eqn
        if isinstance(part, tuple) and part[0] == "iterations":  # the sum of a loop is complete after the loop
            maker = ValueOrigin(maker.calls[0], maker.calls[1:], maker.name)
        return AxisCause(kind, maker, made)
    if losses:
        return AxisCause("derived", ValueOrigin(losses[0].eqn, losses[0].calls, losses[0].name))
    origin = reading.origins.get(value.origin)
    if value.kind in ("sharded", "local"):
        if origin is not None:
            return AxisCause("derived", origin)
        return AxisCause("item" if value.dim == "rows" else "part", ValueOrigin(None, (), value.name))
    if origin is None:
        return None
    return AxisCause("ring" if reading.is_sent(value.origin) else _kind_of(origin), origin)


def _kind_of(origin: ValueOrigin) -> str:
    """The kind of a cause, from the equation whose result is each shard's own, or unknown."""
    name = origin.eqn.primitive.name
    primitive = _jax.primitives.primitive(name)
    if primitive.kind == "index":
        return "index"
    if primitive.kind == "branch" or name == "while":
        return "choice"
    if primitive.kind in ("opaque", "outside"):
        return "opaque"
    if not origin.is_of_rows or origin.name == ("", "") or origin.gradient is not None:
        return "other"
    return "mean" if name == "reduce_sum" or name in _CONTRACTIONS else "derived"


def _agreement(kinds: Kinds, read: RegionReading, axis: str, key: int) -> AxisCause | None:
    """Where a result that JAX types as varying became the same on every shard."""
    frame = read.reading.outermost
    if key not in kinds.results or frame is None:
        return None
    waiting, seen, first = [(frame, kinds.variable(key))], set[int](), None
    for run, atom in waiting:
        eqn = None if _jax.jaxpr.is_literal(atom) else run.makers.get(atom)
        if eqn is None or id(atom) in seen or axis not in _jax.array.manual_type_in(atom.aval).varying:
            continue
        seen.add(id(atom))
        made = AxisCause("agreement", ValueOrigin(eqn, run.calls))
        if any(_differs(run, operand) for operand in eqn.invars):
            return made
        first = first or made
        if (callee := run.callees.get(id(eqn))) is not None:
            waiting.append((callee, callee.jaxpr.outvars[eqn.outvars.index(atom)]))
        waiting += [(run, operand) for operand in eqn.invars]
    return first


def _differs(run: JaxprRun, atom: Any) -> bool:
    value = None if _jax.jaxpr.is_literal(atom) else run.values.get(atom)
    return value is not None and value.kind != "same"


def _what(cause: AxisCause) -> str:
    """The user's name for the operation."""
    eqn, origin = cause.origin.written, cause.origin
    if origin.is_marked:
        return "pattern" if eqn is not None and eqn.params["claim"].assertion.subject.is_pattern else "hint"
    if origin.gradient is not None:
        return "gradient"
    called = _jax.source.called_function(eqn)
    if cause.kind in ("sum", "extreme"):
        made = cause.eqn or eqn
        name, is_method = made.primitive.name, called in ("sum", "method", "meth")
        if name == "reduce_sum" and _jax.source.library_functions(made) & _MEANS:
            return "mean"
        noun = _jax.primitives.primitive(name).noun
        if noun and (name != "reduce_sum" or is_method):  # such as a logsumexp, which has its own name
            return noun
    return _jax.primitives.primitive(called).noun or called
