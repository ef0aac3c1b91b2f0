"""The regions that an audit may run again, each with its operands."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from ... import _jax, inspection

Key = tuple[str, str, int]


class SeenRegion(NamedTuple):
    """A region that may be run again; its operands with gradients are counted from the last."""

    region: inspection.Region
    call: _jax.regions.RegionBinding | None
    is_stuck: bool = False
    differentiated: frozenset[int] = frozenset()

    @property
    def structs(self) -> list[Any]:
        """Its operands with unknown values."""
        operands = () if self.call is None else self.call.operands
        return [x for x in operands if isinstance(x, jax.ShapeDtypeStruct)]


class SeenRegions:
    """The regions of an audit by function: for each the calls, up to the first with all values known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Key, list[SeenRegion]] = {}
        self._differentiated: dict[Key, set[int]] = {}
        self._transposed: set[Key] = set()
        self._branching: dict[Key, list[inspection.Region]] = {}

    def add(self, region: inspection.Region, findings: Sequence[inspection.Finding]) -> None:
        is_stuck = any(finding.kind == "divergence" for finding in findings)
        with self._lock:
            calls = self._calls.setdefault(region.key, [])
            if all(seen.structs for seen in calls):
                calls.append(SeenRegion(region, region.traced.call, is_stuck))
            if region.may_diverge:
                self._branching.setdefault(region.key, []).append(region)

    def note_gradient(self, region: inspection.Region) -> list[inspection.Finding]:
        """Note the differentiated operands of a region; returns the deadlocks that only its gradient has."""
        key, call = region.key, region.traced.call
        with self._lock:
            if region.origin in ("written", "copied") and call is not None and any(call.is_under_gradient):
                # Counted from the last, since closed-over values come first.
                backwards = enumerate(reversed(call.is_under_gradient), 1)
                self._differentiated.setdefault(key, set()).update(-at for at, has_tangent in backwards if has_tangent)
            if region.origin != "transposed" or key not in self._differentiated:
                return []
            self._transposed.add(key)
            branching, operands = self._branching.pop(key, []), frozenset(self._differentiated[key])
        return [deadlock for region in branching for deadlock in region.deadlocks_of_gradient(operands)]

    def unknown(self) -> list[list[_jax.regions.RegionBinding]]:
        """The calls of each region that is known only without some of its values."""
        with self._lock:
            unknown = [calls for calls in self._calls.values() if all(seen.structs for seen in calls)]
            return [[seen.call for seen in calls if seen.call is not None] for calls in unknown]

    def take(self, call: _jax.regions.RegionBinding, with_values: _jax.regions.RegionBinding) -> None:
        with self._lock:
            for calls in self._calls.values():
                for at, seen in enumerate(calls):
                    if seen.call is call:
                        calls[at] = seen._replace(call=with_values)

    def __iter__(self) -> Iterator[SeenRegion]:
        """Each region once, with the call that has the most known values."""
        for key, calls in self._calls.items():
            best = min(calls, key=lambda seen: len(seen.structs))
            differentiated = self._differentiated.get(key, set[int]()) if key in self._transposed else ()
            yield best._replace(differentiated=frozenset(differentiated))
