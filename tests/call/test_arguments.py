"""Arguments are bound as Python binds them, and mapped or static as their hints say."""

import collections
import enum
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
)

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from expecting import fails, numbers, same, traced
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from numpy.typing import NDArray

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    Bool,
    Complex,
    DtypeError,
    Float,
    Float32,
    Float64,
    Int,
    Int32,
    Num,
    PRNGKeyArray,
    PyTree,
    ShapeError,
    StructureError,
    TypedShmapError,
    UInt8,
    VaryingError,
    sizes,
    typed,
    typed_jit,
    typed_shard_map,
)

X = Float[Array, "[b/dp] d"]
x, w, d = numbers(8, 4), numbers(4, 6), numbers(4)
D, HALF = jnp.asarray(d), jnp.float32(0.5)


# How arguments are bound


def matmul(x: X, w: Float[Array, "d [f/tp]"]) -> Float[Array, "[b/dp] [f/tp]"]:
    return x @ w


def scaled(x: X, scale: Float[Array, " d"] = D, *, shift: Float[Array, ""] = HALF) -> X:
    return x * scale + shift


def summed(*xs: X) -> X:
    return sum(xs)


def chosen(x: X, **named: X) -> X:
    return x - named["minus"] if named else x


def same_name(x: X, /, **named: X) -> X:
    return x + named["x"]


def maybe_scaled(x: X, scale: Optional[Float[Array, " d"]] = None) -> X:
    return x if scale is None else x * scale


def every_kind(x: X, /, y: X, power: int = 1, *zs: X, scale: Float[Array, " d"], **named: X) -> X:
    return (x - y) ** power + sum(zs) * scale + sum(named.values())


BOUND = [
    pytest.param(matmul, (x, w), {}, x @ w, id="positional"),
    pytest.param(matmul, (x,), {"w": w}, x @ w, id="positional and keyword"),
    pytest.param(matmul, (), {"w": w, "x": x}, x @ w, id="keywords in another order"),
    pytest.param(scaled, (x,), {}, x * d + 0.5, id="defaults"),
    pytest.param(scaled, (x, 2 * d), {}, x * 2 * d + 0.5, id="a default replaced by position"),
    pytest.param(scaled, (x,), {"scale": 2 * d}, x * 2 * d + 0.5, id="a default replaced by keyword"),
    pytest.param(scaled, (x,), {"shift": np.float32(3)}, x * d + 3, id="keyword-only"),
    pytest.param(summed, (x,), {}, x, id="one of several"),
    pytest.param(summed, (x, 2 * x, 3 * x), {}, 6 * x, id="several"),
    pytest.param(chosen, (x,), {}, x, id="no named ones"),
    pytest.param(chosen, (x,), {"minus": 3 * x}, -2 * x, id="a named one"),
    pytest.param(maybe_scaled, (x,), {}, x, id="an optional one, absent"),
    pytest.param(maybe_scaled, (x, None), {}, x, id="an optional one, None"),
    pytest.param(maybe_scaled, (x, d), {}, x * d, id="an optional one, given"),
    pytest.param(same_name, (x,), {"x": 2 * x}, 3 * x, id="named as a positional-only one"),
    pytest.param(matmul, (x[:0], w), {}, x[:0] @ w, id="without rows"),
    pytest.param(every_kind, (x, -x), {"scale": d}, 2 * x, id="every kind, the least"),
    pytest.param(
        every_kind, (x, -x, 2, x, x), {"scale": d, "a": x, "b": x}, 4 * x**2 + 2 * x * d + 2 * x, id="every kind"
    ),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "expected"), BOUND)
def test_arguments_are_bound_as_python_binds_them(
    function: Any, args: Any, kwargs: Any, expected: Any, mesh: Mesh
) -> None:
    same(typed_shard_map(function, mesh=mesh)(*args, **kwargs), expected)
    args, kwargs = jax.tree.map(lambda a: a if isinstance(a, int) else jnp.asarray(a), (args, kwargs))
    same(typed(function)(*args, **kwargs), expected)


class Options(TypedDict):
    scale: Float[Array, " d"]
    power: int


def unpacked_tuple(*args: *tuple[X, Float[Array, " d"]]) -> None: ...


def unpacked_dict(x: X, **options: Unpack[Options]) -> None: ...


@pytest.mark.parametrize(("function", "name"), [(unpacked_tuple, "args"), (unpacked_dict, "options")])
def test_a_hint_that_unpacks_another_is_refused_at_decoration(function: Any, name: str) -> None:
    line = rf"^{function.__name__}: parameter '{name}': .*: unpacking in a hint is not supported\n"
    with pytest.raises(AnnotationSyntaxError, match=line):
        typed_shard_map(function)


