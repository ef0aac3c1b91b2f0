"""A call of a ``typed_jit``: check the arguments, flatten them, and run the program that fits them.

A program is one function that ``jax.jit`` compiled: for a mesh, the types and the structure of the arguments, their
static values, and what names mean around. It is found by a key that a check of the arguments makes; a call like one
that was checked before needs no check, and its program is found by what the check would depend on. Only calls outside
of all transformations have such a key, so that no tracer is kept.

Invariant: what a program's function reads when it is traced is in its key, and a dispatch key has all that a check
depends on."""

from __future__ import annotations

import functools
import inspect
import keyword
import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar

import jax

from .. import _jax
from ..axis_names import AxisNaming
from ..errors import StructureError, error_of
from ..errors.failures import Failure, PlainMessage
from ..hints.check_array import describe
from ..hints.check_tree import array_leaves, check_arguments, check_arguments_as_traced, check_value, unknown_axes
from ..hints.context import CallScope, current_axis_naming, decorator_axis_naming, scope_entered
from ..hints.global_sharding import original_error
from ..hints.signature import POSITIONAL, HintedSignature, LazySignature
from ..hints.structure import Static, Untyped, array_hints, holds_arrays
from ..meshes import override_mesh, use_jit_mesh
from ..notation.match import RETURN, Sizes, Subject
from .arguments import (
    JitArgument,
    JitOptions,
    StaticLeaf,
    flatten_argument,
    place_unplaced,
    traced_leaf,
)
from .context import jit_context, sharding_failure

T = TypeVar("T")
_MOST = 4096
_BY_NUMBER = (*POSITIONAL, inspect.Parameter.VAR_POSITIONAL)
_CURE = "annotate it by its own type, or name it in static_argnames, so that it is static"


class JitFunction:
    """A function and the programs that were compiled from it."""

    def __init__(
        self, hinted: LazySignature, mesh: _jax.mesh.AnyMesh | None, naming: AxisNaming, options: JitOptions
    ) -> None:
        self.signature, self.mesh, self.naming, self.options = hinted, mesh, naming, options
        self._typed: HintedSignature | None = None
        self._reads_values = False
        self._programs: dict[Any, Any] = {}
        self._dispatch_cache: dict[Any, CachedDispatch] = {}
        self._lock = threading.Lock()
        if hinted.known is not None:
            self.read(())

    def read(self, args: tuple[Any, ...]) -> HintedSignature:
        """The function with its hints read.

        Raises:
          StructureError: for an option that contradicts a hint.
        """
        typed = self.signature.read(args)
        if typed is self._typed:
            return typed
        for name, node in typed.parameters.items():
            if name in self.options.static.names and holds_arrays(node):
                raise StructureError(f"{typed.name}: parameter '{name}' is to be static, but its hint holds arrays")
            if name in self.options.donated.names and not holds_arrays(node) and not isinstance(node, Untyped):
                raise StructureError(f"{typed.name}: parameter '{name}' is to be donated, but its hint holds no arrays")
        # A size like {self.heads} may change though no key shows it.
        self._reads_values = any("{" in str(h.spec) for node in typed.parameters.values() for h in array_hints(node))
        self._typed = typed
        return typed

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function, compiled."""
        if _jax.trace.is_jit_disabled():
            call = JitCall(self, args, kwargs)
            return call.within(call.traceable())
        key = dispatch_key(args, kwargs, self.naming)
        cached = self._dispatch_cache.get(key) if key is not None else None
        if cached is not None:
            values = [args[source] if isinstance(source, int) else kwargs[source] for source in cached.sources]
            # Should JAX trace it again, which it may at any time, the call is checked again.
            return _run(cached.program, values, lambda: JitCall(self, args, kwargs))
        call = JitCall(self, args, kwargs)
        program = self.program(call)
        result = call.within(program)
        is_cacheable = key is not None and not self._reads_values
        sources = call.sources(args, kwargs) if is_cacheable else None
        if sources is not None:
            self._keep(self._dispatch_cache, key, CachedDispatch(program, sources))
        return result

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower the function for these arguments, as ``jax.jit(f).lower`` does."""
        call = JitCall(self, args, kwargs, is_running=False)
        return call.within(self.program(call).lower)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the function for these arguments, as ``jax.jit(f).trace`` does."""
        call = JitCall(self, args, kwargs, is_running=False)
        return call.within(self.program(call).trace)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and dtypes of the result for these arguments, as ``jax.jit(f).eval_shape`` returns them."""
        call = JitCall(self, args, kwargs, is_running=False)
        return call.within(self.program(call).eval_shape)

    def clear_cache(self) -> None:
        """Forget all programs."""
        with self._lock:
            programs, self._programs, self._dispatch_cache = self._programs, {}, {}
        for program in programs.values():
            program.clear_cache()

    def program(self, call: JitCall) -> Any:
        """The program that fits a call; a new one is traced first, which determines the shardings of its result."""
        key = call.key()
        found = self._programs.get(key)
        if found is not None:
            return found
        function, options = call.traceable(), call.options_of_jit()
        token = _running.set(lambda: call)
        try:
            # From this frame, since JAX records the whole stack with every equation; it uses this trace again.
            jax.jit(function, **options).eval_shape(*call.values)
        finally:
            _running.reset(token)
        return self._keep(self._programs, key, jax.jit(function, out_shardings=call.out_shardings, **options))

    def _keep(self, cache: dict[Any, T], key: Any, value: T) -> T:
        """Keep a value, unless another thread was faster; the oldest one goes."""
        with self._lock:
            if len(cache) >= _MOST:
                cache.pop(next(iter(cache)))
            return cache.setdefault(key, value)


