"""Search for a cure: an edit is named only if the region, read again with the edit, is right throughout.

An edit of a differentiated equation also changes the transposed equations, so it is tried on a new trace; other edits
are tried on the same equations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property, partial
from itertools import combinations
from typing import Any

from ... import _jax
from ...errors.causes import Cure, EditedEquation
from ...errors.phrases import quoted_axes
from . import loss_kinds
from .collective_kinds import common_bound, extreme, total
from .judge import ResultVerdict
from .origins import ValueOrigin
from .reading import ReadEquation, Reading
from .region_kinds import Kinds, RegionReading
from .value import NOT_KNOWN, Share, is_negative, scaled, sum_of

# Limits: the edits that are tried, and the total number of equations that are read or traced for them.
_MOST_READ, _MOST_TRACED = 100, 24
_EQUATIONS_READ, _EQUATIONS_TRACED = 100_000, 10_000

EquationGroup = tuple[Any, ...]
"""The equations of one line of the user's, such as those of a psum of a tree."""


def find_cure(kinds: Kinds, axis: str, read: RegionReading, key: int | None = None) -> Cure | None:
    """The simplest edit that makes every result right, with another edit that is as simple; None if none is known.

    Args:
      kinds: the kinds of the region's values.
      axis: the axis over which something is wrong.
      read: the reading over the axis.
      key: the index of a result, or the id of a claim, that is wrong or unknown. If no edit makes all wrong results
        right, an edit that makes this result right is named; the other results have their own messages.
    """
    is_known = key is None or read.verdicts[key].says == "wrong"
    if is_known and axis not in kinds.cures:
        kinds.cures[axis] = _search(kinds, axis, read)
    if is_known and (kinds.cures[axis] is not None or key is None):
        return kinds.cures[axis]
    if (axis, key) not in kinds.cures:
        left = {at: verdict for at, verdict in read.verdicts.items() if at == key or verdict.says != "wrong"}
        if key is not None and not is_known:
            left[key] = ResultVerdict("wrong", "own", read.values[key])
        kinds.cures[axis, key] = _search(kinds, axis, replace(read, verdicts=left), is_of_one=True)
    return kinds.cures[axis, key]


