"""Claims compared with facts: what contradicts is a failure, what is not known is learnt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors.failures import LiesElse, Owes, OwesNothing, Varies
from ..hints.scope import Lying
from .claims import Claim
from .facts import UNKNOWN, Dim, Fact, Names, is_within, settled
from .reader import Reader


class Judged(NamedTuple):
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


def judged(reader: Reader, eqn: Any, stated: Claim, facts: list[Fact]) -> list[Fact]:
    """The rule of the primitive: judge the claim, which may be made anew; then go on with what it says."""
    fact = facts[0]
    own: tuple[int, ...] = eqn.params["own"]
    if _is_met(stated, fact, own):
        reader.findings.append(Judged(eqn, stated, fact, None))
        return facts
    shape = eqn.invars[0].aval.shape
    is_whole = len(own) == len(shape)
    seen = fact if is_whole else fact.lying(fact.dims[at] for at in own)
    sizes = shape if is_whole else tuple(shape[at] for at in own)
    what = None if stated.is_assumed else contradiction(stated, seen, sizes, reader)
    reader.findings.append(Judged(eqn, stated, seen, what))
    return [_learnt(stated, fact, own, reader.axes)]


def _is_met(stated: Claim, fact: Fact, own: tuple[int, ...]) -> bool:
    """Whether just that is known already, as of most claims: there is nothing to compare, and nothing to learn."""
    lying = stated.lying
    if fact.owed or lying.unreduced or stated.is_assumed or len(own) != len(fact.dims):
        return False
    return lies_so(fact.dims, lying.parts) and fact.varying <= lying.sharded | lying.varying


def contradiction(claim: Claim, fact: Fact, shape: tuple[int, ...], reader: Reader) -> object | None:
    """What of a claim is known to be otherwise; the dims of the fact are the claim's."""
    watched = claim.region.watched & reader.axes
    return _over_mesh(claim, fact, watched, reader) or lies_else(claim.lying, fact, shape, reader.axes)


def _over_mesh(claim: Claim, fact: Fact, watched: Names, reader: Reader) -> object | None:
    lying = claim.lying
    extra = fact.varying & watched - lying.sharded - lying.unreduced - lying.varying
    if extra:
        may_owe = claim.region.crossed & extra <= claim.region.explicit
        return Varies(_ordered(extra, reader), claim.region.role == "boundary", may_owe)
    if reader.is_typed:
        return None  # JAX's types were asked of what is owed
    if owed := fact.owed & watched - lying.unreduced:
        return Owes(_ordered(owed, reader))
    for axis in _ordered(lying.unreduced & watched, reader):
        if axis not in fact.varying | fact.owed:
            return OwesNothing(axis, reader.sizes[axis])
    return None


def _ordered(axes: Names, reader: Reader) -> tuple[str, ...]:
    return tuple(axis for axis in reader.sizes if axis in axes)


def lies_else(lying: Lying, fact: Fact, shape: tuple[int, ...], axes: Names) -> LiesElse | None:
    """The first dim that is known to be split in another way, or over axes that the claim has elsewhere.

    A dim of one element per shard may be taken for any other, since no operation is needed to move it: what
    splits another dim may be its own. The order of its shards stays what it is. So it is with a loose dim.
    """
    if lies_so(fact.dims, lying.parts):
        return None
    compared = lying.spoken & axes - lying.varying
    ones = [part for part, size in zip(lying.parts, shape, strict=True) if part and size <= 1]
    movable = frozenset(axis for part in ones for axis in part)
    stated = [tuple(axis for axis in part if axis in compared) for part in lying.parts]
    everywhere = {axis for part in stated for axis in part}
    for at, (dim, part) in enumerate(zip(fact.dims, stated, strict=True)):
        if dim.gathered and not part and compared.issuperset(dim.gathered):
            return LiesElse(at, (), (), dim.gathered, lying.spans[at])
        known = tuple(axis for axis in dim.axes or () if axis in compared)
        if shape[at] <= 1 and set(part) != set(known):
            continue
        fixed = tuple(axis for axis in known if axis in part or axis not in movable)
        if (part and fixed and not is_within(fixed, part)) or (
            not part and not dim.is_loose and everywhere.intersection(fixed)
        ):
            return LiesElse(at, part, known, (), lying.spans[at])
    return None


def lies_so(dims: Sequence[Dim], parts: Sequence[tuple[str, ...]]) -> bool:
    """Whether dims are known to lie just so: there is nothing to compare, and nothing to learn."""
    for dim, part in zip(dims, parts, strict=True):  # noqa: SIM110 (every claim comes by here)
        if dim.axes != part or dim.is_loose:
            return False
    return True


def _learnt(claim: Claim, fact: Fact, own: tuple[int, ...], axes: Names) -> Fact:
    """A fact with what a claim teaches: how dims lie; that a sum is owed; that shards agree only if it is assumed."""
    lying = claim.lying
    if not claim.is_assumed and not lying.unreduced and lies_so([fact.dims[at] for at in own], lying.parts):
        return fact
    spoken = lying.spoken & axes
    dims = list(fact.dims)
    for at, part in zip(own, lying.parts, strict=True):
        dims[at] = _taught(dims[at], tuple(axis for axis in part if axis in axes), spoken - lying.varying)
    varying, owed = fact.varying, fact.owed
    if claim.is_assumed:
        varying -= spoken - lying.sharded - lying.unreduced - lying.varying
        owed -= spoken - lying.unreduced
    newly = lying.unreduced & varying & axes
    return Fact(varying - newly, owed | newly, settled(tuple(dims)))


def _taught(dim: Dim, part: tuple[str, ...], spoken: Names) -> Dim:
    """A dim of which a claim says how it lies over the axes of which it speaks."""
    if dim.axes == part:
        return dim._replace(is_loose=False)
    others = tuple(axis for axis in dim.axes or () if axis not in spoken)
    if others:
        return UNKNOWN if part else dim
    return Dim(part, is_taught=bool(part))
