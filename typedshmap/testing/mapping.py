"""A helper that ``typed`` made, as a function that is mapped over a whole mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _jax
from ..decorated import Decorated
from ..hints.axes import AxisRules, Naming
from ..hints.binding import Typed
from ..hints.nodes import array_hints
from ..shard_map import typed_shard_map


def mapped(f: Callable[..., Any], made_of: Decorated, mesh: _jax.AnyMesh | None = None) -> Callable[..., Any]:
    """A helper mapped over all axes of a mesh, as it is called in a manual region.

    Args:
      f: the helper.
      made_of: what it is made of.
      mesh: the mesh; None for that of the call. A sum that is owed may leave it over Explicit axes only.
    """
    naming = made_of.naming
    rules = None if naming.rules is None else AxisRules(Naming(rules=naming.rules))
    return typed_shard_map(f, mesh=mesh, axes={name: names or None for name, names in naming.aliases}, rules=rules)


def has_marks(typed: Typed) -> bool:
    """Whether hints bear marks, so that they speak of shards."""
    nodes = (*typed.parameters.values(), *((typed.result,) if typed.result is not None else ()))
    return any(hint.spec.marks for node in nodes for hint in array_hints(node))


def is_of_regions(error: Exception) -> bool:
    """Whether a function says by an error that it speaks of manual axes, outside of a manual region."""
    return "unbound axis name" in str(error) or "is not manual here" in str(error)
