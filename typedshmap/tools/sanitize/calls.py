"""Compare the values of a call: concrete values by a separate program, traced values within their program."""

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
from ...notation.layout import Layout
from ...observers import Assertion, HintedValue
from .checksums import compare_shards
from .reports import ReplicaComparison, Replicated, expect, receiver

_REGIONS = "typed_call"
_numbers = count()


def _claims(comparison: ReplicaComparison, values: Iterable[HintedValue]) -> Iterator[tuple[HintedValue, Replicated]]:
    """The values that are replicated over some nontrivial axes, each with its claim."""
    for hinted in values:
        value, hint, subject, find_place = hinted
        layout = comparison.region.layout(hint)
        assert isinstance(layout, Layout)
        mentioned = layout.sharded | layout.unreduced | layout.varying
        agreeing = tuple(axis for axis, size in comparison.axes if size > 1 and axis not in mentioned)
        dtype = getattr(value, "dtype", None) or jnp.result_type(value)
        if agreeing and not jnp.issubdtype(dtype, jax.dtypes.float0):
            yield hinted, Replicated(subject, hint.text, _jax.array.type_text(value), agreeing, find_place)


def compare_inside(comparison: ReplicaComparison, values: Iterable[HintedValue], is_due: Any) -> None:
    """Compare shards while their region is traced."""
    claimed = [(_jax.array.undifferentiated(hinted.value), claim) for hinted, claim in _claims(comparison, values)]
    if not claimed:
        return
    shards, claims = zip(*claimed, strict=True)
    # A difference is reported to all shards, and so to all processes, unless some may not reach this operation.
    axes = comparison.axes if _jax.trace.may_diverge(_REGIONS) else comparison.region.manual
    comparison = comparison._replace(claims=claims, axes=axes, number=next(_numbers))
    _under(is_due, _compare(comparison, comparison.region.has_vma), shards)


def compare_global(comparison: ReplicaComparison, values: Iterable[HintedValue], is_due: Any) -> None:
    """Compare global values: at once if they are concrete, else in the program that is being traced."""
    region, claimed = comparison.region, list[tuple[Any, PartitionSpec, Replicated]]()
    for hinted, claim in _claims(comparison, values):
        value = hinted.value
        is_placed = _jax.array.is_tracer(value) or _jax.array.committed_sharding(value) is not None
        # An array that is not placed has only one copy, except with several processes.
        if is_placed or (jax.process_count() > 1 and not region.explicit):
            spec = region.spec(hinted.hint, len(_jax.array.aval_of(value).shape))
            if not spec.unreduced:  # an addend has no global value
                claimed.append((_jax.array.undifferentiated(value), spec, claim))
    if not claimed:
        return
    arrays, specs, claims = zip(*claimed, strict=True)
    comparison, names = comparison._replace(claims=claims, number=next(_numbers)), comparison.axis_names
    if is_due is True and are_computed(arrays):
        agreeing = tuple(claim.axes for claim in claims)
        expect(comparison, _checker(comparison.mesh, names, specs, agreeing)(*arrays))
        return
    condition = [] if is_due is True else [is_due]

    def compare_if_due(*shards: Any) -> None:
        _under(shards[0] if condition else True, _compare(comparison, True), shards[len(condition) :])

    _jax.mesh.shard_map(
        compare_if_due,
        mesh=comparison.mesh,
        in_specs=(*(PartitionSpec() for _ in condition), *specs),
        out_specs=None,
        axis_names=frozenset(names),
    )(*condition, *arrays)


def compare_assumed(assertion: Assertion, is_due: Any) -> None:
    """Compare the assumed values of a body, except in a branch or a loop that some shards may not reach."""
    if _jax.trace.may_diverge(_REGIONS):
        return
    region = assertion.region
    axes = tuple((axis, size) for axis, size in region.manual if axis in region.checked_axes)
    comparison = ReplicaComparison(assertion.function, _jax.mesh.context_mesh(), axes, region, assertion.sizes)
    compare_inside(comparison, assertion.values, is_due)


def are_computed(values: Iterable[Any]) -> bool:
    """Whether values are concrete, perhaps under differentiation, and nothing is being traced."""
    return not _jax.trace.is_staged() and not any(
        _jax.array.is_tracer(_jax.array.undifferentiated(value)) for value in values
    )


def _compare(comparison: ReplicaComparison, has_vma: bool) -> Any:
    return partial(
        compare_shards,
        agreeing=[claim.axes for claim in comparison.claims],
        manual=comparison.axis_names,
        has_vma=has_vma,
        report=receiver(comparison),
    )


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
