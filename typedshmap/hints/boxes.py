"""Flax's boxes, which carry names for the dims of an array, read as hints.

``nn.LogicallyPartitioned``, ``nn.Partitioned`` and ``nnx.Variable`` are told by what they carry, so
that Flax is never imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from .. import _jax
from ..errors import AnnotationSyntaxError
from ..errors.failures import HintText
from ..errors.phrases import shown
from ..notation.layout import Rules
from ..notation.nodes import Anything, Axes, Dim, Rest, Spec
from .array import ArrayHint
from .axes import read_rules
from .scope import Region, same


@dataclass(frozen=True, slots=True)
class Box:
    """An array and the names of its dims.

    Attributes:
      value: the array.
      hint: what the names say of it; names bind no sizes, since Flax's do not.
      names: the dims' names that rules map to mesh axes.
      rules: the box's own rules, if it has any.
      is_axis: whether a name without a rule is itself a mesh axis, as it is in ``nnx``.
    """

    value: Any
    hint: ArrayHint
    names: tuple[str, ...]
    rules: Rules | None
    is_axis: bool

    def region(self, region: Region) -> Region:
        """A region with the rules for these names; where there are none at all, every name is an error."""
        rules = self.rules if self.rules is not None else region.rules
        known = rules if rules is not None else Rules(must_match=True)
        if self.is_axis:
            ruled = {name for name, _ in known.pairs}
            axes = None if rules is None or region.mesh is None else dict(region.mesh)
            own = tuple((n, (n,)) for n in self.names if n not in ruled and (axes is None or n in axes))
            known = replace(known, pairs=(*known.pairs, *own))
        return same(replace(region, rules=known))


def is_box(value: Any) -> bool:
    """Whether a value is a box of Flax."""
    return _may_be_box(type(value)) and (_is_linen(value) or _is_variable(value))


@lru_cache(maxsize=1024)
def _may_be_box(cls: type) -> bool:
    return hasattr(cls, "replace_boxed") or hasattr(cls, "raw_value")


def _is_linen(value: Any) -> bool:
    return _has_all(type(value), ("replace_boxed",)) and hasattr(value, "names")


def _is_variable(value: Any) -> bool:
    return _has_all(type(value), ("get_metadata", "raw_value"))


@lru_cache(maxsize=1024)
def _has_all(cls: type, names: tuple[str, ...]) -> bool:
    return all(hasattr(cls, name) for name in names)


def stands_for_its_value(box: Any) -> bool:
    """Whether a spec stands in the place of a box, as ``nn.get_partition_spec`` has it, or inside, as nnx's does."""
    return _is_linen(box)


def holds_boxes(value: Any) -> bool:
    """Whether any part of a value is a box."""
    found: list[Any] = []

    def note(part: Any) -> bool:
        if is_box(part):
            found.append(part)
            return True
        return False

    return bool(_jax.leaves(value, note) and found)


def read_box(box: Any) -> Box:
    """A box's array, and what its names say.

    Raises:
      AnnotationSyntaxError: for names that are none.
    """
    children = _jax.children(box)
    if children is None or len(children) != 1:
        raise AnnotationSyntaxError(f"{type(box).__name__} is a box of Flax that does not hold just one value")
    (_, value) = children[0]
    if _is_linen(box):
        is_logical, rules = hasattr(box, "rules"), getattr(box, "rules", None)
        hint, names = _hint(type(box).__name__, box.names, is_logical)
        return Box(value, hint, names, read_rules(rules), False)
    metadata = box.get_metadata()
    written = next((metadata[key] for key in _NAMES if metadata.get(key) is not None), None)
    if isinstance(written, NamedSharding):
        written = written.spec
    hint, names = _hint(type(box).__name__, written, True)
    return Box(value, hint, names, read_rules(metadata.get("sharding_rules")), True)


# What Flax has called them, the newest first.
_NAMES = ("out_sharding", "sharding_names", "sharding")


def _hint(cls: str, written: Any, is_logical: bool) -> tuple[ArrayHint, tuple[str, ...]]:
    if written is None:
        return ArrayHint(None, "Shaped", Any, Spec((Rest(None),)), HintText(cls)), ()
    if isinstance(written, PartitionSpec):
        written = tuple(axes[0] if len(axes) == 1 else axes or None for axes in _jax.spec_parts(written).parts)
    if not isinstance(written, (tuple, list)):
        raise AnnotationSyntaxError(
            f"{cls}: its names are {shown(written)}; they are a tuple with a name or None per dim"
        )
    dims: list[Dim] = []
    start = 0
    for entry in written:
        span = (start, start + len(repr(entry)))
        start = span[1] + 2
        dims.append(_dim(cls, entry, is_logical, span))
    source = ", ".join(map(repr, written))
    names = tuple(dim.label for dim in dims if dim.label is not None)
    return ArrayHint(None, "Shaped", Any, Spec(tuple(dims), (), source), HintText(f"{cls} names=(", source, ")")), names


def _dim(cls: str, entry: Any, is_logical: bool, span: tuple[int, int]) -> Dim:
    if is_logical and isinstance(entry, str):
        return Dim(Anything(), None, label=entry, span=span, size_span=span)
    axes: Iterable[Any] = () if entry is None else (entry,) if isinstance(entry, str) else entry
    if not isinstance(axes, (tuple, list)) or not all(isinstance(axis, str) for axis in axes):
        raise AnnotationSyntaxError(f"{cls}: {shown(entry)} among its names is no name")
    return Dim(Anything(), Axes(tuple(axes), span=span), span=span, size_span=span)


def put_back(box: Any, value: Any) -> Any:
    """The box with another value."""
    return _jax.put_together(box, [value])
