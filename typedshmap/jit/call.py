"""A call of a ``typed_jit``: check the arguments, take them apart, and run the program that fits them.

A program is one function that ``jax.jit`` compiled: for a place, the types and the structure of the
arguments, their static values, and what names mean around.

Invariant: what a program's function reads when it is traced is in its key, or among JAX's own; all
else of a call (its arrays among it) is not kept.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import jax

from .. import _jax
from ..errors import StructureError, error_of
from ..errors.failures import Failure, Told
from ..hints.axes import Naming
from ..hints.binding import Typed
from ..hints.inspection import told_by
from ..hints.leaf import describe
from ..hints.nodes import Anything, Node, Static, holds_arrays
from ..hints.scope import Scope, entered, naming_around
from ..hints.signatures import Hinted
from ..hints.walk import Found, Walk, unresolved
from ..meshes import inside_of
from ..notation.sizes import RETURN, Sizes, Subject
from .options import Chosen, Options
from .parts import Fixed, Key, Part, put_in_place, slot_of, take_apart
from .place import disagreement, find_place
from .ready import Ready, reads_values, ready_key, sources_of

T = TypeVar("T")
_MOST = 4096


class Jitted:
    """A function and the programs that were compiled of it."""

    def __init__(self, hinted: Hinted, mesh: _jax.AnyMesh | None, naming: Naming, options: Options) -> None:
        self.hinted, self.mesh, self.naming, self.options = hinted, mesh, naming, options
        self._typed: Typed | None = None
        self._reads_values = False
        self._programs: dict[Any, Any] = {}
        self._ready: dict[Any, Ready] = {}
        self._lock = threading.Lock()
        if hinted.known is not None:
            self.read(())

    def read(self, args: tuple[Any, ...]) -> Typed:
        """The function with its hints read.

        Raises:
          StructureError: for an option that contradicts a hint.
        """
        typed = self.hinted.read(args)
        if typed is not self._typed:
            _refuse_contradictions(typed, self.options)
            self._typed, self._reads_values = typed, reads_values(typed)
        return typed

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function, compiled."""
        if _jax.is_jit_disabled():
            call = Call(self, args, kwargs)
            return call.within(call.traced())
        key = ready_key(args, kwargs, self.naming)
        ready = self._ready.get(key) if key is not None else None
        if ready is not None:
            # Should JAX trace it again, which it may at any time, the call is checked again.
            return _run(ready.program, ready.values(args, kwargs), lambda: Call(self, args, kwargs))
        call = Call(self, args, kwargs)
        program = self.program(call)
        result = call.within(program)
        is_like_next = key is not None and not self._reads_values
        sources = sources_of(call.typed, call.parts, args, kwargs) if is_like_next else None
        if sources is not None:
            self._keep(self._ready, key, Ready(program, sources))
        return result

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower the function for these arguments, as ``jax.jit(f).lower`` does."""
        call = Call(self, args, kwargs, is_running=False)
        return call.within(self.program(call).lower)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the function for these arguments, as ``jax.jit(f).trace`` does."""
        call = Call(self, args, kwargs, is_running=False)
        return call.within(self.program(call).trace)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and dtypes of the result for these arguments, as ``jax.jit(f).eval_shape`` tells them."""
        call = Call(self, args, kwargs, is_running=False)
        return call.within(self.program(call).eval_shape)

    def clear_cache(self) -> None:
        """Forget all programs."""
        with self._lock:
            programs, self._programs, self._ready = self._programs, {}, {}
        for program in programs.values():
            program.clear_cache()

    def program(self, call: Call) -> Any:
        """The program that fits a call."""
        key = call.key()
        found = self._programs.get(key)
        if found is None:
            found = self._keep(self._programs, key, self._build(call))
        return found

    def _build(self, call: Call) -> Any:
        """Make the program that fits a call; the trace that tells the result's shardings is used again by JAX."""
        function, options = call.traced(), call.options_of_jit()
        token = _running.set(lambda: call)
        try:
            jax.jit(function, **options).eval_shape(*call.values)  # from this frame, as the module `tracing` says why
        finally:
            _running.reset(token)
        return jax.jit(function, out_shardings=call.outputs, **options)

    def _keep(self, kept: dict[Any, T], key: Any, value: T) -> T:
        """Keep a value, unless another thread was faster; the oldest one goes."""
        with self._lock:
            if len(kept) >= _MOST:
                kept.pop(next(iter(kept)))
            return kept.setdefault(key, value)


