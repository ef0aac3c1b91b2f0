"""How far rounding alone may take a result on another mesh.

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
number of devices, whose partial results are rounded to the coarse dtype before they are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt
from typing import Any

import jax
import numpy as np

from ... import _jax
from .programs import Arrays, Outcome

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
      moved: of each inexact value, the largest change by one unit in the last place of the arguments.
      loose: of each other value, which entries changed.
    """

    dtype: Any
    unit: float
    terms: int
    moved: Mapping[str, float]
    loose: Arrays

    def allowed(self, name: str, reference: np.ndarray[Any, Any], devices: int) -> float:
        """How far a value may be off on so many devices."""
        if self.dtype is None:
            return 0.0
        growth = sqrt(self.terms) * min(self.unit, _SINGLE) / self.unit + sqrt(devices)
        return _C * growth * (self.unit * scale_of(reference) + self.moved[name])


def scale_of(values: np.ndarray[Any, Any]) -> float:
    """The largest finite entry, by its absolute value."""
    sizes = np.abs(wide(values))
    return float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))


def wide(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers in double precision, so that their differences are exact enough."""
    is_complex = jax.numpy.issubdtype(values.dtype, jax.numpy.complexfloating)
    return values.astype(np.complex128 if is_complex else np.float64)


def measure(reference: Outcome, seed: int) -> Rounding:
    """What rounding may do to the values that a function gave on one device.

    Args:
      reference: what it gave there.
      seed: what the perturbations are drawn from.
    """
    found = [dtype for program in reference.traced for dtype in _inexact_dtypes(program)]
    coarsest = max(found, key=unit_of, default=None)
    unit = 0.0 if coarsest is None else unit_of(coarsest)
    terms = max((longest_sum(program) for program in reference.traced), default=1)
    values = reference.values
    moved = {name: 0.0 for name, each in values.items() if _jax.is_inexact(each.dtype)}
    loose = {name: np.zeros(each.shape, bool) for name, each in values.items() if name not in moved}
    for at, factor in enumerate(_FACTORS):
        changed = reference.again(_perturbed(reference.call.arrays, unit, (seed, at)), factor)
        for name, most in moved.items():
            back = wide(changed[name]) / (factor if name in reference.gradients else 1.0)
            moved[name] = max(most, _largest_change(back, wide(values[name])))
        for name, known in loose.items():
            known |= changed[name] != values[name]
    return Rounding(coarsest, unit, terms, moved, loose)


def _largest_change(changed: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> float:
    with np.errstate(invalid="ignore"):
        return scale_of(changed - values)


def _perturbed(arrays: Sequence[jax.Array], unit: float, seed: Sequence[int]) -> list[jax.Array]:
    """Arrays whose inexact entries are off by one unit in the last place, up or down."""
    rng = np.random.default_rng((*seed, _OF_PERTURBATIONS))
    return [_off(array, unit, rng) if _jax.is_inexact(array.dtype) else array for array in arrays]


def _off(array: jax.Array, unit: float, rng: np.random.Generator) -> jax.Array:
    # One unit in the last place is u to 2 u of a number; three halves of u round to no less than one.
    factors = 1 + 1.5 * unit * rng.choice((-1.0, 1.0), array.shape)
    values = np.asarray(array)
    return jax.device_put((wide(values) * factors).astype(values.dtype), array.sharding)


@lru_cache(maxsize=64)
def unit_of(dtype: Any) -> float:
    """A dtype's unit roundoff."""
    return float(jax.numpy.finfo(dtype).eps) / 2


def _inexact_dtypes(program: Any) -> Iterator[Any]:
    """The inexact dtypes of all that a program computes."""
    for eqn in _jax.all_equations(program):
        for result in eqn.outvars:
            dtype = getattr(result.aval, "dtype", None)
            if dtype is not None and _jax.is_inexact(dtype):
                yield dtype


def longest_sum(program: Any, times: int = 1) -> int:
    """The number of terms of a program's longest sum; the turns of a loop around it count as terms.

    Args:
      program: its equations.
      times: the turns of the loops around it.
    """
    counts = [times]
    for eqn in _jax.equations(program):
        turns = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
        counts += [longest_sum(inner, turns) for inner in _jax.programs_within(eqn)]
        counts.append(times * _terms(eqn))
    return max(counts)


def _terms(eqn: Any) -> int:
    """How many terms an equation adds up for one entry of its result, at most."""
    name, params = eqn.primitive.name, eqn.params
    sizes = [prod(atom.aval.shape) for atom in eqn.invars if hasattr(atom.aval, "shape")]
    match name:
        case "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            return prod(eqn.invars[0].aval.shape[dim] for dim in contracted)
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
