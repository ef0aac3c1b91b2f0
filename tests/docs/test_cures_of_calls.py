# ruff: noqa: E501 (an edit is a line of a program)
"""Whoever does what the gallery says of a hint, a call or an operation gets what was meant, or another refusal."""

import ast
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh, NamedSharding, PartitionSpec

sys.path.insert(0, str(Path(__file__).parent))

from gallery import BEGINNING, OF_CALLS

from typedshmap import TypedShmapError, partition_specs

ADVICE = re.compile(r"^Hint: |; write |did you mean| expects ", re.MULTILINE)
PROGRAMS = OF_CALLS
ENTRIES = {heading for heading, block in PROGRAMS.items() if ADVICE.search(block.expected or "")}
# What later programs use stands in these.
SHARED = [
    "A leaf by its path",
    "An array for a static parameter",
    "An array that is not placed, on Explicit axes",
    "A gather of a major axis",
]


class Way(NamedTuple):
    """The edits that an advice asks for, and what the program gives then: an expression, or none for a refusal."""

    edits: dict[str, str]
    gives: str | None
    out: str = "..."


def hint(old: str, new: str, spec: str) -> Way:
    return Way({old: new}, f"P({spec})")


ON_DP = "'dp', None"
SOME_EXPLICIT = 'jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto, AxisType.Explicit))'
WHOLE = f"NamedSharding({SOME_EXPLICIT}, P())"
ONE = 'jax.make_mesh((1, 1), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)'
MLP = "np.maximum(x @ w, 0)"
REPORTED = PROGRAMS["A traced array without any mesh"].code.partition(")(x)\n")[2]
NOISE = "np.concatenate([x[2 * i : 2 * i + 2] + jax.random.normal(jax.random.fold_in(jax.random.key(0), i), (2, 16)) for i in range(4)])"

