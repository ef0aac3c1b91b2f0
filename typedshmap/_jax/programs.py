"""Compiled programs, cached by content: a program that is traced again is not compiled again.

Invariant: programs with equal keys are lowered and compiled to the same program. A program with an effect, a function
of the user's or a constant of an inner program has no key. The values of other constants are not in the key: they are
arguments of the compiled program. No cached object refers to a jaxpr, which would keep rules of `jax.custom_jvp`
alive."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache, partial
from itertools import count
from typing import Any

import jax
import jax.core
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec, Sharding

from .array import is_jax_array
from .jaxpr import CLAIM, is_literal, open_jaxpr, scan_counts
from .mesh import ambient_devices
from .versions import CPU_FAST_COMPILE

# The parameters of some primitives that lowering does not read.
_NOT_LOWERED = {
    **dict.fromkeys(("checkpoint", "remat", "remat2"), ("policy",)),
    "custom_jvp_call": ("jvp_jaxpr_fun",),
    "custom_vjp_call": ("bwd", "fwd_jaxpr_thunk", "out_trees"),
    "custom_vmap_call": ("rule",),
    "scan": ("ft_in", "ft_out"),  # what they group is counted
    CLAIM: ("claim", "own"),
}
_PLAIN = frozenset([bool, int, str, type(None)])
# Classes that compare as in JAX.
_COMPARED = (AbstractMesh, Enum, Mesh, PartitionSpec, Sharding, bytes, frozenset, jax.core.ShapedArray, np.dtype)
_LIBRARIES = frozenset(["builtins", "jax", "jaxlib", "ml_dtypes", "numpy", "typedshmap"])


def compiled(traced: Any, arrays: Sequence[Any], name: str) -> Callable[..., Any] | None:
    """A traced program, compiled, perhaps for an earlier call.

    Args:
      traced: the result of ``jax.jit(f).trace(*arrays)``.
      arrays: the arguments of the call.
      name: the name of the program in profiles.

    Returns:
      A function of the arguments; None if the program has no key, or if JAX fails to compile it.
    """
    constants = traced.jaxpr.consts
    try:
        kept = _kept(_program_key(traced.jaxpr, (*constants, *arrays), name))
        if not kept:
            kept.append(_compile(traced, arrays))
    except Exception:  # of many kinds: an array that was deleted, a value without a hash
        return None
    return partial(kept[0], *constants)


def compile_fast(lowered: Any, platform: str) -> Any:
    """Compile a program that will run only a few times, where compiling takes the most: on CPUs without optimizations.

    Args:
      lowered: what ``lower()`` of a traced program returned.
      platform: the platform of its devices.
    """
    if platform != "cpu":
        return lowered.compile()
    try:
        return lowered.compile(CPU_FAST_COMPILE)
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return lowered.compile()  # a later XLA


def known_calls(jitted: Any) -> int:
    """The number of entries in JAX's cache of a jitted function's calls."""
    return jitted._cache_size()


@lru_cache(maxsize=128)
def _kept(key: Any) -> list[Any]:
    """A slot for the compiled program of a key."""
    return []


def _compile(traced: Any, arrays: Sequence[Any]) -> Any:
    constants, jaxpr = traced.jaxpr.consts, open_jaxpr(traced.jaxpr)
    if constants:
        after = len(constants)
        program = jax.jit(lambda *given: jax.core.eval_jaxpr(jaxpr, given[:after], *given[after:]))
        traced = program.trace(*constants, *arrays)
    return traced.lower().compile()


class _NoKey(Exception):
    """Raised for a program whose content cannot be compared."""


_nothing = jax.jit(lambda: None)


def _program_key(jaxpr: Any, arguments: Sequence[Any], name: str) -> Any:
    options = jax.config.values
    if jaxpr.effects or options["jax_debug_nans"] or options["jax_debug_infs"]:
        raise _NoKey
    if jaxpr.consts and not _may_be_arguments(jaxpr.consts, options):
        raise _NoKey
    context = _nothing.trace().jaxpr  # JAX traces it once for each of its contexts
    placed = tuple(map(_placement, arguments))
    return name, context, ambient_devices(), *options.values(), placed, _jaxpr_key(open_jaxpr(jaxpr))


def _may_be_arguments(constants: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether JAX passes these constants as arguments, too, which are transferred at every call."""
    are_here = all(getattr(constant, "is_fully_addressable", True) for constant in constants)
    return are_here and all(value in (None, "allow") for name, value in options.items() if "transfer_guard" in name)


def _placement(argument: Any) -> Any:
    if not is_jax_array(argument) or not argument.committed:
        return None
    return argument.sharding, argument.format.layout


def _jaxpr_key(jaxpr: Any) -> tuple[Any, ...]:
    """A jaxpr's equations, its variables numbered."""
    key: list[Any] = [len(jaxpr.constvars), len(jaxpr.invars)]
    numbers, next_number = dict[Any, int](), count()

    def bind(variables: Sequence[Any]) -> None:
        numbers.update(zip(variables, next_number, strict=False))
        key.extend([variable.aval for variable in variables])

    def read(atoms: Sequence[Any]) -> None:
        key.extend([_literal_key(atom) if is_literal(atom) else numbers[atom] for atom in atoms])

    bind(jaxpr.constvars)
    bind(jaxpr.invars)
    for eqn in jaxpr.eqns:
        key += eqn.primitive, eqn.ctx
        read(eqn.invars)
        key += _params_key(eqn.primitive.name, eqn.params)
        bind(eqn.outvars)
    read(jaxpr.outvars)
    return tuple(key)


def _literal_key(atom: Any) -> Any:
    value = np.asarray(atom.val)
    return atom.aval, value.dtype, value.tobytes()


def _params_key(primitive: str, params: Any) -> list[Any]:
    not_lowered = _NOT_LOWERED.get(primitive, ())
    key = [part for name, value in params.items() if name not in not_lowered for part in (name, _value_key(value))]
    return [*key, scan_counts(params)] if primitive == "scan" else key


def _value_key(value: Any) -> Any:
    """The key of a parameter: a number by its bits, a container by its items."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is tuple and _PLAIN.issuperset(map(type, value)):
        return value, *map(type, value)
    if hasattr(value, "eqns"):
        if getattr(value, "consts", ()):
            raise _NoKey
        return _jaxpr_key(open_jaxpr(value))
    if kind.__module__.partition(".")[0] not in _LIBRARIES:
        raise _NoKey
    if kind is float or kind is complex:
        return kind, struct.pack("dd", value.real, value.imag)
    if isinstance(value, (np.ndarray, np.generic)):
        return kind, value.dtype, value.shape, value.tobytes()
    if isinstance(value, _COMPARED) or _is_in_library(value):
        return value
    if isinstance(value, (tuple, list)):
        return kind, *map(_value_key, value)
    if isinstance(value, dict):
        return kind, *map(_value_key, value.items())
    if is_dataclass(value):
        return kind, *(_value_key(getattr(value, field.name)) for field in fields(value))
    if getattr(value, "__dict__", None) == {}:  # as of what stands for a sharding that is not specified
        return kind
    raise _NoKey


def _is_in_library(function: Any) -> bool:
    """Whether this is a function or a class of a library's module, which stays alive."""
    module, name = str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", ""))
    return module.partition(".")[0] in _LIBRARIES and getattr(sys.modules.get(module), name, None) is function
