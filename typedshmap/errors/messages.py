"""A `Report` becomes text, and every failure is put into words.

Invariant: the first line alone names the function, the value, what is wrong and both numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from ..notation.layout import AxisTwice, NoRule, RuledTwice, UnknownAxis
from ..notation.match import (
    BadExpression,
    Indivisible,
    OutsideTree,
    RankMismatch,
    SizeMismatch,
    Sizes,
    Subject,
    UnboundNames,
)
from ..notation.spec import Anything, Dim, Name, Number, Rest
from ..notation.tokens import Span
from . import failures
from .phrases import alias_text, count_text, marks_text, mesh_text, quoted_axes, sharding_text, size_text, sizes_text

_MOST_OTHERS = 8
DTYPE = -1
"""The start of a span that stands for the dtype, which is not among a hint's dims."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A failure in words: the problem, where carets go, the cure, and whether the message lists sizes."""

    problem: str
    span: Span | None = None
    cure: str | None = None
    sizes: bool = True


@dataclass(frozen=True, slots=True)
class _HintSource:
    """What says how a value should be, in the words of a sentence.

    Attributes:
      name: what it is called.
      within: how a sentence says that something is written there.
      has_brackets: whether brackets can be written there.
    """

    name: str
    within: str
    has_brackets: bool = True


_HINT = _HintSource("its hint", " in its hint")
_PATTERN = _HintSource("the pattern", "")
_BOX = _HintSource("its box", " among its names", has_brackets=False)
_HINT_SOURCES = {"operand": _PATTERN, "pattern": _PATTERN, "boxed": _BOX}
"""By the kind of a subject: Flax's boxes give arrays names, in the place of a hint."""

_RESHARD = "write what the value is; reshard(x, ...) changes it"


def render(report: failures.Report) -> str:
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


def _names(failure: failures.Failure, report: failures.Report) -> dict[str, str]:
    """What marks call a mesh axis: an alias that stands for it alone, unless the hint has the axis itself."""
    words = set(re.findall(r"\w+", failure.hint.dims)) if failure.hint is not None else set[str]()
    # Of several, one that the hint has.
    aliases = sorted(report.aliases, key=lambda alias: alias[0] in words)
    return {axes[0]: name for name, axes in aliases if len(axes) == 1 and axes[0] not in words}


def _line(failure: failures.Failure, sentence: Sentence) -> str:
    concerns_pattern = isinstance(failure.what, failures.PatternFault | failures.NotManual | failures.ShardingConflict)
    return sentence.problem if concerns_pattern else f"{failure.subject.phrase} {sentence.problem}"


def _value_block(failure: failures.Failure, sentence: Sentence, per_shard: bool) -> str:
    lines = []
    if failure.hint is not None:
        label = f"{failure.subject}: "
        lines.append(f"{label}{failure.hint}")
        if sentence.span is not None:
            lines.append(" " * len(label) + carets(failure.hint, sentence.span))
    if failure.got is not None:
        lines.append(f"got {failure.got}{' per shard' if per_shard else ''}")
    return "\n".join(f"    {line}" for line in lines)


def carets(hint: failures.HintText, span: Span) -> str:
    """Carets under a span of the hint's dims, or under its dtype."""
    if span[0] == DTYPE:
        return "^" * len(hint.before.split("[")[0])
    return " " * (len(hint.before) + span[0]) + "^" * (span[1] - span[0])


def _mesh_line(report: failures.Report) -> str:
    if not report.mesh:
        return ""
    text = "Mesh: " + mesh_text(report.mesh)
    if report.manual is not None and set(report.manual) != {name for name, _ in report.mesh}:
        text += f" (manual: {', '.join(report.manual) or 'none'})"
    if report.aliases:
        text += "; axes: " + ", ".join(f"{name}={alias_text(axes)}" for name, axes in report.aliases)
    if rules := _rules_of(report):
        text += "; rules: " + ", ".join(f"{name}={alias_text(axes)}" for name, axes in rules)
    return text


def _rules_of(report: failures.Report) -> list[tuple[str, tuple[str, ...]]]:
    """The rules for the dims of the hint that the message is about."""
    hint = report.failures[0].hint
    words = set(re.findall(r"\w+", hint.dims)) if hint is not None and report.rules else set[str]()
    return [rule for rule in report.rules if rule[0] in words]


def _sizes_line(sizes: Sizes) -> str:
    text = sizes_text(sizes)
    return f"Sizes: {text}" if text else ""


