"""``pytest --typedshmap-audit``: audit every ``shard_map`` that the tests trace, and list the findings at the end.

With ``--typedshmap-invariance`` the regions are also run on other meshes at the end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

_OUTPUT = "typedshmap_audit"


class Audit:
    """An audit of all tests of a session; under pytest-xdist each worker has an audit, and the controller joins them.

    Attributes:
      outputs: the findings and the regions of this process, and of its workers.
    """

    def __init__(self, config: pytest.Config, baseline: Path | None, invariance: bool) -> None:
        self.config, self.baseline, self.invariance, self.opened = config, baseline, invariance, ExitStack()
        self.outputs: list[tuple[list[Any], list[Any]]] = []
        self._report: Any = None
        self._session: pytest.Session | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_pycollect_makemodule(self) -> Generator[None, Any, Any]:
        """Begin before the first test module is imported; JAX must not be imported before a ``conftest.py``."""
        if self._report is None:
            from typedshmap.tools.audit import audit

            self._report = self.opened.enter_context(audit(invariance=self.invariance))
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End the audit; a worker sends its findings, and errors make the run fail."""
        self._session = session
        if self._report is not None:
            self.opened.close()
            self.outputs.append(([*map(list, self._report.findings)], [*map(list, self._report.regions)]))
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = self.outputs
        elif session.exitstatus == pytest.ExitCode.OK and any(
            finding.severity == "error" for finding in self._findings()
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """End the process if a program that was run on other meshes waits for ever."""
        if self.invariance and self._session is not None and not hasattr(config, "workeroutput"):
            from typedshmap.testing.waiting import end_if_waiting

            end_if_waiting(int(self._session.exitstatus))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive the findings of a worker of pytest-xdist."""
        self.outputs += getattr(node, "workeroutput", {}).get(_OUTPUT, [])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """List the findings, each once."""
        from typedshmap.tools.audit.formats import write_report

        terminalreporter.section("typedshmap audit")
        terminalreporter.line(write_report("text", self._findings(), self._merged().regions))

    def _merged(self) -> Any:
        from typedshmap.tools.audit import AuditedRegion, AuditReport, Finding

        report = AuditReport()
        for findings, regions in self.outputs:
            for name, file, line, is_complete, unread in regions:
                report.add(AuditedRegion(name, file, line, is_complete, tuple(unread)), ())
            report.add_findings(Finding(*fields) for fields in findings)
        return report

    def _findings(self) -> list[Any]:
        """The findings that are not in a baseline."""
        from typedshmap.tools.audit.silenced import Baseline

        findings: list[Any] = self._merged().findings
        return findings if self.baseline is None else Baseline.read(self.baseline).new(findings)
