"""The report of an audit as text, as annotations of GitHub, as JSON and as SARIF."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ...errors.phrases import count_text
from .audit_report import KINDS, AuditedRegion, Finding, SuggestedHints, shown_path, text_report

FORMATS = ("text", "github", "json", "sarif")
_LEVELS = {"error": "error", "suspect": "warning"}


def write_report(
    form: str,
    findings: Sequence[Finding],
    regions: Sequence[AuditedRegion],
    summary: str = "",
    hints: Sequence[SuggestedHints] | None = None,
) -> str:
    """A report in one of the formats, with the summary as the last line, if any. Text and JSON include hints."""
    match form:
        case "github":
            return _github(findings, summary or text_report(findings, regions).splitlines()[-1])
        case "json":
            parts = {"findings": findings, "regions": regions} | ({} if hints is None else {"hints": hints})
            entries = {
                name: [{**entry._asdict(), "file": shown_path(entry.file)} for entry in part]
                for name, part in parts.items()
            }
            return json.dumps(entries, indent=2)
        case "sarif":
            return _sarif(findings)
        case _:
            report = text_report(findings, regions)
            return report if hints is None else f"{_hints_text(hints)}\n\n{report}"


def _hints_text(hints: Sequence[SuggestedHints]) -> str:
    blocks: list[str] = []
    for name, file, line, calls, text in hints:
        head = f"# {name} at {shown_path(file)}:{line}, {count_text(calls, 'call')}"
        blocks.append(f"{head}\n{text}" if text else f"{head}: the function of a library")
    return "\n\n".join(blocks) or "# no call of jax.shard_map without hints was seen; below jax 0.10.2 none is"


def _github(findings: Sequence[Finding], summary: str) -> str:
    def escaped(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    lines: list[str] = []
    for severity, kind, message, path, line, region in findings:
        file = escaped(shown_path(path)).replace(":", "%3A").replace(",", "%2C")
        title = f"file={file},line={line},title=typedshmap {kind}"
        lines.append(f"::{_LEVELS[severity]} {title}::{escaped(f'{region}: {message}')}")
    return "\n".join([*lines, summary])


def _sarif(findings: Sequence[Finding]) -> str:
    results = [
        {
            "ruleId": finding.kind,
            "level": _LEVELS[finding.severity],
            "message": {"text": f"{finding.region}: {finding.message}"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": Path(shown_path(finding.file)).as_posix()},
                        "region": {"startLine": max(finding.line, 1)},
                    }
                }
            ],
        }
        for finding in findings
    ]
    driver = {"name": "typedshmap", "rules": [{"id": kind} for kind in KINDS]}
    run = {"tool": {"driver": driver}, "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2)
