"""A Python type hint becomes a tree of nodes, once, when a function is decorated.

`build` reads ``tuple list dict NamedTuple TypedDict``, dataclasses (``flax.struct`` and
``equinox.Module`` among them), unions, ``PyTree`` and ``Stacked``; what holds no array is `Static`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import jax
import numpy as np

from .. import _jax
from ..errors import AnnotationSyntaxError
from ..errors.failures import HintText
from ..errors.phrases import shown
from .array import bare, make, read
from .dtypes import NAMES
from .nodes import (
    NONE,
    Anything,
    Either,
    Items,
    Keyed,
    Leaf,
    Node,
    Record,
    Repeated,
    Static,
    Tree,
    hint_name,
    holds_arrays,
    stacked,
)


def node_of(hint: Any) -> Node:
    """The tree of a hint, which may be just its dims as a string, or a tuple, list or dict of hints.

    Raises:
      AnnotationSyntaxError: for something that is no hint.
    """
    if isinstance(hint, str):
        return _dims_node(hint)
    found = _contained(hint, node_of)
    if found is not None:
        return found
    try:
        return build(hint)
    except NameError as error:
        raise AnnotationSyntaxError(f"{hint_name(hint)} names '{error.name}', which is not defined") from None


def build_given(hint: Any, names: Names) -> Node:
    """The tree of a hint of ``in_types`` or ``out_types``, which may be a tuple, list or dict of hints.

    Raises:
      AnnotationSyntaxError: for something that is no hint.
    """
    return _contained(hint, lambda inner: build_given(inner, names)) or build(hint, names)


def _contained(hint: Any, read_inner: Callable[[Any], Node]) -> Node | None:
    """The tree of a tuple, list or dict of hints."""
    if type(hint) in (tuple, list):
        return Items(tuple(map(read_inner, hint)), type(hint))
    if type(hint) is dict and all(isinstance(name, str) for name in hint):
        fields = {name: read_inner(inner) for name, inner in hint.items()}
        return Record(dict, "TypedDict", fields, is_open=False)
    return None


@lru_cache(maxsize=1024)
def _dims_node(dims: str) -> Node:
    return Leaf(make("Shaped", None, (Any, dims), HintText('"', dims, '"')))


@dataclass(frozen=True)
class Names:
    """Where names in string annotations are looked up, and what classes are being read.

    Attributes:
      local: names local to the enclosing function.
      types: what type variables stand for, each with the names of the place where that was written.
      open: the records that are being read.
    """

    local: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[Any, tuple[Any, Names]] = field(default_factory=dict)
    open: Mapping[Any, Record] = field(default_factory=dict)

    def bound(self, variables: tuple[Any, ...], args: tuple[Any, ...]) -> Names:
        """These names, and what a generic class's type variables stand for."""
        more = {variable: (arg, self) for variable, arg in zip(variables, args, strict=False)}
        return Names(self.local, {**self.types, **more}, self.open)


def build(hint: Any, names: Names = Names()) -> Node:
    """The tree of a hint.

    Raises:
      AnnotationSyntaxError: for something that is no hint.
    """
    if hint is None or hint is type(None):
        return NONE
    if isinstance(hint, (jax.Array, np.ndarray)):
        raise AnnotationSyntaxError(f"{_jax.type_text(hint)} is no hint")
    if hint is Any or hint is object:
        return Anything()
    if isinstance(hint, TypeVar):
        return _build_typevar(hint, names)
    alias = getattr(hint, "__value__", None) if type(hint).__name__ == "TypeAliasType" else None
    if alias is not None:
        return build(alias, names)
    if hasattr(hint, "__supertype__"):  # NewType
        return build(hint.__supertype__, names)
    found = _build_array(hint) or _build_tree(hint, names)
    return found if found is not None else _build_generic(hint, names)


def _build_typevar(hint: TypeVar, names: Names) -> Node:
    if hint in names.types:
        meant, where = names.types[hint]
        return build(meant, Names(where.local, where.types, names.open))
    if hint.__constraints__:
        return _either(hint.__constraints__, hint, names)
    return build(hint.__bound__, names) if hint.__bound__ is not None else Anything()


def _build_array(hint: Any) -> Node | None:
    array = read(hint)
    if array is not None:
        return Leaf(array)
    if hint in (jax.Array, np.ndarray):
        return Leaf(bare(hint))
    if hint == jax.typing.ArrayLike:
        return Leaf(bare(jax.typing.ArrayLike))
    if typing.get_origin(hint) is np.ndarray:
        return Leaf(bare(np.ndarray))
    name = getattr(hint, "__name__", None)
    if name in NAMES and getattr(hint, "__module__", "").startswith(("typedshmap", "jaxtyping")):
        raise AnnotationSyntaxError(f'{name}: wants an array type and dims, as in {name}[Array, "b d"]')
    return None


def _build_tree(hint: Any, names: Names) -> Node | None:
    """``Stacked``; or ``PyTree`` of ours or of jaxtyping, told by what it carries."""
    stack = getattr(hint, "__stacked__", None) if isinstance(hint, type) else None
    if stack is not None:
        return _build_stacked(stack[0], stack[1], names)
    if isinstance(hint, type) and (hint.__module__, hint.__name__) == ("typedshmap.hints.classes", "Stacked"):
        raise AnnotationSyntaxError('Stacked: wants leading dims and a hint, as in Stacked["layers", Layer]')
    if not isinstance(hint, type) or "PyTree" not in hint.__name__:
        return None
    if getattr(hint, "__module__", "").split(".")[0] not in ("typedshmap", "jaxtyping"):
        return None
    leaf, structure = getattr(hint, "leaftype", Any), getattr(hint, "structure", None)
    if structure is not None and not isinstance(structure, str):
        structure = str(structure)
    if structure is not None and not structure.isidentifier():
        raise AnnotationSyntaxError(f"{hint.__name__}: the structure's name {structure!r} is no identifier")
    node = build(leaf, names)
    return Tree(node, structure) if holds_arrays(node) else Anything() if leaf is Any else Static(Any)


