"""Audit programs that have no hints: read every manual region that is traced."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager

from ... import _jax
from ..._jax.operands import computed_operands, name_operands
from ...errors.failures import Failure
from ...errors.places import running_line
from ...inference.analysis import suspect_listeners
from .findings import Finding, Region, SuggestedHints
from .hints import SeenCalls
from .region import PlainRegion, finding_of
from .report import AuditReport
from .seen import SeenRegions

__all__ = ["AuditReport", "Finding", "Region", "SuggestedHints", "audit"]


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
    report, lock = AuditReport(), threading.Lock()
    seen, calls, operands = SeenRegions(), SeenCalls(), ExitStack()

    def see(traced: _jax.jaxpr.TracedRegion) -> None:
        region = PlainRegion(traced, axis_sizes or {})
        with lock:
            is_known = any(region.key == one[:3] for one in report.regions)
        # What JAX makes of a region is as right as that, but for the collectives that a gradient has in its branches.
        if traced.origin == "written" or (traced.origin == "copied" and not is_known):
            read = region.read()
            with lock:
                report.add(*read)
            seen.add(region, *read)
        if hints and traced.origin == "written":
            calls.add(region)
        deadlocks = seen.note_gradient(region)
        with lock:
            report.add_findings(deadlocks)

    def miss(why: str) -> None:
        with lock:
            file, line, _ = running_line() or ("", 0, "")
            report.add(Region("shard_map", file, line, False, (why,)), [])

    def hear(function: str, suspect: Failure) -> None:
        with lock:
            report.add_findings([finding_of(suspect, function)])

    if invariance:
        operands.enter_context(computed_operands(seen.unknown, seen.take))
    suspect_listeners.append(hear)
    try:
        with operands, _jax.regions.watched_regions(see, miss, name_operands if invariance else None):
            yield report
    finally:
        suspect_listeners.remove(hear)
        report.hints = calls.suggestions()
    if invariance:
        # Brings what compares programs along, which an audit that only reads does without.
        from .invariance import compare_on_meshes

        findings, not_run = compare_on_meshes(seen)
        report.add_findings(findings)
        for region in not_run:
            report.add(region, ())
