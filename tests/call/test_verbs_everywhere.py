"""Every verb of a body, in regions that make all, some or the remaining axes manual, of every type of axis."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    all_gather,
    all_to_all,
    assume,
    axis_index,
    axis_size,
    check,
    einsum,
    logsumexp,
    pmax,
    pmean,
    ppermute,
    psum,
    psum_scatter,
    rearrange,
    reduce,
    repeat,
    reshard,
    shard_size,
    size,
    sizes,
    softmax,
    take,
    typed,
    typed_shard_map,
)

ROWS = Float[Array, "[b/dp] d"]
X = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
IDS = np.array([3, 0, 7, 1], np.int32)


class Use(NamedTuple):
    """What a body does with its rows of ``X``, what it leaves by, and what that is of the whole array."""

    body: Callable[[Any], Any]
    out: str
    expected: Any


@typed
def doubled(x: ROWS) -> ROWS:
    return 2 * x


@typed
def scaled(x: ROWS) -> ROWS:
    assert size("b") == 8 and shard_size("b") == 2 and sizes() == {"b": 8, "d": 8}
    return size("b") * x


def is_rows(x: Any) -> Any:
    assert isinstance(x, ROWS) and not isinstance(x, Float[Array, "[b/dp] d e"])
    return x


E = np.exp(X)
USES = {
    "check": Use(lambda x: check(x, "[b/dp] d"), "[b/dp] d", X),
    "assume": Use(lambda x: assume(x, "[b/dp] d"), "[b/dp] d", X),
    "typed": Use(doubled, "[b/dp] d", 2 * X),
    "size": Use(scaled, "[b/dp] d", 8 * X),
    "isinstance": Use(is_rows, "[b/dp] d", X),
    "rearrange": Use(lambda x: rearrange(x, "[b/dp] (h k) -> [b/dp] k h", h=2), "[b/dp] k h", X.reshape(8, 2, 4).mT),
    "reduce": Use(lambda x: reduce(x, "[b/dp] d -> d", "sum"), "d", X.sum(0)),
    "repeat": Use(lambda x: repeat(x, "[b/dp] d -> [b/dp] d r", r=2), "[b/dp] d r", np.stack([X, X], -1)),
    "einsum": Use(lambda x: einsum(x, x, "[b/dp] d, [b/dp] e -> d e"), "d e", X.T @ X),
    "einsum, unreduced": Use(lambda x: psum(einsum(x, x, "[b/dp] d, [b/dp] e -> d e +dp"), "dp"), "d e", X.T @ X),
    "psum": Use(lambda x: psum(x.sum(0), "d +dp -> d"), "d", X.sum(0)),
    "pmean": Use(lambda x: pmean(x.mean(0), "dp"), "d", X.mean(0)),
    "pmax": Use(lambda x: pmax({"x": x.max(0)}, "dp")["x"], "d", X.max(0)),
    "psum_scatter": Use(lambda x: psum_scatter(x.sum(0), "d +dp -> [d/dp]"), "[d/dp]", X.sum(0)),
    "all_gather": Use(lambda x: all_gather(x, "[b/dp] d -> b d"), "b d", X),
    "all_to_all": Use(lambda x: all_to_all(x, "[b/dp] d -> b [d/dp]"), "b [d/dp]", X),
    "ppermute": Use(lambda x: ppermute(x, "[b/dp] d", shift=1), "[b/dp] d", np.roll(X, 2, 0)),
    "take": Use(lambda x: take(x, jnp.asarray(IDS), "[b/dp] d, i -> i d"), "i d", X[IDS]),
    "logsumexp": Use(lambda x: logsumexp(x, "[b/dp] d -> d"), "d", np.log(E.sum(0))),
    "softmax": Use(lambda x: softmax(x, "[b/dp] d", "b"), "[b/dp] d", E / E.sum(0)),
    "reshard": Use(lambda x: reshard(x, "[b/dp] d -> b [d/dp]"), "b [d/dp]", X),
    "axis_index": Use(lambda x: x * axis_index("dp"), "[b/dp] d", X * np.repeat(np.arange(4), 2)[:, None]),
    "axis_size": Use(lambda x: x * axis_size("dp"), "[b/dp] d", 4 * X),
}

TYPES = {
    "Auto": (AxisType.Auto, AxisType.Auto),
    "Explicit": (AxisType.Explicit, AxisType.Explicit),
    "dp Auto, tp Explicit": (AxisType.Auto, AxisType.Explicit),
    "dp Explicit, tp Auto": (AxisType.Explicit, AxisType.Auto),
}


def all_of(uses: list[Use]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda x: tuple(use.body(x) for use in uses)


def plain(uses: list[Use], **where: Any) -> Callable[..., Any]:
    specs = [P(*("dp" if "/dp" in dim else None for dim in use.out.split())) for use in uses]
    return jax.shard_map(all_of(uses), in_specs=P("dp", None), out_specs=tuple(specs), **where)


def hinted(uses: list[Use], **where: Any) -> Callable[..., Any]:
    hints = tuple(Float[Array, use.out] for use in uses)
    return typed_shard_map(all_of(uses), in_types=(ROWS,), out_types=hints, **where)


# jax 0.12 itself cannot lower it where an Explicit axis is left.
LACKING = ["psum_scatter"] if jax.version.__version_info__ >= (0, 11) else []
# jax 0.9 makes all axes manual, once more, for what asks for the shard's index, and cannot lower that in a region.
INDEXING = ["ppermute", "take", "axis_index"] if jax.version.__version_info__ < (0, 10) else []
CASES = list(product([plain, hinted], ["fully", "partly", "nested"], TYPES, [True, False]))


@pytest.mark.sample(13)
@pytest.mark.parametrize(("kind", "manual", "types", "check_vma"), CASES)
def test_every_verb_is_right_in_every_region(kind: Any, manual: str, types: str, check_vma: bool) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("dp", "tp"), axis_types=TYPES[types])
    is_left_explicit = manual == "partly" and mesh.axis_types[1] is AxisType.Explicit
    lacking = [*(LACKING if is_left_explicit else []), *(INDEXING if manual == "nested" else [])]
    uses = {name: use for name, use in USES.items() if name not in lacking}
    call = partial(kind, [*uses.values()], check_vma=check_vma)
    if manual == "nested":
        around = {"mesh": mesh, "in_specs": P(), "out_specs": (P(),) * len(uses), "axis_names": {"tp"}}
        # The inner region takes the mesh of the outer one.
        f = jax.shard_map(lambda x: call(axis_names={"dp"})(x), check_vma=check_vma, **around)  # type: ignore[arg-type]
    else:
        f = call(mesh=mesh, axis_names={"dp", "tp"} if manual == "fully" else {"dp"})
    x = jax.device_put(X, NamedSharding(mesh, P("dp", None)))
    for (name, use), result in zip(uses.items(), jax.block_until_ready(jax.jit(f)(x)), strict=True):
        np.testing.assert_allclose(result, use.expected, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_every_verb_is_right_where_jax_evaluates_operation_by_operation(name: str) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("dp", "tp"), axis_types=TYPES["Auto"])
    f = plain([USES[name]], mesh=mesh, axis_names={"dp"})
    np.testing.assert_allclose(jax.block_until_ready(f(X))[0], USES[name].expected, rtol=1e-5, atol=1e-5)


def test_a_region_may_be_made_by_smap() -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("dp", "tp"), axis_types=TYPES["Auto"])
    names = [name for name, use in USES.items() if use.out.startswith("[b/dp]")]
    f = jax.smap(all_of([USES[name] for name in names]), in_axes=0, out_axes=(0,) * len(names), axis_name="dp")
    with jax.set_mesh(mesh):
        results = jax.block_until_ready(jax.jit(f)(X))
    for name, result in zip(names, results, strict=True):
        np.testing.assert_allclose(result, USES[name].expected, rtol=1e-5, atol=1e-5, err_msg=name)
