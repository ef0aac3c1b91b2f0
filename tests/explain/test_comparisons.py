"""Meshes compared, bandwidths, units, and the formulas of a ring."""

from __future__ import annotations

import re
from textwrap import dedent

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from typedshmap import Array, Float32, MeshAxisError, ShapeError, StructureError, explain, psum, typed_shard_map
from typedshmap.tools.explain.model import bytes_text, read_bandwidth, ring_bytes, seconds_text


@typed_shard_map
def layer(
    x: Float32[Array, "[batch/dp] model"], w: Float32[Array, "model [ff/tp]"], v: Float32[Array, "[ff/tp] model"]
) -> Float32[Array, "[batch/dp] model"]:
    return psum(jnp.tanh(x @ w) @ v, "tp")


SIZES = {"batch": 4096, "model": 1024, "ff": 4096}


def test_meshes_are_compared_in_the_order_in_which_they_are_given():
    found = explain(layer, meshes=["dp=64,tp=8", {"dp": 512, "tp": 1}, "dp=3,tp=2"], bandwidth={"tp": 4e11}, **SIZES)
    assert str(found) == dedent("""\
        layer: batch=4096, model=1024, ff=4096

        mesh          devices  peak memory  forward tp  gradient dp  gradient tp  on the wire  seconds
        dp=64, tp=8       512     4.88 MiB     448 KiB     7.88 MiB      448 KiB     8.75 MiB  unknown
        dp=512, tp=1      512     32.2 MiB         0 B     63.9 MiB          0 B     63.9 MiB  unknown
        dp=3, tp=2              ShapeError

        dp=3, tp=2: ShapeError: explain: layer: argument 'x' has batch=4096, which does not divide over 'dp' (3 shards)

            x: Float32[Array, "[batch/dp] model"]
                               ^^^^^^^^^^
            got f32[4096,1024]

        Mesh: dp=3, tp=2
        Sizes: model=1024 (w dim 0), ff=4096 (w dim 1)
        Hint: make batch a multiple of 3, or pad it and mask the rest""")


def test_a_comparison_has_100_columns_whose_last_one_is_of_what_is_sent_least():
    @typed_shard_map
    def f(x: Float32[Array, "[a/pp] [b/dp] [c/tp] [d/cp]"]) -> Float32[Array, "[a/pp] [b/dp] [c/tp] [d/cp]"]:
        for axes in ("pp", "dp", "tp", "cp", ("pp", "dp"), ("tp", "cp")):
            x = x * lax.pmax(jnp.sin(x), axes)
        return x

    meshes = ["pp=2,dp=2,tp=2,cp=2", "pp=4,dp=16,tp=4,cp=2"]
    text = str(explain(f, meshes=meshes, hardware="v5p", grad=False, a=8, b=16, c=8, d=2))
    head, *rows = text.splitlines()[2:5]
    assert max(map(len, text.splitlines())) <= 100 and len(rows) == 2
    assert head.split()[:4] == ["mesh", "devices", "peak", "memory"] and " over others  on the wire" in head


def test_a_comparison_is_data_as_well():
    found = explain(layer, meshes=["dp=64,tp=8", "dp=3,tp=2"], **SIZES)
    (fits,), (fails,) = found.explanations, found.failures
    assert (fits.devices, fails.mesh, type(fails.error)) == (512, (("dp", 3), ("tp", 2)), ShapeError)
    assert len(found) == 2 and list(found) == [fits, fails] == [found[0], found[1]]


def test_sizes_that_are_drawn_fit_all_meshes():
    found = explain(layer, meshes=["dp=4,tp=2", "dp=6,tp=1", "dp=1,tp=5"])
    assert not found.failures
    sizes = {tuple(one.sizes.items()) for one in found.explanations}
    assert len(sizes) == 1
    ((batch, _, ff),) = [tuple(dict(one).values()) for one in sizes]
    assert batch % 12 == 0 and ff % 10 == 0


