"""``typed``: a helper function checked where it is called, inside or outside a manual region."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from . import _jax
from .check import handed_leaves, handed_on, region_of_failure, with_leaves
from .decorated import Decorated, name_like, noted
from .errors import error_of
from .errors.failures import Failure, Varies
from .hints.axes import Axes, AxisRules, Naming, Pairs, read_naming
from .hints.binding import Bound, Typed
from .hints.postponed import caller
from .hints.scope import Region, Scope, current_reading, current_region, entered, naming_around
from .hints.signatures import Hinted
from .hints.walk import Walk
from .notation.sizes import RETURN, Sizes, Subject

F = TypeVar("F", bound=Callable[..., Any])


@overload
def typed(f: F, /, *, axes: Mapping[str, Axes] | None = None, rules: Pairs | AxisRules | None = None) -> F: ...
@overload
def typed(
    f: None = None, /, *, axes: Mapping[str, Axes] | None = None, rules: Pairs | AxisRules | None = None
) -> Callable[[F], F]: ...
def typed(f: Any = None, /, *, axes: Mapping[str, Axes] | None = None, rules: Pairs | AxisRules | None = None) -> Any:
    """Check a function's arguments and result against its hints, at every call.

    In a manual region the values are shards, elsewhere global arrays. A value that is equal on all
    shards, though JAX types it as varying, needs no mark, except for a float result of rank 0, whose
    gradient inside of the region would be too large. Every call has sizes of its own. Parameters
    without arrays are checked by beartype, those without a hint not at all.

    ```python
    @typed
    def mean_loss(logits: Float[Array, "[b/dp] v"], y: Int[Array, "[b/dp]"]) -> Float[Array, "+dp"]:
        return cross_entropy(logits, y).sum() / size("b")
    ```

    Args:
      f: the function.
      axes: names in the hints that stand for mesh axes.
      rules: mesh axes for dims without brackets, by their names, as `axis_rules` takes them.

    Returns:
      The function; values marked ``+axis`` are handed on as unreduced.

    Raises:
      ShapeError, DtypeError, ShardingError, VaryingError, StructureError: for arguments or a result
        that are not what their hints say.
    """
    _jax.load_extend()
    naming = read_naming(axes, rules)
    if f is None:
        return lambda function: _wrap(function, naming, Hinted(function, caller(1), strict=False))
    return _wrap(f, naming, Hinted(f, caller(1), strict=False))


def _wrap(function: Callable[..., Any], naming: Naming, hinted: Hinted) -> Callable[..., Any]:
    @name_like(function)
    def typed_helper(*args: Any, **kwargs: Any) -> Any:
        call = _Call(hinted.read(args), naming, args, kwargs)
        with entered(call.scope):
            result = call.function(*call.args, **call.kwargs)  # from this frame, as the module `tracing` says why
        return call.checked(result)

    return noted(typed_helper, Decorated("typed", hinted, None, naming))


class _Call:
    """One call: its arguments checked, and what is to be checked of its result."""

    def __init__(self, typed: Typed, naming: Naming, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.typed, self.function = typed, typed.function
        self.region = region = current_region(naming)
        bound = typed.bind(args, kwargs)
        sizes, changed = _check_arguments(typed, bound, region)
        self.args, self.kwargs = bound.replaced(changed)
        self.scope = Scope(
            typed.name,
            bound.arguments,
            sizes,
            naming_around(naming),
            manual=frozenset(region.sizes),
            watched=region.watched,
            typed=region.typed,
            reading=current_reading(),
        )

    def checked(self, result: Any) -> Any:
        """The result, which fits its hint."""
        if self.typed.result is None:
            return result
        walk = Walk(self.region, self.scope.arguments, self.scope.sizes)
        walk.visit(self.typed.result, result, RETURN)
        walk.settle()
        walk.failures += _traps(walk)
        _raise(self.typed, walk)
        return handed_on(result, walk.leaves, self.region, self.typed.name, walk.sizes)


def _traps(walk: Walk) -> list[Failure]:
    """Losses that are equal on all shards and that JAX types as varying: their gradients would be too large."""
    found: list[Failure] = []
    for leaf in walk.leaves:
        if (
            leaf.hint is not None
            and leaf.alike
            and not _jax.facts(leaf.value).shape
            and _jax.is_inexact(leaf.value.dtype)
        ):
            axes = tuple(axis for axis in walk.region.sizes if axis in leaf.alike)
            found.append(
                Failure(Varies(axes, False, may_agree=True), leaf.subject, leaf.hint.text, _jax.type_text(leaf.value))
            )
    return found


def _check_arguments(typed: Typed, bound: Bound, region: Region) -> tuple[Sizes, list[tuple[str, Subject, Any]]]:
    """Check the arguments; the sizes that they bind, and those marked ``+axis``, at that type."""
    walk, visited = Walk(region, bound.arguments), []
    for name, subject, node, value in typed.arguments(bound):
        walk.visit(node, value, subject)
        visited.append((name, subject, value, len(walk.leaves)))
    changed: list[tuple[str, Subject, Any]] = []
    leaves, first = walk.leaves, 0
    handed = handed_leaves(leaves, region, typed.name, walk.sizes) if region.held and not walk.failures else leaves
    for name, subject, value, last in visited if handed is not leaves else ():
        same = with_leaves(value, leaves[first:last], handed[first:last])
        if same is not value:
            changed.append((name, subject, same))
        first = last
    walk.settle()
    _raise(typed, walk)
    return walk.sizes, changed


def _raise(typed: Typed, walk: Walk) -> None:
    if walk.failures:
        raise error_of(region_of_failure(walk).report(typed.name, tuple(walk.failures), walk.sizes))
