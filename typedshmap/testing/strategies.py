"""Arguments made from the hints as a strategy of hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jax.sharding import AbstractMesh, Mesh

from ..errors import ShapeError, StructureError
from .call import Inputs
from .inputs import mesh_of
from .plans import plan

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_MOST = 4
_SEEDS = 2**32 - 1


def strategies(
    f: Callable[..., Any],
    /,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    arguments: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> SearchStrategy[Inputs]:
    """A strategy of hypothesis that draws what `inputs` makes.

    Each size is one to four times what its mesh axes need, so that sizes may be alike and shards may have one
    element; an example that fails shrinks to small ones.

    ```python
    @given(strategies(mlp, mesh=mesh))
    def test_mlp(made):
        np.testing.assert_allclose(mlp(*made), plain_mlp(*made), rtol=1e-5)
    ```

    Args:
      f: as for `inputs`.
      mesh: as for `inputs`.
      arguments: as for `inputs`.
      **sizes: as for `inputs`.

    Raises:
      StructureError: where hypothesis is not installed, and as `inputs` does.
      ShapeError, MeshAxisError: as `inputs` does.
    """
    try:
        # hypothesis is a tool for tests, which only this needs.
        from hypothesis import reject
        from hypothesis import strategies as st
    except ModuleNotFoundError:
        raise StructureError("strategies: wants hypothesis, which is not installed: pip install hypothesis") from None
    here = mesh_of(f, mesh, "strategies")
    made = plan(f, () if here is None else (here,), sizes, arguments, "strategies")
    multiples = st.fixed_dictionaries({name: st.integers(1, _MOST) for name in made.factors})

    def draw(seed: int, times: dict[str, int]) -> Inputs:
        try:
            drawn = made.drawn(seed, {name: times[name] * factor for name, factor in made.factors.items()})
        except ShapeError:
            reject()
        return drawn.structs(here) if isinstance(here, AbstractMesh) else drawn.on(here)

    return st.builds(draw, st.integers(0, _SEEDS), multiples)
