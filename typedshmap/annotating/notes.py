"""What the text of a function says of shapes: in comments, annotations, unpacked shapes and patterns."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ..source.module import ParsedModule
from ..source.text import FunctionNode, assigned_names, first_line, last_line, parameters_of

ELLIPSIS = "..."
Words = tuple[str | None, ...]
"""A name per dim; None for one that has none, a number for instance; `ELLIPSIS` for any number of dims."""


class ShapeNote(NamedTuple):
    """The names that a text gives to the dims of one value.

    Attributes:
      words: the names.
      path: the argument whose shape it is, ``"x"`` or ``"params['w']"``; empty for another value.
      lines: the first and the last line of the statement that makes another value.
      is_stated: whether it is written for readers, so that equal names are equal sizes.
    """

    words: Words
    path: str = ""
    lines: tuple[int, int] = (0, 0)
    is_stated: bool = False


class FunctionSource(NamedTuple):
    """A function as it is written: its file, what that says, and the definition."""

    file: str
    module: ParsedModule
    node: FunctionNode

    @classmethod
    def at(cls, file: str, line: int) -> FunctionSource | None:
        """The text of the function whose ``def``, ``lambda`` or first decorator is on a line of a file."""
        if (module := _parsed("".join(linecache.getlines(file)))) is None:
            return None
        functions = module.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        return next((cls(file, module, node) for node in functions if line in {node.lineno, first_line(node)}), None)

    def shape_notes(self) -> Iterator[ShapeNote]:
        """What it says of shapes, the most certain first."""
        nodes = [*ast.walk(self.node)]
        yield from self._notes_of_parameters()
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return):
                yield from self._notes_beside(node)
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                yield from self._notes_of_sizes(node.targets[0], node.value)
        calls = sorted((node for node in nodes if isinstance(node, ast.Call)), key=lambda call: call.lineno)
        patterns = [note for call in calls for note in self._notes_of_pattern(call)]
        yield from sorted(patterns, key=lambda note: -max(len(word or "") for word in (*note.words, None)))

    def _notes_of_parameters(self) -> Iterator[ShapeNote]:
        """Annotations, comments beside parameters, and those at the head of the function that name them."""
        parameters, node = _parameters(self.node), self.node
        for name, parameter in parameters.items():
            if isinstance(parameter.annotation, ast.Subscript):  # of jaxtyping, for instance
                texts = (each.value for each in ast.walk(parameter.annotation.slice) if isinstance(each, ast.Constant))
                yield from (ShapeNote(_words(text), name, is_stated=True) for text in texts if isinstance(text, str))
        lines = [parameter.lineno for parameter in parameters.values()]
        beside = {each.lineno: name for name, each in parameters.items() if lines.count(each.lineno) == 1}
        first = node.lineno
        if not isinstance(node, ast.Lambda):
            first = node.body[min(len(node.body) - 1, ast.get_docstring(node) is not None)].lineno - 1
        for line in sorted({*beside, *range(node.lineno - 1, first + 1)}):
            for subject, words in _shapes_in(self.module.comments.get(line, "")):
                if subject in parameters or line in beside:
                    path = subject if subject is not None and subject in parameters else beside[line]
                    yield ShapeNote(words, path, is_stated=True)

    def _notes_beside(self, statement: ast.stmt) -> Iterator[ShapeNote]:
        """Comments on the lines of a statement that makes one value, or above it."""
        start, end = statement.lineno, last_line(statement)
        is_above = linecache.getline(self.file, start - 1).lstrip().startswith("#")
        comments = [self.module.comments.get(line, "") for line in range(start - is_above, end + 1)]
        for subject, words in [shape for comment in comments for shape in _shapes_in(comment)][-1:]:
            if len({*assigned_names(statement)}) <= 1 or subject in assigned_names(statement):
                yield ShapeNote(words, lines=(start, end), is_stated=True)

    def _notes_of_sizes(self, target: ast.expr, value: ast.expr) -> Iterator[ShapeNote]:
        """The names that are given to sizes: ``b, s, *_ = x.shape``, ``b = x.shape[0]``, ``h, d = x.shape[-2:]``."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for pair in zip(target.elts, value.elts, strict=False):
                yield from self._notes_of_sizes(*pair)
        if (found := re.fullmatch(r"(.+)\.shape(?:\[(-?\d*)(:?)(-?\d*)\])?", ast.unparse(value))) is None:
            return
        of, start, colon, stop = found.groups()
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        words = tuple(ELLIPSIS if isinstance(each, ast.Starred) else _size_word(ast.unparse(each)) for each in parts)
        if not colon and start:
            at = int(start)
            words = (*(None,) * at, *words, ELLIPSIS) if at >= 0 else (ELLIPSIS, *words, *(None,) * (-1 - at))
        elif colon:
            words = (*words, ELLIPSIS) if stop and not start else (ELLIPSIS, *words)
        if isinstance(target, ast.Tuple) or (start and not colon):
            yield self._note_of(of, target.lineno, words)

    def _notes_of_pattern(self, call: ast.Call) -> Iterator[ShapeNote]:
        """The letters of einsum, and the names in patterns of einops."""
        texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        if ast.unparse(call.func).rpartition(".")[2] in ("einsum", "rearrange", "reduce", "repeat") and len(texts) == 1:
            operands = [arg for arg in call.args if not isinstance(arg, ast.Constant)]
            sides, _, result = texts[0].partition("->")
            for operand, side in zip(operands, sides.split(","), strict=False):
                yield self._note_of(ast.unparse(operand), call.lineno, _pattern_words(side))
            if isinstance(statement := self.module.parents[call], ast.stmt) and result:
                yield ShapeNote(_pattern_words(result), lines=(statement.lineno, last_line(statement)))

    def _note_of(self, value: str, line: int, words: Words) -> ShapeNote:
        """A note on an expression: on what was last assigned to it above a line, or else on an argument."""
        nodes = [*ast.walk(self.node)]
        above = [each for each in nodes if isinstance(each, ast.stmt) and value in assigned_names(each)]
        made = max(((each.lineno, last_line(each)) for each in above if last_line(each) < line), default=(0, 0))
        inner = [each for each in nodes if isinstance(each, FunctionNode) and each is not self.node]
        is_hidden = any(value in _parameters(each) and each.lineno <= line <= last_line(each) for each in inner)
        return ShapeNote(words, "" if is_hidden or any(made) else value, made)


