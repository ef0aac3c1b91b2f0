"""``python -m typedshmap annotate``: packages, files that are written, exit codes, and what is left."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from test_annotated_programs import annotate

HEAD = """\
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

mesh = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def double(x):
    return 2 * x


"""
DOUBLE = 'mapped = jax.shard_map(double, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))\n'
TRACE = "print(jax.eval_shape(mapped, jnp.ones((8, 4))).shape)\n"
TYPED = 'def double(x: Float[Array, "[batch/dp] x_cols"]) -> Float[Array, "[batch/dp] x_cols"]:\n'


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_a_program_that_fails_keeps_its_code_and_is_annotated_as_far_as_it_got(tmp_path: Path) -> None:
    write(tmp_path / "plain.py", f"{HEAD}{DOUBLE}{TRACE}raise SystemExit(3)\n")
    done = annotate(tmp_path, "--write", "plain.py")
    assert done.returncode == 3 and done.stdout.startswith("--- plain.py\n+++ plain.py\n")
    assert "(8, 4)\n" in done.stderr and done.stderr.endswith("annotate: 1 of 1 calls are annotated\n")
    assert TYPED in (tmp_path / "plain.py").read_text()


@pytest.mark.slow
def test_modules_of_a_package_keep_what_others_import(tmp_path: Path) -> None:
    specs = 'SPECS = P("dp")\nUNUSED = P("dp")\n'
    call = "mapped = jax.shard_map(double, mesh=mesh, in_specs=SPECS, out_specs=UNUSED)\n"
    write(tmp_path / "package" / "__init__.py", "from .layers import SPECS, mapped\n")
    write(tmp_path / "package" / "layers.py", f"{HEAD}{specs}{call}")
    imports = "import jax\nimport jax.numpy as jnp\nfrom . import mapped\n"
    write(tmp_path / "package" / "train.py", imports + TRACE)
    done = annotate(tmp_path, "--write", "-m", "package.train", "--steps", "2")
    assert done.returncode == 0 and "annotate: 1 of 1 calls" in done.stderr
    text = (tmp_path / "package" / "layers.py").read_text()
    assert TYPED in text and 'SPECS = P("dp")\n' in text and "UNUSED" not in text
    assert text.endswith("mapped = typed_shard_map(double, mesh=mesh)\n")


MODELS = """\
import dataclasses

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Weights:
    up: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    weights: Weights
    scales: dict
    step: jax.Array | None = None
"""
TRAIN = """\
import models


def unused(x):
    return jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))(x)


def step(state, x):
    return models.State(state.weights, state.scales, state.step + 1), x @ state.weights.up * state.scales["x"]


specs = models.State(models.Weights(P(None, "tp")), {"x": P()}, P())
mapped = jax.shard_map(step, mesh=mesh, in_specs=(specs, P("dp")), out_specs=(specs, P("dp", "tp")))
state = models.State(models.Weights(jnp.ones((4, 16))), {"x": jnp.ones(())}, jnp.zeros(()))
jax.eval_shape(mapped, state, jnp.ones((8, 4)))
"""
ANNOTATED_MODELS = """\
import dataclasses
from typing import TypedDict

import jax
from typedshmap import Array, Float


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Weights:
    up: Float[Array, "model [ff/tp]"]


class Scales(TypedDict):
    x: Float[Array, ""]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    weights: Weights
    scales: Scales
    step: Float[Array, ""] | None = None
"""


@pytest.mark.slow
def test_a_class_of_another_file_is_annotated_there_and_a_call_that_never_ran_is_listed(tmp_path: Path) -> None:
    write(tmp_path / "models.py", MODELS)
    write(tmp_path / "train.py", HEAD + TRAIN)
    done = annotate(tmp_path, "--write", "train.py")
    line = (HEAD + TRAIN).splitlines().index(next(x for x in TRAIN.splitlines() if "jnp.sin" in x)) + 1
    left = f"train.py:{line}: left: it was not called\nannotate: 1 of 2 calls are annotated\n"
    assert (done.returncode, done.stderr) == (0, left)
    assert (tmp_path / "models.py").read_text() == ANNOTATED_MODELS
    text = (tmp_path / "train.py").read_text()
    assert "    state: models.State," in text or "def step(state: models.State, " in text
    again = annotate(tmp_path, "train.py")
    assert (again.returncode, again.stdout) == (0, "")


LEFT = {
    "a call that raises": (
        'jax.eval_shape(jax.shard_map(double, mesh=mesh, in_specs=P("dp"), out_specs=P("dp")), jnp.ones(3))\n',
        "a call raises ValueError: ",
    ),
    "options that cannot be seen": (
        'options = {"in_specs": P("dp"), "out_specs": P("dp")}\nmapped = jax.shard_map(double, mesh=mesh, **options)\n'
        + TRACE,
        "'options' passes options that cannot be seen",
    ),
    "specs that change from call to call": (
        'for axis in ("dp", "tp"):\n'
        "    mapped = jax.shard_map(double, mesh=mesh, in_specs=P(axis), out_specs=P(axis))\n    " + TRACE,
        "the arrays of 'double_result' are sharded in different ways",
    ),
    "what its caller maps": (
        "def smap(f, in_specs, out_specs):\n"
        "    return jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)\n\n\n"
        "mapped = smap(lambda x: -x, P('tp'), P('tp'))\n" + TRACE + "mapped = smap(double, P('dp'), P('dp'))\n" + TRACE,
        "it maps what its caller gives it, by the specs that its caller gives",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_is_named_with_the_reason(name: str, tmp_path: Path) -> None:
    text, reason = LEFT[name]
    write(tmp_path / "plain.py", HEAD + text)
    done = annotate(tmp_path, "plain.py")
    assert done.stdout == "" and f": left: {reason}" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_partial_that_something_else_uses_stays(tmp_path: Path) -> None:
    partial = "import functools\nsmap = functools.partial(jax.shard_map, mesh=mesh)\n"
    write(
        tmp_path / "plain.py", HEAD + partial + 'mapped = smap(double, in_specs=P("dp"), out_specs=P("dp"))\n' + TRACE
    )
    text = (tmp_path / "plain.py").read_text() + "smaps = [smap]\n"
    write(tmp_path / "plain.py", text)
    assert annotate(tmp_path, "--write", "plain.py").returncode == 0
    written = (tmp_path / "plain.py").read_text()
    assert partial in written and "mapped = typed_shard_map(double, mesh=mesh)\n" in written and TYPED in written


@pytest.mark.slow
def test_hints_that_fit_the_call_and_not_the_function_stand_at_the_call(tmp_path: Path) -> None:
    text = dedent("""\
        def double(x, bias=jnp.zeros(4)):
            return 2 * x + bias


        """)
    write(tmp_path / "plain.py", HEAD.replace("def double(x):\n    return 2 * x\n\n\n", text) + DOUBLE + TRACE)
    done = annotate(tmp_path, "plain.py")
    assert done.returncode == 0 and "annotate: 1 of 1 calls" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.py"], "annotate: nothing.py: there is no such script\n"),
        (["-m", "nothing_there"], "annotate: nothing_there: there is no such module\n"),
        (["--static", "nothing.py"], "nothing.py: no such file or directory\n"),
    ],
)
@pytest.mark.slow
def test_a_wrong_command_line_ends_in_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = annotate(tmp_path, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
