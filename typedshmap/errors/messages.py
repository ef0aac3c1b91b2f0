"""A `Report` becomes text, and every failure is put into words.

Invariant: the first line alone names the function, the value, what is wrong and both numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from ..notation.layout import AxisTwice, NoRule, RuledTwice, UnknownAxis
from ..notation.match import BadExpression, Indivisible, Mismatch, OutsideTree, RankMismatch, SizeMismatch, UnboundNames
from ..notation.spec import Anything, Dim, Name, Number, Rest
from ..notation.tokens import Span
from . import failures
from .failures import DTYPE, Sentence, Terms
from .phrases import alias_text, count_text, mesh_text, quoted_axes, size_text, sizes_text

_MOST_OTHERS = 8


def render(report: failures.Report) -> str:
    """The whole message: first line, hint and value, mesh, sizes, cure, the other failures."""
    first, *others = report.failures
    sentence = word(first, _names(first, report))
    value: list[str] = []
    if first.hint is not None:
        label = f"    {first.subject}: "
        value.append(f"{label}{first.hint}")
        if sentence.span is not None:
            value.append(" " * len(label) + carets(first.hint, sentence.span))
    if first.got is not None:
        value.append(f"    got {first.got}{' per shard' if report.per_shard else ''}")
    facts = [_mesh_line(report)] if report.mesh else []
    is_of_sizes = isinstance(first.what, Mismatch | failures.WrongSize | failures.NoUnionMember)
    if is_of_sizes or (Terms(first.subject, {}).is_pattern and not isinstance(first.what, failures.UnmentionedVarying)):
        facts += [f"Sizes: {text}"] if (text := sizes_text(report.sizes)) else []
    facts += [f"At: {report.place}"] if report.place else []
    facts += [f"Hint: {sentence.cure}"] if sentence.cure else []
    facts += [f"Also: {_line(other, word(other, _names(other, report)))}" for other in others[:_MOST_OTHERS]]
    if len(others) > _MOST_OTHERS:
        facts.append(f"Also: {len(others) - _MOST_OTHERS} more, in error.failures")
    blocks = [f"{report.function}: {_line(first, sentence)}", "\n".join(value), "\n".join(facts)]
    return "\n\n".join(filter(None, blocks))


def _line(failure: failures.Failure, sentence: Sentence) -> str:
    concerns_pattern = isinstance(failure.what, failures.PatternFault | failures.NotManual | failures.ShardingConflict)
    return sentence.problem if concerns_pattern else f"{failure.subject.phrase} {sentence.problem}"


def _hint_words(failure: failures.Failure) -> set[str]:
    return set(re.findall(r"\w+", failure.hint.dims)) if failure.hint is not None else set()


def _names(failure: failures.Failure, report: failures.Report) -> dict[str, str]:
    """What marks call a mesh axis: an alias that stands for it alone, unless the hint has the axis itself."""
    words = _hint_words(failure)
    # Of several, one that the hint has.
    aliases = sorted(report.aliases, key=lambda alias: alias[0] in words)
    return {axes[0]: name for name, axes in aliases if len(axes) == 1 and axes[0] not in words}


def carets(hint: failures.HintText, span: Span) -> str:
    """Carets under a span of the hint's dims, or under its dtype."""
    if span == DTYPE:
        return "^" * len(hint.before.split("[")[0])
    return " " * (len(hint.before) + span[0]) + "^" * (span[1] - span[0])


def _mesh_line(report: failures.Report) -> str:
    text = "Mesh: " + mesh_text(report.mesh)
    if report.manual is not None and set(report.manual) != {name for name, _ in report.mesh}:
        text += f" (manual: {', '.join(report.manual) or 'none'})"
    words = _hint_words(report.failures[0])
    rules = tuple(rule for rule in report.rules if rule[0] in words)
    for label, named in (("axes", report.aliases), ("rules", rules)):
        if named:
            text += f"; {label}: " + ", ".join(f"{name}={alias_text(axes)}" for name, axes in named)
    return text


