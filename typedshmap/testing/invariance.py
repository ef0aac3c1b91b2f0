"""``assert_mesh_invariant``: a correct program gives the same global result on every mesh.

A trial runs what was drawn on one device and on every mesh; the first difference is reported."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from .. import _jax
from ..errors import ShapeError, StructureError
from ..errors.phrases import mesh_text, quoted_axes, value_text
from ..hints.signature import HintedSignature
from ..introspection import DecoratedInfo, bound_self, require_decorated
from ..sampling import draw, mesh_of
from ..sampling.meshes import require_bool_or_none
from ..sampling.values import UnplacedInputs
from .compare import Difference, Tolerance, differences, measure
from .diagnose import (
    FailedTrial,
    describe_omissions,
    describe_trial,
    differs_by_itself,
    failure_report,
    list_meshes,
    result_phrase,
)
from .meshes import axes_of, default_meshes, given_meshes, longer_axes, one_axis_mesh
from .run import ArraysByName, FunctionUnderTest, Outcome, classify_function, needs_manual_axes, run


@dataclass(frozen=True)
class Verified:
    """What a function was found to be invariant over.

    Attributes:
      function: its name.
      meshes: the meshes, the first of them one device.
      left_out: meshes that were to be tried, too, each with the reason why it was not.
      seeds: the trials.
    """

    function: str
    meshes: tuple[Mesh, ...]
    left_out: Mapping[Mesh, str]
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        trials = f"{len(self.seeds)} trial{'s' if len(self.seeds) != 1 else ''}"
        text = "; ".join([trials, *describe_omissions(self.left_out)])
        return f"{self.function}: the same on {list_meshes(self.meshes)} ({text})"


def assert_mesh_invariant(
    f: Callable[..., Any],
    /,
    meshes: Sequence[Any] | None = None,
    *,
    grad: bool = False,
    exclude: str | Iterable[str] = (),
    seed: int | None = None,
    trials: int = 3,
    rtol: float | None = None,
    atol: float | None = None,
    manual: bool | None = None,
    arguments: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Verified:
    """Demand that a function gives the same global results on every mesh, and the same gradients.

    A right program does: the mesh says where things are computed, not what. One that takes a shard's mean for the
    global one, takes a sum twice, draws the same random numbers on every shard, or swaps the axes of a dim, does not.

    ```python
    assert_mesh_invariant(step, [{"dp": 4, "tp": 2}], grad=True, batch=32)
    ```

    Each trial draws sizes and arguments by the hints, as `inputs` does, and runs the function on one device and on
    every mesh. Numbers may differ by what another order of sums explains, ``2 g (u scale + moved)``: u is the unit
    roundoff of the coarsest dtype that the program computes in; ``scale`` the largest entry of the result on one
    device; ``moved`` the most that the result changes there when every inexact argument is off by one unit in the last
    place of that dtype; and ``g = sqrt(n) v / u + sqrt(p)``, for sums of n terms kept in a dtype of unit roundoff v
    (float32 or finer), on p devices. The square roots are those of N. J. Higham and T. Mary, "A new approach to
    probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019. Integers, bools and keys have to be
    equal, except where that change of the arguments changes them.

    Args:
      f: a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also under ``jax.jit``; or a method of
        an instance. Its own ``mesh=`` is replaced for the run.
      meshes: each a Mesh, a dict of sizes, or a text like ``"dp=4,tp=2"``; axes that are not named have size 1.
        By default every axis alone, all together, and their sizes permuted: the axes of the function's own mesh,
        of the ambient one, or of the hints, on the devices of this process. One device is always the first.
      grad: whether the vector-Jacobian products have to agree, too: of all results in all inexact arguments,
        with random cotangents. Their names are ``grad(x)``.
      exclude: results that rightly differ, by their paths: ``"return[0]"`` or ``"[0]"``, ``"return.noise"`` or
        ``".noise"``; all that is in them is left out. For randomness that is each shard's own.
      seed: what the first trial is drawn from, 0 by default; each further one from the next number.
      trials: how many times sizes and arguments are drawn.
      rtol: instead of what rounding explains, the share of a result's largest entry that is allowed.
      atol: the same as a number; both add up.
      manual: of a helper made by ``typed``: whether it is one of manual regions, and mapped over all axes of the
        mesh, or is called under ``jax.jit`` on global arrays. By default it is mapped if its hints bear marks
        (``+axis``) or it communicates over mesh axes. A result marked ``+axis`` is summed.
      arguments: arguments by name or by path, as for `inputs`.
      **sizes: sizes by the names of dims, and arguments by theirs, as for `inputs`; they are the same in all trials.

    Returns:
      What was tried.

    Raises:
      AssertionError: for a result that depends on the mesh, with the axis that makes it and the seed.
      MeshAxisError: where no mesh is known, or one has too few devices.
      StructureError: for arguments that no hint can make, and for an unknown name in ``exclude``.
      TypedShmapError: what is wrong with the function on some mesh; a note says on which.
    """
    made_of = require_decorated(f, VERB)
    typed = made_of.signature.read(bound_self(f))
    own = mesh_of(f, None, VERB)
    require_bool_or_none(VERB, "grad", grad)
    subject = classify_function(f, made_of, typed, manual)
    asked = TrialOptions(
        grad, _names(exclude), _tolerance_option("rtol", rtol), _tolerance_option("atol", atol), arguments, sizes
    )
    first = _integer_option("seed", 0 if seed is None else seed, 0)
    chosen, left_out = _meshes(f, meshes, own, made_of, typed, asked)
    seeds = tuple(range(first, first + _integer_option("trials", trials, 1)))
    for each in seeds:
        subject, failed = run_trial(subject, chosen, left_out, each, asked, manual, may_fail=meshes is None)
        left_out.update(dict.fromkeys(failed, UNCOMPILED))
        chosen = [mesh for mesh in chosen if mesh not in failed]
    return Verified(typed.name, tuple(chosen), left_out, seeds)


_UNFIT = "the sizes do not fit"


def _integer_option(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise StructureError(f"{VERB}: {name}={value_text(value)} is not a whole number from {least} on")
    return value


def _tolerance_option(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise StructureError(f"{VERB}: {name}={value_text(value)} is not a number from 0 on")
    return float(value)


def _names(exclude: Any) -> tuple[str, ...]:
    names = (exclude,) if isinstance(exclude, str) else tuple(exclude) if isinstance(exclude, Iterable) else (exclude,)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise StructureError(
            f'{VERB}: exclude= holds {value_text(wrong[0])}; it takes names of results, as "return[0]"'
        )
    return tuple(name if name.startswith(("return", "grad(")) else f"return{name}" for name in names)


def _meshes(
    f: Callable[..., Any],
    meshes: Sequence[Any] | None,
    own: _jax.mesh.AnyMesh | None,
    made_of: DecoratedInfo,
    typed: HintedSignature,
    asked: TrialOptions,
) -> tuple[list[Mesh], dict[Mesh, str]]:
    """The meshes to try, one device first; and those of the default ones that are not, with the reason."""
    axes = axes_of(made_of, typed, own)
    if meshes is not None:
        return given_meshes(meshes, axes), {}
    one, *others = default_meshes(axes, typed.name)
    reasons = {mesh: _size_misfit(f, one, mesh, asked) for mesh in others}
    fitting = [mesh for mesh, reason in reasons.items() if reason is None]
    unfit = [reason for reason in reasons.values() if reason is not None]
    if not fitting:
        raise unfit[0]
    return [one, *fitting], dict.fromkeys((mesh for mesh in others if mesh not in fitting), _UNFIT)


def _size_misfit(f: Callable[..., Any], one: Mesh, mesh: Mesh, asked: TrialOptions) -> ShapeError | None:
    """Why sizes, given or in the hints, do not fit a mesh, if they do not."""
    asked.draw(f, [one], 0)  # what is wrong with one device is wrong
    try:
        asked.draw(f, [one, mesh], 0).structs(mesh)
    except ShapeError as error:
        return error
    return None


VERB = "assert_mesh_invariant"
UNCOMPILED = "XLA cannot compile it there"


@dataclass(frozen=True)
class TrialOptions:
    """What the user asks of every trial."""

    grad: bool
    exclude: tuple[str, ...]
    rtol: float | None
    atol: float | None
    arguments: Mapping[str, Any] | None
    given: Mapping[str, Any]

    def draw(self, f: Callable[..., Any], meshes: Sequence[Mesh], seed: int) -> UnplacedInputs:
        return draw(f, meshes, seed=seed, given=self.given, arguments=self.arguments, verb=VERB)

    def is_excluded(self, name: str) -> bool:
        return any(_is_within(name, outer) for outer in self.exclude)


def _is_within(name: str, outer: str) -> bool:
    return name == outer or (name.startswith(outer) and name[len(outer)] in ".[")


def run_trial(
    subject: FunctionUnderTest,
    meshes: Sequence[Mesh],
    left_out: Mapping[Mesh, str],
    seed: int,
    asked: TrialOptions,
    manual: bool | None,
    may_fail: bool,
) -> tuple[FunctionUnderTest, list[Mesh]]:
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
    if subject.kind == "global" and manual is None and needs_manual_axes(subject, drawn.on(one), one):
        subject = replace(subject, kind="mapped")
    runner = _Runner(subject, drawn, asked)
    reference = runner.run(one)
    runner.refuse_unknown_names(reference.values)
    _warn_of_nothing(subject, reference.values)
    tolerance = Tolerance(measure(reference, seed), asked.rtol, asked.atol)
    tried, failed = list[_MeshTrial](), list[Mesh]()
    for mesh in others:
        try:
            tried.append(runner.compare(reference, mesh, tolerance))
        except jax.errors.JaxRuntimeError as error:
            if not may_fail or _PARTIAL not in str(error) or len(failed) + 1 == len(others):
                raise
            failed.append(mesh)
    if any(each.differences for each in tried):
        omitted = {**left_out, **dict.fromkeys(failed, UNCOMPILED)}
        raise AssertionError(_failure_message(runner, reference, tolerance, tried, omitted))
    return subject, failed


# What XLA says of a sum over an axis of size 1 that is manual beside longer ones that are not.
_PARTIAL = "must be in (partial) manual partitioning mode"


@dataclass(frozen=True)
class _MeshTrial:
    """What was found on one mesh."""

    mesh: Mesh
    differences: tuple[Difference, ...]
    jaxprs: tuple[Any, ...]


@dataclass(frozen=True)
class _Runner:
    """Runs one trial's call on one mesh after another."""

    subject: FunctionUnderTest
    drawn: UnplacedInputs
    asked: TrialOptions

    def run(self, mesh: Mesh) -> Outcome:
        """What the call gives on a mesh."""
        meant, asked, seed = self.subject.mesh_for(mesh), self.asked, self.drawn.seed
        with self._noting_mesh(mesh):
            return run(self.subject, self.drawn.on(meant), meant, asked.grad, seed, asked.is_excluded)

    def compare(self, reference: Outcome, mesh: Mesh, tolerance: Tolerance) -> _MeshTrial:
        """What is not the same on a mesh, but for what is excluded."""
        outcome = self.run(mesh)
        found = differences(reference, outcome, tolerance)
        kept = tuple(each for each in found if not self.asked.is_excluded(each.name))
        return _MeshTrial(mesh, kept, outcome.jaxprs)

    @contextmanager
    def _noting_mesh(self, mesh: Mesh) -> Generator[None]:
        try:
            yield
        except Exception as error:
            where = f"{VERB}: {self.subject.name} on the mesh {mesh_text(mesh.shape.items())}"
            error.add_note("\n".join([where, *describe_trial(self.subject, self.drawn.sizes, self.drawn.seed)]))
            raise

    def refuse_unknown_names(self, known: ArraysByName) -> None:
        """Refuse names in ``exclude=`` that no result has, and a comparison of nothing.

        Raises:
          StructureError: with the names that there are.
        """
        text = f"{VERB}: {self.subject.name}:"
        for outer in self.asked.exclude:
            if not any(_is_within(each, outer) for each in known):
                are = f"Hint: they are {quoted_axes(known)}"
                raise StructureError(f"{text} exclude= names '{outer}', which is none of its results\n\n{are}")
        if all(map(self.asked.is_excluded, known)):
            raise StructureError(f"{text} nothing is left to compare; its results are {quoted_axes(known) or 'none'}")
        if self.asked.grad and not any(each.startswith("grad(") for each in known):
            raise StructureError(f"{text} grad=True, but no argument is inexact, so that there is no gradient")


