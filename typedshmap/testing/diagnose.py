"""Word what a trial found: which result, on which mesh, how far off, which mesh axis makes the difference, and why.

The causes are facts measured of the numbers and read from the jaxpr, each with a cure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, isclose, log10, prod
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from .. import _jax
from ..errors.phrases import quoted_axes, size_text
from .compare import Difference, FormMismatch, HostArray, Tolerance, ValueMismatch, are_close, as_double
from .meshes import longer_axes, name_of_mesh
from .run import FunctionUnderTest


@dataclass(frozen=True)
class FailedTrial:
    """One trial that failed.

    Attributes:
      subject: the function.
      seed: what its arguments were drawn from.
      sizes: the sizes of names.
      tolerance: what counts as the same.
      found: per mesh what is not as on one device, the smallest mesh first.
      agreeing: the meshes on which all is.
      left_out: meshes that were not tried, each with the reason.
      jaxprs: what was traced on the smallest mesh that differs.
    """

    subject: FunctionUnderTest
    seed: int
    sizes: Mapping[str, Any]
    tolerance: Tolerance
    found: Mapping[Mesh, Sequence[Difference]]
    agreeing: Sequence[Mesh]
    left_out: Mapping[Mesh, str]
    jaxprs: Sequence[Any]

    @property
    def first(self) -> Difference:
        """The difference that is reported in full: the first wrong result on the smallest mesh."""
        return next(iter(self.found.values()))[0]


def failure_report(trial: FailedTrial) -> str:
    """The message of a failure."""
    first = trial.first
    found = list(clues(first, trial.jaxprs)) if isinstance(first, ValueMismatch) else []
    cure = next((clue.cure for clue in found if clue.cure), None)
    lines = [f"{trial.subject.name}: {_headline(first)}", ""]
    lines += [f"    {fact}" for fact in _facts(trial, first, found)]
    lines += ["", *describe_trial(trial.subject, trial.sizes, trial.seed)]
    return "\n".join([*lines, *([f"Hint: {cure}"] if cure else [])])


def describe_trial(subject: FunctionUnderTest, sizes: Mapping[str, Any], seed: int) -> list[str]:
    """The sizes, the way of calling, and the seed of a trial."""
    text = ", ".join(size_text(name, size) for name, size in sizes.items())
    lines = [f"Sizes: {text}"] if text else []
    if subject.kind == "global":
        lines.append("Called: under jax.jit, on global arrays; manual=True maps it over the shards")
    if subject.kind == "mapped":
        lines.append("Called: inside of typed_shard_map over all mesh axes; manual=False calls it on global arrays")
    return [*lines, f"Again: seed={seed}"]


def differs_by_itself(subject: FunctionUnderTest, found: Difference, sizes: Mapping[str, Any], seed: int) -> str:
    """The message where the same call on one device gives something else when it is made again."""
    text = f"{result_phrase(found.name)} depends on something else than the arguments"
    if isinstance(found, ValueMismatch):
        here, there = numbers(found.here[found.at], found.there[found.at])
        text += f":{entry_place(found.at)} it is {there} on one device, and {here} when called there again"
    return "\n".join([f"{subject.name}: {text}", "", *describe_trial(subject, sizes, seed)])


def result_phrase(name: str) -> str:
    """What messages call a result or a gradient."""
    return "return value" if name == "return" else name


def numbers(a: Any, b: Any) -> tuple[str, str]:
    """Two numbers, short, but long enough to see that they differ."""
    if not _jax.array.is_inexact(a.dtype):
        return str(a), str(b)
    # Four digits are the same on every machine, whose last ones rounding makes.
    texts = ((f"{a.item():.{digits}g}", f"{b.item():.{digits}g}") for digits in (4, 6, 9, 17))
    return next((pair for pair in texts if pair[0] != pair[1]), (str(a), str(b)))


def entry_place(at: tuple[int, ...]) -> str:
    """The place of an entry, `` at [0,3]``; nothing for a scalar."""
    return f" at [{','.join(map(str, at))}]" if at else ""


def _headline(found: Difference) -> str:
    mesh = name_of_mesh(found.mesh)
    text = f"{result_phrase(found.name)} depends on the mesh:"
    if isinstance(found, FormMismatch):
        return f"{text} it is {found.here or 'missing'} on {mesh}, but {found.there or 'missing'} on one device"
    here, there = numbers(found.here[found.at], found.there[found.at])
    return f"{text}{entry_place(found.at)} it is {here} on {mesh}, but {there} on one device"


def _facts(trial: FailedTrial, first: Difference, found: Sequence[Clue]) -> Iterator[str]:
    if isinstance(first, ValueMismatch):
        yield _deviation(trial, first)
    yield from (clue.fact for clue in found)
    yield _responsible_axes(trial, first)
    yield f"differs on {list_meshes(trial.found)}"
    if trial.agreeing:
        yield f"agrees on {list_meshes(trial.agreeing)}"
    yield from describe_omissions(trial.left_out)
    names = dict.fromkeys(result_phrase(each.name) for differences in trial.found.values() for each in differences)
    if others := [name for name in names if name != result_phrase(first.name)]:
        yield f"wrong, too: {', '.join(others[:6])}" + (f" and {len(others) - 6} more" if len(others) > 6 else "")


def list_meshes(meshes: Iterable[Mesh]) -> str:
    """``dp=4; dp=4, tp=2``"""
    return "; ".join(map(name_of_mesh, meshes))


def describe_omissions(left_out: Mapping[Mesh, str]) -> list[str]:
    """The meshes that were not tried, by reason."""
    by_reason = {why: [mesh for mesh, each in left_out.items() if each == why] for why in left_out.values()}
    return [f"left out, since {why}: {list_meshes(meshes)}" for why, meshes in by_reason.items()]


def _responsible_axes(trial: FailedTrial, first: Difference) -> str:
    axes = responsible_axes(first.name, trial.found)
    if len(axes) > 1:
        return f"each of {quoted_axes(axes)} alone makes the difference"
    if axes:
        return f"{quoted_axes(axes)} alone makes the difference"
    together = longer_axes(first.mesh)
    return f"only {' and '.join(map(repr, together))} together make the difference"


def _deviation(trial: FailedTrial, first: ValueMismatch) -> str:
    entries = f"{int(first.wrong.sum())} of {first.wrong.size} entries differ" if first.wrong.size > 1 else "it differs"
    if first.allowed is None:
        return f"{entries}; {_jax.array.dtype_name(first.there.dtype)} has to be equal"
    return f"{entries}, by up to {first.by:.3g}; {explained(trial.tolerance, first.allowed, first.by)}"


def explained(tolerance: Tolerance, allowed: float, by: float) -> str:
    """How far it may be off.

    What rounding explains is partly measured, and another machine adds in another order. So it is given by a power of
    ten that is well above it, unless the difference is not above that, too.
    """
    if tolerance.is_given:
        return f"{allowed:.3g} is allowed"
    explains = f"rounding in {_jax.array.dtype_name(tolerance.rounding.dtype)} explains"
    bound = 10.0 ** ceil(log10(5 * allowed)) if allowed else by
    return f"{explains} {allowed:.3g}" if by <= bound else f"{explains} at most {bound:.0e}"


_DRAW = ("random_bits", "threefry2x32", "rng_bit_generator")


class Clue(NamedTuple):
    """What was measured, and what may be done; either may be empty."""

    fact: str
    cure: str


def clues(mismatch: ValueMismatch, jaxprs: Sequence[Any]) -> Iterator[Clue]:
    """The clues that there are, the surest first.

    Args:
      mismatch: the result that differs.
      jaxprs: what was traced on that mesh.
    """
    sizes = {name: size for name, size in mismatch.mesh.shape.items() if size > 1}
    looks = [
        *_factor_clues(mismatch, sizes),
        *_repetition_clues(mismatch, sizes, jaxprs),
        *_order_clues(mismatch, sizes),
    ]
    yield from looks[:1] or _shard_clues(mismatch, sizes)
    yield from _no_collective_clues(sizes, jaxprs)
    if not looks and draws_random_numbers(jaxprs):
        cure = (
            f"where random numbers rightly differ from shard to shard, exclude={mismatch.name!r} leaves this result out"
        )
        yield Clue("the program draws random numbers", cure if _contains_primitive(jaxprs, ["axis_index"]) else "")


# One factor


def _factor_clues(mismatch: ValueMismatch, sizes: Mapping[str, int]) -> Iterator[Clue]:
    factor = common_factor(mismatch)
    if factor is None:
        return
    for axes in _groups(sizes):
        size, over = prod(sizes[axis] for axis in axes), quoted_axes(axes)
        if isclose(factor, size, rel_tol=0.01):
            cure = f"is a sum over {over} taken once too often, or does every shard count what all of them hold?"
            yield Clue(f"it is {size} times what it is on one device, and {_size_of(axes)} is {size}", cure)
        if isclose(factor, 1 / size, rel_tol=0.01):
            cure = f"is a sum over {over} missing, or a mean taken of what is to be summed?"
            yield Clue(f"it is 1/{size} of what it is on one device, and {_size_of(axes)} is {size}", cure)
    if mismatch.here.size > 1:
        text = f"{factor:.4g}" if abs(factor - 1) > 1e-3 else f"1{factor - 1:+.2g}"
        yield Clue(f"every entry is {text} times what it is on one device", "")


def _groups(sizes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Axes, alone and several."""
    return [axes for count in range(1, len(sizes) + 1) for axes in combinations(sizes, count)]