CURES: dict[str, list[Way]] = {
    "A value that one device holds with other bits": [Way({" + (at == 5)": ""}, MLP)],
    "Brackets are missing": [hint("batch/dp", "[batch/dp]", ON_DP)],
    "Another sign than a slash": [hint("batch!dp", "[batch/dp]", ON_DP)],
    "A type as JAX prints it": [hint("batch@(dp,tp)", "[batch/dp,tp]", "('dp', 'tp'), None")],
    "A mesh as the function": [Way({"map(mesh)": "map(mesh=mesh)", "return x\n": "return x\nstep(x)\n"}, "x")],
    "A builtin function for a type": [
        Way({"class": "from collections.abc import Callable\nclass", "callable": "Callable", "block.x)\n": "block.x)\nrun(Block(lambda x: 2 * x, shard(x, X, mesh)))\n"}, "2 * x"),
    ],
    "A hint that cannot be laid over a leaf": [
        Way({"2 * self.x": "self.x"}, "x"),
        Way({"node_class": "with_keys_class", "flatten(self": "flatten_with_keys(self", "2 * self.x": "(jax.tree_util.GetAttrKey('x'), 2 * self.x)"}, "2 * x"),
    ],
    "NumPy where a hint says JAX": [Way({"[Array": f"[{kind}"}, "given((3,))") for kind in ("ArrayLike", "np.ndarray")],
    "A comma between dims": [hint("batch,", "batch", "None, None")],
    "Brackets without a mesh axis": [hint("[batch]", "[batch/dp]", ON_DP), hint("[batch]", "[batch/]", "None, None")],
    "Brackets without a dim": [hint("[/dp]", "[batch/dp]", ON_DP), hint("[/dp]", "[_/dp]", ON_DP)],
    "Two runs of dims": [
        Way({'Float[Array, "... batch *rest"]': 'partition_specs(Float[Array, "... batch"], like=x)'}, "P(None, None)"),
        Way({'Float[Array, "... batch *rest"]': 'partition_specs(Float[Array, "batch *rest"], like=x)'}, "P(None, None)"),
    ],
    "A run of dims in brackets": [hint("[.../dp]", "[batch/dp]", ON_DP)],
    "A dim that may be 1, and is sharded": [hint("[#batch/dp]", "[batch/dp]", ON_DP), hint("[#batch/dp]", "#batch", "None, None")],
    "A mark before a dim": [hint("batch +tp model", "batch model +tp", "None, None, unreduced={'tp'}")],
    "An expression with spaces": [hint("model + 1", "model +tp", "None, unreduced={'tp'}"), hint("model + 1", "model+1", "None")],
    "A single slash as a division": [hint("model/2", "model//2", "None")],
    "An unknown function": [hint("sqrt(model)", "min(model,4)", "None"), hint("sqrt(model)", "max(model,4)", "None")],
    "A size to compute with that has no name": [hint("_+1", "n+1", "None")],
    "Braces without an argument": [hint("{}", text, "None") for text in ("{n}", "{self.n}", "{n-1}")],
    "Brackets and a PartitionSpec": [hint(', P("dp")', "", ON_DP), hint("[batch/dp]", "batch", ON_DP)],
    "A hint without dims": [hint("Float[Array]", 'Float[Array, "b d"]', "None, None")],
    "Something else than an array type": [hint('"Array"', "Array", "None")],
    "A hint is missing": [Way({"by)": 'by: Float[Array, "..."])', "return x * by\n": "return x * by\nscale(x, w[:, 0])\n"}, "x * w[:, 0]")],
    "A result without a hint": [
        Way({"(x: X)": '(x: X) -> Float[Array, "..."]', "x * 2\n": "x * 2\nscale(x)\n"}, None),
        Way({"(x: X)": "(x: X) -> X", "x * 2\n": "x * 2\nscale(x)\n"}, "x * 2"),
    ],
    "A dtype instead of a hint": [
        Way({"x: Float)": 'x: Float[Array, "b d"])', "x * 2\n": "x * 2\nscale(x)\n"}, "np.tile(x * 2, (4, 1))"),  # unsharded, as it says
        Way({"x: Float)": 'x: Float[Array, "[b/dp] d"])', "x * 2\n": "x * 2\nscale(x)\n"}, "x * 2"),
    ],
    "A name that is not defined": [Way({"@typed": "Xs = X\n\n@typed"}, "x * 2")],
    "A list of hints": [Way({"[X]": "(X,)", "types=X)": "types=X)(x)"}, "x")],
    "Something else than a mesh": [
        Way({"mesh=8": "mesh=mesh", "types=X)": "types=X)(x)"}, "x"),
        Way({"mesh=8": "mesh=mesh.abstract_mesh", "types=X)": "types=X)(x)"}, None),
    ],
    "No mesh": [
        Way({"lambda x: x,": "lambda x: x, mesh=mesh,"}, "x"),
        Way({"typed_": "with jax.set_mesh(mesh):\n    result = typed_"}, "x"),
    ],
    "An unknown mesh axis": [
        Way({"/data]": "/dp]"}, "x * 2"),
        Way({"double(x)": 'with axis_aliases({"data": "dp"}):\n    result = double(x)'}, "x * 2"),
    ],
    "An abstract mesh and an array that is not placed": [
        Way({"(x)": "(shard(x, X, mesh))"}, "x"),
        Way({"typed_": "with jax.set_mesh(mesh):\n    result = typed_"}, "x"),
        Way({"typed_": "jax.eval_shape(typed_", "(x)": ", x)"}, "jax.ShapeDtypeStruct((8, 16), np.float32)"),
    ],
    "An array on other devices": [
        Way({"mlp(jax.device_put(x, jax.devices()[0])": "mlp(shard(jax.device_put(x, jax.devices()[0]), X, mesh)"}, MLP),
        Way({"mlp(": f"typed_shard_map(mlp.__wrapped__, mesh={ONE})("}, MLP),
    ],
    "An array that is not placed, on Explicit axes": [
        Way({"(x)": "(shard(x, X, explicit))"}, "x"),
        Way({"typed_": "jax.jit(lambda x: typed_", "(x)": "(jax.reshard(x, NamedSharding(explicit, P('dp', None)))))(x)"}, "x"),
    ],
    "An Explicit mesh and an array that is placed otherwise": [
        Way({"(columns)": "(shard(columns, X, explicit))"}, "x"),
        Way({"typed_": "jax.jit(lambda x: typed_", "(columns)": "(jax.reshard(x, NamedSharding(explicit, P('dp', None)))))(columns)"}, "x"),
    ],
    "A dim that does not divide": [
        Way({"x[:6]": "x[:4]"}, "np.maximum(x[:4] @ w, 0)"),
        Way({"x[:6]": "np.pad(x[:6], [(0, 2), (0, 0)])"}, "np.maximum(np.pad(x[:6], [(0, 2), (0, 0)]) @ w, 0)"),
    ],
    "Several failures": [Way({"x[:6]": "x[:4]"}, None), Way({"x[:6]": "x[:4]", ".astype(int)": ""}, "np.maximum(x[:4] @ w, 0)")],
    "An array for a static parameter": [Way({"exponent: int": "exponent: Array"}, "x ** np.arange(16)")],
    "An array for an option": [Way({"factor=2.0": "factor: Array = 2.0"}, "x * given(16)")],
    "A raw PRNG key": [
        Way({"PRNGKey(0)": "key(0)"}, NOISE),
        Way({"jax.random.PRNGKey(0)": "jax.random.wrap_key_data(jax.random.PRNGKey(0))"}, NOISE),
        Way({'Key[Array, ""]': "PRNGKeyArray"}, NOISE),
    ],
    "An expression over a name that nothing binds": [
        Way({'"2*n"]': '"2*n"], y: Float[Array, "n"]', "halve(np.ones(8))": "halve(x[0, :8], x[0, :4])"}, "x[0, :8:2]"),
        Way({'"2*n"]': '"2*{n}"], n: int', "halve(np.ones(8))": "halve(x[0, :8], 4)"}, "x[0, :8:2]"),
    ],
    "A class that is not registered": [Way({"@dataclass": "@jax.tree_util.register_dataclass\n@dataclass"}, "x")],
    "The state of an optimizer that keeps factors": [
        Way({"-> Like[optax.OptState, Layer]": "-> Like[optax.OptState, Layer | PyTree[Array]]"}, "optax.adafactor(1e-3, min_dim_size_to_factor=16).init(Layer(given((16, 32)), given(32)))")
    ],
    "A sum that is still due, on Auto axes": [
        Way({"typed_": "jax.jit(lambda x: jax.reshard(typed_", "mesh=mesh": f"mesh={SOME_EXPLICIT}", ")(x)": f")(x), {WHOLE}))(shard(x, Float[Array, '[b/dp] [d/tp]'], {SOME_EXPLICIT}))"}, "x.sum(1)"),
        Way({"x.sum(1)": 'jax.lax.psum(x.sum(1), "tp")', " +tp": ""}, "x.sum(1)"),
    ],
    "A reduced argument, on Auto axes": [
        Way({"mesh=mesh": f"mesh={SOME_EXPLICIT}"}, None),
        Way({"mesh=mesh": f"mesh={SOME_EXPLICIT}", '(x)': f"(shard(x, Float[Array, '[b/dp] d -tp'], {SOME_EXPLICIT}))"}, None),
        Way({"typed_": "jax.jit(lambda x: jax.reshard(typed_", "mesh=mesh": f"mesh={SOME_EXPLICIT}", '"[b/dp] d"]': '"[b/dp] d -tp"]', "(x)": f"(x), {WHOLE}))(shard(x, Float[Array, '[b/dp] d -tp'], {SOME_EXPLICIT}))"}, "x"),
        Way({" -tp": ""}, "x"),
    ],
    "An array that is placed otherwise": [
        Way({"check(": "check(shard(", '"tp")))': '"tp"))), X, mesh)'}, "placed(x, P('dp', None))"),
        Way({"check(": "check(shard(", '"tp")))': '"tp"))), "[batch/dp] model", mesh)'}, "placed(x, P('dp', None))"),
    ],
    "An array that is placed on another mesh axis": [
        Way({"/data]": "/dp]"}, "placed(x, P('dp', None))"),
        Way({"check(": 'with axis_aliases({"data": "dp"}):\n    result = check('}, "placed(x, P('dp', None))"),
    ],
    "An array that XLA lays otherwise": [Way({"check(x @ w,": "check(jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P('dp', None))),"}, MLP)],
    "A traced array without any mesh": [
        Way({"try": "with jax.set_mesh(mesh)", "jax.jit": "result = jax.jit", REPORTED: ""}, None),
        Way({"try": "with jax.set_mesh(mesh)", "jax.jit": "result = jax.jit", REPORTED: "", "check(x": "check(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P('dp', None)))"}, "x"),
        Way({"jax.jit": "result = jax.jit", ")(x)": ")(shard(x, X, mesh))"}, "x"),
    ],
    "An argument of a typed_jit that is sharded otherwise": [Way({"double(jax": "double(shard(jax", '"dp")))': '"dp"))), X, mesh)'}, "placed(2 * x, P('dp', None))")],
    "A static argument that has no hash": [
        Way({"{1, 2}": "np.random.default_rng(0)"}, "placed(2 * x, P('dp', None))"),
        Way({"{1, 2}": "frozenset({1, 2})"}, None),
    ],
    "Sizes that are not given": [Way({"f=32": "ff=32"}, "jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=NamedSharding(mesh, P(None, 'tp')))")],
    "A size that does not divide over the mesh": [Way({"33": "34"}, "jax.ShapeDtypeStruct((16, 34), jnp.float32, sharding=NamedSharding(mesh, P(None, 'tp')))")],
    "A hint that leaves open how many arrays it holds": [Way({", mesh": ", mesh, like=[w, w]"}, "[NamedSharding(mesh, P(None, 'tp'))] * 2")],
    "A sum that cannot be placed": [
        Way({"mesh)": f"{SOME_EXPLICIT})"}, f"NamedSharding({SOME_EXPLICIT}, P('dp', None, unreduced={{'tp'}}))"),
        Way({" +tp": ""}, "NamedSharding(mesh, P('dp', None))"),
    ],
    "No mesh to place on": [
        Way({", X": ", X, mesh=mesh"}, "placed(x, P('dp', None))"),
        Way({"shard(": "with jax.set_mesh(mesh):\n    result = shard("}, "placed(x, P('dp', None))"),
    ],
    "A mesh without devices": [
        Way({".abstract_mesh": ""}, "placed(x, P('dp', None))"),
        Way({"shard(x, X, mesh.abstract_mesh": "shape_structs(X, mesh.abstract_mesh, batch=8, model=16"}, "jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh.abstract_mesh, P('dp', None)))"),
    ],
    "A dim of any sharding": [
        Way({"[b/?]": "[b/dp]"}, "placed(x, P('dp', None))"),
        Way({"[b/?]": "[b/]", "[b/dp]": "b"}, "x"),
    ],
    "A dim over axes of two types": [
        Way({"AxisType.Auto, AxisType.Explicit": "AxisType.Auto, AxisType.Auto"}, "placed(x, P(('dp', 'tp'), None))"),
        Way({"[batch/dp,tp] model": "[batch/dp] [model/tp]"}, "placed(x, P('dp', 'tp'))"),
    ],
    "A value that is placed without its mark": [
        Way({"    shard(": "    result = shard(", "[ff/tp]": "[ff/tp] -dp"}, "w"),
        Way({"    shard(shard(w": "    result = shard(reshard(shard(w", '-dp")': '-dp"), "... -dp -> ...")'}, "w"),
    ],
    "A traced value of which something else was said": [
        Way({"check(shard(": "check(shard(shard(", "tp]\", mesh)": "tp]\", mesh), X, mesh)"}, "placed(x, P('dp', None))"),
    ],
    "A rule with an axis that the mesh does not have": [
        Way({'"data"': '"dp"', "    shard": "    result = shard"}, "placed(x, P('dp', None))"),
        Way({"batch model": "[batch/] model", "    shard": "    result = shard"}, "placed(x, P(None, None))"),
    ],
    "A name without a rule, where it must have one": [
        Way({'{"batch": "dp"}': '[("batch", "dp"), ("model", None)]', "    shard": "    result = shard"}, "placed(x, P('dp', None))"),
        Way({"batch model": "batch [model/]", "    shard": "    result = shard"}, "placed(x, P('dp', None))"),
    ],
    "A rule whose axis is taken, where one must be left": [
        Way({'("model", "dp")': '("model", "dp"), ("model", None)', "    shard": "    result = shard"}, "placed(x, P('dp', None))"),
        Way({"batch model": "batch [model/]", "    shard": "    result = shard"}, "placed(x, P('dp', None))"),
    ],
    "A rule that could mean two dims": [
        Way({"model model": dims, "    shard": "    result = shard"}, f"placed(given((16, 16)), P({spec}))")
        for dims, spec in [("[model/tp] model", "'tp', None"), ("[model/] model", "None, 'tp'"), ("model [model/]", "'tp', None"), ("model [model/tp]", "None, 'tp'")]
    ],
    "What is not a rule": [
        Way({"axis_rules({": "with axis_rules({", "4})": f'{axes}}}):\n    result = partition_specs(Float[Array, "batch model"])'}, f"P({axes}, None)")
        for axes in ("'dp'", "('dp', 'tp')", "None")
    ],
    "A box of Flax with a name that no rule knows": [Way({'{"embed": "dp"}': '[("embed", "dp"), ("mlp", None)]', "    shard": "    result = shard"}, "{'w': nn.LogicallyPartitioned(placed(w, P('dp', None)), names=('embed', 'mlp'))}")],
    "A dim that is sharded without brackets in a pattern": [Way({"b/dp": "[b/dp]"}, "x.T", "m [b/dp]")],
    "A merge that would interleave shards": [
        Way({"(m b)": "(b m)"}, "x.reshape(-1)", "[n/dp]"),
        Way({"x, ": 'all_gather(x, "[b/dp] m -> b m"), '}, None),
        Way({"x, ": 'all_gather(x, "[b/dp] m -> b m"), ', '"[b/dp] m -> [(m b)/dp]"': '"b m -> (m b)"'}, "x.T.reshape(-1)"),
    ],
    "A sharded factor inside parentheses": [Way({"(m [b/dp])": "([b/dp] m)"}, "x.reshape(-1)", "[n/dp]")],
    "Sizes that are not known": [Way({'d")': 'd", h=4)'}, "x.reshape(8, 4, 4)", "[b/dp] h d")],
    "A rearrange that would move shards": [
        Way({'rearrange(x, "[b/dp] m -> b [m/dp]")': 'all_gather(x, "[b/dp] m -> b m")'}, "x"),
        Way({"rearrange": "all_to_all"}, "x", "b [m/dp]"),
        Way({"rearrange": "reshard"}, "x", "b [m/dp]"),
    ],
    "An operand that varies over an axis its pattern does not mention": [
        Way({"b m -> m b": "[batch/dp] m -> m [batch/dp]"}, "x.T", "m [b/dp]"),
        Way({"rearrange(x": 'rearrange(all_gather(x, "[b/dp] m -> b m")'}, "x.T"),
    ],
    "A contracted dim that is sharded in one operand only": [
        Way({"einsum(x, w": 'einsum(x, all_gather(w, "[m/tp] f -> m f")', ", [m/tp] f ->": ", m f ->"}, "x @ w", "[b/dp] f"),
        Way({"einsum(x": 'einsum(reshard(x, "[b/dp] m -> [b/dp] [m/tp]")', "[b/dp] m, ": "[b/dp] [m/tp], "}, "x @ w", "[b/dp] f"),
    ],
    "Two dims over one mesh axis": [
        Way({"einsum(x": 'einsum(all_gather(x, "[b/tp] m -> b m")', "[b/tp] m, m [f/tp] -> [b/tp] f": "b m, m [f/tp] -> b [f/tp]"}, "x @ w", "b [f/tp]"),
        Way({"einsum(x, w": 'einsum(x, all_gather(w, "m [f/tp] -> m f")', ", m [f/tp] ->": ", m f ->"}, "x @ w", "[b/tp] f"),
    ],
    "A result that says less than the operands": [
        Way({"-> [b/dp] f": "-> [b/dp] [f/tp]"}, "x @ w", "[b/dp] [f/tp]"),
        Way({"einsum(": "all_gather(einsum(", '[b/dp] f")': '[b/dp] [f/tp]"), "[b/dp] [f/tp] -> [b/dp] f")'}, "x @ w", "[b/dp] f"),
        Way({"einsum(": "all_to_all(einsum(", '[b/dp] f")': '[b/dp] [f/tp]"), "[b/dp] [f/tp] -> [b/dp,tp] f")'}, "x @ w", "[b/dp,tp] f"),
        Way({"einsum(": "reshard(einsum(", '[b/dp] f")': '[b/dp] [f/tp]"), "[b/dp] [f/tp] -> b f")'}, "x @ w"),
    ],
    "A sum that is due where nothing is summed": [Way({" +tp": ""}, "x @ w", "[b/dp] f")],
    "A maximum that is due": [
        Way({" +dp": ""}, "x.max(0)"),
        Way({"+dp": "~dp"}, None),
        Way({"reduce": 'pmax(reduce', "+dp": "~dp", '"max")': '"max"), "dp")'}, "x.max(0)"),
    ],
    "A maximum over shards that is differentiated": [
        Way({"reduce(x": "reduce(jax.lax.stop_gradient(x)"}, "0 * x", "[b/dp] m"),
        Way({"reduce(x": 'reduce(all_gather(x, "[b/dp] m -> b m")', '"[b/dp] m ->"': '"b m ->"'}, "x == x.max()", "[b/dp] m"),
        Way({"reduce(x": 'reduce(all_gather(x, "[b/dp] m -> b m ~dp")', '"[b/dp] m ->"': '"b m ->"'}, None),
    ],
    "A gather of a major axis": [Way({"all_gather": "reshard"}, "x", "[b/tp] m")],
    "A sum that was taken already": [Way({" +dp": ""}, None), Way({"psum(reduce": "(reduce", ', "m +dp -> m"': ""}, "x.sum(0)")],
    "Gradients that JAX has summed already": [Way({"psum(jax.grad": "(jax.grad", ', "dp")["w"]': ')["w"]'}, "np.repeat(x.mean(0)[:, None] / 32, 32, 1)", "m [f/tp]")],
    "An all_to_all that changes more than one dim for another": [Way({"all_to_all": "reshard"}, "x")],
    "A ppermute along one of several axes": [
        Way({"shift=1": 'shift=1, axis="dp"'}, "np.roll(given((8, 32)), 2, 0)", "[b/dp] [f/tp]"),
        Way({"shift=1": 'shift=1, axis="tp"'}, "np.roll(given((8, 32)), 16, 1)", "[b/dp] [f/tp]"),
    ],
    "A lookup of no dim": [Way({"s -> s m": "s -> s"}, "w[[0, 0, 0]]", "s [f/tp]")],
    "A reshard into a sum": [Way({" +dp": ""}, "x"), Way({"[b/dp] m ->": "[b/dp] m +dp ->"}, None), Way({"[b/dp] m ->": "b m +dp ->"}, None)],
    "A collective outside of `shard_map`": [
        Way({"all_gather(x, ": "typed_shard_map(lambda x: all_gather(x, ", 'b m")': 'b m"), mesh=mesh, in_types=(X,), out_types=Float[Array, "b m"])(x)'}, "x"),
        Way({"all_gather(x, ": "jax.shard_map(lambda x: all_gather(x, ", 'b m")': 'b m"), mesh=mesh, in_specs=P("dp"), out_specs=P())(x)'}, "x"),
    ],
    "A layout that contradicts a hint": [
        Way({"m/tp,dp": "m/dp,tp"}, "w"),
        Way({"all_gather(w": 'all_gather(reshard(w, "[m/dp,tp] f -> [m/tp,dp] f")'}, "w"),
    ],
    "A layout that contradicts an operation": [
        Way({"[b/dp] m -> m [b/dp]": "b [m/dp] -> [m/dp] b"}, "given((16, 16)).T", "[m/dp] b"),
        Way({"rearrange(": "rearrange(reshard(", '[m/dp]"), ': '[m/dp]"), "b [m/dp] -> [b/dp] m"), '}, "given((16, 16)).T", "m [b/dp]"),
    ],
    "A value that JAX refuses since it is reduced": [Way({"-dp": "~dp"}, None)],
}  # fmt: skip


