"""The meshes that rows are measured on."""

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh


def make_mesh(*shape: int, names: tuple[str, str] = ("dp", "tp")) -> Mesh:
    """A mesh of virtual CPU devices."""
    count = int(np.prod(shape))
    return Mesh(np.array(jax.devices()[:count]).reshape(shape), names)


def make_abstract(*shape: int) -> AbstractMesh:
    """A mesh of devices that nobody has."""
    return AbstractMesh(shape, ("dp", "tp"), axis_types=make_mesh(1, 1).axis_types)


def devices(mesh: Mesh | AbstractMesh) -> str:
    return f"{mesh.size:,} device{'s' if mesh.size > 1 else ''}"
