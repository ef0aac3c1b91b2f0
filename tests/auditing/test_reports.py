"""How an audit tells what it found, and what a project silences."""

from __future__ import annotations

import json
import linecache
from pathlib import Path
from typing import Any

import pytest

from typedshmap import DivergenceError, ShardingError, StructureError, VaryingError
from typedshmap.tools.audit import AuditedRegion, AuditReport, Finding, Region
from typedshmap.tools.audit.formats import write_report
from typedshmap.tools.audit.silenced import Baseline, write_baseline

STEP = """\
def step(x, w):
    y = x @ w
    return y


def norm(x):
    return x.sum()  # typedshmap: ignore[unreduced] each shard's own
"""
UNREDUCED = "return value varies over 'tp', which its PartitionSpec does not mention; psum over 'tp'"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(STEP)
    linecache.clearcache()
    return path


def found(path: Path, line: int = 2, kind: str = "unreduced", severity: Any = "error", region: str = "step") -> Finding:
    return Finding(severity, kind, UNREDUCED, str(path), line, region)


def report_of(path: Path, *findings: Finding, unread: tuple[str, ...] = ()) -> AuditReport:
    report = AuditReport()
    report.add(Region("step", str(path), 1, not unread, unread), findings)
    return report


def test_text(program: Path) -> None:
    suspect = found(program, 3, "lost-sum", "suspect")
    report = report_of(program, suspect, found(program), unread=("pallas_call at train.py:2",))
    assert str(report) == (
        f"train.py:2: error[unreduced] step: {UNREDUCED}\n"
        f"train.py:3: suspect[lost-sum] step: {UNREDUCED}\n"
        "not read: pallas_call at train.py:2 (step at train.py:1)\n"
        "typedshmap audit: 1 region, 0 read whole, 1 in part; 1 error, 1 suspect"
    )


def test_the_last_line_counts_the_regions_that_are_not_compared(program: Path) -> None:
    report = AuditReport()
    reasons = [
        ("not run on other meshes: it prints",),
        ("not run on other sizes of 'dp': it closes over N", "not compared between meshes: its gradients: no rule"),
        ("pallas_call at train.py:2",),
        (),
    ]
    for line, unread in enumerate(reasons, 1):
        report.add(AuditedRegion("step", str(program), line, "pallas_call" not in str(unread), unread))
    counts = "3 read whole, 1 in part, 1 not run on other meshes, 1 compared only in part"
    assert str(report).splitlines()[-1] == f"typedshmap audit: 4 regions, {counts}; 0 errors, 0 suspects"


def test_text_is_at_most_a_screen(program: Path) -> None:
    many = [found(program, line) for line in range(10, 410)]
    report = report_of(program, *many, unread=tuple(f"pallas_call at train.py:{line}" for line in range(50)))
    lines = str(report).splitlines()
    assert len(lines) <= 40
    assert "and 376 more findings; --format json lists all" in lines
    assert "and 42 more places not read or not run" in lines
    assert lines[-1] == "typedshmap audit: 1 region, 0 read whole, 1 in part; 400 errors, 0 suspects"


def test_github(program: Path) -> None:
    report = report_of(program, found(program))
    assert write_report("github", report.findings, report.regions).splitlines()[0] == (
        f"::error file=train.py,line=2,title=typedshmap unreduced::step: {UNREDUCED}"
    )


def test_json(program: Path) -> None:
    report = report_of(program, found(program))
    document = json.loads(write_report("json", report.findings, report.regions))
    finding = {"severity": "error", "kind": "unreduced", "message": UNREDUCED, "file": "train.py", "line": 2}
    region = {"name": "step", "file": "train.py", "line": 1, "is_complete": True, "unread": []}
    assert document == {"findings": [{**finding, "region": "step"}], "regions": [region]}


def test_sarif(program: Path) -> None:
    report = report_of(program, found(program))
    document = json.loads(write_report("sarif", report.findings, report.regions))
    (run,) = document["runs"]
    (result,) = run["results"]
    assert document["version"] == "2.1.0" and result["ruleId"] in {
        rule["id"] for rule in run["tool"]["driver"]["rules"]
    }
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("train.py", 2)


def test_errors_come_before_suspects_and_each_finding_once(program: Path) -> None:
    suspect, first, later = found(program, 1, "double-sum", "suspect"), found(program), found(program, 3, "layout")
    report = report_of(program, suspect, later, first, first)
    report.add(Region("step", str(program), 1, True, ()), [first])
    assert report.findings == [first, later, suspect]
    assert len(report.regions) == 1


@pytest.mark.parametrize(
    ("kind", "error"), [("unreduced", VaryingError), ("layout", ShardingError), ("divergence", DivergenceError)]
)
def test_errors_are_raised(kind: str, error: type[Exception], program: Path) -> None:
    with pytest.raises(error) as caught:
        report_of(program, found(program, kind=kind)).raise_for_errors()
    assert str(caught.value) == f"{program}:2: step: {UNREDUCED}"


def test_suspects_are_not_raised(program: Path) -> None:
    report_of(program, found(program, 3, "lost-sum", "suspect")).raise_for_errors()


@pytest.mark.parametrize(
    ("comment", "is_silenced"),
    [
        ("# typedshmap: ignore[unreduced]", True),
        ("#typedshmap:ignore[ lost-sum, unreduced ] since the caller sums it", True),
        ("# typedshmap: ignore", True),
        ("# typedshmap: ignore[layout]", False),
        ("# typedshmap: ignored", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("is_above", [False, True])
def test_a_comment_silences_its_line(comment: str, is_silenced: bool, is_above: bool, program: Path) -> None:
    line = f"    {comment}\n    y = x @ w" if is_above and comment else f"    y = x @ w  {comment}"
    program.write_text(STEP.replace("    y = x @ w", line))
    linecache.clearcache()
    assert (report_of(program, found(program, 3 if is_above and comment else 2)).findings == []) == is_silenced


def test_a_baseline_knows_a_finding_whose_line_has_moved(program: Path) -> None:
    path = program.parent / "known.json"
    write_baseline(path, [found(program)])
    program.write_text(f'"""A program."""\n\n\n{STEP}')
    linecache.clearcache()
    moved, other = found(program, 5), found(program, 6)
    assert Baseline.read(path).new([moved]) == []
    assert Baseline.read(path).new([moved, moved, other]) == [moved, other]


def test_a_baseline_is_read_from_another_folder(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program.parent / "known.json"
    write_baseline(path, [found(program)])
    (program.parent / "sub").mkdir()
    monkeypatch.chdir(program.parent / "sub")
    assert Baseline.read(path).new([found(Path("../train.py"))]) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file or directory"),
        ("{}", "it is not a baseline, as --write-baseline writes one"),
        ("[1]", "it is not a baseline, as --write-baseline writes one"),
        ("{", "it is not a baseline, as --write-baseline writes one"),
        ('{"findings": [{"kind": 1}]}', "it is not a baseline, as --write-baseline writes one"),
    ],
)
def test_what_is_no_baseline_is_refused(text: str | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StructureError) as caught:
        Baseline.read(path)
    assert str(caught.value) == f"{path}: {problem}"
