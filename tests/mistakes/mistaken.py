"""Programs with one mistake each: whether it is found, and what comes of a cure that is followed to the letter.

A program of `right_forward.py` and `right_training.py` is right. After each of its functions stand mistakes, one a
line: ``# lax.psum(y, "tp") => y``. What becomes of them is in `outcomes.txt`, one a line: the digest of the mistake,
what is reported, what running decides of it, and what running decides of the program that followed the first cure.

``python tests/mistakes/mistaken.py [NAME...]`` writes that file anew, for these programs.
"""

import ast
import hashlib
import inspect
import math
import re
import sys
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import environment  # noqa: F401 (eight devices)

import jax
import jax.numpy as jnp
import numpy as np
from edits import NotFollowedError, OfResult, Placed, apply_cure, parse_cures
from jax.sharding import Mesh, PartitionSpec

import typedshmap
from typedshmap import SuspectWarning, TypedShmapError

HERE = Path(__file__).parent
OUTCOMES = HERE / "outcomes.txt"
READ_ON, RUN_ON = {1: (2,), 2: (2, 2)}, {1: (3,), 2: (2, 3)}
MOST_STEPS = 4
_MISTAKE = re.compile(r"\s+# (.*?) => (.*)")


class Program(NamedTuple):
    """A function of global arrays, in a module of its own.

    Attributes:
      name: the name of the function.
      head: what stands before it in its module.
      source: the function.
      axes: of the mesh.
      shapes: of the arguments, with ``int12`` before for numbers below 12, ``bool``, ``key`` or ``keys``.
      mistakes: texts, each with what is put in its place.
    """

    name: str
    head: str
    source: str
    axes: tuple[str, ...]
    shapes: dict[str, str]
    mistakes: list[tuple[str, str]]

    @property
    def text(self) -> str:
        return self.head + self.source

    def wrong(self, old: str, new: str) -> str:
        assert old in self.source, f"{self.name}: no {old}"
        return self.head + self.source.replace(old, new, 1)

    def mesh(self, sizes: tuple[int, ...]) -> Mesh:
        return Mesh(np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes), self.axes)


def programs() -> Iterator[Program]:
    for path in sorted(HERE.glob("right_*.py")):
        text = path.read_text()
        lines, functions = text.splitlines(), [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
        firsts = [min(decorator.lineno for decorator in node.decorator_list) for node in functions]
        head = "\n".join(lines[: firsts[0] - 1])
        for node, first, end in zip(functions, firsts, [*(at - 1 for at in firsts[1:]), len(lines)], strict=True):
            body, case = lines[first - 1 : end], node.decorator_list[0]
            source = "\n".join(line for line in body if not _MISTAKE.match(line))
            if not isinstance(case, ast.Call):  # a helper of those that follow
                head += f"\n{source}"
                continue
            shapes = {str(each.arg): ast.literal_eval(each.value) for each in case.keywords}
            mistakes = [match.groups() for line in body if (match := _MISTAKE.match(line))]
            axes = tuple(ast.literal_eval(case.args[0]).split())
            yield Program(node.name, head, source.partition("\n")[2].rstrip() + "\n", axes, shapes, mistakes)


def arguments(program: Program) -> list[Any]:
    rng, found = np.random.default_rng(0), list[Any]()
    for text in program.shapes.values():
        kind, dims = re.fullmatch(r"(int\d+|bool|keys|key)?\s*([\d ]*)", text).groups()  # type: ignore[union-attr]
        shape = tuple(map(int, dims.split()))
        if kind in ("key", "keys"):
            found.append(jax.random.split(jax.random.key(0), shape) if shape else jax.random.key(0))
        elif kind == "bool":
            found.append(rng.random(shape) < 0.6)
        elif kind:
            found.append(rng.integers(0, int(kind[3:]), shape).astype(np.int32))
        else:
            found.append((0.5 * rng.normal(size=shape)).astype(np.float32))
    return found


# -------------------------------------------------------------------------------------------------- running, unchecked


def plain_shard_map(function: Any = None, *, check_vma: bool = True) -> Any:
    """``typed_shard_map`` without the library: JAX's, with the specs of the hints."""
    if function is None:
        return lambda function: plain_shard_map(function, check_vma=check_vma)
    hints = dict(inspect.get_annotations(function))
    out_specs = _specs(hints.pop("return"))
    return jax.shard_map(
        function, in_specs=tuple(map(_specs, hints.values())), out_specs=out_specs, check_vma=check_vma
    )


def _specs(hint: Any) -> Any:
    if args := typing.get_args(hint):
        return tuple(map(_specs, args))
    dims = (dim.strip("[]").partition("/")[2] for dim in hint.dim_str.split() if dim[0] not in "+~-")
    return PartitionSpec(*(tuple(axes.split(",")) if axes else None for axes in dims))


def loaded(program: Program, text: str, folder: Path, is_checked: bool) -> tuple[Any, Path]:
    """The function of a program, from a file of its own."""
    path = folder / f"{program.name}{len([*folder.iterdir()])}.py"
    path.write_text(text)
    namespace: dict[str, Any] = {"__name__": program.name}
    if not is_checked:
        stand_in = r"\g<0>; from mistaken import plain_shard_map as typed_shard_map; typed = lambda f: f"
        text = re.sub(r"^from typedshmap import .*$", stand_in, text, flags=re.M)
    exec(compile(text, str(path), "exec"), namespace)
    return namespace[program.name], path


def run(program: Program, text: str, sizes: tuple[int, ...], folder: Path) -> list[np.ndarray]:
    """What a program gives on a mesh, with its gradient where the region has none itself and may have one."""
    function, args = loaded(program, text, folder, False)[0], arguments(program)
    floats = [at for at, arg in enumerate(args) if getattr(arg, "dtype", None) == np.float32]

    def summed(*given: Any) -> tuple[Any, Any]:
        filled = [given[floats.index(at)] if at in floats else arg for at, arg in enumerate(args)]
        results = jax.tree.leaves(function(*filled))
        weighted = (jnp.sum(jnp.cos(jnp.arange(x.size).reshape(x.shape)) * x) for x in results if x.dtype == np.float32)
        return sum(weighted), results

    has_gradient = "grad" not in program.text and "lax.pmax(m" not in program.text
    with jax.set_mesh(program.mesh(sizes)):
        if has_gradient:
            summed = jax.value_and_grad(summed, argnums=tuple(range(len(floats))), has_aux=True)
        results = jax.block_until_ready(jax.jit(summed)(*(args[at] for at in floats)))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(results if has_gradient else results[1])][has_gradient:]


