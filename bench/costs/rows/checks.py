"""What checks cost, ours and those of jaxtyping with beartype, on the helper functions of one model."""

from functools import cache, partial
from typing import Any

import checked
import jax
import jax.numpy as jnp
import jaxtyping
import unrolled
from beartype import beartype
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, check, typed, typed_shard_map

from ..benchmark import Benchmark, Result, benchmark, of_counts, of_times, over
from ..meshes import make_mesh
from ..timing import WALL, Effort, take_turns
from ..tracing import calls, calls_traced, traced

GROUP = "checks"
LAYERS = 12
UNCHECKED = "no checks, jax.shard_map"
JAXTYPING = "jaxtyping + beartype"
Ours, OurWeight = Float[Array, "[b/dp] d"], Float[Array, "d [f/tp]"]
Theirs, TheirWeight = jaxtyping.Float[Array, "b d"], jaxtyping.Float[Array, "d f"]


@cache
def _arguments() -> tuple[Any, Any]:
    weights, tokens, _ = unrolled.arguments(LAYERS)
    return weights, tokens


def _plain(check: checked.Check = lambda f: f) -> checked.Function:
    return checked.with_specs(make_mesh(4, 2), LAYERS, check)


def _ours() -> checked.Function:
    return checked.with_hints(make_mesh(4, 2), checked.by_us)


@benchmark(GROUP, "checks, noise: a trace against itself", over(1.03), is_noise=True)
def noise(effort: Effort) -> Result:
    """The model without checks on both sides; what it is off 1 is the machine's doing."""
    return of_times(traced(_plain(), _plain(), _arguments(), effort))


@benchmark(GROUP, "helpers checked by our hints, trace", over(1.1), UNCHECKED)
def ours(effort: Effort) -> Result:
    """`typed` helpers under `typed_shard_map`: shapes, dtypes, sharding, varying, layouts and partial sums."""
    return of_times(traced(_ours(), _plain(), _arguments(), effort))


@benchmark(GROUP, "helpers checked by jaxtyping + beartype, trace", None, UNCHECKED)
def by_jaxtyping(effort: Effort) -> Result:
    """The nearest alternative, `@jaxtyped(typechecker=beartype)` on the shapes of shards: shapes and dtypes."""
    return of_times(traced(_plain(checked.by_jaxtyping), _plain(), _arguments(), effort))


@benchmark(GROUP, "helpers checked by our hints, against jaxtyping's", over(1.05), JAXTYPING)
def both(effort: Effort) -> Result:
    """Both of the above against each other: what is also checked by us has to come at no price worth the name."""
    return of_times(traced(_ours(), _plain(checked.by_jaxtyping), _arguments(), effort))


@benchmark(GROUP, "helpers checked by our hints, calls in a trace", over(1.1), UNCHECKED)
def ours_in_calls(effort: Effort) -> Result:
    """The calls that Python makes while it is traced, against those without checks."""
    return of_counts(*calls_traced(_ours(), _plain(), _arguments()))


@benchmark(GROUP, "helpers checked by our hints, against jaxtyping's, calls", over(1.05), JAXTYPING)
def both_in_calls(effort: Effort) -> Result:
    """And against those with jaxtyping's."""
    return of_counts(*calls_traced(_ours(), _plain(checked.by_jaxtyping), _arguments()))


def _at_rest() -> tuple[Any, Any, Any]:
    """The check of an array by us and by jaxtyping, and the array, placed."""
    mesh = make_mesh(4, 2)
    array = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("dp")))

    @jaxtyping.jaxtyped(typechecker=beartype)
    def jaxtyped(x: Theirs) -> None: ...

    return partial(check, hint=Ours), jaxtyped, array


@benchmark(GROUP, "check of an array outside of jit", over(1.2), JAXTYPING)
def at_rest(effort: Effort) -> Result:
    """`check` of a placed array, dtype, shape and sharding, against a function whose argument jaxtyping checks."""
    ours, other, array = _at_rest()
    return of_times(take_turns(partial(ours, array), partial(other, array), effort, WALL, is_long=False))


@benchmark(GROUP, "check of an array outside of jit, calls", over(0.467), JAXTYPING)
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


@benchmark(GROUP, "call of a helper checked by our hints, calls", over(0.392), JAXTYPING)
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
    noise,
    ours,
    ours_in_calls,
    by_jaxtyping,
    both,
    both_in_calls,
    at_rest,
    at_rest_in_calls,
    helper_in_calls,
)
