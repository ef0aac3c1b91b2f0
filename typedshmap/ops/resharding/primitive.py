"""Reshard as one linear operation of JAX: the identity of global arrays, whose gradient is a reshard too.

It is a primitive, since the transposes of a plan's steps are not the cheapest way back, and since a
function with a gradient of its own (``jax.custom_vjp``) cannot be differentiated forwards.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax

from ... import _jax
from .partition import Partition
from .plans import Plan, Unreachable
from .run import run_steps
from .search import plan


def run(x: Any, planned: Plan, typed: bool) -> Any:
    """Run a plan.

    Args:
      x: one shard, in a manual region; it varies over the axes over which a sum is owed.
      planned: the plan.
      typed: whether JAX types values as varying here, that is, False under ``check_vma=False``.

    Returns:
      The shard of the same global array in the plan's target.
    """
    if typed:
        x = _jax.vary(_jax.without_reduced(x), planned.source.sharded)
    return _apply(x, planned.source, planned.target, planned.shape, planned.sizes, typed)


def _apply(
    x: Any,
    source: Partition,
    target: Partition,
    shape: tuple[int, ...],
    sizes: tuple[tuple[str, int], ...],
    typed: bool,
) -> Any:
    aboard = _jax.manual_type(x).varying - source.sharded - source.owed - target.sharded
    sizes = tuple((axis, size) for axis, size in sizes if axis not in aboard)
    # Over axes of size 1 nothing moves, but the value lies otherwise, which the reading of the body has to see.
    if source == target and not _planned(source, target, shape, sizes).steps:
        return x
    return _primitive().bind(x, source=source, target=target, shape=shape, sizes=sizes, typed=typed, lead=0)


def _planned(source: Partition, target: Partition, shape: tuple[int, ...], sizes: tuple[tuple[str, int], ...]) -> Plan:
    found = plan(source, target, shape, dict(sizes))
    assert not isinstance(found, Unreachable), found.reason
    return found


@cache
def _primitive() -> Any:
    # Imported here, since jax.extend brings Pallas along, a fifth of what importing this library costs.
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    primitive = Primitive("reshard_shards")  # jax.reshard is called "reshard"
    primitive.def_abstract_eval(_type)
    mlir.register_lowering(primitive, mlir.lower_fun(_steps, multiple_results=False))
    ad.deflinear2(primitive, _transpose)
    batching.primitive_batchers[primitive] = _batch
    return primitive


def _steps(x: Any, *, source: Partition, target: Partition, shape: Any, sizes: Any, typed: bool, lead: int) -> Any:
    return run_steps(x, _planned(source, target, shape, sizes).steps, dict(sizes), lead, typed)


def _type(x: Any, **task: Any) -> Any:
    return jax.make_jaxpr(lambda x: _steps(x, **task))(x).out_avals[0]


def _batch(args: Any, dims: Any, *, lead: int, **task: Any) -> Any:
    (x,), (dim,) = args, dims
    return _primitive().bind(jax.numpy.moveaxis(x, dim, 0), lead=lead + 1, **task), 0


def _transpose(cotangent: Any, x: Any, **task: Any) -> Any:
    if not task["typed"]:
        # Here a cotangent is one addend per device, and the transpose of each step is the cheapest one.
        return jax.linear_transpose(lambda x: _steps(x, **task), x.aval)(cotangent)
    return [_gradient(cotangent, _jax.manual_type_in(x.aval), **task)]


def _gradient(
    cotangent: Any, kind: Any, *, source: Partition, target: Partition, shape: Any, sizes: Any, typed: bool, lead: int
) -> Any:
    """The cotangent, taken back to where the value came from and given its manual type, ``kind``.

    Every addend of a sum that was taken gets all of it.
    """
    kept = target.owed
    back = {"source": Partition(target.parts, kept), "target": Partition(source.parts, kept)}
    if _planned(**back, shape=shape, sizes=sizes).steps:
        cotangent = _primitive().bind(cotangent, **back, shape=shape, sizes=sizes, typed=typed, lead=lead)
    # A value typed as varying over an axis over which it is the same has one addend per device for a
    # cotangent, and here every device holds all of it.
    cotangent = _on_first(cotangent, kind.varying & target.sharded - source.sharded - source.owed)
    for to, axes in (("varying", kind.varying), ("reduced", kind.reduced)):
        missing = tuple(sorted(axes - getattr(_jax.manual_type(cotangent), to)))
        cotangent = jax.lax.pcast(cotangent, missing, to=to) if missing else cotangent
    return cotangent


def _on_first(x: Any, axes: frozenset[str]) -> Any:
    """``x`` on the first device along each of the axes, zeros on the others."""
    for axis in sorted(axes):
        x = jax.numpy.where(jax.lax.axis_index(axis) == 0, x, jax.numpy.zeros_like(x))
    return x
