"""Which parameters and results of a function are surely one array, by what its text does with them.

A spec stands for every leaf of a tree, and ``None`` is a tree without leaves. So a parameter is taken for one array
only if the body, on every way through it, does with it what only an array bears. What is in doubt is no array."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import libcst as cst
from libcst import matchers as m

from .module import ParsedModule


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPERATORS = (cst.Subtract, cst.MatrixMultiply, cst.Divide, cst.FloorDivide, cst.Power, cst.Modulo)
_METHODS = _words(
    "astype reshape sum mean max min prod std var transpose swapaxes ravel flatten squeeze dot clip round any all "
    "argmax argmin argsort cumsum cumprod repeat take conj conjugate set add multiply get"
)
_VIEWS = _words("T mT at real imag")
# What a container or a class of the user may have as well tells nothing: x.get, x.add.
_ATTRIBUTES = (_METHODS - _words("set add multiply get")) | _VIEWS | _words("shape ndim dtype")
# Functions that give one array, whatever they are given.
_GIVE = _words(
    "sum mean max min prod std var exp log log1p expm1 sqrt square abs sign sin cos tanh where dot matmul einsum "
    "tensordot vdot outer concatenate stack zeros ones full empty zeros_like ones_like full_like empty_like arange "
    "eye reshape transpose swapaxes moveaxis expand_dims squeeze broadcast_to cumsum cumprod maximum minimum add "
    "subtract multiply divide power repeat tile take take_along_axis argmax argmin clip asarray array pad roll flip "
    "sort argsort any all isnan float32 bfloat16 float16 int32 relu gelu silu swish softmax log_softmax sigmoid "
    "one_hot rsqrt dot_general axis_index dynamic_slice dynamic_slice_in_dim dynamic_update_slice "
    "dynamic_update_slice_in_dim iota broadcasted_iota"
)
# Those of them that take no array first, or a sequence of arrays as well; and those that take only arrays.
_TAKE_OTHERS = _words(
    "concatenate stack zeros ones full empty arange eye array asarray axis_index iota broadcasted_iota"
)
_TAKE_ARRAYS = _words("dot matmul maximum minimum add subtract multiply divide outer vdot where")
# Functions that give a tree like their first argument.
_LIKE = _words("psum pmean pmax pmin all_gather psum_scatter ppermute all_to_all pcast stop_gradient")
_HOMES = ("jax.numpy", "jax.nn", "jax.lax")

_LEAVES = m.Return() | m.Raise()
_REBINDS_OR_ASKS = (
    m.NamedExpr() | m.Nonlocal() | m.Call(m.Name("isinstance") | m.Name("type") | m.Name("hasattr") | m.Name("getattr"))
)


class ArrayEvidence:
    """What a body shows.

    Attributes:
      shown: the parameters that are surely arrays.
      results: for every return, whether each item of a tuple is surely an array, or the one result.

    Args:
      module: the file.
      function: the function.
      arrays: the parameters that are known to be arrays.
    """

    def __init__(self, module: ParsedModule, function: cst.FunctionDef | cst.Lambda, arrays: Set[str]) -> None:
        self.module, self.shown, self.results = module, {*arrays}, list[bool | tuple[bool, ...]]()
        self._doubted = {name for node in m.findall(function.body, _REBINDS_OR_ASKS) for name in module.names_in(node)}
        self._known = arrays - self._doubted  # names that hold an array now
        self._given = {param.name.value for param in module.parameters(function)} - self._doubted
        self._is_certain = True  # every call gets to this statement
        if isinstance(function.body, cst.BaseSuite):
            self._block(function.body)
        else:
            self._return(function.body)

    def are_results_arrays(self, count: int) -> list[bool]:
        """Whether each of so many items of the result is surely an array."""
        rows = [row for row in self.results if isinstance(row, tuple) and len(row) == count]
        is_known = bool(rows) and len(rows) == len(self.results)
        return [is_known and all(row[at] for row in rows) for at in range(count)]

    def is_result_array(self) -> bool:
        """Whether the result is surely one array."""
        return bool(self.results) and all(result is True for result in self.results)

    def _block(self, node: cst.BaseSuite) -> None:
        for statement in node.body:
            self._statement(statement)

    def _statement(self, node: cst.CSTNode) -> None:
        match node:
            case cst.SimpleStatementLine():
                for part in node.body:
                    self._statement(part)
            case cst.Return(value=value):
                self._return(value)
            case cst.Expr(value=value):
                self._is_array(value)
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value):
                self._bind(name, self._is_array(value))
            case cst.AugAssign(target=cst.Name(value=name), value=value):
                self._bind(name, self._is_array(value) or name in self._known)
            case cst.FunctionDef(name=name) | cst.ClassDef(name=name):
                self._forget({name.value})
            case cst.With(items=items, body=body):
                for item in items:
                    self._is_array(item.item)
                    self._forget(self.module.stored_names(item))
                self._block(body)
            case cst.If():
                self._choose(node)
            case cst.Assign(value=value):
                self._is_array(value)
                self._forget(self.module.stored_names(node))
            case _:
                self._forget(self.module.stored_names(node))
                self._repeat(node)
                self._forget(self.module.stored_names(node))

    def _repeat(self, node: cst.CSTNode) -> None:
        """The blocks of a loop and the like, which may run, and more than once."""
        was_certain, self._is_certain = self._is_certain, False
        for child in node.children:
            if isinstance(child, cst.BaseSuite):
                self._block(child)
            elif not isinstance(child, cst.BaseExpression):
                self._repeat(child)
        self._is_certain = was_certain and not m.findall(node, _LEAVES)

    def _choose(self, node: cst.If) -> None:
        """Two ways: a name holds an array after them if it does after both."""
        self._is_array(node.test)
        was_certain, self._is_certain, before = self._is_certain, False, self._known
        self._block(node.body)
        after, self._known = self._known, before
        if isinstance(node.orelse, cst.If):
            self._statement(node.orelse)
        elif node.orelse is not None:
            self._block(node.orelse.body)
        self._known &= after
        self._given -= self.module.stored_names(node)
        self._is_certain = was_certain and not m.findall(node, _LEAVES)

    def _return(self, node: cst.BaseExpression | None) -> None:
        if isinstance(node, cst.Tuple):
            self.results.append(tuple([self._is_array(element.value) for element in node.elements]))
        else:
            self.results.append(node is not None and self._is_array(node))
        self._is_certain = False

    def _bind(self, name: str, is_array: bool) -> None:
        self._forget({name})
        self._known |= {name} - self._doubted if is_array else frozenset()

    def _forget(self, names: Set[str]) -> None:
        self._known, self._given = self._known - names, self._given - names

    def _show(self, *nodes: cst.BaseExpression) -> None:
        """Note that expressions are used as arrays; that tells where one is a parameter."""
        if self._is_certain:
            names = self._given & {node.value for node in nodes if isinstance(node, cst.Name)}
            self.shown, self._known = self.shown | names, self._known | names

    def _is_array(self, node: cst.BaseExpression) -> bool:
        """Read an expression that is surely computed; whether it surely gives one array."""
        match node:
            case cst.Name(value=name):
                return name in self._known
            case cst.BinaryOperation(left=left, operator=operator, right=right):
                # A list may be added to a list, and multiplied by a whole number; a tuple too.
                are_arrays = any([self._is_array(left), self._is_array(right)])
                if are_arrays or isinstance(operator, _OPERATORS) or cst.Float in (type(left), type(right)):
                    self._show(left, right)
                return self._is_array(left) or self._is_array(right)
            case cst.UnaryOperation(operator=cst.Minus() | cst.BitInvert(), expression=inner):
                self._show(inner)
                return self._is_array(inner)
            case cst.Attribute(value=inner, attr=attr):
                if attr.value in _ATTRIBUTES:
                    self._show(inner)
                return self._is_array(inner) and attr.value in _VIEWS
            case cst.Subscript(value=inner, slice=indices):
                if len(indices) > 1:
                    self._show(inner)
                return self._is_array(inner)
            case cst.Call():
                return self._is_call_array(node)
            case cst.IfExp():
                self._is_array(node.test)
                was_certain, self._is_certain = self._is_certain, False
                found = [self._is_array(node.body), self._is_array(node.orelse)]
                self._is_certain = was_certain
                return all(found)
            case cst.Comparison(left=left):
                self._is_array(left)
            case cst.Tuple() | cst.List():
                for element in node.elements:
                    self._is_array(element.value)
            case _:
                pass
        return False

    def _is_call_array(self, node: cst.Call) -> bool:
        """A function of JAX by its name, or a method of an array."""
        gives = [self._is_array(arg.value) for arg in node.args]
        names = [each.rpartition(".") for each in self.module.imported_names(node.func)]
        name: Any = next((name for home, _, name in names if home in _HOMES), None)
        if name is None and isinstance(node.func, cst.Attribute):
            self._is_array(node.func)
            return self._is_array(node.func.value) and node.func.attr.value in _METHODS
        if name in _GIVE - _TAKE_OTHERS:
            plain = [arg.value for arg in node.args if arg.keyword is None and not arg.star]
            self._show(*(plain[1:] if name == "einsum" else plain if name in _TAKE_ARRAYS else plain[:1]))
        # where(condition) alone gives a tuple
        return (name in _GIVE and (name != "where" or len(gives) == 3)) or (name in _LIKE and gives[:1] == [True])
