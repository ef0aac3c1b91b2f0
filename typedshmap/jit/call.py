"""A call of a ``typed_jit``: check the arguments, flatten them, and run the program that fits them.

A program is a function compiled by ``jax.jit`` for a mesh, the types and the tree structure of the arguments, their
static values, and the meaning of names. Its key is made when the arguments are checked. A call similar to an earlier
call is not checked again, but compared with it, leaf by leaf: types and shardings are mostly the same objects, so the
comparison is cheap. Several such calls may run one program, which must be traced once: an argument may be positional or
keyword, placed or not. A call under a transformation is not kept, since that would keep its tracers.

The form of a call is its number of arguments and its keywords. If all calls of a form have run one program, JAX's own
cache decides: a call is checked only if that cache misses.

Invariant: everything that the function of a program reads at trace time is in the program's key, and everything that a
check depends on is compared."""

from __future__ import annotations

import functools
import inspect
import keyword
import operator
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from itertools import count
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from .. import _jax
from ..axis_names import FLAX, AxisNaming, flax_naming
from ..errors import StructureError
from ..errors.failures import RETURN, Failure, PlainMessage, Subject
from ..errors.phrases import name_of
from ..hints.check_array import describe
from ..hints.check_structs import check_arguments_as_traced
from ..hints.check_tree import (
    array_leaves,
    check_arguments,
    check_value,
    non_array_failures,
    result_place,
    unknown_axes,
)
from ..hints.context import CallScope, current_axis_naming, decorator_axis_naming, scope_entered
from ..hints.enforcement import enforced
from ..hints.fitting import LeafKinds, Undecided, array_kind, sharding_at_rest
from ..hints.global_sharding import original_error
from ..hints.signature import HintedSignature, LazySignature
from ..hints.structure import BareTree, Static, Untyped, array_hints, declares_arrays, holds_arrays
from ..introspection import find_decorated
from ..observers import Boundary, HintedValue, ObservedCall, hinted_values, run_observed
from .flat_arguments import ArgumentKey, StaticLeaf, flatten_argument, parse_options, place_unplaced, traced_leaf
from .jit_context import jit_context, sharding_failure

T = TypeVar("T")
Dispatched = tuple[Any, tuple[int | str, ...]]
"""A program, and for each of its arguments the position or the keyword in the call."""
_MOST, _MOST_SHAPES = 4096, 64
_STATIC = Static(Any)
_CURE_OF_RESULT = "return the arrays alone, as eqx.filter(x, eqx.is_array) does, or make it a static field"
_CURE_OF_ANY = "annotate it by its own type, or name it in static_argnames, so that it is static"


