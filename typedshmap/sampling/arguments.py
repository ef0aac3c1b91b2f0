"""The arguments of a call: each parameter's is drawn from its hint, given by the user, or left to its default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from .. import _jax
from ..errors import StructureError
from ..errors.failures import Subject
from ..errors.phrases import did_you_mean
from ..hints import structure
from ..hints.array_hint import ArrayHint
from ..hints.signature import EMPTY, POSITIONAL, HintedSignature
from ..hints.structure import ArrayLeaf, Node, holds_arrays, node_name
from ..introspection import bound_self, require_decorated
from ..placement.structs import TreeBuilder, typed_key

ArrayMaker = Callable[[Any, tuple[int, ...]], Any]
"""Makes an array from a key and the global shape."""


@dataclass(frozen=True, eq=False, slots=True)
class ArrayToDraw:
    """A placeholder for one array that is yet to be drawn.

    Attributes:
      hint: the array's hint.
      make: the user's function that makes the array; None where it is drawn.
    """

    hint: ArrayHint
    make: ArrayMaker | None = None


@dataclass(frozen=True, eq=False, slots=True)
class CallArgument:
    """One argument of a call.

    Attributes:
      subject: its name in messages.
      node: its hint.
      value: its value, with an `ArrayToDraw` for each array that is yet to be drawn.
      is_keyword: whether it is passed by keyword.
    """

    subject: Subject
    node: Node
    value: Any
    is_keyword: bool = False

    @property
    def arrays_to_draw(self) -> list[ArrayToDraw]:
        """The arrays that are yet to be drawn."""
        # None of a value that JAX cannot flatten; the check of the arguments reports it.
        return [leaf for leaf in _jax.tree.leaves(self.value) if isinstance(leaf, ArrayToDraw)]


@dataclass
class _Given:
    """The arguments that the user gives.

    Attributes:
      verb: the function that messages name.
      values: arguments by name, and parts of them by path.
      used: the names and paths that have been looked up.
      problems: what is wrong with them.
    """

    verb: str
    values: Mapping[str, Any]
    used: set[str] = field(default_factory=set[str])
    problems: list[str] = field(default_factory=list[str])

    def has(self, name: str) -> bool:
        self.used.add(name)
        return name in self.values

    def value(self, name: str, node: Node) -> Any:
        """The value of an argument: as it is given, or made from its hint."""
        chosen = choose_members(node)
        if not self.has(name):
            cure = f"pass the argument: {name}=..."
            return TreeBuilder(self.verb, lambda hint, path: self._array(name + path, hint), cure).build(chosen)
        value = self.values[name]
        if callable(value) and isinstance(chosen, ArrayLeaf):
            return ArrayToDraw(chosen.hint, value)
        if callable(value) and holds_arrays(node):
            self.problems.append(
                f"argument '{name}' ({node_name(node)}) is several arrays, so that no function of a key and a shape "
                f"makes it; pass arguments={{'{name}.field': ...}}"
            )
        return value

    def _array(self, path: str, hint: ArrayHint) -> Any:
        if self.has(path) and not callable(self.values[path]):
            return self.values[path]
        return ArrayToDraw(hint, self.values.get(path))


def arguments_of(
    typed: HintedSignature, owner: tuple[Any, ...], verb: str, values: Mapping[str, Any]
) -> list[CallArgument]:
    """The arguments of a call, without those that are left to their defaults.

    Args:
      typed: the function.
      owner: the instance, or the class, of a method.
      verb: the function that messages name.
      values: the arguments that the user gives by name, and parts of arguments by path.

    Raises:
      StructureError: for all arguments that are not given and cannot be made from a hint.
    """
    given, parameters = _Given(verb, values), _parameters(typed, owner)
    found, defaults = list[CallArgument](), list[CallArgument]()
    for parameter, nodes in parameters:
        name, node, is_keyword = parameter.name, nodes[0], parameter.kind not in POSITIONAL
        subject = Subject("argument", name)
        if parameter.kind is parameter.VAR_POSITIONAL:
            made = _variadic(name, nodes, given)
        elif given.has(name) or holds_arrays(node):
            made = [CallArgument(subject, node, given.value(name, node), is_keyword)]
        elif _is_needed(parameter, node):
            given.problems.append(f"{needed_text(name, node)}; pass {name}=...")
            continue
        elif parameter.default is EMPTY:
            made = [CallArgument(subject, node, None, is_keyword)]
        else:
            # Passed only before an argument that is passed by position.
            defaults += [] if is_keyword else [CallArgument(subject, structure.Untyped(), parameter.default)]
            continue
        if made and not made[0].is_keyword:
            found, defaults = found + defaults, []
        found += made
    known = [parameter.name for parameter, _ in parameters]
    given.problems += [unknown_name_text(name, known) for name in values if name not in given.used]
    if given.problems:
        raise StructureError(f"{verb}: {typed.name}: {'; '.join(given.problems)}")
    return found


def _parameters(typed: HintedSignature, owner: tuple[Any, ...]) -> list[tuple[inspect.Parameter, tuple[Node, ...]]]:
    """The parameters that a call fills, each with its hint; ``*args`` has one hint for each of two items."""
    found: list[tuple[inspect.Parameter, tuple[Node, ...]]] = []
    for at, parameter in enumerate(typed.signature.parameters.values()):
        node = typed.parameters.get(parameter.name, structure.Untyped())
        if parameter.kind is parameter.VAR_POSITIONAL:
            found.append((parameter, typed.positional[at:] or (node, node)))
        else:
            found.append((parameter, typed.positional[at : at + 1] or (node,)))
    return [pair for pair in found[len(typed.given) + len(owner) :] if pair[0].kind is not pair[0].VAR_KEYWORD]


def _variadic(name: str, nodes: tuple[Node, ...], given: _Given) -> list[CallArgument]:
    """The arguments of ``*args``: those that are given, or one for each hint."""
    values = given.values[name] if given.has(name) else None
    if values is None and not all(map(holds_arrays, nodes)):
        return []
    if values is not None and len(values) != len(nodes):
        nodes = nodes[:1] * len(values)
    subjects = [Subject("argument", name, f"[{at}]") for at in range(len(nodes))]
    if values is None:
        values = [given.value(str(subject), node) for subject, node in zip(subjects, nodes, strict=True)]
    return list(map(CallArgument, subjects, nodes, values))


def required_arguments(f: Callable[..., Any]) -> dict[str, Node]:
    """The arguments that have no default and cannot be made from their hints, which come with them."""
    owner = bound_self(f)
    parameters = _parameters(require_decorated(f, "inputs").signature.read(owner), owner)
    return {parameter.name: nodes[0] for parameter, nodes in parameters if _is_needed(parameter, nodes[0])}


def _is_needed(parameter: inspect.Parameter, node: Node) -> bool:
    is_none = isinstance(node, structure.Static) and node.hint is type(None)
    may_be_empty = parameter.kind is parameter.VAR_POSITIONAL or parameter.default is not EMPTY
    return not is_none and not may_be_empty and not holds_arrays(node)


def needed_text(name: str, node: Node) -> str:
    """The words of a message about an argument that must be given."""
    return f"argument '{name}' ({node_name(node)}) holds no arrays and has no default"


def unknown_name_text(name: str, known: Sequence[str]) -> str:
    """The words of a message about a keyword that is neither a size nor an argument."""
    return f"neither a dim of its hints nor an argument is called '{name}'{did_you_mean(name, known)}"


def choose_members(node: Node, enclosing: frozenset[int] = frozenset()) -> Node:
    """The hint with every choice made, so that a value can be built from it.

    A union becomes its first member that holds arrays, so that an optional array is present; lists, dicts and
    trees of any length get two items.

    Args:
      node: the hint.
      enclosing: the records that contain it, so that a class that contains itself ends.
    """
    match node:
        case structure.FixedTuple():
            return structure.map_children(node, lambda item: choose_members(item, enclosing))
        case structure.SequenceOf(kind, item):
            one = choose_members(item, enclosing)
            return structure.FixedTuple((one, one), list if issubclass(list, kind) else tuple)
        case structure.MappingOf(_, item) | structure.PyTreeOf(item, _):
            one = choose_members(item, enclosing)
            return structure.Fields(dict, "TypedDict", {"a": one, "b": one}, is_open=False)
        case structure.UnionOf(options, _) if typed_key(options) is None:
            fit = [option for option in options if holds_arrays(option) and id(option) not in enclosing]
            leaves = [option for option in fit if isinstance(option, ArrayLeaf)]
            return choose_members((leaves or fit or options)[0], enclosing)
        case structure.Fields() if id(node) not in enclosing:
            return structure.map_children(node, lambda inner: choose_members(inner, enclosing | {id(node)}))
        case _:
            return node


class Inputs(tuple[Any, ...]):
    """The arguments of one call: ``f(*made)``, ``f(**made)``, or with both kinds ``f(*made.args, **made.kwargs)``.

    As a tuple it holds the positional arguments; ``made["x"]`` is any argument by its name. It is a pytree of all
    arguments.

    Attributes:
      kwargs: the keyword-only arguments.
      names: the names of the positional arguments.
      sizes: the global size of every name in the hints, a tuple of sizes for ``*name``.
      seed: the seed that the arguments were drawn from.
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
        """Make the arguments of a call."""
        made = cls(args)
        made.names, made.kwargs, made.sizes, made.seed = names, dict(kwargs), dict(sizes), seed
        return made

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments."""
        return tuple(self)

    def keys(self) -> Iterator[str]:
        """The names of the arguments."""
        yield from (*self.names, *self.kwargs)

    def __getitem__(self, at: Any) -> Any:
        return self.by_name[at] if isinstance(at, str) else super().__getitem__(at)

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


def _value_text(value: Any) -> str:
    leaves = jax.tree_util.tree_leaves(value)
    if len(leaves) != 1 or leaves[0] is not value:
        return f"{type(value).__name__} of {len(leaves)}"
    return _jax.array.type_text(value) if hasattr(value, "shape") else repr(value)


jax.tree_util.register_pytree_node(
    Inputs,
    lambda made: ((made.args, made.kwargs), (made.names, tuple(made.sizes.items()), made.seed)),
    lambda rest, children: Inputs.of(children[0], rest[0], children[1], dict(rest[1]), rest[2]),
)


class FlatCall:
    """The arguments of a call, with the arrays separated from everything static.

    Attributes:
      arrays: the arrays among the leaves of the arguments.
      names: their names, ``state.w`` or ``xs[0]``.
    """

    def __init__(self, made: Inputs, *kinds: type) -> None:
        """Flatten the arguments of a call.

        Args:
          made: the arguments.
          kinds: the classes that count as arrays.
        """
        found, self._structure = jax.tree_util.tree_flatten_with_path((list(made.args), made.kwargs))
        self._leaves = [leaf for _, leaf in found]
        self._places = [at for at, leaf in enumerate(self._leaves) if isinstance(leaf, kinds)]
        self.arrays = [self._leaves[at] for at in self._places]
        labels = [f"{name}[{at}]" if made.names.count(name) > 1 else name for at, name in enumerate(made.names)]
        self.names: list[str] = []
        for (is_keyword, first, *path), _ in (found[at] for at in self._places):
            argument = first.key if is_keyword.idx else labels[first.idx]
            self.names.append(argument + jax.tree_util.keystr(tuple(path)))

    def run(self, f: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """Call a function with other arrays instead of these."""
        leaves = list(self._leaves)
        for at, array in zip(self._places, arrays, strict=True):
            leaves[at] = array
        args, kwargs = self._structure.unflatten(leaves)
        return f(*args, **kwargs)
