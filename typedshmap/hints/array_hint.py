"""A hint for one array, parsed once: dtypes, array type, spec, and the user's text.

Dtype names accept the same dtypes of JAX as in jaxtyping."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, ForwardRef, TypeVar

import jax
import numpy as np
import numpy.typing
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from .. import _jax
from .._jax.array import BOOLS, COMPLEXES, FLOATS, INTS, KEYS, NAMES, UINTS, intersect
from ..errors import AnnotationSyntaxError
from ..errors.failures import HintText
from ..errors.phrases import value_text
from ..notation.spec import Axes, Dim, Mark, Spec, parse
from ..notation.tokens import SyntaxFault
from ..records import Record


class KeepsFits:
    """A base class for objects against which values are checked."""

    @cached_property
    def fits(self) -> list[Any]:
        """Values that fitted, the latest first."""
        return []


class ArrayHint(KeepsFits, Record, eq=False):
    """The hint for one array.

    Attributes:
      dtypes: the accepted dtypes; None for all.
      dtype_name: their name in the hint.
      array_type: ``jax.Array``, ``numpy.ndarray``, a tuple of classes, or Any.
      spec: the dims, their sharding and the marks.
      text: the user's text.
      takes_rules: whether rules apply to its dims; not in a pattern, whose names are its own.
      may_be_missing: whether None, or another node without leaves, may replace the array.
    """

    dtypes: tuple[str, ...] | None
    dtype_name: str
    array_type: Any
    spec: Spec
    text: HintText
    takes_rules: bool = True
    may_be_missing: bool = False

    @property
    def reads_arguments(self) -> bool:
        """Whether a size is the value of an argument, as in ``{self.heads}``."""
        return "{" in str(self.spec)

    def takes_type(self, value: Any) -> bool:
        """Whether a value is an array of the hint's type."""
        if self.array_type is not Any:
            return isinstance(value, self.array_type)
        shape = getattr(value, "shape", None)  # modules and classes may also have an attribute "shape"
        return hasattr(value, "dtype") and isinstance(shape, tuple) and all(map(_is_size, shape))

    def takes_number(self, value: Any) -> bool:
        """Whether a value is a Python number, and JAX's dtype for it is of the kind of one of the dtypes."""
        kind = _SCALAR_KINDS.get(type(value))
        return kind is not None and any(dtype.startswith(kind) for dtype in self.dtypes or ())

    @property
    def type_text(self) -> str:
        """The array type in messages."""
        members = self.array_type if isinstance(self.array_type, tuple) else (self.array_type,)
        return " | ".join("an array" if member is Any else _type_as_written(member) for member in members)


def _is_size(size: Any) -> bool:
    """Whether this may be a dim's size; a symbol of ``jax.export`` is not an ``int``, and has no ``__index__``."""
    return size >= 0 if isinstance(size, int) else hasattr(size, "__floordiv__") and not isinstance(size, float)


def rank_of(value: Any) -> int:
    """The rank of a value; 0 if it is not an array."""
    shape = getattr(value, "shape", ())
    return len(shape) if isinstance(shape, tuple) else 0


def is_of_rank(hint: ArrayHint, rank: int) -> bool:
    """Whether a hint accepts a rank."""
    dims = len(hint.spec.dims)
    return rank == dims if hint.spec.rest is None else rank >= dims - 1


def _type_as_written(array_type: Any) -> str:
    """An array type as the user wrote it."""
    if typing.get_origin(array_type) is typing.Annotated:
        return _type_as_written(array_type.__origin__)
    if isinstance(array_type, tuple) or typing.get_origin(array_type) in (typing.Union, types.UnionType):
        if array_type in (ArrayLike, numpy.typing.ArrayLike, _ARRAY_LIKE):
            return "ArrayLike"
        members = array_type if isinstance(array_type, tuple) else typing.get_args(array_type)
        return " | ".join(map(_type_as_written, members))
    # The user may have written anything, even an array, which must not be compared by "==".
    for known, name in ((jax.Array, "Array"), (np.ndarray, "np.ndarray"), (Any, "Any")):
        if array_type is known:
            return name
    name = getattr(array_type, "__name__", None)
    return name if isinstance(name, str) else value_text(array_type)


