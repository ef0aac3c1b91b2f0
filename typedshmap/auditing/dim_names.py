"""The names that the source of a function gives to the dims of its arguments and of its result.

Taken are ``b, d = x.shape``, ``jnp.einsum("bd,df->bf", x, w)``, the patterns of einops, and annotations of jaxtyping.
What is assigned anew keeps no names."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

Names = tuple[str, ...]
_BY_PATTERN = ("einsum", "rearrange", "reduce", "repeat")


class DimNames(NamedTuple):
    """The names of dims.

    Attributes:
      parameters: those of each parameter that has them.
      result: those of the result, if it is one array.
      results: those of the items of a tuple that is returned; of each None where it has none.
    """

    parameters: Mapping[str, Names] = {}
    result: Names | None = None
    results: tuple[Names | None, ...] = ()


def dim_names(function: Callable[..., Any]) -> DimNames:
    """The names in a function's source; none where it has no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return DimNames()
    defined = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
    if defined is None:
        return DimNames()
    reader = _NamesReader({each.arg for each in (*defined.args.posonlyargs, *defined.args.args)})
    for name, annotation in function.__annotations__.items():
        if isinstance(dims := getattr(annotation, "dim_str", None), str) and (named := _words(dims)):
            reader.note(name, named)
    for node in _in_order(defined.body):
        reader.read(node)
    return DimNames(reader.of_parameters, reader.result, reader.results)


def _in_order(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """What a body runs, in the order of its lines; functions within it are their own."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        inner: list[ast.stmt] = [each for each in ast.iter_child_nodes(statement) if isinstance(each, ast.stmt)]
        if inner:
            yield from _in_order(inner)
        else:
            yield statement


class _NamesReader:
    """Reads one statement after the other."""

    def __init__(self, parameters: set[str]) -> None:
        self.of_parameters: dict[str, Names] = {}
        self.result: Names | None = None
        self.results: tuple[Names | None, ...] = ()
        self._known: dict[str, Names] = {}
        self._arguments = set(parameters)

    def note(self, name: str, dims: Names) -> None:
        """Note the names of a variable's dims, unless it has some."""
        known = self._known.setdefault(name, dims)
        if name in self._arguments:
            self.of_parameters.setdefault(name, known)

    def read(self, statement: ast.AST) -> None:
        """Take the names that a statement gives."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                self._dims_of(node)
        match statement:
            case ast.Assign([ast.Tuple(items)], ast.Attribute(ast.Name(name), "shape")):
                names = tuple(each.id for each in items if isinstance(each, ast.Name))
                if len(names) == len(items):
                    self.note(name, names)
            case ast.Assign([ast.Name(name)], value):
                dims = self._dims_of(value)
                self._forget(name)
                if dims:
                    self._known[name] = dims
            case ast.Assign(targets):
                for node in [node for target in targets for node in ast.walk(target)]:
                    if isinstance(node, ast.Name):
                        self._forget(node.id)
            case ast.Return(ast.Tuple(items)):
                self.results = tuple(map(self._dims_of, items))
            case ast.Return(ast.expr() as value):
                self.result = self._dims_of(value)
            case _:
                pass

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self._arguments.discard(name)

    def _dims_of(self, value: ast.expr) -> Names | None:
        """The names of the dims of an expression; those that a pattern gives to its operands are noted."""
        if isinstance(value, ast.Name):
            return self._known.get(value.id)
        function = value.func if isinstance(value, ast.Call) else None
        name = getattr(function, "attr", getattr(function, "id", ""))
        if not isinstance(value, ast.Call) or name not in _BY_PATTERN:
            return None
        at = next((at for at, each in enumerate(value.args) if _text(each)), None)
        if at is None:
            return None
        left, arrow, right = _text(value.args[at]).partition("->")
        read, operands = (_letters, value.args[1:]) if at == 0 else (_words, value.args[:at])
        for operand, dims in zip(operands, map(read, left.split(",")), strict=False):
            if isinstance(operand, ast.Name) and dims:
                self.note(operand.id, dims)
        return read(right) if arrow else None


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _letters(dims: str) -> Names | None:
    """``bhsd``, as einsum takes it; None for what holds an ellipsis."""
    letters = dims.replace(" ", "")
    return tuple(letters) if letters.isalpha() else None


def _words(dims: str) -> Names | None:
    """``batch seqlen d``; None for what holds anything but names."""
    words = tuple(dims.split())
    return words if words and all(word.isidentifier() and word != "_" for word in words) else None
