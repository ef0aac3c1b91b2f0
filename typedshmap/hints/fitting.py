"""What fitted last: traced shards of the same types are checked by a look at them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

from .. import _jax
from ..notation.layout import Layout
from ..notation.match import Sizes
from .check_array import axes_to_infer, unmentioned_by_type
from .check_tree import TreeCheck
from .context import AssertionSink, LayoutAssertion, MeshContext, assert_each


class FittingValues(NamedTuple):
    """Traced shards that fitted their hints: others of the same types do, too, unless they vary where they may not.

    Attributes:
      region: the mesh context.
      before: the sizes that were bound before.
      sizes: the sizes that are bound then.
      structure: how the shards make up the values; None where each is one.
      leaves: by shard its class and type (JAX has one object for all types that are equal), what its hint asserts of it
        by that type, and the layout that this means.
    """

    region: MeshContext
    before: Sizes
    sizes: Sizes
    structure: Any
    leaves: tuple[tuple[type, Any, LayoutAssertion, Layout | None], ...]

    def asserted(
        self, values: tuple[Any, ...], region: MeshContext, sizes: Sizes, sink: AssertionSink | None
    ) -> tuple[Any, ...] | None:
        """Other values, their layouts asserted; None if they are of other types, or vary where they may not."""
        if region is not self.region or sizes is not self.before:
            return None
        leaves: Sequence[Any] = values
        if self.structure is not None:
            leaves, structure = _flattened(values)
            if structure != self.structure:
                return None
        if len(leaves) != len(self.leaves):
            return None
        claimed = [(value, stated, layout) for value, (*_, stated, layout) in zip(leaves, self.leaves, strict=True)]
        for at, (value, (cls, type_, stated, layout)) in enumerate(zip(leaves, self.leaves, strict=True)):
            aval = value.aval if type(value) is _jax.array.STAGED else _jax.array.aval_of(value)
            if type(value) is not cls or aval is not type_:
                return None
            if unmentioned := stated.must_be_invarying:
                axes, _, is_wrong = axes_to_infer(value, unmentioned, region)
                if is_wrong:
                    return None
                if axes != unmentioned:
                    claimed[at] = (value, stated._replace(must_be_invarying=axes), layout)
        asserted = assert_each(claimed, sink)
        if self.structure is None:
            return tuple(asserted)
        return values if all(map(is_, asserted, leaves)) else self.structure.unflatten(asserted)


def fitting_values(checked: TreeCheck, values: tuple[Any, ...], before: Sizes, function: str) -> FittingValues | None:
    """What was checked, if it is the shards in these values, and little more than their types decides that they fit."""
    region, known = checked.region, list[tuple[type, Any, LayoutAssertion, Layout | None]]()
    if not region.manual or checked.failures or not checked.leaves:
        return None
    of_check = [leaf.value for leaf in checked.leaves]
    is_flat = len(of_check) == len(values) and all(map(is_, of_check, values))
    leaves, structure = (values, None) if is_flat else _flattened(values)
    if len(leaves) != len(of_check) or not all(map(is_, of_check, leaves)):
        return None
    for value, hint, subject, _ in checked.leaves:
        unmentioned = unmentioned_by_type(value, hint, region) if hint is not None else None
        if hint is None or unmentioned is None:
            return None
        aval = _jax.array.aval_of(value)
        stated = LayoutAssertion(hint, region, subject, function, checked.sizes, unmentioned)
        known.append((type(value), aval, stated, region.manual_layout(hint, len(aval.shape))))
    return FittingValues(region, before, checked.sizes, structure, tuple(known))


def _flattened(values: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """The leaves and the structure of values; none of both if JAX cannot take them apart."""
    try:
        return _jax.tree.flatten(values)
    except _jax.tree.BadTree:
        return [], None
