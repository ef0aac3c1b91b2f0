"""Compare a result on a mesh with the one on one device, up to what rounding alone may do to it.

Another mesh adds in another order. By the probabilistic rounding analysis of Higham and Mary, "A new approach
to probabilistic rounding error analysis" (SIAM J. Sci. Comput. 41(5), 2019), the computed sum of n terms is the exact
sum of terms each off by a relative ``c sqrt(n) u`` at most, with a probability that tends to 1 quickly as c grows; u is
the unit roundoff. So what another order may do to a result is what so small a change of the operands does to it.

That is measured: the program runs again on one device with every inexact argument off by one unit in the last place
of the coarsest dtype that the program computes in. Gradients, which are linear in the cotangents, are also computed
of those times a number and divided by it, since they may depend on no argument. ``moved`` is the largest change of the
result. Then

    allowed = c g (u scale + moved),    g = sqrt(n) v / u + sqrt(p)

where ``scale`` is the largest entry of the result on one device, u belongs to the coarsest dtype, v to the dtype that
sums are kept in (float32 for all that are shorter, as XLA keeps them), n is the longest sum in the program and p the
number of devices, whose partial results are rounded to the coarse dtype before they are added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from .. import _jax
from .run import ArraysByName, HostArray, Outcome

# Entries that are off by this share of the furthest one count as equally far off; rounding parts them by less.
_NEARLY = 1 - 1e-4


@dataclass(frozen=True)
class FormMismatch:
    """A result that is missing, or of another shape or dtype.

    Attributes:
      name: which result.
      mesh: on which mesh.
      here: what it is there; empty where there is none.
      there: what it is on one device; empty where there is none.
    """

    name: str
    mesh: Mesh
    here: str
    there: str


@dataclass(frozen=True)
class ValueMismatch:
    """A result with other numbers.

    Attributes:
      name: which result.
      mesh: on which mesh.
      here: what it is there.
      there: what it is on one device.
      allowed: how far rounding may take it; None for what must be equal.
      wrong: which entries are further off.
      dim_axes: the mesh axes that each dim is sharded over.
    """

    name: str
    mesh: Mesh
    here: HostArray
    there: HostArray
    allowed: float | None
    wrong: HostArray
    dim_axes: tuple[tuple[str, ...], ...]

    @property
    def at(self) -> tuple[int, ...]:
        """The entry that is furthest off.

        Of those that are equally far off but for rounding it is the first, on every machine.
        """
        with np.errstate(invalid="ignore"):
            off = np.abs(as_double(self.here) - as_double(self.there))
        off = np.where(self.wrong, np.nan_to_num(off, nan=np.inf), -1)
        return tuple(int(i) for i in np.unravel_index(np.argmax(off >= _NEARLY * off.max()), off.shape))

    @property
    def by(self) -> float:
        """How far the furthest entry is off."""
        return float(abs(as_double(self.here[self.at]) - as_double(self.there[self.at])))

    @property
    def scale(self) -> float:
        """The largest entry on one device."""
        return scale_of(self.there)


Difference = FormMismatch | ValueMismatch


class MeshTrial(NamedTuple):
    """What was found on one mesh.

    Attributes:
      mesh: the mesh.
      differences: what is not as on one device.
      jaxprs: what was traced there.
    """

    mesh: Mesh
    differences: Sequence[Difference]
    jaxprs: Sequence[Any]


@dataclass(frozen=True)
class Tolerance:
    """What counts as the same.

    Attributes:
      rounding: what rounding may do.
      rtol: instead, the share of the largest entry that is allowed.
      atol: instead, how much is allowed; both add up.
    """

    rounding: Rounding
    rtol: float | None = None
    atol: float | None = None

    @property
    def is_given(self) -> bool:
        """Whether the user says what is allowed."""
        return self.rtol is not None or self.atol is not None

    def allowed(self, name: str, reference: HostArray, devices: int) -> float | None:
        """How far a value may be off; None for one that must be equal."""
        if not _jax.array.is_inexact(reference.dtype):
            return None
        if not self.is_given:
            return self.rounding.allowed(name, reference, devices)
        return (self.rtol or 0.0) * scale_of(reference) + (self.atol or 0.0)


def differences(reference: Outcome, other: Outcome, tolerance: Tolerance) -> Iterator[Difference]:
    """What is not the same on a mesh as on one device, in the order of the results."""
    for name in dict.fromkeys([*reference.values, *other.values]):
        there, here = reference.values.get(name), other.values.get(name)
        if there is None or here is None or there.shape != here.shape or there.dtype != here.dtype:
            texts = ("" if values is None else _jax.array.type_text(values) for values in (here, there))
            yield FormMismatch(name, other.mesh, *texts)
            continue
        allowed = tolerance.allowed(name, there, other.mesh.size)
        wrong = ~are_close(here, there, allowed)
        if allowed is None:
            wrong &= ~tolerance.rounding.loose[name]
        if wrong.any():
            yield ValueMismatch(name, other.mesh, here, there, allowed, wrong, other.specs.get(name, ()))


def are_close(here: HostArray, there: HostArray, allowed: float | None) -> HostArray:
    """Which entries are as near as they may be. NaN, or the same infinity, on both sides is the same."""
    if allowed is None:
        return here == there
    here, there = as_double(here), as_double(there)
    with np.errstate(invalid="ignore"):
        is_near = np.abs(here - there) <= allowed
    return is_near | (here == there) | (np.isnan(here) & np.isnan(there))


# Right programs in float32 and bfloat16 used up to a fifth of what this allows; where all of a sum cancels, up to
# three quarters.
_C = 2.0
_SINGLE = 2.0**-24
_OF_PERTURBATIONS = 2**31 + 2
_FACTORS = (1.3, 0.7, 1.7, 0.6)


@dataclass(frozen=True)
class Rounding:
    """What rounding may do to the values of a program.

    Attributes:
      dtype: the coarsest dtype that it computes in; None where nothing is inexact.
      unit: that dtype's unit roundoff.
      terms: the number of terms of its longest sum.
      moved: for each inexact value, the largest change by one unit in the last place of the arguments.
      loose: for each other value, the entries that changed.
    """

    dtype: Any
    unit: float
    terms: int
    moved: Mapping[str, float]
    loose: ArraysByName

    def allowed(self, name: str, reference: HostArray, devices: int) -> float:
        """How far a value may be off on so many devices."""
        if self.dtype is None:
            return 0.0
        growth = sqrt(self.terms) * min(self.unit, _SINGLE) / self.unit + sqrt(devices)
        return _C * growth * (self.unit * scale_of(reference) + self.moved[name])


def scale_of(values: HostArray) -> float:
    """The largest finite entry, by its absolute value."""
    sizes = np.abs(as_double(values))
    return float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))


def as_double(values: HostArray) -> HostArray:
    """Numbers in double precision, so that their differences are exact enough."""
    is_complex = jax.numpy.issubdtype(values.dtype, jax.numpy.complexfloating)
    return values.astype(np.complex128 if is_complex else np.float64)


def measure(reference: Outcome, seed: int) -> Rounding:
    """What rounding may do to the values that a function gave on one device.

    Args:
      reference: what it gave there.
      seed: what the perturbations are drawn from.
    """
    results = (each for jaxpr in reference.jaxprs for eqn in _jax.jaxpr.all_equations(jaxpr) for each in eqn.outvars)
    dtypes = dict.fromkeys(each.aval.dtype for each in results if hasattr(each.aval, "dtype"))
    coarsest = max(filter(_jax.array.is_inexact, dtypes), key=unit_of, default=None)
    unit = 0.0 if coarsest is None else unit_of(coarsest)
    terms = max((longest_sum(jaxpr) for jaxpr in reference.jaxprs), default=1)
    values = reference.values
    moved = {name: 0.0 for name, each in values.items() if _jax.array.is_inexact(each.dtype)}
    loose = {name: np.zeros(each.shape, bool) for name, each in values.items() if name not in moved}
    for at, factor in enumerate(_FACTORS):
        changed = reference.again(_perturb(reference.arrays, unit, (seed, at)), factor)
        for name, most in moved.items():
            back = as_double(changed[name]) / (factor if name in reference.gradients else 1.0)
            with np.errstate(invalid="ignore"):
                moved[name] = max(most, scale_of(back - as_double(values[name])))
        for name, known in loose.items():
            known |= changed[name] != values[name]
    return Rounding(coarsest, unit, terms, moved, loose)


def _perturb(arrays: Sequence[jax.Array], unit: float, seed: Sequence[int]) -> list[jax.Array]:
    """Arrays whose inexact entries are off by one unit in the last place, up or down."""
    rng, found = np.random.default_rng((*seed, _OF_PERTURBATIONS)), list(arrays)
    for at, array in enumerate(arrays):
        if _jax.array.is_inexact(array.dtype):
            # One unit in the last place is u to 2 u of a number; three halves of u round to no less than one.
            factors = 1 + 1.5 * unit * rng.choice((-1.0, 1.0), array.shape)
            values = np.asarray(array)
            found[at] = jax.device_put((as_double(values) * factors).astype(values.dtype), array.sharding)
    return found


@lru_cache(maxsize=64)
def unit_of(dtype: Any) -> float:
    """A dtype's unit roundoff."""
    return float(jax.numpy.finfo(dtype).eps) / 2


def longest_sum(jaxpr: Any) -> int:
    """The number of terms of a jaxpr's longest sum; the iterations of the loops around it count as terms."""
    return max((times * _terms(eqn) for eqn, times in _jax.jaxpr.counted_equations(jaxpr)), default=1)


def _terms(eqn: Any) -> int:
    """How many terms an equation adds up for one entry of its result, at most."""
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
