"""What the numbers and the traced program tell of the cause of a difference: facts that were measured, with cures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import isclose, prod
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from ... import _jax
from ...errors.phrases import quoted
from .choice import longer_axes
from .differences import Apart, Values, are_alike
from .rounding import wide

_DRAW = ("random_bits", "threefry2x32", "rng_bit_generator")
_MOVE_NOTHING = ("axis_index", "pvary", "pcast", "pbroadcast")


class Clue(NamedTuple):
    """What was measured, and what may be done; either may be empty."""

    fact: str
    cure: str


def clues(apart: Apart, programs: Sequence[Any]) -> Iterator[Clue]:
    """What there is to tell, the surest first.

    Args:
      apart: the result that differs.
      programs: what was traced on that mesh.
    """
    sizes = {name: size for name, size in apart.mesh.shape.items() if size > 1}
    looks = [*_by_a_factor(apart, sizes), *_repeated(apart, sizes, programs), *_reordered(apart, sizes)]
    yield from looks[:1] or _at_some_shards(apart, sizes)
    yield from _without_moves(sizes, programs)
    if not looks and draws(programs):
        cure = f"where random numbers rightly differ from shard to shard, exclude={apart.name!r} leaves this result out"
        yield Clue("the program draws random numbers", cure if _has(programs, ["axis_index"]) else "")


# One factor


def _by_a_factor(apart: Apart, sizes: Mapping[str, int]) -> Iterator[Clue]:
    factor = ratio(apart)
    if factor is None:
        return
    for axes in _groups(sizes):
        size, over = prod(sizes[axis] for axis in axes), quoted(axes)
        if isclose(factor, size, rel_tol=0.01):
            cure = f"is a sum over {over} taken once too often, or does every shard count what all of them hold?"
            yield Clue(f"it is {size} times what it is on one device, and {_size_of(axes)} is {size}", cure)
        if isclose(factor, 1 / size, rel_tol=0.01):
            cure = f"is a sum over {over} missing, or a mean taken of what is to be summed?"
            yield Clue(f"it is 1/{size} of what it is on one device, and {_size_of(axes)} is {size}", cure)
    if apart.here.size > 1:
        text = f"{factor:.4g}" if abs(factor - 1) > 1e-3 else f"1{factor - 1:+.2g}"
        yield Clue(f"every entry is {text} times what it is on one device", "")


def _groups(sizes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Axes, alone and several."""
    return [axes for count in range(1, len(sizes) + 1) for axes in combinations(sizes, count)]


def _size_of(axes: tuple[str, ...]) -> str:
    return f"the size of {quoted(axes)}"


def ratio(apart: Apart) -> float | None:
    """The one factor by which all entries are off, if there is one."""
    here, there = wide(apart.here), wide(apart.there)
    if apart.allowed is None or np.iscomplexobj(there) or not (np.isfinite(here).all() and np.isfinite(there).all()):
        return None
    length = float(np.sum(there * there))
    factor = float(np.sum(here * there)) / length if length else 0.0
    if not factor or not np.all(np.abs(here - factor * there) <= apart.allowed * (1 + abs(factor))):
        return None
    return factor


# Equal parts


def _repeated(apart: Apart, sizes: Mapping[str, int], programs: Sequence[Any]) -> Iterator[Clue]:
    for axes in _groups(sizes):
        parts = prod(sizes[axis] for axis in axes)
        dim = repeated_dim(apart, parts)
        if dim is not None:
            over = quoted(axes)
            folded = " (fold jax.lax.axis_index into the key, or draw the whole and take a part)"
            cure = f"does every shard along {over} draw the same random numbers?{folded}"
            yield Clue(
                f"its {parts} parts along dim {dim} are equal, and {_size_of(axes)} is {parts}",
                cure if draws(programs) else f"does every shard along {over} compute the same?",
            )


def repeated_dim(apart: Apart, parts: int) -> int | None:
    """The dim along which so many parts are equal on the mesh, and not on one device."""
    for dim, size in enumerate(apart.here.shape):
        if size % parts == 0 and _are_equal(apart.here, dim, parts) and not _are_equal(apart.there, dim, parts):
            return dim
    return None


def _are_equal(values: Values, dim: int, parts: int) -> bool:
    first, *others = np.split(values, parts, dim)
    return all(np.array_equal(first, other) for other in others)


# Another order


