"""Random programs that are proved: on a mesh they give what they give on one device."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from cures import meshes, module_of, refusal, result
from random_programs import drawn
from tiers import slow

from typedshmap import TypedShmapError, typed_shard_map
from typedshmap.testing import prove
from typedshmap.testing.proving import proof

COUNT = 240
QUICK = 24


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")
@pytest.mark.parametrize(
    "seed", [seed if seed % (COUNT // QUICK) == 0 else slow(pytest.param(seed, id=str(seed))) for seed in range(COUNT)]
)
def test_a_random_program_that_is_proved_is_right(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "assert_mesh_invariant", lambda *_, **__: None)
    check_vma = seed % 2 == 0
    source = drawn(seed, check_vma)
    if (refusal(source, tmp_path, meshes()[0], check_vma) or "").startswith("JAX: "):
        return
    function: Any = typed_shard_map(module_of(source, tmp_path).f, check_vma=check_vma)
    try:
        found = prove(function)
    except TypedShmapError:
        return
    if found.verdict != "proved":
        return
    on_mesh, on_one = result(source, tmp_path, meshes()[0], check_vma), result(source, tmp_path, meshes()[1], False)
    for got, expected in zip(jax.tree.leaves(on_mesh), jax.tree.leaves(on_one), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * (1 + np.abs(expected).max()))
