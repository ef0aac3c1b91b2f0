"""Which of many tests that say much the same are in the default run; the others are marked slow."""

from collections import Counter
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


def rare(case: Any) -> Any:
    """A case that CI leaves out as well, since another one says much the same: it is run before a release."""
    case = slow(case)
    return case._replace(marks=(*case.marks, pytest.mark.rare))


_SAMPLES = ((64, 17), (16, 16), (4, 4), (0, 1))
"""Of more slow rows than the first number CI takes one in the second."""


def put_into_runs(items: Iterable[pytest.Item]) -> None:
    """Mark slow, of the rows of a function that is marked ``sample(count)``, all but every ``count``-th.

    Of more than four slow rows of a function CI takes every fourth, of more than 16 every 16th, of more than 64 every
    17th; the others are marked ``rare``. Such a long table is a product of a few short lists, and 17 divides none of
    their lengths, so that the sample does not always take the same entry of a list. Every fourth of the rows that CI
    takes is run on both lines of JAX; the others are marked ``once``.
    """
    seen, slow_rows = Counter[str](), dict[str, list[pytest.Item]]()
    for item in items:
        function = item.nodeid.partition("[")[0]
        if not is_slow(item) and (sample := item.get_closest_marker("sample")) is not None:
            if seen[function] % sample.args[0] > 0:
                item.add_marker("slow")
            seen[function] += 1
        if is_slow(item):
            slow_rows.setdefault(function, []).append(item)
    for rows in slow_rows.values():
        every = next(every for more_than, every in _SAMPLES if len(rows) > more_than)
        for at, item in enumerate(rows):
            if at % every > 0:
                item.add_marker("rare")
            elif at // every % 4 < 3:
                item.add_marker("once")


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None
