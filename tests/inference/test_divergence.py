"""Branches and loops that shards go through in different ways."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from control_flow_programs import (
    ARGS,
    DIFFERENTIATED,
    RIGHT,
    UNSOUND,
    WRITTEN_FIRST,
    WRONG,
    gradient_of,
    gradients,
    plain_form,
)
from jax import lax
from jax.sharding import Mesh
from tables import accept, in_modes, refuse, typed_form

from typedshmap import Array, DivergenceError, Float, VaryingError, typed_shard_map

MODES = [True, False]

# The programs are about other things, and do not all mean something.
pytestmark = pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")


@pytest.mark.sample(3)
@in_modes(WRONG)
def test_a_deadlock_is_refused(name: str, check_vma: bool, mesh: Any) -> None:
    refuse(DivergenceError, WRONG[name], mesh, check_vma)


@in_modes(WRITTEN_FIRST)
def test_a_deadlock_is_reported_before_types_that_differ(name: str, check_vma: bool, mesh: Any) -> None:
    refuse(DivergenceError, WRITTEN_FIRST[name], mesh, check_vma)


@pytest.mark.parametrize("name", DIFFERENTIATED)
@pytest.mark.parametrize("is_jitted", [True, False])
def test_a_psum_by_differentiation_is_one_like_others(name: str, is_jitted: bool, mesh: Any) -> None:
    for check_vma in MODES:
        accept(DIFFERENTIATED[name], mesh, check_vma)
    gradient = gradient_of(typed_form(DIFFERENTIATED[name], mesh, True))
    with pytest.raises(DivergenceError) as caught:
        jax.eval_shape(gradient, *ARGS) if is_jitted else gradient(*ARGS)
    assert str(DIFFERENTIATED[name].said) in str(caught.value).splitlines()[0]


@pytest.mark.parametrize("is_jitted", [True, False])
def test_what_no_gradient_is_taken_by_may_stand_in_a_branch(is_jitted: bool, mesh: Any) -> None:
    f = typed_form(DIFFERENTIATED["a weight in a branch"], mesh, True)
    for gradient in (jax.grad(lambda x, w: f(x, w).sum()), lambda x, w: jax.jvp(f, (x, w), (x, w))):
        jax.block_until_ready(jax.jit(gradient)(*ARGS) if is_jitted else gradient(*ARGS))
    jax.eval_shape(gradient_of(lambda x, w: f(x, jax.lax.stop_gradient(w))), *ARGS)
    jax.eval_shape(gradient_of(typed_form(RIGHT["a weight in a branch, cast before"], mesh, True)), *ARGS)


@in_modes(UNSOUND)
def test_a_wrong_type_is_refused(name: str, check_vma: bool, mesh: Any) -> None:
    refuse(VaryingError, UNSOUND[name], mesh, check_vma)


@pytest.mark.sample(3)
@in_modes(RIGHT)
def test_a_right_program_is_accepted(name: str, check_vma: bool, mesh: Any) -> None:
    accept(RIGHT[name], mesh, check_vma)


def test_a_mesh_axis_of_size_one_is_no_reason() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(1, 8), ("dp", "tp"))
    for program in ("psum in a branch by index", "psum in a loop with a varying bound", "all_gather in a branch"):
        accept(WRONG[program], mesh, True)
    for program in ("jax issue 40823", "a switch", "a loop that is returned as if it agreed"):
        accept(UNSOUND[program], mesh, True)


@pytest.mark.parametrize("check_vma", MODES)
@pytest.mark.parametrize("is_typed", [True, False])
def test_a_nested_region_is_within_the_branch(is_typed: bool, check_vma: bool, mesh: Any) -> None:
    hint = Float[Array, "b [k/tp]"]
    options: dict[str, Any] = {"axis_names": {"tp"}, "check_vma": check_vma}

    def inner(x: Any) -> Any:
        return lax.psum(x, "dp")

    def outer(x: Any) -> Any:
        def summed() -> Any:
            if is_typed:
                return typed_shard_map(inner, in_types=(hint,), out_types=hint, **options)(x)
            specs = jax.P(None, "tp")
            return jax.shard_map(inner, in_specs=(specs,), out_specs=specs, **options)(x)

        return lax.cond(lax.axis_index("dp") == 0, lambda: lax.pcast(summed(), "dp", to="varying"), lambda: x)

    hints: dict[str, Any] = {"in_types": (Float[Array, "[b/dp] k"],), "out_types": Float[Array, "[b/dp] k"]}
    typed = typed_shard_map(outer, mesh=mesh, axis_names={"dp"}, check_vma=check_vma, **hints)
    with pytest.raises(DivergenceError, match="psum over 'dp' would deadlock"):
        jax.eval_shape(jax.jit(typed), np.ones((8, 16), np.float32))


# Each program in a process of its own, which is forked once JAX is imported; several at a time, since they wait.
_RUN = """
import json, os, sys, tempfile, jax, numpy as np
from jax.sharding import Mesh
from control_flow_programs import ARGS, DIFFERENTIATED, WRONG, gradient_of, plain_form

