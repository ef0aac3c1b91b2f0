"""Single edits of a module that may cure what is wrong on a mesh: each leaves a program for one device what it is.

There a collective gives what it is given, an axis has the size 1 and the index 0, and no dim is sharded. So what the
program means is kept, and only how it is sharded changes; the trials see to it that this is so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import permutations
from typing import NamedTuple

from ..source.imports import added_import
from ..source.module import ParsedModule
from ..source.text import FunctionNode, TextChange, last_name

_SUMS = ("psum", "pmean", "pmax")
_REDUCTIONS = frozenset([*_SUMS, "pmin"])
_COLLECTIVES = _REDUCTIONS | {"all_gather", "ppermute", "pshuffle", "psum_scatter", "all_to_all", "reduce_scatter"}
_BRANCHING = ("cond", "switch")
_MOST_OF_A_KIND = 3


class Edit(NamedTuple):
    """An edit.

    Attributes:
      kind: ``drop``, ``replace``, ``axis``, ``wrap``, ``size``, ``move``, ``gather``, ``shift``, ``offset``, ``scale``,
        ``pattern`` or ``types``.
      line: the line of the text that it changes first.
      changes: what it changes.
      code: what it writes.
      is_identity: whether it leaves what one device computes by its construction, and not only if it is tried.
    """

    kind: str
    line: int
    changes: tuple[TextChange, ...]
    code: str
    is_identity: bool = True


# Of edits that are equally near, the kinds of which a program has few are tried first.
_WEIGHTS = {
    "drop": 1, "replace": 1, "axis": 1, "types": 1, "size": 2, "shift": 2, "wrap": 4, "pattern": 4, "move": 5,
    "offset": 5, "gather": 6, "scale": 7,
}  # fmt: skip


def edits_for(source: ParsedModule, axes: Sequence[str], places: Sequence[int], within: int, cure: str) -> list[Edit]:
    """The edits of a module, the most likely first.

    Args:
      source: the module's text.
      axes: the mesh axes.
      places: the lines that the finding names, the most telling first.
      within: the line of the function that is wrong; only what that uses is edited.
      cure: what the finding says to do.
    """
    maker = EditMaker(source, axes)
    nodes = source.reached_from(within) or source.tree.body
    found = {edit.changes: edit for node in nodes for edit in maker.edits_of(node)}
    around = [source.function_at(line) for line in places]
    called = [source.functions_named_at(line) for line in places]
    makers = [source.lines_that_make(line) for line in places[:2]]

    def distance(edit: Edit) -> int:
        own = source.function_at(edit.line)
        for at, line in enumerate(places[:2]):
            if edit.line == line:
                return at
            if edit.line in makers[at] or (abs(edit.line - line) <= 2 and own is around[at]):
                return 2 + at
        if any(own in each for each in called):
            return 3
        return 4 if own in around else 6

    over = {axis for axis in axes if f"'{axis}'" in cure}

    def agreement(edit: Edit) -> int:
        """Whether the cure names the operation and all axes that the edit writes; and no others."""
        words = {word for word in (*_SUMS, "gather") if word in edit.code}
        named = {axis for axis in axes if re.search(rf"""['"]{re.escape(axis)}['"]""", edit.code)}
        is_named = bool(words) and all(word in cure for word in words) and named <= over
        return (3 + (named == over)) * is_named

    return sorted(found.values(), key=lambda edit: 2 * distance(edit) + _WEIGHTS[edit.kind] - agreement(edit))


