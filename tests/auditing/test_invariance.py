"""An audit may run what it saw on other meshes: what depends on the mesh is found, what cannot be run is listed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from mesh_programs import (
    IDS,
    MESH,
    RANDOM,
    RIGHT,
    RIGHT_GRADIENTS,
    ROWS,
    WRONG,
    WRONG_GRADIENTS,
    Program,
    W,
    X,
    difference,
    forward,
)

from typedshmap import Array, Float, audit, typed_shard_map
from typedshmap.errors import VaryingError
from typedshmap.tools.audit.other_meshes import compare_on_meshes

FAST_WRONG = ["a halo dropped"]
FAST_RIGHT = ["a product"]


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
    with pytest.raises(VaryingError, match="depends on the mesh"):
        report.raise_for_errors()


@pytest.mark.parametrize("name", tiers(RIGHT, FAST_RIGHT))
def test_what_is_right_is_the_same_on_every_mesh(name: str) -> None:
    report = audited(mapped(RIGHT[name]), *RIGHT[name].args)
    assert report.findings == [] and report.regions[0].unread == ()


@pytest.mark.sample(2)
@pytest.mark.parametrize(("kind", "is_jitted"), [(AxisType.Explicit, True), (AxisType.Auto, False)])
def test_a_region_of_the_ambient_mesh_is_run_on_fewer_devices_too(kind: AxisType, is_jitted: bool) -> None:
    """No mesh of one axis but the program's own has all of its devices."""
    mesh = jax.make_mesh((jax.device_count(),), ("sp",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        f = jax.shard_map(difference(1, has_halo=False), in_specs=P("sp"), out_specs=P("sp"), check_vma=False)
        report = audited(jax.jit(f) if is_jitted else f, jax.device_put(X, P("sp")))
        assert jax.sharding.get_mesh() == mesh
    assert [found.kind for found in report.findings if found.severity == "error"] == ["invariance"]
    assert report.regions[0].unread == ()


def rotated(x: Any) -> Any:
    return lax.ppermute(x, "sp", forward())


def rows_of_a_rank(x: Any, rank: Any) -> Any:
    return x + (rank[0] * x.shape[0] + jnp.arange(x.shape[0]))[:, None]


SUSPECT = {
    "shards handed on": (Program(rotated, *ROWS, (X,)), "as the stages of a pipeline do"),
    "one entry per shard": (
        Program(rows_of_a_rank, (P("sp"), P("sp")), P("sp"), (X, jnp.arange(4))),
        "'rank' has one entry per shard here",
    ),
    "random numbers": (RANDOM, "may legitimately differ"),
}


@pytest.mark.parametrize("name", tiers(SUSPECT, ["shards handed on"]))
def test_what_may_be_meant_is_suspect(name: str) -> None:
    program, words = SUSPECT[name]
    (found,) = audited(mapped(program), *program.args).findings
    assert found.severity == "suspect" and words in found.message


def doubled_by_a_kernel(x: Any) -> Any:
    def kernel(x: Any, y: Any) -> None:
        y[...] = 2 * x[...]

    return pl.pallas_call(kernel, out_shape=x, interpret=True)(x)


def chosen(x: Any, is_on: Any) -> Any:
    return jnp.where(is_on, x, -x)


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [Program(doubled_by_a_kernel, *ROWS, (X,)), Program(chosen, (P("sp"), P()), P("sp"), (X, True))],
    ids=["a kernel", "a bool"],
)
def test_it_is_run_with_kernels_and_whatever_it_is_given(program: Program) -> None:
    report = audited(mapped(program), *(jnp.asarray(each) for each in program.args))
    assert report.findings == [] and not any("not run" in why for why in report.regions[0].unread)


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
    "one entry per shard": (
        entry_per_shard,
        "not run on other meshes: the shape of return value depends on the mesh",
    ),
    "a callback": (with_prints, "not run on other meshes: it does more than compute its results (debug"),
    "a permutation of one size": (
        literal_ring,
        "not run on other sizes of 'sp': ValueError: ppermute sources and destinations must be unique",
    ),
    "a size that is closed over": (closed_over, "not run on other sizes of 'sp': return value depends on the mesh: "),
}


