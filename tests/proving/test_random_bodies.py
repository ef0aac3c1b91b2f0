"""Random programs: those that are proved give the same on every mesh."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_bodies import Body, function_of, is_invariant

from typedshmap import TypedShmapError
from typedshmap.testing import prove

pytestmark = pytest.mark.usefixtures("nothing_is_run", "without_first_differences")
COUNT = 120


def neighbours(seed: int) -> Body:
    """Shards that send each other edges: every part is right with a probability, so that some programs are right."""
    draw = random.Random(seed)

    def mostly(right: Any, *others: Any) -> Any:
        return right if draw.random() < 0.85 else draw.choice(others)

    def edge(of: str, width: int, shift: int) -> str:
        ends = [f"{of}[-{width}:]", f"{of}[:{width}]"]
        part = mostly(*(ends if shift == 1 else ends[::-1]))
        way = mostly(shift, -shift, 2 * shift, 0)
        sender = draw.choice(["ring", "line"])
        sent = f"{sender}({part}, 'dp', {way})"
        if draw.random() < 0.4:
            last = mostly(shift == -1, shift == 1)
            end = draw.choice(["0", "1.5", f"c[None, :] * jnp.ones(({width}, 1))"])
            asked = draw.choice(["lax.axis_index('dp') == {}", "~(lax.axis_index('dp') != {})"])
            index = "lax.axis_size('dp') - 1" if last else "0"
            sent = f"jnp.where({asked.format(index)}, {end}, {sent})"
        return sent

    lines = list[str]()
    for _ in range(draw.randint(1, 2)):
        before, behind = draw.choice([(1, 1), (1, 0), (0, 1), (2, 1), (2, 2)])
        pieces = [edge(mostly("x", "y"), before, 1)] if before else []
        pieces += ["x", *([edge(mostly("x", "y"), behind, -1)] if behind else [])]
        lines.append(f"w = jnp.concatenate([{', '.join(pieces)}])")
        if draw.random() < 0.3:
            lines.append(draw.choice(["w = jnp.tanh(w)", "w = w * c", "w = jnp.pad(w, ((1, 1), (0, 0)))[1:-1]"]))
        whole = before + behind
        starts = [draw.randint(0, whole) for _ in range(2)]
        one, other = (f"w[{start}:len(w) - {whole - start}]" for start in starts)
        lines.append(f"x = {one} {draw.choice('+-*')} {mostly(other, 'y', 'lax.pmean(x, chr(100) + chr(112))')}")
    return Body("x y c", "; ".join([*lines, "return x"]), "[b/dp] k")


PARTS = (
    "x.sum(0)", "x.max(0)", "x.min(0)", "x.mean(0)", "(x * y).sum(0)", "y.max(0)", "(x + c).sum(0)", "c", "len(x) * c",
    "lax.psum(x.sum(0), 'dp')", "lax.pmax(y.max(0), 'dp')", "(x * 0).sum(0)", "jnp.zeros(c.shape)", "x.prod(0)",
    "(x > 0).sum(0).astype(jnp.float32)",
)  # fmt: skip
CHANGES = (
    "-{0}", "{0} * 2.0", "{0} * -1.0", "{0} / -2.0", "{0} / 3.0", "0.0 - {0}", "{0} + 1.0", "{0} - 0.0", "jnp.abs({0})",
    "{0} ** 2", "jnp.tanh({0})", "jnp.maximum({0}, 0.0)", "jnp.minimum({0}, 0.5)", "jnp.clip({0}, -1, 1)",
    "{0}.astype(jnp.int32).astype(jnp.float32)", "{0}.astype(bool).astype(jnp.float32)", "jnp.sign({0})", "{0} * c",
    "{0}.astype(jnp.bfloat16).astype(jnp.float32)", "jnp.cumsum({0}, -1)", "jnp.sort({0}, -1)", "{0}[..., ::-1]",
    "{0} + c", "{0} - {0} ", "{0} + {0}", "jnp.where(c > 0, {0}, 0.0)", "jnp.where({0} > 0, 1.0, 0.0)",
    "jnp.where(c > 0, {0}, c)", "jnp.concatenate([{0}, {0}], -1)[..., : len(c)]", "jnp.roll({0}, 1, -1)",
    "{0} * lax.axis_size('dp')", "lax.psum({0}, 'dp')", "lax.pmax({0}, 'dp')", "lax.pmin({0}, 'dp')",
    "lax.pmean({0}, 'dp')", "jnp.zeros_like({0}).at[..., a % 2].add({0})", "{0}[..., a % 2]",
    "lax.scan(lambda s, _: (s * 2.0, None), {0}, None, 2)[0]", "jnp.stack([{0}, {0}]).sum(0)",
    "lax.scan(lambda s, r: (s + r * {0}, None), 0 * {0}, jnp.ones(2))[0]", "jnp.stack([{0}, c + 0 * {0}]).max(0)",
    "lax.cond(c[0] > 0, lambda: {0}, lambda: 2.0 * {0})", "lax.cond(c[0] > 0, lambda: {0}, lambda: 0 * {0})",
    "lax.fori_loop(0, 3, lambda _, s: jnp.maximum(s, {0}), {0})", "jnp.pad({0}, 1)[1:-1]", "{0} @ jnp.eye(len(c))",
)  # fmt: skip
COMBINATIONS = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "jnp.maximum({0}, {1})", "jnp.minimum({0}, {1})",
    "jnp.where(c > 0, {0}, {1})", "jnp.where({0} > 0, {1}, 0.0)", "lax.cond(c[0] > 0, lambda: {0}, lambda: {1})",
    "{0} / (1.5 + jnp.abs({1}))", "lax.scan(lambda s, r: (s + r * {0}, None), {1}, jnp.ones(2))[0]",
)  # fmt: skip


def parts(seed: int) -> Body:
    """The sums and the largest entries of shards: a program of some lines, whose last reduces over the mesh."""
    draw = random.Random(seed)
    lines = [f"v{at} = {draw.choice(PARTS)}" for at in range(draw.randint(1, 2))]
    for at in range(len(lines), len(lines) + draw.randint(1, 3)):
        is_combined = at > 1 and draw.random() < 0.4
        change = draw.choice(COMBINATIONS if is_combined else CHANGES)
        lines.append(f"v{at} = {change.format(*draw.sample([f'v{at - 1}', f'v{max(0, at - 2)}'], 2))}")
    collective = draw.choice(["psum", "psum", "pmax", "pmin", "pmean"])
    return Body("x y c a", "; ".join([*lines, f"return lax.{collective}(v{len(lines) - 1}, 'dp')"]), "k")


KINDS = {"edges": neighbours, "parts": parts}


@pytest.mark.sample(20)
@pytest.mark.parametrize("seed", range(COUNT))
@pytest.mark.parametrize("drawn", KINDS.values(), ids=KINDS)
def test_random_bodies_that_are_proved_are_the_same_on_every_mesh(
    seed: int, drawn: Callable[[int], Body], tmp_path: Path
) -> None:
    function = function_of(drawn(seed), tmp_path, check_vma=False)
    try:
        is_proved = prove(function).verdict == "proved"
    except TypedShmapError:
        return
    assert not is_proved or is_invariant(function)
