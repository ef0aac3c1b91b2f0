"""An audit may run what it saw on other meshes: what depends on the mesh is found, what cannot be run is listed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from mesh_programs import MESH, RANDOM, RIGHT, WRONG, Program, X, difference, forward

from typedshmap import Array, Float, audit, typed_shard_map
from typedshmap.errors import VaryingError

FAST_WRONG = ["a ring turned the wrong way", "a halo dropped"]
FAST_RIGHT = ["a halo", "a product"]


def mapped(program: Program, mesh: Mesh = MESH) -> Any:
    specs = {"in_specs": program.in_specs, "out_specs": program.out_specs, "check_vma": program.check_vma}
    return jax.shard_map(program.body, mesh=mesh, **specs)


def tiers(names: Any, fast: list[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in fast else pytest.mark.slow) for name in names]


def audited(f: Any, *args: Any) -> Any:
    with audit(invariance=True) as report:
        jax.block_until_ready(f(*args))
    return report


@pytest.mark.parametrize("name", tiers(WRONG, FAST_WRONG))
def test_what_depends_on_the_mesh_is_found(name: str) -> None:
    program = WRONG[name]
    report = audited(mapped(program), *program.args)
    (found,) = (found for found in report.findings if found.kind == "invariance")
    assert (found.severity, found.file) == ("error", program.body.__code__.co_filename)
    assert found.line == program.body.__code__.co_firstlineno and "depends on the mesh" in found.message
    assert report.regions[0].unread == ()


@pytest.mark.parametrize("name", tiers(RIGHT, FAST_RIGHT))
def test_what_is_right_is_the_same_on_every_mesh(name: str) -> None:
    report = audited(mapped(RIGHT[name]), *RIGHT[name].args)
    assert report.findings == [] and report.regions[0].unread == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_it_is_so_under_jit(name: str) -> None:
    program = {**WRONG, **RIGHT}[name]
    report = audited(jax.jit(mapped(program)), *program.args)
    assert ("invariance" in [found.kind for found in report.findings]) == (name in WRONG)
    assert report.regions[0].unread == ()


def test_shards_that_are_handed_on_as_they_are_are_suspect() -> None:
    def rotate(x: Any) -> Any:
        return lax.ppermute(x, "sp", forward())

    (found,) = audited(mapped(Program(rotate, P("sp"), P("sp"), (X,))), X).findings
    assert found.severity == "suspect" and "as stages of a pipeline do" in found.message


def test_random_numbers_are_suspect() -> None:
    (found,) = audited(mapped(RANDOM), *RANDOM.args).findings
    assert found.severity == "suspect" and "may rightly differ" in found.message


def with_prints(x: Any) -> Any:
    jax.debug.print("{}", x.sum())
    return x


def literal_ring(x: Any) -> Any:
    return lax.ppermute(x, "sp", [(0, 1), (1, 2), (2, 3), (3, 0)])


SIZE = MESH.shape["sp"]


def closed_over(x: Any) -> Any:
    return x * lax.psum(1, "sp") / SIZE


def entry_per_shard(x: Any) -> Any:
    return x.sum(keepdims=True)[:, 0]


NOT_RUN = {
    "one entry per shard": (entry_per_shard, "the shape of return depends on the mesh"),
    "a callback": (with_prints, "it does more than compute its results (debug"),
    "a permutation of one size": (literal_ring, "ValueError: ppermute sources and destinations must be unique"),
    "a size that is closed over": (closed_over, "it has SIZE, which may be the size of 'sp'"),
}


def test_a_loop_that_may_not_end_with_other_values_is_not_run() -> None:
    def until_small(x: Any) -> Any:
        return lax.while_loop(lambda x: lax.pmax(x.max(), "sp") > 1, lambda x: x / 2, x)

    with audit(invariance=True) as report:
        jax.eval_shape(mapped(Program(until_small, P("sp"), P("sp"), ())), X)
    assert "a while loop may never end" in report.regions[0].unread[0]


@pytest.mark.parametrize("name", tiers(NOT_RUN, ["a callback", "one entry per shard"]))
def test_what_cannot_be_run_again_is_listed(name: str) -> None:
    body, why = NOT_RUN[name]
    report = audited(mapped(Program(body, P("sp"), P("sp"), ())), X)
    assert report.findings == [] and report.regions[0].is_complete
    (listed,) = report.regions[0].unread
    assert listed.startswith("not run on other meshes: ") and why in listed and why in str(report)


def test_the_mesh_that_the_body_closes_over_is_replaced() -> None:
    def mean(x: Any) -> Any:
        return lax.psum(x, "sp") / MESH.shape["sp"] / x.shape[0]

    report = audited(mapped(Program(lambda x: mean(x.sum(0)), P("sp"), P(), ())), X)
    assert report.findings == [] or "mean" in report.findings[0].message
    assert MESH.shape["sp"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("is_right", [True, False])
def test_typed_regions_are_run_too(is_right: bool) -> None:
    @typed_shard_map(mesh=MESH)
    def typed(x: Float[Array, "[b/sp] m"]) -> Float[Array, "[b/sp] m"]:
        return difference(1 if is_right else -1)(x)

    report = audited(jax.jit(typed), X)
    assert [found.kind for found in report.findings] == ([] if is_right else ["invariance"])
    assert report.regions[0].unread == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jit", "gradient", "scan", "vmap"])
def test_it_is_so_under_transformations(name: str) -> None:
    f = mapped(WRONG["a halo dropped"])
    ways = {
        "jit": jax.jit(f),
        "gradient": jax.jit(jax.grad(lambda x: (f(x) ** 2).sum())),
        "scan": jax.jit(lambda x: lax.scan(lambda x, _: (f(x), None), x, None, length=2)[0]),
        "vmap": lambda x: jax.vmap(f)(x[None]),
    }
    assert [found.kind for found in audited(ways[name], X).findings] == ["invariance"]


def test_what_flax_wraps_is_listed() -> None:
    nnx = pytest.importorskip("flax.nnx")
    f = nnx.shard_map(difference(-1), mesh=MESH, in_specs=P("sp"), out_specs=P("sp"))
    report = audited(jax.jit(f), X)
    assert report.findings == [] and "No update context" in report.regions[0].unread[0]


def test_the_program_stays_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    calls = list[int]()

    def counted(x: Any) -> Any:
        calls.append(1)
        print("traced")
        return x * 2

    with audit(invariance=True):
        found = mapped(Program(counted, P("sp"), P("sp"), ()))(jnp.ones((8, 2)))
        before = len(calls)
    np.testing.assert_array_equal(found, 2.0)
    assert capsys.readouterr().out.count("traced") == before < len(calls)


def test_errors_are_raised_as_those_of_types() -> None:
    program = WRONG["a halo dropped"]
    with pytest.raises(VaryingError, match="depends on the mesh"):
        audited(mapped(program), *program.args).raise_for_errors()
