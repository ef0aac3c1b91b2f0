"""Trace a function, or map a helper, on a mesh that a tool has chosen, and read such meshes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast

import jax
from jax.sharding import AbstractMesh

from .. import _jax
from ..axis_names import AxisNaming, AxisRules
from ..errors import MeshAxisError, StructureError
from ..errors.phrases import value_text
from ..hints.array_hint import ArrayHint
from ..hints.signature import HintedSignature
from ..hints.structure import array_hints
from ..introspection import DecoratedInfo, find_decorated
from ..meshes import override_mesh
from ..shard_map import typed_shard_map
from .arguments import FlatCall, Inputs


def trace_on(f: Callable[..., Any], made: Inputs, mesh: AbstractMesh) -> Any:
    """The jaxpr of a call.

    Args:
      f: a function.
      made: its arguments, with ``jax.ShapeDtypeStruct``s for arrays.
      mesh: the mesh.

    Raises:
      TypedShmapError: what the function raises when it is traced.
    """
    call, made_of = FlatCall(made, *_jax.array.SHAPES), find_decorated(f)
    has_mesh = made_of is not None and made_of.mesh is not None
    with override_mesh(mesh), nullcontext() if has_mesh else jax.sharding.use_abstract_mesh(mesh):
        return jax.make_jaxpr(lambda *arrays: call.run(f, arrays))(*call.arrays)


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


def argument_hints(typed: HintedSignature) -> list[ArrayHint]:
    """The hints of all arrays among a function's arguments."""
    return [hint for node in (*typed.parameters.values(), *typed.positional) for hint in array_hints(node)]


def result_hints(typed: HintedSignature) -> list[ArrayHint]:
    """The hints of all arrays in a function's result."""
    return [] if typed.result is None else list(array_hints(typed.result))


def has_marks(typed: HintedSignature) -> bool:
    """Whether hints have marks, so that the function is one of manual regions."""
    return any(hint.spec.marks for hint in (*argument_hints(typed), *result_hints(typed)))


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
    return sizes if is_right else None


def parse_mesh(text: str) -> dict[str, int]:
    """The sizes of mesh axes in a text like ``"dp=4,tp=2"``.

    Raises:
      ValueError: for a text that cannot be read, with the reason.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, size = map(str.strip, part.partition("="))
        if not equals or not name:
            raise ValueError(f"'{part}' is not a name and a value, as in dp=4,tp=2")
        if name in sizes:
            raise ValueError(f"mesh axis '{name}' is there twice")
        if not size.isdecimal() or int(size) < 1:
            raise ValueError(f"mesh axis '{name}' has size '{size}'; write a number from 1 on")
        sizes[name] = int(size)
    if not sizes:
        raise ValueError("no mesh axes; write them as in dp=4,tp=2")
    return sizes


def mesh_like(mesh: AbstractMesh, own: _jax.mesh.AnyMesh | None) -> AbstractMesh:
    """A mesh whose axes have the types that a function's own mesh gives them."""
    types = {} if own is None else dict(zip(own.axis_names, own.axis_types, strict=True))
    kinds = (types.get(name, kind) for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True))
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=tuple(kinds))


def require_bool_or_none(verb: str, name: str, value: Any) -> None:
    """Refuse the value of an option that is neither True, False nor None.

    Raises:
      StructureError: for any other value.
    """
    if value is not None and not isinstance(value, bool):
        raise StructureError(f"{verb}: {name}={value_text(value)} is neither True, False nor None")
