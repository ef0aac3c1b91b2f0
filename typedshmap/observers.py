"""What hears of typed functions: of each call what it takes and returns, of a body what it assumes and is suspected of.

Observers live in a JAX user context, and so in ``jit``'s cache key: a program to which one has added something is never
used without it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax

from . import _jax
from .errors.failures import Failure, Subject
from .hints.array_hint import ArrayHint
from .hints.check_tree import TreeCheck
from .hints.context import MeshContext, SizedAxes
from .notation.match import Sizes


class HintedValue(NamedTuple):
    """An array, or a shard of one, with its hint.

    Attributes:
      value: the array.
      hint: its hint.
      subject: its name.
      find_place: returns the line of the user's that says so.
    """

    value: Any
    hint: ArrayHint
    subject: Subject
    find_place: Callable[[], str]


class Boundary(NamedTuple):
    """What crosses the boundary of one call of a typed function.

    Attributes:
      mesh: its mesh.
      axes: the mesh axes that it makes manual; for global arrays all.
      region: the mesh context in which its hints are read.
      sizes: the sizes that its arguments bind.
      arguments: its arrays.
      static: its other arguments.
      results: from what the call returned its arrays.
      lowered: the text of its lowered program.
      may_donate: whether it may take the buffers of its arguments.
      is_within: whether a typed function that it calls has the same boundary.
    """

    mesh: _jax.mesh.AnyMesh
    axes: SizedAxes
    region: MeshContext
    sizes: Sizes
    arguments: Sequence[HintedValue]
    static: Sequence[tuple[Subject, Any]]
    results: Callable[[Any], Sequence[HintedValue]]
    lowered: Callable[[], str]
    may_donate: bool = False
    is_within: bool = False


class ObservedCall(NamedTuple):
    """One call of a typed function.

    Attributes:
      function: its name.
      values: the leaves of its arguments.
      numbers: counts the calls of this function, for observers.
      boundary: checks its arguments, and returns what crosses its boundary.
      is_in_region: whether its arrays are shards of a region around.
    """

    function: str
    values: Sequence[Any]
    numbers: Iterator[int]
    boundary: Callable[[], Boundary]
    is_in_region: bool = False


class Observer:
    """Does nothing; an observer has the methods that it wants.

    Attributes:
      is_thorough: whether a region is traced for another size of an axis wherever the degree of a number may matter.
      keeps_claims: whether each ``check`` leaves an equation in the jaxpr, also of what is known already.
    """

    is_thorough = False
    keeps_claims = False

    def call(self, call: ObservedCall, run: Callable[[], Any]) -> Any:
        """Run a call of a typed function, and return what it returns."""
        return run()

    def body(self, call: ObservedCall, results: Sequence[Any]) -> None:
        """The body of a region was traced; what crosses its boundary, results included, are shards there."""

    def asserted(self, function: str, checked: TreeCheck, is_assumed: bool) -> None:
        """A ``check``, or an ``assume``, has compared a value with its hint."""

    def suspect(self, function: str, failure: Failure) -> None:
        """A region is suspected of something."""


_observers = jax.make_user_context(default_value=())


def observers() -> tuple[Observer, ...]:
    """The observers of what is called and traced now, the innermost last."""
    return _observers.value


def observed_by(observing: Iterable[Observer]) -> AbstractContextManager[None]:
    """Have what this thread calls meanwhile observed by these alone."""
    return _observers(tuple(observing))


@contextmanager
def also_observed_by(added: Observer) -> Generator[None]:
    """Have what this thread calls meanwhile observed by one more; several begin and end in any order."""
    _observers((*observers(), added)).__enter__()
    try:
        yield
    finally:
        _observers(tuple(each for each in observers() if each is not added)).__enter__()


def run_observed(call: ObservedCall, run: Callable[[], Any]) -> Any:
    """Run a call as its observers have it, the innermost around all others."""
    for observer in observers():
        run = partial(observer.call, call, run)
    return run()
