"""The arguments of a call made from hints: what is drawn for each parameter, given for it, or left to its default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from .. import _jax
from ..errors import StructureError
from ..errors.phrases import did_you_mean
from ..hints.array_hint import ArrayHint
from ..hints.signature import EMPTY, POSITIONAL, HintedSignature
from ..hints.structure import (
    ArrayLeaf,
    Fields,
    FixedTuple,
    MappingOf,
    Node,
    PyTreeOf,
    SequenceOf,
    Static,
    UnionOf,
    Untyped,
    holds_arrays,
    map_children,
    node_name,
)
from ..notation.match import Subject
from ..placement.structs import TreeBuilder, build_tree, typed_key


@dataclass(frozen=True, eq=False, slots=True)
class ArrayToDraw:
    """The place of one array that is still to be made.

    Attributes:
      hint: what it is.
      make: makes it of a key and the global shape; None where it is drawn.
    """

    hint: ArrayHint
    make: Callable[[Any, tuple[int, ...]], Any] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class CallArgument:
    """One argument of a call.

    Attributes:
      subject: what messages call it.
      node: what its hint says.
      value: its value, with an `ArrayToDraw` in the place of each array that is still to be made.
      is_keyword: whether it is passed by keyword.
    """

    subject: Subject
    node: Node
    value: Any
    is_keyword: bool = False

    @property
    def arrays_to_draw(self) -> list[ArrayToDraw]:
        """The arrays that are still to be made."""
        try:
            leaves = jax.tree_util.tree_leaves(self.value)
        except Exception:  # of what JAX cannot take apart nothing is drawn; the check of the arguments tells
            return []
        return [leaf for leaf in leaves if isinstance(leaf, ArrayToDraw)]


@dataclass
class GivenArguments:
    """What the user passes of the arguments.

    Attributes:
      verb: the function that messages name.
      values: arguments by name, and parts of them by path.
      used: the names that were asked for.
      problems: what is wrong.
    """

    verb: str
    values: Mapping[str, Any]
    used: set[str] = field(default_factory=set[str])
    problems: list[str] = field(default_factory=list[str])

    def has(self, name: str) -> bool:
        """Whether a value was given."""
        self.used.add(name)
        return name in self.values


def arguments_of(typed: HintedSignature, owner: tuple[Any, ...], given: GivenArguments) -> list[CallArgument]:
    """The arguments of a call, but for those that are left to their defaults.

    Args:
      typed: the function.
      owner: the instance, or the class, of a method.
      given: what the user passes.

    Raises:
      StructureError: for all that no hint can make and was not given.
    """
    parameters = _parameters(typed, owner)
    made = [list(_arguments(parameter, typed, at, given)) for at, parameter in parameters]
    last = max((at for at, each in enumerate(made) if each and not each[0].is_keyword), default=-1)
    found = [
        each
        for at, ((_, parameter), own) in enumerate(zip(parameters, made, strict=True))
        for each in (own or (_defaults(parameter) if at < last else []))
    ]
    known = [name for name in given.used if name.isidentifier()]
    given.problems += [unknown_name_text(name, known) for name in given.values if name not in given.used]
    if given.problems:
        raise StructureError(f"{given.verb}: {typed.name}: {'; '.join(given.problems)}")
    return found


def _parameters(typed: HintedSignature, owner: tuple[Any, ...]) -> list[tuple[int, inspect.Parameter]]:
    """The parameters that a call fills, each with its number."""
    return list(enumerate(typed.signature.parameters.values()))[len(typed.given) + len(owner) :]


def needed_arguments(typed: HintedSignature, owner: tuple[Any, ...]) -> dict[str, Node]:
    """The arguments that must be given, each with what its hint says: no hint makes them, and they have no default."""
    found = ((parameter, _node(parameter, typed, at)) for at, parameter in _parameters(typed, owner))
    return {parameter.name: node for parameter, node in found if _is_needed(parameter, node)}


def _defaults(parameter: inspect.Parameter) -> list[CallArgument]:
    """A default that stands before an argument which is passed by position."""
    if parameter.kind not in POSITIONAL or parameter.default is EMPTY:
        return []
    return [CallArgument(Subject("argument", parameter.name), Untyped(), parameter.default)]


def unknown_name_text(name: str, known: Iterable[str]) -> str:
    """What a message says of a keyword that is neither a size nor an argument."""
    return f"neither a dim of its hints nor an argument is called '{name}'{did_you_mean(name, known)}"


def _arguments(
    parameter: inspect.Parameter, typed: HintedSignature, at: int, given: GivenArguments
) -> Iterator[CallArgument]:
    name, kind = parameter.name, parameter.kind
    if kind is kind.VAR_KEYWORD:
        return
    if kind is kind.VAR_POSITIONAL:
        yield from _variadic(parameter, typed.positional[at:] or (typed.parameters.get(name, Untyped()),) * 2, given)
        return
    node = _node(parameter, typed, at)
    if given.has(name) or holds_arrays(node):
        yield CallArgument(Subject("argument", name), node, _value(name, node, given), kind not in POSITIONAL)
    elif _is_needed(parameter, node):
        given.problems.append(f"{needed_text(name, node)}; pass {name}=...")
    elif parameter.default is EMPTY:
        yield CallArgument(Subject("argument", name), node, None, kind not in POSITIONAL)


def _node(parameter: inspect.Parameter, typed: HintedSignature, at: int) -> Node:
    known = typed.parameters.get(parameter.name, Untyped())
    return typed.positional[at] if at < len(typed.positional) else known


def _is_needed(parameter: inspect.Parameter, node: Node) -> bool:
    is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    is_none = isinstance(node, Static) and node.hint is type(None)
    return not is_variadic and not is_none and parameter.default is EMPTY and not holds_arrays(node)


def needed_text(name: str, node: Node) -> str:
    """What a message says of an argument that must be given."""
    return f"argument '{name}' ({node_name(node)}) holds no arrays and has no default"


def _variadic(parameter: inspect.Parameter, nodes: tuple[Node, ...], given: GivenArguments) -> Iterator[CallArgument]:
    name = parameter.name
    values = given.values[name] if given.has(name) else None
    if values is None and not all(map(holds_arrays, nodes)):
        return
    nodes = nodes if values is None or len(nodes) == len(values) else (nodes[0],) * len(values)
    for at, node in enumerate(nodes):
        subject = Subject("argument", name, f"[{at}]")
        value = _value(str(subject), node, given) if values is None else values[at]
        yield CallArgument(subject, node, value)


def _value(name: str, node: Node, given: GivenArguments) -> Any:
    """An argument's value: what was given, or one made of its hint."""
    sure = choose_members(node)
    if given.has(name):
        value = given.values[name]
        is_maker = callable(value) and holds_arrays(node)
        if not is_maker or isinstance(sure, ArrayLeaf):
            return ArrayToDraw(sure.hint, value) if is_maker and isinstance(sure, ArrayLeaf) else value
        given.problems.append(
            f"argument '{name}' ({node_name(node)}) is several arrays, so that no function of a key and a shape "
            f"makes it; pass arguments={{'{name}.field': ...}}"
        )
        return None
    return build_tree(
        sure,
        TreeBuilder(
            given.verb, lambda hint, path: _array_to_draw(name + path, hint, given), _copy_default, None, _cure(name)
        ),
    )