def _size_of(axes: tuple[str, ...]) -> str:
    return f"the size of {quoted_axes(axes)}"


def common_factor(mismatch: ValueMismatch) -> float | None:
    """The one factor by which all entries are off, if there is one."""
    here, there = as_double(mismatch.here), as_double(mismatch.there)
    if mismatch.allowed is None or np.iscomplexobj(there) or not (np.isfinite(here).all() and np.isfinite(there).all()):
        return None
    length = float(np.sum(there * there))
    factor = float(np.sum(here * there)) / length if length else 0.0
    if not factor or not np.all(np.abs(here - factor * there) <= mismatch.allowed * (1 + abs(factor))):
        return None
    return factor


# Equal parts


def _repetition_clues(mismatch: ValueMismatch, sizes: Mapping[str, int], jaxprs: Sequence[Any]) -> Iterator[Clue]:
    for axes in _groups(sizes):
        count = prod(sizes[axis] for axis in axes)
        dim = repeated_dim(mismatch, count)
        if dim is not None:
            over = quoted_axes(axes)
            folded = " (fold jax.lax.axis_index into the key, or draw the whole and take a part)"
            cure = f"does every shard along {over} draw the same random numbers?{folded}"
            yield Clue(
                f"its {count} parts along dim {dim} are equal, and {_size_of(axes)} is {count}",
                cure if draws_random_numbers(jaxprs) else f"does every shard along {over} compute the same?",
            )


