"""A registry of programs: functions of shards, with the hints of what they take and return.

A program's arguments have the hints, and the global sizes, that `ARGUMENTS` gives their names; its axes are those that
its hints mention. The number ``c``, where it takes one, is each of `CONSTANTS` in turn: one that equals 1/n on the mesh
on which the program is read must not change what is said of it. What a program is, right or wrong, stands in no place
but `decided.txt`, which is made by running it.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from typedshmap import Array, Float, Int, Key

ARGUMENTS = {
    # Rows of a batch over dp, and weights that every shard has.
    "x": (Float[Array, "[b/dp] d"], (24, 8)),
    "y": (Float[Array, "[b/dp]"], (24,)),
    "z": (Float[Array, "[b/dp] d"], (24, 8)),
    "labels": (Int[Array, "[b/dp]"], (24,)),
    "w": (Float[Array, "d"], (8,)),
    "v": (Float[Array, "d"], (8,)),
    "m": (Float[Array, "d d"], (8, 8)),
    "s": (Float[Array, ""], ()),
    "rows": (Float[Array, "b d"], (24, 8)),
    "key": (Key[Array, ""], ()),
    "seq": (Float[Array, "b2 [t/dp] d"], (2, 24, 8)),
    # Parameters of which each shard over dp holds a part (FSDP).
    "wp": (Float[Array, "[p/dp]"], (24,)),
    "mp": (Float[Array, "d [p/dp]"], (8, 24)),
    # Tensor parallelism: a hidden dim, or a vocabulary, over tp.
    "h": (Float[Array, "r d"], (6, 8)),
    "up": (Float[Array, "d [f/tp]"], (8, 24)),
    "down": (Float[Array, "[f/tp] d"], (24, 8)),
    "gate": (Float[Array, "d [f/tp]"], (8, 24)),
    "bias": (Float[Array, "d"], (8,)),
    "hidden_bias": (Float[Array, "[f/tp]"], (24,)),
    "table": (Float[Array, "[n/tp] d"], (24, 8)),
    "logits": (Float[Array, "r [n/tp]"], (6, 24)),
    "ids": (Int[Array, "r"], (6,)),
    "q": (Float[Array, "r [k/tp] d"], (6, 12, 8)),
    "a": (Float[Array, "r [f/tp]"], (6, 24)),
    # Both.
    "xt": (Float[Array, "[b/dp] [f/tp]"], (24, 24)),
    "wt": (Float[Array, "[f/tp]"], (24,)),
    "both": (Float[Array, "[b/dp,tp] d"], (24, 8)),
}
"""Per name of an argument its hint and its global shape."""

CONSTANTS = (0.5, 1 / 3, 0.25, 0.3)
"""The first three are 1/n on a mesh of 2, 3 and 4."""

SIZES = {0.5: {"dp": 2, "tp": 2}, 1 / 3: {"dp": 3, "tp": 3}}
"""The mesh on which a program with a constant is read; with others on `USUAL`."""

USUAL = {"dp": 4, "tp": 4}

REGISTRY: dict[str, Program] = {}


@dataclass(frozen=True)
class Program:
    """A function of shards.

    Attributes:
      function: what is run in the region.
      name: what it does, in words.
      family: the module in which it stands.
      hint: of what it returns; a tuple for several.
      constants: what ``c`` is; (None,) where the function takes none.
      is_drawn: whether it returns random numbers, whose rows have to differ, and need not be those of one device.
    """

    function: Callable[..., Any]
    name: str
    family: str
    hint: Any
    constants: tuple[float | None, ...]
    is_drawn: bool

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(name for name in inspect.signature(self.function).parameters if name != "c")

    @property
    def in_types(self) -> tuple[Any, ...]:
        return tuple(ARGUMENTS[name][0] for name in self.arguments)

    @property
    def axes(self) -> tuple[str, ...]:
        results = self.hint if isinstance(self.hint, tuple) else (self.hint,)
        dims = " ".join(hint.dim_str for hint in (*self.in_types, *results))
        return tuple(
            axis for axis in ("dp", "tp") if axis in dims.replace("/", " ").replace("]", " ").replace(",", " ")
        )

    @property
    def out_types(self) -> Any:
        return tuple.__class_getitem__(self.hint) if isinstance(self.hint, tuple) else self.hint

    @property
    def source(self) -> str:
        return inspect.getsource(self.function)

    @property
    def digest(self) -> str:
        """Of the source: a program that was edited has to be decided anew."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:8]

    @property
    def place(self) -> str:
        code = self.function.__code__
        return f"{Path(code.co_filename).name}:{code.co_firstlineno}"

    def fresh(self, c: float | None) -> Callable[..., Any]:
        """The function with a constant, as a new object: JAX's caches go by the object."""
        of = self.function
        return FunctionType(of.__code__, of.__globals__, of.__name__, () if c is None else (c,), of.__closure__)

    def mesh_sizes(self, c: float | None) -> dict[str, int]:
        """The mesh on which the program is read; of two axes no two have the same size."""
        sizes = SIZES.get(c, USUAL)
        return {axis: sizes[axis] for axis in self.axes} if len(self.axes) == 1 else {"dp": sizes["dp"], "tp": 3}


def program(
    name: str, hint: Any, constants: tuple[float, ...] = CONSTANTS, is_drawn: bool = False
) -> Callable[..., Any]:
    """Register a function of shards; ``hint`` is of its result, as dims of floats or as a hint, a tuple of several."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        taken = constants if "c" in inspect.signature(function).parameters else (None,)
        family = function.__module__.rpartition(".")[2]
        assert name not in REGISTRY, f"two programs are {name!r}"
        REGISTRY[name] = Program(function, name, family, _hint(hint), taken, is_drawn)
        return function

    return register


def _hint(hint: Any) -> Any:
    if isinstance(hint, tuple):
        return tuple(_hint(part) for part in hint)
    return Float[Array, hint] if isinstance(hint, str) else hint