def _refuse_contradictions(typed: Typed, options: Options) -> None:
    """A static parameter whose hint holds arrays; a donated one whose hint holds none."""
    for name, node in typed.parameters.items():
        if name in options.static.names and holds_arrays(node):
            raise StructureError(f"{typed.name}: parameter '{name}' is to be static, but its hint holds arrays")
        if name in options.donated.names and not holds_arrays(node) and not isinstance(node, Anything):
            raise StructureError(f"{typed.name}: parameter '{name}' is to be donated, but its hint holds no arrays")


Argument = tuple[str, Subject, Node, Any]
Span = tuple[int, int]
_STATIC = Static(Any)


class Call:
    """One call, from its arguments on."""

    def __init__(self, jitted: Jitted, args: tuple[Any, ...], kwargs: dict[str, Any], is_running: bool = True) -> None:
        self.options, self.naming = jitted.options, jitted.naming
        self.typed = typed = jitted.read(args)
        self.bound = typed.bind(args, kwargs)
        arguments = [self._as_chosen(argument) for argument in typed.arguments(self.bound)]
        # Keywords in any order are one program, as they are to jax.jit.
        arguments.sort(key=lambda argument: argument[1].name if self._is_more(argument[0]) else "")

        def candidates() -> list[Found]:
            arrays = ((subject, value) for _, subject, node, value in arguments if holds_arrays(node))
            return [Found(leaf, None, subject) for subject, value in arrays for leaf in _jax.leaves(value)]

        self.place = find_place(typed.name, jitted.mesh, self.naming, candidates, is_running)
        walk, spans = self._walked(arguments) if is_running else self._walked_as_traced(arguments)
        self.sizes = walk.sizes
        self.parts = self._take_apart(arguments, walk, spans)
        assert typed.result is not None
        wrong_result = unresolved(typed.result, self.place.region, RETURN)
        self._raise(walk.sizes, [*walk.failures, *self._wrong_values(walk, spans, arguments), *wrong_result])
        if self.place.region.explicit:
            self.parts = [put_in_place(part, self.place) for part in self.parts]
        self.values = [part.value for part in self.parts if part.key.is_traced]
        self.outputs: Any = None

    def _is_more(self, parameter: str) -> bool:
        """Whether a parameter is ``**kwargs``, the last one."""
        return self.typed.signature.parameters[parameter].kind is inspect.Parameter.VAR_KEYWORD

    def _as_chosen(self, argument: Argument) -> Argument:
        """An argument with its node; one that ``static_argnames`` chose is static whatever its hint."""
        name, subject, node, value = argument
        is_static = isinstance(node, Anything) and self._is_chosen(self.options.static, name, subject)
        return (name, subject, _STATIC, value) if is_static else argument

    def _is_chosen(self, chosen: Chosen, parameter: str, subject: Subject) -> bool:
        if not chosen:
            return False
        parameters = self.typed.signature.parameters
        many = [name for name, each in parameters.items() if each.kind is each.VAR_POSITIONAL]
        count = len(self.bound.arguments[many[0]]) if many else 0
        if parameter not in many:
            return chosen.has(subject.name, None, count)
        return chosen.has("", int(subject.path[1:-1]), count)

    def _walked(self, arguments: list[Argument]) -> tuple[Walk, list[Span]]:
        """Check all arguments, and tell where the leaves of each stand."""
        walk, spans = Walk(self.place.region, self.bound.arguments), list[Span]()
        for _, subject, node, value in arguments:
            first = len(walk.leaves)
            walk.visit(node, value, subject)
            spans.append((first, len(walk.leaves)))
        walk.settle()
        return walk, spans

    def _walked_as_traced(self, arguments: list[Argument]) -> tuple[Walk, list[Span]]:
        """The same where arguments may be ShapeDtypeStructs: each is checked as what it is traced as."""
        if not any(isinstance(leaf, _jax.SHAPES) for *_, value in arguments for leaf in _jax.leaves(value)):
            return self._walked(arguments)
        leaves, structure = jax.tree_util.tree_flatten([value for *_, value in arguments])
        shapes = {at: leaf for at, leaf in enumerate(leaves) if isinstance(leaf, _jax.SHAPES)}
        found: list[tuple[Walk, list[Span]]] = []
        given: dict[int, Any] = {}

        def look(*tracers: Any) -> None:
            traced = dict(zip(shapes, tracers, strict=True))
            given.update((id(tracer), shapes[at]) for at, tracer in traced.items())
            values = structure.unflatten([traced.get(at, leaf) for at, leaf in enumerate(leaves)])
            put = [(*argument[:3], value) for argument, value in zip(arguments, values, strict=True)]
            walk, spans = self._walked(put)
            walk.leaves = [leaf._replace(value=given.get(id(leaf.value), leaf.value)) for leaf in walk.leaves]
            found.append((walk, spans))

        jax.eval_shape(look, *shapes.values())
        return found[0]

    def _take_apart(self, arguments: list[Argument], walk: Walk, spans: list[Span]) -> list[Part]:
        return [
            take_apart(name, subject, value, walk.leaves[first:last], self._is_any(name, node))
            for (name, subject, node, value), (first, last) in zip(arguments, spans, strict=True)
        ]

    def _is_any(self, parameter: str, node: Node) -> bool:
        """Whether a parameter is hinted ``Any``; ``self`` is not hinted."""
        return isinstance(node, Anything) and parameter in self.typed.parameters

    def _wrong_values(self, walk: Walk, spans: list[Span], arguments: list[Argument]) -> Iterator[Failure]:
        """What is wrong with how arrays lie, and with what is neither an array nor static."""
        failed = {failure.subject for failure in walk.failures}
        for leaf in walk.leaves:
            if leaf.hint is not None and leaf.subject not in failed and (wrong := disagreement(leaf, self.place)):
                yield wrong
        for (name, _, node, _), (first, last) in zip(arguments, spans, strict=True):
            if self._is_any(name, node):
                yield from (_no_array(leaf) for leaf in walk.leaves[first:last] if _is_refused(leaf.value))

    def _raise(self, sizes: Sizes, failures: Sequence[Failure]) -> None:
        if failures:
            raise error_of(self.place.region.report(self.typed.name, tuple(failures), sizes))

    def key(self) -> Any:
        """All that a trace depends on.

        Raises:
          StructureError: for a static value that has no hash.
        """
        types = tuple(map(_jax.type_key, jax.tree_util.tree_leaves(self.values)))
        key = (self.place, naming_around(self.naming), tuple(part.key for part in self.parts), types)
        try:
            hash(key)
        except TypeError:
            self._refuse_unhashable()
            raise
        return key

    def _refuse_unhashable(self) -> None:
        """Name the static value that has no hash."""
        for part in self.parts:
            for leaf in part.key.leaves:
                if isinstance(leaf, Fixed) and not _has_hash(leaf):
                    told = Told(f"is static, and {describe(leaf.value)} has no hash", "pass a value that can be hashed")
                    self._raise(self.sizes, [Failure(told, part.key.subject)])

    def _traced_keys(self) -> list[Key]:
        return [part.key for part in self.parts if part.key.is_traced]

    def traced(self) -> Callable[..., Any]:
        """What ``jax.jit`` traces."""
        return _traced(_plain_name(self.typed.function), self._traced_keys())

    def options_of_jit(self) -> dict[str, Any]:
        """The options of ``jax.jit`` but ``out_shardings``, which the trace tells."""
        keys = self._traced_keys()
        donated = [
            at for at, key in enumerate(keys) if self._is_chosen(self.options.donated, key.parameter, key.subject)
        ]
        options: dict[str, Any] = {"donate_argnums": tuple(donated)} if donated else {}
        return options | {"in_shardings": tuple(key.shardings(self.place) for key in keys), **self.options.others}

    def within(self, program: Callable[..., Any]) -> Any:
        """Call a program; where it is traced, that is for this call."""
        return _run(program, self.values, lambda: self)

    def arguments(self, values: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any], Scope]:
        """What the function is called with where ``jax.jit`` traces these values, and in which scope."""
        traced, keys = iter(values), [part.key for part in self.parts if part.key.is_replaced]
        args, kwargs = self.bound.replaced((key.parameter, key.subject, key.put_together(traced)) for key in keys)
        seen = self.typed.signature.bind(*args, **kwargs)
        seen.apply_defaults()
        scope = Scope(self.typed.name, seen.arguments, self.sizes, naming_around(self.naming))
        return args, kwargs, scope

    def checked(self, result: Any, scope: Scope) -> Any:
        """Check what the function returned; note its shardings."""
        assert self.typed.result is not None
        walk = Walk(self.place.region, scope.arguments, scope.sizes)
        walk.visit(self.typed.result, result, RETURN)
        walk.settle()
        self._raise(walk.sizes, walk.failures)
        # A constant lies where it was made, and is placed like all results.
        traced = [leaf for leaf in walk.leaves if _jax.is_tracer(leaf.value)]
        self._raise(walk.sizes, [wrong for leaf in traced if (wrong := disagreement(leaf, self.place))])
        stuck = [leaf for leaf in walk.leaves if _is_refused(leaf.value)]
        self._raise(walk.sizes, [_no_result(leaf) for leaf in stuck])
        found = [slot_of(leaf).sharding(self.place) for leaf in walk.leaves]
        self.outputs = jax.tree_util.tree_structure(result).unflatten(found)
        return result


