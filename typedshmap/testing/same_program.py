"""``assert_same_program``: two functions lower to the same text, except for names and places."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

import jax
import numpy as np

from .. import _jax
from ..errors import StructureError
from ..errors.phrases import name_of, value_text
from ..errors.places import Place, is_users

_VERB = "assert_same_program"
_TRACED = (*_jax.array.ARRAYS, *_jax.array.SHAPES, np.generic)
_AROUND = 100
"""How much of a long line is shown before what differs, and twice as much behind."""


def assert_same_program(f: Callable[..., Any], g: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Assert that two functions lower to the same program, so that one may be replaced by the other.

    ```python
    typed = typed_shard_map(step, mesh=mesh)
    plain = jax.shard_map(step, mesh=mesh, in_specs=(P("dp"), P()), out_specs=P("dp"))
    assert_same_program(typed, plain, x, w)  # f32[8,16], f32[16,16]
    ```

    Both are traced and lowered to StableHLO, under ``jax.jit`` if they are not jitted; nothing is compiled or run. The
    texts are compared without names (of functions, values, arguments and results) and places in the source. The texts
    do not include the structure of results, nor ``check_vma``, which affects gradients.

    Args:
      f: a function.
      g: a function of the same arguments.
      *args: their arguments: arrays or ``jax.ShapeDtypeStruct``, in any trees. Other values are closed over if the
        function is not under ``jax.jit``.
      **kwargs: keyword arguments.

    Raises:
      AssertionError: for different texts, with the first different line of both, and its place in the source.
      StructureError: for a value that is not a function.
    """
    for function in (f, g):
        if not callable(function):
            raise StructureError(f"{_VERB}: expects two functions and their arguments; got {value_text(function)}")
    lowered = [_lowered(function, args, kwargs) for function in (f, g)]
    texts = [_lines(program.as_text()) for program in lowered]
    differing = ((at, lines) for at, lines in enumerate(zip_longest(*texts)) if lines[0] != lines[1])
    number, lines = next(differing, (0, None))
    if lines is None:
        return
    names = name_of(f), name_of(g)
    names = names if names[0] != names[1] else (f"{names[0]} (first)", f"{names[1]} (second)")
    pairs = enumerate(zip_longest(*(line or "" for line in lines)))
    start = next((at for at, (a, b) in pairs if a != b), 0)
    shown = [
        f"    {name}: {_around(line, start)}{_place(program.as_text(debug_info=True), number)}"
        for name, line, program in zip(names, lines, lowered, strict=True)
    ]
    raise AssertionError(
        f"{_VERB}: {names[0]} and {names[1]} are not the same program: line {number + 1} differs\n\n" + "\n".join(shown)
    )


def _lowered(f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A function's program, lowered for JAX's default devices."""
    if not (hasattr(f, "trace") and hasattr(f, "lower")):
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = {str(at): leaf for at, leaf in enumerate(leaves) if isinstance(leaf, _TRACED)}

        def program(arrays: Mapping[str, Any]) -> Any:
            positional, named = tree.unflatten([arrays.get(str(at), leaf) for at, leaf in enumerate(leaves)])
            return f(*positional, **named)

        traced = jax.jit(program).trace(arrays)
    else:
        traced = f.trace(*args, **kwargs)
    # A program over an AbstractMesh has no devices that determine the platform.
    return traced.lower(lowering_platforms=(jax.default_backend(),))


_DEFINED = re.compile(r"\b(?:module|func\.func(?: \w+)?|sdy\.mesh) (@[\w.$-]+)")
_NAME = re.compile(r"%\w+|@[\w.$-]+")
_RESULT = re.compile(r' \{jax\.result_info = "[^"]*"\}|jax\.result_info = "[^"]*"(, )?')
_LOCATION = re.compile(r"^#loc(\d*) = loc\((.*)\)$", re.MULTILINE)


def _lines(text: str) -> list[str]:
    """The lines of a lowered text; functions and values are numbered in order, and results have no names."""
    symbols = {name: f"@{at}" for at, name in enumerate(dict.fromkeys(_DEFINED.findall(text)))}
    values: dict[str, str] = {}

    def numbered(name: re.Match[str]) -> str:
        if name[0].startswith("@"):  # a function that is defined elsewhere keeps its name: a kernel
            return symbols.get(name[0], name[0])
        return values.setdefault(name[0], f"%{len(values)}")

    return [_RESULT.sub("", _NAME.sub(numbered, line)).strip() for line in text.splitlines()]


def _around(line: str | None, start: int) -> str:
    """The part of a line where it begins to differ; ``start`` is the number of equal characters."""
    if line is None:
        return "(ends)"
    first, last = max(start - _AROUND, 0), start + 2 * _AROUND
    return f"{'...' * (first > 0)}{line[first:last]}{'...' * (last < len(line))}"


def _place(text: str, number: int) -> str:
    """The place in the user's source of a line of a lowered text; empty if there is none."""
    lines, names = [line for line in text.splitlines() if not line.startswith("#loc")], dict(_LOCATION.findall(text))
    waiting = lines[number : number + 1]
    if waiting and waiting[0].endswith("{"):  # an operation that contains others has its location at its end
        end = " " * (len(waiting[0]) - len(waiting[0].lstrip())) + "}"
        waiting = list(islice((line for line in lines[number:] if line.startswith(end)), 1))
    while waiting:
        location = waiting.pop(0)
        for file, line in re.findall(r'"([^"]+)":(\d+)', location):
            if is_users(file):
                return f"\n        at {Place.of(file, int(line), '')}".removesuffix(" ()")
        waiting += [names.pop(name) for name in re.findall(r"#loc(\d*)", location) if name in names]
    return ""
