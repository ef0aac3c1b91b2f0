# ruff: noqa: E501 (a body is a line)
"""Random programs that send rows to where the largest of their products says: those that are proved give the same."""

from pathlib import Path

import pytest
from test_bodies import Body, function_of, is_invariant
from test_random_rings import Drawing
from tiers import mostly_once, slow

from typedshmap.testing import prove
from typedshmap.testing.proving import proof

COUNT, QUICK = 16, {2, 4}  # those in the default run are short


def routed(drawing: Drawing) -> Body:
    """Each row has an expert; those with a place within its capacity are scaled by it."""
    draw, mostly = drawing.draw, drawing.mostly
    scores = draw.choice(["x @ r", "jax.nn.softmax(x @ r)", "jnp.tanh(x @ r)"])
    begin = ["n = size('e')", f"scores = {scores}"]
    match draw.choice(["argmax", "top_k", "sort", "compared"]):
        case "argmax":
            way = draw.choice(["argmax", "argmin"])
            gate = {"argmax": "scores.max(1)", "argmin": "scores.min(1)"}[way]
            begin += [f"expert, gate = jnp.{way}(scores, 1), {gate}"]
        case "top_k":
            begin += ["gate, expert = (each[:, 0] for each in lax.top_k(scores, 1))"]
        case "sort":
            begin += ["order = jnp.argsort(scores, 1)", f"expert = order[:, {draw.choice([0, -1])}]"]
            begin += ["gate = jnp.take_along_axis(scores, expert[:, None], 1)[:, 0]"]
        case _:
            begin += ["is_first = scores[:, 0] > scores[:, -1]", "expert = jnp.where(is_first, 0, n - 1)"]
            begin += ["gate = jnp.where(is_first, scores[:, 0], scores[:, -1])"]
    capacity = mostly(draw.choice(["size('b') // n + 1", "2"]), "len(x) // n + 1")
    order = mostly("<", "<=", ">", "!=")
    match draw.choice(["one hot", "sorted"]):
        case "one hot":
            place = mostly("jnp.cumsum(chosen, 0) - 1", "jnp.cumsum(chosen[::-1], 0)[::-1] - 1")
            placed = [f"place = ((({place}) * chosen).sum(1)).astype(int)"]
        case _:
            placed = [
                "by = jnp.argsort(expert)", "starts = jnp.cumsum(chosen.sum(0)) - chosen.sum(0)",
                f"place = jnp.zeros(len(x), int).at[by].set(jnp.arange(len(x)) - starts[expert[{mostly('by', ':')}]].astype(int))",
            ]  # fmt: skip
    counted = [
        "chosen = jax.nn.one_hot(expert, n)", *placed, "counts = lax.all_gather(chosen.sum(0), 'dp')",
        f"before = (jnp.arange(len(counts)) {order} lax.axis_index('dp')) @ counts",
        f"is_kept = place + {mostly('before[expert]', '0', 'before[0]')} < {capacity}",
    ]  # fmt: skip
    match draw.choice(["scaled", "sent", "counted"]):
        case "scaled":
            end, result = (
                f"x * (jnp.where(is_kept, gate, 0) * s[{mostly('expert', '0 * expert + place')}])[:, None]",
                "[b/dp] k",
            )
        case "sent":
            counted += [
                "sent = jnp.zeros((n, *x.shape)).at[expert, place].set(x)",
                "done = jnp.tanh(sent) * s[:, None, None]", f"back = done[expert, {mostly('place', '0 * place')}]",
            ]  # fmt: skip
            end, result = "x + jnp.where(is_kept, gate, 0)[:, None] * back", "[b/dp] k"
        case _:
            end, result = f"lax.{mostly('psum', 'pmax', 'pmean')}((chosen * is_kept[:, None]).sum(0), 'dp') * s", "e"
    return Body("x r s", "; ".join([*begin, *counted, f"return {end}"]), result)


def drawn(seed: int) -> tuple[Body, bool]:
    """A program, and whether it has no mistake."""
    drawing = Drawing(seed)
    body = routed(drawing)
    return body, not drawing.mistakes


@pytest.mark.parametrize("seed", mostly_once(seed if seed in QUICK else slow(seed) for seed in range(COUNT)))
def test_random_routes_that_are_proved_are_the_same_on_every_mesh(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "assert_mesh_invariant", lambda *_, **__: None)
    body, is_right = drawn(seed)
    function = function_of(body, tmp_path, check_vma=False)
    is_proved = prove(function).verdict == "proved"
    assert is_proved if is_right else True
    assert not is_proved or is_invariant(function)
