"""The wheel holds the package and nothing else; the source distribution all that its tests need."""

import email.message
import email.parser
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tree import PACKAGE, ROOT, needs_source

import typedshmap

pytestmark = pytest.mark.slow

PLUGIN = "testing/plugin/"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source distribution, and a wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture
def metadata(wheel: Path) -> email.message.Message:
    return email.parser.Parser().parsestr(zipfile.ZipFile(wheel).read(f"{information()}/METADATA").decode())


def information() -> str:
    return f"typedshmap-{typedshmap.__version__}.dist-info"


def sources(folder: str) -> set[str]:
    """Files of a folder of the tree that are not made by running it."""
    found = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path) for path in found if "__pycache__" not in path.parts and path.suffix != ".pyc"}


@needs_source
def test_the_wheel_holds_every_module_and_the_mark_of_types_and_nothing_else(wheel: Path) -> None:
    modules = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")} | {"py.typed"}
    # pytest's plugin is a package of its own.
    own = {f"typedshmap/{module}" for module in modules if not module.startswith(PLUGIN)}
    plugin = {module.removeprefix(PLUGIN) for module in modules if module.startswith(PLUGIN)}
    about = {f"{information()}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
    assert plugin == {"typedshmap_pytest/__init__.py", "typedshmap_pytest/audits.py"} and len(own) > 50
    held = set(zipfile.ZipFile(wheel).namelist())
    assert held == own | plugin | about | {f"{information()}/licenses/LICENSE"}


@needs_source
def test_the_page_says_how_large_the_wheel_is(wheel: Path) -> None:
    said = re.search(r"has (\d+) kB", (ROOT / "docs/runs-on.md").read_text(encoding="utf-8"))
    assert said is not None
    assert abs(wheel.stat().st_size / 1000 - int(said[1])) < 25


@needs_source
def test_the_wheel_says_what_the_package_is(wheel: Path, metadata: email.message.Message) -> None:
    assert metadata["Version"] == typedshmap.__version__
    assert metadata["License-Expression"] == "MIT" and metadata["Requires-Python"] == ">=3.11"
    needed = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert {re.split(r"[<>=]", each)[0] for each in needed} == {"jax", "numpy", "beartype", "einops"}
    extras = {"checkpoint", "examples", "bench", "docs", "lint", "notebooks", "random", "test", "tpu"}
    assert set(metadata.get_all("Provides-Extra", [])) == extras
    entry = zipfile.ZipFile(wheel).read(f"{information()}/entry_points.txt").decode()
    scripts = ["[console_scripts]", "typedshmap", "=", "typedshmap.tools.cli.main:main_and_exit"]
    assert entry.split() == [*scripts, "[pytest11]", "typedshmap", "=", "typedshmap_pytest"]


@needs_source
def test_the_wheel_is_imported_from_where_it_is_put(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    program = "import typedshmap, typedshmap_pytest; print(typedshmap.__file__); typedshmap.einsum, typedshmap.explain"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "installed/typedshmap/__init__.py")), (
        done.stderr
    )


@needs_source
def test_the_source_distribution_holds_what_its_tests_need(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
    files = ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", ".ci/run")
    files += (".mkdocs.yml", ".pre-commit-config.yaml", ".gitignore")
    folders = ("typedshmap", "tests", "docs", "examples", "bench")
    assert set(files).union(*map(sources, folders)) - held == set()
    assert [name for name in held if "__pycache__" in name] == []
    known = {name.partition("/")[0] for name in files} | set(folders) | {"PKG-INFO"}
    assert {name.partition("/")[0] for name in held} == known, "what else lies in the tree stays there"


def test_the_version_is_in_one_place_and_heads_the_changelog() -> None:
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heading is not None and heading[1] == typedshmap.__version__
    assert typedshmap.__version__ not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