def _build_stacked(dims: str, hint: Any, names: Names) -> Node:
    node = build(hint, names)
    if not holds_arrays(node):
        raise AnnotationSyntaxError(f"Stacked[{dims!r}, {hint_name(hint)}]: {hint_name(hint)} holds no arrays")
    return stacked(node, dims)


def _build_generic(hint: Any, names: Names) -> Node:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Unpack or getattr(hint, "__unpacked__", False):
        raise AnnotationSyntaxError(f"{hint_name(hint)}: a hint that unpacks another one is not read")
    if type(origin).__name__ == "TypeAliasType":
        return build(origin.__value__, names.bound(origin.__type_params__, args))
    if origin is not None and getattr(typing, str(hint).removeprefix("typing."), None) is hint:
        return Static(origin)  # List, Dict or Callable of anything
    if origin is typing.Annotated:
        return build(args[0], names)
    if origin in (typing.Union, types.UnionType):
        return _either(args, hint, names)
    if origin in _QUALIFIERS:
        return build(args[0], names)
    variables = getattr(origin, "__parameters__", None)
    if isinstance(origin, type) and variables:
        return _build_class(origin, names.bound(variables, args), hint)
    if origin is tuple:
        return _build_tuple(args, hint, names)
    if origin in (list, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Iterable):
        return _one(Repeated(list if origin is list else (list, tuple), build(args[0], names)), hint)
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        kind = dict if origin in (collections.abc.Mapping, collections.abc.MutableMapping) else origin
        return _one(Keyed(kind, build(args[1], names)), hint)
    if origin is None and isinstance(hint, type):
        return _build_class(hint, names, hint)
    if origin is None and type(hint).__module__ not in ("typing", "typing_extensions"):
        raise AnnotationSyntaxError(f"{shown(hint)} is no hint")
    return Static(hint)


_QUALIFIERS = (
    typing.Final,
    typing.ClassVar,
    typing.Required,
    typing.NotRequired,
    getattr(typing, "ReadOnly", typing.Required),  # new in Python 3.13
)


def _one(node: Repeated | Keyed, hint: Any) -> Node:
    inner = node.item if isinstance(node, Repeated) else node.value
    return node if holds_arrays(inner) else Static(hint)


def _build_tuple(args: tuple[Any, ...], hint: Any, names: Names) -> Node:
    if len(args) == 2 and args[1] is Ellipsis:
        return _one(Repeated(tuple, build(args[0], names)), hint)
    items = tuple(build(arg, names) for arg in args)
    return Items(items) if any(map(holds_arrays, items)) or not items else Static(hint)


def _either(args: tuple[Any, ...], hint: Any, names: Names) -> Node:
    if hint == jax.typing.ArrayLike:
        return Leaf(bare(hint))
    options = tuple(build(arg, names) for arg in args)
    return Either(options, hint) if any(map(holds_arrays, options)) else Static(hint)


def _build_class(cls: type, names: Names, hint: Any) -> Node:
    """A NamedTuple, TypedDict or dataclass by its fields; any other class is static."""
    kind = _record_kind(cls)
    if kind is None:
        return Static(hint)
    if hint in names.open:
        return names.open[hint]
    record = Record(cls, kind)
    inner = _of_bases(cls, Names({cls.__name__: cls, **names.local}, names.types, {**names.open, hint: record}))
    hints = _fields(cls, kind, inner)
    record.optional = _optional_keys(cls, hints) if kind == "TypedDict" else frozenset()
    for name, field_hint in hints.items():
        record.fields[name] = build(field_hint, inner)
    record.is_open = False
    return record if holds_arrays(record) else Static(hint)


def _of_bases(cls: type, names: Names) -> Names:
    """The names of a class's body, with what its generic bases' type variables stand for."""
    for base in getattr(cls, "__orig_bases__", ()):
        origin = typing.get_origin(base)
        variables = getattr(origin, "__parameters__", ())
        if isinstance(origin, type) and variables and origin is not typing.Generic:
            names = _of_bases(origin, names.bound(variables, typing.get_args(base)))
    return names


def _record_kind(cls: type) -> str | None:
    if typing.is_typeddict(cls):
        return "TypedDict"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "NamedTuple"
    return "dataclass" if dataclasses.is_dataclass(cls) else None


def _fields(cls: type, kind: str, names: Names) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, localns=dict(names.local), include_extras=True)
    if kind == "NamedTuple":
        return {name: hints.get(name, Any) for name in cls._fields}  # type: ignore[attr-defined]
    if kind == "dataclass":
        return {f.name: hints.get(f.name, Any) for f in dataclasses.fields(cls)}
    return hints


def _optional_keys(cls: Any, hints: Mapping[str, Any]) -> frozenset[str]:
    """The keys that a TypedDict may lack; its own list is wrong where its hints were strings."""
    optional = frozenset(name for name, hint in hints.items() if typing.get_origin(hint) is typing.NotRequired)
    required = frozenset(name for name, hint in hints.items() if typing.get_origin(hint) is typing.Required)
    return (frozenset(cls.__optional_keys__) | optional) - required
