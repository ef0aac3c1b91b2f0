"""The language models among the examples, run as their users run them."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from tiers import rare, slow

from typedshmap import shape_structs
from typedshmap.testing import assert_mesh_invariant
from typedshmap.tools.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
TRANSFORMER = EXAMPLES / "transformer.py"
RESUMING = EXAMPLES / "resuming.py"
SECONDS = 300
PIPES: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}


def run(program: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code, and all that was printed; what XLA compiles is kept for the next run."""
    ended = subprocess.run([sys.executable, str(program), *words], env=env, timeout=SECONDS, **PIPES)
    return ended.returncode, ended.stdout


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_site(program: str, directory: Path) -> dict[str, str]:
    """An environment in which every Python runs a program first."""
    (directory / "sitecustomize.py").write_text(program, encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path}


def without_orbax(directory: Path) -> dict[str, str]:
    """An environment in which it cannot be imported."""
    return with_site("import sys\nsys.modules['orbax'] = None\n", directory)


def noisy_at_the_end(directory: Path) -> dict[str, str]:
    """An environment in which a library prints an error while the interpreter shuts down."""
    program = "import atexit, os\natexit.register(os.write, 2, b'RuntimeError: Event loop is closed\\n')\n"
    return with_site(program, directory)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        slow(("vocabulary", "Nothing differs from plain JAX by more than ")),
        slow(("mixture_of_experts", "The load spread; nothing differs from plain JAX by more than ")),
        slow(("decoding", "Every one of 144 tokens is the one that plain JAX chooses.")),
        slow(("microbatches", "All is as it should be: plain JAX differs by ")),
    ],
)
def test_an_example_agrees_with_plain_jax(name: str, line: str) -> None:
    code, out = run(EXAMPLES / f"{name}.py")
    assert code == 0, out
    assert out.splitlines()[-1].startswith(line)


# Two minutes; CI compiles its functions one by one (tests/explain/test_examples_against_xla.py).
@pytest.mark.slow
@pytest.mark.rare
def test_a_model_from_a_file_is_fine_tuned_resumed_on_another_mesh_and_served() -> None:
    pytest.importorskip("safetensors")
    code, out = run(EXAMPLES / "finetune.py")
    assert code == 0, out
    first, second = out.index("on fsdp=4, tp=2:"), out.index("resumed on fsdp=2, tp=4:")
    assert first < out.index("steps 1 to 60") < second < out.index("steps 61 to 120")
    assert out.splitlines()[-1] == "All is as it should be."


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("vocabulary", "dp=16,tp=64"),
        slow(("mixture_of_experts", "dp=16,ep=64")),
        slow(("transformer", "fsdp=4,tp=2")),
        slow(("decoding", "dp=4,tp=8,cp=32")),
        ("fft", "y=2,x=4"),
        slow(("ring_attention", "dp=2,cp=4")),
        slow(("pipeline", "dp=2,pp=4")),
        slow(("stencil", "y=2,x=4")),
        slow(("optimizer", "fsdp=8")),
    ],
)
def test_the_command_finds_an_example_well_typed(name: str, mesh: str, monkeypatch: Any, capsys: Any) -> None:
    for variable in ("XLA_FLAGS", "JAX_PLATFORMS"):  # which a program sets for itself
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    assert main(["check", str(EXAMPLES / f"{name}.py"), "--mesh", mesh]) == 0, capsys.readouterr().out


