"""Follow what messages advise, to the letter: the edit that a cure names is made in the program's source.

Each line of a program does one thing, so that a line stands for the value that it names.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from edits import NotFollowedError, OfResult, apply_cure, parse_cures
from jax.sharding import Mesh

from typedshmap import SuspectWarning, TypedShmapError, typed_shard_map

BEGINNING = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from typedshmap import *

"""
MOST_EDITS = 5
SIZES = {"b": 8, "k": 8, "n": 6, "d": 4, "v": 8, "s": 4}

_AT = r"(?: at \w+\.py:(\d+))?"
# A cure that was tried is edits, each at its line.
_TRIED = re.compile(
    r"(?:leaves partial sums|covers only each shard's part): p\w+ over (?:'\w+'(?:, )?)+(?! before)"
    r".*(?: at program\.py:\d+|of what is returned|of result \d+)$"
)
_REDUCED = re.compile(rf"\b(p(?:sum|mean|max|min)) over ((?:'\w+'(?:, )?)+)(?: before \w+{_AT})?")


def module_of(source: str, folder: Path) -> ModuleType:
    """A program's module, run from a file so that its lines are known."""
    path = folder / "program.py"
    path.write_text(source)
    module = ModuleType("program")
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def meshes() -> tuple[Mesh, Mesh]:
    devices = np.array(jax.devices())
    return Mesh(devices.reshape(4, 2), ("dp", "tp")), Mesh(devices[:1].reshape(1, 1), ("dp", "tp"))


def arguments(function: Any) -> list[np.ndarray]:
    """A global array for each hint."""
    rng, made = np.random.default_rng(0), []
    for name, hint in function.__annotations__.items():
        if name != "return":
            shape = [SIZES[dim] for dim in re.findall(r"\[?(\w+)(?:/[\w,]+\])?", hint.dim_str)]
            is_float = "Int" not in hint.__name__
            made.append(rng.normal(size=shape).astype(np.float32) if is_float else rng.integers(0, 8, shape, np.int32))
    return made


def result(source: str, folder: Path, mesh: Mesh, check_vma: bool) -> Any:
    """What a program gives on a mesh."""
    function = module_of(source, folder).f
    got = typed_shard_map(function, mesh=mesh, check_vma=check_vma)(*arguments(function))
    return jax.tree.map(np.asarray, jax.block_until_ready(got))


def refusal(source: str, folder: Path, mesh: Mesh, check_vma: bool) -> str | None:
    """The message by which a program is refused or suspected, or what JAX says of it; None if it is taken.

    A suspect counts where warnings are errors, as they are in tests.
    """
    function = module_of(source, folder).f
    try:
        jax.eval_shape(typed_shard_map(function, mesh=mesh, check_vma=check_vma), *arguments(function))
    except (TypedShmapError, SuspectWarning) as error:
        return str(error)
    except Exception as error:
        return f"JAX: {error}"
    return None


def outcomes(source: str, folder: Path, check_vma: bool, agrees: bool = False) -> set[str]:
    """The programs that are taken after the messages, one by one, were followed in all ways that they name."""
    taken, sources = set[str](), {source}
    for _ in range(MOST_EDITS):
        refused = {each: message for each in sources if (message := refusal(each, folder, meshes()[0], check_vma))}
        taken |= sources - refused.keys()
        sources = {new for each, message in refused.items() for new in followed(each, message, agrees)}
    return taken


def expect_right(taken: set[str], source: str, folder: Path, check_vma: bool) -> None:
    """Expect of programs that were made of one what that computes on one device."""
    expected = result(source, folder, meshes()[1], False) if taken else None
    for each in sorted(taken):
        got = result(each, folder, meshes()[0], check_vma)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            scale = 1 + np.abs(other).max()
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * scale, err_msg=each)


