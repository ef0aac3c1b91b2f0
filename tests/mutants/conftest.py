"""Programs are compiled without optimisations: what takes the time here is to compile a few hundred of them."""

from collections.abc import Iterator

import jax
import pytest

from typedshmap.testing.describe_difference import Where


@pytest.fixture(autouse=True, scope="module")
def without_optimisations() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def without_first_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a verdict alone is asked for, what is wrong is run and not looked at line by line."""
    monkeypatch.setattr("typedshmap.testing.invariance.describe_first_difference", lambda *_: Where([]))
