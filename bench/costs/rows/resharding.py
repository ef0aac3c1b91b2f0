"""What planned reshards send, and how long they take, against XLA's own partitioner; `bench/reshard.py` has more."""

from functools import cache

import numpy as np
import reshard

from ..benchmark import Benchmark, Result, benchmark, bytes_text, counted, of_counts, of_times, over
from ..timing import Effort, Turns, exactly

GROUP = "reshard"
STEP = 20
XLA = "XLA's partitioner"
TRIED = "reshards tried"
NAME = f"one pair in {STEP} of a 2x2x2 mesh"
OTHERS = tuple(reshard.Task(mesh, (16, 32)) for mesh in ((2, 4), (4, 4), (2, 8), (2, 2, 4), (2, 2, 2, 2)))
TIMES = "2x2x2, 4 MiB"


@cache
def _counts(task: reshard.Task) -> list[reshard.Count]:
    """One pair in some, and one in many of the meshes that are only looked at for pairs that are dearer."""
    known = reshard.xla(task, reshard.sample(task, STEP if task == reshard.CUBE else 3))
    return [reshard.Count(reshard.ours(task, *pair), sent) for pair, sent in known.items() if sent is not None]


@counted(GROUP, f"bytes of reshards, {NAME}", XLA)
def sent(effort: Effort) -> Result:
    """Any sharding of two dims into any other, added up: `reshard`'s plans, and XLA's programs for the same."""
    counts = _counts(reshard.CUBE)
    return of_counts(float(sum(c.bytes for c in counts)), float(sum(c.xla.bytes for c in counts)), bytes_text)


@counted(GROUP, f"bytes of reshards in the mean, {NAME}", "the least that can be sent")
def mean(effort: Effort) -> Result:
    """Of the same pairs, the mean of the ratios to XLA's bytes; and the mean if each sent just what a device lacks."""
    moving = [count for count in _counts(reshard.CUBE) if count.xla.bytes]
    ratios = [float(count.ratio) for count in moving]
    bounds = [float(count.plan.lower_bound * 4 / count.xla.bytes) for count in moving]
    return of_counts(float(np.mean(ratios)), float(np.mean(bounds)), lambda ratio: f"{ratio:.3f}")


@counted(GROUP, f"collectives of reshards, {NAME}", XLA)
def collectives(effort: Effort) -> Result:
    """Of the same pairs, the steps that communicate."""
    counts = _counts(reshard.CUBE)
    return of_counts(sum(c.collectives for c in counts), sum(c.xla.collectives for c in counts))


@counted(GROUP, f"reshards dearer than XLA's, {NAME}", TRIED, over(0))
def dearer(effort: Effort) -> Result:
    """Of the same pairs, those for which our plan sends more."""
    return _dearer(_counts(reshard.CUBE))


@counted(GROUP, "reshards dearer than XLA's, 2x4, 4x4, 2x8, 2x2x4, 2x2x2x2", TRIED, over(0))
def dearer_elsewhere(effort: Effort) -> Result:
    """The same of other meshes of 8 and of 16 devices."""
    return _dearer([count for task in OTHERS for count in _counts(task)])


def _dearer(counts: list[reshard.Count]) -> Result:
    worse = sum(count.is_dearer for count in counts)
    return Result(str(worse), str(len(counts)), exactly(worse / len(counts)))


def _equal_turns(effort: Effort) -> Effort:
    """Of each pair the same number of turns."""
    turns = 9 if effort.seconds < Effort().seconds else 15
    return Effort(effort.seconds, least=turns, most=turns, precision=0.0)


@benchmark(GROUP, f"time of reshards, {TIMES}", over(1.0), XLA, is_slow=True)
def time(effort: Effort) -> Result:
    """Some twenty pairs, how long their programs take in sum.

    The slowest of 51 pairs takes 1.2 times as long, for 0.57 of the bytes: four ppermutes for an all_to_all and one.
    """
    found = [reshard.timed(pair, _equal_turns(effort)) for pair in reshard.timed_pairs()]
    sides = ([turns.ours for turns in found], [turns.other for turns in found])
    return of_times(Turns(*(tuple(map(sum, zip(*side, strict=True))) for side in sides)))


ROWS: tuple[Benchmark, ...] = (sent, mean, collectives, dearer, dearer_elsewhere, time)
