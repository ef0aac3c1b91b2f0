"""Which parameters and results are taken for one array, and which may be trees, or None."""

from __future__ import annotations

import pytest

from typedshmap.annotating.static import annotate_text

HEAD = """\
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


@jax.shard_map(mesh=mesh, in_specs=P(), out_specs=P())
"""


def hints(function: str) -> list[str]:
    """What the hints of a function are: array or tree, the result's last."""
    lines = annotate_text(HEAD + function).text.splitlines()
    signature = "".join(lines[next(i for i, line in enumerate(lines) if line.startswith("def ")) :])
    signature = signature[: signature.index(":    ") if ":    " in signature else len(signature)]
    return ["tree" if part.startswith("PyTree") else "array" for part in _parts(signature)]


def _parts(signature: str) -> list[str]:
    pieces = signature.replace("-> ", ": ").split(": ")[1:]
    return [piece for piece in pieces if piece.startswith(("PyTree", "Shaped"))]


ARRAYS = [
    "x - y",
    "x @ y",
    "x * 2.0",
    "-x",
    "x[:, 0]",
    "x[..., None]",
    "x.T",
    "x.astype(y)",
    "x.at[0].set(y)",
    "jnp.exp(x)",
    "jnp.dot(y, x)",
    "jnp.where(y, x, 0)",
    "jnp.einsum('i,i', y, x)",
    "jax.nn.relu(x)",
    "x.sum() + y",
    "jax.lax.psum(x - 1, 'dp')",
    "x - 1 if (x - 1).any() else x",
]


@pytest.mark.parametrize("code", ARRAYS)
def test_what_only_an_array_bears_shows_an_array(code: str) -> None:
    found = hints(f"def f(x, y):\n    return {code}")
    assert (found[0], found[-1]) == ("array", "array")


TREES = [
    "x",
    "x + y",
    "x * 2",
    "x['w']",
    "x[0]",
    "x.items()",
    "x.get('w')",
    "g(x)",
    "jax.tree.map(g, x)",
    "jax.lax.psum(x, 'dp')",
    "jnp.stack(x)",
    "(lambda x: x - 1)(y)",
    "y if y is None else x - 1",
    "y and x - 1",
    "[x - 1 for x in y]",
    "isinstance(x, int) or x - 1",
]


@pytest.mark.parametrize("code", TREES)
def test_what_a_tree_bears_as_well_shows_nothing(code: str) -> None:
    assert hints(f"def f(x, y):\n    return {code}")[0] == "tree"


BODIES = {
    "a branch": ("if y:\n        y = x - 1\n    return y", ["tree", "tree", "tree"]),
    "both branches": ("if y:\n        z = jnp.exp(y)\n    else:\n        z = jnp.zeros(3)\n    return z", "tree"),
    "one branch of an array": ("z = x - 1\n    if y:\n        z = z + y\n    return z", ["array", "tree", "tree"]),
    "a branch that gives a tree": ("z = x - 1\n    if y:\n        z = (z, y)\n    return z", ["array", "tree", "tree"]),
    "after a return that may be": ("if y:\n        return y\n    return x - 1", ["tree", "tree", "tree"]),
    "after an error that may be": ("if y:\n        raise E\n    return x - 1", ["tree", "tree", "tree"]),
    "a loop": ("for y in y:\n        x = x - 1\n    return x", ["tree", "tree", "tree"]),
    "a name bound anew": ("x = x['w']\n    return x - 1", ["tree", "tree", "tree"]),
    "a name bound to itself": ("x = x.astype(int)\n    return x", ["array", "tree", "array"]),
    "the shape": ("b, s = x.shape\n    return y", ["array", "tree", "tree"]),
    "a with block": ("with jax.named_scope('n'):\n        z = x - 1\n    return z", ["tree", "tree", "tree"]),
    "an inner function": ("def g(): return x - 1\n    return g()", ["tree", "tree", "tree"]),
    "two returns": ("if y:\n        return jnp.exp(x)\n    return jnp.exp(x)", ["tree", "tree", "tree"]),
    "no return": ("x - 1", ["array", "tree", "tree"]),
}


@pytest.mark.parametrize(("body", "expected"), BODIES.values(), ids=list(BODIES))
def test_a_body_shows_what_every_way_through_it_shows(body: str, expected: list[str] | str) -> None:
    found = hints(f"def f(x, y):\n    {body}")
    assert (found if isinstance(expected, list) else found[-1]) == expected
