"""Names in hints to mesh axes: aliases and rules, unknown axes, axes used twice."""

import pytest

from typedshmap.notation.layout import AxisTwice, Layout, NoRule, RuledTwice, Rules, UnknownAxis, resolve
from typedshmap.notation.spec import parse

MESH = ("data", "fsdp", "tp")


def layout_of(dims, mesh=MESH, /, **aliases):
    return resolve(parse(dims), aliases, mesh)


def marks(**axes):
    return {sign: frozenset(names) for sign, names in axes.items()}


@pytest.mark.parametrize(
    ("dims", "layout"),
    [
        ("", Layout(())),
        ("[a/]", Layout(((),))),
        ("[a/tp] ... d", Layout((("tp",), (), ()))),
        ("[a/fsdp,tp] [4/data]", Layout((("fsdp", "tp"), ("data",)))),
        ("a -tp -data", Layout(((),), **marks(reduced=["tp", "data"]))),
        ("[a/data] +tp ~fsdp", Layout((("data",),), **marks(unreduced=["tp"], varying=["fsdp"]))),
    ],
)
def test_each_dim_has_its_mesh_axes_and_each_mark_its_own(dims, layout):
    assert layout_of(dims) == layout


@pytest.mark.parametrize(
    ("dims", "aliases", "layout"),
    [
        ("[a/dp]", {"dp": ("data",)}, Layout((("data",),))),
        ("[a/dp]", {"dp": ("data", "fsdp")}, Layout((("data", "fsdp"),))),
        ("[a/dp] [b/tp]", {"dp": ("fsdp",), "tp": ()}, Layout((("fsdp",), ()))),
        ("a +dp", {"dp": ("data", "fsdp")}, Layout(((),), **marks(unreduced=["data", "fsdp"]))),
        ("[a/tp]", {"tp": ("data",)}, Layout((("data",),))),
        ("[a/data] [b/tp]", {"data": ("tp",), "tp": ("data",)}, Layout((("tp",), ("data",)))),
        ("[a/tp]", {"unused": ("nowhere",)}, Layout((("tp",),))),
    ],
)
def test_an_alias_stands_for_its_mesh_axes(dims, aliases, layout):
    assert layout_of(dims, **aliases) == layout


@pytest.mark.parametrize(
    ("dims", "aliases", "axis", "place"),
    [
        ("[a/dp]", {}, "dp", "dp"),
        ("[a/tp] [b/fsdp,x]", {}, "x", "fsdp,x"),
        ("a +x", {}, "x", "+x"),
        ("[a/dp]", {"dp": ("data", "model")}, "model", "dp"),
    ],
)
def test_an_unknown_axis_is_reported_at_the_name_that_means_it(dims, aliases, axis, place):
    found = layout_of(dims, **aliases)
    assert isinstance(found, UnknownAxis)
    assert (found.axis, dims[slice(*found.span)]) == (axis, place)


@pytest.mark.parametrize(
    ("dims", "aliases", "unknown"),
    [
        ("[a/pd]", {}, UnknownAxis("pd", "pd", (3, 5), MESH, ())),
        ("[a/pd]", {"dp": ("data",), "x": ()}, UnknownAxis("pd", "pd", (3, 5), MESH, ("dp", "x"))),
        ("[a/pd]", {"tp": ()}, UnknownAxis("pd", "pd", (3, 5), MESH, ())),
        ("[a/dp]", {"dp": ("date",)}, UnknownAxis("dp", "date", (3, 5), MESH, ("dp",))),
    ],
)
def test_an_unknown_axis_knows_how_it_was_written_and_what_would_do(dims, aliases, unknown):
    assert layout_of(dims, **aliases) == unknown


@pytest.mark.parametrize(
    ("dims", "aliases", "axis", "place"),
    [
        ("[a/x] [b/tp]", {"x": ("tp",)}, "tp", "tp"),
        ("[a/x] +y", {"x": ("data", "tp"), "y": ("fsdp", "tp")}, "tp", "+y"),
        ("[a/x]", {"x": ("tp", "tp")}, "tp", "x"),
    ],
)
def test_an_axis_that_two_names_mean_is_reported_at_the_second(dims, aliases, axis, place):
    found = layout_of(dims, **aliases)
    assert isinstance(found, AxisTwice)
    assert (found.axis, dims[slice(*found.span)]) == (axis, place)


