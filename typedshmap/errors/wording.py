"""Every message is worded here: a `Report` becomes text, first line first.

Invariant: the first line alone names the function, the value, what is wrong and both numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType

from ..notation.layout import AxisTwice, NoRule, RuledTwice, UnknownAxis
from ..notation.match import (
    BadExpression,
    Indivisible,
    OutsideTree,
    RankMismatch,
    SizeMismatch,
    UnboundNames,
)
from ..notation.nodes import Anything, Dim, Name, Number, Rest, Span
from ..notation.sizes import Bound, Sizes, Subject
from .failures import (
    AtOdds,
    BoundaryMark,
    Failure,
    HiddenField,
    HintText,
    LiesElse,
    NoArray,
    NoMember,
    NotAnArray,
    NotAPytree,
    NotIntegers,
    NotManual,
    NotNumbers,
    OtherLayout,
    OtherStructure,
    Owes,
    OwesNothing,
    PatternFault,
    Report,
    StaticArray,
    StaysReduced,
    SummedTwice,
    Told,
    Varies,
    VariesAlike,
    WrongDtype,
    WrongKeys,
    WrongLength,
    WrongSharding,
    WrongSize,
    WrongType,
)

_DTYPE = -1
_MOST_OTHERS = 8
_LONGEST = 80


def shown(value: object) -> str:
    """A value in a message: as Python shows it, where it can and that is short; else ``a dict``."""
    try:
        text = repr(value)
    except Exception:  # a deleted array, a huge integer, a nesting too deep, or whatever a class of the user's raises
        text = ""
    if 0 < len(text) < _LONGEST and "\n" not in text:
        return text
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


@dataclass(frozen=True, slots=True)
class Sentence:
    """What is said of a failure: the problem, where carets go, the cure, and whether sizes matter."""

    problem: str
    span: Span | None = None
    cure: str | None = None
    sizes: bool = True


def render(report: Report) -> str:
    """The whole message: first line, hint and value, mesh, sizes, cure, the other failures."""
    first, *others = report.failures
    sentence = word(first, _names(first, report))
    blocks = [f"{report.function}: {_line(first, sentence)}", _value_block(first, sentence, report.per_shard)]
    facts = [_mesh_line(report), _sizes_line(report.sizes) if sentence.sizes else ""]
    if report.place:
        facts.append(f"At: {report.place}")
    if sentence.cure:
        facts.append(f"Hint: {sentence.cure}")
    facts.extend(f"Also: {_line(other, word(other, _names(other, report)))}" for other in others[:_MOST_OTHERS])
    if len(others) > _MOST_OTHERS:
        facts.append(f"Also: {len(others) - _MOST_OTHERS} more, in error.failures")
    blocks.append("\n".join(fact for fact in facts if fact))
    return "\n\n".join(block for block in blocks if block)


def _names(failure: Failure, report: Report) -> dict[str, str]:
    """What marks call a mesh axis: an alias that stands for it alone, unless the hint has the axis itself."""
    words = set(re.findall(r"\w+", failure.hint.dims)) if failure.hint is not None else set[str]()
    # Of several, one that the hint has.
    aliases = sorted(report.aliases, key=lambda alias: alias[0] in words)
    return {axes[0]: name for name, axes in aliases if len(axes) == 1 and axes[0] not in words}


def _marks(sign: str, axes: Iterable[str], names: Mapping[str, str]) -> str:
    return " ".join(f"{sign}{names.get(axis, axis)}" for axis in axes)


def _line(failure: Failure, sentence: Sentence) -> str:
    is_whole = isinstance(failure.what, PatternFault | NotManual | AtOdds)
    return sentence.problem if is_whole else f"{failure.subject.phrase} {sentence.problem}"


def _value_block(failure: Failure, sentence: Sentence, per_shard: bool) -> str:
    lines = []
    if failure.hint is not None:
        label = f"{failure.subject}: "
        lines.append(f"{label}{failure.hint}")
        if sentence.span is not None:
            lines.append(" " * len(label) + carets(failure.hint, sentence.span))
    if failure.got is not None:
        lines.append(f"got {failure.got}{' per shard' if per_shard else ''}")
    return "\n".join(f"    {line}" for line in lines)


def carets(hint: HintText, span: Span) -> str:
    """Carets under a span of the hint's dims, or under its dtype."""
    if span[0] == _DTYPE:
        return "^" * len(hint.before.split("[")[0])
    return " " * (len(hint.before) + span[0]) + "^" * (span[1] - span[0])


