"""Where the values of a program begin to depend on the mesh, in the words of a message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from .. import _jax
from ..errors.phrases import count_text, quoted_axes
from ..inference.kinds.described import describe_value
from .agreement import Agreement
from .first_difference import FirstDifference, first_difference
from .replay import Run
from .run import FunctionUnderTest, Outcome
from .steps import Unreplayable

FIRST_DIFFERENCE = "First difference: "
"""What begins the line that names the place."""
_MOST_OPERANDS, _MOST_CALLS, _MOST_LETTERS = 4, 3, 200


class Where(NamedTuple):
    """Where a result begins to differ.

    Attributes:
      lines: in the words of a message; one line if it is not known, which says why.
      is_backward: whether it is in what differentiation made.
    """

    lines: Sequence[str]
    is_backward: bool = False


def describe_first_difference(subject: FunctionUnderTest, one: Outcome, other: Outcome, wrong: Sequence[str]) -> Where:
    """Say where a result begins to differ.

    Args:
      subject: the function.
      one: its results on one device.
      other: its results on the mesh.
      wrong: the results and gradients that differ, the first of which it is said of.
    """
    try:
        is_gradient = wrong[0] in other.gradients
        first, second = (_run_of(subject, outcome, is_gradient) for outcome in (one, other))
        names = [each for each in other.values if (each in other.gradients) == is_gradient]
        found = first_difference(first, second, [names.index(each) for each in wrong if each in names])
    except Unreplayable as error:
        return Where([f"{FIRST_DIFFERENCE}not known, since {error}"])
    except Exception as error:  # of many kinds, and none of them may hide the difference
        why = (str(error).splitlines() or [""])[0][:_MOST_LETTERS]
        why = f"{type(error).__name__}: {why}"
        return Where([f"{FIRST_DIFFERENCE}not known, since the program cannot be run value by value: {why}"])
    if found is None:
        why = "no line on the way computes anything else from values that agree"
        return Where([f"{FIRST_DIFFERENCE}not known, since {why}"])
    places = _jax.source.equation_places(found.step.caller)
    lines = [f"{FIRST_DIFFERENCE}{places[0]}"]
    if places[1:]:
        lines.append(f"    called at {', '.join(places[1:][:_MOST_CALLS])}")
    return Where(
        [*lines, *(f"    {line}" for line in (*_facts(found), *_read(found)))], _jax.jaxpr.is_transposed(found.step.eqn)
    )


def _run_of(subject: FunctionUnderTest, outcome: Outcome, is_gradient: bool) -> Run:
    jaxpr = outcome.jaxprs[-1] if is_gradient else outcome.jaxprs[0]
    arguments = [*outcome.arrays, *outcome.cotangents] if is_gradient else outcome.arrays
    return Run(jaxpr, arguments, outcome.mesh, partial(subject.on, outcome.mesh))


def _facts(found: FirstDifference) -> list[str]:
    """What the operation does with which operands."""
    step, compared = found.step, found.comparison
    name = _jax.source.collective_name(step.eqn) if step.name != "item" else "scan"
    what = name
    if (loop := found.loop) is not None:
        here = loop.eqn.params.get("length")
        length = f"a loop of {count_text(here, 'iteration')}, but of {found.iterations} on one device"
        if step is loop:
            return [f"{what}: {length}"]
        why = found.instead and f"with {found.instead} in its place the results are as on one device"
        return [f"{what}: {why or 'the last line that what is wrong follows from'}", f"in {length}"]
    if _jax.jaxpr.is_transposed(step.eqn):
        what += ", in the gradient of this line"
    elif found.iteration is not None:
        what += f", in iteration {found.iteration} of a loop"
    result = next((each for each in step.results if found.is_off(each)), step.results[0])
    facts = [f"{what}: {_type_text(found, result)}, {_words(found.agreement(result))}"]
    if found.instead:
        facts.append(f"with {found.instead} in its place the results are as on one device")
    for at, number in enumerate(step.operands[:_MOST_OPERANDS]):
        if number in compared.program.literals:
            facts.append(f"operand {at}: {np.asarray(compared.program.constants[number]).item()}")
        else:
            facts.append(f"operand {at}: {_type_text(found, number)}, {_words(found.agreement(number))}")
    return facts


def _read(found: FirstDifference) -> list[str]:
    """What the reading of its region knows of the value; of one in a ring it knows too little."""
    step, compared = found.step, found.comparison
    regions = [program.regions for program in (compared.program, compared.reference)]
    if step.region is None or step.name == "item" or found.loop is not None:
        return []
    here, *others = [each[step.region].eqn.params for each in regions if step.region < len(each)]
    other = others[0] if len(regions[0]) == len(regions[1]) else None
    result = next((at for at, number in enumerate(step.results) if found.is_off(number)), 0)
    try:
        known = list(describe_value(here, other, step.eqn.outvars[result]))
    except Exception:  # what only reads a program hides no difference
        return []
    return [f"read as: {'; '.join(known)}"] if known else []


def _type_text(found: FirstDifference, number: int) -> str:
    aval = found.comparison.program.types[number]
    text = f"{_jax.array.dtype_name(aval.dtype)}[{','.join(map(str, aval.shape))}]"
    return text if found.step.region is None else f"{text} per shard"


def _words(found: Agreement | None) -> str:
    """How the shards of a value make that on one device, in words."""
    if found is None:
        return "not compared"
    dims = [f"dim {dim} sharded over {quoted_axes(axes)}" for dim, axes in enumerate(found.dim_axes) if axes]
    layout = f"{', '.join(dims)}: " if dims else ""
    match found.kind:
        case "global":
            return f"{layout}as on one device"
        case "reduced" if {how for _, how in found.reduced} & {"max", "min"}:
            return "each shard's own"
        case "reduced":
            axes, (how, *_) = quoted_axes([axis for axis, _ in found.reduced]), [how for _, how in found.reduced]
            if how == "scaled":
                return f"{layout}off by the number of shards over {axes}"
            return f"{layout}its {how} over {axes} is that on one device"
        case "blocks":
            return "each shard has a part of that on one device"
        case "differs":
            return f"{layout}another value than on one device"
        case "own":
            return "each shard's own"
