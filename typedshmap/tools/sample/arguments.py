"""The arguments of a call: each is drawn from its hint, given by the user, or left to its default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ... import _jax
from ...errors import StructureError
from ...errors.phrases import did_you_mean, value_text
from ...hints import structure
from ...hints.array_hint import ArrayHint
from ...hints.signature import EMPTY, TAKEN_BY_SPECS, BoundCall, HintedSignature
from ...hints.structure import ArrayLeaf, LikeOf, Node, declares_arrays, node_name
from ...introspection import bound_self, require_decorated
from ...placement.structs import TreeBuilder, names_of, typed_key

ArrayMaker = Callable[[Any, tuple[int, ...]], Any]
"""Makes an array from a key and the global shape."""


@dataclass(frozen=True, eq=False, slots=True)
class ArrayToDraw:
    """A placeholder for one array that is drawn, or that the user's function makes."""

    hint: ArrayHint
    make: ArrayMaker | None = None


@dataclass(frozen=True, eq=False, slots=True)
class TreeToMake:
    """A placeholder for a tree that the user's function makes from parameters, such as an optimizer's ``init``."""

    node: LikeOf
    make: Callable[[Any], Any]


def makes_tree(value: Any, node: Node) -> bool:
    """Whether the value for a tree like parameters is a function that makes it, and not, say, a module."""
    if not callable(value) or not isinstance(choose_member(node), LikeOf):
        return False
    return any(leaf is value for leaf in _jax.tree.leaves(value))


def is_to_draw(value: Any) -> bool:
    """Whether a part of an argument must still be drawn or made."""
    return any(isinstance(leaf, ArrayToDraw | TreeToMake) for leaf in _jax.tree.leaves(value))


def arrays_to_draw(value: Any) -> list[ArrayToDraw]:
    """The arrays in an argument that must still be drawn."""
    # Empty for a value that JAX cannot flatten; the check of the arguments reports it.
    return [leaf for leaf in _jax.tree.leaves(value) if isinstance(leaf, ArrayToDraw)]


def hints_of(f: Any, verb: str = "inputs", args: tuple[Any, ...] = ()) -> tuple[HintedSignature, tuple[Any, ...]]:
    """The hints of a decorated function, and the instance or the class of a method; ``args`` belong to a call."""
    owner = bound_self(f)
    return require_decorated(f, verb).signature.read((*owner, *args)), owner


def bind_arguments(typed: HintedSignature, owner: tuple[Any, ...], verb: str, given: Mapping[str, Any]) -> BoundCall:
    """Bind the arguments of a call, without those that are left to their defaults.

    Args:
      typed: the function.
      owner: the instance, or the class, of a method.
      verb: the function that messages name.
      given: arguments by name, and parts of arguments by path; for each other array there is an `ArrayToDraw`.
    """
    used, problems = set[str](), list[str]()

    def value_of(path: str, node: Node) -> Any:
        """The given value at a path, or a placeholder."""
        used.add(path)
        chosen = choose_member(node)
        if path not in given:
            if isinstance(chosen, ArrayLeaf):
                return ArrayToDraw(chosen.hint)
            if isinstance(chosen, LikeOf):
                problems.append(f"{needed_text(path, node)}; pass arguments={{'{path}': optimizer.init}}")
                return None
            return TreeBuilder(
                verb,
                lambda hint, part: value_of(path + part, ArrayLeaf(hint)),
                f"pass the argument: {path}=...",
                choose=choose_member,
                like=lambda tree, part: value_of(path + part, tree),
            ).build(node)
        value = given[path]
        if callable(value) and isinstance(chosen, ArrayLeaf):
            return ArrayToDraw(chosen.hint, value)
        if isinstance(chosen, LikeOf) and makes_tree(value, chosen):
            return TreeToMake(chosen, value)
        if callable(value) and declares_arrays(node) and not _jax.tree.is_registered(type(value)):
            problems.append(
                f"argument '{path}' ({node_name(node)}) is several arrays, so that no function of a key and a shape "
                f"makes it; pass arguments={{'{path}.field': ...}}"
            )
        return value

    def items_of(name: str, nodes: Sequence[Node]) -> tuple[Any, ...]:
        """The arguments of ``*args``: the given arguments, or one for each hint."""
        used.add(name)
        if given.get(name) is None:
            made = nodes if all(map(declares_arrays, nodes)) else ()
            return tuple(value_of(f"{name}[{at}]", node) for at, node in enumerate(made))
        try:
            return tuple(given[name])
        except TypeError:
            got = value_text(given[name])
            problems.append(f"argument '*{name}' expects a list or a tuple of arguments, got {got}")
            return ()

    parameters, required = _parameters(typed, owner), required_arguments(typed, owner)
    values = dict[str, Any]()
    for parameter, nodes in parameters:
        name, node = parameter.name, nodes[0]
        if parameter.kind is parameter.VAR_POSITIONAL:
            values |= {name: items} if (items := items_of(name, nodes)) else {}
        elif name in required and name not in given:
            problems.append(f"{needed_text(name, node)}; pass {name}={example_text(node)}")
        elif name in given or declares_arrays(node):
            values[name] = value_of(name, node)
        elif parameter.default is EMPTY:
            values[name] = None
    known = [parameter.name for parameter, _ in parameters]
    problems += [unknown_name_text(name, known) for name in given if name not in used]
    if problems:
        raise StructureError(f"{verb}: {typed.name}: {'; '.join(problems)}")
    positional = [parameter for parameter, _ in parameters if parameter.kind in TAKEN_BY_SPECS]
    while positional and positional[-1].name not in values:
        positional.pop()
    args = list(owner)
    for parameter in positional:  # a default is passed before an argument that is passed
        value = values.pop(parameter.name, parameter.default)
        args += value if parameter.kind is parameter.VAR_POSITIONAL else [value]
    return typed.bind(tuple(args), values)


