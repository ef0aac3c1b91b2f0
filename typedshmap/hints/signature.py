"""The hints of a function's signature, strings (PEP 563) included, and the arguments of a call bound to them.

Invariant: the frame of a decoration is not kept. Only names in string hints are kept, and only while one of them is
not defined yet.
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, repeat
from typing import Any

from ..errors import AnnotationSyntaxError, StructureError, TypedShmapError, warn_of_suspect
from ..errors.failures import Subject
from ..errors.phrases import name_of, quoted_axes, shortened, value_text
from ..errors.places import Place, hint_line, hint_place, return_place, running_place
from ..notation.spelling import misspelt_name
from ..records import Record
from .array_hint import ArrayHint, KeepsFits
from .parse_hint import NESTED_TOO_DEEPLY, NameScope, parse_given_hint, parse_hint
from .postponed import resolved_hint
from .structure import OPTION, Node, Static, Untyped, array_hints, hint_name, walk

EMPTY = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_POSITION = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])
TAKEN_BY_SPECS = (*POSITIONAL, inspect.Parameter.VAR_POSITIONAL)


BoundArgument = tuple[str, Subject, Node, Any]
"""The parameter, the subject in messages, the hint and the value."""


class Specs(Record, eq=False):
    """Specs instead of hints, as for ``jax.shard_map``.

    Attributes:
      in_specs: the specs of the positional arguments; ``...`` if the caller passed none.
      out_specs: the specs of the result; ``...`` if it has a hint.
    """

    in_specs: Any
    out_specs: Any

    @property
    def has_results(self) -> bool:
        """Whether the result needs no hint."""
        return self.out_specs is not ...


class BoundCall(Record):
    """A call's arguments by name, defaults included, and the arguments as passed.

    Attributes:
      signature: the signature of the function.
      arguments: all arguments by parameter, defaults included; those of ``*args`` as a tuple.
      given: the names of the parameters that the caller passed.
      args: the positional arguments as passed.
      kwargs: the keyword arguments as passed.
      is_plain: whether all parameters are positional-or-keyword, and all are passed.
    """

    signature: inspect.Signature
    arguments: dict[str, Any]
    given: frozenset[str]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_plain: bool = False

    def with_arguments(self, changes: Iterable[tuple[str, Subject, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for the function, some of them replaced; the function fills in its defaults."""
        changed: dict[str, Any] = {}
        if not (changes := list(changes)):
            return self.args, self.kwargs
        if self.is_plain:
            changed = {name: value for name, _, value in changes}
            args = [changed.get(name, value) for name, value in zip(self.arguments, self.args, strict=False)]
            return tuple(args), {name: changed.get(name, value) for name, value in self.kwargs.items()}
        for name, subject, value in changes:
            kind = self.signature.parameters[name].kind
            new = changed.get(name, self.arguments[name])
            if kind is inspect.Parameter.VAR_POSITIONAL:
                index = int(subject.path[1:-1])
                changed[name] = (*new[:index], value, *new[index + 1 :])
            elif kind is inspect.Parameter.VAR_KEYWORD:
                changed[name] = {**new, subject.name: value}
            else:
                changed[name] = value
        kept = {name: value for name, value in self.arguments.items() if name in self.given or name in changed}
        call = inspect.BoundArguments(self.signature, kept | changed)  # type: ignore[arg-type]
        return call.args, call.kwargs


