"""Values without arrays are checked against their Python types to the last item of a container."""
# ruff: noqa: UP006 (hints of older programs)

import collections
import re
import typing
from typing import Any

import pytest

from typedshmap.hints.python_types import is_instance


# Warnings are errors here, and beartype warns of the names of typing that have others by now.
@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (max, typing.Callable),
        (max, typing.Callable[..., Any]),
        (max, typing.Callable[[int, typing.List[int]], typing.Dict[str, Any]]),
        (None, typing.Optional[typing.Callable]),
        (None, typing.Optional[typing.Callable[..., Any]]),
        ([1], typing.List[int]),
        (((1,), "a"), typing.Tuple[typing.Tuple[int, ...], str]),
        ((), typing.Tuple[()]),
        ({"a": [1]}, typing.Dict[str, typing.List[int]]),
        ({"a": 1}, typing.Mapping[str, int]),
        ([1], typing.Sequence[int]),
        ({1}, typing.Set[int]),
        (frozenset({1}), typing.FrozenSet[int]),
        (int, typing.Type[int]),
        (collections.deque([1]), typing.Deque[int]),
        (collections.OrderedDict(a=1), typing.OrderedDict[str, int]),
        (re.compile("a"), typing.Pattern[str]),
        ("a", typing.Union[int, typing.Sequence[str]]),
        (1, typing.Annotated[int, []]),
        (("a",), typing.Tuple[typing.Literal["a"]]),
    ],
    ids=str,
)
def test_the_names_of_typing_are_taken_without_a_warning(value: Any, hint: Any) -> None:
    assert is_instance(value, hint)
    assert not is_instance(object(), hint)
