"""Branches and loops that shards go through in different ways."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from control_flow_programs import (
    RIGHT,
    UNSOUND,
    WRONG,
    Program,
    arguments,
    gradients,
    plain_form,
    typed_form,
)
from jax import lax
from jax.sharding import Mesh

from typedshmap import Array, DivergenceError, Float, VaryingError, typed_shard_map

MODES = [True, False]


def both_modes(programs: dict[str, Program]) -> Any:
    cases = [(name, mode) for name, program in programs.items() for mode in program.modes]
    return pytest.mark.parametrize(("name", "check_vma"), cases, ids=[f"{name}-{mode}" for name, mode in cases])


@both_modes(WRONG)
def test_a_deadlock_is_refused(name: str, check_vma: bool, mesh: Any) -> None:
    with pytest.raises(DivergenceError) as caught:
        jax.eval_shape(typed_form(WRONG[name], mesh, check_vma), *arguments())
    assert str(WRONG[name].problem) in str(caught.value).splitlines()[0]


@both_modes(UNSOUND)
def test_a_wrong_type_is_refused(name: str, check_vma: bool, mesh: Any) -> None:
    with pytest.raises(VaryingError) as caught:
        jax.eval_shape(typed_form(UNSOUND[name], mesh, check_vma), *arguments())
    assert str(UNSOUND[name].problem) in str(caught.value).splitlines()[0]


@both_modes(RIGHT)
def test_a_right_program_is_accepted(name: str, check_vma: bool, mesh: Any) -> None:
    jax.eval_shape(typed_form(RIGHT[name], mesh, check_vma), *arguments())


def test_a_mesh_axis_of_size_one_is_no_reason() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(1, 8), ("dp", "tp"))
    for program in ("psum in a branch by index", "psum in a loop with a varying bound", "all_gather in a branch"):
        jax.eval_shape(typed_form(WRONG[program], mesh, True), *arguments())
    for program in ("jax issue 40823", "a switch", "a loop that is returned as if it agreed"):
        jax.eval_shape(typed_form(UNSOUND[program], mesh, True), *arguments())


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


_RUN = """
import sys, jax, numpy as np
from jax.sharding import Mesh
from control_flow_programs import WRONG, arguments, plain_form

mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))
jax.block_until_ready(plain_form(WRONG[sys.argv[1]], mesh, sys.argv[2] == "True")(*arguments()))
"""
# Both branches run a collective: on CPUs one answers the other where they are of a kind, whatever each computes.
_MEET = (
    "the same psum in both branches",
    "psum in one and pmax in the other",
    "gradient of an invarying value in both",
)


@pytest.mark.slow
@both_modes({name: program for name, program in WRONG.items() if not name.startswith(_MEET)})
def test_plain_jax_waits_for_ever(name: str, check_vma: bool) -> None:
    limits = "warn_stuck_timeout_seconds=2", "terminate_timeout_seconds=4"
    flags = " ".join((os.environ["XLA_FLAGS"], *(f"--xla_cpu_collective_call_{limit}" for limit in limits)))
    run = subprocess.run(
        [sys.executable, "-c", _RUN, name, str(check_vma)],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode != 0
    assert "rendezvous" in run.stderr.lower(), run.stderr


@pytest.mark.slow
@both_modes(RIGHT)
def test_plain_jax_runs_a_right_program(name: str, check_vma: bool, mesh: Any) -> None:
    jax.block_until_ready(plain_form(RIGHT[name], mesh, check_vma)(*arguments()))
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
