"""Where the fuzz tests draw from: values, hints, patterns, meshes and options, most of them wrong.

Each pool is made once; a draw is a name for the report of a failure, and the thing.
"""

from __future__ import annotations

import collections
import dataclasses
import decimal
import fractions
import functools
import random
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import typing_extensions
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import typedshmap
from typedshmap import Array, Bool, Float, Float32, Int, Key, Like, PyTree, Shaped, Stacked

Named = dict[str, Any]


def by_repr(things: Sequence[Any]) -> Named:
    """What needs no name of its own."""
    return {f"{thing!r:.60}": thing for thing in things}


# Strings

TOKENS = """
4 -1 0 00 1 99999999999999999999 b s _ _x ... *r *r *_ #b #4 #... n=4 =4 n= n=b d+1 2*d n//2 n/2 n%0 n//0 2**k
2**99999 9**9**9**9 -d --d +d (d) ((d)) min(a,b) min() max(a) abs(d) {x} {self.a} {x[0]} {x.shape[0]} {x['a']} {
} {} {x {x.} {x[} {__import__('os')} ?n ?4 ?... [b/dp] [b/dp,tp] [b/tp] [s/tp] [b/] [/dp] [/] [] [b] [[b/dp]/tp]
[_/tp] [4/tp] [.../dp] [*r/dp] [#b/dp] [b/zz] [b/(dp,tp)] [b/dp,dp] [b/dp [b/ dp] b/dp] b/dp b!dp +dp -tp ~dp
+tp ~tp + - ~ +zz ++dp ~dp~tp -> => (a b) ( ) (( )) [(a b)/tp] [(a b)/dp,tp] (b (a s)) 1 , . : ; ' " \\ % %s {0}
lambda None True \xe9 \u65e5\u672c \U0001d51f \xb2 \x00 \ufeff a.b a-b b, b,s b:dp @ $ ! ? # * / // ** & | ^ `
dp tp
""".split()  # noqa: SIM905 (a hundred items would be a hundred lines)
SPECS = [
    "", "b", "b s", "[b/dp] s", "[b/dp] [s/tp]", "[b/dp,tp] s", "b s +tp", "[b/dp] s ~tp", "... [s/tp]", "*r s",
    "8 16", "b b", "b 2*b", "b+1 s-1", "[2*k/dp] _", "#b s", "n=8 m=16", "{x} s", "?n s", "[8/dp] {self.n}",
    "b//2 s", "min(b,s) s", "[b-1/dp] s", "b/dp s",
]  # fmt: skip
PATTERNS = [
    "b s -> s b", "[b/dp] s -> s [b/dp]", "[b/dp] s -> b s", "b s -> b", "b s -> (b s)", "b (h d) -> b h d",
    "[b/dp] [s/tp] -> [b/dp] s", "[b/dp] s +tp -> [b/dp] s", "b s, s f -> b f", "[b/dp] [m/tp], [m/tp] f -> [b/dp] f",
    "... s -> ...", "b s -> b s 1", "b s -> r b s", "[s/tp] h -> s [h/tp]", "dp", "tp", "[b/dp] s", "s ~dp -> s",
    "[v/tp] m, [b/dp] s -> [b/dp] s m", "v m, b -> b m", "b ... -> ... b", "[(b s)/dp] -> [b/dp] s", "", "->",
]  # fmt: skip
HARD_STRINGS = [
    "(" * 3000 + "b" + ")" * 3000, "-" * 5000 + "b", "[" * 2000, "b+" * 3000 + "b", "b " * 3000, "min(" * 2000 + "b",
    "{" + "x[" * 2000, "{x[" + "9" * 5000 + "]}", "2**" * 2000 + "2", "9" * 5000, "b" * 100_000,
    "_" * 500, "\n\t ", "\ud800", "b\u200bs",
]  # fmt: skip


def spoiled(draw: random.Random, pool: Sequence[str]) -> str:
    """A string of a pool, with characters or tokens taken away, doubled, swapped or put in."""
    text = draw.choice(pool)
    for _ in range(draw.randint(0, 3)):
        at = draw.randint(0, len(text))
        edit = draw.randrange(4)
        if edit == 0:
            text = text[:at] + text[at + 1 :]
        elif edit == 1:
            text = text[:at] + draw.choice("[](){}/,+-~*#?=_.> 0bsdtp") + text[at:]
        elif edit == 2:
            text = f"{text[:at]} {draw.choice(TOKENS)} {text[at:]}"
        else:
            text = text[at:] + text[:at]
    return text