def repeated_dim(mismatch: ValueMismatch, count: int) -> int | None:
    """The dim along which so many parts are equal on the mesh, and not on one device."""
    for dim, size in enumerate(mismatch.here.shape):
        if size % count == 0 and _are_equal(mismatch.here, dim, count) and not _are_equal(mismatch.there, dim, count):
            return dim
    return None


def _are_equal(values: HostArray, dim: int, count: int) -> bool:
    first, *others = np.split(values, count, dim)
    return all(np.array_equal(first, other) for other in others)


# Another order


def _order_clues(mismatch: ValueMismatch, sizes: Mapping[str, int]) -> Iterator[Clue]:
    for count in sorted({prod(sizes[axis] for axis in axes) for axes in _groups(sizes)}):
        found = part_order(mismatch, count)
        if found is not None:
            dim, places = found
            fact = f"its {count} parts along dim {dim} stand in the order {', '.join(map(str, places))}"
            yield Clue(fact, "are mesh axes swapped in a dim, or shards moved the wrong way?")
    if is_shuffled(mismatch):
        yield Clue("it has the same entries in another order", "is a dim flattened or split in the wrong order?")


def part_order(mismatch: ValueMismatch, count: int) -> tuple[int, tuple[int, ...]] | None:
    """A dim, and the order of its parts on the mesh, if all parts are there in another order."""
    for dim, size in enumerate(mismatch.here.shape):
        if size % count:
            continue
        there, here = np.split(mismatch.there, count, dim), np.split(mismatch.here, count, dim)
        places = [next((at for at, old in enumerate(there) if _are_close(new, old, mismatch)), -1) for new in here]
        if sorted(places) == list(range(count)):
            return dim, tuple(places)
    return None