def test_a_body_that_fails_on_one_mesh_alone_is_reported_in_its_row():
    @typed_shard_map
    def f(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
        return x.reshape(x.shape[0] // 2, 2, -1).reshape(x.shape) if x.shape[0] > 1 else x.reshape(3, -1)

    found = explain(f, meshes=["dp=2", "dp=4"], a=4, b=8)
    assert [type(one.error).__name__ for one in found.failures] == ["TypeError"]
    assert "dp=4" in str(found).splitlines()[4]


def test_if_no_mesh_fits_all_are_reported():
    found = explain(layer, meshes=["dp=3,tp=1", "dp=5,tp=1"], batch=4)
    assert len(found.failures) == 2 and found.explanations == ()
    assert str(found).startswith("dp=3, tp=1: ShapeError: explain: layer: argument 'x' has batch=4")


def test_what_is_no_mesh_among_several_is_refused():
    with pytest.raises(MeshAxisError, match=r"^explain: mesh= is 'dp'"):
        explain(layer, meshes=["dp=2,tp=1", "dp"])


# Bandwidths


def test_seconds_are_bytes_on_the_wire_over_the_bandwidth():
    found = explain(layer, mesh="dp=4,tp=2", grad=False, bandwidth={"tp": "2GB/s"}, **SIZES)
    (total,) = found.totals
    assert total.wire == 1024 * 1024 * 4
    assert found.seconds == total.seconds(found.bandwidth) == total.wire / 2e9


def test_a_collective_over_several_axes_is_as_slow_as_the_slowest():
    @typed_shard_map
    def f(x: Float32[Array, "[a/dp,tp] b"]) -> Float32[Array, "b"]:
        return psum(x.sum(0), ("dp", "tp"))

    found = explain(f, mesh="dp=4,tp=2", a=8, b=1024, grad=False, bandwidth={"tp": 8e9, "dp": 1e9})
    assert found.totals[0].axes == ("dp", "tp")
    assert found.seconds == (2 * 7 * 4096 // 8) / 1e9


def test_without_an_axis_bandwidth_seconds_are_unknown():
    found = explain(layer, mesh="dp=4,tp=2", bandwidth={"tp": 1e9}, **SIZES)
    assert found.seconds is None
    assert [row.split()[-1] for row in found.tables.splitlines()[-3:]] == ["ms", "unknown", "ms"]


def test_where_nothing_is_sent_it_takes_no_time():
    assert explain(layer, mesh="dp=4,tp=1", grad=False, bandwidth={"tp": 1e9}, **SIZES).seconds == 0


@pytest.mark.parametrize(
    "written, number",
    [
        (1, 1.0),
        (2.5e9, 2.5e9),
        ("400GB/s", 4e11),
        ("400 GB/s", 4e11),
        ("400GB", 4e11),
        ("1.5TB/s", 1.5e12),
        ("25e9B/s", 2.5e10),
        ("100kB/s", 1e5),
        ("2KiB/s", 2048.0),
        ("1GiB/s", 2.0**30),
        ("3MiB", 3 * 2.0**20),
    ],
)
def test_a_bandwidth_is_a_number_or_a_text_with_a_unit(written, number):
    assert read_bandwidth("explain", {"tp": written}, (("tp", 2),)) == {"tp": number}


@pytest.mark.parametrize(
    "written", ["400", "100kiB/s", "400Gb/s", "GB/s", ".GB/s", "fast", "-1GB/s", "1.2.3GB/s", 0, -1, True, None, "."]
)
def test_what_is_no_bandwidth_is_refused(written):
    with pytest.raises(StructureError, match=r"^explain: the bandwidth of mesh axis 'tp' is "):
        explain(layer, mesh="dp=4,tp=2", bandwidth={"tp": written}, **SIZES)


def test_a_bandwidth_of_an_axis_that_is_not_there_is_refused():
    with pytest.raises(MeshAxisError) as caught:
        explain(layer, mesh="dp=4,tp=2", bandwidth={"pp": 1}, **SIZES)
    line = "explain: a bandwidth is given for mesh axis 'pp', which the mesh (dp=4, tp=2) does not have"
    assert str(caught.value) == line
    with pytest.raises(StructureError, match=r"^explain: bandwidth= expects a dict"):
        explain(layer, mesh="dp=4,tp=2", bandwidth="400GB/s", **SIZES)


# Units and formulas


BYTES = {
    0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.50 KiB", 10 * 1024 + 512: "10.5 KiB", 131072: "128 KiB",
    2**20: "1 MiB", 5 * 2**40 + 2**39: "5.50 TiB", 2**60: "1024 PiB",
}  # fmt: skip
SECONDS = {0: "0 ns", 5e-9: "5 ns", 1.234e-5: "12.3 us", 4.56e-3: "4.56 ms", 12.0: "12 s"}


@pytest.mark.parametrize(("shown", "texts"), [(bytes_text, BYTES), (seconds_text, SECONDS)], ids=["bytes", "seconds"])
def test_amounts_are_shown_in_the_unit_that_fits(shown, texts):
    assert {amount: shown(amount) for amount in texts} == texts


def reduced_around(n: int) -> tuple[int, int]:
    """Reduce by a ring, by scattering, then gathering; how many of ``n`` pieces each device sends in the two."""
    everyone = set(range(n))
    held = [[{device} for _ in range(n)] for device in range(n)]  # whose addends are in each piece
    counts = []
    for first in (0, 1):
        for step in range(n - 1):
            sent = [(device, (device + first - step) % n) for device in range(n)]
            parts = [set(held[device][piece]) for device, piece in sent]
            for (device, piece), part in zip(sent, parts, strict=True):
                held[(device + 1) % n][piece] |= part
        counts.append(n - 1)
        whole = [sum(piece == everyone for piece in pieces) for pieces in held]
        assert whole == [1 if first == 0 else n] * n
    return counts[0], counts[1]


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_ring_formulas_are_what_a_ring_sends(n):
    piece, (scattered, gathered) = 12, reduced_around(n)
    whole = n * piece
    assert ring_bytes("reduce-scatter", n, whole, piece) == piece * scattered
    assert ring_bytes("all-gather", n, piece, whole) == piece * gathered
    assert ring_bytes("all-reduce", n, whole, whole) == piece * (scattered + gathered)
    assert ring_bytes("all-to-all", n, whole, whole) == piece * (n - 1)
    assert ring_bytes("collective-permute", n, whole, whole) == whole


def test_bytes_that_do_not_divide_are_rounded_up():
    assert ring_bytes("all-reduce", 3, 4, 4) == 6
    assert ring_bytes("reduce-scatter", 3, 4, 4) == 3


def test_an_unknown_operation_is_refused():
    with pytest.raises(ValueError, match="'all-sorts' is not a collective"):
        ring_bytes("all-sorts", 2, 1, 1)


def test_every_part_of_a_loop_is_in_the_totals():
    @typed_shard_map
    def f(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
        return lax.scan(lambda c, _: (jnp.sin(c) * psum(c.sum(0), "dp"), None), x, None, length=7)[0]

    (total,) = explain(f, mesh="dp=4", a=8, b=2, grad=False).totals
    assert (total.count, total.bytes_in, total.bytes_out, total.wire) == (7, 56, 56, 84)


def test_it_is_shown_as_html(tmp_path):
    found = explain(layer, mesh="dp=4,tp=2", **SIZES)
    assert found._repr_html_() == found.html
    assert "<td>all-reduce</td>" in found.html and "[batch/dp] model&quot;" in found.html
    several = explain(layer, meshes=["dp=4,tp=2", "dp=3,tp=1", "dp=2,tp=4"], **SIZES)
    assert several._repr_html_() == several.html
    parts = ("dp=4, tp=2</summary>", "dp=2, tp=4</summary>", "What each device sends", "ShapeError</td>")
    assert [several.html.count(part) for part in parts] == [1, 1, 2, 1]
    for at, one in enumerate((found, several)):
        one.to_html(tmp_path / f"{at}.html")
        page = (tmp_path / f"{at}.html").read_text(encoding="utf-8")
        assert page.startswith("<!doctype html>") and one.html in page and "http" not in page.replace("www.w3.org", "")


def test_no_device_is_asked_for(monkeypatch):
    def refuse(*_):
        raise AssertionError("a device was asked for")

    monkeypatch.setattr(jax, "devices", refuse)
    monkeypatch.setattr(jax, "device_put", refuse)
    assert explain(layer, mesh="dp=4,tp=2", **SIZES).devices == 8


def test_a_list_as_mesh_is_the_old_spelling():
    message = "explain: passing a list of meshes as mesh= is deprecated; pass meshes="
    with pytest.warns(DeprecationWarning, match=message):
        assert str(explain(layer, mesh=["dp=4,tp=2", "dp=3,tp=1"], **SIZES)) == str(
            explain(layer, meshes=["dp=4,tp=2", "dp=3,tp=1"], **SIZES)
        )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"mesh": "dp=2,tp=1", "meshes": ["dp=2,tp=1"]}, "explain: both mesh= and meshes= are given"),
        ({"meshes": "dp=2,tp=1"}, "explain: meshes= expects a list of meshes, got 'dp=2,tp=1'"),
    ],
)
def test_meshes_that_are_no_list_are_refused(options, problem):
    with pytest.raises(MeshAxisError, match=re.escape(problem)):
        explain(layer, **options, **SIZES)
