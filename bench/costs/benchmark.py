"""A row: what is measured, against what, and which number would be bad; and the verdict on what came.

A row is bad only where all of its number's interval, widened by what the noise row of its group was
off, is beyond the limit. Where the number is over and the interval is not, or the noise row is off
and the interval is on both sides, it is too noisy to tell.

A row that counts is the same at every run. Its limit is 2 % above what was reached, unless it has one of its own; what
was reached is kept in `reached.json`, by the line of JAX, and is written by `python bench/run.py --reached`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

import jax

from .fitting import power
from .timing import Effort, Estimate, Turns, exactly, median

BY_HAND = "jax.shard_map"
# If a noise row is further from 1 than this, the machine is too noisy to judge a ratio near its limit.
QUIET = 0.03


@dataclass(frozen=True, slots=True)
class Limit:
    """A number that would be bad."""

    number: float
    is_least: bool = False

    def __str__(self) -> str:
        return f"{'under' if self.is_least else 'over'} {self.number:.4g}"

    def is_beyond(self, value: float) -> bool:
        return value < self.number if self.is_least else value > self.number


REACHED = Path(__file__).with_name("reached.json")
# Of jax, as it is on Python 3.11 and on later ones: each makes other calls, and leaves other ones to us.
LINE = "0.10" if jax.__version_info__ < (0, 11) else "0.12"
ABOVE = 1.02


@cache
def reached() -> dict[str, dict[str, float]]:
    """The numbers of the rows that count, by row and line."""
    return json.loads(REACHED.read_text(encoding="utf-8"))


def write_reached(found: Mapping[str, float]) -> None:
    """Keep the numbers of rows for this line; those that are gone are dropped."""
    before = reached()
    table = {name: dict(sorted({**before.get(name, {}), LINE: round(each, 4)}.items())) for name, each in found.items()}
    REACHED.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


def over(number: float) -> Limit:
    return Limit(number)


def under(number: float) -> Limit:
    return Limit(number, is_least=True)


class Verdict(Enum):
    """What a row's number says; its value is what the table says of it."""

    GOOD = "ok"
    BAD = "BAD"
    UNCLEAR = "too noisy to tell"
    NONE = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured: both sides as text, and the number that is judged."""

    ours: str
    other: str
    judged: Estimate
    is_exponent: bool = False

    @property
    def number(self) -> str:
        value = self.judged.value
        if self.is_exponent:
            return power(value)
        return f"{value:.1e}" if 0 < value < 5e-4 else f"{value:.3f}"

    @property
    def interval(self) -> str:
        places = 2 if self.is_exponent else 3
        return "" if self.judged.is_exact else f"{self.judged.low:.{places}f} to {self.judged.high:.{places}f}"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One row.

    Attributes:
      group: its part of the table.
      name: what is measured.
      other: what it is compared with.
      bad: which number would be bad; None where the row is only for comparison.
      means: what the row means.
      measure: measures it.
      is_noise: whether both sides are the same, so that the number shows the machine's noise.
      is_slow: whether ``--quick`` leaves it out.
      is_counted: whether it counts, so that its number is the same at every run.
    """

    group: str
    name: str
    other: str
    bad: Limit | None
    means: str
    measure: Callable[[Effort], Result]
    is_noise: bool = False
    is_slow: bool = False
    is_counted: bool = False


Measure = Callable[[Effort], Result]


def benchmark(
    group: str,
    name: str,
    bad: Limit | None,
    other: str = BY_HAND,
    is_noise: bool = False,
    is_slow: bool = False,
    is_counted: bool = False,
) -> Callable[[Measure], Benchmark]:
    """Make a row of what measures it; the function's docstring says what the row means."""

    def made(measure: Measure) -> Benchmark:
        means = " ".join((measure.__doc__ or "").split())
        return Benchmark(group, name, other, bad, means, measure, is_noise, is_slow, is_counted)

    return made


def counted(group: str, name: str, other: str = BY_HAND, bad: Limit | None = None) -> Callable[[Measure], Benchmark]:
    """Make a row of what counts; its limit is 2 % above what was reached, unless it has one of its own."""
    known = reached().get(name, {}).get(LINE)
    above = None if known is None else over(ABOVE * known)
    return benchmark(group, name, bad or above, other, is_counted=True)


def verdict(row: Benchmark, judged: Estimate, noise: Estimate | None = None) -> Verdict:
    """What the number of a row says.

    Args:
      row: the row.
      judged: its number.
      noise: what the noise row of its group gave, if there is one.
    """
    if row.bad is None:
        return Verdict.NONE
    if row.is_noise:
        is_off = abs(judged.value - 1) > row.bad.number - 1
        return Verdict.UNCLEAR if is_off else Verdict.GOOD
    off = abs(noise.value - 1) if noise and not judged.is_exact else 0.0
    ends = judged.low / (1 + off), judged.high * (1 + off)
    beyond = [row.bad.is_beyond(end) for end in ends]
    if all(beyond):
        return Verdict.BAD
    if row.bad.is_beyond(judged.value) or (any(beyond) and off > QUIET):
        return Verdict.UNCLEAR
    return Verdict.GOOD


def _in_unit(number: float, *units: tuple[float, str]) -> str:
    scale, unit = next((each for each in units if number >= each[0]), units[-1])
    shown = number / scale
    return f"{shown:,.0f} {unit}" if shown >= 100 else f"{shown:.3g} {unit}"


def text(duration: float) -> str:
    """Seconds in the unit that suits them."""
    return _in_unit(duration, (1, "s"), (1e-3, "ms"), (1e-6, "us"))


def bytes_text(size: float) -> str:
    """Bytes in the unit that suits them."""
    return _in_unit(size, (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def of_times(turns: Turns) -> Result:
    """The median time of both sides, and the median of their ratios."""
    return Result(text(median(turns.ours).value), text(median(turns.other).value), turns.ratio)


def of_counts(ours: float, other: float, shown: Callable[[float], str] = lambda count: f"{count:,}") -> Result:
    """Two numbers that were counted, and their ratio."""
    return Result(shown(ours), shown(other), exactly(float(ours / other)))
