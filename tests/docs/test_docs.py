"""Every code block in README and docs runs, and prints or raises what stands below it; the notebook does so, too."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

import typedshmap

sys.path.insert(0, str(Path(__file__).parent))

from blocks import ROOT, Block, outputs, run

PAGES = [ROOT / "README.md", ROOT / "tests/docs/gallery.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown(page: Path) -> Any:
    """A page; two have programs that are wrong, and found so by what they compute."""
    suspects = pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")
    marks = [suspects] if page.stem in ("README", "verify", "degrees", "faq") else []
    marks += [pytest.mark.slow] * (page.stem in ("libraries", "randomness", "verify"))
    return pytest.param(page, marks=marks, id=str(page.relative_to(ROOT)))


@pytest.mark.parametrize("page", [*map(shown, PAGES)])
def test_the_blocks_of_a_page_run_and_give_what_the_page_says(page: Path) -> None:
    for block, output in outputs(page):
        if block.expected is not None:
            assert output == block.expected, f"{page.name}, line {block.line}: {block.heading}"


PACKAGE = Path(typedshmap.__file__).parent
TABLE = (ROOT / "docs/design.md").read_text(encoding="utf-8").partition("How the code is laid out")[2]


def test_every_room_of_the_package_is_in_the_table_of_the_layout() -> None:
    modules = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    rooms = {path.stem for path in modules} - {"__init__"}
    assert {room for room in rooms if f"`{room}`" not in TABLE and f"`{room}/`" not in TABLE} == set()


def test_every_module_that_the_table_of_the_layout_names_in_a_room_is_there() -> None:
    missing = list[str]()
    rows = re.findall(r"^\| ((?:`[\w/]+` ?)+)\| ([^|]+) \|$", TABLE, re.MULTILINE)
    assert len(rows) == TABLE.count("\n| `")
    for rooms, job in rows:
        folders = [PACKAGE / room.rstrip("/") for room in re.findall(r"`([\w/]+)`", rooms)]
        inside = [name for each in re.findall(r"\(([^)]*)\)", job) for name in re.findall(r"`(\w+)/?`", each)]
        there = {path.stem for folder in folders for path in folder.glob("*")}
        missing += [f"{rooms}{name}" for name in inside if name not in there]
    assert missing == []


def test_the_table_of_what_check_vma_does_not_find_is_what_its_program_prints() -> None:
    """A page's test compares the program's text with what it prints."""
    page = (ROOT / "docs/faq.md").read_text(encoding="utf-8")
    lines = page.partition("|---|")[2].partition("\n\n")[0].splitlines()[1:]
    table = [line.strip("| ").split(" | ") for line in lines]
    printed = page.rpartition("```text\n")[2].partition("```")[0].splitlines()[1:]
    assert table == [[row[:34].strip(), *row[34:].split()] for row in printed]
    assert len(table) > 8


def test_the_mesh_that_a_page_sets_is_its_own(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    code = 'import jax\n\njax.set_mesh(jax.make_mesh((8,), ("dp",)))\nprint(jax.sharding.get_mesh().size)\n'
    page.write_text(f"```python\n{code}```\n", encoding="utf-8")
    assert [output for _, output in outputs(page)] == ["8"]
    assert jax.sharding.get_mesh().empty


def test_a_block_that_says_something_else_is_noticed() -> None:
    block = Block("", 1, "print(1)", "2", None)
    assert run(block, {}) == "1" != block.expected


def test_an_error_that_no_text_expects_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run(Block("", 1, "1 / 0", None, None), {})


# The notebook of the tour


def of_cells(cells: Any) -> list[list[object]]:
    """Of each cell what it prints, and the kinds of what it shows."""
    return [[each.get("text") or sorted(each.get("data", ())) for each in cell.get("outputs", [])] for cell in cells]


@pytest.mark.slow
def test_the_tour_prints_and_draws_what_is_kept_of_it() -> None:
    pytest.importorskip("nbclient", reason="the extra `notebooks` is not installed")
    pytest.importorskip("ipykernel", reason="the extra `notebooks` is not installed")
    from bench.notebook import executed

    outputs = of_cells(json.loads((ROOT / "docs/notebooks/tour.ipynb").read_text(encoding="utf-8"))["cells"])
    assert of_cells(executed().cells) == outputs
    drawn = [cell for cell in outputs if ["text/html", "text/plain"] in cell]
    assert len(drawn) == 5  # a hint, `show`, what is the same on every mesh, `explain`, and a plan
    assert any("which its hint does not mention" in str(cell) for cell in outputs)