def parse_array_hint(
    dtype_name: str, dtypes: tuple[str, ...] | None, item: Any, text: HintText | None = None
) -> ArrayHint:
    """Read the items in a hint's brackets: ``(array_type, dims)`` or ``(array_type, dims, P(...))``.

    ``text`` is the user's text, if the hint is only a part of it.
    """
    items: tuple[Any, ...] = item if isinstance(item, tuple) else (item,)
    if len(items) not in (2, 3) or not isinstance(items[1], str):
        got = ", ".join(_type_as_written(item) if isinstance(item, type) else value_text(item) for item in items)
        raise AnnotationSyntaxError(
            f'{dtype_name}[{got}]: expects an array type and dims, as in {dtype_name}[Array, "b d"]'
        )
    array_type, dims, pspec = items[0], items[1], items[2] if len(items) == 3 else None
    if len(items) == 3 and not isinstance(pspec, PartitionSpec):
        got = f"the third item is of type {type(pspec).__name__}; it may be a PartitionSpec"
        raise AnnotationSyntaxError(f"{dtype_name}[...]: {got}")
    if pspec is not None and (odd := _jax.array.non_name_entries(pspec)):
        got = f"P(...) holds {value_text(odd[0])}; write mesh axes by name, or None"
        raise AnnotationSyntaxError(f"{dtype_name}[...]: {got}")

    members = list(union_members(array_type))
    inner = read_array_hint(members[0]) if len(members) == 1 else None
    name = _type_as_written(array_type) if inner is None else str(inner.text)
    after = '"]' if pspec is None else f'", {_jax.array.spec_text(pspec)}]'
    written = text or HintText(f'{dtype_name}[{name}, "', dims, after)
    spec = _parse_spec(dims, written, pspec)
    if inner is not None:
        return _nest_hints(inner, dtypes, dtype_name, spec, written)
    hint = ArrayHint(dtypes, dtype_name, _array_classes(array_type, written), spec, written)
    _refuse_unfit_scalars(hint)
    return hint


@lru_cache(maxsize=4096)  # other caches use the identity of a hint
def hint_of_spec(spec: PartitionSpec, rank: int) -> ArrayHint:
    """The hint of a PartitionSpec for a rank, with the spec as its text."""
    text = HintText(_jax.array.spec_text(spec))
    return replace(parse_array_hint("Shaped", None, (Any, " ".join("_" * rank), spec), text), takes_rules=False)


def _parse_spec(dims: str, written: HintText, pspec: PartitionSpec | None = None) -> Spec:
    try:
        return parse(dims) if pspec is None else _with_pspec(parse(dims), pspec)
    except SyntaxFault as fault:
        raise fault.in_hint(written) from None


def _nest_hints(
    inner: ArrayHint, dtypes: tuple[str, ...] | None, dtype_name: str, outer: Spec, written: HintText
) -> ArrayHint:
    """A hint inside a hint: the outer dims come first, and the dtypes are those that both accept."""
    common = intersect(dtypes, inner.dtypes)
    if common == ():
        raise AnnotationSyntaxError(f"{written}: no dtype is both {dtype_name} and {inner.dtype_name}")
    names = (dtype_name, inner.dtype_name, *NAMES)
    same = (n for n in names if common == NAMES.get(n) or (common and set(common) == set(NAMES.get(n) or ())))
    name = next(same, f"{dtype_name}[{inner.dtype_name}]")
    joined = " ".join(map(str, (*outer.dims, *inner.spec.dims, *outer.marks, *inner.spec.marks)))
    text = HintText(f'{name}[{_type_as_written(inner.array_type)}, "', joined, '"]')
    return ArrayHint(common, name, inner.array_type, _parse_spec(joined, text), text)


