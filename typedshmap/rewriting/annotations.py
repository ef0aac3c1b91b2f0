"""Annotations that a function already has: which of them speak of arrays, and which may stay."""

from __future__ import annotations

from typing import Literal, TypeAlias

import libcst as cst

from .jaxtyped import dims_in
from .source import Source, Unclear

AnnotationKind: TypeAlias = Literal["bare", "any", "array", "optional", "dims", "other"]
_ARRAYS = {
    "chex.Array",
    "jax.Array",
    "jax.numpy.ndarray",
    "jax.typing.ArrayLike",
    "jaxtyping.Array",
    "numpy.ndarray",
    "typedshmap.Array",
}


def kind_of(source: Source, annotation: cst.Annotation | None) -> AnnotationKind:
    """What an annotation is: none, Any, an array or an optional one, a hint of jaxtyping with dims, or other."""
    if annotation is None:
        return "bare"
    node = annotation.annotation
    if "typing.Any" in source.imported_names(node):
        return "any"
    if dims_in(source, node) is not None:
        return "dims"
    inner = _without_none(source, node)
    if not is_array_type(source, inner or node):
        return "other"
    return "optional" if inner is not None else "array"


def is_array_type(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an annotation is a plain array type."""
    return bool(source.imported_names(node) & _ARRAYS)


def _without_none(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``T`` of ``T | None`` and ``Optional[T]``; None for anything else."""
    match node:
        case cst.BinaryOperation(left=left, operator=cst.BitOr(), right=cst.Name(value="None")):
            return left
        case cst.Subscript(value=value, slice=[cst.SubscriptElement(slice=cst.Index(value=inner))]):
            return inner if "typing.Optional" in source.imported_names(value) else None
        case _:
            return None


def tuple_items(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """``A`` and ``B`` of ``tuple[A, B]``."""
    match node:
        case cst.Subscript(value=cst.Name(value="tuple" | "Tuple"), slice=elements):
            return [element.slice.value for element in elements if isinstance(element.slice, cst.Index)]
        case _:
            return []


def refuse_undefined(source: Source, node: cst.CSTNode) -> None:
    """Refuse an annotation that is read when the program runs, and cannot be.

    Raises:
      Unclear: for a quoted one, and for names that are defined for checkers of types only.
    """
    if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):
        raise Unclear(f"the quoted annotation {source.code(node)} would be read when the program runs")
    if isinstance(node, cst.Name) and not _is_defined(source, node):
        raise Unclear(f"the annotation '{node.value}' is not defined when the program runs")
    for child in (node.value,) if isinstance(node, cst.Attribute) else node.children:
        # Strings in brackets are dims, or those of a Literal.
        if not isinstance(node, cst.Index) or not isinstance(child, cst.SimpleString):
            refuse_undefined(source, child)


def _is_defined(source: Source, name: cst.Name) -> bool:
    return any(not _is_for_checkers(source, getattr(each, "node", None)) for each in source.bindings(name))


def _is_for_checkers(source: Source, node: cst.CSTNode | None) -> bool:
    around = source.enclosing(node, cst.If) if node is not None else None
    return around is not None and "TYPE_CHECKING" in source.code(around.test)
