"""The documentation's table is the one that the mutants make."""

from pathlib import Path

from table import table

PAGE = Path(__file__).parents[2] / "docs" / "mutants.md"
MARK = "<!-- mutants -->"


def test_the_documentation_has_the_table() -> None:
    _, between, _ = PAGE.read_text(encoding="utf-8").split(MARK)
    assert between.strip() == table()
