"""What the library costs: a table of ratios, each against a named alternative that is measured in the same run.

    python bench/run.py                                 all rows, about twenty minutes
    python bench/run.py --quick                         fewer turns, and without the slowest rows
    python bench/run.py --only tracing boundary         some groups
    python bench/run.py --counted                       the rows that count, some two minutes
    python bench/run.py --reached                       the same, and their limits are 2 % above them from then on
    python bench/run.py --write docs/benchmarks.md      all rows, and the page that reports them, with its plot

Every row says which number would be bad; the exit code is 1 if one is. How times are taken, and when
a row is too noisy to tell, is described in `costs/timing.py` and `costs/benchmark.py`.
"""

import os

# jax reads these when it starts; the last keeps XLA from warning of what it does when it reshards.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import argparse
import sys
from functools import partial
from pathlib import Path

from costs.benchmark import Verdict, write_reached
from costs.page import write
from costs.table import GROUPS, ROWS, show, summary
from costs.timing import Effort

FULL, QUICK = Effort(), Effort(seconds=3.0, least=3, most=1000)


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line.

    Raises:
      SystemExit: for a page that is to be written of some rows only.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer turns, and without the slowest rows")
    parser.add_argument("--only", nargs="+", choices=GROUPS, metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--counted", action="store_true", help="only the rows that count")
    parser.add_argument("--reached", action="store_true", help="those, and keep what they reach for their limits")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write a page of all rows, and its plot beside it")
    parser.add_argument("--seconds", type=float, metavar="N", help="about how long a row takes turns")
    found = parser.parse_args(arguments)
    if found.write and (found.only or found.counted or found.reached):
        parser.error("--write is for all rows, --only, --counted and --reached for some")
    if found.reached and found.only:
        parser.error("--reached is for all rows that count, --only for some")
    return found


def effort(found: argparse.Namespace) -> Effort:
    """How long a row may take, by the command line."""
    base = QUICK if found.quick else FULL
    return base if found.seconds is None else Effort(found.seconds, base.least, base.most)


def main(arguments: list[str] | None = None) -> int:
    found = options(arguments)
    rows = [row for row in ROWS if not found.only or row.group in found.only]
    if found.counted or found.reached:
        rows = [row for row in rows if row.is_counted]
    lines = show(rows, effort(found), found.quick, partial(print, flush=True))
    print(summary(lines))
    if found.reached:
        write_reached({line.row.name: line.result.judged.value for line in lines if line.result})
        return 0
    if found.write:
        write(found.write, lines, effort(found))
    return 1 if any(line.says is Verdict.BAD for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
