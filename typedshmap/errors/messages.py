"""A `Report` becomes text.

Invariant: the first line alone names the function, the value, what is wrong and both numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from . import failures
from .phrases import alias_text, mesh_text, size_text

_MOST_OTHERS = 8


def render(report: failures.Report) -> str:
    """The whole message: first line, hint and value, mesh, sizes, cure, the other failures."""
    first, *others = report.failures
    sentence = first.words(_names(first, report))
    value: list[str] = []
    if first.hint is not None:
        label = f"    {first.subject}: "
        value.append(f"{label}{first.hint}")
        if sentence.span is not None:
            value.append(" " * len(label) + first.hint.carets(sentence.span))
    if first.got is not None:
        value.append(f"    got {first.got}{' per shard' if report.per_shard else ''}")
    facts = [_mesh_line(report)] if report.mesh else []
    is_of_sizes = isinstance(first.what, failures.Mismatch | failures.WrongSize | failures.NoUnionMember)
    if is_of_sizes or (first.subject.is_pattern and not isinstance(first.what, failures.UnmentionedVarying)):
        facts += [f"Sizes: {text}"] if (text := sizes_text(report.sizes)) else []
    facts += [f"At: {report.place}"] if report.place else []
    facts += [f"Hint: {sentence.cure}"] if sentence.cure else []
    facts += [f"Also: {_line(other, other.words(_names(other, report)))}" for other in others[:_MOST_OTHERS]]
    if len(others) > _MOST_OTHERS:
        facts.append(f"Also: {len(others) - _MOST_OTHERS} more, in error.failures")
    blocks = [f"{report.function}: {_line(first, sentence)}", "\n".join(value), "\n".join(facts)]
    return "\n\n".join(filter(None, blocks))


def _line(failure: failures.Failure, sentence: failures.Sentence) -> str:
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


def sizes_text(sizes: Iterable[tuple[str, failures.Bound]]) -> str:
    """``batch=8 (q dim 0), d=64 (q dim 3)``"""
    return ", ".join(
        f"{size_text(name, bound.size)} ({bound.subject} {'from ' * isinstance(bound.size, tuple)}dim {bound.dim})"
        for name, bound in sizes
        if " at " not in name
    )
