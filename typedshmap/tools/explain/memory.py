"""The memory of one device while it runs a program: the most at one time, and what is there then."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from ... import _jax
from .model import Alive, Memory
from .program import Buffer, Program, ProgramStep


def memory_of(program: Program, is_differentiated: bool = False) -> Memory:
    """The peak by liveness, of a program as it is or with the gradient by all of its arguments.

    Arguments, and results that take no argument's place, are in memory all the time; other buffers from the step that
    makes them to the last one that reads them. An operation may write where one of its operands was, of the same size,
    that nothing reads any more; a result where the donated argument was, once nothing reads that.
    """
    steps = sorted(program.steps, key=attrgetter("time"))
    last = {buffer: at for at, step in enumerate(steps) for buffer in (*step.writes, *step.reads)}
    until = {result: last.get(argument, -1) for result, argument in program.reused.items()}
    inside = _inside_results(program, steps, last)
    held = Counter({one: one.bytes for one in (*program.arguments, *program.results) if one not in program.reused})
    arguments, stays = sum(one.bytes for one in program.arguments), {*program.arguments, *program.results}
    total = peak = sum(held.values())
    alive, place = dict(held), ""
    for at, step in enumerate(steps):
        freed = {one for one in step.reads if last[one] == at and one not in stays}
        for one in step.writes:
            size = 0 if one in inside else one.bytes
            if step.is_in_place and (same := _replaced(one, freed & held.keys())) is not None:
                total -= held.pop(same)
            if one in until and (until[one] < at or (until[one] == at and step.is_in_place)):
                size = 0
            total += size - held[one]
            held[one] = size
        if total > peak:
            peak, alive, place = total, dict(held), step.around.place
        ended = {one for one in step.writes if last[one] == at and one not in stays}
        ended |= {result for result, end in until.items() if end == at and result in held}
        for one in freed | ended:
            total -= held.pop(one, 0)
    kinds = _kinds(program, steps, is_differentiated)
    found = [Alive(size, _text(one), one.place, kinds[one]) for one, size in alive.items() if size]
    found.sort(key=lambda one: -one.bytes)
    parts = Counter[str]()
    for one in found:
        parts[one.kind] += one.bytes
    results, reused = sum(one.bytes for one in program.results), sum(one.bytes for one in program.reused)
    return Memory(arguments, results, reused, peak, place, dict(parts.most_common()), tuple(found))


def _replaced(buffer: Buffer, freed: Iterable[Buffer]) -> Buffer | None:
    """In the place of which buffer another may be written."""
    return next((one for one in freed if one.bytes == buffer.bytes), None)


def _inside_results(program: Program, steps: Sequence[ProgramStep], last: Mapping[Buffer, int]) -> set[Buffer]:
    """The buffers in whose place a result is written in the end: they are in its memory from the start."""
    homes, stays = {*program.results} - program.reused.keys(), {*program.results, *program.arguments}
    for at, step in reversed([*enumerate(steps)]):
        freed = {one for one in step.reads if last[one] == at} - stays
        for one in step.writes:
            if step.is_in_place and one in homes and (same := _replaced(one, freed - homes)) is not None:
                homes.add(same)
    return homes - stays


def _kinds(program: Program, steps: Sequence[ProgramStep], is_differentiated: bool) -> Mapping[Buffer, str]:
    """What each buffer is to a reader of the program; the arguments of a gradient by all of them are arguments."""
    is_last_transposed = {one: step.around.is_transposed for step in steps for one in step.reads}
    arguments, sources = _argument_kinds(program)
    arguments = dict.fromkeys(arguments, "arguments") if is_differentiated else arguments
    weights = {one for one, kind in arguments.items() if kind == "weights"}
    kinds: dict[Buffer, str] = {}
    for one in (one for step in steps for one in step.writes):
        operation, is_read_back = one.operation.removesuffix("_start"), is_last_transposed.get(one, one.is_transposed)
        if (collective := _jax.jaxpr.COLLECTIVES.get(operation)) == "all-gather":
            kinds[one] = "gathered weights" if sources[one] and sources[one] <= weights else "gathered"
        elif collective is not None:
            kinds[one] = "collectives"
        elif one.is_transposed != is_read_back:
            kinds[one] = "gradients" if one.is_transposed else "saved activations"
        else:
            kinds[one] = "temporaries"
    return {**kinds, **dict.fromkeys(program.results, "results"), **arguments}


def _argument_kinds(program: Program) -> tuple[dict[Buffer, str], Mapping[Buffer, frozenset[Buffer]]]:
    """What each argument of a function that takes a gradient is, and from which arguments each buffer is computed.

    Weights are arguments on which a gradient depends, of the type of a result that depends on the gradient: of their
    gradient or their update. Optimizer state is not needed for the gradient, and a result of its type depends on it.
    """
    sources = defaultdict[Buffer, frozenset[Buffer]](frozenset, {one: frozenset([one]) for one in program.arguments})
    updated, needed = set[Buffer](), set[Buffer]()
    for step in program.steps:
        found = frozenset[Buffer]().union(*(sources[one] for one in step.reads))
        after = step.around.is_transposed or not updated.isdisjoint(step.reads)
        needed |= found if step.around.is_transposed else frozenset()
        for one in (*step.writes, *step.fills):
            sources[one] |= found
            updated |= {one} if after else frozenset()
    kinds = dict.fromkeys(program.arguments, "arguments")
    for result in program.results if needed else ():
        for one in sources[result]:
            if program.types[one] == program.types[result] and (one not in needed or result in updated):
                kinds[one] = "weights" if one in needed else "optimizer state"
    return kinds, sources


def _text(buffer: Buffer) -> str:
    return f"{buffer.type} {buffer.operation}".rstrip()
