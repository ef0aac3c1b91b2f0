"""``typed_jit``: ``jax.jit`` with shardings from hints; arguments and results are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import jax

from .. import _jax
from ..axis_names import AxesLike, AxisRules, RulesLike, read_naming
from ..errors import TypedShmapError, placed_at_decoration
from ..hints.signature import LazySignature
from ..introspection import DecoratedInfo, caller_frame, decorate, wraps
from ..meshes import MeshLike, read_mesh
from ..observers import active, observers
from .call import JitFunction

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
T = TypeVar("T")


class TypedJit(Protocol[P, R]):
    """The static type of a ``typed_jit``: the function with its signature, and the methods of ``jax.jit``."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered: ...
    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced: ...
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any: ...
    def clear_cache(self) -> None: ...

    @overload
    def __get__(self, instance: None, owner: Any) -> TypedJit[P, R]: ...
    @overload
    def __get__(self: TypedJit[Concatenate[Any, Q], T], instance: object, owner: Any) -> TypedJit[Q, T]: ...


@overload
def typed_jit(
    f: Callable[P, T],
    /,
    *,
    mesh: MeshLike | None = None,
    axes: Mapping[str, AxesLike] | None = None,
    rules: RulesLike | AxisRules | None = None,
    **jit_options: Any,
) -> TypedJit[P, T]: ...
@overload
def typed_jit(
    f: None = None,
    /,
    *,
    mesh: MeshLike | None = None,
    axes: Mapping[str, AxesLike] | None = None,
    rules: RulesLike | AxisRules | None = None,
    **jit_options: Any,
) -> Callable[[Callable[P, T]], TypedJit[P, T]]: ...
def typed_jit(
    f: Any = None,
    /,
    *,
    mesh: MeshLike | None = None,
    axes: Mapping[str, AxesLike] | None = None,
    rules: RulesLike | AxisRules | None = None,
    **jit_options: Any,
) -> Any:
    """Compile a function of global arrays, with ``in_shardings`` and ``out_shardings`` from its hints.

    `jax.jit` on global arrays: arguments are checked before the call, the result when the function is
    traced. Arguments that are not placed yet (NumPy, Python scalars, uncommitted arrays) are placed
    by their hints; arguments that are placed must have that sharding already. Keyword arguments are allowed.

    ```python
    @typed_jit(mesh=mesh, donate_argnames="w")  # dp=4, tp=2
    def step(
        w: Float[Array, "model [ff/tp]"],  # global f32[16,32], f32[16,16] on each device
        x: Float[Array, "[batch/dp] model"],  # global f32[8,16], f32[2,16] on each device
        rate: float = 0.1,  # static
    ) -> Float[Array, "model [ff/tp]"]:  # placed as its hint says
        return w - rate * jax.grad(loss)(w, x)
    ```

    A parameter whose hint holds no array, or that has a default and no hint, is static: its value is part of the
    program, and is compared by type and ``==``; an array of rank 0 for a ``float`` or an ``int`` is traced. A parameter
    hinted ``Any`` is traced, and JAX chooses its sharding. The arrays of ``self`` are traced in the same way; the rest
    of ``self`` is static. Traces are cached as by `jax.jit`: values that the function closes over are read at trace
    time. Another mesh, other rules or other aliases cause another trace. The function is traced before it is compiled,
    since the shardings of the result depend on the trace.

    Args:
      f: the function. The result and every parameter except ``self`` and ``cls`` need a hint.
      mesh: the mesh, as for `typed_shard_map`; by default that of a ``typed_shard_map`` right below, else the ambient
        mesh, else that of the arguments, looked up at every call.
      axes: names in the hints that stand for mesh axes: one, several (major to minor), or None.
      rules: mesh axes for dims without brackets, by their names, as `axis_rules` takes them.
      **jit_options: as for `jax.jit`: ``donate_argnums``, ``donate_argnames``, ``static_argnums``,
        ``static_argnames`` (of the function's own parameters), ``keep_unused``, ``inline``,
        ``compiler_options``.

    Returns:
      The compiled function, with `jax.jit`'s methods ``lower``, ``trace``, ``eval_shape`` and
      ``clear_cache``, which take the arguments of a call or `jax.ShapeDtypeStruct`. The program compiled
      from ``lower`` takes the traced arguments by position, in order.

    Raises:
      AnnotationSyntaxError: when decorating, for a hint that is missing or cannot be read.
      StructureError: when decorating, for an option that names no parameter, or for shardings, which
        the hints determine.
      MeshAxisError: without a mesh, for an axis that the mesh does not have, or a call inside a manual region.
      ShapeError, DtypeError, ShardingError, StructureError: for arguments or a result that contradict
        their hints; ``error.failures`` holds all of them.
    """
    _jax.trace.load_extend()
    with placed_at_decoration():
        own_mesh, own_naming = read_mesh(mesh), read_naming(axes, rules)

    def wrap(function: Callable[..., Any], hinted: LazySignature, below: DecoratedInfo | None) -> Any:
        own_or_below, naming = own_mesh, own_naming
        if below is not None:
            own_or_below, naming = own_mesh or below.mesh, below.naming.then(own_naming)
        with placed_at_decoration():
            jitted = JitFunction(hinted, own_or_below, naming, function, jit_options)

        # A plain function, which binds as a method, with the methods of a jax.jit function.
        @wraps(function, DecoratedInfo("typed_jit", hinted, own_or_below, naming))
        def typed_jit_call(*args: Any, **kwargs: Any) -> Any:
            try:
                if active and observers():
                    return jitted.run_observed(args, kwargs)
                return jitted.run(args, kwargs)
            except TypedShmapError:
                raise
            except Exception as error:
                _jax.versions.note_untried(error)
                raise

        for method in (jitted.lower, jitted.trace, jitted.eval_shape, jitted.clear_cache):
            setattr(typed_jit_call, method.__name__, method)
        return typed_jit_call

    if f is None:
        return lambda function: decorate(function, wrap, caller_frame(1))
    return decorate(f, wrap, caller_frame(1))