UNBOUND = [
    pytest.param(matmul, (x,), {}, "matmul: argument 'w' is missing", id="missing"),
    pytest.param(matmul, (), {}, "matmul: arguments 'x', 'w' are missing", id="all missing"),
    pytest.param(matmul, (x, w, w), {}, "matmul: got 3 positional arguments, but takes 2", id="too many"),
    pytest.param(matmul, (x,), {"v": w}, "matmul: got argument 'v', which it does not have", id="unknown keyword"),
    pytest.param(matmul, (x, w), {"x": x}, "matmul: got argument 'x' twice", id="twice"),
    pytest.param(scaled, (x, d, d), {}, "scaled: got 3 positional arguments, but takes 2", id="keyword-only by place"),
    pytest.param(every_kind, (x, x), {}, "every_kind: argument 'scale' is missing", id="keyword-only missing"),
    pytest.param(every_kind, (x,), {"scale": d}, "every_kind: argument 'y' is missing", id="positional missing"),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "line"), UNBOUND)
@pytest.mark.parametrize("verb", [typed_shard_map, typed])
def test_arguments_that_do_not_fit_the_signature_are_refused(
    verb: Any, function: Any, args: Any, kwargs: Any, line: str
) -> None:
    with fails(StructureError, line):
        verb(function)(*args, **kwargs)


def test_a_positional_only_argument_by_keyword_is_refused(mesh: Mesh) -> None:
    with pytest.raises(StructureError, match=r"^<lambda>: .*\n\n    <lambda>\(x, /\)$"):
        typed_shard_map(lambda x, /: x, mesh=mesh, in_types=X, out_types=X)(x=x)


MISFITS = [
    pytest.param(scaled, (x, w), {}, "scaled: argument 'scale' has 2 dims, but its hint has 1", id="position"),
    pytest.param(scaled, (x,), {"shift": d}, "scaled: argument 'shift' has 1 dim, but its hint has 0", id="name"),
    pytest.param(scaled, (x[:, :3],), {}, "scaled: argument 'scale' has d=4, but argument 'x' has d=3", id="a default"),
    pytest.param(
        summed, (x, x[:4]), {}, "summed: argument 'xs[1]' has b=4, but argument 'xs[0]' has b=8", id="one of several"
    ),
    pytest.param(
        chosen, (x,), {"minus": x[:4]}, "chosen: argument 'minus' has b=4, but argument 'x' has b=8", id="a named one"
    ),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "line"), MISFITS)
def test_an_argument_that_does_not_fit_is_named_as_it_was_given(
    function: Any, args: Any, kwargs: Any, line: str, mesh: Mesh
) -> None:
    with fails(ShapeError, line):
        typed_shard_map(function, mesh=mesh)(*args, **kwargs)


def windows(x: Float[Array, "[b/dp] n+1"], y: Float[Array, "[b/dp] n"]) -> Float[Array, "[b/dp] 2*n"]:
    return jnp.concatenate([x[:, 1:], y], axis=1)


def test_an_expression_may_stand_before_the_names_in_it(mesh: Mesh) -> None:
    same(typed_shard_map(windows, mesh=mesh)(x, x[:, :3]), np.concatenate([x[:, 1:], x[:, :3]], axis=1))
    with fails(ShapeError, "windows: argument 'x' has size 4 in dim 1, 'n+1', but its hint says 3"):
        typed_shard_map(windows, mesh=mesh)(x, x[:, :2])


def test_an_expression_reads_the_arguments_of_the_call(mesh: Mesh) -> None:
    def repeat(x: X, times: int) -> Float[Array, "[b/dp] {times}*d"]:
        return jnp.tile(x, (1, abs(times)))

    mapped = typed_shard_map(repeat, mesh=mesh)
    same(mapped(x, 3), np.tile(x, (1, 3)))
    with fails(ShapeError, "repeat: return value has size 4 in dim 1, '{times}*d', but its hint says -4"):
        mapped(x, -1)


# Static parameters

A = TypeVar("A")


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


@dataclass(frozen=True)
class Config:
    width: int = 3


class Bag:
    """A class of the user's that no hint knows."""


class Tagged(Sequence[str], Generic[A]):
    """A container whose argument is not its items' type."""

    def __getitem__(self, index: Any) -> Any:
        return ("tag",)[index]

    def __len__(self) -> int:
        return 1