def _mesh_line(report: Report) -> str:
    if not report.mesh:
        return ""
    text = "Mesh: " + mesh_text(report.mesh)
    if report.manual is not None and set(report.manual) != {name for name, _ in report.mesh}:
        text += f" (manual: {', '.join(report.manual) or 'none'})"
    if report.aliases:
        text += "; axes: " + ", ".join(f"{name}={_alias(axes)}" for name, axes in report.aliases)
    if rules := _rules_of(report):
        text += "; rules: " + ", ".join(f"{name}={_alias(axes)}" for name, axes in rules)
    return text


def _rules_of(report: Report) -> list[tuple[str, tuple[str, ...]]]:
    """The rules for the dims of the hint that the message is about."""
    hint = report.failures[0].hint
    words = set(re.findall(r"\w+", hint.dims)) if hint is not None and report.rules else set[str]()
    return [rule for rule in report.rules if rule[0] in words]


def mesh_text(mesh: Iterable[tuple[str, int]]) -> str:
    """``dp=4, tp=2``"""
    return ", ".join(f"{name}={size}" for name, size in mesh)


def _alias(axes: tuple[str, ...]) -> str:
    return "None" if not axes else axes[0] if len(axes) == 1 else f"({', '.join(axes)})"


def _sizes_line(sizes: Sizes) -> str:
    text = sizes_text(sizes)
    return f"Sizes: {text}" if text else ""


def sizes_text(sizes: Sizes) -> str:
    """``batch=8 (q dim 0), d=64 (q dim 3)``"""
    return ", ".join(f"{_equation(name, bound.size)} ({_origin(bound)})" for name, bound in sizes if " at " not in name)


def _equation(name: str, size: int | tuple[int, ...]) -> str:
    return f"{name}={size}".replace(" ", "") if isinstance(size, tuple) else f"{name}={size}"


def _origin(bound: Bound) -> str:
    if isinstance(bound.size, tuple):
        return f"{bound.subject} from dim {bound.dim}"
    return f"{bound.subject} dim {bound.dim}"


def _quoted(axes: Iterable[str]) -> str:
    return ", ".join(f"'{axis}'" for axis in axes)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def word(failure: Failure, names: Mapping[str, str] = MappingProxyType({})) -> Sentence:
    """What is said of a failure; names are what marks call mesh axes that have another name there."""
    sentence = _word(failure, names)
    if failure.subject.kind == "boxed":
        return _word_of_box(sentence)
    if failure.subject.kind not in ("operand", "pattern"):
        return sentence
    problem = sentence.problem.replace(" in its annotation", "").replace("its annotation", "the pattern")
    if isinstance(failure.what, Varies):
        return replace(sentence, problem=problem, cure=_cure_of_operand(failure.what.axes, names))
    return replace(sentence, problem=problem, sizes=True)


def _word_of_box(sentence: Sentence) -> Sentence:
    """What is said of an array that Flax has boxed with names, where no hint can be written otherwise."""
    problem = sentence.problem.replace("in its annotation", "among its names").replace("its annotation", "its box")
    cure = (sentence.cure or "").partition(", or write [")[0]
    return replace(sentence, problem=problem, cure=None if cure.startswith("write [") else cure or None)


def _cure_of_operand(axes: tuple[str, ...], names: Mapping[str, str]) -> str:
    brackets, owed, varying = (_marks(sign, axes, names) for sign in "/+~")
    return (
        f"write [dim{brackets.split()[0]}] for a dim that is split, '{owed}' if a sum is owed, "
        f"or '{varying}' if the shards may differ"
    )


