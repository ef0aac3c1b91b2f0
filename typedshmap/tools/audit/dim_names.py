"""The dim names in a function's source: in ``b, d = x.shape``, patterns of einsum and einops, and jaxtyping's hints."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Names = tuple[str, ...]
RETURN = "return"
_BY_PATTERN = ("einsum", "rearrange", "reduce", "repeat")


def dim_names(function: Callable[..., Any]) -> Mapping[str, Names]:
    """The dim names in a function's source, by variable: ``x``, ``params['w']``, ``return[0]``."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return {}
    defined = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
    if defined is None:
        return {}
    reader = _NamesReader({parameter.arg for parameter in (*defined.args.posonlyargs, *defined.args.args)})
    for name, annotation in function.__annotations__.items():
        if isinstance(dims := getattr(annotation, "dim_str", None), str) and (named := _words(dims)):
            reader.note(ast.Name(name), named)
    for node in _in_order(defined.body):
        reader.read(node)
    return reader.names


def _in_order(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The statements of a body, in the order of lines, without nested functions."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        inner: list[ast.stmt] = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
        if inner:
            yield from _in_order(inner)
        else:
            yield statement


class _NamesReader:
    """Reads one statement after the other."""

    def __init__(self, parameters: set[str]) -> None:
        self.names: dict[str, Names] = {}
        self._known: dict[str, Names] = {}
        self._arguments = parameters

    def note(self, value: ast.expr, dims: Names) -> None:
        """Note the dim names of a variable, or of an item of a variable, unless it already has names."""
        root = value
        while isinstance(root, ast.Subscript) and isinstance(root.slice, ast.Constant):
            root = root.value
        if not isinstance(root, ast.Name):
            return
        written = ast.unparse(value)
        known = self._known.setdefault(written, dims)
        if root.id in self._arguments:
            self.names.setdefault(written, known)

    def read(self, statement: ast.AST) -> None:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                self._dims_of(node)
        match statement:
            case ast.Assign([ast.Tuple(items)], ast.Attribute(value, "shape")):
                names = tuple(part.id for part in items if isinstance(part, ast.Name))
                if len(names) == len(items):
                    self.note(value, names)
                for name in names:
                    self._forget(name)
            case ast.Assign([ast.Name(name)], value):
                dims = self._dims_of(value)
                self._forget(name)
                if dims:
                    self._known[name] = dims
            case ast.Assign(targets):
                for node in [node for target in targets for node in ast.walk(target)]:
                    if isinstance(node, ast.Name):
                        self._forget(node.id)
            case ast.Return(ast.expr() as value):
                items = value.elts if isinstance(value, ast.Tuple) else []
                returned = {RETURN: value, **{f"{RETURN}[{at}]": item for at, item in enumerate(items)}}
                self.names |= {written: dims for written, part in returned.items() if (dims := self._dims_of(part))}
            case _:
                pass

    def _forget(self, name: str) -> None:
        self._known = {text: dims for text, dims in self._known.items() if text.partition("[")[0] != name}
        self._arguments.discard(name)

    def _dims_of(self, value: ast.expr) -> Names | None:
        """The dim names of an expression; those in a pattern are noted for its operands."""
        if isinstance(value, (ast.Name, ast.Subscript)):
            return self._known.get(ast.unparse(value))
        function = value.func if isinstance(value, ast.Call) else None
        name = getattr(function, "attr", getattr(function, "id", ""))
        if not isinstance(value, ast.Call) or name not in _BY_PATTERN:
            return None
        at = next((at for at, argument in enumerate(value.args) if _text(argument)), None)
        if at is None:
            return None
        left, arrow, right = _text(value.args[at]).partition("->")
        read, operands = (_letters, value.args[1:]) if at == 0 else (_words, value.args[:at])
        for operand, dims in zip(operands, map(read, left.split(",")), strict=False):
            if dims:
                self.note(operand, dims)
        return read(right) if arrow else None


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _letters(dims: str) -> Names | None:
    """``bhsd``, in the notation of einsum; None with an ellipsis."""
    letters = dims.replace(" ", "")
    return tuple(letters) if letters.isalpha() else None


def _words(dims: str) -> Names | None:
    """``batch seqlen d``; None for anything but names."""
    words = tuple(dims.split())
    return words if words and all(word.isidentifier() and word != "_" for word in words) else None
