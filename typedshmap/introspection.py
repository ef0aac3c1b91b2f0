"""The hints and options of a decorated function, for inspection."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

from jax.sharding import AbstractMesh, Mesh

from . import _jax
from .axis_names import NO_NAMING, AxisNaming
from .errors import StructureError
from .errors.phrases import name_of, value_text
from .errors.places import running_place
from .hints.signature import EMPTY, LazySignature, Specs
from .hints.specs import says_sharding
from .records import Record

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__typedshmap__"


class DecoratedInfo(Record):
    """A function's hints, and the options of its decorator.

    Attributes:
      verb: the decorator.
      signature: the function, with a lazy reader of its hints.
      mesh: the decorator's mesh; None if it is looked up at every call.
      naming: the decorator's aliases and rules.
      axis_names: the axes that it makes manual; empty for all.
      specs: the specs that replace hints.
    """

    verb: Literal["typed_shard_map", "typed_jit", "typed"]
    signature: LazySignature
    mesh: _jax.mesh.AnyMesh | None = None
    naming: AxisNaming = NO_NAMING
    axis_names: frozenset[str] = frozenset()
    specs: Specs | None = None


def wraps(function: Callable[..., Any], info: DecoratedInfo) -> Callable[[F], F]:
    """`functools.wraps`, also for partials and callable objects, with the info that `find_decorated` finds.

    The wrapper is hidden from beartype's import hook: ``beartype.claw`` would check every decorated function again
    from outside, where the arguments are global arrays and already checked.
    """

    def name(wrapper: F) -> F:
        updated = ("__dict__",) if inspect.isfunction(function) else ()
        functools.update_wrapper(wrapper, function, updated=updated)
        if not hasattr(function, "__name__"):
            wrapper.__name__ = wrapper.__qualname__ = name_of(function)
        wrapper.__no_type_check__ = True  # type: ignore[attr-defined]
        setattr(wrapper, _ATTRIBUTE, info)
        return wrapper

    return name


def find_decorated(f: Any) -> DecoratedInfo | None:
    """A decorated function's hints and options, also through ``jax.jit`` and other wrappers; None for a plain function.

    A function with specs instead of hints counts as plain: specs give neither ranks nor dtypes.
    """
    info = _info_of(f)
    return None if info is not None and info.specs is not None and not _has_all_hints(info.signature) else info


def _has_all_hints(signature: LazySignature) -> bool:
    """Whether hints give the sharding of all arguments and the result; False if the hints are not read yet."""
    typed = signature.known
    if typed is None or typed.positional or not says_sharding(typed.result):
        return False
    names = list(typed.signature.parameters)[len(typed.given) :]
    return all(says_sharding(typed.parameters.get(name)) for name in names)


def _info_of(f: Any) -> DecoratedInfo | None:
    """The info of a function, or of the first function it wraps that has one."""
    seen: set[int] = set()
    while f is not None and id(f) not in seen:
        seen.add(id(f))
        info = getattr(f, _ATTRIBUTE, None)
        if isinstance(info, DecoratedInfo):
            return info
        f = getattr(f, "__wrapped__", None)
    return None


def caller_frame(depth: int) -> types.FrameType | None:
    """The frame ``depth`` calls above the caller of this."""
    frame = inspect.currentframe()
    for _ in range(depth + 1):
        frame = frame.f_back if frame is not None else None
    return frame


Wrap: TypeAlias = Callable[[Callable[..., Any], LazySignature, DecoratedInfo | None], Callable[..., Any]]


def decorate(
    f: Any,
    wrap: Wrap,
    frame: types.FrameType | None,
    in_types: Any = None,
    out_types: Any = EMPTY,
    strict: bool = True,
    specs: Specs | None = None,
) -> Any:
    """Decorate a function, or a descriptor such as a ``classmethod``; ``frame`` is the decorator's."""

    def decorated(function: Any) -> Any:
        below, takes, returns = find_decorated(function), in_types, out_types
        if below is not None:
            takes = below.signature.in_types if takes is None else takes
            returns = below.signature.out_types if returns is EMPTY else returns
        return wrap(function, LazySignature(function, frame, takes, returns, strict, specs), below)

    match f:
        case classmethod() | staticmethod():
            return type(f)(decorated(f.__func__))
        case property():
            fget, fset, fdel = (part and decorated(part) for part in (f.fget, f.fset, f.fdel))
            return type(f)(fget, fset, fdel, f.__doc__)
        case functools.cached_property():
            return type(f)(decorated(f.func))
        case functools.partialmethod():
            return type(f)(decorated(f.func), *f.args, **f.keywords)
        case Mesh() | AbstractMesh():  # callable, as a decorator
            cure = "pass the mesh by keyword, as mesh=" if strict else "its mesh is known where the function is called"
            raise StructureError(f"got a mesh as the function\n\nHint: {cure}", running_place())
        case _:
            return decorated(f)


def require_decorated(f: Any, verb: str) -> DecoratedInfo:
    """A decorated function's hints and options."""
    info = find_decorated(f)
    if info is None and _info_of(f) is not None:
        raise StructureError(
            f"{verb}: {name_of(f)}: its in_specs and out_specs say neither ranks nor dtypes, and hints are missing\n\n"
            "Hint: write them; prove, assert_mesh_invariant, assert_cost and explain take its arguments instead"
        )
    if info is None:
        raise StructureError(
            f"{verb}: expects a function made by typed_shard_map, typed_jit or typed, whose hints say what it takes; "
            f"got {value_text(f)}"
        )
    return info


def bound_self(f: Any) -> tuple[Any, ...]:
    """The instance or the class of a bound method, also of Equinox; empty for a function."""
    owner = getattr(f, "__self__", None)
    return () if owner is None else (owner,)
