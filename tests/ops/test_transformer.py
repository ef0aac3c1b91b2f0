"""A transformer's step with operations sends what the same step by hand sends."""

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

pytestmark = pytest.mark.slow

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def compiled(mesh: Mesh) -> Any:
    """Both steps compiled: by hand, and with operations; and their arguments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        by_hand, typed, args = importlib.import_module("sequence").steps(mesh)
    return jax.jit(by_hand).lower(*args).compile(), jax.jit(typed).lower(*args).compile(), args


@pytest.fixture
def sent(compiled: Any, reader: Any) -> Any:
    """The collectives of both."""
    return [reader.collectives(program.as_text()) for program in compiled[:2]]


def test_the_step_with_operations_has_the_collectives_of_the_one_by_hand(sent: Any) -> None:
    by_hand, typed = (Counter((one.kind, one.group_size) for one in found) for found in sent)
    assert by_hand["reduce-scatter", 4] > 10 and by_hand["reduce-scatter", 2] > 5
    assert typed == by_hand


def test_the_step_with_operations_sends_the_bytes_of_the_one_by_hand(sent: Any) -> None:
    by_hand, typed = (sum(one.sent for one in found) for found in sent)
    assert 0 < typed <= by_hand * 1.05


def test_the_step_with_operations_computes_what_the_one_by_hand_computes(compiled: Any) -> None:
    by_hand, typed, args = compiled
    expected, got = (jax.block_until_ready(step(*args)) for step in (by_hand, typed))
    # Sums of some hundred float32 numbers in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, expected)
