"""The text of one function, and what it says of shapes: in comments, annotations, unpacked shapes and patterns."""

from __future__ import annotations

import ast
import io
import linecache
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

ELLIPSIS = "..."
Words = tuple[str | None, ...]
"""A name per dim; None for one that has none, a number for instance; `ELLIPSIS` for any number of dims."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class ShapeNote(NamedTuple):
    """The names that a text gives to the dims of one value.

    Attributes:
      words: the names.
      value: the expression whose value it is, ``"x"`` or ``"params['w']"``; empty for what is returned.
      line: where the expression stands; 0 for a parameter.
      made: the first and the last line of the statement that makes the value, if that is known and nothing else.
      is_stated: whether it is written for readers, so that equal names are equal sizes.
    """

    words: Words
    value: str
    line: int = 0
    made: tuple[int, int] | None = None
    is_stated: bool = False


class FunctionSource(NamedTuple):
    """A function as it is written.

    Attributes:
      file: its file.
      node: its syntax tree, with the lines of the file.
      comments: the comments of the file by their lines, without ``#``.
    """

    file: str
    node: FunctionNode
    comments: Mapping[int, str]

    @classmethod
    def at(cls, file: str, line: int) -> FunctionSource | None:
        """The text of the function whose ``def``, ``lambda`` or first decorator is on a line of a file."""
        tree, comments = _parsed_file(file)
        for node in ast.walk(tree):
            if isinstance(node, FunctionNode) and line in {node.lineno, *(one.lineno for one in _decorators(node))}:
                return cls(file, node, comments)
        return None

    def shape_notes(self) -> Iterator[ShapeNote]:
        """What it says of shapes, the most certain first."""
        statements = list(self._statements())
        yield from self._notes_of_parameters()
        yield from self._notes_of_statements(statements)
        yield from (note for statement in statements for note in _unpacked(statement))
        patterns = list(self._notes_of_patterns(statements))
        yield from sorted(patterns, key=lambda note: -max(len(word or "") for word in (*note.words, None)))

    def assignment(self, name: str, line: int) -> tuple[int, int] | None:
        """The lines of the last assignment to a variable above a line."""
        found = (each for each in self._statements() if name in _targets(each) and (each.end_lineno or 0) < line)
        last = max(found, key=lambda each: each.lineno, default=None)
        return None if last is None else _extent(last)

    def is_parameter(self, name: str, line: int) -> bool:
        """Whether a name is a parameter on a line, and not of a function within."""
        hidden = (each for each in self._inner_functions() if name in {one.arg for one in _parameters(each)})
        return not any(_extent(each)[0] <= line <= _extent(each)[1] for each in hidden)

    def _inner_functions(self) -> Iterator[FunctionNode]:
        return (each for each in ast.walk(self.node) if isinstance(each, FunctionNode) and each is not self.node)

    def _statements(self) -> Iterator[ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return]:
        for node in ast.walk(self.node):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return):
                yield node

    def _notes_of_parameters(self) -> Iterator[ShapeNote]:
        """Annotations, comments beside parameters, and those at the head of the function that name them."""
        parameters, node = {parameter.arg: parameter for parameter in _parameters(self.node)}, self.node
        for name, parameter in parameters.items():
            inner = ast.walk(parameter.annotation) if parameter.annotation else ()
            for items in (ast.walk(each.slice) for each in inner if isinstance(each, ast.Subscript)):
                texts = (each.value for each in items if isinstance(each, ast.Constant) and isinstance(each.value, str))
                yield from (ShapeNote(_words(text), name, is_stated=True) for text in texts)
        lines = [parameter.lineno for parameter in parameters.values()]
        beside = {
            parameter.lineno: name for name, parameter in parameters.items() if lines.count(parameter.lineno) == 1
        }
        last = node.lineno
        if not isinstance(node, ast.Lambda):
            last = node.body[min(len(node.body) - 1, ast.get_docstring(node) is not None)].lineno - 1
        for line in sorted({*beside, *range(node.lineno - 1, last + 1)}):
            for subject, words in _shapes_in(self.comments.get(line, "")):
                if subject in parameters or line in beside:
                    name = subject if subject in parameters else beside[line]
                    yield ShapeNote(words, str(name), is_stated=True)

    def _notes_of_statements(self, statements: Sequence[ast.stmt]) -> Iterator[ShapeNote]:
        """Comments on the lines of a statement, or above it."""
        own = {line for line in self.comments if linecache.getline(self.file, line).lstrip().startswith("#")}
        hidden = {node for inner in self._inner_functions() for node in ast.walk(inner)}
        ends = [each for each in statements if isinstance(each, ast.Return) and each not in hidden]
        returned = {ast.unparse(each.value) for each in ends if each.value}
        for statement in statements:
            start, end = _extent(statement)
            lines = [*([start - 1] if start - 1 in own else []), *range(start, end + 1)]
            shapes = [shape for line in lines for shape in _shapes_in(self.comments.get(line, ""))]
            targets = _targets(statement)
            for subject, words in shapes[-1:]:
                if statement in ends or (targets and targets <= returned):
                    yield ShapeNote(words, "", made=(start, end), is_stated=True)
                elif len(targets) == 1 or subject in targets:
                    yield ShapeNote(words, next(iter(targets)), made=(start, end), is_stated=True)

    def _notes_of_patterns(self, statements: Sequence[ast.stmt]) -> Iterator[ShapeNote]:
        """The letters of einsum, and the names in patterns of einops."""
        calls = [node for node in ast.walk(self.node) if isinstance(node, ast.Call) and _name(node.func) in _PATTERNS]
        for call in sorted(calls, key=_extent):
            texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if len(texts) != 1:
                continue
            operands = [arg for arg in call.args if not isinstance(arg, ast.Constant)]
            sides, _, result = texts[0].partition("->")
            for operand, side in zip(operands, sides.split(","), strict=False):
                yield ShapeNote(_pattern_words(side), ast.unparse(operand), call.lineno)
            for statement in statements:
                if getattr(statement, "value", None) is call and result:
                    yield ShapeNote(_pattern_words(result), "?", made=_extent(statement))


_PATTERNS = frozenset(["einsum", "rearrange", "reduce", "repeat"])


def _name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def _decorators(node: ast.AST) -> Sequence[ast.expr]:
    """The decorators of a function; a lambda has none."""
    return getattr(node, "decorator_list", ())


def _parameters(node: FunctionNode) -> list[ast.arg]:
    args = node.args
    return [*args.posonlyargs, *args.args, *filter(None, [args.vararg]), *args.kwonlyargs]


def _extent(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.end_lineno or node.lineno


def _targets(statement: ast.stmt) -> set[str]:
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return {node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)}


_SIZES = re.compile(r"(?P<of>.+)\.shape(?P<index>\[(?P<start>-?\d+)?(?P<colon>:)?(?P<stop>-?\d+)?\])?")


def _unpacked(statement: ast.stmt) -> Iterator[ShapeNote]:
    """The names that are given to sizes: ``b, s, *_ = x.shape``, ``b = x.shape[0]``, ``h, d = x.shape[-2:]``."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    pairs = [(statement.targets[0], statement.value)]
    if isinstance(statement.targets[0], ast.Tuple) and isinstance(statement.value, ast.Tuple):
        pairs = list(zip(statement.targets[0].elts, statement.value.elts, strict=False))
    for target, value in pairs:
        if (found := _SIZES.fullmatch(ast.unparse(value))) is None:
            continue
        are_many, start = isinstance(target, ast.Tuple | ast.List), int(found["start"] or 0)
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        words = tuple(ELLIPSIS if isinstance(one, ast.Starred) else _size_word(ast.unparse(one)) for one in parts)
        if are_many and found["colon"] and not found["stop"] and start == -len(words):
            words = (ELLIPSIS, *words)
        elif are_many and found["colon"] and not found["start"]:
            words = (*words, ELLIPSIS)
        elif not are_many and found["index"] and not found["colon"]:
            words = (*(None,) * start, *words, ELLIPSIS) if start >= 0 else (ELLIPSIS, *words, *(None,) * (-1 - start))
        elif not are_many or found["index"]:
            continue
        yield ShapeNote(words, found["of"], statement.lineno)


