"""Whatever traces a region is read, once, and the program stays what it is."""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, SuspectWarning, assume, audit, typed_shard_map

SPECS = {"in_specs": (P("dp", "tp"), P("tp")), "out_specs": P("dp"), "check_vma": False}
X, W = np.ones((8, 8), np.float32), np.ones((8, 8), np.float32)


def forgotten(x: Any, w: Any) -> Any:
    return x @ w


def mapped(f: Any, mesh: Mesh) -> Any:
    return jax.shard_map(f, mesh=mesh, **SPECS)


# Beside those in which gradients are traced, in test_where_regions_stand.
WAYS: dict[str, Callable[[Any], Any]] = {
    "no jit": lambda f: f(X, W),
    "jvp": lambda f: jax.eval_shape(lambda w: jax.jvp(lambda w: f(X, w), (w,), (w,)), W),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_region_is_read_without_a_gradient(way: str, mesh: Mesh) -> None:
    with audit() as report:
        jax.block_until_ready(WAYS[way](decorated(mesh)))
        jax.block_until_ready(WAYS[way](mapped(lambda x, w: lax.psum(x @ w, "tp"), mesh)))
    assert [(found.kind, found.region) for found in report.findings] == [("unreduced", "forgotten")]
    assert [region.name for region in report.regions] == ["forgotten", "<lambda>"]


def decorated(mesh: Mesh) -> Any:
    @jax.shard_map(mesh=mesh, **SPECS)
    def forgotten(x: Any, w: Any) -> Any:
        return x @ w

    return forgotten


def test_a_region_of_flax_is_read(mesh: Mesh) -> None:
    nnx = pytest.importorskip("flax.nnx")
    f = nnx.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P(("dp", "tp")), out_specs=P(("tp", "dp")))
    with audit() as report:
        jax.eval_shape(f, X)
    assert [(found.kind, found.file) for found in report.findings] == [("layout", __file__)]


def test_a_function_that_a_library_wraps_is_named() -> None:
    def halved(x: Any) -> Any:
        return x / 2

    with audit() as report:
        jax.eval_shape(jax.pmap(halved), np.ones((jax.device_count(), 2), np.float32))
    assert [(one.name, one.line) for one in report.regions] == [("halved", halved.__code__.co_firstlineno)]


INSTALLED = """\
import jax
from jax.sharding import PartitionSpec as P


def total(x):
    return x.sum()


def loss(x, mesh):
    return jax.shard_map(total, mesh=mesh, in_specs=P("dp"), out_specs=P(), check_vma=False)(x)
"""


