"""What two real processes find together, four virtual CPU devices each; run by test_sanitize_processes."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from drifting import drifting
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, ReplicaError, sanitize, typed_jit, typed_shard_map

EXAMPLE = Path(__file__).parents[2] / "examples" / "multiprocess.py"
W, X = Float[Array, "[m/tp] f"], Float[Array, "[b/dp] f"]
w = np.arange(64, dtype=np.float32).reshape(4, 16)


def total(w: W) -> Float[Array, "f"]:
    return jax.lax.psum(w.sum(0), "tp")


def scaled(w: W, times: int = 2) -> W:
    return times * w


def example() -> Any:
    spec = importlib.util.spec_from_file_location("multiprocess", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["multiprocess"] = module
    spec.loader.exec_module(module)
    return module


def first_line(f: Any, *given: Any, calls: int = 2) -> str:
    """The error of some calls; empty if there is none."""
    try:
        with sanitize(every=2):
            for _ in range(calls):
                jax.block_until_ready(f(*given))
    except ReplicaError as error:
        return str(error).splitlines()[0]
    return ""


def main() -> int:
    common = example()
    if len(sys.argv) == 1:
        return common.launch([sys.executable, __file__])
    common.die_with_parent()
    address, own = sys.argv[1], int(sys.argv[2])
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 4)
    jax.distributed.initialize(address, num_processes=2, process_id=own)
    mesh = Mesh(np.array(sorted(jax.devices(), key=lambda each: each.id)).reshape(4, 2), ("dp", "tp"))
    region, right = typed_shard_map(total, mesh=mesh), drifting(mesh, P("tp", None), w, 8)
    ways = {"computed": region, "jax.jit": jax.jit(region), "typed_jit": typed_jit(scaled, mesh=mesh)}
    for name, f in ways.items():
        print(f"{name} right: {first_line(f, right)}", flush=True)
        for device in (1, 6):  # one of each process
            print(f"{name} {device}: {first_line(f, drifting(mesh, P('tp', None), w, device))}", flush=True)
    found, draw = 0, np.random.default_rng(0)
    for _ in range(100):
        wrong = drifting(mesh, P("tp", None), w, *map(int, draw.integers([8, 10_000, 8])))
        found += first_line(ways["typed_jit"], wrong).startswith("scaled: argument 'w' differs over 'dp'")
    print(f"found: {found} of 100", flush=True)
    print(f"times: {first_line(lambda w: ways['typed_jit'](w, times=2 + own), right)}", flush=True)

    def other(w: W) -> W:
        return w * 2 if own else w + 1

    print(f"text: {first_line(typed_jit(other, mesh=mesh), right)}", flush=True)
    multihost_utils.sync_global_devices("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
