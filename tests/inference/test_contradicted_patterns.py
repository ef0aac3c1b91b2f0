"""A pattern whose sizes do not fit says first that its operand is known to be sharded in another way."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from typedshmap import Array, Float, TypedShmapError, all_to_all, rearrange, reshard, typed_shard_map

OTHER_AXIS = "the operand varies over 'dp', which the pattern does not mention"
CASES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "rearrange": (lambda x: rearrange(x, "[b/tp] (h k) -> [b/tp] h k", h=4), OTHER_AXIS),
    "reshard": (lambda x: reshard(x, "[b/tp] d -> [b/tp] [d/dp]"), OTHER_AXIS),
    "all_to_all": (
        lambda x: all_to_all(x, "b [d/dp] -> [b/dp] d"),
        "the operand is sharded over 'dp' in dim 0, but the pattern says unsharded",
    ),
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_known_layout_comes_before_sizes(name: str, check_vma: bool, mesh: Mesh) -> None:
    operation, problem = CASES[name]
    types = {"in_types": (Float[Array, "[b/dp] d"],), "out_types": Float[Array, "..."]}
    mapped = typed_shard_map(lambda x: operation(jnp.sin(x)), mesh=mesh, check_vma=check_vma, **types)
    with pytest.raises(TypedShmapError) as caught:
        jax.eval_shape(mapped, np.ones((8, 6), np.float32))
    assert str(caught.value).splitlines()[0] == f"{name} in <lambda>: {problem}"
