"""``assert_same_program``: two functions lower to one text, but for names and places."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from os.path import commonprefix
from typing import Any

import jax
import numpy as np

from .. import _jax
from ..errors import StructureError
from ..errors.phrases import value_text
from ..errors.places import Place, is_users
from ..hints.signature import name_of

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

    Both are traced and lowered to StableHLO, under ``jax.jit`` if they are not; nothing is compiled or run. The texts
    are compared but for names (of the module, of functions, of arguments and results) and places in the source.

    Args:
      f: a function.
      g: another one, of the same arguments.
      *args: their arguments: arrays, or ``jax.ShapeDtypeStruct`` in their places, in any trees; of functions that are
        not under ``jax.jit`` what is not an array is closed over.
      **kwargs: those by name.

    Raises:
      AssertionError: for another text, with the first line that differs, of both, and where it was written.
      StructureError: for what is not a function.
    """
    for each in (f, g):
        if not callable(each):
            raise StructureError(f"{_VERB}: wants two functions and their arguments; got {value_text(each)}")
    texts = [_lowered(each, args, kwargs).as_text(debug_info=True) for each in (f, g)]
    found = [_lines(text) for text in texts]
    for number, (first, second) in enumerate(zip_longest(*found), 1):
        if first != second:
            break
    else:
        return
    names = name_of(f), name_of(g)
    names = names if names[0] != names[1] else (f"{names[0]} (first)", f"{names[1]} (second)")
    start = len(commonprefix([(line or "").strip() for line in (first, second)]))
    shown = [
        f"    {name}: {_around(line, start)}{_place(text, number)}"
        for name, line, text in zip(names, (first, second), texts, strict=True)
    ]
    sizes = " and ".join(str(len(lines)) for lines in found)
    raise AssertionError(
        f"{_VERB}: {names[0]} and {names[1]} are not the same program: line {number} differs (of {sizes})\n\n"
        + "\n".join(shown)
    )


def _lowered(f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A function's program, lowered as one for JAX's default devices."""
    if not (hasattr(f, "trace") and hasattr(f, "lower")):
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = {str(at): leaf for at, leaf in enumerate(leaves) if isinstance(leaf, _TRACED)}

        def program(arrays: Mapping[str, Any]) -> Any:
            own_args, own_kwargs = tree.unflatten([arrays.get(str(at), leaf) for at, leaf in enumerate(leaves)])
            return f(*own_args, **own_kwargs)

        traced = jax.jit(program).trace(arrays)
    else:
        traced = f.trace(*args, **kwargs)
    # What is over an AbstractMesh has no devices that would say it.
    return traced.lower(lowering_platforms=(jax.default_backend(),))


_LOCATION = re.compile(r' ?loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*")*\))*\)')
_NAMED = re.compile(r"^#loc(\d*) = loc\((.*)\)$", re.MULTILINE)
_FUNCTION = re.compile(r"func\.func (?:public |private )?@([\w.$-]+)")
_CALLED = re.compile(r"(?<=[ (])@([\w.$-]+)")


def _program_lines(text: str) -> list[str]:
    """The lines of a lowered text, locations among them, but for those that only name locations."""
    return [line for line in text.splitlines() if not line.startswith("#loc")]


def _lines(text: str) -> list[str]:
    """The lines of a lowered text without names and places; functions are numbered as they are named."""
    numbers = {name: f"@f{at}" for at, name in enumerate(dict.fromkeys(_FUNCTION.findall(text)))}
    found: list[str] = []
    for line in _program_lines(text):
        bare = re.sub(r' ?\{?jax\.result_info = "[^"]*"(, |\})?', _kept_brace, _LOCATION.sub("", line))
        bare = re.sub(r"^module @\S+", "module", bare)
        found.append(_CALLED.sub(lambda name: numbers.get(name[1], name[0]), bare))
    return found


def _kept_brace(info: re.Match[str]) -> str:
    """What is left of a result's attributes without its name."""
    is_alone = info[0].lstrip().startswith("{") and info[0].endswith("}")
    return "" if is_alone else " {" if info[0].lstrip().startswith("{") else "}" if info[0].endswith("}") else ""


def _around(line: str | None, start: int) -> str:
    """A line where it differs from another, of which it has so many characters."""
    if line is None:
        return "(ends)"
    text = line.strip()
    first, last = max(start - _AROUND, 0), start + 2 * _AROUND
    return f"{'...' * (first > 0)}{text[first:last]}{'...' * (last < len(text))}"


def _place(text: str, number: int) -> str:
    """Where the user wrote what a line of a lowered text does; empty where no line of his does."""
    lines = _program_lines(text)
    names = dict(_NAMED.findall(text))
    waiting = [lines[number - 1].rpartition("loc(")[2]] if number <= len(lines) else []
    while waiting:
        location = waiting.pop(0)
        for file, line in re.findall(r'"([^"]+)":(\d+)', location):
            if is_users(file):
                return f"\n        at {Place.of(file, int(line), '')}".removesuffix(" ()")
        waiting += [names.pop(name) for name in re.findall(r"#loc(\d*)", location) if name in names]
    return ""
