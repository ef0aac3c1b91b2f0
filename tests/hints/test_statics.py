"""Values without arrays are checked against their Python types to the last item of a container."""
# ruff: noqa: UP006 (hints of older programs)

import collections
import enum
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import pytest

from typedshmap.hints.python_types import is_instance

T = TypeVar("T")


class Pool(enum.Enum):
    """Some option."""

    MEAN = "mean"


class Tagged(Sequence[str], Generic[T]):
    """A container whose argument is not its items' type."""

    def __getitem__(self, index: Any) -> Any:
        return ("tag",)[index]

    def __len__(self) -> int:
        return 1


# So long that one that is looked at by chance is hardly ever the last.
MANY = (1,) * 1000


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (MANY, tuple[int, ...]),
        ([*MANY], list[float]),
        ((1, "a"), tuple[int, str]),
        ((), tuple[()]),
        ({"a": (1, 2)}, dict[str, tuple[int, ...]]),
        ({"a": 1}, Mapping[str, int]),
        (collections.Counter("ab"), collections.Counter[str]),
        ({1, 2}, set[int] | None),
        (None, set[int] | None),
        ("ab", Sequence[str]),
        ([None, 1], list[int | None]),
        (("relu", "silu"), tuple[Literal["relu", "silu"], ...]),
        ([int, max], list[Callable[..., Any]]),
        ((Pool, int), tuple[type, ...]),
        (Pool, type[Pool]),
        (Tagged(), Tagged[int]),
        ((1, (2, ("a",))), tuple[int, tuple[int, tuple[str, ...]]]),
    ],
)
def test_a_value_of_its_type_fits(value: Any, hint: Any) -> None:
    assert is_instance(value, hint)


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


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ((*MANY, "a"), tuple[int, ...]),
        ([*MANY, "a"], list[float]),
        ((1, 2), tuple[int, str]),
        ((1,), tuple[()]),
        ({**dict.fromkeys(range(1000), 1), 1000: "a"}, dict[int, int]),
        ({**dict.fromkeys(range(1000), 1), "a": 1}, Mapping[int, int]),
        ({*range(1000), "a"}, set[int] | None),
        ([*MANY, "a"], list[int | None]),
        (("relu",) * 1000 + ("tanh",), tuple[Literal["relu", "silu"], ...]),
        ([max] * 1000 + [1], list[Callable[..., Any]]),
        ((1, (2, MANY)), tuple[int, tuple[int, tuple[str, ...]]]),
        ([[*MANY, "a"]], list[list[int]]),
    ],
)
def test_one_item_of_another_type_does_not_fit(value: Any, hint: Any) -> None:
    assert not is_instance(value, hint)
