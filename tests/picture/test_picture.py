"""The page of a program: all that it sends is there, loop by loop; a browser shows it on a screen and on a phone."""

import json
import re
import sys
from collections import Counter
from html import escape
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from browser import browse, is_drawn, needs_browser

from typedshmap import Array, Float, all_gather, check, explain, psum, typed_shard_map
from typedshmap.drawing import NEUTRAL, UNSHARDED, Bar, BarPart, bars, colours_of, ink, table
from typedshmap.tools.explain.picture import SentBlock, figure, sent_in

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import transformer

MESH = "dp=4,tp=2"
LARGE = {**transformer.LLAMA_8B, "batch": 2048, "seq": 8192}


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


@typed_shard_map
def nested(x: Float[Array, "[n/dp] m"]) -> Float[Array, "n m"]:
    def roll(shard):
        return jax.lax.ppermute(shard, "dp", [(at, (at + 1) % 4) for at in range(4)])

    def layer(carry, _):
        inner, _ = jax.lax.scan(lambda each, _: (roll(each) * 2, None), carry, None, length=3)
        return roll(jnp.sin(inner)), None

    x, _ = jax.lax.scan(layer, x, None, length=5)
    x, _ = jax.lax.scan(layer, roll(x), None, length=5)
    return all_gather(x, "[n/dp] m -> n m")


EXPLAINED = {
    "mlp": lambda: explain(mlp, mesh=MESH, b=16, m=8, f=32),
    "both": lambda: explain(both, mesh=MESH, n=64),
    "nested": lambda: explain(nested, mesh=MESH, n=64, m=4, grad=False),
    "transformer": lambda: explain(transformer.train_step, mesh="fsdp=256,tp=8", hardware="v5p", **LARGE),
}
PROGRAMS = pytest.mark.parametrize("name", EXPLAINED)


@pytest.fixture(scope="module")
def explained():
    return {name: make() for name, make in EXPLAINED.items()}


def blocks_in(block: SentBlock) -> list[SentBlock]:
    inner = [item for item in block.items if isinstance(item, SentBlock)]
    return [block, *(one for each in inner for one in blocks_in(each))]


@PROGRAMS
def test_every_collective_is_there_as_often_as_it_runs(name, explained):
    found = explained[name]
    for part in ("forward", "gradient"):
        block = sent_in(found, part)
        sent, shown = Counter(), Counter()
        for one in (one for one in found.collectives if one.part == part):
            sent[one.operation, one.axes, one.operand, one.result, one.loops] += one.times
        for row in block.rows:
            shown[row.of.operation, row.of.axes, row.of.operand, row.of.result, row.of.loops] += row.of.times
        assert sent == shown
        assert block.bytes == sum(total.wire for total in found.totals if total.part == part)


@PROGRAMS
def test_what_costs_most_is_first(name, explained):
    for part in ("forward", "gradient"):
        for block in blocks_in(sent_in(explained[name], part)):
            sizes = [item.bytes for item in block.items]
            assert sizes == sorted(sizes, reverse=True)


def test_loops_are_boxes_in_boxes_and_two_loops_are_two_boxes(explained):
    (outer, *boxes) = blocks_in(sent_in(explained["nested"], "forward"))
    assert [box.title for box in boxes] == ["scan of 5", "scan of 3"] * 2
    rows = [row.of.operation for row in outer.items if not isinstance(row, SentBlock)]
    assert rows == ["all-gather", "collective-permute"]
    assert figure(explained["nested"]).count('<section class="box">') == 4


def test_equal_collectives_are_one_row_with_their_lines_and_what_they_take(explained):
    (scan,) = [item for item in sent_in(explained["transformer"], "forward").items if isinstance(item, SentBlock)]
    gathers = [row for row in scan.rows if "state.weights.layers.gate" in row.sources]
    sources = ("state.weights.layers.gate", "state.weights.layers.up")
    assert [(row.of.times, row.sources, len(row.places)) for row in gathers] == [(64, sources, 2)]


def dims_in(html: str) -> list[tuple[str, list[str]]]:
    """The dims that are drawn: their text and the colours of their axes."""
    found = re.findall(r'<span class="dim">([^<]*)((?:<span class="axis"[^>]*>[^<]*</span> ?)*)</span>', html)
    return [(text.strip(), re.findall(r"background:(#[0-9a-f]+)", axes)) for text, axes in found]


def test_dims_have_the_colours_of_their_axes_and_others_have_none(explained):
    colours = colours_of(["dp", "tp"])
    dims = dims_in(figure(explained["mlp"]))
    assert ("8 → 2", [colours["dp"]]) in dims and ("32 → 16", [colours["tp"]]) in dims and ("8", []) in dims
    assert all(("→" in text) == bool(axes) for text, axes in dims)


