"""Audit programs without hints: analyze every manual region that is traced."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext

from ... import inspection
from ...errors.places import running_line
from .audit_report import AuditedRegion, AuditReport, Finding, SuggestedHints
from .audit_report import AuditedRegion as Region
from .operands import computed_operands, name_operands
from .seen_regions import SeenRegions
from .suggested_hints import SeenCalls

__all__ = ["AuditReport", "AuditedRegion", "Finding", "Region", "SuggestedHints", "audit"]


@contextmanager
def audit(
    axis_sizes: Mapping[str, int] | None = None, *, invariance: bool = False, hints: bool = False
) -> Generator[AuditReport]:
    """Analyze every ``shard_map`` that is traced inside the ``with``, from any caller.

    ```python
    with typedshmap.audit() as report:
        jax.eval_shape(train_step, state, batch)
    report.raise_for_errors()
    ```

    The program is not changed. Cached traces are not reused; a region that is called outside ``jax.jit``, and evaluated
    operation by operation, is traced once more.

    Args:
      axis_sizes: the sizes to assume for mesh axes of size 1, to audit a program on one device as if on several.
      invariance: whether to run each region at the end on one device and on axes of other sizes, with the arguments
        of a call, and to compare its global results, as `typedshmap.testing.assert_mesh_invariant` does; and its
        gradients, if the program takes them. The report lists regions that cannot be run again.
      hints: whether to suggest hints for each region from its calls, in the report's ``hints``.

    Yields:
      The report, to which each traced region is added.
    """
    report = AuditReport()
    listener = _Listener(report, hints, invariance)
    operands = computed_operands(listener.seen) if invariance else nullcontext()
    try:
        with operands, inspection.reading_thoroughly(), inspection.observing(listener, axis_sizes or {}):
            yield report
    finally:
        report.hints = listener.calls.suggestions()
    if invariance:
        # Imports the comparison of programs, which other audits do not need.
        from .other_meshes import compare_on_meshes

        findings, not_run = compare_on_meshes(listener.seen)
        report.add_findings(findings)
        for region in not_run:
            report.add(region)


class _Listener:
    """The observer that fills a report, as regions are traced in any thread."""

    def __init__(self, report: AuditReport, takes_calls: bool, takes_operands: bool) -> None:
        self.report, self.seen, self.calls = report, SeenRegions(), SeenCalls()
        self.name_operands = name_operands if takes_operands else None
        self._takes_calls, self._lock = takes_calls, threading.Lock()

    def region(self, region: inspection.Region) -> None:
        with self._lock:
            is_known = any(region.key == audited[:3] for audited in self.report.regions)
        # Regions that JAX derives are as right as the original, except for collectives of a gradient in branches.
        if region.origin == "written" or (region.origin == "copied" and not is_known):
            # The hints of a typed region are checked while it is traced.
            findings, unread = ([], region.opaque) if region.is_typed else (region.findings, region.unread)
            read = AuditedRegion(*region.key, not unread, unread)
            with self._lock:
                self.report.add(read, findings)
            self.seen.add(region, findings)
        deadlocks = self.seen.note_gradient(region)
        with self._lock:
            if self._takes_calls and region.origin == "written":
                self.calls.add(region)
            self.report.add_findings(deadlocks)

    def missed(self, why: str) -> None:
        with self._lock:
            file, line, _ = running_line() or ("", 0, "")
            self.report.add(AuditedRegion("shard_map", file, line, False, (why,)))

    def suspect(self, function: str, finding: Finding) -> None:
        with self._lock:
            self.report.add_findings([finding])
