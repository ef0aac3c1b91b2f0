"""README and the pages are short; README shows what an audit of its program prints, and a reader's path is apart."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LIMIT, CONTRIBUTORS = 40_000, "Contributors"


def nav() -> list[dict[str, object]]:
    # The tags of mkdocs' own loader are not known to this one.
    text = (ROOT / ".mkdocs.yml").read_text(encoding="utf-8").replace("!relative ", "")
    return yaml.safe_load(text)["nav"]


def pages(entry: object) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in pages(part)]  # type: ignore[attr-defined]


PARTS = {title: pages(content) for entry in nav() for title, content in entry.items()}
PATH = [page for title, part in PARTS.items() if title not in (CONTRIBUTORS, "API", "Changelog") for page in part]


def words(page: str) -> int:
    return len((DOCS / page).read_text(encoding="utf-8").split())


def test_all_pages_have_at_most_forty_thousand_words() -> None:
    counted = {page: words(page) for page in [*PATH, *PARTS[CONTRIBUTORS]]}
    assert sum(counted.values()) <= LIMIT, counted


def test_every_page_is_in_the_navigation_once() -> None:
    listed = [page for part in PARTS.values() for page in part]
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_no_page_of_the_path_is_longer_than_a_reader_takes() -> None:
    assert {page: words(page) for page in PATH if words(page) > 3_300} == {}


def test_every_page_of_the_path_has_a_figure() -> None:
    first = PATH[: PATH.index("examples.md")]
    assert len(first) > 10
    drawn = r"!\[.+\]\(assets/[\w-]+\.svg\)|--8<-- \"docs/assets/[\w-]+\.html\""
    assert [page for page in first if not re.search(drawn, (DOCS / page).read_text(encoding="utf-8"))] == []


# README

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
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8", "timeout": 200}
    done = subprocess.run([sys.executable, *command[1].split()], cwd=tmp_path, env=environment, **both)
    assert (done.returncode, done.stdout) == (0, printed)