def decide(program: Program, text: str, expected: list[np.ndarray], folder: Path) -> str:
    """Whether a program gives on a mesh what is expected of it on one device."""
    try:
        got = run(program, text, RUN_ON[len(program.axes)], folder)
    except Exception:
        return "refused"
    pairs = [(a, b) for a, b in zip(got, expected, strict=True)]
    is_right = all(a.shape == b.shape and np.allclose(a, b, 1e-3, 1e-4 * (1 + np.abs(b).max())) for a, b in pairs)
    return "right" if is_right else "wrong"


# ------------------------------------------------------------------------------------------------- reading, and cures


def messages(program: Program, text: str, folder: Path) -> tuple[list[str], Path]:
    """What is reported of a program, each with the line that it names; what JAX says begins with ``JAX``."""
    function, path = loaded(program, text, folder, True)
    with jax.set_mesh(program.mesh(READ_ON[len(program.axes)])), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SuspectWarning)
        error = ""
        with typedshmap.audit() as report:
            try:
                jax.eval_shape(function, *arguments(program))
            except TypedShmapError as refusal:
                error = str(refusal)
            except Exception as refusal:
                error = f"JAX: {refusal}"
    is_typed = "@typed_shard_map" in program.source
    found = [] if is_typed else [_as_message(finding, path.name) for finding in report.findings]
    found += [str(each.message) for each in caught if issubclass(each.category, SuspectWarning)]
    return ([error] if error and not (found and error.startswith("JAX")) else []) + found, path


_EDIT = re.compile(r"\bp(?:sum|mean|max|min) over|leave out|divide ")


def _as_message(finding: Any, file: str) -> str:
    """A finding, with its line in each edit that it names without."""
    problem, _, cure = finding.message.partition("; ")
    pieces = re.split(r"(,? or |, and )", cure.partition("; if this is intended")[0])
    for at, piece in enumerate(pieces):
        if _EDIT.search(piece) and not re.search(
            r" at \S+\.py:\d+|of what is returned|of result ", piece.split(": ")[-1]
        ):
            pieces[at] = f"{piece} at {file}:{finding.line}"
    return f"{problem}\nAt: {file}:{finding.line}\nHint: {''.join(pieces)}"


