"""Whatever is given to a public function, nothing comes out but an error of ours, in a readable text.

``TYPEDSHMAP_FUZZ=1`` makes 27,000 calls, as CI does once, and 2.2 makes 60,000, in the place of 2,800;
``TYPEDSHMAP_FUZZ_SEED`` draws others.
"""

import os
from pathlib import Path

import pytest
from calls import Drawer, tally_in_regions
from escapes import Tally
from jax.sharding import Mesh

import typedshmap

TIMES = float(os.environ.get("TYPEDSHMAP_FUZZ", "0.1"))
SEED = int(os.environ.get("TYPEDSHMAP_FUZZ_SEED", "0"))
CASES = {
    "dtype_item": 3000,
    "tree_item": 2000,
    "check_string": 2500,
    "check_hint": 2500,
    "asked_size": 1000,
    "decorated": 2500,
    "mapped": 2000,
    "jit_option": 800,
    "naming": 1500,
    "placed": 2500,
    "plan": 800,
    "operation": 1500,
    "tool": 1500,
    "command": 400,
}
REGIONS, IN_EACH = 30, 50


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder with nothing in it or above it that ``check ..`` could run but what is put there."""
    below = tmp_path / "below"
    below.mkdir()
    (below / "pyproject.toml").write_text("[build-system]\nbuild-backend = 'none'\n")
    (below / "draws.py").write_text("from typedshmap import typed_shard_map\n")
    monkeypatch.chdir(below)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("calls", CASES)
def test_nothing_but_our_errors_comes_out_of(calls: str, mesh: Mesh) -> None:
    drawer, found, count = Drawer(SEED, mesh), Tally(), int(CASES[calls] * TIMES)
    for _ in range(count):
        found.run(getattr(drawer, calls)())
    assert found.escaped == {}
    assert found.cases == count
    assert found.refused > count / 2


@pytest.mark.parametrize("check_vma", [True, False])
def test_nothing_but_our_errors_comes_out_in_a_region(check_vma: bool, mesh: Mesh) -> None:
    regions = int(REGIONS * TIMES)
    found = tally_in_regions(Drawer(SEED, mesh), regions, IN_EACH, check_vma)
    assert found.escaped == {}
    assert found.cases >= regions * (IN_EACH + 1)  # a body that is refused may be traced once more
    assert found.refused > found.cases / 2


def test_there_are_twenty_thousand_cases() -> None:
    assert sum(CASES.values()) + 2 * REGIONS * IN_EACH >= 20_000


def test_a_fault_is_seen() -> None:
    found = Tally()
    found.run(("None.nothing", lambda: None.nothing))  # type: ignore[attr-defined]
    assert list(found.escaped.values()) == ["None.nothing: 'NoneType' object has no attribute 'nothing'"]


def test_an_error_that_cannot_be_read_is_seen() -> None:
    def call() -> None:
        raise typedshmap.StructureError(" \n\nMesh: dp=4")

    found = Tally()
    found.run(("blank", call))
    assert list(found.escaped.values()) == ["blank: an error without a first line:  \n\nMesh: dp=4"]
