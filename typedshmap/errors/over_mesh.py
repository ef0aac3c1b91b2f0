"""How a value varies, owes a sum, and lies over the mesh, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from .failures import (
    AtOdds,
    BoundaryMark,
    LiesElse,
    OtherLayout,
    Owes,
    OwesNothing,
    StaysReduced,
    SummedTwice,
    Varies,
    WrongSharding,
)
from .phrases import marks, quoted, split_text
from .sentence import Sentence

_RESHARD = "write what the value is; reshard(x, ...) changes it"
Lies: TypeAlias = WrongSharding | OtherLayout | LiesElse | AtOdds


OverMesh: TypeAlias = Varies | Owes | OwesNothing | StaysReduced | SummedTwice | BoundaryMark | Lies


def word_over_mesh(what: OverMesh, names: Mapping[str, str]) -> Sentence:
    """What is said of a value over the mesh; names are what marks call mesh axes that have another name there."""
    match what:
        case Varies(axes):
            problem = f"varies over {quoted(axes)}, which its annotation does not mention"
            return Sentence(problem, None, _cure_of_varying(what, names), False)
        case Owes(axes):
            owed = marks("+", axes, names)
            cure = f"take the sum (psum over {quoted(axes)}), or write '{owed}'"
            problem = f"is unreduced over {quoted(axes)}, which its annotation does not mention"
            return Sentence(problem, None, cure, False)
        case StaysReduced(axes):
            kept = marks("-", axes, names)
            cure = f"write '{kept}' on an Explicit mesh, or gather it by all_gather(..., to='invarying')"
            problem = f"is reduced over {quoted(axes)} in JAX's type, which its annotation does not mention"
            return Sentence(problem, None, cure, False)
        case OwesNothing(axis, shards):
            mark = marks("+", (axis,), names)
            problem = f"is the same on every shard of '{axis}', but its annotation says '{mark}'"
            cure = f"drop '{mark}': the sum was taken already, and a second one would count it {shards} times"
            return Sentence(problem, None, cure, False)
        case BoundaryMark(sign, axis, reason, cure):
            mark = marks(sign, (axis,), names)
            return Sentence(f"is marked '{mark}' in its annotation, but {reason}", None, cure, False)
        case SummedTwice():
            return _word_summed_twice(what)
        case _:
            return _word_lying(what)


def _cure_of_varying(what: Varies, names: Mapping[str, str]) -> str:
    owed, varying = (marks(sign, what.axes, names) for sign in "+~")
    cure = f"sum it over {quoted(what.axes)} (psum)"
    if what.leaves_region and what.may_agree:
        return (
            f"its shards agree, and JAX types them as varying: gather it without '{varying}', or take the mean (pmean)"
        )
    if what.may_agree:
        return (
            f"{cure}; if its shards agree, write '{varying}', and pmean(x, '{varying} ->') where it is differentiated"
        )
    if what.leaves_region:
        return f"{cure}, or write '{owed}' if the sum is still owed" if what.may_owe else cure
    last = f"or '{varying}' if the shards may differ"
    return f"{cure}, write '{owed}' if the sum is still owed, {last}"


def cure_of_operand(axes: tuple[str, ...], names: Mapping[str, str]) -> str:
    """What to write in a pattern for an operand that varies."""
    brackets, owed, varying = (marks(sign, axes, names) for sign in "/+~")
    return (
        f"write [dim{brackets.split()[0]}] for a dim that is split, '{owed}' if a sum is owed, "
        f"or '{varying}' if the shards may differ"
    )


def _word_summed_twice(what: SummedTwice) -> Sentence:
    adds = what.verb in ("psum", "psum_scatter")
    wrong = f"would count it {what.shards} times" if adds else "changes nothing"
    by = f" by {what.place}" if what.place else ""
    problem = f"is the same on every shard of '{what.axis}'{by}, so that a {what.verb} over it {wrong}"
    cure = f"drop the {what.verb}: jax.grad sums the gradient of a value that is the same on every shard by itself"
    return Sentence(problem, None, cure, False)


def _word_lying(what: Lies) -> Sentence:
    match what:
        case WrongSharding(expected, got, cure):
            return Sentence(f"is {got}, but its annotation says {expected}", None, cure, False)
        case OtherLayout(dim, claimed, known, place, span):
            where = "" if dim is None else f" in dim {dim}"
            return Sentence(f"is read as {claimed}{where}, but {place} says {known}", span, _RESHARD)
        case LiesElse(dim, _, _, gathered, span) if gathered:
            problem = f"was gathered over {quoted(gathered)} in dim {dim}, which is not the order of its shards"
            return Sentence(problem, span, "gather it over the axes in the order in which they split it", False)
        case LiesElse(dim, claimed, known, _, span):
            problem = f"is {split_text(known)} in dim {dim}, but its annotation says {split_text(claimed)}"
            return Sentence(problem, span, _RESHARD, False)
        case AtOdds(operation, where, first, second):
            cure = "gather or reshard one of them; where a value is not what it seems to be, assume(x, hint) says so"
            ways = f"one is split over {quoted(first)}, the other over {quoted(second)}"
            return Sentence(f"{operation} takes {where} for the same, but {ways}", None, cure, False)