def test_the_command_finds_an_example_on_explicit_axes_well_typed(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check", str(EXAMPLES / "microbatches.py"), "--mesh", "dp=16", "--explicit"]
    assert main(command) == 0, capsys.readouterr().out


def test_a_loss_over_a_sharded_vocabulary_is_the_same_on_every_mesh() -> None:
    assert_mesh_invariant(loaded("vocabulary").loss, ["dp=2,tp=2"], grad=True, batch=4, seq=4, vocab=16, model=8)


def test_a_mixture_of_experts_drops_the_same_tokens_on_every_mesh() -> None:
    sizes = {"batch": 4, "seq": 8, "experts": 4, "model": 8, "ff": 8}
    assert_mesh_invariant(loaded("mixture_of_experts").apply, ["dp=2,ep=2"], **sizes)


@pytest.fixture
def microbatches() -> Iterator[tuple[ModuleType, dict[str, jax.Array], jax.Array]]:
    """The example, its weights and its rows, on its mesh."""
    example, mesh = loaded("microbatches"), jax.make_mesh((8,), ("dp",), axis_types=(AxisType.Explicit,))
    sizes = {"microbatches": 4, "batch": 16, "model": 8, "ff": 16}
    rows = example.Float32[example.Array, "microbatches [batch/dp] model"]
    with jax.set_mesh(mesh):
        make = lambda struct: jax.device_put(np.ones(struct.shape, np.float32), struct.sharding)  # noqa: E731
        structs = shape_structs({"weights": example.Weights, "rows": rows}, **sizes)
        made = jax.tree.map(make, structs)
        yield example, made["weights"], made["rows"]


def test_gradients_of_microbatches_are_summed_over_the_devices_once(microbatches: Any) -> None:
    example, weights, rows = microbatches
    inside, after = example.all_reduces(example.step.lower(weights, rows).compile())
    assert (inside, after) in [(0, 1), (0, len(weights))]  # as XLA merges them or not
    inside, after = example.all_reduces(example.plain_step.lower(weights, rows).compile())
    assert inside in (1, len(weights))


def test_a_weight_or_a_gradient_that_loses_its_tag_is_refused(microbatches: Any) -> None:
    example, weights, rows = microbatches
    found = example.refusals(weights, rows[0])
    assert found.keys() == example.WAYS.keys() and None not in found.values()
    example.WAYS["not at all"] = example.loss
    assert example.refusals(weights, rows[0])["not at all"] is None


def test_adamw_moves_as_its_paper_says() -> None:
    transformer, rng = loaded("transformer"), np.random.default_rng(0)
    drawn = lambda: jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), structs)  # noqa: E731
    structs = transformer.shape_structs(transformer.Weights, **dict.fromkeys(transformer.SIZES, 8))
    weights, zeros = drawn(), jax.tree.map(lambda s: np.zeros(s.shape, np.float32), structs)
    state = transformer.State(weights, zeros, zeros, np.int32(0))
    m, v, adamw = 0.0, 0.0, jax.jit(transformer.adamw)
    theta = weights.unembed.astype(np.float64)
    for t in (1, 2, 3):
        gradients = drawn()
        state = adamw(state, gradients, np.float32(0.5))
        g = 0.5 * gradients.unembed.astype(np.float64)
        m, v, rate = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2, transformer.LEARNING_RATE * t / 20
        step = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.99**t)) + 1e-8)
        theta = theta - rate * step - rate * transformer.DECAY * theta
    moved = state.weights.unembed - weights.unembed
    # Three float32 roundings of weights of up to 5; each step moves them by some 1e-4.
    np.testing.assert_allclose(moved, theta - weights.unembed, atol=3 * 2.4e-7)
    assert np.abs(moved).mean() > 1e-4


class Training:
    """Runs of the transformer with checkpoints, by `resuming.py`, every fourth step, up to step 16."""

    def __init__(self, directory: Path, env: dict[str, str] | None = None) -> None:
        self.directory, self.env = directory, env

    def words(self, *more: str) -> tuple[str, ...]:
        return ("--checkpoints", str(self.directory), "--steps", "16", "--every", "4", *more)

    def finish(self, *more: str, program: Path = RESUMING) -> tuple[int, str]:
        return run(program, *self.words(*more), env=self.env)

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(RESUMING), *self.words()]
        # A job in the background of a script ignores Ctrl-C, and so would what it starts.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(command, env=self.env, **PIPES)
        finally:
            signal.signal(signal.SIGINT, before)

    def losses(self, step: int = 16) -> list[float]:
        """Those that the checkpoint of a step holds."""
        return json.loads((self.directory / str(step) / "run" / "metadata").read_text(encoding="utf-8"))["losses"]

    def steps(self) -> list[int]:
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdigit())


def copied(training: Training, directory: Path, up_to: int) -> Training:
    """The same checkpoints but for those after a step."""
    shutil.copytree(training.directory, directory)
    copy = Training(directory)
    for step in copy.steps():
        if step > up_to:
            shutil.rmtree(directory / str(step))
    return copy


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Training:
    pytest.importorskip("orbax.checkpoint", reason="checkpoints are orbax's")
    training = Training(tmp_path_factory.mktemp("uninterrupted"))
    code, out = training.finish()
    assert code == 0, out
    assert out.splitlines()[0] == "from the start to step 16"
    assert training.steps() == [8, 12, 16] and len(training.losses()) == 16
    return training


def await_step(process: subprocess.Popen[str], step: int) -> None:
    """Until the process has said that it saved that step."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"step {step:4d} ") and line.rstrip().endswith("saved"):
            return
    raise AssertionError(f"it ended before it saved step {step}")


def await_half_a_checkpoint(training: Training, process: subprocess.Popen[str]) -> None:
    """Until a checkpoint is being written."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if any("tmp" in path.name for path in training.directory.iterdir()):
            return
    raise AssertionError("no checkpoint was seen while it was written")


@contextmanager
def running(training: Training, moment: str) -> Iterator[subprocess.Popen[str]]:
    """A run that has saved a checkpoint, at that moment."""
    process = training.start()
    try:
        await_step(process, 4)
        if moment == "within a checkpoint":
            await_half_a_checkpoint(training, process)
        yield process
    finally:
        process.kill()


def expect_to_go_on(training: Training, uninterrupted: Training) -> None:
    code, out = training.finish()
    assert code == 0, out
    assert out.startswith("from the checkpoint of step ")
    assert training.losses() == uninterrupted.losses()


moments = pytest.mark.parametrize("moment", ["between two checkpoints", rare("within a checkpoint")])


@pytest.mark.slow
@moments
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(
    moment: str, uninterrupted: Training, tmp_path: Path
) -> None:
    training = Training(tmp_path)
    with running(training, moment) as process:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL and max(training.steps()) < 16
    expect_to_go_on(training, uninterrupted)


