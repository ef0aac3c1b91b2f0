"""Typed programs lower to the text of hand-written `jax.shard_map`, and compute the same."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

BENCH = Path(__file__).parent.parent / "bench"
NAMES = """
forward gradient pytree_of_weights several_axes_on_a_dim partial_manual scan_inside nested abstract_mesh
keyword_and_default custom_vjp_inside checkpoint_around_and_inside vmap_around random_key without_check_vma
training_step
""".split()  # noqa: SIM905 (one a line would be fifteen)


@pytest.fixture(scope="module")
def programs() -> Any:
    """The table of pairs; bench is a folder of programs and no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        yield importlib.import_module("programs")


def test_every_pair_of_the_table_is_tested_here(programs: Any) -> None:
    assert sorted(programs.PAIRS) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_lowered_text_is_that_of_hand_written_shard_map(name: str, programs: Any, mesh: Mesh) -> None:
    by_hand, typed, args = programs.PAIRS[name](mesh)
    assert programs.lowered(typed, args).as_text() == programs.lowered(by_hand, args).as_text()


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_the_values_are_those_of_hand_written_shard_map(name: str, programs: Any, mesh: Mesh) -> None:
    by_hand, typed, args = programs.PAIRS[name](mesh)
    expected = jax.block_until_ready(programs.lowered(by_hand, args).compile()(*args))
    got = jax.block_until_ready(programs.lowered(typed, args).compile()(*args))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.slow
def test_the_quickstart_sends_what_the_same_step_by_hand_sends(programs: Any, mesh: Mesh) -> None:
    by_hand, typed, args = programs.quickstart(mesh)
    expected = programs.sent(by_hand, args)
    assert sum(expected.values()) > 20
    assert programs.sent(typed, args) == expected


@pytest.mark.slow
def test_the_quickstart_computes_what_the_same_step_by_hand_computes(programs: Any, mesh: Mesh) -> None:
    by_hand, typed, args = programs.quickstart(mesh)
    expected = jax.block_until_ready(jax.jit(by_hand)(*args))
    got = jax.block_until_ready(jax.jit(typed)(*args))
    # Adam's first step divides a gradient by its own size, which makes much of a last bit where it is all but zero.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5), got, expected)


def test_the_lowered_texts_of_programs_that_differ_in_one_spec_differ(programs: Any, mesh: Mesh) -> None:
    _, typed, args = programs.PAIRS["several_axes_on_a_dim"](mesh)
    other = P(("tp", "dp"), None)
    by_hand = jax.shard_map(programs.over_both, mesh=mesh, in_specs=other, out_specs=(other, P(None)))
    assert programs.lowered(typed, args).as_text() != programs.lowered(by_hand, args).as_text()
