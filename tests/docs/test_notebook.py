"""The notebook of the tour runs, and shows what is kept of it."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs/notebooks/tour.ipynb"


def shown(cells: Any) -> list[list[object]]:
    """Of each cell what it prints, and the kinds of what it shows."""
    return [[each.get("text") or sorted(each.get("data", ())) for each in cell.get("outputs", [])] for cell in cells]


@pytest.mark.slow
def test_the_tour_prints_and_draws_what_is_kept_of_it() -> None:
    pytest.importorskip("nbclient", reason="the extra `notebooks` is not installed")
    pytest.importorskip("ipykernel", reason="the extra `notebooks` is not installed")
    from bench.notebook import executed

    outputs = shown(json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"])
    assert shown(executed().cells) == outputs
    drawn = [cell for cell in outputs if ["text/html", "text/plain"] in cell]
    assert len(drawn) == 5  # a hint, `show`, what is the same on every mesh, `explain`, and a plan
    assert any("which its hint does not mention" in str(cell) for cell in outputs)
