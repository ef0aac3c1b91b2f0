"""What is suspected of regions: each kind, its line, what silences it, and when a body is traced twice."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, SuspectWarning, VaryingError, audit, psum, reduce, typed_shard_map
from typedshmap.inference.kinds.region_kinds import Kinds

ROWS, WEIGHT, ROW = Float[Array, "[b/dp] k"], Float[Array, "k"], Float[Array, "[b/dp]"]
ARGUMENTS = (np.ones((16, 4), np.float32), np.ones(4, np.float32))


def psum_of_means(x: ROWS, w: WEIGHT) -> Float[Array, ""]:
    return lax.psum((x @ w).mean(), "dp")


def gradient_of_own_mean(x: ROWS, w: WEIGHT) -> WEIGHT:
    return jax.grad(lambda w: ((x @ w) ** 2).mean())(w)


def tanh_of_a_sum(x: ROWS, w: WEIGHT) -> WEIGHT:
    return lax.psum(jnp.tanh(x.sum(0)), "dp")


def cumulated(x: ROWS, w: WEIGHT) -> ROWS:
    return jnp.cumsum(x, 0)


def copied(x: ROWS, w: WEIGHT) -> ROW:
    return w * 2


def noisy(x: ROWS, w: WEIGHT) -> ROWS:
    return x + jax.random.normal(jax.random.key(0), x.shape)


KINDS: dict[str, tuple[Callable[..., Any], str]] = {
    "double-sum": (psum_of_means, "a result is 4 times too large on dp=4: it grows with 'dp'"),
    "summed-gradient": (gradient_of_own_mean, "a gradient is 4 times too large on dp=4: it grows with 'dp'"),
    "lost-sum": (
        tanh_of_a_sum,
        "tanh is not linear, and its operand is a partial sum over 'dp', due since test_suspects.py:",
    ),
    "own-part": (cumulated, "cumsum works along a dim that is sharded over 'dp': each shard has only its own rows"),
    "copies": (copied, "the same value on every shard of 'dp' is returned as the parts of a dim"),
    "same-draw": (noisy, "add uses the same random numbers on every shard of 'dp' as the parts of a sharded dim"),
}


def warned_of(body: Callable[..., Any], mesh: Mesh | AbstractMesh) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.eval_shape(typed_shard_map(body, mesh=mesh), *ARGUMENTS)
    return [each for each in caught if each.category is SuspectWarning]


def audited(body: Callable[..., Any], mesh: Mesh) -> Any:
    """The report of a plain region."""
    with audit() as report:
        mapped = jax.shard_map(body, mesh=mesh, in_specs=(P("dp"), P()), out_specs=P())
        jax.eval_shape(mapped, *ARGUMENTS)
    return report


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_found_at_its_line(kind: str, mesh: Mesh) -> None:
    body, said = KINDS[kind]
    (warning,) = warned_of(body, mesh)
    first, text = str(warning.message).splitlines()[0], str(warning.message)
    assert first.startswith(f"{body.__name__}: {said}")
    assert f"if this is intended, add the comment # typedshmap: ignore[{kind}]" in text
    assert (warning.filename, warning.lineno) == (__file__, body.__code__.co_firstlineno + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_lists_it_under_its_kind(kind: str, mesh: Mesh) -> None:
    with warnings.catch_warnings(), audit() as report:
        warnings.simplefilter("ignore", SuspectWarning)
        jax.eval_shape(typed_shard_map(KINDS[kind][0], mesh=mesh), *ARGUMENTS)
    assert [(found.severity, found.kind) for found in report.findings] == [("suspect", kind)]


def test_a_factor_over_two_axes_is_that_of_both(mesh: Mesh) -> None:
    def loss(x: Float[Array, "[b/dp] [k/tp]"], w: WEIGHT) -> Float[Array, ""]:
        return lax.psum(x.mean(), ("dp", "tp"))

    (warning,) = warned_of(loss, mesh)
    line = f"test_suspects.py:{loss.__code__.co_firstlineno + 1}"
    assert (
        str(warning.message)
        == f"""\
loss: a result is 8 times too large on dp=4, tp=2: it grows with 'dp', 'tp'

