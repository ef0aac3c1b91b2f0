"""Calls of every public function with what was drawn: each room of the library has a maker of calls.

No call computes anything large: a body raises `Own` as soon as it is reached, so that nothing is compiled.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import draws
import jax
import numpy as np
from draws import HINTS, NAMINGS, PATTERNS, RIGHT_HINTS, SIZES, Own, named, string
from escapes import Case, Tally
from jax.sharding import Mesh

import typedshmap
from typedshmap import (
    Array,
    Float,
    Int,
    Like,
    PyTree,
    Stacked,
    axis_aliases,
    axis_rules,
    check,
    explain,
    from_callback,
    from_process_local,
    partition_specs,
    plan_reshard,
    shape_structs,
    shard,
    shard_size,
    shardings,
    size,
    sizes,
    typed,
    typed_jit,
    typed_shard_map,
)
from typedshmap.testing import assert_mesh_invariant, inputs, strategies
from typedshmap.tools.cli.main import main

PATTERN_VERBS = [
    "rearrange", "repeat", "reshard", "all_gather", "all_to_all", "logsumexp",
    "psum", "pmean", "pmax", "pmin", "psum_scatter",
]  # fmt: skip
REDUCTIONS = ["sum", "mean", "max", "min", "prod", "any", "all", "", "median", None, 3, np.sum]


Drawn = tuple[str, Any]
"""A name for the report of a failure, and the thing."""


def call(verb: Callable[..., Any], *args: Drawn, given: Drawn = ("", {}), **options: Drawn) -> Case:
    """A call of what was drawn."""
    texts = [*(text for text, _ in args), *(f"{name}={text}" for name, (text, _) in options.items())]
    keywords = {name: value for name, (_, value) in options.items()} | given[1]
    values = [value for _, value in args]
    return f"{verb.__name__}({', '.join([*texts, given[0]])})", lambda: verb(*values, **keywords)


def body(*args: Any, **kwargs: Any) -> Any:
    """A body that is reached only by a call that is right."""
    raise Own("the body")


class Drawer:
    """Makes calls from what it draws; the same seed makes the same calls."""

    def __init__(self, seed: int, mesh: Mesh) -> None:
        self.draw = random.Random(seed)
        self.mesh = mesh
        self.values, self.meshes = draws.values(mesh), draws.meshes(mesh)

    def value(self) -> tuple[str, Any]:
        return named(self.draw, self.values, self.draw.choice(["f32[8,16]", "f32[8,16] of JAX", "f32[16,32]"]))

    def value_in_region(self) -> tuple[str, Any]:
        """A value from outside, but none on Explicit axes, over which JAX lets no region close."""
        name, value = self.value()
        return (name, value) if name != "on Explicit axes" else ("None", None)

    def any_mesh(self) -> tuple[str, Any]:
        return named(self.draw, self.meshes, "dp=4, tp=2")

    def hint(self) -> tuple[str, Any]:
        return draws.hint(self.draw)

    def options(self) -> tuple[str, draws.Named]:
        """``mesh=``, ``axes=`` and ``rules=``, most of them left out."""
        pools = {"mesh": self.meshes, "axes": NAMINGS, "rules": NAMINGS}
        return self._some(pools, {"mesh": "dp=4, tp=2"})

    def _some(self, pools: dict[str, draws.Named], likely: dict[str, str]) -> tuple[str, draws.Named]:
        found, texts = {}, []
        for option, pool in pools.items():
            if option in likely or self.draw.random() < 0.25:
                text, found[option] = named(self.draw, pool, likely.get(option))
                texts.append(f"{option}={text}")
        return ", ".join(texts), found

    def some_sizes(self) -> tuple[str, draws.Named]:
        found, texts = {}, []
        for _ in range(self.draw.randint(0, 3)):
            name = self.draw.choice(
                ["b", "s", "m", "f", "q", "k", "r", "d", "h", "zz", "layers", "n", "b s", "", "hint"]
            )
            text, found[name] = named(self.draw, SIZES, "8")
            texts.append(f"{name}={text}")
        return ", ".join(texts), found

    # Hints

    def dtype_item(self) -> Case:
        name = self.draw.choice(["Float", "Int", "Shaped", "Key", "Bool", "Float8e5m2", "Complex64"])
        text, item = draws.item(self.draw)
        return f"{name}[{text}]", lambda: getattr(typedshmap, name)[item]

    def tree_item(self) -> Case:
        text, hint = self.hint()
        _, other = self.hint()
        if self.draw.random() < 0.4:
            return f"PyTree[{text}]", lambda: PyTree[hint]
        if self.draw.random() < 0.5:
            name = self.draw.choice(["S", "", "a b", 3, None, "?", other])
            return f"PyTree[{text}, {shown(name)}]", lambda: PyTree[hint, name]
        if self.draw.random() < 0.3:
            value_text, value = named(self.draw, self.values, "f32[8,16]")
            return f"Like[{shown(other)}, {text}] {value_text}", lambda: shape_structs(Like[other, hint], like=value)
        dims = self.draw.choice([string(self.draw), other])
        return f"Stacked[{shown(dims)}, {text}]", lambda: shape_structs(Stacked[dims, hint])

    # Checks

    def check_string(self) -> Case:
        return call(check, named(self.draw, self.values, "f32[8,16]"), as_shown(string(self.draw)))

    def check_hint(self) -> Case:
        (text, hint), value = self.hint(), self.value()
        if self.draw.random() < 0.1:
            return f"isinstance({value[0]}, {text})", lambda: isinstance(value[1], _class(hint))
        return call(check, value, (text, hint))

    def asked_size(self) -> Case:
        verb = self.draw.choice([size, shard_size])
        name = string(self.draw) if self.draw.random() < 0.6 else self.value()[1]

        def ask(x: Any) -> Any:
            sizes()
            return verb(name)

        if self.draw.random() < 0.5:
            return call(verb, as_shown(name))
        hints = {"x": Float[Array, self.draw.choice(["b s", "*r s", "[b/dp] s"])]}
        ask.__annotations__ = hints
        return f"{verb.__name__}({shown(name)}) under {hints}", lambda: typed(ask)(self.values["f32[8,16]"])

    # Decorated functions

    def decorated(self) -> Case:
        verb = self.draw.choice([typed, typed_shard_map, typed_jit])
        text, hint = self.hint()
        out_text, out = self.hint()
        options_text, options = self.options()
        if self.draw.random() < 0.1:
            text, function = named(self.draw, {name: one for name, one in self.values.items() if _is_no_function(one)})
        elif verb is typed_shard_map and self.draw.random() < 0.5:
            function = body
            options |= {"in_types": self.draw.choice([(hint,), (hint, hint), hint, [hint]]), "out_types": out}
        else:
            function = annotated(x=_evaluated(hint), result=_evaluated(out))
        return self._decorate(verb, f"{text} -> {out_text}", function, options_text, options)

    def _decorate(self, verb: Any, text: str, function: Any, options_text: str, options: draws.Named) -> Case:
        if verb is typed:
            options.pop("mesh", None)
        if verb is typed_shard_map and self.draw.random() < 0.3:
            name, options["axis_names"] = named(self.draw, draws.AXIS_NAMES)
            options_text += f", axis_names={name}"
        if verb is typed_shard_map and self.draw.random() < 0.2:
            options["check_vma"] = False
        # A parameter of a typed_jit that is hinted Any is left to JAX, and so is what it says of it.
        value_text, value = self.value() if verb is not typed_jit else ("f32[8,16]", self.values["f32[8,16]"])
        called = self.draw.choice([(value,), (value,), (value,), (), (value, value)])
        return (
            f"{verb.__name__}({text}; {options_text})({value_text} x {len(called)})",
            lambda: verb(function, **options)(*called),
        )

    def mapped(self) -> Case:
        """A call of a right function with what is mostly wrong."""
        verb = self.draw.choice([typed, typed_shard_map, typed_jit])
        # A parameter of a typed_jit that is hinted Any is left to JAX, and so is what it says of it.
        name, hint = named(self.draw, RIGHT_HINTS if verb is typed_jit else RIGHT_HINTS | {"Any": Any})
        function = annotated(x=hint, y=Float[Array, "s"], result=Float[Array, "[b/dp] s"])
        options = {} if verb is typed else {"mesh": self.mesh}
        value_text, value = named(self.draw, self.values)
        other_text, other = named(self.draw, self.values, "f32[8]")
        keywords = self.draw.choice([{}, {}, {"y": other}, {"zz": 1}, {"x": value}])
        args = (value,) if "y" in keywords or self.draw.random() < 0.05 else (value, other)
        return (
            f"{verb.__name__}({name}, s)({value_text}, {other_text}; {list(keywords)})",
            lambda: verb(function, **options)(*args, **keywords),
        )

    def jit_option(self) -> Case:
        # Other options are jax.jit's, and so is what it says of them.
        name = self.draw.choice(
            ["static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "in_shardings", "out_shardings"]
        )
        text, value = named(self.draw, self.draw.choice([self.values, HINTS, SIZES]))
        if self.draw.random() < 0.4:
            text, value = self.draw.choice(
                [("x", "x"), ("0", 0), ("(0, 1)", (0, 1)), ("-1", -1), ("('y',)", ("y",)), ("7", 7)]
            )
        function = annotated(x=Float[Array, "[b/dp] s"], y=Float[Array, "s"], result=Float[Array, "b"])
        args = (self.values["f32[8,16]"], self.values["f32[8]"])
        return (f"typed_jit({name}={text})", lambda: typed_jit(function, mesh=self.mesh, **{name: value})(*args))

    # Names

    def naming(self) -> Case:
        text, value = self.draw.choice([*NAMINGS.items(), *self.values.items()])
        hint_text, hint = self.hint()
        kind = self.draw.randrange(4)

        def inside(context: Any) -> Any:
            with context:
                return partition_specs(hint)

        if kind == 0:
            fallback = self.draw.choice(["unsharded", "error", "zz", None, 3])
            return f"axis_rules({text}, {fallback}): {hint_text}", lambda: inside(axis_rules(value, fallback))
        if kind == 1:
            return f"axis_aliases(b={text}): {hint_text}", lambda: inside(axis_aliases(b=value))
        if kind == 2:
            return f"axis_rules({{b: {text}}}): {hint_text}", lambda: inside(axis_rules({"b": value}))
        return f"axis_aliases({text}): {hint_text}", lambda: inside(axis_aliases(value))

    def command(self) -> Case:
        """A command line: it ends with one of its exit codes, and what is wrong is one short message."""
        words = draws.command_line(self.draw)

        def call() -> None:
            out, err = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                try:
                    code = main(words)
                except SystemExit as ended:  # of argparse
                    code = ended.code
            assert code in (0, 1, 2), code
            assert "Traceback" not in err.getvalue() + out.getvalue(), err.getvalue()
            if code == 2:
                raise typedshmap.StructureError(err.getvalue())

        return f"typedshmap {shown(words)}", call

    # Placement

    def placed(self) -> Case:
        hint, mesh, value, given = self.hint(), self.any_mesh(), self.value(), self.some_sizes()
        return self.draw.choice([
            call(partition_specs, hint),
            call(partition_specs, hint, like=value),
            call(partition_specs, value),
            call(shardings, hint, mesh),
            call(shardings, hint, mesh, like=value),
            call(shape_structs, hint, mesh, given=given),
            call(shard, value, hint, mesh),
            call(shard, value),
            call(from_process_local, value, hint, mesh, given=given),
            call(from_callback, (value[0], _callback(value[1])), hint, mesh, given=given),
        ])  # fmt: skip

    # Tools

    def tool(self) -> Case:
        """Inputs, an explanation or a comparison of meshes, of a function whose hints, sizes and meshes are drawn."""
        function = self.decorated_one()
        mesh = named(self.draw, draws.WRITTEN_MESHES) if self.draw.random() < 0.5 else self.any_mesh()
        text, given = self.some_sizes()
        given.pop("hint", None)
        if self.draw.random() < 0.4:
            name = self.draw.choice(["x", "y", "x.a", "zz"])
            value_text, value = self.value()
            given["arguments"] = self.draw.choice([{name: value}, {name: lambda key, shape: value}, value])
            text += f", arguments={name}: {value_text}"
        over = {"meshes" if isinstance(mesh[1], list | tuple) else "mesh": mesh}
        explained, value = self._explained_with_options(function), self.value()
        option = self.draw.choice(["meshes", "exclude", "seed", "trials", "rtol", "atol", "manual"])
        compared = {"meshes": (mesh[0], [mesh[1]]), option: value}
        several = ("several", [mesh[1], self.mesh])
        return self.draw.choice([
            call(inputs, function, mesh=mesh, given=(text, given)),
            call(strategies, function, mesh=mesh, given=(text, given)),
            call(explain, function, **over, given=(text, given)),
            call(explain, function, meshes=several, given=(text, given)),
            explained,
            call(assert_mesh_invariant, function, **compared, given=(text, given)),
        ])  # fmt: skip

    def decorated_one(self) -> tuple[str, Any]:
        """A function that a decorator takes, or something else."""
        verb = self.draw.choice([typed, typed_shard_map, typed_jit])
        text, hint = named(self.draw, RIGHT_HINTS)
        function = annotated(x=hint, y=Float[Array, "s"], result=Float[Array, "[b/dp] s"])
        options = {"mesh": self.mesh} if verb is not typed and self.draw.random() < 0.5 else {}
        if self.draw.random() < 0.1:
            return self.value()
        return f"{verb.__name__}({text}, s)", verb(function, **options)

    def _explained_with_options(self, function: Drawn) -> Case:
        option, (text, value) = self.draw.choice(["bandwidth", "args", "grad"]), self.value()
        mesh = ("dp=4, tp=2", self.mesh)
        if option == "args" and not callable(value):
            return call(explain, function, (text, value), mesh=mesh)
        if option == "bandwidth":
            value = self.draw.choice([value, {"dp": value}, {"tp": "400GB/s"}, {"zz": 1}, {3: 4}])
        return call(explain, function, mesh=mesh, **{option: (text, value)})

    # Operations

    def operation(self) -> Case:
        return self.operation_on(*self.value())

    def plan(self) -> Case:
        shape = self.draw.choice(
            [(8, 16), (8,), (), (6, 16), (0, 0), [8, 16], (2**70, 8), (8.0,), ("a",), None, "8", 8]
        )
        return call(plan_reshard, as_shown(string(self.draw, PATTERNS)), as_shown(shape), self.any_mesh())

    def in_region(self, text: str, value: Any) -> Case:
        """An operation, a check or a size, on a value in a manual region."""
        kind, pattern = self.draw.randrange(10), string(self.draw)
        if kind == 0:
            return call(check, (text, value), as_shown(pattern))
        if kind == 1:
            return call(check, (text, value), self.hint())
        if kind == 2:
            name = pattern if self.draw.random() < 0.7 else self.draw.choice(["b", "s", "[b/dp]", "[s/tp]", "f"])
            return f"shard_size({shown(name)})", lambda: (size(name), shard_size(name))
        return self.operation_on(text, value)

    def operation_on(self, text: str, value: Any) -> Case:
        """An operation on one value; its pattern, its sizes and its other operands are drawn."""
        draw = self.draw
        pattern = string(draw, PATTERNS) if draw.random() < 0.92 else self.value()[1]
        one, other, what = (text, value), self.value(), as_shown(pattern)
        verb = draw.choice([*PATTERN_VERBS, "reduce", "einsum", "take", "softmax", "ppermute"])
        function, given = getattr(typedshmap, verb), self.some_sizes() if draw.random() < 0.4 else ("", {})
        given[1].pop("hint", None)
        match verb:
            case "reduce":
                return call(function, one, what, as_shown(draw.choice(REDUCTIONS)), given=given)
            case "einsum":
                return call(function, *draw.choice([(one, other), (one,), (one, other, one), ()]), what)
            case "take":
                return call(function, one, other, what)
            case "softmax":
                dims = draw.choice(["s", "b", "b s", "", "zz", 3, None, ("s",), "(b s)", "[s/tp]"])
                return call(function, one, what, as_shown(dims))
            case "ppermute":
                shift, axis = (
                    draw.choice([1, -1, 0, 2**70, 1.5, None, "1", True]),
                    draw.choice([None, "dp", "zz", 3, ("dp",)]),
                )
                return call(function, one, what, shift=as_shown(shift), axis=as_shown(axis))
            case "rearrange" | "repeat":
                return call(function, one, what, given=given)
            case "psum" | "pmean" | "pmax" | "pmin":
                axes = draw.choice([pattern, "dp", ("dp", "tp"), ["dp"], (), "zz", 3, None, {"dp"}, ("dp", 3)])
                return call(function, one, as_shown(axes))
            case _:
                return call(function, one, what)


def annotated(x: Any, result: Any, y: Any = None) -> Any:
    """A function of one or two parameters with these hints, which is reached only by a call that is right."""

    def one(x: Any) -> Any:
        raise Own("the body")

    def two(x: Any, y: Any) -> Any:
        raise Own("the body")

    function, more = (one, {}) if y is None else (two, {"y": y})
    function.__annotations__ = {"x": x, **more, "return": result}
    return function


def _is_no_function(thing: Any) -> bool:
    return thing is not None and not callable(thing)


def _evaluated(hint: Any) -> Any:
    """A hint as an annotation, where Python evaluates a string: no tower of powers, which takes it for ever."""
    return hint.replace("*", "")[:200] if isinstance(hint, str) else hint


def shown(thing: Any) -> str:
    """A thing in the report of a failure, where it can be shown at all."""
    try:
        return repr(thing)[:80]
    except Exception:
        return f"a {type(thing).__name__}"


def as_shown(thing: Any) -> Drawn:
    return shown(thing), thing


def _class(hint: Any) -> Any:
    return hint if isinstance(hint, type) and hasattr(hint, "__node__") else Float[Array, "b s"]


def _callback(value: Any) -> Any:
    def callback(*args: Any) -> Any:
        if value is None:
            raise Own("the callback")
        return value

    return value if isinstance(value, (str, int)) else callback


def tally_in_regions(drawer: Drawer, regions: int, each: int, check_vma: bool) -> Tally:
    """Operations and checks on the shards of bodies, each of which is traced once."""
    found = Tally()
    for _ in range(regions):
        found.run(("a body", lambda: _trace(drawer, found, each, check_vma)))
    return found


def _trace(drawer: Drawer, found: Tally, count: int, check_vma: bool) -> None:
    draw = drawer.draw

    def many(x: Float[Array, "[b/dp] [s/tp]"], w: Float[Array, "[s/tp] f"], ids: Int[Array, "[b/dp]"]) -> None:
        summed = jax.lax.psum(x, "tp")
        shards = {"x": x, "w": w, "ids": ids, "x summed": summed, "row": x[0], "w and ids": {"a": w, "b": ids}}
        for _ in range(count):
            text, value = named(draw, shards) if draw.random() < 0.8 else drawer.value_in_region()
            found.run(drawer.in_region(text, value))

    arrays = np.ones((8, 16), np.float32), np.ones((16, 32), np.float32), np.zeros(8, np.int32)
    jax.eval_shape(typed_shard_map(many, mesh=drawer.mesh, check_vma=check_vma), *arrays)
