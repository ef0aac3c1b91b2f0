"""The door for tools: regions of traced programs as data, what runs and is checked, hints, another mesh."""

from collections import defaultdict
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    MeshAxisError,
    ShapeError,
    StructureError,
    SuspectWarning,
    assume,
    check,
    einsum,
    plan_reshard,
    reshard,
    typed,
    typed_jit,
    typed_shard_map,
)
from typedshmap.inspection import (
    CALLS,
    CollectiveCall,
    Fact,
    Interpreter,
    Region,
    bind,
    call,
    closed_over,
    closed_over_sizes,
    find_signature,
    keeping_claims,
    leaves_of,
    observing,
    on_mesh,
    read_mesh,
    regions,
    reshard_steps,
    signature,
)

MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))
X, W = Float[Array, "[batch/dp] [model/tp]"], Float[Array, "[model/tp] ff"]
x, w = jnp.ones((8, 16)), jnp.ones((16, 32))


def plain(body: Any, out: P, **options: Any) -> Any:
    return jax.shard_map(body, mesh=MESH, in_specs=(P("dp", "tp"), P("tp")), out_specs=out, **options)


@typed_shard_map(mesh=MESH)
def layer(x: X, w: W) -> Float[Array, "[batch/dp] ff"]:
    return einsum(x, w, "[b/dp] [m/tp], [m/tp] f -> [b/dp] f")


def partial(x: Array, w: Array) -> Array:
    return x @ w


# Regions of a program


def region_of(body: Any, **options: Any) -> Region:
    """The one region of a program that takes `x` and `w`."""
    (region,) = regions(jax.make_jaxpr(plain(body, P("dp"), **options))(x, w))
    return region


def total(x: Array, w: Array) -> Array:
    return jax.lax.psum(x @ w, "tp")


def test_a_region_is_known_by_its_function_axes_and_specs() -> None:
    region = region_of(partial, check_vma=False)
    assert (region.name, region.line) == ("partial", partial.__code__.co_firstlineno)
    assert region.file == __file__
    assert region.axes == {"dp": 4, "tp": 2} and region.mesh.shape_tuple == MESH.shape_tuple
    assert region.in_specs == (P("dp", "tp"), P("tp")) and region.out_specs == (P("dp"),)
    assert (region.check_vma, region.is_typed, region.argument_names) == (False, False, ("x", "w"))


def test_a_finding_says_what_is_wrong_where() -> None:
    region = region_of(partial, check_vma=False)
    (finding,) = region.findings
    assert (finding.severity, finding.kind, finding.region) == ("error", "unreduced", "partial")
    assert (finding.file, finding.line) == (__file__, partial.__code__.co_firstlineno + 1)


def test_a_right_region_has_no_findings_and_is_read_to_its_end() -> None:
    region = region_of(total)
    assert (region.findings, region.unread, region.is_complete) == ([], (), True)


def test_what_a_kernel_returns_is_listed_as_unread() -> None:
    def callback(x: Array, w: Array) -> Array:
        return jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct((2, 32), jnp.float32), x @ w)

    region = region_of(callback, check_vma=False)
    assert not region.is_complete
    assert region.unread[0].startswith("pure_callback at ")


def test_the_facts_of_values_are_those_of_the_body() -> None:
    region = region_of(total)
    rows, weights = region.jaxpr.invars
    assert region.facts(rows) == Fact(frozenset({"dp", "tp"}), frozenset(), (("dp",), ("tp",)))
    assert region.facts(weights) == Fact(frozenset({"tp"}), frozenset(), (("tp",), ()))
    (result,) = region.jaxpr.outvars
    assert region.facts(result) == Fact(frozenset({"dp"}), frozenset(), (("dp",), ()))


def test_the_value_of_another_program_has_no_facts() -> None:
    region = region_of(partial, check_vma=False)
    with pytest.raises(KeyError):
        region.facts(jax.make_jaxpr(jnp.sin)(x).jaxpr.invars[0])


def test_the_collectives_of_a_region_have_axes_bytes_and_how_often_they_run() -> None:
    def gathers(x: Array) -> Array:
        def step(c: Array, _: None) -> tuple[Array, None]:
            whole = jax.lax.all_gather(c, "dp", tiled=True)
            return c + whole[:2].astype(c.dtype), None

        return jax.lax.psum(jax.lax.scan(step, x, None, length=3)[0], ("tp", "dp"))

    program = jax.shard_map(gathers, mesh=MESH, in_specs=P("dp", "tp"), out_specs=P(), check_vma=False)
    (region,) = regions(jax.make_jaxpr(program)(x))
    first = gathers.__code__.co_firstlineno
    assert region.collectives == [
        CollectiveCall("all-gather", ("dp",), 2 * 8 * 4, 8 * 8 * 4, 3, __file__, first + 2),
        CollectiveCall("all-reduce", ("tp", "dp"), 2 * 8 * 4, 2 * 8 * 4, 1, __file__, first + 5),
    ]


