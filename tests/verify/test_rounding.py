"""How far rounding may take a result, and what the numbers tell of a difference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from typedshmap.testing.invariance.clues import is_shuffled, moved_over, order, ratio, repeated_dim, wrong_shards
from typedshmap.testing.invariance.differences import Apart, are_alike
from typedshmap.testing.invariance.rounding import Rounding, longest_sum, scale_of, unit_of

MESH = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("dp", "tp"))


def apart(here, there, allowed=1e-6, parts=()) -> Apart:
    here, there = np.asarray(here), np.asarray(there)
    return Apart("return", MESH, here, there, allowed, ~are_alike(here, there, allowed), parts)


def terms(f, *shapes) -> int:
    return longest_sum(jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)))


@pytest.mark.parametrize(
    ("f", "shapes", "count"),
    [
        (lambda x: x + 1, [(4,)], 1),
        (lambda x: x.sum(), [(4, 5)], 20),
        (lambda x: x.sum(0), [(4, 5)], 4),
        (lambda x, y: x @ y, [(4, 5), (5, 6)], 5),
        (lambda x: jnp.cumsum(x, 1), [(4, 5)], 5),
        (lambda x: jnp.fft.fft(x).real, [(4, 8)], 8),
        (lambda x: jax.jit(lambda x: x.sum())(x), [(7,)], 7),
        (lambda x: jax.lax.scan(lambda c, x: (c + x.sum(), None), 0.0, x)[0], [(3, 5)], 15),
        (lambda x: jnp.zeros(2).at[jnp.zeros(9, int)].add(x), [(9,)], 9),
    ],
)
def test_the_longest_sum_of_a_program_is_counted(f, shapes, count):
    assert terms(f, *shapes) == count


def test_what_is_allowed_grows_with_the_root_of_the_sum_and_the_coarsest_unit():
    single = Rounding(jnp.float32, unit_of(jnp.float32), 100, {"return": 0.0}, {})
    assert single.allowed("return", np.array([3.0, -5.0]), 4) == pytest.approx(2 * (10 + 2) * 2.0**-24 * 5)
    half = Rounding(jnp.bfloat16, unit_of(jnp.bfloat16), 100, {"return": 0.25}, {})
    assert half.allowed("return", np.array([1.0]), 4) == pytest.approx(2 * (10 * 2.0**-16 + 2) * (2.0**-8 + 0.25))


@pytest.mark.parametrize(
    ("dtype", "unit"), [("float32", 2.0**-24), ("bfloat16", 2.0**-8), ("float16", 2.0**-11), ("complex64", 2.0**-24)]
)
def test_a_unit_roundoff_is_half_the_distance_from_one_to_the_next_number(dtype, unit):
    assert unit_of(jnp.dtype(dtype)) == unit


def test_the_scale_is_that_of_the_finite_entries():
    assert scale_of(np.array([1.0, -3.0, np.inf, np.nan])) == 3.0
    assert scale_of(np.zeros((0, 2))) == 0.0


def test_the_same_not_a_number_and_infinity_are_alike():
    here, there = np.array([np.nan, np.inf, np.inf, np.nan, 1.0]), np.array([np.nan, np.inf, -np.inf, 1.0, 1.0])
    assert are_alike(here, there, 0.1).tolist() == [True, True, False, False, True]


def test_one_factor_is_found_up_to_rounding():
    there = np.array([1.0, -2.0, 1e-9])
    assert ratio(apart(3 * there, there)) == pytest.approx(3)
    assert ratio(apart(3 * there + [0, 0.1, 0], there)) is None
    assert ratio(apart(there, 0 * there)) is None
    assert ratio(apart([np.nan, 1.0], [1.0, 2.0])) is None


def test_equal_parts_are_found_if_they_are_not_equal_on_one_device():
    there = np.arange(8.0).reshape(2, 4)
    assert repeated_dim(apart(np.tile(there[:, :2], (1, 2)), there), 2) == 1
    assert repeated_dim(apart(np.ones((2, 4)), np.zeros((2, 4))), 2) is None
    assert repeated_dim(apart(np.ones((3, 5)), np.arange(15.0).reshape(3, 5)), 2) is None


def test_parts_in_another_order_are_found():
    there = np.arange(12.0).reshape(2, 6)
    assert order(apart(there[:, [4, 5, 0, 1, 2, 3]], there), 3) == (1, (2, 0, 1))
    assert order(apart(there + 1, there), 2) is None


def test_entries_in_another_order_are_found():
    there = np.arange(12.0)
    assert is_shuffled(apart(there.reshape(3, 4).T.reshape(-1), there))
    assert not is_shuffled(apart(there + 1, there))
    assert not is_shuffled(apart([1j, 2j], [2j, 1j]))


def test_wrong_shards_are_found_where_one_axis_splits_a_dim():
    here, there = np.array([0.0, 1.0, 5.0, 5.0]), np.zeros(4)
    here[:2] = 0
    assert wrong_shards(apart(here, there, parts=(("tp",),)), "tp") == (1,)
    assert wrong_shards(apart(here, there, parts=(("dp", "tp"),)), "tp") is None
    assert wrong_shards(apart(there + 1, there, parts=(("tp",),)), "tp") is None


def test_the_axes_that_a_program_communicates_over_are_read():
    def body(x):
        y = jax.lax.psum(x, "dp") + jax.lax.axis_index("tp")
        return jax.lax.scan(lambda c, _: (jax.lax.pmax(c, ("dp", "pp")), None), y, None, 2)[0]

    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("dp", "tp", "pp"))
    spec = jax.sharding.PartitionSpec
    mapped = jax.shard_map(body, mesh=mesh, in_specs=spec("dp"), out_specs=spec(), check_vma=False)
    assert moved_over([jax.make_jaxpr(mapped)(jnp.ones(4))]) == {"dp", "pp"}
