"""Import what a module has not imported yet."""

from __future__ import annotations

import ast
import sys
from collections.abc import Set
from itertools import takewhile

from .module import ParsedModule
from .text import ImportNode, TextChange


def added_import(module: ParsedModule, home: str, names: Set[str] = frozenset()) -> TextChange:
    """What imports names from a module, or without names the module itself.

    They go with what the file imports from there already, or in a line behind the last import above its functions and
    classes; behind the last of the standard library if they are of that. The first imports would be no place for it:
    below them may stand what must run before JAX is imported.
    """
    first = takewhile(lambda each: not isinstance(each, ast.FunctionDef | ast.ClassDef), module.tree.body)
    top = [each for each in first if isinstance(each, ImportNode)]
    present = next((each for each in top if _is_from(home, each)), None)
    if names and present is not None and present.names[0].name != "*":
        names = {*names, *map(ast.unparse, present.names)}
        return TextChange(*module.span(present), f"from {home} import {', '.join(sorted(names))}")
    line = f"from {home} import {', '.join(sorted(names))}\n" if names else f"import {home}\n"
    above = [each for each in top if _is_standard(module.full_name(each.names[0]))] if _is_standard(home) else top
    at = module.start_of((top or module.tree.body)[0])
    if above:
        at, line = module.lines_of(above[-1])[1], "\n" * _is_from("__future__", above[-1]) + line
    elif ast.get_docstring(module.tree) is not None and not top:
        at, line = module.lines_of(module.tree.body[0])[1], f"\n{line}"
    else:
        line += "\n"
    return TextChange(at, at, line)


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def _is_from(home: str, statement: ImportNode) -> bool:
    return isinstance(statement, ast.ImportFrom) and (statement.level, statement.module) == (0, home)
