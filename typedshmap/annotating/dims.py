"""Describe a traced region as the hints that its function would have: dims that are the same have one name.

The name is, in this order: what a comment, an annotation or the docstring says; what a shape is unpacked to; a name in
a pattern of einops, a letter of einsum; ``batch`` where the mesh axis is called ``data``, and the like; what dims of
well-known parameters are called. Other dims are called after the first parameter that has them: ``w_rows`` and
``w_cols`` for its last two, ``w_stack`` for the one before, ``b_size`` for the only one. A dim of a result that is none
of an argument's is ``_``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from keyword import iskeyword
from typing import Any, NamedTuple

from .. import _jax
from ..hints.array_hint import FAMILIES, takes
from ..inference.dims import Labels, RegionDims, read_dims
from ..notation.layout import Layout
from .notes import ELLIPSIS, FunctionSource, ShapeNote, Words


@dataclass(frozen=True)
class LeafHint:
    """Arrays as a hint has them.

    Attributes:
      dtypes: their dtypes.
      dims: their dims with mesh axes, ``"[batch/dp] seqlen [heads/tp] d"``.
    """

    dtypes: frozenset[str]
    dims: str

    @property
    def dtype(self) -> str:
        """The name of the narrowest kind that has all dtypes, ``"Float"`` for ``float32``."""
        kinds = sorted((kind for kind in FAMILIES.items() if kind[1]), key=lambda kind: len(kind[1] or ()))
        wide = (name for name, kind in kinds if self.dtypes and all(takes(kind, each) for each in self.dtypes))
        return next(wide, "Shaped")


def common(hints: Sequence[LeafHint]) -> LeafHint | None:
    """The one hint of several arrays, or of all in a tree, which may differ in rank; None where there is none.

    A name that they do not share is ``_``: those that are left are equal in all of them."""
    if not hints:
        return LeafHint(frozenset(), ELLIPSIS)
    dtypes, rows = frozenset[str]().union(*(hint.dtypes for hint in hints)), [hint.dims.split() for hint in hints]
    if len({*map(len, rows)}) > 1:
        rows = [[f"[_/{axes}" if axes else "_" for _, _, axes in (dim.partition("/") for dim in row)] for row in rows]
        leading = {" ".join(row).rstrip("_ ") for row in rows}
        has_marks = any(dim[0] in "+-" for hint in hints for dim in hint.dims.split())
        return None if has_marks or len(leading) > 1 else LeafHint(dtypes, f"{leading.pop()} ...".strip())
    dims: list[str] = []
    for dim, *others in zip(*rows, strict=True):
        name, slash, axes = dim.partition("/")
        if any(name[0] in "+-" or other.partition("/")[1:] != (slash, axes) for other in others if other != dim):
            return None
        dims.append(dim if all(other == dim for other in others) else f"[_/{axes}" if slash else "_")
    return LeafHint(dtypes, " ".join(dims))


def describe(
    traced: _jax.jaxpr.TracedRegion, parameters: Sequence[str], source: FunctionSource | None
) -> tuple[list[LeafHint], list[LeafHint]]:
    """The hints of the arguments and of the results of a function that was mapped.

    Dims have one name where the operations of the body need them to be of one size.

    Args:
      traced: the region that a call of the function itself was traced to, neither of its gradient nor of what
        ``jax.vmap`` makes of it.
      parameters: the path of each array among its arguments, ``"params['w']"``; what it closes over has none.
      source: its text.
    """
    eqn, dims = traced.eqn, read_dims(traced.eqn)
    operands = [*map(_Array.of, eqn.invars, eqn.params["in_specs"], dims.operands)]
    returned = [*map(_Array.of, eqn.outvars, eqn.params["out_specs"], dims.results)]
    arguments, results = operands[len(operands) - len(parameters) :], [returned[at] for at in traced.results]
    named = NamedDims(dims, arguments, results, parameters)
    if source is not None:
        named.take_notes(source)
    named.take_defaults()
    words = axis_words(eqn.params["mesh"].axis_names)
    return [each.hint(named.names, words) for each in arguments], [each.hint(named.names, words) for each in results]


class _Array(NamedTuple):
    """An array of a region, with the labels of its dims."""

    labels: Labels
    sizes: tuple[int, ...]
    layout: Layout
    dtype: str

    @classmethod
    def of(cls, var: Any, spec: Any, labels: Labels) -> _Array:
        shape = var.aval.shape
        return cls(labels, shape, _jax.array.spec_entries(spec, len(shape)), str(var.aval.dtype))

    def hint(self, names: Mapping[str | None, str], words: Mapping[str, str]) -> LeafHint:
        """A hint with the names of its dims: each with its mesh axes, and what its spec says of sums."""
        pairs = zip(self.labels, self.layout.dim_axes, strict=True)
        dims = [with_axes(names.get(label, "_"), axes, words) for label, axes in pairs]
        marks = [f"+{words[axis]}" for axis in sorted(self.layout.unreduced)]
        marks += [f"-{words[axis]}" for axis in sorted(self.layout.reduced)]
        return LeafHint(frozenset([self.dtype]), " ".join([*dims, *marks]))


def with_axes(name: str, dim_axes: Sequence[str], words: Mapping[str, str]) -> str:
    """A dim with the mesh axes that it is sharded over: ``"[batch/dp]"``, or ``"batch"`` without."""
    return f"[{name}/{','.join(words[axis] for axis in dim_axes)}]" if dim_axes else name


def axis_words(axes: Iterable[str]) -> dict[str, str]:
    """What hints call mesh axes: a name of their own if one is no identifier; for ``"=config.axis"`` its last part."""
    every = [*axes]
    words = {axis: axis for axis in every if axis.isascii() and axis.isidentifier()}
    for axis in every:
        if axis not in words:
            word = re.sub(r"[^0-9A-Za-z]", "_", axis.rpartition(".")[2]).strip("_")
            word = word if word.isidentifier() else f"axis{word}"
            while word in words.values():
                word += "_"
            words[axis] = word
    return words


class NamedDims:
    """The dims of a function's arguments and results, and their names, by their labels.

    Args:
      dims: what the region says of the dims.
      arguments: the arguments.
      results: the results.
      parameters: the path of each argument.
    """

    def __init__(
        self, dims: RegionDims, arguments: Sequence[_Array], results: Sequence[_Array], parameters: Sequence[str]
    ) -> None:
        self.dims, self.arguments, self.results, self.parameters = dims, arguments, results, parameters
        self.sizes = {label: size for each in arguments for label, size in zip(each.labels, each.sizes, strict=True)}
        self.names: dict[str | None, str] = {
            label: "1" for label, size in self.sizes.items() if label in dims.broadcast and size == 1
        }

    def take_notes(self, source: FunctionSource) -> None:
        """Give the names that the text of the function has."""
        for note in source.shape_notes():
            for labels in reversed(self._values(note, source.file)):
                if (words := _fitted(note.words, len(labels))) is not None:
                    for place, (label, word) in enumerate(zip(labels, words, strict=True), 1):
                        if word in self.parameters and not note.is_stated:  # as ``q`` in ``"bqhd,bkhd->bhqk"``
                            word = f"{word}_len" if place < len(words) else None
                        self._give(label, word, note.is_stated)
                    break

    def _values(self, note: ShapeNote, file: str) -> list[Labels]:
        """The values that a note may be about."""
        if note.path:
            return [
                each.labels for each, path in zip(self.arguments, self.parameters, strict=True) if path == note.path
            ]
        start, end = note.lines
        lines = {(file, line) for line in range(start, end + 1)}
        return [value.dims for value in self.dims.values if not lines.isdisjoint(value.lines)]

    def _give(self, label: str | None, word: str | None, is_stated: bool) -> None:
        """Call the dims with a label by a word, unless they have a name, or dims of another size have it."""
        if word is None or label not in self.sizes or label in self.names or not _is_name(word):
            return
        others = [other for other, name in self.names.items() if name == word]
        if not others or (is_stated and self.sizes[others[0]] == self.sizes[label]):
            self.names[label] = word

    def take_defaults(self) -> None:
        """Give a name to all dims of arguments that have none."""
        for give in (self._by_axis, self._by_parameter, self._by_place):
            for at, argument in enumerate(self.arguments):
                for place, label in enumerate(argument.labels):
                    if label not in self.names:
                        roots = {re.match(r"\w*", path)[0] for path in self.parameters}  # type: ignore[index]
                        taken = {*self.names.values(), *roots}
                        word = next((word for word in give(at, place) if word not in taken), None)
                        if word is not None:
                            self.names[label] = word

    def _by_axis(self, at: int, place: int) -> Iterator[str]:
        """What an axis is called after, if all dims of the label are sharded over it; data has no other first dim."""
        label = self.arguments[at].labels[place]
        is_first = not any(label in each.labels[1:] for each in self.arguments)
        same = [axes for each in (*self.arguments, *self.results)
                for other, axes in zip(each.labels, each.layout.dim_axes, strict=True) if other == label]  # fmt: skip
        words = {next((word for axis in axes if (word := _AXIS_WORDS.get(axis.lower()))), "") for axes in same}
        if words == {"batch"} and is_first:
            yield "batch"
        elif len(words) == 1 and words.isdisjoint(("batch", "")):
            yield from (word := words.pop(), f"{_bases(self.parameters[at])[0]}_{word}")

    def _by_parameter(self, at: int, place: int) -> Iterator[str]:
        words = _PARAMETER_WORDS.get(_bases(self.parameters[at])[0], ())
        if len(words) == len(self.arguments[at].labels):
            yield words[place]

    def _by_place(self, at: int, place: int) -> Iterator[str]:
        rank, bases = len(self.arguments[at].labels), _bases(self.parameters[at])
        ending = "size" if rank == 1 else dict(enumerate(_PLACES)).get(rank - 1 - place, f"outer{rank - 1 - place}")
        yield from (f"{base}_{ending}" for base in bases)
        yield from (f"{bases[0]}_{ending}_{number}" for number in count(2))


_PLACES = ("cols", "rows", "stack", "outer")
_AXIS_WORDS = {
    **dict.fromkeys(("data", "dp", "fsdp", "batch", "replica"), "batch"),
    **dict.fromkeys(("seq", "sp", "cp", "context", "sequence"), "seq"),
    **dict.fromkeys(("ep", "expert", "experts"), "experts"),
    **dict.fromkeys(("pp", "stage", "stages", "pipe"), "stages"),
}
_PARAMETER_WORDS = {
    **dict.fromkeys(("ids", "input_ids", "tokens", "labels", "targets"), ("batch", "seq")),
    **dict.fromkeys(("table", "embed", "embedding", "embeddings", "wte"), ("vocab", "model")),
    **dict.fromkeys(("up", "w_up", "gate", "w_gate", "w_in"), ("model", "ff")),
    **dict.fromkeys(("down", "w_down", "w_out"), ("ff", "model")),
}


def _bases(path: str) -> list[str]:
    """What dims are called after, for a path: ``w``, ``layers0_w`` for ``layers[0]['w']``."""
    words = re.findall(r"[A-Za-z]\w*", re.sub(r"\[(\d+)\]", r"\1", path), re.ASCII) or ["dim"]
    return ["_".join(words[at:]) for at in reversed(range(len(words)))]


def _is_name(word: str) -> bool:
    """Whether hints may call a dim so."""
    return not iskeyword(word) and word not in ("min", "max")


def _fitted(words: Words, rank: int) -> Words | None:
    """Words for so many dims; None where they are for another number."""
    if ELLIPSIS not in words:
        return words if len(words) == rank else None
    at = words.index(ELLIPSIS)
    missing = rank - len(words) + 1
    return None if missing < 0 else (*words[:at], *(None,) * missing, *words[at + 1 :])
