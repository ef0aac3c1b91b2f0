"""The text of one function: its syntax tree with its comments."""

from __future__ import annotations

import ast
import io
import linecache
import tokenize
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType
from typing import NamedTuple


class FunctionSource(NamedTuple):
    """A function as it is written.

    Attributes:
      file: its file.
      node: its syntax tree, with the lines of the file.
      comments: the comments of the file by their lines, without ``#``.
    """

    file: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    comments: Mapping[int, str]

    @classmethod
    def of_code(cls, code: CodeType) -> FunctionSource | None:
        """The text of the function that some code was compiled from; None where it cannot be read."""
        return cls.at(code.co_filename, code.co_firstlineno)

    @classmethod
    def at(cls, file: str, line: int) -> FunctionSource | None:
        """The text of the function whose ``def``, ``lambda`` or first decorator is on a line of a file."""
        tree, comments = _parsed("".join(linecache.getlines(file)))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        for node in ast.walk(tree):
            if isinstance(node, kinds) and line in {node.lineno, *(one.lineno for one in decorators_of(node))}:
                return cls(file, node, comments)
        return None


def decorators_of(node: ast.AST) -> list[ast.expr]:
    """The decorators of a function; a lambda has none."""
    return getattr(node, "decorator_list", [])


@lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[ast.Module, Mapping[int, str]]:
    try:
        tree = ast.parse(text)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, ValueError, tokenize.TokenError):
        return ast.Module([], []), {}
    comments = (token for token in tokens if token.type == tokenize.COMMENT)
    return tree, {token.start[0]: token.string.lstrip("#").strip() for token in comments}