def test_a_reshard_is_listed_by_its_steps() -> None:
    pattern = "[b/dp] [m/tp] -> b [m/dp,tp]"
    moved = typed_shard_map(lambda x: reshard(x, pattern), mesh=MESH, in_types=X, out_types=Float[Array, "b [m/dp,tp]"])
    (region,) = regions(jax.make_jaxpr(lambda x: moved(x))(x))
    assert len(region.collectives) == sum(step.rounds for step in plan_reshard(pattern, (8, 16), MESH).steps)
    assert sum(collective.operand for collective in region.collectives) > 0
    steps = [(operation, axes) for eqn in region.jaxpr.eqns for operation, axes, *_ in reshard_steps(eqn)]
    assert steps == [(collective.operation, collective.axes) for collective in region.collectives]


@pytest.mark.parametrize(
    ("collective", "words"),
    [
        (jax.lax.pmean, "the same on every shard of 'dp'"),
        (jax.lax.psum, "the same on every shard of 'dp', and is 4 times too large on dp=4: it grows with 'dp'"),
    ],
)
def test_a_value_of_a_region_is_described_over_each_axis(collective: Any, words: str) -> None:
    def region_on(size: int) -> Region:
        mesh = AbstractMesh((size,), ("dp",), axis_types=(AxisType.Auto,))
        mean = jax.shard_map(lambda x: collective(jnp.mean(x), "dp"), mesh=mesh, in_specs=P("dp"), out_specs=P())
        return Region.of(jax.make_jaxpr(mean)(jax.ShapeDtypeStruct((16,), jnp.float32)).jaxpr.eqns[-1])

    region = region_on(4)
    assert region.describe(region.jaxpr.outvars[0], region_on(2)) == [words]


