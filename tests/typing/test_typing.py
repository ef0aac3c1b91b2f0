"""pyright and mypy accept the right programs, and refuse each wrong line of the wrong ones."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def pyright(*arguments: str) -> dict[str, set[int]]:
    """The lines of each file on which pyright finds errors."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=600)
    found: dict[str, set[int]] = {}
    for problem in json.loads(done.stdout)["generalDiagnostics"]:
        if problem["severity"] == "error":
            found.setdefault(Path(problem["file"]).name, set()).add(problem["range"]["start"]["line"] + 1)
    return found


def mypy(*arguments: str) -> dict[str, set[int]]:
    """The lines of each file on which mypy finds errors."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "--no-pretty", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=600)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, set[int]] = {}
    for line in done.stdout.splitlines():
        file, number, kind, *_ = line.split(":", 3)
        if kind.strip() == "error":
            found.setdefault(Path(file).name, set()).add(int(number))
    return found


CHECKERS = [pytest.param(pyright, id="pyright"), pytest.param(mypy, id="mypy")]


@pytest.fixture(scope="module", params=CHECKERS)
def problems(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[int]]:
    """What a checker finds in both files, and in README's program, in one run."""
    if importlib.util.find_spec(request.param.__name__) is None:
        pytest.skip(f"{request.param.__name__} is not installed")
    readme = tmp_path_factory.mktemp("readme") / "readme.py"
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    # As for a user, and not as strict as on the package.
    readme.write_text("\n".join(["# pyright: basic", *blocks]), encoding="utf-8")
    return request.param(str(HERE / "right.py"), str(HERE / "wrong.py"), str(readme))


@pytest.mark.parametrize("file", ["right.py", "readme.py"])
def test_right_programs_are_accepted(file: str, problems: dict[str, set[int]]) -> None:
    assert problems.get(file, set()) == set()


def test_each_wrong_line_is_refused_and_no_other(problems: dict[str, set[int]]) -> None:
    lines = (HERE / "wrong.py").read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "# wrong:" in line}
    assert problems["wrong.py"] == wrong
