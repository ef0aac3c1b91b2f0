"""What `import typedshmap` adds to `import jax`."""

import os
import subprocess
import sys
import tempfile

import numpy as np

from ..benchmark import Benchmark, Result, benchmark, over, text
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


def _measured(effort: Effort, use: str) -> Result:
    """Each time in a new process, with bytecode from a cache as that of an installed package; the first fills it."""
    command = [sys.executable, "-c", PROGRAM.replace("USE", use)]
    count = max(effort.least, min(10, int(effort.seconds)))
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        outputs = [subprocess.check_output(command, env=env, encoding="utf-8") for _ in range(count + 1)][1:]
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


ROWS: tuple[Benchmark, ...] = (imported, used)
