"""Eight virtual CPU devices, the meshes that most tests use, and one set of examples for every run.

``pytest --hypothesis-profile=random`` draws other examples at every run.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
import pytest
from hypothesis import settings
from jax.sharding import Mesh

settings.register_profile("same", derandomize=True)
settings.register_profile("random", derandomize=False)
settings.load_profile("same")


@pytest.fixture(scope="session")
def mesh() -> Mesh:
    """dp=4, tp=2, both Auto."""
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))