def string(draw: random.Random, pool: Sequence[str] = SPECS) -> str:
    """A pattern or the dims of a hint: right, spoiled, or made of tokens."""
    kind = draw.randrange(20)
    if kind < 3:
        return draw.choice(pool)
    if kind < 12:
        return spoiled(draw, pool)
    if kind == 12:
        return draw.choice(HARD_STRINGS)
    return " ".join(draw.choice(TOKENS) for _ in range(draw.randint(1, 5)))


# Values


class Own(Exception):
    """What a body, a callback, or a hostile object of a user raises."""


class NoShape:
    """Something that says that it is an array, and is none."""

    dtype = "float32"
    shape = None


class OddShape:
    dtype = np.dtype(np.float32)
    shape = ("a", -1)
    ndim = 2
    sharding = "nowhere"


class Raises:
    """Whatever is asked of it, it raises."""

    def __getattr__(self, name: str) -> Any:
        raise Own(name)

    def __eq__(self, other: object) -> bool:
        raise Own("==")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise Own("bool")

    def __len__(self) -> int:
        raise Own("len")

    def __iter__(self) -> Any:
        raise Own("iter")


class Dim(typing.NamedTuple):
    a: Any
    n: Any = 3


@dataclasses.dataclass
class NoTree:
    a: Any
    n: int = 3


def values(mesh: Mesh) -> Named:
    """Values to check, place and compute with, few of which are right anywhere."""
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    few = Mesh(np.array(jax.devices()[4:8]).reshape(2, 2), ("dp", "tp"))
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
    deleted = jnp.asarray(x) + 1
    deleted.delete()
    return {
        "f32[8,16]": x,
        "f32[8,16] of JAX": jnp.asarray(x),
        "f32[6,16]": x[:6],
        "f32[16,32]": np.ones((16, 32), np.float32),
        "f32[8]": x[:, 0],
        "f32[0,16]": x[:0],
        "f32[1,1,1,1,1,1,1,1]": np.ones((1,) * 8, np.float32),
        "NaN": np.full((8, 16), np.nan, np.float32),
        "f64": x.astype(float),
        "f16": x.astype(np.float16),
        "bf16": jnp.asarray(x, jnp.bfloat16),
        "f8": jnp.ones((8, 16), jnp.float8_e4m3fn),
        "i4": jnp.ones((8, 16), jnp.int4),
        "i32": x.astype(np.int32),
        "i64": x.astype(np.int64),
        "u8": x.astype(np.uint8),
        "bool": x > 3,
        "c64": x.astype(np.complex64),
        "objects": np.array([[None, "a"], [1, object()]], dtype=object),
        "strings": np.array(["a", "bc"]),
        "bytes": np.array([b"a", b"bc"]),
        "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
        "records": np.zeros(8, dtype=[("a", "f4"), ("b", "i4")]),
        "masked": np.ma.masked_array(x, mask=x > 5),
        "recarray": np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
        "swapped": x.astype(">f4"),
        "strided": x[::2, ::-3],
        "broadcast": np.broadcast_to(np.float32(1), (8, 16)),
        "read only": np.frombuffer(b"\0" * 512, np.float32).reshape(8, 16),
        "key": jax.random.key(0),
        "keys": jax.random.split(jax.random.key(0), 8),
        "raw key": jax.random.PRNGKey(0),
        "on device 3": jax.device_put(x, jax.devices()[3]),
        "on the mesh": jax.device_put(x, NamedSharding(mesh, P("dp", None))),
        "on the mesh otherwise": jax.device_put(x, NamedSharding(mesh, P("tp", "dp"))),
        "on a smaller mesh": jax.device_put(x, NamedSharding(few, P("dp"))),
        "on Explicit axes": jax.device_put(x, NamedSharding(explicit, P("dp", "tp"))),
        "deleted": deleted,
        "struct": jax.ShapeDtypeStruct((8, 16), np.float32),
        "struct on the mesh": jax.ShapeDtypeStruct((8, 16), np.float32, sharding=NamedSharding(mesh, P("dp"))),
        "10**5000": 10**5000,
        "long text": "text " * 1000,
        "list of arrays": [x, x],
        "tuple": (x, 3, None),
        "dict": {"a": x, "b": x[:6]},
        "dict of mixed keys": {"a": x, 1: x, None: x},
        "nested": {"a": [x, (x, {"b": None})]},
        # No list that holds itself: where JAX flattens one, it spoils the interpreter's count of recursions.
        "deep": functools.reduce(lambda inner, _: [inner], range(200), x),
        "deque": collections.deque([x]),
        "OrderedDict": collections.OrderedDict(a=x),
        "defaultdict": collections.defaultdict(list, a=x),
        "NamedTuple": Dim(x),
        "dataclass": NoTree(x),
        "lambda": lambda *args: args,
        "partial": functools.partial(len, x),
        "memoryview": memoryview(x[0]),
        **by_repr([
            np.float32(1), float("inf"), None, 3, 2**70, -(2**70), True, 1.5, 1j, "text", "\ud800", b"", (), [], {},
            [[1.0, 2.0], [3.0]], {1, 2}, range(3), collections.Counter("aab"), decimal.Decimal("1.5"),
            fractions.Fraction(1, 3), object(), NoShape, NoShape(), OddShape(), Raises(), len, np, np.dtype("f4"),
            np.float32, np.void(b"abc"), np.str_("a"), mesh, P("dp"), jax.devices()[0], ..., NotImplemented, slice(3),
            Float[Array, "b"], ValueError("no"),
        ]),
    }  # fmt: skip


