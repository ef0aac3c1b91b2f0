"""Over a mesh axis of size 1 nothing varies, nothing is split and nothing is due: no reason to refuse anything."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from expecting import fails, numbers, same
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding

from typedshmap import (
    Array,
    Float,
    Int,
    TypedShmapError,
    VaryingError,
    all_gather,
    all_to_all,
    check,
    einsum,
    partition_specs,
    psum,
    psum_scatter,
    rearrange,
    reduce,
    reshard,
    softmax,
    take,
    typed,
    typed_shard_map,
)


class Program(NamedTuple):
    """A program over the axes ``a``, of size 1, and ``b``: the hints of its arguments and result, its body."""

    hints: tuple[str, ...]
    result: str
    body: Callable[..., Any]


@typed
def helper(row: Float[Array, "m"]) -> Float[Array, "m"]:
    return 2 * row


def gathered_if_split(x: Any) -> Any:
    whole = x if lax.axis_size("a") == 1 else lax.all_gather(x, "a", tiled=True)
    return lax.psum(check(whole, "n m").sum(0), "a")


PROGRAMS = {
    "a gather that is skipped": Program(("[n/a] m",), "m", gathered_if_split),
    "a sum that is skipped": Program(("[n/a] m",), "[n/a] m", lambda x: x + check(x.sum(0), "m")),
    "a helper": Program(("[n/a] m",), "[n/a] m", lambda x: x + helper(x.sum(0))),
    "another order": Program(("[n/a,b] m",), "[n/a,b] m", lambda x: check(x, "[n/b,a] m")),
    "another dim": Program(("[n/a,b] m",), "[n/a,b] m", lambda x: check(x, "[n/b] [m/a]")),
    "no dim": Program(("[n/a] m",), "[n/a] m", lambda x: check(x, "n m")),
    "a partial sum of one": Program(("n m",), "n m", lambda x: check(x, "n m +a")),
    "rearrange, in another order": Program(
        ("[n/a,b] m",), "m [n/b,a]", lambda x: rearrange(x, "[n/b,a] m -> m [n/a,b]")
    ),
    "rearrange, another dim": Program(("[n/a] m",), "m [n/a]", lambda x: rearrange(x, "[n/a] m -> [m/a] n")),
    "rearrange, no dim": Program(("[n/a] m",), "m [n/a]", lambda x: rearrange(x, "[n/a] m -> m n")),
    "rearrange, one more": Program(("n m",), "[m/a] n", lambda x: rearrange(x, "n m -> [m/a] n")),
    "rearrange, a minor factor": Program(("m [n/a]",), "[mn/a]", lambda x: rearrange(x, "m [n/a] -> [(m n)/a]")),
    "reshard, in another order": Program(("[n/b,a] m",), "[n/a,b] m", lambda x: reshard(x, "[n/b,a] m -> [n/a,b] m")),
    "reshard, another dim": Program(("[n/a] m",), "n [m/a]", lambda x: reshard(x, "[n/a] m -> n [m/a]")),
    "reshard, gathered": Program(("[n/a] m",), "n m", lambda x: reshard(x, "[n/a] m -> n m")),
    "reshard, sliced": Program(("n m",), "n [m/a]", lambda x: reshard(x, "n m -> n [m/a]")),
    "reshard, no partial sum": Program(("n m",), "n m", lambda x: reshard(x, "n m +a -> n m")),
    "einsum, sharded in one operand": Program(
        ("[n/a] m", "n m"), "[n/a] m", lambda x, y: einsum(x, y, "[n/a] m, n m -> [n/a] m")
    ),
    "einsum, two dims": Program(
        ("[n/a] m", "[k/a] m"), "[n/a] k", lambda x, y: einsum(x, y, "[n/a] m, [k/a] m -> n k")
    ),
    "einsum, a mark dropped": Program(
        ("[n/a] m",), "[n/a] m", lambda x: x + einsum(check(x.sum(0), "m ~a"), "m ~a -> m")
    ),
    "einsum, a scalar": Program(("[n/a] m",), "", lambda x: lax.psum(einsum(x.sum(0), "m -> "), "a")),
    "take": Program(("[v/a] m", "[n/a]"), "[n/a] m", lambda t, ids: take(t, ids, "[v/a] m, [n/a] -> [n/a] m")),
    "softmax": Program(("[n/a] m",), "[n/a] m", lambda x: softmax(x, "n m", "n")),
    "a mean": Program(("[n/a] m",), "m", lambda x: reduce(x, "[n/a] m -> m", "mean")),
    "psum, no partial sum": Program(("n m",), "n m", lambda x: psum(x, "n m +a -> n m")),
    "psum of a tree": Program(("n m",), "n m", lambda x: psum({"x": x}, "a")["x"]),
    "psum, twice": Program(
        ("[n/a] m",), "m", lambda x: psum(psum(x.sum(0), "m +a -> m"), "m +a -> m")
    ),
    "psum_scatter": Program(("[n/a] m",), "[m/a]", lambda x: psum_scatter(x.sum(0), "m +a -> [m/a]")),
    "all_to_all": Program(("[n/a] m",), "n [m/a]", lambda x: all_to_all(x, "[n/a] m -> n [m/a]")),
    "all_gather, a major axis": Program(("[n/a,b] m",), "[n/b] m", lambda x: all_gather(x, "[n/a,b] m -> [n/b] m")),
    "all_gather, in another order": Program(("[n/a,b] m",), "n m", lambda x: all_gather(x, "[n/b,a] m -> n m")),
    "a collective where a shard may not come": Program(
        ("[n/a] m",), "[n/a] m", lambda x: lax.cond(x[0, 0] > 0, lambda x: x + lax.psum(x.sum(), "a"), lambda x: x, x)
    ),
}  # fmt: skip


def mesh_of(b: int, kind: AxisType = AxisType.Auto) -> Mesh:
    return Mesh(np.array(jax.devices()[:b]).reshape(1, b), ("a", "b"), axis_types=(kind,) * 2)


def expect_accepted(name: str, mesh: Mesh, check_vma: bool) -> None:
    """Trace a program and its gradient, each of functions that no cache knows."""
    hints, result, body = PROGRAMS[name]
    types = tuple((Int if name == "take" and at else Float)[Array, hint] for at, hint in enumerate(hints))
    structs = [
        jax.ShapeDtypeStruct(
            (8,) if hint == "[n/a]" else (2, 8) if hint.startswith("m") else (8, 2),
            np.int32 if hint == "[n/a]" else np.float32,
            sharding=NamedSharding(mesh, partition_specs(Float[Array, hint])),
        )
        for hint in hints
    ]
    options = {"mesh": mesh, "check_vma": check_vma, "in_types": types, "out_types": Float[Array, result]}

    def loss(*args: Any) -> Any:
        return (typed_shard_map(lambda *args: body(*args), **options)(*args) ** 2).sum()

    with jax.set_mesh(mesh):
        jax.eval_shape(typed_shard_map(lambda *args: body(*args), **options), *structs)
        jax.eval_shape(lambda *args: jax.grad(loss)(*args), *structs)


@pytest.mark.sample(6)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("others", [2, 1])
def test_an_axis_of_size_1_and_one_device_are_no_reason_to_refuse(others: int, name: str, check_vma: bool) -> None:
    expect_accepted(name, mesh_of(others), check_vma)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_types_without_axes_of_size_1_are_no_reason_to_refuse(name: str, check_vma: bool, kind: AxisType) -> None:
    jax.config.update("jax_remove_size_one_mesh_axis_from_type", True)
    try:
        expect_accepted(name, mesh_of(2, kind), check_vma)
    finally:
        jax.config.update("jax_remove_size_one_mesh_axis_from_type", False)


def test_what_leaves_the_region_has_to_satisfy_jax() -> None:
    mapped = typed_shard_map(
        lambda x: x.sum(0), mesh=mesh_of(2), in_types=(Float[Array, "[n/a]"],), out_types=Float[Array, ""]
    )
    with fails(VaryingError, "<lambda>: return value varies over 'a', which its hint does not mention"):
        mapped(numbers(4))


ANY_SIZE = (
    "a gather that is skipped",
    "a mean",
    "psum_scatter",
    "all_to_all",
    "a collective where a shard may not come",
)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ANY_SIZE and "reshard" not in name])
def test_the_others_are_refused_where_the_axis_has_two_shards(name: str) -> None:
    with pytest.raises(TypedShmapError):
        expect_accepted(name, Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b")), True)


def test_no_collective_is_advised_where_a_pattern_of_einsum_forgets_the_axis() -> None:
    def product(x: Float[Array, "n [m/a]"]) -> Float[Array, "n"]:
        return einsum(x, x, "n m, n m -> n")

    with pytest.raises(VaryingError) as raised:
        typed_shard_map(product, mesh=mesh_of(2))(numbers(4, 2))
    cure = "the mesh has only one shard over 'a', so no values differ: with more shards, the error names the cause"
    assert str(raised.value).endswith(f"Hint: {cure}")


GRADIENTS = [
    (reshard, "[n/b,a] m -> [n/a,b] m"),
    (reshard, "[n/a] m -> n [m/a]"),
    (reshard, "[n/a,b] m -> [n/b] [m/a]"),
    (reshard, "n m -> n [m/a]"),
    (rearrange, "[n/a,b] m -> m [n/b,a]"),
    (rearrange, "[n/a] m -> [m/a] n"),
    (rearrange, "[n/a] m -> m n"),
]


@pytest.mark.parametrize("check_vma", [True, False])
def test_gradients_over_an_axis_of_size_1_are_right(check_vma: bool) -> None:
    x = numbers(8, 2)

    def gradient(operation: Any, pattern: str) -> Callable[..., Any]:
        hint, mesh = pattern.partition(" -> ")[0], mesh_of(2)

        def body(x: Any) -> Any:
            return check(jax.grad(lambda x: (operation(x, pattern) ** 2).sum())(x), hint)

        types = {"in_types": (Float[Array, hint],), "out_types": Float[Array, hint]}
        return typed_shard_map(body, mesh=mesh, check_vma=check_vma, **types)

    mapped = [gradient(*case) for case in GRADIENTS]
    same(jax.jit(lambda x: [f(x) for f in mapped])(x), [2 * x] * len(mapped))
