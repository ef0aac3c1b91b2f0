"""What one process has, checked as the global value that it means.

A process's own sizes mean nothing before the sharding is known, and that is known by the hints. So
every leaf is first paired with its hint, whatever its size; then its global shape is worked out; and
then all leaves are checked together, so that a name stands for the same global size in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from .. import _jax
from ..errors import MeshAxisError
from ..errors.failures import Failure, HintText, Told, WrongSize
from ..hints.array import ArrayHint
from ..hints.nodes import Node
from ..hints.scope import Region
from ..hints.walk import Found
from ..notation.layout import Layout
from ..notation.match import SizeMismatch
from ..notation.nodes import Dim, Rest
from ..notation.sizes import Subject
from .loose import loosened
from .parts import Parts, coordinates, parts_of
from .places import Place, devices_of, only
from .structs import GIVEN, bound_sizes


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a mesh, seen from one of them.

    Attributes:
      own: this process.
      members: the processes that have devices in the mesh.
      mesh: the mesh axes and their sizes.
      held: where this process's devices stand in the mesh.
    """

    own: int
    members: tuple[int, ...]
    mesh: Mapping[str, int]
    held: tuple[Mapping[str, int], ...]

    @property
    def is_alone(self) -> bool:
        """Whether every device of the mesh is this process's."""
        return self.members == (self.own,)

    def parts(self, axes: tuple[str, ...]) -> Parts:
        """The parts that this process holds of a dim that is split over these axes."""
        return parts_of(axes, self.mesh, self.held)


def world_of(place: Place) -> World:
    """The processes of a mesh; this one must be among them.

    Raises:
      MeshAxisError: for a mesh that has no device of this process.
    """
    mesh = devices_of(place)
    owners = [device.process_index for device in mesh.devices.flat]
    own, sizes, members = jax.process_index(), dict(mesh.shape), tuple(sorted(set(owners)))
    if own not in members:
        listed = ", ".join(map(str, members))
        raise MeshAxisError(f"{place.verb}: the mesh has no device of process {own}, only of process {listed}")
    return World(own, members, sizes, tuple(coordinates(sizes, owners, own)))


@dataclass(frozen=True, slots=True)
class Local:
    """One leaf of a process's data: its hint, if it is an array, and the global shape that it means."""

    hint: ArrayHint | None
    value: Any
    subject: Subject
    shape: tuple[int, ...] = ()

    @property
    def text(self) -> HintText | None:
        return self.hint.text if self.hint is not None else None

    @property
    def own_shape(self) -> tuple[int, ...]:
        return tuple(getattr(self.value, "shape", ()))

    def dim(self, index: int) -> Dim | Rest:
        """The token that a dim belongs to."""
        assert self.hint is not None
        return tokens(self.hint, len(self.shape))[index]

    def meaning(self, index: int) -> str:
        """``batch=6, which means batch=12 globally``"""
        dim, own, whole = self.dim(index), self.own_shape[index], self.shape[index]
        return sized(dim, index, own) if own == whole else f"{sized(dim, index, own)}, which means {named(dim, whole)}"


def locals_of(node: Node, data: Any, place: Place, world: World, sizes: Mapping[str, Any]) -> list[Local]:
    """A process's leaves with their global shapes, checked as one global value.

    Raises:
      TypedShmapError: for what is wrong, all of it.
    """
    leaves = _paired(node, data, place)
    for _ in range(_MOST_TURNS):
        items = _meant(leaves, place, world)
        found = _checked(node, data, items, place, sizes)
        if all(item.hint is leaf.hint for item, leaf in zip(items, found, strict=True)):
            return items
        leaves = [Found(item.value, leaf.hint, leaf.subject) for item, leaf in zip(items, found, strict=True)]
    told = Told("fits now one and now another member of its union, by the global size that each of them means")
    raise place.error((Failure(told, Subject("placed", "data")),))


# A member of a union is chosen by its rank at first, and then by the global sizes that it means.
_MOST_TURNS = 4


def _meant(leaves: list[Found], place: Place, world: World) -> list[Local]:
    """Leaves with the global shapes that they mean."""
    items: list[Local] = []
    failures: list[Failure] = []
    for leaf in leaves:
        item = _local(leaf, place, world)
        items += [item] if isinstance(item, Local) else []
        failures += [item] if isinstance(item, Failure) else []
    if failures:
        raise place.error(failures)
    return items


def _checked(node: Node, data: Any, items: list[Local], place: Place, sizes: Mapping[str, Any]) -> list[Found]:
    """The leaves of the global value, once it is known to fit."""
    whole = _jax.like(data, [item.value if item.hint is None else _struct(item) for item in items])
    walk = place.walk(node, whole, "data", bound_sizes(sizes))
    if walk.failures:
        known = {item.subject: item for item in items}
        raise place.error([_told(failure, known) for failure in walk.failures], only(walk.sizes, sizes))
    return walk.leaves


