"""The documentation as a site: it builds without a warning, its links lead somewhere, and a browser shows it."""

import html
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import typedshmap
from typedshmap import testing
from typedshmap._jax.array import FAMILIES, NAMES
from typedshmap.tools import explain as explaining

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "picture"))

from blocks import ROOT
from browser import browse, is_drawn, needs_browser
from links import dead_links, fetched_from_elsewhere, read_page, read_site
from serving import ALONE, report_of, served

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
MODULES = (typedshmap, testing, explaining)
PUBLIC = [f"{module.__name__}.{name}" for module in MODULES for name in module.__all__]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as its command builds it, in a folder that holds nothing else."""
    for needed in ("mkdocs", "material", "mkdocstrings_handlers", "ruff"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: the extra 'docs'")
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", ROOT / ".mkdocs.yml", "-d", folder]
    # Material's own notice of what it thinks of the next mkdocs.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def files_of(site: Path) -> set[str]:
    return {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}


def test_no_link_is_dead(site: Path) -> None:
    pages = read_site(site)
    assert len(pages) > 1 and sum(len(page.links) for page in pages.values()) > 100
    assert list(dead_links(pages, files_of(site))) == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    assert fetched_from_elsewhere(read_site(site)) == []
    sheets = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert sheets and not [found for sheet in sheets for found in re.findall(r"@import|url\(['\"]?https?:", sheet)]


PAGE = '<h1 id="top">A</h1><a href="b.html#x">x</a><a href="https://c.org/">c</a><script src="//d.org/d.js"></script>'


@pytest.mark.parametrize(
    ("other", "dead"),
    [
        ('<p id="x"><a href="a.html#top">', []),
        ('<p id="y">', ["a.html: b.html#x"]),
        ('<p id="x"><a href="a.html#end"><img src="b.png">', ["b.html: a.html#end", "b.html: b.png"]),
    ],
)
def test_a_dead_link_is_noticed(other: str, dead: list[str]) -> None:
    pages = {"a.html": read_page(PAGE), "b.html": read_page(other)}
    assert list(dead_links(pages, {"a.html", "b.html"})) == dead


def test_what_is_fetched_from_elsewhere_is_noticed() -> None:
    assert fetched_from_elsewhere({"a.html": read_page(PAGE)}) == ["a.html: //d.org/d.js"]


def test_every_public_name_has_an_entry(site: Path) -> None:
    ids = {each for name, page in read_site(site).items() if name.startswith("api/") for each in page.ids}
    assert [name for name in PUBLIC if name not in ids] == []


def first_lines() -> dict[str, str]:
    """The first line of the docstring of every public function and class that is not a dtype's hint."""
    public = [getattr(module, name) for module in MODULES for name in module.__all__]
    ours = [each for each in public if getattr(each, "__module__", "").startswith("typedshmap")]
    documented = [each for each in ours if (inspect.isfunction(each) or inspect.isclass(each)) and each.__doc__]
    return {each.__name__: squeezed(each.__doc__.splitlines()[0]) for each in documented}


def squeezed(text: str) -> str:
    return re.sub(r"[\s`]", "", text)


def test_every_function_and_class_is_there_with_its_docstring(site: Path) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html"))
    text, lines = squeezed(html.unescape(re.sub(r"<[^>]+>", "", pages))), first_lines()
    assert {"typed_shard_map", "einsum", "PyTree", "ShapeError", "Inputs"} <= set(lines)
    assert [name for name, line in lines.items() if line not in text] == []


def test_the_table_of_dtypes_says_what_each_name_takes() -> None:
    page = (ROOT / "docs/api/hints.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`\{[^}]*\} \| (.*) \|$", page.partition("## Array types")[0], re.MULTILINE)
    table = {name: re.findall(r"`(\w+)`", cell) for name, cell in rows}
    assert set(table) == set(NAMES) and set(FAMILIES) < set(table)
    assert dict(rows)["Shaped"] == "every dtype" and "PRNG keys" in dict(rows)["Key"]

    def taken(name: str) -> set[str]:
        return set().union(*(taken(item) for item in table[name])) if name in table else {name}

    others = [name for name in NAMES if name not in ("Shaped", "Key")]
    assert {name: taken(name) for name in others} == {name: set(NAMES[name] or ()) for name in others}


@pytest.fixture(scope="module")
def report(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a reader found who clicked on every link."""
    shutil.copy(HERE / "walk.html", site.parent)
    found = report_of("walk.html", site.parent, tmp_path_factory.mktemp("browser"))
    assert found.missing == []
    return found.what


@needs_browser
def test_a_reader_who_clicks_gets_to_every_page(site: Path, report: dict[str, Any]) -> None:
    assert "error" not in report
    assert set(report["pages"]) == {f"/site/{name}" for name in read_site(site)} - {"/site/404.html"}
    for page in report["pages"].values():
        assert set(page["navigation"]) == set(report["pages"]), page["title"]


@needs_browser
def test_every_page_is_laid_out_coloured_and_fits_a_screen_and_a_phone(report: dict[str, Any]) -> None:
    for name, page in report["pages"].items():
        assert "typedshmap" in page["title"] and page["heading"] and page["height"] > 200, name
        assert page["header"] == report["pages"]["/site/index.html"]["header"] != "rgba(0, 0, 0, 0)", name
        assert (
            page["fits"]
            and page["lost"] == page["sideways"] == page["tables"] == page["signatures"] == page["undrawn"] == []
        ), name
        assert page["blocks"] == page["copies"], name
    assert report["pages"]["/site/index.html"]["blocks"] > 0
    assert report["pages"]["/site/index.html"]["colours"] > 3


@needs_browser
def test_there_is_a_light_scheme_and_a_dark_one(report: dict[str, Any]) -> None:
    light, dark = ([int(part) for part in re.findall(r"\d+", ground)[:3]] for ground in report["schemes"])
    assert min(light) > 200 and max(dark) < 80


@needs_browser
def test_the_search_finds_an_operation(report: dict[str, Any]) -> None:
    assert report["found"] in ("/site/operations.html", "/site/api/operations.html")


@needs_browser
def test_a_page_is_drawn(site: Path, tmp_path: Path) -> None:
    shot = tmp_path / "page.png"
    with served(site) as (address, _):
        browse(f"{address}/index.html", tmp_path, ALONE, f"--screenshot={shot}", "--window-size=1400,1000")
    assert is_drawn(shot)
