"""Compare a result on a mesh with the result on one device, up to rounding.

A different mesh adds in a different order. By the probabilistic rounding analysis of Higham and Mary, "A new approach
to probabilistic rounding error analysis" (SIAM J. Sci. Comput. 41(5), 2019), the computed sum of n terms is the exact
sum of perturbed terms, each with a relative error of at most ``c sqrt(n) u``, with a probability that tends to 1
quickly as c grows; u is the unit roundoff. So a different order changes a result by no more than a perturbation of
that size in the operands does.

That change is measured: the program runs again on one device with every inexact argument perturbed by one unit in the
last place of the coarsest dtype in which the program computes. Gradients may be independent of the arguments, but they
are linear in the cotangents: the cotangents are multiplied by a number, and the gradients divided by it. ``moved`` is
the largest change of the result. Then

    allowed = c g (u scale + moved),    g = sqrt(n) v / u + sqrt(p)

where ``scale`` is the largest entry of the result on one device, u belongs to the coarsest dtype, v to the dtype in
which sums are accumulated (float32 for shorter dtypes, as in XLA), n is the number of terms of the longest sum in the
program, and p the number of devices, whose partial results are rounded to the coarse dtype before they are added.

Only entries that are not identical on every mesh count for ``scale`` and ``moved``: a masked score of -1e9 says nothing
about the other scores. Dtypes of fewer than 16 bits count only if values are computed in them; values that are only
cast to them and back, as in a product of quantized numbers, are rounded in the same way on every mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod, sqrt
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from .. import _jax
from .._jax.primitives import primitive
from .run import ArraysByName, HostArray, Outcome

# Entries with an error of at least this share of the largest error are a tie, which rounding would decide.
_NEARLY = 1 - 1e-4


@dataclass(frozen=True)
class FormMismatch:
    """A result that is missing, or has a different shape or dtype.

    Attributes:
      name: the result's name.
      actual: its type on that mesh; empty if it is missing.
      expected: its type on one device; empty if it is missing.
    """

    name: str
    actual: str
    expected: str


@dataclass(frozen=True)
class ValueMismatch:
    """A result with different values.

    Attributes:
      name: the result's name.
      mesh: the mesh on which it differs.
      actual: its value on that mesh.
      expected: its value on one device.
      allowed: the largest allowed difference; None if the values must be equal.
      wrong: a mask of the entries with a larger difference.
      dim_axes: the mesh axes that each dim is sharded over.
    """

    name: str
    mesh: Mesh
    actual: HostArray
    expected: HostArray
    allowed: float | None
    wrong: HostArray
    dim_axes: tuple[tuple[str, ...], ...]

    @property
    def at(self) -> tuple[int, ...]:
        """The index of the entry with the largest difference.

        Among differences that are equal up to rounding it is the first, so that it is the same on every machine.
        """
        with np.errstate(invalid="ignore"):
            off = np.abs(as_double(self.actual) - as_double(self.expected))
        off = np.where(self.wrong, np.nan_to_num(off, nan=np.inf), -1)
        return tuple(int(i) for i in np.unravel_index(np.argmax(off >= _NEARLY * off.max()), off.shape))

    @property
    def by(self) -> float:
        """The largest difference."""
        return float(abs(as_double(self.actual[self.at]) - as_double(self.expected[self.at])))


Difference = FormMismatch | ValueMismatch


class MeshTrial(NamedTuple):
    """The comparison of one mesh with one device.

    Attributes:
      mesh: the mesh.
      outcome: the results on the mesh.
      differences: the results that differ.
    """

    mesh: Mesh
    outcome: Outcome
    differences: Sequence[Difference]


def differences(reference: Outcome, on_mesh: Outcome, tolerance: Tolerance) -> Iterator[Difference]:
    """The results that differ between a mesh and one device, in order."""
    for name in dict.fromkeys([*reference.values, *on_mesh.values]):
        expected, actual = reference.values.get(name), on_mesh.values.get(name)
        if expected is None or actual is None or expected.shape != actual.shape or expected.dtype != actual.dtype:
            texts = ("" if values is None else _jax.array.type_text(values) for values in (actual, expected))
            yield FormMismatch(name, *texts)
            continue
        mesh, dim_axes = on_mesh.compiled.mesh, on_mesh.compiled.dim_axes(name)
        allowed = tolerance.allowed(name, expected, mesh.size)
        wrong = ~are_close(actual, expected, allowed)
        if allowed is None:
            wrong &= ~tolerance.loose[name]
        if wrong.any():
            yield ValueMismatch(name, mesh, actual, expected, allowed, wrong, dim_axes)


def are_close(actual: HostArray, expected: HostArray, allowed: float | None) -> HostArray:
    """A mask of the entries with an allowed difference; NaN equals NaN, and an infinity equals itself."""
    if allowed is None:
        return actual == expected
    actual, expected = as_double(actual), as_double(expected)
    with np.errstate(invalid="ignore"):
        is_near = np.abs(actual - expected) <= allowed
    return is_near | (actual == expected) | (np.isnan(actual) & np.isnan(expected))


# Correct programs in float32 and bfloat16 used up to a fifth of this tolerance; if a sum cancels completely, up to
# three quarters.
_C = 2.0
_SINGLE = 2.0**-24
# A tolerance that is a larger share of the median entry hides mistakes.
_MUCH = 0.01
# A result is chaotic if it changes by this share of its largest entry, and by this number of roundoffs.
_CHAOS, _CHAOS_IN_UNITS = 0.01, 100.0
_PERTURBATION_STREAM = 2**31 + 2
_FACTORS = (1.3, 0.7, 1.7, 0.6)


@dataclass(frozen=True)
class Tolerance:
    """The allowed differences: those that rounding explains, or those that the user gives.

    Attributes:
      dtype: the coarsest dtype in which the program computes; None if nothing is inexact.
      unit: that dtype's unit roundoff.
      terms: the number of terms of its longest sum.
      moved: for each inexact result, the largest change of each entry when the arguments are perturbed.
      uncertain: for each inexact result, a mask of the entries that are not identical on every mesh.
      loose: for each other result, a mask of the entries that changed.
      rtol: a share of the largest entry, instead of the differences that rounding explains.
      atol: a number, instead of the differences that rounding explains; it is added to that share.
    """

    dtype: Any
    unit: float
    terms: int
    moved: ArraysByName
    uncertain: ArraysByName
    loose: ArraysByName
    rtol: float | None = None
    atol: float | None = None

    @property
    def is_given(self) -> bool:
        """Whether the user has given a tolerance."""
        return self.rtol is not None or self.atol is not None

    def allowed(self, name: str, reference: HostArray, devices: int) -> float | None:
        """The largest allowed difference on a number of devices; None for a value that must be equal."""
        if not _jax.array.is_inexact(reference.dtype):
            return None
        if self.is_given:
            return (self.rtol or 0.0) * scale_of(reference) + (self.atol or 0.0)
        if self.dtype is None:
            return 0.0
        growth = sqrt(self.terms) * min(self.unit, _SINGLE) / self.unit + sqrt(devices)
        scale, moved = (scale_of(values[self.uncertain[name]]) for values in (reference, self.moved[name]))
        return _C * growth * (self.unit * scale + moved)

    def is_chaotic(self, reference: Outcome) -> bool:
        """Whether a change in the last place of the arguments is amplified nearly without a bound.

        An example is a softmax of large scores that switches from one score to another: the few perturbations of the
        arguments may miss the effect of rounding.
        """
        share = max(_CHAOS, _CHAOS_IN_UNITS * self.unit)
        return any(scale_of(moved) > share * scale_of(reference.values[name]) for name, moved in self.moved.items())

    def over(self, reference: Outcome, outcomes: Iterable[Outcome]) -> Tolerance:
        """The tolerance for a comparison with these meshes."""
        uncertain = {name: np.zeros(moved.shape, bool) for name, moved in self.moved.items()}
        for name, mask in uncertain.items():
            for values in (outcome.values.get(name) for outcome in outcomes):
                if values is not None and values.shape == mask.shape:
                    mask |= ~are_close(values, reference.values[name], 0.0)
        return replace(self, uncertain=uncertain)

    def looseness(self, reference: Outcome, devices: int) -> dict[str, float]:
        """By result, the tolerance as a share of the median entry, if it is large."""
        shares: dict[str, float] = {}
        for name in () if self.is_given else self.moved:
            sizes = np.abs(as_double(reference.values[name][self.uncertain[name]]))
            sizes = np.sort(sizes[np.isfinite(sizes) & (sizes > 0)])
            allowed = self.allowed(name, reference.values[name], devices) or 0.0
            if sizes.size and allowed > _MUCH * sizes[(sizes.size - 1) // 2]:
                shares[name] = float(allowed / sizes[(sizes.size - 1) // 2])
        return shares


def scale_of(values: HostArray) -> float:
    """The largest finite entry, by its absolute value."""
    sizes = np.abs(as_double(values))
    return float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))


def as_double(values: HostArray) -> HostArray:
    """Numbers in double precision, so that their differences are accurate."""
    is_complex = jax.numpy.issubdtype(values.dtype, jax.numpy.complexfloating)
    return values.astype(np.complex128 if is_complex else np.float64)


def measure(reference: Outcome, seed: int, rtol: float | None = None, atol: float | None = None) -> Tolerance:
    """Measure the effect of rounding on the results of a function on one device."""
    compiled = reference.compiled
    coarsest = coarsest_dtype(compiled.jaxprs)
    unit = 0.0 if coarsest is None else unit_of(coarsest)
    terms = max((longest_sum(jaxpr) for jaxpr in compiled.jaxprs), default=1)
    values = reference.values
    moved = {name: np.zeros(array.shape) for name, array in values.items() if _jax.array.is_inexact(array.dtype)}
    loose = {name: np.zeros(array.shape, bool) for name, array in values.items() if name not in moved}
    for at, factor in enumerate(_FACTORS):
        changed = reference.again(_perturb(reference.arrays, unit, seed, at), factor)
        for name, most in moved.items():
            back = as_double(changed[name]) / (factor if name in compiled.gradients else 1.0)
            with np.errstate(invalid="ignore"):
                change = np.abs(back - as_double(values[name]))
            np.maximum(most, change, out=most, where=np.isfinite(change))
        for name, known in loose.items():
            known |= changed[name] != values[name]
    return Tolerance(coarsest, unit, terms, moved, {}, loose, rtol, atol)


def coarsest_dtype(jaxprs: Iterable[Any]) -> Any:
    """The coarsest dtype in which programs compute; None if nothing is inexact."""
    dtypes = dict[Any, None]()
    for eqn in (eqn for jaxpr in jaxprs for eqn in _jax.jaxpr.all_equations(jaxpr)):
        results = [var.aval.dtype for var in eqn.outvars if hasattr(var.aval, "dtype")]
        operation = primitive(eqn.primitive.name)
        chooses = operation.kind in ("joining", "choice") or (operation.kind == "extreme" and operation.is_monotone)
        # Results of these with fewer than 16 bits are only casts.
        is_moved = operation.is_moving or chooses or any(_jax.jaxpr.inner_jaxprs(eqn))
        dtypes.update((dtype, None) for dtype in results if dtype.itemsize > 1 or not is_moved)
    return max(filter(_jax.array.is_inexact, dtypes), key=unit_of, default=None)


def _perturb(arrays: Sequence[jax.Array], unit: float, seed: int, number: int) -> list[jax.Array]:
    """The arrays with every inexact entry off by one unit in the last place: first all up, then at random.

    Random changes hardly change a large sum of positive terms: by less than its own last place.
    """
    rng, perturbed = np.random.default_rng((seed, number, _PERTURBATION_STREAM)), list(arrays)
    for at, array in enumerate(arrays):
        if _jax.array.is_inexact(array.dtype):
            signs = rng.choice((-1.0, 1.0), array.shape) if number else 1.0
            # One unit in the last place is u to 2 u of a number; three halves of u round to at least one unit.
            values = np.asarray(array)
            changed = as_double(values) * (1 + 1.5 * unit * signs)
            perturbed[at] = jax.device_put(changed.astype(values.dtype), array.sharding)
    return perturbed


@lru_cache(maxsize=64)
def unit_of(dtype: Any) -> float:
    """A dtype's unit roundoff."""
    return float(jax.numpy.finfo(dtype).eps) / 2


def longest_sum(jaxpr: Any) -> int:
    """The number of terms of a jaxpr's longest sum; the iterations of enclosing loops count as terms."""
    return max((times * _terms(eqn) for eqn, times in _jax.jaxpr.counted_equations(jaxpr)), default=1)


def _terms(eqn: Any) -> int:
    """The largest number of terms that an equation adds up for an entry of its result."""
    name, params = eqn.primitive.name, eqn.params
    sizes = [prod(atom.aval.shape) for atom in eqn.invars if hasattr(atom.aval, "shape")]
    match name:
        case "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            return prod(eqn.invars[0].aval.shape[dim] for dim in contracted)
        case "scan":
            return max(1, params["length"])
        case "cumsum" | "cumprod" | "cumlogsumexp":
            return eqn.invars[0].aval.shape[params["axis"]]
        case "fft":
            return prod(params["fft_lengths"])
        case "conv_general_dilated" | "reduce_window_sum":
            return max(sizes)
        case _ if name.startswith("scatter"):
            return max(sizes)
        case _ if name.startswith("reduce_"):
            return sizes[0] // max(1, prod(eqn.outvars[0].aval.shape))
        case _:
            return 1
