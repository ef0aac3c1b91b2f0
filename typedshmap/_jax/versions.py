"""The supported versions of JAX, the tested ones, and replacements for features that jax 0.9 lacks.

Imported before the rest of the library uses features that older versions lack. In jax 0.9

- a value has no attribute for its manual type: the axes over which it varies are in its type, those over which it is
unreduced or reduced in the sharding of its type;
- `jax.lax.all_gather` has no ``to="invarying"``, though there is a primitive for it;
- the running trace is in another module.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

import jax
import jax.core
from jax.interpreters import ad

LOWEST = "0.9.0"
NEWEST_TRIED = "0.12.0.1"


def _numbers(version: str) -> tuple[int, ...]:
    """``0.12.0.1`` as numbers; for ``0.13.0.dev20261101+abc`` those before the first word."""
    return tuple(map(int, takewhile(str.isdecimal, version.split("."))))


_installed = _numbers(jax.__version__)

if _installed < _numbers(LOWEST):
    _needed = f"jax {LOWEST} or newer (tried up to {NEWEST_TRIED})"
    raise ImportError(f"typedshmap needs {_needed}, but jax {jax.__version__} is installed")

# Before 0.10 a value has no attribute for its manual type, and the functions below replace it.
HAS_MANUAL_TYPES = _installed >= (0, 10)

# Before 0.10 XLA crashes if an unreduced value in a loop becomes unreduced over another axis.
ADDS_UNREDUCED_AXES = HAS_MANUAL_TYPES

# Before 0.10.2 a traced program has no variable for an unused result.
DROPS_UNUSED = _installed < (0, 10, 2)

# XLA's options for a program that compiles quickly and runs slower. Before 0.11 XLA has two kernel emitters; the one
# that is not the default compiles several times faster.
CPU_FAST_COMPILE: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    **({"xla_cpu_use_fusion_emitters": False} if _installed < (0, 11) else {}),
}

_UNTRIED = (
    f"jax {jax.__version__} is newer than any that typedshmap was tried on ({LOWEST} to {NEWEST_TRIED})"
    if _installed > _numbers(NEWEST_TRIED)
    else None
)


DIFFERING_MANUAL_AXES = re.compile(r"(varying manual axes|manual axis types) do not match")
"""JAX's message if two types differ only in their varying axes, up to 0.9 and later."""


def note_untried(error: BaseException) -> None:
    """Add a note, once, that this JAX is newer than the tested versions."""
    if _UNTRIED is not None and not any(_UNTRIED in note for note in getattr(error, "__notes__", ())):
        error.add_note(_UNTRIED)


@contextmanager
def noting_untried() -> Generator[None]:
    """Add that note to any exception inside the ``with``, such as of an import that a newer JAX lacks."""
    try:
        yield
    except Exception as error:
        note_untried(error)
        raise


def manual_axes_of(aval: Any) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The axes over which a value of this type varies, is unreduced, is reduced."""
    varying = getattr(aval, "vma", None) or frozenset()
    spec = getattr(getattr(aval, "sharding", None), "spec", None)
    unreduced, reduced = getattr(spec, "unreduced", ()), getattr(spec, "reduced", ())
    return frozenset(varying), frozenset(unreduced), frozenset(reduced)


@cache
def extend_core() -> Any:
    """``jax.extend.core``, imported late: it imports Pallas, a fifth of this library's import time."""
    from jax.extend import core

    if HAS_MANUAL_TYPES:
        return core
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        running = {name: getattr(jax.core, name) for name in ("get_opaque_trace_state", "take_current_trace")}
    classes = {name: getattr(core, name) for name in ("ClosedJaxpr", "Jaxpr", "Literal", "Primitive")}
    return SimpleNamespace(**classes, **running)


def gather_invarying(x: Any, axes: tuple[str, ...], dim: int) -> Any:
    """The shards over ``axes`` gathered along a dim, typed as invarying: `jax.lax.all_gather` of jax 0.9 cannot."""
    size = jax.lax.axis_size(axes)
    gather = own_primitive("all_gather_invariant")
    return gather.bind(x, all_gather_dimension=dim, axis_name=axes, axis_size=size, tiled=True)


@lru_cache(maxsize=8)
def own_primitive(name: str) -> Any:
    """A primitive of JAX that has a derivative."""
    return next(primitive for primitive in ad.primitive_jvps if primitive.name == name)
