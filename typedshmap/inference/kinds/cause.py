"""Since when a value is not what a hint says of it, what it is, and which edits make it right, as messages tell it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ... import _jax
from ...errors.causes import Cause, Cure
from .cures import find_cure, is_right_when_gathered
from .origins import Beginning, is_extreme
from .reading import JaxprRun, Reading
from .region import Kinds, RegionReading
from .suspects import first_loss, problem_of
from .value import NO_PARTS, Share, is_negative

_MEANS = frozenset(["mean", "nanmean", "average"])
_OVER_DIMS = {
    name
    for name, primitive in _jax.primitives.PRIMITIVES.items()
    if primitive.kind == "reducing" or primitive.is_contraction or name == "gather"
}
_OF_DIMS = frozenset(["picked", "part", "item", "mapped", "ring"])
_SUMS = frozenset(["sum", "contraction", "gradient", "hint", "pattern"])


class Since(NamedTuple):
    """Since when a value is what it is over one axis.

    Attributes:
      kind: as `Cause` has it.
      began: where.
      eqn: what made a part there: the equation where it began, or one in a loop.
    """

    kind: str
    began: Beginning
    eqn: Any = None

    @property
    def key(self) -> Any:
        """What is the same for axes over which a value varies since the same operation, or as a dim of one argument."""
        return self.kind, id(self.began.eqn) if self.began.eqn is not None else self.began.name

    @property
    def made(self) -> Any:
        """The equation that made it."""
        return self.began.eqn if self.eqn is None else self.eqn

    @property
    def is_over_dims(self) -> bool:
        """Whether it is so since an operation along sharded dims."""
        is_along = self.made is not None and self.made.primitive.name in _OVER_DIMS
        return is_along or self.made is not self.began.eqn or self.kind in _OF_DIMS


def find_cause(kinds: Kinds, axes: Sequence[str], key: int, wants_cure: bool = True) -> Cause | None:
    """Since when a value varies over the first of some axes, with the others over which it does so since then.

    Args:
      kinds: what the values of its region are.
      axes: the mesh axes.
      key: the place of a result, or the id of an equation that claims something of it.
      wants_cure: whether a cure is searched for.
    """
    kinds.ask_for(key)
    found = {axis: origin for axis in axes if (origin := _origin(kinds, axis, key)) is not None}
    if not found:
        return None
    axis, first = next(iter(found.items()))
    began, shared = first.began, tuple(other for other, origin in found.items() if origin.key == first.key)
    dims = dict[str, tuple[str, ...]]()
    for other in shared if first.is_over_dims else ():
        name = found[other].began.name[0]
        dims[name] = (*dims.get(name, ()), other)
    mark = _mark(kinds, axes, key)
    cause = Cause(first.kind, shared, _what(first), began.place, tuple(dims.items()), began.name[1], mark)
    if wants_cure and first.kind in ("sum", "extreme"):
        cause = _with_cure(kinds, cause, first, axis, axes, key)
    elif wants_cure and first.kind in ("mean", "picked", "other"):
        cause = _with_cure_of_unknown(kinds, cause, first, axes, key)
    if cause.kind not in ("part", "item", "mapped", "picked"):
        return cause
    return cause._replace(may_gather=all(_may_gather(kinds, other, found[other], key) for other in shared))


def _with_cure(kinds: Kinds, cause: Cause, since: Since, axis: str, axes: Sequence[str], key: int) -> Cause:
    """The cause of a value that is made of each shard's part, with what makes it unsharded, or what loses the part."""
    read, cures = kinds.reading_of(axis, key), _cures(kinds, cause.axes, axes, key)
    losses = read.reading.losses_of(read.values[key])
    if not cures:
        site = _jax.source.call_site(since.began.written)[1]
        if site is not None and any(_jax.source.call_site(loss.eqn)[1] == site for loss in losses):
            # The function that made the part goes on with it: no collective can stand between.
            return cause._replace(kind="picked", what=_jax.source.called_function(since.began.written))
    cure = ", and ".join(_shortened(each, since.began.place) if len(cures) == 1 else str(each) for each in cures)
    edits = [edit for each in cures for edit in (*each.changes, *each.results)]
    lost = ""
    if losses and not cures:
        loss = first_loss(losses)
        lost = problem_of(read.reading, loss, Beginning(loss.eqn, loss.calls).place.partition(" ")[0])
    is_of_rows = since.made is not None and since.made.primitive.name == "reduce_sum" and cause.what not in _SUMS
    is_mean = cure.startswith("pmean") or (is_of_rows and not cure.startswith("psum"))
    return cause._replace(
        kind="mean" if is_mean and cause.kind == "sum" else cause.kind,
        is_waiting=len(edits) == 1 and _is_sum_alone(read, key),
        cure=cure,
        lost=lost,
    )


