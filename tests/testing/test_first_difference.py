"""The message of a result that depends on the mesh names the line where the values begin to."""

import re
from inspect import getsourcelines
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from typedshmap import Array, Float, typed_shard_map
from typedshmap.testing import assert_mesh_invariant

X = Float[Array, "[batch/dp] model"]
W = Float[Array, "model"]
MESHES = ["dp=4"]
PLACE = "test_first_difference.py:{}"


def difference(f: Any, **options: Any) -> list[str]:
    """The lines on the first difference."""
    with pytest.raises(AssertionError) as caught:
        assert_mesh_invariant(f, MESHES, trials=1, **options)
    lines = str(caught.value).splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("First difference: "))
    return lines[start : lines.index("", start)]


def line_of(f: Any, mark: str) -> int:
    """The number of the line of a function that has a mark."""
    lines, first = getsourcelines(f.__wrapped__)
    return first + next(at for at, line in enumerate(lines) if mark in line)


@typed_shard_map
def rematerialized(x: X, w: W) -> X:
    @jax.checkpoint
    def block(x: Array) -> Array:
        h = jnp.tanh(x * w)
        return h - h.mean(0)  # HERE

    return 2 * block(x)


@typed_shard_map
def branching(x: X) -> X:
    is_some = jax.lax.psum(x.sum(), "dp") > -1e9

    def centered(x: Array) -> Array:
        return x - x.mean()  # HERE

    return jax.lax.cond(is_some, centered, lambda x: x, x)


@typed_shard_map
def looping(x: X) -> X:
    def body(carry: tuple[Any, Array]) -> tuple[Any, Array]:
        at, x = carry
        return at + 1, x / (1 + jnp.abs(x.sum(0)))  # HERE

    return jax.lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]


@typed_shard_map
def biased(x: X, w: W) -> Float[Array, "model"]:
    parts = x.sum(0)
    parts = parts + jax.lax.pcast(w, "dp", to="varying")  # HERE
    return jax.lax.psum(parts, "dp")


@jax.custom_vjp
def scaled(x: Array) -> Array:
    return 2 * x


scaled.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g - g.mean(),))


@typed_shard_map
def with_a_rule(x: X) -> X:
    return scaled(x)  # HERE


@typed_shard_map(check_vma=False)
def differentiated(w: W, x: X) -> Float[Array, "model"]:
    def loss(w: Array) -> Array:
        return jax.lax.psum(jnp.sum((x * w) ** 2), "dp")  # HERE: a psum again, transposed

    return jax.lax.psum(jax.grad(loss)(w), "dp")


@typed_shard_map
def from_the_end(x: X, table: Float[Array, "batch model"]) -> X:
    first = (jax.lax.axis_size("dp") - 1 - jax.lax.axis_index("dp")) * len(x)  # HERE
    return x + jax.lax.dynamic_slice_in_dim(table, first, len(x))


@typed_shard_map
def halo_everywhere(x: X) -> X:
    count = jax.lax.axis_size("dp")
    last = jax.lax.ppermute(x[-1:], "dp", [(at, (at + 1) % count) for at in range(count)])
    is_first = jax.lax.axis_index("dp") == count - 1  # HERE
    return x - jnp.concatenate([jnp.where(is_first, 0, last), x[:-1]])


@typed_shard_map
def every_fourth_row(x: X) -> X:
    rows = jnp.arange(len(x)) * jax.lax.axis_size("dp") + jax.lax.axis_index("dp")  # HERE
    return x * jnp.cos(rows)[:, None]


@typed_shard_map
def two_mistakes(x: X, table: Float[Array, "batch model"]) -> X:
    first = (jax.lax.axis_size("dp") - 1 - jax.lax.axis_index("dp")) * len(x)
    rows = jax.lax.dynamic_slice_in_dim(table, first, len(x))
    return (x + rows) * x.mean()


@typed_shard_map
def printing(x: X) -> Float[Array, ""]:
    jax.debug.callback(lambda x: None, x)
    return jax.lax.psum(x.mean(), "dp")  # HERE


