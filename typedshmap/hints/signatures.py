"""A function's signature with its hints read: what every verb that decorates starts from.

Strings (PEP 563) are resolved when a function is decorated, names local to the enclosing function
included. The caller's frame is looked at and let go: only the names found in strings are kept, and
only when one of them is not defined yet.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import AnnotationSyntaxError, StructureError
from ..notation.sizes import Subject
from .trees import Anything, Names, Node, build, parts

_EMPTY = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Bound:
    """A call's arguments by name, defaults included, and which of them were given."""

    all: inspect.BoundArguments
    given: frozenset[str]

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
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._wrong_call(args, kwargs, str(error)) from None
        is_variadic = any(p.kind is p.VAR_POSITIONAL for p in self.signature.parameters.values())
        if self.positional and is_variadic and len(self.positional) != len(args):
            raise self._wrong_call(args, kwargs, "")
        given = frozenset(bound.arguments)
        bound.apply_defaults()
        return Bound(bound, given)

    def _wrong_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> StructureError:
        """Say which argument is missing or too much; Python's own reason otherwise."""
        problem = _say_wrong_call(self.signature, args, kwargs) or reason
        problem = problem or f"got {len(args)} positional arguments, but in_types has {len(self.positional)}"
        wants = f"{self.name}{self.signature_text()}"
        return StructureError(f"{self.name}: {problem}\n\n    {wants}")

    def signature_text(self) -> str:
        """``(x, w, *, scale)``"""
        plain = [p.replace(annotation=_EMPTY, default=_EMPTY) for p in self.signature.parameters.values()]
        return str(inspect.Signature(plain))

    def arguments(self, bound: Bound) -> list[tuple[str, Subject, Node, Any]]:
        """Each argument that holds a hint: its parameter, its subject, its node, its value."""
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
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    taken = {p.name for p in positional[: len(args)]} | set(kwargs)
    if inspect.Parameter.VAR_POSITIONAL not in kinds and len(args) > len(positional):
        return f"got {len(args)} positional arguments, but takes {len(positional)}"
    if twice := [p.name for p in positional[: len(args)] if p.name in kwargs]:
        return f"got argument '{twice[0]}' twice"
    unknown = [name for name in kwargs if name not in signature.parameters]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        return f"got argument '{unknown[0]}', which it does not have"
    missing = [p.name for p in parameters if p.default is _EMPTY and p.kind not in _VARIADIC and p.name not in taken]
    if missing:
        return "argument " + ", ".join(f"'{name}'" for name in missing) + " is missing"
    return None


