"""How a global array lies over its mesh, where that is known, compared with what its hint says.

Known are the sharding of a committed array, through ``jax.grad`` and ``jax.vmap`` as well, and the
type of an array on Explicit mesh axes. What XLA chooses for Auto axes is `inspection`'s.

Invariant: an array that lies on a mesh is compared over that one, whichever mesh is ambient.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from jax.sharding import NamedSharding, Sharding

from .. import _jax
from ..errors.failures import BoundaryMark, WrongSharding
from ..notation.layout import Layout
from .array import ArrayHint
from .scope import Region, same


def region_of(value: Any, region: Region) -> Region:
    """The region with the mesh that a global value lies on, if it knows one."""
    if region.role != "value" or region.is_manual or not _jax.is_jax_array(value):
        return region
    inner = _jax.innermost(value).value
    mesh = None if not _jax.is_tracer(inner) and _jax.placement(inner) is None else _jax.value_mesh(inner)
    return region if mesh is None else region.known.plan((region_of, mesh), lambda: on_mesh(mesh, region))


def on_mesh(mesh: _jax.AnyMesh, region: Region) -> Region:
    """The region with another mesh."""
    return same(replace(region, mesh=mesh.shape_tuple, explicit=_jax.explicit_axes(mesh)))


def wrong_lying(value: Any, layout: Layout, hint: ArrayHint, region: Region) -> WrongSharding | BoundaryMark | None:
    """What is wrong with how a global array lies, as far as that is known when it is traced.

    Args:
      region: where it is checked, with the array's own mesh. At a boundary on Auto axes
        ``jax.shard_map`` reshards, so nothing is wrong there.
    """
    spec = region.spec(hint, len(getattr(_jax.facts(value), "shape", ())))
    typed = _jax.explicit_spec(value)
    if region.role == "boundary":
        if region.crossed and (typed is not None or region.crossed <= region.explicit):
            return _wrong_at_boundary(typed, spec, region)
        return None
    inner = _jax.innermost(value)
    is_traced, placed = _jax.is_tracer(inner.value), _jax.placement(inner.value)
    if not is_traced and placed is None:
        return None
    if marked := wrong_marks(layout, spec, region, typed is not None or not is_traced):
        return marked
    if typed is not None and (is_traced or not _jax.auto_axes(typed.mesh)):
        return _wrong_typed(typed, spec)
    if placed is None:
        return None
    if isinstance(placed, NamedSharding):
        return wrong_placement(placed, spec, inner.dims, len(inner.value.shape), "place it by shard(x, hint)")
    return _wrong_elsewhere(placed, spec, region)


def wrong_placement(
    placed: NamedSharding, want: Any, dims: tuple[int, ...], rank: int, cure: str
) -> WrongSharding | None:
    """What is wrong with a sharding.

    Args:
      placed: the sharding of an array.
      want: the PartitionSpec of its hint.
      dims: which of the array's dims the hint speaks of; others are mapped over by ``jax.vmap``, and
        may lie in any way.
      rank: how many dims the array has.
      cure: what to do about it.
    """
    if len(dims) == rank:
        return None if _is_alike(placed, want, rank) else _differs(want, placed.spec, cure)
    parts = [*_jax.spec_parts(placed.spec).parts]
    parts += [()] * (rank - len(parts))
    seen = _jax.partition_spec(parts[at] for at in dims)
    wanted = _jax.spec_parts(want)
    for at, axes in zip(dims, wanted.parts, strict=True):
        parts[at] = axes
    used = [axis for axes in parts for axis in axes]
    merged = _jax.partition_spec(parts, wanted.unreduced, wanted.reduced)
    # The hint may shard a dim over an axis that a mapped dim has.
    is_right = len(used) == len(set(used)) and _is_alike(placed, merged, rank)
    return None if is_right else _differs(want, seen, cure)


def _is_alike(placed: NamedSharding, spec: Any, rank: int) -> bool:
    return placed.is_equivalent_to(NamedSharding(placed.mesh, spec, memory_kind=placed.memory_kind), rank)


def shards_of(spec: Any, region: Region) -> int:
    """In how many shards a PartitionSpec splits an array over the mesh that is known."""
    sizes = dict(region.mesh or ())
    return prod(sizes.get(axis, 1) for axes in _jax.spec_parts(spec).parts for axis in axes)


def _differs(want: Any, have: Any, cure: str) -> WrongSharding:
    return WrongSharding(_jax.spec_text(want), f"sharded {_jax.spec_text(have)}", cure)


def wrong_marks(layout: Layout, spec: Any, region: Region, typed: bool) -> WrongSharding | BoundaryMark | None:
    """Marks of a global array: over Auto axes there is none, and a value whose type knows no mesh bears none."""
    if region.mesh is None or not (layout.unreduced or layout.reduced):
        return None
    auto = frozenset(axis for axis, _ in region.mesh) - region.explicit
    for sign, axes in (("+", layout.unreduced), ("-", layout.reduced)):
        for axis in sorted(axes & auto):
            reason = f"mesh axis '{axis}' is of type Auto, over which JAX has no such global array"
            return BoundaryMark(sign, axis, reason, f"make '{axis}' an Explicit axis of the mesh, or drop the mark")
    return None if typed else WrongSharding(_jax.spec_text(spec), "neither unreduced nor reduced in JAX's type")


def _wrong_elsewhere(placed: Sharding, spec: Any, region: Region) -> WrongSharding | None:
    """An array that was placed on no mesh, on one device as a rule, is whole."""
    if shards_of(spec, region) == 1 or not placed.is_fully_replicated:
        return None
    got = f"on {', '.join(f'device {number}' for number in _jax.device_ids(placed, len(spec)))}, not on the mesh"
    return WrongSharding(_jax.spec_text(spec), got, "place it by shard(x, hint)")


def _wrong_at_boundary(typed: NamedSharding | None, want: Any, region: Region) -> WrongSharding | None:
    """On Explicit axes JAX wants the argument's spec to be the boundary's, axes of size 1 included.

    Beside Auto axes it reshards over all; yet a mismatch that the type tells is refused there, too.
    """
    expected, wanted = _jax.spec_text(want), _jax.spec_parts(want)
    told = region.crossed & (region.explicit if typed is None else _jax.explicit_axes(typed.mesh))
    explicit = _over(told, wanted)
    cure = f"place it by shard(x, hint), or under jit by jax.reshard(x, {_jax.spec_text(explicit)})"
    if typed is None:
        is_whole = not any(wanted.parts) and not wanted.unreduced and not wanted.reduced
        return None if is_whole else WrongSharding(expected, "not placed on the mesh, whose axes are Explicit", cure)
    have = _jax.spec_parts(typed.spec)
    missing = ((),) * (len(wanted.parts) - len(have.parts))
    same_rank = have._replace(parts=(*have.parts, *missing))
    return None if _over(told, same_rank) == explicit else _differs(want, typed.spec, cure)


def _over(axes: frozenset[str], spec: _jax.SpecParts) -> Any:
    """The PartitionSpec with these axes only."""
    parts = [tuple(axis for axis in part if axis in axes) for part in spec.parts]
    return _jax.partition_spec(parts, spec.unreduced & axes, spec.reduced & axes)


def _wrong_typed(typed: NamedSharding, want: Any) -> WrongSharding | None:
    """A global array with Explicit axes in its type, which says nothing of Auto axes.

    Axes of size 1 make no difference.
    """
    have, wanted, sizes = _jax.spec_parts(typed.spec), _jax.spec_parts(want), typed.mesh.shape
    told = frozenset(axis for axis in _jax.explicit_axes(typed.mesh) if sizes[axis] > 1)

    def split(parts: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        kept = [tuple(axis for axis in axes if axis in told) for axes in parts]
        return tuple(kept) + ((),) * (len(wanted.parts) - len(kept))

    if split(have.parts) == split(wanted.parts) and have[1:] == wanted[1:]:
        return None
    return _differs(want, typed.spec, "place it by shard(x, hint), or jax.reshard")
