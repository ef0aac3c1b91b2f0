"""Records: frozen dataclasses that are made when there is an instance."""

import pickle
import threading
from dataclasses import FrozenInstanceError, field, fields, is_dataclass, replace

import pytest

from typedshmap.records import Record


class Point(Record):
    """A place."""

    x: int
    y: int = 0
    label: str = field(default="", compare=False)


class Named(Point, kw_only=True):
    """A place with a name."""

    name: str


class Same(Record, eq=False):
    """Equal to itself only."""

    x: int


def test_a_class_is_made_with_its_first_instance():
    class First(Record):
        x: int

    assert not is_dataclass(First)
    assert First(1) == First(x=1) != First(2)
    assert is_dataclass(First)
    assert First.__match_args__ == ("x",)


def test_what_is_made_is_a_frozen_dataclass():
    point = Point(1, label="a")
    assert repr(point) == "Point(x=1, y=0, label='a')"
    assert point == Point(1, label="b")
    assert hash(point) == hash(Point(1))
    assert replace(point, y=2) == Point(1, 2)
    with pytest.raises(FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        Point()  # type: ignore[call-arg]


def test_a_subclass_has_the_fields_of_the_class_above():
    named = Named(1, name="a")
    assert [each.name for each in fields(named)] == ["x", "y", "label", "name"]
    assert named != Point(1)
    assert Same(1) != Same(1)


class Made(Record):
    x: int


class Late(Record):
    """No instance of it is made, but by unpickling what is of the class above."""

    x: int


def test_it_is_unpickled_where_its_class_has_no_instance_yet():
    found = pickle.loads(pickle.dumps(Made(1)).replace(b"Made", b"Late"))
    assert type(found) is Late and found == Late(1) and hash(found) == hash(Late(1))


def test_threads_that_make_the_first_instances_make_equal_ones():
    for _ in range(20):

        class First(Record):
            x: int

        found: list[First] = []
        threads = [threading.Thread(target=lambda: found.append(First(1))) for _ in range(8)]  # noqa: B023
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 1