def name_of(function: Callable[..., Any]) -> str:
    """What messages call a function."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    # A method by its class, a nested function without the functions around it.
    name: str = getattr(inner, "__qualname__", getattr(inner, "__name__", type(inner).__name__))
    return name.rpartition("<locals>.")[2]


class Hinted:
    """A function whose hints are read when it is decorated, or at its first call if a name is not defined yet."""

    def __init__(
        self,
        function: Callable[..., Any],
        frame: types.FrameType | None,
        in_types: tuple[Any, ...] | None = None,
        out_types: Any = _EMPTY,
        strict: bool = True,
    ) -> None:
        """Read a function's hints.

        Args:
          function: what is decorated.
          frame: the frame in which it is decorated, for names local to an enclosing function.
          in_types: one hint per positional argument, instead of annotations.
          out_types: the hint of the result, instead of the annotation.
          strict: whether a parameter or a result without a hint is an error.

        Raises:
          AnnotationSyntaxError: for a hint that is missing or cannot be read.
        """
        if not callable(function):
            raise StructureError(f"a function is wanted, got {function!r} of type {type(function).__name__}")
        self._given = (function, in_types, out_types, strict)
        self._kept: Mapping[str, Any] = {}
        self._typed: Typed | None = None
        annotations = getattr(_annotated(function), "__annotations__", None) or {}
        if any(map(_has_string, annotations.values())):
            self._read_in(frame)
            return
        try:
            self._typed = _read(*self._given, {})
        except _Undefined:
            self._read_in(frame)

    def _read_in(self, frame: types.FrameType | None) -> None:
        """Read the hints with the names local to a frame, which is looked at only if it must be."""
        source = _annotated(self._given[0])
        local = _enclosing(source, frame)
        try:
            self._typed = _read(*self._given, local)
        except _Undefined:
            self._kept = _named_in_strings(source, local)

    def read(self, args: tuple[Any, ...]) -> Typed:
        """The function with its hints read, for a call with these arguments.

        Raises:
          AnnotationSyntaxError: for a name in a hint that is still not defined.
        """
        if self._typed is None:
            try:
                self._typed = _read(*self._given, self._kept)
            except _Undefined:
                # A method of a local class may name that class, which only its instances lead to.
                first = args[0] if args else None
                owner = first if isinstance(first, type) else type(first)
                own = {cls.__name__: cls for cls in reversed(owner.__mro__)}
                self._typed = _read(*self._given, {**own, **self._kept})
        return self._typed


class _Undefined(AnnotationSyntaxError):
    """A name in a hint that is not defined yet."""


_Undefined.__name__ = AnnotationSyntaxError.__name__
_Undefined.__qualname__ = AnnotationSyntaxError.__qualname__
_Undefined.__module__ = AnnotationSyntaxError.__module__


def _read(
    function: Callable[..., Any],
    in_types: tuple[Any, ...] | None,
    out_types: Any,
    strict: bool,
    local: Mapping[str, Any],
) -> Typed:
    name = name_of(function)
    source = _annotated(function)
    function, given = _unbound(function)
    signature = _signature(function)
    names = Names({**local, **_closure(source)})
    hints = _resolved_hints(source, names, name)
    _refuse_bad_in_types(in_types, signature, name, len(given))
    covered = _covered(signature, in_types, len(given))
    first = [p.name for p in signature.parameters.values()][: len(given)]
    parameters: dict[str, Node] = {}
    for parameter in signature.parameters.values():
        if parameter.name in covered:
            continue
        if parameter.name in hints:
            parameters[parameter.name] = _node(hints[parameter.name], names, name, f"parameter '{parameter.name}'")
        elif strict and parameter.name not in first and not _may_be_bare(parameter, function):
            raise _missing(name, f"parameter '{parameter.name}'", f'{parameter.name}: Float[Array, "..."]')
    result = _result(hints, out_types, names, name, strict)
    positional = tuple(_node(hint, names, name, f"in_types[{i}]") for i, hint in enumerate(in_types or ()))
    if positional:
        positional = (*(parameters.get(each, Anything()) for each in first), *positional)
    return Typed(function, name, signature, parameters, positional, result, given)


def _unbound(function: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A partial without what it binds by position, which is an argument like others; and that."""
    if not isinstance(function, functools.partial) or not function.args:
        return function, ()
    return functools.partial(function.func, **function.keywords), function.args


def _refuse_bad_in_types(in_types: Any, signature: inspect.Signature, name: str, given: int) -> None:
    if in_types is None:
        return
    if not isinstance(in_types, tuple):
        got = type(in_types).__name__
        raise AnnotationSyntaxError(f"{name}: in_types= wants a tuple of hints, one per argument; got {got}")
    kinds = [p.kind for p in signature.parameters.values()]
    most = sum(kind in _POSITIONAL for kind in kinds) - given
    if inspect.Parameter.VAR_POSITIONAL not in kinds and len(in_types) > most:
        raise AnnotationSyntaxError(f"{name}: in_types= has {len(in_types)} hints for {most} positional parameters")


def _covered(signature: inspect.Signature, in_types: tuple[Any, ...] | None, given: int) -> set[str]:
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


def _result(hints: Mapping[str, Any], out_types: Any, names: Names, name: str, strict: bool) -> Node | None:
    hint = hints.get("return", _EMPTY) if out_types is _EMPTY else out_types
    if hint is _EMPTY:
        if strict:
            raise _missing(name, "the result", '-> Float[Array, "..."]')
        return None
    node = _node(hint, names, name, "the result")
    if strict and any(isinstance(part, Anything) for part in parts(node)):
        raise _missing(name, "the result, or a part of it, annotated as Any,", '-> Float[Array, "..."]')
    return node


def _missing(name: str, what: str, example: str) -> AnnotationSyntaxError:
    return AnnotationSyntaxError(f"{name}: {what} has no hint\n\nHint: annotate it, as in {example}")


def _node(hint: Any, names: Names, name: str, what: str) -> Node:
    try:
        return build(hint, names)
    except AnnotationSyntaxError as error:
        raise AnnotationSyntaxError(f"{name}: {what}: {error}") from None
    except NameError as error:
        raise _undefined(name, what, error) from None


