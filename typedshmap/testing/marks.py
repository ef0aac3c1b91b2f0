"""``mesh_invariant``: mark a function whose results are to be the same on every mesh, for a test runner to find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar, overload

from ..introspection import find_attribute, require_decorated
from .invariance import Verified, assert_mesh_invariant

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__typedshmap_invariant__"


@dataclass(frozen=True)
class InvarianceMark:
    """What a mark asks.

    Attributes:
      meshes: the meshes to try; None for the default ones.
      options: what else `assert_mesh_invariant` takes.
    """

    meshes: Sequence[Any] | None
    options: Mapping[str, Any]

    def verify(self, f: Callable[..., Any]) -> Verified:
        """Demand it of a function.

        Raises:
          AssertionError: for a result that depends on the mesh.
        """
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
    rtol: float | None = None,
    atol: float | None = None,
    manual: bool | None = None,
    arguments: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Callable[[F], F]: ...
def mesh_invariant(f: Any = None, /, *, meshes: Sequence[Any] | None = None, **options: Any) -> Any:
    """Mark a function whose global results are to be the same on every mesh.

    ``pytest --typedshmap-verify`` runs `assert_mesh_invariant` on every marked function. Otherwise the mark
    costs nothing and does not change the function.

    ```python
    @mesh_invariant(grad=True, batch=32)
    @typed_shard_map
    def loss(w: Float[Array, "model [ff/tp]"], x: Float[Array, "[batch/dp] model"]) -> Float[Array, ""]: ...
    ```

    Args:
      f: a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also under ``jax.jit``.
      meshes: as for `assert_mesh_invariant`, like all that follows.
      **options: the other options, and sizes and arguments by their names.

    Returns:
      The function.

    Raises:
      StructureError: for a function that is not decorated yet: write the mark above its decorator.
    """

    def mark(function: Any) -> Any:
        require_decorated(function, "mesh_invariant")
        setattr(function, _ATTRIBUTE, InvarianceMark(meshes, options))
        return function

    return mark if f is None else mark(f)


def find_mark(f: Any) -> InvarianceMark | None:
    """What a function's mark asks, also through ``jax.jit`` and other wrappers; None without one."""
    return find_attribute(f, _ATTRIBUTE, InvarianceMark)


class MarkedName(NamedTuple):
    """A marked function, and where it is found."""

    module: ModuleType
    name: str
    function: Any


def marked_functions(modules: Iterable[ModuleType]) -> list[MarkedName]:
    """The marked functions among the names of modules, each once: where it is defined, else where it is found first."""
    found: dict[int, MarkedName] = {}
    for module in modules:
        # sys.modules may hold anything.
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if _may_be_marked(value) and find_mark(value) is not None:
                home, known = getattr(value, "__module__", None), found.get(id(value))
                if known is None or home == module.__name__ != known.module.__name__:
                    found[id(value)] = MarkedName(module, name, value)
    return sorted(found.values(), key=lambda place: place.module.__name__)


def _may_be_marked(value: Any) -> bool:
    """Whether a value is a function or wraps one; looking up attributes of other objects may do anything."""
    try:
        return isinstance(value, FunctionType) or "__wrapped__" in vars(value)
    except Exception:  # no attributes of its own, or a stand-in for something that is not there yet
        return False
