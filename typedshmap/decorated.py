"""What a decorated function is made of, for the tools that read it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from . import _jax
from .errors import StructureError
from .errors.phrases import shown
from .hints.axes import NOTHING, Naming
from .hints.signatures import Hinted, name_of

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__typedshmap__"


@dataclass(frozen=True, slots=True)
class Decorated:
    """A function's hints, and what its decorator was told.

    Attributes:
      verb: which decorator made it.
      hinted: the function, whose hints are read.
      mesh: the decorator's mesh; None where it is looked up at every call.
      naming: what the decorator says of names.
      axis_names: the axes that it makes manual; empty for all.
    """

    verb: Literal["typed_shard_map", "typed_jit", "typed"]
    hinted: Hinted
    mesh: _jax.AnyMesh | None = None
    naming: Naming = NOTHING
    axis_names: frozenset[str] = frozenset()


def name_like(function: Callable[..., Any]) -> Callable[[F], F]:
    """`functools.wraps`, also for partials and callable objects; kept from beartype's import hook.

    Under ``beartype.claw`` every decorated function is checked again from outside, where its
    arguments are global and already checked.
    """

    def name(wrapper: F) -> F:
        updated = ("__dict__",) if inspect.isfunction(function) else ()
        functools.update_wrapper(wrapper, function, updated=updated)
        if not hasattr(function, "__name__"):
            wrapper.__name__ = wrapper.__qualname__ = name_of(function)
        wrapper.__no_type_check__ = True  # type: ignore[attr-defined]
        return wrapper

    return name


def noted(wrapper: F, made_of: Decorated) -> F:
    """The function that a decorator returns, which tells what it is made of."""
    setattr(wrapper, _ATTRIBUTE, made_of)
    return wrapper


def find_decorated(f: Any) -> Decorated | None:
    """What a function is made of, also through ``jax.jit`` and other wrappers; None for a plain one."""
    seen: set[int] = set()
    while f is not None and id(f) not in seen:
        seen.add(id(f))
        found = getattr(f, _ATTRIBUTE, None)
        if isinstance(found, Decorated):
            return found
        f = getattr(f, "__wrapped__", None)
    return None


def decorated(f: Any, verb: str) -> Decorated:
    """What a function is made of.

    Raises:
      StructureError: for one that no decorator of this library made.
    """
    found = find_decorated(f)
    if found is None:
        raise StructureError(
            f"{verb}: wants a function made by typed_shard_map, typed_jit or typed, whose hints say what it takes; "
            f"got {shown(f)}"
        )
    return found


def owner_of(f: Any) -> tuple[Any, ...]:
    """The instance, or the class, that a method is bound to, also by Equinox; nothing for a function."""
    owner = getattr(f, "__self__", None)
    return () if owner is None else (owner,)
