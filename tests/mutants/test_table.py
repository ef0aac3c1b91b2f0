"""The documentation's table is the one that the mutants make."""

from pathlib import Path

import pytest
from table import table

PAGE = Path(__file__).parents[2] / "docs" / "verify.md"
MARK = "<!-- mutants -->"


def test_the_documentation_has_the_table() -> None:
    page = PAGE.read_text() if PAGE.exists() else ""
    if MARK not in page:
        pytest.skip("the page has no table of mutants yet")
    _, between, _ = page.split(MARK)
    assert between.strip() == table()
