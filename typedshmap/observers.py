"""Observers of typed functions: of the arguments and results of each call, and of the checks and suspects of a body.

Observers live in a JAX user context, which is part of ``jit``'s cache key: a program that an observer has changed never
runs without the observer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax

from . import _jax
from .errors.failures import Failure, Subject
from .errors.places import running_place
from .hints.array_hint import ArrayHint
from .hints.check_tree import TreeCheck
from .hints.context import MeshContext, SizedAxes
from .hints.fitting import CheckedLeaf
from .notation.match import Sizes


class HintedValue(NamedTuple):
    """An array or a shard, with its hint.

    Attributes:
      value: the array.
      hint: its hint.
      subject: its name.
      find_place: returns the user's line with the hint.
    """

    value: Any
    hint: ArrayHint
    subject: Subject
    find_place: Callable[[], str]


def hinted_values(leaves: Iterable[CheckedLeaf], find_place: Callable[[str], str]) -> list[HintedValue]:
    """The arrays among leaves; ``find_place`` returns the user's line with the hint of a subject."""
    return [
        HintedValue(leaf.value, leaf.hint, leaf.subject, partial(find_place, leaf.subject.name))
        for leaf in leaves
        if leaf.hint is not None
    ]


class Boundary(NamedTuple):
    """The values that cross the boundary of one call of a typed function.

    Attributes:
      mesh: its mesh.
      axes: the mesh axes that it makes manual; all axes for a typed_jit.
      region: the mesh context in which its hints are read.
      sizes: the sizes that its arguments bind.
      arguments: its arrays.
      static: its other arguments.
      results: maps the returned value to its arrays.
      lowered: the text of its lowered program.
      may_donate: whether it may donate the buffers of its arguments.
      is_within: whether an inner typed function has the same boundary.
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
      boundary: checks its arguments, and returns the values that cross its boundary.
      is_in_region: whether its arrays are shards of an enclosing region.
    """

    function: str
    values: Sequence[Any]
    numbers: Iterator[int]
    boundary: Callable[[], Boundary]
    is_in_region: bool = False


class Assertion(NamedTuple):
    """A ``check`` or an ``assume`` whose value fits its hint.

    Attributes:
      function: the function that makes it.
      region: the mesh context in which the hint is read.
      sizes: the sizes that are bound then.
      values: the arrays of the value.
      is_assumed: whether it holds without proof.
    """

    function: str
    region: MeshContext
    sizes: Sizes
    values: Sequence[HintedValue]
    is_assumed: bool


class Observer:
    """The base class of observers, which does nothing; an observer overrides methods.

    Attributes:
      is_thorough: whether to trace a region for another size of an axis wherever the degree of a number may matter.
      keeps_claims: whether each ``check`` leaves an equation in the jaxpr, even if its claim is known to hold.
    """

    is_thorough = False
    keeps_claims = False

    def call(self, call: ObservedCall, run: Callable[[], Any]) -> Any:
        """Run a call of a typed function, and return its result."""
        return run()

    def body(self, call: ObservedCall, results: Sequence[Any]) -> None:
        """Called when the body of a region was traced; the values of its boundary, results included, are shards."""

    def asserted(self, assertion: Assertion) -> None:
        """Called when a ``check`` or an ``assume`` has compared a value with its hint."""

    def suspect(self, function: str, failure: Failure) -> None:
        """Called for each suspect in a region."""


_observers = jax.make_user_context(default_value=())

active: list[object] = []
"""One entry per ``with`` of observers, of any thread. While it is empty, no context is asked: that costs calls."""


def observers() -> tuple[Observer, ...]:
    """The active observers, the innermost last."""
    return _observers.value


@contextmanager
def observed_by(observing: Iterable[Observer]) -> Generator[None]:
    """Make these the only observers of this thread, inside a ``with``."""
    entry = object()
    active.append(entry)
    try:
        with _observers(tuple(observing)):
            yield
    finally:
        active.remove(entry)


@contextmanager
def also_observed_by(added: Observer) -> Generator[None]:
    """Add an observer to this thread, inside a ``with``; several may begin and end in any order."""
    entry = object()
    active.append(entry)
    _observers((*observers(), added)).__enter__()
    try:
        yield
    finally:
        left = [*observers()]
        del left[
            next(at for at, observer in enumerate(left) if observer is added)
        ]  # once: it may have been added twice
        _observers(tuple(left)).__enter__()
        active.remove(entry)


def report_assertion(function: str, checked: TreeCheck, is_assumed: bool = False) -> None:
    """Report a checked value to the observers."""
    if observing := observers():
        place = running_place()
        values = hinted_values(checked.leaves, lambda _: place)
        for observer in observing:
            observer.asserted(Assertion(function, checked.region, checked.sizes, values, is_assumed))


def run_observed(call: ObservedCall, run: Callable[[], Any]) -> Any:
    """Run a call under its observers; the innermost wraps all others."""
    for observer in observers():
        run = partial(observer.call, call, run)
    return run()
