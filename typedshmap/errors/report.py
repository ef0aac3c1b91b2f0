"""The whole message of a call: the first failure in full, with its context, and the other failures.

Invariant: the first line alone names the function, the value, the fault and both numbers."""

from __future__ import annotations

from collections.abc import Iterable

from ..records import Record
from .causes import Suspect
from .failures import (
    Bound,
    Failure,
    Mismatch,
    NotManual,
    NoUnionMember,
    PatternFault,
    ShardingConflict,
    WrongSize,
    sizes_text,
)
from .phrases import alias_text, mesh_text
from .varying import DivergentCollective, UnmentionedVarying, UntypedVarying

_MOST_OTHERS = 8


_ABOUT_OPERATIONS = PatternFault | NotManual | ShardingConflict | DivergentCollective | UntypedVarying | Suspect


class Report(Record):
    """All failures of one call, and their context.

    Attributes:
      function: the name of the function that was called.
      failures: the failures; the message reports the first in full.
      mesh: mesh axes and their sizes.
      manual: the manual axes, if they are not the whole mesh.
      per_shard: whether the values are shards.
      aliases: aliases of mesh axes.
      sizes: the bound sizes.
      rules: mesh axes for dims without brackets, by their names.
      place: the line of the user's program; empty if a traceback ends there.
    """

    function: str
    failures: tuple[Failure, ...]
    mesh: tuple[tuple[str, int], ...] = ()
    manual: tuple[str, ...] | None = None
    per_shard: bool = False
    aliases: tuple[tuple[str, tuple[str, ...]], ...] = ()
    sizes: Iterable[tuple[str, Bound]] = ()
    rules: tuple[tuple[str, tuple[str, ...]], ...] = ()
    place: str = ""

    def __str__(self) -> str:
        first, *others = self.failures
        sentence = first.words(self._names(first))
        value: list[str] = []
        if first.hint is not None:
            label, (hint, span) = f"    {first.subject}: ", first.hint.around(sentence.span)
            value.append(f"{label}{hint}")
            if sentence.span is not None and first.hint.dims:  # a PartitionSpec has no carets
                value.append(" " * len(label) + hint.carets(span))
        if first.got is not None:
            value.append(f"    got {first.got}{' per shard' if self.per_shard else ''}")
        facts = [self._mesh_line()] if self.mesh else []
        is_of_sizes = isinstance(first.what, Mismatch | WrongSize | NoUnionMember)
        if is_of_sizes or (first.subject.is_pattern and not isinstance(first.what, UnmentionedVarying)):
            facts += [f"Sizes: {text}"] if (text := sizes_text(self.sizes)) else []
        facts += [f"At: {self.place}"] if self.place else []
        facts += [f"Hint: {sentence.cure}"] if sentence.cure else []
        # The result of a helper that the caller returns fails twice.
        others = [other for other in others if not other.follows_from(first)]
        lines = list(dict.fromkeys(f"Also: {self._line(other)}{self._elsewhere(other)}" for other in others))
        facts += lines[:_MOST_OTHERS]
        if len(lines) > _MOST_OTHERS:
            facts.append(f"Also: {len(lines) - _MOST_OTHERS} more, in error.failures")
        blocks = [f"{self.function}: {self._line(first)}", "\n".join(value), "\n".join(facts)]
        return "\n\n".join(filter(None, blocks))

    def _elsewhere(self, failure: Failure) -> str:
        return f", at {failure.place}" if failure.place not in ("", self.place) else ""

    def _line(self, failure: Failure) -> str:
        problem = failure.words(self._names(failure)).problem
        concerns_pattern = isinstance(failure.what, _ABOUT_OPERATIONS)
        return problem if concerns_pattern else f"{failure.subject.phrase} {problem}"

    def _names(self, failure: Failure) -> dict[str, str]:
        """The aliases of mesh axes in marks: an alias of one axis, unless the hint has the axis itself."""
        words = failure.hint_words
        # Of several aliases, one in the hint.
        aliases = sorted(self.aliases, key=lambda alias: alias[0] in words)
        return {axes[0]: name for name, axes in aliases if len(axes) == 1 and axes[0] not in words}

    def _mesh_line(self) -> str:
        text = "Mesh: " + mesh_text(self.mesh)
        if self.manual is not None and set(self.manual) != {name for name, _ in self.mesh}:
            text += f" (manual: {', '.join(self.manual) or 'none'})"
        words = self.failures[0].hint_words
        rules = tuple(rule for rule in self.rules if rule[0] in words)
        for label, named in (("axes", self.aliases), ("rules", rules)):
            if named:
                text += f"; {label}: " + ", ".join(f"{name}={alias_text(axes)}" for name, axes in named)
        return text
