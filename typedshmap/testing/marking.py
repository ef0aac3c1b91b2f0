"""``mesh_invariant``: mark a function whose results are to be the same on every mesh, for a test runner to find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar, overload

from ..decorated import decorated
from .invariance import Verified, assert_mesh_invariant

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__typedshmap_invariant__"


@dataclass(frozen=True)
class Marked:
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

    ``pytest --typedshmap-verify`` runs `assert_mesh_invariant` on every function so marked. The mark costs
    nothing otherwise, and the function stays as it is.

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
      StructureError: for a function that is not decorated yet: the mark stands above.
    """

    def mark(function: Any) -> Any:
        decorated(function, "mesh_invariant")
        setattr(function, _ATTRIBUTE, Marked(meshes, options))
        return function

    return mark if f is None else mark(f)


def find_mark(f: Any) -> Marked | None:
    """What a function's mark asks, also through ``jax.jit`` and other wrappers; None without one."""
    seen: set[int] = set()
    while f is not None and id(f) not in seen:
        seen.add(id(f))
        found = getattr(f, _ATTRIBUTE, None)
        if isinstance(found, Marked):
            return found
        f = getattr(f, "__wrapped__", None)
    return None


class Place(NamedTuple):
    """Where a marked function stands."""

    module: ModuleType
    name: str
    function: Any


def marked_in(modules: Iterable[ModuleType]) -> list[Place]:
    """The marked functions among the names of modules, each once: where it is defined, else where it is found first."""
    found: dict[int, Place] = {}
    for place in (place for module in modules for place in _marked(module)):
        known = found.get(id(place.function))
        if known is None or (_is_at_home(place) and not _is_at_home(known)):
            found[id(place.function)] = place
    return sorted(found.values(), key=lambda place: place.module.__name__)


def _marked(module: ModuleType) -> Iterator[Place]:
    # What stands in sys.modules may be anything.
    for name, value in list(getattr(module, "__dict__", {}).items()):
        if _may_be_marked(value) and find_mark(value) is not None:
            yield Place(module, name, value)


def _may_be_marked(value: Any) -> bool:
    """Whether a value is a function, or wraps one; of other objects nothing is asked, which may do anything."""
    try:
        return isinstance(value, FunctionType) or "__wrapped__" in vars(value)
    except Exception:  # no attributes of its own, or a stand-in for something that is not there yet
        return False


def _is_at_home(place: Place) -> bool:
    return getattr(place.function, "__module__", None) == place.module.__name__