# So long that one that is looked at by chance is hardly ever the last.
MANY = (1,) * 1000
STATIC = [
    (tuple[int, ...], MANY),
    (dict[str, tuple[int, ...]], {"a": (1, 2)}),
    (Mapping[str, int], {"a": 1}),
    (collections.Counter[str], collections.Counter("ab")),
    (set[int] | None, {1, 2}),
    (Sequence[str], "ab"),
    (list[Callable[..., Any]], [int, max]),
    (type[Mode], Mode),
    (Tagged[int], Tagged()),
    (int, 3),
    (int, True),
    (float, 0.5),
    (float, 3),
    (str, "relu"),
    (type(None), None),
    (Callable[[Any], Any], jnp.tanh),
    (Callable, abs),
    (Config, Config()),
    (Mode, Mode.FAST),
    (Literal["fast", "slow"], "fast"),
    (Optional[int], None),
    (Bag, Bag()),
    (type, Bag),
]


def names(values: list[tuple[Any, Any]]) -> list[str]:
    return [f"{getattr(hint, '__name__', hint)} {value!r:.40}".split(" at ")[0] for hint, value in values]


def with_static(hint: Any, seen: list[Any]) -> Any:
    def apply(x: X, option: hint) -> X:
        seen.append(option)
        return x

    return apply


VERBS = [
    pytest.param(lambda mesh: typed_shard_map(mesh=mesh), id="typed_shard_map"),
    pytest.param(lambda mesh: typed, id="typed"),
]


@pytest.mark.parametrize(("hint", "value"), STATIC, ids=names(STATIC))
@pytest.mark.parametrize("verb", VERBS)
def test_a_static_value_reaches_the_body_as_it_is(verb: Any, hint: Any, value: Any, mesh: Mesh) -> None:
    seen: list[Any] = []
    apply = verb(mesh)(with_static(hint, seen))
    traced(lambda x: apply(x, value), x)
    assert seen[0] is value


def endless() -> list[Any]:
    """A list that holds itself."""
    found: list[Any] = []
    found.append(found)
    return found


