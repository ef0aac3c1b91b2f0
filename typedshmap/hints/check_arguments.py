"""Check arguments that may be ShapeDtypeStructs; and what is known of them and of a result before a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .. import _jax
from ..errors.failures import Failure, Subject
from ..notation.layout import Layout
from . import structure
from .check_tree import BoundArgument, TreeCheck, check_arguments
from .context import MeshContext
from .fitting import CheckedLeaf, Fit
from .structure import ArrayLeaf, Node


def array_leaves(given: Sequence[BoundArgument]) -> list[CheckedLeaf]:
    """The unchecked leaves of arguments that hold arrays, whose mesh may be known."""
    arrays = ((subject, value) for _, subject, node, value in given if structure.holds_arrays(node))
    return [CheckedLeaf(leaf, None, subject) for subject, value in arrays for leaf in _jax.tree.leaves(value)]


def check_as_traced(check: Callable[[Any], TreeCheck], value: Any, has_shardings: bool) -> TreeCheck:
    """Check a value with ShapeDtypeStructs instead of arrays, each as its tracer.

    Args:
      check: checks a value; the structs replace the tracers in its leaves.
      value: the value.
      has_shardings: whether to check the structs' shardings, too.
    """
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
    has_shardings: bool = True,
) -> TreeCheck:
    """`check_arguments` for arguments that may have ShapeDtypeStructs."""

    def check(values: list[Any]) -> TreeCheck:
        traced = [(*argument[:3], value) for argument, value in zip(given, values, strict=True)]
        return check_arguments(traced, named, context, fits)

    checked = check_as_traced(check, [value for *_, value in given], has_shardings)
    checked.given = given
    return checked


def unknown_axes(node: Node, region: MeshContext, subject: Subject) -> list[Failure]:
    """The failures of hints that name unknown mesh axes, which do not need a value."""
    parts = [("", node)] if isinstance(node, ArrayLeaf) else structure.walk(node)
    return [
        Failure(layout, subject.at(path), part.hint.text)
        for path, part in parts
        if isinstance(part, ArrayLeaf) and not isinstance(layout := region.layout(part.hint), Layout)
    ]
