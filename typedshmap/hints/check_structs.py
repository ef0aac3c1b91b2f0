"""Check values that have ShapeDtypeStructs instead of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .. import _jax
from .check_tree import TreeCheck, check_arguments
from .context import MeshContext
from .fitting import Fit
from .signature import BoundArgument


def check_as_traced(check: Callable[[Any], TreeCheck], value: Any, has_shardings: bool) -> TreeCheck:
    """Check a value with ShapeDtypeStructs by their tracers, with the shardings of the structs or without."""
    if not any(isinstance(leaf, _jax.array.SHAPES) for leaf in _jax.tree.leaves(value)):
        return check(value)
    leaves, structure = jax.tree_util.tree_flatten(value)
    structs = {at: leaf for at, leaf in enumerate(leaves) if isinstance(leaf, _jax.array.SHAPES)}
    checks: list[TreeCheck] = []

    def trace(*tracers: Any) -> None:
        traced = dict(zip(structs, tracers, strict=True))
        by_tracer = {id(tracer): structs[at] for at, tracer in traced.items()}
        checked = check(structure.unflatten([traced.get(at, leaf) for at, leaf in enumerate(leaves)]))
        checked.given, checked.fitting = (), None  # no tracer outlives the trace
        checked.leaves = [leaf._replace(value=by_tracer.get(id(leaf.value), leaf.value)) for leaf in checked.leaves]
        checks.append(checked)

    given = structs.values()
    jax.eval_shape(trace, *(given if has_shardings else (jax.ShapeDtypeStruct(s.shape, s.dtype) for s in given)))
    return checks[0]


def check_arguments_as_traced(
    given: Sequence[BoundArgument],
    named: Mapping[str, Any],
    context: MeshContext,
    fits: list[Fit] | None = None,
) -> TreeCheck:
    """`check_arguments` for arguments that may have ShapeDtypeStructs."""

    def check(values: list[Any]) -> TreeCheck:
        traced = [(*argument[:3], value) for argument, value in zip(given, values, strict=True)]
        return check_arguments(traced, named, context, fits)

    checked = check_as_traced(check, [value for *_, value in given], has_shardings=True)
    checked.given = given
    return checked