_ANYWHERE = Region(None, (), role="placement")


def _paired(node: Node, data: Any, place: Place) -> list[Found]:
    """Every leaf with its hint; structure, dtypes and ranks are checked, sizes are not."""
    loose, known = loosened(node)
    walk = replace(place, region=_ANYWHERE).walk(loose, data, "data")
    if walk.failures:
        raise place.error(walk.failures)
    return [leaf if leaf.hint is None else leaf._replace(hint=known[id(leaf.hint)]) for leaf in walk.leaves]


def _local(found: Found, place: Place, world: World) -> Local | Failure:
    """A leaf with the global shape that it means."""
    value, hint, subject = found.value, found.hint, found.subject
    if hint is None:
        return Local(None, value, subject)
    refused = _refused(value)
    if refused is not None:
        return Failure(refused, subject, hint.text, _jax.type_text(value))
    shape: list[int] = []
    own = tuple(getattr(value, "shape", ()))
    axes_of = _axes(hint, place.layout(hint, subject), len(own))
    for index, (size, dim, axes) in enumerate(zip(own, tokens(hint, len(own)), axes_of, strict=True)):
        parts = world.parts(axes)
        whole = parts.whole(size)
        if whole is None:
            over = ", ".join(f"'{axis}'" for axis in axes)
            held = f"the {parts.held} of {parts.total} shards over {over} that this process holds"
            problem = f"has {sized(dim, index, size)}, which does not divide over {held}"
            return Failure(WrongSize(problem, dim.span), subject, hint.text, _jax.type_text(value))
        shape.append(whole)
    return Local(hint, value, subject, tuple(shape))


def _refused(value: Any) -> Told | None:
    if isinstance(value, _jax.SHAPES):
        return Told("is a ShapeDtypeStruct, which holds no values")
    if _jax.is_tracer(value):
        return Told(
            "is a value under jax.jit or another transformation, which no process has", "call it outside of them"
        )
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return Told("is a global array already, not this process's part", "place it by shard(x, hint)")
    return None


def _struct(item: Local) -> Any:
    """The global array without its values; a dtype that JAX narrows is narrowed here, too."""
    return jax.ShapeDtypeStruct(item.shape, jax.typeof(item.value).dtype)


def tokens(hint: ArrayHint, rank: int) -> list[Dim | Rest]:
    """Of each dim of an array the token that it belongs to."""
    dims = hint.spec.dims
    return [dim for dim in dims for _ in range(rank - len(dims) + 1 if isinstance(dim, Rest) else 1)]


def _axes(hint: ArrayHint, layout: Layout, rank: int) -> list[tuple[str, ...]]:
    """Of each dim of an array its mesh axes."""
    extra = rank - len(hint.spec.dims) + 1
    pairs = zip(hint.spec.dims, layout.parts, strict=True)
    return [axes for dim, axes in pairs for _ in range(extra if isinstance(dim, Rest) else 1)]


def dim_name(dim: Dim | Rest) -> str | None:
    """The name or the label of a dim, if it has one."""
    text = (dim.label or str(dim.size)) if isinstance(dim, Dim) else ""
    return text if text.isidentifier() and not text.startswith("_") else None


def sized(dim: Dim | Rest, index: int, size: int) -> str:
    """``batch=6`` of a dim with a name, ``size 6 in dim 0`` of another."""
    name = dim_name(dim)
    return f"size {size} in dim {index}" if name is None else f"{name}={size}"


def named(dim: Dim | Rest, size: int) -> str:
    """A global size: ``batch=12 globally``."""
    name = dim_name(dim)
    return f"{size} globally" if name is None else f"{name}={size} globally"


def _told(failure: Failure, items: Mapping[Subject, Local]) -> Failure:
    """A failure of the global value, told of what this process has."""
    what, item = failure.what, items.get(failure.subject)
    if item is None:
        return failure
    got = _jax.type_text(item.value)
    if not isinstance(what, SizeMismatch) or not isinstance(what.dim, Dim) or not isinstance(what.expected, int):
        return replace(failure, got=got)
    problem = f"has {item.meaning(what.index)}, but {_other(what, what.dim, items)}"
    return replace(failure, what=WrongSize(problem, what.span), got=got)


def _other(what: SizeMismatch, dim: Dim, items: Mapping[Subject, Local]) -> str:
    """Where the size that was expected comes from."""
    if what.origin is None:
        return f"its annotation says {what.expected}"
    if what.origin.subject == GIVEN:
        return f"{dim_name(dim)}={what.expected} is given"
    other = items[what.origin.subject]
    return f"{other.subject.phrase} has {other.meaning(what.origin.dim)}"
