"""Sizes and arguments of the command line, handed to those functions that have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..testing.marking import find_mark
from ..testing.plans import names_taken
from .functions import Function
from .written import WrongUse


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
    """Those that a function has, and the arguments that its mark gives it."""
    known, mark = names_taken(function.function), find_mark(function.function)
    own = {name: value for name, value in values.items() if name.partition(".")[0] in known}
    marked = {} if mark is None else {name: value for name, value in mark.options.items() if name in known}
    # What a mark says of sizes is for its own meshes.
    return {**{name: value for name, value in marked.items() if not isinstance(value, (int, tuple))}, **own}


def options_for(function: Function) -> dict[str, Any]:
    """What a function's mark asks besides sizes and arguments."""
    known, mark = names_taken(function.function), find_mark(function.function)
    return {} if mark is None else {name: value for name, value in mark.options.items() if name not in known}
