"""``assert_mesh_invariant``: a correct program gives the same global results on every mesh.

A trial draws sizes and arguments, runs the program with them on one device and on every mesh, and reports the first
difference."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from math import lcm
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from .. import _jax
from .._jax.mesh import abstract_mesh, mesh_sizes
from ..drawing import framed, table
from ..errors import ShapeError, StructureError, SuspectWarning, VaryingError
from ..errors.phrases import count_text, first_line, mesh_text, name_of, quoted_axes, titled, value_text
from ..errors.requirements import merge_sizes, require_bool_or_none, require_dict, require_integer
from ..errors.varying import UnmentionedVarying
from ..inspection import signature
from ..tools.progress import progress
from ..tools.sample.arguments import FlatCall
from ..tools.sample.input_plan import UnplacedInputs, plan_inputs
from ..tools.sample.plain import is_plain, with_hints
from .compare import MeshTrial, Tolerance, differences, measure
from .describe_difference import describe_first_difference
from .diagnose import (
    describe_omissions,
    describe_trial,
    differs_by_itself,
    failure_report,
    has_not_ended,
    list_meshes,
    noting_sizes,
    result_phrase,
)
from .run import CompiledCall, FunctionUnderTest, Outcome, classify_function, compile_call, in_its_region
from .thresholds import numbers_compared
from .trial_meshes import axes_of, default_meshes, given_meshes, longer_axes, name_of_mesh, one_axis_mesh
from .waiting import TookTooLong


@dataclass(frozen=True)
class Verified:
    """The meshes on which a function gave the same results.

    Attributes:
      function: its name.
      meshes: the meshes; the first is a single device.
      left_out: default meshes that were not tried, each with the reason.
      seeds: the seed of each trial.
      loose: the results whose tolerance was more than 1 % of their median entry, each with that share; a mistake of
        that size is not found.
      misfit: the error for the sizes that were drawn first, if only multiples of all mesh axes were accepted.
      seconds: the time of each mesh in all trials, including compilation.
    """

    function: str
    meshes: tuple[Mesh, ...]
    left_out: Mapping[Mesh, str]
    seeds: tuple[int, ...]
    loose: Mapping[str, float] = field(default_factory=dict[str, float])
    misfit: str = ""
    seconds: Mapping[Mesh, float] = field(default_factory=dict[Mesh, float], compare=False)

    def __str__(self) -> str:
        facts = [count_text(len(self.seeds), "trial"), *describe_omissions(self.left_out)]
        if self.misfit:
            facts.append(f"sizes are multiples of all mesh axes, since others led to {self.misfit}")
        for name, share in self.loose.items():
            facts.append(f"{result_phrase(name)} compared only up to {share:.2g} of its median entry")
        return f"{self.function}: the same on {list_meshes(self.meshes)} ({'; '.join(facts)})"

    def __repr__(self) -> str:
        return titled(self)

    def _repr_html_(self) -> str:
        """A row for each mesh, and the results that were compared with a large tolerance."""
        rows = [
            (name_of_mesh(mesh), f"{mesh.size:,}", "the same" if at else "compared with", f"{self.seconds[mesh]:.2f}")
            for at, mesh in enumerate(self.meshes)
        ]
        rows += [
            (name_of_mesh(mesh), f"{mesh.size:,}", f"left out, since {why}", "") for mesh, why in self.left_out.items()
        ]
        loose = [(result_phrase(name), f"{share:.2g} of its median entry") for name, share in self.loose.items()]
        others = "other results" if loose else "all results"
        tolerances = [*loose, (others, "none, or at most 0.01 of the median entry")]
        misfit = f"<p>sizes are multiples of all mesh axes, since others led to {escape(self.misfit)}</p>"
        return framed(
            f"<h4>{escape(self.function)}: the same on every mesh</h4>",
            table(("mesh", "devices", "results", "seconds"), rows, ("devices", "seconds")),
            table(("compared", "tolerance"), tolerances),
            f"<p>{count_text(len(self.seeds), 'trial')}</p>{misfit if self.misfit else ''}",
        )


def assert_mesh_invariant(
    f: Callable[..., Any],
    /,
    meshes: Sequence[Any] | None = None,
    *,
    args: Sequence[Any] = (),
    grad: bool = False,
    exclude: str | Iterable[str] = (),
    seed: int | None = None,
    trials: int = 3,
    timeout: float = 120,
    rtol: float | None = None,
    atol: float | None = None,
    manual: bool | None = None,
    arguments: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
    **dims: Any,
) -> Verified:
    """Require that a function gives the same global results on every mesh, and the same gradients.

    A correct program does: the mesh determines where values are computed, not the values. A program does not if it uses
    the mean of a shard as the global mean, sums twice, draws the same random numbers on every shard, or swaps the mesh
    axes of a dim.

    ```python
    assert_mesh_invariant(step, [{"dp": 4, "tp": 2}], grad=True, batch=32)
    ```

    Each trial draws sizes and arguments from the hints, as `inputs` does, and runs the function on one device and on
    every mesh. If the program compares an argument with a number, some entries are drawn on both sides of the number,
    or equal to it. Every third trial has floats a hundred times larger, if the results are then finite. If the function
    refuses the sizes, they are drawn once more, as multiples of all mesh axes. Suspects are not reported: the numbers
    decide. Trials whose arguments have the same types share the compiled programs: if all sizes are given, there is one
    compilation per mesh.

    Numbers may differ by as much as a different order of summation explains, ``2 g (u scale + moved)``: u is the unit
    roundoff of the coarsest dtype in which the program computes; ``scale`` the largest entry of the result on one
    device; ``moved`` the largest change of the result there when every inexact argument is perturbed by one unit in the
    last place of that dtype; and ``g = sqrt(n) v / u + sqrt(p)``, for sums of n terms accumulated in a dtype with unit
    roundoff v (float32 or finer), on p devices. Entries that are identical on all meshes count neither for ``scale``
    nor for ``moved``. The square roots are those of N. J. Higham and T. Mary, "A new approach to probabilistic rounding
    error analysis", SIAM J. Sci. Comput. 41(5), 2019. Integers, bools and keys must be equal, except where this
    perturbation of the arguments changes them.

    Progress is reported on stderr after some seconds.

    Args:
      f: a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also under ``jax.jit``; or a method of
        an instance. Its own ``mesh=`` is replaced for the run. Or a function without hints that calls
        ``jax.shard_map``, or was made by it: its regions are traced for the other mesh.
      meshes: each a Mesh, a dict of sizes, or a text like ``"dp=4,tp=2"``; axes that are not named have size 1.
        By default each axis alone, all axes together, and their sizes permuted: the axes of the function's own mesh, of
        the ambient mesh, or of the hints, on the devices of this process. One device always comes first.
      args: the positional arguments of a function without hints, in any trees: arrays, which are the same in all
        trials, and ``jax.ShapeDtypeStruct``s, for which values are drawn. They may also be given by name.
      grad: whether the vector-Jacobian products of all results with respect to all inexact arguments must also agree,
        with random cotangents. Their names are ``grad(x)``.
      exclude: results that may differ, such as random numbers drawn separately on each shard, by their paths:
        ``"return[0]"`` or ``"[0]"``, ``"return.noise"`` or ``".noise"``; everything in them is excluded.
      seed: the seed of the first trial, 0 by default; each further trial has the next number.
      trials: the number of times that sizes and arguments are drawn.
      timeout: the seconds that a program may run on a mesh, without its compilation. Shards may wait for each other for
        ever; on a CPU this is noticed after 40 seconds without computation.
      rtol: the allowed difference as a share of a result's largest entry, instead of the differences that rounding
        explains.
      atol: the allowed difference as a number, instead of the differences that rounding explains; it is added to that
        share.
      manual: for a helper made by ``typed``: whether it belongs in manual regions and is mapped over all axes of the
        mesh, or is called under ``jax.jit`` on global arrays. By default it is mapped if its hints have marks
        (``+axis``) or if it communicates over mesh axes. A result marked ``+axis`` is summed.
      arguments: arguments by name or by path, as for `inputs`.
      sizes: sizes by name as in a dict, for a dim that has the name of an option.
      **dims: sizes by the names of dims, and arguments by their names, as for `inputs`; the same in all trials.

    Returns:
      The meshes, the trials, and the large tolerances.

    Raises:
      AssertionError: if a result depends on the mesh, with the responsible axis and the seed; if the program does not
        end in time on a mesh.
      MeshAxisError: if no mesh is known, or if a mesh needs more devices than there are.
      StructureError: for arguments that cannot be made from hints, and for an unknown name in ``exclude``.
      TypedShmapError: for any other error of the function on a mesh; a note names the mesh.
    """
    require_dict(VERB, arguments)
    sizes = merge_sizes(VERB, sizes, dims)
    if is_plain(f):
        if manual is not None:
            raise StructureError(f"{VERB}: {name_of(f)}: manual= is for helpers made by typed")
        f, arguments = with_hints(VERB, f, args, {**sizes, **(arguments or {})}, _lent(meshes))
        args, sizes = (), {}
    hinted = signature(f, VERB)
    if args:
        raise StructureError(f"{VERB}: {name_of(f)}: args= is for functions without hints; pass arguments by name")
    own_mesh = hinted.known_mesh()
    require_bool_or_none(VERB, "grad", grad)
    subject = classify_function(f, hinted, manual)
    names, limits = _names(exclude), (_number_option("rtol", rtol), _number_option("atol", atol))
    if not (seconds := _number_option("timeout", timeout)):
        raise StructureError(f"{VERB}: timeout={value_text(timeout)} is not a number of seconds")

    def draw(meshes: Sequence[Mesh], seed: int, multiples_of: int = 1) -> UnplacedInputs:
        return plan_inputs(f, meshes, sizes, arguments, VERB).with_multiples(multiples_of).draw(seed)

    first_seed = require_integer(VERB, "seed", 0 if seed is None else seed, 0)
    axes, left_out = axes_of(hinted, own_mesh), dict[Mesh, str]()
    if meshes is None:
        chosen, left_out = _fitting_meshes(draw, default_meshes(axes, subject.name))
    else:
        chosen = given_meshes(meshes, axes)
    seeds = tuple(range(first_seed, first_seed + require_integer(VERB, "trials", trials, 1, 10_000)))
    multiples_of, misfit, loose, compiled = 1, "", dict[str, float](), dict[Mesh, CompiledCall]()
    spent = dict[Mesh, float]()
    noting = noting_sizes(subject.name, f, {} if own_mesh is None else own_mesh.shape)
    with warnings.catch_warnings(), noting, progress(f"{VERB}: {subject.name}") as report:
        warnings.simplefilter("ignore", SuspectWarning)  # the numbers decide
        first_mesh = chosen[0]
        made = draw(chosen, first_seed).on(first_mesh)
        if manual is None:
            subject = in_its_region(subject, made, first_mesh)
        compared = numbers_compared(subject, made, first_mesh)

        def trial(seed: int) -> Trial:
            factor = _LARGE if seed % 3 == 2 else 1.0
            drawn = replace(draw(chosen, seed, multiples_of), compared=compared, factor=factor)
            return Trial(subject, drawn, grad, names, *limits, seconds, report, compiled, spent)

        def run(trial: Trial) -> list[Mesh]:
            return trial.run(chosen, left_out, loose, may_fail=meshes is None)

        for seed in seeds:
            tried = trial(seed)
            try:
                failed = run(tried)
            except (AssertionError, StructureError):
                raise
            except VaryingError as error:
                if _is_of_one_shard(error):  # with more shards the error names the cause
                    tried.run([max(chosen, key=lambda mesh: mesh.size)], left_out, loose, may_fail=False)
                raise
            except Exception as error:
                # The body may refuse sizes that the hints allow, if it scatters an unsharded dim.
                multiples_of = lcm(*(mesh.size for mesh in chosen))
                again = trial(seed)
                if again.drawn.sizes == tried.drawn.sizes:
                    raise
                try:
                    failed = run(again)
                except AssertionError:
                    raise
                except Exception:
                    raise error from None
                misfit = first_line(error)
            left_out.update(dict.fromkeys(failed, UNCOMPILED))
            chosen = [mesh for mesh in chosen if mesh not in failed]
    return Verified(subject.name, tuple(chosen), left_out, seeds, loose, misfit, spent)


class DifferenceReport(str):
    """The message for a mesh that ran to its end with another result, unlike the messages of other failures."""

    __slots__ = ()


VERB = "assert_mesh_invariant"
# The factor of floats in every third trial, so that they reach other branches.
_LARGE = 100.0
# The smallest factor, if a difference may be rounding.
_SMALL = 0.01
UNCOMPILED = "XLA cannot compile it there"
_UNFIT = "the sizes do not fit"
# XLA's message for a sum over a manual axis of size 1 if longer axes are not manual.
_PARTIAL = "must be in (partial) manual partitioning mode"


def _lent(meshes: Any) -> AbstractMesh | None:
    """A mesh with the axes of all given meshes, for a function that uses the ambient mesh."""
    given = meshes if isinstance(meshes, list | tuple) else ()
    shapes = [mesh_sizes(getattr(mesh, "shape", mesh)) or {} for mesh in given]
    sizes = {axis: size for shape in shapes for axis, size in shape.items()}
    return abstract_mesh(sizes) if sizes else None


def _is_of_one_shard(error: VaryingError) -> bool:
    """Whether the value varies by its type over axes with one shard, so that the error does not name the cause."""
    causes = [failure.what.cause for failure in error.failures if isinstance(failure.what, UnmentionedVarying)]
    return any(cause is not None and cause.kind == "alone" for cause in causes)


def _number_option(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= sys.float_info.max:
        raise StructureError(f"{VERB}: {name} must be a number >= 0, got {value_text(value)}")
    return float(value)


def _names(exclude: Any) -> tuple[str, ...]:
    is_several = isinstance(exclude, Iterable) and not isinstance(exclude, str)
    try:
        names: tuple[Any, ...] = tuple(exclude) if is_several else (exclude,)
    except TypeError:  # iterable by its class, like an array without dims
        names = (exclude,)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise StructureError(
            f'{VERB}: exclude= holds {value_text(wrong[0])}; it takes names of results, as "return[0]"'
        )
    return tuple(name if name.startswith(("return", "grad(")) else f"return{name}" for name in names)


def _is_within(name: str, outer: str) -> bool:
    return name == outer or (name.startswith(outer) and name[len(outer)] in ".[")


def _fitting_meshes(
    draw: Callable[[Sequence[Mesh], int], UnplacedInputs], meshes: Sequence[Mesh]
) -> tuple[list[Mesh], dict[Mesh, str]]:
    """The meshes that fit the sizes, given or in the hints; and those that do not fit, with the reason."""
    smallest, *others = meshes
    draw([smallest], 0)  # raises errors that hold on every mesh
    fitting, misfits = [smallest], dict[Mesh, ShapeError]()
    for mesh in others:
        try:
            draw([smallest, mesh], 0).structs(mesh)
            fitting.append(mesh)
        except ShapeError as error:
            misfits[mesh] = error
    if len(fitting) == 1:
        raise next(iter(misfits.values()))
    return fitting, dict.fromkeys(misfits, _UNFIT)


@dataclass(frozen=True)
class Trial:
    """A function and its drawn arguments, which are run on one mesh after another.

    Attributes:
      subject: the function.
      drawn: its arguments.
      grad: whether its gradients are also compared.
      exclude: the results that are not compared.
      rtol: as for `assert_mesh_invariant`.
      atol: the same.
      timeout: the same.
      report: reports progress.
      compiled: the program of each mesh, from the last trial whose arguments are of the same types.
      spent: the seconds of each mesh.
    """

    subject: FunctionUnderTest
    drawn: UnplacedInputs
    grad: bool
    exclude: tuple[str, ...]
    rtol: float | None
    atol: float | None
    timeout: float
    report: Callable[[str], None]
    compiled: dict[Mesh, CompiledCall]
    spent: dict[Mesh, float]

    def is_excluded(self, name: str) -> bool:
        return any(_is_within(name, outer) for outer in self.exclude)

    def run(
        self, meshes: Sequence[Mesh], left_out: Mapping[Mesh, str], loose: dict[str, float], may_fail: bool
    ) -> list[Mesh]:
        """Compare the results on each mesh with those on the first; returns the meshes for which XLA cannot compile.

        Args:
          loose: receives the results with a large tolerance, each with its share of the median entry.
          may_fail: whether to leave out a mesh for which XLA cannot compile the function.
        """
        smallest, *others = meshes
        reference = self._outcome(smallest)
        tolerance = measure(reference, self.drawn.seed, self.rtol, self.atol)
        is_chaotic = not reference.is_finite or tolerance.is_chaotic(reference)
        if is_chaotic and self.drawn.factor > 1:
            return self._with_smaller_floats().run(meshes, left_out, loose, may_fail)
        self._refuse_unknown_names(reference)
        for name, array in reference.values.items():
            if _jax.array.is_inexact(array.dtype) and array.size and np.isnan(array).all():
                text = f"{VERB}: {self.subject.name}: {result_phrase(name)} is NaN on {name_of_mesh(smallest)}"
                text += ", which no mesh can change; pass arguments for which it is not"
                warnings.warn(text, stacklevel=3)
        outcomes, failed = dict[Mesh, Outcome](), list[Mesh]()
        for mesh in others:
            try:
                outcomes[mesh] = self._outcome(mesh)
            except jax.errors.JaxRuntimeError as error:
                if not may_fail or _PARTIAL not in str(error) or len(failed) + 1 == len(others):
                    raise
                failed.append(mesh)
        tolerance = tolerance.over(reference, outcomes.values())
        tried = [self._compare(reference, mesh, outcome, tolerance) for mesh, outcome in outcomes.items()]
        if any(trial.differences for trial in tried):
            if is_chaotic and self.drawn.factor > _SMALL:
                return self._with_smaller_floats().run(meshes, left_out, loose, may_fail)
            omitted = {**left_out, **dict.fromkeys(failed, UNCOMPILED)}
            raise AssertionError(self._failure_message(reference, tolerance, tried, omitted))
        for name, share in tolerance.looseness(reference, max(mesh.size for mesh in meshes)).items():
            if not self.is_excluded(name):
                loose[name] = max(share, loose.get(name, 0.0))
        return failed

    def _with_smaller_floats(self) -> Trial:
        return replace(self, drawn=replace(self.drawn, factor=self.drawn.factor / 10))

    def _outcome(self, mesh: Mesh) -> Outcome:
        """The results on a mesh."""
        used, drawn, began = self.subject.mesh_for(mesh), self.drawn, time.monotonic()
        self.report(f"on {name_of_mesh(mesh)}, seed {drawn.seed}")
        try:
            call, known = FlatCall(drawn.on(used), jax.Array), self.compiled.get(used)
            if known is None or not known.form.is_like(call.form):
                known = self.compiled[used] = compile_call(self.subject, call, used, self.grad, self.is_excluded)
            return known.run(self.subject, call.arrays, drawn.seed, self.timeout)
        except TookTooLong as late:
            raise AssertionError(has_not_ended(self.subject, drawn, mesh, *late.args)) from None
        except Exception as error:
            where = f"{VERB}: {self.subject.name} on the mesh {mesh_text(mesh.shape.items())}"
            error.add_note("\n".join([where, *describe_trial(self.subject, self.drawn)]))
            raise
        finally:
            self.spent[mesh] = self.spent.get(mesh, 0.0) + time.monotonic() - began

    def _compare(self, reference: Outcome, mesh: Mesh, outcome: Outcome, tolerance: Tolerance) -> MeshTrial:
        """The results that differ on a mesh, without excluded results."""
        differing = differences(reference, outcome, tolerance)
        return MeshTrial(mesh, outcome, [result for result in differing if not self.is_excluded(result.name)])

    def _refuse_unknown_names(self, reference: Outcome) -> None:
        """Refuse names in ``exclude=`` that no result has, and a trial without compared results."""
        text, known = f"{VERB}: {self.subject.name}:", reference.values
        for outer in self.exclude:
            if not any(_is_within(name, outer) for name in known):
                are = f"Hint: they are {quoted_axes(known)}"
                raise StructureError(f"{text} exclude= names '{outer}', which is none of its results\n\n{are}")
        if all(map(self.is_excluded, known)):
            raise StructureError(f"{text} nothing is left to compare; its results are {quoted_axes(known) or 'none'}")
        if self.grad and not reference.compiled.gradients:
            raise StructureError(f"{text} grad=True, but no argument is inexact, so that there is no gradient")

    def _failure_message(
        self, reference: Outcome, tolerance: Tolerance, tried: list[MeshTrial], left_out: Mapping[Mesh, str]
    ) -> str:
        """The message of a failure, after a second run on one device, traced again, which must agree with the first."""
        device = reference.compiled.mesh
        again = replace(self, compiled={})._outcome(device)
        repeated = self._compare(reference, device, again, tolerance)
        if repeated.differences:
            return differs_by_itself(self.subject, self.drawn, repeated.differences[0])
        # Also try each axis of a mesh that differs alone.
        known = {longer_axes(trial.mesh) for trial in tried}
        mesh = next(trial.mesh for trial in tried if trial.differences)
        for axis in longer_axes(mesh) if device.size == 1 else ():
            if (axis,) not in known:
                # The function may fail on that mesh; then the report omits it.
                with suppress(Exception):
                    short = one_axis_mesh(mesh, axis)
                    outcome = self._outcome(short)
                    limits = tolerance.over(reference, [*(trial.outcome for trial in tried), outcome])
                    tried = [*tried, self._compare(reference, short, outcome, limits)]
        tried = sorted(tried, key=lambda trial: trial.mesh.size)
        wrong = next(trial for trial in tried if trial.differences)
        self.report("comparing values along the way")
        names = [mismatch.name for mismatch in wrong.differences]
        where = describe_first_difference(self.subject, reference, wrong.outcome, names)
        than = name_of_mesh(device)
        return DifferenceReport(failure_report(self.subject, self.drawn, tolerance, tried, left_out, where, than))
