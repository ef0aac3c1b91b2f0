"""What each cache that a call goes through is worth: the calls of Python with it and without it.

    python bench/caches.py                          the caches of hints, typed_jit, and what is read before a call
    python bench/caches.py --rooms inference _jax   those of other rooms
    python bench/caches.py --write docs/benchmarks.md

A cache is taken away, everything is decorated anew, and each program below runs until what is cached is cached; then
the calls that Python makes are counted, as by the rows of `costs`. A cache is printed with the program that it is worth
most to. Under 5 % it is not worth its lines.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import programs
import unrolled
from costs.caches_section import write_caches
from costs.meshes import make_mesh
from costs.tracing import calls, trace
from forms import FORMS
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, PyTree, assume, check, einsum, shard, typed, typed_jit, typed_shard_map
from typedshmap.hints import context, parse_hint
from typedshmap.jit import call

WORTH = 1.05
ROOMS = ("hints", "jit", "meshes", "axis_names", "notation")
"""Rooms whose caches a call goes through before a body is analyzed."""


class Forgets(dict[Any, Any]):
    """A cache that keeps nothing."""

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def setdefault(self, key: Any, default: Any = None) -> Any:
        return default


class ForgetsMembers(set[Any]):
    """A set that keeps nothing."""

    def add(self, member: Any) -> None: ...


class Cache(NamedTuple):
    """A cache by its name, and a context without it."""

    name: str
    without: Callable[[], contextlib.AbstractContextManager[Any]]


def modules() -> list[Any]:
    return [module for name, module in sorted(sys.modules.items()) if name.startswith("typedshmap.")]


def of_functions(rooms: Sequence[str]) -> Iterator[Cache]:
    """The functions, methods and properties that keep their results."""
    for module in modules():
        if module.__name__.split(".")[1] not in rooms:
            continue
        short = module.__name__.removeprefix("typedshmap.")
        classes = [cls for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == module.__name__]
        for name, value in list(vars(module).items()):
            if hasattr(value, "cache_info") and value.__module__ == module.__name__:
                yield Cache(f"{short}.{name}", partial(without_function, value))
        for cls in classes:
            for name, value in list(vars(cls).items()):
                if (plain := uncached(value)) is not None:
                    yield Cache(f"{short}.{cls.__name__}.{name}", partial(mock.patch.object, cls, name, plain))


def uncached(member: Any) -> Any:
    """A method or a property of a class that keeps nothing; None if the member has no cache."""
    if isinstance(member, functools.cached_property):
        return property(member.func)
    if isinstance(member, property) and hasattr(member.fget, "cache_info"):
        return property(member.fget.__wrapped__)
    if isinstance(member, classmethod) and hasattr(member.__func__, "cache_info"):
        return classmethod(member.__func__.__wrapped__)
    return member.__wrapped__ if hasattr(member, "cache_info") else None


@contextlib.contextmanager
def without_function(function: Any) -> Iterator[None]:
    """Replace a function that keeps its results, wherever it is imported."""
    with contextlib.ExitStack() as stack:
        for module in modules():
            for name, value in list(vars(module).items()):
                if value is function:
                    stack.enter_context(mock.patch.object(module, name, function.__wrapped__))
        yield


@contextlib.contextmanager
def without_field(cls: Any, field: str, empty: Callable[[], Any] = Forgets) -> Iterator[None]:
    """Let a field of all new instances keep nothing."""
    make = getattr(cls, "_make_class", None)
    if make is not None:
        make()
    before = cls.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        object.__setattr__(self, field, empty())

    with mock.patch.object(cls, "__init__", init):
        yield


@contextlib.contextmanager
def without_fits() -> Iterator[None]:
    """Keep nothing of what fits its hints."""
    with contextlib.ExitStack() as stack:
        for module in modules():
            if hasattr(module, "keep_fit"):
                stack.enter_context(mock.patch.object(module, "keep_fit", lambda *_: None))
        yield


FIELDS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "hints.context.MeshContext.plans": partial(without_field, context.MeshContext, "plans"),
    "hints.context.CallScope.cached": lambda: mock.patch.object(
        context.CallScope, "cached", property(lambda self: None, lambda self, value: None), create=True
    ),
    "hints.fitting.keep_fit": without_fits,
    "hints.parse_hint._trees": lambda: mock.patch.object(parse_hint, "_trees", Forgets()),
    "jit.call.JitFunction._known_calls": partial(without_field, call.JitFunction, "_known_calls"),
    "jit.call.JitFunction._trusted": partial(without_field, call.JitFunction, "_trusted"),
}

BATCH = P("dp")
Wide, Long = Float[Array, "[b/dp] d"], Float[Array, "d [f/tp]"]


def placed(*shape: int, spec: P = BATCH) -> Any:
    return jax.device_put(jnp.ones(shape), NamedSharding(make_mesh(4, 2), spec))


def first(x: Wide, w: Long) -> Wide:
    return x


def jitted() -> Callable[[], Any]:
    """A call of a typed_jit like all before."""
    return partial(typed_jit(first, mesh=make_mesh(4, 2)), placed(8, 16), placed(16, 8, spec=P(None, "tp")))


def jitted_in_two_shapes() -> Callable[[], Any]:
    """Calls of a typed_jit with two shapes by turns."""
    f, w = typed_jit(first, mesh=make_mesh(4, 2)), placed(16, 8, spec=P(None, "tp"))
    short, long = placed(8, 16), placed(16, 16)
    return lambda: (f(short, w), f(long, w))


def jitted_with_donation() -> Callable[[], Any]:
    """A call of a typed_jit that gives a buffer away, with an argument that stands still."""
    f = typed_jit(first, mesh=make_mesh(4, 2), donate_argnames="x")
    held, w = [placed(8, 16)], placed(16, 8, spec=P(None, "tp"))

    def run() -> None:
        held[0] = f(held[0], w)

    return run


def of_many_leaves(leaves: list[Wide]) -> Wide:
    return leaves[0]


def jitted_of_many() -> Callable[[], Any]:
    """A call of a typed_jit that takes 300 leaves, in two lengths by turns."""
    f = typed_jit(of_many_leaves, mesh=make_mesh(4, 2))
    leaves = [placed(8, 4)] * 300
    return lambda: (f(leaves), f(leaves[:-1]))


def eager() -> Callable[[], Any]:
    """A call of a typed_shard_map outside of jit."""
    return partial(typed_shard_map(first, mesh=make_mesh(4, 2)), placed(8, 16), placed(16, 8, spec=P(None, "tp")))


def boundary() -> Callable[[], Any]:
    """The trace of a typed_shard_map that takes 300 leaves."""
    weights = unrolled.shapes(37, m=4096, heads=64, ff=4096)

    def norm(weights: unrolled.Weights) -> Float[Array, " m"]:
        return weights.before_head

    f = typed_shard_map(norm, mesh=make_mesh(4, 2))
    return lambda: jax.eval_shape(lambda weights: f(weights), weights)


def by_specs() -> Callable[[], Any]:
    """The same with in_specs and out_specs."""
    weights = unrolled.shapes(37, m=4096, heads=64, ff=4096)
    f = typed_shard_map(
        lambda weights: weights.before_head, mesh=make_mesh(4, 2), in_specs=(unrolled.specs(37),), out_specs=P()
    )
    return lambda: jax.eval_shape(lambda weights: f(weights), weights)


def checked() -> Callable[[], Any]:
    """`check` of an array outside of jit."""
    return partial(check, placed(8, 16), Wide)


def checked_dims() -> Callable[[], Any]:
    """`check` of an array by its dims as text."""
    return partial(check, placed(8, 16), "[b/dp] d")


def checked_tree() -> Callable[[], Any]:
    """`check` of a tree of placed arrays."""
    return partial(check, shard_tree()(), unrolled.Weights)


def isinstance_of() -> Callable[[], Any]:
    """`isinstance` of an array outside of jit."""
    return partial(isinstance, placed(8, 16), Wide)


def in_body(run: Callable[..., Any]) -> int:
    """The calls of something that is done again in a body while it is traced."""
    counted: list[int] = []

    def body(x: Wide, w: Long) -> Wide:
        counted.append(calls(partial(run, x, w)))
        return x

    shapes = jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((16, 8), "float32")
    jax.eval_shape(typed_shard_map(body, mesh=make_mesh(4, 2)), *shapes)
    return counted[0]


def helper() -> int:
    """A call of a typed helper in a body."""
    return in_body(typed(first))


def helper_of_tree() -> int:
    """A call of a typed helper that takes a list, in a body."""
    f = typed(of_many_leaves)
    return in_body(lambda x, w: f([x, x, x]))


def checked_in_body() -> int:
    """`check` of a value in a body."""
    return in_body(lambda x, w: check(x, Wide))


def assumed_in_body() -> int:
    """`assume` of a value in a body."""
    return in_body(lambda x, w: assume(x, Wide))


def product_in_body() -> int:
    """A product by a pattern in a body."""
    return in_body(lambda x, w: einsum(x, w, "[b/dp] d, d [f/tp] -> [b/dp] [f/tp]"))


def lowered_of_many() -> Callable[[], Any]:
    """The trace of a typed_jit that takes 300 leaves, which is checked at every call."""
    f = typed_jit(of_many_leaves, mesh=make_mesh(4, 2))
    return lambda: f.trace([placed(8, 4)] * 300)


def jitted_in_gradient() -> Callable[[], Any]:
    """A call of a typed_jit under `jax.vjp`, which is checked at every call."""
    f, w = typed_jit(first, mesh=make_mesh(4, 2)), placed(16, 8, spec=P(None, "tp"))
    return lambda: jax.vjp(partial(f, w=w), placed(8, 16))


def isinstance_of_tree() -> Callable[[], Any]:
    """`isinstance` of a list of arrays outside of jit."""
    return partial(isinstance, [placed(8, 16)], PyTree[Wide])


def static() -> Callable[[], Any]:
    """A typed function whose arguments hold no arrays."""

    @typed
    def f(rate: float, names: dict[str, int]) -> float:
        return rate

    return partial(f, 0.5, {"a": 1})


def shard_tree() -> Callable[[], Any]:
    """`shard` of a tree of NumPy arrays."""
    weights = jax.tree.map(lambda shape: np.ones(shape.shape, shape.dtype), unrolled.shapes(4, m=8, heads=2, ff=8))
    return lambda: shard(weights, unrolled.Weights, make_mesh(4, 2))


def traced(form: str) -> Callable[[], Any]:
    """The trace of a forward pass of four layers, scanned and unrolled."""
    pairs = [programs.inference(make_mesh(4, 2), 4, FORMS[form](), is_scanned) for is_scanned in (False, True)]
    return lambda: [trace(pair.typed, pair.args) for pair in pairs]


PROGRAMS: dict[str, Callable[[], Any]] = {
    "typed helper": helper,
    "typed helper, list": helper_of_tree,
    "check in a body": checked_in_body,
    "assume in a body": assumed_in_body,
    "einsum in a body": product_in_body,
    "typed_jit, 300 leaves, trace": lowered_of_many,
    "typed_jit in a gradient": jitted_in_gradient,
    "isinstance, tree": isinstance_of_tree,
    "typed_jit": jitted,
    "typed_jit, two shapes": jitted_in_two_shapes,
    "typed_jit, donated": jitted_with_donation,
    "typed_jit, 300 leaves": jitted_of_many,
    "typed_shard_map": eager,
    "boundary of 300 leaves": boundary,
    "the same by specs": by_specs,
    "check": checked,
    "check, dims": checked_dims,
    "check, tree": checked_tree,
    "isinstance": isinstance_of,
    "typed, static": static,
    "shard, tree": shard_tree,
    "trace, typed helpers": partial(traced, "checked by our hints"),
    "trace, patterns": partial(traced, "in patterns"),
}


def forget_all() -> None:
    """Empty all caches of functions, so that nothing made before is used."""
    for module in modules():
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    if hasattr(context.MeshContext.over, "cache_clear"):
        context.MeshContext.over.cache_clear()


def counts(names: list[str]) -> dict[str, int]:
    forget_all()
    made = {name: PROGRAMS[name]() for name in names}
    return {name: calls(run) if callable(run) else run for name, run in made.items()}


class Worth(NamedTuple):
    """What a cache is worth to the program that it is worth most to, in calls of Python."""

    cache: str
    program: str
    held: int
    without: int

    @property
    def ratio(self) -> float:
        return self.without / self.held


def measure(rooms: Sequence[str], only: str, names: list[str]) -> Iterator[Worth]:
    """What each cache of some rooms is worth."""
    before = counts(names)
    in_fields = (Cache(name, without) for name, without in FIELDS.items() if name.split(".")[0] in rooms)
    for cache in (*in_fields, *of_functions(rooms)):
        if only in cache.name:
            with cache.without():
                without = counts(names)
            yield max(
                (Worth(cache.name, name, before[name], without[name]) for name in names), key=lambda worth: worth.ratio
            )


INTRODUCTION = """
`python bench/caches.py` counts the calls of Python without each cache that a call goes through. Most are lost without:

"""
MOST_ON_PAGE = 6


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", nargs="+", default=ROOMS, metavar="ROOM", help=f"by default {' '.join(ROOMS)}")
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS, metavar="PROGRAM")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the caches whose name has this text")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write those worth most at the end of a page")
    options = parser.parse_args(arguments)
    print(f"{'cache':50} {'with':>9} {'without':>9}  ratio  program")
    found: list[Worth] = []
    for worth in measure(options.rooms, options.only, options.programs):
        says = "" if worth.ratio >= WORTH else "  not worth it"
        numbers = f"{worth.held:9,} {worth.without:9,} {worth.ratio:6.2f}"
        print(f"{worth.cache:50} {numbers}  {worth.program}{says}", flush=True)
        found += [worth] if worth.ratio >= WORTH else []
    if options.write:
        found.sort(key=lambda worth: -worth.ratio)
        rows = [
            f"- `{worth.cache}`: {worth.ratio:.1f} times the calls ({worth.program})\n"
            for worth in found[:MOST_ON_PAGE]
        ]
        write_caches(options.write, "".join([INTRODUCTION, *rows]))


if __name__ == "__main__":
    main()
