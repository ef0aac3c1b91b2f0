"""Names in hints to mesh axes: aliases, unknown axes, axes used twice."""

import pytest

from typedshmap.notation.layout import AxisTwice, Layout, UnknownAxis, resolve
from typedshmap.notation.parser import parse

MESH = ("data", "fsdp", "tp")


def laid(dims, mesh=MESH, /, **aliases):
    return resolve(parse(dims), aliases, mesh)


def marks(**axes):
    return {sign: frozenset(names) for sign, names in axes.items()}


@pytest.mark.parametrize(
    ("dims", "layout"),
    [
        ("", Layout(())),
        ("a b", Layout(((), ()))),
        ("[a/]", Layout(((),))),
        ("[a/tp] ... d", Layout((("tp",), (), ()))),
        ("[a/fsdp,tp] [4/data]", Layout((("fsdp", "tp"), ("data",)))),
        ("[a/(tp,fsdp)]", Layout((("tp", "fsdp"),))),
        ("a +tp", Layout(((),), **marks(unreduced=["tp"]))),
        ("a -tp -data", Layout(((),), **marks(reduced=["tp", "data"]))),
        ("[a/data] +tp ~fsdp", Layout((("data",),), **marks(unreduced=["tp"], varying=["fsdp"]))),
    ],
)
def test_each_dim_has_its_mesh_axes_and_each_mark_its_own(dims, layout):
    assert laid(dims) == layout


@pytest.mark.parametrize(
    ("dims", "aliases", "layout"),
    [
        ("[a/dp]", {"dp": ("data",)}, Layout((("data",),))),
        ("[a/dp]", {"dp": ("data", "fsdp")}, Layout((("data", "fsdp"),))),
        ("[a/tp,dp]", {"dp": ("data", "fsdp")}, Layout((("tp", "data", "fsdp"),))),
        ("[a/dp] [b/tp]", {"dp": ("fsdp",), "tp": ()}, Layout((("fsdp",), ()))),
        ("[a/x,y] b", {"x": (), "y": ()}, Layout(((), ()))),
        ("a +dp", {"dp": ("data", "fsdp")}, Layout(((),), **marks(unreduced=["data", "fsdp"]))),
        ("a ~dp", {"dp": ()}, Layout(((),))),
        ("[a/tp]", {"tp": ("data",)}, Layout((("data",),))),
        ("[a/data] [b/tp]", {"data": ("tp",), "tp": ("data",)}, Layout((("tp",), ("data",)))),
        ("[a/tp]", {"unused": ("nowhere",)}, Layout((("tp",),))),
    ],
)
def test_an_alias_stands_for_its_mesh_axes(dims, aliases, layout):
    assert laid(dims, **aliases) == layout


@pytest.mark.parametrize(
    ("dims", "aliases", "axis", "place"),
    [
        ("[a/dp]", {}, "dp", "dp"),
        ("[a/tp] [b/fsdp,x]", {}, "x", "fsdp,x"),
        ("a +x", {}, "x", "+x"),
        ("a -x", {}, "x", "-x"),
        ("a ~x", {}, "x", "~x"),
        ("[a/dp]", {"dp": ("data", "model")}, "model", "dp"),
        ("[a/x] [b/y]", {}, "x", "x"),
    ],
)
def test_an_unknown_axis_is_told_at_the_name_that_means_it(dims, aliases, axis, place):
    found = laid(dims, **aliases)
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
    assert laid(dims, **aliases) == unknown


@pytest.mark.parametrize(
    ("dims", "aliases", "axis", "place"),
    [
        ("[a/x] [b/tp]", {"x": ("tp",)}, "tp", "tp"),
        ("[a/tp] [b/x]", {"x": ("tp",)}, "tp", "x"),
        ("[a/x,y]", {"x": ("tp",), "y": ("tp",)}, "tp", "x,y"),
        ("[a/x] +y", {"x": ("data", "tp"), "y": ("fsdp", "tp")}, "tp", "+y"),
        ("a +x -y", {"x": ("tp",), "y": ("tp",)}, "tp", "-y"),
        ("[a/x]", {"x": ("tp", "tp")}, "tp", "x"),
    ],
)
def test_an_axis_that_two_names_mean_is_told_at_the_second(dims, aliases, axis, place):
    found = laid(dims, **aliases)
    assert isinstance(found, AxisTwice)
    assert (found.axis, dims[slice(*found.span)]) == (axis, place)


def test_without_a_mesh_any_name_is_an_axis():
    assert laid("[a/anything] +other", None) == Layout((("anything",),), **marks(unreduced=["other"]))


def test_without_a_mesh_an_axis_used_twice_is_told_all_the_same():
    assert laid("[a/x] [b/y]", None, x=("tp",), y=("tp",)) == AxisTwice("tp", (9, 10))


def test_a_mesh_without_axes_knows_none():
    assert laid("[a/tp]", ()) == UnknownAxis("tp", "tp", (3, 5), (), ())


def test_the_sharded_axes_are_those_in_brackets():
    assert laid("[a/data,fsdp] b +tp").sharded == {"data", "fsdp"}
