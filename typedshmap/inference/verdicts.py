"""Claims compared with facts: what contradicts is a failure, what is not known is learnt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors.failures import LiesElse, Owes, OwesNothing, Varies
from .claims import Claim
from .facts import UNKNOWN, Dim, Fact, Names, is_within, settled
from .reader import Reader


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A claim, and what it came to.

    Attributes:
      eqn: the equation that states it.
      claim: the claim.
      fact: what was known before.
      what: what contradicts it; None if nothing does.
    """

    eqn: Any
    claim: Claim
    fact: Fact
    what: object | None


def claim(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """The rule of the primitive: judge, then go on with what the claim says."""
    return judged(reader, eqn, eqn.params["claim"], facts)


def judged(reader: Reader, eqn: Any, stated: Claim, facts: list[Fact]) -> list[Fact]:
    """Judge a claim, which may be made anew, where an equation states it."""
    fact = facts[0]
    own: tuple[int, ...] = eqn.params["own"]
    shape = eqn.invars[0].aval.shape
    seen = fact.lying(fact.dims[at] for at in own)
    sizes = tuple(shape[at] for at in own)
    what = None if stated.is_assumed else contradiction(stated, seen, sizes, reader)
    reader.findings.append(Judged(eqn, stated, seen, what))
    return [_learnt(stated, fact, own, reader.axes)]


def contradiction(claim: Claim, fact: Fact, shape: tuple[int, ...], reader: Reader) -> object | None:
    """What of a claim is known to be otherwise; the dims of the fact are the claim's."""
    watched = claim.region.watched & reader.axes
    return _over_mesh(claim, fact, watched, reader) or lies_else(claim, fact, shape, reader.axes)


def _over_mesh(claim: Claim, fact: Fact, watched: Names, reader: Reader) -> object | None:
    extra = fact.varying & watched - claim.sharded - claim.unreduced - claim.varying
    if extra:
        may_owe = claim.region.crossed & extra <= claim.region.explicit
        return Varies(_ordered(extra, reader), claim.region.role == "boundary", may_owe)
    if reader.is_typed:
        return None  # JAX's types were asked of what is owed
    if owed := fact.owed & watched - claim.unreduced:
        return Owes(_ordered(owed, reader))
    for axis in _ordered(claim.unreduced & watched, reader):
        if axis not in fact.varying | fact.owed:
            return OwesNothing(axis, reader.sizes[axis])
    return None


def _ordered(axes: Names, reader: Reader) -> tuple[str, ...]:
    return tuple(axis for axis in reader.sizes if axis in axes)


def lies_else(claim: Claim, fact: Fact, shape: tuple[int, ...], axes: Names) -> LiesElse | None:
    """The first dim that is known to be split in another way, or over axes that the claim has elsewhere.

    A dim of one element per shard may be taken for any other, since no operation is needed to move it: what
    splits another dim may be its own. The order of its shards stays what it is. So it is with a loose dim.
    """
    if _lies_as_stated(claim, fact.dims):
        return None
    compared = claim.spoken & axes - claim.varying
    ones = [part for part, size in zip(claim.parts, shape, strict=True) if part and size <= 1]
    movable = frozenset(axis for part in ones for axis in part)
    stated = [tuple(axis for axis in part or () if axis in compared) for part in claim.parts]
    everywhere = {axis for part in stated for axis in part}
    for at, (dim, part) in enumerate(zip(fact.dims, stated, strict=True)):
        if claim.parts[at] is None:
            continue
        if dim.gathered and not part and compared.issuperset(dim.gathered):
            return LiesElse(at, (), (), dim.gathered, claim.spans[at])
        known = tuple(axis for axis in dim.axes or () if axis in compared)
        if shape[at] <= 1 and set(part) != set(known):
            continue
        fixed = tuple(axis for axis in known if axis in part or axis not in movable)
        if (part and fixed and not is_within(fixed, part)) or (
            not part and not dim.is_loose and everywhere.intersection(fixed)
        ):
            return LiesElse(at, part, known, (), claim.spans[at])
    return None


def _lies_as_stated(claim: Claim, dims: Iterable[Dim]) -> bool:
    """Whether dims are known to lie just so: there is nothing to compare, and nothing to learn."""
    return all(dim.axes == part and not dim.is_loose for dim, part in zip(dims, claim.parts, strict=True))


def _learnt(claim: Claim, fact: Fact, own: tuple[int, ...], axes: Names) -> Fact:
    """A fact with what a claim teaches: how dims lie; that a sum is owed; that shards agree only if it is assumed."""
    if not claim.is_assumed and not claim.unreduced and _lies_as_stated(claim, (fact.dims[at] for at in own)):
        return fact
    spoken = claim.spoken & axes
    dims = list(fact.dims)
    for at, part in zip(own, claim.parts, strict=True):
        if part is not None:
            dims[at] = _taught(dims[at], tuple(axis for axis in part if axis in axes), spoken, claim)
    varying, owed = fact.varying, fact.owed
    if claim.is_assumed:
        varying -= spoken - claim.sharded - claim.unreduced - claim.varying
        owed -= spoken - claim.unreduced
    newly = claim.unreduced & varying & axes
    return Fact(varying - newly, owed | newly, settled(tuple(dims)))


def _taught(dim: Dim, part: tuple[str, ...], spoken: Names, claim: Claim) -> Dim:
    if dim.axes == part:
        return dim._replace(is_loose=False)
    others = tuple(axis for axis in dim.axes or () if axis not in spoken or axis in claim.varying)
    if others:
        return UNKNOWN if part else dim
    return Dim(part, is_taught=bool(part))
