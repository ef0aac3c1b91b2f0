"""README is short, and shows what an audit of its program prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def line_of(pattern: str) -> int:
    match = re.search(pattern, README, re.MULTILINE)
    assert match is not None, pattern
    return README.count("\n", 0, match.start()) + 1


def test_readme_is_short_and_begins_with_what_a_reader_needs() -> None:
    assert README.count("\n") <= 110
    assert line_of(r"\.svg\)$") <= 40
    assert line_of("typedshmap audit: ") <= 60
    assert [line_of(r"^```sh$") <= 60, len(re.findall(r"^```sh$", README, re.MULTILINE))] == [True, 2]


def test_the_first_program_has_at_most_twelve_lines() -> None:
    program = README.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in program.splitlines() if line]) <= 12


@pytest.mark.slow
def test_the_audit_of_the_first_program_prints_what_readme_says(tmp_path: Path) -> None:
    program, _, rest = README.partition("```python\n")[2].partition("```")
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    command = re.search(r"`python (-m typedshmap audit [^`]*)`", README)
    assert command is not None
    printed = rest[rest.index(command[0]) :].partition("```text\n")[2].partition("```")[0]
    done = subprocess.run(
        [sys.executable, *command[1].split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=200,
    )
    assert done.returncode == 0
    assert done.stdout == printed