def run(name, check_vma):
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))
    f = plain_form({**WRONG, **DIFFERENTIATED}[name], mesh, check_vma)
    jax.block_until_ready((gradient_of(f) if name in DIFFERENTIATED else f)(*ARGS))

def start(at):
    said = tempfile.TemporaryFile()
    if pid := os.fork():
        running[pid] = at, said
        return
    os.dup2(said.fileno(), 2)
    run(*programs[at])
    os._exit(0)

AT_ONCE = 16
programs, running, ended = json.loads(sys.argv[1]), {}, {}
for at in range(len(programs) + AT_ONCE):
    if at >= AT_ONCE:
        pid, status = os.wait()
        which, said = running.pop(pid)
        said.seek(0)
        ended[which] = os.waitstatus_to_exitcode(status), said.read().decode(errors="replace")
    if at < len(programs):
        start(at)
print(json.dumps([ended[at] for at in range(len(programs))]))
"""
# Both branches run a collective: on CPUs one answers the other where they are of a kind, whatever each computes.
_MEET = (
    "the same psum in both branches",
    "psum in one and pmax in the other",
    "gradient of an invarying value in both",
)


# Each waits for a while: every other one under the second of its modes.
WAITING = [(name, one) for name, one in (WRONG | DIFFERENTIATED).items() if not name.startswith(_MEET)]


@pytest.mark.slow
@pytest.mark.rare
def test_plain_jax_waits_for_ever() -> None:
    programs = [(name, one.modes[at % len(one.modes)]) for at, (name, one) in enumerate(WAITING)]
    limits = "warn_stuck_timeout_seconds=1", "terminate_timeout_seconds=1"
    flags = " ".join((os.environ["XLA_FLAGS"], *(f"--xla_cpu_collective_call_{limit}" for limit in limits)))
    run = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(programs)],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    ended = list(zip(programs, json.loads(run.stdout), strict=True))
    assert [each for each in ended if each[1][0] == 0 or "rendezvous" not in each[1][1].lower()] == []


@pytest.mark.slow
@in_modes(RIGHT)
def test_plain_jax_runs_a_right_program(name: str, check_vma: bool, mesh: Any) -> None:
    jax.block_until_ready(plain_form(RIGHT[name], mesh, check_vma)(*ARGS))
    typed, untyped = (gradients(RIGHT[name], mesh, mode) for mode in MODES)
    # A gradient within the body is that of the sum over all shards in one mode, of a shard's own in the other.
    if typed is not None and "gradients" not in name:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), typed, untyped)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, program in UNSOUND.items() if program.modes == (True,)])
def test_plain_jax_has_wrong_gradients_through_a_wrong_type(name: str, mesh: Any) -> None:
    typed, untyped = (gradients(UNSOUND[name], mesh, mode) for mode in MODES)
    if typed is not None:  # JAX takes no gradient through a loop
        assert not all(np.allclose(a, b, rtol=1e-4) for a, b in zip(typed, untyped, strict=True))
