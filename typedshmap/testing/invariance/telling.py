"""Word what was found: which result, on which mesh, how far off, which mesh axis makes it, and what that looks like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from ... import _jax
from ...errors.phrases import equation, quoted
from .choice import longer_axes, name_of_mesh
from .clues import Clue, clues, makers
from .differences import Apart, Difference, OtherForm, Tolerance
from .programs import Subject


@dataclass(frozen=True)
class Trial:
    """One trial that failed.

    Attributes:
      subject: the function.
      seed: what its arguments were drawn from.
      sizes: the sizes of names.
      tolerance: what counts as the same.
      found: per mesh what is not as on one device, the smallest mesh first.
      agreeing: the meshes on which all is.
      left_out: meshes that were not tried, each with the reason.
      programs: what was traced on the smallest mesh that differs.
    """

    subject: Subject
    seed: int
    sizes: Mapping[str, Any]
    tolerance: Tolerance
    found: Mapping[Mesh, Sequence[Difference]]
    agreeing: Sequence[Mesh]
    left_out: Mapping[Mesh, str]
    programs: Sequence[Any]

    @property
    def first(self) -> Difference:
        """What is told in full: the first result that is wrong on the smallest mesh."""
        return next(iter(self.found.values()))[0]


def told(trial: Trial) -> str:
    """The message of a failure."""
    first = trial.first
    found = list(clues(first, trial.programs)) if isinstance(first, Apart) else []
    cure = next((clue.cure for clue in found if clue.cure), None)
    lines = [f"{trial.subject.name}: {_headline(first)}", ""]
    lines += [f"    {fact}" for fact in _facts(trial, first, found)]
    lines += ["", *context(trial.subject, trial.sizes, trial.seed)]
    return "\n".join([*lines, *([f"Hint: {cure}"] if cure else [])])


def context(subject: Subject, sizes: Mapping[str, Any], seed: int) -> list[str]:
    """Of what and how it was tried."""
    text = ", ".join(equation(name, size) for name, size in sizes.items())
    lines = [f"Sizes: {text}"] if text else []
    if subject.kind == "global":
        lines.append("Called: under jax.jit, on global arrays; manual=True maps it over the shards")
    if subject.kind == "mapped":
        lines.append("Called: inside of typed_shard_map over all mesh axes; manual=False calls it on global arrays")
    return [*lines, f"Again: seed={seed}"]


def differs_by_itself(subject: Subject, found: Difference, sizes: Mapping[str, Any], seed: int) -> str:
    """The message where the same call on one device gives something else when it is made again."""
    told = f"{phrase(found.name)} depends on something else than the arguments"
    if isinstance(found, Apart):
        here, there = numbers(found.here[found.at], found.there[found.at])
        told += f":{place(found.at)} it is {there} on one device, and {here} when called there again"
    return "\n".join([f"{subject.name}: {told}", "", *context(subject, sizes, seed)])


def phrase(name: str) -> str:
    """What messages call a result or a gradient."""
    return "return value" if name == "return" else name


def numbers(a: Any, b: Any) -> tuple[str, str]:
    """Two numbers, short, but long enough to see that they differ."""
    if not _jax.is_inexact(a.dtype):
        return str(a), str(b)
    texts = ((f"{a.item():.{digits}g}", f"{b.item():.{digits}g}") for digits in (6, 9, 17))
    return next((pair for pair in texts if pair[0] != pair[1]), (str(a), str(b)))


def place(at: tuple[int, ...]) -> str:
    """Where an entry stands, `` at [0,3]``; nothing for that of a scalar."""
    return f" at [{','.join(map(str, at))}]" if at else ""


def _headline(found: Difference) -> str:
    mesh = name_of_mesh(found.mesh)
    told = f"{phrase(found.name)} depends on the mesh:"
    if isinstance(found, OtherForm):
        return f"{told} it is {found.here or 'missing'} on {mesh}, but {found.there or 'missing'} on one device"
    here, there = numbers(found.here[found.at], found.there[found.at])
    return f"{told}{place(found.at)} it is {here} on {mesh}, but {there} on one device"


def _facts(trial: Trial, first: Difference, found: Sequence[Clue]) -> Iterator[str]:
    if isinstance(first, Apart):
        yield _how_far(trial, first)
    yield from (clue.fact for clue in found)
    yield _made_by(trial, first)
    yield f"differs on {listed(trial.found)}"
    if trial.agreeing:
        yield f"agrees on {listed(trial.agreeing)}"
    yield from omissions(trial.left_out)
    names = dict.fromkeys(phrase(each.name) for differences in trial.found.values() for each in differences)
    if others := [name for name in names if name != phrase(first.name)]:
        yield f"wrong, too: {', '.join(others[:6])}" + (f" and {len(others) - 6} more" if len(others) > 6 else "")


def listed(meshes: Iterable[Mesh]) -> str:
    """``dp=4; dp=4, tp=2``"""
    return "; ".join(map(name_of_mesh, meshes))


def omissions(left_out: Mapping[Mesh, str]) -> list[str]:
    """What was not tried, by the reasons."""
    by_reason = {why: [mesh for mesh, each in left_out.items() if each == why] for why in left_out.values()}
    return [f"left out, since {why}: {listed(meshes)}" for why, meshes in by_reason.items()]


def _made_by(trial: Trial, first: Difference) -> str:
    axes = makers(first.name, trial.found)
    if len(axes) > 1:
        return f"each of {quoted(axes)} alone makes the difference"
    if axes:
        return f"{quoted(axes)} alone makes the difference"
    together = longer_axes(first.mesh)
    return f"only {' and '.join(map(repr, together))} together make the difference"


def _how_far(trial: Trial, first: Apart) -> str:
    entries = f"{int(first.wrong.sum())} of {first.wrong.size} entries differ" if first.wrong.size > 1 else "it differs"
    if first.allowed is None:
        return f"{entries}; {_jax.dtype_name(first.there.dtype)} has to be equal"
    return f"{entries}, by up to {first.by:.3g}; {_why(trial.tolerance, first.allowed)}"


def _why(tolerance: Tolerance, allowed: float) -> str:
    if tolerance.is_given:
        return f"{allowed:.3g} is allowed"
    return f"rounding in {_jax.dtype_name(tolerance.rounding.dtype)} explains {allowed:.0e}"