def test_nested_regions_and_those_in_loops_are_found() -> None:
    def inner(x: Array) -> Array:
        return jax.lax.psum(x, "tp")

    def outer(x: Array) -> Array:
        call = jax.shard_map(inner, in_specs=P(None, "tp"), out_specs=P(), axis_names={"tp"})
        return jax.lax.scan(lambda c, _: (c + call(x), None), jnp.zeros((2, 8)), None, length=2)[0]

    mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    program = jax.shard_map(outer, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"), axis_names={"dp"}, check_vma=False)
    found = regions(jax.jit(program).trace(x).jaxpr)
    assert [(region.name, region.axes) for region in found] == [("outer", {"dp": 4}), ("inner", {"tp": 2})]


def test_a_region_in_a_backward_rule_is_found() -> None:
    @jax.custom_vjp
    def f(x: Array) -> Array:
        return 2 * x

    def backward(_: None, g: Array) -> tuple[Array]:
        return (jax.shard_map(shard_of_gradient, mesh=MESH, in_specs=P("dp"), out_specs=P("dp"))(g),)

    def shard_of_gradient(g: Array) -> Array:
        return 2 * g

    f.defvjp(lambda x: (2 * x, None), backward)
    assert [region.name for region in regions(jax.make_jaxpr(f)(x))] == ["shard_of_gradient"]


def test_what_a_lowered_or_a_traced_function_returns_is_a_program_too() -> None:
    traced = jax.jit(plain(partial, P("dp", "tp"), check_vma=False)).trace(x, w)
    assert (
        [region.name for region in regions(traced)] == ["partial"] == [region.name for region in regions(traced.jaxpr)]
    )


def test_the_claims_of_a_typed_region_are_those_of_its_checks() -> None:
    @typed_shard_map(mesh=MESH)
    def checked(x: X) -> X:
        return assume(check(2 * x, "[batch/dp] [model/tp]"), "[batch/dp] [model/tp]")

    with keeping_claims():
        (region,) = regions(jax.make_jaxpr(lambda x: checked(x))(x))
    assert region.is_typed
    assert [(claim.subject, claim.is_assumed) for claim in region.claims] == [("checked", False), ("assumed", True)]
    assert region.claims[0].hint.layout.dim_axes == (("dp",), ("tp",))
    assert {(claim.file, claim.line) for claim in region.claims} == {
        (__file__, checked.__wrapped__.__code__.co_firstlineno + 2)
    }


# What happens


class Log:
    def __init__(self) -> None:
        self.boundaries: list[Any] = []
        self.assertions: list[Any] = []
        self.regions: list[Any] = []
        self.suspects: list[Any] = []

    def boundary(self, values: Any, hints: Any, mesh: Any) -> None:
        self.boundaries.append((values, hints, mesh))

    def assertion(self, value: Any, hint: Any) -> None:
        self.assertions.append((value, hint))

    def region(self, region: Any) -> None:
        self.regions.append(region)

    def suspect(self, function: str, finding: Any) -> None:
        self.suspects.append((function, finding))


@pytest.mark.parametrize(
    "call", [layer, jax.jit(lambda x, w: layer(x, w)), typed_jit(layer)], ids=["", "jit", "typed_jit"]
)
def test_an_observer_hears_of_the_values_that_cross_a_boundary(call: Any) -> None:
    log = Log()
    with observing(log):
        y = jax.block_until_ready(call(x, w))
    assert {tuple(values) for values, _, _ in log.boundaries} == {("x", "w", "return")}
    values, hints, mesh = log.boundaries[-1]
    assert values["return"].shape == y.shape == (8, 32)
    assert str(hints["x"].text) == 'Float[Array, "[batch/dp] [model/tp]"]'
    assert hints["return"].layout.dim_axes == (("dp",), ())
    assert mesh.shape_tuple == MESH.shape_tuple
    assert [region.name for region in log.regions] == ["layer"]


def test_an_observer_hears_of_checks_in_a_body_and_outside() -> None:
    log = Log()

    @typed_shard_map(mesh=MESH)
    def body(x: X) -> X:
        return check(x, "[batch/dp] [model/tp]")

    with observing(log):
        jax.block_until_ready(body(x))
        check(x, "batch model")
    assert [value.shape for value, _ in log.assertions] == [(2, 8), (8, 16)]
    assert [hint.layout.dim_axes for _, hint in log.assertions] == [(("dp",), ("tp",)), ((), ())]


def test_an_observer_hears_of_plain_regions_and_may_want_nothing_else() -> None:
    names = list[str]()

    class Names:
        def region(self, region: Any) -> None:
            names.append(region.name)

    with observing(Names()):
        jax.eval_shape(plain(partial, P("dp", "tp"), check_vma=False), x, w)
    jax.eval_shape(plain(lambda x, w: x @ w, P("dp", "tp"), check_vma=False), x, w)
    assert names == ["partial"]


def test_an_observer_hears_of_what_is_suspected_of_a_typed_region() -> None:
    @typed_shard_map(mesh=MESH)
    def twice(x: Float[Array, "[b/dp] m"]) -> Float[Array, "m"]:
        return jax.lax.psum(jnp.mean(x, 0), "dp")

    log = Log()
    with observing(log), pytest.warns(SuspectWarning, match="double|grows|too large"):
        jax.block_until_ready(twice(x))
    ((function, finding),) = log.suspects
    assert (function, finding.severity, finding.kind) == ("twice", "suspect", "double-sum")
    assert finding.line == twice.__wrapped__.__code__.co_firstlineno + 2


def test_what_is_called_outside_is_not_heard_of() -> None:
    log = Log()
    with observing(log):
        pass
    jax.block_until_ready(layer(x, w))
    assert log.boundaries == log.regions == []


def test_an_error_of_an_observer_is_raised() -> None:
    class Wrong:
        def boundary(self, values: Any, hints: Any, mesh: Any) -> None:
            raise ZeroDivisionError

    with observing(Wrong()), pytest.raises(ZeroDivisionError):
        layer(x, w)
    jax.block_until_ready(layer(x, w))


def test_several_observers_hear_the_same() -> None:
    logs = Log(), Log()
    with observing(logs[0]), observing(logs[1]):
        jax.block_until_ready(layer(x, w))
    assert len(logs[0].boundaries) == len(logs[1].boundaries) == 1
    assert len(logs[0].regions) == len(logs[1].regions) >= 1


@pytest.mark.parametrize("first", [0, 1])
def test_what_is_asked_for_twice_holds_until_both_have_ended(first: int) -> None:
    def claims() -> int:
        checked = typed_shard_map(lambda x: check(x, "[batch/dp] [model/tp]"), mesh=MESH, in_types=X, out_types=X)
        (region,) = regions(jax.make_jaxpr(lambda x: checked(x))(x))
        return len(region.claims)

    opened = [keeping_claims(), keeping_claims()]
    for each in opened:
        each.__enter__()
    opened.pop(first).__exit__(None, None, None)
    kept = claims()
    opened.pop().__exit__(None, None, None)
    assert kept == 1 > claims()


# Hints and meshes


def test_the_hints_of_a_function_are_read_with_its_aliases() -> None:
    @typed_shard_map(mesh=MESH, axes={"data": "dp", "none": None})
    def f(x: Float[Array, "[b/data] [m/none]"], tree: dict[str, W], scale: float = 1.0) -> Float[Array, "[b/data] m"]:
        return x

    found = signature(jax.jit(f))
    assert (found.name, found.verb, found.mesh) == ("f", "typed_shard_map", MESH)
    assert {name: [str(hint.text) for hint in hints] for name, hints in found.parameters.items()} == {
        "x": ['Float[Array, "[b/data] [m/none]"]'],
        "tree": ['Float[Array, "[model/tp] ff"]'],
        "scale": [],
    }
    assert found.parameters["x"][0].layout.dim_axes == (("dp",), ())
    assert [hint.layout.dim_axes for hint in found.result] == [(("dp",), ())]


@pytest.mark.parametrize("decorator", [typed, typed_jit(mesh=MESH)], ids=["typed", "typed_jit"])
def test_every_verb_has_a_signature(decorator: Any) -> None:
    def f(x: X) -> X:
        return x

    assert signature(decorator(f)).parameters["x"][0].layout.dim_axes == (("dp",), ("tp",))


def test_a_function_without_hints_has_none() -> None:
    with pytest.raises(StructureError, match="signature: expects a function made by typed_shard_map"):
        signature(partial)
    assert find_signature(partial) is None and find_signature(layer).name == "layer"  # type: ignore[union-attr]


def test_a_signature_has_dims_marks_and_the_axes_that_it_names() -> None:
    @typed(axes={"rows": ("pp", "dp")})
    def helper(x: Float[Array, "[b/rows] ... d"], w: W) -> Float[Array, "d +tp"]:
        return x

    read = signature(helper)
    (rows,) = read.parameters["x"]
    assert (rows.dims, rows.marks, read.result[0].marks) == (("[b/rows]", "...", "d"), (), ("+tp",))
    assert (read.axes, read.has_marks, signature(layer).has_marks) == (["pp", "dp", "tp"], True, False)


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@typed_jit
def product(x: X, w: dict[str, W], *, scale: float = 1.0) -> Float[Array, "[batch/dp] ff"]:
    return x @ w["up"] * scale


def test_a_call_is_bound_to_its_hints_on_a_mesh() -> None:
    bound = bind(product, (struct(64, 16), {"up": struct(16, 32)}), {"scale": 2.0}, mesh="dp=16,tp=4")
    assert [(leaf.name, leaf.spec, leaf.shard_shape) for leaf in bound.leaves[:2]] == [
        ("x", P("dp", "tp"), (4, 4)),
        ("w['up']", P("tp", None), (4, 32)),
    ]
    assert (bound.leaves[2].value, bound.leaves[2].hint, bound.leaves[2].shard_shape) == (2.0, None, ())
    assert bound.sizes == {"batch": 64, "model": 16, "ff": 32}
    (result,) = bound.results(struct(64, 32))
    assert (result.name, result.spec, result.shard_shape) == ("return", P("dp", None), (4, 32))
    assert bound.with_values([1, 2, 3]) == ((1, {"up": 2}), {"scale": 3})


def test_a_call_that_contradicts_its_hints_is_not_bound() -> None:
    with pytest.raises(ShapeError, match="product: argument 'x' has batch=6, which does not divide over 'dp'"):
        bind(product, (struct(6, 16), {"up": struct(16, 32)}), mesh={"dp": 4, "tp": 2})
    bound = bind(product, (struct(8, 16), {"up": struct(16, 32)}), mesh=MESH)
    with pytest.raises(ShapeError, match="product: return value has ff=8, but argument 'w\\['up'\\]' has ff=32"):
        bound.results(struct(8, 8))
    with pytest.raises(MeshAxisError, match="bind: no mesh is known"):
        bind(product, (struct(8, 16), {"up": struct(16, 32)}))


class Weights(NamedTuple):
    up: Float[Array, "[model/tp] ff"]
    sums: Float[Array, "ff +dp ~tp"]


def test_the_leaves_of_a_class_of_hints_are_its_arrays_on_a_mesh() -> None:
    up, sums = leaves_of(Weights, {"model": 8, "ff": 4}, mesh={"dp": 4, "tp": 2})
    assert (up.name, up.value.shape, up.shard_shape, up.spec) == ("up", (8, 4), (4, 4), P("tp", None))
    assert (sums.name, sums.hint.dims, sums.hint.marks) == ("sums", ("ff",), ("+dp", "~tp"))  # type: ignore[union-attr]


def test_a_mesh_is_read_as_users_write_it() -> None:
    written = read_mesh("dp=4,tp=2"), read_mesh({"dp": 4, "tp": 2})
    assert {mesh.shape_tuple for mesh in written if mesh is not None} == {(("dp", 4), ("tp", 2))}
    assert read_mesh(MESH) is MESH and read_mesh(None) is None
    explicit = AbstractMesh((1,), ("tp",), axis_types=(AxisType.Explicit,))
    assert read_mesh("dp=4,tp=2", explicit).explicit_axes == ("tp",)  # type: ignore[union-attr]
    with pytest.raises(MeshAxisError, match="mesh= is 'dp=x'"):
        read_mesh("dp=x")


def test_what_a_function_closes_over_is_listed() -> None:
    scale, rows = 0.5, [0, 1, 2, 3]

    def f(x: Array) -> Array:
        return x[rows[0]] * scale

    assert dict(closed_over(f)) == {"rows": rows, "scale": scale}
    assert closed_over_sizes(f, {"dp": 4, "tp": 2}) == {
        "dp": "rows, which may be the size of 'dp'",
        "tp": "rows, which may be the size of 'tp'",
    }


class Depth(Interpreter[int]):
    """The longest chain of products that a value depends on."""

    def __init__(self) -> None:
        self.rules = defaultdict(lambda: Depth.deeper, CALLS)

    def deeper(self, eqn: Any, depths: list[int]) -> list[int]:
        return [max(depths, default=0) + (eqn.primitive.name == "dot_general")] * len(eqn.outvars)

    def literal(self, atom: Any, eqn: Any, at: int) -> int:
        return 0

    def constants(self, closed_jaxpr: Any) -> list[int]:
        return [0 for _ in closed_jaxpr.jaxpr.constvars]

    def opaque(self, eqn: Any, values: list[int]) -> list[int]:
        return self.deeper(eqn, values)

    def carried(self, start: list[int], now: list[int], results: list[int], times: int) -> list[int]:
        return now


def test_a_program_is_interpreted_in_a_domain_of_your_own() -> None:
    jaxpr = jax.make_jaxpr(lambda x, w: (jax.jit(lambda x: x @ w @ w.T)(x), x + 1))(x, w)
    assert Depth().interpret(jaxpr, [0, 0]) == [2, 0]
    (called, _) = jaxpr.jaxpr.eqns
    assert list(call(Depth(), called, [1] * len(called.invars))) == [3]


@pytest.mark.parametrize("f", [layer, plain(total, P("dp"))], ids=["typed", "plain"])
def test_a_program_is_traced_on_another_mesh(f: Any) -> None:
    with on_mesh(AbstractMesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)):
        (region,) = regions(jax.make_jaxpr(lambda x, w: f(x, w))(x, w))
    assert region.axes == {"dp": 2, "tp": 4}
    assert region.jaxpr.invars[0].aval.shape == (4, 4)
    (region,) = regions(jax.make_jaxpr(lambda x, w: f(x, w))(x, w))
    assert region.axes == {"dp": 4, "tp": 2}


def twice(x: Float[Array, "[b/dp] m"]) -> Float[Array, "m"]:
    return jax.lax.psum(jnp.mean(x, 0), "dp")


@pytest.mark.parametrize("is_typed", [True, False])
def test_what_grows_with_an_axis_is_known_on_another_mesh(is_typed: bool) -> None:
    plain = jax.shard_map(twice, mesh=MESH, in_specs=P("dp"), out_specs=P())
    f, log = typed_shard_map(twice, mesh=MESH) if is_typed else plain, Log()
    warned = pytest.warns(SuspectWarning, match="too large on dp=2") if is_typed else nullcontext()
    with on_mesh(AbstractMesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)), observing(log), warned:
        jax.eval_shape(lambda x: f(x), x)
    suspects = [finding for _, finding in log.suspects] if is_typed else log.regions[0].findings
    assert ["2 times too large on dp=2" in finding.message for finding in suspects] == [True]
