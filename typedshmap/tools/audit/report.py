"""The report of an audit."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import TypedShmapError
from ...errors.places import is_ignored
from .findings import KINDS, AuditedRegion, Finding, SuggestedHints
from .formats import text_report


class AuditReport:
    """The findings of an audit so far, each once, and the analyzed regions.

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
        """The findings, errors before suspects, in the order of files and lines."""
        return sorted(self._findings.values(), key=lambda one: (one.severity, one.file, one.line, one.kind))

    @property
    def regions(self) -> list[AuditedRegion]:
        """The analyzed regions, in the order of their first calls."""
        return list(self._regions.values())

    def add(self, region: AuditedRegion, findings: Iterable[Finding]) -> None:
        """Add the analysis of a region; findings of earlier calls count once."""
        at = (region.name, region.file, region.line)
        before = self._regions.get(at, region)
        unread = tuple(dict.fromkeys((*before.unread, *region.unread)))
        self._regions[at] = region._replace(is_complete=before.is_complete and region.is_complete, unread=unread)
        self.add_findings(findings)

    def add_findings(self, findings: Iterable[Finding]) -> None:
        """Add findings, except those that a comment on their line silences."""
        for found in findings:
            if not is_ignored(found.file, found.line, found.kind):
                self._findings.setdefault((found.kind, found.file, found.line), found)

    def raise_for_errors(self) -> None:
        """Raise an exception for the errors, but not for suspects.

        Raises:
          VaryingError, ShardingError, DivergenceError: for the first error, whose message names the others, too.
        """
        errors = [found for found in self.findings if found.severity == "error"]
        if errors:
            error: type[TypedShmapError] = KINDS[errors[0].kind]
            raise error("\n".join(f"{found.file}:{found.line}: {found.region}: {found.message}" for found in errors))

    def __str__(self) -> str:
        return text_report(self.findings, self.regions)
