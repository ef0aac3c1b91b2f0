"""Eight virtual CPU devices, the meshes that most tests use, and one set of examples for every run.

``pytest --hypothesis-profile=random`` draws other examples at every run, ``--hypothesis-profile=half`` half as many.
"""

import os
from importlib.metadata import version

os.environ["JAX_PLATFORMS"] = "cpu"
# Compiling is most of what the tests do, and what is compiled here runs once: XLA is told to do it in haste. Up to
# jaxlib 0.10 it has a second way to emit kernels, which takes a quarter of the time; later ones refuse the flag.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0" + (
    " --xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else ""
)

import jax
import numpy as np
import pytest
from hypothesis import settings
from jax.sharding import Mesh

settings.register_profile("same", derandomize=True)
settings.register_profile("half", derandomize=True, max_examples=settings.get_profile("same").max_examples // 2)
settings.register_profile("random", derandomize=False)
settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks."""
    config.addinivalue_line("markers", "once: says the same under every Python and jax, so that .ci/run runs it once")


@pytest.fixture(scope="session")
def mesh() -> Mesh:
    """dp=4, tp=2, both Auto."""
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))