class JitFunction:
    """A function and its compiled programs."""

    def __init__(
        self, hinted: LazySignature, mesh: _jax.mesh.AnyMesh | None, naming: AxisNaming, function: Any, options: Any
    ) -> None:
        self.name, self.signature, self.mesh, self.naming = name_of(function), hinted, mesh, naming
        self._has_devices = isinstance(mesh, Mesh)  # else the ambient mesh or the arguments determine the devices
        self.static, self.donated, self.options = parse_options(function, options)
        self._typed: HintedSignature | None = None
        self._reads_values = False
        self._programs: dict[Any, Any] = {}
        # The programs of earlier calls, by the surroundings of the call. Without it a call with 300 leaves takes 32
        # times the Python calls.
        self._known_calls: dict[Any, list[tuple[LeafKinds, Dispatched]]] = {}
        # By the form of a call; None if its calls have run several programs. Without it a call takes 2.5 times the
        # calls.
        self._trusted: dict[Any, TrustedForm | None] = {}
        self._trusts_jax = True
        self._calls = count()  # the observed calls
        below = find_decorated(function)
        # A typed_shard_map over all axes has the same hints.
        self._has_region_below = below is not None and below.verb == "typed_shard_map" and not below.axis_names
        self._lock = threading.Lock()
        if hinted.known is not None:
            self.read(())

    def read(self, args: tuple[Any, ...]) -> HintedSignature:
        """The function with its parsed hints."""
        typed = self.signature.read(args)
        if typed is self._typed:
            return typed
        for name, node in typed.parameters.items():
            if name in self.static.names and declares_arrays(node):
                problem = f"parameter '{name}' is to be static, but its hint holds arrays"
                raise StructureError(f"{typed.name}: {problem}", typed.hint_place(name))
            if name in self.donated.names and not holds_arrays(node) and not isinstance(node, Untyped):
                problem = f"parameter '{name}' is to be donated, but its hint holds no arrays"
                raise StructureError(f"{typed.name}: {problem}", typed.hint_place(name))
        # A size like {self.heads} may change without a change of the key.
        self._reads_values = any(h.reads_arguments for node in typed.parameters.values() for h in array_hints(node))
        self._typed = typed
        return typed

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function, compiled."""
        form, leaves, surroundings = None, [], None
        if is_outside := _jax.trace.is_outside_traces():
            naming = decorator_axis_naming(self.naming)
            mesh = None if self._has_devices else _jax.mesh.ambient_devices()
            flax = flax_naming() if FLAX in sys.modules else None
            form = (None if naming is self.naming else naming, flax, mesh, len(args), *kwargs)
            trusted = self._trusted.get(form)
            if trusted is not None:
                try:
                    return trusted.run(self, args, kwargs)
                except _OtherProgramError:
                    pass
        is_compiled = not _jax.trace.is_jit_disabled()
        if is_outside and is_compiled:
            leaves, surroundings = dispatch_leaves(args, kwargs, self.naming)
        for kinds, (program, sources) in self._known_calls.get(surroundings, ()):
            if kinds.are_of(leaves):
                values = [args[source] if isinstance(source, int) else kwargs[source] for source in sources]
                # JAX may trace it again at any time; then the call is checked again.
                return _run(program, values, lambda: JitCall(self, args, kwargs))
        kinds = None if surroundings is None or self._reads_values else _kinds_of(leaves)  # before they are donated
        call = JitCall(self, args, kwargs)
        program = self.program(call) if is_compiled else call.traceable()
        result = _run(program, call.values, lambda: call)
        if kinds is not None and (sources := call.sources(args, kwargs)) is not None:
            known = self._keep(self._known_calls, surroundings, [])
            known[:] = [(kinds, (program, sources)), *known[: _MOST_SHAPES - 1]]
            self._trust(form, call, (program, sources), args, kwargs)
        return result

    def run_observed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function under the observers."""
        values = jax.tree_util.tree_leaves((args, kwargs))
        call = ObservedCall(self.name, values, self._calls, lambda: self._boundary(args, kwargs))
        return run_observed(call, lambda: self.run(args, kwargs))

    def _boundary(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Boundary:
        call = JitCall(self, args, kwargs)
        typed, context = call.typed, call.context

        def results(returned: Any) -> list[HintedValue]:
            assert typed.result is not None
            arguments = call.bound.arguments
            checked = check_value(typed.result, returned, RETURN, context.boundary_context, arguments, call.sizes)
            return hinted_values(checked.leaves, lambda _: typed.return_place)

        return Boundary(
            context.mesh,
            context.mesh.shape_tuple,
            context.boundary_context,
            call.sizes,
            hinted_values(call.leaves, typed.hint_place),
            call.static_values(),
            results,
            lambda: _run(self.program(call).lower, call.values, lambda: call).as_text(),
            may_donate=True,
            is_within=self._has_region_below,
        )

    def _trust(
        self, form: Any, call: JitCall, dispatched: Dispatched, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Let JAX's cache decide on calls of this form, unless they run several programs.

        It cannot decide if the mesh comes from the arguments, if an argument must be placed before JAX types it, or if
        an argument is donated, since it must be checked before JAX takes its buffer.
        """
        is_typed, is_donated = call.context.boundary_context.explicit, bool(self.donated.names)
        has_mesh = self._has_devices or isinstance(_jax.mesh.ambient_devices(), Mesh)
        if not self._trusts_jax or is_typed or is_donated or not has_mesh:
            return
        new = TrustedForm(call.key(), dispatched, args, kwargs)
        known = self._keep(self._trusted, form, new)
        if known is not None and known.key != new.key:
            self._trusted[form] = None

    def distrust(self) -> None:
        """Compare all calls leaf by leaf from now on: JAX's cache has an entry that must not be used."""
        self._trusts_jax, self._trusted = False, {}

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower the function for these arguments, as ``jax.jit(f).lower`` does."""
        return self._staged("lower", args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the function for these arguments, as ``jax.jit(f).trace`` does."""
        return self._staged("trace", args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and dtypes of the result for these arguments, as ``jax.jit(f).eval_shape`` returns them."""
        return self._staged("eval_shape", args, kwargs)

    def _staged(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = JitCall(self, args, kwargs, is_running=False)
        return _run(getattr(self.program(call), method), call.values, lambda: call)

    def clear_cache(self) -> None:
        """Clear all caches."""
        with self._lock:
            programs, self._programs, self._known_calls = self._programs, {}, {}
            self._trusted, self._trusts_jax = {}, True
        for program in programs.values():
            program.clear_cache()

    def program(self, call: JitCall) -> Any:
        """The program for a call; a new one is traced first, which determines the shardings of its result."""
        key = call.key()
        cached = self._programs.get(key)
        if cached is not None:
            return cached
        function, traced = call.traceable(), call.traced_keys
        options: dict[str, Any] = {
            "in_shardings": tuple(argument_key.shardings(call.context) for argument_key in traced),
            **self.options,
        }
        if donated := tuple(at for at, argument_key in enumerate(traced) if argument_key.subject in call.donated):
            options["donate_argnums"] = donated
        token = _running.set(lambda: call)
        try:
            # Traced from this frame, since JAX records the whole stack with every equation; the trace is reused.
            jax.jit(function, **options).trace(*call.values)
        finally:
            _running.reset(token)
        return self._keep(self._programs, key, jax.jit(function, out_shardings=call.out_shardings, **options))

    def _keep(self, cache: dict[Any, T], key: Any, value: T) -> T:
        """Keep a value, unless another thread was faster; evict the oldest entry."""
        with self._lock:
            if len(cache) >= _MOST:
                cache.pop(next(iter(cache)))
            return cache.setdefault(key, value)


class JitCall:
    """One call: bind, find the mesh, check and flatten the arguments, run, check the result."""

    def __init__(
        self, jitted: JitFunction, args: tuple[Any, ...], kwargs: dict[str, Any], is_running: bool = True
    ) -> None:
        self.typed, self.naming = jitted.read(args), jitted.naming
        typed, self.bound = self.typed, self.typed.bind(args, kwargs)
        arguments, kinds = typed.arguments(self.bound), {n: p.kind for n, p in typed.signature.parameters.items()}
        self.donated = jitted.donated.select(arguments, kinds, len(typed.given))
        if static := jitted.static.select(arguments, kinds, len(typed.given)):
            arguments = [
                (name, subject, _STATIC if subject in static and isinstance(node, (Untyped, BareTree)) else node, value)
                for name, subject, node, value in arguments
            ]
        if inspect.Parameter.VAR_KEYWORD in kinds.values():
            # The order of keyword arguments does not matter, as for jax.jit.
            arguments.sort(
                key=lambda argument: argument[1].name if kinds[argument[0]] is inspect.Parameter.VAR_KEYWORD else ""
            )

        self.context = jit_context(typed.name, jitted.mesh, self.naming, lambda: array_leaves(arguments), is_running)
        boundary = self.context.boundary_context
        if is_running:
            checked = check_arguments(arguments, self.bound.arguments, boundary, typed.fits)
        else:
            checked = check_arguments_as_traced(arguments, self.bound.arguments, boundary, typed.fits)
        self.sizes, self.leaves = checked.sizes, checked.leaves
        failures, failed = list(checked.failures), {failure.subject for failure in checked.failures}
        failures += [
            wrong
            for leaf in checked.leaves
            if leaf.subject not in failed and (wrong := sharding_failure(leaf, self.context))
        ]
        self.keys: list[ArgumentKey] = []
        self.values: list[Any] = []
        for (name, subject, node, value), leaves in checked.by_argument():
            is_any = isinstance(node, Untyped) and name in typed.parameters  # self has no hint
            if is_any:
                failures += non_array_failures(leaves, "but annotated as Any, and so traced", _CURE_OF_ANY)
            key, value = flatten_argument(name, subject, value, leaves, is_any)
            self.keys.append(key)
            self.values += [value] if key.traced else []
        assert typed.result is not None
        if failures := [*enforced(failures), *unknown_axes(typed.result, boundary, RETURN)]:
            raise boundary.error(typed.name, failures, self.sizes)

        self.traced_keys = [key for key in self.keys if key.traced]
        if boundary.explicit:
            pairs = zip(self.traced_keys, self.values, strict=True)
            self.values = [place_unplaced(key, value, self.context) for key, value in pairs]
        self.out_shardings: Any = None

    def key(self) -> Any:
        """Everything that a trace depends on."""
        types = tuple(map(_jax.array.type_key, jax.tree_util.tree_leaves(self.values)))
        key = (self.context, decorator_axis_naming(self.naming), tuple(self.keys), types)
        try:
            hash(key)
        except TypeError:
            static = [(key.subject, leaf) for key in self.keys for leaf in key.leaves if isinstance(leaf, StaticLeaf)]
            for subject, leaf in static:
                try:
                    hash(leaf)
                except TypeError:
                    problem = f"is static, and {describe(leaf.value)} has no hash"
                    wrong = Failure(PlainMessage(problem, "pass a value that can be hashed"), subject)
                    raise self.context.boundary_context.error(self.typed.name, [wrong], self.sizes) from None
            raise
        return key

    def static_values(self) -> list[tuple[Subject, Any]]:
        """The static leaves of the arguments."""
        return [(key.subject, leaf.value) for key in self.keys for leaf in key.leaves if isinstance(leaf, StaticLeaf)]

    def traceable(self) -> Callable[..., Any]:
        """The function that ``jax.jit`` traces, with the user's names, for JAX's messages and profiles.

        It has no reference to the call, so that it keeps no arguments alive.
        """

        def traced(*values: Any) -> Any:
            call = _running.get()()
            args, kwargs, scope = call.arguments(values)
            call.state_arguments(values)
            with _jax.mesh.jit_mesh(call.context.mesh), scope_entered(scope):
                result = call.typed.function(*args, **kwargs)
            return call.check_result(result, scope)

        function: Any = self.typed.function
        while isinstance(function, functools.partial):
            function = function.func
        traced.__name__ = traced.__qualname__ = getattr(function, "__name__", type(function).__name__)
        names = [f"arg{at}" if key.subject.path else key.subject.name for at, key in enumerate(self.traced_keys)]
        is_usable = [name.isidentifier() and not keyword.iskeyword(name) and names.count(name) == 1 for name in names]
        parameters = [
            inspect.Parameter(name if is_usable[at] else f"_argument{at}", inspect.Parameter.POSITIONAL_ONLY)
            for at, name in enumerate(names)
        ]
        traced.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return traced

    def sources(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | str, ...] | None:
        """The position or the keyword of each argument of the program; None if a value is only part of an argument."""
        # Bind positions and keywords as the arguments are bound.
        bound = self.typed.bind(tuple(range(len(args))), {name: name for name in kwargs})
        arguments = self.typed.arguments(bound)[len(self.typed.given) :]
        by_subject = {subject: source for name, subject, _, source in arguments if name in bound.given}
        sources = tuple(by_subject.get(key.subject, -1) for key in self.traced_keys)
        given = {**dict(enumerate(args)), **kwargs}
        return sources if all(map(operator.is_, map(given.get, sources), self.values)) else None

    def arguments(self, values: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any], CallScope]:
        """The arguments of the function, built from tracers, and the scope of the call."""
        traced = iter(values)
        replaced = [(key.parameter, key.subject, key.unflatten(traced)) for key in self.keys if key.is_replaced]
        args, kwargs = self.bound.with_arguments(replaced)
        named = self.typed.signature.bind(*args, **kwargs)
        named.apply_defaults()
        naming, region = decorator_axis_naming(self.naming), self.context.boundary_context
        return args, kwargs, CallScope(self.typed.name, named.arguments, self.sizes, naming, region)

    def state_arguments(self, values: Iterable[Any]) -> None:
        """Record the shardings of the tracers, by their hints, for the functions called in the body."""
        for key, value in zip(self.traced_keys, values, strict=True):
            for (hint, _), leaf in zip(key.traced, jax.tree_util.tree_leaves(value), strict=True):
                if hint is not None:
                    self.context.state(leaf, hint, f"{self.typed.name}'s hint of {key.subject.phrase}")

    def check_result(self, result: Any, scope: CallScope) -> Any:
        """Check the result, and set its shardings."""
        assert self.typed.result is not None
        context, region = self.context, self.context.boundary_context
        checked = check_value(self.typed.result, result, RETURN, region, scope.arguments, scope.sizes)
        # A constant keeps its own sharding until it is placed like all results.
        leaves = [leaf for leaf in checked.leaves if _jax.array.is_tracer(leaf.value)]
        failures = (
            enforced(checked.failures)
            or enforced(wrong for leaf in leaves if (wrong := sharding_failure(leaf, context, is_result=True)))
            or non_array_failures(checked.leaves, "which is not an array and cannot leave a program", _CURE_OF_RESULT)
        )
        if failures:
            place = result_place(self.typed, failures, checked.leaves)
            raise region.error(self.typed.name, failures, checked.sizes, place)
        shardings = [context.sharding(*traced_leaf(leaf)) for leaf in checked.leaves]
        structure = jax.tree_util.tree_structure(result)
        # JAX rejects a tree of shardings if a class accepts only arrays, and a sharding with an unconstrained dim.
        if takes_shardings := _jax.tree.takes_any_leaves(structure):
            self.out_shardings = structure.unflatten(shardings)
        placed = [
            leaf.value if leaf.hint is None or (takes_shardings and where) else context.place(leaf.value, leaf.hint)
            for leaf, where in zip(checked.leaves, shardings, strict=True)
        ]
        is_same = all(map(operator.is_, placed, (leaf.value for leaf in checked.leaves)))
        return result if is_same else structure.unflatten(placed)


_running: ContextVar[Callable[[], JitCall]] = ContextVar("typedshmap_jit_call")


def _run(program: Callable[..., Any], values: Iterable[Any], call: Callable[[], JitCall]) -> Any:
    """Run a program; if JAX traces it, it is traced for this call.

    If a ``check`` fails while XLA compiles, JAX raises its own error, with ours in its text.
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


class _OtherProgramError(Exception):
    """A call does not run the program of its form."""


class TrustedForm:
    """The program that all calls of one form have run so far.

    JAX runs a program at once if the structure, types, shardings and commitment of its arguments, and JAX's contexts
    (ours among them), equal those of an earlier call. Otherwise its cache grows; then the call is checked here,
    because JAX does not check devices: it moves arrays from other devices.
    """

    def __init__(self, key: Any, dispatched: Dispatched, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.key = key
        self._program, self._sources = dispatched
        self._takes_args = not kwargs and self._sources == tuple(range(len(args)))
        given = {**dict(enumerate(args)), **kwargs}
        self._static = [(at, _static_key(value)) for at, value in given.items() if at not in self._sources]

    def run(self, jitted: JitFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the program for a call."""
        program, values = self._program, args
        if not self._takes_args:
            given = {**dict(enumerate(args)), **kwargs}
            try:
                is_same = all(_static_key(given[at]) == key for at, key in self._static)
            except Exception:  # for arguments that cannot be flattened, or from the user's __eq__
                is_same = False
            if not is_same:
                raise _OtherProgramError
            values = [given[at] for at in self._sources]
        known = _jax.programs.known_calls(program)
        try:
            result = _run(program, values, lambda: self._checked(jitted, args, kwargs))
        except Exception:
            if self._is_for(jitted, args, kwargs):
                raise
            raise _OtherProgramError from None
        if _jax.programs.known_calls(program) != known and not self._is_for(jitted, args, kwargs):
            jitted.distrust()
            raise _OtherProgramError
        return result

    def _checked(self, jitted: JitFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JitCall:
        call = JitCall(jitted, args, kwargs)
        if call.key() != self.key:
            raise _OtherProgramError
        return call

    def _is_for(self, jitted: JitFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        try:
            self._checked(jitted, args, kwargs)
        except Exception:  # an error of the call itself is raised when it is checked again
            return False
        return True


def _static_key(value: Any) -> Any:
    leaves, structure = jax.tree_util.tree_flatten(value)
    return structure, list(map(_key_of_static, leaves))


def dispatch_leaves(args: tuple[Any, ...], kwargs: dict[str, Any], naming: AxisNaming) -> tuple[list[Any], Any]:
    """The leaves of a call, and everything else that a check depends on; None if the call must be checked."""
    try:
        leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
        context = _jax.mesh.context_mesh()
        surroundings = (
            structure,
            current_axis_naming(naming),
            decorator_axis_naming(naming),
            context,
            None if context.empty else _jax.mesh.ambient_devices(),
            _jax.mesh.jit_mesh.value,
            _jax.mesh.override_mesh.value,
            _jax.trace.has_64_bits(),
        )
        hash(surroundings)
    except Exception:  # the check reports arguments that cannot be flattened or hashed
        return [], None
    return leaves, surroundings


def _kinds_of(leaves: Sequence[Any]) -> LeafKinds | None:
    """The kinds of the leaves of a call; None if it must be checked, like a call with tracers."""
    try:
        return LeafKinds(leaves, _key_of_static, sharding_at_rest)
    except Undecided:
        return None


def _key_of_static(leaf: Any) -> Any:
    kind = array_kind(type(leaf))
    if kind is np.ndarray:
        return leaf.shape, leaf.dtype
    if kind is object:
        return StaticLeaf(leaf)
    raise Undecided
