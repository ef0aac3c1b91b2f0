"""The regions that an audit may run again, each with its operands."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ... import _jax, inspection
from .findings import AuditedRegion, Finding

Key = tuple[str, str, int]


class SeenRegion(NamedTuple):
    """A region that may be run again.

    Attributes:
      region: what was read of it.
      argument_names: the names of its operands, where they are known.
      traced: its equation, and what it was made of.
      is_stuck: whether its shards are known to wait for each other.
      differentiated: the operands that gradients of the program are taken in, counted from the last.
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

    def add(self, plain: inspection.Region, region: AuditedRegion, findings: Sequence[Finding]) -> None:
        """Add a region and its findings."""
        is_stuck = any(found.kind == "divergence" for found in findings)
        with self._lock:
            calls = self._calls.setdefault(plain.key, [])
            if all(seen.structs for seen in calls):
                calls.append(SeenRegion(region, plain.argument_names, plain.traced, is_stuck))
            if plain.may_diverge:
                self._branching.setdefault(plain.key, []).append(plain)

    def note_gradient(self, plain: inspection.Region) -> list[Finding]:
        """Note what a region is differentiated by, or that its gradient is taken.

        Returns:
          The deadlocks that a gradient which is taken has, and the region has not.
        """
        key, call = plain.key, plain.traced.call
        with self._lock:
            if plain.traced.origin in ("written", "copied") and call is not None and any(call.is_under_gradient):
                # Counted from the last, since closed-over values come first.
                backwards = enumerate(reversed(call.is_under_gradient), 1)
                self._differentiated.setdefault(key, set()).update(-at for at, is_one in backwards if is_one)
            if plain.traced.origin != "transposed" or key not in self._differentiated:
                return []
            self._transposed.add(key)
            taken, by = self._branching.pop(key, []), frozenset(self._differentiated[key])
        return [found for one in taken for found in one.deadlocks_of_gradient(by)]

    def unknown(self) -> list[list[_jax.jaxpr.RegionBinding]]:
        """The calls of each region that is known without some of its values only."""
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