def _undefined(name: str, what: str, error: NameError) -> _Undefined:
    text = f"{name}: the hint of {what} names '{error.name}', which is not defined"
    cure = f"define '{error.name}' above {name}; a name of an outer function must stand in the function around {name}"
    return _Undefined(f"{text}\n\nHint: {cure}")


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        # Kernels written in C show no signature; in_types gives them one by position.
        return inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])


def _annotated(function: Any) -> Any:
    """The object that carries the annotations: through partials, wrappers, methods, instances."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif not isinstance(function, types.FunctionType):
            # What runs for an instance is its class's method, whatever the instance holds.
            call = getattr(type(function), "__call__", None)  # noqa: B004 (the function, not whether there is one)
            if not isinstance(call, types.FunctionType):
                return function
            function = call
        else:
            return function


def _resolved_hints(function: Any, names: Names, name: str) -> dict[str, Any]:
    annotations = getattr(function, "__annotations__", None)
    if not annotations:
        return {}
    if not any(_has_string(hint) for hint in annotations.values()):
        return dict(annotations)
    try:
        return typing.get_type_hints(function, localns=dict(names.local), include_extras=True)
    except NameError as error:
        raise _undefined(name, _where(annotations, str(error.name)), error) from None
    except SyntaxError:
        strings = [text for hint in annotations.values() for text in _strings_of(hint)]
        text = next((text for text in strings if not _is_expression(text)), strings[0])
        raise AnnotationSyntaxError(f"{name}: a hint is a string that is no Python expression: {text}") from None


def _where(annotations: Mapping[str, Any], missing: str) -> str:
    for parameter, hint in annotations.items():
        if isinstance(hint, str) and missing in _names_in(hint):
            return "the result" if parameter == "return" else f"parameter '{parameter}'"
    return "a parameter"


def _has_string(hint: Any) -> bool:
    if isinstance(hint, (str, typing.ForwardRef)):
        return True
    return any(_has_string(arg) for arg in typing.get_args(hint) if typing.get_origin(hint) is not typing.Literal)


def _names_in(text: str) -> set[str]:
    try:
        return {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    except SyntaxError:
        return set()


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


def _closure(function: Any) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found = {}
    for name, cell in zip(names, cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # a name that is assigned later
    return found


def _enclosing(function: Any, frame: types.FrameType | None) -> Mapping[str, Any]:
    """The names local to the function around a decoration; those of a class body in it first.

    A function that is defined elsewhere has its own globals, which local names must not hide.
    """
    found: dict[str, Any] = {}
    is_inside = True
    while frame is not None and frame.f_locals is not frame.f_globals:
        found = {**_locals_of(frame), **found}
        is_inside = is_inside and _is_defined_in(function, frame)
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            break  # a function; a class body is run by the function around it
        frame = frame.f_back
    known = {} if is_inside else getattr(function, "__globals__", {})
    return {name: value for name, value in found.items() if name not in known}


def _locals_of(frame: types.FrameType) -> dict[str, Any]:
    """A copy of a frame's local names.

    Before Python 3.13 the frame keeps the dict that it once showed, and with it every value in it
    until its function returns; so that is emptied. The function's own variables are not touched.
    """
    shown = frame.f_locals
    found = dict(shown)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        shown.clear()
    return found


def _is_defined_in(function: Any, frame: types.FrameType) -> bool:
    return str(getattr(function, "__qualname__", "")).startswith(f"{frame.f_code.co_qualname}.")


def _named_in_strings(function: Any, local: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the strings among a function's annotations name, and no other local value."""
    hints = (getattr(function, "__annotations__", None) or {}).values()
    names = {name for hint in hints for text in _strings_of(hint) for name in _names_in(text)}
    return {name: local[name] for name in names if name in local}


def _strings_of(hint: Any) -> list[str]:
    if isinstance(hint, str):
        return [hint]
    if isinstance(hint, typing.ForwardRef):
        return [hint.__forward_arg__]
    return [text for arg in typing.get_args(hint) for text in _strings_of(arg)]


def caller(depth: int) -> types.FrameType | None:
    """The frame ``depth`` calls above the caller of this."""
    frame = inspect.currentframe()
    for _ in range(depth + 1):
        frame = frame.f_back if frame is not None else None
    return frame
