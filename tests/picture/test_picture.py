"""The picture of a program: all of it is there, nothing overlaps, and a browser shows it."""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import pytest
from browser import browse, is_drawn, needs_browser

from typedshmap import Array, Float, all_gather, check, explain, psum, typed_shard_map
from typedshmap.drawing import UNSHARDED, colours_of, ink
from typedshmap.explaining.picture import figure, lay_out_picture

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import quickstart

SIZES = {"vocab": 256, "model": 128, "seq": 64, "heads": 4, "head": 32, "ff": 512, "layers": 2, "batch": 32}
MESH = "dp=4,tp=2"


@typed_shard_map
def mlp(
    x: Float[Array, "[b/dp] m"], w: Float[Array, "[m/dp] [f/tp]"], v: Float[Array, "[f/tp] m"]
) -> Float[Array, "[b/dp] m"]:
    whole = all_gather(w, "[m/dp] [f/tp] -> m [f/tp]")
    hidden = check(jax.nn.relu(x @ whole), "[b/dp] [f/tp]")
    return psum(hidden @ v, "tp")


@typed_shard_map
def both(x: Float[Array, "[n/dp,tp]"]) -> Float[Array, ""]:
    return jax.lax.psum(jnp.sum(x), ("dp", "tp"))


EXPLAINED = {
    "mlp": lambda: explain(mlp, mesh=MESH, b=16, m=8, f=32),
    "both": lambda: explain(both, mesh=MESH, n=64),
    "quickstart": lambda: explain(quickstart.train_step, mesh=MESH, **SIZES),
}
PROGRAMS = pytest.mark.parametrize("name", EXPLAINED)


@pytest.fixture(scope="module")
def explained():
    return {name: make() for name, make in EXPLAINED.items()}


@PROGRAMS
def test_every_value_and_every_collective_that_results_need_is_there(name, explained):
    found = explained[name]
    there = [ident for placed in lay_out_picture(found).nodes for ident in placed.idents]
    assert len(there) == len(set(there)) and {value.ident for value in found.values} <= set(there)
    forward = {each.ident for each in found.collectives if each.part == "forward"}
    assert forward <= set(there)
    if name == "quickstart":  # its gradients are its own results
        assert {each.ident for each in found.collectives} <= set(there)
    else:
        assert {each.ident for each in found.collectives if each.part == "gradient"}.isdisjoint(there)


@PROGRAMS
def test_lines_go_to_the_right_and_nothing_overlaps(name, explained):
    picture = lay_out_picture(explained[name])
    at = {ident: placed for placed in picture.nodes for ident in placed.idents}
    assert picture.lines and all(at[a].x + at[a].width < at[b].x for a, b in picture.lines)
    for one in picture.nodes:
        assert one.x >= 0 and one.x + one.width <= picture.width and one.y + one.height <= picture.height
        for other in picture.nodes:
            apart = one.y + one.height <= other.y or other.y + other.height <= one.y
            assert one is other or one.x != other.x or apart


def test_a_collective_is_between_what_it_takes_and_what_is_made_of_it(explained):
    picture = lay_out_picture(explained["mlp"])
    arrows = {p.rows[0].operation: p.x for p in picture.nodes if p.kind == "collective"}
    boxes = {p.rows[0].name: p.x for p in picture.nodes if p.kind != "collective"}
    checked = next(x for name, x in boxes.items() if name not in ("x", "w", "v", "return"))
    assert boxes["w"] < arrows["all-gather"] < checked < arrows["all-reduce"] < boxes["return"]


def test_dims_have_the_colours_of_their_axes_and_arrows_tell_bytes(explained):
    html = figure(explained["mlp"])
    colours = colours_of(["dp", "tp"])
    drawing = ElementTree.fromstring(re.search(r"<svg.*</svg>", html, re.DOTALL)[0])
    rows = {
        title.text.split(":")[0]: group for group in drawing.iter("g") if (title := group.find("title")) is not None
    }
    fills = {name: [rect.get("fill") for rect in group.iter("rect")] for name, group in rows.items()}
    assert fills["w"] == [colours["dp"], colours["tp"]] and fills["x"] == [colours["dp"], UNSHARDED]
    texts = {text.text for text in drawing.iter("text")}
    assert {"all-gather dp", "128 B → 512 B", "all-reduce tp", "16→4", "32→16"} <= texts


def test_a_dim_over_two_axes_has_both_colours(explained):
    colours = colours_of(["dp", "tp"])
    assert f'fill="{colours["dp"]}"' in figure(explained["both"])
    assert f'stroke="{colours["tp"]}"' in figure(explained["both"]), "a collective over both"


def test_names_of_the_user_are_escaped():
    f = typed_shard_map(lambda x: x, in_types=(Float[Array, "[b/dp]"],), out_types=Float[Array, "[b/dp]"])
    html = figure(explain(f, mesh="dp=2", b=4))
    assert "<lambda>" not in html and "&lt;lambda&gt;" in html


def test_colours_can_be_read_and_are_enough_for_many_axes():
    colours = colours_of([f"a{i}" for i in range(20)])
    assert len({colours[f"a{i}"] for i in range(8)}) == 8 and colours["a8"] == colours["a0"]
    assert ink("#0072b2") == "#ffffff" and ink(UNSHARDED) == "#1f2328"


# What a browser finds: texts that do not fit into the shape of their node, and nodes that are drawn.
MEASURE = """<script>
const bad = [], nodes = [...document.querySelectorAll("g.node")];
for (const node of nodes) {
  const shape = node.querySelector(".box, .arrow").getBBox();
  for (const text of node.querySelectorAll("text")) {
    const box = text.getBBox();
    if (box.x < shape.x || box.x + box.width > shape.x + shape.width || box.y < shape.y - 1
        || box.y + box.height > shape.y + shape.height + 1) bad.push(text.textContent);
  }
}
const fonts = getComputedStyle(document.querySelector("svg text")).fontSize;
document.body.innerHTML = "<pre id=found></pre>";
document.getElementById("found").textContent = JSON.stringify({nodes: nodes.length, bad: bad, fonts: fonts});
</script>"""


@pytest.mark.slow
@needs_browser
@PROGRAMS
def test_a_browser_shows_the_page(name, explained, tmp_path):
    page = tmp_path / "page.html"
    explained[name].to_html(page)
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"https?://|src=|@import|url\(", text), "the page needs nothing else"
    measured = tmp_path / "measured.html"
    measured.write_text(text.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    found = re.search(r'<pre id="found">(.*?)</pre>', browse(measured.as_uri(), tmp_path, "--dump-dom"))
    assert found is not None
    facts = json.loads(found[1].replace("&quot;", '"').replace("&gt;", ">").replace("&amp;", "&"))
    picture = lay_out_picture(explained[name])
    assert facts == {"nodes": len(picture.nodes), "bad": [], "fonts": "12px"}
    shot = tmp_path / "page.png"
    browse(page.as_uri(), tmp_path, f"--screenshot={shot}", "--window-size=1600,1200")
    assert is_drawn(shot)