# Hints


T = TypeVar("T")
Bounded = TypeVar("Bounded", bound=Float[Array, "b"])
Either = TypeVar("Either", Float[Array, "b"], Int[Array, "b"])


class Layer(NamedTuple):
    w: Float[Array, "m [f/tp]"]
    n: int = 3


class Batch(TypedDict, total=False):
    x: Float[Array, "[b/dp] s"]
    y: Int[Array, "b"]


@dataclasses.dataclass
class Unregistered:
    w: Float[Array, "m f"]


class Chain(NamedTuple):
    w: Float[Array, "b"]
    rest: Chain | None


class Missing(NamedTuple):
    w: Undefined  # type: ignore[name-defined]


class Broken(NamedTuple):
    w: Float[Array, "[b"]


class Meta(type):
    def __getattr__(cls, name: str) -> Any:
        raise Own(name)


class Hostile(metaclass=Meta):
    pass


# What calls that are wrong in their arguments alone are decorated with.
RIGHT_HINTS = by_repr([
    Float[Array, "[b/dp] s"], Float32[Array, "[b/dp] [s/tp]"], Float[Array, "{x} {self.a[3]}"], Shaped[Any, "..."],
    PyTree[Float[Array, "?n ..."], "S"], Layer, Batch, Chain, Float[Array, "b s"] | Int[Array, "b"] | None,
    list[Float[Array, "b"]] | dict[str, Float[Array, "b"]] | Layer, dict[str, Float[Array, "b s"]],
    list[Float[Array, "b s"]], tuple[Float[Array, "b s"], int], int, Array,
])  # fmt: skip
HINTS: Named = {
    **RIGHT_HINTS,
    "Tuple bare": typing.Tuple,  # noqa: UP006
    "List bare": typing.List,  # noqa: UP006
    "Dict bare": typing.Dict,  # noqa: UP006
    "ForwardRef wrong": list["Undefined"],  # type: ignore[name-defined]
    "Optional of a name": typing.Optional["Undefined"],  # type: ignore[name-defined]
    **by_repr([
        Float[Array, "b s"], Float[Array, "[b/zz] s"], Float[Array, "[b/dp] s +tp"], Float[Array, "[b/dp] s -tp"],
        Float[Array, "b s ~dp"], Float[Array, "b s", P("dp", "tp")], Float[Array, "*r s"], Float[Array, "b//0 s-20"],
        Float[Array, "2**99999 9**9**9**9"], Float[Array, "q+1 q-1"], Float[Array, "?n"], Int[Array, "b"],
        Bool[Array, "..."], Key[Array, ""], Float[np.ndarray, "b s"], Float[typedshmap.ArrayLike, "..."], np.ndarray,
        typedshmap.ArrayLike, Float, PyTree, Stacked, Like, PyTree[Float[Array, "..."]], PyTree[int],
        Stacked["layers", Layer], Stacked["[n/tp]", Float[Array, "b"]], Like[Any, Layer],
        Like[dict, dict[str, Float[Array, "b [s/tp]"]]], tuple[()], tuple[Float[Array, "b s"], ...], dict[str, int],
        collections.abc.Mapping[str, Float[Array, "b"]], collections.defaultdict[str, Float[Array, "b"]],
        collections.abc.Sequence[Float[Array, "b"]], collections.abc.Iterable, collections.deque[Float[Array, "b"]],
        set[Float[Array, "b"]], Unregistered, Missing, Broken, Hostile, Annotated[Float[Array, "b s"], "note"],
        T, Bounded, Either, Literal["a", 3], Callable[[int], int], typing.Callable, type[int], typing.NoReturn,
        typing.Never, typing.Self, typing.ClassVar[int], typing.ClassVar, typing.Final, typing.Optional, typing.Union,
        typing.Generic, typing.Protocol, NamedTuple, TypedDict, typing.Unpack[tuple[int, ...]], typing.ParamSpec("Q"),
        typing.TypeVarTuple("Ts"), typing.NewType("N", int), typing.ForwardRef("Undefined"), list, dict, tuple, str,
        float, None, type(None), Any, object, 3, 1.5, True, b"b", (), [], {}, (Float[Array, "b s"], "b s"),
        [Float[Array, "b s"]], {"a": Float[Array, "b s"]}, {1: int, "a": "b"}, {int}, len, lambda x: x, np, ...,
        np.ones(3), P("dp"), np.dtype("f4"), np.float32, Raises(), ValueError, property(),
    ]),
}  # fmt: skip
ARRAY_TYPES = by_repr([
    Array, np.ndarray, Any, typedshmap.ArrayLike, Array | np.ndarray, Array | None, Float[Array, "[b/dp] s"],
    Float[Array, "b"] | Int[Array, "s"], np.typing.NDArray[np.float32], int, str, None, "Array", 3, list[Array],
    T, Bounded, PyTree[Float[Array, "b"]], Literal["a"], Raises(), len, (), np.ones(2), [], {},
])  # fmt: skip
PSPECS = by_repr([
    P(), P("dp"), P("dp", "tp"), P(("dp", "tp")), P(None, None, None), P("dp", "dp"), P("dp", unreduced={"tp"}),
    P(reduced={"tp"}), P("tp", unreduced={"dp"}, reduced={"zz"}), P(P.UNCONSTRAINED), P(3), P("a b"), P(""), "dp",
    None, 3, ("dp",), Raises(),
])  # fmt: skip


