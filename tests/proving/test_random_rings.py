"""Random programs whose shards take turns: those that are proved give the same on every mesh."""

import random
from pathlib import Path
from typing import Any

import pytest
from test_bodies import Body, function_of, is_invariant
from tiers import mostly_once, one_in

from typedshmap.testing import prove
from typedshmap.testing.proving import proof

COUNT, QUICK = 60, 3


class Drawing:
    """Parts of a program, each right with a probability.

    Args:
      seed: what they are drawn from.
    """

    def __init__(self, seed: int) -> None:
        self.draw, self.is_right = random.Random(seed), seed % 3 == 0
        self.mistakes = 0

    def mostly(self, right: Any, *others: Any) -> Any:
        if self.is_right or self.draw.random() < 0.85:
            return right
        self.mistakes += 1
        return self.draw.choice(others)

    def ring(self) -> Body:
        """Keys go round, and each shard takes their weighted sum, or the largest product with them."""
        shift = self.draw.choice([1, -1])
        block = self.mostly(*[f"(i {sign} j) % n" for sign in ("-+" if shift == 1 else "+-")])
        own, others = "i * r + jnp.arange(r)", f"{block} * r + jnp.arange(r)"
        order = self.draw.choice([">=", "<", "!="])
        rows, columns = f"({self.mostly(own, 'jnp.arange(r)')})[:, None]", self.mostly(others, "jnp.arange(r)")
        hidden = "-30.0"  # exp of the distance to it is finite: proofs hold of exact numbers
        mask = self.draw.choice(["s", f"jnp.where({rows} {order} {columns}, s, {hidden})"])
        turn = f"    k = {self.mostly('ring', 'line')}(k, 'dp', {self.mostly(shift, -shift, 2 * shift)})"
        begin = ["n, i, r = lax.axis_size('dp'), lax.axis_index('dp'), len(x)"]
        count = self.mostly("n", "max(n - 1, 1)", "n + 1")
        head = ["def step(j, t):", "    k, top, total, out = t", "    s = x @ k.T * 0.5", f"    s = {mask}"]
        match self.draw.choice(["running", "exp", "largest", "sum", "first"]):
            case "running":
                middle = [
                    f"    now = jnp.maximum(top, {self.mostly('s.max(1)', 's.min(1)', '0.0')})",
                    f"    w, shrink = jnp.exp(s - now[:, None]), jnp.exp({self.mostly('top - now', 'now - top')})",
                    f"    total = total{self.mostly(' * shrink', '')} + w.sum(1)",
                    f"    out = out * shrink[:, None] + w @ {self.mostly('k', 'y')}", "    top = now",
                ]  # fmt: skip
                if self.draw.random() < 0.5:
                    middle[2], middle[3] = middle[3], middle[2]
                end = self.draw.choice(["out / total[:, None]", "out * (1 / total)[:, None]"])
            case "exp":
                middle = ["    w = jnp.exp(s)", "    total = total + w.sum(1)", "    out = out + w @ k"]
                end = self.mostly("out / total[:, None]", "out / total[:, None] * n")
            case "largest":
                middle = [f"    top = jnp.maximum(top, {self.mostly('s.max(1)', 's[:, 0]')})"]
                end = "x * top[:, None]"
            case "first":  # of what came first it forgets the rest
                middle = [f"    out = {self.mostly('out + jnp.tanh(s) @ k', 'jnp.tanh(s) @ k')}"]
                end = "out + x"
            case _:
                middle = [f"    out = out + {self.draw.choice(['jnp.tanh(s)', 's', 's * s'])} @ k"]
                end = f"out / {self.mostly('size(chr(98))', 'r')}"
        turned = [turn, *middle] if self.mostly(False, True) else [*middle, turn]
        start = "y, jnp.full(r, -1e4), jnp.zeros(r), jnp.zeros(x.shape)"
        loop = [f"t = {start}", *self.draw.choice([
            [f"for j in range({count}): t = step(j, t)"], [f"t = lax.fori_loop(0, {count}, step, t)"],
        ])]  # fmt: skip
        back = ["    return k, top, total, out"]
        return Body(
            "x y",
            "; ".join([*begin, *head, *turned, *back, *loop, "_, top, total, out = t", f"return {end}"]),
            "[b/dp] k",
        )

    def line(self) -> Body:
        """Rows of c and y go through the shards, each of which does its part with them."""
        begin = ["n, i, r = lax.axis_size('dp'), lax.axis_index('dp'), len(x)"]
        fresh = self.mostly("i == 0", "i == n - 1", "i >= 0")
        first = self.mostly("i == n - 1", "i == 0", "i >= 0")
        at = self.mostly("t - (n - 1)", "t - n", "t")
        ticks = self.mostly("len(g) + n - 1", "len(g)", "len(g) + n - 2")
        done = self.mostly(f"({first}) & (at >= 0)", first)
        body = [
            "def tick(carry, t):", "    arriving, out = carry",
            f"    h = jnp.where({fresh}, g[jnp.clip(t, 0, len(g) - 1)], arriving)",
            "    for row in range(r): h = jnp.tanh(h + x[row])", f"    at = {at}",
            f"    out = jnp.where({done}, out.at[at].set(h), out)",
            f"    return ({self.mostly('ring', 'line')}(h, 'dp', {self.mostly(1, -1, 2)}), out), None",
        ]  # fmt: skip
        run = f"(_, out), _ = lax.scan(tick, (jnp.zeros(g.shape[1:]), jnp.zeros(g.shape)), jnp.arange({ticks}))"
        result = self.mostly("return lax.psum(out, 'dp')", "return lax.pmean(out, 'dp')")
        return Body("x g", "; ".join([*begin, *body, run, result]), "b k")


def drawn(seed: int) -> tuple[Body, bool]:
    """A program, and whether it has no mistake."""
    drawing = Drawing(seed)
    body = drawing.line() if seed % 4 == 1 else drawing.ring()
    return body, not drawing.mistakes


@pytest.mark.parametrize("seed", mostly_once(one_in(COUNT // QUICK, range(COUNT))))
def test_random_turns_that_are_proved_are_the_same_on_every_mesh(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "assert_mesh_invariant", lambda *_, **__: None)
    body, is_right = drawn(seed)
    function = function_of(body, tmp_path, check_vma=False)
    is_proved = prove(function).verdict == "proved"
    assert is_proved if is_right else True
    assert not is_proved or is_invariant(function)