@typed_shard_map
def of_means(x: X) -> Float[Array, ""]:
    return jax.lax.psum(x.mean(), "dp")  # HERE


@typed_shard_map
def of_largest(x: X) -> X:
    def body(x: Array, _: None) -> tuple[Array, None]:
        return x / 2 + x.max(), None  # HERE

    return jax.lax.scan(body, x, length=3)[0]


@typed_shard_map
def of_own_numbers(x: X) -> X:
    return x + jax.random.normal(jax.random.key(0), x.shape)  # HERE


INSTEAD = "the results equal those on one device if it is replaced by {}"
CASES = [
    (rematerialized, {}, ""), (rematerialized, {"grad": True}, ""), (branching, {}, ""), (looping, {}, ""),
    (biased, {}, ""), (with_a_rule, {"grad": True}, ""), (differentiated, {}, ""), (printing, {}, ""),
    (from_the_end, {}, INSTEAD.format("the index over 'dp'")),
    (halo_everywhere, {}, INSTEAD.format("what is true on the first shard over 'dp' alone")),
    (every_fourth_row, {}, INSTEAD.format("the parts (dim 0 sharded over 'dp') of the value on one device")),
    (of_largest, {}, "read as: add at HERE uses each shard's own max as the max over all shards of 'dp'"),
    (of_means, {}, "read as: the same on every shard of 'dp', and is 4 times too large on dp=4: it grows with 'dp'"),
    (of_own_numbers, {}, "read as: the same on every shard of 'dp', of a shard's shape"),
]  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")
@pytest.mark.parametrize(("f", "options", "fact"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_the_line_is_named(f: Any, options: dict[str, Any], fact: str) -> None:
    first, *facts = difference(f, **options)
    place = PLACE.format(line_of(f, "# HERE"))
    assert first.startswith(f"First difference: {place} ("), first
    assert not fact or f"    {fact.replace('HERE', place)}" in facts


def test_it_is_told_with_its_operands() -> None:
    assert difference(biased) == [
        f"First difference: test_first_difference.py:{line_of(biased, '# HERE')} (biased)",
        "    add: float32[10] per shard, each shard's own",
        "    operand 0: float32[10] per shard, its sum over 'dp' is that on one device",
        "    operand 1: float32[10] per shard, as on one device",
        f"    read as: a partial sum over 'dp', due since {PLACE.format(line_of(biased, 'x.sum'))} (biased)",
    ]


def test_in_a_gradient_it_is_the_transpose_of_the_line() -> None:
    assert difference(differentiated)[1:] == [
        "    called at test_first_difference.py:{} (differentiated)".format(line_of(differentiated, "jax.grad")),
        "    psum, in the gradient of this line: float32[] per shard, off by the number of shards over 'dp'",
        "    operand 0: 1.0",
        "    read as: the same on every shard of 'dp', and is 4 times too large on dp=4: it grows with 'dp'",
    ]


def test_a_failure_on_the_way_does_not_hide_the_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("a value")

    monkeypatch.setattr("typedshmap.testing.describe_difference.first_difference", fail)
    (line,) = difference(biased)
    expected = "First difference: not known, since the program cannot be run value by value: KeyError: 'a value'"
    assert line == expected


@pytest.mark.sample(3)
@pytest.mark.parametrize("limit", ["_MOST_NUMBERS", "_MOST_TRIES", "_MOST_SECONDS"])
def test_a_search_that_takes_too_long_says_nothing(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"typedshmap.testing.substitution.{limit}", 0)
    place, *facts = difference(from_the_end)
    assert int(re.findall(r":(\d+)", place)[0]) >= line_of(from_the_end, "# HERE")
    assert not any("if it is replaced by" in fact for fact in facts)


def test_of_two_mistakes_no_one_value_is_said_to_put_the_results_right() -> None:
    assert not any("if it is replaced by" in line for line in difference(two_mistakes))


def test_a_program_that_cannot_run_with_other_values_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("mismatched varying manual axes")

    monkeypatch.setattr("typedshmap.testing.steps._results_over_more_axes", fail)
    assert not any("if it is replaced by" in line for line in difference(from_the_end))
