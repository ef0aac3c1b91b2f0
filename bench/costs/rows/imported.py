"""What `import typedshmap` adds to `import jax`."""

import os
import subprocess
import sys
import tempfile

import numpy as np

from ..benchmark import Benchmark, Result, benchmark, counted, of_counts, over, text
from ..timing import Effort, median

GROUP = "import"
ALONE = "import jax alone"
PROGRAM = """
from time import process_time
start = process_time()
import jax
middle = process_time()
import typedshmap
USE
print(middle - start, process_time() - middle)
"""
COUNTED = """
from cProfile import Profile
import USED
with Profile() as profile:
    import MODULE
print(sum(entry.callcount for entry in profile.getstats()))
"""


def _output(program: str, cache: str) -> str:
    """What a program prints in a new process, with bytecode from a cache as that of an installed package."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.check_output([sys.executable, "-c", program], env=env, encoding="utf-8")


def _counted(module: str, after: str) -> int:
    """The calls of an import after another; that before it fills the cache."""
    program = COUNTED.replace("USED", after).replace("MODULE", module)
    with tempfile.TemporaryDirectory() as cache:
        _output(program, cache)
        return int(_output(program, cache))


def _measured(effort: Effort, use: str) -> Result:
    """Each time in a new process; the first fills the cache."""
    count = max(effort.least, min(10, int(effort.seconds)))
    with tempfile.TemporaryDirectory() as cache:
        outputs = [_output(PROGRAM.replace("USE", use), cache) for _ in range(count + 1)][1:]
    alone, added = np.array([[float(each) for each in output.split()] for output in outputs]).T
    return Result(f"+{text(np.median(added))}", text(np.median(alone)), median((alone + added) / alone))


@benchmark(GROUP, "import", over(1.25), ALONE)
def imported(effort: Effort) -> Result:
    """`import typedshmap` after `import jax`, in a new process."""
    return _measured(effort, "")


@benchmark(GROUP, "import, and use of every room", over(1.45), ALONE)
def used(effort: Effort) -> Result:
    """The same with names of the rooms that are loaded when they are first used."""
    return _measured(effort, "typedshmap.einsum, typedshmap.shard, typedshmap.typed_jit")


@counted(GROUP, "import, calls", ALONE)
def imported_in_calls(effort: Effort) -> Result:
    """The calls that Python makes while it is imported after `import jax`, against those of `import jax`."""
    return of_counts(_counted("typedshmap", after="jax"), _counted("jax", after="sys"))


ROWS: tuple[Benchmark, ...] = (imported, used, imported_in_calls)