def _with_cure_of_unknown(kinds: Kinds, cause: Cause, since: Since, axes: Sequence[str], key: int) -> Cause:
    """The cause of a value of which nothing is known, as one that a loop carries, with what makes it right."""
    cures = _cures(kinds, cause.axes, axes, key)
    if not cures:
        return cause
    cure = ", and ".join(_shortened(each, since.began.place) if len(cures) == 1 else str(each) for each in cures)
    kind = "sum" if cure.startswith("psum") else "mean"
    return cause._replace(kind=kind, what=_what(since._replace(kind=kind)), cure=cure)


def _may_gather(kinds: Kinds, axis: str, since: Since, key: int) -> bool:
    """Whether a value is right, once the part that it is, or was made of, is gathered."""
    read, name = kinds.reading_of(axis, key), since.began.name
    if since.kind == "part":
        value = read.values[key]
        is_in_order = value.kind == "sharded" and not value.order
        return is_in_order and read.reading.numbers.is_degree(value.degree, 0) is True
    return name != ("", "") and is_right_when_gathered(kinds, axis, read, name, key)


def _is_sum_alone(read: RegionReading, key: int) -> bool:
    """Whether a value is a partial sum, and no mean of parts, and nothing has been made of it."""
    value = read.values[key]
    is_sum = value.kind == "sum" and value.beside is None and not value.own
    return is_sum and read.reading.numbers.is_degree(value.degree, 0) is True


def predicate_origin(kinds: Kinds, eqn: Any, axis: str) -> Cause | None:
    """Since when the predicate of a branch, or the condition of a loop, varies over an axis."""
    reading = kinds.first(axis).reading
    value = reading.predicates.get(id(eqn))
    origin = None if value is None else _origin_of(reading, value, value.reduced)
    if origin is None:
        return None
    if origin.kind == "picked" and eqn.primitive.name == "while":  # what it carries varies: since it is made one number
        equations = reversed(_jax.jaxpr.open_jaxpr(eqn.params["cond_jaxpr"]).eqns)
        made = next((each for each in equations if each.primitive.name in _OVER_DIMS), None)
        origin = origin if made is None else origin._replace(began=Beginning(made, (eqn,)))
    return Cause(origin.kind, (axis,), _what(origin), origin.began.place)


def _mark(kinds: Kinds, axes: Sequence[str], key: int) -> str:
    """The sign that a hint may write of a value with which all results are right; empty where that is not known."""
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
    """The edits with which what is wrong with a value is right over all axes; none where they are not known."""
    found = list[tuple[Cure, tuple[str, ...]]]()
    for axis in (*shared, *(axis for axis in kinds.sizes if axis not in shared)):
        read = kinds.reading_of(axis, key)
        verdict = read.verdicts.get(key)
        is_wrong = verdict is not None and (verdict.says == "wrong" or (verdict.says == "unknown" and axis in axes))
        if axis not in axes and not is_wrong:
            continue
        cure = find_cure(kinds, axis, read, key) if is_wrong else None
        if cure is None:
            return []
        same = next((each for each in found if str(each[0].over(each[1], (axis,))) == str(cure)), None)
        over = (*same[1], axis) if same is not None else (axis,)
        merged = cure.over((axis,), over), over
        found = [merged if each is same else each for each in found] if same is not None else [*found, merged]
    return [cure for cure, _ in found]


def _shortened(cure: Cure, place: str) -> str:
    """A cure in words: without its place, if it is after what the message tells of."""
    line = place.partition(" ")[0]
    if not line:
        return str(cure).removesuffix(" of what is returned")
    is_there = cure.line == line and not cure.other and not any(change.replaces for change in cure.changes)
    return str(cure).removesuffix(f" at {line}") if is_there and cure.weight < 4 else str(cure)