def complete_call(
    typed: HintedSignature, owner: tuple[Any, ...], args: tuple[Any, ...], given: Mapping[str, Any]
) -> BoundCall | None:
    """The given call; None if it lacks arguments."""
    with suppress(StructureError):
        call = typed.bind((*owner, *args), dict(given))
        is_made = any(makes_tree(value, node) for _, _, node, value in typed.arguments(call))
        arrays = [name for name, node in typed.parameters.items() if declares_arrays(node)]
        if not is_made and (args or all(name in call.given for name in arrays)):
            return call
    return None


def arguments_by_position(typed: HintedSignature, owner: tuple[Any, ...], args: tuple[Any, ...]) -> dict[str, Any]:
    """The positional arguments of a call by name; those of ``*args`` as a tuple."""
    before = (*typed.given, *owner)
    try:
        bound = typed.signature.bind_partial(*before, *args)
    except TypeError:
        typed.bind((*owner, *args), {})
        raise
    return dict([*bound.arguments.items()][len(before) :])


def _parameters(typed: HintedSignature, owner: tuple[Any, ...]) -> list[tuple[inspect.Parameter, tuple[Node, ...]]]:
    """The parameters that a call fills, each with its hint and the following ones; ``*args`` without hints has two."""
    parameters: list[tuple[inspect.Parameter, tuple[Node, ...]]] = []
    for at, parameter in enumerate(typed.signature.parameters.values()):
        by_position = typed.positional[at:] if parameter.kind is not parameter.KEYWORD_ONLY else ()
        parameters.append((parameter, by_position or (typed.parameters.get(parameter.name, structure.Untyped()),) * 2))
    return [pair for pair in parameters[len(typed.given) + len(owner) :] if pair[0].kind is not pair[0].VAR_KEYWORD]


def required_arguments(typed: HintedSignature, owner: tuple[Any, ...]) -> dict[str, Node]:
    """The arguments that have no default and cannot be made from their hints, with their hints."""
    return {
        parameter.name: node
        for parameter, (node, *_) in _parameters(typed, owner)
        if parameter.default is EMPTY and parameter.kind is not parameter.VAR_POSITIONAL
        if not declares_arrays(node) or isinstance(choose_member(node), LikeOf) or _why_not_built(parameter.name, node)
        if not (isinstance(node, structure.Static) and node.hint is type(None))
    }


def needed_text(name: str, node: Node) -> str:
    """The words of a message about an argument that must be given."""
    if isinstance(choose_member(node), LikeOf):
        reason = "has a structure that no hint describes: it needs a value, or a function of the parameters"
        return f"argument '{name}' ({node_name(node)}) {reason}"
    if problem := _why_not_built(name, node):
        return f"argument '{name}' ({node_name(node)}) cannot be made from its hints: {problem}"
    return f"argument '{name}' ({node_name(node)}) holds no arrays and has no default"


def _why_not_built(name: str, node: Node) -> str:
    """Why a tree with arrays cannot be built, such as a static field without a default; empty if it can."""
    if not declares_arrays(node):
        return ""
    verb = "inputs"
    builder = TreeBuilder(verb, lambda hint, path: None, "", choose=choose_member, like=lambda tree, path: None)
    try:
        builder.build(node, name)
    except StructureError as error:
        return "" if error.failures else str(error).partition("\n")[0].removeprefix(f"{verb}: ")
    except Exception:  # from the user's class; raised again when the argument is made
        return ""
    return ""


def example_text(node: Node) -> str:
    """An example of a value for an argument."""
    return "optimizer.init" if isinstance(choose_member(node), LikeOf) else "..."


_LITERALS = (bool, int, float, complex, str, list, tuple, dict)


def is_literal(node: Node) -> bool:
    """Whether Python has literals for an argument, so that it may be given as text."""
    return isinstance(node, structure.Static) and node.hint in _LITERALS


def unknown_name_text(name: str, known: Sequence[str]) -> str:
    """The words of a message about a keyword that is neither a size nor an argument."""
    return f"neither a dim of its hints nor an argument is called '{name}'{did_you_mean(name, known)}"


def taken_names(typed: HintedSignature) -> set[str]:
    """The names of the dims in a function's hints, and of its parameters."""
    return {*names_of([*typed.argument_hints, *typed.result_hints]), *typed.signature.parameters}