def _search(kinds: Kinds, axis: str, read: RegionReading, is_of_one: bool = False) -> Cure | None:
    if read.says != "wrong" or read.reading.sent:  # an edit could not be judged
        return None
    right, tried = list[Cure](), set[Any]()
    length = max(1, kinds.length)
    # The number of edits that may still be tried: those of forward equations on a new trace, others by reading.
    left = {True: min(_MOST_TRACED, _EQUATIONS_TRACED // length), False: min(_MOST_READ, _EQUATIONS_READ // length)}
    for cure in _cures(kinds, axis, read, is_of_one):
        if max(left.values()) < 0:
            break
        if right and (cure.weight > right[0].weight or len(right) == 2 or cure.weight > 3):
            break
        if any(cure.text == other.text or _is_at_same_line(cure, other) for other in right):
            continue
        edit = frozenset((id(change.eqn), change[1:]) for change in cure.changes), cure.results, cure.operation
        if edit in tried:
            continue
        tried.add(edit)
        is_forward = _is_forward(kinds, cure)
        left[is_forward] -= 1
        if left[is_forward] >= 0 and _is_right(kinds, axis, read, cure):
            right.append(cure)
    if right and (taken := _as_sum(kinds, axis, read, right[0])) is not None:
        return taken
    if not right:
        return None
    return _with_open_axes(kinds, axis, replace(right[0], other=right[1].text if len(right) > 1 else ""))


def _with_open_axes(kinds: Kinds, axis: str, cure: Cure) -> Cure:
    """The cure, with a note if nothing is known over another axis of a collective that it replaces."""
    named = {name for change in cure.changes if change.replaces for name in _jax.jaxpr.named_axes(change.eqn)}
    others = [name for name in kinds.sizes if name in named and name != axis]
    unknown = [name for name in others if kinds.over(name).says == "unknown"]
    return replace(cure, text=f"{cure.text} (unknown over {quoted_axes(unknown)})") if unknown else cure


def _is_at_same_line(cure: Cure, other: Cure) -> bool:
    """Whether two cures replace collectives of one line in the same way."""
    replaced = [edited.changes[0].replaces if edited.changes else "" for edited in (cure, other)]
    return bool(replaced[0]) and (replaced[0], cure.operation, cure.line) == (replaced[1], other.operation, other.line)


def _as_sum(kinds: Kinds, axis: str, read: RegionReading, cure: Cure) -> Cure | None:
    """For a cure that takes the mean of a partial sum, the cure that takes its sum and leaves out the later psum.

    None if that is not right."""
    if cure.operation != "pmean" or cure.results or any(change.replaces for change in cure.changes):
        return None
    group, over = tuple(change.eqn for change in cure.changes), f"over '{axis}'"
    (inserted,) = _insertions([group], over, ["psum"], {})
    for later in _by_line([eqn for eqn, _, _ in read.reading.collectives.values() if _is_reduction(eqn)]):
        name = _jax.source.collective_name(later[0])
        if name != "psum" or all(map(_jax.jaxpr.is_transposed, later)):
            continue
        taken = _together(inserted, [*_replacements(later, "", over, ())][-1])
        if _is_right(kinds, axis, read, taken):
            return taken
    return None


def _is_forward(kinds: Kinds, cure: Cure) -> bool:
    """Whether transposed equations may follow from an edited one."""
    return kinds.is_differentiated and any(kinds.may_be_followed(change.eqn) for change in cure.changes)


def _is_right(kinds: Kinds, axis: str, read: RegionReading, cure: Cure) -> bool:
    """Whether the region is right with a cure."""
    after = (_when_traced if _is_forward(kinds, cure) else _when_read)(kinds, axis, read, cure)
    return after is not None and _has_no_fault(after, read, cure)


def _try_to_read(kinds: Kinds, axis: str, *arguments: Any, **options: Any) -> RegionReading | None:
    """A reading as `Kinds.read` makes it; None if that fails, since an edit may make a program that JAX refuses."""
    try:
        return kinds.read(axis, *arguments, **options)
    except Exception:
        return None


def _when_read(kinds: Kinds, axis: str, read: RegionReading, cure: Cure) -> RegionReading | None:
    """The region read again with an edit of its equations; None if this fails, or depends on a second trace."""
    traces, sizes, is_own = _traces(kinds, axis, read)
    # A line of source may have several equations, such as those of the leaves of a tree.
    edits: dict[Any, Any] = {
        id(eqn): _edit(change) for change in cure.changes for eqn in kinds.equations_like(change.eqn, traces[0])
    }
    edits |= {("result", at): _on_result(cure.operation) for at in cure.results}
    after = _try_to_read(kinds, axis, traces, sizes, edits, is_own, read.is_blind)
    return None if after is None or (after.is_open and len(traces) == 1) else after


def _traces(kinds: Kinds, axis: str, read: RegionReading) -> tuple[tuple[Any, ...], tuple[int, ...], bool]:
    """The traces that were read, the sizes of the axis in them, and whether the first is the region's own jaxpr."""
    first_trace = (kinds.body,), (kinds.sizes[axis],), True
    return first_trace if read.reading is kinds.first(axis).reading else kinds.seconds.get(axis, first_trace)


def is_right_when_gathered(kinds: Kinds, axis: str, read: RegionReading, name: tuple[str, str], key: int) -> bool:
    """Whether a value is right, and nothing else becomes wrong, if a dim of an argument is gathered first."""
    after = _try_to_read(kinds, axis, (kinds.body,), (kinds.sizes[axis],), is_blind=read.is_blind, gathered=name)
    if after is None:
        return False
    others = {at: verdict.says for at, verdict in after.verdicts.items() if verdict.says != "right"}
    worse = {at for at, says in others.items() if says == "wrong" or read.verdicts[at].says == "right"}
    return not after.is_open and key in after.verdicts and key not in others and not worse


def _when_traced(kinds: Kinds, axis: str, read: RegionReading, cure: Cure) -> RegionReading | None:
    """The region traced again with an edit of the calls; None if this fails, or depends on a second trace."""
    changes = cure.changes
    edits = [
        _jax.edits.edit_of(change.eqn, change.operation, axis, change.replaces, change.is_stopped) for change in changes
    ]
    known = [edit for edit in edits if edit is not None]
    if kinds.retrace is None or len(known) < len(edits):
        return None
    sizes = kinds.seconds.get(axis, ((), (kinds.sizes[axis],), True))[1]
    with _jax.edits.edited(known):
        traces = [kinds.retrace(axis, size) for size in sizes]
    if None in traces:
        return None
    bounds = _bounds(traces[0], {edit.site for edit in known if edit.is_stopped})
    if bounds is None:
        return None
    after = _try_to_read(kinds, axis, traces, sizes, bounds, is_own=False, is_blind=read.is_blind)
    if after is None:
        return None
    is_sure = (not after.is_open or len(sizes) > 1) and (not bounds or _cancel(after.reading))
    return after if is_sure else None


def _is_extreme_of_shards(eqn: Any) -> bool:
    primitive = _jax.primitives.primitive(eqn.primitive.name)
    return primitive.kind == "collective" and primitive.end != ""


def _bounds(trace: Any, sites: AbstractSet[Any]) -> dict[int, Any] | None:
    """Edits that make the extremes over the shards at some calls a common bound of all shards.

    None if the user's call computes with such an extreme: then no stop_gradient can be put after it.
    """
    bounds, made = dict[int, Any](), set[Any]()
    for eqn in _jax.jaxpr.all_equations(trace) if sites else ():
        if _jax.source.call_site(eqn)[1] not in sites:
            continue
        if _is_extreme_of_shards(eqn):
            bounds[id(eqn)] = _bound
            made.update(eqn.outvars)
        elif any(not _jax.jaxpr.is_literal(atom) and atom in made for atom in eqn.invars):
            if _jax.primitives.primitive(eqn.primitive.name).kind not in ("cast", "moving"):
                return None
            made.update(eqn.outvars)
    return bounds


_STOPPED = "stopped"


def _bound(step: ReadEquation, operands: list[Share], results: Sequence[Share]) -> Sequence[Share]:
    """An extreme without its gradient is a number that every shard has: it is right only if it cancels."""
    symbol = step.reading.lose((_STOPPED, step.part), loss_kinds.shared_extreme("bound"), step, is_common=True)
    return [common_bound(symbol, value) for value in operands]


def _cancel(reading: Reading) -> bool:
    """Whether such numbers cancel in unused values; some values are computed only for their gradients."""
    stopped = {symbol for symbol in reading.losses if isinstance(symbol, tuple) and symbol[0] is _STOPPED}
    for run in reading.runs.values():
        atoms = [*run.jaxpr.outvars, *(atom for eqn in run.jaxpr.eqns for atom in eqn.invars)]
        used = {atom for atom in atoms if not _jax.jaxpr.is_literal(atom)}
        unused = [value for var, value in run.values.items() if var not in used]
        if any(not stopped.isdisjoint(reading.losses[symbol].parts) for value in unused for symbol, _ in value.symbols):
            return False
    return True


def _has_no_fault(after: RegionReading, before: RegionReading, cure: Cure) -> bool:
    """Whether nothing is wrong any more, every wrong result is judged again, and right results are still known."""
    wrong = {at for at, verdict in before.verdicts.items() if verdict.says == "wrong"}
    left = {_site(change.eqn) for change in cure.changes if change.replaces}
    if not (wrong <= after.verdicts.keys() and _summed_though_due(after, left) <= _summed_though_due(before, left)):
        return False
    return all(
        verdict.says == "right" or (verdict.says == "unknown" and before.verdicts[at].says == "unknown")
        for at, verdict in after.verdicts.items()
        if at in before.verdicts
    )


def _summed_though_due(read: RegionReading, left: AbstractSet[Any]) -> set[int]:
    """The claims of a pending sum about values that are the same on every shard.

    Args:
      read: the reading.
      left: the calls that are removed, with the claims of their patterns.
    """
    return {
        id(eqn)
        for eqn, claim, value in read.reading.claimed
        if read.reading.axis in claim.layout.unreduced and value.kind == "same" and _site(eqn) not in left
    }


def _cures(kinds: Kinds, axis: str, read: RegionReading, is_of_one: bool) -> Iterator[Cure]:
    """The candidates: edits that may make all results right, or one result, the simplest first."""
    reading, over = read.reading, f"over '{axis}'"
    flow = _Flow(_traces(kinds, axis, read)[0][0])
    wrong = {at: verdict for at, verdict in read.verdicts.items() if verdict.says == "wrong"}
    losses = [loss for verdict in wrong.values() for loss in verdict.losses]
    parts = dict.fromkeys(read.values[at].part for at in wrong)
    parts |= dict.fromkeys(part for loss in losses for part in loss.parts)
    if not losses and parts.keys() <= {None}:  # a carry may be any of the parts
        parts = dict.fromkeys([*reading.makers][:_MOST_PARTS])
    # The derivative of an extreme compares with it; a stop_gradient removes that. In a loop, the equation that makes a
    # part may lose the part of the previous iteration.
    making = {id(origin.eqn) for origin in reading.makers.values()}
    losing = {_site(loss.eqn) for loss in losses if not (_is_derivative(loss.eqn) or id(loss.eqn) in making)} - {None}
    made = _makers(reading.makers_of(parts), losing, flow)
    stated = [eqn for eqn, claim, value in reading.claimed if axis in claim.layout.unreduced and value.part in parts]
    made += [
        group for group in _by_line(stated) if group not in made
    ]  # a sum that a hint states is taken after the hint
    sums = [(eqn, calls) for eqn, calls, _ in reading.collectives.values() if _is_reduction(eqn)]
    written = _by_line([eqn for eqn, calls in sums if _is_written(eqn, calls)], _jax.source.collective_name)
    alone = [of_call for group in written for of_call in _by_call(group)]
    operations = _operations([value for at in wrong if (value := read.values[at]).kind == "extreme"])
    replacements = [
        cure
        for group, of in [*((group, "") for group in written), *alone]
        for cure in _replacements(group, of, over, operations)
    ]
    insert = partial(_insertions, over=over, operations=operations, ends=reading.ends, flow=flow)
    yield from insert(made)
    for cure in insert(made) if is_of_one else ():
        if "of the gradient" in cure.text:  # the gradient of one weight, since others may be right
            changes = tuple(change._replace(is_of_parts=True) for change in cure.changes)
            yield replace(cure, text=cure.text.replace("the gradient", "its gradient"), changes=changes)
    yield from replacements
    # Other parts: those that are differentiated, and those that a loop carries.
    origins = [origin for origin in reading.makers.values() if origin.eqn is not None]
    others = _makers([origin for origin in origins if not _jax.jaxpr.is_transposed(origin.eqn)], losing, flow)
    others = [group for group in others if group not in made]
    yield from insert(others)
    made = [*made, *others]
    results = tuple(at for at in wrong if at in kinds.results)
    for operation in operations:
        for some in dict.fromkeys([results, *((at,) for at in results)]):
            if some:
                what = "what is returned" if len(some) == len(kinds.results) else f"result {some[0]}"
                yield Cure(f"{operation} {over} of {what}", operation=operation, results=some, weight=3)
    transposed = [inner for eqn, calls in sums for inner in (eqn, *calls) if _jax.jaxpr.is_transposed(inner)]
    for group in [*written, *flow.gradients(transposed)]:
        text = f"divide {_what(group) or 'the value'} by the size of '{axis}' at {_line(group)}"
        yield replace(_cure(text, group, "divide"), weight=3)
    insertions, lost = [*insert(made)], {id(loss.eqn) for loss in losses}
    yield from _pairs(insertions, replacements, lost)
    yield from (_together(a, b) for a, b in combinations(insertions, 2) if not _overlap(a, b))
    # The operands of a loss may be reduced before it; not sharded operands, whose rows are unrelated.
    operands = [eqn for loss in losses for eqn in flow.operands(loss.eqn) if _site(eqn) not in losing]
    values = [[reading.value_of(var) for var in eqn.outvars] for eqn in operands]
    is_sharded = [any(value is not None and value.kind == "sharded" for value in some) for some in values]
    given = [eqn for eqn, rows in zip(operands, is_sharded, strict=True) if not rows]
    insertions = [*insert([group for group in _by_line(given) if group not in made])]
    yield from (replace(cure, weight=3) for cure in insertions)
    yield from _pairs(insertions, replacements, lost)
    # Two collectives, such as those of a value and its divisor: the first line first.
    yield from (_together(b, a) for a, b in combinations(replacements, 2) if a.line != b.line and not _overlap(a, b))


_MOST_PARTS = 6


def _operations(extremes: Sequence[Share]) -> list[str]:
    """The collectives that reduce parts to the whole; for extremes, those of their ends."""
    is_negated = any(is_negative(value.part) for value in extremes)
    ends = {*_jax.primitives.OPPOSITE_END} if is_negated else {value.end for value in extremes}
    return [f"p{end}" for end in sorted(ends)] or ["psum", "pmean"]


def _replacements(group: EquationGroup, of: str, over: str, operations: Sequence[str]) -> Iterator[Cure]:
    """Edits that replace a collective by another collective, or remove it."""
    name, place = _jax.source.collective_name(group[0]), _line(group)
    # Over other axes the collective stays.
    replaced = f"{name} {over}" if any(len(_jax.jaxpr.named_axes(eqn)) > 1 for eqn in group) else name
    for operation in operations:
        if operation != name:
            yield _cure(f"{operation} {over} in the place of {replaced}{of} at {place}", group, operation, name)
    yield _cure(f"leave out the {name} {over}{of} at {place}", group, "", name)


def _pairs(insertions: Sequence[Cure], replacements: Sequence[Cure], lost: AbstractSet[int]) -> Iterator[Cure]:
    """Two edits: a new collective and a change of a later one; first the changes of collectives that lose a part."""
    pairs = [(first, later) for first in insertions for later in replacements if not _overlap(first, later)]

    def distance(pair: tuple[Cure, Cure]) -> tuple[bool, bool, bool]:
        first, later = pair
        is_losing = any(id(change.eqn) in lost for change in later.changes)
        return not is_losing, first.line != later.line, later.operation != ""

    yield from (_together(*pair) for pair in sorted(pairs, key=distance))


def _together(first: Cure, second: Cure) -> Cure:
    return replace(
        first, text=f"{first.text}, and {second.text}", changes=first.changes + second.changes, weight=_WEIGHT_OF_TWO
    )


_WEIGHT_OF_TWO = 4


def _overlap(first: Cure, second: Cure) -> bool:
    return not {id(change.eqn) for change in first.changes}.isdisjoint(id(change.eqn) for change in second.changes)


def _insertions(
    groups: Sequence[EquationGroup],
    over: str,
    operations: Sequence[str],
    ends: Mapping[int, str],
    flow: _Flow | None = None,
) -> Iterator[Cure]:
    """Edits that insert a collective where parts are made; for extremes a pmax or a pmin, which has no gradient."""
    for at in range(len(operations)):
        for group in groups:
            ways = {ends.get(id(eqn), "") for eqn in group}
            of_group = operations if ways == {""} else [f"p{end}" for end in ways] if len(ways) == 1 else []
            if at >= len(of_group):
                continue
            end = _end_of(of_group[at])
            if end and flow is not None:
                group = tuple(map(flow.stopped, group))
            is_free = not end or any(eqn.primitive.name == "stop_gradient" for eqn in group)
            is_stopped = not is_free and any(map(_jax.jaxpr.is_differentiated, group))
            what = _what(group)
            if is_stopped:
                what = (
                    f"stop_gradient({what.replace(' and ', ') and stop_gradient(')})" if what else "its stop_gradient"
                )
            text = f"{of_group[at]} {over}{what and f' of {what}'} at {_line(group)}"
            yield _cure(text, group, of_group[at], "", is_stopped)


def _what(group: EquationGroup) -> str:
    """The expression that the equations of a line compute; empty if it is the whole line."""
    if all(map(_jax.jaxpr.is_transposed, group)):
        return "the gradient"
    return " and ".join(dict.fromkeys(filter(None, map(_jax.source.expression, group))))


def _cure(text: str, group: EquationGroup, operation: str, replaces: str = "", is_stopped: bool = False) -> Cure:
    changes = tuple(EditedEquation(eqn, operation, replaces, is_stopped=is_stopped) for eqn in group)
    return Cure(text, line=_line(group), operation=operation, changes=changes)


def _makers(origins: Sequence[ValueOrigin], losing: AbstractSet[Any], flow: _Flow) -> list[EquationGroup]:
    """The equations that made parts, by lines.

    Args:
      origins: where the parts were made.
      losing: the user's calls that lose a part; if such a call also made the part, no collective can be inserted
        between.
      flow: the equations of the region.
    """
    eqns = list[Any]()
    for origin in origins:
        if origin.eqn is not None:
            eqns.append(next((eqn for eqn in (origin.eqn, *origin.calls) if _place(eqn)), origin.eqn))
            # The result of a loop may be reduced after it.
            eqns += [eqn for eqn in origin.calls[-1:] if _jax.primitives.primitive(eqn.primitive.name).kind == "loop"]
    transposed = [eqn for eqn in eqns if _jax.jaxpr.is_transposed(eqn)]
    eqns = [eqn for eqn in eqns if eqn not in transposed and _site(eqn) not in losing]
    return [*flow.gradients(transposed), *_by_line(eqns)]


class _Flow:
    """The equations that make and that use each variable of a region."""

    def __init__(self, body: Any) -> None:
        self.equations = [*_jax.jaxpr.all_equations(body)]
        self.makers = {var: eqn for eqn in self.equations for var in eqn.outvars}
        self.takers: dict[Any, list[Any]] = {}
        for eqn in self.equations:
            for atom in eqn.invars:
                if not _jax.jaxpr.is_literal(atom):
                    self.takers.setdefault(atom, []).append(eqn)

    def operands(self, eqn: Any) -> list[Any]:
        """The equations that made the operands of an equation."""
        atoms = (atom for atom in eqn.invars if not _jax.jaxpr.is_literal(atom))
        return [self.makers[atom] for atom in atoms if atom in self.makers]

    def stopped(self, eqn: Any) -> Any:
        """The ``stop_gradient`` of the result of an equation, if nothing else uses the result."""
        after = eqn
        while len(takers := [taker for var in after.outvars for taker in self.takers.get(var, ())]) == 1:
            after = takers[0]
            if after.primitive.name == "stop_gradient":
                return after
            if _jax.primitives.primitive(after.primitive.name).kind not in ("cast", "moving"):
                break
        return eqn

    def gradients(self, eqns: Iterable[Any]) -> list[EquationGroup]:
        """The last equations of the gradients that have some transposed equations, by lines."""
        places = {_place(eqn) for eqn in eqns}
        return _by_line([eqn for eqn in self._returned if _place(eqn) in places]) if places else []

    @cached_property
    def _returned(self) -> list[Any]:
        """The transposed equations whose results leave the gradient."""
        transposed = [eqn for eqn in self.equations if _jax.jaxpr.is_transposed(eqn)]
        return [eqn for eqn in transposed if not self._is_within(eqn)]

    def _is_within(self, eqn: Any) -> bool:
        """Whether only transposed equations use the results of an equation."""
        takers = [taker for var in eqn.outvars for taker in self.takers.get(var, ())]
        return bool(takers) and all(map(_jax.jaxpr.is_transposed, takers))


def _by_line(eqns: Sequence[Any], name: Callable[[Any], str] = lambda eqn: "") -> list[EquationGroup]:
    """The equations by line, or by line and name; the last line first."""
    lines: dict[Any, list[Any]] = {}
    for eqn in eqns:
        if place := _place(eqn):
            lines.setdefault((place, name(eqn)), []).append(eqn)
    return [tuple({id(eqn): eqn for eqn in group}.values()) for group in reversed(lines.values())]


def _by_call(group: EquationGroup) -> Iterator[tuple[EquationGroup, str]]:
    """If a line has several collectives, the collectives of each call, with the words for its operand."""
    calls: dict[Any, list[Any]] = {}
    for eqn in group:
        calls.setdefault(_site(eqn), []).append(eqn)
    for eqns in calls.values() if len(calls) > 1 else ():
        if operand := _jax.source.operand(eqns[0]):
            yield tuple(eqns), f" of {operand}"


def _place(eqn: Any) -> str:
    """The user's line of an equation; for a transposed equation, the line of the call of ``jax.grad``."""
    find = _jax.source.gradient_place if _jax.jaxpr.is_transposed(eqn) else _jax.source.equation_place
    return find(eqn)


def _site(eqn: Any) -> Any:
    """The user's call that made an equation; None for a transposed equation."""
    return None if _jax.jaxpr.is_transposed(eqn) else _jax.source.call_site(eqn)[1]


def _is_derivative(eqn: Any) -> bool:
    """Whether an equation is the comparison in the derivative of an extreme."""
    return eqn.primitive.name == "eq" and _jax.jaxpr.is_differentiated(eqn)


def _is_written(eqn: Any, calls: Sequence[Any]) -> bool:
    """Whether a collective is in the user's program, rather than added by differentiation."""
    is_backward = any(map(_jax.jaxpr.is_transposed, calls))
    is_called = _jax.source.called_function(eqn) != eqn.primitive.name
    return not _jax.jaxpr.is_transposed(eqn) and (is_called or not is_backward)


def _is_reduction(eqn: Any) -> bool:
    return _jax.jaxpr.collective_operation(eqn) == "all-reduce"


def _line(group: EquationGroup) -> str:
    return _place(group[0]).partition(" ")[0]


def _edit(change: EditedEquation) -> Callable[[ReadEquation, list[Share], Sequence[Share]], Sequence[Share]]:
    def edit(step: ReadEquation, operands: list[Share], results: Sequence[Share]) -> Sequence[Share]:
        given = operands if change.replaces else results
        edited: list[Share] = []
        for at, value in enumerate(given):
            is_part = value.kind in ("sum", "extreme")
            if is_part and value.part is None:
                value = value.but(part=("edited", step.part, at))
            is_meant = is_part or not change.is_of_parts
            if is_meant and value.kind == "sharded" and not change.replaces and change.operation != "divide":
                raise ValueError("the sum of different rows is no cure")
            edited.append(_applied(change.operation, step, value, at) if is_meant else value)
        # A pmean is a psum equation, followed by a division by the size.
        return [scaled(value, 1) for value in edited] if change.replaces == "pmean" else edited

    return edit


def _end_of(operation: str) -> str:
    """``max`` or ``min`` for a collective that takes an extreme over the shards; empty for other operations."""
    return _jax.primitives.primitive(operation).end


def _applied(operation: str, step: ReadEquation, value: Share, at: int) -> Share:
    match operation:
        case "psum":
            return total(step, value, at)
        case "pmean":
            return scaled(total(step, value, at), -1)
        case "divide":
            return scaled(value, -1)
        case _:
            return extreme(step, value, end) if (end := _end_of(operation)) else value


def _on_result(operation: str) -> Callable[[Any, Share], Share]:
    def edit(reading: Any, value: Share) -> Share:
        if end := _end_of(operation):
            is_complete = value.kind == "extreme" and value.end == end
            return value.but(kind="same", part=None) if is_complete else NOT_KNOWN
        counted = value.degree if value.beside is None else sum_of(value.beside, 1)  # once per shard
        degree = reading.numbers.agree(value.degree, counted)
        if value.kind != "sum" or degree is None:
            return NOT_KNOWN
        summed = value.but(kind="same", part=None, degree=degree, beside=None)
        return scaled(summed, -1) if operation == "pmean" else summed

    return edit