def endless(kind: type) -> Any:
    """A list or a dict of hints that holds itself."""
    hints: Any = [Float[Array, "b"]] if kind is list else {"a": Float[Array, "b"]}
    hints.append(hints) if kind is list else hints.update(b=hints)
    return hints


WRAPPERS: dict[str, Callable[[Any, Any], Any]] = {
    "list": lambda a, _: list[a],
    "tuple": lambda a, b: tuple[a, b],
    "tuple of itself": lambda a, _: tuple[a, a],
    "tuple ...": lambda a, _: tuple[a, ...],
    "dict": lambda a, _: dict[str, a],
    "dict of keys": lambda a, b: dict[a, b],
    "dict alone": lambda a, _: types.GenericAlias(dict, (a,)),
    "dict of three": lambda a, b: types.GenericAlias(dict, (str, a, b)),
    "Mapping": lambda a, _: collections.abc.Mapping[str, a],
    "Sequence": lambda a, _: collections.abc.Sequence[a],
    "union": lambda a, b: typing.Union[a, b],
    "optional": lambda a, _: typing.Optional[a],
    "list or tuple": lambda a, _: typing.Union[list[a], tuple[a, ...]],
    "Annotated": lambda a, _: Annotated[a, "note"],
    "NewType": lambda a, _: typing.NewType("N", a),
    "alias": lambda a, _: typing_extensions.TypeAliasType("Alias", a),
    "PyTree": lambda a, _: PyTree[a],
    "PyTree S": lambda a, _: PyTree[a, "S"],
    "Stacked": lambda a, _: Stacked["n", a],
    "Like": lambda a, b: Like[b, a],
    "Like any": lambda a, _: Like[Any, a],
    "list of": lambda a, b: [a, b],
    "dict of": lambda a, b: {"a": a, "b": b},
}


def wrapped(draw: random.Random, name: str, found: Any) -> tuple[str, Any]:
    """A hint in up to forty containers, which double what they hold or not."""
    times = draw.choice([1, 1, 1, 2, 2, 3, 5, 14, 40])
    for _ in range(times):
        kind = draw.choice(list(WRAPPERS))
        if times > 5:  # Python itself takes exponential time to hash a union of unions
            kind = draw.choice(["list", "tuple of itself", "dict", "tuple ...", "list of"])
        other = draw.choice(list(HINTS))
        try:
            found = WRAPPERS[kind](found, HINTS[other])
        except Exception:  # refusals of typing, and ours
            continue
        name = f"{kind}[{name}, {other}]"[:200]
    return name, found


