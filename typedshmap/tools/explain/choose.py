"""Rank all meshes of a number of devices by the time and memory of a function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import islice, permutations
from math import prod
from textwrap import fill
from typing import Any, TypeAlias

from ...drawing import framed
from ...errors import MeshAxisError, StructureError
from ...errors.phrases import mesh_text, value_text
from .hardware import Hardware, time_of
from .links import products
from .model import Failed, MeshSizes, Time, bytes_text, seconds_text
from .picture import charts
from .tables import Explanation, Page, Table, notes_html, notes_text

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
      why: the bound of the function on it; for a refused mesh the reason.
      explanation: the explanation of the function on it; None if it cannot be traced.
      error: the error of a mesh on which it cannot be traced.
    """

    mesh: dict[str, int]
    why: str
    explanation: Explanation | None = None
    error: Exception | None = None


@dataclass(frozen=True, repr=False)
class Choice(Page):
    """All meshes of a number of devices; printed as a table, and in a notebook as charts.

    Attributes:
      function: the name of the function.
      devices: the number of devices of each mesh.
      hardware: the kind of device.
      ranked: the meshes on which it fits, the fastest first: by the overlapped time, to three digits; then by the
        serial time; then by the peak memory.
      refused: the other meshes: first those on which it does not fit, by the peak memory; then those on which it cannot
        be traced, since dims do not divide.
      notes: notes on all meshes.
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
        ranked = self._table(self.ranked[:_MOST_ROWS])
        while ranked.width > _WIDTH:
            ranked = Table(ranked.headings[:-1], [row[:-1] for row in ranked.rows])
        refused = Table(("refused:", ""), self._refused_rows[:_MOST_ROWS])
        blocks = [
            self._heading,
            "\n".join([str(ranked), *_more(self.ranked)]) if self.ranked else "",
            self.why,
            "\n".join([str(refused), *_more(self.refused)]) if self.refused else "",
            notes_text(self.notes),
        ]
        return "\n\n".join(filter(None, blocks))

    @property
    def title(self) -> str:
        return self.function

    @property
    def html(self) -> str:
        """A part of a page: charts of time and of memory, and all meshes in tables."""
        first, *sizes = map(escape, self._heading.split("\n", 1))
        about = [f"<h3>{first}</h3>", *(f"<p>{line}</p>" for line in (*sizes, escape(self.why)))]
        explained = [row.explanation for row in (*self.ranked, *self.refused) if row.explanation][:_MOST_BARS]
        fitting = self._table(self.ranked).html if self.ranked else ""
        refused = Table(("refused", "why"), self._refused_rows).html if self.refused else ""
        return framed(*about, charts(explained) if explained else "", fitting, refused, notes_html(self.notes))

    @property
    def _heading(self) -> str:
        count = len(self.ranked) + len(self.refused)
        some = next((row.explanation for row in (*self.ranked, *self.refused) if row.explanation), None)
        on = f"{self.function} on {self.devices:,} devices of {self.hardware.name}"
        fit = f"{len(self.ranked)} of {count:,} mesh{'es' if count != 1 else ''} fit"
        sizes = fill(mesh_text(some.sizes.items()), _WIDTH) if some else ""
        return f"{on}: {fit}\n{sizes}".rstrip()

    def _table(self, candidates: Sequence[Candidate]) -> Table:
        """A row for each of the meshes that fit."""
        explained = [row.explanation for row in candidates if row.explanation]
        axes = sorted({axis for row in self.ranked if row.explanation for axis in _time(row.explanation).communicate})
        headings = ("mesh", "peak memory", "overlapped", "serial", "bound", "compute", "memory")
        cells: list[tuple[str, ...]] = []
        for row in explained:
            time, peak = _time(row), bytes_text(row.memory.peak)
            seconds = (time.compute, time.memory, *(time.communicate.get(axis, 0.0) for axis in axes))
            ends = (seconds_text(time.overlapped), seconds_text(time.serial), time.bound)
            cells.append((mesh_text(row.mesh), peak, *ends, *map(seconds_text, seconds)))
        return Table((*headings, *(f"over {axis}" for axis in axes)), cells)

    @property
    def _refused_rows(self) -> list[tuple[str, ...]]:
        return [(mesh_text(candidate.mesh.items()), candidate.why) for candidate in self.refused]


def _more(candidates: Sequence[Candidate]) -> list[str]:
    return [f"and {len(candidates) - _MOST_ROWS:,} more"] if len(candidates) > _MOST_ROWS else []


def _time(explanation: Explanation) -> Time:
    assert explanation.time is not None  # there is hardware
    return explanation.time


def meshes_to_try(verb: str, devices: int, axes: FreeMesh) -> list[dict[str, int]]:
    """All ways to divide devices over the axes whose size is not fixed, the first axis longest first."""
    fixed, free = {axis: size for axis, size in axes.items() if size}, [axis for axis, size in axes.items() if not size]
    taken = prod(fixed.values())
    count, others = divmod(devices, taken)
    if others or (count > 1 and not free):
        kept = ", ".join(f"{axis}={size}" for axis, size in fixed.items())
        makes = f"makes {taken:,} devices, not {devices:,}, and no mesh axis has a free size"
        raise MeshAxisError(f"{verb}: {kept} {f'does not divide {devices:,} devices' if free else makes}")
    divided = list(islice(products(count, [count] * len(free)), _MOST_MESHES + 1))
    if len(divided) > _MOST_MESHES:
        raise StructureError(
            f"{verb}: {devices:,} devices make more than {_MOST_MESHES:,} meshes of {', '.join(free)}"
            f'\n\nHint: fix some sizes, as in mesh={{"{free[-1]}": 8}}'
        )
    return [{axis: size or sizes[free.index(axis)] for axis, size in axes.items()} for sizes in divided]


def read_free_mesh(verb: str, given: Any) -> dict[str, int | None]:
    """Mesh axes, perhaps with sizes, as in ``{"dp": None, "tp": 8}`` or ``"dp,tp=8"``."""
    pairs: list[tuple[Any, Any]] = [] if given is None else [("", 0)]  # refused below
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, str):
        parts = [map(str.strip, part.partition("=")) for part in given.split(",") if part.strip()]
        pairs = [
            (axis, (int(size) if size.isdecimal() and len(size) < 12 else 0) if equals else None)
            for axis, equals, size in parts
        ]
    is_right = len(dict(pairs)) == len(pairs) and all(
        isinstance(axis, str) and axis and (size is None or (type(size) is int and size > 0)) for axis, size in pairs
    )
    if not is_right:
        raise MeshAxisError(
            f"{verb}: mesh= is {value_text(given)}\n\n"
            'Hint: it names mesh axes, with a size where that is fixed, as in {"dp": None, "tp": 8} or "dp,tp=8"'
        )
    return dict(pairs)


def choice_of(
    verb: str, function: str, hardware: Hardware, rows: Iterable[Explanation | Failed], notes: Iterable[str]
) -> Choice:
    """Rank the meshes on which a function fits, and give the reasons against the other meshes."""
    rows = list(rows)
    explained = [_best_order(row, hardware) for row in rows if isinstance(row, Explanation)]
    ranked = sorted((row for row in explained if row.fits), key=_rank)
    large = sorted((row for row in explained if not row.fits), key=lambda row: row.memory.peak)
    has = f"and {hardware.name} has {bytes_text(int(hardware.memory))}"
    fitting = [Candidate(dict(row.mesh), _time(row).text, row) for row in ranked]
    refused = [Candidate(dict(row.mesh), f"needs {bytes_text(row.memory.peak)}, {has}", row) for row in large]
    refused += [
        Candidate(dict(row.mesh), reason_of(verb, function, row.error), None, row.error)
        for row in rows
        if isinstance(row, Failed)
    ]
    all_notes = dict.fromkeys([*notes, *(note for row in (*ranked, *large) for note in row.notes)])
    devices = prod(size for _, size in rows[0].mesh)
    return Choice(function, devices, hardware, tuple(fitting), tuple(refused), tuple(all_notes))


def _rank(explanation: Explanation) -> tuple[float, float, int]:
    time = _time(explanation)
    return float(f"{time.overlapped:.3g}"), float(f"{time.serial:.3g}"), explanation.memory.peak


def _best_order(explanation: Explanation, hardware: Hardware) -> Explanation:
    """The explanation with its mesh axes in the order that suits the links best; the first of equally good orders."""
    mesh = explanation.mesh
    orders = permutations(mesh) if len(mesh) <= _MOST_AXES_IN_ORDER else [mesh]

    def explained_on(mesh: MeshSizes) -> Explanation:
        rates = hardware.rates(mesh)
        time = time_of(explanation.work, explanation.collectives, hardware, mesh, rates)
        return replace(explanation, mesh=mesh, bandwidth=rates, time=time)

    return min(map(explained_on, orders), key=_rank)


def reason_of(verb: str, function: str, error: Exception) -> str:
    """The first line of an error, without the part that is the same for all meshes."""
    first = (str(error).splitlines() or [""])[0]
    reason = first.removeprefix(f"{verb}: ").removeprefix(f"{function}: ")
    is_ours = reason != first or isinstance(error, (MeshAxisError, StructureError))
    return reason if is_ours else f"{type(error).__name__}: {first}"
