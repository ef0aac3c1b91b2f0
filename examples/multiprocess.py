"""Train across two processes, each with its own part of the batch, and compare with NumPy.

Two processes with four virtual CPU devices each find each other through `jax.distributed` and share
one mesh: dp=4 splits the batch and the weights at rest over both of them, tp=2 splits the hidden
layer inside of each. Every process loads its own rows only; `from_process_local` makes global arrays
of them, `from_callback` reads the weights shard by shard, and the training step is one
`typed_shard_map`, gradients included.

    python examples/multiprocess.py

It prints the loss of every step beside that of the same steps in NumPy, in one process, and what a
process is answered whose rows do not fit those of the other. The exit code is 1 if a loss or a weight
differs, or if a process dies; then the other one is ended, too. After Ctrl-C it is 130.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from typedshmap import (
    Array,
    Float32,
    ShapeError,
    all_gather,
    einsum,
    from_callback,
    from_process_local,
    reduce,
    typed_shard_map,
)

PROCESSES, DEVICES = 2, 4
ROWS, MODEL, FF, STEPS, LEARNING_RATE = 64, 16, 32, 8, 2.0
# A loss and a weight are float32 sums, taken in another order on the mesh than in NumPy.
TOLERANCE = 1e-5
SECONDS = 120


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    up: Float32[Array, "[model/dp] [ff/tp]"]
    down: Float32[Array, "[ff/tp] [model/dp]"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    x: Float32[Array, "[batch/dp] model"]
    y: Float32[Array, "[batch/dp] model"]


def loss(weights: Weights, batch: Batch) -> Float32[Array, ""]:
    # FSDP: a weight is put together right before its use, and its gradient is scattered again.
    up = all_gather(weights.up, "[m/dp] [f/tp] -> m [f/tp] ~dp")
    down = all_gather(weights.down, "[f/tp] [m/dp] -> [f/tp] m ~dp")
    hidden = jnp.tanh(einsum(batch.x, up, "[b/dp] m, m [f/tp] -> [b/dp] [f/tp]"))
    out = einsum(hidden, down, "[b/dp] [f/tp], [f/tp] m -> [b/dp] m")
    return reduce((out - batch.y) ** 2, "[b/dp] m ->", "mean")


@jax.jit
@typed_shard_map
def train_step(weights: Weights, batch: Batch) -> tuple[Weights, Float32[Array, ""]]:
    value, gradients = jax.value_and_grad(loss)(weights, batch)
    return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, weights, gradients), value


def plain_step(up, down, x, y):
    """The same step in NumPy, with the gradients written out."""
    hidden = np.tanh(x @ up)
    error = hidden @ down - y
    d_out = 2 * error / error.size
    d_hidden = (d_out @ down.T) * (1 - hidden**2)
    value = (error**2).mean()
    return up - LEARNING_RATE * x.T @ d_hidden, down - LEARNING_RATE * hidden.T @ d_out, value


def numbers(name, *shape):
    """Stands for a file: the same numbers for the same name, in every process."""
    seed = sum(map(ord, name))
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / shape[0] ** 0.5


def whole_data():
    x = 4 * numbers("x", ROWS, MODEL)
    return x, np.tanh(x @ numbers("teacher", MODEL, MODEL))


def own_batch(process):
    """The rows of one process; nothing else is loaded."""
    rows = slice(process * ROWS // PROCESSES, (process + 1) * ROWS // PROCESSES)
    return Batch(*(part[rows] for part in whole_data()))


def close(name, array, expected):
    """Whether the shards of this process agree with the same parts of a NumPy array."""
    off = max(np.abs(np.asarray(shard.data) - expected[shard.index]).max() for shard in array.addressable_shards)
    print(f"largest difference in {name} on this process: {off:.1e}")
    return off < TOLERANCE


def train(process):
    own = own_batch(process)
    batch = from_process_local(own, Batch)
    print(f"has x f32{list(own.x.shape)}, of f32{list(batch.x.shape)} over {batch.x.sharding.spec}")

    checkpoint = {".up": numbers("up", MODEL, FF), ".down": numbers("down", FF, MODEL)}
    weights = from_callback(lambda path, index: checkpoint[path][index], Weights, model=MODEL, ff=FF)
    up, down = checkpoint[".up"], checkpoint[".down"]
    is_right = True
    for step in range(STEPS):
        weights, value = jax.block_until_ready(train_step(weights, batch))
        up, down, expected = plain_step(up, down, *whole_data())
        is_right &= abs(float(value) - expected) < TOLERANCE
        if process == 0:
            print(f"step {step}: loss {float(value):.6f}, in NumPy {expected:.6f}")
    is_right &= float(value) < 0.5 * float(np.mean(whole_data()[1] ** 2))
    return close("up", weights.up, up) & close("down", weights.down, down) & is_right


def show_mistake(process):
    """Process 1 has too few rows: every process gets the same error, and none waits for the other."""
    own = own_batch(process)
    rows = len(own.x) - 8 * process
    try:
        from_process_local(Batch(own.x[:rows], own.y[:rows]), Batch)
    except ShapeError as error:
        print(f"{type(error).__name__}: {error}" if process == 0 else str(error).splitlines()[0])
        return True
    return False


def work(address, process):
    """What one of the processes does; its exit code is 0 if everything agreed."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.distributed.initialize(address, num_processes=PROCESSES, process_id=process)
    print(f"is pid {os.getpid()}, with {jax.local_device_count()} of {jax.device_count()} devices")
    with jax.set_mesh(jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)):
        is_right = train(process) & show_mistake(process)
    return 0 if is_right else 1