def with_leading_dims(hint: ArrayHint, dims: str) -> ArrayHint:
    """A hint with leading dims before its own."""
    written = HintText('Stacked["', dims, f'", {hint.text}]')
    return _nest_hints(hint, None, hint.dtype_name, _parse_spec(dims, written), written)


def _with_pspec(spec: Spec, pspec: PartitionSpec) -> Spec:
    """The spec with the sharding of a PartitionSpec, entry by entry from the first dim."""
    entries = _jax.array.spec_entries(pspec)
    source = spec.source
    for dim in spec.dims:
        if isinstance(dim, Dim) and dim.axes is not None:
            raise SyntaxFault("brackets and P(...) in one hint", dim.span, "write one of them")
    fixed = len(spec.dims) if spec.rest is None else spec.rest
    if len(entries.dim_axes) > fixed:
        counted = "1 entry" if len(entries.dim_axes) == 1 else f"{len(entries.dim_axes)} entries"
        problem = f"P(...) has {counted} for {fixed} dim{'' if fixed == 1 else 's'}"
        cure = "write brackets" if spec.rest is not None else None
        raise SyntaxFault(problem, (0, len(source)), cure)
    dims = list(spec.dims)
    for index, dim in enumerate(dims):
        if not isinstance(dim, Dim):
            continue
        axes = entries.dim_axes[index] if index < len(entries.dim_axes) else ()
        if dim.broadcast and axes:
            raise SyntaxFault(f"'{dim}' may be of size 1, so it may not be sharded", dim.span)
        dims[index] = replace(dim, axes=Axes(axes, span=dim.span, is_any=index in entries.unconstrained))
    end = (max(len(source) - 1, 0), len(source))
    marks = [
        Mark(sign, a, end) for sign, axes in (("+", entries.unreduced), ("-", entries.reduced)) for a in sorted(axes)
    ]
    # Print and parse again, so that one place raises for an axis that is used twice.
    made = Spec(tuple(dims), (*spec.marks, *marks), source)
    try:
        parse(str(made))
    except SyntaxFault as fault:
        raise type(fault)(getattr(fault, "axis", fault.problem), (0, len(source))) from None
    return made


def is_type_alias(hint: Any) -> bool:
    """Whether this is ``type X = ...``, of Python or of ``typing_extensions``."""
    return type(hint).__name__ == "TypeAliasType"


_SCALAR_KINDS = {bool: "bool", int: "int", float: "float", complex: "complex"}
"""Python's numbers, each with the kind of its dtypes."""


def union_members(array_type: Any, aliases: tuple[Any, ...] = ()) -> Iterator[Any]:
    """The members of a union of array types, or of hints, with aliases and type variables resolved."""
    origin = typing.get_origin(array_type)
    if array_type in aliases:
        raise AnnotationSyntaxError(f"the type alias {array_type.__name__} holds itself")
    if array_type is numpy.typing.ArrayLike:  # whose members are protocols and strings
        parts: tuple[Any, ...] = (ArrayLike,)
    elif is_type_alias(array_type):
        parts, aliases = (array_type.__value__,), (*aliases, array_type)
    elif isinstance(array_type, TypeVar):
        parts = array_type.__constraints__ or (array_type.__bound__ or Any,)
    elif origin in (typing.Union, types.UnionType):
        parts = typing.get_args(array_type)
    elif origin is typing.Annotated:
        parts = (array_type.__origin__,)
    elif isinstance(array_type, typing.NewType):
        parts = (array_type.__supertype__,)
    else:
        yield array_type
        return
    for part in parts:
        yield from union_members(part, aliases)