def test_a_loop_that_may_not_end_with_other_values_is_not_run() -> None:
    def until_small(x: Any) -> Any:
        return lax.while_loop(lambda x: lax.pmax(x.max(), "sp") > 1, lambda x: x / 2, x)

    with audit(invariance=True) as report:
        jax.eval_shape(mapped(Program(until_small, *ROWS, ())), X)
    assert "a while loop may never end" in report.regions[0].unread[0]


@pytest.mark.parametrize("name", tiers(NOT_RUN, ["a callback", "one entry per shard"]))
def test_what_cannot_be_run_again_is_listed(name: str) -> None:
    body, why = NOT_RUN[name]
    report = audited(mapped(Program(body, *ROWS, ())), X)
    assert report.findings == []
    is_closed_over = name == "a size that is closed over"  # by which degrees may be hidden, too
    assert report.regions[0].is_complete is not is_closed_over
    (listed,) = [unread for unread in report.regions[0].unread if not unread.startswith("whether results grow")]
    assert listed.startswith(why) and why in str(report)
    counted = "1 not run on other meshes" if "other meshes: " in why else "1 compared only in part"
    read = "0 read whole, 1 in part" if is_closed_over else "1 read whole"
    assert str(report).endswith(f"\ntypedshmap audit: 1 region, {read}, {counted}; 0 errors, 0 suspects")
    assert "closes over" not in listed or "it closes over SIZE, which may be the size of 'sp'" in listed


def test_what_is_wrong_beside_a_result_of_another_shape_is_found() -> None:
    def doubled_and_counted(x: Any) -> Any:
        return x * lax.axis_size("tp"), x.sum(0, keepdims=True)

    report = audited(mapped(Program(doubled_and_counted, *ROWS, ())), X)
    errors = [found.message for found in report.findings if found.kind == "invariance"]
    assert [message.startswith("return[0] depends on the mesh: ") for message in errors] == [True]
    assert report.regions[0].unread == ("not compared between meshes: return[1], whose shape depends on the mesh",)


@pytest.mark.sample(2)
@pytest.mark.parametrize("is_jitted", [False, True])
def test_numbers_are_operands_as_they_are(is_jitted: bool) -> None:
    def scale(x: Any, by: Any, power: Any) -> Any:
        start = lax.psum(x.astype(jnp.bfloat16).sum(0), "sp")
        return lax.fori_loop(0, 2, lambda _, x: x * by, start) ** power  # which strong types would not let by

    program = Program(scale, (P("sp"), P(), P()), P(), ())
    call = lambda x: mapped(program)(x, 0.5, 2)  # noqa: E731
    report = audited(jax.jit(call) if is_jitted else call, X)
    assert report.findings == [] and report.regions[0].unread == ()


@pytest.mark.sample(2)
@pytest.mark.parametrize("has_offset", [False, True])
def test_indices_that_may_be_local_to_a_shard_are_suspect(has_offset: bool) -> None:
    """Where an offset by the shard's index is taken off, they are of the whole, and what is wrong is an error."""

    def take(x: Any, ids: Any) -> Any:
        local = ids - lax.axis_index("sp") if has_offset else ids
        return x[local % x.shape[0]]

    report = audited(mapped(Program(take, (P("sp"), P("sp")), P("sp"), ())), X, IDS)
    (found,) = report.findings
    assert (found.severity, "'ids' may hold indices within each shard" in found.message) == (
        ("error", False) if has_offset else ("suspect", True)
    )


@pytest.mark.slow
def test_labels_of_sharded_rows_are_no_local_indices() -> None:
    def pick(x: Any, ids: Any) -> Any:
        return lax.psum(jnp.take_along_axis(x, ids[:, None] % x.shape[1], 1)[:, 0], "tp")

    report = audited(mapped(Program(pick, (P("sp", "tp"), P("sp")), P("sp"), ())), X, jnp.arange(16) % 8)
    assert [found.severity for found in report.findings] == ["error"]


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
    findings = audited(ways[name], X).findings
    assert [found.kind for found in findings if found.severity == "error"] == ["invariance"]


def gradient(f: Any, *args: Any) -> Any:
    return jax.jit(jax.grad(lambda *args: (f(*args).astype(jnp.float32) ** 2).sum()))(*args)


