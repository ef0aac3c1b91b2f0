# ruff: noqa: E501 (an edit is a line of a program)
"""Whoever follows the cures of the gallery, to the letter, gets a program that is right, or is refused."""

import ast
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

sys.path.insert(0, str(Path(__file__).parent))

from blocks import Block
from gallery import BEGINNING, OF_BODIES, PAGE

ENTRIES = {heading: block for heading, block in OF_BODIES.items() if "\nHint: " in (block.expected or "")}

# By entry, the edits of each way that its cure names.
CURES: dict[str, list[list[tuple[str, str]]]] = {
    "A missing psum": [[("return h @ v", 'return jax.lax.psum(h @ v, "tp")')]],
    "A nonlinear function before the psum": [
        [('h = check(x @ w, "[batch/dp] ff +tp")', 'h = jax.lax.psum(check(x @ w, "[batch/dp] ff +tp"), "tp")')],
        [
            ('h = check(x @ w, "[batch/dp] ff +tp")', 'h = jax.lax.psum(check(x @ w, "[batch/dp] ff +tp"), "tp")'),
            ('jax.lax.psum(jax.nn.relu(h), "tp")', "jax.nn.relu(h)"),
        ],
    ],
    "A bias inside the psum": [[('psum(h + b, "[b/dp] f +tp -> [b/dp] f")', 'psum(h, "[b/dp] f +tp -> [b/dp] f") + b')]],
    "A second psum": [
        [('"batch +tp"', '"batch"')],
        [('"batch +tp"', '"batch"'), ('jax.lax.psum(partial(y), "tp")', "partial(y)")],
    ],
    "A leaf of the result": [[("x.mean()", 'jax.lax.pmean(x.mean(), "dp")')]],
    "A sum that was forgotten, without check_vma": [[("return x @ v", 'return jax.lax.psum(x @ v, "tp")')]],
    "The mean of one shard": [[("return jnp.mean((x @ w) ** 2)", 'return jax.lax.pmean(jnp.mean((x @ w) ** 2), "dp")')]],
    "A gradient that grows with the mesh": [
        [("return jnp.mean((x @ w) ** 2)", 'return jax.lax.pmean(jnp.mean((x @ w) ** 2), "dp")')],
    ],
    "A penalty whose gradient is counted once per shard": [
        [("squares = jnp.sum((x @ w) ** 2)", 'squares = jax.lax.psum(jnp.sum((x @ w) ** 2), "dp")')],
    ],
    "A step by a gradient that nobody reduced": [[("    return w - 0.1", '    gradient = jax.lax.pmean(gradient, "dp")\n    return w - 0.1')]],
    "A constant that is added too early": [[("y = h @ v", 'y = jax.lax.psum(h @ v, "tp")')]],
    "A sum over the wrong axis": [[('psum(y, "dp")', 'psum(y, "tp")')]],
    "The result of a callback or kernel": [[("return jax.pure_callback(lambda x, cache: (x, cache), (x, cache), x, cache)", 'x, cache = jax.pure_callback(lambda x, cache: (x, cache), (x, cache), x, cache)\n    return x, assume(cache, "model")')]],
    "A sum that a ring takes": [[("return rows", 'return jax.lax.pmean(assume(rows, "model"), "dp")')]],
    "A helper that is given a part": [[("jnp.tile(gain, 4)", 'all_gather(gain, "[m/dp] -> m")')]],
    "A gathered result": [
        [(" ~dp", "")],
        [('all_gather(w, "[m/dp] f -> m f ~dp")', 'jax.lax.all_gather(w, "dp", tiled=True, to="invarying")')],
    ],
    "A loss that is equal on all shards": [
        [(" ~dp", "")],
        [('all_gather(w, "[m/dp] f -> m f ~dp")', 'jax.lax.all_gather(w, "dp", tiled=True, to="invarying")')],
    ],
    "A loss of a part of the vocabulary": [[("logsumexp(logits, axis=-1)", 'logsumexp(all_gather(logits, "[b/dp] [v/tp] -> [b/dp] v"), axis=-1)')]],
    "Mesh axes in another order": [
        [("[batch/tp,dp]", "[batch/dp,tp]")],
        [("return x * 2", 'return reshard(x * 2, "[b/dp,tp] m -> [b/tp,dp] m")')],
    ],
    "A gather in another order": [[('all_gather(x, ("tp", "dp")', 'all_gather(x, ("dp", "tp")')]],
    "A dim taken for another of its size": [
        [("[c/tp] [d/dp]", "[c/dp] [d/tp]")],
        [("return x\n", 'return reshard(x, "[a/dp] [b/tp] -> [a/tp] [b/dp]")\n')],
    ],
    "A product over dims that are split differently": [
        [("x.T @ y", 'all_gather(x, "[r/dp] a -> r a").T @ y')],
        [("x.T @ y", 'all_gather(x, "[r/dp] a -> r a").T @ all_gather(y, "[r/tp] b -> r b")')],
    ],
    "A deadlock": [[("jnp.abs(x).max() >", 'jax.lax.pmax(jnp.abs(x).max(), "dp") >')]],
    "A collective in a loop that shards leave at different times": [[("jnp.abs(x).max() > 1e-3", 'jax.lax.pmax(jnp.abs(x).max(), "dp") > 5.0')]],
    "A gradient of a value that one branch uses": [[("        return jax.lax.cond", '        gain = jax.lax.pcast(gain, "dp", to="varying")\n        return jax.lax.cond')]],
    "A choice that JAX types as the same on every shard": [
        [("    return x * jax", '    gain = jax.lax.pcast(gain, "dp", to="varying")\n    return x * jax')],
        [("x.max() > 1", 'jax.lax.pmax(x.max(), "dp") > 1')],
    ],
    "What a callback returns, times a weight": [[("    return y * gain", '    y = jax.lax.pcast(y, "dp", to="varying")\n    return y * gain')]],
}  # fmt: skip
# On one device a shard is the whole array: these choose, loop or end by each shard's own rows, as they are written.
AS_EDITED = {"A helper that is given a part", "A collective in a loop that shards leave at different times"}
BY_SHARD = {
    "A deadlock",
    "A gradient of a value that one branch uses",
    "A choice that JAX types as the same on every shard",
}


