"""Audit programs that have no hints: read every manual region that is traced."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager

from ... import inspection
from ...errors.failures import Failure
from ...errors.places import running_line
from ...inspection import Observer, observing
from .findings import AuditedRegion, Finding, SuggestedHints
from .findings import AuditedRegion as Region
from .hints import SeenCalls
from .operands import computed_operands, name_operands
from .report import AuditReport
from .seen import SeenRegions

__all__ = ["AuditReport", "AuditedRegion", "Finding", "Region", "SuggestedHints", "audit"]


@contextmanager
def audit(
    axis_sizes: Mapping[str, int] | None = None, *, invariance: bool = False, hints: bool = False
) -> Generator[AuditReport]:
    """Read every ``shard_map`` that is traced inside the ``with``, whatever calls it.

    ```python
    with typedshmap.audit() as report:
        jax.eval_shape(train_step, state, batch)
    report.raise_for_errors()
    ```

    The program is not changed. What was traced before is traced anew; a region that is called outside of ``jax.jit``,
    and evaluated operation by operation, is traced once more.

    Args:
      axis_sizes: how long mesh axes of size 1 are taken to be, so that a program for one device is read as for several.
      invariance: whether to run, at the end, each region on one device and on axes of other sizes, with the arguments
        of a call, and to compare its global results, as `typedshmap.testing.assert_mesh_invariant` does; and its
        gradients, where the program takes them. Those that cannot be run again are listed.
      hints: whether to suggest hints for each region, by the calls that were seen, in the report's ``hints``.

    Yields:
      The report, which fills as regions are traced.
    """
    report, operands = AuditReport(), ExitStack()
    listener = _Listener(report, hints, invariance)
    if invariance:
        operands.enter_context(computed_operands(listener.seen.unknown, listener.seen.take))
    try:
        with operands, observing(listener, axis_sizes or {}):
            yield report
    finally:
        report.hints = listener.calls.suggestions()
    if invariance:
        # Brings what compares programs along, which an audit that only reads does without.
        from .invariance import compare_on_meshes

        findings, not_run = compare_on_meshes(listener.seen)
        report.add_findings(findings)
        for region in not_run:
            report.add(region, ())


class _Listener(Observer):
    """What fills a report, as regions are traced in any thread."""

    is_thorough = True

    def __init__(self, report: AuditReport, takes_calls: bool, takes_operands: bool) -> None:
        self.report, self.seen, self.calls = report, SeenRegions(), SeenCalls()
        self.name_operands = name_operands if takes_operands else None
        self._takes_calls, self._lock = takes_calls, threading.Lock()

    def region(self, region: inspection.Region) -> None:
        with self._lock:
            is_known = any(region.key == one[:3] for one in self.report.regions)
        # What JAX makes of a region is as right as that, but for the collectives that a gradient has in its branches.
        if region.origin == "written" or (region.origin == "copied" and not is_known):
            # The hints of a typed one are checked as it is traced.
            findings, unread = ([], region.opaque) if region.is_typed else (region.findings, region.unread)
            read = AuditedRegion(*region.key, not unread, unread)
            with self._lock:
                self.report.add(read, findings)
            self.seen.add(region, read, findings)
        if self._takes_calls and region.origin == "written":
            self.calls.add(region)
        deadlocks = self.seen.note_gradient(region)
        with self._lock:
            self.report.add_findings(deadlocks)

    def missed(self, why: str) -> None:
        with self._lock:
            file, line, _ = running_line() or ("", 0, "")
            self.report.add(AuditedRegion("shard_map", file, line, False, (why,)), [])

    def suspect(self, function: str, failure: Failure) -> None:
        with self._lock:
            self.report.add_findings([inspection.finding_of(failure, function)])
