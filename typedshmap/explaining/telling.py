"""Put together what is told of one call: its values, its collectives, its gradient's, and what is not counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from ..errors import StructureError, TypedShmapError
from .calls import Call, has_gradient
from .explanation import Explanation
from .model import Collective, Value
from .reading import Found, Sources, read_program
from .values import donated_operands, memory_of, value_of


def explanation(call: Call, grad: bool | None, bandwidth: Mapping[str, float]) -> Explanation:
    """All that is told of one call."""
    traced = call.trace()
    found, ends = read_program(traced.program, len(call.traced))
    arguments = [
        value_of(at, "argument", call.leaves[leaf], call.structs[leaf], call.region)
        for at, leaf in enumerate(call.traced)
    ]
    numbers = [one.ident for one in (*found.values, *found.collectives)]
    results = _results(call, traced.results, ends, max(numbers, default=len(arguments) - 1) + 1)
    gradient = _gradient(call, traced.results, found, results, grad)
    return Explanation(
        call.typed.name,
        call.mesh.shape_tuple,
        {name: bound.size for name, bound in call.sizes if name.lstrip("*").isidentifier()},
        (*arguments, *found.values, *results),
        (*found.collectives, *gradient.collectives),
        memory_of(arguments, results, donated_operands(traced.program)),
        tuple(dict.fromkeys((*_notes(call, found), *gradient.notes))),
        bandwidth,
    )


def _results(call: Call, results: Any, ends: Sequence[Sources], first: int) -> list[Value]:
    if call.typed.result is None:
        return []
    leaves = call.result_leaves(results)
    return [
        value_of(first + at, "result", leaf, leaf.value, call.region, sorted(end))
        for at, (leaf, end) in enumerate(zip(leaves, ends, strict=True))
    ]


def _notes(call: Call, found: Found) -> list[str]:
    notes: list[str] = []
    if call.made_of.verb == "typed":
        axes = ", ".join(name for name, _ in call.mesh.shape_tuple)
        notes.append(f"{call.typed.name} is explained as mapped over {axes}, as it is called in a manual region")
    unhinted = [str(leaf.subject) for leaf in (call.leaves[at] for at in call.traced) if leaf.hint is None]
    if unhinted:
        notes.append(f"no hint says how {', '.join(unhinted)} lies; it counts as whole on every device")
    if found.outside and any(size > 1 for _, size in call.mesh.shape_tuple):
        notes.append(
            f"outside of manual regions XLA partitions operations on global arrays ({_some(list(found.outside))}), and "
            "what they communicate is not counted: it is not in the traced program"
        )
    return [*notes, *found.notes, *_open(found.collectives)]


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _open(collectives: Sequence[Collective]) -> list[str]:
    is_open = any(one.is_open for one in collectives)
    return ["how often a while loop turns is not known: what is in it is counted for one turn"] if is_open else []


@dataclass(frozen=True)
class _Gradient:
    """What the gradient adds."""

    collectives: Sequence[Collective] = ()
    notes: Sequence[str] = field(default=())


def _gradient(call: Call, results: Any, found: Found, ends: Sequence[Value], grad: bool | None) -> _Gradient:
    if grad is False:
        return _Gradient()
    if grad is None and found.is_transposed:
        note = f"{call.typed.name} takes a gradient itself, and is not differentiated again (grad=True does)"
        return _Gradient((), (note,))
    program = _no_gradient(call, results) or _traced_gradient(call, results, grad)
    if not isinstance(program, str):
        return _added(program, call, results, found, ends)
    if grad:
        raise StructureError(f"explain: {call.typed.name}: grad=True, but {program}")
    return _Gradient((), (f"no gradient is told of: {program}",))


def _no_gradient(call: Call, results: Any) -> str | None:
    if not call.differentiable():
        return "no argument is of an inexact dtype"
    if not any(map(has_gradient, jax.tree_util.tree_leaves(results))):
        return "no result is of an inexact dtype"
    return None


def _traced_gradient(call: Call, results: Any, grad: bool | None) -> Any:
    """The program with the gradient, or why there is none: of many kinds, as loops and kernels have no transpose."""
    try:
        return call.trace_gradient(results)
    except Exception as error:
        if grad and isinstance(error, TypedShmapError):
            raise
        return f"it cannot be differentiated: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _added(program: Any, call: Call, results: Any, found: Found, ends: Sequence[Value]) -> _Gradient:
    """What the program with the gradient communicates beyond what the function does alone.

    Transposed equations belong to the gradient; so does what its forward part has more of than the function
    alone, as that of a ``jax.custom_vjp`` may.
    """
    count = len(call.traced)
    inexact = [has_gradient(leaf) for leaf in jax.tree_util.tree_leaves(results)]
    both, _ = read_program(program, count + sum(inexact))
    ended = [one.ident for one, has in zip(ends, inexact, strict=False) if has]
    numbers = {**{at: at for at in range(count)}, **{count + at: ident for at, ident in enumerate(ended)}}
    first = max([*(one.ident for one in (*found.values, *found.collectives, *ends)), count - 1]) + 1
    same, added = _pairs(both.collectives, found.collectives), list[Collective]()
    for one in both.collectives:
        if one.ident in same:
            numbers[one.ident] = same[one.ident]
            continue
        numbers[one.ident] = first + len(added)
        after = tuple(sorted(numbers[source] for source in one.after if source in numbers))
        added.append(replace(one, ident=numbers[one.ident], part="gradient", after=after))
    return _Gradient(added, (*both.notes, *_open(both.collectives)))


def _pairs(both: Sequence[Collective], alone: Sequence[Collective]) -> dict[int, int]:
    """Which of the collectives in the forward part of a gradient's program are those of the function alone.

    The forward part of a ``jax.custom_vjp`` is written in another place than the function itself.
    """
    pairs: dict[int, int] = {}
    for is_same_place in (True, False):
        left = [one for one in alone if one.ident not in pairs.values()]
        known = _by_likeness(left, is_same_place)
        for one in both:
            same = known.get(_likeness(one, is_same_place), [])
            if one.part == "forward" and one.ident not in pairs and same:
                pairs[one.ident] = same.pop(0)
    return pairs


def _by_likeness(collectives: Sequence[Collective], is_same_place: bool) -> dict[Collective, list[int]]:
    found: dict[Collective, list[int]] = {}
    for one in collectives:
        found.setdefault(_likeness(one, is_same_place), []).append(one.ident)
    return found


def _likeness(one: Collective, is_same_place: bool) -> Collective:
    """What tells a collective from others, wherever a transformation has moved it: out of a loop, for instance."""
    place = one.place if is_same_place else ""
    return replace(one, ident=0, after=(), times=1, loops=(), place=place)
