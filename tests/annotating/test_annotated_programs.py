"""Programs as they are written in the wild, and the whole diffs by which ``annotate`` types them.

``python tests/annotating/test_annotated_programs.py [NAME ...]`` writes the diffs anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))
QUICK = {"decorator_with_partial"}
LEFT = {"one_wrong_call": "left: the types would refuse it, for what the audit found"}


def annotate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "typedshmap", "annotate", "--devices", "8", *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, encoding="utf-8")


# One in four is annotated on every version.
LONG = [name for name in NAMES if name not in QUICK]
CASES = [
    *QUICK,
    *(pytest.param(name, marks=[pytest.mark.slow, *[pytest.mark.once] * (at % 4 > 0)]) for at, name in enumerate(LONG)),
]


@pytest.mark.parametrize("name", CASES)
def test_the_diff_is_what_a_reader_would_merge(name: str, tmp_path: Path) -> None:
    text = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    done = annotate(tmp_path, f"{name}.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (PROGRAMS / f"{name}.diff").read_text(encoding="utf-8"), done.stderr
    left = [line for line in done.stderr.splitlines() if " left: " in line]
    assert len(left) == (name in LEFT) and all(LEFT[name] in line for line in left), done.stderr
    assert all(len(line) <= 121 for line in done.stdout.splitlines() if line.startswith("+"))


def test_the_documentation_shows_a_diff_that_is_printed() -> None:
    page = Path(__file__).parents[2] / "docs" / "audit.md"
    shown = (PROGRAMS / "train.diff").read_text(encoding="utf-8").partition("@@\n")[2]
    assert f"```diff\n{shown}```\n" in page.read_text(encoding="utf-8")


if __name__ == "__main__":
    for given in sys.argv[1:] or NAMES:
        (PROGRAMS / f"{given}.diff").write_text(annotate(PROGRAMS, f"{given}.py").stdout, encoding="utf-8")
