"""Parse a Python type hint into a tree of nodes, once, when a function is decorated.

`parse_hint` reads ``tuple list dict NamedTuple TypedDict``, classes that JAX flattens, however they were registered,
unions, ``PyTree``, ``Stacked`` and ``Like``; a hint without arrays is `Static`."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import field, replace
from functools import lru_cache, partial
from typing import Any, ForwardRef, TypeVar

import jax
import numpy as np

from .. import _jax
from .._jax.array import NAMES
from ..errors import AnnotationSyntaxError
from ..errors.failures import HintText
from ..errors.phrases import value_text
from ..notation.tokens import SyntaxFault
from ..records import Record
from .array_hint import ArrayHint, bare_array_hint, is_type_alias, parse_array_hint, read_array_hint, with_leading_dims
from .postponed import RecursiveTree, class_hints, field_owner, is_users_class, without_recursive_aliases
from .structure import (
    NONE,
    UNHINTED,
    ArrayLeaf,
    Fields,
    FixedTuple,
    LikeOf,
    MappingOf,
    Node,
    PyTreeOf,
    SequenceOf,
    Static,
    UnionOf,
    Untyped,
    bare_tree,
    declares_arrays,
    hint_name,
    holds_arrays,
    loosen,
    map_hints,
    node_name,
    tree_content,
    walk,
)


def parse_hint_or_dims(hint: Any) -> Node:
    """The tree of a hint, which may be just its dims as a string, or a tuple, list or dict of hints."""
    if isinstance(getattr(hint, "__typedshmap__", None), ArrayHint):
        return hint.__node__
    try:
        node = parse_given_hint(hint, NameScope(), may_be_dims=True)
        content = tree_content(node)
    except RecursionError:
        raise AnnotationSyntaxError(NESTED_TOO_DEEPLY) from None
    if content is None:
        return node
    if len(_trees) >= _MOST_TREES:
        _trees.clear()
    return _trees.setdefault(content, node)


# A class is parsed each time, since the meaning of names in its hints may change. If its content is equal, the earlier
# tree is used, with its caches: without this `check` of a tree takes 1.6 times the calls.
_trees: dict[Any, Node] = {}
_MOST_TREES = 64


def parse_given_hint(hint: Any, names: NameScope, may_be_dims: bool = False) -> Node:
    """The tree of a hint of ``in_types`` or ``out_types``, which may be a tuple, list or dict of hints."""
    if may_be_dims and isinstance(hint, str):
        return _parse_dims(hint)
    if type(hint) in (tuple, list):
        return FixedTuple(tuple(parse_given_hint(inner, names, may_be_dims) for inner in hint), type(hint))
    if type(hint) is dict and all(isinstance(name, str) for name in hint):
        fields = {name: parse_given_hint(inner, names, may_be_dims) for name, inner in hint.items()}
        return Fields(dict, "TypedDict", fields, is_open=False)
    try:
        return parse_hint(hint, names)
    except NameError as error:
        if not may_be_dims:
            raise
        raise AnnotationSyntaxError(f"{hint_name(hint)} names '{error.name}', which is not defined") from None


@lru_cache(maxsize=1024)  # `check` by dims takes 7 times the calls without it
def _parse_dims(dims: str) -> Node:
    return ArrayLeaf(parse_array_hint("Shaped", None, (Any, dims), HintText('"', dims, '"')))


class NameScope(Record):
    """The scope of names in string annotations, and the classes that are being read.

    Attributes:
      local: names local to the enclosing function.
      types: the hint of each type variable, with the scope of that hint.
      open: the records that are being parsed.
      aliases: the type aliases that are being parsed, in the innermost record.
      parts: the number of parts parsed so far, with repetitions; all scopes share the list.
      known: the parts read in this scope, by id: each with its tree and its number of parts.
    """

    local: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[Any, tuple[Any, NameScope]] = field(default_factory=dict)
    open: Mapping[Any, Fields] = field(default_factory=dict)
    aliases: tuple[Any, ...] = ()
    parts: list[int] = field(default_factory=partial(list, (0,)))  # one number
    known: dict[int, tuple[Any, Node, int]] = field(init=False, compare=False, repr=False, default_factory=dict)

    def count(self, more: int) -> None:
        """Count parts, whose number may be exponential in the length of a hint."""
        self.parts[0] += more
        if self.parts[0] > _MOST_PARTS:
            raise AnnotationSyntaxError(f"a hint of more than {_MOST_PARTS} parts")

    def with_type_variables(self, variables: tuple[Any, ...], args: tuple[Any, ...]) -> NameScope:
        """This scope with arguments for the type variables of a generic class."""
        more = {variable: (arg, self) for variable, arg in zip(variables, args, strict=False)}
        return replace(self, types={**self.types, **more})

    def within_alias(self, alias: Any) -> NameScope:
        """This scope within a type alias, which must not hold itself."""
        if alias in self.aliases:
            raise AnnotationSyntaxError(f"the type alias {alias.__name__} holds itself\n\nHint: {_ANY_DEPTH}")
        return replace(self, aliases=(*self.aliases, alias))


_MOST_PARTS = 100_000
_ANY_DEPTH = "for trees of any depth write PyTree[...]"


NESTED_TOO_DEEPLY = "a hint that is nested too deeply, or holds itself"


def parse_hint(hint: Any, names: NameScope | None = None) -> Node:
    """The tree of a hint."""
    names = names or NameScope()
    if hint is None or hint is type(None):
        return NONE
    if isinstance(hint, (jax.Array, np.ndarray)):
        raise AnnotationSyntaxError(f"{_jax.array.type_text(hint)} is not a hint")
    if hint is Any or hint is object:
        return Untyped()
    if isinstance(hint, TypeVar):
        if hint in names.types:
            meant, where = names.types[hint]
            return parse_hint(meant, replace(where, open=names.open))
        if hint.__constraints__:
            return _parse_union(hint.__constraints__, hint, names)
        return parse_hint(hint.__bound__, names) if hint.__bound__ is not None else Untyped()
    if isinstance(hint, (str, ForwardRef)):  # not resolved with the annotations of a function
        text = hint if isinstance(hint, str) else hint.__forward_arg__
        cure = "names in strings are looked up for the annotations of functions only" if text.isidentifier() else None
        raise AnnotationSyntaxError(
            f"{value_text(text)} is not a hint" + (f"\n\nHint: {cure}; {_ANY_DEPTH}" if cure else "")
        )
    if is_type_alias(hint):
        return parse_hint(hint.__value__, names.within_alias(hint))
    if isinstance(hint, typing.NewType):
        return parse_hint(hint.__supertype__, names)
    if (array := read_array_hint(hint)) is not None:
        return ArrayLeaf(array)
    if hint is RecursiveTree:
        return UNHINTED
    bare = np.ndarray if typing.get_origin(hint) is np.ndarray else hint
    if bare in (jax.Array, np.ndarray) or bare == jax.typing.ArrayLike:
        return ArrayLeaf(bare_array_hint(bare))
    name = getattr(hint, "__name__", None)
    if name in NAMES and getattr(hint, "__module__", "").startswith(("typedshmap", "jaxtyping")):
        raise AnnotationSyntaxError(f'{name}: expects an array type and dims, as in {name}[Array, "b d"]')
    _, node, parts = names.known.get(id(hint), (None, None, 0))
    if node is None:
        before = names.parts[0]
        names.count(1)
        node = _parse_tree(hint, names) or _parse_generic(hint, names)
        names.known[id(hint)] = (hint, node, names.parts[0] - before)
    names.count(parts)
    return node


def _parse_tree(hint: Any, names: NameScope) -> Node | None:
    """``Stacked`` and ``Like``; or ``PyTree`` of ours or of jaxtyping, recognized by its attributes."""
    if not isinstance(hint, type):
        return None
    if (stack := getattr(hint, "__stacked__", None)) is not None:
        dims, stacked = stack
        node = _parse_inner(stacked, names, hint.__name__)
        return map_hints(node, lambda hint: with_leading_dims(hint, dims))
    if (like := getattr(hint, "__like__", None)) is not None:
        kind, parameters = like
        node = loosen(_parse_inner(parameters, names, hint.__name__))
        while isinstance(node, PyTreeOf) and not node.structure:  # any tree would have its structure
            node = node.leaf
        text = HintText(f"unsharded, in no {node_name(node)} of {hint.__name__}")
        return LikeOf(hint.__name__, plain_classes(kind), node, ArrayLeaf(replace(_ANY_ARRAY, text=text)))
    if (hint.__module__, hint.__name__) == ("typedshmap.hints.types", "Stacked"):
        raise AnnotationSyntaxError('Stacked: expects leading dims and a hint, as in Stacked["layers", Layer]')
    if (hint.__module__, hint.__name__) == ("typedshmap.hints.types", "Like"):
        raise AnnotationSyntaxError("Like: expects a class and a hint, as in Like[optax.OptState, Params]")
    if "PyTree" not in hint.__name__ or hint.__module__.split(".")[0] not in ("typedshmap", "jaxtyping"):
        return None
    if hint.__name__ == "PyTree":
        return UNHINTED
    leaf, text = getattr(hint, "leaftype", Any), getattr(hint, "structure", None)
    structure = () if text is None else parse_structure(text)
    return Untyped() if leaf is Any and not structure else PyTreeOf(parse_hint(leaf, names), structure)


def parse_structure(text: Any) -> tuple[str, ...]:
    """The names of a tree's structure, ``"S"``, ``"S T"``, ``"S ..."`` or ``"... S"``."""
    cure = 'write a name, as in "S", names of structures inside of each other, "S T", or "S ..." or "... S"'
    if not isinstance(text, str):
        raise AnnotationSyntaxError(f"PyTree[..., {value_text(text)}]: the structure is a string\n\nHint: {cure}")
    pieces = [(piece.group(), piece.span()) for piece in re.finditer(r"\S+", text)]
    hint = HintText('PyTree[..., "', text, '"]')
    if not pieces:
        raise SyntaxFault("the structure has no name", (0, 0), cure).in_hint(hint)
    for at, (name, span) in enumerate(pieces):
        if name == "..." and (at == 0 or (at == len(pieces) - 1 and pieces[0][0] != "...")):
            continue
        if not name.isidentifier():
            raise SyntaxFault(f"'{name}' is not the name of a structure", span, cure).in_hint(hint)
    return tuple(name for name, _ in pieces)


