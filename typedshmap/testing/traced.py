"""Trace a function on a mesh that nobody has."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
from jax.sharding import AbstractMesh

from .. import _jax
from ..decorated import find_decorated
from ..meshes import instead_of_own
from .call import Apart, Inputs


@contextmanager
def on_abstract(f: Callable[..., Any], mesh: AbstractMesh) -> Generator[None]:
    """Let a mesh without devices be the one that a function runs on; ambient, if it has none of its own."""
    made_of = find_decorated(f)
    with ExitStack() as stack:
        if made_of is None or made_of.mesh is None:
            stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
        stack.enter_context(instead_of_own(mesh))
        yield


def trace_on(f: Callable[..., Any], made: Inputs, mesh: AbstractMesh) -> Any:
    """The traced program of a call.

    Args:
      f: a function.
      made: its arguments, with ``jax.ShapeDtypeStruct``s for arrays.
      mesh: the mesh.

    Raises:
      TypedShmapError: what the function raises when it is traced.
    """
    call = Apart.of(made, *_jax.SHAPES)
    with on_abstract(f, mesh):
        return jax.make_jaxpr(lambda *arrays: call.run(f, arrays))(*(array for _, array in call.arrays))