_STATIC = Static(Any)


class JitCall:
    """One call: bind, find the mesh, check and flatten the arguments, run, check the result."""

    def __init__(
        self, jitted: JitFunction, args: tuple[Any, ...], kwargs: dict[str, Any], is_running: bool = True
    ) -> None:
        options, self.naming = jitted.options, jitted.naming
        self.typed = typed = jitted.read(args)
        self.bound = typed.bind(args, kwargs)
        given, kinds = typed.arguments(self.bound), {n: p.kind for n, p in typed.signature.parameters.items()}
        positional: list[Subject] = []
        if options.static or options.donated:
            positional = [subject for name, subject, *_ in given if kinds[name] in _BY_NUMBER][len(typed.given) :]
        if static := options.static.select(given, positional):
            given = [
                (name, subject, _STATIC if subject in static and isinstance(node, Untyped) else node, value)
                for name, subject, node, value in given
            ]
        if inspect.Parameter.VAR_KEYWORD in kinds.values():
            # Keywords in any order are one program, as they are to jax.jit.
            given.sort(key=lambda each: each[1].name if kinds[each[0]] is inspect.Parameter.VAR_KEYWORD else "")

        self.context = jit_context(typed.name, jitted.mesh, self.naming, lambda: array_leaves(given), is_running)
        boundary = self.context.boundary_context
        if is_running:
            checked = check_arguments(given, self.bound.arguments, boundary)
        else:
            checked = check_arguments_as_traced(given, self.bound.arguments, boundary, has_shardings=True)
        self.sizes = checked.sizes
        failures, failed = list(checked.failures), {failure.subject for failure in checked.failures}
        for leaf in checked.leaves:
            if leaf.hint is not None and leaf.subject not in failed and (wrong := sharding_failure(leaf, self.context)):
                failures.append(wrong)
        self.flat_arguments: list[JitArgument] = []
        for (name, subject, node, value), leaves in checked.by_argument():
            is_any = isinstance(node, Untyped) and name in typed.parameters  # self has no hint
            if is_any:
                failures += [
                    Failure(
                        PlainMessage(f"is {describe(leaf.value)}, but annotated as Any, and so traced", _CURE),
                        leaf.subject,
                    )
                    for leaf in leaves
                    if _is_not_array(leaf.value)
                ]
            self.flat_arguments.append(flatten_argument(name, subject, value, leaves, is_any))
        assert typed.result is not None
        self._raise(self.sizes, [*failures, *unknown_axes(typed.result, boundary, RETURN)])

        if boundary.explicit:
            self.flat_arguments = [place_unplaced(each, self.context) for each in self.flat_arguments]
        self.traced_keys = [each.key for each in self.flat_arguments if each.key.is_traced]
        self.values = [each.value for each in self.flat_arguments if each.key.is_traced]
        self.donated, self.options = options.donated.select(given, positional), options.others
        self.out_shardings: Any = None

    def _raise(self, sizes: Sizes, failures: Sequence[Failure]) -> None:
        if failures:
            raise error_of(self.context.boundary_context.report(self.typed.name, tuple(failures), sizes))

    def key(self) -> Any:
        """All that a trace depends on.

        Raises:
          StructureError: for a static value that has no hash.
        """
        types = tuple(map(_jax.array.type_key, jax.tree_util.tree_leaves(self.values)))
        key = (self.context, decorator_axis_naming(self.naming), tuple(each.key for each in self.flat_arguments), types)
        try:
            hash(key)
        except TypeError:
            for each in self.flat_arguments:
                for leaf in each.key.leaves:
                    if isinstance(leaf, StaticLeaf) and not leaf.has_hash:
                        text = f"is static, and {describe(leaf.value)} has no hash"
                        failure = Failure(PlainMessage(text, "pass a value that can be hashed"), each.key.subject)
                        self._raise(self.sizes, [failure])
            raise
        return key

    def traceable(self) -> Callable[..., Any]:
        """What ``jax.jit`` traces, with the names of the function, which are in JAX's messages and profiles.

        It refers to no call, so that it keeps no arguments.
        """

        def traced(*values: Any) -> Any:
            call = _running.get()()
            args, kwargs, scope = call.arguments(values)
            with use_jit_mesh(call.context.mesh), scope_entered(scope):
                result = call.typed.function(*args, **kwargs)
            return call.check_result(result, scope)

        function: Any = self.typed.function
        while isinstance(function, functools.partial):
            function = function.func
        traced.__name__ = traced.__qualname__ = getattr(function, "__name__", type(function).__name__)
        names = [f"arg{at}" if key.subject.path else key.subject.name for at, key in enumerate(self.traced_keys)]
        parameters: list[inspect.Parameter] = []
        for at, name in enumerate(names):
            is_usable = name.isidentifier() and not keyword.iskeyword(name) and names.count(name) == 1
            name = name if is_usable else f"_argument{at}"
            parameters.append(inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY))
        traced.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return traced

    def options_of_jit(self) -> dict[str, Any]:
        """The options of ``jax.jit`` but ``out_shardings``, which are known once the function is traced."""
        donated = tuple(at for at, key in enumerate(self.traced_keys) if key.subject in self.donated)
        options: dict[str, Any] = {"donate_argnums": donated} if donated else {}
        return options | {
            "in_shardings": tuple(key.shardings(self.context) for key in self.traced_keys),
            **self.options,
        }

    def within(self, program: Callable[..., Any]) -> Any:
        """Call a program; if JAX traces it, then for this call."""
        return _run(program, self.values, lambda: self)

    def sources(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | str, ...] | None:
        """Where in a call the values of its program are; None if one is not an argument just as it was given."""
        parameters, found = self.typed.signature.parameters, list[int | str]()
        positional = [name for name, each in parameters.items() if each.kind in POSITIONAL]
        for each in self.flat_arguments:
            if not each.key.is_traced:
                continue
            name, subject, source = each.key.parameter, each.key.subject, len(args)
            if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                source = len(positional) + int(subject.path[1:-1]) - len(self.typed.given)
            elif name in positional:
                source = positional.index(name) - len(self.typed.given)
            is_positional = source < len(args)
            if source < 0 or (args[source] if is_positional else kwargs.get(subject.name)) is not each.value:
                return None
            found.append(source if is_positional else subject.name)
        return tuple(found)

    def arguments(self, values: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any], CallScope]:
        """What the function is called with where ``jax.jit`` traces these values, and in which scope."""
        traced, keys = iter(values), [each.key for each in self.flat_arguments if each.key.is_replaced]
        args, kwargs = self.bound.with_arguments((key.parameter, key.subject, key.unflatten(traced)) for key in keys)
        traced_bound = self.typed.signature.bind(*args, **kwargs)
        traced_bound.apply_defaults()
        scope = CallScope(self.typed.name, traced_bound.arguments, self.sizes, decorator_axis_naming(self.naming))
        return args, kwargs, scope

    def check_result(self, result: Any, scope: CallScope) -> Any:
        """The result, checked; note its shardings."""
        assert self.typed.result is not None
        context = self.context
        checked = check_value(self.typed.result, result, RETURN, context.boundary_context, scope.arguments, scope.sizes)
        self._raise(checked.sizes, checked.failures)
        # A constant is where it was made, and is placed like all results.
        traced = [leaf for leaf in checked.leaves if _jax.array.is_tracer(leaf.value)]
        self._raise(checked.sizes, [wrong for leaf in traced if (wrong := sharding_failure(leaf, context))])
        failures = [
            Failure(
                PlainMessage(f"is {describe(leaf.value)}, which is not an array and cannot leave a program"),
                leaf.subject,
            )
            for leaf in checked.leaves
            if _is_not_array(leaf.value)
        ]
        self._raise(checked.sizes, failures)
        shardings = [traced_leaf(leaf).sharding(context) for leaf in checked.leaves]
        self.out_shardings = jax.tree_util.tree_structure(result).unflatten(shardings)
        return result