def _warn_of_nothing(subject: FunctionUnderTest, values: ArraysByName) -> None:
    """Warn of results that no mesh can change, since they are NaN."""
    for name, array in values.items():
        if _jax.array.is_inexact(array.dtype) and array.size and np.isnan(array).all():
            text = f"{VERB}: {subject.name}: {result_phrase(name)} is NaN on one device, which no mesh can change"
            warnings.warn(f"{text}; pass arguments for which it is not", stacklevel=4)


def _failure_message(
    runner: _Runner, reference: Outcome, tolerance: Tolerance, tried: Sequence[_MeshTrial], left_out: Mapping[Mesh, str]
) -> str:
    """The message of a failure, once it is known that the mesh causes it."""
    subject, drawn = runner.subject, runner.drawn
    again = runner.compare(reference, reference.mesh, tolerance)
    if again.differences:
        return differs_by_itself(subject, again.differences[0], drawn.sizes, drawn.seed)
    tried = sorted([*tried, *_single_axis_trials(runner, reference, tolerance, tried)], key=lambda each: each.mesh.size)
    wrong = [each for each in tried if each.differences]
    return failure_report(
        FailedTrial(
            subject=subject,
            seed=drawn.seed,
            sizes=drawn.sizes,
            tolerance=tolerance,
            found={each.mesh: each.differences for each in wrong},
            agreeing=[each.mesh for each in tried if not each.differences],
            left_out=left_out,
            jaxprs=wrong[0].jaxprs,
        )
    )


def _single_axis_trials(
    runner: _Runner, reference: Outcome, tolerance: Tolerance, tried: Sequence[_MeshTrial]
) -> Generator[_MeshTrial]:
    """The axes of a mesh that differs, each alone, where that was not tried."""
    known = {longer_axes(each.mesh) for each in tried}
    mesh = next(each.mesh for each in tried if each.differences)
    for axis in longer_axes(mesh):
        if (axis,) not in known:
            # A function may not run there at all; then the report does without that mesh.
            with suppress(Exception):
                yield runner.compare(reference, one_axis_mesh(mesh, axis), tolerance)
