"""Compare the replicated values of one call, in a program of their own or in the traced program.

Concrete arrays are compared by a separate small program, which is dispatched with the call and read later; calls are
counted on the host. In a program that is being traced, the comparison becomes part of it, under a condition that counts
its runs, and the devices report a difference by a callback."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from ... import _jax
from ...errors.places import running_place
from ...hints.array_hint import ArrayHint
from ...hints.check_tree import TreeCheck
from ...hints.context import MeshContext
from ...notation.layout import Layout
from ...notation.match import Sizes
from ...observers import HintedValue
from .comparison import compare_shards
from .reports import ReplicaComparison, Replicated, expect, receiver

_REGIONS = "typed_call"
_numbers = count()


class Comparer:
    """Compares the values of one function.

    Args:
      function: its name, for messages.
      mesh: the mesh.
      axes: the mesh axes over which values may be the same, with their sizes.
      region: the mesh context that reads hints.
      sizes: the sizes of dims, for messages.
    """

    def __init__(
        self,
        function: str,
        mesh: _jax.mesh.AnyMesh,
        axes: tuple[tuple[str, int], ...],
        region: MeshContext,
        sizes: Sizes,
    ) -> None:
        self.function, self.mesh, self.axes, self.region, self.sizes = function, mesh, axes, region, sizes

    def claims(self, values: Iterable[HintedValue]) -> Iterator[tuple[Any, ArrayHint, Replicated]]:
        """The values that are replicated over some nontrivial axes, each with that claim."""
        for value, hint, subject, find_place in values:
            layout = self.region.layout(hint)
            assert isinstance(layout, Layout)
            mentioned = layout.sharded | layout.unreduced | layout.varying
            agreeing = tuple(axis for axis, size in self.axes if size > 1 and axis not in mentioned)
            if agreeing and not jnp.issubdtype(_dtype(value), jax.dtypes.float0):
                got = _jax.array.type_text(value)
                yield value, hint, Replicated(subject, hint.text, got, agreeing, find_place)

    def comparison(self, claims: Sequence[Replicated], manual: tuple[tuple[str, int], ...]) -> ReplicaComparison:
        number = next(_numbers)
        return ReplicaComparison(self.function, tuple(claims), manual, self.region, self.sizes, self.mesh, number)

    def compare_inside(self, values: Iterable[HintedValue], is_due: Any) -> None:
        """Compare shards while their region is traced."""
        compared = [(_jax.array.undifferentiated(value), claim) for value, _, claim in self.claims(values)]
        if not compared:
            return
        shards, claims = zip(*compared, strict=True)
        # All shards, and so all processes, learn of a difference, unless some may not reach this operation.
        manual = self.axes if _jax.trace.may_diverge(_REGIONS) else self.region.manual
        report = receiver(self.comparison(claims, manual))
        axes, agreeing = tuple(name for name, _ in manual), [claim.axes for claim in claims]
        compare = partial(compare_shards, agreeing=agreeing, manual=axes, has_vma=self.region.has_vma, report=report)
        _under(is_due, compare, shards)

    def compare_global(self, values: Iterable[HintedValue], is_due: Any = True) -> None:
        """Compare global values: at once if they are concrete, else in the program that is being traced."""
        candidates = [
            (_jax.array.undifferentiated(value), self.region.spec(hint, len(_jax.array.aval_of(value).shape)), claim)
            for value, hint, claim in self.claims(values)
            if self._has_replicas(value)
        ]
        candidates = [compared for compared in candidates if not compared[1].unreduced]  # an addend has no global value
        if not candidates:
            return
        arrays, specs, claims = zip(*candidates, strict=True)
        agreeing, comparison = tuple(claim.axes for claim in claims), self.comparison(claims, self.axes)
        names = tuple(name for name, _ in self.axes)
        if is_due is True and not _jax.trace.is_staged() and not any(map(_jax.array.is_tracer, arrays)):
            expect(comparison, _checker(self.mesh, names, specs, agreeing)(*arrays))
            return
        compare = partial(compare_shards, agreeing=agreeing, manual=names, has_vma=True, report=receiver(comparison))
        gated = [] if is_due is True else [is_due]

        def compare_if_due(*shards: Any) -> None:
            _under(shards[0] if gated else True, compare, shards[len(gated) :])

        _jax.mesh.shard_map(
            compare_if_due,
            mesh=self.mesh,
            in_specs=(*(PartitionSpec() for _ in gated), *specs),
            out_specs=None,
            axis_names=frozenset(names),
        )(*gated, *arrays)

    def _has_replicas(self, value: Any) -> bool:
        """Whether several devices hold a value, or will hold the copies of the processes."""
        if _jax.array.is_tracer(value) or _jax.array.committed_sharding(value) is not None:
            return True
        return jax.process_count() > 1 and not self.region.explicit


def _dtype(value: Any) -> Any:
    return getattr(value, "dtype", None) or jnp.result_type(value)


def _under(is_due: Any, compare: Any, shards: Sequence[Any]) -> None:
    if is_due is True:
        compare(shards)
    else:
        lax.cond(is_due, lambda *shards: compare(shards), lambda *_: None, *shards)


@lru_cache(maxsize=256)
def _checker(
    mesh: _jax.mesh.AnyMesh,
    names: tuple[str, ...],
    specs: tuple[PartitionSpec, ...],
    agreeing: tuple[tuple[str, ...], ...],
) -> Any:
    """The program that compares concrete arrays; it returns the checksums of all shards, zeros if they agree."""

    def compare_replicas(*shards: Any) -> Any:
        return compare_shards(shards, agreeing, names, True)

    mapped = _jax.mesh.shard_map(
        compare_replicas, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), axis_names=frozenset(names)
    )
    return jax.jit(mapped)


def are_computed(values: Iterable[Any]) -> bool:
    """Whether values are concrete, perhaps under differentiation, and nothing is being traced."""
    return not _jax.trace.is_staged() and not any(
        _jax.array.is_tracer(_jax.array.undifferentiated(value)) for value in values
    )


def compare_assumed(function: str, checked: TreeCheck, is_due: Any) -> None:
    """Compare the assumed values of a body, except in a branch or a loop that some shards may not reach."""
    if _jax.trace.may_diverge(_REGIONS):
        return
    region, place = checked.region, running_place()
    axes = tuple((axis, size) for axis, size in region.manual if axis in region.checked_axes)
    values = [
        HintedValue(leaf.value, leaf.hint, leaf.subject, lambda: place)
        for leaf in checked.leaves
        if leaf.hint is not None
    ]
    mesh = _jax.mesh.context_mesh()
    Comparer(function, mesh, axes, region, checked.sizes).compare_inside(values, is_due)
