"""Which of many tests that say much the same are in the default run; the others are marked slow."""

from collections.abc import Iterable
from typing import Any

import pytest

ParameterSet = type(pytest.param())


def one_in(count: int, cases: Iterable[Any]) -> list[Any]:
    """Parameters, with every ``count``-th, beginning with the first, in the default run."""
    return [case if at % count == 0 else slow(case) for at, case in enumerate(cases)]


def slow(case: Any) -> Any:
    """A case of ``parametrize`` (a value, a tuple of them or a `pytest.param`) that only the run of all tests takes."""
    if isinstance(case, ParameterSet):
        return case._replace(marks=(*case.marks, pytest.mark.slow))
    return pytest.param(*(case if type(case) is tuple else (case,)), marks=pytest.mark.slow)


def mostly_once(cases: Iterable[Any], count: int = 8) -> list[Any]:
    """Parameters, of whose slow ones every ``count``-th runs on both lines of JAX in CI, and the others on one."""
    found, seen = list[Any](), 0
    for case in cases:
        is_slow = isinstance(case, ParameterSet) and any(mark.name == "slow" for mark in case.marks)
        is_once = is_slow and seen % count > 0
        found.append(case._replace(marks=(*case.marks, pytest.mark.once)) if is_once else case)
        seen += is_slow
    return found