def value(code: str, devices: tuple[int, int]) -> Any:
    """What the last line of a block gives, on a mesh, of drawn arguments."""
    rng = np.random.default_rng(0)
    mesh = Mesh(np.array(jax.devices()[: devices[0] * devices[1]]).reshape(devices), ("dp", "tp"))
    namespace: dict[str, Any] = {
        "__name__": "gallery",
        "given": lambda shape, *_: rng.normal(size=shape).astype(np.float32),
    }
    exec(BEGINNING, namespace)
    namespace |= {"mesh": mesh, "x": rng.normal(size=(8, 16)).astype(np.float32)}
    tree = ast.parse(code.replace("jnp.ones(", "given(").replace("np.ones(", "given("))
    last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, "example.py", "exec", dont_inherit=True), namespace)
    return jax.tree.map(np.asarray, jax.block_until_ready(eval(compile(last, "example.py", "eval"), namespace)))


def edited(block: Block, edits: list[tuple[str, str]]) -> str:
    code = block.code
    for old, new in edits:
        assert old in code
        code = code.replace(old, new)
    return code


@pytest.mark.sample(3)
@pytest.mark.parametrize("heading", CURES)
def test_an_entry_whose_cure_is_followed_is_right_or_refused(heading: str) -> None:
    outcomes = []
    for edits in CURES[heading]:
        code = edited(ENTRIES[heading], edits)
        try:
            got = value(code, (4, 2))
        except Exception:
            outcomes.append("refused")
            continue
        outcomes.append("right")
        # JAX's types say varying over an axis of one device, too.
        source = (
            code
            if heading in AS_EDITED
            else ENTRIES[heading].code.replace("(mesh=mesh)", "(mesh=mesh, check_vma=False)")
        )
        expected = value(source, (1, 1)) if heading not in BY_SHARD else got
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4, err_msg=code)
    assert ("right" in outcomes) == (heading != "A product over dims that are split differently")  # which has no sense


def test_every_cure_of_a_body_is_followed() -> None:
    assert CURES.keys() == ENTRIES.keys()


def test_the_cures_that_the_page_prints_are_among_those_that_are_followed() -> None:
    entries = {text.partition("\n")[0]: text for text in PAGE.split("\n### ")[1:]}
    printed = {heading: text.partition("\nCure: ")[2].partition("\n")[0] for heading, text in entries.items()}
    assert set(filter(printed.get, printed)) == CURES.keys() & printed.keys() != set()
    for heading in CURES.keys() & printed.keys():
        programs = [ENTRIES[heading].code, *(edited(ENTRIES[heading], way) for way in CURES[heading])]
        for code in printed[heading].split("`")[1::2]:
            assert any(code in program for program in programs), (heading, code)