def word(failure: failures.Failure, names: Mapping[str, str] = MappingProxyType({})) -> Sentence:
    """A failure in words; names are what marks call mesh axes that have another name there."""
    what, subject = failure.what, failure.subject
    source = _HINT_SOURCES.get(subject.kind, _HINT)
    match what:
        case SizeMismatch():
            return _word_size(what, subject, source)
        case RankMismatch(expected, at_least, got):
            least = "at least " if at_least else ""
            return Sentence(f"has {count_text(got, 'dim')}, but {source.name} has {least}{expected}")
        case Indivisible(dim, index, size, axes, shards, span):
            over = f"{quoted_axes(axes)} ({count_text(shards, 'shard')})"
            cure = f"make {_dim_name(dim, index)} a multiple of {shards}, or pad it"
            return Sentence(f"has {_dim_size_text(dim, index, size)}, which does not divide over {over}", span, cure)
        case UnboundNames(dim, _, unbound, span):
            named = quoted_axes(unbound)
            cure = f"name {named} as a dim of an argument, or write {{{unbound[0]}}} for an argument's value"
            return Sentence(f"has dim '{dim.size}'{source.within}, but nothing binds {named}", span, cure)
        case BadExpression(_, _, reason, span):
            return Sentence(f"has a hint that cannot be evaluated: {reason}", span)
        case OutsideTree(dim, span):
            cure = "write PyTree[..., \"S\"] around it, or drop the '?'"
            return Sentence(f"has '{dim}'{source.within}, outside of a PyTree with a structure name", span, cure)
        case UnknownAxis() | AxisTwice() | NoRule() | RuledTwice():
            return _word_names(what, source)
        case failures.WrongDtype(expected, got):
            sizes = source is _PATTERN
            return Sentence(f"has dtype {got}, but {source.name} says {expected}", (DTYPE, 0), sizes=sizes)
        case failures.NotIntegers(got):
            return Sentence(f"has dtype {got}, but ids are integers", sizes=source is _PATTERN)
        case failures.NotNumbers(got, verb):
            return Sentence(f"has dtype {got}, but {verb} takes numbers", sizes=source is _PATTERN)
        case failures.PatternFault(problem, span, cure) | failures.WrongSize(problem, span, cure):
            return Sentence(problem, span, cure)
        case failures.PlainMessage(problem, cure):
            return Sentence(problem, cure=cure, sizes=source is _PATTERN)
        case failures.NoUnionMember(reasons):
            labels = (f"{reason.hint}: " if reason.hint is not None else "" for reason in reasons)
            problems = (word(reason, names).problem for reason in reasons)
            listed = "; ".join(f"{label}{problem}" for label, problem in zip(labels, problems, strict=True))
            return Sentence(f"fits no member of {source.name} ({listed})")
        case _:
            return _word_over_mesh(what, source, names) or _word_structure(what, subject, source)


def _word_size(what: SizeMismatch, subject: Subject, source: _HintSource) -> Sentence:
    name = _dim_name(what.dim, what.index)
    shards = "" if what.shard is None else f" ({what.shard} per shard over {quoted_axes(what.axes)})"
    has = f"has {_dim_size_text(what.dim, what.index, what.got)}{shards}"
    or_one = " (or 1)" if what.dim.broadcast else ""
    if what.origin is None:
        return Sentence(f"{has}, but {source.name} says {what.expected}{or_one}", what.span)
    expected = size_text(name, what.expected)
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


def _dim_size_text(dim: Dim | Rest, index: int, size: int | tuple[int, ...]) -> str:
    if isinstance(dim, Dim) and dim.label is None and not isinstance(dim.size, Name):
        is_plain = isinstance(dim.size, Anything | Number)
        return f"size {size} in dim {index}" if is_plain else f"size {size} in dim {index}, '{dim.size}'"
    return size_text(_dim_name(dim, index), size)


def _word_names(what: UnknownAxis | AxisTwice | NoRule | RuledTwice, source: _HintSource) -> Sentence:
    sizes, brackets = source is _PATTERN, source.has_brackets
    match what:
        case UnknownAxis():
            return _word_unknown_axis(what, source)
        case AxisTwice(axis, span):
            return Sentence(f"uses mesh axis '{axis}' twice{source.within}", span, sizes=sizes)
        case NoRule(name, taken, span):
            axes = tuple(dict.fromkeys(taken))
            given = f"whose rules give {quoted_axes(axes)}, which {'is' if len(axes) == 1 else 'are'} taken"
            why = given if taken else "which no rule names"
            cure = f"add ('{name}', None) to the rules" + (f", or write [{name}/]" if brackets else "")
            return Sentence(f"has dim '{name}'{source.within}, {why}", span, cure, sizes)
        case RuledTwice(name, span):
            problem = f"has dim '{name}' twice{source.within}, so that the rule for it could mean either"
            cure = f"write [{name}/axis] or [{name}/] for one of them" if brackets else None
            return Sentence(problem, span, cure, sizes)