def _word(failure: Failure, names: Mapping[str, str]) -> Sentence:
    match failure.what:
        case RankMismatch(expected, at_least, got):
            least = "at least " if at_least else ""
            return Sentence(f"has {_count(got, 'dim')}, but its annotation has {least}{expected}")
        case SizeMismatch():
            return _word_size(failure.what, failure.subject)
        case Indivisible(dim, index, size, axes, shards, span):
            over = f"{_quoted(axes)} ({_count(shards, 'shard')})"
            cure = f"make {_dim_name(dim, index)} a multiple of {shards}, or pad it"
            return Sentence(f"has {_sized(dim, index, size)}, which does not divide over {over}", span, cure)
        case UnboundNames(dim, _, unbound, span):
            cure = f"name {_quoted(unbound)} as a dim of an argument, or write {{{unbound[0]}}} for an argument's value"
            return Sentence(f"has dim '{dim.size}' in its annotation, but nothing binds {_quoted(unbound)}", span, cure)
        case BadExpression(_, _, reason, span):
            return Sentence(f"has an annotation without a value: {reason}", span)
        case OutsideTree(dim, span):
            cure = "write PyTree[..., \"S\"] around it, or drop the '?'"
            return Sentence(f"has '{dim}' in its annotation, outside of a PyTree with a structure name", span, cure)
        case UnknownAxis() | AxisTwice() | NoRule() | RuledTwice():
            return _word_names(failure.what)
        case WrongDtype(expected, got):
            return Sentence(f"has dtype {got}, but its annotation says {expected}", (_DTYPE, 0), sizes=False)
        case Varies() | Owes() | OwesNothing() | StaysReduced() | BoundaryMark() | WrongSharding():
            return _word_sharding(failure.what, names)
        case PatternFault() | WrongSize() | NotManual() | VariesAlike() | SummedTwice() | OtherLayout():
            return _word_operation(failure.what, names)
        case NotIntegers(got):
            return Sentence(f"has dtype {got}, but ids are integers", sizes=False)
        case NotNumbers(got, verb):
            return Sentence(f"has dtype {got}, but {verb} takes numbers", sizes=False)
        case LiesElse():
            return _word_lying(failure.what)
        case AtOdds(operation, where, first, second):
            cure = "gather or reshard one of them; where a value is not what it seems to be, assume(x, hint) says so"
            ways = f"one is split over {_quoted(first)}, the other over {_quoted(second)}"
            return Sentence(f"{operation} takes {where} for the same, but {ways}", None, cure, False)
        case NoMember(reasons):
            labels = (f"{reason.hint}: " if reason.hint is not None else "" for reason in reasons)
            problems = (word(reason, names).problem for reason in reasons)
            told = "; ".join(f"{label}{problem}" for label, problem in zip(labels, problems, strict=True))
            return Sentence(f"fits no member of its annotation ({told})")
        case Told(problem, cure):
            return Sentence(problem, cure=cure, sizes=False)
        case _:
            return _word_structure(failure.what, failure.subject)


def _word_size(what: SizeMismatch, subject: Subject) -> Sentence:
    name = _dim_name(what.dim, what.index)
    shards = ""
    if what.shard is not None:
        shards = f" ({what.shard} per shard over {_quoted(what.axes)})"
    has = f"has {_sized(what.dim, what.index, what.got)}{shards}"
    or_one = " (or 1)" if what.dim.broadcast else ""
    if what.origin is None:
        return Sentence(f"{has}, but its annotation says {what.expected}{or_one}", what.span)
    expected = _equation(name, what.expected)
    if what.origin.subject == subject:
        return Sentence(f"{has} in dim {what.index}, but {expected} in dim {what.origin.dim}", what.span)
    return Sentence(f"{has}, but {what.origin.subject.phrase} has {expected}{or_one}", what.span)


def _dim_name(dim: Dim | Rest, index: int) -> str:
    """How a sentence names a dim: by its name, its label, its expression, or its index."""
    if isinstance(dim, Rest):
        return f"*{dim.name}"
    if dim.label is not None:
        return dim.label
    return f"dim {index}" if isinstance(dim.size, Anything | Number) else str(dim.size)


def _sized(dim: Dim | Rest, index: int, size: int | tuple[int, ...]) -> str:
    if isinstance(dim, Dim) and dim.label is None and not isinstance(dim.size, Name):
        is_plain = isinstance(dim.size, Anything | Number)
        return f"size {size} in dim {index}" if is_plain else f"size {size} in dim {index}, '{dim.size}'"
    return _equation(_dim_name(dim, index), size)


