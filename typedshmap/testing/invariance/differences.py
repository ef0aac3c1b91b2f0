"""Compare what a function gave on a mesh with what it gave on one device, and say how they differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh

from ... import _jax
from .programs import Outcome
from .rounding import Rounding, scale_of, wide

Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OtherForm:
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
class Apart:
    """A result with other numbers.

    Attributes:
      name: which result.
      mesh: on which mesh.
      here: what it is there.
      there: what it is on one device.
      allowed: how far rounding may take it; None for what must be equal.
      wrong: which entries are further off.
      parts: per dim, the mesh axes that it lies over.
    """

    name: str
    mesh: Mesh
    here: Values
    there: Values
    allowed: float | None
    wrong: Values
    parts: tuple[tuple[str, ...], ...]

    @property
    def at(self) -> tuple[int, ...]:
        """The entry that is furthest off."""
        with np.errstate(invalid="ignore"):
            off = np.abs(wide(self.here) - wide(self.there))
        off = np.where(self.wrong, np.nan_to_num(off, nan=np.inf), -1)
        return tuple(int(i) for i in np.unravel_index(np.argmax(off), off.shape))

    @property
    def by(self) -> float:
        """How far the furthest entry is off."""
        return float(abs(wide(self.here[self.at]) - wide(self.there[self.at])))

    @property
    def scale(self) -> float:
        """The largest entry on one device."""
        return scale_of(self.there)


Difference = OtherForm | Apart


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

    def allowed(self, name: str, reference: Values, devices: int) -> float | None:
        """How far a value may be off; None for one that must be equal."""
        if not _jax.is_inexact(reference.dtype):
            return None
        if not self.is_given:
            return self.rounding.allowed(name, reference, devices)
        return (self.rtol or 0.0) * scale_of(reference) + (self.atol or 0.0)


def differences(reference: Outcome, other: Outcome, tolerance: Tolerance) -> Iterator[Difference]:
    """What is not the same on a mesh as on one device, in the order of the results."""
    for name in dict.fromkeys([*reference.values, *other.values]):
        there, here = reference.values.get(name), other.values.get(name)
        if there is None or here is None or there.shape != here.shape or there.dtype != here.dtype:
            yield OtherForm(name, other.mesh, _form(here), _form(there))
            continue
        allowed = tolerance.allowed(name, there, other.mesh.size)
        wrong = ~are_alike(here, there, allowed)
        if allowed is None:
            wrong &= ~tolerance.rounding.loose[name]
        if wrong.any():
            yield Apart(name, other.mesh, here, there, allowed, wrong, other.specs.get(name, ()))


def _form(values: Values | None) -> str:
    return "" if values is None else _jax.type_text(values)


def are_alike(here: Values, there: Values, allowed: float | None) -> Values:
    """Which entries are as near as they may be. Those that are NaN, or infinite alike, on both sides are the same."""
    if allowed is None:
        return here == there
    here, there = wide(here), wide(there)
    with np.errstate(invalid="ignore"):
        is_near = np.abs(here - there) <= allowed
    return is_near | (here == there) | (np.isnan(here) & np.isnan(there))
