"""What the tables of bodies share."""

import pytest

from typedshmap.testing.describe_difference import Where


@pytest.fixture
def without_first_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a verdict alone is asked for, what is wrong is run and not looked at line by line."""
    monkeypatch.setattr("typedshmap.testing.invariance.describe_first_difference", lambda *_: Where([]))


@pytest.fixture
def nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not proved is unknown, and no mesh is looked for on which it is wrong."""
    monkeypatch.setattr("typedshmap.testing.proving.proof.assert_mesh_invariant", lambda *_, **__: None)
