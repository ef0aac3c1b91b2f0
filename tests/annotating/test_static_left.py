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
        "the spec 'specs()' is no literal",
    ),
    "specs that depend": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=(P() if a else None,), out_specs=P())",
        "the spec 'P() if a else None' is no literal",
    ),
    "a list that may grow": (
        "spec = [P()]\ng = jax.shard_map(lambda x: x, mesh=mesh, in_specs=(spec,), out_specs=P())",
        "the spec 'spec' is bound to a list, which may change",
    ),
    "specs of whose name nothing is known": (
        "from layers import PartitionSpec\n"
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=PartitionSpec(), out_specs=P())",
        "the spec 'PartitionSpec()' is no literal",
    ),
    "starred specs": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=(P(), *specs), out_specs=P())",
        "'*specs' stands for any number of specs or dims",
    ),
    "starred dims": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(*AXES), out_specs=P())",
        "'*AXES' stands for any number of specs or dims",
    ),
    "an axis that a call gives": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(AXES[0]), out_specs=P())",
        "the mesh axis 'AXES[0]' is no literal",
    ),
    "an axis that another place may mean otherwise": (
        "axis = get()\nspec = P(axis)\n"
        "def build(axis):\n    return jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=P())",
        "the mesh axis 'axis' may be another one where the call is, in 'spec'",
    ),
    "an unconstrained dim": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(P.UNCONSTRAINED), out_specs=P())",
        "the mesh axis 'P.UNCONSTRAINED' is no literal",
    ),
    "an unreduced result": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(), out_specs=P(unreduced={'tp'}))",
        "P(..., unreduced=...) says more than where the dims lie",
    ),
    "a dict of different specs": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=({'w': P('dp'), 'b': P()},), out_specs=P())",
        "a dict of different specs: write a TypedDict or a dataclass",
    ),
    "a list of different specs": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=([P('dp'), P()],), out_specs=P())",
        "a list of different specs: make it a tuple",
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
    "a function of another file": (
        "g = jax.shard_map(kernel, mesh=mesh, in_specs=P(), out_specs=P())",
        "the parameters of 'kernel' are not known here",
    ),
    "a function that a call gives": (
        "g = jax.shard_map(kernel(3), mesh=mesh, in_specs=P(), out_specs=P())",
        "the parameters of 'kernel(3)' are not known here",
    ),
    "a function that is defined twice": (
        "if a:\n    def f(x): return x\nelse:\n    def f(x): return -x\n"
        "g = jax.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P())",
        "the parameters of 'f' are not known here",
    ),
    "a function that is made of itself": (
        "from kernels import *\nf = jax.jit(f)\ng = jax.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P())",
        "the parameters of 'f' are not known here",
    ),
    "a partial of what cannot be seen": (
        "def f(x): return x\ng = jax.shard_map(functools.partial(f, **o), mesh=mesh, in_specs=P(), out_specs=P())",
        "a partial with '*' or '**' binds what cannot be seen",
    ),
    "a function that is given later": (
        "smap = functools.partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P())",
        "the function that it maps is given elsewhere",
    ),
    "a function that is given to a partial": (
        "g = functools.partial(jax.shard_map, lambda x: x, mesh=mesh, in_specs=P(), out_specs=P())()",
        "the function that it maps is given elsewhere",
    ),
    "a decorator that may change the parameters": (
        "@jax.shard_map(mesh=mesh, in_specs=P(), out_specs=P())\n@decorated\ndef f(x): return x",
        "the decorator '@decorated' may change the parameters",
    ),
    "a decorated method": (
        "class A:\n    @property\n    def f(self): ...\n"
        "    def g(self): return jax.shard_map(self.f, mesh=mesh, in_specs=P(), out_specs=P())",
        "the method 'f' is not defined once in the class around, without decorators",
    ),
    "a method of a class, which is its function": (
        "class A:\n    def f(x): return x\n    @classmethod\n"
        "    def g(cls): return jax.shard_map(cls.f, mesh=mesh, in_specs=P(), out_specs=P())",
        "the parameters of 'cls.f' are not known here",
    ),
    "a method of another class": (
        "class A:\n    def g(self): return jax.shard_map(self.f, mesh=mesh, in_specs=P(), out_specs=P())",
        "the method 'f' is not defined once in the class around, without decorators",
    ),
    "more specs than parameters": (
        "g = jax.shard_map(lambda x: x, mesh=mesh, in_specs=(P(), P()), out_specs=P())",
        "2 specs for 1 positional parameter",
    ),
    "fewer specs than parameters": (
        "g = jax.shard_map(lambda x, y: x, mesh=mesh, in_specs=(P(),), out_specs=P())",
        "1 spec for 2 positional parameters",
    ),
    "one spec, and a default": (
        "g = jax.shard_map(lambda x, y=3: x, mesh=mesh, in_specs=P(), out_specs=P())",
        "one spec stands for all arguments, and parameter 'y' may be left out",
    ),
    "one spec, and any number of arguments": (
        "g = jax.shard_map(lambda *xs: xs, mesh=mesh, in_specs=P(), out_specs=P())",
        "one spec stands for all arguments, however many '*' takes",
    ),
    "a keyword of a lambda": (
        "g = jax.shard_map(lambda x, *, n: x, mesh=mesh, in_specs=P(), out_specs=P())",
        "parameter 'n' needs a hint of its own: write Any",
    ),
    "an array that a partial binds": (
        "def f(x, *, w: jax.Array): return x\n"
        "g = jax.shard_map(functools.partial(f, w=1), mesh=mesh, in_specs=P(), out_specs=P())",
        "parameter 'w' has no spec, but is annotated as an array",
    ),
    "an annotation that is quoted, of a parameter without a spec": (
        "@jax.shard_map(mesh=mesh, in_specs=P(), out_specs=P())\ndef f(x, *, n: 'Params' = None): return x",
        "the quoted annotation 'Params' would be read when the program runs",
    ),
    "an annotation for checkers only, of a parameter without a spec": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from types import Params\n"
        "@jax.shard_map(mesh=mesh, in_specs=P(), out_specs=P())\ndef f(x, *, n: Params = None): return x",
        "the annotation 'Params' is not defined when the program runs",
    ),
    "a name that is passed on": (
        "smap = [jax.shard_map]",
        "shard_map is not called here",
    ),
    "a shard_map of another library": (
        "from somewhere.compat import shard_map\nshard_map(lambda x: x, mesh=mesh, in_specs=P(), out_specs=P())",
        "it is 'somewhere.compat.shard_map', not JAX's shard_map",
    ),
    "a form feed, which libcst drops": (
        "if a:\n    pass\n\fg = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(), out_specs=P())",
        "libcst does not keep the text of the file: a form feed, or a lone carriage return?",
    ),
    "lines that end in a carriage return": (
        "a = 1\rg = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(), out_specs=P())",
        "libcst does not keep the text of the file: a form feed, or a lone carriage return?",
    ),
    "a decorated class": (
        "@jax.shard_map(mesh=mesh, in_specs=P(), out_specs=P())\nclass A: ...",
        "it decorates a class",
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
