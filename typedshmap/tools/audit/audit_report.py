"""The report of an audit: findings, the analyzed regions, and suggested hints."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...errors import DivergenceError, ShardingError, TypedShmapError, VaryingError
from ...errors.phrases import count_text
from ...errors.places import is_ignored
from ...inspection import Finding

KINDS: dict[str, type[TypedShmapError]] = {
    **dict.fromkeys(("varying", "unreduced", "unsound", "double-sum", "lost-sum", "summed-gradient"), VaryingError),
    **dict.fromkeys(("own-part", "copies", "same-draw", "invariance"), VaryingError),
    "layout": ShardingError,
    "divergence": DivergenceError,
}
"""The kinds of findings, each with its exception."""
_MOST_FINDINGS, _MOST_UNREAD = 24, 8
NOT_RUN = "not run on other meshes: "
"""Begins the reason why no result of a region is compared between meshes."""
_NOT_COMPARED = ("not run on other ", "not compared between ")  # also for only some results, or some meshes


class AuditedRegion(NamedTuple):
    """A manual region that was analyzed.

    Attributes:
      name: the name of its function.
      file: the path of the file of the function.
      line: the line of the function.
      is_complete: whether the analysis could read everything that its results depend on.
      unread: the operations that it could not read, with reasons.
    """

    name: str
    file: str
    line: int
    is_complete: bool
    unread: tuple[str, ...]


class SuggestedHints(NamedTuple):
    """The suggested hints of a region without hints.

    Attributes:
      name: the name of its function.
      file: the path of the file of the function.
      line: the line of the function.
      calls: the number of recorded calls.
      text: a signature that agrees with all of these calls, and the calls of ``typed_shard_map`` that give it their
        mesh axes; empty for the function of a library.
    """

    name: str
    file: str
    line: int
    calls: int
    text: str


class AuditReport:
    """The findings of an audit so far, each once, and the analyzed regions.

    Attributes:
      findings: the errors and suspects, errors first, in the order of files and lines.
      regions: the regions, in the order of their first calls.
      hints: the suggested hints of each region, at the end of an audit with ``hints=True``.
    """

    def __init__(self) -> None:
        self._findings: dict[tuple[str, str, int], Finding] = {}
        self._regions: dict[tuple[str, str, int], AuditedRegion] = {}
        self.hints: list[SuggestedHints] = []

    @property
    def findings(self) -> list[Finding]:
        """The findings, errors before suspects, in the order of files and lines."""
        by_place = self._findings.values()
        return sorted(by_place, key=lambda finding: (finding.severity, finding.file, finding.line, finding.kind))

    @property
    def regions(self) -> list[AuditedRegion]:
        """The analyzed regions, in the order of their first calls."""
        return list(self._regions.values())

    def add(self, region: AuditedRegion, findings: Iterable[Finding] = ()) -> None:
        key = region[:3]
        before = self._regions.get(key, region)
        unread = tuple(dict.fromkeys((*before.unread, *region.unread)))
        self._regions[key] = region._replace(is_complete=before.is_complete and region.is_complete, unread=unread)
        self.add_findings(findings)

    def add_findings(self, findings: Iterable[Finding]) -> None:
        """Add findings, except those that a comment on their line silences."""
        for finding in findings:
            if not is_ignored(finding.file, finding.line, finding.kind):
                self._findings.setdefault((finding.kind, finding.file, finding.line), finding)

    def raise_for_errors(self) -> None:
        """Raise an exception for the errors, but not for suspects.

        Raises:
          VaryingError, ShardingError, DivergenceError: for the first error; its message also names the others.
        """
        errors = [finding for finding in self.findings if finding.severity == "error"]
        if errors:
            lines = (f"{error.file}:{error.line}: {error.region}: {error.message}" for error in errors)
            raise KINDS[errors[0].kind]("\n".join(lines))

    def __str__(self) -> str:
        return text_report(self.findings, self.regions)


def shown_path(file: str) -> str:
    """A path for printing: relative to the current folder if it is below."""
    relative = os.path.relpath(file) if file else ""
    return file if relative.startswith("..") else relative


def text_report(findings: Sequence[Finding], regions: Sequence[AuditedRegion]) -> str:
    """At most a screen: the findings, the unread operations with reasons, and the totals."""
    lines = [
        f"{shown_path(file)}:{line}: {severity}[{kind}] {region}: {message}"
        for severity, kind, message, file, line, region in findings[:_MOST_FINDINGS]
    ]
    if len(findings) > _MOST_FINDINGS:
        lines.append(f"and {count_text(len(findings) - _MOST_FINDINGS, 'more finding')}; --format json lists all")
    unread = [(why, region) for region in regions for why in region.unread]
    for why, region in unread[:_MOST_UNREAD]:
        reason = why if why.startswith(_NOT_COMPARED) else f"not read: {why}"
        lines.append(f"{reason} ({region.name} at {shown_path(region.file)}:{region.line})")
    if len(unread) > _MOST_UNREAD:
        lines.append(f"and {count_text(len(unread) - _MOST_UNREAD, 'more place')} not read or not run")
    errors = sum(finding.severity == "error" for finding in findings)
    complete = sum(region.is_complete for region in regions)
    parts = f"{complete} read whole" + (f", {len(regions) - complete} in part" if complete < len(regions) else "")
    parts += _not_compared_text(regions)
    suspects = count_text(len(findings) - errors, "suspect")
    read = f"{count_text(len(regions), 'region')}, {parts}" if regions else "no shard_map was traced"
    return "\n".join([*lines, f"typedshmap audit: {read}; {count_text(errors, 'error')}, {suspects}"])


def _not_compared_text(regions: Sequence[AuditedRegion]) -> str:
    """The numbers of regions that were not run on other meshes, or compared only in part; empty if there are none."""
    not_run = sum(any(why.startswith(NOT_RUN) for why in region.unread) for region in regions)
    listed = sum(any(why.startswith(_NOT_COMPARED) for why in region.unread) for region in regions)
    in_part = f", {listed - not_run} compared only in part" if listed > not_run else ""
    return (f", {not_run} not run on other meshes" if not_run else "") + in_part