# Starting and ending the processes


def launch(command, processes=PROCESSES, seconds=SECONDS):
    """Run a command several times, as processes of one program; 0 if all of them end well.

    Each gets an address to meet at and its number, and a pipe for its input, which closes when this
    process ends in whatever way: `die_with_parent` waits for that. When one dies, or time is up, all are
    ended.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
    environment.pop("XLA_FLAGS", None)  # it may say another number of devices
    children, relays, deadline = [], [], time.monotonic() + seconds
    try:
        for process in range(processes):
            arguments = [*command, address, str(process)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            text = {"encoding": "utf-8", "errors": "replace"}
            # In a session of its own, so that Ctrl-C is for this process only.
            child = subprocess.Popen(arguments, env=environment, start_new_session=True, **pipes, **text)
            children.append(child)
            relays.append(threading.Thread(target=relay, args=(process, child), daemon=True))
            relays[-1].start()
        problem = wait(children, deadline)
    finally:
        for child in children:
            child.kill()
            child.wait()
        # What they have printed comes before the last words.
        for thread in relays:
            thread.join()
    if problem:
        print(problem, flush=True)
    return 1 if problem else 0


def wait(children, deadline):
    """Until all have ended well, or one has not, or time is up; what is wrong then."""
    while time.monotonic() < deadline:
        codes = [child.poll() for child in children]
        if all(code == 0 for code in codes):
            return None
        for process, code in enumerate(codes):
            if code not in (None, 0):
                return f"process {process} ended with {code}; the others were ended, too"
        time.sleep(0.05)
    return "time is up; all processes were ended"


def relay(process, child):
    for line in child.stdout:
        if "peer ranks" not in line:  # which Gloo reports, in pieces
            print(f"process {process}: {line}", end="", flush=True)


def die_with_parent():
    """End this process when the one that started it has gone."""

    def wait_for_end():
        os.read(0, 1)  # of a pipe into which nothing is ever written
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


def leave(number, frame):
    """End all processes at a signal, whatever signals follow."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    sys.exit(128 + number)


def main():
    if len(sys.argv) == 1:
        for ending in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ending, leave)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # an end without words when nobody reads the output
        try:
            return launch([sys.executable, __file__])
        except SystemExit:
            print("interrupted; all processes were ended", flush=True)
            raise
    die_with_parent()
    return work(sys.argv[1], int(sys.argv[2]))


if __name__ == "__main__":
    sys.exit(main())
