"""What is decided case by case: all cases of few choices, some of many, and the same for the same entries."""

import pytest

from typedshmap.testing.proving.cases import Cases, Undecided, decided_order, decisions_of, read_in_cases
from typedshmap.testing.proving.polynomials import Polynomials
from typedshmap.testing.proving.values import NotKnown


def entries(table: Polynomials, count: int, of: int = 0) -> list[int]:
    return [table.atom("argument", (of, at)) for at in range(count)]


def known(table: Polynomials, *numbers: int) -> list[int]:
    """The whole numbers that polynomials are."""
    values = [table.value_of(number) for number in numbers]
    if None in values:
        raise Undecided(decisions_of(table, numbers))
    return [int(value or 0) for value in values]


@pytest.mark.parametrize(("rows", "entry_count"), [(1, 3), (4, 2), (3, 3), (8, 2)])
def test_few_choices_are_made_in_all_ways(rows: int, entry_count: int) -> None:
    seen = list[list[int]]()

    def read(table: Polynomials) -> None:
        places = [table.atom("argmax", (), entries(table, entry_count, row)) for row in range(rows)]
        seen.append(known(table, *places))

    assert read_in_cases(read, 0) == Cases(entry_count**rows, True)
    assert len({*map(tuple, seen)}) == len(seen) == entry_count**rows


def test_many_choices_are_drawn() -> None:
    seen = list[list[int]]()

    def read(table: Polynomials) -> None:
        seen.append(known(table, *(table.atom("argmax", (), entries(table, 7, row)) for row in range(7))))

    assert read_in_cases(read, 0) == Cases(12, False)
    assert len({*map(tuple, seen)}) > 10


def test_equal_entries_are_decided_equally_and_others_by_themselves() -> None:
    seen = list[list[int]]()

    def read(table: Polynomials) -> None:
        x = entries(table, 2)
        doubled = [table.total([(each, 2)]) for each in x]
        rows = (x, x, x[::-1], [table.total([(each, 1), (each, 1)]) for each in x], doubled)
        seen.append(known(table, *(table.atom("argmax", (), row) for row in rows)))

    assert read_in_cases(read, 0) == Cases(8, True)
    assert all(same == first and again == twice for first, same, _, again, twice in seen)
    assert {(first, turned) for first, _, turned, _, _ in seen} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_what_follows_from_a_choice_is_none() -> None:
    def read(table: Polynomials) -> None:
        place = table.atom("argmax", (), entries(table, 3))
        is_first = table.is_zero(place)
        order = table.atom("sort", (0, (1, True, 2)), [place, is_first])
        (chosen,) = known(table, place)
        if chosen == 0:
            assert known(table, is_first) == [1]
        assert not [*decisions_of(table, [order])]

    assert read_in_cases(read, 0) == Cases(3, True)


def test_a_place_is_decided_before_what_is_compared_with_it() -> None:
    seen = list[tuple[int, int]]()

    def read(table: Polynomials) -> None:
        place = table.atom("argmax", (), entries(table, 3))
        (is_second,) = known(table, table.is_zero(table.total([(place, 1), (table.one, -1)])))
        seen.append((is_second, *known(table, place)))

    assert read_in_cases(read, 0) == Cases(3, True)
    assert seen == [(0, 0), (1, 1), (0, 2)]


@pytest.mark.parametrize(("operation", "params", "count"), [("top_k", (2, 1), 2), ("sort", (1, True, 3), 3)])
def test_an_order_is_decided_as_one(operation: str, params: tuple[int, ...], count: int) -> None:
    seen = list[tuple[int, ...]]()

    def read(table: Polynomials) -> None:
        row = entries(table, 3)
        if not (order := decided_order(table, operation, params, row, count)):
            numbers = {"top_k": (1, 0, params), "sort": (0, params)}[operation]
            raise Undecided(decisions_of(table, [table.atom(operation, numbers, row)]))
        seen.append(tuple(order))

    assert read_in_cases(read, 0) == Cases(6, True)
    assert len({*seen}) == 6 and all(len({*order}) == count for order in seen)


def test_where_one_case_is_not_known_nothing_is() -> None:
    def read(table: Polynomials) -> None:
        if known(table, table.atom("argmax", (), entries(table, 4))) == [3]:
            raise NotKnown("other entries")

    with pytest.raises(NotKnown, match="other entries"):
        read_in_cases(read, 0)


def test_an_argument_is_never_decided() -> None:
    def read(table: Polynomials) -> None:
        known(table, table.total([(table.atom("argmax", (), entries(table, 2)), 1), (entries(table, 1, 1)[0], 1)]))

    with pytest.raises(Undecided, match="places that depend on the arguments"):
        read_in_cases(read, 0)


def test_cases_that_take_too_long_are_given_up() -> None:
    def read(table: Polynomials) -> None:
        known(table, *(table.atom("argmax", (), entries(table, 2, row)) for row in range(5)))
        table.spend(1_000_000)

    with pytest.raises(NotKnown, match="too many cases"):
        read_in_cases(read, 0)
