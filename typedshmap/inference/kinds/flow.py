"""What calls, branches and loops make of what the shards hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any

from ... import _jax
from ..interpreter import fixed_point
from .origins import Beginning
from .reading import JaxprRun, KindRule, ReadEquation, Reading, name_of
from .value import ANY, NOT_KNOWN, SAME, UNKNOWN, Share, accumulated, anyhow, heard, scaled, sum_of, unknown

_MOST_ITERATIONS = 6


def call(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A call of a jaxpr with the same operands."""
    find = _jax.jaxpr.hi_jaxpr if step.name == "call_hi_primitive" else _jax.jaxpr.called_jaxpr
    jaxpr, other = find(step.eqn), find(step.other)
    if jaxpr is None or other is None:
        return [unknown(values, is_heard=True)] * len(step.eqn.outvars)
    count = len(jaxpr.invars)
    return step.reading.run(jaxpr, other, values[:count], step.frame, step.eqn, step.eqn.invars[:count], is_call=True)


def linear_solve(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A solver with a gradient of its own: one of its jaxprs computes the solution."""
    lengths, jaxprs = step.params["const_lengths"], step.params["jaxprs"]
    first, last = lengths.matvec + lengths.vecmat, sum(lengths)
    sides = values[last:]
    if all(value.kind == "same" and not value.own for value in (*values[: lengths.matvec], *sides)):
        matrix = [*values[: lengths.matvec], *[SAME] * len(sides)]
        atoms = [*step.eqn.invars[: lengths.matvec], *[None] * len(sides)]
        products = step.reading.run(
            jaxprs.matvec, step.other.params["jaxprs"].matvec, matrix, step.frame, step.eqn, atoms
        )
        if all(value.kind == "same" and not value.own for value in products):
            return [
                side if product is SAME else side.but(degree=sum_of(side.degree, product.degree, -1), is_heard=True)
                for side, product in zip(sides, products, strict=True)
            ]
    given = [*range(first, first + lengths.solve), *range(last, len(values))]
    atoms = [step.eqn.invars[at] for at in given]
    return step.reading.run(
        jaxprs.solve, step.other.params["jaxprs"].solve, [values[at] for at in given], step.frame, step.eqn, atoms
    )


def branch(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """One of several branches, by an index."""
    which, operands, reading = values[0], values[1:], step.reading
    reading.predicates[id(step.eqn)] = which
    ways = [
        reading.run(jaxpr, other, operands, step.frame, step.eqn, step.eqn.invars[1:])
        for jaxpr, other in zip(step.params["branches"], step.other.params["branches"], strict=True)
    ]
    results = [_either_way(reading, each) for each in zip(*ways, strict=True)]
    return _decided(step, values, which, results, "takes a branch by", which.is_heard)


def _decided(
    step: ReadEquation, values: list[Share], by: Share, results: list[Share], why: str, is_heard: bool
) -> Sequence[Share]:
    """Results of which a predicate decides how they are computed."""
    if by.kind == "unknown":
        return [unknown(values).but(since=by.since)] * len(results)
    is_of_own_rows = step.reading.is_soft(by) or step.reading.is_of_extremes(by)  # as to skip what changes nothing
    if is_of_own_rows or (by.kind in ("own", "sharded") and not by.own):
        return [_chosen(step, value, is_of_own_rows or is_heard) for value in results]
    if by.kind in ("sum", "extreme") or by.own:
        return [step.lost(why, by, value) for value in results]
    return results


def _either_way(reading: Reading, ways: Sequence[Share]) -> Share:
    """The result of one of several branches; of a sum that only some of them take it is known where that began."""
    sums = [way for way in ways if way.kind == "sum"]
    terms = [way.beside for way in sums if way.beside is not None]
    terms += [way.degree for way in ways if way.kind == "same" and not way.is_zero]
    if sums and terms and all(way.kind in ("sum", "same") and not way.own for way in ways):
        value = reduce(lambda a, b: join(reading, a, b), [way.but(beside=None) for way in sums])
        return value.but(beside=terms[0] if len(set(terms)) == 1 else UNKNOWN)
    value = reduce(lambda a, b: join(reading, a, b), ways)
    part = next((way.part for way in ways if way.kind == "sum"), None)
    origin = reading.makers.get(part)
    if value.kind != "unknown" or value.since is not None or origin is None or origin.eqn is None:
        return value
    reading.origins.setdefault(id(origin.eqn), origin)
    return value.but(since=id(origin.eqn))


def _chosen(step: ReadEquation, value: Share, is_heard: bool) -> Share:
    """A value of which each shard chose its own."""
    step.reading.origins.setdefault(id(step.eqn), Beginning(step.eqn, step.frame.calls))
    is_heard = value.is_heard or is_heard
    return value.but(kind="own", dim=None, order=0, part=None, is_heard=is_heard, since=id(step.eqn))


def loop(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A while loop."""
    reading, eqn, other = step.reading, step.eqn, step.other
    conds, consts, carry = _jax.jaxpr.while_operands(eqn, values)
    cond_atoms, const_atoms, _ = _jax.jaxpr.while_operands(eqn, eqn.invars)
    carry = [_unnumbered(value) for value in carry]

    def iteration(now: list[Share]) -> list[Share]:
        atoms = [*const_atoms, *[None] * len(now)]
        return reading.run(
            eqn.params["body_jaxpr"], other.params["body_jaxpr"], [*consts, *now], step.frame, eqn, atoms
        )

    carry = _fixed_point(reading, carry, iteration)[0]
    atoms = [*cond_atoms, *[None] * len(carry)]
    (goes_on,) = reading.run(
        eqn.params["cond_jaxpr"], other.params["cond_jaxpr"], [*conds, *carry], step.frame, eqn, atoms
    )
    reading.predicates[id(eqn)] = goes_on
    return _decided(step, values, goes_on, carry, "goes on by", True)


def scan(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A loop over leading dims."""
    reading, eqn, other = step.reading, step.eqn, step.other
    consts, count = _jax.jaxpr.scan_counts(eqn.params)
    fixed, before = values[:consts], [_unnumbered(value) for value in values[consts : consts + count]]
    items = [_item(value) for value in values[consts + count :]]
    is_over_rows = any(item.dim == "rows" for item in items)
    is_long = eqn.params["length"] != other.params["length"]
    atoms = [*eqn.invars[:consts], *[None] * (len(values) - consts)]
    body = _jax.jaxpr.open_jaxpr(eqn.params["jaxpr"])
    folds = [_fold(body, consts + at, at, reading.edits) for at in range(count)]
    started = [_NEUTRAL.get(fold, value) for fold, value in zip(folds, before, strict=True)]

    def iteration(now: list[Share]) -> list[Share]:
        jaxprs = eqn.params["jaxpr"], other.params["jaxpr"]
        results = reading.run(*jaxprs, [*fixed, *now, *items], step.frame, eqn, atoms)
        after = [
            started[at]
            if folds[at]
            else step.lost("scans its own rows of", value, is_soft=True)
            if is_over_rows and value.dim == "rows"
            else value
            for at, value in enumerate(results[:count])
        ]
        turned.append(results)
        return [*after, *results[count:]]

    turned: list[list[Share]] = []
    carried, results = _fixed_point(reading, started, iteration)
    if is_long and not is_over_rows:
        carried = [value if value == was else heard(NOT_KNOWN) for value, was in zip(carried, started, strict=True)]
    for at, fold in enumerate(folds):
        if fold:
            carried[at] = _folded(step, fold, before[at], turned[-1][at], body, at, is_over_rows)
    for at, value in enumerate(carried):
        if value.kind in ("sum", "extreme") and value.part is None:
            carried[at] = value = value.but(part=("iterations", step.part, at))
        if value.kind in ("sum", "extreme"):
            origin = Beginning(_made_in(eqn, at), (eqn, *step.frame.calls), name_of(items))
            reading.makers.setdefault(value.part, origin)
    return [*carried, *[_stacked(step, value, is_over_rows, is_long) for value in results[count:]]]


_FOLDS = {"add": "add", "add_any": "add", "sub": "add", "max": "max", "min": "min"}
_NEUTRAL = {
    "add": Share("same", ANY),
    "max": Share("same", 0, number=(float("-inf"),) * 2),
    "min": Share("same", 0, number=(float("inf"),) * 2),
}


def _fold(body: Any, at_input: int, at_result: int, edits: Mapping[Any, Any]) -> str:
    """How a loop folds what a iteration makes into what it carries, if that is all that it does with it."""
    carried, result = body.invars[at_input], body.outvars[at_result]
    *casts, made = _through_casts(body, result)
    eqn = None if _jax.jaxpr.is_literal(made) else _jax.jaxpr.maker_of(body, made)
    if eqn is None or eqn.primitive.name not in _FOLDS or id(eqn) in edits:
        return ""
    operands = eqn.invars[:1] if eqn.primitive.name == "sub" else eqn.invars
    ways = [way for way in (_through_casts(body, atom) for atom in operands) if way[-1] is carried]
    is_used_once = len(ways) == 1 and all(_uses(body)[atom] == 1 for atom in (*casts, made, *ways[0]))
    return _FOLDS[eqn.primitive.name] if is_used_once else ""


def _through_casts(body: Any, atom: Any) -> list[Any]:
    """A value, and what it was cast from, as far back as that goes."""
    atoms = [atom]
    while not _jax.jaxpr.is_literal(atom) and (eqn := _jax.jaxpr.maker_of(body, atom)) is not None:
        if _jax.primitives.primitive(eqn.primitive.name).kind != "cast" or len(eqn.invars) != 1:
            break
        atom = eqn.invars[0]
        atoms.append(atom)
    return atoms


def _cast_maker(body: Any, atom: Any) -> Any:
    """The equation that made a value, but for casts."""
    atom = _through_casts(body, atom)[-1]
    return None if _jax.jaxpr.is_literal(atom) else _jax.jaxpr.maker_of(body, atom)


@lru_cache(maxsize=64)
def _uses(body: Any) -> Counter[Any]:
    """How often each variable of a jaxpr is an operand or a result."""
    atoms = [*(atom for eqn in body.eqns for atom in eqn.invars), *body.outvars]
    return Counter(atom for atom in atoms if not _jax.jaxpr.is_literal(atom))


def _folded(
    step: ReadEquation, fold: str, start: Share, iteration: Share, body: Any, at: int, is_over_rows: bool
) -> Share:
    """What a loop has folded up in the end: what it began with, and what all of its iterations made."""
    lengths = [eqn.params["length"] for eqn in (step.eqn, step.other)]
    if fold != "add":
        if iteration.kind == "sharded" and iteration.dim == "rows" and not iteration.own:
            iteration = Share(
                "extreme", iteration.degree, end=fold, reduced=iteration.reduced, is_heard=iteration.is_heard
            )
        is_bound = (start.kind == "same" and not start.own) or step.reading.is_soft(start)
        return iteration if is_bound and iteration.kind in ("same", "extreme") else join(step.reading, start, iteration)
    if iteration.dim == "rows":
        iteration = accumulated(iteration)
    elif iteration.kind in ("same", "sharded", "local") and not iteration.is_zero:
        iteration = scaled(iteration, step.reading.numbers.iterations(lengths, step.eqn, is_over_rows))
    elif lengths[0] != lengths[1] and not iteration.is_zero:
        iteration = heard(NOT_KNOWN)
    eqn = _cast_maker(body, body.outvars[at])
    frame = JaxprRun(body, step.frame, step.eqn, ())
    if start.is_zero:
        return iteration
    total = step.reading.rules["add"](ReadEquation(eqn, eqn, frame, step.reading), [start, iteration])
    return total if isinstance(total, Share) else total[0]


def _made_in(eqn: Any, at: int) -> Any:
    """The equation of a loop's body that made what it carries; else the loop."""
    jaxpr = _jax.jaxpr.open_jaxpr(eqn.params["jaxpr"])
    return _jax.jaxpr.maker_of(jaxpr, jaxpr.outvars[at]) or eqn


def _unnumbered(value: Share) -> Share:
    return value.but(number=None, line=None) if value.number is not None or value.line is not None else value


def _item(value: Share) -> Share:
    """One of the items over which a loop goes."""
    if value is SAME:
        return value
    value = _unnumbered(value)
    if value.kind in ("sharded", "local") and value.dim == 0:
        return value.but(dim="rows")
    if value.kind == "parts" and value.dim == 0:
        return heard(NOT_KNOWN)
    return value.but(dim=value.dim - 1) if isinstance(value.dim, int) else value


def _stacked(step: ReadEquation, value: Share, is_over_rows: bool, is_long: bool) -> Share:
    """What a loop returns of each iteration, along a new dim."""
    if value.dim == "rows":
        return value.but(dim=0)
    if is_over_rows:
        if value.kind == "same":
            return value if value.is_zero else Share("sharded", value.degree, dim=0, **value.gauges)
        if value.kind == "sum":
            return step.lost("scans its own rows of", value, is_soft=True)
        return value
    if is_long:
        return NOT_KNOWN
    return _unnumbered(value.but(dim=value.dim + 1) if isinstance(value.dim, int) else value)


def _fixed_point(
    reading: Reading, start: list[Share], iteration: Callable[[list[Share]], list[Share]]
) -> tuple[list[Share], list[Share]]:
    """What a loop carries before every iteration, and what a iteration returns."""

    def carried(now: list[Share], results: list[Share], times: int) -> list[Share]:
        after = [join(reading, *each) for each in zip(now, map(_unnumbered, results), strict=False)]
        if times < _MOST_ITERATIONS:
            return after
        return [before if before == then else NOT_KNOWN for before, then in zip(now, after, strict=True)]

    return fixed_point(start, iteration, carried)


def join(reading: Reading, a: Share, b: Share) -> Share:
    """What is known of a value that is one of two."""
    if a is b or a == b:
        return a
    if a.kind == "unknown" or b.kind == "unknown":
        return unknown((a, b)).but(since=_since_either(reading, a, b))
    for zero, value in ((a, b), (b, a)):
        if zero.is_zero and zero.kind == "same":
            return _unnumbered(value)
    more: dict[str, Any] = {
        "gauge": "?" if a.own or b.own else "",
        "own": anyhow(a, b),
        "may_cancel": a.may_cancel or b.may_cancel,
        "reduced": a.reduced | b.reduced,
        "is_heard": a.is_heard or b.is_heard,
        "is_positive": a.is_positive and b.is_positive,
    }
    if "own" in (a.kind, b.kind):
        return Share("own", 0, since=reading.since((a, b)), **more)
    degree = reading.numbers.agree(a.degree, b.degree)
    kinds = {a.kind, b.kind}
    if degree is None and kinds == {"same"} and a.number is not None and b.number is not None:
        degree = 0
    if degree is None:
        degree = UNKNOWN
    if kinds == {"same"}:
        return (
            SAME
            if degree == 0 and not more["own"] and not more["is_heard"] and not more["reduced"]
            else Share("same", degree, **more)
        )
    dims = {value.dim for value in (a, b) if value.kind in ("sharded", "local")}
    if kinds <= {"same", "sharded"} and len(dims) == 1:
        name = a.name if a.kind == "sharded" else b.name
        return Share("sharded", degree, dim=dims.pop(), order=a.order or b.order, name=name, **more)
    if kinds == {"sum"} and a.beside == b.beside:
        return Share("sum", degree, a.beside, part=a.part, **more)
    if kinds == {"extreme"} and a.end == b.end:
        return Share("extreme", degree, end=a.end, part=a.part, **more)
    if kinds <= {"same", "local"} and len(dims) == 1:
        return Share("local", degree, dim=dims.pop(), **more)
    if kinds == {"same", "extreme"}:  # before the first iteration of a running extreme
        found, start = (a, b) if a.kind == "extreme" else (b, a)
        bound = start.number[0] if start.number is not None else None
        if bound is not None and abs(bound) > 1e6:
            return found.but(**more)
    return unknown((a, b)).but(since=_since_either(reading, a, b))


def _since_either(reading: Reading, a: Share, b: Share) -> Any:
    """Since when a value is not known that is one of two: since a part was made, if one of them is that part."""
    if (since := reading.since((a, b))) is not None:
        return since
    for value in (a, b):
        if value.part in reading.makers:
            reading.origins.setdefault(value.part, reading.makers[value.part])
            return value.part
    return None


RULES: Mapping[str, KindRule] = {
    **dict.fromkeys(_jax.primitives.names_of("call"), call),
    "custom_linear_solve": linear_solve,
    "cond": branch,
    "while": loop,
    "scan": scan,
}
