"""Plain programs under audit: what is wrong is found, with its line; what is right is let by."""

from __future__ import annotations

import linecache
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from plain_programs import RIGHT, WRONG, Program

from typedshmap import audit

WORDS_OF_HINTS = re.compile(r"\bhint\b|assume\(|check\(|[^_]reshard\(|'[+~-]\w")


def modes(programs: list[Program]) -> list[Any]:
    return [
        pytest.param(program, check_vma, id=f"{program.name}-{check_vma}")
        for program in programs
        for check_vma in program.vma
    ]


@pytest.mark.parametrize(("program", "check_vma"), modes(WRONG))
def test_what_is_wrong_is_found(program: Program, check_vma: bool) -> None:
    with audit() as report:
        program.trace(check_vma)
    assert sorted(found.kind for found in report.findings) == sorted(program.kinds)
    assert not [found.message for found in report.findings if WORDS_OF_HINTS.search(found.message)]
    first = report.findings[0]
    assert program.cause in linecache.getline(first.file, first.line)
    assert first.region == program.body.__name__
    (region,) = report.regions
    assert region.is_complete and region.line == program.body.__code__.co_firstlineno


@pytest.mark.sample(3)
@pytest.mark.parametrize(("program", "check_vma"), modes(RIGHT))
def test_what_is_right_is_let_by(program: Program, check_vma: bool) -> None:
    with audit() as report:
        program.trace(check_vma)
    assert report.findings == []
    assert len(report.regions) == 1


def test_what_is_unreduced_is_told_as_a_partition_spec_says_it() -> None:
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))

    def message(in_specs: P, out_specs: P) -> str:
        mapped = jax.shard_map(lambda x: x, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh, in_specs))
        with audit() as report, jax.sharding.use_abstract_mesh(mesh):
            jax.eval_shape(mapped, x)
        return report.findings[0].message

    assert message(P(None, unreduced={"x"}), P(None)) == (
        "return value is unreduced over 'x', which its PartitionSpec does not mention; the PartitionSpec of "
        "argument 'x' leaves partial sums: psum over 'x', or write unreduced={'x'} if its sum is taken later"
    )
    assert message(P(None), P(None, unreduced={"x"})) == (
        "return value is the same on every shard of 'x', but its PartitionSpec says unreduced={'x'}; drop "
        "unreduced={'x'}, and a psum over it: the sum was taken already, and another would count it 2 times"
    )
