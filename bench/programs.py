"""Programs written twice: by hand with `jax.shard_map` and its specs, and by `typed_shard_map`.

Both of a pair map the same body, so that whatever differs between them is the library's doing.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import forms
import jax
import jax.numpy as jnp
import numpy as np
import quickstart_step
import transformer_by_hand
import unrolled
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, Key, typed_shard_map


class Pair(NamedTuple):
    """One program twice, and the arguments of both."""

    by_hand: Callable[..., Any]
    typed: Callable[..., Any]
    args: tuple[Any, ...]


PAIRS: dict[str, Callable[[Mesh], Pair]] = {}
COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute")


def pair(make: Callable[[Mesh], Pair]) -> Callable[[Mesh], Pair]:
    """Enter a pair, made on a mesh with axes ``dp`` and ``tp``, in the table under its function's name."""
    PAIRS[make.__name__] = make
    return make


def numbers(*shape: int) -> np.ndarray:
    """An array of that shape, always the same."""
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def lowered(f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A program lowered under a name that is the same for every function."""

    def program(*args: Any) -> Any:
        return f(*args)

    return jax.jit(program).lower(*args)


def mlp(
    x: Float[Array, "[b/dp] m"], up: Float[Array, "m [ff/tp]"], down: Float[Array, "[ff/tp] m"]
) -> Float[Array, "[b/dp] m"]:
    return jax.lax.psum(jax.nn.relu(x @ up) @ down, "tp")


MLP_SPECS = {"in_specs": (P("dp", None), P(None, "tp"), P("tp", None)), "out_specs": P("dp", None)}
MLP_ARGS = (numbers(8, 16), numbers(16, 32), numbers(32, 16))


@pair
def forward(mesh: Mesh) -> Pair:
    return Pair(jax.shard_map(mlp, mesh=mesh, **MLP_SPECS), typed_shard_map(mlp, mesh=mesh), MLP_ARGS)


def mean_loss(
    x: Float[Array, "[b/dp] m"], up: Float[Array, "m [ff/tp]"], down: Float[Array, "[ff/tp] m"]
) -> Float[Array, ""]:
    return jax.lax.pmean((mlp(x, up, down) ** 2).mean(), "dp")


@pair
def gradient(mesh: Mesh) -> Pair:
    by_hand = jax.shard_map(mean_loss, mesh=mesh, in_specs=MLP_SPECS["in_specs"], out_specs=P())
    typed = typed_shard_map(mean_loss, mesh=mesh)
    return Pair(jax.value_and_grad(by_hand, (0, 1, 2)), jax.value_and_grad(typed, (0, 1, 2)), MLP_ARGS)


@jax.tree_util.register_dataclass
@dataclass
class Block:
    up: Float[Array, "m [ff/tp]"]
    down: Float[Array, "[ff/tp] m"]


class Tree(NamedTuple):
    blocks: list[Block]
    scales: dict[str, Float[Array, " m"]]


def through_tree(
    tree: Tree, x: Float[Array, "[b/dp] m"]
) -> tuple[list[Float[Array, "[b/dp] m"]], dict[str, Float[Array, " m"]]]:
    outputs = []
    for block in tree.blocks:
        x = mlp(x * tree.scales["inner"], block.up, block.down)
        outputs.append(x)
    return outputs, {name: scale * 2 for name, scale in tree.scales.items()}


@pair
def pytree_of_weights(mesh: Mesh) -> Pair:
    block = Block(P(None, "tp"), P("tp", None))
    specs = Tree([block, block], {"inner": P(None), "outer": P(None)})
    by_hand = jax.shard_map(
        through_tree, mesh=mesh, in_specs=(specs, P("dp", None)), out_specs=([P("dp", None)] * 2, specs.scales)
    )
    blocks = [Block(*MLP_ARGS[1:]), Block(*MLP_ARGS[1:])]
    tree = Tree(blocks, {"inner": numbers(16), "outer": numbers(16)})
    return Pair(by_hand, typed_shard_map(through_tree, mesh=mesh), (tree, MLP_ARGS[0]))


def over_both(x: Float[Array, "[b/dp,tp] m"]) -> tuple[Float[Array, "[b/dp,tp] m"], Float[Array, " m"]]:
    return jnp.tanh(x), jax.lax.psum(x.sum(0), ("dp", "tp"))


@pair
def several_axes_on_a_dim(mesh: Mesh) -> Pair:
    split = P(("dp", "tp"), None)
    by_hand = jax.shard_map(over_both, mesh=mesh, in_specs=split, out_specs=(split, P(None)))
    return Pair(by_hand, typed_shard_map(over_both, mesh=mesh), (numbers(16, 4),))


def over_dp(x: Float[Array, "[b/dp] [m/tp]"], w: Float[Array, "[m/tp] n"]) -> Float[Array, " n"]:
    return jax.lax.pmean((x @ w).mean(0), "dp")


@pair
def partial_manual(mesh: Mesh) -> Pair:
    options = {"mesh": mesh, "axis_names": {"dp"}}
    by_hand = jax.shard_map(over_dp, in_specs=(P("dp", None), P(None, None)), out_specs=P(None), **options)
    return Pair(by_hand, typed_shard_map(over_dp, **options), (numbers(8, 16), numbers(16, 4)))


def repeatedly(x: Float[Array, "[b/dp] m"], ws: Float[Array, "layers m [m/tp]"]) -> Float[Array, "[b/dp] m"]:
    def layer(x: Any, w: Any) -> Any:
        return jax.lax.all_gather(jnp.tanh(x @ w), "tp", axis=1, tiled=True, to="invarying"), None

    return jax.lax.scan(layer, x, ws)[0]


@pair
def scan_inside(mesh: Mesh) -> Pair:
    by_hand = jax.shard_map(
        repeatedly, mesh=mesh, in_specs=(P("dp", None), P(None, None, "tp")), out_specs=P("dp", None)
    )
    return Pair(by_hand, typed_shard_map(repeatedly, mesh=mesh), (numbers(8, 16), numbers(3, 16, 16)))


def columns(x: Float[Array, "[b/dp] m"], w: Float[Array, "m [ff/tp]"]) -> Float[Array, "[b/dp] [ff/tp]"]:
    return jnp.sin(x @ w)


def around(inner: Callable[..., Any]) -> Callable[..., Any]:
    def rows(x: Float[Array, "[b/dp] m"], w: Float[Array, "m [ff/tp]"]) -> Float[Array, "[b/dp] [ff/tp]"]:
        return inner(x * 2, w)

    return rows


@pair
def nested(mesh: Mesh) -> Pair:
    inner = jax.shard_map(
        columns, mesh=None, axis_names={"tp"}, in_specs=(P(None, None), P(None, "tp")), out_specs=P(None, "tp")
    )
    options = {"mesh": mesh, "axis_names": {"dp"}}
    by_hand = jax.shard_map(around(inner), in_specs=(P("dp", None), P(None, None)), out_specs=P("dp", None), **options)
    typed = typed_shard_map(around(typed_shard_map(columns, axis_names={"tp"})), **options)
    return Pair(by_hand, typed, MLP_ARGS[:2])


@pair
def abstract_mesh(mesh: Mesh) -> Pair:
    by_hand = jax.shard_map(mlp, mesh=mesh.abstract_mesh, **MLP_SPECS)
    shardings = (NamedSharding(mesh, spec) for spec in MLP_SPECS["in_specs"])
    args = tuple(jax.device_put(x, sharding) for x, sharding in zip(MLP_ARGS, shardings, strict=True))
    return Pair(by_hand, typed_shard_map(mlp, mesh=mesh.abstract_mesh), args)


def scaled(
    x: Float[Array, "[b/dp] m"], scale: Float[Array, " m"], power: int = 2, *, bias: Float[Array, ""]
) -> Float[Array, "[b/dp] m"]:
    return (x * scale) ** power + bias


@pair
def keyword_and_default(mesh: Mesh) -> Pair:
    # jax.shard_map takes no keywords, so by hand they become positions again.
    mapped = jax.shard_map(
        lambda x, scale, bias: scaled(x, scale, bias=bias),
        mesh=mesh,
        in_specs=(P("dp", None), P(None), P()),
        out_specs=P("dp", None),
    )
    typed = typed_shard_map(scaled, mesh=mesh)
    args = (numbers(8, 16), numbers(16), np.float32(3))
    return Pair(mapped, lambda x, scale, bias: typed(x, scale=scale, bias=bias), args)


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, gradient: (jnp.clip(gradient, -1, 1),))


def clipped_loss(x: Float[Array, "[b/dp] m"], w: Float[Array, "m [ff/tp]"]) -> Float[Array, ""]:
    return jax.lax.psum((clipped(x @ w) ** 2).sum(), ("dp", "tp"))


@pair
def custom_vjp_inside(mesh: Mesh) -> Pair:
    by_hand = jax.shard_map(clipped_loss, mesh=mesh, in_specs=(P("dp", None), P(None, "tp")), out_specs=P())
    return Pair(jax.grad(by_hand, 1), jax.grad(typed_shard_map(clipped_loss, mesh=mesh), 1), MLP_ARGS[:2])


def remade_loss(x: Float[Array, "[b/dp] m"], w: Float[Array, "m [ff/tp]"]) -> Float[Array, ""]:
    return jax.lax.psum(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x @ w)))(x).sum(), ("dp", "tp"))


@pair
def checkpoint_around_and_inside(mesh: Mesh) -> Pair:
    by_hand = jax.shard_map(remade_loss, mesh=mesh, in_specs=(P("dp", None), P(None, "tp")), out_specs=P())
    typed = typed_shard_map(remade_loss, mesh=mesh)
    return Pair(jax.grad(jax.checkpoint(by_hand), 1), jax.grad(jax.checkpoint(typed), 1), MLP_ARGS[:2])


@pair
def vmap_around(mesh: Mesh) -> Pair:
    args = (numbers(3, 8, 16), *MLP_ARGS[1:])
    in_axes = (0, None, None)
    by_hand = jax.vmap(jax.shard_map(mlp, mesh=mesh, **MLP_SPECS), in_axes)
    return Pair(by_hand, jax.vmap(typed_shard_map(mlp, mesh=mesh), in_axes), args)


def dropped(key: Key[Array, ""], x: Float[Array, "[b/dp] m"]) -> Float[Array, "[b/dp] m"]:
    key = jax.random.fold_in(key, jax.lax.axis_index("dp"))
    return jnp.where(jax.random.bernoulli(key, shape=x.shape), x, 0)


@pair
def random_key(mesh: Mesh) -> Pair:
    by_hand = jax.shard_map(dropped, mesh=mesh, in_specs=(P(), P("dp", None)), out_specs=P("dp", None))
    return Pair(by_hand, typed_shard_map(dropped, mesh=mesh), (jax.random.key(0), numbers(8, 16)))


@pair
def without_check_vma(mesh: Mesh) -> Pair:
    by_hand = jax.shard_map(mlp, mesh=mesh, check_vma=False, **MLP_SPECS)
    return Pair(by_hand, typed_shard_map(mlp, mesh=mesh, check_vma=False), MLP_ARGS)


@pair
def training_step(mesh: Mesh) -> Pair:
    return training(mesh, layers=2)


def quickstart(mesh: Mesh) -> Pair:
    """The quickstart's step, which has its collectives from patterns: another text than that by hand."""
    return Pair(*quickstart_step.steps(mesh))


@cache
def transformer(mesh: Mesh) -> Pair:
    """The transformer of the examples, on a mesh with its axes: FSDP x tensor x sequence parallel."""
    return Pair(*transformer_by_hand.steps(mesh))


def sent(f: Callable[..., Any], args: tuple[Any, ...]) -> Counter[tuple[str, str, int, str]]:
    """The collectives of a lowered program: their names, groups of devices, and operands' sizes and dtypes."""
    found: Counter[tuple[str, str, int, str]] = Counter()

    def walk(operation: Any) -> None:
        name = operation.name.removeprefix("stablehlo.")
        if name in COLLECTIVES:
            groups = str(operation.attributes["replica_groups"])
            *dims, dtype = str(operation.operands[0].type).removeprefix("tensor<").removesuffix(">").split("x")
            found[name, groups, math.prod(map(int, dims)), dtype] += 1
        for region in operation.regions:
            for block in region:
                for inner in block:
                    walk(inner.operation)

    walk(lowered(f, args).compiler_ir().operation)
    return found


def training(mesh: Mesh, layers: int, form: forms.Form = forms.AT_BOUNDARY, is_scanned: bool = False) -> Pair:
    """A training step of a transformer of so many layers, by hand and in another form."""
    by_hand, typed = (forms.step(each, mesh, layers, is_scanned) for each in (forms.BY_HAND, form))
    return Pair(by_hand, typed, unrolled.arguments(layers, is_scanned))


def inference(mesh: Mesh, layers: int, form: forms.Form = forms.AT_BOUNDARY, is_scanned: bool = False) -> Pair:
    """Its forward pass."""
    by_hand, typed = (forms.forward(each, mesh, layers, is_scanned) for each in (forms.BY_HAND, form))
    return Pair(by_hand, typed, unrolled.arguments(layers, is_scanned)[:2])


def whole_training(mesh: Mesh, layers: int, form: forms.Form = forms.AT_BOUNDARY) -> Pair:
    """A step of Adam, with its layers scanned and rematerialised."""
    by_hand, typed = (forms.whole_step(each, mesh, layers) for each in (forms.BY_HAND, form))
    weights, *batch = unrolled.arguments(layers, is_scanned=True)
    return Pair(by_hand, typed, (forms.state_of(weights), *batch))
