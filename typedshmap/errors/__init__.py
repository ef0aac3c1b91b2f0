"""The exceptions. The message of an exception is the text of its `Report`.

An error about a call has every failure of the call in ``error.failures``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from einops import EinopsError

from . import causes, failures, varying
from .failures import Failure
from .phrases import bounded
from .places import running_place
from .report import Report


class TypedShmapError(Exception):
    """The base of all errors of this library.

    Attributes:
      place: the user's line, ``train.py:12 (step)``, if the error was raised during a trace or a decoration.
    """

    _is_of_source: ClassVar[bool] = False
    """Whether it concerns the text of the running line, even if the line is not being traced."""

    def __init__(self, what: Report | str, place: str = "") -> None:
        super().__init__(what)
        given = what.place if isinstance(what, Report) else place
        self.place = given or running_place(is_traced=not self._is_of_source)

    @property
    def report(self) -> Report | None:
        """The failures and their context, as data; None for an error that is a plain sentence."""
        what = self.args[0]
        return replace(what, place=self.place) if isinstance(what, Report) else None

    @property
    def sentence(self) -> str:
        """The message of an error that is a plain sentence, without the place."""
        return str(self.args[0])

    def __str__(self) -> str:
        if self.report is not None or not self.place:
            return bounded(str(self.report or self.sentence))
        problem, hint, cure = self.sentence.partition("\n\nHint: ")
        return bounded(f"{problem}\n\nAt: {self.place}{hint[1:]}{cure}")

    @property
    def failures(self) -> tuple[Failure, ...]:
        """All failures of the call; the message reports the first in full."""
        return self.report.failures if self.report else ()


class AnnotationSyntaxError(TypedShmapError, ValueError):
    """A hint that cannot be read, or that is missing."""

    _is_of_source = True


class MeshAxisError(TypedShmapError, ValueError):
    """A mesh axis that is unknown or used twice, or a mesh that is missing or contradicts another."""


class PatternError(TypedShmapError, EinopsError):
    """A pattern of an operation that cannot be read, or that makes no sense for its operands."""


class ShapeError(TypedShmapError, TypeError):
    """A number of dims or a size that contradicts the hint."""


class DtypeError(TypedShmapError, TypeError):
    """A dtype that contradicts the hint."""


class ShardingError(TypedShmapError, TypeError):
    """A global array whose sharding contradicts its hint."""


class VaryingError(TypedShmapError, TypeError, ValueError):
    """A value whose varying or unreduced axes contradict its hint; a ValueError, like JAX's error."""


class DivergenceError(TypedShmapError):
    """A collective that not all shards of its mesh axes reach: a deadlock."""


class ReplicaError(TypedShmapError):
    """A replicated value that differs between shards, or a program that differs between processes.

    `sanitize` finds it on the devices while the program runs.
    """


class StructureError(TypedShmapError, TypeError):
    """A container, a type or an argument that contradicts the hint."""


class SuspectWarning(UserWarning):
    """Code that may be intended, but looks like a mistake.

    For example a partial sum that is lost and that no hint marks, a sum over replicated shards, or a dim name that is a
    misspelling of another.
    """


for _error in (TypedShmapError, *TypedShmapError.__subclasses__(), SuspectWarning):
    _error.__module__ = "typedshmap"

_CLASSES = {
    ShapeError: failures.Mismatch | failures.WrongSize,
    MeshAxisError: failures.Unresolved | failures.NotManual,
    PatternError: failures.PatternFault,
    DtypeError: failures.WrongDtype | failures.UnusableDtype,
    ShardingError: failures.WrongSharding
    | varying.LostMark
    | varying.AddedMark
    | failures.BoundaryMark
    | failures.OpenDim
    | failures.PatternLayoutMismatch
    | failures.LayoutMismatch
    | failures.ShardingConflict,
    VaryingError: varying.UnmentionedVarying
    | varying.UnmarkedUnreduced
    | varying.NotUnreduced
    | varying.UnmarkedReduced
    | varying.RedundantPsum
    | varying.UntypedVarying
    | causes.Suspect,
    DivergenceError: varying.DivergentCollective,
    ReplicaError: varying.DifferingReplicas,
}


def warn_of_suspect(text: str, file: str, line: int) -> None:
    """Warn of a line of the user's program, once, by the filters of that module."""
    modules = (getattr(module, "__dict__", {}) for module in list(sys.modules.values()))
    owner = next((names for names in modules if names.get("__file__") == file), vars(sys.modules["__main__"]))
    registry = owner.setdefault("__warningregistry__", {})
    warnings.warn_explicit(SuspectWarning(text), None, file, line, registry=registry)


def class_of(failure: Failure) -> type[TypedShmapError]:
    """The class of the exception for a failure."""
    if isinstance(failure.what, failures.NoUnionMember):
        classes = {class_of(reason) for reason in failure.what.reasons}
        return classes.pop() if len(classes) == 1 else StructureError
    return next((error for error, kinds in _CLASSES.items() if isinstance(failure.what, kinds)), StructureError)


def error_of(report: Report) -> TypedShmapError:
    """The exception for a report; its class is that of the first failure."""
    return class_of(report.failures[0])(report)


@contextmanager
def placed_at_decoration() -> Generator[None]:
    """Set the place of an error of a decorator's options to the line of the decoration."""
    try:
        yield
    except TypedShmapError as error:
        error.place = error.place or running_place()
        raise
