"""Compiled programs, cached by content: a program that is traced again is not compiled again.

Invariant: programs with equal keys are lowered and compiled to the same program. A program with an effect has no key.
The values of constants are not in the key: they are arguments of the compiled program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.core

from .array import is_jax_array
from .jaxpr import open_jaxpr
from .jaxpr_key import NoKey, jaxpr_key
from .mesh import ambient_devices
from .versions import CPU_FAST_COMPILE


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
    except Exception:  # for instance a deleted array, or a value without a hash
        return None
    return partial(kept[0], *constants)


def compile_fast(lowered: Any, platform: str) -> Any:
    """Compile a program that will run only a few times, so that compilation dominates: on CPUs without optimizations.

    Args:
      lowered: the result of ``lower()`` of a traced program.
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


_nothing = jax.jit(lambda: None)


def _program_key(jaxpr: Any, arguments: Sequence[Any], name: str) -> Any:
    options = jax.config.values
    if jaxpr.effects or options["jax_debug_nans"] or options["jax_debug_infs"]:
        raise NoKey
    if jaxpr.consts and not _may_be_arguments(jaxpr.consts, options):
        raise NoKey
    context = _nothing.trace().jaxpr  # JAX traces it once for each of its contexts
    placed = tuple(map(_placement, arguments))
    return name, context, ambient_devices(), *options.values(), placed, jaxpr_key(open_jaxpr(jaxpr))


def _may_be_arguments(constants: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether JAX accepts these constants as arguments, which are transferred at every call."""
    are_here = all(getattr(constant, "is_fully_addressable", True) for constant in constants)
    return are_here and all(value in (None, "allow") for name, value in options.items() if "transfer_guard" in name)


def _placement(argument: Any) -> Any:
    if not is_jax_array(argument) or not argument.committed:
        return None
    return argument.sharding, argument.format.layout
