"""How times grow: the exponent of a power law through their upper part.

A time is mostly ``a + b n``; where ``a`` still counts, a line through the logarithms is flatter than
what n does in the end. So the exponent is that of the points from a tenth of the largest n on; of a
curve that is to be flat, that of all points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .timing import REDRAWN, Estimate

TAIL = 10


@dataclass(frozen=True, slots=True)
class Curve:
    """Times, several of each, over growing sizes."""

    sizes: tuple[int, ...]
    times: tuple[tuple[float, ...], ...]

    @property
    def medians(self) -> tuple[float, ...]:
        return tuple(float(np.median(each)) for each in self.times)

    def tail(self, part: int = TAIL) -> "Curve":
        """The points from one ``part``-th of the largest size on."""
        kept = [at for at, size in enumerate(self.sizes) if size * part >= self.sizes[-1]]
        return Curve(tuple(self.sizes[at] for at in kept), tuple(self.times[at] for at in kept))


def power(found: float) -> str:
    """``n^0.98``"""
    return f"n^{round(found, 2) + 0.0:.2f}"  # without the sign of a zero


def slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The exponent of the power law that is nearest by least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def exponent(curve: Curve) -> Estimate:
    """The exponent through the medians of a curve; its interval, by redrawing the times of every point."""
    rng, drawn = np.random.default_rng(0), []
    for _ in range(REDRAWN):
        drawn.append(slope(curve.sizes, [float(np.median(rng.choice(each, len(each)))) for each in curve.times]))
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Estimate(slope(curve.sizes, curve.medians), float(low), float(high))
