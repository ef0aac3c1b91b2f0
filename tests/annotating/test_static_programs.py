"""Programs whose text is annotated: their new text, whole, and what they compute before and after.

``python tests/annotating/test_static_programs.py [NAME ...]`` writes what comes after, and what is left, anew; the
difference is then reviewed."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from typedshmap.annotating.static import AnnotatedText, annotate_text

_PART = re.compile(r"^=== (?P<name>\w+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """A program that ends with ``program``, the arguments of a call, and what becomes of it.

    Attributes:
      options: lines of the head: ``args``, the arguments of a call as code; ``static``, those of
        them that jit must not trace, by index; ``jit`` and ``ambient``, whether it needs them.
      left: the lines of what is left, ``line: reason``.
    """

    path: Path
    options: dict[str, str]
    before: str
    after: str
    left: str

    def text_with(self, found: AnnotatedText) -> str:
        """The file, with what was found."""
        head = "".join(f"{name}: {value}".rstrip() + "\n" for name, value in self.options.items())
        parts = {"before": self.before, "after": found.text, "left": left_lines(found)}
        return head + "".join(f"=== {name}\n{text}" for name, text in parts.items() if text)


def read_case(path: Path) -> Case:
    head, *parts = _PART.split(path.read_text(encoding="utf-8"))
    options = {name: value.strip() for name, value in (line.split(":", 1) for line in head.splitlines())}
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    return Case(path, options, texts["before"], texts.get("after", ""), texts.get("left", ""))


def left_lines(found: AnnotatedText) -> str:
    return "".join(f"{line}: {why}\n" for line, why in found.left)


CASES = {path.stem: read_case(path) for path in sorted((Path(__file__).parent / "cases").glob("*.txt"))}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def integers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)


def arguments(case: Case) -> list[Any]:
    return list(eval(f"[{case.options['args']}]", {"f": floats, "i": integers, "u": np.uint32}))


def program_of(text: str, mesh: Mesh) -> Any:
    """What a text defines as ``program``; the old place of shard_map warns that it is old."""
    namespace: dict[str, Any] = {"mesh": mesh, "__name__": "program"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        exec(compile(text, "program", "exec", dont_inherit=True), namespace)
    return namespace["program"]


@contextlib.contextmanager
def around(case: Case, mesh: Mesh) -> Generator[None]:
    """The old place of shard_map may be imported by the call; some programs want an ambient mesh."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", DeprecationWarning)
        if "ambient" in case.options:
            stack.enter_context(jax.set_mesh(mesh))
        yield


def lowered(text: str, case: Case, mesh: Mesh) -> Any:
    program, args = program_of(text, mesh), arguments(case)
    static = {int(index) for index in case.options.get("static", "").split()}
    traced = [arg for index, arg in enumerate(args) if index not in static]

    def call(*arrays: Any) -> Any:
        rest = iter(arrays)
        return program(*(arg if index in static else next(rest) for index, arg in enumerate(args)))

    with around(case, mesh):
        found = jax.jit(call).lower(*traced)
        return found.as_text(), jax.block_until_ready(found.compile()(*traced))


def test_the_text_is_what_the_table_says(case: Case) -> None:
    found = annotate_text(case.before)
    assert (found.text, left_lines(found)) == (case.after, case.left)


@pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")
def test_the_program_is_the_same_and_computes_the_same(case: Case, mesh: Mesh) -> None:
    before, expected = lowered(case.before, case, mesh)
    after, got = lowered(case.after, case, mesh)
    assert after == before
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_a_second_time_changes_nothing(case: Case) -> None:
    again = annotate_text(case.after)
    assert again.text == case.after
    assert again.done == 0


ODD = """
# what stands   around
def  odd( a,b = 1 ) :   # é
    return {'a' : a ,
      "b":b}
"""


def test_what_is_around_stays_as_it_is(case: Case) -> None:
    found = annotate_text(f"# -*- é -*-\n\n{case.before}{ODD}")
    assert found.text.startswith("# -*- é -*-\n\n")
    assert found.text.endswith(ODD)


def test_the_ends_of_lines_stay_as_they_are(case: Case) -> None:
    found = annotate_text(case.before.replace("\n", "\r\n"))
    assert found.text == case.after.replace("\n", "\r\n")


@pytest.mark.parametrize(
    "mark", ["\ufeff", "# \u2028 \x0b \x0c \x1c é\n\n"], ids=["byte order mark", "other ends of lines"]
)
def test_odd_characters_stay_as_they_are(case: Case, mark: str) -> None:
    assert annotate_text(mark + case.before).text == mark + case.after


def test_parameters_that_hold_the_ends_of_other_lines_are_found() -> None:
    text = (
        'import jax\ndef f(x, n="\u2028\x0c"): return x\ng = jax.shard_map(f, in_specs=(jax.P(),), out_specs=jax.P())\n'
    )
    assert 'n="\u2028\x0c") -> PyTree[Shaped[Array, "..."]]: return x' in annotate_text(text).text


IDENTITY = """
import jax
from jax.sharding import PartitionSpec as P

program = jax.shard_map(lambda x: x, mesh=mesh, in_specs=(P(),), out_specs=P())
"""
ODD_VALUES = {
    "nothing": None,
    "an empty tuple": (),
    "a number": 2,
    "a truth": True,
    "a scalar of numpy": np.float32(2),
    "a key": jax.random.key(0),
    "a tree": {"a": [np.ones(3), (None, 2.5)]},
    "an empty array": np.ones((0, 3), np.float32),
}


@pytest.mark.parametrize("value", ODD_VALUES.values(), ids=list(ODD_VALUES))
def test_whatever_was_taken_is_taken(value: Any, mesh: Mesh) -> None:
    before = jax.block_until_ready(program_of(IDENTITY, mesh)(value))
    after = jax.block_until_ready(program_of(annotate_text(IDENTITY).text, mesh)(value))
    assert jax.tree.structure(after) == jax.tree.structure(before)
    assert jax.tree.map(jax.typeof, after) == jax.tree.map(jax.typeof, before)


def test_an_import_that_the_hints_use_stays() -> None:
    text = """\
import jax
from jax import P
from names import DATA

program = jax.shard_map(lambda x: x, in_specs=P(DATA), out_specs=P(DATA))
"""
    after = """\
from names import DATA
from typedshmap import Array, PyTree, Shaped, typed_shard_map

program = typed_shard_map(
    lambda x: x,
    axes={"DATA": DATA},
    in_types=(PyTree[Shaped[Array, "[_/DATA] ..."]],),
    out_types=PyTree[Shaped[Array, "[_/DATA] ..."]],
)
"""
    assert annotate_text(text).text == after


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        CASES[name].path.write_text(CASES[name].text_with(annotate_text(CASES[name].before)), encoding="utf-8")
