"""Suspects: results that grow with the mesh, lost partial sums, a shard's rows used as all rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

from ... import _jax
from ...errors.causes import Cure, Suspected, SuspectKind
from ...errors.phrases import mesh_text, quoted_axes
from .cures import find_cure
from .judge import ResultVerdict
from .origins import Loss, ValueOrigin, is_extreme
from .reading import Reading
from .region_kinds import Kinds, RegionReading

Growth = tuple[tuple[str, int, Any], ...]
"""The mesh axes with which a value grows or shrinks: each with its size, and the degree."""


class Suspicion(NamedTuple):
    """A suspect, or the error that a marked partial sum is lost.

    Attributes:
      failure: the suspect.
      place: the user's line where it began.
      is_error: whether a hint marks the partial sum.
      growth: the growth of a value that grows or shrinks with the mesh.
    """

    failure: Suspected
    place: str
    is_error: bool = False
    growth: Growth = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for suspicions over several axes that are the same."""
        cure, axes = self.failure.cure, quoted_axes(self.failure.axes)
        signs = [_sign(degree) for *_, degree in self.growth]
        return self.failure.kind, self.place, cure and cure.text.replace(axes, ""), *signs[:1]

    def merged(self, other: Suspicion) -> Suspicion:
        """One suspicion over the axes of both."""
        axes, growth = (*self.failure.axes, *other.failure.axes), self.growth + other.growth
        failure, also = self.failure.over(axes), other.failure.over(axes)
        if failure.cure and also.cure and failure.cure.other != also.cure.other:
            failure = replace(failure, cure=replace(failure.cure, other=""))
        if growth:
            problem = self.failure.problem.replace(growth_text(self.growth), growth_text(growth))
            failure = replace(failure, problem=problem)
        return self._replace(failure=failure, growth=growth)


_OF_RESULTS: dict[str, tuple[SuspectKind, str]] = {
    "order": ("own-part", "the rows of a result that is sharded over {axis} are not in the order of the global array"),
    "folded": ("double-sum", "a sum of different rows over {axis} is returned as the parts of a dim"),
    "copies": (
        "copies",
        "the same value on every shard of {axis} is returned as the parts of a dim: the global array repeats it",
    ),
}


def suspects(kinds: Kinds, axes: Sequence[str], refused: Collection[int] = ()) -> list[Suspicion]:
    """The suspects of a region, once for each line, kind and cure.

    Args:
      kinds: the kinds of its values.
      axes: the mesh axes.
      refused: the indices of the refused results, which need no second message.
    """
    suspicions: dict[tuple[Any, ...], Suspicion] = {}
    for axis in axes:
        for finding in _findings(kinds, axis, kinds.over(axis), refused):
            before = suspicions.setdefault(finding.key, finding)
            if axis not in before.failure.axes:
                suspicions[finding.key] = before.merged(finding)
    return list(suspicions.values())


def _findings(kinds: Kinds, axis: str, read: RegionReading, refused: Collection[int]) -> Iterator[Suspicion]:
    """The marked partial sums that an operation loses, and the suspects of wrong results."""
    reading = read.reading
    for loss in reading.losses.values():
        if reading.is_marked(loss.parts) and not (loss.why.is_of_extreme or loss.is_excusable):
            yield _of_loss(kinds, axis, read, loss, True)
    for at, verdict in read.verdicts.items():
        if verdict.says == "wrong" and at not in refused:
            yield from _of_result(kinds, axis, read, at, verdict)


def _of_result(kinds: Kinds, axis: str, read: RegionReading, at: int, verdict: ResultVerdict) -> Iterator[Suspicion]:
    if verdict.kind == "degree":
        yield _of_degree(kinds, axis, read, verdict.value.degree, _place_of_result(kinds, at))
    elif verdict.kind == "lost":
        yield _of_loss(kinds, axis, read, _first_loss(verdict.losses), False)
    elif verdict.kind in _OF_RESULTS:
        kind, problem = _OF_RESULTS[verdict.kind]
        cure = None if kind == "copies" else find_cure(kinds, axis, read)
        failure = Suspected(kind, (axis,), problem.format(axis=f"'{axis}'"), cure=cure)
        yield Suspicion(failure, _place_of_result(kinds, at))


def _first_loss(losses: Sequence[Loss]) -> Loss:
    """The first loss that does not use an extreme; else the first loss."""
    return min(losses, key=lambda loss: loss.why.is_of_extreme)


