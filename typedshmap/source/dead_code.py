"""Remove what nothing uses any more from a module: assignments, functions and imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Set

from .module import ParsedModule, bound_name
from .text import TextChange


def without_dead_code(text: str, kept: Set[str]) -> str:
    """A text without the assignments, functions and imports that nothing uses any more.

    A statement that goes leaves the comments above it where they are, and of the blank lines around it the more."""
    while True:
        module = ParsedModule(text)
        strings = " ".join(node.value for node in module.nodes(ast.Constant) if isinstance(node.value, str))
        kept = kept | module.declared | {*re.findall(r"\w+", strings)}
        changes = (_removal(module, statement, kept) for statement in module.nodes(ast.stmt))
        change = next((each for each in changes if each is not None), None)
        if change is None:
            return text
        text = module.changed([change])


def _removal(module: ParsedModule, statement: ast.stmt, kept: Set[str]) -> TextChange | None:
    """The change that removes a statement if it is dead, or a name that it imports; None if it is not."""
    aliases: list[ast.alias] = []
    match statement:
        case ast.Assign(targets=[ast.Name() | ast.Tuple() as target], value=value):
            targets = getattr(target, "elts", [target])
            parts = (*targets, *ast.walk(value))
            is_pure = not any(isinstance(each, ast.Starred | ast.Await | ast.Yield | ast.NamedExpr) for each in parts)
            names = [getattr(node, "id", None) if is_pure else None for node in targets]
        case ast.FunctionDef(name=name, decorator_list=[]):
            names = [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            names = [None if each.asname == each.name else bound_name(each) for each in aliases]
        case _:
            return None
    used = [name is None or name in kept or bool(module.uses.get(module.binding(name, statement))) for name in names]
    start, end = module.lines_of(statement)
    lines, code = module.between(start, end), module.code(statement)
    is_only = any([statement] == block for block in vars(module.parents[statement]).values())
    if not any(used) and not is_only and re.fullmatch(rf"\s*{re.escape(code)}\s*(#.*\n?)?", lines):
        above, below = module.between(0, start), module.between(end)
        blank = len(above) - len(above.rstrip("\n")) - 1 if above else len(below)
        return TextChange(start, end + min(blank, len(below) - len(below.lstrip("\n"))), "")
    if not aliases or all(used) or not any(used) or "#" in lines:
        return None
    at = used.index(False)
    first, last = (aliases[at - 1], aliases[at]) if at else (aliases[0], aliases[1])
    return TextChange(module.span(first)[bool(at)], module.span(last)[bool(at)], "")
