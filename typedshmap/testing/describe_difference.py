"""Where the values of a program begin to depend on the mesh, worded for a message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from .. import _jax
from .._jax.primitives import OPPOSITE_END
from ..errors.phrases import count_text, first_line, quoted_axes
from ..inspection import Region
from .first_difference import FirstDifference, first_difference
from .replay import Run
from .run import FunctionUnderTest, Outcome
from .shard_values import Agreement
from .steps import Unreplayable

FIRST_DIFFERENCE = "First difference: "
"""What begins the line that names the place."""
_MOST_OPERANDS, _MOST_CALLS, _MOST_LETTERS = 4, 3, 200


class Where(NamedTuple):
    """Where a result begins to differ.

    Attributes:
      lines: the lines of the message; if the place is unknown, one line with the reason.
      is_backward: whether the place is in a gradient.
    """

    lines: Sequence[str]
    is_backward: bool = False


def describe_first_difference(
    subject: FunctionUnderTest, on_one: Outcome, on_mesh: Outcome, wrong: Sequence[str]
) -> Where:
    """Describe where a result begins to differ."""

    def run(outcome: Outcome) -> Run:
        jaxpr, mesh = outcome.compiled.jaxprs[-1 if is_gradient else 0], outcome.compiled.mesh
        arguments = [*outcome.arrays, *(outcome.cotangents if is_gradient else ())]
        return Run(jaxpr, arguments, mesh, partial(subject.on, mesh))

    is_gradient = wrong[0] in on_mesh.compiled.gradients
    names = [*(on_mesh.compiled.gradients if is_gradient else on_mesh.compiled.types)]
    try:
        first = first_difference(run(on_one), run(on_mesh), [names.index(name) for name in wrong if name in names])
        why = "no line computes a different value from equal operands"
    except Unreplayable as error:
        first, why = None, str(error)
    except Exception as error:  # no error may hide the difference
        first, why = None, f"the program cannot be run value by value: {first_line(error)[:_MOST_LETTERS]}"
    if first is None:
        return Where([f"{FIRST_DIFFERENCE}not known, since {why}"])
    place, *callers = _jax.source.equation_places(first.step.caller)
    facts = [f"called at {', '.join(callers[:_MOST_CALLS])}"] if callers else []
    facts += [*_facts(first), *_read(first)]
    return Where(
        [FIRST_DIFFERENCE + place, *(f"    {fact}" for fact in facts)], _jax.jaxpr.is_transposed(first.step.eqn)
    )


def _facts(first: FirstDifference) -> list[str]:
    """The operation and its operands, in words."""
    step, compared, program = first.step, first.comparison, first.comparison.program
    what = _jax.source.collective_name(step.eqn) if step.name != "item" else "scan"
    instead = first.instead and f"the results equal those on one device if it is replaced by {first.instead}"
    if (loop := first.loop) is not None:
        here, there = (same.eqn.params.get("length") for same in (loop, compared.matches[loop.label][0]))
        length = f"a loop of {count_text(here, 'iteration')}, but of {there} on one device"
        if step is loop:
            return [f"{what}: {length}"]
        return [f"{what}: {instead or 'the last line that the wrong results depend on'}", f"in {length}"]
    if _jax.jaxpr.is_transposed(step.eqn):
        what += ", in the gradient of this line"
    elif first.iteration is not None:
        what += f", in iteration {first.iteration} of a loop"

    def value_text(number: int) -> str:
        if number in program.literals:
            return str(np.asarray(program.constants[number]).item())
        aval, per_shard = program.types[number], "" if step.region is None else " per shard"
        shape = ",".join(map(str, aval.shape))
        return f"{_jax.array.dtype_name(aval.dtype)}[{shape}]{per_shard}, {_words(compared.agreement(number))}"

    operands = [f"operand {at}: {value_text(number)}" for at, number in enumerate(step.operands[:_MOST_OPERANDS])]
    return [f"{what}: {value_text(step.results[first.result])}", *filter(None, [instead]), *operands]


def _read(first: FirstDifference) -> list[str]:
    """The kind of the value by the reading of its region; a value in a ring is not known well enough."""
    step, compared = first.step, first.comparison
    regions, references = compared.program.regions, compared.reference.regions
    if step.region is None or step.name == "item" or first.loop is not None:
        return []
    try:
        on_one = Region.of(references[step.region].eqn) if len(references) == len(regions) else None
        known = Region.of(regions[step.region].eqn).describe(step.eqn.outvars[first.result], on_one)
    except Exception:  # the analysis must not hide the difference
        return []
    return [f"read as: {'; '.join(known)}"] if known else []


def _words(agreement: Agreement) -> str:
    """How the shards of a value make up the value on one device, in words."""
    dims = [f"dim {dim} sharded over {quoted_axes(axes)}" for dim, axes in enumerate(agreement.dim_axes) if axes]
    layout = f"{', '.join(dims)}: " if dims else ""
    reduced = dict(agreement.reduced)
    match agreement.kind, [*reduced.values()]:
        case "global", _:
            return f"{layout}as on one device"
        case "reduced", ["scaled", *_]:
            return f"{layout}off by the number of shards over {quoted_axes(reduced)}"
        case "reduced", [("sum" | "mean") as how, *_] if OPPOSITE_END.keys().isdisjoint(reduced.values()):
            return f"{layout}its {how} over {quoted_axes(reduced)} is that on one device"
        case "blocks", _:
            return "each shard has a part of that on one device"
        case "nearly" | "differs", _:
            return f"{layout}another value than on one device"
        case "unknown", _:
            return "not compared"
        case _:
            return "each shard's own"
