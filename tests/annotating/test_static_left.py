"""What is left as it is, each with its reason."""

from __future__ import annotations

import pytest

from typedshmap.annotating.static import annotate_text

HEAD = """\
import functools
import jax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float
from somewhere import kernel, specs, AXES, decorated
"""

LEFT = {
    "specs from another file": (
        "def f(x): return x\ng = jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P())",
        "the spec 'specs' is not bound once to a literal",
    ),
    "specs from a parameter": (
        "def build(spec):\n    return jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=P())",
        "the spec 'spec' is not bound once to a literal",
    ),
    "specs that are bound twice": (
        "spec = P('dp')\nspec = P()\ng = jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=P())",
        "the spec 'spec' is not bound once to a literal",
    ),
    "specs that grow": (
        "spec = (P(),)\nspec += (P(),)\ng = jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=P())",
        "the spec 'spec' is not bound once to a literal",
    ),
    "specs that a loop binds": (
        "for spec in [P()]:\n    g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=P())",
        "the spec 'spec' is not bound once to a literal",
    ),
    "specs that a function rebinds": (
        "spec = P()\ndef change():\n    global spec\n    spec = P('dp')\n"
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=P())",
        "the spec 'spec' is not bound once to a literal",
    ),
    "specs that a call gives": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=specs(), out_specs=P())",
        "the spec 'specs()' is not bound once to a literal",
    ),
    "specs that depend": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=(P() if a else None,), out_specs=P())",
        "the spec 'P() if a else None' is not bound once to a literal",
    ),
    "a list that may grow": (
        "spec = [P()]\ng = jax.shard_map(lambda x: x, mesh=mesh, in_specs=(spec,), out_specs=P())",
        "the spec 'spec' is not bound once to a literal",
    ),
    "specs of whose name nothing is known": (
        "from layers import PartitionSpec\n"
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=PartitionSpec(), out_specs=P())",
        "the spec 'PartitionSpec()' is not bound once to a literal",
    ),
    "starred specs": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=(P(), *specs), out_specs=P())",
        "the spec '*specs' is not bound once to a literal",
    ),
    "starred dims": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(*AXES), out_specs=P())",
        "the mesh axis '*AXES' is not bound once to a literal",
    ),
    "an axis that a call gives": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(AXES[0]), out_specs=P())",
        "the mesh axis 'AXES[0]' is not bound once to a literal",
    ),
    "an axis that another place may mean otherwise": (
        "axis = get()\nspec = P(axis)\n"
        "def build(axis):\n    return jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=P())",
        "the mesh axis 'axis' is not bound once to a literal",
    ),
    "an unconstrained dim": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(P.UNCONSTRAINED), out_specs=P())",
        "the mesh axis 'P.UNCONSTRAINED' is not bound once to a literal",
    ),
    "an unreduced result": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(), out_specs=P(unreduced={'tp'}))",
        "the spec 'P(unreduced={'tp'})' is not bound once to a literal",
    ),
    "a dict of different specs": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=({'w': P('dp'), 'b': P()},), out_specs=P())",
        "a list or dict of different specs: make it a tuple, a TypedDict or a dataclass",
    ),
    "a list of different specs": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=([P('dp'), P()],), out_specs=P())",
        "a list or dict of different specs: make it a tuple, a TypedDict or a dataclass",
    ),
    "specs that are not given": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, out_specs=P())",
        "in_specs is not given here",
    ),
    "options in a dict": (
        "g = jax.shard_map(lambda x: x, **options)",
        "'options' passes options that cannot be seen",
    ),
    "an option that only the old one has": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(), out_specs=P(), auto=frozenset({'tp'}))",
        "the option 'auto' has no equal",
    ),
    "a function that is given later": (
        "smap = functools.partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P())",
        "no function is mapped here",
    ),
    "a function that is given to a partial": (
        "g = functools.partial(jax.shard_map, lambda x: x, mesh=mesh, in_specs=P(), out_specs=P())()",
        "no function is mapped here",
    ),
    "one spec, and a default": (
        "g = jax.shard_map(lambda x, y=3: x, mesh=mesh, in_specs=P(), out_specs=P())",
        "one spec stands for all arguments, and how many there are is not known here",
    ),
    "one spec, and any number of arguments": (
        "g = jax.shard_map(lambda *xs: xs, mesh=mesh, in_specs=P(), out_specs=P())",
        "one spec stands for all arguments, and how many there are is not known here",
    ),
    "a name that is passed on": (
        "smap = [jax.shard_map]",
        "no function is mapped here",
    ),
    "a decorated class": (
        "@jax.shard_map(mesh=mesh, in_specs=P(), out_specs=P())\nclass A: ...",
        "one spec stands for all arguments, and how many there are is not known here",
    ),
}


@pytest.mark.parametrize(("text", "reason"), LEFT.values(), ids=list(LEFT))
def test_it_is_left_with_a_reason(text: str, reason: str) -> None:
    found = annotate_text(HEAD + text)
    assert found.text == HEAD + text
    assert [why for _, why in found.left] == [reason]


def test_it_is_left_at_the_line_of_the_call() -> None:
    found = annotate_text("import jax\n\n\ng = jax.jit(\n    jax.shard_map(f, in_specs=None, out_specs=None)\n)\n")
    assert [line for line, _ in found.left] == [5]