def _word_unknown_axis(what: UnknownAxis, source: _HintSource) -> Sentence:
    # An alias of an alias is none, and a mesh may call an axis by a number.
    aliases = what.aliases if what.written == what.axis else ()
    axis, known = str(what.axis), tuple(map(str, (*what.mesh, *aliases)))
    # "data" is far from "dp" in letters, and yet what is meant; so a first letter will do.
    similar = [name for name in known if name[:1] == axis[:1]]
    close = get_close_matches(axis, known, n=1) or (similar if len(similar) == 1 else [])
    cure = f"did you mean '{close[0]}'? " if close else ""
    if what.by_rule:
        name = f"'{axis}' (by the rule for '{what.written}')"
        cure += "change the rule" + (f", or write [{what.written}/]" if source.has_brackets else "")
    else:
        name = f"'{axis}'" if what.written == axis else f"'{axis}' (as '{what.written}')"
        cure += f"axes={{'{what.written}': ...}} maps a name to mesh axes"
    problem = f"names mesh axis {name}, which is not among the mesh's axes {quoted_axes(what.mesh)}"
    return Sentence(problem, what.span, cure, sizes=source is _PATTERN)


def _word_structure(what: object, subject: Subject, source: _HintSource) -> Sentence:
    sizes = source is _PATTERN
    match what:
        case failures.NotAnArray(expected, got) | failures.WrongType(expected, got):
            # "bias: Array = None" is a common way to say that it may be absent.
            may_be_absent = got == "None" and subject.kind == "argument"
            cure = "write '| None' after its hint if it may be absent" if may_be_absent else None
            return Sentence(f"is {got}, but {source.name} says {expected}", None, cure, sizes)
        case failures.WrongLength(expected, got):
            return Sentence(f"has {count_text(got, 'item')}, but {source.name} has {expected}", sizes=sizes)
        case failures.WrongKeys(missing, extra):
            problems = [f"lacks {quoted_axes(missing)}"] if missing else []
            problems += [f"has {quoted_axes(extra)}, which {source.name} does not know"] if extra else []
            return Sentence(" and ".join(problems), sizes=sizes)
        case failures.NotAPytree(cls):
            problem = f"is of class {cls}, which holds arrays and is not registered as a pytree"
            return Sentence(problem, None, f"put @jax.tree_util.register_dataclass above {cls}", sizes)
        case failures.NonPytreeField(cls, field):
            problem = f"holds arrays in field '{field}', which {cls} does not show JAX as a child"
            return Sentence(problem, None, f"register '{field}' among the data fields of {cls}", sizes)
        case failures.StructureMismatch(name, expected, got, origin):
            problem = (
                f"has another tree structure than {origin.phrase}, which '{name}' stands for: {got}, not {expected}"
            )
            return Sentence(problem, sizes=sizes)
        case failures.NoArray(got):
            return Sentence(f"is {got}, which is not an array and cannot leave the manual region", sizes=sizes)
        case failures.StaticArray(hint) if subject.kind == "return":
            return Sentence(f"is an array, but {source.name} says {hint}", sizes=sizes)
        case failures.StaticArray(hint):
            problem = f"is an array, but {source.name} {hint} holds none, so the argument is static"
            return Sentence(problem, None, 'annotate it as an array, as in Int[Array, ""]', sizes)
        case _:
            raise TypeError(f"no words for {what!r}")