@lru_cache(maxsize=64)
def _parsed(text: str) -> ParsedModule | None:
    try:
        return ParsedModule(text)
    except (SyntaxError, ValueError):
        return None


def _parameters(node: FunctionNode) -> dict[str, ast.arg]:
    return {each.arg: each for each in parameters_of(node) if each is not node.args.kwarg}


_OF_SHARD = re.compile(r"(?i)^(local|shard|loc)_(?=.)|(?<=.)_(local|shard|loc|per_device|per_shard)$")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*|\.\.\.")
_SHAPE = re.compile(r"(?:(?P<subject>[A-Za-z_]\w*)(?:[:=\s]|shape|of|is)*)?[\[(](?P<dims>[^\[\]()]*)[\])]")
# What stands before brackets that are no shape: ``noqa``'s kin, and types.
_NO_VALUES = {"ignore", "list", "tuple", "dict", "set", "List", "Tuple", "Dict", "Sequence", "Optional", "Array"}


def _size_word(word: str) -> str | None:
    """A variable as the name of a dim: one that is called after the shard is called after the array."""
    return _dim_word(_OF_SHARD.sub("", word))


def _dim_word(text: str) -> str | None:
    return text if _WORD.fullmatch(text) else None


def _shapes_in(comment: str) -> Iterator[tuple[str | None, Words]]:
    """The shapes that a comment names, each with the word before it: ``q [B, H, K]``, ``f32[b/dp, s]``."""
    for found in _SHAPE.finditer(comment):
        words = _words(found["dims"])
        is_list = "," in found["dims"] or "/" in found["dims"] or comment[found.start("dims") - 1] == "["
        if is_list and found["subject"] not in _NO_VALUES and any(word not in (None, ELLIPSIS) for word in words):
            yield found["subject"], words


def _words(text: str) -> Words:
    """The names in a list of dims; their mesh axes and sizes are left out, marks are no dims."""
    text = re.sub(r"\[([^\[\]]*)\]", lambda found: found[1].replace(",", "&").replace(" ", ""), text)
    parts = [part for part in re.split(r"[,\s]+", text.strip()) if part and part[0] not in "+-~"]
    return tuple(_dim_word(re.split(r"[/:=@]", part)[0].lstrip("#?*")) for part in parts)


def _pattern_words(side: str) -> Words:
    """The dims of one side of a pattern: letters, or names with spaces between; groups have no name."""
    side = re.sub(r"\([^()]*\)", " 0 ", side).strip()
    if " " in side or "/" in side:
        return _words(side)
    return tuple(_dim_word(part) for part in re.findall(r"\.\.\.|.", side))
