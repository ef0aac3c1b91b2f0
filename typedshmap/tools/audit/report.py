"""What an audit found so far."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import TypedShmapError
from ...errors.places import is_ignored
from .findings import KINDS, AuditedRegion, Finding, SuggestedHints
from .formats import text_report


class AuditReport:
    """The findings of an audit so far, each once, and the regions that were read.

    Attributes:
      findings: what is wrong, errors before suspects, in the order of files and lines.
      regions: the regions, in the order in which they were first seen.
      hints: at the end of an audit with ``hints=True`` those that each region may be given.
    """

    def __init__(self) -> None:
        self._findings: dict[tuple[str, str, int], Finding] = {}
        self._regions: dict[tuple[str, str, int], AuditedRegion] = {}
        self.hints: list[SuggestedHints] = []

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, errors before suspects, in the order of files and lines."""
        return sorted(self._findings.values(), key=lambda one: (one.severity, one.file, one.line, one.kind))

    @property
    def regions(self) -> list[AuditedRegion]:
        """The regions that were read, in the order in which they were first seen."""
        return list(self._regions.values())

    def add(self, region: AuditedRegion, findings: Iterable[Finding]) -> None:
        """Take in what was read of a region; what is known of it already, as of another call, counts once."""
        at = (region.name, region.file, region.line)
        before = self._regions.get(at, region)
        unread = tuple(dict.fromkeys((*before.unread, *region.unread)))
        self._regions[at] = region._replace(is_complete=before.is_complete and region.is_complete, unread=unread)
        self.add_findings(findings)

    def add_findings(self, findings: Iterable[Finding]) -> None:
        """Take in findings, but for those that a comment on their line silences."""
        for found in findings:
            if not is_ignored(found.file, found.line, found.kind):
                self._findings.setdefault((found.kind, found.file, found.line), found)

    def raise_for_errors(self) -> None:
        """Raise what is wrong; suspects are no reason.

        Raises:
          VaryingError, ShardingError, DivergenceError: for the first error, whose message names the others, too.
        """
        errors = [found for found in self.findings if found.severity == "error"]
        if errors:
            error: type[TypedShmapError] = KINDS[errors[0].kind]
            raise error("\n".join(f"{found.file}:{found.line}: {found.region}: {found.message}" for found in errors))

    def __str__(self) -> str:
        return text_report(self.findings, self.regions)