def given(shape: Any, *_: Any) -> np.ndarray[Any, Any]:
    """An array that depends on nothing but its shape."""
    return np.random.default_rng(int(np.prod(shape))).normal(size=shape).astype(np.float32)


@cache
def beginning() -> dict[str, Any]:
    """What the programs share, with drawn arrays for those that are all ones."""
    namespace: dict[str, Any] = {"__name__": "gallery"}
    exec(BEGINNING, namespace)
    mesh: Mesh = namespace["mesh"]

    def placed(array: Any, spec: PartitionSpec) -> Any:
        return jax.device_put(array, NamedSharding(mesh, spec))

    namespace |= {"x": given((8, 16)), "w": given((16, 32)), "given": given, "placed": placed}
    exec(PROGRAMS["Operations"].code.replace('Float[Array, "..."]', "out()"), namespace)
    for heading in SHARED:
        exec("\n\n".join(map(ast.unparse, ast.parse(PROGRAMS[heading].code).body[:-1])), namespace)
    return namespace


def result(code: str, way: Way) -> tuple[Any, Any]:
    """What the last line of a program gives, or what it calls its result; and what it should."""
    namespace = beginning() | {"result": None}
    out = eval(f'Float[Array, "{way.out}"]', namespace)
    namespace["inside"] = type(namespace["inside"])(namespace["inside"].__code__, namespace)
    namespace["out"] = lambda: out
    tree = ast.parse(code.replace("jnp.ones(", "given(").replace("np.ones(", "given("))
    if isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("result", ast.Store())], last.value), last)
    exec(compile(ast.fix_missing_locations(tree), "example.py", "exec", dont_inherit=True), namespace)
    got = jax.block_until_ready(namespace["result"])
    return got, eval(way.gives, namespace) if way.gives else None


