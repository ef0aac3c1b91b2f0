"""The degrees of the numbers in a program.

Two traces show how a number grows with the size of the axis. One trace shows which numbers need a second trace: those
that may count shards or a shard's rows. JAX's mean, variance and pmean are recognised by the code objects of their
frames, which saves the second trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from itertools import combinations
from math import isclose, log, prod
from typing import Any

import jax
import numpy as np

from ... import _jax
from .value import ANY, NOT_KNOWN, SAME, UNKNOWN, Degree, Form, Share, as_integer

TINY = 1e-4
"""A smaller number that is added, or is a bound, only guards against zero, and has any degree."""

_NUMBERS = (np.ndarray, np.generic, bool, int, float, complex)


class Numbers:
    """The numbers of a region over one axis.

    Args:
      axis: the mesh axis.
      traces: the sizes of the axis in the traces; the first trace is the region's own.
      sizes: the sizes of all manual axes.
      lengths: the lengths, on a shard, of the operands' sharded dims.
      is_blind: whether there is no second trace, so that degrees that one trace does not show are unknown.
      is_tied: whether the program may close over the size of the axis, so that both traces have the same number.
      constants: gives the numbers in the program's closure.
    """

    def __init__(
        self,
        axis: str,
        traces: Sequence[int],
        sizes: Mapping[str, int],
        lengths: Sequence[int],
        is_blind: bool = False,
        is_tied: bool = False,
        constants: Callable[[], frozenset[float]] = frozenset,
    ) -> None:
        self._constants = constants
        self.is_blind, self.is_tied = is_blind, is_tied
        self.axis, self.traces, self.sizes, self.lengths = axis, tuple(traces), sizes, frozenset(lengths) - {1}
        self.has_single_row = 1 in lengths
        self.pieces = frozenset[int]()
        self.results = frozenset[int]()
        """The lengths, on a shard, of the results' sharded dims."""
        self.unsharded = frozenset[int]()
        """The lengths of the operands' other dims: a number that is one of them does not count a shard's rows."""
        # The degrees of the divisors of JAX's means, by their lines, as far as they are known.
        self.counts: dict[Any, int] = {}
        self.ambiguous = set[Any]()
        """The divisors of lines that average over sharded rows in one call and over other dims in another."""
        self.is_asked = False
        """Whether the degree of the last number depends on its line."""
        self.is_held = False
        """Whether a number that is the same in both traces may count shards, since the function closes over sizes."""
        self.is_open = False
        """Whether a verdict may depend on a number whose degree one trace does not show."""

    @property
    def row_lengths(self) -> frozenset[int]:
        """The lengths of dims that may be a shard's rows; empty if no second trace can decide."""
        return frozenset() if self.is_blind else self.lengths | self.results

    @property
    def has_second(self) -> bool:
        return len(self.traces) > 1

    def literal(self, values: Sequence[Any], eqn: Any = None) -> Share:
        """The abstract value of a literal or a constant, from its number in each trace."""
        if not isinstance(values[0], jax.Array):  # the literals of jax 0.9 are not NumPy arrays
            values = [np.asarray(value) if hasattr(value, "__array__") else value for value in values]
        first = values[0]
        if np.asarray(first).dtype.kind not in "biufcV" or not isinstance(first, _NUMBERS):
            return SAME
        shapes = [np.shape(value) for value in values]
        if shapes[0] != shapes[-1]:
            return self._resized(values, shapes)
        self.is_asked = False
        degree = self.degree(values, eqn)
        array = np.asarray(first)
        number = (
            tuple(np.asarray(value).item() for value in values)
            if not array.ndim and array.dtype.kind in "iubf"
            else None
        )
        if degree == UNKNOWN and (number is None or array.dtype.kind == "f"):
            return Share("same", UNKNOWN, number=number)
        if degree == UNKNOWN:  # an integer, such as the number of the other shards
            degree = 0
        if degree == 0 and number is None:
            return SAME
        return Share("same", degree, number=number, is_plain=degree == 0)

    def _resized(self, values: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> Share:
        if len(shapes[0]) != len(shapes[-1]):
            return NOT_KNOWN
        dim = next(at for at, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b)
        flat = np.ravel(values[0])
        if np.size(flat) and (np.asarray(values[0]) == flat[0]).all():
            return Share("same", ANY if not flat[0] else 0)
        return Share("local", 0, dim=dim)

    def degree(self, values: Sequence[Any], eqn: Any = None) -> Degree:
        """The degree of a literal or a constant."""
        first = np.asarray(values[0])
        if first.dtype.kind not in "iufcV":
            return 0
        if not self.has_second:
            return self._degree_of_one(first, eqn)
        second = np.asarray(values[1])
        precision = 1e-5 if first.dtype.itemsize > 2 or first.dtype.kind in "iu" else 2e-2
        if first.dtype.kind == "V":
            first, second = first.astype(np.float32), second.astype(np.float32)
        if not first.any() and not second.any():
            return ANY
        if (first == second).all() or np.isnan(first).any():
            is_number = self.is_tied and not first.ndim and first.dtype.kind in "iuf"
            if is_number and self._may_count(abs(float(first))) and not _is_in_text(eqn, abs(float(first))):
                self.is_held = True
                return UNKNOWN
            return 0
        if first.dtype.kind == "c":
            return UNKNOWN
        with np.errstate(all="ignore"):
            ratios = np.unique(np.asarray(second, float) / np.asarray(first, float))
        if not len(ratios) or not np.allclose(ratios, ratios[0], rtol=precision) or not ratios[0] > 0:
            return UNKNOWN
        degree = log(ratios[0]) / log(self.traces[1] / self.traces[0])
        halves = round(2 * degree)
        return as_integer(Fraction(halves, 2)) if abs(degree - halves / 2) < max(1e-4, precision) else UNKNOWN

    def _degree_of_one(self, first: Any, eqn: Any) -> Degree:
        if first.dtype.kind == "V":
            first = first.astype(np.float32)
        if not first.any():
            return ANY
        if first.ndim or first.dtype.kind in "iu" or first.dtype.kind == "c":
            return 0
        number = float(first)
        may_count = self._may_count(abs(number))
        if not may_count and not (self.has_single_row and (abs(number) == 1 or _is_count(abs(number)))):
            return 0
        self.is_asked = True
        codes, place = _jax.source.call_site(eqn) if eqn is not None else ([], None)
        role = _role_of(codes)
        if role == "constant":
            return 0
        if role == "pmean":
            axes = self._averaged(eqn, place, number)
            if axes is not None:
                return (1 if number > 1 else -1) if self.axis in axes else 0
        if role == "mean":
            count = "count", place or id(eqn), max(number, 1 / number)
            return Form(Fraction(0), ((count, Fraction(1 if number >= 1 else -1)),))
        if not may_count:  # only a mean can count a single row
            return 0
        # Before jax 0.10 a traceback may belong to another call; the divisor of a pmean counts shards of some axes.
        is_seen = _jax.versions.HAS_MANUAL_TYPES and role != "pmean"
        if is_seen and (self._is_length(abs(number)) or self._is_written(eqn, abs(number))):
            return 0
        if self.is_blind:
            return UNKNOWN
        return Form(Fraction(0), ((("number", id(eqn), number), Fraction(1)),))

    def split_into(self, lengths: Iterable[int]) -> None:
        """Note the lengths of the dims into which a reshape split a sharded dim; any of them may be the sharded dim."""
        self.pieces |= frozenset(lengths)
        self.lengths |= self.pieces

    def iterations(self, lengths: Sequence[int], eqn: Any, is_over_rows: bool) -> Degree:
        """The degree of the number of iterations of a loop."""
        if self.has_second:
            return self.degree([np.asarray(length) for length in lengths])
        if not is_over_rows:
            return 0
        return UNKNOWN if self.is_blind else Form(Fraction(0), ((("iterations", id(eqn)), Fraction(1)),))

    def _is_written(self, eqn: Any, number: float) -> bool:
        """Whether a number is written in the program, or is in its closure."""
        return _is_in_text(eqn, number) or any(_is_of(constant, number) for constant in self._constants())

    def known(self, degree: Degree) -> Degree:
        """A degree, with the degrees of divisors that are known now."""
        if not isinstance(degree, Form):
            return degree
        constant, left = degree.constant, []
        for number, times in degree.numbers:
            if number in self.counts and number not in self.ambiguous:
                constant += times * self.counts[number]
            else:
                left.append((number, times))
        return Form(constant, tuple(left)) if left else as_integer(constant)

    def learn_count(self, degree: Degree, is_of_sharded: bool) -> None:
        """Note whether a mean is over a sharded dim, so that its divisor counts a shard's rows."""
        for number, _ in degree.numbers if isinstance(degree, Form) else ():
            if number[0] == "count" and (is_of_sharded or number[2] not in self.pieces):
                power = -1 if is_of_sharded else 0
                if self.counts.setdefault(number, power) != power:
                    self.ambiguous.add(number)

    def _may_count(self, number: float) -> bool:
        """Whether a number, or its inverse, may count shards or a shard's rows."""
        if not _is_count(number):
            return False
        count, size = round(max(number, 1 / number)), self.traces[0]
        return count % size == 0 or any(count % length == 0 for length in self.lengths)

    def _is_length(self, number: float) -> bool:
        """Whether a number, or its inverse, is the length of an unsharded dim, not the number of a shard's rows."""
        count = round(number if number > 1 else 1 / number)
        return count in self.unsharded - self.lengths and count != self.traces[0]

    def _averaged(self, eqn: Any, place: Any, number: float) -> tuple[str, ...] | None:
        """The axes by whose size a pmean divides; None if several groups of axes have that size."""
        count, axes = round(max(number, 1 / number)), [*self.sizes]
        groups = (group for length in range(1, len(axes) + 1) for group in combinations(axes, length))
        fitting = [group for group in groups if prod(self.sizes[axis] for axis in group) == count]
        named = self.pmeans().get(place) if len(fitting) > 1 else None
        if named is not None and prod(self.sizes.get(axis, 1) for axis in named) == count:
            return named
        return fitting[0] if len(fitting) == 1 else None

    pmeans: Callable[[], Mapping[Any, tuple[str, ...]]] = staticmethod(dict)
    """Gives the axes of each pmean of the region, by its line."""

    def agree(self, a: Degree, b: Degree) -> Degree | None:
        """The degree of a sum, from those of its terms; None if they differ."""
        if a in (ANY, b):
            return b
        if b == ANY:
            return a
        if a == UNKNOWN or b == UNKNOWN:
            return UNKNOWN
        a, b = self.known(a), self.known(b)
        if a != b and (isinstance(a, Form) or isinstance(b, Form)):
            self.is_open = True  # taken as equal until a second trace decides
            return b if isinstance(a, Form) else a
        return a if a == b else None

    def common(self, a: Degree, b: Degree) -> Degree:
        """The degree of a value with entries of two values; unknown if their degrees differ."""
        degree = self.agree(a, b)
        return UNKNOWN if degree is None else degree

    def is_degree(self, degree: Degree, wanted: Degree) -> bool | None:
        """Whether a degree is the wanted degree; None if this is unknown."""
        if degree in (ANY, wanted):
            return True
        if degree == UNKNOWN:
            return None
        degree = self.known(degree)
        if isinstance(degree, Form):
            self.is_open = True
            return None
        return degree == wanted


@cache
def _codes() -> Mapping[Any, str]:
    """The roles of numbers in JAX's functions, by their code objects."""
    roles: dict[Any, str] = {}
    # The factor in the derivative of a function of one operand is not the user's number.
    for name in ("rsqrt", "sqrt", "cbrt", "tanh", "logistic", "exp", "log", "log1p", "erf", "sin", "cos", "square"):
        roles |= dict.fromkeys(_jax.source.codes_of(getattr(jax.lax, name)), "constant")
    for function, role in ((jax.numpy.mean, "mean"), (jax.numpy.var, "mean"), (jax.lax.pmean, "pmean")):
        for code in _jax.source.codes_of(function):
            roles[code] = role
    return roles


def _is_count(number: float) -> bool:
    """Whether a number, or its inverse, is an integer above 1."""
    if not 1e-9 < number < 1e9 or number == 1:
        return False
    count = max(number, 1 / number)
    return isclose(count, round(count), rel_tol=1e-6)


def _is_in_text(eqn: Any, number: float) -> bool:
    """Whether a number is written in a function that was running when an equation was made, and not from a shape."""
    codes = _jax.source.call_site(eqn)[0] if eqn is not None else []
    return any(_writes(code, number) for code in codes) and not _jax.source.takes_shape(eqn)


@lru_cache(maxsize=4096)
def _writes(code: Any, number: float) -> bool:
    """Whether a number, or its inverse, is written in a function."""
    return any(_is_of(constant, number) for constant in code.co_consts if isinstance(constant, int | float))


def _is_of(written: float, number: float) -> bool:
    """Whether a number is a written number, its inverse, or its difference from 1."""
    size = abs(written)
    derived = (size, 1 / size, abs(1 - written)) if 1e-9 < size < 1e9 else ()
    return any(isclose(candidate, number, rel_tol=1e-6) for candidate in derived)


def _role_of(codes: Sequence[Any]) -> str:
    """The role of a number in a function of JAX, by the code that was running when its equation was made."""
    if not _jax.versions.HAS_MANUAL_TYPES:  # a traceback may belong to another call
        return ""
    known, counting = _codes(), _jax.source.COUNTING_SHARDS
    for code in codes:
        if code in known:
            return known[code]
        if code in counting:
            return "pmean"
    return ""


def pmean_axes(eqns: Sequence[Any]) -> dict[Any, tuple[str, ...]]:
    """The axes of each pmean among equations, by its line."""
    axes: dict[Any, tuple[str, ...]] = {}
    for eqn in eqns:
        if _jax.jaxpr.collective_operation(eqn) == "all-reduce":
            codes, place = _jax.source.call_site(eqn)
            if _role_of(codes) == "pmean":
                axes[place] = _jax.jaxpr.named_axes(eqn)
    return axes
