"""The syntax of a hint's dims: frozen nodes that print as the text they were parsed from.

Invariant: ``parse(str(node)) == node`` for every node that the parser can make. Spans take no
part in equality, so a node that was moved is still the same node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""A half-open place in the user's text."""

NOWHERE: Span = (0, 0)


@dataclass(frozen=True, slots=True)
class Number:
    """An exact size, ``4``."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Name:
    """A name that stands for a global size, ``batch``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Anything:
    """Any size, ``_`` or ``_name``."""

    name: str = "_"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Argument:
    """A size read from the call's arguments, ``{self.heads}`` or ``{sizes[0]}``."""

    root: str
    steps: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        steps = (f".{s}" if isinstance(s, str) else f"[{s}]" for s in self.steps)
        return f"{{{self.root}{''.join(steps)}}}"


@dataclass(frozen=True, slots=True)
class Group:
    """A parenthesised expression, ``(d+1)``."""

    inner: Expression

    def __str__(self) -> str:
        return f"({self.inner})"


@dataclass(frozen=True, slots=True)
class Negative:
    """A negated expression, ``-d``."""

    inner: Expression

    def __str__(self) -> str:
        return f"-{self.inner}"


@dataclass(frozen=True, slots=True)
class Binary:
    """Two expressions and one of ``+ - * // % **``."""

    left: Expression
    operator: str
    right: Expression

    def __str__(self) -> str:
        return f"{self.left}{self.operator}{self.right}"


@dataclass(frozen=True, slots=True)
class Call:
    """``min(a,b)`` or ``max(a,b)``."""

    function: str
    arguments: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"{self.function}({','.join(map(str, self.arguments))})"


Expression: TypeAlias = Number | Name | Anything | Argument | Group | Negative | Binary | Call


@dataclass(frozen=True, slots=True)
class Axes:
    """The mesh axes between ``/`` and ``]``, major to minor; none for ``[dim/]``."""

    names: tuple[str, ...]
    parenthesised: bool = field(default=False)
    span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        names = ",".join(self.names)
        return f"({names})" if self.parenthesised else names


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim: its size, and how it lies over the mesh (``axes`` is None without brackets)."""

    size: Expression
    axes: Axes | None = None
    broadcast: bool = False
    per_leaf: bool = False
    label: str | None = None
    span: Span = field(default=NOWHERE, compare=False)
    size_span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        prefix = "#" * self.broadcast + "?" * self.per_leaf
        label = "" if self.label is None else f"{self.label}="
        text = f"{label}{prefix}{self.size}"
        return text if self.axes is None else f"[{text}/{self.axes}]"


@dataclass(frozen=True, slots=True)
class Rest:
    """Any number of dims, ``...`` or ``*name``."""

    name: str | None = None
    broadcast: bool = False
    per_leaf: bool = False
    span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        prefix = "*" + "#" * self.broadcast + "?" * self.per_leaf
        return "..." if self.name is None else f"{prefix}{self.name}"


@dataclass(frozen=True, slots=True)
class Mark:
    """What is said of a whole array over one mesh axis: ``+tp``, ``-tp`` or ``~tp``."""

    sign: str
    axis: str
    span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return f"{self.sign}{self.axis}"


@dataclass(frozen=True, slots=True)
class Spec:
    """A whole hint's dims and marks."""

    dims: tuple[Dim | Rest, ...]
    marks: tuple[Mark, ...] = ()
    source: str = field(default="", compare=False)

    def __str__(self) -> str:
        return " ".join(map(str, (*self.dims, *self.marks)))

    @property
    def rest(self) -> int | None:
        """The index of the ``...`` or ``*name``, if there is one."""
        found = [i for i, dim in enumerate(self.dims) if isinstance(dim, Rest)]
        return found[0] if found else None