def sizes_among(typed: HintedSignature, given: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes among keywords: integers by the names of dims, unless an argument without arrays has that name."""
    dims = names_of(typed.argument_hints)

    def is_size(name: str, value: Any) -> bool:
        is_number = isinstance(value, (int, np.integer, tuple)) and not isinstance(value, bool)
        if name not in typed.signature.parameters:
            return is_number or name in dims
        return is_number and name in dims and declares_arrays(typed.parameters.get(name, structure.Untyped()))

    return {name: value for name, value in given.items() if is_size(name, value)}


_MOST_LEVELS = 4


def _levels(node: Node) -> int:
    """The depth of nested containers of any length; each level doubles the arrays."""
    match node:
        case structure.SequenceOf(_, item) | structure.MappingOf(_, item) | structure.PyTreeOf(item, _):
            return 1 + _levels(item)
        case structure.FixedTuple(items) | structure.UnionOf(items, _):
            return max(map(_levels, items), default=0)
        case _:
            return 0


def choose_member(node: Node, inside: frozenset[int] = frozenset()) -> Node:
    """The node from which a value can be built, if the hint leaves a choice.

    A union becomes its first member that holds arrays, so that an optional array is present; lists, dicts and trees of
    any length get two items, or one item if they are deeply nested. A class that contains itself ends.
    """
    match node:
        case structure.SequenceOf(kind, item):
            items = (item,) * (2 if _levels(item) < _MOST_LEVELS else 1)
            return structure.FixedTuple(items, list if issubclass(list, kind) else tuple)
        case structure.PyTreeOf(item, (_, *names)) if names and names != ["..."]:  # trees inside a tree
            return choose_member(structure.MappingOf(dict, structure.PyTreeOf(item, tuple(names))), inside)
        case structure.MappingOf(_, item) | structure.PyTreeOf(item, _):
            fields = {"a": item, "b": item} if _levels(item) < _MOST_LEVELS else {"a": item}
            return structure.Fields(dict, "TypedDict", fields, is_open=False)
        case structure.UnionOf(options, _) if typed_key(options) is None:
            finite = [option for option in options if id(option) not in inside] or options
            fit = [option for option in finite if declares_arrays(option)]
            leaves = [option for option in fit if isinstance(option, ArrayLeaf)]
            return choose_member((leaves or fit or finite)[0], inside)
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
      seed: the seed of the drawn arguments.
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
        """The arguments by their names; those of ``*args`` as a tuple."""
        by_name = dict(zip(self.names, self, strict=False))
        for name in {name for name in self.names if self.names.count(name) > 1}:
            by_name[name] = tuple(value for argument, value in zip(self.names, self, strict=False) if argument == name)
        return {**by_name, **self.kwargs}

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


@dataclass(frozen=True, eq=False)
class CallForm:
    """The arguments of a call without the values of its arrays, which determine the traced program."""

    structure: Any
    types: tuple[Any, ...]  # and shardings
    statics: tuple[Any, ...]

    def is_like(self, other: CallForm) -> bool:
        """Whether another call is traced to the same program: numbers and texts are equal, other objects identical."""
        with suppress(Exception):  # the contents of structures may not be comparable
            is_like = (self.structure, self.types) == (other.structure, other.types)
            return is_like and all(map(_is_same, self.statics, other.statics))
        return False


def _is_same(a: Any, b: Any) -> bool:
    is_written = type(a) is type(b) and type(a) in (bool, int, float, complex, str, bytes)
    return a is b or (is_written and repr(a) == repr(b))  # by their texts, since 0.0 and -0.0 are equal


class FlatCall:
    """The arguments of a call, with the arrays (of some classes), and their names, separated from everything static."""

    def __init__(self, made: Inputs, *kinds: type) -> None:
        leaves, self._structure = jax.tree_util.tree_flatten_with_path((list(made.args), made.kwargs))
        self._leaves = [leaf for _, leaf in leaves]
        self._places = [at for at, leaf in enumerate(self._leaves) if isinstance(leaf, kinds)]
        self.arrays = [self._leaves[at] for at in self._places]
        names = made.names
        labels = [f"{n}[{at - names.index(n)}]" if names.count(n) > 1 else n for at, n in enumerate(names)]
        self.names: list[str] = []
        for (is_keyword, first, *path), _ in (leaves[at] for at in self._places):
            argument = first.key if is_keyword.idx else labels[first.idx]
            self.names.append(argument + jax.tree_util.keystr(tuple(path)))

    @property
    def form(self) -> CallForm:
        """The arguments without the values of the arrays."""
        places = set(self._places)
        statics = [leaf for at, leaf in enumerate(self._leaves) if at not in places]
        return CallForm(self._structure, tuple((jax.typeof(x), x.sharding) for x in self.arrays), tuple(statics))

    def run(self, f: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """Call a function with other arrays instead of these."""
        leaves = list(self._leaves)
        for at, array in zip(self._places, arrays, strict=True):
            leaves[at] = array
        args, kwargs = self._structure.unflatten(leaves)
        return f(*args, **kwargs)