def followed(source: str, message: str, agrees: bool) -> Iterator[str]:
    """The sources that follow from one's message: one for each way that its last line names.

    Args:
      agrees: what a message may ask: whether all shards have the same of what a kernel returns.
    """
    lines = source.splitlines()
    cure = next((line for line in message.splitlines() if line.startswith("Hint: ")), "")
    if "# typedshmap: ignore[" in cure or "stop_gradient" in cure or _TRIED.search(cure):
        for edits in parse_cures(message):
            edited = source
            with contextlib.suppress(NotFollowedError):
                for edit, _, line in edits:
                    edited = apply_cure(edited, len(lines) if isinstance(edit, OfResult) else line, edit)
                yield edited
        return
    places = [int(at) for at in re.findall(r" at program\.py:(\d+)", cure)]
    reported = [int(at) for at in re.findall(r"^At: program\.py:(\d+)", message, re.M)]
    for verb, axes, late in _REDUCED.findall(cure):
        if places and (not late or int(late) != places[0]):
            yield _with_call(lines, places[0], f"lax.{verb}({{}}, {_names(axes)!r})")
    if "gather it first" in cure or "gather the dim first" in cure or "or gather it (all_gather)" in cure:
        axis = re.findall(r"sharded over '(\w+)'", cure)[0]
        yield from _gathered(lines, axis)
    if (bracketed := re.search(r"write \[(\w+)(/\w+)\]", cure)) is not None:
        at = next(at for at, line in enumerate(lines, 1) if line.startswith("def f("))
        before, arrow, after = lines[at - 1].partition(" -> ")
        yield _with_line(
            lines, at, before + arrow + re.sub(r'"(_|\w+)', f'"[{bracketed[1]}{bracketed[2]}]', after, count=1)
        )
    if "lax.all_gather(..., to='invarying')" in cure:
        line = lines[places[0] - 1].replace("tiled=True)", "tiled=True, to='invarying')")
        yield _with_line(lines, places[0], re.sub(r" ~\w+(?=['\"])", "", line))
    if agrees and "with assume(x, hint)" in cure:
        dims = re.findall(r'Array, "([^"]*)"\]', next(line for line in lines if line.startswith("def f(")))[-1]
        yield _with_call(lines, places[0], f'assume({{}}, "{dims}")')
    if "take the mean (pmean)" in cure:
        yield _with_call(lines, places[0], "lax.pmean({}, ('dp',))")
    for mark in re.findall(r"write '([+~]\w+)'", cure):
        if reported and "check(" in lines[reported[0] - 1]:
            yield _with_line(lines, reported[0], re.sub(r'"\)', f' {mark}")', lines[reported[0] - 1]))


def _names(axes: str) -> tuple[str, ...]:
    return tuple(re.findall(r"'(\w+)'", axes))


def _with_line(lines: list[str], at: int, line: str, more: str = "") -> str:
    return "\n".join([*lines[: at - 1], line, *([more] if more else []), *lines[at:]]) + "\n"


def _with_call(lines: list[str], at: int, call: str) -> str:
    """A source in which the value of a line goes through a call; of several, as a loss and its gradient, the last."""
    line = lines[at - 1]
    indent = line[: len(line) - len(line.lstrip())]
    if (returned := re.match(r"\s*return (.*)", line)) is not None:
        return _with_line(lines, at, f"{indent}return {call.format(returned[1])}")
    name = line.split(" = ")[0].split(",")[-1].strip()
    return _with_line(lines, at, line, f"{indent}{name} = {call.format(name)}")


def _gathered(lines: list[str], axis: str) -> Iterator[str]:
    """The source in which each argument that has a dim sharded over an axis is gathered before all else."""
    at = next(at for at, line in enumerate(lines, 1) if line.startswith("def f("))
    for name, dims in re.findall(r'(\w+): \w+\[Array, "([^"]*)"\]', lines[at - 1].partition(" -> ")[0]):
        places = [place for place, dim in enumerate(dims.split()) if f"/{axis}]" in dim]
        if places:
            gather = f"lax.all_gather({name}, {axis!r}, axis={places[0]}, tiled=True, to='invarying')"
            if (line := f"    {name} = {gather}") not in lines:
                yield _with_line(lines, at, lines[at - 1], line)
