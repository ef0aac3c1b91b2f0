"""Sizes and arguments of the command line, handed to those functions that have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import StructureError
from ..hints.nodes import Node, Static
from ..testing.marking import find_mark
from ..testing.parameters import needed_text
from ..testing.plans import arguments_needed, names_taken, sizes_among
from .functions import Function
from .written import WrongUse

_LITERALS = (bool, int, float, complex, str, list, tuple, dict)


def refuse_unknown(values: Iterable[str], functions: Sequence[Function]) -> None:
    """Refuse a name that no function has.

    Raises:
      WrongUse: with the names that there are.
    """
    known = {name for each in functions for name in names_taken(each.function)}
    unknown = [name for name in values if name.partition(".")[0] not in known]
    if unknown:
        raise WrongUse(f"no function has a dim or an argument '{unknown[0]}'; there are {', '.join(sorted(known))}")


def values_for(function: Function, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a function has, and the arguments that its mark gives it.

    Raises:
      StructureError: for an argument that is not among them, and that nothing else gives.
    """
    known = names_taken(function.function)
    found = _marked(function, known) | {name: v for name, v in values.items() if name.partition(".")[0] in known}
    missing = [(name, node) for name, node in arguments_needed(function.function).items() if name not in found]
    if missing:
        told = "; ".join(f"{needed_text(name, node)}; {_cure(name, node)}" for name, node in missing)
        raise StructureError(f"{function.name}: {told}")
    return found


def _marked(function: Function, known: set[str]) -> dict[str, Any]:
    """The arguments that a function's mark gives; what it says of sizes is for its own meshes."""
    mark = find_mark(function.function)
    if mark is None:
        return {}
    by_name = {name: value for name, value in mark.options.items() if name in known}
    sizes = sizes_among(function.function, by_name)
    return {name: value for name, value in by_name.items() if name not in sizes} | (mark.options.get("arguments") or {})


def _cure(name: str, node: Node) -> str:
    """How to give an argument that the command line can write, or that it cannot."""
    is_literal = isinstance(node, Static) and node.hint in _LITERALS
    return f"pass --arg {name}=..." if is_literal else f"give it by @mesh_invariant({name}=...)"


def options_for(function: Function) -> dict[str, Any]:
    """What a function's mark asks besides sizes and arguments."""
    known, mark = names_taken(function.function), find_mark(function.function)
    return {} if mark is None else {name: value for name, value in mark.options.items() if name not in known}
