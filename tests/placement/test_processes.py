"""Real processes: what two of them do together, and how they end.

They are few, since each start takes seconds: ``two_processes.py`` runs all checks in one.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from two_processes import CHECKS, ERRORS, EXAMPLE

from typedshmap import Array, Float, ShapeError, StructureError, from_process_local
from typedshmap.placement import process_local
from typedshmap.placement.placement_context import placement_context
from typedshmap.placement.process_local import ProcessMesh

LIMIT = 180


def run(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, encoding="utf-8", timeout=LIMIT, check=False
    )


@pytest.fixture(scope="module")
def together() -> str:
    """What both processes printed."""
    done = run(Path(__file__).parent / "two_processes.py")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_both_processes_pass_a_check(name: str, together: str) -> None:
    assert f"process 0: ok {name}\n" in together
    assert f"process 1: ok {name}\n" in together


FIRST_LINES = {
    "size": "ShapeError: from_process_local: data.tokens has batch=2 on process 1, which means batch=4 globally, "
    "but process 0 has batch=4, which means batch=8",
    "number": "ShapeError: from_process_local: data value has size 4 in dim 0 on process 1, which means 8 globally, "
    "but process 0 has size 2 in dim 0, which means 4",
    "dtype": "DtypeError: from_process_local: data.tokens has dtype float16 on process 1, but process 0 has float32",
    "rank": "ShapeError: from_process_local: data value has 2 dims on process 1, but process 0 has 1 dim",
    "missing": "StructureError: from_process_local: data.weight is on process 0, but not on process 1",
    "paths": "StructureError: from_process_local: data['a'] is on process 0, but process 1 has data['b'] instead",
    "own": "ShapeError: from_process_local on process 1: data.mask has batch=6, which means batch=12 globally, "
    "but data.tokens has batch=4, which means batch=8 globally",
    "structure": "StructureError: from_process_local on process 1: data value is a dict, but its hint says Batch",
    "annotation": "ShapeError: from_process_local on process 1: data value has size 4 in dim 0, "
    "which means 8 globally, but its hint says 4",
    "parts": "ShapeError: from_process_local on process 1: data value has b=3, "
    "which does not divide over the 2 of 4 shards over 'dp' that this process holds",
    "wrong type": "DtypeError: from_process_local on process 1: data value has dtype int32, but its hint says Float32",
    "given": "ShapeError: from_process_local on process 1: data.tokens has batch=6, which means batch=12 globally, "
    "but batch=8 is given",
    "global": "StructureError: from_process_local on process 0: data value is a global array already, "
    "not this process's part",
}


@pytest.mark.parametrize("name", ERRORS)
def test_both_processes_raise_the_same_error(name: str, together: str) -> None:
    (_, first), (_, second) = sorted(re.findall(rf"^process (\d): error {name}: (.*)$", together, re.MULTILINE))
    assert first == second
    kind, text = json.loads(first)
    assert f"{kind}: {text.splitlines()[0]}" == FIRST_LINES[name]


def test_sizes_that_differ_are_reported_in_full(together: str) -> None:
    found = re.search(r"^process 0: error size: (.*)$", together, re.MULTILINE)
    assert found is not None
    assert json.loads(found[1])[1] == (
        "from_process_local: data.tokens has batch=2 on process 1, which means batch=4 globally, "
        "but process 0 has batch=4, which means batch=8\n"
        "\n"
        '    data.tokens: Float[Array, "[batch/dp] seq"]\n'
        "                               ^^^^^^^^^^\n"
        "\n"
        "Mesh: dp=4, tp=2"
    )


@pytest.mark.slow
def test_two_processes_train_as_one_does() -> None:
    done = run(EXAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = re.findall(r"^process 0: step \d: loss (\S+), in NumPy (\S+)$", done.stdout, re.MULTILINE)
    assert len(steps) == 8
    assert all(abs(float(ours) - float(theirs)) < 1e-5 for ours, theirs in steps)
    mistake = "data.x has batch=24 on process 1, which means batch=48 globally, but process 0 has batch=32"
    assert f"process 1: from_process_local: {mistake}" in done.stdout
    assert f"process 0: ShapeError: from_process_local: {mistake}" in done.stdout


# How processes end


@contextmanager
def started() -> Generator[tuple[subprocess.Popen[str], list[int]]]:
    """The example while it runs, and the ids of its two processes."""
    with subprocess.Popen([sys.executable, str(EXAMPLE)], stdout=subprocess.PIPE, encoding="utf-8") as parent:
        assert parent.stdout is not None
        ids: list[int] = []
        while len(ids) < 2:
            line = parent.stdout.readline()
            assert line, "the example ended"
            ids += map(int, re.findall(r"is pid (\d+)", line))
        try:
            yield parent, ids
        finally:
            parent.kill()
            parent.wait()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def all_end(ids: list[int], seconds: float = LIMIT) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_running, ids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_running, ids))


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("which", [0, 1])
def test_a_process_that_dies_ends_the_others(which: int) -> None:
    with started() as (parent, ids):
        os.kill(ids[which], signal.SIGKILL)
        out, _ = parent.communicate(timeout=LIMIT)
        assert parent.returncode == 1
        # The other one may have died of it before the parent looks.
        assert re.fullmatch(r"process \d ended with -?\d+; the others were ended, too", out.splitlines()[-1])
        assert all_end(ids)


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_parent_that_is_interrupted_ends_the_others_and_says_so_last(how: signal.Signals) -> None:
    with started() as (parent, ids):
        parent.send_signal(how)
        out, _ = parent.communicate(timeout=LIMIT)
        assert parent.returncode == 128 + how
        assert out.splitlines()[-1] == "interrupted; all processes were ended"
        assert all_end(ids)


@pytest.mark.slow
@needs_proc
def test_a_parent_that_is_killed_leaves_no_process_behind() -> None:
    with started() as (parent, ids):
        parent.kill()
        assert parent.wait(timeout=LIMIT) == -signal.SIGKILL
        assert all_end(ids)


# One process, whose part is the whole

X = Float[Array, "[batch/dp] d"]
x = np.arange(32, dtype=np.float32).reshape(8, 4)


def test_one_process_gives_the_global_array(mesh: Mesh) -> None:
    got = from_process_local({"x": x}, dict[str, X], mesh)["x"]
    expected = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("dp", None)))
    assert got.sharding == expected.sharding
    np.testing.assert_array_equal(got, expected)
    with jax.set_mesh(mesh):
        assert from_process_local(x, X, batch=8).sharding == expected.sharding


def test_in_one_process_errors_speak_of_its_data_as_of_a_global_value(mesh: Mesh) -> None:
    with pytest.raises(ShapeError) as error:
        from_process_local([x, x[:6]], list[X], mesh, batch=6)
    assert str(error.value) == (
        "from_process_local: data[0] has batch=8, but batch=6 is given\n"
        "\n"
        '    data[0]: Float[Array, "[batch/dp] d"]\n'
        "                            ^^^^^\n"
        "    got f32[8,4]\n"
        "\n"
        "Mesh: dp=4, tp=2\n"
        "Also: data[1] has batch=6, which does not divide over 'dp' (4 shards)"
    )


def test_shapes_and_unknown_sizes_are_refused(mesh: Mesh) -> None:
    with pytest.raises(StructureError, match="data value is a ShapeDtypeStruct, which holds no values"):
        from_process_local(jax.ShapeDtypeStruct((8, 4), np.float32), X, mesh)
    with pytest.raises(StructureError, match=r"data value is a value under jax\.jit or another transformation"):
        jax.vmap(lambda x: from_process_local(x, X, mesh))(x[None])
    with pytest.raises(ShapeError, match="no hint names 'bach' \\(did you mean 'batch'\\?\\)"):
        from_process_local(x, X, mesh, bach=8)


def test_some_of_all_processes_cannot_compare_their_sizes(monkeypatch: pytest.MonkeyPatch, mesh: Mesh) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    place = placement_context("from_process_local", mesh, needs="devices")
    with pytest.raises(ShapeError) as error:
        process_local.refuse_subset(place, ProcessMesh(0, (0, 1), dict(mesh.shape), ()))
    assert str(error.value) == (
        "from_process_local: the mesh is on processes 0, 1 of 4, which cannot compare their sizes\n"
        "\n"
        "Hint: pass the global size of every dim by keyword"
    )
