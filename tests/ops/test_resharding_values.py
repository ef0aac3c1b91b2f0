"""Plans run: the values of all pairs of shardings bit by bit, the types, and the compiled bytes."""

import importlib
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from resharded import AXES, LAYOUTS, SHAPE, cut, layouts, planned, spec

from typedshmap._jax.versions import HAS_MANUAL_TYPES
from typedshmap.notation.layout import Layout
from typedshmap.ops.resharding.plan import Plan, plan
from typedshmap.ops.resharding.run_plan import run

BENCH = Path(__file__).parents[2] / "bench"
# XLA's names of what has a cost.
NAMES = {
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
    "psum": "all-reduce",
    "psum_scatter": "reduce-scatter",
}


def moved(
    mesh: Mesh, source: Layout, value: np.ndarray[Any, Any], targets: list[Layout], check_vma: bool = True
) -> str:
    """Move a value to targets, and expect the bits of the global array there; the compiled program.

    It takes an array per target, so that no two targets share a collective.
    """

    def body(xs: list[jax.Array]) -> list[jax.Array]:
        return [run(x, planned(source, target), check_vma) for x, target in zip(xs, targets, strict=True)]

    out_specs = [spec(target) for target in targets]
    f = jax.shard_map(body, mesh=mesh, in_specs=(spec(source),), out_specs=out_specs, check_vma=check_vma)
    compiled = jax.jit(f).lower([jax.ShapeDtypeStruct(SHAPE, value.dtype)] * len(targets)).compile()
    placed = jax.device_put(value, NamedSharding(mesh, spec(source)))
    assert differing(jax.block_until_ready(compiled([placed] * len(targets))), targets, value) == []
    return compiled.as_text()


def differing(outs: list[jax.Array], targets: list[Any], expected: np.ndarray[Any, Any]) -> list[Any]:
    """The targets of which some shard has other bits than the global array."""

    def is_equal(out: jax.Array) -> bool:
        return all(np.array_equal(shard.data, expected[shard.index]) for shard in out.addressable_shards)

    return [target for out, target in zip(outs, targets, strict=True) if not is_equal(out)]


@pytest.mark.sample(49)
@pytest.mark.parametrize("source", LAYOUTS[::-1], ids=str)
def test_every_target_has_the_bits_of_the_global_array_and_the_planned_collectives(
    source: Layout, cube: Mesh, reader: Any
) -> None:
    text = moved(cube, source, np.random.default_rng(0).integers(0, 2**32, SHAPE, np.uint32), LAYOUTS)
    found = Counter((one.kind, one.sent) for one in reader.collectives(text))
    steps = [step for target in LAYOUTS for step in planned(source, target).steps for _ in range(step.rounds)]
    assert found == Counter((NAMES[step.kind], step.sent / step.rounds * 4) for step in steps)


@pytest.mark.sample(9)
@pytest.mark.parametrize("source", LAYOUTS[::7], ids=str)
def test_every_target_has_the_bits_of_the_global_array_without_check_vma(source: Layout, cube: Mesh) -> None:
    moved(cube, source, np.random.default_rng(0).standard_normal(SHAPE, np.float32), LAYOUTS, check_vma=False)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, jax.numpy.bfloat16, np.complex64])
def test_other_dtypes_are_moved_as_well(dtype: Any, cube: Mesh) -> None:
    moved(cube, cut("a,b|c"), (np.arange(512) % 5).reshape(SHAPE).astype(dtype), LAYOUTS[5::11])


@pytest.mark.parametrize("source, target", [("a,b|", "b|"), ("a|b,c", "b,c|"), ("|a,b", "b,a|")])
def test_random_keys_are_moved_as_well(source: str, target: str, cube: Mesh) -> None:
    found, ends = planned(source, target), [spec(cut(end)) for end in (source, target)]
    f = jax.jit(jax.shard_map(lambda k: run(k, found, True), mesh=cube, in_specs=ends[0], out_specs=ends[1]))
    keys = jax.random.split(jax.random.key(0), SHAPE)
    assert jax.numpy.array_equal(jax.random.key_data(jax.block_until_ready(f(keys))), jax.random.key_data(keys))


