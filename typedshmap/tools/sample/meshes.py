"""Read a mesh that a user writes down for a tool, and map a helper over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, cast

from jax.sharding import AbstractMesh

from ... import _jax
from ...axis_names import AxisNaming, AxisRules
from ...errors import MeshAxisError
from ...errors.phrases import excerpt
from ...hints.context import MeshContext, current_axis_naming
from ...hints.signature import HintedSignature
from ...introspection import DecoratedInfo
from ...meshes import MOST_DEVICES
from ...notation.layout import Layout
from ...shard_map import typed_shard_map


def map_over_shards(
    f: Callable[..., Any], made_of: DecoratedInfo, mesh: _jax.mesh.AnyMesh | None = None
) -> Callable[..., Any]:
    """Map a helper over all axes of a mesh, so that it is called in a manual region.

    Args:
      f: the helper.
      made_of: the options of its decorator.
      mesh: the mesh; None for that of the call. A result may be unreduced over Explicit axes only.
    """
    naming = made_of.naming
    rules = None if naming.rules is None else AxisRules(AxisNaming(rules=naming.rules))
    return typed_shard_map(f, mesh=mesh, axes={name: names or None for name, names in naming.aliases}, rules=rules)


def has_marks(typed: HintedSignature) -> bool:
    """Whether hints have marks, so that the function is one of manual regions."""
    return any(hint.spec.marks for hint in (*typed.argument_hints, *typed.result_hints))


def needs_manual_region(trace: Callable[[], Any]) -> bool:
    """Whether a helper cannot be traced with global arrays, since it uses manual axes.

    Args:
      trace: traces the helper; any other error is raised.
    """
    try:
        trace()
    except (NameError, MeshAxisError) as error:
        if "unbound axis name" not in str(error) and "is not manual here" not in str(error):
            raise
        return True
    return False


def axes_of_hints(made_of: DecoratedInfo, typed: HintedSignature) -> list[str]:
    """The mesh axes that a function's hints name, by the aliases and rules in force, in their order."""
    context, found = MeshContext.over(None, current_axis_naming(made_of.naming)), list[str]()
    for hint in (*typed.argument_hints, *typed.result_hints):
        layout = context.layout(hint)
        if isinstance(layout, Layout):
            sharded = [axis for axes in layout.dim_axes for axis in axes]
            found += [*sharded, *sorted(layout.axes - set(sharded))]
    return list(dict.fromkeys([*found, *sorted(made_of.axis_names)]))


def mesh_sizes(written: Any) -> dict[str, int] | None:
    """The sizes of mesh axes in a dict, or in a text like ``"dp=4,tp=2"``; None for any other value."""
    if isinstance(written, str):
        try:
            return parse_mesh(written)
        except ValueError:
            return None
    if not isinstance(written, Mapping) or not written:
        return None
    sizes = dict(cast("Mapping[Any, Any]", written))
    is_right = all(isinstance(name, str) and type(size) is int and size > 0 for name, size in sizes.items())
    return sizes if is_right and prod(sizes.values()) <= MOST_DEVICES else None


def parse_mesh(text: str) -> dict[str, int]:
    """The sizes of mesh axes in a text like ``"dp=4,tp=2"``.

    Raises:
      ValueError: for a text that cannot be read, with the reason.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, size = map(str.strip, part.partition("="))
        if not equals or not name:
            raise ValueError(f"'{excerpt(part)}' is not a name and a value, as in dp=4,tp=2")
        if name in sizes:
            raise ValueError(f"mesh axis '{name}' is there twice")
        # So many digits are too many in any case; Python does not read thousands of them.
        if not size.isdecimal() or (number := int(size[:12])) < 1:
            raise ValueError(f"mesh axis '{name}' has size '{excerpt(size)}'; write a number from 1 on")
        sizes[name] = number
    if not sizes:
        raise ValueError("no mesh axes; write them as in dp=4,tp=2")
    if prod(sizes.values()) > MOST_DEVICES:
        raise ValueError(f"a mesh has at most {MOST_DEVICES} devices")
    return sizes


def mesh_like(mesh: AbstractMesh, own: _jax.mesh.AnyMesh | None) -> AbstractMesh:
    """A mesh whose axes have the types that a function's own mesh gives them."""
    types = {} if own is None else dict(zip(own.axis_names, own.axis_types, strict=True))
    kinds = (types.get(name, kind) for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True))
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=tuple(kinds))
