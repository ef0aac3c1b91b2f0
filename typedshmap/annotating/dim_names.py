"""Name the dims of a region: one name for dims that are the same in every trace, and no name for two.

The name is, in this order: what a comment, an annotation or the docstring says; what a shape is unpacked to; a name in
a pattern of einops, a letter of einsum; ``batch`` where the mesh axis is called ``data``, and the like; what dims of
well-known parameters are called; ``features`` for the last dim of an argument, if it is one of the first dims of
another, its weights, or the only one. Other dims are called after the first parameter that has them: ``w_rows`` and
``w_cols`` for its last two, ``w_stack`` for the one before, ``b_size`` for the only one. A dim of a result that is none
of an argument's is ``_``, unless a comment has a name for it, or it is always as long as those of one name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, count
from keyword import iskeyword
from typing import NamedTuple

from ..inference.dims import Labels, RegionDims
from .function_source import ELLIPSIS, FunctionSource, ShapeNote, Words

Labelled = tuple[str | None, ...]
"""The label of a dim in each trace; dims with the same are called the same."""


class TracedDim(NamedTuple):
    """A dim of an array in all traces.

    Attributes:
      labels: its label in each of them.
      sizes: its global size in each of them.
      axes: the mesh axes that it is sharded over.
    """

    labels: Labelled
    sizes: tuple[int, ...]
    axes: tuple[str, ...]


class NamedDims:
    """The dims of a function's arguments and results, and their names.

    Args:
      traces: what each trace says of the dims.
      arguments: the dims of each argument.
      results: the dims of each result.
      parameters: the path of each argument.
    """

    def __init__(
        self,
        traces: Sequence[RegionDims],
        arguments: Sequence[Sequence[TracedDim]],
        results: Sequence[Sequence[TracedDim]],
        parameters: Sequence[str],
    ) -> None:
        self.traces, self.arguments, self.results, self.parameters = traces, arguments, results, parameters
        self.sizes = {dim.labels: dim.sizes for dim in chain(*arguments)}
        self.names: dict[Labelled, str] = {}
        self.names_of_results: dict[tuple[int, int], str] = {}
        for labels, sizes in self.sizes.items():
            is_broadcast = any(label in trace.broadcast for label, trace in zip(labels, traces, strict=True))
            if is_broadcast and set(sizes) == {1}:
                self.names[labels] = "1"

    def argument(self, at: int) -> list[str]:
        """The names of an argument's dims."""
        return [self.names[dim.labels] for dim in self.arguments[at]]

    def result(self, at: int) -> list[str]:
        """The names of a result's dims."""
        return [
            self.names.get(dim.labels) or self.names_of_results.get((at, place)) or self._name_by_size(dim)
            for place, dim in enumerate(self.results[at])
        ]

    def _name_by_size(self, dim: TracedDim) -> str:
        """The only name whose dims were always as long as this one, where their size was not always the same."""
        found = {self.names[labels] for labels, sizes in self.sizes.items() if sizes == dim.sizes}
        return found.pop() if len(found) == 1 and len(set(dim.sizes)) > 1 else "_"

    def take_notes(self, source: FunctionSource) -> None:
        """Give the names that the text of the function has."""
        for note in source.shape_notes():
            for at, trace in enumerate(self.traces):
                for labels, words in self._named_by(note, source, trace):
                    for place, (label, word) in enumerate(zip(labels, words, strict=True), 1):
                        if word in self.parameters and not note.is_stated:  # as ``q`` in ``"bqhd,bkhd->bhqk"``
                            word = f"{word}_len" if place < len(words) else None
                        self._give(label, at, word, note.is_stated)
            if note.value == "" and len(self.results) == 1:
                self._take_note_of_result(note.words)

    def _named_by(self, note: ShapeNote, source: FunctionSource, trace: RegionDims) -> Iterator[tuple[Labels, Words]]:
        """The values that a note may be about, each with the words for its dims."""
        made = note.made or source.assignment(note.value, note.line)
        if made is not None:
            start, end = made
            values = [
                value.dims
                for value in trace.values
                if any(file == source.file and start <= line <= end for file, line in value.lines)
            ]
        elif source.is_parameter(note.value, note.line):
            first = len(trace.operands) - len(self.parameters)
            values = [trace.operands[first + at] for at, path in enumerate(self.parameters) if path == note.value]
        else:
            values = []
        for labels in reversed(values):
            if (words := _fitted(note.words, len(labels))) is not None:
                yield labels, words
                return

    def _give(self, label: str | None, at: int, word: str | None, is_stated: bool) -> None:
        """Call the dims with a label in a trace by a word, unless they have a name, or dims of another size have it."""
        found = [labels for labels in self.sizes if labels[at] == label]
        if word is None or len(found) != 1 or found[0] in self.names or not _is_name(word):
            return
        others = [labels for labels, name in self.names.items() if name == word]
        if not others or (is_stated and self.sizes[others[0]] == self.sizes[found[0]]):
            self.names[found[0]] = word

    def _take_note_of_result(self, words: Words) -> None:
        fitted = _fitted(words, len(self.results[0]))
        for at, (dim, word) in enumerate(zip(self.results[0], fitted or (), strict=False)):
            sizes = {self.sizes[labels] for labels, name in self.names.items() if name == word}
            if word is not None and _is_name(word) and sizes <= {dim.sizes}:
                self.names_of_results[0, at] = word

    def take_defaults(self) -> None:
        """Give a name to all dims of arguments that have none."""
        for give in (self._by_axis, self._by_parameter, self._by_role, self._by_place):
            for at, dims in enumerate(self.arguments):
                for place, dim in enumerate(dims):
                    if dim.labels not in self.names:
                        taken = {*self.names.values(), *self.names_of_results.values(), *map(_root, self.parameters)}
                        word = next((word for word in give(at, place) if word not in taken), None)
                        if word is not None:
                            self.names[dim.labels] = word

    def _by_axis(self, at: int, place: int) -> Iterator[str]:
        """What an axis is called after, if all dims of the class are sharded over it; data has no other first dim."""
        label = self.arguments[at][place].labels
        is_first = not any(dim.labels == label for dims in self.arguments for dim in dims[1:])
        same = [dim for dim in chain(*self.arguments, *self.results) if dim.labels == label]
        words = {next((word for axis in dim.axes if (word := _AXIS_WORDS.get(axis.lower()))), "") for dim in same}
        if words == {"batch"} and is_first:
            yield "batch"
        elif len(words) == 1 and words != {"batch"}:
            for word in filter(None, words):
                yield from (word, f"{_base(self.parameters[at])[0]}_{word}")

    def _by_parameter(self, at: int, place: int) -> Iterator[str]:
        words = _PARAMETER_WORDS.get(_base(self.parameters[at])[0], ())
        if len(words) == len(self.arguments[at]):
            yield words[place]

    def _by_role(self, at: int, place: int) -> Iterator[str]:
        """The last dim of what weights multiply, which is one of their first dims, or the only one."""
        *first, last = [dim.labels for dim in self.arguments[at]]
        others = [[dim.labels for dim in dims] for dims in self.arguments if dims]
        is_weight = any(labels[-1] in first for labels in others if len(labels) > 1)
        are_weighted = any(last in (labels[:-1] or labels) for labels in others)
        if first and place == len(first) and are_weighted and not is_weight:
            yield "features"

    def _by_place(self, at: int, place: int) -> Iterator[str]:
        rank = len(self.arguments[at])
        from_last = rank - 1 - place
        ending = "size" if rank == 1 else _PLACES[from_last] if from_last < len(_PLACES) else f"outer{from_last}"
        for base in _base(self.parameters[at]):
            yield f"{base}_{ending}"
        yield from (f"{_base(self.parameters[at])[0]}_{ending}_{number}" for number in count(2))


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


def _root(path: str) -> str:
    """The parameter of a path: ``params`` of ``params['w']``."""
    return re.match(r"\w*", path)[0]  # type: ignore[index]


def _base(path: str) -> list[str]:
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
