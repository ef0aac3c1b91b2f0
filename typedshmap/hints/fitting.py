"""The cache in front of every check: values fit if similar values fitted before.

Values are similar if the mesh context, the sizes bound before, the structure, and the kinds of the leaves are the same.
The cache belongs to the signature of a function, the node of a value, or the hint of an operand. Without it `check` of
a tree takes 8 times the calls, and a call of a typed helper in a body 7 times.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import compress, repeat
from operator import attrgetter, is_, not_
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np

from .. import _jax
from ..errors.failures import Subject
from ..notation.layout import NO_AXES, Layout
from ..notation.match import Sizes
from . import enforcement
from .array_hint import ArrayHint
from .check_array import axes_to_infer, unmentioned_by_type
from .context import AssertionSink, LayoutAssertion, MeshContext, assert_each, stated_sharding

_MOST = 8
"""How much is kept for one signature."""
_aval, sharding_at_rest, _committed = map(attrgetter, ("aval", "sharding", "committed"))


@lru_cache(maxsize=256)  # saves a call for each leaf of a value that fits for the first time
def array_kind(cls: type) -> type:
    """The kind of array of a class; ``object`` for a class that is not an array."""
    return next(
        kind for kind in (jax.core.Tracer, *_jax.array.SHAPES, *_jax.array.ARRAYS, object) if issubclass(cls, kind)
    )


class Undecided(Exception):
    """A leaf whose kind does not determine whether it fits."""


class LeafKinds:
    """The kinds of leaves, in lists, so that other leaves are compared without a call for each leaf.

    The kind of an array is its type, which JAX interns. If the sharding matters, the kind includes it: the sharding
    of a concrete array, or the stated sharding of a tracer.
    """

    def __init__(
        self, leaves: Sequence[Any], key_of_other: Callable[[Any], Any], sharding_of: Callable[[Any], Any] | None = None
    ) -> None:
        """Read the kinds of leaves; `Undecided` for a leaf without one."""
        self._classes, self._key_of_other, self._sharding_of = list(map(type, leaves)), key_of_other, sharding_of
        kinds = list(map(array_kind, self._classes))
        self._is_array = [kind is jax.Array or kind is jax.core.Tracer for kind in kinds]
        self._has_others = not all(self._is_array)
        arrays, others = self._divided(leaves)
        if sharding_of is sharding_at_rest and jax.core.Tracer in kinds:
            raise Undecided
        if sharding_of is stated_sharding and not all(type(array) is _jax.array.STAGED for array in arrays):
            raise Undecided
        self._avals, self._others = list(map(_aval, arrays)), self._keys(others)
        self._shardings = None if sharding_of is None else list(map(sharding_of, arrays))
        # None if all are committed: an uncommitted array fits wherever a committed array with its sharding fits.
        committed = list(map(_committed, arrays)) if sharding_of is sharding_at_rest else []
        self._committed = None if all(committed) else committed

    def _divided(self, leaves: Sequence[Any]) -> tuple[Sequence[Any], Iterable[Any]]:
        if not self._has_others:
            return leaves, ()
        return list(compress(leaves, self._is_array)), compress(leaves, map(not_, self._is_array))

    def _keys(self, others: Iterable[Any]) -> list[Any]:
        # JAX narrows 64-bit dtypes, depending on its settings.
        return [_jax.trace.has_64_bits(), *map(self._key_of_other, others)] if self._has_others else []

    def are_of(self, leaves: Sequence[Any]) -> bool:
        """Whether other leaves have these kinds."""
        if list(map(type, leaves)) != self._classes:
            return False
        arrays, others = self._divided(leaves) if self._has_others else (leaves, ())
        avals, shardings = list(map(_aval, arrays)), self._shardings
        if avals != self._avals:
            return False
        if self._sharding_of is not None:
            shardings = list(map(self._sharding_of, arrays))
            is_placed_so = self._committed is None or list(map(_committed, arrays)) == self._committed
            if not is_placed_so or shardings != self._shardings:
                return False
        # The next leaves are more likely to have these objects.
        self._avals, self._shardings = avals, shardings
        try:
            return not self._has_others or self._keys(others) == self._others
        except Exception:  # from the user's __eq__
            return False


class _Same:
    """An object that is not kept alive; equal to itself only."""

    __slots__ = ("ref",)

    def __init__(self, value: Any) -> None:
        self.ref = weakref.ref(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.ref() is other.ref()


_PLAIN = frozenset((bool, int, float, complex, str, bytes))


def _key_of_other(leaf: Any) -> Any:
    """The key of a leaf that is not a JAX array; for Python's immutable types its value."""
    cls = type(leaf)
    if cls is np.ndarray or (cls is jax.ShapeDtypeStruct and leaf.sharding is None):
        return leaf.shape, leaf.dtype
    if cls in _PLAIN:
        return leaf
    if hasattr(leaf, "shape"):  # the shape of an array of another library may change
        raise Undecided
    try:
        return _Same(leaf)
    except TypeError:
        raise Undecided from None


