"""Plain programs under audit: what is wrong is found, with its line; what is right is let by."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
from plain_programs import RIGHT, WRONG, Program

from typedshmap import audit


def modes(programs: list[Program]) -> list[Any]:
    return [
        pytest.param(program, check_vma, id=f"{getattr(program.body, '__name__', 'partial')}-{check_vma}")
        for program in programs
        for check_vma in program.vma
    ]


@pytest.mark.parametrize(("program", "check_vma"), modes(WRONG))
def test_what_is_wrong_is_found(program: Program, check_vma: bool) -> None:
    with audit() as report:
        program.trace(check_vma)
    assert sorted(found.kind for found in report.findings) == sorted(program.kinds)
    first = report.findings[0]
    assert program.cause in linecache.getline(first.file, first.line)
    assert first.region == program.body.__name__
    (region,) = report.regions
    assert region.is_complete and region.line == program.body.__code__.co_firstlineno


@pytest.mark.parametrize(("program", "check_vma"), modes(RIGHT))
def test_what_is_right_is_let_by(program: Program, check_vma: bool) -> None:
    with audit() as report:
        program.trace(check_vma)
    assert report.findings == []
    assert len(report.regions) == 1
