"""All meshes of a number of devices, with the time and memory of a function: which fit, and which is the fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, permutations
from math import comb, prod
from pathlib import Path
from textwrap import fill
from typing import Any, TypeAlias

from ...drawing import NEUTRAL, Bar, BarPart, bars, colours_of, document, framed, kind_colours, side_by_side, table
from ...errors import MeshAxisError, StructureError
from ...errors.phrases import mesh_text, titled, value_text
from .hardware import Hardware, time_of
from .links import divisors
from .model import Failed, bytes_text, seconds_text
from .tables import Explanation

FreeMesh: TypeAlias = Mapping[str, int | None]
"""Mesh axes with their sizes; None for a size to choose."""
_MOST_MESHES = 5000
_MOST_AXES_IN_ORDER = 5
_MOST_ROWS, _MOST_BARS, _WIDTH = 10, 16, 100


@dataclass(frozen=True)
class Candidate:
    """One mesh.

    Attributes:
      mesh: the sizes of its axes, in the order of the links.
      why: the bound of the function on it; the reason for a refused one.
      explanation: the explanation of the function on it; None if it cannot be traced.
      error: the error of a mesh on which it cannot be traced.
    """

    mesh: dict[str, int]
    why: str
    explanation: Explanation | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Choice:
    """All meshes of a number of devices; printed as a table, and in a notebook as charts.

    Attributes:
      function: the name of the function.
      devices: the number of devices of each mesh.
      hardware: the kind of device.
      ranked: the meshes on which it fits, the fastest first: by the overlapped time, to three digits; then by the
        serial time; then by the peak memory.
      refused: the others: first those on which it does not fit, by the peak memory; then those on which it cannot be
        traced, since dims do not divide.
      notes: notes on all of them.
    """

    function: str
    devices: int
    hardware: Hardware
    ranked: tuple[Candidate, ...]
    refused: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Candidate | None:
        """The fastest; None if none fits."""
        return self.ranked[0] if self.ranked else None

    @property
    def why(self) -> str:
        """The choice, or the reason that there is none, in a sentence."""
        if self.best is not None:
            return f"best: {mesh_text(self.best.mesh.items())}: {self.best.why}"
        if nearest := next((candidate for candidate in self.refused if candidate.explanation), None):
            return f"none fits: the least memory is that of {mesh_text(nearest.mesh.items())}, which {nearest.why}"
        return f"none divides: {self.refused[0].why}"

    def __str__(self) -> str:
        rows = [self._headings, *map(self._cells, self.ranked[:_MOST_ROWS])] if self.ranked else []
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        shown = sum(end <= _WIDTH + 2 for end in accumulate(width + 2 for width in widths))
        formats = [f"{'>' if at else '<'}{width}" for at, width in enumerate(widths[:shown])]
        aligned = ["  ".join(map(format, row, formats)) for row in rows]
        width = max((len(mesh_text(candidate.mesh.items())) for candidate in self.refused[:_MOST_ROWS]), default=0)
        refused = [
            f"{mesh_text(candidate.mesh.items()):<{width}}  {candidate.why}" for candidate in self.refused[:_MOST_ROWS]
        ]
        blocks = [
            self._heading,
            "\n".join([*aligned, *_more(self.ranked)]),
            self.why,
            "\n".join(["refused:", *refused, *_more(self.refused)]) if refused else "",
            "\n".join(f"note: {note}" for note in self.notes),
        ]
        return "\n\n".join(filter(None, blocks))

    def __repr__(self) -> str:
        return titled(self)

    @property
    def html(self) -> str:
        """A part of a page: charts of time and of memory, and all meshes in tables."""
        ranked = [(one, one.explanation) for one in self.ranked[:_MOST_BARS] if one.explanation]
        large = [(one, one.explanation) for one in self.refused if one.explanation][: _MOST_BARS - len(ranked)]
        colours = colours_of(sorted({axis for one, _ in (*ranked, *large) for axis in one.mesh}))
        kinds = kind_colours(kind for _, found in (*ranked, *large) for kind in found.memory.parts)
        time = [Bar(mesh_text(one.mesh.items()), [*_time_parts(found, colours)], _span(found)) for one, found in ranked]
        memory = [
            Bar(
                mesh_text(one.mesh.items()),
                [BarPart(kind, size, kinds[kind], bytes_text(size)) for kind, size in found.memory.parts.items()],
                bytes_text(found.memory.peak),
            )
            for one, found in (*ranked, *large)
        ]
        limit = f"{bytes_text(int(self.hardware.memory))} of {self.hardware.name}"
        charts = [
            bars("time of a device, if nothing overlaps", time) if time else "",
            bars("memory of one device at the peak", memory, self.hardware.memory, limit) if memory else "",
        ]
        fitting = table(self._headings, map(self._cells, self.ranked), self._headings[1:]) if ranked else ""
        others = table(["refused", "why"], [(mesh_text(one.mesh.items()), one.why) for one in self.refused])
        first, *sizes = map(escape, self._heading.split("\n", 1))
        about = [f"<h3>{first}</h3>", *(f"<p>{line}</p>" for line in (*sizes, escape(self.why)))]
        notes = [f"<p>note: {escape(note)}</p>" for note in self.notes]
        return framed(*about, side_by_side(*charts), fitting, others if self.refused else "", *notes)

    def _repr_html_(self) -> str:
        return self.html

    def to_html(self, path: str | Path) -> None:
        """Write one self-contained page."""
        Path(path).write_text(document(self.function, self.html), encoding="utf-8")

    @property
    def _heading(self) -> str:
        count = len(self.ranked) + len(self.refused)
        some = next((one.explanation for one in (*self.ranked, *self.refused) if one.explanation), None)
        on = f"{self.function} on {self.devices:,} devices of {self.hardware.name}"
        fit = f"{len(self.ranked)} of {count:,} mesh{'es' if count != 1 else ''} fit"
        sizes = fill(mesh_text(some.sizes.items()), _WIDTH) if some else ""
        return f"{on}: {fit}\n{sizes}".rstrip()

    @property
    def _headings(self) -> tuple[str, ...]:
        times = [one.explanation.time for one in self.ranked if one.explanation]
        axes = [f"over {axis}" for axis in sorted({axis for time in times if time for axis in time.communicate})]
        return ("mesh", "peak memory", "overlapped", "serial", "bound", "compute", "memory", *axes)

    def _cells(self, one: Candidate) -> tuple[str, ...]:
        assert one.explanation is not None
        time = one.explanation.time
        assert time is not None
        sent = [time.communicate.get(heading.removeprefix("over "), 0.0) for heading in self._headings[7:]]
        seconds = map(seconds_text, (time.compute, time.memory, *sent))
        ends = (seconds_text(time.overlapped), seconds_text(time.serial), time.bound)
        return (mesh_text(one.mesh.items()), bytes_text(one.explanation.memory.peak), *ends, *seconds)


def _more(found: Sequence[Candidate]) -> list[str]:
    return [f"and {len(found) - _MOST_ROWS:,} more"] if len(found) > _MOST_ROWS else []


def _time_parts(found: Explanation, colours: Mapping[str, str]) -> Iterator[BarPart]:
    """What a program waits for if nothing overlaps: products, memory beside them, each axis."""
    time = found.time
    assert time is not None
    moving = max(0.0, time.serial - sum(time.communicate.values()) - time.compute)
    yield BarPart("compute", time.compute, NEUTRAL[0], seconds_text(time.compute))
    yield BarPart("memory", moving, NEUTRAL[1], seconds_text(moving))
    for axis, seconds in time.communicate.items():
        yield BarPart(f"over {axis}", seconds, colours[axis], seconds_text(seconds))


def _span(found: Explanation) -> str:
    assert found.time is not None
    return f"{seconds_text(found.time.overlapped)} to {seconds_text(found.time.serial)}"


def meshes_to_try(verb: str, devices: int, axes: FreeMesh) -> list[dict[str, int]]:
    """All ways to divide devices over the axes whose size is not fixed, the first axis longest first.

    Raises:
      MeshAxisError: where the sizes that are fixed do not divide the devices.
      StructureError: for more than can be tried.
    """
    fixed, free = {axis: size for axis, size in axes.items() if size}, [axis for axis, size in axes.items() if not size]
    count, others = divmod(devices, prod(fixed.values()))
    if others or (count > 1 and not free):
        kept = ", ".join(f"{axis}={size}" for axis, size in fixed.items())
        raise MeshAxisError(f"{verb}: {kept} does not divide {devices:,} devices" + ("" if free else " without a rest"))
    number = prod(comb(power + len(free) - 1, power) for power in _prime_powers(count)) if free else 1
    if number > _MOST_MESHES:
        raise StructureError(
            f"{verb}: {devices:,} devices make {number:,} meshes of {', '.join(free)}; {_MOST_MESHES:,} are the most"
            f'\n\nHint: fix some, as in mesh={{"{free[-1]}": 8}}'
        )
    return [
        {axis: size or sizes[free.index(axis)] for axis, size in axes.items()} for sizes in _divided(count, len(free))
    ]


def _divided(count: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts <= 1:
        yield (count,) * parts
        return
    for first in reversed(divisors(count)):
        for rest in _divided(count // first, parts - 1):
            yield (first, *rest)


def _prime_powers(number: int) -> Iterator[int]:
    """How often each prime divides a number."""
    prime = 2
    while number > 1:
        prime = prime if prime * prime <= number else number
        power = 0
        while number % prime == 0:
            number, power = number // prime, power + 1
        if power:
            yield power
        prime += 1


def read_free_mesh(verb: str, given: Any) -> dict[str, int | None]:
    """Mesh axes of which some have a size, as in ``{"dp": None, "tp": 8}`` or ``"dp,tp=8"``.

    Raises:
      MeshAxisError: for what is not such a mesh.
    """
    found: Any = {} if given is None else given
    if isinstance(given, str):
        parts = [part.partition("=") for part in map(str.strip, given.split(",")) if part]
        found = {
            axis.strip(): (int(size) if size.strip().isdecimal() and len(size) < 12 else 0) if equals else None
            for axis, equals, size in parts
        }
    is_right = isinstance(found, Mapping) and all(
        isinstance(axis, str) and axis and (size is None or (type(size) is int and size > 0))
        for axis, size in found.items()
    )
    if not is_right or (
        isinstance(given, str) and len(found) != len([part for part in given.split(",") if part.strip()])
    ):
        raise MeshAxisError(
            f"{verb}: mesh= is {value_text(given)}\n\n"
            'Hint: it names mesh axes, with a size where that is fixed, as in {"dp": None, "tp": 8} or "dp,tp=8"'
        )
    return dict(found)


def choice_of(
    verb: str,
    function: str,
    hardware: Hardware,
    rows: Iterable[Explanation | Failed],
    notes: Iterable[str] = (),
) -> Choice:
    """Rank the meshes on which a function fits, and say of the others why they are refused."""
    rows = list(rows)
    found, failed = (
        [row for row in rows if isinstance(row, Explanation)],
        [row for row in rows if isinstance(row, Failed)],
    )
    # Where several orders are as good, the one that is better than that of the hints for most of the others.
    ordered = [_best_order(one, hardware, one.mesh).mesh for one in found]
    better = Counter(tuple(dict(mesh)) for mesh, one in zip(ordered, found, strict=True) if mesh != one.mesh)
    names = better.most_common(1)[0][0] if better else [axis for axis, _ in (found or failed)[0].mesh]
    found = [_best_order(one, hardware, _in_order(one.mesh, names)) for one in found]
    ranked = sorted((one for one in found if one.fits), key=_rank)
    large = sorted((one for one in found if not one.fits), key=lambda one: one.memory.peak)
    has = f"and {hardware.name} has {bytes_text(int(hardware.memory))}"
    refused = [Candidate(dict(one.mesh), f"needs {bytes_text(one.memory.peak)}, {has}", one) for one in large]
    refused += [
        Candidate(dict(_in_order(one.mesh, names)), reason_of(verb, function, one.error), None, one.error)
        for one in failed
    ]
    fitting = [Candidate(dict(one.mesh), one.time.text if one.time else "", one) for one in ranked]
    said = dict.fromkeys([*notes, *(note for one in (*ranked, *large) for note in one.notes)])
    devices = prod(size for _, size in (found or failed)[0].mesh)
    return Choice(function, devices, hardware, tuple(fitting), tuple(refused), tuple(said))


def _rank(found: Explanation) -> tuple[float, float, int]:
    assert found.time is not None
    return float(f"{found.time.overlapped:.3g}"), float(f"{found.time.serial:.3g}"), found.memory.peak


MeshSizes: TypeAlias = tuple[tuple[str, int], ...]


def _in_order(mesh: MeshSizes, names: Sequence[str]) -> MeshSizes:
    return tuple(sorted(mesh, key=lambda pair: names.index(pair[0])))


def _best_order(found: Explanation, hardware: Hardware, first: MeshSizes) -> Explanation:
    """The same with its mesh axes in the order in which they lie on the links best; the first of equal ones."""
    orders = permutations(first) if len(first) <= _MOST_AXES_IN_ORDER else [first]

    def explained_on(mesh: MeshSizes) -> Explanation:
        rates = hardware.rates(mesh)
        time = time_of(found.work, found.collectives, hardware, mesh, rates)
        return replace(found, mesh=mesh, bandwidth=rates, time=time)

    return min(map(explained_on, orders), key=_rank)


def reason_of(verb: str, function: str, error: Exception) -> str:
    """The first line of an error, without what is the same in all."""
    first = (str(error).splitlines() or [""])[0]
    own = first.removeprefix(f"{verb}: ").removeprefix(f"{function}: ")
    return (
        own
        if own != first or isinstance(error, (MeshAxisError, StructureError))
        else f"{type(error).__name__}: {first}"
    )
