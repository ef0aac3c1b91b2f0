"""The parameters of a function as arguments: what is drawn for each, what was given, what is left to its default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import jax

from ..errors import StructureError
from ..hints.array import ArrayHint
from ..hints.binding import EMPTY, POSITIONAL, Typed
from ..hints.nodes import Anything, Leaf, Node, Static, holds_arrays, node_name
from ..notation.sizes import Subject
from ..placement.structure import Maker, make
from .definite import definite


@dataclass(frozen=True, eq=False, slots=True)
class Undrawn:
    """The place of one array that is still to be made.

    Attributes:
      hint: what it is.
      make: makes it of a key and the global shape; None where it is drawn.
    """

    hint: ArrayHint
    make: Callable[[Any, tuple[int, ...]], Any] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Argument:
    """One argument of a call.

    Attributes:
      subject: what messages call it.
      node: what its hint says.
      value: its value, with an `Undrawn` in the place of each array that is still to be made.
      is_keyword: whether it is passed by keyword.
    """

    subject: Subject
    node: Node
    value: Any
    is_keyword: bool = False

    @property
    def undrawn(self) -> list[Undrawn]:
        """The arrays that are still to be made."""
        try:
            leaves = jax.tree_util.tree_leaves(self.value)
        except Exception:  # of what JAX cannot take apart nothing is drawn; the check of the arguments tells
            return []
        return [leaf for leaf in leaves if isinstance(leaf, Undrawn)]


@dataclass
class Given:
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


def arguments_of(typed: Typed, owner: tuple[Any, ...], given: Given) -> list[Argument]:
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
    given.problems += [_unknown(name, known) for name in given.values if name not in given.used]
    if given.problems:
        raise StructureError(f"{given.verb}: {typed.name}: {'; '.join(given.problems)}")
    return found


def _parameters(typed: Typed, owner: tuple[Any, ...]) -> list[tuple[int, inspect.Parameter]]:
    """The parameters that a call fills, each with its number."""
    return list(enumerate(typed.signature.parameters.values()))[len(typed.given) + len(owner) :]


def needed_of(typed: Typed, owner: tuple[Any, ...]) -> dict[str, Node]:
    """The arguments that must be given, each with what its hint says: no hint makes them, and they have no default."""
    found = ((parameter, _node(parameter, typed, at)) for at, parameter in _parameters(typed, owner))
    return {parameter.name: node for parameter, node in found if _is_needed(parameter, node)}


def _defaults(parameter: inspect.Parameter) -> list[Argument]:
    """A default that stands before an argument which is passed by position."""
    if parameter.kind not in POSITIONAL or parameter.default is EMPTY:
        return []
    return [Argument(Subject("argument", parameter.name), Anything(), parameter.default)]


def _unknown(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    did = f" (did you mean '{close[0]}'?)" if close else ""
    return f"neither a dim of its hints nor an argument is called '{name}'{did}"


def _arguments(parameter: inspect.Parameter, typed: Typed, at: int, given: Given) -> Iterator[Argument]:
    name, kind = parameter.name, parameter.kind
    if kind is kind.VAR_KEYWORD:
        return
    if kind is kind.VAR_POSITIONAL:
        yield from _variadic(parameter, typed.positional[at:] or (typed.parameters.get(name, Anything()),) * 2, given)
        return
    node = _node(parameter, typed, at)
    if given.has(name) or holds_arrays(node):
        yield Argument(Subject("argument", name), node, _value(name, node, given), kind not in POSITIONAL)
    elif _is_needed(parameter, node):
        given.problems.append(f"{needed_text(name, node)}; pass {name}=...")
    elif parameter.default is EMPTY:
        yield Argument(Subject("argument", name), node, None, kind not in POSITIONAL)


def _node(parameter: inspect.Parameter, typed: Typed, at: int) -> Node:
    known = typed.parameters.get(parameter.name, Anything())
    return typed.positional[at] if at < len(typed.positional) else known


def _is_needed(parameter: inspect.Parameter, node: Node) -> bool:
    is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    is_none = isinstance(node, Static) and node.hint is type(None)
    return not is_variadic and not is_none and parameter.default is EMPTY and not holds_arrays(node)


def needed_text(name: str, node: Node) -> str:
    """What a message says of an argument that must be given."""
    return f"argument '{name}' ({node_name(node)}) holds no arrays and has no default"


def _variadic(parameter: inspect.Parameter, nodes: tuple[Node, ...], given: Given) -> Iterator[Argument]:
    name = parameter.name
    values = given.values[name] if given.has(name) else None
    if values is None and not all(map(holds_arrays, nodes)):
        return
    nodes = nodes if values is None or len(nodes) == len(values) else (nodes[0],) * len(values)
    for at, node in enumerate(nodes):
        subject = Subject("argument", name, f"[{at}]")
        value = _value(str(subject), node, given) if values is None else values[at]
        yield Argument(subject, node, value)


def _value(name: str, node: Node, given: Given) -> Any:
    """An argument's value: what was given, or one made of its hint."""
    sure = definite(node)
    if given.has(name):
        value = given.values[name]
        is_maker = callable(value) and holds_arrays(node)
        if not is_maker or isinstance(sure, Leaf):
            return Undrawn(sure.hint, value) if is_maker and isinstance(sure, Leaf) else value
        given.problems.append(
            f"argument '{name}' ({node_name(node)}) is several arrays, so that no function of a key and a shape "
            f"makes it; pass arguments={{'{name}.field': ...}}"
        )
        return None
    return make(sure, Maker(given.verb, lambda hint, path: _part(name + path, hint, given), _same, None, _cure(name)))


def _part(path: str, hint: ArrayHint, given: Given) -> Any:
    if not given.has(path):
        return Undrawn(hint)
    value = given.values[path]
    return Undrawn(hint, value) if callable(value) else value


def _same(default: Any) -> Any:
    return default


def _cure(name: str) -> str:
    return f"pass the argument: {name}=..."


def statics(arguments: list[Argument], typed: Typed, owner: tuple[Any, ...]) -> dict[str, Any]:
    """The values that ``{argument.path}`` in a hint may speak of."""
    names = list(typed.signature.parameters)
    found = {p.name: p.default for p in typed.signature.parameters.values() if p.default is not EMPTY}
    found.update(zip(names, (*typed.given, *owner), strict=False))
    found.update((each.subject.name, each.value) for each in arguments if not each.subject.path)
    return found