def _of_degree(kinds: Kinds, axis: str, read: RegionReading, degree: Any, place: str, met: str = "") -> Suspicion:
    """A suspect of a value that grows or shrinks with the mesh.

    Args:
      kinds: the kinds of the region's values.
      axis: the mesh axis.
      read: the reading over it.
      degree: the degree of the value.
      place: the line, if no collective is at fault.
      met: in words, the operation that combines the value with a value that does not grow.
    """
    cure = find_cure(kinds, axis, read)
    sums = [eqn for eqn, _, _ in reversed(read.reading.collectives.values())]
    site = cure.eqn if cure is not None and cure.eqn is not None else next(iter(sums), None)
    is_gradient = _is_of_gradient(kinds, cure, site)
    began = _place((site,)) if site is not None else ""
    if is_gradient:
        made = next(filter(_jax.jaxpr.is_transposed, [site, *sums]), None)
        began = began if made is None else _jax.source.gradient_place(made)
    what = "a gradient" if is_gradient else "a value" if met else "a result"
    growth = ((axis, kinds.sizes[axis], read.reading.numbers.known(degree)),)
    problem = f"{what} {growth_text(growth)}{met}"
    kind: SuspectKind = "summed-gradient" if is_gradient else "double-sum"
    return Suspicion(Suspected(kind, (axis,), problem, cure=cure), began or place, growth=growth)


def _is_of_gradient(kinds: Kinds, cure: Cure | None, site: Any) -> bool:
    """Whether differentiation, rather than the user, made the redundant sum."""
    if not kinds.is_differentiated or site is None:
        return False
    if cure is not None and cure.changes:
        replaced = [change for change in cure.changes if change.replaces]
        return len(replaced) < len(cure.changes)
    return _jax.jaxpr.is_transposed(site)


def growth_text(growth: Growth) -> str:
    """The ratio of a value to the right value, in words; the degrees have one sign."""
    axes, sign = quoted_axes(axis for axis, _, _ in growth), _sign(growth[0][2])
    if sign is None:
        return f"changes with {axes}"
    factor = prod(float(size) ** abs(float(degree)) for _, size, degree in growth)
    number = f"{factor:.0f}" if factor == round(factor) else f"{factor:.3g}"
    how, grows = ("large", "grows") if sign > 0 else ("small", "shrinks")
    mesh = mesh_text((axis, size) for axis, size, _ in growth)
    return f"is {number} times too {how} on {mesh}: it {grows} with {axes}"


def _sign(degree: Any) -> int | None:
    """The sign of a degree: whether a value grows or shrinks; None for an unknown degree."""
    return (degree > 0) - (degree < 0) if isinstance(degree, int | Fraction) else None


def _of_loss(kinds: Kinds, axis: str, read: RegionReading, loss: Loss, is_error: bool) -> Suspicion:
    """A suspect of a lost partial sum, or of a shard's rows that are used as all rows."""
    reading, place = read.reading, _place((loss.eqn, *loss.calls))
    if loss.why.growing and loss.degree:
        at = f" at {place.partition(' ')[0]}" if place else ""
        met = f", and {_operation(loss.eqn, loss.calls)}{at} {loss.why.growing}"
        return _of_degree(kinds, axis, read, loss.degree, place, met)
    origin = reading.maker_of_loss(loss)
    since = origin.place if origin is not None else ""
    problem = f"{_problem(reading, loss)}{f', due since {since}' if since and not loss.is_excusable else ''}"
    cure = find_cure(kinds, axis, read)
    failure = Suspected(loss.why.suspect, (axis,), problem, since, is_error, cure)
    return Suspicion(failure, place, is_error)


def problem_of(reading: Reading, losses: Sequence[Loss]) -> str:
    """The words for the first loss that does not use an extreme, else for the first loss, with its line."""
    loss = _first_loss(losses)
    return _problem(reading, loss, ValueOrigin(loss.eqn, loss.calls).place.partition(" ")[0])


def _problem(reading: Reading, loss: Loss, at: str = "") -> str:
    """The words for an operation at a line that loses a partial sum, or uses a shard's rows as all rows."""
    origin = reading.maker_of_loss(loss)
    text = loss.why.words.format(axis=f"'{reading.axis}'")
    if origin is not None and is_extreme(origin):
        text = text.replace("a partial sum", "each shard's own extreme")
    return f"{_operation(loss.eqn, loss.calls)}{at and f' at {at}'} {text}"


def _place(calls: Sequence[Any]) -> str:
    """The user's line of the innermost equation that has a line."""
    return next((place for eqn in calls if (place := _jax.source.equation_place(eqn))), "")


def _operation(eqn: Any, calls: Sequence[Any]) -> str:
    """The user's name for an operation."""
    if eqn.primitive.name == "add_any":
        return "the sum of cotangents"
    for caller in (eqn, *calls):
        if _jax.source.equation_place(caller):
            return _jax.source.called_function(caller)
    return eqn.primitive.name


def _place_of_result(kinds: Kinds, at: int) -> str:
    body = _jax.jaxpr.open_jaxpr(kinds.body)
    if at >= len(body.outvars):
        return ""
    maker = _jax.jaxpr.maker_of(body, body.outvars[at])
    while maker is not None:  # JAX casts a result that leaves: use the line of the operand
        if (place := _jax.source.equation_place(maker)) or len(maker.invars) != 1:
            return place
        maker = None if _jax.jaxpr.is_literal(maker.invars[0]) else _jax.jaxpr.maker_of(body, maker.invars[0])
    return ""
