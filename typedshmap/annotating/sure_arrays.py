"""Which parameters and results of a function are surely one array, by what its text does with them.

A spec stands for every leaf of a tree, and ``None`` is a tree without leaves. So a parameter is taken for one array
only if what every call computes bears nothing else: ``x @ w``, ``x.shape``, ``jnp.exp(x)``, outside of branches and
loops, before any statement that may return, and before the name is bound anew. What is in doubt is no array."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst import matchers as m

from .module import ParsedModule


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPERATORS = (cst.Subtract, cst.MatrixMultiply, cst.Divide, cst.FloorDivide, cst.Power, cst.Modulo)
# Methods and views.
_GIVE = _words("astype reshape sum mean max min transpose dot T real at set")
_BORNE = (_GIVE - {"set"}) | _words("shape ndim dtype")
# Functions of JAX that give an array: of two arrays, of one that comes first, or of other things.
_OF_TWO = _words("dot matmul maximum minimum")
_OF_ONE = _words(
    "sum mean max min exp log sqrt square abs sin cos tanh reshape transpose zeros_like ones_like take take_along_axis "
    "clip relu gelu silu softmax log_softmax sigmoid logsumexp"
)
_OF_OTHERS = _words("einsum axis_index zeros ones arange concatenate stack")
_LIKE = _words("psum pmean pmax pmin all_gather psum_scatter ppermute all_to_all stop_gradient")
_HOMES = ("jax.numpy", "jax.nn", "jax.lax")
_REBINDS_OR_ASKS = m.NamedExpr() | m.Nonlocal() | m.Call(m.Name("isinstance") | m.Name("hasattr") | m.Name("type"))


class SureArrays:
    """What a body shows.

    Attributes:
      parameters: the parameters that are surely arrays.

    Args:
      module: the file.
      function: the function.
      known: the parameters that are known to be arrays.
    """

    def __init__(self, module: ParsedModule, function: cst.FunctionDef | cst.Lambda, known: set[str]) -> None:
        self.module, self.parameters = module, {*known}
        self._result: Sequence[bool] | bool = ()
        doubted = {name for node in m.findall(function.body, _REBINDS_OR_ASKS) for name in _names(node)}
        self._open = {param.name.value for param in module.parameters(function)} - doubted
        self._arrays, self._doubted = known - doubted, doubted
        if isinstance(function, cst.Lambda):
            self._result = self._is_array(function.body)
            return
        for statement in function.body.body:
            parts = statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]
            for part in parts:  # type: ignore[union-attr]
                self._read(part)
        returns = m.findall(function.body, m.Return())
        if len(returns) != 1 or returns[0] not in getattr(function.body.body[-1], "body", ()):
            self._result = ()

    def results(self, count: int) -> list[bool]:
        """Whether each of so many items of a tuple that is returned is surely an array, or the one result."""
        found = [self._result] if isinstance(self._result, bool) else [*self._result]
        return found if len(found) == count else [False] * count

    def _read(self, part: cst.CSTNode) -> None:
        match part:
            case cst.Return(value=cst.Tuple(elements=elements)):
                self._result = tuple([self._is_array(each.value) for each in elements])
            case cst.Return(value=cst.BaseExpression() as value):
                self._result = self._is_array(value)
            case cst.Expr(value=value):
                self._is_array(value)
            case cst.Assign(targets=[cst.AssignTarget(target=target)], value=value):
                is_array = self._is_array(value)
                self._forget(target)
                if isinstance(target, cst.Name) and is_array:
                    self._arrays |= {target.value} - self._doubted
            case cst.FunctionDef(name=name):
                self._forget(name)
            case _:
                self._forget(part)
                if m.findall(part, m.Return() | m.Raise()):
                    self._open = set()

    def _forget(self, node: cst.CSTNode) -> None:
        self._arrays, self._open = self._arrays - _names(node), self._open - _names(node)

    def _show(self, *nodes: cst.BaseExpression) -> None:
        names = self._open & {node.value for node in nodes if isinstance(node, cst.Name)}
        self.parameters, self._arrays = self.parameters | names, self._arrays | names

    def _is_array(self, node: cst.BaseExpression) -> bool:
        """Read an expression that is surely computed; whether it surely gives one array."""
        match node:
            case cst.Name(value=name):
                return name in self._arrays
            case cst.BinaryOperation(left=left, operator=operator, right=right):
                # A list may be added to a list, and multiplied by a whole number; a tuple too.
                are_arrays = any([self._is_array(left), self._is_array(right)])
                if are_arrays or isinstance(operator, _OPERATORS) or cst.Float in (type(left), type(right)):
                    self._show(left, right)
                return self._is_array(left) or self._is_array(right)
            case cst.UnaryOperation(operator=cst.Minus(), expression=inner):
                self._show(inner)
                return self._is_array(inner)
            case cst.Attribute(value=inner, attr=cst.Name(value=attr)):
                if attr in _BORNE:
                    self._show(inner)
                return self._is_array(inner) and attr in _GIVE
            case cst.Subscript(value=inner, slice=indices):
                if len(indices) > 1:
                    self._show(inner)
                return self._is_array(inner)
            case cst.Call(func=func, args=args):
                given = [self._is_array(arg.value) for arg in args]
                names = [name.rpartition(".") for name in self.module.imported_names(func)]
                name = next((name for home, _, name in names if home in _HOMES), "")
                if not names:
                    return isinstance(func, cst.Attribute) and self._is_array(func)
                is_where = name == "where" and len(args) == 3  # alone a condition gives a tuple
                plain = [arg.value for arg in args if arg.keyword is None and not arg.star]
                if name in _OF_TWO or name in _OF_ONE or is_where:
                    self._show(*plain[: 1 if name in _OF_ONE else 3])
                elif name == "einsum":
                    self._show(*plain[1:])
                is_like = name in _LIKE and given[:1] == [True]
                return is_like or is_where or name in _OF_TWO | _OF_ONE | _OF_OTHERS
            case cst.IfExp(test=test, body=body, orelse=orelse):
                self._is_array(test)
                was_open, self._open = self._open, set()
                found = [self._is_array(body), self._is_array(orelse)]
                self._open = was_open
                return all(found)
            case cst.Comparison(left=left):
                self._is_array(left)
                return False
            case _:
                return False


def _names(node: cst.CSTNode) -> set[str]:
    return {name.value for name in m.findall(node, m.Name()) if isinstance(name, cst.Name)}
