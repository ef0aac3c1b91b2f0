"""Map a helper over a mesh, and the mesh axes that hints name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import _jax
from ...axis_names import AxisNaming, AxisRules
from ...errors import MeshAxisError
from ...hints.context import MeshContext, current_axis_naming
from ...hints.signature import HintedSignature
from ...introspection import DecoratedInfo
from ...notation.layout import Layout
from ...shard_map import typed_shard_map


def map_over_shards(
    f: Callable[..., Any], made_of: DecoratedInfo, mesh: _jax.mesh.AnyMesh | None = None
) -> Callable[..., Any]:
    """Map a helper over all axes of a mesh, by default that of the call, so that it is called in a manual region."""
    naming = made_of.naming
    rules = None if naming.rules is None else AxisRules(AxisNaming(rules=naming.rules))
    return typed_shard_map(f, mesh=mesh, axes={name: names or None for name, names in naming.aliases}, rules=rules)


def has_marks(typed: HintedSignature) -> bool:
    """Whether hints have marks, so that the function is one of manual regions."""
    return any(hint.spec.marks for hint in (*typed.argument_hints, *typed.result_hints))


def needs_manual_region(trace: Callable[[], Any]) -> bool:
    """Whether a helper cannot be traced with global arrays, since it uses manual axes; other errors are raised."""
    try:
        trace()
    except (NameError, MeshAxisError) as error:
        if "unbound axis name" not in str(error) and "is not manual here" not in str(error):
            raise
        return True
    return False


def axes_of_hints(made_of: DecoratedInfo, typed: HintedSignature) -> list[str]:
    """The mesh axes that a function's hints name, by the aliases and rules in force, in their order."""
    context, names = MeshContext.over(None, current_axis_naming(made_of.naming)), list[str]()
    for hint in (*typed.argument_hints, *typed.result_hints):
        layout = context.layout(hint)
        if isinstance(layout, Layout):
            sharded = [axis for axes in layout.dim_axes for axis in axes]
            names += [*sharded, *sorted(layout.axes - set(sharded))]
    return list(dict.fromkeys([*names, *sorted(made_of.axis_names)]))
