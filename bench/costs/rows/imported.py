"""What `import typedshmap` adds to `import jax`, and hints to the first trace of a process."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from ..benchmark import Benchmark, Result, benchmark, counted, of_counts, of_times, over, text
from ..timing import Effort, Turns, median

GROUP = "import"
ALONE = "import jax alone"
BENCH = Path(__file__).parents[2]
LAYERS = 16
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
# The first trace and lowering of a process, in the form FORM of a step; both sides have imported the library.
FIRST = f"""
import sys
sys.path.insert(0, {str(BENCH)!r})
from cProfile import Profile
from time import process_time
import forms, jax, unrolled
from costs.meshes import make_mesh
arguments, mesh = unrolled.arguments({LAYERS}), make_mesh(4, 2)
jax.block_until_ready(jax.numpy.zeros(4) + 1)
profile = Profile()
IS_COUNTED and profile.enable()
start = process_time()
jax.jit(forms.step(forms.FORM, mesh, {LAYERS})).lower(*arguments)
passed = process_time() - start
profile.disable()
print(sum(entry.callcount for entry in profile.getstats()) if IS_COUNTED else passed)
"""


def _first(form: str, is_counted: bool, cache: str) -> float:
    return float(_output(FIRST.replace("FORM", form).replace("IS_COUNTED", str(is_counted)), cache))


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


@benchmark(GROUP, "import", over(1.15), ALONE)
def imported(effort: Effort) -> Result:
    """`import typedshmap` after `import jax`, in a new process."""
    return _measured(effort, "")


@benchmark(GROUP, "import, and use of every room", over(1.25), ALONE)
def used(effort: Effort) -> Result:
    """The same with names of the rooms that are loaded when they are first used."""
    return _measured(effort, "typedshmap.einsum, typedshmap.shard, typedshmap.typed_jit")


# What JAX's own import calls depends on what is installed beside it.
@counted(GROUP, "import, calls", ALONE, over(0.09))
def imported_in_calls(effort: Effort) -> Result:
    """The calls that Python makes while it is imported after `import jax`, against those of `import jax`."""
    return of_counts(_counted("typedshmap", after="jax"), _counted("jax", after="sys"))


@benchmark(GROUP, f"first trace and lowering, {LAYERS} layers", None)
def first(effort: Effort) -> Result:
    """A gradient step with hints at its boundary, in a new process each time: what is made or imported at first use."""
    times: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as cache:
        _first("AT_BOUNDARY", False, cache)
        for turn in range(max(effort.least, min(15, int(effort.seconds)))):
            for side in (1, 0) if turn % 2 else (0, 1):
                times[side].append(_first(("AT_BOUNDARY", "BY_HAND")[side], False, cache))
    return of_times(Turns(*map(tuple, times)))


@counted(GROUP, f"first trace and lowering, {LAYERS} layers, calls")
def first_in_calls(effort: Effort) -> Result:
    """The same by the calls that Python makes."""
    with tempfile.TemporaryDirectory() as cache:
        _first("AT_BOUNDARY", True, cache)
        return of_counts(*(int(_first(form, True, cache)) for form in ("AT_BOUNDARY", "BY_HAND")))


ROWS: tuple[Benchmark, ...] = (imported, used, imported_in_calls, first, first_in_calls)
