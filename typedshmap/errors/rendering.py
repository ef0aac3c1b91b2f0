"""A `Report` becomes text, first line first.

Invariant: the first line alone names the function, the value, what is wrong and both numbers.
"""

from __future__ import annotations

import re

from ..notation.nodes import Span
from ..notation.sizes import Sizes
from .failures import AtOdds, Failure, HintText, NotManual, PatternFault, Report
from .phrases import alias_text, mesh_text, sizes_text
from .sentence import DTYPE, Sentence
from .wording import word

_MOST_OTHERS = 8


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
    if span[0] == DTYPE:
        return "^" * len(hint.before.split("[")[0])
    return " " * (len(hint.before) + span[0]) + "^" * (span[1] - span[0])


def _mesh_line(report: Report) -> str:
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


def _rules_of(report: Report) -> list[tuple[str, tuple[str, ...]]]:
    """The rules for the dims of the hint that the message is about."""
    hint = report.failures[0].hint
    words = set(re.findall(r"\w+", hint.dims)) if hint is not None and report.rules else set[str]()
    return [rule for rule in report.rules if rule[0] in words]


def _sizes_line(sizes: Sizes) -> str:
    text = sizes_text(sizes)
    return f"Sizes: {text}" if text else ""
