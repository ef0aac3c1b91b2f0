"""The edits that cures ask for, as messages word them: read from a message, and made in a source.

A cure is edits, each at a line of the source: a collective put around the value of the line, in the place of another
one, or left out, or the value divided by the size of an axis.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Around:
    """A collective around the value of a line: ``psum over 'dp' at train.py:40``; or around an expression in it.

    ``psum over 'dp' of x @ w at train.py:40``, ``of the gradient``; ``of its stop_gradient``, so that no gradient goes
    through it.
    """

    collective: str
    axes: tuple[str, ...]
    what: str = ""
    is_stopped: bool = False


@dataclass(frozen=True)
class OfResult:
    """A collective around what is returned: ``psum over 'dp' of what is returned``, ``of result 1``."""

    collective: str
    axes: tuple[str, ...]
    which: int | None


@dataclass(frozen=True)
class InPlaceOf:
    """A collective in the place of another one: ``pmean over 'dp' in the place of psum at train.py:41``.

    Of several in the line it is that of an expression: ``in the place of psum of x @ w at train.py:41``. If that
    is over other axes, too, ``in the place of psum over 'dp' at train.py:41``, it stays over these.
    """

    collective: str
    axes: tuple[str, ...]
    replaced: str
    over: tuple[str, ...] = ()
    what: str = ""


@dataclass(frozen=True)
class LeftOut:
    """A collective left out, over some axes: ``leave out the psum over 'dp' at train.py:41``.

    Of several in the line it is that of an expression: ``leave out the psum over 'dp' of x @ w at train.py:41``.
    """

    collective: str
    axes: tuple[str, ...]
    what: str = ""


@dataclass(frozen=True)
class Divided:
    """The value of a line, or an expression in it, divided by the size of axes.

    ``divide the value by the size of 'dp' at train.py:41``.
    """

    axes: tuple[str, ...]
    what: str = ""


Wrapping = tuple[ast.expr, ast.expr | None, str, str]
"""An expression, the part of it that stays, and what stands before and after that."""

Edit = Around | InPlaceOf | LeftOut | Divided | OfResult


class Placed(NamedTuple):
    """An edit at a line of a file, of which the message gives the name alone."""

    edit: Edit
    file: str
    line: int


class NotFollowedError(Exception):
    """An edit that cannot be made at its line."""


_AXES = r"((?:'\w+'(?:, | and )?)+)"
_AT = r" at ([\w<>, -]+\.py):(\d+)"
_COLLECTIVE = rf"(?<!the )(?<!place of )\b(p(?:sum|mean|max|min)) over {_AXES}"
_FORMS: tuple[tuple[str, Callable[..., Edit]], ...] = (
    (
        rf"leave out the (\w+) over {_AXES}(?: of (.+?))?{_AT}",
        lambda name, axes, what: LeftOut(name, _names(axes), what or ""),
    ),
    (rf"divide (.+?) by the size of {_AXES}{_AT}", lambda what, axes: Divided(_names(axes), _expression(what))),
    (
        rf"{_COLLECTIVE} in the place of (?:the )?(\w+)(?: over {_AXES})?(?: of (.+?))?{_AT}",
        lambda name, axes, replaced, over, what: InPlaceOf(
            name, _names(axes), replaced, _names(over or ""), what or ""
        ),
    ),
    (rf"{_COLLECTIVE}{_AT}", lambda name, axes: Around(name, _names(axes))),
    (
        rf"{_COLLECTIVE} of (?!what |result )((?:(?! in the place of ).)+?){_AT}",
        lambda name, axes, what: _around(name, axes, what),
    ),
)
_OF_RESULT = re.compile(rf"{_COLLECTIVE} of (?:what is returned|result (\d+))")
_IS = r"(?:leaves partial sums|covers only each shard's part): "
_LEAVES = re.compile(rf"at ([\w<>, -]+\.py):(\d+) {_IS}{_COLLECTIVE}(?: of (.+?))?(?:, or |, and |;|$)")


def _expression(what: str) -> str:
    return "" if what == "the value" else what


def _around(name: str, axes: str, what: str) -> Around:
    if what == "its stop_gradient":
        return Around(name, _names(axes), is_stopped=True)
    parts = re.findall(r"stop_gradient\((.*?)\)(?= and stop_gradient\(|$)", what)
    return Around(name, _names(axes), " and ".join(parts) or what, bool(parts))


def _names(axes: str) -> tuple[str, ...]:
    return tuple(re.findall(r"'(\w+)'", axes))


def parse_cures(message: str) -> list[list[Placed]]:
    """The cures of a message, each with all of its edits: ``Hint: A and B, or C`` has two, the first with two edits."""
    hint = next((line for line in message.splitlines() if line.startswith("Hint: ")), "")
    hint = hint.removeprefix("Hint: ").partition("; if this is intended")[0]
    if (leaves := _LEAVES.search(hint)) is not None and not re.search(
        _AT, hint[leaves.start(3) :].partition(", or")[0]
    ):
        file, line, name, axes, what = leaves.groups()
        if what is None or not what.startswith(("what is", "result")):
            return [[Placed(_around(name, axes, what or ""), file, int(line))]]
    hint = re.split(_IS, hint)[-1]
    cures = [list(_edits(way)) for way in re.split(r",? or ", hint)]
    return [cure for cure in cures if cure]


def _edits(text: str) -> Iterator[Placed]:
    for pattern, edit_of in _FORMS:
        for match in re.finditer(pattern, text):
            *words, file, line = match.groups()
            yield Placed(edit_of(*words), file, int(line))
    for match in _OF_RESULT.finditer(text):
        name, axes, which = match.groups()
        yield Placed(OfResult(name, _names(axes), which and int(which)), "", 0)


def apply_cure(source: str, line: int, edit: Edit) -> str:
    """A source with an edit at a line, counted from 1; no line changes its number.

    Raises:
      NotFollowedError: where there is no such collective at the line, or it has no value.
    """
    tree = ast.parse(source)
    match edit:
        case Around(collective, axes, what, is_stopped):
            before, after = ("lax.stop_gradient(", ")") if is_stopped else ("", "")
            call = f"lax.{collective}({before}", f"{after}, {_argument(axes)})"
            return _wrapped(source, [_around_node(node, *call, what) for node in _meant(source, tree, line, what)])
        case Divided(axes, what):
            call = f"jax.tree.map(lambda _: _ / lax.axis_size({_argument(axes)}), ", ")"
            return _wrapped(source, [_around_node(node, *call, what) for node in _meant(source, tree, line, what)])
        case OfResult(collective, axes, which):
            returned = max((n for n in ast.walk(tree) if isinstance(n, ast.Return)), key=lambda node: node.lineno)
            value = returned.value
            if which is not None and isinstance(value, ast.Tuple):
                value = value.elts[which]
            assert value is not None
            return _wrapped(source, [(value, None, f"lax.{collective}(", f", {_argument(axes)})")])
        case InPlaceOf(collective, axes, replaced, over, what):
            edits: list[Wrapping] = []
            for node in _calls(source, tree, line, replaced, what):
                kept = tuple(axis for axis in _axes_of(node) if axis not in over) if over else ()
                before, after = (f"lax.{replaced}(", f", {_argument(kept)})") if kept else ("", "")
                call = (f"lax.{collective}({before}", f"{after}, {_argument(axes)})")
                edits.append((node, node.args[0], *call))
            return _wrapped(source, edits)
        case LeftOut(collective, axes, what):
            edits = []
            for node in _calls(source, tree, line, collective, what):
                kept = tuple(axis for axis in _axes_of(node) if axis not in axes)
                call = (f"lax.{collective}(", f", {_argument(kept)})") if kept else ("(", ")")
                edits.append((node, node.args[0], *call))
            return _wrapped(source, edits)


def _around_node(node: ast.expr, before: str, after: str, what: str) -> Wrapping:
    """What stands around an expression; of a value and its gradient around the gradient alone."""
    call = node.func if what == "the gradient" and isinstance(node, ast.Call) else None
    if isinstance(call, ast.Call) and _called(call) == "value_and_grad":
        before, after = f"(lambda value, gradient: (value, {before}gradient{after}))(*", ")"
    return node, None, before, after


_GRADIENTS = frozenset(["grad", "value_and_grad", "jacrev", "jacfwd", "jacobian", "hessian", "linearize", "vjp"])


def _meant(source: str, tree: ast.Module, line: int, what: str) -> list[ast.expr]:
    """The expressions that a cure means at a line."""
    if not what:
        return [_value(tree, line)]
    found = list[ast.expr]()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr) and _has_line(node, line)]
    if what == "the gradient":
        found = [
            node
            for node in nodes
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and _called(node.func) in _GRADIENTS
        ]
        return found or [_value(tree, line)]
    for text in what.split(" and "):
        same = [node for node in nodes if ast.get_source_segment(source, node) == text]
        if not same:
            raise NotFollowedError(f"line {line} has no {text}")
        found.append(same[0])
    return found


def _argument(axes: tuple[str, ...]) -> str:
    return repr(axes[0] if len(axes) == 1 else axes)


def _value(tree: ast.Module, line: int) -> ast.expr:
    """The right side of the innermost assignment at a line, or what is returned there."""
    of_line = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _has_line(node, line)]
    innermost = max(of_line, key=lambda node: node.lineno, default=None)
    value = getattr(innermost, "value", None)
    if not isinstance(value, ast.expr):
        raise NotFollowedError(f"line {line} has no value")
    return value


def _calls(source: str, tree: ast.Module, line: int, name: str, what: str) -> list[ast.Call]:
    """The calls of a collective that have a line; of an expression, if it is given."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) == name]
    at_line = [call for call in calls if _has_line(call, line)]
    if what:
        at_line = [call for call in at_line if ast.get_source_segment(source, call.args[0]) == what]
    if not at_line:
        raise NotFollowedError(f"line {line} calls no {name}")
    return at_line


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _axes_of(call: ast.Call) -> tuple[str, ...]:
    axes = ast.literal_eval(call.args[1])
    return (axes,) if isinstance(axes, str) else tuple(axes)


def _has_line(node: Any, line: int) -> bool:
    return node.lineno <= line <= node.end_lineno


def _wrapped(source: str, edits: list[Wrapping]) -> str:
    """A source with texts before and after expressions; where a part is given, it alone stays of the expression."""
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))

    def start(node: ast.expr) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def stop(node: ast.expr) -> int:
        return starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    changes = list[tuple[int, int, str]]()
    for node, part, before, after in edits:
        if isinstance(node, ast.Tuple) and source[start(node)] != "(":
            before, after = f"{before}(", f"){after}"
        kept = part or node
        changes += [(start(node), start(kept), before), (stop(kept), stop(node), after)]
    for at, until, text in sorted(changes, reverse=True):
        source = source[:at] + text + "\n" * source[at:until].count("\n") + source[until:]
    return source