def hint(draw: random.Random) -> tuple[str, Any]:
    """Any hint, or a string, or a hint in containers."""
    if draw.random() < 0.2:
        name = draw.choice(list(HINTS))
        return wrapped(draw, name, HINTS[name])
    if draw.random() < 0.01:
        kind = draw.choice([list, dict])
        return f"endless {kind.__name__}", endless(kind)
    name = draw.choice(list(HINTS))
    found = HINTS[name]
    kind = draw.randrange(12)
    if kind == 0:
        text = string(draw)
        return repr(text)[:80], text
    if kind == 1:
        other = draw.choice(list(HINTS))
        return f"({name}, {other})", (found, HINTS[other])
    if kind == 2:
        return f"{{'a': {name}}}", {"a": found}
    return name, found


def item(draw: random.Random) -> tuple[str, Any]:
    """What stands in the brackets of a dtype: ``Float[item]``."""
    kind, text = draw.randrange(10), string(draw)
    array_name, array_type = named(draw, ARRAY_TYPES) if kind > 4 else ("Array", Array)
    if kind == 0:
        name = draw.choice(list(HINTS))
        return name, HINTS[name]
    if kind == 1:
        name = draw.choice(list(HINTS))
        return f"{array_name}, {name}", (array_type, HINTS[name])
    if kind in (2, 3, 8):
        name = draw.choice(list(PSPECS))
        dims = draw.choice(SPECS) if draw.random() < 0.6 else text
        return f"{array_name}, {dims!r:.80}, {name}", (array_type, dims, PSPECS[name])
    if kind == 9:
        return f"{array_name}, {text!r:.80}, None, 3", (array_type, text, None, 3)
    return f"{array_name}, {text!r:.80}", (array_type, text)


# Command lines

VERBS = ["check", "explain", "chekc", "", "--help", "audit", "annotate"]
TARGETS = [
    "json", "json:dumps", "json:nothing", "nowhere", "nowhere:f", "", ":", "::", "a:b:c", "/dev/null", ".", "..",
    "pyproject.toml", "tests/nothing.py", "tests/fuzz/lines.py", "os.path:join", "\0", "\ud800", "x" * 5000, "sys:exit",
    "draws:annotated", "draws:HINTS", "draws:Layer", "draws.py", "json.py:loads", "-", "--", "\xe9",
]  # fmt: skip
FLAGS = ["--mesh", "--size", "--arg", "--devices", "--seed", "--numerics", "--explicit", "--grad", "--bandwidth",
         "--html", "--force", "--write", "--zz", "--mehs", "-m", "-h"]  # fmt: skip
WORDS = [
    "dp=4", "dp=4,tp=2", "dp=0", "dp=-1", "dp=9" + "9" * 5000, "dp=" + "9" * 18, "dp", "=", "dp=4=4", "dp=4,dp=4",
    "dp=a", "4", "b=8", "b=-8", "b=" + "9" * 5000, "b=8 s=4", "b=8,s=4", "*r=2,3", "zz=1", "x=1", "x=[1]", "x=None",
    "x=__import__('os')", "tp=400GB/s", "tp=-1GB/s", "tp=1e999GB/s", "tp=zz", "/nowhere/at/all.html", "pyproject.toml",
    "\u0664", "\xb2", "1_000", "1e3", "0x10", "nan", "True", "\0", "\ud800", "dp=4;tp=2", " dp = 4 , tp = 2 ",
]  # fmt: skip


def command_line(draw: random.Random) -> list[str]:
    """The words of a command line, most of it wrong."""
    words = [draw.choice(VERBS[:3] if draw.random() < 0.85 else VERBS)]
    words += [draw.choice(TARGETS)] if draw.random() < 0.95 else []
    words += ["--mesh", draw.choice(WORDS[:2] if draw.random() < 0.6 else WORDS)] if draw.random() < 0.8 else []
    for _ in range(draw.randint(0, 3)):
        flag, word = draw.choice(FLAGS), draw.choice(WORDS) if draw.random() < 0.8 else string(draw)
        words += draw.choice([[flag, word], [flag, word], [flag], [f"{flag}={word}"], [word]])
    return [word for word in words if not word.startswith("--write")]