NOT_MOVED = "jax 0.9 moves no unreduced value"


def summed(mesh: Mesh, source: Layout, targets: list[Layout], kind: str) -> str:
    """Sum over ``b``, one of the leading dim's addends on each shard, and expect the sum; the compiled program."""
    if kind == "unreduced" and not HAS_MANUAL_TYPES:
        pytest.skip(NOT_MOVED)

    def body(xs: list[jax.Array]) -> list[jax.Array]:
        return [body_of(x[0], target) for x, target in zip(xs, targets, strict=True)]

    def body_of(x: jax.Array, target: Layout) -> jax.Array:
        x = jax.lax.pcast(x, "b", to="unreduced") if kind == "unreduced" else x
        y = run(x, planned(source, target), True)
        return jax.lax.psum(y, "b") if target.unreduced else y

    in_specs = ([P("b", *spec(source))] * len(targets),)
    f = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=[spec(target) for target in targets])
    compiled = jax.jit(f).lower([jax.ShapeDtypeStruct((2, *SHAPE), np.float32)] * len(targets)).compile()
    value = np.random.default_rng(0).integers(0, 99, (2, *SHAPE)).astype(np.float32)
    placed = jax.device_put(value, NamedSharding(mesh, P("b", *spec(source))))
    assert differing(jax.block_until_ready(compiled([placed] * len(targets))), targets, value.sum(0)) == []
    return compiled.as_text()


OWING = [Layout(source.dim_axes, frozenset("b")) for source in layouts(("a", "c"))]


@pytest.mark.sample(23)
@pytest.mark.parametrize("kind", ["varying", "unreduced"])
@pytest.mark.parametrize("source", OWING[::-1], ids=str)
def test_a_partial_sum_is_taken(source: Layout, kind: str, cube: Mesh, reader: Any) -> None:
    sent = reader.sent(summed(cube, source, LAYOUTS, kind))
    steps = [step for target in LAYOUTS for step in planned(source, target).steps]
    assert sent == sum(step.sent for step in steps) * 4


@pytest.mark.sample(15)
@pytest.mark.parametrize("kind", ["varying", "unreduced"])
@pytest.mark.parametrize("source", OWING, ids=str)
def test_a_sum_over_which_the_target_is_unreduced_too_is_left(source: Layout, kind: str, cube: Mesh) -> None:
    summed(cube, source, OWING, kind)


@pytest.mark.skipif(HAS_MANUAL_TYPES, reason="later ones move them")
def test_jax_0_9_refuses_to_move_an_unreduced_value(cube: Mesh) -> None:
    found = planned("| +b", "b|")

    def body(x: jax.Array) -> jax.Array:
        return run(jax.lax.pcast(x[0], "b", to="unreduced"), found, True)

    f = jax.shard_map(body, mesh=cube, in_specs=P("b"), out_specs=P("b"))
    with pytest.raises(NotImplementedError, match="cannot move a value typed as unreduced over 'b'"):
        jax.eval_shape(f, np.ones((2, *SHAPE), np.float32))


@pytest.mark.skipif(not HAS_MANUAL_TYPES, reason=NOT_MOVED)
def test_a_sum_typed_unreduced_and_one_typed_varying_are_taken_together(cube: Mesh) -> None:
    found = planned("| +b,c", "|")

    def body(x: jax.Array) -> jax.Array:
        return run(jax.lax.pcast(x[0, 0], "b", to="unreduced"), found, True)

    f = jax.jit(jax.shard_map(body, mesh=cube, in_specs=P("b", "c"), out_specs=P()))
    value = np.random.default_rng(0).integers(0, 99, (2, 2, *SHAPE)).astype(np.float32)
    assert np.array_equal(jax.block_until_ready(f(value)), value.sum((0, 1)))


