"""What planned reshards send, against XLA's own partitioner; `bench/reshard.py` has more of it."""

from fractions import Fraction
from functools import cache

import reshard

from ..benchmark import Benchmark, Result, bytes_text, counted, of_counts, over
from ..timing import Effort, exactly

GROUP = "reshard"
STEP = 20
XLA = "XLA's partitioner"
NAME = f"one pair in {STEP} of a 2x2x2 mesh"


@cache
def _counts() -> list[reshard.Count]:
    known = reshard.xla(reshard.CUBE, reshard.pairs(reshard.CUBE)[::STEP])
    return [reshard.Count(reshard.ours(reshard.CUBE, *pair), sent) for pair, sent in known.items() if sent is not None]


def _ours(count: reshard.Count) -> Fraction:
    return Fraction(count.plan.elements * 4)


@counted(GROUP, f"bytes of reshards, {NAME}", XLA)
def sent(effort: Effort) -> Result:
    """Any sharding of two dims into any other, added up: `reshard`'s plans, and XLA's programs for the same."""
    return of_counts(*(float(sum(map(of, _counts()))) for of in (_ours, lambda count: count.xla)), bytes_text)


@counted(GROUP, f"reshards dearer than XLA's, {NAME}", "reshards tried", over(0))
def dearer(effort: Effort) -> Result:
    """Of the same pairs, those for which our plan sends more."""
    worse = sum(_ours(count) > count.xla for count in _counts())
    return Result(str(worse), str(len(_counts())), exactly(worse / len(_counts())))


ROWS: tuple[Benchmark, ...] = (sent, dearer)