def _word_over_mesh(what: object, source: _HintSource, names: Mapping[str, str]) -> Sentence | None:
    """How a value varies or is sharded over the mesh, in words; None for a failure of another kind."""
    sizes = source is _PATTERN
    match what:
        case failures.UnmentionedVarying(axes, may_agree=may_agree):
            varies = "is typed as varying" if source is _PATTERN and may_agree else "varies"
            is_operand = source is _PATTERN and not may_agree
            cure = _cure_of_operand(axes, names) if is_operand else _cure_of_varying(what, names)
            return Sentence(
                f"{varies} over {quoted_axes(axes)}, which {source.name} does not mention", None, cure, False
            )
        case failures.UnmarkedUnreduced(axes):
            cure = f"take the sum (psum over {quoted_axes(axes)}), or write '{marks_text('+', axes, names)}'"
            problem = f"is unreduced over {quoted_axes(axes)}, which {source.name} does not mention"
            return Sentence(problem, None, cure, sizes)
        case failures.UnmarkedReduced(axes):
            mark = marks_text("-", axes, names)
            cure = f"write '{mark}' on an Explicit mesh, or gather it by all_gather(..., to='invarying')"
            problem = f"is reduced over {quoted_axes(axes)} in JAX's type, which {source.name} does not mention"
            return Sentence(problem, None, cure, sizes)
        case failures.NotUnreduced(axis, shards):
            mark = marks_text("+", (axis,), names)
            problem = f"is the same on every shard of '{axis}', but {source.name} says '{mark}'"
            cure = f"drop '{mark}': the sum was taken already, and a second one would count it {shards} times"
            return Sentence(problem, None, cure, sizes)
        case failures.BoundaryMark(sign, axis, reason, cure):
            mark = marks_text(sign, (axis,), names)
            return Sentence(f"is marked '{mark}'{source.within}, but {reason}", None, cure, sizes)
        case failures.RedundantPsum(axis, shards, verb, place):
            wrong = f"would count it {shards} times" if verb in ("psum", "psum_scatter") else "changes nothing"
            by = f" by {place}" if place else ""
            problem = f"is the same on every shard of '{axis}'{by}, so a {verb} over it {wrong}"
            cure = f"drop the {verb}: jax.grad sums the gradient of a value that is the same on every shard by itself"
            return Sentence(problem, None, cure, sizes)
        case failures.NotManual(axis, span):
            cure = "call it in the body of a typed_shard_map or jax.shard_map over this axis"
            return Sentence(f"mesh axis '{axis}' is not manual here: collectives need it inside shard_map", span, cure)
        case failures.WrongSharding(expected, got, cure):
            return Sentence(f"is {got}, but {source.name} says {expected}", None, cure, sizes)
        case failures.PatternLayoutMismatch(dim, claimed, known, place, span):
            where = "" if dim is None else f" in dim {dim}"
            return Sentence(f"is read as {claimed}{where}, but {place} says {known}", span, _RESHARD)
        case failures.LayoutMismatch(dim, _, _, gathered, span) if gathered:
            problem = f"was gathered over {quoted_axes(gathered)} in dim {dim}, which is not the order of its shards"
            return Sentence(problem, span, "gather it over the axes in the order in which they shard it", sizes)
        case failures.LayoutMismatch(dim, claimed, known, _, span):
            problem = f"is {sharding_text(known)} in dim {dim}, but {source.name} says {sharding_text(claimed)}"
            return Sentence(problem, span, _RESHARD, sizes)
        case failures.ShardingConflict(operation, where, first, second):
            ways = f"one is sharded over {quoted_axes(first)}, the other over {quoted_axes(second)}"
            cure = "gather or reshard one of them; if a value is not what it seems to be, state it by assume(x, hint)"
            return Sentence(f"{operation} combines {where}, but {ways}", None, cure, False)
        case _:
            return None


def _cure_of_varying(what: failures.UnmentionedVarying, names: Mapping[str, str]) -> str:
    unreduced, varying = (marks_text(sign, what.axes, names) for sign in "+~")
    cure = f"sum it over {quoted_axes(what.axes)} (psum)"
    if what.leaves_region and what.may_agree:
        return (
            f"its shards agree, and JAX types them as varying: gather it without '{varying}', or take the mean (pmean)"
        )
    if what.may_agree:
        return (
            f"{cure}; if its shards agree, write '{varying}', and pmean(x, '{varying} ->') where it is differentiated"
        )
    if what.leaves_region:
        return f"{cure}, or write '{unreduced}' if the sum is still due" if what.may_be_unreduced else cure
    last = f"or '{varying}' if the shards may differ"
    return f"{cure}, write '{unreduced}' if the sum is still due, {last}"


def _cure_of_operand(axes: tuple[str, ...], names: Mapping[str, str]) -> str:
    """What to write in a pattern for an operand that varies."""
    brackets, unreduced, varying = (marks_text(sign, axes, names) for sign in "/+~")
    return (
        f"write [dim{brackets.split()[0]}] for a dim that is sharded, '{unreduced}' if a sum is due, "
        f"or '{varying}' if the shards may differ"
    )
