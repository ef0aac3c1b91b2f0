"""Polynomials over the entries of arrays, each with a number of its own: functions that are equal have the same number.

A polynomial is a sum of products of powers of atoms. An atom is an entry of an argument, or an operation of which
nothing else is known, such as a tanh, of polynomials. Of exponentials it is known that those of sums are products, so
that what is subtracted before and multiplied back after, as a running maximum, leaves no trace. A truth value is zero
or one, so that its powers are itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from fractions import Fraction
from hashlib import blake2b
from typing import Any

from .values import NotKnown

Coefficient = int | Fraction
Monomial = tuple[tuple[int, Coefficient], ...]
"""Atoms in their order, each with its exponent."""

_MOST_TERMS, _MOST_PRODUCTS, _MOST_WORK = 5000, 256, 2_000_000


class Polynomials:
    """All polynomials of a proof, by their numbers.

    Args:
      decided: what some truth values, places and orders are taken to be, by their fingerprints; None where fingerprints
        are not needed.
    """

    def __init__(self, decided: Mapping[bytes, int] | None = None) -> None:
        self.decided = decided
        self._of_atoms, self._of_numbers = list[bytes](), dict[int, bytes]()
        self.atoms, self.known_atoms = dict[Hashable, int](), list[tuple[str, Hashable, tuple[int, ...]]]()
        self.truths, self.work = set[int](), 0
        self.monomials, self.known_monomials = dict[Monomial, int](), list[Monomial]()
        self.numbers, self.known = dict[Hashable, int](), list[dict[int, Coefficient]]()
        self._of_monomials, self._products = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
        self._unit = self._monomial(())
        self.zero, self.one = self.constant(0), self.constant(1)

    def spend(self, work: int) -> None:
        """Take note of some operations.

        Raises:
          NotKnown: where there have been too many.
        """
        self.work += work
        if self.work > _MOST_WORK:
            raise NotKnown("it has too many entries")

    def _monomial(self, powers: Monomial) -> int:
        number = self.monomials.setdefault(powers, len(self.known_monomials))
        if number == len(self.known_monomials):
            self.known_monomials.append(powers)
        return number

    def _number(self, terms: dict[int, Coefficient]) -> int:
        terms = {monomial: factor for monomial, factor in terms.items() if factor}
        if len(terms) > _MOST_TERMS:
            raise NotKnown("it has too many terms")
        number = self.numbers.setdefault(frozenset(terms.items()), len(self.known))
        if number == len(self.known):
            self.known.append(terms)
        return number

    def constant(self, value: Coefficient) -> int:
        return self._number({self._unit: value})

    def value_of(self, number: int) -> Coefficient | None:
        """What a polynomial is at all entries alike; None where it depends on them."""
        terms = self.known[number]
        return 0 if not terms else terms[self._unit] if terms.keys() == {self._unit} else None

    def atom(self, operation: str, params: Hashable, operands: Iterable[int] = (), is_truth: bool = False) -> int:
        """An operation of which nothing else is known; what it is taken to be, if that is decided."""
        key = (operation, params, tuple(operands))
        number = self.atoms.setdefault(key, len(self.known_atoms))
        if number == len(self.known_atoms):
            self.known_atoms.append(key)
            if self.decided is not None:
                self._of_atoms.append(self.fingerprint(*key))
            if is_truth:
                self.truths.add(number)
        if self.decided and (value := self.decided.get(self._of_atoms[number])) is not None:
            return self.constant(value)
        return self._number({self._monomial(((number, 1),)): 1})

    def fingerprint(self, operation: str, params: Any, operands: Iterable[int]) -> bytes:
        """What is the same for the same operation of the same entries, however polynomials are numbered."""
        if operation == "exp":
            params = self._of_monomial(params)
        return _digest((operation, params, [self._of_number(number) for number in operands]))

    def _of_number(self, number: int) -> bytes:
        if (known := self._of_numbers.get(number)) is None:
            terms = (
                (self._of_monomial(self.known_monomials[each]), str(by)) for each, by in self.known[number].items()
            )
            known = self._of_numbers[number] = _digest(sorted(terms))
        return known

    def _of_monomial(self, powers: Monomial) -> bytes:
        return _digest(sorted((self._of_atoms[atom], str(exponent)) for atom, exponent in powers))

    def only_atom(self, number: int, operation: str = "") -> tuple[str, Hashable, tuple[int, ...]] | None:
        """The atom that a polynomial is, of some operation; None where it is another one."""
        terms = self.known[number]
        if len(terms) != 1:
            return None
        ((monomial, factor),) = terms.items()
        powers = self.known_monomials[monomial]
        if factor != 1 or len(powers) != 1 or powers[0][1] != 1:
            return None
        found = self.known_atoms[powers[0][0]]
        return found if operation in ("", found[0]) else None

    def is_truth(self, number: int) -> bool:
        """Whether a polynomial is a truth value, as it stands or denied, or none or one."""
        terms = dict(self.known[number])
        if terms.get(self._unit) == 1:
            terms = {each: -factor for each, factor in terms.items() if each != self._unit}
        powers = [self.known_monomials[each] for each, factor in terms.items() if factor == 1]
        return not terms or (len(terms) == len(powers) == 1 and all(atom in self.truths for atom, _ in powers[0]))

    def is_integer(self, number: int) -> bool:
        """Whether a polynomial is a whole number, being one of truth values."""
        powers = (power for monomial in self.known[number] for power in self.known_monomials[monomial])
        factors = self.known[number].values()
        return all(Fraction(each).denominator == 1 for each in factors) and all(
            atom in self.truths and exponent > 0 for atom, exponent in powers
        )

    # Sums and products

    def total(self, parts: Iterable[tuple[int, Coefficient]]) -> int:
        """The sum of polynomials, each with a factor."""
        terms = dict[int, Coefficient]()
        for number, by in parts:
            self.spend(1 + len(self.known[number]) // 4)
            for monomial, factor in self.known[number].items():
                terms[monomial] = terms.get(monomial, 0) + factor * by
        return self._number(terms)

    def _product_of(self, one: int, other: int) -> int:
        """The product of two monomials."""
        if one == self._unit or other == self._unit:
            return one if other == self._unit else other
        key = (one, other) if one <= other else (other, one)
        if (known := self._of_monomials.get(key)) is not None:
            return known
        powers = dict[int, Coefficient](self.known_monomials[one])
        for atom, exponent in self.known_monomials[other]:
            left = powers.get(atom, 0) + exponent
            powers[atom] = min(left, 1) if atom in self.truths else left
        found = self._monomial(tuple(sorted((atom, exponent) for atom, exponent in powers.items() if exponent)))
        self._of_monomials[key] = found
        return found

    def product(self, one: int, other: int) -> int:
        key = (one, other) if one <= other else (other, one)
        if (known := self._products.get(key)) is not None:
            return known
        found = self._products[key] = self.contraction([key])
        return found

    def contraction(self, pairs: Iterable[tuple[int, int]]) -> int:
        """The sum of products of two."""
        terms = dict[int, Coefficient]()
        for one, other in pairs:
            first, second = self.known[one], self.known[other]
            if min(len(first), len(second)) > 1 and len(first) * len(second) > _MOST_PRODUCTS:
                first, second = self.known[self._as_atom(one)], self.known[self._as_atom(other)]
            self.spend(1 + len(first) * len(second))
            for left, factor in first.items():
                for right, by in second.items():
                    monomial = self._product_of(left, right)
                    terms[monomial] = terms.get(monomial, 0) + factor * by
        return self._number(terms)

    def power(self, number: int, exponent: int) -> int:
        found = self.one
        for _ in range(abs(exponent)):
            found = self.product(found, number)
        return self.inverse(found) if exponent < 0 else found

    def _parted(self, number: int) -> tuple[Fraction, int, int]:
        """A factor, a monomial and a polynomial without such, whose product it is."""
        terms = self.known[number]
        first, *others = (self.known_monomials[each] for each in terms)
        shared = dict[int, Coefficient](first)
        for each in others:
            powers = dict[int, Coefficient](each)
            shared = {atom: min(exponent, powers.get(atom, 0)) for atom, exponent in shared.items()}
            shared |= {atom: exponent for atom, exponent in each if exponent < 0 and atom not in shared}
        powers = sorted((atom, by) for atom, by in shared.items() if by and atom not in self.truths)
        common = self._monomial(tuple(powers))
        without = self._monomial(tuple((atom, -exponent) for atom, exponent in powers))
        rest = {self._product_of(monomial, without): factor for monomial, factor in terms.items()} if powers else terms
        factor = Fraction(rest[min(rest)])
        if factor == 1 and not powers:
            return factor, common, number
        return factor, common, self._number({each: by / factor for each, by in rest.items()})

    def _as_atom(self, number: int) -> int:
        """A polynomial as a factor and a monomial, one atom of which is what is left."""
        factor, common, rest = self._parted(number)
        atom = self._atom_of(self.atom("sum", (), [rest]))
        return self._number({self._product_of(common, self._monomial(((atom, 1),))): factor})

    def inverse(self, number: int) -> int:
        """One divided by a polynomial, which is taken not to be zero."""
        if not self.known[number]:
            raise NotKnown("it divides by zero")
        factor, common, rest = self._parted(number)
        powers = self.known_monomials[common]
        if rest != self.one:
            powers = (*powers, (self._atom_of(self.atom("sum", (), [rest])), 1))
        inverted = self._monomial(tuple(sorted((atom, -exponent) for atom, exponent in powers)))
        return self._number({inverted: 1 / factor})

    def _atom_of(self, number: int) -> int:
        ((monomial, _),) = self.known[number].items()
        return self.known_monomials[monomial][0][0]

    # Functions of which more is known

    def exponential(self, number: int) -> int:
        """The product of a power for each term."""
        powers = [
            (self._atom_of(self.atom("exp", self.known_monomials[monomial])), factor)
            for monomial, factor in self.known[number].items()
        ]
        return self._number({self._monomial(tuple(sorted(powers))): 1})

    def logarithm(self, number: int) -> int:
        """The sum of the exponents of exponentials, and the logarithm of what else it is."""
        if not self.known[number]:
            raise NotKnown("it is the logarithm of zero")
        _, common, _ = self._parted(number)
        found, taken = [], list[tuple[int, Coefficient]]()
        for atom, exponent in self.known_monomials[common]:
            operation, monomial, _ = self.known_atoms[atom]
            if operation == "exp":
                assert isinstance(monomial, tuple)
                found.append((self._number({self._monomial(monomial): 1}), exponent))
                taken.append((atom, -exponent))
        rest = self.product(number, self._number({self._monomial(tuple(taken)): 1}))
        found.append((self.zero if rest == self.one else self.atom("log", (), [rest]), 1))
        return self.total(found)

    def largest(self, numbers: Iterable[int], sign: int = 1) -> int:
        """The largest of some, or with the sign -1 the smallest."""
        among, bounds = set[int](), list[Coefficient]()
        for number in numbers:
            signed = self.total([(number, sign)])
            atom = self.only_atom(signed, "max")
            for each in [signed] if atom is None else atom[2]:
                value = self.value_of(each)
                bounds += [] if value is None else [value]
                among.update([each] if value is None else [])
        among.update([self.constant(max(bounds))] if bounds else [])
        found = among.pop() if len(among) == 1 else self.atom("max", (), sorted(among))
        return self.total([(found, sign)])

    def is_negative(self, number: int) -> int:
        """Whether a polynomial is below zero, as a truth value."""
        if (value := self.value_of(number)) is not None:
            return self.one if value < 0 else self.zero
        return self.atom("is negative", (), [self._scaled(number, is_signed=True)], is_truth=True)

    def is_zero(self, number: int) -> int:
        """Whether a polynomial is zero, as a truth value."""
        if (value := self.value_of(number)) is not None:
            return self.zero if value else self.one
        return self.atom("is zero", (), [self._scaled(number, is_signed=False)], is_truth=True)

    def _scaled(self, number: int, is_signed: bool) -> int:
        """A polynomial with a first factor of one; of minus one where the sign matters."""
        terms = self.known[number]
        first = terms[min(terms)]
        return self.total([(number, 1 / Fraction(abs(first) if is_signed else first))])

    def denied(self, number: int) -> int:
        return self.total([(self.one, 1), (number, -1)])

    def chosen(self, which: int, no: int, yes: int) -> int:
        """One of two, by a truth value."""
        if no == yes:
            return no
        return self.contraction([(self.denied(which), no), (which, yes)])


def _digest(of: Any) -> bytes:
    return blake2b(repr(of).encode(), digest_size=16).digest()


def number_key(value: Any) -> Coefficient:
    """A whole number as it is, any other as a fraction."""
    return int(value) if value == int(value) else Fraction(value)
