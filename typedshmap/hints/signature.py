"""The hints of a function's signature, and the arguments of a call bound to them."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import AnnotationSyntaxError, StructureError
from ..errors.phrases import value_text
from ..notation.match import Subject
from .forward_refs import (
    Undefined,
    closure_variables,
    enclosing_locals,
    has_string,
    names_in_annotations,
    resolved_hints,
    undefined_name,
    unwrap_annotations,
)
from .structure import NameScope, Node, Untyped, all_nodes, parse_given_hint, parse_hint

EMPTY = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A call's arguments by name, defaults included, and the arguments as they were given."""

    bound_arguments: inspect.BoundArguments
    given: frozenset[str]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        return self.bound_arguments.arguments

    def with_arguments(self, changes: Iterable[tuple[str, Subject, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call the function with: some replaced, and defaults left to the function.

        Args:
          changes: the parameter, the subject and the new value of each.
        """
        changed: dict[str, Any] = {}
        if not (changes := list(changes)):
            return self.args, self.kwargs
        for name, subject, value in changes:
            kind = self.bound_arguments.signature.parameters[name].kind
            new = changed.get(name, self.arguments[name])
            if kind is inspect.Parameter.VAR_POSITIONAL:
                index = int(subject.path[1:-1])
                changed[name] = (*new[:index], value, *new[index + 1 :])
            elif kind is inspect.Parameter.VAR_KEYWORD:
                changed[name] = {**new, subject.name: value}
            else:
                changed[name] = value
        kept = {name: value for name, value in self.arguments.items() if name in self.given or name in changed}
        call = inspect.BoundArguments(self.bound_arguments.signature, {**kept, **changed})  # type: ignore[arg-type]
        return call.args, call.kwargs


@dataclass(frozen=True)
class HintedSignature:
    """A function with its hints read.

    Attributes:
      function: the function as it is called.
      name: its name in messages.
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

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall:
        """The call's arguments by name, defaults included.

        Raises:
          StructureError: for a missing or an extra argument.
        """
        args = (*self.given, *args)
        if (named := self._bind_plain(args, kwargs)) is not None:
            return BoundCall(inspect.BoundArguments(self.signature, named), frozenset(named), args, kwargs)  # type: ignore[arg-type]
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._wrong_call_error(args, kwargs, str(error)) from None
        if self.positional and self._is_variadic and len(self.positional) != len(args):
            raise self._wrong_call_error(args, kwargs, "")
        given = frozenset(bound.arguments)
        bound.apply_defaults()
        return BoundCall(bound, given, args, kwargs)

    @cached_property
    def _is_variadic(self) -> bool:
        return any(p.kind is p.VAR_POSITIONAL for p in self.signature.parameters.values())

    @cached_property
    def _plain_parameters(self) -> dict[str, tuple[Subject, Node]] | None:
        """The subject and the node of each parameter, if each takes one argument by position or name."""
        parameters = self.signature.parameters.values()
        if self.positional or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
            return None
        return {p.name: (Subject("argument", p.name), self.parameters.get(p.name, Untyped())) for p in parameters}

    def _bind_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments of a call that gives each parameter once, for which ``inspect`` is slow; else None."""
        plain = self._plain_parameters
        if plain is None or len(args) + len(kwargs) != len(plain):
            return None
        named = dict(zip(plain, args, strict=False))
        for name in list(plain)[len(args) :]:
            if name not in kwargs:
                return None
            named[name] = kwargs[name]
        return named

    def _wrong_call_error(self, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> StructureError:
        """Name the argument that is missing or too many; else give Python's own reason."""
        problem = _describe_wrong_call(self.signature, args, kwargs) or reason
        problem = problem or f"got {len(args)} positional arguments, but in_types has {len(self.positional)}"
        wants = f"{self.name}{self.signature_text()}"
        return StructureError(f"{self.name}: {problem}\n\n    {wants}")

    def signature_text(self) -> str:
        """``(x, w, *, scale)``"""
        plain = [p.replace(annotation=EMPTY, default=EMPTY) for p in self.signature.parameters.values()]
        return str(inspect.Signature(plain))

    def arguments(self, bound: BoundCall) -> list[tuple[str, Subject, Node, Any]]:
        """Each argument that holds a hint: its parameter, its subject, its node, its value."""
        if (plain := self._plain_parameters) is not None:
            return [(name, *plain[name], value) for name, value in bound.arguments.items()]
        found: list[tuple[str, Subject, Node, Any]] = []
        for at, (name, value) in enumerate(bound.arguments.items()):
            kind = self.signature.parameters[name].kind
            node = self.parameters.get(name, Untyped())
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


def _describe_wrong_call(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
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


def name_of(function: Callable[..., Any]) -> str:
    """A function's name in messages."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    # A method by its class, a nested function without the functions around it.
    name: str = getattr(inner, "__qualname__", getattr(inner, "__name__", type(inner).__name__))
    return name.rpartition("<locals>.")[2]


class LazySignature:
    """A function whose hints are read when it is decorated, or at its first call if a name is not defined yet."""

    def __init__(
        self,
        function: Callable[..., Any],
        frame: types.FrameType | None,
        in_types: tuple[Any, ...] | None = None,
        out_types: Any = EMPTY,
        strict: bool = True,
    ) -> None:
        """Read a function's hints.

        Args:
          function: the function to decorate.
          frame: the frame in which it is decorated, for names local to an enclosing function.
          in_types: one hint per positional argument, instead of annotations.
          out_types: the hint of the result, instead of the annotation.
          strict: whether a parameter or a result without a hint is an error.

        Raises:
          AnnotationSyntaxError: for a hint that is missing or cannot be read.
        """
        if not callable(function):
            raise StructureError(f"a function is wanted, got {value_text(function)} of type {type(function).__name__}")
        self._given = (function, in_types, out_types, strict)
        self._string_locals: Mapping[str, Any] = {}
        self._typed: HintedSignature | None = None
        annotations = getattr(unwrap_annotations(function), "__annotations__", None) or {}
        if any(map(has_string, annotations.values())):
            self._read_in(frame)
            return
        try:
            self._typed = _read(*self._given, {})
        except Undefined:
            self._read_in(frame)

    def _read_in(self, frame: types.FrameType | None) -> None:
        """Read the hints with the names local to a frame."""
        source = unwrap_annotations(self._given[0])
        local = enclosing_locals(source, frame)
        try:
            self._typed = _read(*self._given, local)
        except Undefined:
            self._string_locals = names_in_annotations(source, local)

    @property
    def known(self) -> HintedSignature | None:
        """The function with its hints read, if they could be read when it was decorated."""
        return self._typed

    def read(self, args: tuple[Any, ...]) -> HintedSignature:
        """The function with its hints read, for a call with these arguments.

        Raises:
          AnnotationSyntaxError: for a name in a hint that is still not defined.
        """
        if self._typed is None:
            try:
                self._typed = _read(*self._given, self._string_locals)
            except Undefined:
                # A method of a local class may name that class, which only its instances lead to.
                first = args[0] if args else None
                owner = first if isinstance(first, type) else type(first)
                own = {cls.__name__: cls for cls in reversed(owner.__mro__)}
                self._typed = _read(*self._given, {**own, **self._string_locals})
        return self._typed


def _read(
    function: Callable[..., Any],
    in_types: tuple[Any, ...] | None,
    out_types: Any,
    strict: bool,
    local: Mapping[str, Any],
) -> HintedSignature:
    name = name_of(function)
    source = unwrap_annotations(function)
    function, given = _unwrap_partial(function)
    signature = _signature(function)
    names = NameScope({**local, **closure_variables(source)})
    _refuse_bad_in_types(in_types, signature, name, len(given))
    covered = _parameters_covered(signature, in_types, len(given))
    replaced = covered if out_types is EMPTY else {*covered, "return"}
    hints = resolved_hints(source, names.local, name, replaced)
    first = [p.name for p in signature.parameters.values()][: len(given)]
    parameters: dict[str, Node] = {}
    for parameter in signature.parameters.values():
        if parameter.name in covered:
            continue
        if parameter.name in hints:
            parameters[parameter.name] = _node(hints[parameter.name], names, name, f"parameter '{parameter.name}'")
        elif strict and parameter.name not in first and not _may_be_bare(parameter, function):
            raise _missing_hint(name, f"parameter '{parameter.name}'", f'{parameter.name}: Float[Array, "..."]')
    result = _result(hints, out_types, names, name, strict)
    positional = tuple(
        _node(hint, names, name, f"in_types[{i}]", parse_given_hint) for i, hint in enumerate(in_types or ())
    )
    if positional:
        positional = (*(parameters.get(each, Untyped()) for each in first), *positional)
    return HintedSignature(function, name, signature, parameters, positional, result, given)


def _unwrap_partial(function: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A partial without the arguments that it binds by position, and those arguments."""
    if not isinstance(function, functools.partial) or not function.args:
        return function, ()
    return functools.partial(function.func, **function.keywords), function.args


def _refuse_bad_in_types(in_types: Any, signature: inspect.Signature, name: str, given: int) -> None:
    if in_types is None:
        return
    if not isinstance(in_types, tuple):
        got = in_types.__name__ if isinstance(in_types, type) else type(in_types).__name__
        raise AnnotationSyntaxError(f"{name}: in_types= wants a tuple of hints, one per argument; got {got}")
    kinds = [p.kind for p in signature.parameters.values()]
    most = sum(kind in POSITIONAL for kind in kinds) - given
    if inspect.Parameter.VAR_POSITIONAL not in kinds and len(in_types) > most:
        raise AnnotationSyntaxError(f"{name}: in_types= has {len(in_types)} hints for {most} positional parameters")


def _parameters_covered(signature: inspect.Signature, in_types: tuple[Any, ...] | None, given: int) -> set[str]:
    """The parameters whose hints ``in_types`` gives."""
    if in_types is None:
        return set()
    names = [p.name for p in signature.parameters.values() if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    variadic = [p.name for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL]
    return {*names[given : given + len(in_types)], *variadic}


def _may_be_bare(parameter: inspect.Parameter, function: Callable[..., Any]) -> bool:
    """``self`` and ``cls``, and what a partial has already bound."""
    bound = isinstance(function, functools.partial) and parameter.name in function.keywords
    return parameter.name in ("self", "cls") or bound


def _result(hints: Mapping[str, Any], out_types: Any, names: NameScope, name: str, strict: bool) -> Node | None:
    hint, reader = (hints.get("return", EMPTY), parse_hint) if out_types is EMPTY else (out_types, parse_given_hint)
    if hint is EMPTY:
        if strict:
            raise _missing_hint(name, "the result", '-> Float[Array, "..."]')
        return None
    node = _node(hint, names, name, "the result", reader)
    if strict and any(isinstance(part, Untyped) for part in all_nodes(node)):
        raise _missing_hint(name, "the result, or a part of it, annotated as Any,", '-> Float[Array, "..."]')
    return node


def _missing_hint(name: str, what: str, example: str) -> AnnotationSyntaxError:
    return AnnotationSyntaxError(f"{name}: {what} has no hint\n\nHint: annotate it, as in {example}")


def _node(
    hint: Any, names: NameScope, name: str, what: str, reader: Callable[[Any, NameScope], Node] = parse_hint
) -> Node:
    try:
        return reader(hint, names)
    except AnnotationSyntaxError as error:
        raise AnnotationSyntaxError(f"{name}: {what}: {error}") from None
    except NameError as error:
        raise undefined_name(name, what, error) from None


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        # Kernels written in C show no signature; in_types gives them one by position.
        return inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])
