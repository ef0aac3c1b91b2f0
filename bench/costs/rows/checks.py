"""What one check costs, ours and that of jaxtyping with beartype; `formed` has those of a model's functions."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
from beartype import beartype
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, check, typed, typed_shard_map

from ..benchmark import Benchmark, Result, benchmark, counted, of_counts, of_times, over
from ..meshes import make_mesh
from ..timing import WALL, Effort, take_turns
from ..tracing import calls

GROUP = "checks"
JAXTYPING = "jaxtyping + beartype"
Ours, OurWeight = Float[Array, "[b/dp] d"], Float[Array, "d [f/tp]"]
Theirs, TheirWeight = jaxtyping.Float[Array, "b d"], jaxtyping.Float[Array, "d f"]


def _at_rest() -> tuple[Any, Any, Any]:
    """The check of an array by us and by jaxtyping, and the array, placed."""
    mesh = make_mesh(4, 2)
    array = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("dp")))

    @jaxtyping.jaxtyped(typechecker=beartype)
    def jaxtyped(x: Theirs) -> None: ...

    return partial(check, hint=Ours), jaxtyped, array


@benchmark(GROUP, "check of an array outside of jit", over(1), JAXTYPING)
def at_rest(effort: Effort) -> Result:
    """`check` of a placed array, dtype, shape and sharding, against a function whose argument jaxtyping checks."""
    ours, other, array = _at_rest()
    return of_times(take_turns(partial(ours, array), partial(other, array), effort, WALL, is_long=False))


@counted(GROUP, "check of an array outside of jit, calls", JAXTYPING)
def at_rest_in_calls(effort: Effort) -> Result:
    """The same by the calls that Python makes."""
    ours, other, array = _at_rest()
    return of_counts(calls(partial(ours, array)), calls(partial(other, array)))


def _calls_of_helper(helper: Any) -> int:
    """The calls of a helper of five arrays where it is called again in a body that is traced."""
    counted: list[int] = []

    def body(a: Ours, b: Ours, c: Ours, w: OurWeight, v: OurWeight) -> Ours:
        counted.append(calls(partial(helper, a, b, c, w, v)))
        return a

    wide, long = jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((16, 32), "float32")
    jax.eval_shape(typed_shard_map(body, mesh=make_mesh(4, 2)), wide, wide, wide, long, long)
    return counted[0]


@counted(GROUP, "call of a helper checked by our hints, calls", JAXTYPING)
def helper_in_calls(effort: Effort) -> Result:
    """A `typed` helper of five arrays, called again while a body is traced, against jaxtyping's."""

    @typed
    def ours(a: Ours, b: Ours, c: Ours, w: OurWeight, v: OurWeight) -> Ours:
        return a

    @jaxtyping.jaxtyped(typechecker=beartype)
    def other(a: Theirs, b: Theirs, c: Theirs, w: TheirWeight, v: TheirWeight) -> Theirs:
        return a

    return of_counts(_calls_of_helper(ours), _calls_of_helper(other))


ROWS: tuple[Benchmark, ...] = (
    at_rest,
    at_rest_in_calls,
    helper_in_calls,
)