WRONG_STATIC = [
    (tuple[int, ...], (*MANY, "a"), "a tuple with 'a' (str) in it", "tuple[int, ...]"),
    (list[list[int]], [[*MANY, "a"]], "a list with 'a' (str) in it", "list[list[int]]"),
    (dict[int, int], {**dict.fromkeys(range(1000), 1), 1000: "a"}, "a dict with 'a' (str) in it", "dict[int, int]"),
    (Mapping[int, int], {**dict.fromkeys(range(1000), 1), "a": 1}, "a dict with 'a' (str) in it",
     "collections.abc.Mapping[int, int]"),
    (set[int] | None, {*range(1000), "a"}, "a set with 'a' (str) in it", "set[int] | None"),
    (list[Callable[..., Any]], [max] * 1000 + [1], "a list with 1 (int) in it",
     "list[collections.abc.Callable[..., Any]]"),
    (int, 0.5, "0.5 (float)", "int"),
    (int, None, "None", "int"),
    (int, np.int64(3), "a NumPy int64", "int"),
    (int, [0] * 100, "a list", "int"),
    (int, endless(), "[[...]] (list)", "int"),
    (float, "0.5", "'0.5' (str)", "float"),
    (bool, 1, "1 (int)", "bool"),
    (bool, np.bool_(True), "a NumPy bool", "bool"),
    (type(None), 3, "3 (int)", "None"),
    (Callable[[Any], Any], 3, "3 (int)", "collections.abc.Callable[[Any], Any]"),
    (Config, 3, "3 (int)", "Config"),
    (Literal["fast", "slow"], "quick", "'quick' (str)", "Literal['fast', 'slow']"),
    (tuple[int, str], (3,), "(3,) (tuple)", "tuple[int, str]"),
    (list[tuple[int, ...]], [(1,), (2, None)], "a list with None in it", "list[tuple[int, ...]]"),
    (dict[str, int], [3], "[3] (list)", "dict[str, int]"),
    (dict[str, int] | None, {"a": "b"}, "a dict with 'b' (str) in it", "dict[str, int] | None"),
    (int | str, 0.5, "0.5 (float)", "int | str"),
    (Bag, Config(), "a Config", "Bag"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("hint", "value", "got", "said"), WRONG_STATIC, ids=names([(hint, value) for hint, value, *_ in WRONG_STATIC])
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_static_value_of_another_type_is_refused(
    verb: Any, hint: Any, value: Any, got: str, said: str, mesh: Mesh
) -> None:
    with fails(StructureError, f"apply: argument 'option' is {got}, but its hint says {said}"):
        verb(mesh)(with_static(hint, []))(jnp.asarray(x), value)


HOLDS_NONE = "apply: argument 'option' is an array, but its hint {} holds none, so the argument is static"


@pytest.mark.parametrize("array", [np.ones(3), jnp.ones(3), [np.ones(3)], {"a": (jnp.ones(3),)}], ids=repr)
@pytest.mark.parametrize("hint", [int, str, list[int], Config, Mode, Callable, int | str], ids=str)
def test_an_array_given_to_a_static_parameter_is_refused(hint: Any, array: Any, mesh: Mesh) -> None:
    name = hint.__name__ if isinstance(hint, type) and hint != list[int] else str(hint)
    with fails(StructureError, HOLDS_NONE.format(name)):
        typed_shard_map(with_static(hint, []), mesh=mesh)(x, array)


@pytest.mark.parametrize(
    ("hint", "value", "name"),
    [
        (int, 0.5, "int"),
        (bool, True, "bool"),
        (float, 1j, "float"),
        (int, True, "int"),
        (str | int, np.ones(3, int), "str | int"),
        (tuple[str, ...], (3,), "tuple[str, ...]"),
    ],
    ids=str,
)
def test_another_traced_value_given_to_a_static_parameter_is_refused(
    hint: Any, value: Any, name: str, mesh: Mesh
) -> None:
    with fails(StructureError, HOLDS_NONE.format(name)):
        jax.jit(typed_shard_map(with_static(hint, []), mesh=mesh))(x, value)


# Numbers, which under jit are arrays


NUMBERS = [
    (float, 0.5),
    (float, 3),
    (int, 3),
    (float | None, 0.5),
    (int | None, 3),
    (int | float, 0.5),
    (Literal["none"] | float, 0.5),
]


@pytest.mark.parametrize(("hint", "value"), NUMBERS, ids=str)
def test_a_number_that_is_traced_enters_unsharded(hint: Any, value: Any, mesh: Mesh) -> None:
    seen: list[Any] = []
    apply = typed_shard_map(with_static(hint, seen), mesh=mesh)
    traced(apply, x, value)
    traced(lambda x: apply(x, jnp.asarray(value)), x)
    traced(lambda x: apply(x, np.asarray(value)), x)
    assert [jax.typeof(number).str_short()[-2:] for number in seen] == ["[]"] * 3  # not varying


class Rates(NamedTuple):
    rate: float
    decay: float = 0.0
    warmup: int = 3
    name: str = "adam"


NUMBERS_WITHIN = [
    (tuple[float, int], lambda rate: (rate, 3), lambda given: given[0]),
    (dict[str, float], lambda rate: {"rate": rate, "decay": 0.0}, lambda given: given["rate"]),
    (list[float] | None, lambda rate: [rate], lambda given: given[0]),
    (Rates, Rates, lambda given: given.rate),
    (tuple[Rates, ...], lambda rate: (Rates(rate), Rates(0.0, rate)), lambda given: given[0].rate + given[1].decay),
]


@pytest.mark.parametrize(("hint", "wrap", "unwrap"), NUMBERS_WITHIN, ids=["tuple", "dict", "list", "named", "nested"])
def test_numbers_in_a_container_may_be_traced(hint: Any, wrap: Any, unwrap: Any, mesh: Mesh) -> None:
    apply = typed_shard_map(lambda x, rates: x * unwrap(rates), mesh=mesh, in_types=(X, hint), out_types=X)
    same(apply(x, wrap(0.5)), x * unwrap(wrap(0.5)))
    same(jax.jit(lambda x, rate: apply(x, wrap(rate)))(x, 0.5), x * unwrap(wrap(0.5)))


def test_a_traced_number_in_the_wrong_place_of_a_container_is_named(mesh: Mesh) -> None:
    apply = typed_shard_map(with_static(Rates, []), mesh=mesh)
    with fails(StructureError, HOLDS_NONE.format("int").replace("option", "option.warmup")):
        jax.jit(lambda x, rate: apply(x, Rates(rate, warmup=rate)))(x, 0.5)


def test_the_numbers_of_a_result_may_be_traced(mesh: Mesh) -> None:
    def total(x: X) -> float:
        return jax.lax.psum(x.sum(), "dp")

    def metrics(x: X) -> tuple[dict[str, float], int]:
        return {"total": total(x), "rows": x.shape[0]}, 3

    mapped = typed_shard_map(total, mesh=mesh)
    same([mapped(x), jax.jit(mapped)(x), jax.grad(mapped)(x)], [x.sum(), x.sum(), np.ones_like(x)])
    same(typed_shard_map(metrics, mesh=mesh)(x), ({"total": x.sum(), "rows": 2}, 3))
    with fails(VaryingError, "<lambda>: return['total'] varies over 'dp', which its hint does not mention"):
        traced(typed_shard_map(lambda x: {"total": x.sum()}, mesh=mesh, in_types=X, out_types=dict[str, float]), x)


def test_a_number_of_a_helper_may_not_differ_between_shards(mesh: Mesh) -> None:
    @typed
    def scaled(x: X, by: float) -> X:
        return x * by

    apply = typed_shard_map(lambda x: scaled(x, x.sum()), mesh=mesh, in_types=X, out_types=X)
    with fails(VaryingError, "scaled: argument 'by' varies over 'dp', which its hint does not mention"):
        traced(apply, x)


# Options, which have no hint


def with_options(x: X, power=1, *rest, shift=0.0, **more) -> X:
    return x**power * (rest[0] if rest else 1) + shift + more.get("last", 0)


OPTIONS = [
    ((), {}, x),
    ((2,), {}, x**2),
    ((), {"power": 2}, x**2),
    ((2, 3.0), {}, x**2 * 3),
    ((), {"shift": 0.5}, x + 0.5),
    ((), {"shift": np.float32(0.5)}, x + 0.5),
    ((2, 3.0), {"shift": 0.5, "last": 1, "unused": "relu"}, x**2 * 3 + 1.5),
]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("args", "kwargs", "expected"), OPTIONS, ids=str)
@pytest.mark.parametrize(
    "given", [{}, {"in_types": X}, {"in_types": (X,), "out_types": X}], ids=["hints", "one", "all"]
)
def test_options_without_hints_are_static(args: Any, kwargs: Any, expected: Any, given: Any, mesh: Mesh) -> None:
    apply = typed_shard_map(with_options, mesh=mesh, **given)
    same(apply(x, *args, **kwargs), expected)
    same(jax.jit(lambda x: apply(x, *args, **kwargs))(x), expected)


OPTION_ARRAYS = [
    ((D,), {}, "power"),
    ((2, {"a": D}), {}, "rest[0]"),
    ((), {"shift": D}, "shift"),
    ((), {"power": np.ones(())}, "power"),
    ((), {"last": [D]}, "last"),
]


@pytest.mark.parametrize(("args", "kwargs", "name"), OPTION_ARRAYS, ids=str)
@pytest.mark.parametrize("given", [{}, {"in_types": (X,), "out_types": X}], ids=["hints", "in_types"])
def test_an_array_given_to_an_option_is_refused(args: Any, kwargs: Any, name: str, given: Any, mesh: Mesh) -> None:
    line = f"with_options: argument '{name}' is an array, but has no hint, so the argument is static"
    with fails(StructureError, line):
        typed_shard_map(with_options, mesh=mesh, **given)(x, *args, **kwargs)


def test_the_default_of_an_option_may_be_an_array(mesh: Mesh) -> None:
    def scaled(x: X, by=D, *, shift=HALF) -> X:
        return x * by + shift

    apply = typed_shard_map(scaled, mesh=mesh)
    same(apply(x), x * d + 0.5)
    same(jax.jit(lambda x: apply(x, shift=1.0))(x), x * d + 1)
    same(typed_jit(scaled, mesh=mesh)(x, 2.0), x * 2 + 0.5)


# Containers that do not say what they hold


BARE = [
    (dict, {"a": d, "b": [x]}, "['b'][0]"),
    (list, [d, (x,)], "[1][0]"),
    (tuple, (d, {"a": x}), "[1]['a']"),
    (PyTree, {"a": d, "b": x}, "['b']"),
    (jaxtyping.PyTree, [x], "[0]"),
    (typing.Dict, {"a": x}, "['a']"),  # noqa: UP006 (a hint of older programs)
    (typing.List, [x], "[0]"),  # noqa: UP006
    (Sequence, (x,), "[0]"),
    (Mapping, {"a": x}, "['a']"),
    (dict | None, {"a": x}, "['a']"),
]


@pytest.mark.parametrize(("hint", "value", "path"), BARE, ids=str)
def test_arrays_in_a_bare_container_are_unsharded(hint: Any, value: Any, path: str, mesh: Mesh) -> None:
    def apply(x: X, tree: hint) -> tuple[X, hint]:
        return x, jax.tree.map(lambda leaf: leaf * 2, tree)

    def reduced(x: X, tree: hint) -> hint:
        return jax.tree.map(lambda leaf: x.sum(), tree)

    expected = x, jax.tree.map(lambda leaf: leaf * 2, value)
    mapped = typed_shard_map(apply, mesh=mesh)
    same(mapped(x, value), expected)
    by_hand = jax.shard_map(apply, mesh=mesh, in_specs=(P("dp"), P()), out_specs=(P("dp"), P()))
    assert jax.eval_shape(mapped, x, value) == jax.eval_shape(by_hand, x, value)
    name = f"return{path}"
    with fails(VaryingError, f"reduced: {name} varies over 'dp', which its hint does not mention"):
        traced(typed_shard_map(reduced, mesh=mesh), x, jax.tree.map(lambda leaf: leaf if leaf is x else None, value))


def test_what_else_a_bare_container_holds_is_static(mesh: Mesh) -> None:
    seen: list[Any] = []
    unordered = {1: "one", "two": 2, None: object()}

    @typed_shard_map(mesh=mesh)
    def apply(x: X, log: list, config: dict, more: PyTree, mixed: dict) -> dict:
        log.append((config, more))
        return {"loss": jax.lax.psum(x.sum(), "dp") * mixed["gain"] * mixed["scale"], "steps": 3, "none": None}

    mixed = {"gain": jnp.float32(2), "scale": 3, "name": "mean"}
    same(apply(x, seen, unordered, "relu", mixed), {"loss": 6 * x.sum(), "steps": 3, "none": None})
    assert seen == [(unordered, "relu")]
    assert seen[0][0] is unordered


def test_a_helper_says_nothing_of_the_arrays_in_a_bare_container(mesh: Mesh) -> None:
    @typed
    def doubled(tree: PyTree, more: dict) -> tuple[PyTree, dict]:
        return jax.tree.map(lambda leaf: leaf * 2, tree), more

    @typed_shard_map(mesh=mesh)
    def apply(x: X, w: Float[Array, " d"]) -> tuple[X, X]:
        assert isinstance({"x": x}, PyTree)
        tree, more = doubled([x, w], {"x": x})
        return tree[0] * tree[1], more["x"]

    same(apply(x, d), (x * d * 4, x))
    with fails(StructureError, "doubled: argument 'more' is a list, but its hint says dict"):
        doubled(D, [D])


@pytest.mark.parametrize(
    ("hint", "value", "got"), [(dict, [D], "a list"), (list, D, "an array"), (tuple, 3, "3 (int)")]
)
def test_another_value_in_the_place_of_a_bare_container_is_refused(hint: Any, value: Any, got: str, mesh: Mesh) -> None:
    with fails(StructureError, f"<lambda>: argument 'tree' is {got}, but its hint says {hint.__name__}"):
        typed_shard_map(lambda tree: None, mesh=mesh, in_types=(hint,), out_types=None)(value)


@pytest.mark.parametrize("hint", [Any, dict[str, Any]], ids=str)
def test_any_is_no_hint_of_a_result(hint: Any, mesh: Mesh) -> None:
    with fails(AnnotationSyntaxError, "<lambda>: the result, or a part of it, annotated as Any, has no hint"):
        typed_shard_map(lambda x: x, mesh=mesh, in_types=X, out_types=hint)


def test_static_arguments_of_jit_are_static(mesh: Mesh) -> None:
    seen: list[Any] = []
    apply = jax.jit(typed_shard_map(with_static(int, seen), mesh=mesh), static_argnums=1)
    same(apply(x, 3), x)
    same(apply(x, 4), x)
    assert seen == [3, 4]


# Any


def test_an_argument_of_any_type_is_closed_over_unsharded(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def minus_mean(x: X, other: Any) -> X:
        assert other["y"].shape == (8, 4)
        return x - other["y"].mean() + other["n"]

    same(minus_mean(x, {"y": 2 * x, "n": 3}), x - 2 * x.mean() + 3)
    same(jax.jit(lambda x, y: minus_mean(x, {"y": y, "n": 3}))(x, 2 * x), x - 2 * x.mean() + 3)


# NumPy arrays and Python scalars


SCALARS = [
    (Float[Array, ""], 0.5, "float32[]"),
    (Int[Array, ""], 3, "int32[]"),
    (Bool[Array, ""], True, "bool[]"),
    (Complex[Array, ""], 0.5j, "complex64[]"),
    (Num[Array, ""], 3, "int32[]"),
    (Float32[Array, ""], np.float64(0.5), "float32[]"),
    (Int32[Array, ""], np.int64(3), "int32[]"),
    (Float[Array, " n"], np.ones(3), "float32[3]"),
    (Float32[Array, " n"], np.ones(3, np.float64), "float32[3]"),
    (Int32[Array, " n"], np.arange(3), "int32[3]"),
    (UInt8[Array, " n"], np.ones(3, np.uint8), "uint8[3]"),
    (Float[np.ndarray, " n"], np.ones(3), "float32[3]"),
]


@pytest.mark.parametrize(("hint", "value", "inside"), SCALARS, ids=names([(h, v) for h, v, _ in SCALARS]))
def test_numpy_arrays_and_python_scalars_enter_as_jax_makes_them(
    hint: Any, value: Any, inside: str, mesh: Mesh
) -> None:
    seen: list[Any] = []
    look = typed_shard_map(lambda value: seen.append(value) or value, mesh=mesh, in_types=hint, out_types=hint)
    same(look(value), value)
    assert str(jax.typeof(seen[0])).removeprefix("~") == inside


WRONG_SCALARS = [
    (Int[Array, ""], 0.5, DtypeError, "has dtype float32, but its hint says Int"),
    (Float[Array, ""], 3, DtypeError, "has dtype int32, but its hint says Float"),
    (Int[Array, ""], True, DtypeError, "has dtype bool, but its hint says Int"),
    (Float64[Array, " n"], np.ones(3), DtypeError, "has dtype float32, but its hint says Float64"),
    (Float[Array, " n"], 0.5, ShapeError, "has 0 dims, but its hint has 1"),
    (Float[Array, ""], "0.5", StructureError, "is '0.5' (str), but its hint says Array"),
    (Float[Array, ""], None, StructureError, "is None, but its hint says Array"),
    (Float[Array, " n"], jax.ShapeDtypeStruct((3,), "f4"), StructureError,
     "is a ShapeDtypeStruct, but its hint says Array"),
    (Float[Array, " n"], np.array(["a"]), DtypeError, "has dtype <U1, but its hint says Float"),
    (Float[Array, " n"], np.array([None]), DtypeError, "has dtype object, but its hint says Float"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("hint", "value", "error", "problem"), WRONG_SCALARS, ids=names([(h, v) for h, v, *_ in WRONG_SCALARS])
)
def test_a_scalar_that_does_not_fit_is_refused(hint: Any, value: Any, error: Any, problem: str, mesh: Mesh) -> None:
    with fails(error, f"<lambda>: argument 'value' {problem}"):
        typed_shard_map(lambda value: None, mesh=mesh, in_types=(hint,), out_types=None)(value)


def test_typed_takes_only_the_array_type_of_the_hint() -> None:
    with fails(StructureError, "summed: argument 'xs[0]' is a NumPy array, but its hint says Array"):
        typed(summed)(x)


def test_keys_enter_as_keys(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def noise(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        return jax.random.normal(key, shape)

    same(noise(jax.random.key(0), (3,)), jax.random.normal(jax.random.key(0), (3,)))
    same(noise(jax.random.PRNGKey(0), (3,)), jax.random.normal(jax.random.PRNGKey(0), (3,)))


FORMS = [
    pytest.param(Annotated[X, "rows"], id="Annotated"),
    pytest.param(Annotated[list[X], "rows"], id="Annotated list"),
    pytest.param(Final[X], id="Final"),
    pytest.param(NewType("Rows", X), id="NewType"),
    pytest.param(TypeVar("T", bound=X), id="bound TypeVar"),
    pytest.param(TypeVar("T", X, Int[Array, " n"]), id="constrained TypeVar"),
    pytest.param(Union[X, list[X]], id="Union"),
]


@pytest.mark.parametrize("hint", FORMS)
def test_a_hint_may_be_wrapped(hint: Any, mesh: Mesh) -> None:
    shapes: list[tuple[int, ...]] = []
    value = [x] if "list" in str(hint) else x
    look = typed_shard_map(
        lambda value: shapes.append(jax.tree.leaves(value)[0].shape), mesh=mesh, in_types=(hint,), out_types=None
    )
    traced(look, value)
    assert shapes == [(2, 4)]


@pytest.mark.parametrize("hint", [Array, np.ndarray, ArrayLike, NDArray[np.float32], jnp.ndarray], ids=str)
def test_a_bare_array_type_takes_any_array_unsharded(hint: Any, mesh: Mesh) -> None:
    look = typed_shard_map(lambda value: value.sum(), mesh=mesh, in_types=(hint,), out_types=Float[Array, ""])
    same(look(x), x.sum())
    same(look(jnp.asarray(x)), x.sum())
    with pytest.raises(StructureError, match=r"^<lambda>: argument 'value' is 'x' \(str\), but its hint says "):
        look("x")


# Optional and union


def either(x: X, y: Union[Float[Array, ""], Int[Array, " k"], str, None]) -> X:
    return x * (len(y) if isinstance(y, str) else 5 if y is None else y.sum().astype(jnp.float32))


BRANCHES = [
    pytest.param(np.float32(2), 2, id="first"),
    pytest.param(np.arange(3), 3, id="second"),
    pytest.param("abcd", 4, id="a static one"),
    pytest.param(None, 5, id="none"),
]


@pytest.mark.parametrize(("value", "factor"), BRANCHES)
def test_a_union_takes_each_of_its_members(value: Any, factor: int, mesh: Mesh) -> None:
    same(typed_shard_map(either, mesh=mesh)(x, value), x * factor)


class Scales(TypedDict):
    """What an optional argument may be."""

    rows: Float[Array, "[b/dp]"]
    by: tuple[int, ...]


ROW = Float[Array, " d"]
OPTIONAL = [
    (ROW, d[:3], "has d=3, but argument 'x' has d=4"),
    (ROW, x, "has 2 dims, but its hint has 1"),
    (ROW, d.astype(int), "has dtype int32, but its hint says Float"),
    (Scales, {"rows": x[:, 0]}, "lacks 'by'"),
    (Scales, 3, "is 3 (int), but its hint says Scales"),
    (Scales, x, "is a NumPy array, but its hint says Scales"),
    (X, "text", "is 'text' (str), but its hint says Array"),
    (X, x[0], "has 1 dim, but its hint has 2"),
    (
        Union[X, Scales],
        "text",
        "fits no member of its hint (Float[Array, \"[b/dp] d\"]: is 'text' (str), but its hint says Array; "
        "is 'text' (str), but its hint says Scales)",
    ),
]


@pytest.mark.parametrize(("hint", "value", "problem"), OPTIONAL)
def test_what_may_be_absent_and_is_wrong_is_reported_as_if_it_were_asked_for(
    hint: Any, value: Any, problem: str, mesh: Mesh
) -> None:
    apply = typed_shard_map(lambda x, y: x, mesh=mesh, in_types=(X, Optional[hint]), out_types=X)
    with pytest.raises(TypedShmapError) as caught:
        apply(x, value)
    assert str(caught.value).splitlines()[0] == f"<lambda>: argument 'y' {problem}"


def test_names_bound_by_a_failed_member_are_rolled_back(mesh: Mesh) -> None:
    seen: list[dict[str, int]] = []
    hint = Float[Array, "n n"] | Float[Array, "m n"]
    typed_shard_map(lambda y: seen.append(sizes()), mesh=mesh, in_types=hint, out_types=None)(x)
    assert seen == [{"m": 8, "n": 4}]


def test_a_union_splits_its_members_each_in_its_own_way(mesh: Mesh) -> None:
    seen: list[tuple[int, ...]] = []
    hint = Float[Array, "[b/dp] [d/tp]"] | Int[Array, "[b/tp] d"]
    look = typed_shard_map(lambda y: seen.append(y.shape), mesh=mesh, in_types=hint, out_types=None)
    look(x)
    look(x.astype(int))
    assert seen == [(2, 2), (4, 4)]


@pytest.mark.parametrize("order", [("y", "x"), ("x", "y")])
def test_a_union_over_an_expression_does_not_depend_on_the_order_of_arguments(order: Any, mesh: Mesh) -> None:
    hints = {"x": Float[Array, "n+1"] | Float[Array, " n"], "y": Float[Array, " n"]}
    values = {"x": d, "y": 2 * d}
    add = typed_shard_map(
        lambda a, b: a + b, mesh=mesh, in_types=tuple(hints[name] for name in order), out_types=Float[Array, " n"]
    )
    same(add(*(values[name] for name in order)), 3 * d)


# What is not a hint


@pytest.mark.parametrize(
    ("in_type", "out_type", "line"),
    [
        (5, X, "<lambda>: in_types[0]: 5 is not a hint"),
        ("[b/dp] d", X, "<lambda>: in_types[0]: '[b/dp] d' is not a hint"),
        (X, "[b/dp] d", "<lambda>: the result: '[b/dp] d' is not a hint"),
    ],
)
def test_what_is_no_hint_is_refused_at_decoration(in_type: Any, out_type: Any, line: str, mesh: Mesh) -> None:
    with fails(AnnotationSyntaxError, line):
        typed_shard_map(lambda x: x, mesh=mesh, in_types=(in_type,), out_types=out_type)