def test_without_a_mesh_any_name_is_an_axis():
    assert layout_of("[a/anything] +other", None) == Layout((("anything",),), **marks(unreduced=["other"]))


def test_without_a_mesh_an_axis_used_twice_is_reported_all_the_same():
    assert layout_of("[a/x] [b/y]", None, x=("tp",), y=("tp",)) == AxisTwice("tp", (9, 10))


RULES = (("batch", ("data",)), ("heads", ("tp",)), ("embed", ("data", "fsdp")), ("embed", ("fsdp",)), ("kv", ()))


def ruled(dims, rules=RULES, mesh=MESH, fallback="unsharded", **aliases):
    return resolve(parse(dims), aliases, mesh, Rules(tuple(rules), fallback))


@pytest.mark.parametrize(
    ("dims", "parts"),
    [
        ("[batch/] heads", ((), ("tp",))),
        ("[x/data] batch embed", (("data",), (), ("fsdp",))),
        ("[heads/] heads", ((), ("tp",))),
    ],
)
def test_brackets_win_over_rules(dims, parts):
    assert ruled(dims) == Layout(parts)


def test_an_axis_that_a_mark_names_is_not_free():
    assert ruled("batch heads +tp") == Layout((("data",), ()), **marks(unreduced=["tp"]))


@pytest.mark.parametrize(
    ("rules", "aliases", "parts"),
    [
        ([("a", ("dp",))], {"dp": ("data", "fsdp")}, (("data", "fsdp"), ())),
        ([("a", ("dp",)), ("b", ("tp",))], {"dp": (), "tp": ("fsdp",)}, ((), ("fsdp",))),
        ([("a", ("dp",)), ("b", ("fsdp",))], {"dp": ("data", "fsdp")}, (("data", "fsdp"), ())),
    ],
)
def test_a_rule_may_name_an_alias(rules, aliases, parts):
    assert ruled("a b", rules, **aliases) == Layout(parts)


@pytest.mark.parametrize(
    ("dims", "rules", "fault"),
    [
        ("a b", [("b", ("pd",))], UnknownAxis("b", "pd", (2, 3), MESH, (), by_rule=True)),
        ("a", [("a", ("tp", "pd"))], UnknownAxis("a", "pd", (0, 1), MESH, (), by_rule=True)),
        ("a b a", [("b", ("tp",)), ("a", ("data",))], RuledTwice("a", (4, 5))),
    ],
)
def test_a_rule_that_cannot_hold_is_reported_at_its_dim(dims, rules, fault):
    assert ruled(dims, rules) == fault


def test_a_rule_that_is_not_taken_may_name_any_axis():
    assert ruled("a", [("b", ("pd",)), ("a", ("tp",)), ("a", ("pd",))]) == Layout((("tp",),))


def test_two_dims_of_one_name_have_no_rule():
    assert ruled("d d batch") == Layout(((), (), ("data",)))


def test_two_names_of_one_axis_in_a_rule_are_reported():
    assert ruled("a", [("a", ("x", "y"))], x=("tp",), y=("tp",)) == AxisTwice("tp", (0, 1))


@pytest.mark.parametrize(
    ("dims", "fault"),
    [
        ("batch seq", NoRule("seq", (), (6, 9))),
        ("seq seq", NoRule("seq", (), (0, 3))),
        ("[x/tp] heads", NoRule("heads", ("tp",), (7, 12))),
        ("[x/fsdp] embed", NoRule("embed", ("data", "fsdp", "fsdp"), (9, 14))),
    ],
)
def test_a_name_without_a_rule_is_a_fault_where_it_must_match(dims, fault):
    assert ruled(dims, fallback="error") == fault


@pytest.mark.parametrize("dims", ["batch [seq/] kv", "batch 4 _ ... n//2 #seq", "[seq/fsdp]", ""])
def test_what_has_no_name_or_has_brackets_needs_no_rule(dims):
    assert isinstance(ruled(dims, fallback="error"), Layout)
