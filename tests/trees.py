"""Trees of arrays of every kind, with the hints that they fit and the specs of their leaves."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, NotRequired, Optional, Required, TypedDict, TypeVar

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from expecting import numbers
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, Int, PyTree

X = Float[Array, "[b/dp] d"]
W = Float[Array, "d [f/tp]"]
B = Float[Array, "[f/tp]"]
S = Float[Array, ""]
T = TypeVar("T")
x, w, b, s = numbers(8, 4), numbers(4, 6), numbers(6), np.float32(2)
ROWS, COLUMNS, PART, WHOLE = P("dp", None), P(None, "tp"), P("tp"), P()


class Pair(NamedTuple):
    x: X
    w: W


class Nested(NamedTuple):
    pair: Pair
    rest: tuple[B, ...]


class Named(TypedDict):
    x: X
    w: NotRequired[W]


class Loose(TypedDict, total=False):
    x: Required[X]
    w: W


@jax.tree_util.register_dataclass
@dataclass
class Dense:
    w: W
    b: Optional[B] = None
    name: str = field(default="dense", metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass
class Model:
    layers: list[Dense]
    scales: dict[str, S]
    pair: Pair


@jax.tree_util.register_dataclass
@dataclass
class Box(Generic[T]):
    value: T
    gain: S


@jax.tree_util.register_dataclass
@dataclass
class Chain:
    next: Optional["Chain"]
    x: X


@flax.struct.dataclass
class FlaxState:
    w: W
    step: Int[Array, ""]
    apply: Callable[..., Any] = flax.struct.field(pytree_node=False, default=jnp.tanh)
    width: int = flax.struct.field(pytree_node=False, default=4)


class Linear(eqx.Module):
    w: W
    b: B
    activation: Callable[..., Any]
    width: int = eqx.field(static=True, default=4)

    def __call__(self, x: Any) -> Any:
        return self.activation(x @ self.w + self.b)


@jax.tree_util.register_pytree_node_class
@dataclass
class Swapped:
    """Its children stand in another order than its fields, and bear no names."""

    x: X
    w: W
    power: int = 1

    def tree_flatten(self) -> Any:
        return (self.w, self.x), self.power

    @classmethod
    def tree_unflatten(cls, power: Any, children: Any) -> Any:
        return cls(children[1], children[0], power)


@jax.tree_util.register_pytree_with_keys_class
@dataclass
class Keyed:
    """Its children stand in another order than its fields, each under its name."""

    x: X
    w: W

    def tree_flatten_with_keys(self) -> Any:
        key = jax.tree_util.GetAttrKey
        return ((key("w"), self.w), (key("x"), self.x)), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Any:
        return cls(children[1], children[0])


# Hint, value, and the specs of its leaves, in JAX's order

MODEL = Model([Dense(w, b), Dense(w)], {"out": s, "in": s}, Pair(x, w))
TREES = [
    pytest.param(tuple[X, W], (x, w), [ROWS, COLUMNS], id="tuple"),
    pytest.param(tuple[X, ...], (x, x, x), [ROWS] * 3, id="tuple of any length"),
    pytest.param(tuple[X, ...], (), [], id="tuple of none"),
    pytest.param(tuple[()], (), [], id="empty tuple"),
    pytest.param(tuple[X, tuple[W, B]], (x, (w, b)), [ROWS, COLUMNS, PART], id="tuple in a tuple"),
    pytest.param(list[X], [x, x], [ROWS] * 2, id="list"),
    pytest.param(list[X], [], [], id="empty list"),
    pytest.param(list[list[B]], [[b], [], [b, b]], [PART] * 3, id="list of lists"),
    pytest.param(Sequence[X], [x, x], [ROWS] * 2, id="sequence: list"),
    pytest.param(Sequence[X], (x, x), [ROWS] * 2, id="sequence: tuple"),
    pytest.param(dict[str, B], {"v": b, "u": b}, [PART] * 2, id="dict"),
    pytest.param(dict[int, B], {2: b, 1: b}, [PART] * 2, id="dict with integer keys"),
    pytest.param(dict[str, B], {}, [], id="empty dict"),
    pytest.param(Mapping[str, B], {"u": b}, [PART], id="mapping"),
    pytest.param(OrderedDict[str, B], OrderedDict(v=b, u=b), [PART] * 2, id="ordered dict"),
    pytest.param(dict[str, B], defaultdict(list, u=b), [PART], id="defaultdict"),
    pytest.param(Pair, Pair(x, w), [ROWS, COLUMNS], id="NamedTuple"),
    pytest.param(Nested, Nested(Pair(x, w), (b, b)), [ROWS, COLUMNS, PART, PART], id="NamedTuple in a NamedTuple"),
    pytest.param(tuple[X, W], Pair(x, w), [ROWS, COLUMNS], id="NamedTuple as a tuple"),
    pytest.param(Named, {"x": x, "w": w}, [COLUMNS, ROWS], id="TypedDict"),
    pytest.param(Named, {"x": x}, [ROWS], id="TypedDict without what is not required"),
    pytest.param(Loose, {"x": x}, [ROWS], id="TypedDict that is not total"),
    pytest.param(Dense, Dense(w, b), [COLUMNS, PART], id="dataclass"),
    pytest.param(Dense, Dense(w), [COLUMNS], id="dataclass with None in a field"),
    pytest.param(list[Dense], [Dense(w, b), Dense(w)], [COLUMNS, PART, COLUMNS], id="list of dataclasses"),
    pytest.param(Model, MODEL, [COLUMNS, PART, COLUMNS, WHOLE, WHOLE, ROWS, COLUMNS], id="dataclass of containers"),
    pytest.param(Box[X], Box(x, s), [ROWS, WHOLE], id="generic dataclass"),
    pytest.param(Box[list[W]], Box([w, w], s), [COLUMNS, COLUMNS, WHOLE], id="generic dataclass of a list"),
    pytest.param(Chain, Chain(Chain(Chain(None, x), x), x), [ROWS] * 3, id="recursive dataclass"),
    pytest.param(FlaxState, FlaxState(w, np.int32(3), jnp.tanh), [COLUMNS, WHOLE], id="flax.struct"),
    pytest.param(Linear, Linear(w, b, jnp.tanh), [COLUMNS, PART], id="equinox.Module"),
    pytest.param(Swapped, Swapped(x, w, 3), [COLUMNS, ROWS], id="children without names, in another order"),
    pytest.param(Keyed, Keyed(x, w), [COLUMNS, ROWS], id="children with names, in another order"),
    pytest.param(PyTree[B], {"v": [b, b], "u": (b, {"t": b})}, [PART] * 4, id="PyTree"),
    pytest.param(PyTree[B], b, [PART], id="PyTree of one leaf"),
    pytest.param(PyTree[B], [], [], id="PyTree without leaves"),
    pytest.param(PyTree[B], [None, b], [PART], id="PyTree with None"),
    pytest.param(
        PyTree[Dense], {"u": [Dense(w, b)], "v": Dense(w)}, [COLUMNS, PART, COLUMNS], id="PyTree of dataclasses"
    ),
    pytest.param(PyTree[X | B], [x, b], [ROWS, PART], id="PyTree of a union"),
    pytest.param(PyTree[Float[Array, "?n [m/tp]"], "T"], [w, numbers(5, 6)], [COLUMNS] * 2, id="PyTree with ?name"),
    pytest.param(jaxtyping.PyTree[B], [b, {"u": b}], [PART] * 2, id="jaxtyping's PyTree"),
    pytest.param(Optional[list[X]], [x], [ROWS], id="optional list"),
    pytest.param(Optional[list[X]], None, [], id="absent list"),
    pytest.param(X | Pair | list[B], Pair(x, w), [ROWS, COLUMNS], id="union of containers: NamedTuple"),
    pytest.param(X | Pair | list[B], [b], [PART], id="union of containers: list"),
]
every_tree = pytest.mark.parametrize(("hint", "value", "specs"), TREES)