def test_a_constant_shard_that_does_not_vary_is_resharded(cube: Mesh) -> None:
    found = planned("a|", "|a")
    body = lambda: run(jax.numpy.ones((8, 32)), found, True)  # noqa: E731
    f = jax.jit(jax.shard_map(body, mesh=cube, in_specs=(), out_specs=P(None, "a")))
    assert np.array_equal(jax.block_until_ready(f()), np.ones(SHAPE))


def test_a_plan_runs_without_jit(cube: Mesh) -> None:
    found = planned("a|", "|a,b")
    f = jax.shard_map(lambda x: run(x, found, True), mesh=cube, in_specs=P("a"), out_specs=P(None, ("a", "b")))
    value = np.arange(512, dtype=np.float32).reshape(SHAPE)
    assert np.array_equal(jax.block_until_ready(f(value)), value)


def test_a_plan_runs_where_other_mesh_axes_are_not_manual(cube: Mesh) -> None:
    found = planned("a|", "b|", a=2, b=2)
    over: dict[str, Any] = {"mesh": cube, "axis_names": {"a", "b"}}
    f = jax.shard_map(lambda x: run(x, found, True), in_specs=P("a"), out_specs=P("b"), **over)
    value = np.arange(512, dtype=np.float32).reshape(SHAPE)
    assert np.array_equal(jax.block_until_ready(jax.jit(f)(value)), value)


def test_devices_are_counted_in_the_order_of_the_mesh_whatever_that_of_the_sizes(cube: Mesh) -> None:
    found = planned("a,b", "b,a", (16,), c=2, b=2, a=2)
    f = jax.shard_map(lambda x: run(x, found, True), mesh=cube, in_specs=P(("a", "b")), out_specs=P(("b", "a")))
    assert np.array_equal(jax.block_until_ready(jax.jit(f)(np.arange(16))), np.arange(16))


@pytest.mark.sample(7)
@pytest.mark.parametrize("shape", [(2, 3), (4, 2), (2, 4), (3, 2), (8,), (1, 2, 4), (5,)], ids=str)
def test_other_meshes_have_the_bits_of_the_global_array(shape: tuple[int, ...]) -> None:
    axes, devices = AXES[: len(shape)], np.array(jax.devices()[: int(np.prod(shape))])
    mesh, sizes = Mesh(devices.reshape(shape), axes), dict(zip(axes, shape, strict=True))
    value = np.arange(devices.size**2 * 3, dtype=np.int32).reshape(devices.size, -1)
    pairs = list(product(layouts(axes), layouts(axes)))[:: 11 if len(axes) > 2 else 3]

    def body(xs: list[jax.Array]) -> list[jax.Array]:
        plans = [plan(*pair, value.shape, sizes) for pair in pairs]
        return [run(x, found, True) for x, found in zip(xs, plans, strict=True) if isinstance(found, Plan)]

    specs = [[spec(end) for end in ends] for ends in zip(*pairs, strict=True)]
    f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(specs[0],), out_specs=specs[1]))
    outs = jax.block_until_ready(f([jax.device_put(value, NamedSharding(mesh, s)) for s in specs[0]]))
    assert differing(outs, pairs, value) == []


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(2, 2, 2), (2, 4), (8,), (4, 4), (2, 8), (2, 2, 4), (2, 2, 2, 2)], ids=str)
def test_no_pair_of_a_sample_sends_more_than_xla_does(mesh: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    reshard = importlib.import_module("reshard")
    task = reshard.Task(mesh, SHAPE)
    some = reshard.pairs(task)
    found = reshard.xla(task, some[:: -(-len(some) // 80)])
    counts = {pair: (reshard.ours(task, *pair).bytes, sent.bytes) for pair, sent in found.items() if sent}
    assert {pair: count for pair, count in counts.items() if count[0] > count[1]} == {}
