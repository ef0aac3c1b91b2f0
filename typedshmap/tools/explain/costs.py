"""The costs of a function on a mesh, as they are compared: with a budget, or with those that a lock file records.

Invariant: an entry of a lock file is found by what was asked for, never by what was traced."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import StructureError
from ...errors.phrases import mesh_text
from .model import Explained, bytes_text, flops_text
from .tables import Table

_VERSION = 1
_NEAR = 0.1
"""What JAX's rules of derivatives keep and compute differs between its versions; so much of it is no difference."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What one device sends, computes and holds.

    Attributes:
      sizes: the sizes of dims that they are for, ``batch=32, seq=64``.
      collectives: how often each runs, forward and gradient together, by operation and mesh axes: ``all-gather/dp``.
      wire_bytes: the bytes that one device sends in them.
      products: the floating-point operations of matrix products, convolutions and transforms.
      flops: all floating-point operations.
      memory: the most bytes that are in memory at one time.
    """

    sizes: str
    collectives: Mapping[str, int]
    wire_bytes: Mapping[str, int]
    products: int
    flops: int
    memory: int

    @classmethod
    def of(cls, report: Explained) -> Costs:
        """The costs of a function that is explained."""
        collectives, wire = Counter[str](), Counter[str]()
        for op in report.collectives:
            key = f"{op.operation}/{','.join(op.axes)}"
            collectives[key] += op.times
            wire[key] += op.sent
        products = sum(sum(line.products.values()) for line in report.work.lines)
        sizes = mesh_text(report.sizes.items())
        return cls(sizes, dict(collectives), dict(wire), products, report.flops, report.memory.peak)

    @classmethod
    def read(cls, entry: Any) -> Costs:
        """The costs in an entry of a lock file; what is no such entry is an error of some kind."""
        numbers = [entry[name] for name in ("products", "flops", "memory")]
        numbers += [*entry["collectives"].values(), *entry["wire_bytes"].values()]
        if not isinstance(entry["sizes"], str) or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(entry)
        return cls(**entry)

    def changes(self, found: Costs) -> list[Change]:
        """What is otherwise in costs that are found; of FLOPs and memory what is beyond JAX's own differences."""
        changes = [Change("sizes", self.sizes, found.sizes)] if self.sizes != found.sizes else []
        changes += [Change(*changed) for changed in changed_counts(self.collectives, found.collectives)]
        for key, recorded, now in changed_counts(self.wire_bytes, found.wire_bytes):
            changes.append(Change(f"{key} on the wire", recorded, now, bytes_text))
        if self.products != found.products:
            changes.append(Change("FLOP in products", self.products, found.products, flops_text))
        if not _is_near(self.flops, found.flops):
            changes.append(Change("FLOP", self.flops, found.flops, flops_text))
        if not _is_near(self.memory, found.memory):
            changes.append(Change("peak memory", self.memory, found.memory, bytes_text))
        return changes


def changed_counts(expected: Mapping[str, int], found: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """The keys whose number is another one than expected, with both numbers; what is not there is 0."""
    for key in {**expected, **found}:
        if expected.get(key, 0) != found.get(key, 0):
            yield key, expected.get(key, 0), found.get(key, 0)


def _is_near(recorded: int, found: int) -> bool:
    return abs(found - recorded) <= _NEAR * recorded


class Change(NamedTuple):
    """One cost that is otherwise than it was recorded.

    Attributes:
      what: which cost.
      recorded: what it was.
      found: what it is.
      text: how it is written.
    """

    what: str
    recorded: Any
    found: Any
    text: Callable[[Any], str] = str

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The cells of a table; exact numbers where rounded ones are the same."""
        before, now = self.text(self.recorded), self.text(self.found)
        if before == now:
            before, now = f"{self.recorded:,}", f"{self.found:,}"
        share = ""
        if isinstance(self.found, int):
            share = f"{100 * (self.found / self.recorded - 1):+.3g} %" if self.recorded and self.found else "new"
            share = share if self.found else "gone"
        return self.what, before, now, share


def change_table(changes: Iterable[Change]) -> Table:
    """A row per change."""
    return Table(("cost", "recorded", "found", "change"), [change.row for change in changes])


@dataclass
class LockFile:
    """The costs that a file records.

    Attributes:
      path: the file.
      entries: by what was asked for, the costs.
    """

    path: Path
    entries: dict[str, Costs] = field(default_factory=dict[str, Costs])

    @classmethod
    def read(cls, path: Path) -> LockFile:
        """The costs in a file.

        Raises:
          StructureError: for a file that cannot be read, or is no lock file.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["version"] == _VERSION:
                return cls(path, {key: Costs.read(entry) for key, entry in document["costs"].items()})
        except OSError as error:
            raise StructureError(f"{path}: {(error.strerror or str(error)).lower()}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        raise StructureError(f"{path}: it is not a lock file, as --lock writes one")

    def write(self) -> None:
        """Write the file.

        Raises:
          StructureError: where it cannot be written.
        """
        costs = {key: asdict(entry) for key, entry in self.entries.items()}
        text = json.dumps({"version": _VERSION, "costs": costs}, indent=2, sort_keys=True)
        try:
            self.path.write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise StructureError(f"{self.path}: {(error.strerror or str(error)).lower()}") from None
