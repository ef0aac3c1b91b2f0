"""Programs of parallel mathematics, and of an optimizer: each agrees with its reference, and is the same on a mesh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from typedshmap.testing import assert_mesh_invariant

EXAMPLES = Path(__file__).parents[2] / "examples"

LAST_LINES = {
    "ring_attention": "Values and gradients are those of plain attention.",
    "pipeline": "The loss fell; nothing differs from plain JAX by more than",
    "stencil": "The waves are those of NumPy.",
    "fft": "Transforms and potential are those of NumPy.",
    "optimizer": "The loss fell; no parameter differs from one device's by more than",
}
SHOWN = {
    "ring_attention": "shard 2   3 4 4 0     3 2 2 2",
    "pipeline": "stage 2   .  .  0  1  2  3  4  5  6  7  .",
    "stencil": "depth 8: differs from NumPy by",
    "fft": "spectrum            P('y', 'x', None)",
    "optimizer": "[1][0].nu.layers.down            float32[3,128,32]  P(None, 'fsdp', None)",
}
# A line of each program, and the same with a mistake: what it prints last then, with exit code 1.
MISTAKES = {
    "ring_attention": ("d_k, d_v = pass_on((d_k, d_v))", "pass"),
    "pipeline": ('x[jnp.clip(micro, 0, size("micro") - 1)]', "x[0]"),
    "stencil": ("shift=-1", "shift=1"),
    "fft": ("fft(field, axis=2)", "fft(field, axis=2).conj()"),
    "optimizer": ("shard(init(0), Params)", "shard(init(2), Params)"),
}


def run(program: Path) -> subprocess.CompletedProcess[str]:
    # Compiled in haste as the tests are, but with the devices that the program gives itself.
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}
    command = [sys.executable, str(program)]
    return subprocess.run(command, env=environment, encoding="utf-8", capture_output=True, timeout=240, check=False)


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An example as a module, which leaves no trace in the environment and the path."""
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return __import__(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAST_LINES)
def test_the_program_agrees_with_its_reference(name: str) -> None:
    done = run(EXAMPLES / f"{name}.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(LAST_LINES[name])
    assert SHOWN[name] in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_program_ends_it_with_exit_code_1(name: str, tmp_path: Path) -> None:
    right, wrong = MISTAKES[name]
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert right in source
    program = tmp_path / f"{name}.py"
    program.write_text(source.replace(right, wrong), encoding="utf-8")
    done = run(program)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout.splitlines()[-1], done.stdout + done.stderr


@pytest.mark.parametrize("example", ["fft"], indirect=True)
def test_the_transform_and_the_potential_are_the_same_on_every_mesh(example: ModuleType) -> None:
    for f in (example.forward, example.backward, example.solve):
        assert_mesh_invariant(f, [{"y": 2, "x": 4}, {"y": 4, "x": 2}], trials=1, a=8, b=16, c=8)


@pytest.mark.parametrize("example", ["stencil"], indirect=True)
def test_the_waves_are_the_same_on_every_mesh(example: ModuleType) -> None:
    meshes = [{"y": 2, "x": 4}, {"y": 4, "x": 2}]
    assert_mesh_invariant(example.simulate, meshes, trials=1, iterations=2, depth=2, height=16, width=24)


@pytest.mark.parametrize("example", ["ring_attention"], indirect=True)
def test_in_zigzag_order_no_shard_waits_for_another(example: ModuleType) -> None:
    for shards in (2, 4, 8):
        order = example.zigzag(16 * shards, shards)
        assert sorted(order) == list(range(16 * shards))
        each_step = example.blocks(order, shards)
        assert np.ptp(each_step, axis=0).max() == 0
        assert each_step.sum() == example.blocks(np.arange(16 * shards), shards).sum()


def test_every_program_is_on_the_page_of_examples() -> None:
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    assert {program.name for program in EXAMPLES.glob("*.py") if f"`examples/{program.name}`" not in page} == set()
