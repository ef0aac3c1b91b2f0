"""The sums over shards that the interpreter meets, by what they have to do with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import _jax
from .lattice import ShardingFact


class NotedSum(NamedTuple):
    """A sum over one mesh axis.

    Attributes:
      eqn: the collective.
      at: the place of its result.
      axis: the mesh axis.
      by: the equation that differentiation made, which is the collective or around it; else the collective.
      is_due: whether what is summed differs between shards, or is an addend.
    """

    eqn: Any
    at: int
    axis: str
    by: Any
    is_due: bool


class NotedSums:
    """The sums of one region.

    Attributes:
      of_gradients: those by which a gradient is summed over the shards: with types of what is the same on every shard,
        without them of what was gathered.
      transposed: those that differentiation made of sums, as it does without types.
      differentiated: those that are differentiated.
      of_parts: those of what is sharded over the axis, more than one element of it on a shard.
    """

    def __init__(self, has_vma: bool) -> None:
        self.has_vma = has_vma
        self.of_gradients, self.transposed = list[NotedSum](), list[NotedSum]()
        self.differentiated, self.of_parts = list[NotedSum](), list[NotedSum]()

    def note(self, eqn: Any, at: int, fact: ShardingFact, axes: Sequence[str], around: Sequence[Any]) -> None:
        """Note a sum over axes.

        Args:
          around: the equations whose jaxprs hold it, from the outermost on; its own name stack begins there.
        """
        found = ((by, stack) for by in (eqn, *reversed(around)) if (stack := _jax.jaxpr.differentiation(by)))
        by, stack = next(found, (eqn, ""))
        due = fact.due | fact.unreduced | fact.varying
        noted = [NotedSum(eqn, at, axis, by, axis in due) for axis in axes]
        dims = zip(fact.dims, eqn.invars[at].aval.shape, strict=True)
        sharded = {axis for dim, size in dims if size > 1 for axis in dim.axes or ()}
        self.of_parts += [one for one in noted if one.axis in sharded and stack != "transposed"]
        if stack == "differentiated":
            self.differentiated += noted
        elif stack == "transposed" and (self.has_vma or _jax.jaxpr.collective_operation(eqn) == "reduce-scatter"):
            self.of_gradients += [] if fact.is_zero else noted
        elif stack == "transposed":
            self.transposed += noted

    def reducing(self, axis: str) -> Any:
        """The last equation that, with types, reduces over an axis what is differentiated, or that is around it."""
        return next((one.by for one in reversed(self.differentiated) if one.axis == axis and self.has_vma), None)