Mesh: dp=4, tp=2
At: {line} (loss)
Hint: pmean over 'dp', 'tp' in the place of psum over 'dp', 'tp' at {line}; if this is intended, add the comment # \
typedshmap: ignore[double-sum]"""
    )


@pytest.mark.parametrize("rows", [4, 8])
def test_an_audit_finds_a_gradient_of_one_row_on_each_shard(rows: int, mesh: Mesh) -> None:
    def step(w, x, y):
        gradient = jax.grad(lambda w: jnp.mean((x * w - y) ** 2))(w)
        return w - 0.2 * lax.pmean(gradient, "dp")

    x, specs = np.ones(rows, np.float32), (P(), P("dp"), P("dp"))
    with audit() as report:
        jax.eval_shape(jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P())), 0.0, x, x)
    assert [found.kind for found in report.findings] == ["summed-gradient"]


def test_a_pattern_that_takes_a_sum_does_not_hide_that_it_was_lost(mesh: Mesh) -> None:
    def pooled(x: ROWS, w: WEIGHT) -> WEIGHT:
        return psum(jax.nn.relu(x.sum(0)), "k +dp -> k")

    (warning,) = warned_of(pooled, mesh)
    assert " is not linear, and its operand is a partial sum over 'dp'" in str(warning.message)


def silenced_on_its_line(x: ROWS, w: WEIGHT) -> Float[Array, ""]:
    return lax.psum((x @ w).mean(), "dp")  # typedshmap: ignore[double-sum]


def silenced_above(x: ROWS, w: WEIGHT) -> ROWS:
    # typedshmap: ignore[own-part, lost-sum]
    return jnp.sort(x, 0)


def silenced_altogether(x: ROWS, w: WEIGHT) -> ROWS:
    return jnp.flip(x, 0)  # typedshmap: ignore


def silenced_as_another(x: ROWS, w: WEIGHT) -> ROWS:
    return jnp.flip(x, 0)  # typedshmap: ignore[lost-sum]


@pytest.mark.parametrize(
    ("body", "count"),
    [(silenced_on_its_line, 0), (silenced_above, 0), (silenced_altogether, 0), (silenced_as_another, 1)],
)
def test_a_comment_of_its_kind_silences_it(body: Callable[..., Any], count: int, mesh: Mesh) -> None:
    assert len(warned_of(body, mesh)) == count


@pytest.mark.parametrize("number", [0.5, 0.25, 4.0, 0.3, 7.0])
@pytest.mark.parametrize("is_wrong", [True, False])
def test_no_number_beside_it_silences_or_raises_it(number: float, is_wrong: bool, mesh: Mesh) -> None:
    take = lax.psum if is_wrong else lax.pmean

    def scaled(x: ROWS, w: WEIGHT) -> Float[Array, ""]:
        return take(number * ((x @ w) ** 2).mean(), "dp")

    assert bool(warned_of(scaled, mesh)) == is_wrong


def test_the_constants_of_a_called_function_are_read(mesh: Mesh) -> None:
    def mean(x: ROWS, w: WEIGHT) -> WEIGHT:
        share = jax.jit(lambda y: y * np.full(4, 1 / lax.axis_size("dp"), np.float32))
        return lax.psum(share(x.mean(0)), "dp")

    assert warned_of(mean, mesh) == []


DECAY = 0.875


# What divides by a number that is no count of JAX's own is traced once more; not where nothing would be said of it.
@pytest.mark.parametrize(
    ("body", "is_again"),
    [
        (lambda x, w: lax.pmean((x @ w).mean(), "dp"), False),
        (lambda x, w: lax.psum((x @ w).sum(), "dp") / 0.3, False),
        (lambda x, w: DECAY * lax.psum(x.sum(), "dp") + (1 - DECAY) * lax.psum((x @ w).sum(), "dp"), False),
        (lambda x, w: lax.psum((x @ w).sum(), "dp") / (4 * x.shape[0]), True),
        (lambda x, w: lax.psum((x @ w).sum(), "dp") / (x.shape[0] * lax.axis_size("dp")), True),
    ],
)
def test_a_body_is_traced_again_where_a_verdict_depends_on_a_number(
    body: Any, is_again: bool, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typedshmap.inference.kinds.region_cache._known", {})  # some have the same equations
    seen: list[Any] = []

    def noting(x: ROWS, w: WEIGHT) -> Float[Array, ""]:
        seen.append(x.shape)
        return body(x, w)

    warned_of(noting, mesh)
    assert seen[0] == (4, 4) and (len(seen) > 1) == is_again


def test_one_line_may_count_rows_of_a_shard_and_as_many_others() -> None:
    mesh = Mesh(np.array(jax.devices()[:6]).reshape(2, 3), ("tp", "dp"))

    def means(
        x: Float[Array, "d [a/tp] [c/dp] b"], y: Float[Array, "[r/dp]"]
    ) -> tuple[Float[Array, "[c/dp]"], Float[Array, ""]]:
        patterns = "d [a/tp] [c/dp] b -> [c/dp]", "[r/dp] -> ~dp"
        first, second = (reduce(each, pattern, "mean") for each, pattern in zip((x, y), patterns, strict=True))
        return first, psum(second, "~dp -> ")

    arguments = np.ones((12, 2, 6, 1), np.float32), np.ones(36, np.float32)
    jax.eval_shape(typed_shard_map(means, mesh=mesh), *arguments)


def test_a_mean_may_count_the_only_row_of_a_shard(mesh: Mesh) -> None:
    def mean(x: Float[Array, "_ [a/dp]"]) -> Float[Array, ""]:
        return lax.pmean(jnp.mean(x.reshape(3, 3, 1)), "dp")  # the body fits one size of 'dp' only

    jax.eval_shape(typed_shard_map(mean, mesh=mesh), np.ones((9, mesh.shape["dp"]), np.float32))


# Warnings are errors: none is given of these.
# By the sizes of a mesh, the argument's shape and its dims, the pattern of a mean, and how its result is sharded.
MEANS = [
    ({"sp": 3, "tp": 2}, (6,), "[_/tp,sp]", "[6/tp,sp] -> ", ""),
    ({"dp": 4}, (24,), "[_/dp]", "[(12 b)/dp] -> (b)", "_"),
    ({"dp": 4, "sp": 1}, (4, 4, 3), "[_/dp] [_/sp] _", "[(4)/dp] [(a)/sp] b -> b [a/dp,sp]", "_ [_/dp,sp]"),
    ({"sp": 4, "dp": 1, "tp": 2}, (8, 2, 1), "[_/tp,sp] [_/dp] _", "[8/tp,sp] [a/dp] 1 -> [a/dp,tp]", "[_/dp,tp]"),
    ({"tp": 2, "dp": 1, "sp": 2}, (4,), "[_/tp,dp]", "[4/tp,dp] -> [1/dp]", "[_/dp]"),
]


@pytest.mark.parametrize(("sizes", "shape", "dims", "pattern", "result"), MEANS)
def test_a_mean_by_a_pattern_is_right(
    sizes: dict[str, int], shape: tuple[int, ...], dims: str, pattern: str, result: str
) -> None:
    def mean(x: Any) -> Any:
        return reduce(x, pattern, "mean")

    types: Any = {"in_types": (Float[Array, dims],), "out_types": Float[Array, result]}
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
    for check_vma in (False, True):
        jax.eval_shape(typed_shard_map(mean, mesh=mesh, check_vma=check_vma, **types), np.ones(shape, np.float32))


def test_an_audit_always_asks_what_numbers_do(mesh: Mesh) -> None:
    def closed_over(x: Any, w: Any) -> Any:
        return lax.psum((x @ w).sum(), "dp") * (1 / 8)

    report = audited(closed_over, mesh)
    assert report.findings == [] and [region.is_complete for region in report.regions] == [True]


needs_second_trace = pytest.mark.skipif(
    jax.__version_info__ < (0, 10, 2), reason="below jax 0.10.2 a plain region is traced only once"
)


class Step:
    """A step of an object that holds its mesh."""

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh

    def wrong(self, x: Any, w: Any) -> Any:
        return lax.psum((x @ w).sum(), "dp") / x.shape[0]

    def counted(self, x: Any, w: Any) -> Any:
        return lax.psum((x @ w).sum(), "dp") * (1 / self.shards())

    def shards(self) -> int:
        return self.mesh.shape["dp"]


HOLDERS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "an attribute": lambda mesh: Step(mesh).wrong,
    "a default": lambda mesh: lambda x, w, mesh=mesh: Step(mesh).wrong(x, w),
    "a partial": lambda mesh: functools.partial(lambda mesh, x, w: Step(mesh).wrong(x, w), mesh),
}


@needs_second_trace
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_mesh_that_a_body_holds_hides_nothing_unless_its_sizes_are_read(holder: str, mesh: Mesh) -> None:
    assert [finding.kind for finding in audited(HOLDERS[holder](mesh), mesh).findings] == ["double-sum"]


@needs_second_trace
def test_an_audit_says_where_a_size_that_is_closed_over_leaves_degrees_open(mesh: Mesh) -> None:
    report = audited(Step(mesh).counted, mesh)
    assert report.findings == []
    (region,) = report.regions
    why = "it closes over self.mesh, whose sizes stay what they are"
    assert region.unread == tuple(f"whether results grow with '{axis}', as {why}" for axis in ("dp", "tp"))


SCALE = 4.0


def scaled(x: Any, w: Any) -> Any:
    return lax.psum((x @ w).mean(), "dp") * SCALE


def scaled_with_size(x: Any, w: Any, shards: int = 4) -> Any:
    return scaled(x, w)


@needs_second_trace
@pytest.mark.parametrize("bodies", [(scaled, scaled_with_size), (scaled_with_size, scaled)])
def test_what_one_body_closes_over_decides_nothing_about_another(bodies: Any, mesh: Mesh) -> None:
    found = {body.__name__: [finding.kind for finding in audited(body, mesh).findings] for body in bodies}
    assert found == {"scaled": ["double-sum"], "scaled_with_size": []}


def test_no_cure_is_named_that_is_right_for_some_only_of_what_its_line_computes(mesh: Mesh) -> None:
    sharded, same = Float[Array, "m [f/tp]"], Float[Array, "m"]

    def clipped(a: sharded, b: same) -> same:
        return b / jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in (a, b)))

    with pytest.raises(VaryingError) as raised:
        jax.eval_shape(typed_shard_map(clipped, mesh=mesh), np.ones((4, 6), np.float32), np.ones(4, np.float32))
    assert str(raised.value).endswith("its operand is a partial sum over 'tp'")  # no psum of each leaf

    def update(params: tuple[sharded, same], x: Float[Array, "[b/dp] m"]) -> tuple[sharded, same]:
        def loss(params: Any) -> Any:
            w, b = params
            return ((lax.psum(jnp.tanh(x @ w).sum(1), "tp") + x @ b) ** 2).sum() / lax.axis_size("tp")

        gradients = jax.tree.map(lambda g: lax.psum(g, "dp"), jax.grad(loss)(params))
        return jax.tree.map(lambda p, g: p - g * 0.1, params, gradients)

    f = typed_shard_map(update, mesh=mesh, check_vma=False)
    with pytest.warns(SuspectWarning) as warned:
        jax.eval_shape(f, (np.ones((4, 6), np.float32), np.ones(4, np.float32)), np.ones((16, 4), np.float32))
    assert ["of g * 0.1" in str(warning.message) for warning in warned] == [False]


def test_a_cure_says_over_which_other_axes_nothing_is_known(mesh: Mesh) -> None:
    def mean_of_differences(u: Float[Array, "[b/dp] [n/tp]"]) -> Float[Array, ""]:
        beside = lax.ppermute(u, "tp", [(0, 1), (1, 0)])
        return lax.psum(((u - beside) ** 2).mean(), ("dp", "tp"))

    f = typed_shard_map(mean_of_differences, mesh=mesh, check_vma=False)
    with pytest.warns(SuspectWarning, match=r"pmean over 'dp' in the place of psum over 'dp' .*\(unknown over 'tp'\)"):
        jax.eval_shape(f, np.ones((8, 8), np.float32))


def test_rows_that_are_counted_are_no_number_that_is_written_beside_them(mesh: Mesh) -> None:
    def squares(x: Float[Array, "[b/dp] k"], w: WEIGHT) -> Float[Array, ""]:
        return lax.psum(((x @ w) ** 2).sum(), "dp") / x.shape[0]

    with pytest.warns(SuspectWarning, match="4 times too large on dp=4"):
        jax.eval_shape(typed_shard_map(squares, mesh=mesh), np.ones((8, 4), np.float32), ARGUMENTS[1])


def test_a_region_that_cannot_be_traced_at_another_size_is_read_without_degrees(mesh: Mesh) -> None:
    def fixed(x: Any, w: Any) -> Any:
        assert x.shape == (4, 4)
        return lax.psum((x @ w).sum(), "dp") / (4 * x.shape[0])

    report = audited(fixed, mesh)
    assert report.findings == []
    (region,) = report.regions
    assert region.unread == ("whether results grow with 'dp', as it cannot be traced on an axis of another size",)


def test_what_was_read_is_not_read_again(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    read = Kinds.read

    def noted(self: Kinds, axis: str, *args: Any, **options: Any) -> Any:
        seen.append(axis)
        return read(self, axis, *args, **options)

    monkeypatch.setattr(Kinds, "read", noted)

    def made(number: float) -> Callable[..., Any]:
        def mean(x: ROWS, w: WEIGHT) -> Float[Array, ""]:
            return lax.pmean(number * jnp.sin(x @ w).mean() * 0.7321, "dp")

        return mean

    warned_of(made(0.3), mesh)
    assert seen == ["dp", "tp"]
    warned_of(made(0.3), mesh)
    assert seen == ["dp", "tp"]
    warned_of(made(0.31), mesh)
    assert seen == ["dp", "tp"] * 2


def test_a_mistake_in_the_reading_ends_no_program(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("a mistake")

    monkeypatch.setattr(Kinds, "over", fail)
    with pytest.raises(KeyError, match="a mistake"):
        warned_of(psum_of_means, mesh)
    monkeypatch.setattr("typedshmap.inference.interpreted_region.raises_in_readings", False)
    assert warned_of(psum_of_means, mesh) == []


def test_no_devices_are_needed() -> None:
    mesh = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    assert len(warned_of(psum_of_means, mesh)) == 1
