"""The costs of a function on a mesh, to compare with a budget or with a lock file.

Invariant: the key of an entry in a lock file is the question, not the traced program."""

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
"""A smaller share is no difference: rules of derivatives keep and compute different things in versions of JAX."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one device: communication, computation and memory."""

    sizes: str  # batch=32, seq=64
    collectives: Mapping[str, int]  # by operation and mesh axes, all-gather/dp
    wire_bytes: Mapping[str, int]
    products: int  # FLOPs of products, convolutions and transforms
    flops: int
    memory: int

    @classmethod
    def of(cls, report: Explained) -> Costs:
        """The costs of an explained function."""
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
        """The costs in an entry of a lock file; raises an error for anything else."""
        numbers = [entry[name] for name in ("products", "flops", "memory")]
        numbers += [*entry["collectives"].values(), *entry["wire_bytes"].values()]
        if not isinstance(entry["sizes"], str) or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(entry)
        return cls(**entry)

    def changes(self, now: Costs) -> list[Change]:
        """The differences; those of FLOPs and memory only beyond the differences between versions of JAX."""
        changes = [Change("sizes", self.sizes, now.sizes)] if self.sizes != now.sizes else []
        changes += [Change(*changed) for changed in changed_counts(self.collectives, now.collectives)]
        for key, before, after in changed_counts(self.wire_bytes, now.wire_bytes):
            changes.append(Change(f"{key} on the wire", before, after, bytes_text))
        for what, before, after, share, text in (
            ("FLOP in products", self.products, now.products, 0, flops_text),
            ("FLOP", self.flops, now.flops, _NEAR, flops_text),
            ("peak memory", self.memory, now.memory, _NEAR, bytes_text),
        ):
            if abs(after - before) > share * before:
                changes.append(Change(what, before, after, text))
        return changes


def changed_counts(expected: Mapping[str, int], now: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """The keys whose numbers differ, with both numbers; a missing number is 0."""
    for key in {**expected, **now}:
        if expected.get(key, 0) != now.get(key, 0):
            yield key, expected.get(key, 0), now.get(key, 0)


class Change(NamedTuple):
    """One cost that differs from the recorded one."""

    what: str
    recorded: Any
    now: Any
    text: Callable[[Any], str] = str

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The cells of a table; exact numbers if the rounded numbers are the same."""
        before, now = self.text(self.recorded), self.text(self.now)
        if before == now:
            before, now = f"{self.recorded:,}", f"{self.now:,}"
        share = ""
        if isinstance(self.now, int):
            share = f"{100 * (self.now / self.recorded - 1):+.3g} %" if self.recorded and self.now else "new"
            share = share if self.now else "gone"
        return self.what, before, now, share


def change_table(changes: Iterable[Change]) -> Table:
    """A row per change."""
    return Table(("cost", "recorded", "found", "change"), [change.row for change in changes])


@dataclass
class LockFile:
    """The costs in a file, each with its question."""

    path: Path
    entries: dict[str, Costs] = field(default_factory=dict[str, Costs])

    @classmethod
    def read(cls, path: Path) -> LockFile:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["version"] == _VERSION:
                return cls(path, {key: Costs.read(entry) for key, entry in document["costs"].items()})
        except OSError as error:
            raise StructureError(f"{path}: {(error.strerror or str(error)).lower()}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        raise StructureError(f"{path}: it is not a file that --lock has written")

    def write(self) -> None:
        costs = {key: asdict(entry) for key, entry in self.entries.items()}
        text = json.dumps({"version": _VERSION, "costs": costs}, indent=2, sort_keys=True)
        try:
            self.path.write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise StructureError(f"{self.path}: {(error.strerror or str(error)).lower()}") from None
