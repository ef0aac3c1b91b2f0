"""The peak memory of a device that runs a program, and the arrays in memory at that time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from ... import _jax
from .model import Alive, Memory
from .program import Buffer, Program, ProgramStep


def memory_of(program: Program, is_differentiated: bool = False) -> Memory:
    """The peak by liveness, of a program, perhaps with the gradient with respect to all of its arguments.

    Arguments, and results that do not replace an argument, are in memory all the time; other buffers from the step that
    makes them to the last step that reads them. An operation may overwrite an operand of the same size that nothing
    else reads; a result may overwrite the donated argument once nothing reads it any more.
    """
    steps = sorted(program.steps, key=attrgetter("time"))
    last = {buffer: at for at, step in enumerate(steps) for buffer in (*step.writes, *step.reads)}
    until = {result: last.get(argument, -1) for result, argument in program.reused.items()}
    inside = _inside_results(program, steps, last)
    held = Counter({buf: buf.bytes for buf in (*program.arguments, *program.results) if buf not in program.reused})
    arguments, stays = sum(buf.bytes for buf in program.arguments), {*program.arguments, *program.results}
    total = peak = sum(held.values())
    alive, place = dict(held), ""
    for at, step in enumerate(steps):
        freed = {buf for buf in step.reads if last[buf] == at and buf not in stays}
        for buf in step.writes:
            size = 0 if buf in inside else buf.bytes
            if step.is_in_place and (same := _replaced(buf, freed & held.keys())) is not None:
                total -= held.pop(same)
            if buf in until and (until[buf] < at or (until[buf] == at and step.is_in_place)):
                size = 0
            total += size - held[buf]
            held[buf] = size
        if total > peak:
            peak, alive, place = total, dict(held), step.around.place
        ended = {buf for buf in step.writes if last[buf] == at and buf not in stays}
        ended |= {result for result, end in until.items() if end == at and result in held}
        for buf in freed | ended:
            total -= held.pop(buf, 0)
    kinds = _kinds(program, steps, is_differentiated)
    present = [Alive(size, _text(buf), buf.place, kinds[buf]) for buf, size in alive.items() if size]
    present.sort(key=lambda buf: -buf.bytes)
    parts = Counter[str]()
    for buf in present:
        parts[buf.kind] += buf.bytes
    results, reused = sum(buf.bytes for buf in program.results), sum(buf.bytes for buf in program.reused)
    return Memory(arguments, results, reused, peak, place, dict(parts.most_common()), tuple(present))


def _replaced(buffer: Buffer, freed: Iterable[Buffer]) -> Buffer | None:
    """The freed buffer that a buffer may overwrite."""
    return next((candidate for candidate in freed if candidate.bytes == buffer.bytes), None)


def _inside_results(program: Program, steps: Sequence[ProgramStep], last: Mapping[Buffer, int]) -> set[Buffer]:
    """The buffers that a result finally overwrites: they are in its memory from the start."""
    homes, stays = {*program.results} - program.reused.keys(), {*program.results, *program.arguments}
    for at, step in reversed([*enumerate(steps)]):
        freed = {buf for buf in step.reads if last[buf] == at} - stays
        for buf in step.writes:
            if step.is_in_place and buf in homes and (same := _replaced(buf, freed - homes)) is not None:
                homes.add(same)
    return homes - stays


def _kinds(program: Program, steps: Sequence[ProgramStep], is_differentiated: bool) -> Mapping[Buffer, str]:
    """The kind of each buffer; arguments of a differentiated program are just arguments."""
    is_last_transposed = {buf: step.around.is_transposed for step in steps for buf in step.reads}
    arguments, sources = _argument_kinds(program)
    arguments = dict.fromkeys(arguments, "arguments") if is_differentiated else arguments
    weights = {buf for buf, kind in arguments.items() if kind == "weights"}
    kinds: dict[Buffer, str] = {}
    for buf in (buf for step in steps for buf in step.writes):
        operation, is_read_back = buf.operation.removesuffix("_start"), is_last_transposed.get(buf, buf.is_transposed)
        if (collective := _jax.primitives.COLLECTIVES.get(operation)) == "all-gather":
            kinds[buf] = "gathered weights" if sources[buf] and sources[buf] <= weights else "gathered"
        elif collective is not None:
            kinds[buf] = "collectives"
        elif buf.is_transposed != is_read_back:
            kinds[buf] = "gradients" if buf.is_transposed else "saved activations"
        else:
            kinds[buf] = "temporaries"
    return {**kinds, **dict.fromkeys(program.results, "results"), **arguments}


def _argument_kinds(program: Program) -> tuple[dict[Buffer, str], Mapping[Buffer, frozenset[Buffer]]]:
    """The kind of each argument of a function that takes a gradient, and the arguments on which each buffer depends."""
    # Weights are arguments on which a gradient depends, with the type of a result that depends on the gradient (their
    # gradient or update). Optimizer state is not needed for the gradient, but a result of its type depends on it.
    sources = defaultdict[Buffer, frozenset[Buffer]](frozenset, {buf: frozenset([buf]) for buf in program.arguments})
    updated, needed = set[Buffer](), set[Buffer]()
    for step in program.steps:
        origins = frozenset[Buffer]().union(*(sources[buf] for buf in step.reads))
        after = step.around.is_transposed or not updated.isdisjoint(step.reads)
        needed |= origins if step.around.is_transposed else frozenset()
        for buf in (*step.writes, *step.fills):
            sources[buf] |= origins
            updated |= {buf} if after else frozenset()
    kinds = dict.fromkeys(program.arguments, "arguments")
    for result in program.results if needed else ():
        for buf in sources[result]:
            if program.types[buf] == program.types[result] and (buf not in needed or result in updated):
                kinds[buf] = "weights" if buf in needed else "optimizer state"
    return kinds, sources


def _text(buffer: Buffer) -> str:
    return f"{buffer.type} {buffer.operation}".rstrip()
