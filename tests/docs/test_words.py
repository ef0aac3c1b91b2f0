"""The pages are short, and a reader's path through them is apart from what only contributors read."""

import re
from pathlib import Path

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