def _word_names(what: UnknownAxis | AxisTwice | NoRule | RuledTwice) -> Sentence:
    match what:
        case UnknownAxis():
            return _word_unknown_axis(what)
        case AxisTwice(axis, span):
            return Sentence(f"uses mesh axis '{axis}' twice in its annotation", span, sizes=False)
        case NoRule(name, taken, span):
            axes = tuple(dict.fromkeys(taken))
            given = f"whose rules give {_quoted(axes)}, which {'is' if len(axes) == 1 else 'are'} taken"
            why = given if taken else "which no rule names"
            cure = f"add ('{name}', None) to the rules, or write [{name}/]"
            return Sentence(f"has dim '{name}' in its annotation, {why}", span, cure, sizes=False)
        case RuledTwice(name, span):
            problem = f"has dim '{name}' twice in its annotation, so that the rule for it could mean either"
            return Sentence(problem, span, f"write [{name}/axis] or [{name}/] for one of them", sizes=False)


def _word_unknown_axis(what: UnknownAxis) -> Sentence:
    # An alias of an alias is none, and a mesh may call an axis by a number.
    aliases = what.aliases if what.written == what.axis else ()
    axis, known = str(what.axis), tuple(map(str, (*what.mesh, *aliases)))
    # "data" is far from "dp" in letters, and yet what is meant; so a first letter will do.
    alike = [name for name in known if name[:1] == axis[:1]]
    close = get_close_matches(axis, known, n=1) or (alike if len(alike) == 1 else [])
    meant = f"did you mean '{close[0]}'? " if close else ""
    alias = f" (as '{what.written}')" if what.written != axis else ""
    if what.by_rule:
        alias = f" (by the rule for '{what.written}')"
    problem = f"names mesh axis '{axis}'{alias}, which is not among the mesh's axes {_quoted(what.mesh)}"
    if what.by_rule:
        return Sentence(problem, what.span, f"{meant}change the rule, or write [{what.written}/]", sizes=False)
    return Sentence(problem, what.span, f"{meant}axes={{'{what.written}': ...}} maps a name to mesh axes", sizes=False)


def _word_sharding(
    what: Varies | Owes | OwesNothing | StaysReduced | BoundaryMark | WrongSharding, names: Mapping[str, str]
) -> Sentence:
    match what:
        case Varies(axes):
            problem = f"varies over {_quoted(axes)}, which its annotation does not mention"
            return Sentence(problem, None, _cure_of_varying(what, names), False)
        case Owes(axes):
            owed = _marks("+", axes, names)
            cure = f"take the sum (psum over {_quoted(axes)}), or write '{owed}'"
            problem = f"is unreduced over {_quoted(axes)}, which its annotation does not mention"
            return Sentence(problem, None, cure, False)
        case StaysReduced(axes):
            kept = _marks("-", axes, names)
            cure = f"write '{kept}' on an Explicit mesh, or gather it by all_gather(..., to='invarying')"
            problem = f"is reduced over {_quoted(axes)} in JAX's type, which its annotation does not mention"
            return Sentence(problem, None, cure, False)
        case OwesNothing(axis, shards):
            mark = _marks("+", (axis,), names)
            problem = f"is the same on every shard of '{axis}', but its annotation says '{mark}'"
            cure = f"drop '{mark}': the sum was taken already, and a second one would count it {shards} times"
            return Sentence(problem, None, cure, False)
        case BoundaryMark(sign, axis, reason, cure):
            mark = _marks(sign, (axis,), names)
            return Sentence(f"is marked '{mark}' in its annotation, but {reason}", None, cure, False)
        case WrongSharding(expected, got, cure):
            return Sentence(f"is {got}, but its annotation says {expected}", None, cure, False)


def _cure_of_varying(what: Varies, names: Mapping[str, str]) -> str:
    owed, varying = (_marks(sign, what.axes, names) for sign in "+~")
    cure = f"sum it over {_quoted(what.axes)} (psum)"
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