def _array_to_draw(path: str, hint: ArrayHint, given: GivenArguments) -> Any:
    if not given.has(path):
        return ArrayToDraw(hint)
    value = given.values[path]
    return ArrayToDraw(hint, value) if callable(value) else value


def _copy_default(default: Any) -> Any:
    return default


def _cure(name: str) -> str:
    return f"pass the argument: {name}=..."


def statics(arguments: list[CallArgument], typed: HintedSignature, owner: tuple[Any, ...]) -> dict[str, Any]:
    """The values that ``{argument.path}`` in a hint may speak of."""
    names = list(typed.signature.parameters)
    found = {p.name: p.default for p in typed.signature.parameters.values() if p.default is not EMPTY}
    found.update(zip(names, (*typed.given, *owner), strict=False))
    found.update((each.subject.name, each.value) for each in arguments if not each.subject.path)
    return found


class Inputs(tuple[Any, ...]):
    """The arguments of one call: ``f(*made)``, or ``f(**made)``; of both kinds by ``f(*made.args, **made.kwargs)``.

    It holds the positional ones, as a tuple; by its name every argument is found, ``made["x"]``. It is a
    pytree of all of them.

    Attributes:
      kwargs: the keyword-only arguments.
      names: the names of the positional ones.
      sizes: the global size of every name in the hints, a tuple of sizes for ``*name``.
      seed: what it was drawn from.
    """

    kwargs: dict[str, Any]
    names: tuple[str, ...]
    sizes: dict[str, Any]
    seed: int

    @classmethod
    def of(
        cls,
        args: tuple[Any, ...],
        names: tuple[str, ...],
        kwargs: Mapping[str, Any],
        sizes: Mapping[str, Any],
        seed: int,
    ) -> Inputs:
        """Put arguments together."""
        made = cls(args)
        made.names, made.kwargs, made.sizes, made.seed = names, dict(kwargs), dict(sizes), seed
        return made

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments."""
        return tuple(self)

    def keys(self) -> Iterator[str]:
        """The names of all arguments that have one."""
        yield from (*self.names[: len(self)], *self.kwargs)

    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, str):
            return super().__getitem__(at)
        return self.kwargs[at] if at in self.kwargs else self.by_name[at]

    @property
    def by_name(self) -> dict[str, Any]:
        """The arguments by their names."""
        return {**dict(zip(self.names, self, strict=False)), **self.kwargs}

    def call(self, f: Callable[..., Any]) -> Any:
        """Call a function with these arguments."""
        return f(*self.args, **self.kwargs)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_value_text(value)}" for name, value in self.by_name.items())
        return f"Inputs({shown}; seed={self.seed})"


@dataclass(frozen=True)
class FlatInputs:
    """The arguments of a call, its arrays apart from all that is static.

    Attributes:
      kinds: the classes of what counts as an array.
      leaves: all leaves, each with its path among the positional arguments (0) or those by keyword (1).
      structure: what they are the leaves of.
    """

    kinds: tuple[type, ...]
    leaves: list[tuple[Any, Any]]
    structure: Any

    @classmethod
    def of(cls, made: Inputs, *kind: type) -> FlatInputs:
        """Take the arguments of a call apart."""
        return cls(kind, *jax.tree_util.tree_flatten_with_path((list(made.args), dict(made.kwargs))))

    @property
    def arrays(self) -> list[tuple[Any, Any]]:
        """The arrays among the leaves, each with its path."""
        return [(path, leaf) for path, leaf in self.leaves if isinstance(leaf, self.kinds)]

    def run(self, f: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """Call a function with other arrays in the places of these."""
        rest = iter(arrays)
        leaves = [next(rest) if isinstance(leaf, self.kinds) else leaf for _, leaf in self.leaves]
        args, kwargs = self.structure.unflatten(leaves)
        return f(*args, **kwargs)


def _value_text(value: Any) -> str:
    leaves = jax.tree_util.tree_leaves(value)
    if len(leaves) != 1 or leaves[0] is not value:
        return f"{type(value).__name__} of {len(leaves)}"
    return _jax.array.type_text(value) if hasattr(value, "shape") else repr(value)


def _flatten(made: Inputs) -> tuple[tuple[Any, ...], Any]:
    return (made.args, made.kwargs), (made.names, tuple(made.sizes.items()), made.seed)


def _unflatten(rest: Any, children: Any) -> Inputs:
    (args, kwargs), (names, sizes, seed) = children, rest
    return Inputs.of(args, names, kwargs, dict(sizes), seed)


jax.tree_util.register_pytree_node(Inputs, _flatten, _unflatten)


_KEYS = ("a", "b")


def choose_members(node: Node, inside: frozenset[int] = frozenset()) -> Node:
    """A node of which one value can be made.

    Of a union it is the first member that holds arrays, so that an optional array is there; lists, dicts and
    trees of any length have two items.

    Args:
      node: what a hint says.
      inside: the records around it; a class holds itself no further.
    """
    match node:
        case FixedTuple():
            return map_children(node, lambda item: choose_members(item, inside))
        case SequenceOf(kind, item):
            one = choose_members(item, inside)
            return FixedTuple((one, one), list if _takes(kind, list) else tuple)
        case MappingOf(_, item) | PyTreeOf(item, _):
            one = choose_members(item, inside)
            return Fields(dict, "TypedDict", dict.fromkeys(_KEYS, one), is_open=False)
        case UnionOf(options, _) if typed_key(options) is None:
            return choose_members(_choose_member(options, inside), inside)
        case Fields() if id(node) not in inside:
            around = inside | {id(node)}
            return map_children(node, lambda inner: choose_members(inner, around))
        case _:
            return node


def _takes(kind: type | tuple[type, ...], wanted: type) -> bool:
    return wanted in kind if isinstance(kind, tuple) else issubclass(wanted, kind)


def _choose_member(options: Sequence[Node], inside: frozenset[int]) -> Node:
    fit = [option for option in options if holds_arrays(option) and id(option) not in inside]
    leaves = [option for option in fit if isinstance(option, ArrayLeaf)]
    return (leaves or fit or list(options))[0]
