"""Programs that are lowered, compiled, exported or kept before they run; and buffers that are given away."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import same
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, ShapeError, check, size, typed_shard_map

X, Y = Float[Array, "[b/dp] d"], Float[Array, "[b/dp]"]
x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)


def halve(x: X) -> X:
    return check(x * 0.5, "[b/dp] d") + size("b")


def rows(x: X) -> Y:
    return x.sum(1)


def by_hand(mesh: Mesh) -> Callable[..., Any]:
    return jax.shard_map(lambda x: x * 0.5 + 8, mesh=mesh, in_specs=P("dp", None), out_specs=P("dp", None))


def placed(mesh: Mesh) -> jax.Array:
    return jax.block_until_ready(jax.device_put(x, NamedSharding(mesh, P("dp", None))))


# Buffers that are given away


def test_a_buffer_is_given_as_by_hand(mesh: Mesh) -> None:
    pair = typed_shard_map(halve, mesh=mesh), by_hand(mesh)
    texts = [jax.jit(lambda x, f=f: f(x), donate_argnums=0).lower(placed(mesh)).as_text() for f in pair]
    assert texts[0] == texts[1]
    assert "tf.aliasing_output" in texts[0] or "jax.buffer_donor" in texts[0]


def test_a_buffer_of_a_call_that_is_refused_is_kept(mesh: Mesh) -> None:
    given = jax.device_put(x[:6], jax.devices()[0])
    with pytest.raises(ShapeError, match="does not divide over 'dp'"):
        jax.jit(typed_shard_map(halve, mesh=mesh), donate_argnums=0)(given)
    same(given, x[:6])


# Lowered and compiled


@pytest.mark.parametrize(
    "look",
    [
        lambda f: jax.eval_shape(f, x[:6]),
        lambda f: jax.make_jaxpr(f)(x[:6]),
        lambda f: jax.jit(f).trace(x[:6]),
        lambda f: jax.jit(f).lower(x[:6]),
        lambda f: jax.export.export(jax.jit(f))(x[:6]),
    ],
)
def test_a_wrong_shape_is_reported_ahead_of_time(look: Any, mesh: Mesh) -> None:
    with pytest.raises(ShapeError, match=r"halve: argument 'x' has b=6, which does not divide over 'dp' \(4 shards\)"):
        look(typed_shard_map(halve, mesh=mesh))


# Exported


def test_an_exported_function_is_that_written_by_hand(mesh: Mesh) -> None:
    def module(f: Callable[..., Any]) -> str:
        exported = jax.export.export(jax.jit(lambda x: f(x)), platforms=("cpu", "tpu"))
        text = exported(placed(mesh)).mlir_module()
        return re.sub(r"(?m)^#loc.*\n| loc\((?:[^()]|\([^()]*\))*\)", "", text)

    def typed_halve(x: X) -> X:
        return x * 0.5 + size("b")

    assert module(typed_shard_map(typed_halve, mesh=mesh)) == module(by_hand(mesh))


def test_an_exported_function_is_differentiated(mesh: Mesh) -> None:
    exported = jax.export.export(jax.jit(typed_shard_map(halve, mesh=mesh)))(placed(mesh))
    assert exported.has_vjp()
    same(jax.jit(lambda x: exported.vjp().call(x, jnp.ones_like(x))[0])(placed(mesh)), np.full_like(x, 0.5))


@pytest.mark.skipif(importlib.util.find_spec("flatbuffers") is None, reason="jax.export writes by flatbuffers")
def test_an_exported_function_is_written_and_read(mesh: Mesh) -> None:
    exported = jax.export.export(jax.jit(typed_shard_map(rows, mesh=mesh)))(placed(mesh))
    same(jax.jit(jax.export.deserialize(exported.serialize()).call)(placed(mesh)), x.sum(1))


# Kept from one process to the next

PROGRAM = """
import json, jax, numpy as np
from jax.sharding import Mesh
from typedshmap import Array, Float, check, typed_jit, typed_shard_map

counts = {}
def count(event, **_):
    counts[event.rsplit("/", 1)[-1]] = counts.get(event.rsplit("/", 1)[-1], 0) + 1
jax.monitoring.register_event_listener(count)

mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))
x = jax.device_put(np.arange(16, dtype=np.float32).reshape(8, 2))
counts.clear()

def body(x: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/dp]"]:
    return check(x * 3, "[b/dp] d").sum(1)

call = typed_shard_map(body, mesh=mesh)
results = [jax.block_until_ready(f(x)) for f in (call, jax.jit(call), typed_jit(call, mesh=mesh))]
assert all(np.array_equal(result, np.arange(16).reshape(8, 2).sum(1) * 3) for result in results)
print(json.dumps(counts))
"""


def run_with_cache(folder: Path) -> dict[str, int]:
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, encoding="utf-8", check=True, timeout=120
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_second_process_takes_its_programs_from_the_persistent_cache(tmp_path: Path) -> None:
    first, second = run_with_cache(tmp_path), run_with_cache(tmp_path)
    assert first["cache_misses"] > 0
    assert second["cache_hits"] >= 3
    assert "cache_misses" not in second
