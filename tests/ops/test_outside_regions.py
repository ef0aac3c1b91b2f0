"""Operations on global arrays: the left side of a pattern is compared, the right side is made true."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from placed import MESHES, RUN, either_mesh, every_mesh

from typedshmap import (
    Array,
    Float,
    MeshAxisError,
    PatternError,
    ShapeError,
    ShardingError,
    axis_aliases,
    check,
    einsum,
    logsumexp,
    rearrange,
    reduce,
    repeat,
    reshard,
    shard,
    softmax,
    take,
    typed_jit,
    typed_shard_map,
)

X = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
IDS = np.array([1, 7, 9, -1, 0, 3, 3, 2], np.int32)


class Call(NamedTuple):
    """A call of an operation on an array that is sharded over dp and tp.

    Attributes:
      run: the call.
      reference: what it computes.
      spec: how its result is sharded.
      stated: what one writes for it on Explicit axes, given what the spec has of them; None for a `jax.reshard` of what
        it computes.
    """

    run: Callable[[Any], Any]
    reference: Callable[[Any], Any]
    spec: P
    stated: Callable[[Any, P], Any] | None = None


def looked_up(x: Any) -> Any:
    rows = x[np.clip(IDS, 0, 7)]
    return jnp.where(((IDS >= 0) & (IDS < 8))[:, None], rows, 0)


CALLS = {
    "rearrange": Call(lambda x: rearrange(x, "[b/dp] [d/tp] -> [d/tp] [b/dp]"), lambda x: x.T, P("tp", "dp")),
    "a dim moved": Call(lambda x: rearrange(x, "[b/dp] [d/tp] -> [d/dp] b"), lambda x: x.T, P("dp")),
    "merged": Call(
        lambda x: rearrange(x, "[b/dp] [d/tp] -> [(d b)/dp]"), lambda x: x.T.reshape(-1), P("dp"),
        lambda x, spec: jnp.reshape(x.T, -1, out_sharding=spec)),
    "merged, by the major factor": Call(
        lambda x: rearrange(x, "[b/dp] [d/tp] -> ([b/dp] d)"), lambda x: x.reshape(-1), P("dp"),
        lambda x, spec: jnp.reshape(x, -1, out_sharding=spec)),
    "split": Call(
        lambda x: rearrange(x, "[b/dp] [(h d)/tp] -> [b/dp] h [d/tp]", h=2), lambda x: x.reshape(8, 2, 4),
        P("dp", None, "tp"), lambda x, spec: jnp.reshape(x, (8, 2, 4), out_sharding=spec)),
    "split, by the major factor": Call(
        lambda x: rearrange(x, "[b/dp] ([h/tp] d) -> [h/tp] b d", h=2),
        lambda x: x.reshape(8, 2, 4).transpose(1, 0, 2), P("tp", None, None),
        lambda x, spec: jnp.reshape(x, (8, 2, 4), out_sharding=P(None, spec[0], None)).transpose(1, 0, 2)),
    "gathered": Call(
        lambda x: rearrange(x, "[b/dp] [d/tp] -> d b"), lambda x: x.T, P(), lambda x, spec: jax.reshard(x, spec).T),
    "reduce": Call(lambda x: reduce(x, "[b/dp] [d/tp] -> [d/dp]", "sum"), lambda x: x.sum(0), P("dp")),
    "mean": Call(lambda x: reduce(x, "[b/dp] [d/tp] -> [b/dp]", "mean"), lambda x: x.mean(1), P("dp")),
    "max": Call(lambda x: reduce(x, "[b/dp] [d/tp] -> b", "max"), lambda x: x.max(1), P()),
    "repeat": Call(
        lambda x: repeat(x, "[b/dp] [d/tp] -> [r/tp] [b/dp] d", r=4), lambda x: jnp.broadcast_to(x, (4, 8, 8)),
        P("tp", "dp", None),
        lambda x, spec: jnp.broadcast_to(jax.reshard(x, P(*spec[1:])), (4, 8, 8), out_sharding=spec)),
    "einsum": Call(
        lambda x: einsum(x, x, "[b/dp] [d/tp], [c/dp] [d/tp] -> [b/dp] [c/tp]"), lambda x: x @ x.T, P("dp", "tp"),
        lambda x, spec: jnp.einsum("bd,cd->bc", x, x, out_sharding=spec)),
    "einsum, a sum of parts": Call(
        lambda x: einsum(x, x, "[b/dp] [d/tp], [b/dp] [e/tp] -> [d/tp] e"), lambda x: x.T @ x, P("tp", None),
        lambda x, spec: jnp.einsum("bd,be->de", x, x, out_sharding=spec)),
    "einsum of one": Call(
        lambda x: einsum(x, "[b/dp] [d/tp] -> [d/tp]"), lambda x: x.sum(0), P("tp"),
        lambda x, spec: jnp.einsum("bd->d", x, out_sharding=spec)),
    "take": Call(
        lambda x: take(x, IDS, "[v/dp] [m/tp], i -> [i/dp] [m/tp]"), looked_up, P("dp", "tp"),
        lambda x, spec: x.at[np.where(IDS < 0, 8, IDS)].get(mode="fill", fill_value=0, out_sharding=spec)),
    "logsumexp": Call(
        lambda x: logsumexp(x, "[b/dp] [d/tp] -> [b/tp]"), lambda x: jax.nn.logsumexp(x, axis=1), P("tp")),
    "softmax": Call(lambda x: softmax(x, "[b/dp] [d/tp]", "d"), lambda x: jax.nn.softmax(x, axis=1), P("dp", "tp")),
    "reshard": Call(lambda x: reshard(x, "[b/dp] [d/tp] -> [b/tp] [d/dp]"), lambda x: x, P("tp", "dp")),
    "gathered by reshard": Call(lambda x: reshard(x, "[b/dp] [d/tp] -> b d"), lambda x: x, P()),
    "any sharding": Call(lambda x: rearrange(x, "[b/?] [d/tp] -> [d/tp] b"), lambda x: x.T, P("tp")),
}  # fmt: skip


def in_scan(f: Any) -> Any:
    return jax.jit(lambda x: jax.tree.map(lambda y: y[1], jax.lax.scan(lambda c, _: (c, f(x)), 0, None, length=2)[1]))


MODES = RUN | {"scan": in_scan}


@contextmanager
def under(mesh: Mesh, is_ambient: bool) -> Iterator[Any]:
    with jax.set_mesh(mesh) if is_ambient else nullcontext():
        yield jax.device_put(X, NamedSharding(mesh, P("dp", "tp")))


def near(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(jax.block_until_ready(got)), np.asarray(expected), rtol=1e-4, atol=1e-5)


def is_sharded(got: Any, mesh: Mesh, spec: P) -> None:
    assert got.sharding.is_equivalent_to(NamedSharding(mesh, spec), got.ndim), got.sharding


@pytest.mark.sample(19)
@pytest.mark.parametrize("is_ambient", [True, False], ids=["ambient mesh", "mesh of the array"])
@pytest.mark.parametrize("mode", MODES)
@every_mesh
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_result_is_sharded_as_the_pattern_says(call: Call, mesh: Mesh, mode: str, is_ambient: bool) -> None:
    with under(mesh, is_ambient) as x:
        got = MODES[mode](call.run)(x)
        near(got, call.reference(X))
        if mode != "scan":  # whose results are rows of what it stacks
            is_sharded(got, mesh, call.spec)


@pytest.mark.sample(13)
@pytest.mark.parametrize("is_jit", [True, False], ids=["jit", "eager"])
@every_mesh
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_gradient_is_that_of_the_global_operation(call: Call, mesh: Mesh, is_jit: bool) -> None:
    weights = np.random.default_rng(1).normal(size=call.reference(X).shape).astype(np.float32)
    expected = jax.jit(jax.grad(lambda x: (call.reference(x) * weights).sum()))(X)
    with under(mesh, True) as x:
        placed = jax.device_put(weights, NamedSharding(mesh, call.spec))
        gradient = jax.grad(lambda x: (call.run(x) * placed).sum())
        near((jax.jit(gradient) if is_jit else gradient)(x), expected)


@pytest.mark.sample(7)
@every_mesh
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_mapped_operation_computes_the_same(call: Call, mesh: Mesh) -> None:
    with jax.set_mesh(mesh):
        both = jax.device_put(np.stack([X, 2 * X]), NamedSharding(mesh, P(None, "dp", "tp")))
        got = jax.jit(jax.vmap(lambda x: call.run(x)))(both)
        near(got, np.stack([call.reference(X), call.reference(2 * X)]))


ARRAYS: dict[str, Callable[[], Any]] = {"NumPy": lambda: X, "uncommitted": lambda: jnp.asarray(X)}


@pytest.mark.sample(7)
@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("mode", ["eager", "jit"])
@pytest.mark.parametrize("mesh", [MESHES["Auto"], MESHES["mixed"]], ids=["Auto", "mixed"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_not_placed_has_no_sharding_to_violate(call: Call, mesh: Mesh, mode: str, make: Any) -> None:
    if mesh is MESHES["mixed"] and "tp" in str(call.run.__code__.co_consts):
        return  # on Explicit axes its type is known: unsharded
    array = make()  # under an ambient mesh jax.numpy places what it makes
    with jax.set_mesh(mesh):
        got = MODES[mode](call.run)(array)
        near(got, call.reference(X))
        is_sharded(got, mesh, call.spec)


def test_an_argument_on_explicit_axes_has_a_type_placed_or_not() -> None:
    line = "rearrange: the operand is sharded P(None, None), but the pattern says P('dp', None)"
    with jax.set_mesh(MESHES["Explicit"]), fails(ShardingError, line):
        jax.jit(lambda x: rearrange(x, "[b/dp] d -> d [b/dp]"))(X)


# What is known of an operand


@pytest.mark.parametrize(("left", "spec"), [("b [d/tp]", "P(None, 'tp')"), ("b d", "P(None, None)")])
def test_a_placed_operand_is_compared_with_its_side_which_says_unsharded_without_brackets(left: str, spec: str) -> None:
    line = f"rearrange: the operand is sharded P('dp', 'tp'), but the pattern says {spec}"
    with under(MESHES["Auto"], False) as x, fails(ShardingError, line):
        rearrange(x, f"{left} -> [d/tp] b")


SAID: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shard": (lambda x: shard(x, "b [d/tp]"), "shard"),
    "an operation": (lambda x: rearrange(x, "b d -> b [d/tp]"), 'rearrange "b d -> b [d/tp]"'),
    "reshard": (lambda x: reshard(x, "b d -> b [d/tp]"), 'reshard "b d -> b [d/tp]"'),
}


@pytest.mark.parametrize(("say", "source"), SAID.values(), ids=SAID)
def test_what_was_said_of_a_traced_value_is_compared(say: Any, source: str) -> None:
    line = f"rearrange: the operand is sharded P(None, 'tp') by {source}, but the pattern says P('dp', None)"
    with jax.set_mesh(MESHES["Auto"]), fails(ShardingError, line):
        jax.eval_shape(lambda x: rearrange(say(x), "[b/dp] d -> d [b/dp]"), X)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.grad, lambda f: jax.vmap(f, in_axes=1)], ids=["", "grad", "vmap"])
def test_what_a_hint_of_typed_jit_said_is_compared(wrap: Any) -> None:
    @typed_jit(mesh=MESHES["Auto"])
    def f(x: Float[Array, "[b/dp] d"]) -> Float[Array, "..."]:
        return wrap(lambda y: einsum(y, f"{'[b/tp] d' if y.ndim == 2 else '[b/tp]'} ->"))(x)

    with pytest.raises(ShardingError, match=r"by f's hint of argument 'x', but the pattern says P\('tp'"):
        f(X)


def test_what_was_said_is_compared_by_check_too() -> None:
    refused = pytest.raises(ShardingError, match=r"^check: checked value is sharded P\(None, 'tp'\) by shard")
    with jax.set_mesh(MESHES["Auto"]), refused:
        jax.eval_shape(lambda x: check(shard(x, "b [d/tp]"), "[b/dp] d"), X)


def test_of_a_dim_of_any_sharding_nothing_is_known() -> None:
    with jax.set_mesh(MESHES["Auto"]):
        jax.eval_shape(lambda x: rearrange(shard(x, "[b/?] [d/tp]"), "[b/dp] [d/tp] -> d b"), X)
        with pytest.raises(ShardingError, match=r"sharded P\(P.UNCONSTRAINED, 'tp'\) by shard"):
            jax.eval_shape(lambda x: rearrange(shard(x, "[b/?] [d/tp]"), "[b/tp] d -> d b"), X)


def test_a_result_that_does_not_divide_is_refused() -> None:
    line = "rearrange: the result has b=6, which does not divide over 'dp' (4 shards)"
    with jax.set_mesh(MESHES["Auto"]), fails(ShapeError, line):
        rearrange(np.ones((6, 8), np.float32), "b d -> [b/dp] d")


# Meshes


def test_brackets_without_a_mesh_are_an_error() -> None:
    for f in (lambda x: x, jax.jit):
        with pytest.raises(MeshAxisError) as caught:
            f(lambda x: rearrange(x, "[b/dp] d -> d [b/dp]"))(X)
        first, *_, last = str(caught.value).splitlines()
        assert first == "rearrange: the pattern names mesh axis 'dp', but no mesh is known"
        assert last == "Hint: call it under jax.set_mesh(mesh), or with arrays that are on one"


def test_an_alias_for_no_axis_needs_no_mesh() -> None:
    with axis_aliases(dp=None, tp=None):
        near(rearrange(X, "[b/dp] [d/tp] -> [d/tp] [b/dp]"), X.T)


PLAIN: dict[str, Callable[[Any], Any]] = {
    "... -> ...": lambda x: rearrange(x, "... -> ..."),
    "rearrange": lambda x: rearrange(x, "b d -> d b"),
    "reduce": lambda x: reduce(x, "b d -> d", "sum"),
}


@pytest.mark.parametrize("call", PLAIN.values(), ids=PLAIN)
def test_a_pattern_without_brackets_adds_nothing(call: Any) -> None:
    with under(MESHES["Auto"], True) as x:
        assert "sharding_constraint" not in jax.jit(call).lower(x).as_text()


def test_nothing_is_done_by_a_pattern_that_changes_nothing() -> None:
    with under(MESHES["Explicit"], True) as x:
        text = jax.jit(lambda x: rearrange(x, "... -> ...")).lower(x).as_text()
        assert text == jax.jit(lambda x: x).lower(x).as_text()
        assert rearrange(x, "... -> ...") is x


@every_mesh
def test_a_mesh_of_typed_jit_is_known_in_its_body(mesh: Mesh) -> None:
    @typed_jit(mesh=mesh)
    def f(x: Float[Array, "[b/dp] [d/tp]"]) -> Float[Array, "[d/dp] b"]:
        return rearrange(x, "[b/dp] [d/tp] -> [d/dp] b")

    got = f(X)
    near(got, X.T)
    is_sharded(got, mesh, P("dp"))


@either_mesh
def test_a_pattern_in_a_region_places_over_the_axes_that_are_not_manual(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh, axis_names={"dp"})
    def region(x: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/dp] d"]:
        return reshard(x, "[b/dp] [d/tp] -> [b/dp] d")

    with under(mesh, True) as x:
        got = jax.jit(region)(x)
        near(got, X)
        is_sharded(got, mesh, P("dp"))


# The same program as by hand


DUE = "[b/dp] [d/tp], [c/dp] [d/tp] -> [b/dp] c +tp"
COMPILED = CALLS | {
    "shard": Call(lambda x: shard(x, "[b/tp] [d/dp]"), lambda x: x, P("tp", "dp")),
    "shard, as it is": Call(lambda x: shard(x, "[b/dp] [d/tp]"), lambda x: x, P("dp", "tp")),
    "reshard of one dim": Call(lambda x: reshard(x, "[b/dp] [d/tp] -> b [d/tp]"), lambda x: x, P(None, "tp")),
    "reshard over both axes": Call(lambda x: reshard(x, "[b/dp] [d/tp] -> [b/dp,tp] d"), lambda x: x, P(("dp", "tp"))),
    "a sum left due, and scattered": Call(
        lambda x: reshard(einsum(x, x, DUE), "[b/dp] c +tp -> [b/dp] [c/tp]"), lambda x: x @ x.T, P("dp", "tp"),
        lambda x, spec: jax.reshard(jnp.einsum("bd,cd->bc", x, x, out_sharding=P("dp", None, unreduced={"tp"})), spec)),
}  # fmt: skip
WRITTEN = {
    f"{name}-{kind}": (call, mesh)
    for name, call in COMPILED.items()
    for kind, mesh in MESHES.items()
    # A dim over axes of both types is refused, and on Auto axes JAX has no sum that is due.
    if not ("both axes" in name and "mixed" in kind) and not ("due" in name and kind != "Explicit")
}


def over(spec: P, axes: Any) -> P:
    """What a spec has of some axes."""
    dims = [tuple(axis for axis in ((dim,) if isinstance(dim, str) else dim or ()) if axis in axes) for dim in spec]
    return P(*(dim[0] if len(dim) == 1 else dim or None for dim in dims))


def by_hand(call: Call, mesh: Mesh) -> Callable[[Any], Any]:
    """What one writes in JAX: types on the Explicit axes of a mesh, and a constraint over its Auto ones."""
    explicit, auto = mesh.abstract_mesh.explicit_axes, mesh.abstract_mesh.auto_axes

    def f(x: Any) -> Any:
        spec = over(call.spec, explicit)
        stated = call.stated or (lambda x, spec: jax.reshard(call.reference(x), spec))
        y = stated(x, spec) if explicit else call.reference(x)
        return jax.lax.with_sharding_constraint(y, NamedSharding(mesh, over(call.spec, auto))) if auto else y

    return f


def compiled(reader: Any, f: Callable[..., Any], *args: Any) -> tuple[Counter[Any], int, Any]:
    """The collectives of a program, how often it is constrained, and its result.

    A collective is its kind, the devices that exchange with each other, and the bytes that each puts in and gets.
    """
    lowered = jax.jit(lambda *args: f(*args)).lower(*args)
    program = lowered.compile()
    collectives = reader.collectives(program.as_text())
    sent = Counter((one.kind, one.groups, one.bytes_in, one.bytes_out) for one in collectives)
    return sent, lowered.as_text().count("sharding_constraint"), jax.block_until_ready(program(*args))


@pytest.mark.sample(9)
@pytest.mark.parametrize("is_gradient", [False, True], ids=["", "gradient"])
@pytest.mark.parametrize(("call", "mesh"), WRITTEN.values(), ids=WRITTEN)
def test_what_is_compiled_sends_what_is_sent_by_hand(call: Call, mesh: Mesh, is_gradient: bool, reader: Any) -> None:
    with under(mesh, True) as x:
        programs, args = [call.run, by_hand(call, mesh)], [x]
        if is_gradient:
            weights = np.random.default_rng(1).normal(size=call.reference(X).shape).astype(np.float32)
            args.append(jax.device_put(weights, NamedSharding(mesh, call.spec)))
            programs = [jax.grad(lambda x, w, f=f: (f(x) * w).sum()) for f in programs]
        ours, by_jax = (compiled(reader, f, *args) for f in programs)
        (sent, constraints, got), (sent_by_hand, constraints_by_hand, expected) = ours, by_jax
        assert sent == sent_by_hand
        assert constraints == constraints_by_hand or mesh is not MESHES["Auto"]  # a reshard counts, too
        near(got, expected)
        assert got.sharding.is_equivalent_to(expected.sharding, got.ndim)


def test_programs_that_send_something_else_are_told_apart(reader: Any) -> None:
    programs = [CALLS[name].run for name in ("rearrange", "gathered", "reshard")]
    programs += [lambda x, axis=axis: jnp.sum(x, axis) for axis in (0, 1)]
    with under(MESHES["Auto"], True) as x:
        sent = [compiled(reader, program, x)[0] for program in programs]
    assert [bool(collectives) for collectives in sent] == [False, True, True, True, True]
    assert all(first != second for first, second in combinations(sent, 2))


SENT: dict[str, tuple[bool, Callable[[Any], Any]]] = {
    "rearrange": (False, CALLS["rearrange"].run),
    "repeat": (False, lambda x: repeat(x, "[b/dp] [d/tp] -> [b/dp] 3 [d/tp]")),
    "reduce": (False, lambda x: reduce(x[..., None], "[b/dp] [d/tp] r -> [b/dp] [d/tp]", "sum")),
    "shard": (False, lambda x: shard(x, "[b/dp] [d/tp]")),
    "einsum": (False, lambda x: einsum(x, x, "[b/dp] [d/tp], [b/dp] [d/tp] -> [b/dp] [d/tp]")),
    "einsum, a sum due": (False, lambda x: einsum(x, x, "[b/dp] [d/tp], [b/dp] [d/tp] -> [d/tp] +dp")),
    "shard, gathered": (True, lambda x: shard(x, "b [d/tp]")),
    "reshard, gathered": (True, lambda x: reshard(x, "[b/dp] [d/tp] -> b [d/tp]")),
    "reduce, summed": (True, lambda x: reduce(x, "[b/dp] [d/tp] -> [d/tp]", "sum")),
    "einsum, summed": (True, lambda x: einsum(x, x, "[b/dp] [d/tp], [b/dp] [d/tp] -> [d/tp]")),
}


@pytest.mark.skipif(not hasattr(jax.sharding, "no_collectives"), reason="jax 0.12 has it")
@pytest.mark.parametrize(("sends", "call"), SENT.values(), ids=SENT)
def test_jax_refuses_under_no_collectives_what_sends_something_alone(sends: bool, call: Any) -> None:
    refused = pytest.raises(Exception, match="Collective across axis 'dp' is forbidden") if sends else nullcontext()
    with under(MESHES["Explicit"], True) as x, jax.sharding.no_collectives({"dp", "tp"}), refused:
        jax.eval_shape(call, x)


# Partial sums in JAX's types


def test_a_sum_that_is_due_is_written_on_explicit_axes() -> None:
    with under(MESHES["Explicit"], True) as x:
        owed = jax.jit(lambda x: einsum(x, x, "[b/dp] [d/tp], [b/dp] [d/tp] -> [b/dp] +tp"))(x)
        assert "U:tp" in str(jax.typeof(owed))
        near(reshard(owed, "[b/dp] +tp -> [b/dp]"), (X * X).sum(1))
        with pytest.raises(ShardingError, match="the pattern says P"):
            jax.eval_shape(lambda y: rearrange(y, "[b/dp] -> [b/dp] 1"), owed)


def test_a_sum_stays_due_where_nothing_is_computed() -> None:
    with under(MESHES["Explicit"], True) as x:
        got = jax.jit(lambda x: rearrange(einsum(x, x, DUE), "[b/dp] c +tp -> c [b/dp] +tp"))(x)
        assert "U:tp" in str(jax.typeof(got))
        near(reshard(got, "c [b/dp] +tp -> c [b/dp]"), X @ X.T)


REFUSED_BY_JAX: dict[str, tuple[Callable[[Any], Any], str]] = {
    "softmax": (lambda x: softmax(x, "b d -dp", "d"), "the operand is reduced over 'dp'"),
    "logsumexp": (lambda x: logsumexp(x, "b d -> b"), "the operand is reduced over 'dp'"),
    "reduce": (lambda x: reduce(x, "b d -dp -> b -dp", "prod"), "the operand is reduced over 'dp'"),
    "einsum": (
        lambda x: einsum(shard(x, "b d -dp +tp"), x, "b d -dp +tp, b c -dp -> d c"),
        "operand 1 is unreduced over 'tp'",
    ),
}


@pytest.mark.parametrize(("call", "problem"), REFUSED_BY_JAX.values(), ids=REFUSED_BY_JAX)
def test_what_jax_has_not_for_such_types_is_an_error_of_ours(call: Any, problem: str) -> None:
    with under(MESHES["Explicit"], True):
        reduced = jax.block_until_ready(shard(X, "b d -dp"))
        with pytest.raises(PatternError, match=f"{problem} in JAX's type, and JAX has no"):
            jax.eval_shape(call, reduced)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda x: reduce(x, "[b/dp] [d/tp] -> [d/dp] ~tp", "sum"), "mesh axis 'tp' is not manual here"),
        (lambda x: einsum(x, "[b/dp] [d/tp] -> [b/dp] +tp"), "mesh axis 'tp' is not manual here"),
    ],
)
def test_marks_that_a_global_array_cannot_have_are_refused(call: Any, problem: str) -> None:
    with under(MESHES["Auto"], True) as x, pytest.raises(MeshAxisError, match=problem):
        call(x)


# Parentheses


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("b (h [d/tp]) -> b h d", "the pattern has brackets inside parentheses"),
        ("b [([h/tp] d)/dp] -> b h d", "the pattern has brackets inside brackets"),
    ],
)
def test_only_a_major_factor_has_brackets(pattern: str, problem: str) -> None:
    with pytest.raises(PatternError, match=problem):
        rearrange(X, pattern, h=2)


def test_a_major_factor_has_brackets_in_regions_too() -> None:
    @typed_shard_map(mesh=MESHES["Auto"])
    def f(x: Float[Array, "[b/dp] [_/tp]"]) -> Float[Array, "[b/dp] [h/tp] d"]:
        return rearrange(x, "[b/dp] ([h/tp] d) -> [b/dp] [h/tp] d", h=2)

    near(f(X), X.reshape(8, 2, 4))
