"""Eight virtual CPU devices, and the meshes that most tests use."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
import pytest
from jax.sharding import Mesh


@pytest.fixture(scope="session")
def mesh() -> Mesh:
    """dp=4, tp=2, both Auto."""
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))
