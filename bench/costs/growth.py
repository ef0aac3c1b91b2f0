"""How times of tracing grow with a program, its arguments and its mesh: curves of ours and of the same by hand."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import programs
import sequence
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, typed_shard_map

from .fitting import Curve
from .meshes import make_abstract, make_mesh
from .timing import Call, Effort, take_turns
from .tracing import trace

MESHES = {8: (4, 2), 64: (8, 8), 512: (32, 16), 4096: (64, 64), 32_768: (256, 128), 131_072: (512, 256)}
LAYERS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Growth:
    """A thing that grows.

    Attributes:
      what: what there is more and more of.
      sizes: how many.
      pair: our call for a size, and the one by hand.
      is_flat: whether times are to stay as they are.
    """

    what: str
    sizes: tuple[int, ...]
    pair: Callable[[int], tuple[Call, Call]]
    is_flat: bool = False


@dataclass(frozen=True)
class Grown:
    """The curves of both sides."""

    ours: Curve
    other: Curve


@cache
def measured(growth: Growth, effort: Effort) -> Grown:
    """Times over all sizes; they are taken once for the rows and the plot."""
    each = replace(effort, seconds=effort.seconds / 3, most=15)
    turns = [take_turns(*growth.pair(size), each) for size in growth.sizes]
    ours, other = (tuple(getattr(one, side) for one in turns) for side in ("ours", "other"))
    return Grown(Curve(growth.sizes, ours), Curve(growth.sizes, other))


def _traces(ours: Any, other: Any, args: tuple[Any, ...]) -> tuple[Call, Call]:
    return partial(trace, ours, args), partial(trace, other, args)


def unrolled_layers(count: int) -> tuple[Call, Call]:
    """A transformer's gradient step with patterns, its layers one after the other in the program."""
    by_hand, typed = sequence.mapped(make_abstract(4, 2), count)
    return _traces(typed, by_hand, sequence.structs(count, 8, 16))


def scanned_layers(count: int) -> tuple[Call, Call]:
    """The example's transformer step; `Stacked` layers are scanned, so the program is the same."""
    pair = programs.transformer(make_mesh(4, 2, names=("fsdp", "tp")))
    state, *rest = pair.args

    def stacked(path: Any, leaf: Any) -> Any:
        is_layer = any(getattr(key, "name", "") == "layers" for key in path)
        return jax.ShapeDtypeStruct((count, *leaf.shape[1:]) if is_layer else leaf.shape, leaf.dtype)

    return _traces(pair.typed, pair.by_hand, (jax.tree_util.tree_map_with_path(stacked, state), *rest))


def first(leaves: dict[str, Float[Array, "[m/dp] [n/tp]"]]) -> Float[Array, "[m/dp] [n/tp]"]:
    return leaves["leaf 0"]


def leaves(count: int) -> tuple[Call, Call]:
    """A dict of weights, one of which is returned."""
    mesh, spec = make_abstract(4, 2), P("dp", "tp")
    args = {f"leaf {at}": jax.ShapeDtypeStruct((64, 64), jnp.float32) for at in range(count)}
    by_hand = jax.shard_map(first, mesh=mesh, in_specs=(dict.fromkeys(args, spec),), out_specs=spec)
    typed = typed_shard_map(first, mesh=mesh)
    return partial(_anew, typed, args), partial(_anew, by_hand, args)


def _anew(f: Callable[..., Any], args: Any) -> Any:
    return jax.eval_shape(lambda args: f(args), args)  # a function of its own, by which JAX caches


def meshes(count: int) -> tuple[Call, Call]:
    """The unrolled step, of sizes that every mesh divides."""
    by_hand, typed = sequence.mapped(make_abstract(*MESHES[count]), 2)
    return _traces(typed, by_hand, sequence.structs(2, 512, 256, m=4096, heads=256, d=16, ff=4096, v=4096))


UNROLLED = Growth("unrolled layers", LAYERS, unrolled_layers)
SCANNED = Growth("scanned layers", LAYERS, scanned_layers, is_flat=True)
LEAVES = Growth("leaves", (1, 3, 10, 30, 100, 300, 1000), leaves)
DEVICES = Growth("devices", tuple(MESHES), meshes, is_flat=True)
ALL = (UNROLLED, SCANNED, LEAVES, DEVICES)


def curves(effort: Effort) -> Iterator[tuple[Growth, Grown]]:
    """All of them, for the plot."""
    for growth in ALL:
        yield growth, measured(growth, effort)
