"""Programs that a static checker refuses, at the lines that say so."""

from collections.abc import Callable

import jax

from typedshmap import Array, Float, check, size, typed, typed_jit, typed_shard_map


@typed_shard_map
def mlp(x: Float[Array, "[batch/dp] model"], w: Float[Array, "model [ff/tp]"]) -> Float[Array, "[batch/dp] [ff/tp]"]:
    return jax.nn.relu(x @ w)


@typed
def helper(x: Float[Array, "n d"], scale: float = 1.0) -> Float[Array, "n d"]:
    return x * scale


@typed_jit(static_argnames="by")
def times(x: Float[Array, "[b/dp] m"], *, by: int) -> Float[Array, "[b/dp] m"]:
    return x * by


def wrong_compiled_calls(x: Array) -> None:
    times(x, 2)  # wrong: by keyword only
    times(x, by="2")  # wrong: no int
    times(by=2)  # wrong: an argument is missing
    times.lowered(x, by=2)  # wrong: no such method


def wrong_calls(x: Array) -> None:
    mlp(x)  # wrong: an argument is missing
    mlp(x, x, x)  # wrong: one too many
    mlp(x, v=x)  # wrong: no such argument
    mlp(x, "w")  # wrong: no array
    helper(x, scale="2")  # wrong: no float
    size(3)  # wrong: no name


def wrong_results(x: Array) -> str:
    unwrapped: Callable[[int], int] = mlp  # wrong: another signature
    del unwrapped
    return check(x, "n d")  # wrong: an array, not a string


typed_shard_map(mlp, in_spec=None)  # wrong: no such keyword
typed_shard_map(mlp, check_vma="no")  # wrong: no bool
typed_jit(mlp, mesh=8)  # wrong: no mesh
