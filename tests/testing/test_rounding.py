"""How far rounding may take a result, and what the numbers say about a difference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from typedshmap.testing.compare import (
    Tolerance,
    ValueMismatch,
    are_close,
    coarsest_dtype,
    longest_sum,
    unit_of,
)
from typedshmap.testing.diagnose import common_factor, explained

MESH = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("dp", "tp"))


def rounding(dtype, terms, moved=(), uncertain=None) -> Tolerance:
    """What the results of a program with one result come to."""
    moved = np.asarray(moved)
    counted = np.ones(moved.shape, bool) if uncertain is None else np.asarray(uncertain)
    return Tolerance(jnp.dtype(dtype), unit_of(dtype), terms, {"return": moved}, {"return": counted}, {})


def apart(here, there, allowed=1e-6, parts=()) -> ValueMismatch:
    here, there = np.asarray(here), np.asarray(there)
    return ValueMismatch("return", MESH, here, there, allowed, ~are_close(here, there, allowed), parts)


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
    single = rounding(jnp.float32, 100, moved=[0.0, 0.0])
    assert single.allowed("return", np.array([3.0, -5.0]), 4) == pytest.approx(2 * (10 + 2) * 2.0**-24 * 5)
    half = rounding(jnp.bfloat16, 100, moved=[0.25])
    assert half.allowed("return", np.array([1.0]), 4) == pytest.approx(2 * (10 * 2.0**-16 + 2) * (2.0**-8 + 0.25))


def test_entries_that_are_the_same_on_every_mesh_do_not_count():
    masked = rounding(jnp.float32, 1, moved=[0.5, 100.0], uncertain=[True, False])
    assert masked.allowed("return", np.array([2.0, -1e9]), 1) == pytest.approx(2 * 2 * (2.0**-24 * 2 + 0.5))


@pytest.mark.parametrize(
    ("f", "dtype"),
    [
        (lambda x: x + 1, jnp.float32),
        (lambda x: x.astype(jnp.bfloat16).astype(jnp.float32) + 1, jnp.bfloat16),
        (lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32) + 1, jnp.float32),
        (lambda x: jnp.dot(*[x.astype(jnp.float8_e4m3fn)] * 2, preferred_element_type=jnp.float32), jnp.float32),
        (lambda x: (x.astype(jnp.float8_e4m3fn) * x.astype(jnp.float8_e4m3fn)).astype(jnp.float32), jnp.float8_e4m3fn),
        (lambda x: x > 1, None),
    ],
    ids=["plain", "short cast", "narrow cast", "narrow operands", "narrow product", "no result"],
)  # fmt: skip
def test_the_coarsest_dtype_is_one_that_is_computed_in(f, dtype):
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    assert coarsest_dtype([jax.make_jaxpr(f)(shape)]) == dtype


def test_the_same_not_a_number_and_infinity_are_equal():
    here, there = np.array([np.nan, np.inf, np.inf, np.nan, 1.0]), np.array([np.nan, np.inf, -np.inf, 1.0, 1.0])
    assert are_close(here, there, 0.1).tolist() == [True, True, False, False, True]


@pytest.mark.parametrize(
    ("off", "at"),
    [
        ([0.0, 0.48, 0.4800001, 0.4799999], (1,)),
        ([0.0, 0.47, 0.48, 0.48], (2,)),
        ([0.1, 0.2, np.inf, np.inf], (2,)),
        ([0.1, np.inf, np.nan, np.nan], (2,)),
    ],
)
def test_the_entry_in_the_message_is_the_first_of_those_that_are_furthest_off_but_for_rounding(off, at):
    assert apart(off, [0.0] * 4).at == at


def test_one_factor_is_found_up_to_rounding():
    there = np.array([1.0, -2.0, 1e-9])
    assert common_factor(apart(3 * there, there)) == pytest.approx(3)
    assert common_factor(apart(3 * there + [0, 0.1, 0], there)) is None
    assert common_factor(apart(there, 0 * there)) is None
    assert common_factor(apart([np.nan, 1.0], [1.0, 2.0])) is None


def test_what_is_equal_to_the_bit_is_no_reason_against_a_factor_unless_it_is_the_most():
    assert common_factor(apart([3.0, 1e7], [1.5, 1e7])) == pytest.approx(2)
    assert common_factor(apart([3.0, -np.inf, -4.0], [1.5, -np.inf, -2.0])) == pytest.approx(2)
    assert common_factor(apart([3.0, 1.0, 2.0], [3.0, 1.0, 1.0])) is None


@pytest.mark.parametrize(
    ("allowed", "by", "text"),
    [
        (9e-6, 0.481, "rounding in float32 explains at most 1e-04"),
        (4e-4, 0.5, "rounding in float32 explains at most 1e-02"),
        (5e-4, 0.5, "rounding in float32 explains at most 1e-02"),
        (1e-5, np.nan, "rounding in float32 explains at most 1e-04"),
        (9.51e-7, 1.19e-6, "rounding in float32 explains 9.51e-07"),
        (0.0, 1.0, "rounding in float32 explains 0"),
    ],
)
def test_what_rounding_explains_is_a_power_of_ten_well_above_it_where_the_difference_is_larger(allowed, by, text):
    assert explained(rounding(jnp.float32, 1), allowed, by) == text