def _array_classes(array_type: Any, written: HintText) -> Any:
    """An array type for ``isinstance``, or Any."""
    classes: list[Any] = []
    for member in union_members(array_type):
        cls = np.ndarray if typing.get_origin(member) is np.ndarray else member  # numpy.typing.NDArray
        if cls is Any or cls is object:
            return Any
        if not isinstance(cls, type) or typing.get_origin(cls) is not None or hasattr(cls, "__node__"):
            cure = f"write the type itself, as in {written.before.split('[')[0]}[Array, ...]"
            cure = f"\n\nHint: {cure}" if isinstance(cls, (str, ForwardRef)) else ""
            problem = f"{value_text(member)} is not an array type, as Array, np.ndarray and ArrayLike are"
            raise AnnotationSyntaxError(f"{written}: {problem}{cure}")
        classes.append(cls)
    # Members that are not arrays, such as None in an Optional, are omitted if others remain.
    kept = [cls for cls in classes if cls.__module__ != "builtins" or cls in _SCALAR_KINDS]
    if not kept:
        name = "None" if type(None) in classes else classes[0].__name__
        raise AnnotationSyntaxError(f"{written}: {name} is not an array type, as Array, np.ndarray and ArrayLike are")
    return kept[0] if len(kept) == 1 else tuple(kept)


def _refuse_unfit_scalars(hint: ArrayHint) -> None:
    """Raise for Python's numbers that cannot have the dtypes or the dims of a hint."""
    classes = hint.array_type if isinstance(hint.array_type, tuple) else (hint.array_type,)
    if not all(cls in _SCALAR_KINDS for cls in classes):
        return
    names = " | ".join(cls.__name__ for cls in classes)
    if hint.dtypes is not None and not any(d.startswith(_SCALAR_KINDS[cls]) for d in hint.dtypes for cls in classes):
        raise AnnotationSyntaxError(f"{hint.text}: a Python {names} is not {hint.dtype_name}")
    if dim := next((dim for dim in hint.spec.dims if isinstance(dim, Dim)), None):
        raise SyntaxFault(f"a Python {names} has no dims", dim.span, 'write "" or "..."').in_hint(hint.text)


def read_array_hint(hint: Any) -> ArrayHint | None:
    """The array hint of a class of this library, or of jaxtyping; None for any other object.

    Any class with ``dim_str``, ``dtypes`` and ``array_type`` counts; none of its functions is called.
    """
    ours = getattr(hint, "__typedshmap__", None)
    if isinstance(ours, ArrayHint):
        return ours
    if not isinstance(hint, type) or not all(hasattr(hint, name) for name in ("dim_str", "dtypes", "array_type")):
        return None
    theirs: Any = hint
    known = None  # jaxtyping has a sentinel for any dtype
    if isinstance(theirs.dtypes, (list, tuple)):
        known = tuple(dtype for written in theirs.dtypes for dtype in _dtypes_meant(written, theirs))
    name = getattr(getattr(theirs, "dtype", None), "__name__", theirs.__name__.split("[")[0])
    return parse_array_hint(name, known, (theirs.array_type, theirs.dim_str))


def _dtypes_meant(dtype: Any, hint: type) -> tuple[str, ...]:
    """The dtypes of a name or a regular expression of jaxtyping."""
    if isinstance(dtype, re.Pattern):
        return tuple(name for name in (*BOOLS, *UINTS, *INTS, *FLOATS, *COMPLEXES, *KEYS) if dtype.match(name))
    if not isinstance(dtype, str):
        raise AnnotationSyntaxError(f"{hint.__name__}: its dtypes are neither names nor regular expressions")
    return ("bool" if dtype == "bool_" else dtype,)


_ARRAY_LIKE = _array_classes(ArrayLike, HintText("ArrayLike"))


def bare_array_hint(array_type: Any) -> ArrayHint:
    """The hint of a bare array type: ``Shaped[Array, "..."]``."""
    return parse_array_hint("Shaped", None, (array_type, "..."))