_OF_SHARD = re.compile(r"(?i)^(local|shard|loc)_(?=.)|(?<=.)_(local|shard|loc|per_device|per_shard)$")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def _size_word(word: str) -> str | None:
    """A variable as the name of a dim: one that is called after the shard is called after the array."""
    found = _OF_SHARD.sub("", word)
    return found if _WORD.fullmatch(found) else None


_SHAPE = re.compile(r"(?:(?P<subject>[A-Za-z_]\w*)(?:[:=\s]|shape|of|is)*)?[\[(](?P<dims>[^\[\]()]*)[\])]")
_LETTERS = re.compile(
    r"(?:(?P<subject>[a-z_]\w*)\s*[:=]\s*)?(?P<dims>[A-Z][a-z0-9]?(?:(?:\s*[,x]\s*|\s+)[A-Z][a-z0-9]?)+)\.?"
)


# What stands before brackets that are no shape: ``noqa``'s kin, and types.
_NO_VALUES = frozenset(
    ["ignore", "list", "tuple", "dict", "set", "List", "Tuple", "Dict", "Sequence", "Optional", "Array"]
)


def _shapes_in(text: str) -> Iterator[tuple[str | None, Words]]:
    """The shapes that a comment names, each with the word before it: ``q [B, H, K]``, ``f32[b/dp, s]``, ``B T D``."""
    if (letters := _LETTERS.fullmatch(text.strip())) is not None:
        yield letters["subject"], _words(letters["dims"].replace("x", " "))
        return
    for found in _SHAPE.finditer(text):
        words = _words(found["dims"])
        is_list = "," in found["dims"] or "/" in found["dims"] or text[found.start("dims") - 1] == "["
        if is_list and found["subject"] not in _NO_VALUES and any(word not in (None, ELLIPSIS) for word in words):
            yield found["subject"], words


