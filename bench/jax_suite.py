"""JAX's own tests of `jax.shard_map`, as they are and with the name replaced.

python bench/jax_suite.py FILE          runs JAX's tests/shard_map_test.py twice, on eight CPU devices: some 15 minutes
python bench/jax_suite.py FILE -n 4     hands the rest to pytest
python bench/jax_suite.py FILE --write  puts the row into docs/runs-on.md

The wheel of jax has no tests. The file is that of the version that is installed:
https://raw.githubusercontent.com/jax-ml/jax/jax-v0.10.2/tests/shard_map_test.py

What passes plainly and fails by name is counted by what is raised. An error in a test that expects none would be bad,
unless the test returns something else than its specs say.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "runs-on.md"
KINDS = {
    "VaryingError": "^typedshmap.Varying",
    "ShardingError": "^typedshmap.Sharding",
    "other words": "does not match",
}
KINDS |= {"no error": "not raised", "other": ""}
HEADING = f"| jax | pass plainly | pass by name | {' | '.join(KINDS)} |"
BY_NAME = "TYPEDSHMAP_BY_NAME"


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """As a plugin of pytest, replace the name."""
    if os.environ.get(BY_NAME):
        import jax

        from typedshmap import typed_shard_map

        jax.shard_map = typed_shard_map
        for module in {item.module for item in items}:
            module.shard_map = typed_shard_map


def outcomes(file: Path, options: list[str], *, by_name: bool) -> dict[str, str | None]:
    """What each test that ran says where it fails; None where it passes."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "bench")]),
        BY_NAME: "1" if by_name else "",
    }
    with tempfile.TemporaryDirectory() as folder:
        report, copy = Path(folder, "report.xml"), Path(folder, "shard_map_test.py")
        copy.write_bytes(file.read_bytes())
        settings = ["-q", "-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider", "-p", Path(__file__).stem]
        command = [sys.executable, "-m", "pytest", *settings, f"--junitxml={report}", copy, *options]
        subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=False)
        found: dict[str, str | None] = {}
        for test in ElementTree.parse(report).iter("testcase"):
            if test.find("skipped") is None:
                wrong = next((each for tag in ("failure", "error") if (each := test.find(tag)) is not None), None)
                found[test.attrib["name"]] = None if wrong is None else wrong.attrib["message"]
        return found


def kind(message: str) -> str:
    """Which of the kinds a failure is of."""
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, message))


def with_row(page: str, line: str) -> str:
    """A page with the row in its table, in the place of the one of the same version of JAX."""
    head, rows, rest = re.split(r"(?<=--:\|\n)((?:\|.*\n)*)", page[page.index(HEADING) :], maxsplit=1)
    others = [row for row in rows.splitlines() if row.split()[1] != line.split()[1]]
    return page[: page.index(HEADING)] + head + "".join(f"{row}\n" for row in sorted([*others, line])) + rest


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    file, options = Path(sys.argv[1]).resolve(), [each for each in sys.argv[2:] if each != "--write"]
    plainly, by_name = (outcomes(file, options, by_name=each) for each in (False, True))
    passed = [test for test, message in plainly.items() if message is None]
    failed = {test: message for test in passed if (message := by_name[test]) is not None}
    for test, message in failed.items():
        print(f"{test}: {message.splitlines()[0] if message else ''}")
    counts = Counter(map(kind, failed.values()))
    figures = [version("jax"), len(passed), len(passed) - len(failed), *(counts[each] for each in KINDS)]
    line = f"| {' | '.join(map(str, figures))} |"
    print(f"\n{HEADING}\n{line}")
    if "--write" in sys.argv:
        PAGE.write_text(with_row(PAGE.read_text(), line))
