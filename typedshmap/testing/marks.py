"""``mesh_invariant``: mark a function whose results must be the same on every mesh, for a test runner."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar, overload

from ..inspection import reading_thoroughly, signature
from .invariance import Verified, assert_mesh_invariant

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__typedshmap_invariant__"


@dataclass(frozen=True)
class InvarianceMark:
    """The arguments of a mark, which are those of `assert_mesh_invariant`.

    Attributes:
      meshes: the meshes to try; None for the default meshes.
      options: the other options, and sizes and arguments by their names.
    """

    meshes: Sequence[Any] | None
    options: Mapping[str, Any]

    def verify(self, f: Callable[..., Any]) -> Verified:
        """Run `assert_mesh_invariant` on a function, with the degrees of its numbers from a second trace.

        Raises:
          AssertionError: for a result that depends on the mesh.
        """
        with reading_thoroughly():
            return assert_mesh_invariant(f, self.meshes, **self.options)


@overload
def mesh_invariant(f: F, /) -> F: ...
@overload
def mesh_invariant(
    f: None = None,
    /,
    *,
    meshes: Sequence[Any] | None = None,
    grad: bool = False,
    exclude: str | Iterable[str] = (),
    seed: int | None = None,
    trials: int = 3,
    timeout: float = 120,
    rtol: float | None = None,
    atol: float | None = None,
    manual: bool | None = None,
    arguments: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
    **dims: Any,
) -> Callable[[F], F]: ...
def mesh_invariant(f: Any = None, /, *, meshes: Sequence[Any] | None = None, **options: Any) -> Any:
    """Mark a function whose global results must be the same on every mesh.

    ``pytest --typedshmap-verify`` runs `assert_mesh_invariant` on every marked function. Otherwise the mark
    costs nothing and does not change the function.

    ```python
    @mesh_invariant(grad=True, batch=32)
    @typed_shard_map
    def loss(w: Float[Array, "model [ff/tp]"], x: Float[Array, "[batch/dp] model"]) -> Float[Array, ""]: ...
    ```

    Args:
      f: a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also under ``jax.jit``.
      meshes: as for `assert_mesh_invariant`.
      **options: the other options, and sizes and arguments by their names.

    Returns:
      The function.

    Raises:
      StructureError: for a function that is not decorated yet; write the mark above its decorator.
    """

    def mark(function: Any) -> Any:
        signature(function, "mesh_invariant")
        setattr(function, _ATTRIBUTE, InvarianceMark(meshes, options))
        return function

    return mark if f is None else mark(f)


def find_mark(f: Any) -> InvarianceMark | None:
    """A function's mark, also through ``jax.jit`` and other wrappers; None without a mark."""
    with suppress(ValueError):  # wrappers in a circle
        marked = inspect.unwrap(f, stop=lambda wrapper: hasattr(wrapper, _ATTRIBUTE))
        mark = getattr(marked, _ATTRIBUTE, None)
        return mark if isinstance(mark, InvarianceMark) else None
    return None


class MarkedName(NamedTuple):
    """A marked function, with a module that has it and its name there."""

    module: ModuleType
    name: str
    function: Any


def marked_functions(modules: Iterable[ModuleType]) -> list[MarkedName]:
    """The marked functions of modules, each once: in the module that defines it, else in the first that has it."""
    marked: dict[int, MarkedName] = {}
    for module in modules:
        # sys.modules may hold anything.
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if _may_be_marked(value) and find_mark(value) is not None:
                home, known = getattr(value, "__module__", None), marked.get(id(value))
                if known is None or home == module.__name__ != known.module.__name__:
                    marked[id(value)] = MarkedName(module, name, value)
    return sorted(marked.values(), key=lambda place: place.module.__name__)


def _may_be_marked(value: Any) -> bool:
    """Whether a value is a function or wraps one; other attributes are not read, since that could run any code."""
    try:
        return isinstance(value, FunctionType) or "__wrapped__" in vars(value)
    except Exception:  # an object without ``__dict__``, or a lazy proxy
        return False
