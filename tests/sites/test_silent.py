"""Programs that `jax.shard_map` accepts silently, or refuses in words that do not name the user's function."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from pairs import mesh_of, message, numbers, one_program, text

from typedshmap import Array, Float, psum, rearrange, typed, typed_shard_map

MESH = mesh_of(d=4, t=2)
x = numbers(8, 8)


def test_a_contraction_without_a_sum_is_refused_where_values_are_typed() -> None:  # K6
    def contract(a: Float[Array, "[b/d] [k/t]"], w: Float[Array, "[k/t] n"]) -> Float[Array, "[b/d] n"]:
        return a @ w

    first = message(typed_shard_map(contract, mesh=MESH), x, x).splitlines()[0]
    assert first == "VaryingError: contract: return value varies over 't', which its hint does not mention"


def test_a_sum_of_what_is_the_same_on_every_shard_is_refused() -> None:  # K7
    @typed_shard_map(mesh=MESH)
    def twice(a: Float[Array, "[b/d] k"]) -> Float[Array, "[b/d] k"]:
        return psum(a, "t")

    assert message(twice, x) == text("""
        VaryingError: psum in twice: argument 'tree' is the same on every shard of 't', so a psum over it would count it 2 times

            got f32[2,8]{V:d} per shard

        Mesh: d=4, t=2
        Hint: drop the psum: jax.grad sums the gradient of a value that is the same on every shard by itself
    """)  # noqa: E501


def test_axes_that_changed_places_are_refused_by_the_names_of_the_dims() -> None:  # K8
    @typed_shard_map(mesh=MESH)
    def swap(a: Float[Array, "[m/t] [n/d]"]) -> Float[Array, "[m/d] [n/t]"]:
        return 2 * a

    assert message(swap, x) == text("""
        ShapeError: swap: return value has m=16 (4 per shard over 'd'), but argument 'a' has m=8

            return: Float[Array, "[m/d] [n/t]"]
                                   ^
            got f32[4,2]{V:(d,t)} per shard

        Mesh: d=4, t=2
        Sizes: m=8 (a dim 0), n=8 (a dim 1)
    """)


def test_a_partial_sum_of_what_does_not_vary_is_refused() -> None:  # K14
    @typed
    def partial(a: Float[Array, "[b/d] k"]) -> Float[Array, "[b/d] k +t"]:
        return 2 * a

    @typed_shard_map(mesh=MESH)
    def total(a: Float[Array, "[b/d] k"]) -> Float[Array, "[b/d] k"]:
        return jax.lax.psum(partial(a), "t")

    first = message(total, x).splitlines()[0]
    assert first == "VaryingError: partial: return value is the same on every shard of 't', but its hint says '+t'"


def test_a_flattened_dim_whose_minor_part_is_split_is_refused() -> None:  # K21
    @typed_shard_map(mesh=MESH)
    def flat(a: Float[Array, "b [s/t]"]) -> Float[Array, "[b*s/t]"]:
        return rearrange(a, "b [s/t] -> [(b s)/t]")

    assert message(flat, x) == text("""
        PatternError: rearrange in flat: '[(b s)/t]' would interleave the shards of 's', since 'b' is before it

            pattern: "b [s/t] -> [(b s)/t]"
                                 ^^^^^^^^^

        Mesh: d=4, t=2
        Hint: write (s b), or gather 's' first (all_gather)
    """)


def test_a_flattened_dim_whose_major_part_is_split_is_that_by_hand() -> None:  # K21
    def flat(a: Float[Array, "[s/t] b"]) -> Float[Array, "[s*b/t]"]:
        return a.reshape(-1)

    by_hand = jax.shard_map(flat, mesh=MESH, in_specs=P("t", None), out_specs=P("t"))
    assert (one_program(by_hand, typed_shard_map(flat, mesh=MESH), x) == x.reshape(-1)).all()


def test_a_permuted_order_of_axes_is_refused_where_it_is_read_again() -> None:  # K17
    @typed_shard_map(mesh=MESH)
    def reordered(a: Float[Array, "[n/d,t] k"]) -> Float[Array, "[n/d,t] k"]:
        return rearrange(a, "[n/t,d] k -> [n/t,d] k")

    first = message(reordered, x).splitlines()[0]
    assert first == (
        "ShardingError: rearrange in reordered: the operand is read as sharded over 't', 'd' in dim 0, "
        "but reordered's hint of argument 'a' says sharded over 'd', 't' (a: Float[Array, \"[n/d,t] k\"])"
    )


# Refused by JAX in words that do not help.


def product(a: Float[Array, "[b/d] k"], w: Float[Array, "k [n/t]"]) -> Float[Array, "[b/d] [n/t]"]:
    return a @ w


@pytest.mark.parametrize(
    ("args", "first"),
    [
        ((x,), "StructureError: product: argument 'w' is missing"),
        ((x, x, x), "StructureError: product: got 3 positional arguments, but takes 2"),
    ],
)
def test_a_wrong_number_of_arguments_names_the_function(args: tuple[Any, ...], first: str) -> None:  # K1
    assert message(typed_shard_map(product, mesh=MESH), *args).splitlines()[0] == first


@pytest.mark.parametrize("call", [lambda f: f(x), lambda f: jax.jit(f)(x)], ids=["called", "jitted"])
def test_a_missing_sum_names_the_function(call: Any) -> None:  # K5, K26
    @typed_shard_map(mesh=MESH)
    def total(a: Float[Array, "[b/d] k"]) -> Float[Array, "k"]:
        return a.sum(0)

    assert message(lambda: call(total)).splitlines()[0] == (
        "VaryingError: total: return value varies over 'd', which its hint does not mention"
    )


def test_a_gathered_value_names_the_function_and_the_cure_is_not_to_turn_the_check_off() -> None:  # K26
    @typed_shard_map(mesh=MESH)
    def whole(a: Float[Array, "[b/d] k"]) -> Float[Array, "b k"]:
        return jax.lax.all_gather(a, "d", axis=0, tiled=True)

    assert message(whole, x) == text("""
        VaryingError: whole: return value varies over 'd', which its hint does not mention

            return: Float[Array, "b k"]
            got f32[8,8]{V:d} per shard

        Mesh: d=4, t=2
        Hint: its shards agree since the all_gather, and JAX types them as varying: gather it by all_gather without '~', or lax.all_gather(..., to='invarying')
    """)  # noqa: E501


def test_what_jax_refuses_inside_a_body_names_the_function_and_its_shards() -> None:
    @typed_shard_map(mesh=MESH)
    def outer(a: Float[Array, "[b/d] k"], w: Float[Array, "[k/t] n"]) -> Float[Array, "[b/d] n"]:
        return jnp.dot(a, w)

    with pytest.raises(TypeError) as caught:
        jax.eval_shape(outer, x, x)
    note = next(note for note in caught.value.__notes__ if note.startswith("typedshmap"))
    assert note == text("""
        typedshmap: in outer, where the values are shards:
            a: Float[Array, "[b/d] k"]  is f32[2,8]{V:d}
            w: Float[Array, "[k/t] n"]  is f32[4,8]{V:t}
        Mesh: d=4, t=2
        Sizes: b=8 (a dim 0), k=8 (a dim 1), n=8 (w dim 1)
    """)
