"""Train with checkpoints: kill it at any moment, go on where it was, on the same mesh or on another.

What is trained is the model of `transformer.py`, which is beside this file. The hints of its `State`
are all that is needed to restore one: `shape_structs(State, mesh)` says which part of each array
belongs on which device, whatever the mesh that it was saved from.

    python examples/resuming.py
    python examples/resuming.py --checkpoints DIR --steps 200 --every 20 --mesh fsdp=4,tp=2

With --checkpoints it trains up to --steps, from where DIR's last checkpoint is. It may be killed at any
moment: a checkpoint is written completely or not at all, what is trained on is a function of the step, and
the losses so far are part of the checkpoint. Without options it shows that nothing is lost. It trains
without a stop, kills another process that does the same, and goes on from what that one left, twice: on
the same mesh the losses are those of the run that was never stopped, bit for bit; on another mesh they
differ by rounding. The exit code is 1 otherwise. Ctrl-C lets a checkpoint be finished that is being
written; the exit code is 130 then.

Checkpoints need orbax: pip install 'typedshmap[checkpoint]'.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import argparse
import gc
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import jax
from jax.sharding import AxisType, Mesh
from transformer import BATCH, SEQ, SIZES, State, init, sample, standard_library, train_step

from typedshmap import TypedShmapError, shape_structs

try:
    import orbax.checkpoint as ocp
except ImportError:
    sys.exit("checkpoints need orbax: pip install 'typedshmap[checkpoint]'")

STEPS, EVERY = 40, 10
RUN = SIZES | {"batch": BATCH, "seq": SEQ}

# Two meshes, the same steps: losses part by what bfloat16 rounds differently, carried on by the training.
SAME_LOSS = 0.02


class Unusable(Exception):
    """A checkpoint from which the training cannot go on."""


class Checkpoints:
    """A directory of complete states, each with the losses that led to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        # A checkpoint is written beside, and renamed when it is complete; what a killed run left is removed.
        options = ocp.CheckpointManagerOptions(
            max_to_keep=3, cleanup_tmp_directories=True, enable_async_checkpointing=False
        )
        self.manager = ocp.CheckpointManager(self.directory, options=options)

    def close(self) -> None:
        self.manager.close()

    def save(self, state: State, losses: list[float]) -> None:
        run = ocp.args.JsonSave({"sizes": RUN, "losses": losses})
        with interrupted_later():
            self.manager.save(len(losses), args=ocp.args.Composite(state=ocp.args.StandardSave(state), run=run))

    def restore(self, step: int, mesh: Mesh) -> tuple[State, list[float]]:
        """A state, placed on the mesh as its hints say, whatever mesh it was saved from."""
        run = self.read(step, run=ocp.args.JsonRestore()).run
        saved = run["sizes"]
        others = [f"{name}={saved.get(name)}, here {RUN[name]}" for name in RUN if saved.get(name) != RUN[name]]
        if others:
            raise Unusable(f"{self.directory}: checkpoint {step} is of another model: {'; '.join(others)}")
        structs = shape_structs(State, mesh, **SIZES)
        return self.read(step, state=ocp.args.StandardRestore(structs)).state, run["losses"]

    def read(self, step: int, **items: Any) -> Any:
        try:
            return self.manager.restore(step, args=ocp.args.Composite(**items))
        except Exception as error:  # of many kinds: of orbax, of tensorstore, of the file system
            reason = shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
            raise Unusable(
                f"{self.directory}: checkpoint {step} cannot be restored: {reason}\n"
                f"Remove {self.directory / str(step)} to go on from the one before it."
            ) from None


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Put Ctrl-C off until the end of the block."""
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def end_with(words: str, code: int) -> int:
    """Print the last words of this program, and return its exit code.

    What reads and writes a checkpoint in the background may print that it was given up, even while the interpreter
    shuts down. Nobody wants to read that below the words.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(os.dup(2), "w", errors="backslashreplace") as last, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        print(words, file=last)
    return code