def _word_operation(
    what: PatternFault | WrongSize | NotManual | VariesAlike | SummedTwice | OtherLayout, names: Mapping[str, str]
) -> Sentence:
    match what:
        case PatternFault(problem, span, cure) | WrongSize(problem, span, cure):
            return Sentence(problem, span, cure)
        case NotManual(axis, span):
            cure = "call it inside of typed_shard_map or jax.shard_map, over this axis"
            return Sentence(f"mesh axis '{axis}' is not manual here, so that nothing moves over it", span, cure)
        case VariesAlike(axes):
            marks = _marks("~", axes, names)
            cure = f"write '{marks}', and take its mean where it is differentiated: pmean(x, '{marks} ->')"
            problem = (
                f"is equal on all shards, but typed as varying over {_quoted(axes)}: its gradient would be too large"
            )
            return Sentence(problem, None, cure)
        case SummedTwice():
            return _word_summed_twice(what)
        case OtherLayout():
            return _word_layout(what)


def _word_summed_twice(what: SummedTwice) -> Sentence:
    adds = what.verb in ("psum", "psum_scatter")
    wrong = f"would count it {what.shards} times" if adds else "changes nothing"
    by = f" by {what.place}" if what.place else ""
    problem = f"is the same on every shard of '{what.axis}'{by}, so that a {what.verb} over it {wrong}"
    cure = f"drop the {what.verb}: jax.grad sums the gradient of a value that is the same on every shard by itself"
    return Sentence(problem, None, cure, False)


def _word_lying(what: LiesElse) -> Sentence:
    if what.gathered:
        problem = f"was gathered over {_quoted(what.gathered)} in dim {what.dim}, which is not the order of its shards"
        return Sentence(problem, what.span, "gather it over the axes in the order in which they split it", False)
    problem = f"is {_split(what.known)} in dim {what.dim}, but its annotation says {_split(what.claimed)}"
    return Sentence(problem, what.span, "write what the value is; reshard(x, ...) changes it", False)


def _split(axes: tuple[str, ...]) -> str:
    return f"split over {_quoted(axes)}" if axes else "whole"


def _word_layout(what: OtherLayout) -> Sentence:
    where = "" if what.dim is None else f" in dim {what.dim}"
    problem = f"is read as {what.claimed}{where}, but {what.place} says {what.known}"
    return Sentence(problem, what.span, "write what the value is; reshard(x, ...) changes it")


def _word_structure(what: object, subject: Subject) -> Sentence:
    match what:
        case NotAnArray(expected, got) | WrongType(expected, got):
            # "bias: Array = None" is a common way to say that it may be absent.
            cure = "write '| None' after its hint if it may be absent" if got == "None" else None
            is_given = subject.kind == "argument"
            return Sentence(f"is {got}, but its annotation says {expected}", None, cure if is_given else None, False)
        case WrongLength(expected, got):
            return Sentence(f"has {_count(got, 'item')}, but its annotation has {expected}", sizes=False)
        case WrongKeys(missing, extra):
            parts = [f"lacks {_quoted(missing)}"] if missing else []
            parts += [f"has {_quoted(extra)}, which its annotation does not know"] if extra else []
            return Sentence(" and ".join(parts), sizes=False)
        case NotAPytree(cls):
            problem = f"is of class {cls}, which holds arrays and is not registered as a pytree"
            return Sentence(problem, cure=f"put @jax.tree_util.register_dataclass above {cls}", sizes=False)
        case HiddenField(cls, field):
            problem = f"holds arrays in field '{field}', which {cls} does not show JAX as a child"
            cure = f"register '{field}' among the data fields of {cls}"
            return Sentence(problem, cure=cure, sizes=False)
        case OtherStructure(name, expected, got, origin):
            problem = (
                f"has another tree structure than {origin.phrase}, which '{name}' stands for: {got}, not {expected}"
            )
            return Sentence(problem, sizes=False)
        case NoArray(got):
            return Sentence(f"is {got}, which is no array and cannot leave the manual region", sizes=False)
        case StaticArray(hint) if subject.kind == "return":
            return Sentence(f"is an array, but its annotation says {hint}", sizes=False)
        case StaticArray(hint):
            problem = f"is an array, but its annotation {hint} holds none, so the argument is static"
            return Sentence(problem, cure='annotate it as an array, as in Int[Array, ""]', sizes=False)
        case _:
            raise TypeError(f"no words for {what!r}")