class CheckedLeaf(NamedTuple):
    """One leaf of a value: the array and its hint, or a static leaf without one.

    Attributes:
      must_be_invarying: mesh axes over which it is varying by JAX's type, and invarying by its hint.
    """

    value: Any
    hint: ArrayHint | None
    subject: Subject
    must_be_invarying: frozenset[str] = NO_AXES


def checked_leaves(
    values: Iterable[Any], hints: Iterable[ArrayHint | None], subjects: Iterable[Subject]
) -> list[CheckedLeaf]:
    """Make leaves that fit, without a call for each leaf."""
    return list(map(partial(tuple.__new__, CheckedLeaf), zip(values, hints, subjects, repeat(NO_AXES))))


class Fit(NamedTuple):
    """Values that fitted, with the sizes that were bound before and after.

    Attributes:
      region: the mesh context in which they were checked.
      before: the sizes that were bound before.
      sizes: the sizes that were bound after.
      given: the subjects of the values.
      spans: the range of each value's leaves among all leaves.
      structure: the structure of the values; None if each value is a leaf.
      kinds: the kinds that other leaves must have to fit.
      hints: the hint of each leaf.
      subjects: the name of each leaf in messages.
      unmentioned: by the index of a leaf, the axes over which its type varies and that its hint does not mention.
      shards: by function, the assertions of its hints about the leaves, each with the leaf's index and the layout.
    """

    region: MeshContext
    before: Sizes
    sizes: Sizes
    given: tuple[Subject, ...]
    spans: list[tuple[int, int]]
    structure: Any
    kinds: LeafKinds
    hints: tuple[ArrayHint | None, ...]
    subjects: tuple[Subject, ...]
    unmentioned: dict[int, frozenset[str]]
    shards: dict[str, list[tuple[int, LayoutAssertion, Layout | None]]]


class Fitting:
    """Values similar to values that fitted.

    Attributes:
      fit: the values that fitted.
      leaves: the leaves of the values.
      unmentioned: by the index of a leaf, the axes over which the analysis must find it invarying.
    """

    __slots__ = ("fit", "leaves", "unmentioned")

    def __init__(self, fit: Fit, leaves: Sequence[Any], unmentioned: dict[int, frozenset[str]]) -> None:
        self.fit, self.leaves, self.unmentioned = fit, leaves, unmentioned

    def checked(self) -> list[CheckedLeaf]:
        """The leaves, checked."""
        leaves = checked_leaves(self.leaves, self.fit.hints, self.fit.subjects)
        for at, axes in self.unmentioned.items():
            leaves[at] = leaves[at]._replace(must_be_invarying=axes)
        return leaves

    def asserted(self, values: tuple[Any, ...], function: str, sink: AssertionSink | None) -> tuple[Any, ...]:
        """The values; in a manual region with the layouts of their hints asserted."""
        fit, leaves = self.fit, self.leaves
        if not fit.region.manual or not enforcement.IS_ON:
            return values
        if function not in fit.shards:
            fit.shards[function] = self._assertions(function)
        shards, unmentioned = list[tuple[Any, LayoutAssertion, Layout | None]](), self.unmentioned
        for at, stated, layout in fit.shards[function]:
            if at in unmentioned and unmentioned[at] is not fit.unmentioned[at]:
                stated = stated._replace(must_be_invarying=unmentioned[at])
            shards += ((leaves[at], stated, layout),)
        asserted = assert_each(shards, sink)
        if None in fit.hints:  # for static leaves
            by_index = {at: value for (at, *_), value in zip(fit.shards[function], asserted, strict=True)}
            asserted = [by_index.get(at, leaf) for at, leaf in enumerate(leaves)]
        if fit.structure is None:
            return tuple(asserted)
        return values if all(map(is_, asserted, leaves)) else fit.structure.unflatten(asserted)

    def _assertions(self, function: str) -> list[tuple[int, LayoutAssertion, Layout | None]]:
        fit, shards = self.fit, list[tuple[int, LayoutAssertion, Layout | None]]()
        for at, (value, hint, subject) in enumerate(zip(self.leaves, fit.hints, fit.subjects, strict=True)):
            if hint is not None:
                layout = fit.region.manual_layout(hint, len(_jax.array.aval_of(value).shape))
                axes = fit.unmentioned.get(at, NO_AXES)
                shards.append((at, LayoutAssertion(hint, fit.region, subject, function, fit.sizes, axes), layout))
        return shards


