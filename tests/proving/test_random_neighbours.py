"""Random programs in which shards send each other edges: those that are proved give the same on every mesh."""

import random
from pathlib import Path
from typing import Any

import pytest
from test_bodies import Body, function_of, is_invariant

from typedshmap.testing import prove
from typedshmap.testing.proving import proof

COUNT, QUICK = 120, 8


def drawn(seed: int) -> Body:
    """A program whose every part is right with a probability, so that some whole programs are right, too."""
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


@pytest.mark.sample(COUNT // QUICK)
@pytest.mark.parametrize("seed", range(COUNT))
def test_random_neighbours_that_are_proved_are_the_same_on_every_mesh(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "assert_mesh_invariant", lambda *_, **__: None)
    function = function_of(drawn(seed), tmp_path, check_vma=False)
    assert prove(function).verdict == "unknown" or is_invariant(function)
