"""What is said of a program where it is traced, on an abstract mesh: nothing runs."""

import warnings

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType
from registry import ARGUMENTS, Program

from typedshmap import SuspectWarning, TypedShmapError, typed_shard_map


def struct(name: str) -> jax.ShapeDtypeStruct:
    """The type of a global argument."""
    hint, shape = ARGUMENTS[name]
    if name == "key":
        return jax.eval_shape(lambda: jax.random.key(0))
    return jax.ShapeDtypeStruct(shape, jnp.int32 if hint.__name__.startswith("Int") else jnp.float32)


def messages_of(program: Program, check_vma: bool, c: float | None, sizes: dict[str, int] | None = None) -> list[str]:
    """The message of the error by which a program is refused, or those of what is suspected of it.

    Raises:
      Exception: what is neither, as where JAX refuses the program.
    """
    sizes = sizes or program.mesh_sizes(c)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
    typed = typed_shard_map(
        program.fresh(c), mesh=mesh, check_vma=check_vma, in_types=program.in_types, out_types=program.out_types
    )
    with warnings.catch_warnings(record=True, category=SuspectWarning, action="always") as suspects:
        try:
            jax.eval_shape(typed, *map(struct, program.arguments))
        except TypedShmapError as error:
            return [f"{type(error).__name__}: {error}"]
    return [str(suspect.message) for suspect in suspects]
