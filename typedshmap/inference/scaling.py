"""By what sums are divided, and how often gradients are summed: whether a psum is due, a pmean, or neither is right.

Invariant: nothing of this runs unless an error or a warning is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from .. import _jax
from .commuting import JOINED, LINEAR, PICKING, PLACING, PRODUCTS, SCALING
from .interpreter import Interpreter
from .provenance import UNREDUCED, Divisor, Known, Provenance, Scale, join_scales

ADDING = frozenset(["add", "add_any", "sub"])
_SCALED = LINEAR | PRODUCTS | SCALING | PICKING | PLACING | frozenset(JOINED)
_MEANS = frozenset(["mean", "nanmean", "average", "_mean"])


class OwnMean(NamedTuple):
    """A mean of each shard's own part.

    Attributes:
      place: where it is taken; empty where that is not known.
      others: the other axes over which it is a shard's own.
    """

    place: str
    others: list[str]


class Scaling:
    """What the divisions of a region are by, as far as it was followed.

    Args:
      interpreter: the region's.
      is_transposed: whether an equation, or one around it, is of the backward part of a gradient.
    """

    def __init__(self, interpreter: Interpreter, is_transposed: Callable[[Any], bool]) -> None:
        self.sizes, self.axes, self.has_vma = interpreter.sizes, interpreter.axes, interpreter.has_vma
        self.is_transposed = is_transposed
        # By axis, place and number: "mean" where a sum is divided by the number of a shard's
        # elements, "unclear" where it may be.
        self._divisions: dict[tuple[str, str, float], str] = {}

    def of_result(self, eqn: Any, operands: Sequence[Known]) -> Scale:
        """The scale of the results of an equation."""
        name, collective = eqn.primitive.name, _jax.jaxpr.collective_operation(eqn)
        scale = join_scales([known.scale for known in operands] if name in _SCALED or collective else ())
        over = _jax.jaxpr.named_axes(eqn, self.axes) if collective else ()
        left = ((by, tuple(axis for axis in axes if axis not in over)) for by, axes in scale.recounts)
        scale = scale._replace(recounts=tuple(one for one in left if one[1]))
        if (number := self._divisor(eqn, operands)) is not None:
            return scale._replace(divisors=(*scale.divisors, (number, eqn)))
        if collective == "all-reduce" and not self.has_vma and _jax.jaxpr.is_transposed(eqn):
            # Without types differentiation makes a psum of what is the same on all shards.
            same = tuple(axis for axis in over if axis not in operands[0].provenances)
            return scale._replace(recounts=(*scale.recounts, (eqn, same))) if same else scale
        if name in ADDING and self.is_transposed(eqn):
            return scale._replace(mixed=scale.mixed | self._mixed_axes(operands))
        return scale

    def _divisor(self, eqn: Any, operands: Sequence[Known]) -> float | None:
        """The constant that an equation divides by, by a product with a fraction, too."""
        name, values = eqn.primitive.name, [known.value for known in operands]
        if name == "div":
            return values[1] or None
        factor = next((one for one in values if one and abs(one) < 1), None) if name == "mul" else None
        if not factor or any(known.scale.divisors for known in operands if known.value == factor):
            return None
        return 1 / factor

    def note_division(self, eqn: Any, number: float, by_axis: dict[str, Provenance]) -> None:
        """Note over which axes a division takes no mean, since what it divides is not a sum there."""
        if self.is_transposed(eqn):
            return
        for axis in self.axes:
            if axis not in by_axis or by_axis[axis].kind == "part":
                self._divisions.setdefault((axis, _jax.source.equation_place(eqn), number), "")

    def of_sum(self, one: Provenance, axis: str, divisors: Sequence[Divisor]) -> Provenance:
        """A sum that is divided: by the number of its elements it is a mean; and so is the gradient of a mean."""
        for number, by in divisors:
            if one.kind != "sum":
                return one
            functions = _jax.source.library_functions(by)
            if "pmean" in functions:
                continue
            key, is_of_mean = (axis, _jax.source.equation_place(by), number), not _MEANS.isdisjoint(functions)
            if self.is_transposed(by):
                may_count = not one.size or number % one.size == 0  # where what is differentiated is left out
                unseen = "" if not may_count else "mean" if is_of_mean else "unclear"
                what = self._divisions.setdefault(key, unseen)
            elif is_of_mean:
                is_local = number == one.size * prod(one.others) and _is_of_mean(one.eqn)
                what = self._divisions[key] = "mean" if is_local else ""
            else:
                is_of_all = one.size and number % (one.size * self.sizes[axis]) == 0
                is_divisor = by.primitive.name == "div" and number >= 2 and number == round(number)
                what = "unclear" if (is_divisor and not is_of_all) or number in one.counts else ""
                self._divisions[key] = what
            if what:
                one = one._replace(kind="mean") if what == "mean" else one._replace(divisor=(number, by))
        return one

    def of_gradient(self, one: Provenance, axis: str, scale: Scale) -> Provenance:
        """A part of a gradient, which is not sharded over its axis.

        Without types a sum is differentiated as a sum. Of a loss that is reduced over the axis, each shard has so much
        of the gradient that their mean is due, whatever is between. Over other axes nothing takes the mean.
        """
        if any(axis in axes for _, axes in scale.recounts):
            one = one._replace(kind="mean", divisor=None, late=None, astray=None)
        elif axis in scale.mixed and not self.has_vma and one.kind in ("sum", "mean"):
            return one._replace(made="mixed")
        by_hand = [number for number, by in scale.divisors if not is_of_any_mean(by)]
        for eqn, axes in scale.recounts:
            others = tuple(other for other in axes if other != axis)
            shards = prod(self.sizes[other] for other in others)
            if others and not any(number % shards == 0 for number in by_hand):
                return one._replace(recounted=(eqn, others))
        own = [] if self.has_vma or by_hand else self._own_means(scale.divisors)
        others = tuple(dict.fromkeys(other for _, other in own if other != axis))
        return one._replace(recounted=(own[0][0], others)) if others and one.kind == "mean" else one

    def mean_of_gradient(self, known: Known, axis: str) -> OwnMean | None:
        """The shard's own mean whose gradient a value is; None if it is of no such mean.

        A gradient that is divided otherwise, as by hand or by a pmean, may be right, unless it was summed as often.
        """
        one, divisors = known.provenances.get(axis), known.scale.divisors
        own = self._own_means(divisors)
        by = next((by for by, over in own if over == axis), None)
        if one is None or one.kind not in ("sum", "mean") or (one.kind == "sum" and by is None):
            return None
        recounts = sum(axis in axes for _, axes in known.scale.recounts)
        if sum(number % self.sizes[axis] == 0 for number, each in divisors if not _is_of_mean(each)) > recounts:
            return None
        place = _jax.source.equation_place(by) if by is not None else ""
        return OwnMean(place, [over for each, over in own if each is by and over != axis])

    def is_divided(self, known: Known, axis: str) -> bool:
        """Whether a value was divided by the number of shards, or by a multiple of it.

        By hand, or with types by a pmean, whose sum has another gradient than without.
        """
        is_other = _is_of_mean if self.has_vma else is_of_any_mean
        return any(number % self.sizes[axis] == 0 for number, by in known.scale.divisors if not is_other(by))

    def _mixed_axes(self, operands: Sequence[Known]) -> frozenset[str]:
        """The axes over which of gradients that are added some are of a shard's own mean, and others are not.

        Before they are summed over a shard's part; afterwards it shows.
        """
        if any(one.kind not in UNREDUCED for known in operands for one in known.provenances.values()):
            return frozenset()
        added = [known.scale.divisors for known in operands if known.value != 0]
        means = [frozenset(axis for _, axis in self._own_means(divisors)) for divisors in added]
        return frozenset[str]().union(*means) - frozenset.intersection(*means) if means else frozenset()

    def _own_means(self, divisors: Sequence[Divisor]) -> list[tuple[Any, str]]:
        """Of some divisions those that take a shard's own mean, each with an axis over which they do."""
        return [
            (by, axis)
            for number, by in divisors
            for axis in self.sizes
            if self._divisions.get((axis, _jax.source.equation_place(by), number)) == "mean"
        ]


def _is_of_mean(eqn: Any) -> bool:
    """Whether the user's line made an equation by taking a mean of elements."""
    return not _MEANS.isdisjoint(_jax.source.library_functions(eqn))


def is_of_any_mean(eqn: Any) -> bool:
    """Whether the user's line made an equation by taking a mean of elements or of shards."""
    return not _jax.source.library_functions(eqn).isdisjoint({*_MEANS, "pmean"})
