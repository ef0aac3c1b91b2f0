"""What a notebook shows of hints, of plans and of what is the same on every mesh."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

from typedshmap import Array, Float, PyTree, axis_rules, plan_reshard, psum, typed_shard_map
from typedshmap.drawing import colours_of
from typedshmap.testing import assert_mesh_invariant

DP, TP = colours_of(["dp", "tp"]).values()


def cells(html: str) -> list[str]:
    """Each dim, and the number of cells in each of its rows with the axis whose colour they have."""
    found: list[str] = []
    for label, body in re.findall(r'<div role="img" aria-label="([^"]*)">(.*?</div>)</div>', html):
        rows = [re.findall(r"background:(#\w+)", row) for row in re.findall(r'<div class="pieces">(.*?)</div>', body)]
        counts = [f"{len(row)} {({DP: 'dp', TP: 'tp'})[row[0]]}" for row in rows]
        found.append(": ".join(filter(None, [label, ", ".join(counts)])))
    return found


@pytest.mark.parametrize(
    ("dims", "expected", "text"),
    [
        ("[b/dp] d", ["b over dp: 4 dp", "d, unsharded"], "each holds 1/4 of it; the same over &#x27;tp&#x27;"),
        ("[b/dp,tp] d", ["b over dp, tp: 4 dp, 8 tp", "d, unsharded"], "each holds 1/8 of it"),
        ("... [f/tp] +dp", ["..., unsharded", "f over tp: 2 tp"], "an addend of the sum over &#x27;dp&#x27;"),
        ("[2*d/tp] x=4", ["2*d over tp: 2 tp", "4, unsharded"], "the same over &#x27;dp&#x27;"),
        ("", [], "one number"),
    ],
)
def test_a_hint_is_drawn_on_the_ambient_mesh(dims, expected, text):
    with jax.sharding.use_abstract_mesh(AbstractMesh((4, 2), ("dp", "tp"))):
        html = Float[Array, dims]._repr_html_()
    assert cells(html) == expected and text in html and "8 devices" in html


def test_a_hint_is_drawn_without_a_mesh_and_over_axes_that_the_mesh_lacks():
    hint = Float[Array, "[b/dp] d ~tp"]
    assert cells(hint._repr_html_()) == ["b over dp: 3 dp", "d, unsharded"]
    assert "devices" not in hint._repr_html_() and "may differ over &#x27;tp&#x27;" in hint._repr_html_()
    with jax.sharding.use_abstract_mesh(AbstractMesh((4,), ("other",))):
        assert cells(hint._repr_html_()) == cells(Float[Array, "[b/dp] d"]._repr_html_())


def test_a_hint_is_drawn_by_its_rules():
    with axis_rules([("b", "dp")]), jax.sharding.use_abstract_mesh(AbstractMesh((4, 2), ("dp", "tp"))):
        assert cells(Float[Array, "b d"]._repr_html_()) == ["b over dp: 4 dp", "d, unsharded"]


def test_hints_of_trees_are_shown_as_text():
    assert PyTree[Float[Array, "b"]]._repr_html_() is None


def test_a_plan_shows_what_moves_between_what_devices_hold():
    html = plan_reshard("[s/dp] h -> s [h/dp]", (64, 32), AbstractMesh((4,), ("dp",)))._repr_html_()
    assert cells(html) == ["64 over dp: 4 dp", "32, unsharded", "64, unsharded", "32 over dp: 4 dp"]
    assert "all_to_all" in html and "a part of its shard" in html and "1,536 bytes" in html


def test_what_is_the_same_on_every_mesh_is_a_table_of_meshes():
    f = typed_shard_map(
        lambda x: psum(jnp.sum(x, axis=0), "f +dp -> f"), in_types=Float[Array, "[b/dp] f"], out_types=Float[Array, "f"]
    )
    found = assert_mesh_invariant(f, ["dp=2", "dp=4"], trials=1, b=8, f=4)
    html = found._repr_html_()
    assert re.findall(r"<tr><td>([^<]*)</td><td[^>]*>(\d+)</td><td>([^<]*)</td>", html) == [
        ("one device", "1", "compared with"),
        ("dp=2", "2", "the same"),
        ("dp=4", "4", "the same"),
    ]
    assert all(seconds > 0 for seconds in found.seconds.values()) and "all results" in html
