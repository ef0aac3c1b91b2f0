"""Programs in tables, and what is done with each: it is typed, in the modes that it has, and refused as it says."""

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from typedshmap import Array, Float, Int, TypedShmapError, typed_shard_map

BOTH, TYPED, UNTYPED = (True, False), (True,), (False,)
SIZES = {"b": 16, "d": 16, "e": 16, "h": 16, "k": 16, "m": 8, "n": 12, "q": 3, "s": 8, "v": 16}


class Program(NamedTuple):
    """One program.

    Attributes:
      hints: of its arguments.
      result: the hint of its result.
      body: what it does with the shards.
      args: global arrays.
      said: what the first line of its error or warning says; None where nothing is said.
      modes: what ``check_vma`` may be; under one of them JAX refuses it, or it would not be right.
    """

    hints: tuple[Any, ...]
    result: Any
    body: Callable[..., Any]
    args: tuple[Any, ...]
    said: str | None = None
    modes: tuple[bool, ...] = BOTH


def program(
    pattern: str, body: Callable[..., Any], said: str | None = None, modes: tuple[bool, ...] = BOTH, **sizes: int
) -> Program:
    """A program by the dims of its arguments and of its result: ``[b/dp] k, Int: [b/dp] -> [b/dp]``."""
    *hints, result = map(_hint, re.split(", | -> ", pattern))
    return Program(tuple(hints), result, body, tuple(_numbers(hint, SIZES | sizes) for hint in hints), said, modes)


def _hint(dims: str) -> Any:
    return Int[Array, dims[5:]] if dims.startswith("Int: ") else Float[Array, dims]


def _numbers(hint: Any, sizes: Mapping[str, int]) -> np.ndarray:
    shape = [sizes[name] for name in re.findall(r"(?<![/,\w])\w+", hint.dim_str)]
    if hint.__name__.startswith("Int"):
        return np.arange(prod(shape), dtype=np.int32).reshape(shape) % 8
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def in_modes(table: Mapping[str, Program]) -> Any:
    """Parametrize a test by the programs of a table, each with every value of ``check_vma`` that it has."""
    rows = [(name, check_vma) for name, program in table.items() for check_vma in program.modes]
    return pytest.mark.parametrize(("name", "check_vma"), rows)


def typed_form(program: Program, mesh: Mesh, check_vma: bool) -> Any:
    hints = {"in_types": program.hints, "out_types": program.result}
    return typed_shard_map(lambda *shards: program.body(*shards), mesh=mesh, check_vma=check_vma, **hints)


def accept(program: Program, mesh: Mesh, check_vma: bool) -> None:
    jax.eval_shape(typed_form(program, mesh, check_vma), *program.args)


def expect_right(program: Program, mesh: Mesh, check_vma: bool) -> None:
    """Expect a program to give on the mesh what it gives on one device."""
    one_device = Mesh(mesh.devices.reshape(-1)[:1].reshape(1, 1), mesh.axis_names)
    on_mesh, on_one = (
        jax.block_until_ready(typed_form(program, each, check_vma)(*program.args)) for each in (mesh, one_device)
    )
    np.testing.assert_allclose(on_mesh, on_one, rtol=2e-4, atol=2e-4)


def refuse(error: type[TypedShmapError], program: Program, mesh: Mesh, check_vma: bool) -> None:
    """Expect the error, whose first line says what the program says of it."""
    with pytest.raises(error) as caught:
        accept(program, mesh, check_vma)
    assert program.said is not None
    assert program.said in str(caught.value).splitlines()[0]
