"""A program whose layout is refused is wrong: what it computes on a mesh is not what it computes on one device."""

from collections.abc import Iterator
from random import Random

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from random_chains import AXES, SHAPES, Chain, draw_chain

import typedshmap

LONGEST = 5
BLOCK = 60


def mesh_of(sizes: tuple[int, ...]) -> Mesh:
    return Mesh(np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes), AXES)


def chains(block: int) -> Iterator[Chain]:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        chain = draw_chain(Random(seed), LONGEST)
        if chain is not None:
            yield chain


def refusals(chain: Chain) -> list[str]:
    """What is wrong with the layouts of a program."""
    mesh = mesh_of(SHAPES[1])
    with typedshmap.audit() as report:
        jax.eval_shape(chain.mapped(mesh), chain.numbers())
    return [finding.message for finding in report.findings if finding.kind == "layout"]


def is_right(chain: Chain) -> bool:
    alone, *others = (chain.on(mesh_of(sizes)) for sizes in SHAPES)
    return all(np.array_equal(alone, other) for other in others)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "block", [pytest.param(block, marks=[pytest.mark.slow] if block > 1 else []) for block in range(12)]
)
def test_a_program_whose_layout_is_refused_is_wrong(block: int) -> None:
    refused = 0
    for chain in chains(block):
        if wrong := refusals(chain):
            refused += 1
            assert not is_right(chain), (str(chain), wrong)
    assert refused, "no program of the block is refused"