def _reordered(apart: Apart, sizes: Mapping[str, int]) -> Iterator[Clue]:
    for parts in sorted({prod(sizes[axis] for axis in axes) for axes in _groups(sizes)}):
        found = order(apart, parts)
        if found is not None:
            dim, places = found
            fact = f"its {parts} parts along dim {dim} stand in the order {', '.join(map(str, places))}"
            yield Clue(fact, "are mesh axes swapped in a dim, or shards moved the wrong way?")
    if is_shuffled(apart):
        yield Clue("it has the same entries in another order", "is a dim flattened or split in the wrong order?")


def order(apart: Apart, parts: int) -> tuple[int, tuple[int, ...]] | None:
    """A dim, and which part of it stands where on the mesh, if all parts are there in another order."""
    for dim, size in enumerate(apart.here.shape):
        if size % parts:
            continue
        there, here = np.split(apart.there, parts, dim), np.split(apart.here, parts, dim)
        places = [next((at for at, old in enumerate(there) if _alike(new, old, apart)), -1) for new in here]
        if sorted(places) == list(range(parts)):
            return dim, tuple(places)
    return None


def is_shuffled(apart: Apart) -> bool:
    """Whether the entries are the same in another order."""
    if apart.here.size < 2 or np.iscomplexobj(apart.here):
        return False
    return _alike(np.sort(apart.here, None), np.sort(apart.there, None), apart)


def _alike(a: Values, b: Values, apart: Apart) -> bool:
    return bool(are_alike(a, b, apart.allowed).all())


# Communication


def _without_moves(sizes: Mapping[str, int], programs: Sequence[Any]) -> Iterator[Clue]:
    silent = [axis for axis in sizes if axis not in moved_over(programs)]
    if silent and any(eqn.primitive.name == "shard_map" for each in programs for eqn in _jax.all_equations(each)):
        over = " or ".join(f"'{axis}'" for axis in silent)
        yield Clue(f"nothing in the program communicates over {over}", "is something of one shard taken for all of it?")


def moved_over(programs: Sequence[Any]) -> set[str]:
    """The mesh axes over which programs communicate."""
    equations = (eqn for program in programs for eqn in _jax.all_equations(program))
    return {axis for eqn in equations if eqn.primitive.name not in _MOVE_NOTHING for axis in _axes_of(eqn.params)}


def _axes_of(params: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name in ("axes", "axis_name", "axis_names"):
        axes = params.get(name, ())
        found += [axis for axis in (axes if isinstance(axes, (tuple, list)) else (axes,)) if isinstance(axis, str)]
    return found


def draws(programs: Sequence[Any]) -> bool:
    """Whether programs draw random numbers."""
    return _has(programs, _DRAW)


def _has(programs: Sequence[Any], names: Sequence[str]) -> bool:
    """Whether one of these operations is in the programs."""
    return any(eqn.primitive.name in names for program in programs for eqn in _jax.all_equations(program))


# Some shards


def _at_some_shards(apart: Apart, sizes: Mapping[str, int]) -> Iterator[Clue]:
    for axis in sizes:
        wrong = wrong_shards(apart, axis)
        if wrong is not None:
            told = f"shard {wrong[0]}" if len(wrong) == 1 else f"shards {', '.join(map(str, wrong))}"
            yield Clue(f"along '{axis}' only {told} of {sizes[axis]} {'is' if len(wrong) == 1 else 'are'} wrong", "")


def wrong_shards(apart: Apart, axis: str) -> tuple[int, ...] | None:
    """Which shards along a mesh axis are wrong, if not all of them are; None where it lies otherwise."""
    sizes: Mapping[str, int] = apart.mesh.shape
    for dim, axes in enumerate(apart.parts):
        if [each for each in axes if sizes[each] > 1] == [axis]:
            shards = np.split(apart.wrong, sizes[axis], dim)
            found = tuple(at for at, shard in enumerate(shards) if shard.any())
            return found if len(found) < len(shards) else None
    return None


def makers(name: str, found: Mapping[Mesh, Sequence[Any]]) -> tuple[str, ...]:
    """The mesh axes that alone already make a result differ."""
    meshes = [mesh for mesh, differences in found.items() if any(each.name == name for each in differences)]
    longer = [longer_axes(mesh) for mesh in meshes]
    return tuple(dict.fromkeys(axes[0] for axes in longer if len(axes) == 1))
