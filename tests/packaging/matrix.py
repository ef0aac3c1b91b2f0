"""What the library runs on: makes an environment per row of the table, runs it there, and writes what passed.

    python tests/packaging/matrix.py docs/runs-on.md                  # every row
    python tests/packaging/matrix.py docs/runs-on.md --only 0.10.1    # the rows of one JAX; the others stay
    python tests/packaging/matrix.py docs/runs-on.md --ops            # tests/call and tests/ops on every row

Environments are kept in ``build/environments``; a row of the table is written as soon as it is known.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOWEST = ROOT / ".ci/lowest.txt"
BEGIN, END = "<!-- written by tests/packaging/matrix.py -->", "<!-- end -->"
VERSIONED = ("Python", "JAX", "beartype", "einops", "NumPy")
HEADER = (*VERSIONED, "quickstart", "notation, hints, inference", "call, operations")
CORE = ("tests/notation", "tests/hints", "tests/inference")
OPERATIONS = ("tests/call", "tests/ops")
NEEDED = ("equinox", "flatbuffers", "flax", "hypothesis", "jaxtyping", "optax", "pytest", "pytest-xdist")
VERSIONS = """
import platform, beartype, einops, jax, numpy, typedshmap
print(platform.python_version(), *(module.__version__ for module in (jax, beartype, einops, numpy)))
"""


@dataclass(frozen=True)
class Row:
    """One environment: a Python, and what pip is asked for."""

    python: str
    jax: str
    is_lowest: bool = False

    @property
    def name(self) -> str:
        return f"{self.python}-jax-{self.jax}"

    @property
    def requirements(self) -> list[str]:
        """What to install; all but JAX as new as it goes, or all at the lowest."""
        constraint = ["--constraint", str(LOWEST)] if self.is_lowest else []
        return [*constraint, f"jax=={self.jax}", "beartype", "einops", "numpy", *NEEDED]


ROWS = [
    Row("3.11", "0.9.0", is_lowest=True),
    Row("3.11", "0.10.0"),
    Row("3.11", "0.10.1"),
    Row("3.11", "0.10.2"),
    Row("3.12", "0.11.2"),
    Row("3.13", "0.12.0.1"),
]


def find_python(version: str) -> str:
    """A Python of a minor version: pyenv's, or one that is on the path."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [*root.glob(f"{version}*/bin/python3"), *filter(None, [shutil.which(f"python{version}")])]
    if not found:
        raise SystemExit(f"there is no Python {version}")
    return str(found[0])


def make_environment(row: Row, folder: Path) -> Path:
    """The Python of an environment for a row, made if it is not there yet."""
    home = folder / row.name
    if not (home / "made").exists():
        subprocess.run([find_python(row.python), "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([home / "bin/python", "-m", "pip", "install", "--quiet", *row.requirements], check=True)
        (home / "made").touch()
    return home / "bin/python"


def result_of(row: Row, python: Path, with_operations: bool) -> tuple[str, ...]:
    """Run everything in an environment: the row's cells."""
    paths = [str(ROOT), str(ROOT / "typedshmap/testing/plugin")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([str(python), *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout[-4000:], done.stderr[-4000:], sep="\n", file=sys.stderr)
        return done

    def counts(tests: Iterable[str]) -> str:
        found = re.findall(r"((?:\d+ \w+(?:, )?)+) in \d", run("-m", "pytest", "-p", "no:cacheprovider", *tests).stdout)
        return found[-1] if found else "failed"

    versions = run("-c", VERSIONS).stdout.split()
    example = "passed" if run("examples/quickstart.py").returncode == 0 else "failed"
    return (*versions, example, counts(CORE), counts(OPERATIONS) if with_operations else "not run")


def read_table(page: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """The rows that are written, by the minor version of Python and the version of JAX."""
    lines = page.split(BEGIN)[1].split(END)[0].strip().splitlines()[2:]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return {(row[0].rpartition(".")[0], row[1]): row for row in rows}


def with_table(page: str, rows: Iterable[tuple[str, ...]]) -> str:
    """The page with these rows in the place of those that it has."""
    lines = [HEADER, ("---",) * len(HEADER), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--only", metavar="JAX", help="the rows of one version of JAX")
    parser.add_argument("--environments", type=Path, default=ROOT / "build/environments")
    parser.add_argument("--ops", action="store_true", help="tests/call and tests/ops on every row")
    options = parser.parse_args()
    for row in ROWS:
        if options.only in (None, row.jax):
            cells = result_of(row, make_environment(row, options.environments), options.ops)
            print(*cells, sep="  ", flush=True)
            page = options.page.read_text(encoding="utf-8")
            known = {**read_table(page), (row.python, row.jax): cells}
            wanted = [known[each.python, each.jax] for each in ROWS if (each.python, each.jax) in known]
            options.page.write_text(with_table(page, wanted), encoding="utf-8")


if __name__ == "__main__":
    main()
