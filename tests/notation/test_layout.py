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
        ("[a/dp] [b/tp]", {"dp": ("fsdp",), "tp": ()}, Layout((("fsdp",), ()))),
        ("a +dp", {"dp": ("data", "fsdp")}, Layout(((),), **marks(unreduced=["data", "fsdp"]))),
        ("[a/data] [b/tp]", {"data": ("tp",), "tp": ("data",)}, Layout((("tp",), ("data",)))),
        ("[a/tp]", {"unused": ("nowhere",)}, Layout((("tp",),))),
    ],
)
def test_an_alias_stands_for_its_mesh_axes(dims, aliases, layout):
    assert layout_of(dims, **aliases) == layout


@pytest.mark.parametrize(
    ("dims", "aliases", "fault"),
    [
        ("[a/pd]", {}, UnknownAxis("pd", "pd", (3, 5), MESH, ())),
        ("[a/tp] [b/fsdp,x]", {}, UnknownAxis("x", "x", (10, 16), MESH, ())),
        ("a +x", {}, UnknownAxis("x", "x", (2, 4), MESH, ())),
        ("[a/pd]", {"dp": ("data",), "x": ()}, UnknownAxis("pd", "pd", (3, 5), MESH, ("dp", "x"))),
        ("[a/pd]", {"tp": ()}, UnknownAxis("pd", "pd", (3, 5), MESH, ())),
        ("[a/dp]", {"dp": ("data", "model")}, UnknownAxis("dp", "model", (3, 5), MESH, ("dp",))),
        ("[a/x] [b/tp]", {"x": ("tp",)}, AxisTwice("tp", (9, 11))),
        ("[a/x] +y", {"x": ("data", "tp"), "y": ("fsdp", "tp")}, AxisTwice("tp", (6, 8))),
        ("[a/x]", {"x": ("tp", "tp")}, AxisTwice("tp", (3, 4))),
    ],
)
def test_an_axis_that_is_unknown_or_meant_twice_is_reported_at_the_name_that_means_it(dims, aliases, fault):
    assert layout_of(dims, **aliases) == fault


def test_without_a_mesh_any_name_is_an_axis_and_none_is_used_twice():
    assert layout_of("[a/anything] +other", None) == Layout((("anything",),), **marks(unreduced=["other"]))
    assert layout_of("[a/x] [b/y]", None, x=("tp",), y=("tp",)) == AxisTwice("tp", (9, 10))


RULES = (("batch", ("data",)), ("heads", ("tp",)), ("embed", ("data", "fsdp")), ("embed", ("fsdp",)), ("kv", ()))


def ruled(dims, rules=RULES, mesh=MESH, fallback="unsharded", **aliases):
    return resolve(parse(dims), aliases, mesh, Rules(tuple(rules), fallback))


RULED = {
    "brackets win": ("[batch/] heads", RULES, {}, Layout(((), ("tp",)))),
    "axes of brackets are not free": ("[x/data] batch embed", RULES, {}, Layout((("data",), (), ("fsdp",)))),
    "nor are those of a mark": ("batch heads +tp", RULES, {}, Layout((("data",), ()), **marks(unreduced=["tp"]))),
    "a name in brackets is another one": ("[heads/] heads", RULES, {}, Layout(((), ("tp",)))),
    "a name of two dims has none": ("d d batch", RULES, {}, Layout(((), (), ("data",)))),
    "an alias": ("a b", [("a", ("dp",))], {"dp": ("data", "fsdp")}, Layout((("data", "fsdp"), ()))),
    "an alias for no axis": (
        "a b", [("a", ("dp",)), ("b", ("tp",))], {"dp": (), "tp": ("fsdp",)}, Layout(((), ("fsdp",)))
    ),
    "axes of an alias are not free": (
        "a b", [("a", ("dp",)), ("b", ("fsdp",))], {"dp": ("data", "fsdp")}, Layout((("data", "fsdp"), ()))
    ),
    "not taken, it may name any axis": ("a", [("b", ("pd",)), ("a", ("tp",)), ("a", ("pd",))], {}, Layout((("tp",),))),
    "an unknown axis": ("a b", [("b", ("pd",))], {}, UnknownAxis("b", "pd", (2, 3), MESH, (), by_rule=True)),
    "an unknown one of two": ("a", [("a", ("tp", "pd"))], {}, UnknownAxis("a", "pd", (0, 1), MESH, (), by_rule=True)),
    "an axis that two names mean": ("a", [("a", ("x", "y"))], {"x": ("tp",), "y": ("tp",)}, AxisTwice("tp", (0, 1))),
    "two dims of one name": ("a b a", [("b", ("tp",)), ("a", ("data",))], {}, RuledTwice("a", (4, 5))),
}  # fmt: skip


@pytest.mark.parametrize(("dims", "rules", "aliases", "found"), RULED.values(), ids=RULED)
def test_a_rule_gives_axes_that_are_free_to_a_dim_without_brackets(dims, rules, aliases, found):
    assert ruled(dims, rules, **aliases) == found


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