# Meshes and options


def meshes(mesh: Mesh) -> Named:
    """Meshes, some of which fit nothing, and values that are not meshes."""
    devices = np.array(jax.devices())
    auto, explicit = AxisType.Auto, AxisType.Explicit
    return {
        "dp=4, tp=2": mesh,
        "None": None,
        "Explicit": Mesh(mesh.devices, ("dp", "tp"), axis_types=(explicit,) * 2),
        "both kinds": Mesh(mesh.devices, ("dp", "tp"), axis_types=(auto, explicit)),
        "dp=8": Mesh(devices, ("dp",)),
        "dp=3": Mesh(devices[:3], ("dp",)),
        "one device": Mesh(devices[:1].reshape(1, 1), ("dp", "tp")),
        "other axes": Mesh(mesh.devices, ("x", "y")),
        "odd names": Mesh(mesh.devices, ("a b", "[/]")),
        "numbers for names": Mesh(mesh.devices, (0, 1)),
        "a tuple for a name": Mesh(mesh.devices, (("dp", "tp"), "x")),
        "no dims": Mesh(devices[0], ()),
        "empty": Mesh(np.empty((), dtype=object), ()),
        "abstract": AbstractMesh((4, 2), ("dp", "tp"), axis_types=(auto,) * 2),
        "abstract Explicit": AbstractMesh((4, 2), ("dp", "tp"), axis_types=(explicit,) * 2),
        "abstract of its own": mesh.abstract_mesh,
        "abstract empty": AbstractMesh((), ()),
        "abstract of 0": AbstractMesh((0, 2), ("dp", "tp"), axis_types=(auto,) * 2),
        "abstract huge": AbstractMesh((2**20, 2), ("dp", "tp"), axis_types=(auto,) * 2),
        "text": "dp",
        "8": 8,
        "dict": {"dp": 4},
        "devices": jax.devices(),
        "class": Mesh,
        "sharding": NamedSharding(mesh, P()),
        "raises": Raises(),
        "array": mesh.devices,
    }


NAMINGS: Named = {
    "rules": typedshmap.axis_rules([("b", "dp")], fallback="error"),
    **by_repr([
        None, {}, {"dp": "tp"}, {"dp": "dp", "tp": "tp"}, {"dp": "tp", "tp": "dp"}, {"dp": ("dp", "tp"), "tp": None},
        {"dp": "zz"}, {"dp": ("dp", "dp")}, {"dp": ()}, {"dp": ["dp", "tp"]}, {"dp": 3}, {3: "dp"}, {None: None},
        {"dp": (("dp",), "tp")}, {"b": "dp", "s": "tp"}, [("b", "dp"), ("s", ("tp",)), ("b", None)], (("b", "dp"),),
        [("b", "dp", "tp")], "dp", ["b", "dp"], {("b", "dp")}, 3, (pair for pair in [("b", "dp")]), Raises(),
        {"b": Raises()}, {"b": [["dp"]]}, {"b": {"dp"}}, {"": ""}, {"b": P("dp")}, typedshmap.axis_aliases(b="dp"),
        {"b": b"dp"},
    ]),
}  # fmt: skip
AXIS_NAMES = by_repr([
    set(), {"dp"}, frozenset({"tp"}), {"zz"}, {3}, {"dp", 3}, {None}, ["dp"], "dp", None, {"dp": 4}, Raises(),
    {("dp", "tp")},
])  # fmt: skip
SIZES: Named = {
    "10**5000": 10**5000,
    "-10**5000": -(10**5000),
    **by_repr([
        10**30, 2**62, 8, 0, -1, 6, 2**70, True, 1.5, float("nan"), None, "8", (2, 4), ("a",), [8], np.int64(8),
        np.ones(3, int), np.array(8), Raises(), object(),
    ]),
}  # fmt: skip


WRITTEN_MESHES = by_repr([
    "dp=4,tp=2", "dp=2,tp=2", "dp=2", "dp=0,tp=2", "dp,tp", "", {"dp": 4, "tp": 2}, {"dp": "4"}, {}, [],
    ["dp=2,tp=2", "dp=4"], 3,
])  # fmt: skip


def named(draw: random.Random, pool: Named, likely: str | None = None) -> tuple[str, Any]:
    """One of a pool; often the one that is likely to be right."""
    name = likely if likely is not None and draw.random() < 0.5 else draw.choice(list(pool))
    return name, pool[name]