@pytest.mark.parametrize("name", tiers(WRONG_GRADIENTS, ["a mean for a sum"]))
def test_a_gradient_that_depends_on_the_mesh_is_found(name: str) -> None:
    program = WRONG_GRADIENTS[name]
    f = mapped(program, Mesh(MESH.devices[:2].ravel(), ("tp",), axis_types=(AxisType.Auto,)))
    assert audited(jax.jit(f), *program.args).findings == []
    (found,) = audited(lambda *args: gradient(f, *args), *program.args).findings
    assert found.severity == "error" and found.message.startswith("grad(x) depends on the mesh: it is ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "check_vma"), [(name, mode) for name in RIGHT_GRADIENTS for mode in (True, False)][1:]
)
def test_right_gradients_are_let_by(name: str, check_vma: bool) -> None:
    f, program = mapped(RIGHT_GRADIENTS[name]._replace(check_vma=check_vma)), RIGHT_GRADIENTS[name]
    report = audited(lambda *args: gradient(f, *args), *program.args)
    assert report.findings == [] and report.regions[0].unread == ()


@pytest.mark.slow
def test_only_gradients_that_are_taken_are_compared() -> None:
    @jax.custom_vjp
    def twice(x: Any) -> Any:
        return 2 * x

    twice.defvjp(lambda x: (2 * x, None), lambda _, g: (lax.psum(2 * g, "sp"),))
    f = mapped(Program(lambda x, w: twice(x) @ w, (P("sp"), P()), P("sp"), ()))
    report = audited(lambda *args: jax.grad(lambda w: jax.jit(f)(X, w).sum())(*args), W)
    assert report.findings == []
    (found,) = audited(lambda *args: jax.grad(lambda x: jax.jit(f)(x, W).sum())(*args), X).findings
    assert found.message.startswith("grad(x)")


def inputs_of(kind: str, f: Any) -> Any:
    """A program that gives a region whole numbers that are seen only as it runs."""

    def ids(x: Any) -> Any:
        return (x[:, 0] > 2).cumsum() % x.shape[0]

    match kind:
        case "jit":
            return jax.jit(lambda x: f(x, ids(x)))
        case "scan":
            return jax.jit(lambda x: lax.scan(lambda x, _: (x + f(x, ids(x)).sum(), None), x, None, length=2)[0])
        case "gradient of a scan":
            ahead = inputs_of("scan", f)
            return jax.jit(jax.grad(lambda x: ahead(x).sum()))
        case "cond":
            return jax.jit(lambda x: lax.cond(x[1, 1] > 0, lambda: f(x, ids(x)), lambda: f(-x, ids(-x))))
        case _:
            return jax.jit(jax.grad(jax.checkpoint(lambda x: f(x, ids(x)).sum())))


@pytest.mark.parametrize(
    "kind", tiers(["jit", "scan", "gradient of a scan", "cond", "checkpoint"], ["jit", "gradient of a scan"])
)
def test_what_a_region_is_given_is_seen_in_compiled_programs(kind: str) -> None:
    given = list[Any]()

    def rows(x: Any, ids: Any) -> Any:
        return x[ids]

    program = inputs_of(kind, mapped(Program(rows, P(), P(), ())))
    kept = compare_on_meshes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "typedshmap.tools.audit.other_meshes.compare_on_meshes", lambda seen: given.extend(seen) or kept([])
        )
        audited(program, X)
    (seen,) = given
    np.testing.assert_array_equal(seen.call.operands[1], (np.asarray(X[:, 0]) > 2).cumsum() % 16)
    np.testing.assert_allclose(seen.call.operands[0], X, rtol=1e-6)


@pytest.mark.slow
def test_state_that_is_all_zeros_is_varied() -> None:
    def shifted(x: Any) -> Any:
        return lax.ppermute(x[::-1], "sp", forward(by=-1))[::-1] + 0 * x

    (found,) = audited(mapped(Program(shifted, *ROWS, ())), jnp.zeros((8, 2))).findings
    assert found.severity == "error" and "an argument with equal entries is varied" in found.message


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
        found = mapped(Program(counted, *ROWS, ()))(jnp.ones((8, 2)))
        before = len(calls)
    np.testing.assert_array_equal(found, 2.0)
    assert capsys.readouterr().out.count("traced") == before < len(calls)
