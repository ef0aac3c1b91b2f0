"""The regions that an audit may run again, each with its operands."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ... import _jax, inspection
from .report import AuditedRegion, Finding

Key = tuple[str, str, int]


class SeenRegion(NamedTuple):
    """A region that may be run again.

    Attributes:
      region: its analysis.
      argument_names: the names of its operands, if they are known.
      traced: its equation and its call.
      is_stuck: whether its shards are known to wait for each other.
      differentiated: the operands in which the program takes gradients, counted from the last.
    """

    region: AuditedRegion
    argument_names: tuple[str, ...]
    traced: _jax.jaxpr.TracedRegion
    is_stuck: bool = False
    differentiated: frozenset[int] = frozenset()

    @property
    def structs(self) -> list[Any]:
        """Its operands with unknown values."""
        call = self.traced.call
        return [] if call is None else [x for x in call.operands if isinstance(x, _jax.array.SHAPES)]


class SeenRegions:
    """The regions of an audit by function: for each the calls, up to the first with all values known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Key, list[SeenRegion]] = {}
        self._differentiated: dict[Key, set[int]] = {}
        self._transposed: set[Key] = set()
        self._branching: dict[Key, list[inspection.Region]] = {}

    def add(self, region: inspection.Region, audited: AuditedRegion, findings: Sequence[Finding]) -> None:
        """Add a region and its findings."""
        is_stuck = any(finding.kind == "divergence" for finding in findings)
        with self._lock:
            calls = self._calls.setdefault(region.key, [])
            if all(seen.structs for seen in calls):
                calls.append(SeenRegion(audited, region.argument_names, region.traced, is_stuck))
            if region.may_diverge:
                self._branching.setdefault(region.key, []).append(region)

    def note_gradient(self, region: inspection.Region) -> list[Finding]:
        """Note in which operands a region is differentiated, or that its gradient is taken.

        Returns:
          The deadlocks of a gradient, which the region itself does not have.
        """
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

    def unknown(self) -> list[list[_jax.jaxpr.RegionBinding]]:
        """The calls of each region that is known only without some of its values."""
        with self._lock:
            unknown = [calls for calls in self._calls.values() if all(seen.structs for seen in calls)]
            return [[seen.traced.call for seen in calls if seen.traced.call is not None] for calls in unknown]

    def take(self, call: _jax.jaxpr.RegionBinding, with_values: _jax.jaxpr.RegionBinding) -> None:
        """Set the values of a call."""
        with self._lock:
            for calls in self._calls.values():
                for at, seen in enumerate(calls):
                    if seen.traced.call is call:
                        calls[at] = seen._replace(traced=replace(seen.traced, call=with_values))

    def __iter__(self) -> Iterator[SeenRegion]:
        """Each region once, with the call that has the most known values."""
        for key, calls in self._calls.items():
            best = min(calls, key=lambda seen: len(seen.structs))
            differentiated = self._differentiated.get(key, set[int]()) if key in self._transposed else ()
            yield best._replace(differentiated=frozenset(differentiated))
