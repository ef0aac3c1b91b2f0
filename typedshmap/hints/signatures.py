"""Read a function's hints: what every verb that decorates starts from."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import AnnotationSyntaxError, StructureError
from ..errors.phrases import shown
from .binding import EMPTY, POSITIONAL, Typed
from .nodes import Anything, Node, parts
from .postponed import Undefined, annotated, closure, enclosing, has_string, named_in_strings, resolved_hints, undefined
from .trees import Names, build, build_given


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
        out_types: Any = EMPTY,
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
            raise StructureError(f"a function is wanted, got {shown(function)} of type {type(function).__name__}")
        self._given = (function, in_types, out_types, strict)
        self._kept: Mapping[str, Any] = {}
        self._typed: Typed | None = None
        annotations = getattr(annotated(function), "__annotations__", None) or {}
        if any(map(has_string, annotations.values())):
            self._read_in(frame)
            return
        try:
            self._typed = _read(*self._given, {})
        except Undefined:
            self._read_in(frame)

    def _read_in(self, frame: types.FrameType | None) -> None:
        """Read the hints with the names local to a frame, which is looked at only if it must be."""
        source = annotated(self._given[0])
        local = enclosing(source, frame)
        try:
            self._typed = _read(*self._given, local)
        except Undefined:
            self._kept = named_in_strings(source, local)

    @property
    def known(self) -> Typed | None:
        """The function with its hints read, if they could be read when it was decorated."""
        return self._typed

    def read(self, args: tuple[Any, ...]) -> Typed:
        """The function with its hints read, for a call with these arguments.

        Raises:
          AnnotationSyntaxError: for a name in a hint that is still not defined.
        """
        if self._typed is None:
            try:
                self._typed = _read(*self._given, self._kept)
            except Undefined:
                # A method of a local class may name that class, which only its instances lead to.
                first = args[0] if args else None
                owner = first if isinstance(first, type) else type(first)
                own = {cls.__name__: cls for cls in reversed(owner.__mro__)}
                self._typed = _read(*self._given, {**own, **self._kept})
        return self._typed


def _read(
    function: Callable[..., Any],
    in_types: tuple[Any, ...] | None,
    out_types: Any,
    strict: bool,
    local: Mapping[str, Any],
) -> Typed:
    name = name_of(function)
    source = annotated(function)
    function, given = _unbound(function)
    signature = _signature(function)
    names = Names({**local, **closure(source)})
    _refuse_bad_in_types(in_types, signature, name, len(given))
    covered = _covered(signature, in_types, len(given))
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
            raise _missing(name, f"parameter '{parameter.name}'", f'{parameter.name}: Float[Array, "..."]')
    result = _result(hints, out_types, names, name, strict)
    positional = tuple(_node(hint, names, name, f"in_types[{i}]", build_given) for i, hint in enumerate(in_types or ()))
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
        got = in_types.__name__ if isinstance(in_types, type) else type(in_types).__name__
        raise AnnotationSyntaxError(f"{name}: in_types= wants a tuple of hints, one per argument; got {got}")
    kinds = [p.kind for p in signature.parameters.values()]
    most = sum(kind in POSITIONAL for kind in kinds) - given
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
    hint, reader = (hints.get("return", EMPTY), build) if out_types is EMPTY else (out_types, build_given)
    if hint is EMPTY:
        if strict:
            raise _missing(name, "the result", '-> Float[Array, "..."]')
        return None
    node = _node(hint, names, name, "the result", reader)
    if strict and any(isinstance(part, Anything) for part in parts(node)):
        raise _missing(name, "the result, or a part of it, annotated as Any,", '-> Float[Array, "..."]')
    return node


def _missing(name: str, what: str, example: str) -> AnnotationSyntaxError:
    return AnnotationSyntaxError(f"{name}: {what} has no hint\n\nHint: annotate it, as in {example}")


def _node(hint: Any, names: Names, name: str, what: str, reader: Callable[[Any, Names], Node] = build) -> Node:
    try:
        return reader(hint, names)
    except AnnotationSyntaxError as error:
        raise AnnotationSyntaxError(f"{name}: {what}: {error}") from None
    except NameError as error:
        raise undefined(name, what, error) from None


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        # Kernels written in C show no signature; in_types gives them one by position.
        return inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])
