"""Try a program: on a mesh, or until something is found wrong with it."""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from mutation import Program, function_of
from wrong import Mutant

from typedshmap.testing import assert_mesh_invariant, inputs


def mesh_of(axes: dict[str, int]) -> Mesh:
    devices = np.array(jax.devices()[: math.prod(axes.values())])
    return Mesh(devices.reshape(tuple(axes.values())), tuple(axes))


def on_one_device(program: Program) -> dict[str, int]:
    """The axes of the program's meshes, with sizes that divide nothing."""
    return dict.fromkeys(program.meshes[-1], 1)


def called(program: Program, function: Any, axes: dict[str, int]) -> tuple[Any, tuple[Any, ...]]:
    """What a function gives on a mesh, and its arguments on the host."""
    mesh = mesh_of(axes)
    with jax.set_mesh(mesh):
        made = inputs(function, mesh=mesh, **program.given)
        args = on_host(tuple(made))
        return on_host(jax.block_until_ready(jax.jit(lambda *args: function(*args))(*made))), args


def on_host(tree: Any) -> Any:
    def fetch(x: Any) -> Any:
        return x if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)

    return jax.tree.map(fetch, tree)


def close(got: Any, expected: Any) -> None:
    """Expect the same structure, dtypes, and numbers up to rounding, measured by the largest entry."""

    def compare(a: Any, b: Any) -> None:
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * np.abs(b).max())

    jax.tree.map(compare, got, expected)


def found_wrong(mutant: Mutant, check_vma: bool) -> BaseException | None:
    """What is raised where a mutant is traced on its largest mesh, if that finds it, or where it is run on all."""
    program = mutant.program
    function = function_of(program, (mutant.old, mutant.new), check_vma=check_vma)
    mesh = mesh_of(program.meshes[-1])
    try:
        if mutant.found_by != "mesh":
            with jax.set_mesh(mesh):
                jax.eval_shape(lambda *args: function(*args), *inputs(function, mesh=mesh, **program.given))
        assert_mesh_invariant(function, list(program.meshes), grad=mutant.grad, trials=1, **program.given)
    except Exception as error:
        return error
    return None


def first_line(error: BaseException) -> str:
    """``ShapeError: f: argument 'x' ...``"""
    return f"{type(error).__name__}: {error}".splitlines()[0]