_running: ContextVar[Callable[[], JitCall]] = ContextVar("typedshmap_jit_call")


def _run(program: Callable[..., Any], values: Iterable[Any], call: Callable[[], JitCall]) -> Any:
    """Call a program; if JAX traces it, then for this call.

    A ``check`` that fails while XLA compiles comes out of JAX as an error of JAX's own, with ours in its text.
    """
    token = _running.set(call)
    try:
        return program(*values)
    except jax.errors.JaxRuntimeError as error:
        if (ours := original_error(error)) is not None:
            raise ours from error
        raise
    finally:
        _running.reset(token)


def _is_not_array(value: Any) -> bool:
    is_array = isinstance(value, (*_jax.array.SHAPES, *_jax.array.ARRAYS))
    return not is_array and _jax.array.why_not_array(value) is not None


@dataclass(frozen=True, slots=True)
class CachedDispatch:
    """A program, and the position or the keyword of each of its values in a call."""

    program: Any
    sources: tuple[int | str, ...]


def dispatch_key(args: tuple[Any, ...], kwargs: dict[str, Any], naming: AxisNaming) -> Any:
    """All that a check of these arguments depends on; None where one must be made."""
    if not _jax.trace.is_outside_traces():
        return None
    try:
        leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
        context = _jax.mesh.context_mesh()
        key = (
            structure,
            tuple(map(_dispatch_leaf_key, leaves)),
            current_axis_naming(naming),
            decorator_axis_naming(naming),
            context,
            None if context.empty else _jax.mesh.ambient_devices(),
            use_jit_mesh.value,
            override_mesh.value,
            _jax.trace.has_64_bits(),
        )
        hash(key)
    except Exception:  # of arguments that cannot be flattened or hashed, which a check reports
        return None
    return key


def _dispatch_leaf_key(leaf: Any) -> Any:
    kind = _array_kind(type(leaf))
    if kind == "jax":
        # Its type has its shape and dtype, and JAX has one object for all types that are equal.
        return (jax.typeof(leaf), leaf.sharding if leaf.committed else None)
    if kind == "numpy":
        return (type(leaf), leaf.shape, leaf.dtype)
    if kind == "traced":
        raise TypeError("a value that is being traced")
    return StaticLeaf(leaf)


@lru_cache(maxsize=256)
def _array_kind(cls: type) -> Literal["jax", "numpy", "traced", "other"]:
    if issubclass(cls, (*_jax.array.TRACERS, *_jax.array.SHAPES)):
        return "traced"
    if issubclass(cls, jax.Array):
        return "jax"
    return "numpy" if issubclass(cls, _jax.array.ARRAYS) else "other"