def word(failure: failures.Failure, names: Mapping[str, str] | None = None) -> Sentence:
    """A failure in words; names are what marks call mesh axes that have another name there."""
    terms = Terms(failure.subject, names or {})
    match failure.what:
        case failures.Fault() as fault:
            return fault.words(terms)
        case failures.NoUnionMember(reasons):
            labels = (f"{reason.hint}: " if reason.hint is not None else "" for reason in reasons)
            problems = (word(reason, names).problem for reason in reasons)
            listed = "; ".join(f"{label}{problem}" for label, problem in zip(labels, problems, strict=True))
            return Sentence(f"fits no member of {terms.hint} ({listed})")
        case SizeMismatch() as wrong:
            return _word_size(wrong, terms)
        case RankMismatch(expected, at_least, got):
            least = "at least " if at_least else ""
            return Sentence(f"has {count_text(got, 'dim')}, but {terms.hint} has {least}{expected}")
        case Indivisible(dim, index, size, axes, shards, span):
            over = f"{quoted_axes(axes)} ({count_text(shards, 'shard')})"
            cure = f"make {_dim_name(dim, index)} a multiple of {shards}, or pad it"
            return Sentence(f"has {_dim_size_text(dim, index, size)}, which does not divide over {over}", span, cure)
        case UnboundNames(dim, _, unbound, span):
            named = quoted_axes(unbound)
            cure = f"name {named} as a dim of an argument, or write {{{unbound[0]}}} for an argument's value"
            return Sentence(f"has dim '{dim.size}'{terms.within}, but nothing binds {named}", span, cure)
        case BadExpression(_, _, reason, span):
            return Sentence(f"has a hint that cannot be evaluated: {reason}", span)
        case OutsideTree(dim, span):
            cure = "write PyTree[..., \"S\"] around it, or drop the '?'"
            return Sentence(f"has '{dim}'{terms.within}, outside of a PyTree with a structure name", span, cure)
        case UnknownAxis() as wrong:
            return _word_unknown_axis(wrong, terms)
        case AxisTwice(axis, span):
            return Sentence(f"uses mesh axis '{axis}' twice{terms.within}", span)
        case NoRule(name, taken, span):
            axes = tuple(dict.fromkeys(taken))
            given = f"whose rules give {quoted_axes(axes)}, which {'is' if len(axes) == 1 else 'are'} taken"
            why = given if taken else "which no rule names"
            cure = f"add ('{name}', None) to the rules" + ("" if terms.is_box else f", or write [{name}/]")
            return Sentence(f"has dim '{name}'{terms.within}, {why}", span, cure)
        case RuledTwice(name, span):
            problem = f"has dim '{name}' twice{terms.within}, so that the rule for it could mean either"
            cure = None if terms.is_box else f"write [{name}/axis] or [{name}/] for one of them"
            return Sentence(problem, span, cure)
        case what:
            raise TypeError(f"no words for {what!r}")


def _word_size(what: SizeMismatch, terms: Terms) -> Sentence:
    name = _dim_name(what.dim, what.index)
    shards = "" if what.shard is None else f" ({what.shard} per shard over {quoted_axes(what.axes)})"
    has = f"has {_dim_size_text(what.dim, what.index, what.got)}{shards}"
    or_one = " (or 1)" if what.dim.broadcast else ""
    if what.origin is None:
        return Sentence(f"{has}, but {terms.hint} says {what.expected}{or_one}", what.span)
    expected = size_text(name, what.expected)
    if what.origin.subject == terms.subject:
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


def _word_unknown_axis(what: UnknownAxis, terms: Terms) -> Sentence:
    # An alias of an alias is none, and a mesh may call an axis by a number.
    aliases = what.aliases if what.written == what.axis else ()
    axis, known = str(what.axis), tuple(map(str, (*what.mesh, *aliases)))
    # "data" is far from "dp" in letters, and yet what is meant; so a first letter will do.
    similar = [name for name in known if name[:1] == axis[:1]]
    close = get_close_matches(axis, known, n=1) or (similar if len(similar) == 1 else [])
    cure = f"did you mean '{close[0]}'? " if close else ""
    if what.by_rule:
        name = f"'{axis}' (by the rule for '{what.written}')"
        cure += "change the rule" + ("" if terms.is_box else f", or write [{what.written}/]")
    else:
        name = f"'{axis}'" if what.written == axis else f"'{axis}' (as '{what.written}')"
        cure += f"axes={{'{what.written}': ...}} maps a name to mesh axes"
    problem = f"names mesh axis {name}, which is not among the mesh's axes {quoted_axes(what.mesh)}"
    return Sentence(problem, what.span, cure)
