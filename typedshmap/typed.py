"""``typed``: a helper function checked where it is called, inside or outside a manual region."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, overload

from . import _jax
from .axis_names import AxesLike, AxisNaming, AxisRules, RulesLike, read_naming
from .errors import placed_at_decoration
from .errors.failures import RETURN, Failure, Subject
from .errors.varying import UnmentionedVarying
from .hints import context
from .hints.check_tree import check_arguments, result_place
from .hints.enforcement import enforced
from .hints.fitting import find_fitting
from .hints.resumption import AwaitedInScope, in_scope
from .hints.signature import HintedSignature, LazySignature, is_generator
from .hints.structure import Node
from .introspection import DecoratedInfo, caller_frame, decorate, wraps
from .notation.match import NO_SIZES

F = TypeVar("F", bound="Callable[..., Any] | classmethod[Any, Any, Any] | property")
_YIELDED = Subject("yielded", "yielded")


@overload
def typed(f: F, /, *, axes: Mapping[str, AxesLike] | None = None, rules: RulesLike | AxisRules | None = None) -> F: ...
@overload
def typed(
    f: None = None, /, *, axes: Mapping[str, AxesLike] | None = None, rules: RulesLike | AxisRules | None = None
) -> Callable[[F], F]: ...
def typed(
    f: Any = None, /, *, axes: Mapping[str, AxesLike] | None = None, rules: RulesLike | AxisRules | None = None
) -> Any:
    """Check a function's arguments and result against its hints, at every call.

    In a manual region the values are shards, elsewhere global arrays. A value that is the same on every
    shard, but that JAX types as varying, needs no mark. The exception is a float result of rank 0, whose
    gradient inside the region would be too large. Every call binds its own sizes. Beartype checks
    parameters without arrays; parameters without a hint are not checked.

    The arguments of a generator are checked when it is called, and every item that it yields. Its sizes are bound
    while its body runs, and nowhere else. A coroutine is checked when it is awaited.

    ```python
    @typed
    def mean_loss(logits: Float[Array, "[b/dp] v"], y: Int[Array, "[b/dp]"]) -> Float[Array, "+dp"]:
        return cross_entropy(logits, y).sum() / size("b")
    ```

    Args:
      f: the function; also a ``classmethod``, a ``staticmethod`` or a ``property``.
      axes: names in the hints that stand for mesh axes.
      rules: mesh axes for dims without brackets, by their names, as `axis_rules` takes them.

    Returns:
      The function.

    Raises:
      ShapeError, DtypeError, ShardingError, VaryingError, StructureError: for arguments or a result
        that contradict their hints.
    """
    _jax.trace.load_extend()
    with placed_at_decoration():
        own_naming = read_naming(axes, rules)

    def wrap(function: Callable[..., Any], hinted: LazySignature, below: DecoratedInfo | None) -> Callable[..., Any]:
        naming = own_naming if below is None else below.naming.then(own_naming)

        def typed_helper(*args: Any, **kwargs: Any) -> Any:
            typed, args, kwargs, scope = _check_arguments(hinted, naming, args, kwargs)
            with context.scope_entered(scope):
                # From this frame: JAX records the whole stack with every equation that it traces.
                result = typed.function(*args, **kwargs)
            return _check_result(typed, typed.result, RETURN, scope, result)

        def typed_generator(*args: Any, **kwargs: Any) -> Any:
            typed, args, kwargs, scope = _check_arguments(hinted, naming, args, kwargs)
            check_item = partial(_check_result, typed, typed.yielded, _YIELDED, scope)
            check_result = partial(_check_result, typed, typed.result, RETURN, scope)
            with context.scope_entered(scope):
                body = typed.function(*args, **kwargs)
            return in_scope(body, scope, check_item, check_result)

        async def typed_coroutine(*args: Any, **kwargs: Any) -> Any:
            typed, args, kwargs, scope = _check_arguments(hinted, naming, args, kwargs)
            result = await AwaitedInScope(typed.function(*args, **kwargs), scope)
            return _check_result(typed, typed.result, RETURN, scope, result)

        is_coroutine = inspect.iscoroutinefunction(function)
        wrapper = typed_generator if is_generator(function) else typed_coroutine if is_coroutine else typed_helper
        return wraps(function, DecoratedInfo("typed", hinted, None, naming))(wrapper)

    if f is None:
        return lambda function: decorate(function, wrap, caller_frame(1), strict=False)
    return decorate(f, wrap, caller_frame(1), strict=False)


def _check_arguments(
    hinted: LazySignature, naming: AxisNaming, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[HintedSignature, tuple[Any, ...], dict[str, Any], context.CallScope]:
    """Check the arguments of a call; return the function, the arguments with layouts asserted, and the call's scope."""
    typed, region, sink = hinted.read(args), context.current_mesh_context(naming), context.current_sink()
    subjects, fitting = typed.plain_subjects, None
    if subjects is not None and not kwargs:
        fitting = find_fitting(typed.fits, args, subjects, region, NO_SIZES)
    if fitting is not None:
        named, sizes = dict(zip(typed.parameters, args, strict=True)), fitting.fit.sizes
        args = fitting.asserted(args, typed.name, sink)
    else:
        bound = typed.bind(args, kwargs)
        checked = check_arguments(typed.arguments(bound), bound.arguments, region, typed.fits)
        if checked.failures and enforced(checked.failures):
            raise checked.error(typed.name)
        named, sizes = bound.arguments, checked.sizes
        args, kwargs = bound.with_arguments(checked.with_leaves(checked.stated_leaves(typed.name)))
    naming = context.decorator_axis_naming(naming)
    return typed, args, kwargs, context.CallScope(typed.name, named, sizes, naming, region, sink)


def _check_result(
    typed: HintedSignature, hint: Node | None, subject: Subject, scope: context.CallScope, result: Any
) -> Any:
    """Check a result or a yielded item, and return it with its layouts asserted."""
    if hint is None:
        return result
    region, sizes = scope.region, scope.sizes
    fitting = find_fitting(typed.result_fits, (result,), (subject,), region, sizes)
    if fitting is not None and not fitting.unmentioned:
        return fitting.asserted((result,), typed.name, scope.sink)[0]
    checked = check_arguments([("", subject, hint, result)], scope.arguments, region, typed.result_fits, sizes)
    for value, leaf_hint, at, must_be_invarying in checked.leaves:
        # If a loss is the same on every shard, but JAX types it as varying, its gradient is too large.
        is_number = must_be_invarying and not _jax.array.aval_of(value).shape
        if leaf_hint is not None and is_number and _jax.array.is_inexact(value.dtype):
            axes = tuple(axis for axis in region.sizes if axis in must_be_invarying)
            wrong = context.with_cause(value, UnmentionedVarying(axes, False, may_agree=True))
            checked.failures.append(Failure(wrong, at, leaf_hint.text, _jax.array.type_text(value)))
    if checked.failures and enforced(checked.failures):
        place = result_place(typed, checked.failures, checked.leaves) if region.manual else ""
        raise checked.error(typed.name, place)
    return checked.stated(result, typed.name)
