"""Bind a call's arguments to a function whose hints were read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import StructureError
from ..notation.sizes import Subject
from .nodes import Anything, Node

EMPTY = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Bound:
    """A call's arguments by name, defaults included; which of them were given, and how."""

    all: inspect.BoundArguments
    given: frozenset[str]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        return self.all.arguments

    def replaced(self, parts: Iterable[tuple[str, Subject, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the function is called with: some arguments replaced, and defaults left to the function.

        Args:
          parts: of each its parameter, its subject, and its new value.
        """
        changed: dict[str, Any] = {}
        if not (parts := list(parts)):
            return self.args, self.kwargs
        for name, subject, value in parts:
            kind = self.all.signature.parameters[name].kind
            whole = changed.get(name, self.arguments[name])
            if kind is inspect.Parameter.VAR_POSITIONAL:
                index = int(subject.path[1:-1])
                changed[name] = (*whole[:index], value, *whole[index + 1 :])
            elif kind is inspect.Parameter.VAR_KEYWORD:
                changed[name] = {**whole, subject.name: value}
            else:
                changed[name] = value
        kept = {name: value for name, value in self.arguments.items() if name in self.given or name in changed}
        call = inspect.BoundArguments(self.all.signature, {**kept, **changed})  # type: ignore[arg-type]
        return call.args, call.kwargs


@dataclass(frozen=True)
class Typed:
    """A function with its hints read.

    Attributes:
      function: the function as it is called.
      name: what messages call it.
      signature: how its arguments are bound.
      parameters: by name; those of ``in_types`` by position for a function without names.
      positional: hints by position, from ``in_types``.
      result: the hint of what it returns; None where it has none.
      given: arguments that a partial has bound by position.
    """

    function: Callable[..., Any]
    name: str
    signature: inspect.Signature
    parameters: Mapping[str, Node]
    positional: tuple[Node, ...]
    result: Node | None
    given: tuple[Any, ...] = ()

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """The call's arguments by name, defaults included.

        Raises:
          StructureError: for a missing or an extra argument.
        """
        args = (*self.given, *args)
        if (named := self._named(args, kwargs)) is not None:
            return Bound(inspect.BoundArguments(self.signature, named), frozenset(named), args, kwargs)  # type: ignore[arg-type]
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._wrong_call(args, kwargs, str(error)) from None
        if self.positional and self._is_variadic and len(self.positional) != len(args):
            raise self._wrong_call(args, kwargs, "")
        given = frozenset(bound.arguments)
        bound.apply_defaults()
        return Bound(bound, given, args, kwargs)

    @cached_property
    def _is_variadic(self) -> bool:
        return any(p.kind is p.VAR_POSITIONAL for p in self.signature.parameters.values())

    @cached_property
    def _plain(self) -> dict[str, tuple[Subject, Node]] | None:
        """What each parameter is called, and its node, if each takes one argument by position or name."""
        parameters = self.signature.parameters.values()
        if self.positional or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
            return None
        return {p.name: (Subject("argument", p.name), self.parameters.get(p.name, Anything())) for p in parameters}

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments of a call that is as plain as can be, which ``inspect`` takes long for; else None."""
        plain = self._plain
        if plain is None or len(args) + len(kwargs) != len(plain):
            return None
        named = dict(zip(plain, args, strict=False))
        for name in list(plain)[len(args) :]:
            if name not in kwargs:
                return None
            named[name] = kwargs[name]
        return named

    def _wrong_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> StructureError:
        """Say which argument is missing or too much; Python's own reason otherwise."""
        problem = _say_wrong_call(self.signature, args, kwargs) or reason
        problem = problem or f"got {len(args)} positional arguments, but in_types has {len(self.positional)}"
        wants = f"{self.name}{self.signature_text()}"
        return StructureError(f"{self.name}: {problem}\n\n    {wants}")

    def signature_text(self) -> str:
        """``(x, w, *, scale)``"""
        plain = [p.replace(annotation=EMPTY, default=EMPTY) for p in self.signature.parameters.values()]
        return str(inspect.Signature(plain))

    def arguments(self, bound: Bound) -> list[tuple[str, Subject, Node, Any]]:
        """Each argument that holds a hint: its parameter, its subject, its node, its value."""
        if (plain := self._plain) is not None:
            return [(name, *plain[name], value) for name, value in bound.arguments.items()]
        found: list[tuple[str, Subject, Node, Any]] = []
        for at, (name, value) in enumerate(bound.arguments.items()):
            kind = self.signature.parameters[name].kind
            node = self.parameters.get(name, Anything())
            if kind is inspect.Parameter.VAR_POSITIONAL:
                nodes = self.positional[at:] or (node,) * len(value)
                pairs = zip(nodes, value, strict=True)
                found += [(name, Subject("argument", name, f"[{i}]"), n, v) for i, (n, v) in enumerate(pairs)]
            elif kind is inspect.Parameter.VAR_KEYWORD:
                found += [(name, Subject("argument", key), node, v) for key, v in value.items()]
            else:
                node = self.positional[at] if at < len(self.positional) else node
                found.append((name, Subject("argument", name), node, value))
        return found


def _say_wrong_call(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    parameters = signature.parameters.values()
    kinds = {p.kind for p in parameters}
    positional = [p for p in parameters if p.kind in POSITIONAL]
    taken = {p.name for p in positional[: len(args)]} | set(kwargs)
    if inspect.Parameter.VAR_POSITIONAL not in kinds and len(args) > len(positional):
        return f"got {len(args)} positional arguments, but takes {len(positional)}"
    if twice := [p.name for p in positional[: len(args)] if p.name in kwargs]:
        return f"got argument '{twice[0]}' twice"
    unknown = [name for name in kwargs if name not in signature.parameters]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        return f"got argument '{unknown[0]}', which it does not have"
    missing = [p.name for p in parameters if p.default is EMPTY and p.kind not in _VARIADIC and p.name not in taken]
    if missing:
        return "argument " + ", ".join(f"'{name}'" for name in missing) + " is missing"
    return None
