"""Programs drawn at random, of one step a line, in which collectives are missing or over another axis.

On one device a collective is the identity, so there each computes what it means.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

from cures import BEGINNING

Dims = tuple[tuple[str, str], ...]
"""Each dim with the mesh axis that it is sharded over, or none."""

ARGUMENTS: dict[str, Dims] = {
    "x": (("b", "dp"), ("k", "tp")),
    "w": (("k", "tp"), ("n", "")),
    "u": (("b", "dp"), ("n", "")),
    "c": (("n", ""),),
}
FUNCTIONS = ("jnp.tanh({})", "{} * 2.0", "{} + 1.0", "-{}", "{} ** 2", "jax.nn.relu({})", "jnp.exp({} * 0.1)")
LINEAR = ("{} * 2.0", "-{}")
CALLS = ("jax.jit({})", "jax.checkpoint({})")
COLLECTIVES = {"sum": "psum", "mean": "pmean", "max": "pmax", "min": "pmin"}
LENGTHS = {"dp": 4, "tp": 2}


class Value(NamedTuple):
    """A value of a program.

    Attributes:
      dims: its dims.
      due: by mesh axis, what each shard has of it: the ``sum``, ``mean``, ``max`` or ``min`` of its part; "" for none
        of these.
    """

    dims: Dims
    due: dict[str, str]


def text(dims: Dims) -> str:
    """``[b/dp] n``"""
    return " ".join(f"[{name}/{axis}]" if axis else name for name, axis in dims)


class Drawing:
    """A program that is drawn line by line.

    Attributes:
      values: those so far, the latest last.
      counts_shard: whether what its sums are divided by counts a shard's elements.
      has_vma: whether it is typed by JAX.
    """

    def __init__(self, seed: int, has_vma: bool) -> None:
        self.has_vma = has_vma
        self.rng = random.Random(seed)
        self.values = {name: Value(dims, {}) for name, dims in ARGUMENTS.items()}
        self.counts_shard, self.lines = self.rng.random() < 0.5, list[str]()

    def add(self, expression: str, dims: Dims, due: dict[str, str]) -> str:
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        self.values[name] = Value(dims, due)
        return name

    def pick(self, is_right: Callable[[Value], bool] = lambda value: True) -> str:
        """The name of a value, rather a late one; "" if none is right."""
        names = [name for name, value in self.values.items() if is_right(value)]
        return self.rng.choice([*names, *names[-3:]]) if names else ""

    def product(self) -> None:
        pairs = [
            (a, b)
            for a, one in self.values.items()
            for b, other in self.values.items()
            if len(one.dims) == len(other.dims) == 2 and one.dims[1] == other.dims[0] and one.dims[0] != other.dims[1]
        ]
        if pairs:
            a, b = self.rng.choice(pairs)
            self.add(*self._contracted(a, b, f"{a} @ {b}"))

    def einsum(self) -> None:
        a, b = self.pick(lambda value: len(value.dims) == 2 and not value.due), ""
        dims = self.values[a].dims
        b = self.pick(lambda value: len(value.dims) == 2 and not value.due and value.dims[0] == dims[1])
        if b and self.values[b].dims[1] not in dims:
            _, result, due = self._contracted(a, b, "")
            pattern = f"{text(dims)}, {text(self.values[b].dims)} -> {text(result)}"
            if due and self.rng.random() < 0.5:
                self.add(f"einsum({a}, {b}, '{pattern} +{next(iter(due))}')", result, due)
            else:
                self.add(f"einsum({a}, {b}, '{pattern}')", result, {})

    def _contracted(self, a: str, b: str, expression: str) -> tuple[str, Dims, dict[str, str]]:
        one, other = self.values[a], self.values[b]
        due = dict.fromkeys([*one.due, *other.due], "") | ({one.dims[1][1]: "sum"} if one.dims[1][1] else {})
        return expression, (one.dims[0], other.dims[1]), due

    def reduction(self) -> None:
        name, at, rest, due = self._reduced(kind := self.rng.choice(["sum", "sum", "mean", "max", "min"]))
        if name:
            called = f"jnp.{kind}(q, {at})"
            plain = f"{name}.{kind}({at})"
            wrapped = f"jax.jit(lambda q: {called})({name})"
            self.add(self.rng.choice([plain, plain, wrapped]), rest, due)

    def _reduced(self, kind: str) -> tuple[str, int, Dims, dict[str, str]]:
        """A value, which of its dims is reduced, and what that makes of it."""
        name = self.pick(lambda value: bool(value.dims))
        dims, due = self.values[name]
        at = self.rng.randrange(len(dims))
        kept = {axis: one if one == kind or {one, kind} == {"sum", "mean"} else "" for axis, one in due.items()}
        kept |= {dims[at][1]: "" if due else kind} if dims[at][1] else {}
        return name, at, dims[:at] + dims[at + 1 :], kept

    def reduce(self) -> None:
        name, at, rest, due = self._reduced(kind := self.rng.choice(["sum", "mean"]))
        value = self.values[name]
        if not value.due:
            pattern = f"{text(value.dims)} -> {text(rest)}".strip()
            mark = f" +{value.dims[at][1]}" if due and kind == "sum" and self.rng.random() < 0.5 else ""
            self.add(f"reduce({name}, '{pattern}{mark}', '{kind}')", rest, due if mark else {})

    def function(self) -> None:
        name, by = self.pick(), self.rng.choice(FUNCTIONS)
        dims, due = self.values[name]
        self.add(by.format(name), dims, due if by in LINEAR else dict.fromkeys(due, ""))

    def call(self) -> None:
        name, by, around = self.pick(), self.rng.choice(FUNCTIONS), self.rng.choice(CALLS)
        dims, due = self.values[name]
        called = around.format(f"lambda q: {by.format('q')}")
        self.add(f"{called}({name})", dims, due if by in LINEAR else dict.fromkeys(due, ""))

    def binary(self) -> None:
        name = self.pick()
        dims, due = self.values[name]
        other = self.pick(lambda value: value.dims == dims)
        sign = self.rng.choice("+-*")
        after = (
            due if sign != "*" and self.values[other].due == due else dict.fromkeys(due | self.values[other].due, "")
        )
        self.add(f"{name} {sign} {other}", dims, after)

    def transpose(self) -> None:
        if name := self.pick(lambda value: len(value.dims) == 2):
            self.add(f"{name}.T", self.values[name].dims[::-1], self.values[name].due)

    def division(self) -> None:
        name, at, rest, due = self._reduced("sum")
        dim = self.values[name].dims[at]
        is_mean = self.counts_shard and dim[1]
        due = {axis: "mean" if is_mean and axis == dim[1] and one == "sum" else one for axis, one in due.items()}
        number = f"{name}.shape[{at}]" if self.counts_shard else f"size('{dim[0]}')"
        self.add(f"{name}.sum({at}) / {number}", rest, due)

    def gradient(self) -> None:
        rows = self.pick(lambda value: value.dims == ARGUMENTS["u"])
        due = {"dp": ""} | dict.fromkeys(self.values[rows].due, "")
        loss = self.loss(f"{rows} * q")
        if self.rng.random() < 0.6:
            self.add(f"jax.grad({loss})(c)", ARGUMENTS["c"], due)
        else:
            name = self.add("", ARGUMENTS["c"], due)
            self.lines[-1] = f"l{name}, {name} = jax.value_and_grad({loss})(c)"
            self.values[f"l{name}"] = Value((), due)

    def weights_gradient(self) -> None:
        """A gradient by weights of which each shard has its part."""
        self.add(f"jax.grad({self.loss('x @ q')})(w)", ARGUMENTS["w"], {"dp": ""})

    def loss(self, rows: str) -> str:
        """The name of a loss of rows that are sharded over dp, which stands before.

        Of a mean of a shard's rows JAX's types sum the gradients, which shows where it is taken by ``mean``.
        """
        counts = ["y.sum() / x.shape[0]"] if self.counts_shard else ["y.sum() / size('b')"]
        local = ["y.mean()", *counts] if not (self.has_vma and self.counts_shard) else ["y.mean()"]
        name = f"loss{len(self.lines)}"
        self.lines += [
            f"def {name}(q):",
            f"    y = {rows}",
            f"    y = {self.rng.choice(['y ** 2', 'jnp.tanh(y)', 'y * u', '2.0 * y'])}",
            f"    return {self.rng.choice(['y.sum()', *local])}",
        ]
        return name

    def scan(self) -> None:
        if name := self.pick(lambda value: len(value.dims) == 2):
            dims, due = self.values[name]
            after = dict.fromkeys(due, "") | ({dims[0][1]: "" if due else "sum"} if dims[0][1] else {})
            start = self.rng.choice([f"jnp.zeros({name}.shape[1])", f"0.0 * {name}[0]"])
            self.add(f"lax.scan(lambda q, r: (q + r ** 2, None), {start}, {name})[0]", dims[1:], after)

    def gather(self) -> None:
        if name := self.pick(lambda value: any(axis for _, axis in value.dims)):
            dims, due = self.values[name]
            at = self.rng.choice([at for at, (_, axis) in enumerate(dims) if axis])
            to = self.rng.choice(["", ", to='invarying'"])
            whole = (*dims[:at], (dims[at][0], ""), *dims[at + 1 :])
            self.add(f"lax.all_gather({name}, '{dims[at][1]}', axis={at}, tiled=True{to})", whole, due)

    def collective(self) -> None:
        """The one that is due; or, of a sum, one over another axis."""
        if name := self.pick(lambda value: any(value.due.values())):
            dims, due = self.values[name]
            axis = self.rng.choice([axis for axis, one in due.items() if one])
            other = "tp" if axis == "dp" else "dp"
            if due[axis] == "sum" and other not in {axis for _, axis in dims} and self.rng.random() < 0.3:
                self.add(f"lax.psum({name}, '{other}')", dims, dict.fromkeys(due, ""))
            else:
                left = {over: one for over, one in due.items() if over != axis}
                self.add(f"lax.{COLLECTIVES[due[axis]]}({name}, '{axis}')", dims, left)

    def scatter(self) -> None:
        """A sum that is due over tp, scattered."""
        if name := self.pick(lambda value: value.due.get("tp") == "sum" and ("n", "") in value.dims):
            dims, due = self.values[name]
            at = dims.index(("n", ""))
            left = {axis: one for axis, one in due.items() if axis != "tp"}
            after = (*dims[:at], ("n", "tp"), *dims[at + 1 :])
            self.add(f"lax.psum_scatter({name}, 'tp', scatter_dimension={at}, tiled=True)", after, left)

    def check(self) -> None:
        """A check of what it is, or one that forgets what is due."""
        name = self.pick()
        dims, due = self.values[name]
        marks = "".join(f" +{axis}" for axis in due) if set(due.values()) == {"sum"} and self.rng.random() < 0.7 else ""
        self.add(f"check({name}, '{(text(dims) + marks).strip()}')", dims, due)

    def mask(self) -> None:
        name = self.pick()
        dims, due = self.values[name]
        other = self.pick(lambda value: value.dims == dims)
        rest = self.rng.choice(["0.0", "0.0", "1.0", other])
        self.add(f"jnp.where({other} > 0, {name}, {rest})", dims, dict.fromkeys(due | self.values[other].due, ""))

    def softmax(self) -> None:
        if name := self.pick(lambda value: bool(value.dims)):
            dims, due = self.values[name]
            at = self.rng.randrange(len(dims))
            lost = dict.fromkeys([*due, *([dims[at][1]] if dims[at][1] else [])], "")
            rest = dims[:at] + dims[at + 1 :]
            # A softmax of a shard's part is one of its rows, as it may be.
            of_all = [] if dims[at][1] else ["softmax", "softmax by hand"]
            match self.rng.choice(["logsumexp", "logsumexp by hand", *of_all]):
                case "softmax":
                    self.add(f"jax.nn.softmax({name}, axis={at})", dims, lost)
                case "logsumexp":
                    self.add(f"jax.nn.logsumexp({name}, axis={at})", rest, lost)
                case how:
                    largest = self.add(f"{name}.max({at}, keepdims=True)", dims, lost)
                    shifted = self.add(f"{name} - {largest}", dims, lost)
                    powers = self.add(f"jnp.exp({shifted})", dims, lost)
                    total = self.add(f"{powers}.sum({at}, keepdims=True)", dims, lost)
                    if how == "softmax by hand":
                        self.add(f"{powers} / {total}", dims, lost)
                    else:
                        log = self.add(f"jnp.log({total})", dims, lost)
                        whole = self.add(f"{log} + {largest}", dims, lost)
                        self.add(f"{whole}.squeeze({at})", rest, lost)
                        self.values = {one: value for one, value in self.values.items() if one != whole}
                        del self.values[log]
                    del self.values[largest], self.values[total]

    def cond(self) -> None:
        name, by = self.pick(), self.pick()
        dims, due = self.values[name]
        chosen = {axis for _, axis in dims if axis}
        if not chosen.isdisjoint([*self.values[by].due, *(axis for _, axis in self.values[by].dims)]):
            by = "c"  # or the shards of a dim would go different ways, as they may
        predicate = f"{by}.max() > 0"
        lost = dict.fromkeys(due | self.values[by].due, "")
        self.add(f"lax.cond({predicate}, lambda q: q * 2.0, lambda q: -q, {name})", dims, lost)

    def loop(self) -> None:
        name = self.pick()
        dims, due = self.values[name]
        step = self.rng.choice(["q * 0.5", "q + {}", "jnp.tanh(q)", "q * {}"]).format(name)
        self.add(f"lax.fori_loop(0, 3, lambda i, q: {step}, {name})", dims, dict.fromkeys(due, ""))

    def program(self) -> str:
        """The program, which returns its last value, or its last two."""
        arguments = ", ".join(f'{name}: Float[Array, "{text(dims)}"]' for name, dims in ARGUMENTS.items())
        results = [*self.values][-2:] if self.rng.random() < 0.2 else [*self.values][-1:]
        hints = [f'Float[Array, "{text(self.values[name].dims)}"]' for name in results]
        result = hints[0] if len(hints) == 1 else f"tuple[{', '.join(hints)}]"
        lines = "".join(f"    {line}\n" for line in [*self.lines, f"return {', '.join(results)}"])
        return f"{BEGINNING}\n\ndef f({arguments}) -> {result}:\n{lines}"


KINDS = (
    "product", "product", "reduction", "reduction", "function", "binary", "transpose", "division", "gradient", "scan",
)  # fmt: skip
MORE = (
    "einsum", "reduce", "call", "gather", "collective", "collective", "scatter", "check", "mask", "softmax", "cond",
    "loop", "weights_gradient",
)  # fmt: skip


def drawn(seed: int, has_vma: bool, more: tuple[str, ...] = MORE) -> str:
    """A program of a few steps."""
    drawing = Drawing(seed, has_vma)
    for _ in range(drawing.rng.randint(2, 5)):
        kinds = more if more and drawing.rng.random() < 0.4 else KINDS
        getattr(drawing, drawing.rng.choice(kinds))()
    return drawing.program()
