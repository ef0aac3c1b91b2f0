"""Run or trace a function on a mesh that a tool chose, with or without devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast

import jax
from jax.sharding import AbstractMesh

from .. import _jax
from ..axis_names import AxisNaming, AxisRules
from ..errors import StructureError
from ..errors.phrases import value_text
from ..hints.array_hint import ArrayHint
from ..hints.signature import HintedSignature
from ..hints.structure import array_hints
from ..introspection import DecoratedInfo, find_decorated
from ..meshes import override_mesh
from ..shard_map import typed_shard_map
from .arguments import FlatCall, Inputs


def trace_on(f: Callable[..., Any], made: Inputs, mesh: AbstractMesh) -> Any:
    """The traced program of a call.

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
    """A helper mapped over all axes of a mesh, as it is called in a manual region.

    Args:
      f: the helper.
      made_of: what it is made of.
      mesh: the mesh; None for that of the call. Only over Explicit axes may a result be unreduced.
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
    """Whether hints have marks, so that they describe shards."""
    return any(hint.spec.marks for hint in (*argument_hints(typed), *result_hints(typed)))


def needs_manual_region(error: Exception) -> bool:
    """Whether an error says that a function uses manual axes outside of a manual region."""
    return "unbound axis name" in str(error) or "is not manual here" in str(error)


def mesh_sizes(written: Any) -> dict[str, int] | None:
    """The sizes of mesh axes in a dict, or in a text like ``"dp=4,tp=2"``; None for anything else."""
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
      ValueError: with what cannot be read.
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
    """Refuse what is neither True, False nor None, which leaves it open.

    Raises:
      StructureError: with the argument.
    """
    if value is not None and not isinstance(value, bool):
        raise StructureError(f"{verb}: {name}={value_text(value)} is neither True, False nor None")
