"""Random programs of the sums and the largest entries of shards: those that are proved give the same on every mesh."""

import random
from pathlib import Path

import pytest
from test_bodies import Body, function_of, is_invariant

from typedshmap import TypedShmapError
from typedshmap.testing import prove
from typedshmap.testing.proving import proof

COUNT, QUICK = 120, 12
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


def drawn(seed: int) -> Body:
    """A program of some lines, whose last reduces over the mesh."""
    draw = random.Random(seed)
    lines = [f"v{at} = {draw.choice(PARTS)}" for at in range(draw.randint(1, 2))]
    for at in range(len(lines), len(lines) + draw.randint(1, 3)):
        is_combined = at > 1 and draw.random() < 0.4
        change = draw.choice(COMBINATIONS if is_combined else CHANGES)
        lines.append(f"v{at} = {change.format(*draw.sample([f'v{at - 1}', f'v{max(0, at - 2)}'], 2))}")
    collective = draw.choice(["psum", "psum", "pmax", "pmin", "pmean"])
    return Body("x y c a", "; ".join([*lines, f"return lax.{collective}(v{len(lines) - 1}, 'dp')"]), "k")


@pytest.mark.sample(3 * COUNT // QUICK)
@pytest.mark.parametrize("seed", range(COUNT))
def test_random_parts_that_are_proved_are_the_same_on_every_mesh(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "assert_mesh_invariant", lambda *_, **__: None)
    function = function_of(drawn(seed), tmp_path, check_vma=False)
    try:
        is_proved = prove(function).verdict == "proved"
    except TypedShmapError:
        return
    assert not is_proved or is_invariant(function)
