"""Brackets for the hints of jaxtyping that a function already carries.

Its names may have meant the sizes of shards. Both readings agree where a name is sharded in the same
way wherever it stands; everything else is left.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from .hints import Writer
from .source import Edit, Source, Unclear
from .specs import Axis, LeafSpec, Specs

_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class JaxtypedHint:
    """A hint of jaxtyping: the string of its dims, and the spec beside it."""

    dims: cst.SimpleString
    specs: Specs

    @property
    def tokens(self) -> list[str]:
        value = ast.literal_eval(self.dims.value)
        return str(value).split()

    def dims_with_axes(self) -> list[tuple[str, tuple[Axis, ...]]]:
        """Every dim with the mesh axes that shard it.

        Raises:
          Unclear: for a spec that is longer than the dims, or a sharded dim of which no size can be told.
        """
        if not isinstance(self.specs, LeafSpec):
            raise Unclear(f"the hint {self.dims.value} is for one array, and its spec for several")
        tokens, axes = self.tokens, self.specs.dims
        fixed = next((i for i, token in enumerate(tokens) if token.startswith(("...", "*"))), len(tokens))
        if len(axes) > fixed:
            raise Unclear(f"the hint {self.dims.value} does not tell all the dims of its spec")
        sharded = [*axes, *[()] * (len(tokens) - len(axes))]
        for token, each in zip(tokens, sharded, strict=True):
            if each and not _NAME.fullmatch(token):
                raise Unclear(f"the dim '{token}' of the hint {self.dims.value} is sharded, and may be the shard's")
        return list(zip(tokens, sharded, strict=True))


def dims_in(source: Source, annotation: cst.BaseExpression) -> cst.SimpleString | None:
    """The string of dims in a hint of jaxtyping, which may be optional."""
    match annotation:
        case cst.BinaryOperation(left=left, operator=cst.BitOr(), right=cst.Name(value="None")):
            return dims_in(source, left)
        case cst.Subscript(value=value, slice=[_, cst.SubscriptElement(slice=cst.Index(value=dims))]):
            is_hint = any(name.startswith("jaxtyping.") for name in source.imported_names(value))
            return dims if is_hint and isinstance(dims, cst.SimpleString) else None
        case _:
            return None


def bracket_edits(source: Source, hints: Sequence[JaxtypedHint], writer: Writer) -> list[Edit]:
    """The edits that put brackets into the hints of one function.

    Raises:
      Unclear: where a name might mean the size of a shard.
    """
    divided = [hint.dims_with_axes() for hint in hints]
    _refuse_local_names([pair for row in divided for pair in row])
    edits: list[Edit] = []
    for hint, row in zip(hints, divided, strict=True):
        dims = " ".join(writer.bracketed(token, axes) for token, axes in row)
        if dims != " ".join(hint.tokens):
            edits.append(Edit(*source.span(hint.dims), f'"{dims}"'))
    return edits


def _refuse_local_names(pairs: Sequence[tuple[str, tuple[Axis, ...]]]) -> None:
    """Refuse a name that is sharded in one place and otherwise in another, or in an expression."""
    sharding = {token: axes for token, axes in pairs if axes}
    for token, axes in pairs:
        for name in _NAME.findall(token):
            if name in sharding and not name.startswith("_") and (name != token or sharding[name] != axes):
                raise Unclear(
                    f"the dim '{name}' is sharded in one hint and otherwise in another: it may be the shard's"
                )