def is_shuffled(mismatch: ValueMismatch) -> bool:
    """Whether the entries are the same in another order."""
    if mismatch.here.size < 2 or np.iscomplexobj(mismatch.here):
        return False
    return _are_close(np.sort(mismatch.here, None), np.sort(mismatch.there, None), mismatch)


def _are_close(a: HostArray, b: HostArray, mismatch: ValueMismatch) -> bool:
    return bool(are_close(a, b, mismatch.allowed).all())


# Communication


def _no_collective_clues(sizes: Mapping[str, int], jaxprs: Sequence[Any]) -> Iterator[Clue]:
    busy = collective_axes(jaxprs, sizes)
    idle = [axis for axis in sizes if axis not in busy]
    if idle and any(eqn.primitive.name == "shard_map" for each in jaxprs for eqn in _jax.jaxpr.all_equations(each)):
        over = " or ".join(f"'{axis}'" for axis in idle)
        yield Clue(f"nothing in the program communicates over {over}", "is something of one shard taken for all of it?")


def collective_axes(jaxprs: Sequence[Any], sizes: Mapping[str, int]) -> set[str]:
    """The mesh axes over which programs communicate."""
    among = frozenset(sizes)
    collectives = (
        eqn
        for jaxpr in jaxprs
        for eqn in _jax.jaxpr.all_equations(jaxpr)
        if _jax.jaxpr.collective_operation(eqn) is not None
    )
    return {axis for eqn in collectives for axis in _jax.jaxpr.named_axes(eqn, among)}


def draws_random_numbers(jaxprs: Sequence[Any]) -> bool:
    """Whether programs draw random numbers."""
    return _contains_primitive(jaxprs, _DRAW)


def _contains_primitive(jaxprs: Sequence[Any], names: Sequence[str]) -> bool:
    """Whether one of these operations is in the programs."""
    return any(eqn.primitive.name in names for jaxpr in jaxprs for eqn in _jax.jaxpr.all_equations(jaxpr))


# Some shards


def _shard_clues(mismatch: ValueMismatch, sizes: Mapping[str, int]) -> Iterator[Clue]:
    for axis in sizes:
        wrong = wrong_shards(mismatch, axis)
        if wrong is not None:
            text = f"shard {wrong[0]}" if len(wrong) == 1 else f"shards {', '.join(map(str, wrong))}"
            yield Clue(f"along '{axis}' only {text} of {sizes[axis]} {'is' if len(wrong) == 1 else 'are'} wrong", "")


def wrong_shards(mismatch: ValueMismatch, axis: str) -> tuple[int, ...] | None:
    """The wrong shards along a mesh axis, if not all are wrong; None where no dim is sharded over that axis alone."""
    sizes: Mapping[str, int] = mismatch.mesh.shape
    for dim, axes in enumerate(mismatch.dim_axes):
        if [each for each in axes if sizes[each] > 1] == [axis]:
            shards = np.split(mismatch.wrong, sizes[axis], dim)
            found = tuple(at for at, shard in enumerate(shards) if shard.any())
            return found if len(found) < len(shards) else None
    return None


def responsible_axes(name: str, found: Mapping[Mesh, Sequence[Any]]) -> tuple[str, ...]:
    """The mesh axes that alone already make a result differ."""
    meshes = [mesh for mesh, differences in found.items() if any(each.name == name for each in differences)]
    longer = [longer_axes(mesh) for mesh in meshes]
    return tuple(dict.fromkeys(axes[0] for axes in longer if len(axes) == 1))