def _origin(kinds: Kinds, axis: str, key: int) -> Since | None:
    if axis not in kinds.sizes:  # of one shard; a gather over it is to be written otherwise on any mesh
        maker = _jax.jaxpr.maker_of(kinds.body, kinds.variable(key)) if key in kinds.results else None
        is_gather = maker is not None and maker.primitive.name == "all_gather"
        return Since("agreement" if is_gather else "alone", Beginning(maker))
    read = kinds.reading_of(axis, key)
    value = read.values.get(key)
    if value is None:
        return None
    origin = _origin_of(read.reading, value) or _agreement(kinds, read, axis, key)
    if origin is None and value.is_common and read.reading.sent:  # a ring has added them up, which specs may state
        return Since("ring", read.reading.sent[0])
    is_mapped = origin is not None and origin.kind == "item" and read.is_mapped(key)
    return origin._replace(kind="mapped") if origin is not None and is_mapped else origin


def _origin_of(reading: Reading, value: Share, ignored: frozenset[Any] = NO_PARTS) -> Since | None:
    """Since when a value is each shard's own, a part, or not known; None for one that is the same on every shard.

    Args:
      reading: the reading.
      value: the value.
      ignored: parts that are not what is wrong, where there are others.
    """
    losses = reading.losses_of(value)
    losses = [loss for loss in losses if not loss.is_common] or losses
    parts = {value.part} | {part for loss in losses for part in loss.parts}
    parts = {part[1] if is_negative(part) else part for part in parts}
    parts = (parts - ignored) or parts
    part = next((part for part in reading.makers if part in parts), None)
    if part is not None:
        if value.is_heard and reading.sent and not losses:
            return Since("ring", reading.sent[0])
        while part in reading.earlier:
            part = reading.earlier[part]
        maker = reading.makers[part]
        kind, made = "extreme" if is_extreme(maker) else "sum", maker.eqn
        if isinstance(part, tuple) and part[0] == "iterations":  # what a loop adds up is whole after it
            maker = Beginning(maker.calls[0], maker.calls[1:], maker.name)
        return Since(kind, maker, made)
    if losses:
        return Since("picked", Beginning(losses[0].eqn, losses[0].calls, losses[0].name))
    origin = reading.origins.get(value.since)
    if value.kind in ("sharded", "local"):
        if origin is not None:
            return Since("picked", origin)
        return Since("item" if value.dim == "rows" else "part", Beginning(None, (), value.name))
    if origin is None:
        return None
    return Since("ring" if reading.is_sent(value.since) else _kind_of(origin), origin)


def _kind_of(origin: Beginning) -> str:
    """What an equation makes that is each shard's own, or not known."""
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
    return "mean" if name == "reduce_sum" or primitive.is_contraction else "picked"


def _agreement(kinds: Kinds, read: RegionReading, axis: str, key: int) -> Since | None:
    """Where a result became the same on every shard that JAX types as varying."""
    frame = read.reading.outermost
    if key not in kinds.results or frame is None:
        return None
    waiting, seen, first = [(frame, kinds.variable(key))], set[int](), None
    for run, atom in waiting:
        eqn = None if _jax.jaxpr.is_literal(atom) else run.makers.get(atom)
        if eqn is None or id(atom) in seen or axis not in _jax.array.manual_type_in(atom.aval).varying:
            continue
        seen.add(id(atom))
        made = Since("agreement", Beginning(eqn, run.calls))
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


def _what(origin: Since) -> str:
    """What the user calls an operation."""
    eqn, began = origin.began.written, origin.began
    if began.is_marked:
        return "pattern" if eqn is not None and eqn.params["claim"].assertion.subject.is_pattern else "hint"
    if began.gradient is not None:
        return "gradient"
    called = _jax.source.called_function(eqn)
    if origin.kind in ("sum", "extreme"):
        made = origin.eqn or eqn
        name, is_method = made.primitive.name, called in ("sum", "method", "meth")
        if name == "reduce_sum" and _jax.source.library_functions(made) & _MEANS:
            return "mean"
        noun = _jax.primitives.primitive(name).noun
        if noun and (name != "reduce_sum" or is_method):  # such as a logsumexp, which has a name of its own
            return noun
    return _jax.primitives.primitive(called).noun or called