def follow(text: str, cure: list[Placed], path: Path) -> str:
    """A program with the edits of a cure.

    Raises:
      NotFollowedError: where an edit cannot be made.
    """
    for edit, file, line in cure:
        if isinstance(edit, OfResult):
            body = re.search(r"jax\.shard_map\((\w+),", text)
            functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
            (node,) = (each for each in functions if each.name == (body[1] if body else path.stem.rstrip("0123456789")))
            lines = text.splitlines(keepends=True)
            source = "if True:\n" + "".join(lines[node.lineno - 1 : node.end_lineno])
            edited = apply_cure(source, 0, edit).partition("\n")[2]
            text = "".join([*lines[: node.lineno - 1], edited, *lines[node.end_lineno :]])
        elif file != path.name:
            raise NotFollowedError(f"{file} is not the program's")
        else:
            text = apply_cure(text, line, edit)
    return text


class Outcome(NamedTuple):
    """What is reported of a mistake, and the program that is accepted after its first cures were followed."""

    says: str
    names_line: bool
    accepted: str


def outcome(program: Program, old: str, new: str, folder: Path) -> Outcome:
    text = program.wrong(old, new)
    line = text[: len(program.head) + program.source.index(old)].count("\n") + 1
    found, path = messages(program, text, folder)
    if not found:
        return Outcome("silent", False, "")
    if all(each.startswith("JAX") for each in found):
        return Outcome("JAX", False, "")
    lines = {int(each) for message in found for each in re.findall(r"\.py:(\d+)", message)}
    names_line = not lines.isdisjoint(range(line, line + new.count("\n") + 1))
    for step in range(MOST_STEPS):
        cures = [cure for message in found for cure in parse_cures(message)]
        if not cures:
            return Outcome("no cure" if not step else "found again", names_line, "")
        try:
            text = follow(text, cures[0], path)
        except NotFollowedError:
            return Outcome("not followed", names_line, "")
        found, path = messages(program, text, folder)
        if not found:
            return Outcome("cured" if not step else "cured in steps", names_line, text)
        if all(each.startswith("JAX") for each in found):
            return Outcome("refused by JAX", names_line, "")
    return Outcome("found again", names_line, "")


# ------------------------------------------------------------------------------------------------------------ the table


class Row(NamedTuple):
    """A line of `outcomes.txt`."""

    digest: str
    says: str
    names_line: bool
    decided: str
    cured: str
    label: str


def label_of(program: Program, at: int) -> str:
    return f"{program.name} {at}"


def digest_of(program: Program, old: str, new: str) -> str:
    return hashlib.sha256(program.wrong(old, new).encode()).hexdigest()[:8]


def read_outcomes() -> dict[str, Row]:
    rows = (line.split(" | ") for line in OUTCOMES.read_text().splitlines()) if OUTCOMES.exists() else ()
    return {row[5]: Row(row[0], row[1], row[2] == "line", *row[3:]) for row in rows}


def decided(program: Program, old: str, new: str, accepted: str, folder: Path) -> tuple[str, str]:
    """What running decides of a mistake, and of the program that is accepted in its place; empty without one.

    Right is what the wrong program gives on one device, where no collective does anything; if JAX refuses it, what the
    right program gives there.
    """
    wrong = program.wrong(old, new)
    one = (1,) * len(program.axes)
    try:
        expected = run(program, wrong, one, folder)
    except Exception:
        expected = run(program, program.text, one, folder)
    came = decide(program, accepted, expected, folder) if accepted else ""
    return decide(program, wrong, expected, folder), came


def main(names: list[str]) -> None:
    rows = read_outcomes()
    for program in programs():
        for at, (old, new) in enumerate(program.mistakes):
            label, digest = label_of(program, at), digest_of(program, old, new)
            if names and program.name not in names:
                continue
            with TemporaryDirectory() as folder:
                says, names_line, accepted = outcome(program, old, new, Path(folder))
                verdicts = decided(program, old, new, accepted, Path(folder))
            rows[label] = Row(digest, says, names_line, *verdicts, label)
            print(*rows[label], old, "=>", new, flush=True)
            write_outcomes(rows)
    write_outcomes(rows)


def write_outcomes(rows: dict[str, Row]) -> None:
    known = [label_of(program, at) for program in programs() for at, _ in enumerate(program.mistakes)]
    lines = [" | ".join([r.digest, r.says, "line" if r.names_line else "", *r[3:]]) for r in map(rows.get, known) if r]
    OUTCOMES.write_text("\n".join(lines) + "\n")


def case(axes: str, **shapes: str) -> Any:
    """Register nothing: programs are read as text."""
    return lambda function: function


if __name__ == "__main__":
    main(sys.argv[1:])
