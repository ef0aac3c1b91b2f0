"""Rules that shard dims by their names: against Flax, in force and out of it, and what is no rule."""

import pickle
from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import logical_axis_rules, logical_to_mesh_axes
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from lines import unplaced

from typedshmap import (
    Array,
    Float,
    MeshAxisError,
    ShapeError,
    axis_aliases,
    axis_rules,
    check,
    einsum,
    partition_specs,
    shard_size,
    size,
    typed,
    typed_shard_map,
)
from typedshmap._jax.versions import HAS_MANUAL_TYPES

RULES = [("batch", "dp"), ("ff", "tp"), ("model", None)]
X, W = Float[Array, "batch model"], Float[Array, "model ff"]
x, w = np.ones((8, 16), np.float32), np.ones((16, 32), np.float32)


# The same as Flax


NAMES, AXES = ("a", "b", "c"), ("x", "y", "z")  # so few that rules often give one axis to two dims
ANY = P.UNCONSTRAINED
FREE = [st.just(ANY)] if HAS_MANUAL_TYPES else []  # the last Flax that takes jax 0.9 gives one dim alone such a rule
MEANINGS = st.one_of(
    st.none(), *FREE, st.sampled_from(AXES), st.lists(st.sampled_from(AXES), max_size=3, unique=True).map(tuple)
)


@settings(max_examples=10 * settings.default.max_examples, deadline=None)
@given(
    st.lists(st.sampled_from((*NAMES, None, ANY)), min_size=2, max_size=5, unique=True),
    st.lists(st.tuples(st.sampled_from(NAMES), MEANINGS), min_size=2, max_size=8).map(tuple),
)
def test_any_rules_give_the_spec_that_flax_gives(names: list[Any], rules: Any) -> None:
    dims = " ".join({ANY: "[any/?]", None: "[none/]"}.get(name, name) for name in names)
    for context in (axis_rules(rules), logical_axis_rules(rules)):
        with context:
            assert partition_specs(Float[Array, dims]) == logical_to_mesh_axes(names, rules)


# In force


def test_the_specs_of_a_function_come_from_its_rules(mesh: Mesh) -> None:
    @jax.jit
    @typed_shard_map(mesh=mesh, rules=RULES)
    def product(x: X, w: W) -> Float[Array, "batch ff"]:
        assert (x.shape, w.shape) == ((2, 16), (16, 16))
        assert (size("batch"), shard_size("batch"), shard_size("ff")) == (8, 2, 16)
        return check(x @ w, "batch ff")

    got = jax.block_until_ready(product(x, w))
    assert got.sharding.spec == P("dp", "tp")
    np.testing.assert_allclose(got, x @ w)


@pytest.mark.parametrize(
    "rules", [RULES, tuple(RULES), dict(RULES), axis_rules(RULES), [["batch", ["dp"]], ("ff", "tp")]]
)
def test_rules_are_pairs_or_a_dict(mesh: Mesh, rules: Any) -> None:
    f = typed_shard_map(lambda x: x, mesh=mesh, rules=rules, in_types=(X,), out_types=X)
    assert jax.block_until_ready(f(x)).sharding.spec == P("dp")


def test_names_in_a_pattern_are_its_own(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh, rules={"batch": "dp", "model": "tp"})
    def f(x: Float[Array, "batch [d/]"], w: Float[Array, "d e"]) -> Float[Array, "batch e"]:
        return einsum(x, w, "[rows/dp] model, model batch -> [rows/dp] batch")

    np.testing.assert_allclose(jax.block_until_ready(f(x, w)), x @ w)


def test_inner_rules_replace_outer_ones_altogether() -> None:
    with (rules := axis_rules({"batch": "dp", "model": "tp"})):
        assert partition_specs(X) == P("dp", "tp")
        with axis_rules({"model": "dp"}):
            assert partition_specs(X) == P(None, "dp")
            with axis_rules({}):
                assert partition_specs(X) == P(None, None)
                with rules:  # again
                    assert partition_specs(X) == P("dp", "tp")
        assert partition_specs(X) == P("dp", "tp")
    assert partition_specs(X) == P(None, None)


def test_aliases_and_rules_are_set_apart_from_each_other() -> None:
    with axis_rules({"batch": "rows"}), axis_aliases(rows=("dp", "tp")):
        assert partition_specs(X) == P(("dp", "tp"), None)
        with axis_rules({"model": "rows"}):
            assert partition_specs(X) == P(None, ("dp", "tp"))


def test_rules_of_a_decorator_replace_those_of_the_contexts_around(mesh: Mesh) -> None:
    f = typed_shard_map(lambda x: x, mesh=mesh, rules={"model": "tp"}, in_types=(X,), out_types=X)
    with axis_rules({"batch": "dp"}):
        assert jax.block_until_ready(f(x)).sharding.spec == P(None, "tp")