@pytest.mark.slow
@moments
def test_ctrl_c_ends_a_run_with_a_complete_checkpoint_and_one_sentence(
    moment: str, uninterrupted: Training, tmp_path: Path
) -> None:
    training = Training(tmp_path / "run", noisy_at_the_end(tmp_path))
    with running(training, moment) as process:
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, out
    last = "Interrupted. With --checkpoints, the same command goes on from the last checkpoint."
    assert out.splitlines()[-1] == last, out
    assert "Traceback" not in out
    assert [path.name for path in training.directory.iterdir() if "tmp" in path.name] == []
    expect_to_go_on(Training(training.directory), uninterrupted)


@pytest.mark.slow
def test_a_run_goes_on_on_another_mesh(uninterrupted: Training, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    training = copied(uninterrupted, tmp_path / "copy", up_to=8)
    code, out = training.finish("--mesh", "fsdp=2,tp=2")
    assert code == 0, out
    assert out.splitlines()[0] == "from the checkpoint of step 8 to step 16"
    before, after = training.losses(), uninterrupted.losses()
    assert before[:8] == after[:8]
    assert before[8:] == pytest.approx(after[8:], rel=loaded("resuming").SAME_LOSS)
    assert before[8:] != after[8:]  # or the mesh was not another one


def damage(checkpoint: Path) -> None:
    """Cut off half of the largest file."""
    largest = max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named(uninterrupted: Training, tmp_path: Path) -> None:
    training = copied(uninterrupted, tmp_path / "copy", up_to=12)
    damage(training.directory / "12")
    training.env = noisy_at_the_end(tmp_path)
    code, out = training.finish()
    assert code == 1
    assert f"{training.directory}: checkpoint 12 cannot be restored: " in out
    assert out.splitlines()[-1] == f"Remove {training.directory / '12'} to go on from the one before it."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--steps", "8"), "its last checkpoint is of step 16, past --steps 8"),
        (("--mesh", "fsdp=3,tp=2"), "has model=128, which does not divide over 'fsdp' (3 shards)"),
    ],
)
def test_a_run_that_cannot_go_on_says_why_in_words(uninterrupted: Training, more: tuple[str, ...], words: str) -> None:
    code, out = uninterrupted.finish(*more)
    assert code == 1 and words in out and "Traceback" not in out


def with_a_mistake(name: str, right: str, wrong: str, directory: Path) -> None:
    """Write the transformer and the program that resumes it there, one of them with something in it replaced."""
    for program in (TRANSFORMER, RESUMING):
        shutil.copy(program, directory)
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert right in source
    (directory / f"{name}.py").write_text(source.replace(right, wrong), encoding="utf-8")


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_named(uninterrupted: Training, tmp_path: Path) -> None:
    with_a_mistake("transformer", '"layers": 3', '"layers": 2', tmp_path)
    code, out = uninterrupted.finish(program=tmp_path / "resuming.py")
    assert code == 1
    assert out.splitlines()[-1].endswith("checkpoint 16 is of another model: layers=3, here 2")


@pytest.mark.slow
@pytest.mark.parametrize("words", ["", "--checkpoints {}"])
def test_checkpoints_without_orbax_say_what_to_install(words: str, tmp_path: Path) -> None:
    code, out = run(RESUMING, *words.format(tmp_path).split(), env=without_orbax(tmp_path))
    assert code == 1
    assert out.splitlines()[-1] == "checkpoints need orbax: pip install 'typedshmap[checkpoint]'"


@pytest.mark.slow
def test_the_transformer_trains_without_orbax(tmp_path: Path) -> None:
    code, out = run(TRANSFORMER, env=without_orbax(tmp_path))
    assert code == 0, out
    assert "the first step, compared with plain JAX in float32" in out and out.endswith("\nAll is as it should be.\n")


@pytest.mark.slow
def test_a_run_is_killed_and_resumed_by_itself() -> None:
    pytest.importorskip("orbax.checkpoint", reason="checkpoints are orbax's")
    code, out = run(RESUMING)
    assert code == 0, out
    assert "\nended with exit code -9\n" in out and out.endswith("\nAll is as it should be.\n")
    # On the mesh of the killed run, and on another one.
    assert out.count("from the start to step 40") == 2 and out.count("from the checkpoint of step ") == 2
    assert "resumed on the same mesh, the losses are the same, bit for bit; on another mesh they are within " in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("transformer", 'scores / size("head") ** 0.5', 'scores / size("head")'),
        rare(("transformer", "LARGEST_NORM / gradient_norm)", "1)")),
        rare(("resuming", "sample(source, step)", "sample(source, step - (latest or 0))")),
    ],
    ids=["attention of another scale", "gradients that are not clipped", "data that begin anew"],
)
def test_a_mistake_ends_the_program_with_exit_code_1(name: str, right: str, wrong: str, tmp_path: Path) -> None:
    if name == "resuming":
        pytest.importorskip("orbax.checkpoint", reason="checkpoints are orbax's")
    with_a_mistake(name, right, wrong, tmp_path)
    code, out = run(tmp_path / f"{name}.py")
    assert code == 1, out
    assert out.splitlines()[-1] == "FAILED: see above", out
