"""What types say of a program, and the theory of degrees: it is traced on abstract meshes, and nothing runs."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from registry import ARGUMENTS, Program

from typedshmap import SuspectWarning, TypedShmapError, _jax, typed_shard_map
from typedshmap.errors.failures import Failure, Subject
from typedshmap.inference.control_flow import fact_of_spec
from typedshmap.inference.kinds.region import Kinds
from typedshmap.inference.kinds.suspects import suspects


def struct(name: str) -> jax.ShapeDtypeStruct:
    """The type of a global argument."""
    hint, shape = ARGUMENTS[name]
    if name == "key":
        return jax.eval_shape(lambda: jax.random.key(0))
    return jax.ShapeDtypeStruct(shape, jnp.int32 if hint.__name__.startswith("Int") else jnp.float32)


def spec_of(hint: Any) -> PartitionSpec:
    """What a hint says of an array, as JAX takes it."""
    axes = [dim.partition("/")[2].rstrip("]") for dim in hint.dim_str.split() if dim[0] not in "+-~"]
    return PartitionSpec(*(tuple(dim.split(",")) if dim else None for dim in axes))


def messages_of(
    program: Program,
    check_vma: bool,
    c: float | None,
    sizes: dict[str, int] | None = None,
    has_cures: bool = False,
) -> list[str]:
    """The message of the error by which types refuse a program, or those of what the theory suspects of it.

    Raises:
      Exception: what is neither, as where JAX refuses the program.
    """
    sizes = sizes or program.mesh_sizes(c)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
    typed = typed_shard_map(
        program.fresh(c), mesh=mesh, check_vma=check_vma, in_types=program.in_types, out_types=program.out_types
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SuspectWarning)
        try:
            jax.eval_shape(typed, *map(struct, program.arguments))
        except TypedShmapError as error:
            return [f"{type(error).__name__}: {error}"]
    sentences = [failure.words() for failure in _suspects(program, check_vma, c, mesh, has_cures)]
    return [sentence.problem + (f"\nHint: {sentence.cure}" if sentence.cure else "") for sentence in sentences]


def _suspects(program: Program, check_vma: bool, c: float | None, mesh: AbstractMesh, has_cures: bool) -> list[Failure]:
    """What the theory suspects of the same program in a plain region."""
    in_specs = tuple(map(spec_of, program.in_types))
    out_specs = jax.tree.map(spec_of, program.hint, is_leaf=lambda hint: hasattr(hint, "dim_str"))
    structs = [*map(struct, program.arguments)]
    function = program.fresh(c)

    def traced(on: AbstractMesh) -> Any:
        mapped = jax.shard_map(function, mesh=on, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)
        return _jax.regions.traced_on(on, mapped, structs, in_specs)

    body = traced(mesh)
    if body is None:  # what claims something that only a typed region can
        return []
    variables, axes = _jax.jaxpr.open_jaxpr(body).outvars, frozenset(mesh.axis_names)
    operands = _jax.jaxpr.open_jaxpr(body).invars
    entering = [
        fact_of_spec(spec, len(var.aval.shape), axes)
        for spec, var in zip(in_specs, operands[-len(in_specs) :], strict=True)
    ]
    specs = jax.tree.leaves(out_specs, is_leaf=lambda spec: isinstance(spec, PartitionSpec))
    results = {
        at: _jax.array.spec_entries(spec, len(var.aval.shape))
        for at, (spec, var) in enumerate(zip(specs, variables, strict=True))
    }
    kinds = Kinds(
        body,
        entering,
        results,
        dict(mesh.shape),
        retrace=lambda axis, size: traced(_jax.regions.other_mesh(mesh, axis, size)),
        function=function,
    )
    if not has_cures:  # they cost more than all else
        kinds.cures = dict.fromkeys(mesh.shape)
    found = suspects(kinds, [axis for axis, size in mesh.shape.items() if size > 1])
    return [Failure(each.failure, Subject("whole", "body"), place=each.place) for each in found]
