"""Exponents of growth: with layers, with leaves, with devices."""

from ..benchmark import BY_HAND, Benchmark, Limit, Result, benchmark, counted, of_counts, of_times, over
from ..fitting import exponent, power
from ..growth import DEVICES, LEAVES, SCANNED, UNROLLED, Growth, measured
from ..timing import Effort, take_turns
from ..tracing import calls

GROUP = "growth"


def _exponents(growth: Growth, effort: Effort) -> Result:
    grown = measured(growth, effort)
    curves = (grown.ours, grown.other) if growth.is_flat else (grown.ours.tail(), grown.other.tail())
    ours, other = map(exponent, curves)
    return Result(power(ours.value), power(other.value), ours, is_exponent=True)


def exponents(growth: Growth, bad: Limit, means: str) -> Benchmark:
    """The row of one growth: the exponent of ours is judged, that by hand is shown beside it."""
    name = f"time over {growth.sizes[0]:,} to {growth.sizes[-1]:,} {growth.what}"
    measure = benchmark(GROUP, name, bad, BY_HAND)

    def row(effort: Effort) -> Result:
        return _exponents(growth, effort)

    row.__doc__ = means
    return measure(row)


def calls_at(growth: Growth, size: int, note: str = "") -> Benchmark:
    """The row of one size: the ratio there, in calls."""

    def row(effort: Effort) -> Result:
        return of_counts(*map(calls, growth.pair(size)))

    row.__doc__ = f"The calls that Python makes there{note}."
    return counted(GROUP, f"calls, {growth.what}: {size:,}")(row)


@benchmark(GROUP, "growth, noise: a trace of 8 layers against itself", over(1.03), is_noise=True)
def noise(effort: Effort) -> Result:
    """By hand on both sides; what it is off 1 is the machine's doing."""
    _, by_hand = UNROLLED.pair(8)
    return of_times(take_turns(by_hand, by_hand, effort))


ROWS: tuple[Benchmark, ...] = (
    noise,
    exponents(
        UNROLLED,
        over(1.1),
        "Tracing a gradient step with patterns whose layers come one after the other in the program.",
    ),
    calls_at(UNROLLED, UNROLLED.sizes[-1]),
    exponents(
        SCANNED,
        over(0.05),
        "Tracing the transformer's step: its `Stacked` layers are scanned, so the program is the same.",
    ),
    calls_at(SCANNED, SCANNED.sizes[-1]),
    exponents(LEAVES, over(1.1), "A call that takes a dict of so many arrays and hands one on, by `jax.eval_shape`."),
    calls_at(LEAVES, 1, ": 0.12 ms for the binding, the checks and the inference of a region, whatever is in it"),
    *[calls_at(LEAVES, size) for size in (10, 100, 1000)],
    exponents(DEVICES, over(0.05), "Tracing a gradient step of two layers on an `AbstractMesh` of so many devices."),
    calls_at(DEVICES, DEVICES.sizes[-1]),
)