def _words(text: str) -> Words:
    """The names in a list of dims; their mesh axes and sizes are left out, marks are no dims."""
    text = re.sub(r"\[([^\[\]]*)\]", lambda found: found[1].replace(",", "&").replace(" ", ""), text)
    parts = [part for part in re.split(r"[,\s]+", text.strip()) if part and part[0] not in "+-~"]
    return tuple(_dim_word(re.split(r"[/:=@]", part)[0].lstrip("#?*")) for part in parts)


def _dim_word(text: str) -> str | None:
    return text if text == ELLIPSIS or _WORD.fullmatch(text) else None


def _pattern_words(side: str) -> Words:
    """The dims of one side of a pattern: letters, or names with spaces between; groups have no name."""
    side = re.sub(r"\([^()]*\)", " 0 ", side).strip()
    if " " in side or "/" in side:
        return _words(side)
    return tuple(_dim_word(part) for part in re.findall(r"\.\.\.|.", side))


def _parsed_file(file: str) -> tuple[ast.Module, Mapping[int, str]]:
    return _parsed("".join(linecache.getlines(file)))


@lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[ast.Module, Mapping[int, str]]:
    try:
        tree = ast.parse(text)
        tokens: Iterable[tokenize.TokenInfo] = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, ValueError, tokenize.TokenError):
        return ast.Module([], []), {}
    comments = (token for token in tokens if token.type == tokenize.COMMENT)
    return tree, {token.start[0]: token.string.lstrip("#").strip() for token in comments}
