"""``assume``: what a body knows of its shards, and nothing in the program tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from .check import examine, handed_on
from .hints.scope import current_region, same
from .hints.trees import node_of
from .notation.sizes import Subject

T = TypeVar("T")
_ASSUMED = Subject("assumed", "assumed")


def assume(x: T, hint: Any) -> T:
    """Return ``x``, of which the hint is believed: that shards are equal, and how its dims are split.

    The shape and the dtype are checked as `check` does. What cannot be seen in the program, since a
    kernel or a chain of ``ppermute`` makes it so, is taken as it is said, and counts in all that
    follows in the body. It adds nothing to the program.

    ```python
    y = all_reduce_kernel(x)  # f32[2,16] per shard; it sums over tp by itself
    y = assume(y, "[b/dp] d")  # equal over tp, though x was not
    ```

    It changes no type of JAX's: under ``check_vma=True`` what leaves the region has to satisfy JAX,
    too, so that a kernel says there itself over what its results vary (``out_shape``).

    Args:
      x: one shard, or a pytree of shards for a hint of one. Of a global array nothing is assumed.
      hint: any hint, or just its dims as a string.

    Returns:
      ``x``; an array with a ``+axis`` mark at that type, unreduced over the axis.

    Raises:
      ShapeError, DtypeError, StructureError: for what does not fit.
      VaryingError: for a sum that a mark owes and that JAX knows to be taken, or the other way round.
      AnnotationSyntaxError: for a hint that cannot be read.
      MeshAxisError: for an axis that the mesh does not have.
    """
    region = current_region()
    if region.is_manual:
        region = same(replace(region, read=region.watched))
    name, walk = examine(x, node_of(hint), region, _ASSUMED, "assume")
    return handed_on(x, walk.leaves, region, name, walk.sizes, is_assumed=True)