def _parse_inner(hint: Any, names: NameScope, around: str) -> Node:
    """The complete tree of a hint inside ``Stacked`` or ``Like``, which change its arrays."""
    node = parse_given_hint(hint, names)
    if not holds_arrays(node):
        raise AnnotationSyntaxError(f"{around}: {hint_name(hint)} holds no arrays")
    for _, part in walk(node):
        if isinstance(part, Fields) and part.is_open:
            raise AnnotationSyntaxError(f"{around} is inside of {part.cls.__name__} itself")
    return node


_ANY_ARRAY = bare_array_hint(jax.typing.ArrayLike)


def plain_classes(kind: Any) -> tuple[type, ...]:
    """The allowed classes of a value; empty if any class is allowed, as for ``optax.OptState``."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    classes = typing.get_args(kind) if is_union else (typing.get_origin(kind) or kind,)
    return classes if all(map(_is_checkable, classes)) else ()


def _is_checkable(cls: Any) -> bool:
    """Whether ``isinstance`` accepts a class, and not every object is an instance; a Protocol may raise."""
    try:
        return isinstance(cls, type) and not isinstance(_NOTHING, cls)
    except TypeError:
        return False


_NOTHING = object()


_CONTAINERS_MEANT: dict[type, str] = {
    dict: 'a TypedDict, as in TypedDict("Batch", {...})',
    tuple: "tuple[...] with its items",
    list: "list[...] of one hint, or tuple[...] with several",
}
"""What a container of hints is written as in an annotation."""


def _are_named(hints: Any) -> bool:
    """Whether a container of hints is valid: the keys of a TypedDict are strings."""
    return not isinstance(hints, dict) or all(isinstance(key, str) for key in typing.cast("dict[Any, Any]", hints))


def _parse_generic(hint: Any, names: NameScope) -> Node:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    variables = getattr(origin, "__parameters__", None)
    if origin is typing.Unpack or getattr(hint, "__unpacked__", False):
        raise AnnotationSyntaxError(f"{hint_name(hint)}: unpacking in a hint is not supported")
    if is_type_alias(origin):
        inner = names.with_type_variables(origin.__type_params__, args).within_alias(origin)
        node = parse_hint(origin.__value__, inner)
        return Static(hint) if isinstance(node, Static) else node
    if origin is not None and getattr(typing, str(getattr(hint, "_name", "")), None) is hint:
        return _parse_class(origin, names, origin)  # List, Dict or Callable of anything
    if origin is typing.Annotated or origin in _QUALIFIERS:
        node = parse_hint(args[0], names)
        return Static(hint) if isinstance(node, Static) and origin is typing.Annotated else node  # with its validators
    if origin in (typing.Union, types.UnionType):
        return _parse_union(args, hint, names)
    if isinstance(origin, type) and variables:
        return _parse_class(origin, names.with_type_variables(variables, args), hint)
    if origin is None and isinstance(hint, type):
        return _parse_class(hint, names, hint)
    if (means := _CONTAINERS_MEANT.get(type(hint))) is not None and _are_named(hint):
        raise AnnotationSyntaxError(f"a {type(hint).__name__} is not a hint; write {means}")
    if origin is None and type(hint).__module__ not in ("typing", "typing_extensions"):
        means = _MEANT.get(hint) if isinstance(hint, types.BuiltinFunctionType) else None
        cure = f"\n\nHint: write {means}" if means else ""
        raise AnnotationSyntaxError(f"{value_text(hint)} is not a hint{cure}")
    node: Node = Static(hint)
    names.count(len(args))
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        node = FixedTuple(tuple(parse_hint(arg, names) for arg in args))
    elif origin in _SEQUENCES and args:
        node = SequenceOf(_SEQUENCES[origin], parse_hint(args[0], names))
    elif isinstance(origin, type) and issubclass(origin, collections.abc.Mapping) and origin is not collections.Counter:
        if len(args) != 2:
            raise AnnotationSyntaxError(
                f"{hint_name(hint)}: expects the types of keys and of values, as in dict[str, Array]"
            )
        node = MappingOf(origin, parse_hint(args[1], names))
    if not args or not _is_static(node):
        return node
    return Static(hint, None if isinstance(node, Static) else node)


def _is_static(node: Node) -> bool:
    """Whether a node holds neither arrays nor PyTrees."""
    return not holds_arrays(node) and not any(isinstance(part, PyTreeOf) for _, part in walk(node))


_MEANT = {callable: "Callable, of collections.abc", any: "Any, of typing"}
_QUALIFIERS = (
    typing.Final,
    typing.ClassVar,
    typing.Required,
    typing.NotRequired,
    getattr(typing, "ReadOnly", typing.Required),  # new in Python 3.13
)
_ABSTRACT = (
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Collection,
    collections.abc.Iterable,
)
_SEQUENCES: dict[Any, Any] = {tuple: tuple, list: list, **dict.fromkeys(_ABSTRACT, (list, tuple))}
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict)
_BARE = (*_SEQUENCES, *_MAPPINGS, collections.abc.Mapping, collections.abc.MutableMapping)


def _parse_union(args: tuple[Any, ...], hint: Any, names: NameScope) -> Node:
    if hint == jax.typing.ArrayLike:
        return ArrayLeaf(bare_array_hint(hint))
    if (plain := without_recursive_aliases(hint)) is not hint:
        return parse_hint(plain, names)
    options = tuple(parse_hint(arg, names) for arg in args)
    union = UnionOf(options, hint)
    return Static(hint, union) if all(map(_is_static, options)) else union


def _parse_class(cls: Any, names: NameScope, hint: Any) -> Node:
    """The node of a class: its fields, or a container; static if JAX does not flatten it and it is not a record."""
    is_registered = _jax.tree.is_registered(cls)
    kind = _record_kind(cls, is_registered)
    if cls in _BARE:
        return bare_tree(cls, cls.__name__)
    if kind is None and not is_registered:
        return Static(hint)
    if hint in names.open:
        return names.open[hint]
    record = Fields(cls, kind or "class")
    inner = _with_base_type_variables(
        cls, replace(names, local={cls.__name__: cls, **names.local}, open={**names.open, hint: record}, aliases=())
    )
    if kind is None and (container := _parse_container_class(cls, inner)) is not None:
        return container
    hints = class_hints(cls, inner.local)
    if kind == "TypedDict":  # __optional_keys__ is wrong for string annotations
        marked = {name: typing.get_origin(hint) for name, hint in hints.items()}
        optional = cls.__optional_keys__ | {name for name, mark in marked.items() if mark is typing.NotRequired}
        record.optional = frozenset(name for name in optional if marked.get(name) is not typing.Required)
        fields = list(hints)
    elif kind == "NamedTuple":
        fields = list(cls._fields)
    elif kind == "dataclass":
        fields = [declared.name for declared in dataclasses.fields(cls)]
    else:
        fields = [name for name, type_ in hints.items() if (typing.get_origin(type_) or type_) is not typing.ClassVar]
        fields = [name for name in fields if not isinstance(hints[name], dataclasses.InitVar)]
    are_loose = is_registered
    for name in fields:
        try:
            node = parse_hint(hints.get(name, Any), inner)
        except AnnotationSyntaxError as error:
            raise AnnotationSyntaxError(f"field '{name}' of {cls.__name__}: {error.sentence}") from None
        # Ignore a library's hints of its own fields without arrays: those of Flax do not describe its values.
        is_loose = is_registered and not declares_arrays(node) and not is_users_class(field_owner(cls, name))
        if not is_loose:
            record.fields[name] = node
        elif kind is not None:
            record.fields[name] = UNHINTED
        are_loose = are_loose and is_loose
    record.is_open = False
    if declares_arrays(record):
        return record
    if are_loose or (is_registered and kind is None):  # its arrays have no hints
        return bare_tree(cls, cls.__name__)
    if holds_arrays(record) and (kind != "dataclass" or is_registered):
        return record
    return Static(hint, record)


def _parse_container_class(cls: type, names: NameScope) -> Node | None:
    """The node of a registered list or mapping, by the hint of its items, or of a Flax variable, by its value's."""
    variables = [variable for base in cls.__mro__ for variable in getattr(base, "__parameters__", ())]
    if _jax.tree.is_variable_class(cls):
        known = [names.types[variable] for variable in variables if variable in names.types]
        if not known:
            return bare_tree(cls, cls.__name__)
        meant, where = known[0]
        return Fields(cls, "class", {"value": parse_hint(meant, replace(where, open=names.open))}, is_open=False)
    for base in cls.__mro__:
        for of_base in getattr(base, "__orig_bases__", ()):
            origin, args = typing.get_origin(of_base), typing.get_args(of_base)
            if isinstance(origin, type) and args and issubclass(origin, (collections.abc.Sequence, Mapping)):
                node = parse_hint(args[-1], names)
                if not holds_arrays(node):
                    return bare_tree(cls, cls.__name__)
                return MappingOf(cls, node) if issubclass(origin, Mapping) else SequenceOf(cls, node)
    return None


def _with_base_type_variables(cls: type, names: NameScope) -> NameScope:
    """The scope of a class body, with arguments for the type variables of its generic bases."""
    for base in getattr(cls, "__orig_bases__", ()):
        origin = typing.get_origin(base)
        variables = getattr(origin, "__parameters__", ())
        if isinstance(origin, type) and variables and origin is not typing.Generic:
            names = _with_base_type_variables(origin, names.with_type_variables(variables, typing.get_args(base)))
    return names


def _record_kind(cls: type, is_registered: bool) -> str | None:
    if typing.is_typeddict(cls):
        return "TypedDict"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "NamedTuple"
    # A registered subclass of a dataclass may have more fields, as in ``nnx``.
    is_own = "__dataclass_fields__" in vars(cls) or not is_registered
    return "dataclass" if dataclasses.is_dataclass(cls) and is_own else None
