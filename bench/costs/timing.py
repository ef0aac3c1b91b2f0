"""Times of two calls that take turns, and the ratio between them with its uncertainty.

The order of the two alternates, garbage is collected before a long call and not within it, and each
turn gives one ratio of two times taken right after each other, so that a machine that slows down
slows both. Tracing is timed three times in a turn, and the shortest of them counts. The ratio
reported is the median over the turns, its interval a bootstrap of that: where it is for 95 % of
redrawn samples of the turns. On a machine that five programs share, 15 such turns of a trace
against itself are off by half of what the ratio of both sides' smallest times is, and by the
process's own time by two thirds of what they are by the clock on the wall.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

Call = Callable[[], Any]
Clock = Callable[[], float]

# Tracing and lowering run in this process alone, and its own time leaves out what others take of the machine.
CPU: Clock = time.process_time
# A compiled program runs in threads of the runtime, and what is waited for is what a user sees.
WALL: Clock = time.perf_counter

REDRAWN = 1000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, and the interval that 95 % of redrawn samples gave; a point where nothing was sampled."""

    value: float
    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        return self.low == self.high

    @property
    def spread(self) -> float:
        """Half of the interval's width, as a share of the number."""
        return (self.high - self.low) / 2 / abs(self.value) if self.value else 0.0


def exactly(value: float) -> Estimate:
    """A number that was counted."""
    return Estimate(value, value, value)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a row may take.

    Attributes:
      seconds: after so many, no turn is begun.
      least: turns that are taken in any case.
      most: turns that are enough.
      precision: the spread that is fine enough to stop.
    """

    seconds: float = 12.0
    least: int = 5
    most: int = 2000
    precision: float = 0.004


@dataclass(frozen=True, slots=True)
class Turns:
    """The times of two calls, turn by turn."""

    ours: tuple[float, ...]
    other: tuple[float, ...]

    @property
    def ratio(self) -> Estimate:
        return median(np.array(self.ours) / np.array(self.other))


def median(samples: Any) -> Estimate:
    """The median of some samples, and what redrawing them does to it."""
    samples = np.asarray(samples, float)
    drawn = np.random.default_rng(0).integers(len(samples), size=(REDRAWN, len(samples)))
    low, high = np.percentile(np.median(samples[drawn], axis=1), (2.5, 97.5))
    return Estimate(float(np.median(samples)), float(low), float(high))


def seconds(run: Call, clock: Clock) -> float:
    """How long a call takes, its results awaited."""
    start = clock()
    jax.block_until_ready(run())
    return clock() - start


def seconds_without_garbage(run: Call, clock: Clock) -> float:
    """The same, with the garbage of those before collected, and none while it runs."""
    gc.collect()
    gc.disable()
    try:
        return seconds(run, clock)
    finally:
        gc.enable()


def take_turns(
    ours: Call, other: Call, effort: Effort, clock: Clock = CPU, is_long: bool = True, tries: int = 1
) -> Turns:
    """Times of two calls, each after the other and both first in turn, after one call of each that is not timed.

    Args:
      ours: one side.
      other: what it is compared with.
      effort: how many turns to take.
      clock: CPU for what Python does, WALL for what the runtime does.
      is_long: whether the garbage of those before is collected before each, and the turns end when they are precise.
      tries: how often each is called in a turn, in which its shortest time counts.
    """
    jax.block_until_ready((ours(), other()))
    start, sides, times = time.perf_counter(), (ours, other), ([], [])
    timed = seconds_without_garbage if is_long else seconds
    while not _is_enough(times, effort, time.perf_counter() - start, is_long):
        taken: tuple[list[float], list[float]] = ([], [])
        for turn in range(len(times[0]), len(times[0]) + tries):
            for side in (1, 0) if turn % 2 else (0, 1):
                taken[side].append(timed(sides[side], clock))
        for shortest, each in zip(times, taken, strict=True):
            shortest.append(min(each))
    return Turns(*map(tuple, times))


def _is_enough(times: tuple[list[float], list[float]], effort: Effort, spent: float, is_long: bool) -> bool:
    turns = len(times[0])
    if turns < effort.least:
        return False
    is_fine = is_long and Turns(*map(tuple, times)).ratio.spread < effort.precision
    return is_fine or turns >= effort.most or spent > effort.seconds
