"""The grammar of patterns: text to nodes, nodes to text, and every mistake with its place and cure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from typedshmap.notation.pattern import Factor, Pattern, PatternDim, Side, parse_pattern
from typedshmap.notation.spec import Axes, Mark, Rest
from typedshmap.notation.tokens import RepeatedAxis, SyntaxFault

DOTS = Rest()


SPACES: list[tuple[str, str]] = [
    ("größe head2 a_b", "größe head2 a_b"),
    ("1 a () (a 2) (b ...)", "1 a () (a 2) (b ...)"),
    ("[(a ...)/dp] [4/tp] [b/] +sp", "[(a ...)/dp] [4/tp] [b/] +sp"),
    ("->", "->"),
    ("a, -> a", "a, -> a"),
    ("[a/dp], [a/dp] -> [a/dp]", "[a/dp], [a/dp] -> [a/dp]"),
    ("a  b->b   a", "a b -> b a"),
    (" a,b -> a b ", "a, b -> a b"),
    ("[ a / dp , tp ] ( b  c )", "[a/dp,tp] (b c)"),
    ("[a/ ( dp , tp )]", "[a/(dp,tp)]"),
    ("[a/()]", "[a/]"),
    ("a(b)c", "a (b) c"),
    ("[a/dp]b[c/tp]", "[a/dp] b [c/tp]"),
    ("a + tp ~ dp", "a +tp ~dp"),
    ("a+tp", "a +tp"),
]


@pytest.mark.parametrize(("source", "printed"), SPACES)
def test_spaces_make_no_difference(source: str, printed: str) -> None:
    assert str(parse_pattern(source)) == printed
    assert parse_pattern(source) == parse_pattern(printed)


# The source with the faulty place between bars, the problem, and the cure

MISTAKES: list[tuple[str, str, str | None]] = [
    # Arrows and commas.
    ("a -> b, |c|", "the pattern has a comma in its result", "write one result after '->'"),
    # Brackets and parentheses that do not match.
    ("|[|a/dp", "'[' is never closed", None),
    ("a|]| b", "']' closes nothing", None),
    ("[a/dp|)|", "')' closes nothing", None),
    ("a -> |(|b", "'(' is never closed", None),
    # What may not stand in parentheses.
    ("a (b |(|c d))", "the pattern has parentheses inside parentheses", "one level is enough"),
    ("(a |[b/dp]|)", "the pattern has brackets inside parentheses",
     "put b first, ([b/dp] ...): a merged dim is sharded on its major factor"),
    ("|[([a/dp] b)|/tp]", "the pattern has brackets inside brackets", "keep one of them"),
    # What may not stand in brackets.
    ("|[a]| b", "the pattern has '[a]', which names no mesh axis",
     "write [a/axis], or [a/] for a dim that is not sharded"),
    ("|[(a b)]|", "the pattern has '[(a b)]', which names no mesh axis",
     "write [(a b)/axis], or [(a b)/] for a dim that is not sharded"),
    ("|[|]", "the pattern has brackets without a dim", "write [dim/axis]"),
    ("|[|/dp]", "the pattern has brackets without a dim", "write [dim/axis]"),
    ("[|...|/dp]", "the pattern shards any number of dims", "brackets hold one dim; name the dim that is sharded"),
    ("[a |b|/dp]", "the pattern has an unexpected 'b'", "brackets hold one dim; merged dims stand in ()"),
    ("[a|+|1/dp]", "the pattern has an unexpected '+'", "brackets hold one dim; merged dims stand in ()"),
    ("[a/|4|]", "'4' is not a mesh axis", "write [dim/axis], or [dim/a,b] for two"),
    ("[a/dp |tp|]", "unexpected 'tp' among mesh axes", "write [dim/a,b]"),
    ("[a/(dp |tp|)]", "unexpected 'tp' among mesh axes", "write [dim/a,b]"),
    ("[a/dp,|]|", "']' is not a mesh axis", "write [dim/axis], or [dim/a,b] for two"),
    # Sharding without brackets.
    ("|a/dp| b", "the pattern has 'a/dp', sharded without brackets", "write [a/dp]"),
    ("b |(a c)/dp|", "the pattern has '(a c)/dp', sharded without brackets", "write [(a c)/dp]"),
    ("|a/dp|,tp b", "the pattern has 'a/dp,tp', sharded without brackets", "write [a/dp,tp]"),
    ("a|!|dp", "unexpected character '!'", "write [a/dp]"),
    ("a|@|dp b", "unexpected character '@'", "write [a/dp]"),
    # Marks.
    ("a |+tp| b", "the pattern has '+tp' before a dim", "move '+tp' to the end"),
    ("a |+|", "the pattern has a '+' without a mesh axis", "write +axis, as in +tp"),
    ("a |-| ~tp", "the pattern has a '-' without a mesh axis", "write -axis, as in -tp"),
    ("a|-|1", "the pattern has a '-' without a mesh axis", "write -axis, as in -tp"),
    # Names, numbers and characters.
    ("|1_000| b", "the pattern has '1_000', which is not a name", None),
    ("|#|a", "the pattern has an unexpected '#'", None),
    ("|*|a", "the pattern has an unexpected '*'", None),
    ("|?|a", "the pattern has an unexpected '?'", None),
    ("a|=|4", "the pattern has an unexpected '='", None),
    ("|{|x}", "the pattern has an unexpected '{'", None),
    ("2|*|a", "the pattern has an unexpected '*'", None),
    # Dots.
    ("a ... b |...|", "the pattern has '...' twice for one array", "keep one of them"),
    ("(a ...) |...|", "the pattern has '...' twice for one array", "keep one of them"),
    ("a |...|b", "the pattern has '...' without a space beside it", "separate dims by spaces"),
    ("a|...| b", "the pattern has '...' without a space beside it", "separate dims by spaces"),
]  # fmt: skip


@pytest.mark.parametrize(("marked", "problem", "cure"), MISTAKES)
def test_a_mistake_is_reported_with_its_place_and_cure(marked: str, problem: str, cure: str | None) -> None:
    source = marked.replace("|", "")
    with pytest.raises(SyntaxFault) as caught:
        parse_pattern(source)
    start, end = caught.value.span
    assert f"{source[:start]}|{source[start:end]}|{source[end:]}" == marked
    assert (caught.value.problem, caught.value.cure) == (problem, cure)


@pytest.mark.parametrize(
    "marked", ["[a/tp] |+tp|", "[a/tp] [b/|tp|]", "[a/|tp,tp|]", "a +tp |~tp|", "a -> [b/dp] |-dp|"]
)
def test_an_axis_is_written_once_for_one_array(marked: str) -> None:
    source = marked.replace("|", "")
    with pytest.raises(RepeatedAxis) as caught:
        parse_pattern(source)
    start, end = caught.value.span
    assert f"{source[:start]}|{source[start:end]}|{source[end:]}" == marked


# Where the nodes stand, and what they say


def test_every_node_knows_its_place() -> None:
    source = " [(a b)/dp,tp]  ... 4, c +sp ->  (d ) ~x"
    pattern = parse_pattern(source)
    sides = [*pattern.operands, pattern.result]
    texts = [source[slice(*node.span)] for s in sides if s is not None for node in (s, *s.dims, *s.marks)]
    assert texts == [
        *("[(a b)/dp,tp]  ... 4", "[(a b)/dp,tp]", "...", "4"),
        *("c +sp", "c", "+sp"),
        *("(d ) ~x", "(d )", "~x"),
    ]


# Laws

AXES = ("dp", "tp", "sp", "x_", "größe")
factors = st.one_of(st.sampled_from(("a", "b2", "größe", "if", "a_b")), st.integers(0, 10**20).map(str))


@st.composite
def dims(draw: st.DrawFn, free: list[str]) -> PatternDim:
    """One dim, taking its mesh axes from those that are free."""
    is_group = draw(st.booleans())
    names = draw(st.lists(factors, max_size=3)) if is_group else [draw(factors)]
    axes = None
    if draw(st.booleans()):
        taken = tuple(free.pop() for _ in range(draw(st.integers(0, min(2, len(free))))))
        axes = Axes(taken, bool(taken) and draw(st.booleans()))
    return PatternDim(tuple(map(Factor, names)), axes, is_group)


@st.composite
def sides(draw: st.DrawFn) -> Side:
    """A side: at most one ``...``, no mesh axis twice."""
    free = list(draw(st.permutations(AXES)))
    found: list[PatternDim | Rest] = [draw(dims(free)) for _ in range(draw(st.integers(0, 3)))]
    where = draw(st.sampled_from(["nowhere", "between", "in a group"]))
    if where == "between":
        found.insert(draw(st.integers(0, len(found))), DOTS)
    elif where == "in a group" and found and isinstance(found[-1], PatternDim) and found[-1].is_group:
        found[-1] = PatternDim((*found[-1].factors, DOTS), found[-1].axes, True)
    marks = [Mark(draw(st.sampled_from("+-~")), free.pop()) for _ in range(draw(st.integers(0, len(free))))]
    return Side(tuple(found), tuple(marks))


patterns = st.builds(Pattern, st.lists(sides(), min_size=1, max_size=3).map(tuple), st.none() | sides())


@given(patterns)
def test_a_pattern_is_read_as_it_prints(pattern: Pattern) -> None:
    assert parse_pattern(str(pattern)) == pattern


@given(st.text(alphabet="ab4 /,+-~[]()._>é", max_size=12))
def test_any_text_is_read_or_is_a_fault_within_it(source: str) -> None:
    try:
        pattern = parse_pattern(source)
    except SyntaxFault as fault:
        start, end = fault.span
        assert 0 <= start <= end <= len(source)
    else:
        assert parse_pattern(str(pattern)) == pattern
