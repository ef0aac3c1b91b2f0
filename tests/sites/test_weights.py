"""A site that gathers weights leaf by leaf (4): which leaves, a static argument says."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from expecting import numbers
from jax.sharding import PartitionSpec as P
from pairs import close, mesh_of, one_program, said

from typedshmap import Array, Float, typed_shard_map

MESH = mesh_of(fsdp=4, tp=2)


@jax.tree_util.register_dataclass
@dataclass
class Mlp:
    wi: Float[Array, "[m/fsdp] f"]
    wo: Float[Array, "f [m/fsdp]"]


@jax.tree_util.register_dataclass
@dataclass
class Block:
    mlp: Mlp
    norm: Float[Array, "m"]


@jax.tree_util.register_dataclass
@dataclass
class FullMlp:
    wi: Float[Array, "m f"]
    wo: Float[Array, "f m"]


@jax.tree_util.register_dataclass
@dataclass
class FullBlock:
    mlp: FullMlp
    norm: Float[Array, "m"]


Path = tuple[str, ...]
ALL: tuple[Path, ...] = (("mlp", "wi"), ("mlp", "wo"))
BLOCK = Block(Mlp(numbers(8, 6), numbers(6, 8)), numbers(8))


def whole(x: Any, path: Path, indices: tuple[Path, ...]) -> Any:
    axis = 1 if path[-1] == "wo" else 0
    return jax.lax.all_gather(x, "fsdp", axis=axis, tiled=True) if path in indices else x


def gather(weights: Block, indices: tuple[tuple[str, ...], ...]) -> FullBlock:
    mlp = FullMlp(whole(weights.mlp.wi, ("mlp", "wi"), indices), whole(weights.mlp.wo, ("mlp", "wo"), indices))
    return FullBlock(mlp, whole(weights.norm, ("norm",), indices))


typed = typed_shard_map(mesh=MESH, check_vma=False)(gather)


def by_hand(weights: Block) -> FullBlock:
    specs = Block(Mlp(P("fsdp", None), P(None, "fsdp")), P(None))
    body = partial(gather, indices=ALL)
    return jax.shard_map(body, mesh=MESH, in_specs=(specs,), out_specs=P(), check_vma=False)(weights)


def test_weights_gathered_leaf_by_leaf_are_those_by_hand() -> None:
    got = one_program(by_hand, lambda weights: typed(weights, ALL), BLOCK)
    close(got, FullBlock(FullMlp(BLOCK.mlp.wi, BLOCK.mlp.wo), BLOCK.norm))


def test_a_leaf_that_was_not_gathered_is_named_by_its_path() -> None:
    assert said(typed, BLOCK, ALL[1:]) == [
        "ShapeError: gather: return.mlp.wi has m=2 on each shard, but argument 'weights.mlp.wi' has m=8",
        "Hint: if m is still sharded over 'fsdp', write [m/fsdp], or all_gather it",
    ]
