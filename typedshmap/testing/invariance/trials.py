"""One trial: what is drawn is run on one device and on every mesh, and what differs is told."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ... import _jax
from ...errors import StructureError
from ...errors.phrases import mesh_text, quoted
from ..drawn import Drawn
from ..inputs import draw
from .choice import alone_on, longer_axes
from .differences import Difference, Tolerance, differences
from .programs import Arrays, Outcome, Subject, communicates, run
from .rounding import measure
from .telling import Trial, context, differs_by_itself, phrase, told

VERB = "assert_mesh_invariant"
UNCOMPILED = "XLA cannot compile it there"


@dataclass(frozen=True)
class Asked:
    """What the user asks of every trial."""

    grad: bool
    exclude: tuple[str, ...]
    rtol: float | None
    atol: float | None
    arguments: Mapping[str, Any] | None
    given: Mapping[str, Any]

    def draw(self, f: Callable[..., Any], meshes: Sequence[Mesh], seed: int) -> Drawn:
        return draw(f, meshes, seed=seed, given=self.given, arguments=self.arguments, verb=VERB)

    def is_excluded(self, name: str) -> bool:
        return any(_is_within(name, outer) for outer in self.exclude)


def _is_within(name: str, outer: str) -> bool:
    return name == outer or (name.startswith(outer) and name[len(outer)] in ".[")


def try_out(
    subject: Subject,
    meshes: Sequence[Mesh],
    left_out: Mapping[Mesh, str],
    seed: int,
    asked: Asked,
    manual: bool | None,
    may_fail: bool,
) -> tuple[Subject, list[Mesh]]:
    """One trial.

    Args:
      may_fail: whether a mesh may be left out that XLA cannot compile for.

    Returns:
      The function, now that it is known how it is called; and the meshes that XLA cannot compile for.

    Raises:
      AssertionError: for a result that depends on the mesh.
    """
    drawn = asked.draw(subject.f, meshes, seed)
    one, *others = meshes
    if subject.kind == "global" and manual is None and communicates(subject, drawn.on(one), one):
        subject = replace(subject, kind="mapped")
    runner = _Runner(subject, drawn, asked)
    reference = runner.run(one)
    runner.refuse_unknown_names(reference.values)
    _warn_of_nothing(subject, reference.values)
    tolerance = Tolerance(measure(reference, seed), asked.rtol, asked.atol)
    tried, failed = list[_Tried](), list[Mesh]()
    for mesh in others:
        try:
            tried.append(runner.compared(reference, mesh, tolerance))
        except jax.errors.JaxRuntimeError as error:
            if not may_fail or _PARTIAL not in str(error) or len(failed) + 1 == len(others):
                raise
            failed.append(mesh)
    if any(each.differences for each in tried):
        omitted = {**left_out, **dict.fromkeys(failed, UNCOMPILED)}
        raise AssertionError(_told(runner, reference, tolerance, tried, omitted))
    return subject, failed


# What XLA says of a sum over an axis of size 1 that is manual beside longer ones that are not.
_PARTIAL = "must be in (partial) manual partitioning mode"


@dataclass(frozen=True)
class _Tried:
    """What was found on one mesh."""

    mesh: Mesh
    differences: tuple[Difference, ...]
    programs: tuple[Any, ...]


@dataclass(frozen=True)
class _Runner:
    """Runs one trial's call on one mesh after another."""

    subject: Subject
    drawn: Drawn
    asked: Asked

    def run(self, mesh: Mesh) -> Outcome:
        """What the call gives on a mesh."""
        meant, asked, seed = self.subject.meant(mesh), self.asked, self.drawn.seed
        with self._noted(mesh):
            return run(self.subject, self.drawn.on(meant), meant, asked.grad, seed, asked.is_excluded)

    def compared(self, reference: Outcome, mesh: Mesh, tolerance: Tolerance) -> _Tried:
        """What is not the same on a mesh, but for what is excluded."""
        outcome = self.run(mesh)
        found = differences(reference, outcome, tolerance)
        kept = tuple(each for each in found if not self.asked.is_excluded(each.name))
        return _Tried(mesh, kept, outcome.traced)

    @contextmanager
    def _noted(self, mesh: Mesh) -> Generator[None]:
        try:
            yield
        except Exception as error:
            where = f"{VERB}: {self.subject.name} on the mesh {mesh_text(mesh.shape.items())}"
            error.add_note("\n".join([where, *context(self.subject, self.drawn.sizes, self.drawn.seed)]))
            raise

    def refuse_unknown_names(self, known: Arrays) -> None:
        """Refuse names in ``exclude=`` that no result has, and a comparison of nothing.

        Raises:
          StructureError: with the names that there are.
        """
        told = f"{VERB}: {self.subject.name}:"
        for outer in self.asked.exclude:
            if not any(_is_within(each, outer) for each in known):
                are = f"Hint: they are {quoted(known)}"
                raise StructureError(f"{told} exclude= names '{outer}', which is none of its results\n\n{are}")
        if all(map(self.asked.is_excluded, known)):
            raise StructureError(f"{told} nothing is left to compare; its results are {quoted(known) or 'none'}")
        if self.asked.grad and not any(each.startswith("grad(") for each in known):
            raise StructureError(f"{told} grad=True, but no argument is inexact, so that there is no gradient")


def _warn_of_nothing(subject: Subject, values: Arrays) -> None:
    """Warn of results that no mesh can change, since they are NaN."""
    for name, array in values.items():
        if _jax.is_inexact(array.dtype) and array.size and np.isnan(array).all():
            told = f"{VERB}: {subject.name}: {phrase(name)} is NaN on one device, which no mesh can change"
            warnings.warn(f"{told}; pass arguments for which it is not", stacklevel=4)


def _told(
    runner: _Runner, reference: Outcome, tolerance: Tolerance, tried: Sequence[_Tried], left_out: Mapping[Mesh, str]
) -> str:
    """The message of a failure, once it is known that it is the mesh that makes it."""
    subject, drawn = runner.subject, runner.drawn
    again = runner.compared(reference, reference.mesh, tolerance)
    if again.differences:
        return differs_by_itself(subject, again.differences[0], drawn.sizes, drawn.seed)
    tried = sorted([*tried, *_alone(runner, reference, tolerance, tried)], key=lambda each: each.mesh.size)
    wrong = [each for each in tried if each.differences]
    return told(
        Trial(
            subject=subject,
            seed=drawn.seed,
            sizes=drawn.sizes,
            tolerance=tolerance,
            found={each.mesh: each.differences for each in wrong},
            agreeing=[each.mesh for each in tried if not each.differences],
            left_out=left_out,
            programs=wrong[0].programs,
        )
    )


def _alone(runner: _Runner, reference: Outcome, tolerance: Tolerance, tried: Sequence[_Tried]) -> Generator[_Tried]:
    """The axes of a mesh that differs, each alone, where that was not tried."""
    known = {longer_axes(each.mesh) for each in tried}
    mesh = next(each.mesh for each in tried if each.differences)
    for axis in longer_axes(mesh):
        if (axis,) not in known:
            # A function may not run there at all; what is wrong with it is told without, then.
            with suppress(Exception):
                yield runner.compared(reference, alone_on(mesh, axis), tolerance)