class HintedSignature(KeepsFits, Record):
    """A function with its parsed hints.

    Attributes:
      function: the function to call.
      name: its name in messages.
      signature: its signature.
      parameters: the hints of its parameters by name.
      positional: hints by position, from ``in_types``.
      result: the hint of the result; None without one.
      given: positional arguments of a partial.
      yielded: the hint of the items of a generator; ``result`` is then the hint of its return value.
    """

    function: Callable[..., Any]
    name: str
    signature: inspect.Signature
    parameters: Mapping[str, Node]
    positional: tuple[Node, ...]
    result: Node | None
    given: tuple[Any, ...] = ()
    yielded: Node | None = None

    @property
    def argument_hints(self) -> list[ArrayHint]:
        """The hints of all arrays among the arguments."""
        return [hint for node in (*self.parameters.values(), *self.positional) for hint in array_hints(node)]

    @property
    def result_hints(self) -> list[ArrayHint]:
        """The hints of all arrays in the result."""
        return [] if self.result is None else list(array_hints(self.result))

    @property
    def return_place(self) -> str:
        """The line on which the function returns."""
        return return_place(_unwrap_annotations(self.function))

    def hint_place(self, parameter: str) -> str:
        """The line of a parameter's hint."""
        return hint_place(_unwrap_annotations(self.function), parameter)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall:
        """The call's arguments by name, defaults included."""
        args = (*self.given, *args)
        plain = self._plain_parameters
        if plain is not None and len(args) + len(kwargs) == len(plain):
            # Each parameter is passed once, or one is missing; ``inspect`` is slow.
            named = {**dict(zip(plain, args, strict=False)), **kwargs}
            if named.keys() == plain.keys():
                ordered = {name: named[name] for name in plain} if kwargs else named
                return BoundCall(self.signature, ordered, frozenset(named), args, kwargs, is_plain=True)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._wrong_call_error(args, kwargs, str(error)) from None
        kinds = [p.kind for p in self.signature.parameters.values()]
        is_variadic = len(self.positional) > sum(kind in POSITIONAL for kind in kinds)
        if is_variadic and len(self.positional) > len(args):
            raise self._wrong_call_error(args, kwargs, "")
        given = frozenset(bound.arguments)
        bound.apply_defaults()
        return BoundCall(self.signature, bound.arguments, given, args, kwargs)

    @property
    def by_position(self) -> HintedSignature:
        """The function with positional arguments only, and without hints."""
        return replace(self, signature=_BY_POSITION, parameters={}, positional=())

    @cached_property
    def result_fits(self) -> list[Any]:
        """Results that fitted; not kept with the node, since functions share the nodes of hints."""
        return []

    @cached_property
    def plain_subjects(self) -> tuple[Subject, ...] | None:
        """The subjects of all parameters, if all have hints, are positional-or-keyword, and no partial binds one."""
        plain = self._plain_parameters
        if plain is None or len(plain) != len(self.parameters) or self.given:
            return None
        return tuple([subject for subject, _ in plain.values()])

    @cached_property
    def _plain_parameters(self) -> dict[str, tuple[Subject, Node]] | None:
        """The subject and the node of each parameter, if all are positional-or-keyword.

        Without this cache a call takes up to 1.4 times the calls.
        """
        parameters = self.signature.parameters.values()
        if self.positional or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
            return None
        return {p.name: (Subject("argument", p.name), self.parameters.get(p.name, Untyped())) for p in parameters}

    def _wrong_call_error(self, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> StructureError:
        """The error that names a missing or an extra argument; else with Python's own reason."""
        parameters = self.signature.parameters
        kinds = {p.kind for p in parameters.values()}
        positional = [p.name for p in parameters.values() if p.kind in POSITIONAL]
        twice = [name for name in positional[: len(args)] if name in kwargs]
        unknown = [name for name in kwargs if name not in parameters]
        taken = {*positional[: len(args)], *kwargs}
        required = [p.name for p in parameters.values() if p.default is EMPTY and p.kind not in _VARIADIC]
        missing = [name for name in required if name not in taken]
        if inspect.Parameter.VAR_POSITIONAL not in kinds and len(args) > len(positional):
            problem = f"got {len(args)} positional arguments, but takes {len(positional)}"
        elif twice:
            problem = f"got argument '{twice[0]}' twice"
        elif unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
            problem = f"got argument '{unknown[0]}', which it does not have"
        elif missing:
            problem = "arguments {} are missing" if len(missing) > 1 else "argument {} is missing"
            problem = problem.format(quoted_axes(missing))
        else:
            problem = reason or f"got {len(args)} positional arguments, but in_types has {len(self.positional)}"
        bare = [p.replace(annotation=EMPTY, default=EMPTY) for p in parameters.values()]
        return StructureError(f"{self.name}: {problem}\n\n    {self.name}{inspect.Signature(bare)}")

    def arguments(self, bound: BoundCall) -> list[BoundArgument]:
        """All arguments except defaults of options: the parameter, the subject, the node, the value."""
        bound_arguments: list[BoundArgument] = []
        plain = self._plain_parameters
        for at, (name, value) in enumerate(bound.arguments.items()):
            if plain is not None:
                bound_arguments.append((name, *plain[name], value))
                continue
            kind = self.signature.parameters[name].kind
            node = self.parameters.get(name, Untyped())
            if kind is inspect.Parameter.VAR_POSITIONAL:
                pairs = zip(chain(self.positional[at:], repeat(node)), value, strict=False)
                bound_arguments += [(name, Subject("argument", name, f"[{i}]"), n, v) for i, (n, v) in enumerate(pairs)]
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound_arguments += [(name, Subject("argument", key), node, v) for key, v in value.items()]
            else:
                is_positional = at < len(self.positional) and kind is not inspect.Parameter.KEYWORD_ONLY
                node = self.positional[at] if is_positional else node
                bound_arguments.append((name, Subject("argument", name), node, value))
        return [argument for argument in bound_arguments if argument[2] is not OPTION or argument[0] in bound.given]


class LazySignature:
    """A function whose hints are read when it is decorated, or at its first call if a name is not defined yet.

    Attributes:
      known: the function with its hints, if they are read already.
      in_types: the hints of the arguments that replace annotations.
      out_types: the hint of the result that replaces the annotation.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        frame: types.FrameType | None,
        in_types: Any = None,
        out_types: Any = EMPTY,
        strict: bool = True,
        specs: Specs | None = None,
    ) -> None:
        """Read a function's hints."""
        if not callable(function):
            got = f"{value_text(function)} of type {type(function).__name__}"
            raise StructureError(f"expects a function, got {got}", running_place())
        self._given = (function, in_types, out_types, strict, specs)
        self.in_types, self.out_types = in_types, out_types
        self._string_locals: Mapping[str, Any] = {}
        self.known: HintedSignature | None = None
        source = _unwrap_annotations(function)
        annotations = getattr(source, "__annotations__", None) or {}
        strings = [text for hint in annotations.values() for text in _strings_in(hint)]
        if not strings:
            with suppress(_Undefined):
                self.known = _read(*self._given, {})
                return
        local = _enclosing_locals(source, frame)
        try:
            self.known = _read(*self._given, local)
        except _Undefined:
            trees = filter(None, map(_parse_expression, strings))
            names = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
            self._string_locals = {name: local[name] for name in names if name in local}

    @classmethod
    def of(cls, known: HintedSignature) -> LazySignature:
        """A function whose hints are known."""
        made = cls.__new__(cls)
        made.known, made.in_types, made.out_types = known, None, EMPTY
        return made

    def read(self, args: tuple[Any, ...]) -> HintedSignature:
        """The function with its hints read, for a call with these arguments."""
        if self.known is None:
            try:
                self.known = _read(*self._given, self._string_locals)
            except _Undefined:
                # A method of a local class may name that class, which is known only from an instance.
                first = args[0] if args else None
                owner = first if isinstance(first, type) else type(first)
                classes = {cls.__name__: cls for cls in reversed(owner.__mro__)}
                local, has_specs = {**classes, **self._string_locals}, self._given[-1] is not None
                self.known = _read(*self._given, local, may_be_undefined=has_specs)
        return self.known


def _read(
    function: Callable[..., Any],
    in_types: Any,
    out_types: Any,
    strict: bool,
    specs: Specs | None,
    local: Mapping[str, Any],
    may_be_undefined: bool = False,
) -> HintedSignature:
    name, source = name_of(function), _unwrap_annotations(function)
    given, bound_by_name = (), set[str]()
    if isinstance(function, functools.partial):
        given, bound_by_name = function.args, set(function.keywords)
        function = functools.partial(function.func, **function.keywords) if given else function
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Functions written in C have no signature; in_types gives them one by position.
        signature = _BY_POSITION
    if in_types is not None and not isinstance(in_types, tuple):
        if isinstance(in_types, (list, dict)):
            got = type(in_types).__name__
            raise AnnotationSyntaxError(f"{name}: in_types= expects a tuple of hints, one per argument; got {got}")
        in_types = (in_types,)
    covered = _parameters_covered(signature, in_types, name, len(given))

    names = NameScope({**local, **_closure_variables(source)})
    replaced = covered if out_types is EMPTY else {*covered, "return"}
    hints = _resolved_hints(source, names.local, name, replaced, specs is not None, may_be_undefined)
    if specs is not None and specs.has_results and hints.get("return") is Any:
        del hints["return"]
    first = list(signature.parameters)[: len(given)]
    may_be_bare = {"self", "cls", *first, *bound_by_name}
    parameters: dict[str, Node] = {}
    for parameter, declared in signature.parameters.items():
        if parameter in hints:
            parameters[parameter] = _node(hints[parameter], names, name, parameter, source)
        elif not strict or parameter in may_be_bare or (specs is not None and declared.kind in TAKEN_BY_SPECS):
            continue
        elif declared.default is not EMPTY or declared.kind in _VARIADIC:
            parameters[parameter] = OPTION
        elif parameter not in covered:
            example = f'{parameter}: Float[Array, "..."]'
            raise _missing_hint(name, f"parameter '{parameter}'", example, hint_place(source, parameter))

    result = yielded = None
    if not strict and "return" in hints and is_generator(source):
        yields_and_returns = _generator_hints(hints.pop("return"), name)
        yielded, result = (_node(hint, names, name, "return", source) for hint in yields_and_returns)
    if out_types is not EMPTY:
        result = _node(out_types, names, name, "the result")
    elif "return" in hints:
        result = _node(hints["return"], names, name, "return", source)
    if strict and result is None and not (specs is not None and specs.has_results):
        raise _missing_hint(name, "the result", _RESULT_EXAMPLE, hint_place(source, "return"))
    if strict and result is not None and any(_is_any(part) for _, part in walk(result)):
        what = "the result, or a part of it, annotated as Any,"
        raise _missing_hint(name, what, _RESULT_EXAMPLE, hint_place(source, "return"))

    positional = [_node(hint, names, name, f"in_types[{i}]") for i, hint in enumerate(in_types or ())]
    if positional:
        positional = [*(parameters.get(parameter, Untyped()) for parameter in first), *positional]
    _warn_of_misspelling(source, name, {**parameters, **dict(enumerate(positional)), "return": result})
    return HintedSignature(function, name, signature, parameters, tuple(positional), result, given, yielded)


def is_generator(function: Any) -> bool:
    """Whether a function, or the function that it wraps, is a generator, asynchronous or not."""
    function = _unwrap_annotations(function)
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


_GENERATORS = (
    *(collections.abc.Generator, collections.abc.Iterator, collections.abc.Iterable),
    *(collections.abc.AsyncGenerator, collections.abc.AsyncIterator, collections.abc.AsyncIterable),
)


def _generator_hints(hint: Any, name: str) -> tuple[Any, Any]:
    """The hints of the items and of the return value of a generator."""
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in _GENERATORS or not isinstance(hint, type):
        has_result = origin is collections.abc.Generator and len(args) == 3
        return args[0] if args else Any, args[2] if has_result else Any
    raise AnnotationSyntaxError(f"{name}: a generator's hint is Iterator[...], got {hint_name(hint)}")


def _is_any(node: Node) -> bool:
    """Whether a node accepts anything, or a container of anything."""
    if isinstance(node, Static) and typing.get_origin(node.hint) in (tuple, list, dict):
        return Any in typing.get_args(node.hint)
    return isinstance(node, Untyped)


def _parameters_covered(
    signature: inspect.Signature, in_types: tuple[Any, ...] | None, name: str, given: int
) -> set[str]:
    """The parameters with hints from ``in_types``, after those bound by a partial; raises if it has more hints."""
    if in_types is None:
        return set()
    positional = [p.name for p in signature.parameters.values() if p.kind in POSITIONAL][given:]
    variadic = [p.name for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL]
    if not variadic and len(in_types) > len(positional):
        most = len(positional)
        raise AnnotationSyntaxError(f"{name}: in_types= has {len(in_types)} hints for {most} positional parameters")
    return {*positional[: len(in_types)], *(variadic if len(in_types) > len(positional) else ())}


def _warn_of_misspelling(function: Any, name: str, nodes: Mapping[Any, Node | None]) -> None:
    """Warn of a dim name that occurs once and looks like another name."""
    keyed_names = [
        (key, dim_name)
        for key, node in nodes.items()
        if node
        for hint in array_hints(node)
        for dim_name in hint.spec.names
    ]
    wrong = misspelt_name(dim_name for _, dim_name in keyed_names)
    if wrong is None:
        return
    key = next(key for key, dim_name in keyed_names if dim_name == wrong[0])
    line = hint_line(function, str(key))
    if line is not None:
        text = f"{name}: dim '{wrong[0]}' stands once, and looks like '{wrong[1]}'\n\nAt: {Place.of(*line)}"
        warn_of_suspect(f"{text}\nHint: write '{wrong[1]}', or a more distinct name", *line[:2])


_RESULT_EXAMPLE = '-> Float[Array, "..."]'


def _missing_hint(name: str, what: str, example: str, place: str) -> AnnotationSyntaxError:
    return AnnotationSyntaxError(f"{name}: {what} has no hint\n\nHint: annotate it, as in {example}", place)


def _node(hint: Any, names: NameScope, name: str, what: str, source: Any = None) -> Node:
    """The node of a hint: of an annotation of ``source``, or of ``in_types`` and ``out_types``."""
    try:
        return parse_given_hint(hint, names) if source is None else parse_hint(hint, names)
    except (AnnotationSyntaxError, NameError, RecursionError) as error:
        what, place = (what, "") if source is None else (_phrase(what), hint_place(source, what))
        if isinstance(error, NameError):
            raise _undefined_name(name, what, error, place) from None
        problem = error.sentence if isinstance(error, AnnotationSyntaxError) else NESTED_TOO_DEEPLY
        raise AnnotationSyntaxError(f"{name}: {what}: {problem}", place) from None


def _phrase(parameter: str) -> str:
    return "the result" if parameter == "return" else f"parameter '{parameter}'"


class _Undefined(AnnotationSyntaxError):
    """A name in a hint that is not defined yet."""


_Undefined.__name__ = AnnotationSyntaxError.__name__
_Undefined.__qualname__ = AnnotationSyntaxError.__qualname__
_Undefined.__module__ = AnnotationSyntaxError.__module__


def _undefined_name(name: str, what: str, error: NameError, place: str) -> _Undefined:
    """The error for a name that is not defined at decoration."""
    text = f"{name}: the hint of {what} names '{error.name}', which is not defined"
    cure = f"define '{error.name}' above {name}; a local name must be defined in the function that encloses {name}"
    return _Undefined(f"{text}\n\nHint: {cure}", place)


def _unwrap_annotations(function: Any) -> Any:
    """The object that carries the annotations: through partials, wrappers, methods, instances."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif not isinstance(function, types.FunctionType):
            # An instance is called by its class's method, whatever attributes it has.
            call = getattr(type(function), "__call__", None)  # noqa: B004 (the function, not whether there is one)
            if not isinstance(call, types.FunctionType):
                return function
            function = call
        else:
            return function


def _resolved_hints(
    function: Any,
    local: Mapping[str, Any],
    name: str,
    covered: Collection[str],
    may_be_text: bool = False,
    may_be_undefined: bool = False,
) -> dict[str, Any]:
    """A function's annotations, with strings evaluated, except for parameters that ``in_types`` covers."""
    annotations = getattr(function, "__annotations__", None) or {}
    resolved = {parameter: hint for parameter, hint in annotations.items() if parameter not in covered}
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    names = getattr(function, "__globals__", None) or vars(module or builtins)
    for parameter, hint in list(resolved.items()):
        if not (strings := _strings_in(hint)):
            continue
        what, place = _phrase(parameter), partial(hint_place, function, parameter)
        # One at a time, so that an error names the parameter.
        try:
            resolved[parameter] = resolved_hint(hint, names, local, function)
        except TypedShmapError as error:
            error.place = place()
            raise
        except NameError as error:
            if not may_be_undefined:
                raise _undefined_name(name, what, error, place()) from None
            del resolved[parameter]
        except Exception as error:  # any exception of the expression
            if may_be_text:
                del resolved[parameter]
                continue
            if bad := [bad_text for bad_text in strings if _parse_expression(bad_text) is None]:
                problem = f"a hint is a string that is not a Python expression: {shortened(bad[0], 80)}"
                raise AnnotationSyntaxError(f"{name}: {problem}", place()) from None
            problem = f"the hint of {what} cannot be read: {error or type(error).__name__}"
            raise AnnotationSyntaxError(f"{name}: {problem}", place()) from error
    return resolved


def _strings_in(hint: Any) -> list[str]:
    if isinstance(hint, (str, typing.ForwardRef)):
        return [hint if isinstance(hint, str) else hint.__forward_arg__]
    args = () if typing.get_origin(hint) is typing.Literal else typing.get_args(hint)
    return [text for arg in args for text in _strings_in(arg)]


def _parse_expression(text: str) -> ast.Expression | None:
    """A string as a Python expression; None if it is not one."""
    try:
        return ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two if it is nested too deep
        return None


def _closure_variables(function: Any) -> dict[str, Any]:
    """The variables that a function closes over, by name."""
    cells = getattr(function, "__closure__", None) or ()
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    variables: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        with suppress(ValueError):  # a name that is assigned later
            variables[name] = cell.cell_contents
    return variables


def _enclosing_locals(function: Any, frame: types.FrameType | None) -> Mapping[str, Any]:
    """The local names around a function's definition; names of a class body first.

    If a helper decorates, the definition is further up the stack than the frame. If it is not on the stack at all, the
    frame's names do not hide the function's own globals.
    """
    name, module, home = str(getattr(function, "__qualname__", "")), getattr(function, "__globals__", None), frame
    while home is not None and not (home.f_globals is module and name.startswith(f"{home.f_code.co_qualname}.")):
        home = home.f_back
    local: dict[str, Any] = {}
    around = home or frame
    while around is not None and around.f_locals is not around.f_globals:
        shown = around.f_locals
        local = {**shown, **local}
        if around.f_code.co_flags & inspect.CO_OPTIMIZED:
            # Before Python 3.13 the frame keeps the dict of f_locals, and with it every value in it until its
            # function returns; clearing it does not change the function's variables.
            if sys.version_info < (3, 13):
                shown.clear()
            break  # a function; a class body is run by the function around it
        around = around.f_back
    known = {} if home is not None else getattr(function, "__globals__", {})
    return {name: value for name, value in local.items() if name not in known}