def find_fitting(
    fits: Sequence[Fit], values: tuple[Any, ...], given: tuple[Subject, ...], region: MeshContext, before: Sizes
) -> Fitting | None:
    """The similar values that fitted, if these do not vary over forbidden axes; else None."""
    flat = None
    for fit in fits:
        if fit.region is not region or fit.before is not before or fit.given != given:
            continue
        leaves: Sequence[Any] = values
        if fit.structure is not None:
            flat = flat or _flattened(values)
            leaves, structure = flat
            if structure != fit.structure:
                continue
        if fit.kinds.are_of(leaves):
            unmentioned = _still_unmentioned(fit, leaves) if fit.unmentioned else fit.unmentioned
            return None if unmentioned is None else Fitting(fit, leaves, unmentioned)
    return None


def _still_unmentioned(fit: Fit, leaves: Sequence[Any]) -> dict[int, frozenset[str]] | None:
    """The axes over which the analysis must find leaves invarying; None if a leaf is known to vary over them."""
    unmentioned = fit.unmentioned
    for at, of_type in fit.unmentioned.items():
        axes, _, is_wrong = axes_to_infer(leaves[at], of_type, fit.region)
        if is_wrong:
            return None
        if axes != of_type:
            unmentioned = {**unmentioned, at: axes}
    return unmentioned


def keep_fit(
    fits: list[Fit],
    values: tuple[Any, ...],
    given: tuple[Subject, ...],
    region: MeshContext,
    before: Sizes,
    checked: Sequence[CheckedLeaf],
    spans: list[tuple[int, int]],
    sizes: Sizes,
    has_union: bool = False,
) -> None:
    """Keep values that fitted, if the kinds of the leaves determine that they fit."""
    of_check, hints, subjects, _ = zip(*checked, strict=True) if checked else ((), (), (), ())
    is_flat = len(checked) == len(values) and all(map(is_, of_check, values))
    leaves, structure = (values, None) if is_flat else _flattened(values)
    if len(leaves) != len(checked) or not all(map(is_, of_check, leaves)):
        return
    sharding_of: Callable[[Any], Any] | None = None
    if region.role == "value" and not region.manual:
        sharding_of = stated_sharding if _jax.array.STAGED in map(type, leaves) else sharding_at_rest
    try:
        kinds = LeafKinds(leaves, _key_of_other, sharding_of)
    except Undecided:
        return
    unmentioned: dict[int, frozenset[str]] = {}
    if region.manual and region.has_vma:
        for at, leaf in enumerate(checked):
            if leaf.hint is not None and (axes := unmentioned_by_type(leaf.value, leaf.hint, region)):
                unmentioned[at] = axes
    if unmentioned and has_union:  # another member may be better if the shards agree
        return
    fit = Fit(region, before, sizes, given, spans, structure, kinds, hints, subjects, unmentioned, {})
    fits[:] = [fit, *fits[: _MOST - 1]]


def _flattened(values: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """The leaves and the structure of values; no leaves and None if JAX cannot flatten them."""
    try:
        return _jax.tree.flatten(values)
    except _jax.tree.BadTree:
        return [], None