_running: ContextVar[Callable[[], Call]] = ContextVar("typedshmap_jit_call")


def _run(program: Callable[..., Any], values: Iterable[Any], call: Callable[[], Call]) -> Any:
    """Call a program; where it is traced, that is for this call.

    A ``check`` that fails while XLA compiles comes out of JAX as an error of JAX's own, with ours in its text.
    """
    token = _running.set(call)
    try:
        return program(*values)
    except jax.errors.JaxRuntimeError as error:
        if (ours := told_by(error)) is not None:
            raise ours from error
        raise
    finally:
        _running.reset(token)


def _traced(name: str, keys: Sequence[Key]) -> Callable[..., Any]:
    """What ``jax.jit`` traces, by the function's own names, which JAX's messages and profiles tell."""

    def traced(*values: Any) -> Any:
        call = _running.get()()
        args, kwargs, scope = call.arguments(values)
        with inside_of(call.place.mesh), entered(scope):
            result = call.typed.function(*args, **kwargs)
        return call.checked(result, scope)

    traced.__name__ = traced.__qualname__ = name
    names = [key.subject.name if not key.subject.path else f"arg{at}" for at, key in enumerate(keys)]
    parameters = [
        inspect.Parameter(_identifier(each, at, names), inspect.Parameter.POSITIONAL_ONLY)
        for at, each in enumerate(names)
    ]
    traced.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return traced


def _identifier(name: str, at: int, names: list[str]) -> str:
    is_fit = name.isidentifier() and not keyword.iskeyword(name) and names.count(name) == 1
    return name if is_fit else f"_argument{at}"


def _plain_name(function: Callable[..., Any]) -> str:
    """What ``jax.jit`` calls a function."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _is_refused(value: Any) -> bool:
    return not isinstance(value, (*_jax.SHAPES, *_jax.ARRAYS)) and _jax.refusal(value) is not None


def _no_result(leaf: Found) -> Failure:
    return Failure(Told(f"is {describe(leaf.value)}, which is no array and cannot leave a program"), leaf.subject)


def _no_array(leaf: Found) -> Failure:
    cure = "annotate it by its own type, or name it in static_argnames, so that it is static"
    return Failure(Told(f"is {describe(leaf.value)}, but annotated as Any, and so traced", cure), leaf.subject)
