"""What hints say of plain programs: dims that are the same have one name, and the call is taken as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, combinations, islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from einops import rearrange
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import typedshmap
from typedshmap import Array, typed_shard_map
from typedshmap._jax.jaxpr import TracedRegion
from typedshmap._jax.regions import watched_regions
from typedshmap.annotating.dims import LeafHint, axis_words, common, describe
from typedshmap.annotating.notes import FunctionSource

f32, i32, bf16 = jnp.float32, jnp.int32, jnp.bfloat16


def struct(*shape: int, dtype: Any = f32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


class Hints(NamedTuple):
    """What hints say of all calls of a program."""

    arguments: list[LeafHint]
    results: list[LeafHint]


class Program(NamedTuple):
    """A body with its specs, the arguments of each of its calls, and the hints: arguments first, results behind."""

    body: Callable[..., Any]
    in_specs: Any
    out_specs: Any
    calls: Sequence[Sequence[Any]]
    arguments: Sequence[str]
    results: Sequence[str]
    mesh: Callable[[], Mesh] = mesh

    def both(self, found: Hints, args: Sequence[Any]) -> tuple[Callable[..., Any], Callable[..., Any], list[Any]]:
        """The program as a function of arrays, plain and with hints; and the arrays of a call."""
        leaves, tree = jax.tree.flatten(tuple(args))
        specs = jax.tree.broadcast(self.in_specs, tuple(args), is_leaf=lambda x: isinstance(x, P))
        given = tuple(jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, P)))
        arguments, results = ([getattr(typedshmap, hint.dtype)[Array, hint.dims] for hint in each] for each in found)
        out_types = results[0] if len(results) == 1 else tuple[*results]

        def body(*flat):
            return self.body(*jax.tree.unflatten(tree, flat))

        options = {"mesh": self.mesh(), "check_vma": False}
        axes = {word: axis for axis, word in axis_words(self.mesh().axis_names).items()}
        plain = jax.shard_map(body, in_specs=given, out_specs=self.out_specs, **options)
        typed = typed_shard_map(body, in_types=tuple(arguments), out_types=out_types, axes=axes, **options)
        return plain, typed, leaves

    def traces(self) -> list[TracedRegion]:
        mapped = partial(jax.shard_map, mesh=self.mesh(), in_specs=self.in_specs, out_specs=self.out_specs)
        seen: list[TracedRegion] = []
        with watched_regions(seen.append, print):
            for args in self.calls:
                jax.eval_shape(mapped(self.body, check_vma=False), *args)
        return seen

    def describe(self) -> Hints:
        paths, _ = jax.tree.flatten_with_path(tuple(self.calls[0]))
        code = getattr(self.body, "func", self.body).__code__
        parameters = [f"{code.co_varnames[path[0].idx]}{jax.tree_util.keystr(path[1:])}" for path, _ in paths]
        source = FunctionSource.at(code.co_filename, code.co_firstlineno)
        sides = zip(*(describe(traced, parameters, source) for traced in self.traces()), strict=True)
        return Hints(*([hint for each in zip(*side, strict=True) if (hint := common(each))] for side in sides))


def mlp(x, params):
    h = jax.nn.relu(x @ params["up"] + params["bias"])
    return lax.psum(h @ params["down"], "tp")


def residual(x, w, v):
    return x + lax.psum(jnp.tanh(x @ w) @ v, "tp")


def fsdp(x, w, b):
    w, b = (lax.all_gather(each, "dp", tiled=True) for each in (w, b))
    return jnp.tanh(x @ w + b)


def attention(
    q,  # [B, S, H, K]
    k,  # [B, T, H, K]
    v,
):
    weights = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k))
    return jnp.einsum("bhst,bthv->bshv", weights, v)


def heads(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def self_attention(x, wq, wk, wv, wo):
    # One layer of attention, for activations x: [batch, seq, model].
    batch, local_seq, _ = x.shape
    q, k, v = ((x @ w).reshape(batch, local_seq, -1, 4) for w in (wq, wk, wv))
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    out = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, local_seq, -1)
    return x + lax.psum(out @ wo, "tp")


def unpacked(x, y):
    n, *_ = x.shape
    m, d = y.shape[0], y.shape[-1]
    return (x @ y.T).sum(axis=1) / (n * m * d)


def patterns(x):
    y = rearrange(x, "b (h w) c -> b h w c", h=2)
    return y.sum((1, 2))


def on_lines(x, w):
    # [tokens, model]
    y = x * 2
    z = y @ w  # f32[tokens/dp, ff/tp]
    return jnp.exp(z)


def annotated(x: jax.Array, w: typedshmap.Float[Array, "d [e/tp]"]):
    return x @ w


def scaled(x, by, *, times):
    return x * by * times


def ring(q, k, v):
    n = lax.axis_size("dp")

    def step(carry, _):
        out, total, k, v = carry
        s = jnp.exp(q @ k.T)
        k, v = (lax.ppermute(each, "dp", [(i, (i + 1) % n) for i in range(n)]) for each in (k, v))
        return (out + s @ v, total + s.sum(-1), k, v), None

    (out, total, _, _), _ = lax.scan(step, (jnp.zeros_like(q), jnp.zeros(q.shape[:1]), k, v), None, length=n)
    return out / total[:, None]


def halo(u):
    n = lax.axis_size("dp")
    left = lax.ppermute(u[-1:], "dp", [(i, (i + 1) % n) for i in range(n)])
    right = lax.ppermute(u[:1], "dp", [(i, (i - 1) % n) for i in range(n)])
    padded = jnp.concatenate([left, u, right])
    return padded[:-2] + padded[1:-1] + padded[2:]


def layers(x, params):
    def layer(x, each):
        return jnp.tanh(x @ each["w"] + each["b"]), lax.psum(x.sum(), "dp")

    return lax.scan(layer, x, params)


def embedding(table, ids):
    n = table.shape[0]
    local = ids - lax.axis_index("tp") * n
    is_here = (local >= 0) & (local < n)
    found = jnp.take(table, jnp.clip(local, 0, n - 1), axis=0)
    return lax.psum(jnp.where(is_here[..., None], found, 0), "tp")


def experts(x, router, up, down):
    gates = jax.nn.softmax(x @ router)  # [tokens, experts]
    mine = lax.dynamic_slice_in_dim(gates, lax.axis_index("tp") * up.shape[0], up.shape[0], 1)
    h = jax.nn.relu(jnp.einsum("td,edf->etf", x, up))
    return lax.psum(jnp.einsum("te,etf,efd->td", mine, h, down), "tp")


def fft(x):
    y = lax.all_to_all(jnp.fft.fft(x, axis=1), "dp", 1, 0, tiled=True)
    return jnp.fft.fft(y, axis=0)


def sampler(key, logits, temperature):
    key = jax.random.fold_in(key, lax.axis_index("dp"))
    return jax.random.categorical(key, logits / temperature)


def masked(x, mask, positions):
    return jnp.where(mask, x, 0), positions + mask.astype(i32)


def means(x):
    mean = lax.pmean(x.mean(0, keepdims=True), "dp")
    return x - mean, mean


def transposed(x):
    return x.T


def scattered(x, w):
    return lax.psum_scatter(x @ w, "tp", scatter_dimension=1, tiled=True)


def loop(x, w):
    return lax.fori_loop(0, 3, lambda _, y: y @ w, x)


def chosen(x, a, b):
    return lax.cond(lax.psum(x.sum(), "dp") > 0, lambda: lax.psum(x @ a, "dp"), lambda: lax.psum(x @ b, "dp"))


def merged(x, w):
    b, s, d = x.shape
    return (x.reshape(b * s, d) @ w).reshape(b, s, -1)


def remat(x, w):
    @jax.checkpoint
    def block(x):
        return x + jnp.sin(x @ w)

    return block(block(x))


def gradient(w, x, y):
    def loss(w):
        return jnp.mean((x @ w - y) ** 2)

    return w - 0.1 * lax.pmean(jax.grad(loss)(w), "dp")


def normalized(x, scale):
    return x * lax.rsqrt((x**2).mean(-1, keepdims=True)) * scale


def tied_by_comment(
    x,  # [n, d]
    y,  # [m, d]
):
    return x.sum(), y.sum()


CONSTANT = np.ones(6, np.float32)


def closes_over(x):
    return x + jnp.asarray(CONSTANT)


ODD = partial(Mesh, axis_names=("data-parallel", "2d"), axis_types=(AxisType.Auto,) * 2)


def odd() -> Mesh:
    return ODD(np.array(jax.devices()).reshape(4, 2))


def doubled(x):
    return 2 * x


W = {"up": struct(16, 32), "bias": struct(32), "down": struct(32, 24)}
W_SPECS = {"up": P(None, "tp"), "bias": P("tp"), "down": P("tp")}
QKV = (struct(8, 6, 4, 8), struct(8, 10, 4, 8), struct(8, 10, 4, 8))
BY_HEADS = (P("dp", None, "tp"),) * 3

PROGRAMS = [
    Program(mlp, (P("dp"), W_SPECS), P("dp"), [(struct(8, 16), W)],
            ["Float [batch/dp] x_cols", "Float [ff/tp]", "Float [ff/tp] model", "Float x_cols [ff/tp]"],
            ["Float [batch/dp] model"]),
    Program(residual, (P("dp"), P(None, "tp"), P("tp")), P("dp"), [(struct(8, 16), struct(16, 32), struct(32, 16))],
            ["Float [batch/dp] x_cols", "Float x_cols [w_cols/tp]", "Float [w_cols/tp] x_cols"],
            ["Float [batch/dp] x_cols"]),
    Program(fsdp, (P("dp"), P("dp"), P("dp")), P("dp"), [(struct(8, 16), struct(16, 32), struct(32))],
            ["Float [batch/dp] x_cols", "Float [x_cols/dp] w_cols", "Float [w_cols/dp]"],
            ["Float [batch/dp] w_cols"]),
    Program(attention, BY_HEADS, P("dp", None, "tp"), [QKV],
            ["Float [B/dp] S [H/tp] K", "Float [B/dp] T [H/tp] K", "Float [B/dp] T [H/tp] v_cols"],
            ["Float [B/dp] S [H/tp] v_cols"]),
    Program(heads, BY_HEADS, P("dp", None, "tp"), [QKV],
            ["Float [b/dp] q_len [h/tp] d", "Float [b/dp] k_len [h/tp] d", "Float [b/dp] k_len [h/tp] v_cols"],
            ["Float [b/dp] q_len [h/tp] v_cols"]),
    Program(self_attention, (P("dp"), *(P(None, "tp"),) * 3, P("tp")), P("dp"),
            [(struct(8, 6, 16), *(struct(16, 32),) * 3, struct(32, 16))],
            ["Float [batch/dp] seq model", "Float model [wq_cols/tp]", "Float model [wk_cols/tp]",
             "Float model [wv_cols/tp]", "Float [wv_cols/tp] model"], ["Float [batch/dp] seq model"]),
    Program(unpacked, (P("dp"), P()), P("dp"), [(struct(8, 16), struct(6, 16))],
            ["Float [n/dp] d", "Float m d"], ["Float [n/dp]"]),
    Program(patterns, P("dp"), P("dp"), [(struct(8, 6, 3),)], ["Float [b/dp] x_rows c"], ["Float [b/dp] c"]),
    Program(on_lines, (P("dp"), P(None, "tp")), P("dp", "tp"), [(struct(8, 16), struct(16, 32))],
            ["Float [tokens/dp] model", "Float model [ff/tp]"], ["Float [tokens/dp] [ff/tp]"]),
    Program(annotated, (P("dp"), P(None, "tp")), P("dp", "tp"), [(struct(8, 16), struct(16, 32))],
            ["Float [batch/dp] d", "Float d [e/tp]"], ["Float [batch/dp] [e/tp]"]),
    Program(partial(scaled, times=3), (P("dp"), P()), P("dp"), [(struct(8, 16), struct(1, 16))],
            ["Float [batch/dp] x_cols", "Float 1 x_cols"], ["Float [batch/dp] x_cols"]),
    Program(partial(scaled, times=3), (P("dp"), P()), P("dp"), [(struct(8), struct())],
            ["Float [batch/dp]", "Float "], ["Float [batch/dp]"]),
    Program(ring, (P("dp"),) * 3, P("dp"), [(struct(16, 8),) * 3],
            ["Float [batch/dp] q_cols", "Float [k_rows/dp] q_cols", "Float [k_rows/dp] v_cols"],
            ["Float [batch/dp] v_cols"]),
    Program(halo, P("dp"), P("dp"), [(struct(16, 8),)], ["Float [batch/dp] u_cols"], ["Float [_/dp] u_cols"]),
    Program(halo, P("dp"), P("dp"), [(struct(16, 8),), (struct(32, 8),)],
            ["Float [batch/dp] u_cols"], ["Float [_/dp] u_cols"]),
    Program(layers, (P("dp"), P()), (P("dp"), P()), [(struct(8, 16), {"w": struct(3, 16, 16), "b": struct(3, 16)})],
            ["Float [batch/dp] x_cols", "Float b_rows x_cols", "Float b_rows x_cols x_cols"],
            ["Float [batch/dp] x_cols", "Float b_rows"]),
    Program(embedding, (P("tp"), P("dp")), P("dp"), [(struct(32, 16), struct(8, 6, dtype=i32))],
            ["Float [n/tp] model", "Int [batch/dp] seq"], ["Float [batch/dp] seq model"]),
    Program(experts, (P("dp"), P(), P("tp"), P("tp")), P("dp"),
            [(struct(8, 16), struct(16, 4), struct(4, 16, 32), struct(4, 32, 16))],
            ["Float [tokens/dp] d", "Float d experts", "Float [experts/tp] d f", "Float [experts/tp] f down_cols"],
            ["Float [tokens/dp] down_cols"]),
    Program(fft, P("dp"), P(None, "dp"), [(struct(16, 8),)],
            ["Float [x_rows/dp] x_cols"], ["Complex x_rows [x_cols/dp]"]),
    Program(sampler, (P(), P("dp"), P()), P("dp"),
            [(jax.eval_shape(lambda: jax.random.key(0)), struct(8, 32), struct())],
            ["Key ", "Float [batch/dp] logits_cols", "Float "], ["Int [batch/dp]"]),
    Program(masked, (P("dp"),) * 3, (P("dp"), P("dp")),
            [(struct(8, 4, dtype=bf16), struct(8, 4, dtype=jnp.bool_), struct(8, 4, dtype=i32))],
            ["Float [batch/dp] x_cols", "Bool [batch/dp] x_cols", "Int [batch/dp] x_cols"],
            ["Float [batch/dp] x_cols", "Int [batch/dp] x_cols"]),
    Program(means, P("dp"), (P("dp"), P()), [(struct(8, 16),)],
            ["Float [batch/dp] x_cols"], ["Float [batch/dp] x_cols", "Float _ x_cols"]),
    Program(transposed, P(("dp", "tp")), P(None, ("dp", "tp")), [(struct(8, 4),)],
            ["Float [batch/dp,tp] x_cols"], ["Float x_cols [batch/dp,tp]"]),
    Program(scattered, (P("dp", "tp"), P("tp")), P("dp", "tp"), [(struct(8, 16), struct(16, 32))],
            ["Float [batch/dp] [x_cols/tp]", "Float [x_cols/tp] w_cols"], ["Float [batch/dp] [w_cols/tp]"]),
    Program(loop, (P("dp"), P()), P("dp"), [(struct(8, 16), struct(16, 16))],
            ["Float [batch/dp] x_cols", "Float x_cols x_cols"], ["Float [batch/dp] x_cols"]),
    Program(chosen, (P(None, "dp"), P("dp"), P("dp")), P(), [(struct(8, 16), struct(16, 4), struct(16, 4))],
            ["Float x_rows [x_cols/dp]", "Float [x_cols/dp] a_cols", "Float [x_cols/dp] a_cols"],
            ["Float x_rows a_cols"]),
    Program(merged, (P("dp"), P()), P("dp"), [(struct(8, 6, 16), struct(16, 32))],
            ["Float [b/dp] s d", "Float d w_cols"], ["Float [b/dp] s w_cols"]),
    Program(remat, (P("dp"), P()), P("dp"), [(struct(8, 16), struct(16, 16))],
            ["Float [batch/dp] x_cols", "Float x_cols x_cols"], ["Float [batch/dp] x_cols"]),
    Program(gradient, (P(), P("dp"), P("dp")), P(), [(struct(16, 4), struct(8, 16), struct(8, 4))],
            ["Float w_rows w_cols", "Float [batch/dp] w_rows", "Float [batch/dp] w_cols"],
            ["Float w_rows w_cols"]),
    Program(normalized, (P("dp"), P()), P("dp"), [(struct(8, 16), struct(16)), (struct(8, 6, 16), struct(16))],
            ["Float [_/dp] ...", "Float x_cols"], ["Float [_/dp] ..."]),
    Program(normalized, (P("dp"), P()), P("dp"),
            [(struct(8, 16), struct(16)), (struct(16, 16, dtype=i32), struct(16, dtype=bf16))],
            ["Real [batch/dp] x_cols", "Float x_cols"], ["Float [batch/dp] x_cols"]),
    Program(tied_by_comment, (P(), P()), (P(), P()), [(struct(8, 4), struct(6, 4))],
            ["Float n d", "Float m d"], ["Float ", "Float "]),
    Program(tied_by_comment, (P(), P()), (P(), P()), [(struct(8, 4), struct(6, 5))],
            ["Float n d", "Float m y_cols"], ["Float ", "Float "]),
    Program(closes_over, P("dp"), P("dp"), [(struct(8, 6),)], ["Float [batch/dp] x_cols"], ["Float [batch/dp] x_cols"]),
    Program(doubled, P("data-parallel", "2d"), P("data-parallel", "2d"), [(struct(8, 6),)],
            ["Float [x_rows/data_parallel] [x_cols/axis2d]"], ["Float [x_rows/data_parallel] [x_cols/axis2d]"], odd),
]  # fmt: skip
IDS = [f"{getattr(program.body, 'func', program.body).__name__}-{at}" for at, program in enumerate(PROGRAMS)]


@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
def test_hints_of_a_program(program: Program) -> None:
    found = program.describe()
    assert [f"{hint.dtype} {hint.dims}" for hint in found.arguments] == list(program.arguments)
    assert [f"{hint.dtype} {hint.dims}" for hint in found.results] == list(program.results)


# A program may take other sizes by accident: a shard of size 1 goes with any, a slice fits in any. And a comment may
# say more than the operations need.
TIGHTER = {"scaled", "experts", "tied_by_comment"}
LAWFUL = [program for program, name in zip(PROGRAMS, IDS, strict=True) if name.rpartition("-")[0] not in TIGHTER]


@pytest.mark.slow
@pytest.mark.parametrize("program", LAWFUL, ids=lambda program: program.body.__name__)
def test_the_hints_take_other_sizes_that_the_program_takes(program: Program) -> None:
    found = program.describe()
    leaves, tree = jax.tree.flatten(tuple(program.calls[0]))
    places = [(at, dim, size) for at, leaf in enumerate(leaves) for dim, size in enumerate(leaf.shape)]
    of_one_size = [[each for each in places if each[2] == size] for size in {size for *_, size in places}]
    taken = 0
    for longer in chain(combinations(places, 1), combinations(places, 2), *map(_larger_subsets, of_one_size)):
        shapes = [
            tuple(2 * size if (at, dim, size) in longer else size for dim, size in enumerate(leaf.shape))
            for at, leaf in enumerate(leaves)
        ]
        structs = [struct(*shape, dtype=leaf.dtype) for shape, leaf in zip(shapes, leaves, strict=True)]
        plain, typed, arrays = program.both(found, jax.tree.unflatten(tree, structs))
        try:
            expected = jax.eval_shape(plain, *arrays)
        except (TypeError, ValueError):  # of sizes that do not go together
            continue
        taken += 1
        assert jax.eval_shape(typed, *arrays) == expected, shapes
    assert taken


def _larger_subsets(places: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return chain.from_iterable(islice(combinations(places, count), 20) for count in range(3, len(places) + 1))


@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
def test_the_hints_take_what_the_program_was_called_with_and_keep_its_text(program: Program) -> None:
    found = program.describe()
    for args in program.calls:
        plain, typed, arrays = program.both(found, args)
        assert jax.jit(typed).lower(*arrays).as_text() == jax.jit(plain).lower(*arrays).as_text()