def train(directory: Path, mesh: Mesh, until: int, every: int) -> list[float]:
    """Train from the last checkpoint, or from the start, up to a step; return the losses of all steps."""
    source = standard_library()
    with closing(Checkpoints(directory)) as checkpoints, jax.set_mesh(mesh):
        latest = checkpoints.manager.latest_step()
        if latest is not None and latest > until:
            raise Unusable(f"{checkpoints.directory}: its last checkpoint is of step {latest}, past --steps {until}")
        start = "the start" if latest is None else f"the checkpoint of step {latest}"
        print(f"from {start} to step {until}", flush=True)
        state, losses = (init(jax.random.key(0)), []) if latest is None else checkpoints.restore(latest, mesh)
        for step in range(len(losses) + 1, until + 1):
            state, metrics = jax.block_until_ready(train_step(state, *sample(source, step)))
            losses.append(float(metrics.loss))
            if step % every == 0 or step == until:
                checkpoints.save(state, losses)
                print(f"step {step:4d}   loss {losses[-1]:.4f}   saved", flush=True)
    return losses


def run_and_kill(directory: Path) -> bool:
    """Start this program as another process, and kill it when it has saved; return whether that was its end."""
    command = [sys.executable, __file__, "--checkpoints", str(directory), "--every", str(EVERY)]
    # In a session of its own, so that Ctrl-C is for this process only.
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", start_new_session=True) as process:
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                if line.endswith("saved\n"):
                    process.kill()
        except BaseException:
            process.kill()
            raise
    print(f"ended with exit code {process.returncode}")
    return process.returncode == -signal.SIGKILL


def demonstrate(directory: Path) -> bool:
    """Compare a run that nothing stops with one that is killed and goes on, on its mesh and on another."""
    mesh, other = mesh_of("fsdp=4,tp=2"), mesh_of("fsdp=2,tp=4")
    print("a run that nothing stops, on fsdp=4, tp=2:")
    unstopped = train(directory / "unstopped", mesh, STEPS, EVERY)
    print("\nthe same in another process, which is killed:")
    if not run_and_kill(directory / "killed"):
        return False
    shutil.copytree(directory / "killed", directory / "moved")
    print("\nwhat it left, taken up on fsdp=4, tp=2:")
    resumed = train(directory / "killed", mesh, STEPS, EVERY)
    print("\nand on fsdp=2, tp=4:")
    moved = train(directory / "moved", other, STEPS, EVERY)

    print(f"\n{'loss':14}{'never stopped':>16}{'killed, resumed':>18}{'on another mesh':>18}")
    for step in range(5, STEPS + 1, 5):
        print(f"step {step:4d}     {unstopped[step - 1]:16.7f}{resumed[step - 1]:18.7f}{moved[step - 1]:18.7f}")
    apart = max(abs(a / b - 1) for a, b in zip(moved, unstopped, strict=True))
    is_same = resumed == unstopped
    print(f"\nresumed on the same mesh, the losses are {'the same, bit for bit' if is_same else 'OTHERS'};", end=" ")
    print(f"on another mesh they are within {apart:.1e} (allowed: {SAME_LOSS})")
    # Were they not apart at all, nothing would have been trained on the other mesh.
    return is_same and 0 < apart < SAME_LOSS


def mesh_of(text: str) -> Mesh:
    """The mesh that "fsdp=4,tp=2" names."""
    names, sizes = zip(*(pair.split("=") for pair in text.split(",")), strict=True)
    fsdp, tp = map(int, sizes)
    if names != ("fsdp", "tp") or fsdp * tp > len(jax.devices()):
        raise argparse.ArgumentTypeError(f"expected fsdp=..,tp=.. of {len(jax.devices())} devices, got {text!r}")
    return jax.make_mesh((fsdp, tp), ("fsdp", "tp"), axis_types=(AxisType.Auto,) * 2)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a Llama-style transformer with checkpoints, on virtual devices."
    )
    parser.add_argument("--checkpoints", metavar="DIR", type=Path, help="train from the last checkpoint in DIR")
    parser.add_argument("--steps", type=int, default=STEPS, help="up to which step (default: %(default)s)")
    parser.add_argument("--every", type=int, default=EVERY, help="steps between checkpoints (default: %(default)s)")
    parser.add_argument("--mesh", type=mesh_of, default="fsdp=4,tp=2", help="its axes (default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    # Most of the time here is compilation; jax reads this when it makes its devices.
    os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=1"
    given = arguments()
    try:
        if given.checkpoints:
            train(given.checkpoints, given.mesh, given.steps, given.every)
            return 0
        with tempfile.TemporaryDirectory() as directory:
            is_right = demonstrate(Path(directory))
    except (Unusable, TypedShmapError) as error:  # the second of a mesh over which the model's dims do not divide
        return end_with(str(error), 1)
    except KeyboardInterrupt:
        return end_with("Interrupted. With --checkpoints, the same command goes on from the last checkpoint.", 130)
    print("\nAll is as it should be." if is_right else "\nFAILED: see above")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
