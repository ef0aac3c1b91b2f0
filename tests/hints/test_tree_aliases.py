"""A library's alias of a tree is a bare tree: its arrays are unsharded, and nothing more is said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Optional, Union

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import FrozenDict
from flax.training.train_state import TrainState
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    Float,
    Like,
    PyTree,
    ShapeError,
    StructureError,
    check,
    partition_specs,
    shape_structs,
    shard,
    typed,
    typed_jit,
    typed_shard_map,
)

X = Float[Array, "[b/dp] d"]
# As chex, jraph and haiku define theirs.
ArrayTree = Union[jax.Array, Iterable["ArrayTree"], Mapping[Any, "ArrayTree"]]
ShardedTree = Union[X, Iterable["ShardedTree"], Mapping[Any, "ShardedTree"]]

x = np.ones((8, 4), np.float32)
params = {"w": jnp.ones((4, 4)), "layers": [jnp.ones(4), jnp.ones((2, 3))]}
optimizer = optax.adam(1e-3)
opt_state = optimizer.init(params)


class MyState(TrainState):
    batch: X
    stats: Any


class Holder(NamedTuple):
    params: optax.Params
    x: X


@flax.struct.dataclass
class Mixed:
    state: optax.OptState
    x: X


def train_state(cls: Any = TrainState, **more: Any) -> Any:
    """As many make it: with a dict for what Flax hints as a FrozenDict, and no function."""
    return cls.create(apply_fn=None, params=params, tx=optimizer, **more)


ALIASES: dict[str, tuple[Any, Any]] = {
    "optax.OptState": (optax.OptState, opt_state),
    "optax.Params": (optax.Params, params),
    "optax.Updates": (optax.Updates, params),
    "one that may be absent": (Optional[optax.OptState], opt_state),
    "one of two": (optax.OptState | None, opt_state),
    "in a dict": (dict[str, optax.Params], {"a": params}),
    "in a PyTree": (PyTree[optax.Params], {"a": params}),
    "in a Like": (Like[optax.OptState, dict[str, Float[Array, "w w"]]], {"w": {"w": jnp.ones((4, 4))}}),
    "an optimizer's own state": (optax.ScaleByAdamState, opt_state[0]),
    "TrainState": (TrainState, train_state()),
    "TrainState with a FrozenDict": (TrainState, train_state().replace(params=FrozenDict(params))),
    "the module's own": (ArrayTree, params),
}


def verb_results(T: Any, value: Any, mesh: Mesh) -> dict[str, Callable[[], Any]]:
    def f(value: Any, x: Any) -> Any:
        return value

    f.__annotations__ = {"value": T, "x": X, "return": T}
    return {
        "typed_shard_map": lambda: typed_shard_map(f, mesh=mesh)(value, x),
        "typed_jit": lambda: typed_jit(f, mesh=mesh)(value, x),
        "typed": lambda: shard(typed(f)(value, jnp.asarray(x)), T, mesh),
        "check": lambda: shard(check(value, T), T, mesh),
        "shard": lambda: shard(value, T, mesh),
        "shape_structs": lambda: shape_structs(T, mesh, like=value),
    }


@pytest.mark.sample(5)
@pytest.mark.parametrize("verb", verb_results(Any, None, None))  # type: ignore[arg-type]
@pytest.mark.parametrize(("T", "value"), ALIASES.values(), ids=ALIASES)
def test_an_alias_holds_unsharded_arrays(mesh: Mesh, T: Any, value: Any, verb: str) -> None:
    got = verb_results(T, value, mesh)[verb]()
    assert jax.tree.structure(got) == jax.tree.structure(value)
    arrays = [leaf for leaf in jax.tree.leaves(got) if hasattr(leaf, "sharding")]
    assert len(arrays) >= len([leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.Array)])
    assert all(array.sharding.is_fully_replicated for array in arrays)


def test_beside_an_alias_other_hints_hold(mesh: Mesh) -> None:
    values = {
        Holder: Holder(params, x),
        Mixed: Mixed(opt_state, x),
        MyState: train_state(MyState, batch=x, stats={"mean": jnp.ones(3)}),
    }
    for T, value in values.items():
        placed = shard(value, T, mesh)
        sharded = [leaf for leaf in jax.tree.leaves(placed) if getattr(leaf, "shape", ()) == (8, 4)]
        assert [array.sharding.spec for array in sharded] == [P("dp", None)]
    with pytest.raises(ShapeError, match=r"given\.batch has 3 dims, but its hint has 2"):
        shard(values[MyState].replace(batch=np.ones((8, 4, 2), np.float32)), MyState, mesh)


def test_specs_want_a_value() -> None:
    assert partition_specs(optax.Params, like=params) == {"w": P(None, None), "layers": [P(None), P(None, None)]}
    with pytest.raises(StructureError) as caught:
        partition_specs(optax.OptState)
    assert str(caught.value) == (
        "partition_specs: PyTree does not say how many arrays it holds\n\n"
        "Hint: pass like=, a value that fixes ranks and lengths"
    )


def test_an_alias_with_dims_is_no_bare_tree() -> None:
    with pytest.raises(AnnotationSyntaxError) as caught:
        check(x, ShardedTree)
    assert "'ShardedTree' is not a hint" in str(caught.value)
    assert "for trees of any depth write PyTree[...]" in str(caught.value)

    with pytest.raises(AnnotationSyntaxError, match=r"PyTree\[\.\.\.\]"):

        @typed
        def f(value: ShardedTree) -> None: ...
