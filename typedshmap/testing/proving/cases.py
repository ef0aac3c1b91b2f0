"""Decide what depends on the arguments: which entry is the largest, how some are ordered, whether one is negative.

In one case all of that is decided, the same for the same entries on every shard and on one device, so that the places
that follow from it are numbers. If two programs are the same in all cases, they are the same: the entries of the
arguments are those of one of the cases.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, permutations
from math import factorial, perm, prod
from typing import NamedTuple

from .polynomials import Polynomials
from .values import NotKnown

_MOST_CASES, _DRAWN, _MOST_WORK = 256, 12, 12_000_000


class Choice(NamedTuple):
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
      choices: what these places follow from; none where that was not looked for.
    """

    def __init__(self, choices: Iterable[Choice] = ()) -> None:
        super().__init__("it takes entries from places that depend on the arguments")
        self.choices = dict.fromkeys(choices)


class Cases(NamedTuple):
    """How many cases were read.

    Attributes:
      count: how many.
      are_all: whether there are no others.
    """

    count: int
    are_all: bool


def choices_of(table: Polynomials, numbers: Iterable[int]) -> Iterator[Choice]:
    """What has to be decided so that some polynomials are numbers; before what follows from others, these."""
    if table.decided is None:
        return
    waiting, known = list(_atoms_of(table, numbers)), dict[int, bool]()
    seen = set(waiting)
    while waiting:
        atom = waiting.pop()
        operands = table.known_atoms[atom][2]
        choice = _choice(table, atom)
        if choice is not None and not all(_is_chosen(table, each, known) for each in operands):
            yield choice
            continue
        inner = [each for each in _atoms_of(table, operands) if each not in seen]
        waiting += inner
        seen.update(inner)


def _atoms_of(table: Polynomials, numbers: Iterable[int]) -> dict[int, None]:
    monomials = (each for number in numbers for each in table.known[number])
    return dict.fromkeys(atom for each in monomials for atom, _ in table.known_monomials[each])


def _choice(table: Polynomials, atom: int) -> Choice | None:
    """What is decided of a truth value, of the place of the largest or smallest entry, or of the order of some."""
    operation, params, operands = table.known_atoms[atom]
    match operation, params:
        case ("argmax" | "argmin", _):
            return Choice(table.fingerprint(operation, params, operands), len(operands))
        case ("top_k", (_, _, (int() as count, _) as of)):
            return Choice(table.fingerprint(operation, of, operands), perm(len(operands), count))
        case ("sort", (_, (1, True, int() as length) as of)):
            return Choice(table.fingerprint(operation, of, operands[:length]), factorial(length))
        case _ if atom in table.truths:
            return Choice(table.fingerprint(operation, params, operands), 2)
        case _:
            return None


def _is_chosen(table: Polynomials, number: int, known: dict[int, bool]) -> bool:
    """Whether a polynomial is a number as soon as all is decided."""
    for atom in _atoms_of(table, [number]):
        if atom not in known:
            operands = table.known_atoms[atom][2]
            known[atom] = _choice(table, atom) is not None or (
                bool(operands) and all(_is_chosen(table, each, known) for each in operands)
            )
        if not known[atom]:
            return False
    return True


def decided_order(table: Polynomials, operation: str, params: tuple[int, ...], row: list[int], count: int) -> list[int]:
    """The places of the first entries of a row in the order that is decided for it; none where it is not."""
    which = table.decided.get(table.fingerprint(operation, params, row)) if table.decided else None
    return [] if which is None else list(next(islice(permutations(range(len(row)), count), which, None)))


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
    draw, work = random.Random(seed), 0
    decided, options = dict[bytes, int](), dict[bytes, int]()
    count, is_drawn = 0, False
    while True:
        table = Polynomials(decided)
        try:
            read(table)
        except Undecided as undecided:
            if not undecided.choices:
                raise
            for choice in undecided.choices:
                options[choice.fingerprint] = choice.options
                decided[choice.fingerprint] = draw.randrange(choice.options) if is_drawn else 0
            if not is_drawn and prod(options[each] for each in decided) > _MOST_CASES:
                is_drawn, decided, count = True, {}, 0
        else:
            count += 1
            if is_drawn:
                decided = {}
            else:
                while decided and decided[last := next(reversed(decided))] + 1 == options[last]:
                    del decided[last]
                if decided:
                    decided[last] += 1
            if not decided and (count == _DRAWN or not is_drawn):
                return Cases(count, not is_drawn)
        work += table.work
        if work > _MOST_WORK:
            raise NotKnown("it has too many cases")
