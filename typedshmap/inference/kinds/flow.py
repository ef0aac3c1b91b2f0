"""The rules of calls, branches and loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import inf
from typing import Any

from ... import _jax
from ..interpreter import CALLS, fixed_point
from . import loss_kinds
from .joining import join
from .origins import ValueOrigin, name_of
from .reading import JaxprRun, ReadEquation, Reading
from .rings import closed_rings
from .sums import add
from .value import ANY, NOT_KNOWN, SAME, UNKNOWN, Share, reach_of, scaled, sum_of, unknown


def call(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A call of a jaxpr."""
    return CALLS[step.name](step.reading, step.eqn, values)


def linear_solve(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A linear solver with its own gradient: the degree of the solution is that of the right side less the matrix's."""
    lengths, jaxprs = step.params["const_lengths"], step.params["jaxprs"]
    sides = values[sum(lengths) :]
    if all(value.is_common for value in (*values[: lengths.matvec], *sides)):
        products = step.reading.interpret(jaxprs.matvec, [*values[: lengths.matvec], *[SAME] * len(sides)])
        if all(value.is_common for value in products):
            return [
                side if product is SAME else side.but(degree=sum_of(side.degree, product.degree, -1), is_reached=True)
                for side, product in zip(sides, products, strict=True)
            ]
    return call(step, values)


def branch(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """One of several branches, by an index."""
    which, reading = values[0], step.reading
    reading.predicates[id(step.eqn)] = which
    results = [_either_way(reading, ways) for ways in reading.ways(step.eqn, values[1:])]
    return _decided(step, values, which, results, loss_kinds.BRANCH, which.is_reached)


def _decided(
    step: ReadEquation, values: list[Share], by: Share, results: list[Share], why: loss_kinds.LossKind, is_reached: bool
) -> Sequence[Share]:
    """Results of a branch or a loop, for a predicate that may vary."""
    if by.kind == "unknown":
        return [unknown(values).but(origin=by.origin)] * len(results)
    is_of_own_rows = step.reading.is_excusable(by) or step.reading.is_of_extremes(by)  # e.g. to skip useless work
    if is_of_own_rows or (by.kind in ("own", "sharded") and not by.symbols):
        return [_chosen(step, value, is_of_own_rows or is_reached) for value in results]
    if by.kind in ("sum", "extreme") or by.symbols:
        return [step.lost(why, by, value) for value in results]
    return results


def _either_way(reading: Reading, ways: Sequence[Share]) -> Share:
    """The join of the results of several branches; if some return a partial sum, its origin is kept."""
    sums = [way for way in ways if way.kind == "sum"]
    terms = [way.beside for way in sums if way.beside is not None]
    terms += [way.degree for way in ways if way.kind == "same" and not way.is_zero]
    if sums and terms and all(way.kind in ("sum", "same") and not way.symbols for way in ways):
        value = reduce(lambda a, b: join(reading, a, b), [way.but(beside=None) for way in sums])
        return value.but(beside=terms[0] if len(set(terms)) == 1 else UNKNOWN)
    value = reduce(lambda a, b: join(reading, a, b), ways)
    part = next((way.part for way in ways if way.kind == "sum"), None)
    origin = reading.makers.get(part)
    if value.kind != "unknown" or value.origin is not None or origin is None or origin.eqn is None:
        return value
    reading.origins.setdefault(id(origin.eqn), origin)
    return value.but(origin=id(origin.eqn))


def _chosen(step: ReadEquation, value: Share, is_reached: bool) -> Share:
    """A value that each shard chose by its own predicate."""
    step.reading.origins.setdefault(id(step.eqn), ValueOrigin(step.eqn, step.frame.calls))
    is_reached = value.is_reached or is_reached
    return value.but(kind="own", dim=None, order=0, part=None, is_reached=is_reached, origin=id(step.eqn))


def while_loop(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A while loop."""
    conds, consts, start = _jax.jaxpr.while_operands(step.eqn, values)
    carry, _, goes_on = step.reading.while_loop(step.eqn, [*conds, *consts, *(value.without_number for value in start)])
    step.reading.predicates[id(step.eqn)] = goes_on
    return _decided(step, values, goes_on, carry, loss_kinds.CONDITION, True)


def scan(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A loop over leading dims."""
    reading, eqn = step.reading, step.eqn
    fixed, before, over = _jax.jaxpr.scan_operands(eqn, values)
    starts: list[Share] = [value.without_number for value in before]
    count, items = len(starts), [*map(_item, over)]
    is_over_rows = any(item.dim == "rows" for item in items)
    is_long = step.params["length"] != step.other.params["length"]
    body = _jax.jaxpr.open_jaxpr(step.params["jaxpr"])
    folds = [_fold(body, len(fixed) + at, at, reading.edits) for at in range(count)]
    started = [_neutral(fold) if fold else value for fold, value in zip(folds, starts, strict=True)]

    def carried(now: list[Share], results: list[Share], times: int) -> list[Share]:
        after = list[Share]()
        for fold, value, start in zip(folds, results, started, strict=False):
            if is_over_rows and value.dim == "rows" and not fold:
                value = step.lost(loss_kinds.SCANNED_ROWS, value, is_excusable=True)
            after.append(start if fold else value)
        return reading.carried(started, now, after, times)

    iteration = lambda now: reading.interpret(step.params["jaxpr"], [*fixed, *now, *items])  # noqa: E731
    closed = closed_rings(step, starts, iteration)
    carry, results = fixed_point(started, iteration, carried)
    if is_long and not is_over_rows:
        carry = [value if value == was else NOT_KNOWN.reached for value, was in zip(carry, started, strict=True)]
    for at, fold in enumerate(folds):
        if at in closed:
            carry[at] = closed[at]
        elif fold:
            carry[at] = _folded(step, fold, starts[at], results[at], body, at, is_over_rows)
        if carry[at].is_part:
            part = ("iterations", step.part, at) if carry[at].part is None else carry[at].part
            carry[at] = carry[at].but(part=part)
            origin = ValueOrigin(_made_in(eqn, at), (eqn, *step.frame.calls), name_of(items))
            reading.makers.setdefault(part, origin)
    return [*carry, *[_stacked(step, value, is_over_rows, is_long) for value in results[count:]]]


def _neutral(fold: _jax.primitives.Primitive) -> Share:
    """The neutral operand of a fold: zeros for a sum, an infinity for an extreme."""
    if not fold.end:
        return Share("same", ANY)
    return Share("same", 0, number=(inf if fold.end == "min" else -inf,) * 2)


def _fold(body: Any, at_input: int, at_result: int, edits: Mapping[Any, Any]) -> _jax.primitives.Primitive | None:
    """The sum or extreme that folds an iteration's value into the carry of a loop, if the loop does nothing else."""
    carried, result, uses = body.invars[at_input], body.outvars[at_result], _jax.jaxpr.uses(body)
    *casts, made = _through_casts(body, result)
    eqn = None if _jax.jaxpr.is_literal(made) else _jax.jaxpr.maker_of(body, made)
    if eqn is None or len(eqn.invars) != 2 or id(eqn) in edits:
        return None
    fold = _jax.primitives.primitive(eqn.primitive.name)
    if fold.kind != "sum" and not (fold.is_monotone and fold.end):
        return None
    operands = eqn.invars[:1] if eqn.primitive.name == "sub" else eqn.invars
    ways = [way for way in (_through_casts(body, atom) for atom in operands) if way[-1] is carried]
    is_used_once = len(ways) == 1 and all(uses[atom] == 1 for atom in (*casts, made, *ways[0]))
    return fold if is_used_once else None


def _through_casts(body: Any, atom: Any) -> list[Any]:
    """A value, and the values from which it was cast."""
    atoms = [atom]
    while not _jax.jaxpr.is_literal(atom) and (eqn := _jax.jaxpr.maker_of(body, atom)) is not None:
        if _jax.primitives.primitive(eqn.primitive.name).kind != "cast" or len(eqn.invars) != 1:
            break
        atom = eqn.invars[0]
        atoms.append(atom)
    return atoms


def _folded(
    step: ReadEquation,
    fold: _jax.primitives.Primitive,
    start: Share,
    iteration: Share,
    body: Any,
    at: int,
    is_over_rows: bool,
) -> Share:
    """The result of a fold: its start, and the values of all iterations."""
    lengths = [eqn.params["length"] for eqn in (step.eqn, step.other)]
    if fold.end:
        if iteration.kind == "sharded" and iteration.dim == "rows" and not iteration.symbols:
            iteration = Share("extreme", iteration.degree, end=fold.end, **reach_of(iteration))
        is_bound = start.is_common or step.reading.is_excusable(start)
        return iteration if is_bound and iteration.kind in ("same", "extreme") else join(step.reading, start, iteration)
    if iteration.dim == "rows":
        iteration = iteration.accumulated
    elif iteration.kind in ("same", "sharded", "local") and not iteration.is_zero:
        iteration = scaled(iteration, step.reading.numbers.iterations(lengths, step.eqn, is_over_rows))
    elif lengths[0] != lengths[1] and not iteration.is_zero:
        iteration = NOT_KNOWN.reached
    if start.is_zero:
        return iteration
    eqn = _jax.jaxpr.maker_of(body, _through_casts(body, body.outvars[at])[-1])
    return add(ReadEquation(eqn, eqn, JaxprRun(body, body, step), step.reading), [start, iteration])


def _made_in(eqn: Any, at: int) -> Any:
    """The equation in a loop's body that made a carry; else the loop."""
    jaxpr = _jax.jaxpr.open_jaxpr(eqn.params["jaxpr"])
    return _jax.jaxpr.maker_of(jaxpr, jaxpr.outvars[at]) or eqn


def _item(value: Share) -> Share:
    """One row of an array that a loop scans."""
    if value is SAME:
        return value
    value = value.without_number
    if value.kind in ("sharded", "local") and value.dim == 0:
        return value.but(dim="rows")
    if value.kind == "gathered" and value.dim == 0:
        return NOT_KNOWN.reached
    return value.but(dim=value.dim - 1) if isinstance(value.dim, int) else value


def _stacked(step: ReadEquation, value: Share, is_over_rows: bool, is_long: bool) -> Share:
    """The results of all iterations, stacked along a new dim."""
    if value.dim == "rows":
        return value.but(dim=0)
    if is_over_rows:
        if value.kind == "same":
            return value if value.is_zero else Share("sharded", value.degree, dim=0, **value.symbol_fields)
        if value.kind == "sum":
            return step.lost(loss_kinds.SCANNED_ROWS, value, is_excusable=True)
        return value
    if is_long:
        return NOT_KNOWN
    return (value.but(dim=value.dim + 1) if isinstance(value.dim, int) else value).without_number