def same(got: Any, expected: Any) -> None:
    """Compare values, and shardings where the one that is expected has one on the mesh."""
    if isinstance(expected, PartitionSpec) and isinstance(got, type):
        got = partition_specs(got)
    if isinstance(expected, PartitionSpec | NamedSharding | jax.ShapeDtypeStruct):
        assert got == expected
        return
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    if isinstance(expected, jax.Array) and isinstance(expected.sharding, NamedSharding):
        assert got.sharding.is_equivalent_to(expected.sharding, expected.ndim)


CASES = [
    pytest.param(heading, way, id=f"{heading}-{at}") for heading, ways in CURES.items() for at, way in enumerate(ways)
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("heading", "way"), CASES)
def test_whoever_does_what_is_said_gets_what_was_meant_or_another_refusal(heading: str, way: Way) -> None:
    block = PROGRAMS[heading]
    code = block.code
    for old, new in way.edits.items():
        assert old in code
        code = code.replace(old, new)
    if way.gives is None:
        with pytest.raises((TypedShmapError, JaxRuntimeError)) as caught:
            result(code, way)
        assert "Error: " in str(caught.value) or isinstance(caught.value, TypedShmapError)
        assert (block.expected or "").splitlines()[0] not in f"{type(caught.value).__name__}: {caught.value}"
        return
    got, expected = result(code, way)
    assert got is not None
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(same, got, expected)


def test_every_advice_of_the_gallery_is_followed() -> None:
    assert CURES.keys() == ENTRIES
