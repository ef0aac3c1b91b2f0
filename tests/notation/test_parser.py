"""The grammar: text to nodes, nodes to text, and every mistake with its span and cure."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_strategies import specs

from typedshmap.notation.spec import (
    Anything,
    Argument,
    Axes,
    Binary,
    Braces,
    Call,
    Dim,
    Group,
    Mark,
    Name,
    Negative,
    Number,
    Rest,
    Spec,
    names_in_expression,
    parse,
)
from typedshmap.notation.tokens import RepeatedAxis, SyntaxFault

A, B, C, D = Name("a"), Name("b"), Name("c"), Name("d")
ONE, TWO = Number(1), Number(2)


def sized(size, **rest):
    return Spec((Dim(size, **rest),))


def sharded(size, *axes, **rest):
    return sized(size, axes=Axes(axes), **rest)


SPECS = [
    ("", Spec(())),
    ("größe", sized(Name("größe"))),
    ("_rows", sized(Anything("_rows"))),
    ("...", Spec((Rest(),))),
    ("*#?n", Spec((Rest("n", broadcast=True, per_leaf=True),))),
    ("*", Spec((Rest(""),))),
    ("#d+1", sized(Binary(D, "+", ONE), broadcast=True)),
    ("#?n", sized(Name("n"), broadcast=True, per_leaf=True)),
    ("rows=-d", sized(Negative(D), label="rows")),
    ("a-b+c", sized(Binary(Binary(A, "-", B), "+", C))),
    ("a//b*c", sized(Binary(Binary(A, "//", B), "*", C))),
    ("(a+b)*c", sized(Binary(Group(Binary(A, "+", B)), "*", C))),
    ("a*b**c", sized(Binary(A, "*", Binary(B, "**", C)))),
    ("2**-b", sized(Binary(TWO, "**", Negative(B)))),
    ("(-a**2)", sized(Group(Negative(Binary(A, "**", TWO))))),
    ("min(a,max(b,c))-1", sized(Binary(Call("min", (A, Call("max", (B, C)))), "-", ONE))),
    ("{self.sizes[1].n}", sized(Braces(Argument("self", ("sizes", 1, "n"))))),
    (
        "{2*min(self.k,n)}-d",
        sized(Binary(Braces(Binary(TWO, "*", Call("min", (Argument("self", ("k",)), Argument("n"))))), "-", D)),
    ),
    ("[batch/dp]", sharded(Name("batch"), "dp")),
    ("[rows=4/dp]", sharded(Number(4), "dp", label="rows")),
    ("[b/dp,tp]", sharded(B, "dp", "tp")),
    ("[b/(dp,tp)]", sized(B, axes=Axes(("dp", "tp"), parenthesised=True))),
    ("[b/]", sharded(B)),
    ("[#b/]", sharded(B, broadcast=True)),
    ("b +tp -dp ~sp", Spec((Dim(B),), (Mark("+", "tp"), Mark("-", "dp"), Mark("~", "sp")))),
    (
        "[batch/dp] seqlen [heads/tp] d",
        Spec((Dim(Name("batch"), Axes(("dp",))), Dim(Name("seqlen")), Dim(Name("heads"), Axes(("tp",))), Dim(D))),
    ),
]
IDS = [source or "no dims" for source, _ in SPECS]


@pytest.mark.parametrize(("source", "spec"), SPECS, ids=IDS)
def test_a_text_is_its_nodes_and_they_print_as_the_text(source, spec):
    assert parse(source) == spec
    assert str(spec) == source


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        ("  a\t b\n", "a b"),
        ("[ a / dp , tp ]", "[a/dp,tp]"),
        ("( a + 1 )", "(a+1)"),
        ("{ kernel - 1 }", "{kernel-1}"),
        ("{_n}", "{_n}"),
        ("1_000", "1000"),
        ("[b/(dp,)]", "[b/(dp)]"),
        ("[b/()]", "[b/]"),
        ("*_rest", "..."),
        ("?_n", "_n"),
        ("rows=_n", "rows=_n"),
        ("?rows=#n", "rows=#?n"),
        ("*rows=#n", "*#n"),
        ("007", "7"),
    ],
)
def test_other_ways_of_writing_print_in_one_form(source, printed):
    assert str(parse(source)) == printed
    assert parse(source) == parse(printed)


def cut(source, item):
    return source[slice(*item.span)]


@pytest.mark.parametrize(
    ("source", "size", "axes"),
    [
        ("[batch/dp,tp]", "batch", "dp,tp"),
        ("[ #n + 1 / ]", "n + 1", "]"),
        ("x  [rows=4/(dp, tp)]", "4", "(dp, tp)"),
        ("a [{self.x}//2 /tp] +dp", "{self.x}//2", "tp"),
    ],
)
def test_the_spans_of_a_size_and_of_its_axes_are_their_text(source, size, axes):
    (dim,) = (dim for dim in parse(source).dims if dim.axes is not None)
    assert source[slice(*dim.size_span)] == size
    assert cut(source, dim.axes) == axes


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("_", ()),
        ("{a}", ("a",)),
        ("{a.x-_c}*b", ("_c", "b")),
        ("(a-b)*-min(c,2)", ("a", "b", "c")),
    ],
)
def test_the_names_of_an_expression_are_those_whose_sizes_it_needs(source, names):
    assert names_in_expression(parse(source).dims[0].size) == names


NO_MARK_AXIS = "an expression holds no spaces, as in d+1"
BRACES = "write {argument}, {argument.attribute} or {argument-1}"
AXES = "write [dim/axis], or [dim/a,b] for two"
ALONE = "any number of dims stand alone, as in ... or *name"
NAMELESS = "give it a name, or write ..."
FAULTS = [
    ("... *n", "'...' and '*n' both stand for any number of dims", "*n", "keep one of them"),
    ("a +tp b", "'+tp' stands before a dim", "+tp", "move '+tp' to the end"),
    ("a, b", "a comma between dims", ",", "separate dims by spaces"),
    ("batch!dp", "unexpected character '!'", "!", "write [batch/dp]"),
    ("batch@dp s", "unexpected character '@'", "@", "write [batch/dp]"),  # as JAX prints types
    ("8@(dp, tp) 4", "unexpected character '@'", "@", "write [8/dp, tp]"),
    ("a $", "unexpected character '$'", "$", None),
    ("a b)", "')' closes nothing", ")", None),
    ("[a/(dp]", "']' closes nothing", "]", None),
    ("(a [b/dp]", "'(' is never closed", "(", None),
    ("n/2", "a single '/' is not an operator", "/", "write n//2"),
    ("batch/dp s", "'batch/dp' is sharded without brackets", "batch/dp", "write [batch/dp]"),
    ("[a/dp]x", "unexpected 'x' after '[a/dp]'", "x", None),
    ("[a/dp]/tp", "unexpected '/' after '[a/dp]'", "/", None),
    ("{h}x", "unexpected 'x' after '{h}'", "x", None),
    ("d +1", "'+' expects a mesh axis", "+1", f"write +axis, as in +tp; {NO_MARK_AXIS}"),
    ("a *4", "'*' expects a name", "*4", "write *name, or ... for dims without a name"),
    ("*#_n", "'_n' may be any size, so '#' cannot compare it", "*#_n", NAMELESS),
    ("#_", "'_' may be any size, so '#' cannot compare it", "#_", "give it a name, or write _"),
    ("_?4", "'?' expects a name", "_?4", "write ?name"),
    ("*a=*n", "'*' is written twice", "*", None),
    ("a=b=4", "unexpected '=' after 'a=b'", "=", None),
    ("#...", "unexpected '...'", "...", ALONE),
    ("{a.0}", "unexpected '0' in braces", "0", BRACES),
    ("{a[x]}", "unexpected 'x' in braces", "x", BRACES),
    ("9" * 101, "a size of 101 digits", "9" * 101, None),
    ("(" * 150 + "a" + ")" * 150, "a dim of more than 200 tokens", ")", None),
    ("a/b/c", "'a/b/c' is sharded without brackets", "a/b/c", "write [a/axis]"),
    ("#", "a dim is missing here", "#", None),
    ("[.../dp]", "'[.../dp]' shards any number of dims", "...", "brackets hold one dim; name the dim that is sharded"),
    ("a []", "brackets without a dim", "[]", "write [dim/axis]; _ is a dim of any size"),
    ("[a]", "'[a]' names no mesh axis", "[a]", "write [a/axis], or [a/] for a dim that is not sharded"),
    ("[#a/dp]", "'#a' may be of size 1, so it may not be sharded", "[#a/dp]", "write [a/dp], or #a"),
    ("[a/dp tp]", "unexpected 'tp' among mesh axes", "tp", "write [dim/a,b]"),
    ("[a/2]", "'2' is not a mesh axis", "2", AXES),
    ("_+1", "'_' may be any size and cannot stand in an expression", "_+1", "give it a name"),
    ("[min(_n,2)/dp]", "'_n' may be any size and cannot stand in an expression", "min(_n,2)", "give it a name"),
    ("b a+", "'a+' ends too early", "a+", None),
    ("(a+)", "unexpected ')'", ")", None),
    ("/dp", "unexpected '/'", "/", None),
    ("min(,a)", "a comma between dims", ",", "separate dims by spaces"),
    ("abs(a)", "unknown function 'abs'", "abs", "min and max are known"),
    ("(a b)", "unexpected 'b' in parentheses", "b", None),
    ("min(a/2,b)", "unexpected '/' in parentheses", "/", "a size is divided by //"),
    ("{a/2}", "unexpected '/' in braces", "/", "a size is divided by //"),
    ("b -a+c", "unexpected '+' after '-a'", "+", "write (-a+c); '-' begins a mark"),
    ("a...", "unexpected '...' after 'a'", "...", ALONE),
    ("{}", "braces expect an argument's name", "}", BRACES),
    ("{{a}}", "braces inside of braces", "{", BRACES),
    ("{a[-x]}", "unexpected 'x' in braces", "x", BRACES),
    ("{a b}", "unexpected 'b' in braces", "b", BRACES),
]


def fault_of(source):
    with pytest.raises(SyntaxFault) as caught:
        parse(source)
    return caught.value


@pytest.mark.parametrize(("source", "problem", "place", "cure"), FAULTS, ids=[row[0] for row in FAULTS])
def test_a_mistake_is_reported_with_its_place_and_its_cure(source, problem, place, cure):
    fault = fault_of(source)
    parts = (fault.problem, source[slice(*fault.span)], fault.cure)
    assert (type(fault), parts) == (SyntaxFault, (problem, place, cure))


@pytest.mark.parametrize(
    ("source", "axis", "span"),
    [
        ("[a/dp] [b/dp]", "dp", (10, 12)),
        ("[a/dp,tp] [b/(sp,tp)]", "tp", (13, 20)),
        ("[a/dp,dp]", "dp", (3, 8)),
        ("[a/tp] +tp", "tp", (7, 10)),
        ("+dp -dp", "dp", (4, 7)),
    ],
)
def test_a_mesh_axis_that_is_written_twice_is_reported_at_its_second_place(source, axis, span):
    fault = fault_of(source)
    parts = (fault.problem, fault.span, fault.cure)
    assert (type(fault), fault.axis) == (RepeatedAxis, axis)
    assert parts == (f"mesh axis '{axis}' is used twice", span, None)


def test_of_two_faulty_places_the_first_is_reported():
    source = "$ a $"
    assert fault_of(source).span == (0, 1)


@settings(max_examples=10 * settings.default.max_examples, deadline=None)
@given(specs())
def test_what_a_spec_prints_parses_to_the_same_spec_with_its_spans(spec):
    source = str(spec)
    found = parse(source)
    assert found == spec
    assert [cut(source, item) for item in (*found.dims, *found.marks)] == [*map(str, spec.dims), *map(str, spec.marks)]


# Few characters of many kinds: to draw from all, hypothesis first makes a table of them, which takes seconds.
OF_MANY_KINDS = "aß一²٣ⅷ\U0001d7d9·_\u0301\u00a0\u200b\n\t\x00\ud800°‰"
TOKENS = ("a", "dp", "min", "n1", "0", "17", " ", "...", "//", "**", *"[](){}/,+-*%=#?~._!$")
noise = st.one_of(
    st.text(alphabet="ab_1 .,/+-*%=#?~()[]{}!", max_size=24),
    st.lists(st.sampled_from(TOKENS), max_size=16).map("".join),
    st.text(alphabet=OF_MANY_KINDS, max_size=12),
)


def parsed(source):
    """The spec, or None for a SyntaxFault; any other exception is the test's."""
    try:
        return parse(source)
    except SyntaxFault as fault:
        assert 0 <= fault.span[0] < fault.span[1] <= len(source)
        return None


@settings(max_examples=40 * settings.default.max_examples, deadline=None)
@given(noise)
def test_any_text_parses_or_is_a_syntax_fault_with_a_place(source):
    spec = parsed(source)
    assert spec is None or isinstance(spec, Spec)