class EditMaker:
    """Makes the edits of a module's nodes.

    Args:
      source: the module's text.
      axes: the mesh axes.
    """

    def __init__(self, source: ParsedModule, axes: Sequence[str]) -> None:
        self.source, self.axes = source, axes
        lax = source.name_of("jax.lax")
        self.lax, self.is_lax_missing = f"{lax or 'jax.lax'}.", lax is None
        pairs = list(permutations(axes, 2)) if 1 < len(axes) <= _MOST_OF_A_KIND else []
        self.groups = [repr_axes([axis]) for axis in axes] + [repr_axes(pair) for pair in pairs]

    def edits_of(self, root: ast.AST) -> Iterator[Edit]:
        """The edits of the nodes below a statement of the module."""
        for node in ast.walk(root):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from self._of_string(node)
            if not isinstance(node, ast.expr) or self._is_annotation(node) or self._is_predicate(node):
                continue
            if isinstance(node, ast.Call):
                yield from self._of_call(node)
                yield from self._size_edits(node)
            elif isinstance(node, ast.Attribute | ast.Subscript):
                yield from self._size_edits(node)
            elif isinstance(node, ast.BinOp):
                yield from self._of_operation(node)
            elif isinstance(node, ast.Constant):
                yield from self._of_number(node)
            if self._may_be_array(node):
                yield from self._wrap_edits(node)
        yield from self._type_edits(root)

    def _edit(self, kind: str, node: ast.expr | ast.stmt, code: str) -> Edit:
        """An edit that writes some code in a node's place."""
        start, end = self.source.span(node)
        return self._made(kind, node, [TextChange(start, end, code)], code)

    def _made(self, kind: str, node: ast.expr | ast.stmt, changes: Iterable[TextChange], code: str) -> Edit:
        needed = [added_import(self.source, "jax")] if self.is_lax_missing and "jax.lax." in code else []
        is_shift = kind == "shift" or (isinstance(node, ast.Call) and last_name(node.func) in ("ppermute", "pshuffle"))
        return Edit(kind, node.lineno, (*needed, *changes), code, not is_shift)

    # What is an array

    def _is_annotation(self, node: ast.expr) -> bool:
        below: ast.AST = node
        for outer in self.source.around(node):
            match outer:
                case ast.arg() | ast.JoinedStr():
                    return True
                case ast.AnnAssign(annotation=annotation) if annotation is below:
                    return True
                case ast.FunctionDef(returns=returns, decorator_list=decorators):
                    return below is returns or below in decorators
                case _:
                    below = outer
        return False

    def _is_predicate(self, node: ast.expr) -> bool:
        """Whether a value chooses a branch, or is used for that: what is tried may never take another branch."""
        below: ast.AST = node
        for outer in self.source.around(node):
            if (
                isinstance(outer, ast.Call)
                and last_name(outer.func) in _BRANCHING
                and outer.args
                and outer.args[0] is below
            ):
                return True
            below = outer
        return False

    def _may_be_array(self, node: ast.expr) -> bool:
        match node, self.source.parents[node]:
            case (ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()) | ast.Subscript(ctx=ast.Load()), parent):
                pass
            case (ast.Call() | ast.BinOp() | ast.UnaryOp(), parent):
                pass
            case _:
                return False
        root: ast.AST = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if self.source.imported(root) and isinstance(node, ast.Name | ast.Attribute):
            return False
        match parent:
            case ast.Attribute():
                return self._calls_method(parent)
            case ast.Call(func=func) if func is node or self._is_size(parent):
                return False
            case ast.keyword() | ast.Starred() | ast.Slice() | ast.Compare() | ast.comprehension():
                return False
            case ast.Subscript(slice=index) if index is node:
                return False
            case _:
                return not self._is_of_sizes(node)

    def _calls_method(self, node: ast.Attribute) -> bool:
        parent = self.source.parents[node]
        return isinstance(parent, ast.Call) and parent.func is node

    def _is_of_sizes(self, node: ast.expr) -> bool:
        """Whether a value is computed of sizes and indices alone."""
        match node:
            case ast.Constant():
                return True
            case ast.BinOp(left=left, right=right):
                return self._is_of_sizes(left) and self._is_of_sizes(right)
            case ast.Call(func=ast.Name(id="max" | "min"), args=args):
                return all(map(self._is_of_sizes, args))
            case ast.Call() if last_name(node.func) in ("axis_index", "axis_size", "size"):
                return True
            case ast.Name(id=name):
                return name in self._sizes
            case _:
                return self._is_size(node)

    @cached_property
    def _sizes(self) -> set[str]:
        """The names that stand for sizes and indices, wherever they are assigned."""
        found, self.__dict__["_sizes"] = dict[str, list[bool]](), set[str]()
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    names = target.elts if isinstance(target, ast.Tuple) else [target]
                    is_pair = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                    values = node.value.elts if is_pair else [node.value] * len(names)  # type: ignore[attr-defined]
                    for name, value in zip(names, values, strict=False):
                        if isinstance(name, ast.Name):
                            found.setdefault(name.id, []).append(self._is_of_sizes(value))
        return {name for name, are in found.items() if all(are)}

    def _is_size(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Name(id="len")) | ast.Attribute(attr="size" | "shape" | "ndim" | "dtype"):
                return True
            case ast.Subscript(value=ast.Attribute(attr="shape")):
                return True
            case _:
                return False

    # Edits of one kind

    def _collective(self, name: str, code: str, group: str, more: str = "") -> str:
        return f"{self.lax}{name}({code}, {group}{more})"

    def _wrap_edits(self, node: ast.expr) -> Iterator[Edit]:
        """A collective around a value."""
        code = self.source.code(node)
        for group in self.groups:
            for name in _SUMS:
                yield self._edit("wrap", node, self._collective(name, code, group))
        for axis, at in ((repr_axes([axis]), at) for axis in self.axes for at in (0, 1, 2)):
            position = "" if at == 0 else f", axis={at}"
            for more in (', to="invarying"', ""):
                gathered = self._collective("all_gather", code, axis, f"{position}, tiled=True{more}")
                yield self._edit("gather", node, gathered)
        factor = self._in_operation(node, code)
        for axis in self.axes:
            size = f"{self.lax}axis_size({repr_axes([axis])})"
            yield self._edit("scale", node, self._grouped(node, f"{factor} / {size}"))

    def _size_edits(self, node: ast.expr) -> Iterator[Edit]:
        """The size of a shard as that of the whole."""
        if not self._is_size(node) or (isinstance(node, ast.Attribute) and node.attr != "size"):
            return
        for axis in self.axes:
            size = f"{self.lax}axis_size({repr_axes([axis])})"
            yield self._edit("size", node, self._grouped(node, f"{self.source.code(node)} * {size}"))

    def _of_call(self, node: ast.Call) -> Iterator[Edit]:
        name, given = last_name(node.func), [*node.args]
        if name == "arange" and len(given) == 1 and not isinstance(given[0], ast.Starred):
            count = self._in_operation(given[0], self.source.code(given[0]), is_always=True)
            for group in self.groups:
                start = f"{self.lax}axis_index({group}) * {count}"
                yield self._edit("offset", node, self._grouped(node, f"{start} + {self.source.code(node)}"))
        if name in ("dynamic_slice_in_dim", "dynamic_index_in_dim"):
            yield from self._start_edits(given)
        yield from self._out_edits(node)
        if name not in _COLLECTIVES or not given:
            yield from self._argument_edits(node)
            return
        inner = self.source.code(given[0])
        yield self._dropped(node, given[0], inner)
        if name in _REDUCTIONS:
            start, end = self.source.span(node.func)
            last = self.source.code(node.func).rpartition(".")[0]
            for other in _SUMS:
                if other != name:
                    code = f"{last}.{other}" if last else f"{self.lax}{other}"
                    yield self._made("replace", node, [TextChange(start, end, code)], code)
            yield from self._move_edits(node, given)
        yield from self._argument_edits(node)

    def _dropped(self, node: ast.expr, kept: ast.expr, code: str) -> Edit:
        """A call without what is around its first argument; an assignment of a name to itself goes."""
        parent = self.source.parents[node]
        if isinstance(parent, ast.Assign) and [self.source.code(each) for each in parent.targets] == [code]:
            start, end = self.source.lines_of(parent)
            return self._made("drop", node, [TextChange(start, end, "")], "")
        return self._edit("drop", node, self._in_operation(kept, code, node))

    def _move_edits(self, node: ast.Call, given: Sequence[ast.expr]) -> Iterator[Edit]:
        """A reduction taken of a part of what it is taken of, or of both operands."""
        start, end = self.source.span(given[0])
        opening, closing = self.source.span(node)
        head, tail = self.source.between(opening, start), self.source.between(end, closing)
        outside = [TextChange(opening, start, ""), TextChange(end, closing, "")]
        if isinstance(given[0], ast.BinOp) and self._is_operand(node):
            outside = [TextChange(opening, start, "("), TextChange(end, closing, ")")]
        heads = {head, head.replace("pmean", "psum")}
        for inner in (each for each in ast.walk(given[0]) if isinstance(each, ast.expr)):
            for each in heads:
                if inner is not given[0] and self._may_be_array(inner):
                    first, last = self.source.span(inner)
                    within = [TextChange(first, first, each), TextChange(last, last, tail)]
                    yield self._made("move", node, [*outside, *within], each)
                if isinstance(inner, ast.BinOp):
                    around = [
                        change
                        for side in (inner.left, inner.right)
                        for change in (
                            TextChange(self.source.span(side)[0], self.source.span(side)[0], each),
                            TextChange(self.source.span(side)[1], self.source.span(side)[1], tail),
                        )
                    ]
                    yield self._made("move", node, [*outside, *around], each)

    def _out_edits(self, node: ast.Call) -> Iterator[Edit]:
        """A reduction in which branches end, taken of what they choose."""
        if last_name(node.func) not in _BRANCHING:
            return
        start, end = self.source.span(node)
        ends = dict[tuple[str, str], list[TextChange]]()
        for branch in node.args[1:]:
            match branch:
                case ast.Lambda(body=ast.Call(args=[given, *_]) as reduction) if (
                    last_name(reduction.func) in _REDUCTIONS
                ):
                    (first, last), (opening, closing) = self.source.span(given), self.source.span(reduction)
                    around = self.source.between(opening, first), self.source.between(last, closing)
                    ends.setdefault(around, []).extend([TextChange(opening, first, ""), TextChange(last, closing, "")])
                case _:
                    pass
        for (head, tail), within in ends.items():
            around = [TextChange(start, start, head), *within, TextChange(end, end, tail)]
            yield self._made("move", node, around, head + tail)

    def _argument_edits(self, node: ast.Call) -> Iterator[Edit]:
        """Other axes in a call, in another order; numbers of shards, and of dims, that are others."""
        for word in node.keywords:
            match word:
                case ast.keyword(arg="shift", value=value):
                    for number in ("1", "-1", "0"):
                        if self.source.code(value) != number:
                            yield self._edit("shift", value, number)
                case ast.keyword(arg="axis", value=ast.Constant(value=int(value)) as constant):
                    for other in {0, 1, 2} - {value}:
                        yield self._edit("axis", constant, str(other))
                case _:
                    pass
        named = {f'"{axis}"' for axis in self.axes}
        for value in (*node.args, *(word.value for word in node.keywords)):
            if not isinstance(value, ast.Constant | ast.Tuple):
                continue
            parts = [value] if isinstance(value, ast.Constant) else value.elts
            axes = [each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if axes and len(axes) == len(parts) and all(f'"{axis}"' in named for axis in axes):
                code = self.source.code(value)
                for group in self.groups:
                    if group != code:
                        yield self._edit("axis", value, group)
        if last_name(node.func) in ("P", "PartitionSpec"):
            for one, other in zip(node.args, node.args[1:], strict=False):
                (a, b), (c, d) = self.source.span(one), self.source.span(other)
                changes = [TextChange(a, b, self.source.code(other)), TextChange(c, d, self.source.code(one))]
                yield self._made("axis", node, changes, "swapped")

    def _start_edits(self, given: Sequence[ast.expr]) -> Iterator[Edit]:
        """A part that begins where the shard's does."""
        match given:
            case [_, ast.Constant(value=0) as start, count, *_]:
                code = self._in_operation(count, self.source.code(count), is_always=True)
                for group in self.groups:
                    yield self._edit("offset", start, f"{self.lax}axis_index({group}) * {code}")
            case _:
                pass

    def _of_operation(self, node: ast.BinOp) -> Iterator[Edit]:
        match node:
            case ast.BinOp(left=kept, op=ast.Div() | ast.Mult(), right=by) if "axis_size(" in self.source.code(by):
                yield self._edit("drop", node, self.source.code(kept))
            case ast.BinOp(left=ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=right), op=ast.Mod()):
                other = "-" if isinstance(sign, ast.Add) else "+"
                yield self._edit("shift", node.left, f"{self.source.code(left)} {other} {self.source.code(right)}")
            case _:
                pass

    def _of_number(self, node: ast.Constant) -> Iterator[Edit]:
        """A number of shards in a call with the other sign; a start of 0 that is that of the shard."""
        parent = self.source.parents[node]
        if isinstance(node.value, bool) or not isinstance(node.value, int):
            return
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.USub) and node.value == 1:
            if isinstance(self.source.parents[parent], ast.Call):
                yield self._edit("shift", parent, "1")
        elif isinstance(parent, ast.Call) and node.value == 1 and node in parent.args:
            yield self._edit("shift", node, "-1")
        elif isinstance(parent, ast.Assign) and node.value == 0:
            function = next((each for each in self.source.around(node) if isinstance(each, FunctionNode)), None)
            names = [] if function is None else [each.arg for each in function.args.args]
            for axis, name in ((axis, name) for axis in self.axes for name in names):
                yield self._edit("offset", node, f"{self.lax}axis_index({repr_axes([axis])}) * len({name})")

    def _of_string(self, node: ast.Constant) -> Iterator[Edit]:
        """Other mesh axes in a hint or a pattern, in another order; marks more or fewer; an axis as an argument."""
        code = self.source.code(node)
        if node.end_lineno != node.lineno or not isinstance(node.value, str) or code[:1] not in "\"'":
            return
        found: set[str] = set()
        brackets = list(re.finditer(r"\[([^\[\]/]+)/([\w,]+)\]", code))
        for at in brackets:
            axes = at[2].split(",")
            if not {*axes} <= {*self.axes}:
                continue
            others = [",".join(each) for count in (1, 2) for each in permutations(self.axes, count)]
            for other in [*others, ""]:
                if other != at[2]:
                    word = f"[{at[1]}/{other}]" if other else at[1]
                    found.add(code[: at.start()] + word + code[at.end() :])
            same = re.sub(rf"/{re.escape(at[2])}\]", f"/{','.join(reversed(axes))}]", code)
            found.add(same)
        for one, other in permutations(self.axes, 2):
            parts = re.split(rf"\b({one}|{other})\b", code) if brackets else [code]
            found.add("".join({one: other, other: one}.get(part, part) for part in parts))
        for at in re.finditer(r"\[([^\[\]/]+)(/[\w,]+)\] (\w+)", code):
            found.add(f"{code[: at.start()]}{at[1]} [{at[3]}{at[2]}]{code[at.end() :]}")
        for at in re.finditer(r"\b(\w+) \[([^\[\]/]+)(/[\w,]+)\]", code):
            found.add(f"{code[: at.start()]}[{at[1]}{at[3]}] {at[2]}{code[at.end() :]}")
        found |= {code[: at.start()].rstrip() + code[at.end() :] for at in re.finditer(r" ?[+~-]\w+\b", code)}
        if "->" in code and brackets:
            head, _, tail = code[1:-1].partition("->")
            found.add(f"{code[0]}{tail.strip()} -> {head.strip()}{code[-1]}")
        for text in sorted(found - {code}):
            yield self._edit("pattern", node, text)

    def _type_edits(self, root: ast.AST) -> Iterator[Edit]:
        """JAX's types, where they are switched off."""
        for node in ast.walk(root):
            match node:
                case ast.Call(args=args, keywords=words):
                    for word in words:
                        if word.arg == "check_vma" and self.source.code(word.value) == "False":
                            is_alone = not args and len(words) == 1
                            if is_alone:
                                yield self._edit("types", node, self.source.code(node.func))
                            else:
                                yield self._edit("types", word.value, "True")
                case _:
                    pass

    # Parentheses

    def _in_operation(self, node: ast.expr, code: str, place: ast.expr | None = None, is_always: bool = False) -> str:
        """Code as an operand: an operation in parentheses, if it stands in one."""
        is_inside = is_always or place is None or self._is_operand(place)
        is_operation = isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare | ast.BoolOp | ast.IfExp | ast.Lambda)
        return f"({code})" if is_operation and is_inside else code

    def _grouped(self, node: ast.expr, code: str) -> str:
        """An operation in a node's place."""
        return f"({code})" if self._is_operand(node) else code

    def _is_operand(self, node: ast.expr) -> bool:
        outer = self.source.parents[node]
        return isinstance(outer, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Attribute | ast.Subscript)


def repr_axes(axes: Sequence[str]) -> str:
    """``"dp"``, or ``("dp", "tp")``"""
    named = [f'"{axis}"' for axis in axes]
    return named[0] if len(named) == 1 else f"({', '.join(named)})"
