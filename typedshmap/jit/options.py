"""The options of ``jax.jit``, with the parameters that they choose read by name or number."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from .. import _jax
from ..errors import StructureError
from ..errors.phrases import shown
from ..hints.binding import POSITIONAL
from ..hints.signatures import name_of


@dataclass(frozen=True, slots=True)
class Chosen:
    """The parameters that an option names.

    Attributes:
      names: by name.
      numbers: by number, for a function that takes ``*args``, where only a call tells which is which.
      positional: the names of the function's positional parameters before ``*args``.
      skipped: how many items of ``*args`` a partial has given.
    """

    names: frozenset[str] = frozenset()
    numbers: tuple[int, ...] = ()
    positional: tuple[str, ...] = ()
    skipped: int = 0

    def __bool__(self) -> bool:
        return bool(self.names or self.numbers)

    def has(self, name: str, place: int | None, count: int) -> bool:
        """Whether an argument is chosen.

        Args:
          name: its parameter, or its key in ``**kwargs``.
          place: its place among ``*args``; None for any other.
          count: how many ``*args`` there are.
        """
        if name in self.names:
            return True
        if not self.numbers:
            return False
        total = len(self.positional) + count - self.skipped
        if place is not None:
            at = len(self.positional) + place - self.skipped
        elif name in self.positional:
            at = self.positional.index(name)
        else:
            return False
        return any((number + total if number < 0 else number) == at for number in self.numbers)


@dataclass(frozen=True, slots=True)
class Options:
    """What ``jax.jit`` is asked for, but for the shardings.

    Attributes:
      static: the parameters named by ``static_argnums`` and ``static_argnames``.
      donated: those named by ``donate_argnums`` and ``donate_argnames``.
      others: the options that are handed on.
    """

    static: Chosen
    donated: Chosen
    others: Mapping[str, Any]


def read_options(function: Callable[..., Any], options: Mapping[str, Any]) -> Options:
    """Read the options of a ``typed_jit``.

    Raises:
      StructureError: for a parameter that there is not, or shardings, which the hints say.
      TypeError, ValueError: of ``jax.jit``, for an option that it does not take.
    """
    name, others = name_of(function), dict(options)
    for given in ("in_shardings", "out_shardings"):
        if given in others:
            raise StructureError(f"{name}: {given}= is what the hints say, so that typed_jit does not take it")
    chosen = {
        kind: _read_chosen(function, kind, others.pop(f"{kind}_argnums", None), others.pop(f"{kind}_argnames", None))
        for kind in ("static", "donate")
    }
    if both := sorted(chosen["static"].names & chosen["donate"].names):
        raise StructureError(f"{name}: parameter '{both[0]}' is both static and donated, but no static one has buffers")
    # With in_shardings, as every call has it: what JAX has against an option, it says when decorating.
    jax.jit(_nothing, in_shardings=(), **others)
    return Options(chosen["static"], chosen["donate"], others)


def _nothing() -> None:
    """Stand for a function."""


def _read_chosen(function: Callable[..., Any], kind: str, numbers: Any, names: Any) -> Chosen:
    given, owner = f"{kind}_argnums", name_of(function)
    found_numbers, found_names = _numbers(owner, given, numbers), _names(owner, f"{kind}_argnames", names)
    if not found_numbers and not found_names:
        return Chosen()
    parameters = inspect.signature(function).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    positional = tuple(name for name, parameter in parameters.items() if parameter.kind in POSITIONAL)
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        _refuse_unknown(owner, f"{kind}_argnames", found_names, parameters)
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return Chosen(frozenset(found_names), found_numbers, positional, _skipped(function))
    for number in found_numbers:
        if not -len(positional) <= number < len(positional):
            raise StructureError(
                f"{owner}: {given}= has {shown(number)}, but {owner} takes {len(positional)} by position"
            )
    return Chosen(frozenset(found_names) | {positional[number] for number in found_numbers})


def _refuse_unknown(owner: str, option: str, names: Iterable[str], parameters: Mapping[str, inspect.Parameter]) -> None:
    known = [name for name, each in parameters.items() if each.kind is not inspect.Parameter.VAR_POSITIONAL]
    for name in names:
        if name not in known:
            listed = ", ".join(map(repr, known)) or "none"
            raise StructureError(f"{owner}: {option}= names '{name}', which is none of its parameters ({listed})")


def _skipped(function: Callable[..., Any]) -> int:
    """How many items of ``*args`` a partial has given already."""
    if not isinstance(function, functools.partial):
        return 0
    inner = inspect.signature(functools.partial(function.func, **function.keywords)).parameters.values()
    return max(0, len(function.args) - sum(parameter.kind in POSITIONAL for parameter in inner))


def _numbers(owner: str, option: str, numbers: Any) -> tuple[int, ...]:
    if numbers is None:
        return ()
    items: Any = (numbers,) if hasattr(numbers, "__index__") else numbers
    try:
        return tuple(map(operator.index, items))
    except TypeError:
        raise StructureError(f"{owner}: {option}= wants a number, or several; got {shown(numbers)}") from None


def _names(owner: str, option: str, names: Any) -> tuple[str, ...]:
    if names is None:
        return ()
    try:
        found: tuple[Any, ...] = (names,) if isinstance(names, (str, *_jax.ARRAYS)) else tuple(names)
    except TypeError:
        found = (names,)
    if not all(isinstance(name, str) for name in found):
        raise StructureError(f"{owner}: {option}= wants a parameter's name, or several; got {shown(names)}")
    return found
