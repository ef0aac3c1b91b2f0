"""Silenced findings: by a comment on their line, or in a baseline."""

from __future__ import annotations

import json
import linecache
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ...errors import StructureError
from .audit_report import Finding

_KEYS = ("kind", "file", "region", "text")


class Baseline:
    """Findings, recognized by kind, file, region and the text of the line, which may have moved."""

    def __init__(self, path: Path, entries: Iterable[tuple[str, str, str, str]]) -> None:
        self.path, self.entries = path, Counter(entries)

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read a file; raises StructureError if it is not a baseline."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            entries = [tuple(str(entry[key]) for key in _KEYS) for entry in document["findings"]]
        except OSError as error:
            raise StructureError(f"{path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise StructureError(f"{path}: it is not a baseline, as --write-baseline writes one") from None
        return cls(path, entries)  # type: ignore[arg-type]

    def new(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings that it does not have; equal findings are counted."""
        left, new = self.entries.copy(), list[Finding]()
        for finding in findings:
            key = _entry(finding, self.path)
            if left[key]:
                left[key] -= 1
            else:
                new.append(finding)
        return new


def write_baseline(path: Path, findings: Iterable[Finding]) -> None:
    """Write findings as a baseline, with paths relative to its folder."""
    entries = [dict(zip(_KEYS, _entry(finding, path), strict=True)) for finding in findings]
    try:
        path.write_text(json.dumps({"version": 1, "findings": entries}, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StructureError(f"{path}: {error.strerror}") from None


def _entry(finding: Finding, path: Path) -> tuple[str, str, str, str]:
    file = os.path.relpath(os.path.abspath(finding.file), path.absolute().parent) if finding.file else ""
    return finding.kind, Path(file).as_posix(), finding.region, linecache.getline(finding.file, finding.line).strip()
