"""A program is traced once, also the first one of a process, where parts of JAX are imported that were not yet."""

import subprocess
import sys

import pytest

BEGIN = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax
import numpy as np
from jax.sharding import Mesh
from typedshmap import Array, Float, check
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))
x, traces = np.ones((8, 4), np.float32), []
X = Float[Array, "[b/dp] d"]
"""

TYPED = "def f(x: X) -> X:"
# What is imported after JAX, how the function begins, and what it returns.
PROGRAMS = {
    "typed_shard_map": (f"@jax.jit\n@typed_shard_map(mesh=mesh)\n{TYPED}", "2 * x"),
    "typed": (f"@jax.jit\n@typed\n{TYPED}", "2 * x"),
    "typed_jit": (f"@typed_jit(mesh=mesh)\n{TYPED}", 'check(2 * x, "[b/dp] d")'),
    "shard": ("@jax.jit\ndef f(x):", "shard(2 * x, X, mesh)"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_first_program_of_a_process_is_traced_once(name: str) -> None:
    beginning, result = PROGRAMS[name]
    program = f"from typedshmap import {name}\n{beginning}\n    traces.append(1)\n    return {result}\n"
    calls = "x = jax.device_put(x)\nfor _ in range(3):\n    jax.block_until_ready(f(x))\nassert traces == [1], traces"
    command = [sys.executable, "-c", BEGIN + program + calls]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