def test_a_dim_and_a_collective_over_two_axes_have_both_colours_the_major_first(explained):
    colours = colours_of(["dp", "tp"])
    assert dims_in(figure(explained["both"])) == [("64 → 8", [colours["dp"], colours["tp"]])]
    (bar,) = re.findall(r'aria-label="all-reduce over dp, tp[^>]*>(.*?)</div>', figure(explained["both"]))
    assert re.findall(r"background:(#[0-9a-f]+)", bar) == [colours["dp"], colours["tp"]]


def test_names_of_the_user_are_escaped():
    f = typed_shard_map(lambda x: x, in_types=(Float[Array, "[b/dp]"],), out_types=Float[Array, "[b/dp]"])
    html = explain(f, mesh="dp=2", b=4).html
    assert "<lambda>" not in html and "&lt;lambda&gt;" in html


def test_colours_can_be_read_and_are_enough_for_many_axes():
    colours = colours_of([f"a{i}" for i in range(20)])
    assert len({colours[f"a{i}"] for i in range(8)}) == 8 and colours["a8"] == colours["a0"]
    assert ink("#0072b2") == ink(NEUTRAL[0]) == "#ffffff" and ink(UNSHARDED) == "#1f2328"


def widths(html: str) -> list[str]:
    return re.findall(r"width:([\d.]+)%", html)


def test_bars_are_shares_of_the_longest_or_of_the_limit():
    rows = [Bar("a", [BarPart("x", 1, "red"), BarPart("y", 2, "blue")]), Bar("b", [BarPart("x", 2, "red")])]
    assert widths(bars("t", rows)) == ["33.33", "66.67", "66.67"]
    assert widths(bars("t", rows, is_stacked=False)) == ["50.00", "100.00", "100.00"]
    limited = bars("t", rows, limit=6, limit_text="a chip")
    assert widths(limited) == ["16.67", "33.33", "33.33"] and limited.count("left:100.00%") == 2 and "a chip" in limited
    assert widths(bars("t", [Bar("a", [BarPart("x", 0, "red")])])) == [] and bars("nothing", [])


def test_cells_are_text():
    assert "<td>&lt;b&gt;</td>" in table(["a"], [["<b>"]])


def test_memory_is_drawn_against_the_chip_and_time_by_what_takes_it(explained):
    html = explained["transformer"].html
    assert "95 GiB of v5p" in html and "time on v5p, at the least" in html
    assert {"compute", "memory", "over fsdp", "over tp"} <= set(re.findall(r'"ends"><span>([^<]*)</span>', html))
    assert "bytes that one device sends" in explained["mlp"].html


# What a browser finds on a screen and on a phone: what is wider than the page, and text that is out of sight.
MEASURE = """<script>
addEventListener("load", () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, wide = frame.contentWindow.innerWidth, lost = [];
    for (const fold of page.querySelectorAll("details")) fold.open = true;
    for (const each of page.querySelectorAll(".typedshmap *:not(style)")) {
      const box = each.getBoundingClientRect(), scrolls = each.closest(".scroll");
      if (!(scrolls && scrolls !== each) && (box.left < 0 || box.right > wide + 0.5)) lost.push(each.outerHTML);
    }
    const fonts = [...page.querySelectorAll(".typedshmap span, .typedshmap code, .typedshmap td")]
      .map((each) => parseFloat(frame.contentWindow.getComputedStyle(each).fontSize));
    const labels = page.querySelectorAll("[role=img]:not([aria-label])").length;
    const scroll = page.documentElement.scrollWidth;
    found[wide] = {scroll, lost: lost.slice(0, 3), small: Math.min(...fonts), labels};
  }
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>"""


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("name", [*EXPLAINED, "meshes"])
def test_a_browser_shows_the_page_on_a_screen_and_on_a_phone(name, explained, tmp_path):
    page = tmp_path / "page.html"
    meshes = ["fsdp=256,tp=8", "fsdp=512,tp=4", "fsdp=3,tp=5"]
    made = explain(transformer.train_step, meshes=meshes, **LARGE) if name == "meshes" else explained[name]
    made.to_html(page)
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"https?://|src=|@import|url\(", text), "the page needs nothing else"
    frames = (f'<iframe width="{wide}" height="900" srcdoc="{escape(text)}"></iframe>' for wide in (1400, 400))
    measured = tmp_path / "measured.html"
    measured.write_text(f"<!doctype html><body>{''.join(frames)}{MEASURE}</body>", encoding="utf-8")
    found = re.search(r'<pre id="found">(.*?)</pre>', browse(measured.as_uri(), tmp_path, "--dump-dom"))
    assert found is not None
    facts = json.loads(found[1].replace("&quot;", '"').replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))
    for wide in ("1400", "400"):
        assert facts[wide]["lost"] == [] and facts[wide]["scroll"] <= int(wide)
        assert facts[wide]["small"] >= 12 and facts[wide]["labels"] == 0
    shot = tmp_path / "page.png"
    browse(page.as_uri(), tmp_path, f"--screenshot={shot}", "--window-size=1400,1200")
    assert is_drawn(shot)