def test_rules_hold_in_the_body_until_a_context_there_replaces_them(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh, rules={"batch": "dp"})
    def f(x: X) -> X:
        check(x, "batch model")
        with axis_rules({"model": "tp"}):
            check(x, "[batch/dp] [model/]")
            with pytest.raises(
                ShapeError, match="has model=32 \\(16 per shard over 'tp'\\), but argument 'x' has model=16"
            ):
                check(x, "[batch/dp] model")
        return check(x, "batch model")

    jax.block_until_ready(f(x))


def test_contexts_that_are_left_alternately_leave_nothing_behind() -> None:
    def steps(rules: Any) -> Generator[None]:
        with axis_rules(rules):
            yield

    first, second = steps({"batch": "dp"}), steps({"batch": "tp"})
    next(first)
    next(second)
    first.close()
    second.close()
    assert partition_specs(X) == P(None, None)


def test_rules_are_left_in_the_thread_that_entered_them() -> None:
    with pytest.raises(RuntimeError, match=r"^axis_rules and axis_aliases are left in the thread in which they were"):
        axis_rules({"batch": "dp"}).__exit__(None, None, None)


def test_rules_are_equal_by_what_they_say_and_can_be_pickled() -> None:
    rules = axis_rules({"batch": "dp"}, fallback="error")
    assert pickle.loads(pickle.dumps(rules)) == rules == axis_rules([("batch", ("dp",))], fallback="error")
    assert rules != axis_rules({"batch": "dp"})


def test_rules_decorate_a_function() -> None:
    assert axis_rules({"batch": "dp"})(lambda: partition_specs(X))() == P("dp", None)


def test_rules_show_as_they_are_written() -> None:
    written = "axis_rules([('a', 'x'), ('b', ('x', 'y')), ('c', None)], fallback='error')"
    assert repr(eval(written)) == written


# Under jit


def test_other_rules_are_another_program_to_jit(mesh: Mesh) -> None:
    seen = []

    @jax.jit
    def f(x: Any) -> Any:
        seen.append(partition_specs(X))
        return typed_shard_map(lambda x: x, mesh=mesh, in_types=(X,), out_types=X)(x)

    for rules in ({"batch": "dp"}, {"model": "tp"}, {"batch": "dp"}, {}):
        with axis_rules(rules):
            got = jax.block_until_ready(f(x))
        assert got.sharding.is_equivalent_to(jax.NamedSharding(mesh, P(rules.get("batch"), rules.get("model"))), 2)
    assert seen == [P("dp", None), P(None, "tp"), P(None, None)]


def test_equal_rules_are_one_program_to_jit() -> None:
    traces = []

    @jax.jit
    def f(x: Any) -> Any:
        traces.append(1)
        return x

    for rules in ({"batch": "dp"}, [("batch", ("dp",))], axis_rules({"batch": "dp"})):
        with rules if not isinstance(rules, (dict, list)) else axis_rules(rules):
            f(jnp.ones(3))
    assert len(traces) == 1


# What is no rule


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("batch", "rules= expects pairs of a dim's name and mesh axes, or a dict; got str"),
        (3, "rules= expects pairs of a dim's name and mesh axes, or a dict; got int"),
        (["batch"], "the rule 'batch' is not a pair of a dim's name and its mesh axes, as in ('batch', 'data')"),
        ([("a",)], "the rule ('a',) is not a pair of a dim's name and its mesh axes, as in ('batch', 'data')"),
        ([(3, "dp")], "the rule for '3' is 'dp'; write a mesh axis, a tuple of them, or None"),
        ({"a": 3}, "the rule for 'a' is 3; write a mesh axis, a tuple of them, or None"),
        ({"a": ("x", None)}, "the rule for 'a' is ('x', None); write a mesh axis, a tuple of them, or None"),
        ({"a": ("x", "x")}, "the rule for 'a' has a mesh axis twice: ('x', 'x')"),
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused(rules: Any, message: str) -> None:
    for make in (axis_rules, lambda rules: typed(lambda: None, rules=rules)):
        with pytest.raises(MeshAxisError) as caught:
            make(rules)
        assert unplaced(caught.value) == message


@pytest.mark.parametrize(
    ("rules", "options", "message"),
    [
        (None, {}, "axis_rules: expects pairs of a dim's name and mesh axes, or a dict; got None"),
        ({}, {"fallback": "replicated"},
         "axis_rules: fallback='replicated' is not one of 'unsharded', 'unconstrained', 'error'"),
        ({}, {"fallback": np.ones(2)},
         "axis_rules: fallback=array([1., 1.]) is not one of 'unsharded', 'unconstrained', 'error'"),
    ],
    ids=["no rules", "another fallback", "an array"],
)  # fmt: skip
def test_no_rules_and_an_unknown_fallback_are_refused(rules: Any, options: Any, message: str) -> None:
    with pytest.raises(MeshAxisError) as caught:
        axis_rules(rules, **options)
    assert unplaced(caught.value) == message
