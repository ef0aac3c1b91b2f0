"""A PartitionSpec as the third item of a hint: the same as brackets."""

import pytest
from jax.sharding import PartitionSpec as P
from lines import unplaced

from typedshmap import AnnotationSyntaxError, Array, Float, MeshAxisError, partition_specs


def spec_of(hint):
    """The spec as it prints, ``[d/]`` and ``d`` being the same."""
    text = str(hint.__typedshmap__.spec)
    return " ".join(word[1:-2] if word.endswith("/]") else word for word in text.split())


PAIRS = [
    ("a b", P(), "a b"),
    ("a b", P("dp"), "[a/dp] b"),
    ("a b", P("dp", None), "[a/dp] b"),
    ("a b", P(None, "dp"), "a [b/dp]"),
    ("a b", P("dp", "tp"), "[a/dp] [b/tp]"),
    ("a b", P(("dp", "tp")), "[a/dp,tp] b"),
    ("a b", P(("tp", "dp"), None), "[a/tp,dp] b"),
    ("a  b", P(("dp",), ()), "[a/dp] b"),
    ("4 _ _n", P("dp", "tp", "sp"), "[4/dp] [_/tp] [_n/sp]"),
    ("rows=4 a-1 ?n", P("dp", "tp", "sp"), "[rows=4/dp] [a-1/tp] [?n/sp]"),
    ("{self.n} min(a,b)", P("dp", "tp"), "[{self.n}/dp] [min(a,b)/tp]"),
    ("#a b", P(None, "tp"), "#a [b/tp]"),
    ("a ... b", P("dp"), "[a/dp] ... b"),
    ("a *n", P("dp"), "[a/dp] *n"),
    ("...", P(), "..."),
    ("", P(), ""),
    ("a", P(unreduced={"tp"}), "a +tp"),
    ("a", P(unreduced={"tp", "dp"}), "a +dp +tp"),
    ("a", P(reduced={"dp"}), "a -dp"),
    ("a", P("sp", unreduced={"tp"}, reduced={"dp"}), "[a/sp] +tp -dp"),
    ("a +tp", P("dp"), "[a/dp] +tp"),
    ("a ~tp", P("dp", unreduced={"sp"}), "[a/dp] ~tp +sp"),
    ("", P(unreduced={"tp"}), "+tp"),
]


# A PartitionSpec prints its unreduced axes in the order of a set.
@pytest.mark.parametrize(
    ("dims", "pspec", "brackets"), PAIRS, ids=[f"{dims}, {brackets}" for dims, _, brackets in PAIRS]
)
def test_a_partition_spec_says_what_brackets_say(dims, pspec, brackets):
    assert spec_of(Float[Array, dims, pspec]) == spec_of(Float[Array, brackets])


@pytest.mark.parametrize(
    ("dims", "pspec", "full"),
    [
        ("a b", P("dp"), P("dp", None)),
        ("a b", P(None, ("dp", "tp")), P(None, ("dp", "tp"))),
        ("a", P("dp", unreduced={"tp"}), P("dp", unreduced={"tp"})),
        ("a", P(reduced={"tp"}), P(None, reduced={"tp"})),
    ],
    ids=str,
)
def test_a_partition_spec_comes_back_at_full_rank(dims, pspec, full):
    assert partition_specs(Float[Array, dims, pspec]) == full


def test_each_entry_becomes_brackets_and_a_spec_that_is_shorter_leaves_the_rest_unsharded():
    assert str(Float[Array, "a b c", P("dp", None)].__typedshmap__.spec) == "[a/dp] [b/] [c/]"


def test_the_same_partition_spec_makes_the_same_hint():
    assert Float[Array, "a", P("dp")] is Float[Array, "a", P(("dp",))]


@pytest.mark.parametrize(
    ("dims", "pspec", "name"),
    [
        ("a b", P("dp", None), "Float[Array, \"a b\", P('dp', None)]"),
        ("a b", P(("dp", "tp")), "Float[Array, \"a b\", P(('dp', 'tp'))]"),
        (
            "a",
            P(unreduced={"tp", "dp"}, reduced={"sp"}),
            "Float[Array, \"a\", P(unreduced={'dp', 'tp'}, reduced={'sp'})]",
        ),
    ],
)
def test_a_hint_with_a_partition_spec_prints_as_it_was_written(dims, pspec, name):
    assert Float[Array, dims, pspec].__name__ == name


def test_a_hint_with_a_partition_spec_may_stand_inside_another():
    hint = Float[Float[Array, "b c", P("dp")], "a", P("tp")]
    assert spec_of(hint) == "[a/tp] [b/dp] c"


SYNTAX, TWICE = AnnotationSyntaxError, MeshAxisError


@pytest.mark.parametrize(
    ("dims", "pspec", "error", "problem", "place", "cure"),
    [
        ("a b", "P('dp', None, 'tp')", SYNTAX, "P(...) has 3 entries for 2 dims", "a b", None),
        ("a ... b", "P('dp', 'tp')", SYNTAX, "P(...) has 2 entries for 1 dim", "a ... b", "write brackets"),
        ("a [b/tp]", "P('dp')", SYNTAX, "brackets and P(...) in one hint", "[b/tp]", "write one of them"),
        ("[a/] b", "P('dp')", SYNTAX, "brackets and P(...) in one hint", "[a/]", "write one of them"),
        ("a #b", "P(None, 'dp')", SYNTAX, "'#b' may be of size 1, so it may not be sharded", "#b", None),
        ("a b", "P('dp', 'dp')", TWICE, "mesh axis 'dp' is used twice", "a b", None),
        ("a +tp", "P('tp')", TWICE, "mesh axis 'tp' is used twice", "a +tp", None),
    ],
)
def test_a_partition_spec_that_does_not_fit_the_dims_is_an_error(dims, pspec, error, problem, place, cure):
    with pytest.raises(error) as caught:
        Float[Array, dims, eval(pspec)]
    hint = f'Float[Array, "{dims}", {pspec}]'
    message = f"{hint}: {problem}\n\n    {hint}\n" + " " * (4 + hint.index(place)) + "^" * len(place)
    assert unplaced(caught.value) == message + (f"\n\nHint: {cure}" if cure else "")


@pytest.mark.parametrize(("item", "name"), [("dp", "str"), (("dp", None), "tuple"), (None, "NoneType"), (3, "int")])
def test_a_third_item_of_another_type_is_an_error(item, name):
    with pytest.raises(AnnotationSyntaxError) as caught:
        Float[Array, "a", item]
    assert unplaced(caught.value) == f"Float[...]: the third item is of type {name}; it may be a PartitionSpec"
