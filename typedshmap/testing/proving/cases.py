"""Decide what depends on the arguments: which entry is the largest, how some are ordered, whether one is negative.

In one case all of that is decided, the same for the same entries on every shard and on one device, so that the places
that follow from it are numbers. If two programs are the same in all cases, they are the same: the entries of the
arguments are those of one of the cases.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import factorial, perm, prod
from typing import NamedTuple

from .polynomials import Polynomials
from .values import NotKnown

_MOST_CASES, _DRAWN, _MOST_WORK = 256, 12, 12_000_000


class Decision(NamedTuple):
    """What may be decided.

    Attributes:
      fingerprint: the operation and its operands.
      options: how many results it may have.
    """

    fingerprint: bytes
    options: int


class Undecided(NotKnown):
    """Raised where entries are taken from places that depend on the arguments.

    Attributes:
      decisions: what these places follow from; none where that was not looked for.
    """

    def __init__(self, decisions: Iterable[Decision] = ()) -> None:
        super().__init__("it takes entries from places that depend on the arguments")
        self.decisions = dict.fromkeys(decisions)


class Cases(NamedTuple):
    """How many cases were read.

    Attributes:
      number: how many.
      are_all: whether there are no others.
    """

    number: int
    are_all: bool


def decisions_of(table: Polynomials, numbers: Iterable[int]) -> Iterator[Decision]:
    """What has to be decided so that some polynomials are numbers; before what follows from others, these."""
    if table.decided is None:
        return
    waiting, known = list(_atoms_of(table, numbers)), dict[int, bool]()
    seen = set(waiting)
    while waiting:
        atom = waiting.pop()
        operands = table.known_atoms[atom][2]
        decision = _decision(table, atom)
        if decision is not None and not all(_is_chosen(table, each, known) for each in operands):
            yield decision
            continue
        inner = [each for each in _atoms_of(table, operands) if each not in seen]
        waiting += inner
        seen.update(inner)


def _atoms_of(table: Polynomials, numbers: Iterable[int]) -> dict[int, None]:
    monomials = (each for number in numbers for each in table.known[number])
    return dict.fromkeys(atom for each in monomials for atom, _ in table.known_monomials[each])


def _decision(table: Polynomials, atom: int) -> Decision | None:
    """What is decided of a truth value, of the place of the largest or smallest entry, or of the order of some."""
    operation, params, operands = table.known_atoms[atom]
    match operation, params:
        case ("argmax" | "argmin", _):
            return Decision(table.fingerprint(operation, params, operands), len(operands))
        case ("top_k", (_, _, (int() as count, _) as of)):
            return Decision(table.fingerprint(operation, of, operands), perm(len(operands), count))
        case ("sort", (_, (1, True, int() as length) as of)):
            return Decision(table.fingerprint(operation, of, operands[:length]), factorial(length))
        case _ if atom in table.truths:
            return Decision(table.fingerprint(operation, params, operands), 2)
        case _:
            return None


def _is_chosen(table: Polynomials, number: int, known: dict[int, bool]) -> bool:
    """Whether a polynomial is a number as soon as all is decided."""
    for atom in _atoms_of(table, [number]):
        if atom not in known:
            operands = table.known_atoms[atom][2]
            known[atom] = _decision(table, atom) is not None or (
                bool(operands) and all(_is_chosen(table, each, known) for each in operands)
            )
        if not known[atom]:
            return False
    return True


def decided_order(table: Polynomials, operation: str, params: tuple[int, ...], row: list[int], count: int) -> list[int]:
    """The places of the first entries of a row in the order that is decided for it; none where it is not."""
    which = table.decided.get(table.fingerprint(operation, params, row)) if table.decided else None
    if which is None:
        return []
    order, left = list[int](), list(range(len(row)))
    for _ in range(count):
        which, at = divmod(which, len(left))
        order.append(left.pop(at))
    return order


def read_in_cases(read: Callable[[Polynomials], None], seed: int) -> Cases:
    """Read programs in all cases, or where there are many, in some that are drawn.

    Args:
      read: what reads them, and raises NotKnown where they differ.
      seed: what cases are drawn from.

    Raises:
      NotKnown: where the programs are not known to be the same in a case.
    """
    try:
        read(Polynomials())
    except Undecided:
        pass
    else:
        return Cases(1, True)
    reading, draw = _Reading(read), random.Random(seed)
    if (number := _in_all_cases(reading)) is not None:
        return Cases(number, True)
    for _ in range(_DRAWN):
        decided = dict[bytes, int]()
        while missing := reading.missing(decided):
            decided |= {each.fingerprint: draw.randrange(each.options) for each in missing}
    return Cases(_DRAWN, False)


def _in_all_cases(reading: _Reading) -> int | None:
    """Read programs in all cases, of which the first differ in what is decided last; None if there are many."""
    decided, options, number = dict[bytes, int](), dict[bytes, int](), 0
    while True:
        while missing := reading.missing(decided):
            decided |= {each.fingerprint: 0 for each in missing}
            options |= {each.fingerprint: each.options for each in missing}
            if prod(options[each] for each in decided) > _MOST_CASES:
                return None
        number += 1
        while decided:
            last = next(reversed(decided))
            if decided[last] + 1 < options[last]:
                decided[last] += 1
                break
            del decided[last]
        else:
            return number


class _Reading:
    """What reads programs, within some work."""

    def __init__(self, read: Callable[[Polynomials], None]) -> None:
        self.read, self.work = read, 0

    def missing(self, decided: Mapping[bytes, int]) -> Collection[Decision]:
        """Read them in a case, and say what else has to be decided; nothing if they were read to the end."""
        table = Polynomials(decided)
        try:
            self.read(table)
        except Undecided as undecided:
            if not undecided.decisions:
                raise
            return undecided.decisions
        finally:
            self.work += table.work
        if self.work > _MOST_WORK:
            raise NotKnown("it has too many cases")
        return ()
