"""Ask how a traced value lies once XLA has chosen: a primitive around ``jax.debug.inspect_array_sharding``.

It is one of our own for two reasons. Under ``jax.vmap`` JAX's calls back for the value with the mapped
dim, and does not say which that is. And a program that is exported, or lowered for a mesh without
devices, has nobody to ask: JAX's refuses to be in it, this one vanishes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import jax
from jax.interpreters import ad, batching, mlir

from .. import _jax

Answer: TypeAlias = Callable[[Any, tuple[int, ...], int, Any], None]
"""Is called with a value's sharding, the dims that are its own (others are mapped over by
``jax.vmap``), its rank, and the abstract mesh of the program, None if it has none."""


def ask(x: Any, answer: Answer) -> None:
    """Have ``answer`` called when the program is compiled, at every compilation anew."""
    _primitive().bind(x, answer=answer, own=tuple(range(len(_jax.facts(x).shape))), asks=_asks())


@cache
def _asks() -> Any:
    """A program that asks, as JAX's own does: where it finds one, it lowers with the devices at hand."""
    return jax.make_jaxpr(lambda x: jax.debug.inspect_array_sharding(x, callback=print))(0)


@cache
def _primitive() -> Any:
    # Imported here, since jax.extend brings Pallas along, a fifth of what importing this library costs.
    from jax.extend.core import Primitive

    primitive = Primitive("ask_sharding")
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(lambda x, *, asks, **task: ([], asks.effects))
    primitive.def_impl(_answer_at_once)
    mlir.register_lowering(primitive, _lower)
    ad.primitive_jvps[primitive] = _differentiate
    batching.primitive_batchers[primitive] = _batch
    return primitive


def _answer_at_once(x: Any, *, answer: Answer, own: tuple[int, ...], asks: Any) -> list[Any]:
    placed = _jax.placement(x)
    if placed is not None:
        answer(placed, own, len(x.shape), None)
    return []


def _differentiate(primals: Any, tangents: Any, **task: Any) -> Any:
    return _primitive().bind(*primals, **task), []


def _batch(args: Any, at: Any, *, own: tuple[int, ...], **task: Any) -> Any:
    return _primitive().bind(*args, own=tuple(dim + (dim >= at[0]) for dim in own), **task), []


def _lower(context: Any, x: Any, *, answer: Answer, own: tuple[int, ...], asks: Any) -> Any:
    module = context.module_context
    where = module.axis_context
    if module.lowering_parameters.for_export or getattr(where, "device_assignment", None) is None:
        return []
    mesh = where.abstract_mesh

    def inspect(x: Any) -> tuple[()]:
        numbers = jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        rank = len(numbers.shape)  # a key has dims of its own, at the end
        jax.debug.inspect_array_sharding(numbers, callback=lambda sharding: answer(sharding, own, rank, mesh))
        return ()

    # Without the mesh JAX hands on what XLA says as it is; with it, a dim that is split over a part
    # of an axis ends in an error of JAX's, since no PartitionSpec says that.
    bare = context.replace(module_context=module.replace(axis_context=replace(where, abstract_mesh=None)))
    return mlir.lower_fun(inspect, multiple_results=True)(bare, x)
