"""``inputs`` and ``strategies``: arguments made from the hints of a function, once or as a hypothesis strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import ShapeError, StructureError
from ...errors.requirements import merge_sizes, require_integer
from ...inspection import MeshLike, signature
from .arguments import Inputs
from .input_plan import plan_inputs

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def inputs(
    f: Callable[..., Any],
    /,
    *,
    mesh: MeshLike | None = None,
    seed: int = 0,
    arguments: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
    **dims: Any,
) -> Inputs:
    """Make arguments for a function from its hints: random global arrays of the right dtype, shape and sharding.

    The size of each name is drawn: a multiple of the shards that it needs, with at least two elements per shard,
    different for each name, and even for unsharded dims. All ``...`` have the same sizes, and so do all ``_``.
    Floats are normally distributed, and keys are keys of ``jax.random``. Integers are small enough to be indices:
    smaller than the last dim of an array with which they share dims (labels of logits), and smaller than the first dim
    of an array with which they share no dims (ids into a table). A union becomes its first member with arrays, so that
    an optional array is present; lists, dicts and trees of any length have two items.

    ```python
    made = inputs(mlp, mesh=mesh, batch=32, ids=lambda key, shape: jax.random.randint(key, shape, 0, 50))
    mlp(*made)
    ```

    Args:
      f: a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also under ``jax.jit``; a method of
        an instance.
      mesh: the mesh of the arrays; by default the function's own mesh, else the ambient mesh, else none. On an
        AbstractMesh they are ``jax.ShapeDtypeStruct``s.
      seed: the seed of sizes and values.
      arguments: arguments by name, even if a dim has that name, and fields by path, ``{"state.step": 3}``.
      sizes: sizes by name as in a dict, for a dim that has the name of an option.
      **dims: a global size by the name of a dim (an integer; a tuple for ``*name``), or an argument by its
        name: a value, or a function that makes it: an array from a key and the global shape, ``Like[..., Params]``
        from the parameters (``state=optimizer.init``).

    Returns:
      The arguments, except those with a default and without arrays.

    Raises:
      StructureError: for a function without hints, and for arguments that cannot be made from a hint (a config,
        ``Any``, an ``int``) and must be passed.
      ShapeError: for sizes of unknown names, or that do not fit.
      MeshAxisError: for an axis that the mesh does not have.
      ShardingError: for an argument marked ``+`` or ``~``, which cannot be placed.
    """
    used, seed = signature(f, "inputs").known_mesh(mesh), require_integer("inputs", "seed", seed, 0)
    return plan_inputs(f, [used], merge_sizes("inputs", sizes, dims), arguments, "inputs").draw(seed).on(used)


def strategies(
    f: Callable[..., Any],
    /,
    *,
    mesh: MeshLike | None = None,
    arguments: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
    **dims: Any,
) -> SearchStrategy[Inputs]:
    """Make a hypothesis strategy that draws arguments like those of `inputs`.

    Each size is one to four times the shards that it needs, so that sizes may be equal and shards may have one
    element; a failing example shrinks to small sizes.

    ```python
    @given(strategies(mlp, mesh=mesh))
    def test_mlp(made):
        np.testing.assert_allclose(mlp(*made), plain_mlp(*made), rtol=1e-5)
    ```

    Args:
      f: as for `inputs`.
      mesh: as for `inputs`.
      arguments: as for `inputs`.
      sizes: sizes by name as in a dict, for a dim that has the name of an option.
      **dims: as for `inputs`.

    Raises:
      StructureError: if hypothesis is not installed, and as for `inputs`.
      ShapeError, MeshAxisError: as for `inputs`.
    """
    try:
        # hypothesis is needed only here, for tests.
        from hypothesis import reject
        from hypothesis import strategies as st
    except ModuleNotFoundError:
        raise StructureError("strategies: needs hypothesis, which is not installed: pip install hypothesis") from None
    used = signature(f, "strategies").known_mesh(mesh)
    plan = plan_inputs(f, [used], merge_sizes("strategies", sizes, dims), arguments, "strategies")
    factors = {name: factor for name, factor in plan.factors.items() if name not in plan.given}
    multiples = st.fixed_dictionaries({name: st.integers(1, 4) for name in factors})

    def draw(seed: int, times: dict[str, int]) -> Inputs:
        try:
            drawn = plan.draw(seed, {name: times[name] * factor for name, factor in factors.items()})
        except ShapeError:
            reject()
        return drawn.on(used)

    return st.builds(draw, st.integers(0, 2**32 - 1), multiples)
