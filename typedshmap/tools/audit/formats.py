"""A report as text, as annotations of GitHub, as JSON and as SARIF."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors.phrases import count_text
from .findings import KINDS, AuditedRegion, Finding, SuggestedHints

FORMATS = ("text", "github", "json", "sarif")
_MOST_FINDINGS, _MOST_UNREAD = 24, 8
NOT_RUN = ("not run on other ", "not compared between ")
"""The prefix of the reason that a region, or a part of it, is not compared with other meshes."""


def shown_path(file: str) -> str:
    """A path for printing: relative to the current folder if it is below."""
    relative = os.path.relpath(file) if file else ""
    return file if relative.startswith("..") else relative


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
            return _json(findings, regions, hints)
        case "sarif":
            return _sarif(findings)
        case _:
            report = text_report(findings, regions)
            return report if hints is None else f"{hints_text(hints)}\n\n{report}"


def finding_line(found: Finding) -> str:
    """One finding: its place, severity and kind, the problem, and the cure."""
    return f"{shown_path(found.file)}:{found.line}: {found.severity}[{found.kind}] {found.region}: {found.message}"


def text_report(findings: Sequence[Finding], regions: Sequence[AuditedRegion]) -> str:
    """At most a screen: the findings, the unread operations with reasons, and the totals."""
    lines = [finding_line(found) for found in findings[:_MOST_FINDINGS]]
    if len(findings) > _MOST_FINDINGS:
        lines.append(f"{len(findings) - _MOST_FINDINGS} findings more: --format json has them all")
    unread = [(region, why) for region in regions for why in region.unread]
    reasons = (why if why.startswith(NOT_RUN) else f"not read: {why}" for _, why in unread[:_MOST_UNREAD])
    lines += [f"{why} ({region.name} at {_place(region)})" for why, (region, _) in zip(reasons, unread, strict=False)]
    if len(unread) > _MOST_UNREAD:
        lines.append(f"not read or not run: {len(unread) - _MOST_UNREAD} places more")
    errors = sum(found.severity == "error" for found in findings)
    complete = sum(region.is_complete for region in regions)
    parts = f"{complete} read whole" + (f", {len(regions) - complete} in part" if complete < len(regions) else "")
    suspects = count_text(len(findings) - errors, "suspect")
    read = f"{count_text(len(regions), 'region')}, {parts}" if regions else "no shard_map was traced"
    return "\n".join([*lines, f"typedshmap audit: {read}; {count_text(errors, 'error')}, {suspects}"])


def hints_text(hints: Sequence[SuggestedHints]) -> str:
    """The hints of all regions."""
    blocks: list[str] = []
    for one in hints:
        head = f"# {one.name} at {shown_path(one.file)}:{one.line}, {count_text(one.calls, 'call')}"
        blocks.append(f"{head}\n{one.text}" if one.text else f"{head}: the function of a library")
    return "\n\n".join(blocks) or "# no call of jax.shard_map without hints was seen; below jax 0.10.2 none is"


def _place(region: AuditedRegion) -> str:
    return f"{shown_path(region.file)}:{region.line}"


def _github(findings: Sequence[Finding], summary: str) -> str:
    levels = {"error": "error", "suspect": "warning"}
    lines = [
        f"::{levels[found.severity]} file={_property(shown_path(found.file))},line={found.line},"
        f"title=typedshmap {found.kind}::{_escaped(f'{found.region}: {found.message}')}"
        for found in findings
    ]
    return "\n".join([*lines, summary])


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _json(findings: Sequence[Finding], regions: Sequence[AuditedRegion], hints: Sequence[SuggestedHints] | None) -> str:
    def entry(one: Finding | AuditedRegion | SuggestedHints) -> dict[str, Any]:
        return {**one._asdict(), "file": shown_path(one.file)}

    document = {"findings": [*map(entry, findings)], "regions": [*map(entry, regions)]}
    if hints is not None:
        document["hints"] = [*map(entry, hints)]
    return json.dumps(document, indent=2)


def _sarif(findings: Sequence[Finding]) -> str:
    levels = {"error": "error", "suspect": "warning"}
    results = [
        {
            "ruleId": found.kind,
            "level": levels[found.severity],
            "message": {"text": f"{found.region}: {found.message}"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": Path(shown_path(found.file)).as_posix()},
                        "region": {"startLine": max(found.line, 1)},
                    }
                }
            ],
        }
        for found in findings
    ]
    driver = {"name": "typedshmap", "rules": [{"id": kind} for kind in KINDS]}
    run = {"tool": {"driver": driver}, "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2)
