"""The arrays that go into a call and come out of it, and the memory that they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

import jax

from .. import _jax
from ..hints.scope import Region
from ..hints.walk import Found
from .model import Kind, Memory, Value


def value_of(
    ident: int, kind: Kind, leaf: Found, struct: Any, region: Region, after: Sequence[int] = (), text: str = ""
) -> Value:
    """An argument or a result, as its hint has it lie.

    Args:
      ident: its number.
      kind: which of the two it is.
      leaf: its hint, and its path.
      struct: its shape and dtype.
      region: what the hint means on the mesh.
      after: the numbers of what it comes from.
      text: what it is written as, where it has no hint.
    """
    aval = struct if isinstance(struct, _jax.SHAPES) else jax.typeof(struct)
    shape = aval.shape
    spec = region.spec(leaf.hint, len(shape)) if leaf.hint is not None else _jax.partition_spec([()] * len(shape))
    sizes = dict(region.mesh or ())
    parts = _jax.spec_parts(spec).parts
    shard = tuple(size // prod(sizes[axis] for axis in axes) for size, axes in zip(shape, parts, strict=True))
    return Value(
        ident,
        kind,
        str(leaf.subject),
        shape,
        _jax.short_dtype(aval.dtype),
        spec,
        shard,
        _jax.size_in_bytes(shard, aval.dtype),
        str(leaf.hint.text) if leaf.hint is not None else text,
        after=tuple(after),
    )


def memory_of(arguments: Sequence[Value], results: Sequence[Value], donated: Sequence[int]) -> Memory:
    """What arguments and results take on one device; a donated argument is reused by a result that is like it.

    Args:
      arguments: all arguments.
      results: all results.
      donated: the numbers of the arguments that are donated.
    """
    offered = Counter(_likeness(one) for one in arguments if one.ident in donated)
    wanted = Counter(map(_likeness, results))
    reused = sum(bytes_each * count for (*_, bytes_each), count in (offered & wanted).items())
    return Memory(sum(one.bytes for one in arguments), sum(one.bytes for one in results), reused)


def _likeness(one: Value) -> tuple[str, tuple[int, ...], int]:
    return one.dtype, one.shard, one.bytes


def donated_operands(program: Any) -> list[int]:
    """Which operands of a program are donated to a call in it."""
    jaxpr = _jax.open_program(program)
    at = {var: place for place, var in enumerate(jaxpr.invars)}
    calls = [zip(eqn.invars, eqn.params.get("donated_invars", ()), strict=False) for eqn in jaxpr.eqns]
    given = [var for call in calls for var, is_donated in call if is_donated and not _jax.is_literal(var)]
    return [at[var] for var in given if var in at]
