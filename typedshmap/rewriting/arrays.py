"""Which parameters of a function are surely arrays, and which results, by what its body does.

A spec stands for every leaf of a tree, and ``None`` is a tree without leaves. So a parameter is
taken for one array only where the body, on every way through it, does with it what only an array
bears.

Invariant: what is in doubt is no array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from .source import Source

_OPERATORS = (cst.Subtract, cst.MatrixMultiply, cst.Divide, cst.FloorDivide, cst.Power, cst.Modulo)


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_METHODS = _word_set(
    "astype reshape sum mean max min prod std var transpose swapaxes ravel flatten squeeze dot clip round any all "
    "argmax argmin argsort cumsum cumprod repeat take conj conjugate set add multiply get"
)
_VIEWS = _word_set("T mT at real imag")
# What a container or a class of the user may have as well tells nothing: x.get, x.add.
_ATTRIBUTES = (_METHODS - _word_set("set add multiply get")) | _VIEWS | _word_set("shape ndim dtype")
# Functions that give one array, whatever they are given.
_GIVE = _word_set(
    "sum mean max min prod std var exp log log1p expm1 sqrt square abs sign sin cos tanh where dot matmul einsum "
    "tensordot vdot outer concatenate stack zeros ones full empty zeros_like ones_like full_like empty_like arange "
    "eye reshape transpose swapaxes moveaxis expand_dims squeeze broadcast_to cumsum cumprod maximum minimum add "
    "subtract multiply divide power repeat tile take take_along_axis argmax argmin clip asarray array pad roll flip "
    "sort argsort any all isnan float32 bfloat16 float16 int32 relu gelu silu swish softmax log_softmax sigmoid "
    "one_hot rsqrt dot_general axis_index dynamic_slice dynamic_slice_in_dim dynamic_update_slice "
    "dynamic_update_slice_in_dim iota broadcasted_iota"
)
# Those of them that take no array first, or a sequence of arrays as well.
_TAKE_OTHERS = _word_set(
    "concatenate stack zeros ones full empty arange eye array asarray axis_index iota broadcasted_iota"
)
_TAKE_ONLY_ARRAYS = _word_set("dot matmul maximum minimum add subtract multiply divide outer vdot where")
# Functions that give a tree like their first argument.
_LIKE = _word_set("psum pmean pmax pmin all_gather psum_scatter ppermute all_to_all pcast stop_gradient")
_HOMES = ("jax.numpy.", "jax.nn.", "jax.lax.")
_ASK = frozenset({"isinstance", "type", "hasattr", "getattr"})


@dataclass(frozen=True)
class ArrayEvidence:
    """What a body shows.

    Attributes:
      parameters: the parameters that are surely arrays.
      results: for every return, whether each item of a tuple is surely an array, or the one result.
    """

    parameters: frozenset[str]
    results: tuple[bool | tuple[bool, ...], ...]

    def has_array_result(self) -> bool:
        """Whether the result is surely one array."""
        return bool(self.results) and all(result is True for result in self.results)

    def array_items(self, count: int) -> list[bool]:
        """For each item of a tuple of results, whether it is surely an array."""
        rows = [row for row in self.results if isinstance(row, tuple) and len(row) == count]
        if not rows or len(rows) != len(self.results):
            return [False] * count
        return [all(row[i] for row in rows) for i in range(count)]


def arrays_in(source: Source, function: cst.FunctionDef | cst.Lambda, arrays: frozenset[str]) -> ArrayEvidence:
    """Read the body of a function, some of whose parameters are known to be arrays."""
    names = frozenset(name.value for name in _parameter_names(function.params))
    doubted = frozenset(_rebound_names(function))
    names -= _type_tested_names(function) | doubted
    reader = _BodyReader(source, unbound=set(names), known=set(arrays - doubted), shown=set(arrays), doubted=doubted)
    if isinstance(function, cst.Lambda):
        reader.result(function.body)
    else:
        reader.block(function.body)
    return ArrayEvidence(frozenset(reader.shown), tuple(reader.results))


@dataclass
class _BodyReader:
    """Goes through a body from its first statement on.

    Attributes:
      unbound: parameters that still mean what was passed.
      known: names that hold one array now.
      shown: parameters that have shown to be arrays.
      doubted: names that a function inside of the body may bind anew, or an expression.
      is_certain: whether every call gets to this statement.
    """

    source: Source
    unbound: set[str]
    known: set[str]
    shown: set[str]
    doubted: frozenset[str]
    results: list[bool | tuple[bool, ...]] = field(default_factory=list)
    is_certain: bool = True

    def statement(self, node: cst.CSTNode) -> None:
        match node:
            case cst.SimpleStatementLine() | cst.SimpleStatementSuite():
                for part in node.body:
                    self._simple(part)
            case cst.With():
                for item in node.items:
                    self._use(item.item)
                    self._forget(_stored_names(item))
                self.block(node.body)
            case cst.If():
                self._if(node)
            case cst.FunctionDef() | cst.ClassDef():
                self._forget({node.name.value})
            case _:
                self._compound(node)

    def _compound(self, node: cst.CSTNode) -> None:
        """Loops and the like: what they bind is in doubt, and so is whether what follows is reached."""
        self._forget(_stored_names(node))
        for part in _nodes_inside(node):
            if isinstance(part, cst.Return):
                self.result(part.value)
        self._doubt(node)

    def _if(self, node: cst.If) -> None:
        """Two ways: a name holds an array after them if it does after both."""
        self._use(node.test)
        was_certain, self.is_certain = self.is_certain, False
        before = set(self.known)
        self.block(node.body)
        after, self.known = self.known, before
        if isinstance(node.orelse, cst.If):
            self._if(node.orelse)
        elif node.orelse is not None:
            self.block(node.orelse.body)
        self.known &= after
        self.unbound -= _stored_names(node)
        self.is_certain = was_certain
        self._doubt(node)

    def block(self, node: cst.BaseSuite) -> None:
        for statement in node.body if isinstance(node, cst.IndentedBlock) else (node,):
            self.statement(statement)

    def _doubt(self, node: cst.CSTNode) -> None:
        """Whether what follows a statement is reached is in doubt if that may leave the function."""
        if any(isinstance(part, (cst.Return, cst.Raise)) for part in _nodes_inside(node)):
            self.is_certain = False

    def _simple(self, node: cst.CSTNode) -> None:
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value):
                self._bind(name, self._use(value))
            case cst.AugAssign(target=cst.Name(value=name), value=value):
                self._bind(name, self._use(value) or name in self.known)
            case cst.Return(value=value):
                self.result(value)
                self.is_certain = False
            case cst.Expr(value=value):
                self._use(value)
            case cst.Assign(value=value):
                self._use(value)
                self._forget(_stored_names(node))
            case _:
                self._forget(_stored_names(node))

    def result(self, node: cst.BaseExpression | None) -> None:
        """Note what is returned."""
        if isinstance(node, cst.Tuple):
            self.results.append(tuple(self._use(element.value) for element in node.elements))
        else:
            self.results.append(node is not None and self._use(node))

    def _bind(self, name: str, is_array: bool) -> None:
        self._forget({name})
        if is_array and name not in self.doubted:
            self.known.add(name)

    def _forget(self, names: set[str]) -> None:
        self.known -= names
        self.unbound -= names

    def _show(self, node: cst.BaseExpression) -> None:
        """Note that an expression is used as an array; that tells where it is a parameter."""
        if isinstance(node, cst.Name) and node.value in self.unbound and self.is_certain:
            self.shown.add(node.value)
            self.known.add(node.value)

    def _use(self, node: cst.BaseExpression) -> bool:
        """Read an expression that is surely computed; whether it surely gives one array."""
        match node:
            case cst.Name():
                return node.value in self.known
            case cst.BinaryOperation():
                return self._operation(node)
            case cst.UnaryOperation(operator=cst.Minus() | cst.BitInvert()):
                self._show(node.expression)
                return self._use(node.expression)
            case cst.Attribute():
                return self._attribute(node)
            case cst.Subscript():
                return self._subscript(node)
            case cst.Call():
                return self._call(node)
            case cst.IfExp():
                return self._either(node)
            case cst.Comparison():
                self._use(node.left)
            case cst.Tuple() | cst.List():
                for element in node.elements:
                    self._use(element.value)
            case _:
                pass
        return False

    def _either(self, node: cst.IfExp) -> bool:
        """An array if both are; what one of them needs is not needed always."""
        self._use(node.test)
        was_certain, self.is_certain = self.is_certain, False
        found = [self._use(node.body), self._use(node.orelse)]
        self.is_certain = was_certain
        return all(found)

    def _operation(self, node: cst.BinaryOperation) -> bool:
        sides = (node.left, node.right)
        used = [self._use(side) for side in sides]
        has_array = any(used)
        # A list may be added to a list, and multiplied by a whole number; a tuple too.
        if not (has_array or isinstance(node.operator, _OPERATORS) or any(isinstance(s, cst.Float) for s in sides)):
            return False
        for side in sides:
            self._show(side)
        return has_array or any(isinstance(side, cst.Name) and side.value in self.known for side in sides)

    def _attribute(self, node: cst.Attribute) -> bool:
        if node.attr.value in _ATTRIBUTES:
            self._show(node.value)
        return self._use(node.value) and node.attr.value in _VIEWS

    def _subscript(self, node: cst.Subscript) -> bool:
        if len(node.slice) > 1:
            self._show(node.value)
        return self._use(node.value)

    def _call(self, node: cst.Call) -> bool:
        """A method of an array, or a function of JAX by its name."""
        gives = [self._use(arg.value) for arg in node.args]
        name = self._function(node.func)
        if name is None:
            return self._method(node.func)
        if name in _GIVE and name not in _TAKE_OTHERS:
            for arg in self._array_arguments(name, node.args):
                self._show(arg.value)
        # where(condition) alone gives a tuple
        return (name in _GIVE and (name != "where" or len(gives) == 3)) or (name in _LIKE and gives[:1] == [True])

    def _method(self, node: cst.BaseExpression) -> bool:
        """Whether what is called is a method that gives an array, of an array."""
        if not isinstance(node, cst.Attribute):
            self._use(node)
            return False
        if node.attr.value in _ATTRIBUTES:
            self._show(node.value)
        return self._use(node.value) and node.attr.value in _METHODS

    def _array_arguments(self, name: str, args: Sequence[cst.Arg]) -> Sequence[cst.Arg]:
        plain = [arg for arg in args if arg.keyword is None and not arg.star]
        if name == "einsum":
            return plain[1:]
        return plain if name in _TAKE_ONLY_ARRAYS else plain[:1]

    def _function(self, node: cst.BaseExpression) -> str | None:
        """The name of a function of JAX that is known here."""
        for name in self.source.imported_names(node):
            home = next((home for home in _HOMES if name.startswith(home)), None)
            if home is not None and "." not in name.removeprefix(home):
                return name.removeprefix(home)
        return None


def _parameter_names(params: cst.Parameters) -> Iterator[cst.Name]:
    for param in (*params.posonly_params, *params.params, *params.kwonly_params):
        yield param.name


def _nodes_inside(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and all that is in it, but for the bodies of functions."""
    yield node
    if not isinstance(node, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
        for child in node.children:
            yield from _nodes_inside(child)


def _stored_names(node: cst.CSTNode) -> set[str]:
    """The names that a statement may bind: every name in it that is a target, or is called like one."""
    found: set[str] = set()
    for part in _nodes_inside(node):
        match part:
            case cst.AssignTarget(target=target) | cst.AugAssign(target=target) | cst.AnnAssign(target=target):
                found |= _names(target)
            case cst.For(target=target) | cst.NamedExpr(target=target) | cst.AsName(name=target):
                found |= _names(target)
            case cst.Del() | cst.NameItem():
                found |= _names(part)
            case cst.FunctionDef(name=name) | cst.ClassDef(name=name):
                found.add(name.value)
            case cst.MatchAs(name=cst.Name(value=name)) | cst.MatchStar(name=cst.Name(value=name)):
                found.add(name)
            case _:
                pass
    return found


def _names(node: cst.CSTNode) -> set[str]:
    return {part.value for part in _nodes_inside(node) if isinstance(part, cst.Name)}


def _rebound_names(node: cst.CSTNode) -> Iterator[str]:
    """The names that a function inside of a body may bind anew, or an expression."""
    if isinstance(node, cst.Nonlocal):
        yield from (item.name.value for item in node.names)
    if isinstance(node, cst.NamedExpr):
        yield from _names(node.target)
    for child in node.children:
        yield from _rebound_names(child)


def _type_tested_names(function: cst.CSTNode) -> set[str]:
    """Names whose type the body asks for, so that they may be several things."""
    asked: set[str] = set()
    for child in function.children:
        for part in _nodes_inside(child):
            match part:
                case cst.Call(func=cst.Name(value=name), args=[cst.Arg(value=value), *_]) if name in _ASK:
                    asked |= _names(value)
                case _:
                    pass
    return asked