def test_what_is_wrong_in_an_installed_package_is_told_with_its_line(
    mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site-packages" / "audited_layers" / "losses.py"
    file.parent.mkdir(parents=True)
    file.write_text(INSTALLED)
    monkeypatch.syspath_prepend(file.parents[1])
    losses = importlib.import_module("audited_layers.losses")
    with audit() as report:
        jax.eval_shape(lambda x: losses.loss(x, mesh), X)
    (found,) = report.findings
    assert (found.region, found.file, found.line) == ("total", str(file), 6)
    assert "the sum over a dim sharded over 'dp' at losses.py:6" in found.message


def test_a_region_of_numbers_is_read(mesh: Mesh) -> None:
    mapped = jax.shard_map(lambda x, n: x * n, mesh=mesh, in_specs=P(), out_specs=P())
    with audit() as report:
        assert jax.block_until_ready(mapped(3.0, 2)) == 6
    assert len(report.regions) == 1


WRITTEN = {
    "decorated": decorated,
    "partial": lambda mesh: jax.shard_map(partial(forgotten), mesh=mesh, **SPECS),
    "partial of shard_map": lambda mesh: partial(jax.shard_map, mesh=mesh, **SPECS)(forgotten),
    "lambda": lambda mesh: jax.shard_map(lambda x, w: x @ w, mesh=mesh, **SPECS),
    "jit within": lambda mesh: jax.shard_map(jax.jit(forgotten), mesh=mesh, **SPECS),
    "a list of specs": lambda mesh: jax.shard_map(
        lambda both: both[0] @ both[1], mesh=mesh, **{**SPECS, "in_specs": (list(SPECS["in_specs"]),)}
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_region_is_read_however_it_is_written(name: str, mesh: Mesh) -> None:
    f = WRITTEN[name](mesh)
    with audit() as report:
        jax.eval_shape(f, *([([X, W])] if "list" in name else [X, W]))
    (found,) = report.findings
    assert (found.kind, found.severity, found.file) == ("unreduced", "error", __file__)


def test_a_region_of_the_old_import_is_read(mesh: Mesh) -> None:
    old = pytest.importorskip("jax.experimental.shard_map")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # told once in a process
        mapped = old.shard_map(forgotten, mesh, SPECS["in_specs"], P("dp"), check_rep=False)
    with audit() as report:
        jax.eval_shape(mapped, X, W)
    assert [found.kind for found in report.findings] == ["unreduced"]


def test_what_was_traced_before_is_read_in_each_audit_and_once_in_each(mesh: Mesh) -> None:
    step = jax.jit(mapped(forgotten, mesh))
    jax.block_until_ready(step(X, W))
    for _ in range(2):
        with audit() as report:
            jax.block_until_ready(step(X, W))
            jax.block_until_ready(step(X, W))
        assert len(report.findings) == len(report.regions) == 1


def test_regions_of_other_threads_are_read(mesh: Mesh) -> None:
    with audit() as report:
        thread = threading.Thread(target=lambda: jax.eval_shape(mapped(forgotten, mesh), X, W))
        thread.start()
        thread.join()
    assert len(report.findings) == 1


def test_nothing_is_seen_outside(mesh: Mesh) -> None:
    with audit() as report:
        pass
    jax.eval_shape(mapped(forgotten, mesh), X, W)
    assert report.regions == [] and report.findings == []
    assert str(report) == "typedshmap audit: no shard_map was traced; 0 errors, 0 suspects"


@pytest.mark.parametrize("invariance", [False, True])
def test_the_program_stays_what_it_is(invariance: bool, mesh: Mesh) -> None:
    def lowered() -> str:
        f = mapped(lambda x, w: lax.psum(x @ w, "tp"), mesh)
        return jax.jit(jax.grad(lambda w: f(X, w).sum())).lower(W).as_text()

    before = lowered()
    with audit(invariance=invariance):
        assert lowered() == before
    assert lowered() == before


def test_an_error_of_the_program_passes_through(mesh: Mesh) -> None:
    def fails(x: Any, w: Any) -> Any:
        raise ZeroDivisionError("mine")

    with audit() as report, pytest.raises(ZeroDivisionError, match="mine"):
        jax.eval_shape(mapped(fails, mesh), X, W)
    jax.eval_shape(mapped(forgotten, mesh), X, W)
    assert report.findings == []


def test_a_body_that_must_see_numbers_is_said_to_be_unread(mesh: Mesh) -> None:
    def looks(x: Any, w: Any) -> Any:
        return x if lax.psum(w.sum(), "dp") > 0 else -x

    with audit() as report:
        jax.block_until_ready(jax.shard_map(looks, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))(X, X))
    (region,) = report.regions
    (why,) = region.unread
    assert not region.is_complete and why.startswith("it cannot be traced: TracerBoolConversionError: ")


def test_what_jax_refuses_is_no_region(mesh: Mesh) -> None:
    with audit() as report, pytest.raises(ValueError, match="out_specs"):
        jax.shard_map(lambda x: x, mesh=mesh, in_specs=P("dp"), out_specs=P())(X)
    assert report.regions == []


def test_audits_may_overlap_in_any_order(mesh: Mesh) -> None:
    primitive = jax.make_jaxpr(mapped(forgotten, mesh))(X, W).eqns[0].primitive
    own = primitive.bind_with_trace
    first, second = audit(), audit()
    reports = [first.__enter__(), second.__enter__()]
    jax.eval_shape(mapped(lambda x, w: x @ w, mesh), X, W)
    first.__exit__(None, None, None)
    jax.eval_shape(mapped(lambda x, w: x @ w + 1, mesh), X, W)
    second.__exit__(None, None, None)
    assert [len(report.regions) for report in reports] == [1, 2]
    assert primitive.bind_with_trace == own


def test_a_typed_region_is_read_by_its_hints_and_its_suspects_are_findings(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def spread(x: Float[Array, "[b/dp] d"]) -> tuple[Float[Array, "[b/dp] d"], Float[Array, "[b/dp] d"]]:
        total = lax.psum(lax.psum(x, "dp"), "dp")
        return x - total, assume(jax.pure_callback(lambda x: x, x, x), "[b/dp] d")

    with audit() as report, pytest.warns(SuspectWarning):
        jax.eval_shape(spread, X)
    (found,), (region,) = report.findings, report.regions
    assert (found.severity, found.kind, found.file, found.region) == ("suspect", "double-sum", __file__, "spread")
    assert not region.is_complete and region.unread[0].startswith("pure_callback at test_ways_in.py:")


def test_a_kernel_is_unread_and_no_error(mesh: Mesh) -> None:
    def kernel(x: Any, w: Any) -> Any:
        return jax.pure_callback(lambda x, w: x, x, x, w), lax.psum(jnp.sum(x), "dp")

    with audit() as report:
        jax.eval_shape(
            jax.shard_map(kernel, mesh=mesh, in_specs=(P("dp"), P("tp")), out_specs=P(), check_vma=False), X, W
        )
    (region,) = report.regions
    line = kernel.__code__.co_firstlineno + 1
    assert report.findings == [] and not region.is_complete
    assert region.unread == (
        f"pure_callback at test_ways_in.py:{line}",
        f"result[0], which depends on the pure_callback at test_ways_in.py:{line}",
    )


def test_an_array_without_rows_is_unstacked_into_nothing(mesh: Mesh) -> None:
    def body(x: Any, empty: Any) -> Any:
        return x + sum([1.0, *jnp.unstack(empty)])

    with audit() as report:
        plain = jax.shard_map(body, mesh=mesh, in_specs=(P("dp"), P()), out_specs=P("dp"))
        jax.eval_shape(plain, jnp.ones(8), jnp.ones((0, 2)))
    assert [region.is_complete for region in report.regions] == [True]
