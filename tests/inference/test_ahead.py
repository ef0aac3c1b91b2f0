"""What stands in a program of what is claimed: nothing in the body itself; in a loop that is transformed what does not
follow from the operands of the value's equation, and in any other all of it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh

from typedshmap import Array, Float, ShardingError, check, typed, typed_shard_map
from typedshmap._jax.jaxpr import all_equations
from typedshmap._jax.versions import DROPS_UNUSED
from typedshmap.inference.interpreter import CLAIM

X = Float[Array, "[b/dp] d"]
Function = Callable[..., Any]
numbers = np.arange(32, dtype=np.float32).reshape(8, 4) / 32

# The programs are about other things, and do not all mean something.
pytestmark = pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")


@typed
def gated(y: X, gain: Float[Array, "d"]) -> X:
    return jax.nn.silu(y) * gain


FOLLOWS: dict[str, Function] = {
    "cast": lambda y: y.astype(jnp.float16),
    "scaled": lambda y: y * 2,
    "of two": lambda y: y + y,
    "reversed": lambda y: lax.rev(y, (1,)),
}
DOES_NOT: dict[str, Function] = {
    "sorted": lambda y: jnp.sort(y, axis=0),
    "looked up": lambda y: y[jnp.arange(2)],
    "of a loop": lambda y: lax.fori_loop(0, 2, lambda _, z: z * 2, y),
    "softmax": jax.nn.softmax,
    "chosen": lambda y: jnp.where(y > 0, y, 0),
    "turned twice": lambda y: (y.T * 3).T,
    "put together": lambda y: jnp.concatenate([y[:, 2:], y[:, :2]], axis=1),
}
CHAINS = {name: f for name, f in DOES_NOT.items() if name not in ("sorted", "looked up", "of a loop")}


def claims(f: Function, *args: Any) -> int:
    """How many claims stand in the traced program."""
    program = jax.make_jaxpr(lambda *args: f(*args))(*args)
    return sum(eqn.primitive.name == CLAIM for eqn in all_equations(program))


def over(mesh: Mesh, body: Function, **options: Any) -> Function:
    return typed_shard_map(body, mesh=mesh, in_types=(X,), out_types=X, **options)


def scanned(step: Function, is_transformed: bool = True) -> Function:
    """A body that checks what it carries, and then what is made of that."""

    def body(x: Any) -> Any:
        return lax.scan(lambda y, _: (step(check(y, "[b/dp] d")), None), x, None, length=2)[0]

    return (lambda x: jax.vmap(body)(x[None])[0]) if is_transformed else body


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("made", FOLLOWS)
def test_what_follows_in_a_loop_is_no_claim(mesh: Mesh, made: str, check_vma: bool):
    def step(y: Any) -> Any:
        return check(FOLLOWS[made](y), "[b/dp] d").astype(y.dtype)

    assert claims(over(mesh, scanned(step), check_vma=check_vma), numbers) == 1


def test_a_loop_that_is_not_transformed_has_all_claims(mesh: Mesh):
    def step(y: Any) -> Any:
        return check(FOLLOWS["scaled"](y), "[b/dp] d")

    assert claims(over(mesh, scanned(step, is_transformed=False)), numbers) == 2


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("made", DOES_NOT)
def test_what_does_not_follow_is_a_claim_in_the_loop(mesh: Mesh, made: str, check_vma: bool):
    def step(y: Any) -> Any:
        return check(DOES_NOT[made](y), "[b/dp] d")

    assert claims(over(mesh, scanned(step), check_vma=check_vma), numbers) == 2


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("is_transformed", [True, False])
@pytest.mark.parametrize("made", FOLLOWS | CHAINS)
def test_what_contradicts_what_follows_is_refused(mesh: Mesh, made: str, is_transformed: bool, check_vma: bool):
    def step(y: Any) -> Any:
        check((FOLLOWS | CHAINS)[made](y).T, "[_/dp] _")
        return y

    with pytest.raises(ShardingError, match="is sharded over 'dp' in dim 1"):
        jax.eval_shape(over(mesh, scanned(step, is_transformed), check_vma=check_vma), numbers)


@pytest.mark.skipif(DROPS_UNUSED, reason="before jax 0.10.2 each claim is an operation of the program")
@pytest.mark.parametrize("check_vma", [True, False])
def test_no_claim_is_in_a_body(mesh: Mesh, check_vma: bool):
    def body(x: Any) -> Any:
        y = gated(jnp.sort(x, axis=0), jnp.ones(4))
        return check(jax.grad(lambda z: check(z[jnp.arange(2)], "[b/dp] d").sum())(y), "[b/dp] d")

    assert claims(over(mesh, body, check_vma=check_vma), numbers) == 0


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("around", [lambda f: f, jax.checkpoint, lambda f: jax.grad(lambda x: f(x).sum())])
def test_a_claim_beside_a_body_is_judged_where_it_was_written(mesh: Mesh, around: Function, check_vma: bool):
    def body(x: Any) -> Any:
        y = jnp.tanh(x)
        check(y.T, "[_/dp] _")
        return y

    with pytest.raises(ShardingError) as raised:
        jax.eval_shape(lambda x: around(over(mesh, body, check_vma=check_vma))(x), numbers)
    assert f"At: test_ahead.py:{body.__code__.co_firstlineno + 2} (" in str(raised.value)
