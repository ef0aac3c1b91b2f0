"""Check the arguments of a call together; arrays may be ShapeDtypeStructs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax

from .. import _jax
from ..errors.failures import Failure, Subject
from ..notation.layout import Layout
from . import structure
from .check_tree import CheckedLeaf, TreeCheck, with_other_leaves
from .context import MeshContext
from .structure import ArrayLeaf, Node

C = TypeVar("C", bound=TreeCheck)

# The parameter, the subject in messages, the hint and the value.
BoundArgument = tuple[str, Subject, Node, Any]


@dataclass
class CheckedArguments(TreeCheck):
    """The arguments of a call, checked.

    Attributes:
      given: the arguments.
      spans: the range of each argument's leaves among all leaves.
    """

    given: Sequence[BoundArgument] = ()
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def by_argument(self) -> Iterator[tuple[BoundArgument, list[CheckedLeaf]]]:
        """Each argument with its leaves."""
        for argument, (first, last) in zip(self.given, self.spans, strict=True):
            yield argument, self.leaves[first:last]

    def with_leaves(
        self, leaves: list[CheckedLeaf], copies_containers: bool = False
    ) -> Iterator[tuple[str, Subject, Any]]:
        """The arguments that change with other leaves, for `BoundCall.with_arguments`.

        Args:
          leaves: the leaves of all arguments.
          copies_containers: whether to rebuild a container even if its leaves are the same.
        """
        if leaves is self.leaves:
            return
        for (name, subject, node, value), (first, last) in zip(self.given, self.spans, strict=True):
            new = with_other_leaves(value, self.leaves[first:last], leaves[first:last])
            is_static = isinstance(node, structure.BareTree) and all(leaf.hint is None for leaf in leaves[first:last])
            if new is value and copies_containers and not is_static and structure.holds_arrays(node):
                new = _jax.tree.unflatten_like(value, [leaf.value for leaf in leaves[first:last]])
            if new is not value:
                yield name, subject, new


def check_arguments(given: Sequence[BoundArgument], named: Mapping[str, Any], context: MeshContext) -> CheckedArguments:
    """Check the arguments of a call; the check has the failures.

    Args:
      given: the arguments.
      named: all arguments by name, for sizes like ``{self.heads}``.
      context: the mesh context.
    """
    checked = CheckedArguments(context, named, given=given)
    for _, subject, node, value in given:
        first = len(checked.leaves)
        checked.visit(node, value, subject)
        checked.spans.append((first, len(checked.leaves)))
    checked.check_deferred()
    return checked


def array_leaves(given: Sequence[BoundArgument]) -> list[CheckedLeaf]:
    """The unchecked leaves of arguments that hold arrays, whose mesh may be known."""
    arrays = ((subject, value) for _, subject, node, value in given if structure.holds_arrays(node))
    return [CheckedLeaf(leaf, None, subject) for subject, value in arrays for leaf in _jax.tree.leaves(value)]


def check_as_traced(check: Callable[[Any], C], value: Any, has_shardings: bool) -> C:
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
    checks: list[C] = []

    def trace(*tracers: Any) -> None:
        traced = dict(zip(structs, tracers, strict=True))
        by_tracer = {id(tracer): structs[at] for at, tracer in traced.items()}
        checked = check(structure.unflatten([traced.get(at, leaf) for at, leaf in enumerate(leaves)]))
        checked.leaves = [leaf._replace(value=by_tracer.get(id(leaf.value), leaf.value)) for leaf in checked.leaves]
        checks.append(checked)

    given = structs.values()
    jax.eval_shape(trace, *(given if has_shardings else (jax.ShapeDtypeStruct(s.shape, s.dtype) for s in given)))
    return checks[0]


def check_arguments_as_traced(
    given: Sequence[BoundArgument], named: Mapping[str, Any], context: MeshContext, has_shardings: bool
) -> CheckedArguments:
    """`check_arguments` for arguments that may have ShapeDtypeStructs."""

    def check(values: list[Any]) -> CheckedArguments:
        traced = [(*argument[:3], value) for argument, value in zip(given, values, strict=True)]
        checked = check_arguments(traced, named, context)
        checked.given = given  # no tracer outlives the trace
        return checked

    return check_as_traced(check, [value for *_, value in given], has_shardings)


def unknown_axes(node: Node, region: MeshContext, subject: Subject) -> list[Failure]:
    """The failures of hints that name unknown mesh axes, which do not need a value."""
    parts = [("", node)] if isinstance(node, ArrayLeaf) else structure.walk(node)
    return [
        Failure(layout, subject.at(path), part.hint.text)
        for path, part in parts
        if isinstance(part, ArrayLeaf) and not isinstance(layout := region.layout(part.hint), Layout)
    ]
