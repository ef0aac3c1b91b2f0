"""Programs are compiled without optimisations: what takes the time here is to compile a few hundred of them."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def without_optimisations() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
