"""Brackets wrapped at 120 columns, with one item a line, and its comment beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

WIDTH = 120
UNIT = "    "


def bracketed(opened: str, items: Sequence[tuple[str, str]], closed: str, indent: str, before: int, behind: int) -> str:
    """Items in brackets: on one line if there is room and no comment, else with one a line, and its comment beside it.

    Args:
      opened: what stands before the items.
      items: each item, and its comment.
      closed: what stands behind them.
      indent: the indentation of the line.
      before: the length of what stands on the line already.
      behind: the length of what follows on it.
    """
    flat = f"{opened}{', '.join(text for text, _ in items)}{closed}"
    first, *more = flat.split("\n")
    lengths = [before + len(first), *map(len, more)]
    lengths[-1] += behind
    is_short = not more or (items and "\n" in items[0][0])
    if is_short and not any(comment for _, comment in items) and max(lengths) <= WIDTH:
        return flat
    inner, lines = indent + UNIT, ""
    for text, comment in items:
        # Of an argument or a parameter the hint may be long.
        parts = re.fullmatch(r"(\w+(?:: |=)|)(.*?)( = .*|)", text, re.DOTALL)
        if parts is not None and len(f"{inner}{text},") > WIDTH:
            text = parts[1] + fitted(parts[2], inner, WIDTH - len(f"{inner}{parts[1]}{parts[3]},")) + parts[3]
        lines += f"{inner}{text},{'  ' * bool(comment)}{comment}\n"
    return f"{opened}\n{lines}{indent}{closed}"


def fitted(hint: str, indent: str, room: int) -> str:
    """A hint if there is room for it on a line, else with one item of its brackets a line."""
    if len(hint) <= room or "\n" in hint:
        return hint
    match ast.parse(hint, mode="eval").body:
        case ast.Tuple(elts=items):
            opened, closed = "(", ")"
        case ast.Subscript(value=ast.Name(id="tuple" | "list" | "PyTree" as name), slice=ast.Tuple(elts=items)):
            opened, closed = f"{name}[", "]"
        case _:
            return hint
    texts = [(str(ast.get_source_segment(hint, item)), "") for item in items]
    return bracketed(opened, texts, closed, indent, WIDTH, 0)
