"""Classes that JAX flattens: each by the hints of its fields, in every verb, however it was registered."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, Optional, TypeVar

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails
from flax import nnx
from flax.core import FrozenDict
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    DtypeError,
    Float,
    Like,
    PyTree,
    ShapeError,
    Stacked,
    StructureError,
    TypedShmapError,
    UInt32,
    audit,
    check,
    choose_mesh,
    explain,
    from_callback,
    from_process_local,
    partition_specs,
    shape_structs,
    shard,
    shardings,
    show,
    typed,
    typed_jit,
    typed_shard_map,
)
from typedshmap.testing import assert_cost, assert_mesh_invariant, inputs, prove

W = Float[Array, "[b/dp] d"]
A = TypeVar("A")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class OfDataclass:
    w: W
    n: int = dataclasses.field(default=3, metadata={"static": True})


@flax.struct.dataclass
class OfFlax:
    w: W
    n: int = flax.struct.field(pytree_node=False, default=3)


@flax.struct.dataclass
class ConvertingFlax:
    """It makes arrays of what it is given, as a class of Brax does."""

    w: W
    count: UInt32[Array, ""]

    def __post_init__(self) -> None:
        object.__setattr__(self, "w", jnp.asarray(self.w))
        object.__setattr__(self, "count", jnp.uint32(self.count))


class OfEquinox(eqx.Module):
    w: W
    n: int = eqx.field(static=True, default=3)


class OfNamedTuple(NamedTuple):
    w: W


@dataclasses.dataclass
class OfNodeDataclass:
    w: W
    n: int = 3

    def __post_init__(self) -> None:  # refuses what is not an array
        assert self.w.ndim >= 0


jax.tree_util.register_pytree_node(
    OfNodeDataclass, lambda x: ((x.w,), x.n), lambda n, children: OfNodeDataclass(*children, n)
)


@jax.tree_util.register_pytree_node_class
class OfNodeClass:
    limit: ClassVar[int] = 7
    w: W
    n: int

    def __init__(self, w: Any, n: int = 3) -> None:
        self.w, self.n = w, n

    def tree_flatten(self) -> Any:
        return (self.w,), self.n

    @classmethod
    def tree_unflatten(cls, n: int, children: Any) -> Any:
        return cls(*children, n)


@jax.tree_util.register_pytree_with_keys_class
class OfKeys(OfNodeClass):
    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("w"), self.w),), self.n


@jax.tree_util.register_pytree_with_keys_class
class OfOtherKeys(OfNodeClass):
    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.DictKey("weight"), self.w),), self.n


class OfSlots:
    __slots__ = ("n", "w")
    w: W
    n: int

    def __init__(self, w: Any, n: int = 3) -> None:
        self.w, self.n = w, n


jax.tree_util.register_pytree_node(OfSlots, lambda x: ((x.w,), x.n), lambda n, children: OfSlots(*children, n))


@jax.tree_util.register_pytree_node_class
class Converting(OfNodeClass):
    def __init__(self, w: Any, n: int = 3) -> None:
        self.w, self.n = jnp.asarray(w), n


@jax.tree_util.register_pytree_node_class
class Copying(OfNodeClass):
    """Its list is a tuple to JAX."""

    w: list[W]  # type: ignore[assignment]

    def tree_flatten(self) -> Any:
        return (tuple(self.w),), self.n

    @classmethod
    def tree_unflatten(cls, n: int, children: Any) -> Any:
        return cls(list(*children), n)


class OfParam(nnx.Module):
    w: nnx.Param[W]
    n: int

    def __init__(self, w: Any) -> None:
        self.w, self.n, self.unhinted = nnx.Param(w), 3, nnx.Param(jnp.ones(3))


class OfVariable(nnx.Module):
    w: W

    def __init__(self, w: Any) -> None:
        self.w = nnx.BatchStat(w)


class OfPytree(nnx.Pytree):
    w: W

    def __init__(self, w: Any) -> None:
        self.w = w


class Outer(nnx.Module):
    layers: nnx.List[OfParam]
    named: nnx.Dict[nnx.Param[W]]
    absent: Optional[nnx.Param[W]]

    def __init__(self, w: Any) -> None:
        self.layers, self.named, self.absent = nnx.List([OfParam(w)]), nnx.Dict(w=nnx.Param(w)), None


class Inherited(OfParam):
    v: nnx.Param[W]

    def __init__(self, w: Any) -> None:
        super().__init__(w)
        self.v = nnx.Param(w)


@jax.tree_util.register_pytree_node_class
class OfAny(Generic[A]):
    w: A

    def __init__(self, w: Any) -> None:
        self.w = w

    def tree_flatten(self) -> Any:
        return (self.w,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Any:
        return cls(*children)


KINDS: dict[str, tuple[Any, Callable[[Any], Any], str]] = {
    **{
        cls.__name__: (cls, cls, ".w")
        for cls in (
            *(OfDataclass, OfFlax, OfEquinox, OfNamedTuple, OfNodeDataclass, OfNodeClass, OfKeys, OfOtherKeys, OfSlots),
            *(Converting, OfParam, OfVariable, OfPytree),
        )
    },
    "ConvertingFlax": (ConvertingFlax, lambda w: ConvertingFlax(w, np.zeros(w.shape[:-2], np.uint32)), ".w"),
    "Inherited": (Inherited, Inherited, ".v"),
    "Outer": (Outer, Outer, ".layers[0].w"),
    "Copying": (Copying, lambda w: Copying([w]), ".w[0]"),
    "generic": (OfAny[W], OfAny, ".w"),
    "nested": (OfAny[OfNodeClass], lambda w: OfAny(OfNodeClass(w)), ".w.w"),
    "FrozenDict": (FrozenDict[str, W], lambda w: FrozenDict(w=w), "['w']"),
    "nnx.List": (nnx.List[W], lambda w: nnx.List([nnx.Param(w)]), "[0]"),
    "nnx.Dict": (nnx.Dict[nnx.Param[W]], lambda w: nnx.Dict(w=nnx.Param(w)), ".w"),
    "nnx.Param": (nnx.Param[W], nnx.Param, ""),
}


def echo(T: Any) -> Callable[[Any], Any]:
    def f(value: Any) -> Any:
        return value

    f.__annotations__ = {"value": T, "return": T}
    return f


def through(decorate: Any) -> Callable[[Any, Any, Mesh], Any]:
    """What a function that returns its argument returns, decorated."""
    return lambda T, value, mesh: decorate(echo(T), mesh)(value)


def placed(verb: Any) -> Callable[[Any, Any, Mesh], Any]:
    """Arrays that stand where the leaves of what a verb returns say."""

    def call(T: Any, value: Any, mesh: Mesh) -> Any:
        with jax.set_mesh(mesh):
            found = jax.tree.leaves(verb(T, value))
        specs = [getattr(getattr(each, "sharding", each), "spec", each) for each in found]
        pairs = zip(jax.tree.leaves(value), specs, strict=True)
        return [jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in pairs]

    return call


def from_leaves(T: Any, value: Any, mesh: Mesh) -> Any:
    arrays = {
        jax.tree_util.keystr(path).removesuffix(".value"): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(value)
    }
    only = next(iter(arrays.values()))
    return from_callback(lambda *path, index=None: arrays.get(path[0], only)[path[-1]], T, mesh, like=value)


def is_instance(T: Any, value: Any, mesh: Mesh) -> Any:
    if not isinstance(value, PyTree[T]):
        raise check(value, T)
    return shard(value, T, mesh)


def explained(T: Any, value: Any, mesh: Mesh) -> Any:
    explain(typed_shard_map(echo(T), mesh=mesh), value, mesh=mesh)
    return shard(value, T, mesh)


def of_inputs(T: Any, value: Any, mesh: Mesh) -> Any:
    return inputs(typed_shard_map(echo(T), mesh=mesh), mesh=mesh, value=value)["value"]


VERBS: dict[str, Callable[[Any, Any, Mesh], Any]] = {
    "typed_shard_map": through(lambda f, mesh: typed_shard_map(f, mesh=mesh)),
    "jit of typed_shard_map": through(lambda f, mesh: jax.jit(typed_shard_map(f, mesh=mesh))),
    "typed_jit": through(lambda f, mesh: typed_jit(f, mesh=mesh)),
    "typed_jit with donation": lambda T, value, mesh: through(
        lambda f, mesh: typed_jit(f, mesh=mesh, donate_argnames="value")
    )(T, shard(value, T, mesh), mesh),
    "sanitized": through(lambda f, mesh: typed_shard_map(f, mesh=mesh, sanitize=1)),
    "typed": lambda T, value, mesh: shard(through(lambda f, mesh: typed(f))(T, value, mesh), T, mesh),
    "check": lambda T, value, mesh: shard(check(value, T), T, mesh),
    "check in a region": lambda T, value, mesh: typed_shard_map(
        lambda value: check(value, T), mesh=mesh, in_types=(T,), out_types=T
    )(value),
    "isinstance": is_instance,
    "shard": lambda T, value, mesh: shard(value, T, mesh),
    "jit of shard": lambda T, value, mesh: jax.jit(lambda value: shard(value, T, mesh))(value),
    "shardings": placed(lambda T, value: shardings(T, like=value)),
    "partition_specs": placed(lambda T, value: partition_specs(T, like=value)),
    "shape_structs": placed(lambda T, value: shape_structs(T, like=value)),
    "from_process_local": lambda T, value, mesh: from_process_local(value, T, mesh),
    "from_callback": from_leaves,
    "PyTree": lambda T, value, mesh: shard({"a": value}, PyTree[T], mesh)["a"],
    "dict": lambda T, value, mesh: shard({"a": value}, dict[str, T], mesh)["a"],
    "explain": explained,
    "inputs": of_inputs,
}


def cases(*tables: dict[str, Any]) -> list[Any]:
    """All rows of one table with all rows of others, by the names of both."""
    found = []
    for rows in itertools.product(*(table.items() for table in tables)):
        values = [value for _, row in rows for value in (row if type(row) is tuple else (row,))]
        found.append(pytest.param(*values, id="-".join(name for name, _ in rows)))
    return found


@pytest.mark.sample(5)
@pytest.mark.parametrize(("T", "make", "path", "verb"), cases(KINDS, VERBS))
def test_fields_are_sharded_by_their_hints(mesh: Mesh, T: Any, make: Any, path: str, verb: Any) -> None:
    value = make(jnp.ones((8, 4)))
    got = [array for array in jax.tree.leaves(verb(T, value, mesh)) if array.ndim > 1]
    assert [array.sharding.is_equivalent_to(NamedSharding(mesh, P("dp")), 2) for array in got] == [True] * len(got)
    assert len(got) == len([array for array in jax.tree.leaves(value) if array.ndim > 1]) > 0


WRONG: dict[str, tuple[Any, type[TypedShmapError], str]] = {
    "rank": (np.ones((8, 4, 2), np.float32), ShapeError, " has 3 dims, but its hint has 2"),
    "dtype": (np.ones((8, 4), np.int32), DtypeError, " has dtype int32, but its hint says Float"),
    "size": (np.ones((6, 4), np.float32), ShapeError, " has b=6, which does not divide over 'dp' (4 shards)"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("T", "make", "path", "verb", "wrong"),
    [
        pytest.param(*row.values, wrong, id=f"{row.id}-{wrong}")
        for row, wrong in zip(cases(KINDS, VERBS), itertools.cycle(WRONG), strict=False)
    ],
)
def test_a_field_that_does_not_fit_its_hint_is_refused_by_its_path(
    mesh: Mesh, T: Any, make: Any, path: str, verb: Any, wrong: str
) -> None:
    array, error, words = WRONG[wrong]
    with pytest.raises(error) as caught:
        verb(T, make(jnp.asarray(array)), mesh)
    first = str(caught.value).splitlines()[0]
    assert first.endswith(words) or f"{words}, " in first
    assert path in first


@pytest.mark.parametrize(("T", "make", "path"), KINDS.values(), ids=KINDS)
def test_trees_like_a_class_and_stacked_ones_have_its_hints(mesh: Mesh, T: Any, make: Any, path: str) -> None:
    hint = Like[Any, T]
    tree = {"mu": make(jnp.ones((8, 4), jnp.bfloat16)), "count": jnp.ones(3)}
    specs = {leaf.sharding.spec for leaf in jax.tree.leaves(shard(tree, hint, mesh)) if leaf.shape == (8, 4)}
    assert specs == {P("dp", None)}
    with pytest.raises(ShapeError, match="b=6"):
        shard({"mu": make(jnp.ones((6, 4)))}, hint, mesh)
    placed = shard(make(jnp.ones((3, 8, 4))), Stacked["n", T], mesh)
    assert {leaf.sharding.spec for leaf in jax.tree.leaves(placed) if leaf.ndim > 1} == {P(None, "dp", None)}
    with pytest.raises(ShapeError, match="has 2 dims, but its hint has 3"):
        shard(make(jnp.ones((8, 4))), Stacked["n", T], mesh)


@pytest.mark.parametrize("name", ["OfDataclass", "OfFlax", "OfEquinox", "OfNamedTuple", "OfNodeDataclass", "generic"])
def test_without_a_value_a_class_is_built_from_its_hints(mesh: Mesh, name: str) -> None:
    T, make, _ = KINDS[name]
    structs = shape_structs(T, mesh, b=8, d=4)
    assert isinstance(structs, type(make(jnp.ones((8, 4)))))
    assert [(leaf.shape, leaf.sharding.spec) for leaf in jax.tree.leaves(structs)] == [((8, 4), P("dp", None))]
    assert jax.tree.leaves(partition_specs(T)) == [P("dp", None)]


@pytest.mark.parametrize(
    ("name", "problem"),
    {
        "OfParam": "OfParam cannot be built from its hints alone",
        "Outer": "Outer cannot be built from its hints alone",
        "Copying": "Copying cannot be built from its hints alone",
        "OfNodeClass": ".n holds no array and has no default",
        "FrozenDict": "FrozenDict does not say how many arrays it holds",
        "nnx.List": "List does not say how many arrays it holds",
    }.items(),
)
def test_where_a_class_cannot_be_built_from_its_hints_a_value_is_asked_for(name: str, problem: str) -> None:
    with pytest.raises(StructureError) as caught:
        partition_specs(KINDS[name][0])
    assert str(caught.value).splitlines()[0] == f"partition_specs: {problem}"
    assert "pass like=" in str(caught.value)


@jax.tree_util.register_pytree_node_class
class Doubling(OfNodeClass):
    def tree_flatten(self) -> Any:
        return (2 * self.w,), self.n


@jax.tree_util.register_pytree_node_class
class Bare(OfNodeClass):
    def tree_flatten(self) -> Any:
        return (), self.n


@jax.tree_util.register_pytree_node_class
class Lacking(OfNodeClass):
    v: W


CHILD = "has arrays in field 'w', which is not a pytree child of {}"
LOST = {
    "it makes something else of it": (Doubling(jnp.ones((8, 4))), f"given.w {CHILD.format('Doubling')}"),
    "it leaves it out": (Bare(jnp.ones((8, 4))), f"given.w {CHILD.format('Bare')}"),
    "it has no such attribute": (
        Lacking(jnp.ones((8, 4))),
        "given.v is missing, but Lacking declares it",
    ),
}


@pytest.mark.parametrize(("value", "message"), LOST.values(), ids=LOST)
def test_a_hint_that_cannot_be_laid_over_a_leaf_is_an_error(mesh: Mesh, value: Any, message: str) -> None:
    with fails(StructureError, f"shard: {message}"):
        shard(value, type(value), mesh)


def test_what_a_class_holds_beside_its_hints_is_unsharded(mesh: Mesh) -> None:
    class More(OfParam):
        def __init__(self, w: Any) -> None:
            super().__init__(w)
            self.more = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    f = typed_shard_map(lambda value: value, mesh=mesh, in_types=(OfParam,), out_types=OfParam)
    got = f(More(jnp.ones((8, 4))))
    assert got.w[...].sharding.spec == P("dp")
    assert got.more.kernel[...].sharding.is_fully_replicated
    # and nothing is said of it where it is only looked at
    sharded = jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, P("dp")))
    value = OfParam(sharded)
    value.unhinted = nnx.Param(sharded)
    assert check(value, OfParam) is value


def test_a_class_without_hints_is_a_bare_tree(mesh: Mesh) -> None:
    linear = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    for hint in (nnx.Module, nnx.Linear):
        f = typed_shard_map(lambda m, x: m(x), mesh=mesh, in_types=(hint, W), out_types=W)
        np.testing.assert_allclose(f(linear, jnp.ones((8, 8))), linear(jnp.ones((8, 8))), rtol=1e-6)
    with pytest.raises(StructureError, match="is an array, but its hint says Linear"):
        f(jnp.ones(3), jnp.ones((8, 8)))


def test_the_state_of_a_module_has_the_hints_of_the_module(mesh: Mesh) -> None:
    for state in (nnx.state(OfParam(jnp.ones((8, 4)))), nnx.to_pure_dict(nnx.state(OfParam(jnp.ones((8, 4)))))):
        placed = shard({"model": state}, Like[Any, OfParam], mesh)
        assert {leaf.sharding.spec for leaf in jax.tree.leaves(placed) if leaf.ndim == 2} <= {
            P("dp", None),
            P(None, None),
        }


def scaled(u: ConvertingFlax, x: W) -> W:
    u, _ = jax.lax.scan(lambda u, _: (check(u, ConvertingFlax), None), u, None, length=2)
    return x * u.w


def test_tools_take_a_class_that_makes_arrays_of_what_it_is_given(mesh: Mesh) -> None:
    mapped, sizes = typed_shard_map(scaled, mesh=mesh), {"b": 8, "d": 4}
    assert explain(typed_jit(scaled, mesh=mesh), mesh=mesh.abstract_mesh, **sizes).collectives == ()
    assert "w" in str(show(ConvertingFlax, mesh, **sizes))
    assert choose_mesh(mapped, devices=8, hardware="v5p", **sizes).best.mesh is not None
    assert_cost(mapped, mesh=mesh, collectives={}, **sizes)
    assert prove(typed_shard_map(scaled), **sizes).verdict == "proved"
    assert_mesh_invariant(typed_shard_map(scaled), meshes=["dp=4", "dp=2,tp=2"], **sizes)
    with audit() as report:
        mapped(ConvertingFlax(np.ones((8, 4)), 1), np.ones((8, 4), np.float32))
    assert report.findings == []


def test_a_class_that_makes_arrays_adds_nothing_to_the_program(mesh: Mesh) -> None:
    @flax.struct.dataclass
    class Plain:
        w: W
        count: UInt32[Array, ""]

    texts = []
    for T in (Plain, ConvertingFlax):
        f = typed_shard_map(lambda u: u.w * u.count, mesh=mesh, in_types=T, out_types=W)
        texts.append(str(jax.make_jaxpr(f)(T(jnp.ones((8, 4)), jnp.uint32(1)))))  # JAX itself lowers none that converts
    assert texts[0] == texts[1]


def test_a_class_that_is_registered_after_its_hint_was_read_is_an_error(mesh: Mesh) -> None:
    class Late(OfNodeClass):
        pass

    f = typed_shard_map(lambda value, x: x, mesh=mesh, in_types=(Late, W), out_types=W)
    f(Late(jnp.ones((8, 4, 2))), jnp.ones((8, 4)))  # it is static
    jax.tree_util.register_pytree_node_class(Late)
    first = "<lambda>: argument 'value' is of class Late, which was registered as a pytree after its hint was read"
    with fails(StructureError, first):
        f(Late(jnp.ones((8, 4, 2))), jnp.ones((8, 4)))


def test_the_gradient_of_a_module_names_the_hint_of_its_state(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def gradient(module: OfParam) -> OfParam:
        return nnx.grad(lambda module: (module.w[...] ** 2).sum())(module)

    with pytest.raises(StructureError) as caught:
        gradient(OfParam(jnp.ones((8, 4))))
    first, *_, place, cure = str(caught.value).splitlines()
    assert first == "gradient: return value is a State, but its hint says OfParam"
    returned = gradient.__wrapped__.__code__.co_firstlineno + 2
    assert place.endswith(f"test_classes.py:{returned} (gradient)")
    assert cure == "Hint: its state is Like[nnx.State, OfParam]"
