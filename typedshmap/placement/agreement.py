"""What processes tell each other of their data, and where they do not agree.

Invariant: every process has the same words, so every process comes to the same end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .. import errors
from ..errors import DtypeError, ShapeError, StructureError, TypedShmapError
from ..errors.failures import Failure, HintText, Told, WrongSize
from ..notation.nodes import Span
from ..notation.sizes import Subject


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of one process.

    Attributes:
      path: where it stands in the data.
      own: its own shape.
      whole: the global shape that it means.
      dtype: its dtype.
      names: the names of its dims, of those that have one.
      hint: its hint, in the three parts of a `HintText`.
      spans: where each dim stands in the hint.
    """

    path: str
    own: tuple[int, ...]
    whole: tuple[int, ...]
    dtype: str
    names: tuple[str | None, ...]
    hint: tuple[str, str, str]
    spans: tuple[Span, ...]

    def sized(self, index: int, size: int) -> str:
        name = self.names[index]
        return f"size {size} in dim {index}" if name is None else f"{name}={size}"

    def meant(self, index: int) -> str:
        name = self.names[index]
        return f"{self.whole[index]}" if name is None else f"{name}={self.whole[index]}"


@dataclass(frozen=True, slots=True)
class Word:
    """What one process says: its arrays, or the class and the text of its error."""

    process: int
    leaves: tuple[Leaf, ...] = ()
    error: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two processes that do not mean the same global array.

    Attributes:
      error: what it is raised as.
      leaf: the array, as one of them has it.
      problem: what is wrong with it.
      index: the dim, where one has two sizes.
    """

    error: type[TypedShmapError]
    leaf: Leaf
    problem: str
    index: int | None = None

    @property
    def failure(self) -> Failure:
        """What is wrong, told by what every process knows."""
        leaf = self.leaf
        what = Told(self.problem) if self.index is None else WrongSize(self.problem, leaf.spans[self.index])
        return Failure(what, Subject("placed", "data", leaf.path), HintText(*leaf.hint))


def write_word(word: Word) -> bytes:
    """A word as it is sent."""
    return json.dumps(asdict(word)).encode()


def read_word(text: bytes) -> Word:
    """A word as it came."""
    read = json.loads(text)
    leaves = tuple(Leaf(**{name: _frozen(value) for name, value in leaf.items()}) for leaf in read["leaves"])
    return Word(read["process"], leaves, tuple(read["error"]) if read["error"] else None)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def told_error(words: Iterable[Word]) -> TypedShmapError | None:
    """The error of the first process that has one."""
    for word in _in_order(words):
        if word.error is not None:
            name, text = word.error
            kind: type[TypedShmapError] = getattr(errors, name)
            return kind(text)
    return None


def disagreement(words: Iterable[Word]) -> Disagreement | None:
    """Where a process does not mean what the first one does."""
    first, *others = _in_order(words)
    return next((found for other in others for found in _differences(first, other)), None)


def _in_order(words: Iterable[Word]) -> list[Word]:
    return sorted(words, key=lambda word: word.process)


def _differences(first: Word, other: Word) -> Iterator[Disagreement]:
    for a, b in zip(first.leaves, other.leaves, strict=False):
        if a.path != b.path:
            problem = f"is on process {first.process}, but process {other.process} has data{b.path} in its place"
            yield Disagreement(StructureError, a, problem)
        elif a != b:
            yield from _differences_of(a, b, first.process, other.process)
    yield from _missing(first.leaves, other.leaves, first.process, other.process)
    yield from _missing(other.leaves, first.leaves, other.process, first.process)


def _differences_of(a: Leaf, b: Leaf, first: int, other: int) -> Iterator[Disagreement]:
    if len(a.whole) != len(b.whole):
        problem = f"has {_dims(b)} on process {other}, but process {first} has {_dims(a)}"
        yield Disagreement(ShapeError, a, problem)
        return
    for index, (x, y) in enumerate(zip(a.whole, b.whole, strict=True)):
        if x != y:
            here = f"has {b.sized(index, b.own[index])} on process {other}{_means(b, index, ' globally')}"
            problem = f"{here}, but process {first} has {a.sized(index, a.own[index])}{_means(a, index)}"
            yield Disagreement(ShapeError, a, problem, index)
    if a.dtype != b.dtype:
        problem = f"has dtype {b.dtype} on process {other}, but process {first} has {a.dtype}"
        yield Disagreement(DtypeError, a, problem)


def _means(leaf: Leaf, index: int, globally: str = "") -> str:
    is_whole = leaf.own[index] == leaf.whole[index]
    return "" if is_whole else f", which means {leaf.meant(index)}{globally}"


def _dims(leaf: Leaf) -> str:
    return f"{len(leaf.whole)} dim{'' if len(leaf.whole) == 1 else 's'}"


def _missing(longer: Sequence[Leaf], shorter: Sequence[Leaf], has: int, lacks: int) -> Iterator[Disagreement]:
    for leaf in longer[len(shorter) :]:
        yield Disagreement(StructureError, leaf, f"is on process {has}, but not on process {lacks}")
