"""Trace a program with an edited collective: added, removed, or replaced."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import jax

from ..errors.places import is_users
from .source import call_site
from .versions import own_primitive

_changing = threading.RLock()
# Part of the key of JAX's cache of traces.
_call = jax.make_user_context(default_value=0)
_numbers = count(1)


class Edit(NamedTuple):
    """An edit of an operation.

    Attributes:
      site: its place in the user's code.
      primitive: its primitive.
      operation: ``psum``, ``pmean``, ``pmax``, ``pmin``, ``divide`` (by the size of the axis), or empty for nothing.
      axis: the mesh axis.
      replaces: the collective that it replaces; empty if it comes after the operation.
      is_stopped: whether ``stop_gradient`` comes between the operation and the collective.
    """

    site: tuple[Any, int]
    primitive: Any
    operation: str
    axis: str
    replaces: str = ""
    is_stopped: bool = False

    def __call__(self, bind: Callable[[], Any], operands: Iterable[Any], params: Any) -> Any:
        if not self.replaces:
            results = bind()
            is_several = isinstance(results, list | tuple)
            changed = [self._apply(x) for x in (results if is_several else [results])]
            return changed if is_several else changed[0]
        rest = tuple(axis for axis in params["axes"] if axis != self.axis)
        changed = [self._apply(jax.lax.psum(x, rest) if rest else x) for x in operands]
        if self.replaces == "pmean":  # where a division by the size follows the sum
            changed = [x * jax.lax.axis_size(self.axis) for x in changed]
        return changed if self.primitive.multiple_results else changed[0]

    def _apply(self, x: Any) -> Any:
        if self.operation == "divide":
            return x / jax.lax.axis_size(self.axis)
        x = jax.lax.stop_gradient(x) if self.is_stopped else x
        return getattr(jax.lax, self.operation)(x, self.axis) if self.operation else x


def edit_of(eqn: Any, operation: str, axis: str, replaces: str = "", is_stopped: bool = False) -> Edit | None:
    """The edit of an equation's operation; None if its place is unknown."""
    site = call_site(eqn)[1]
    return None if site is None else Edit(site, eqn.primitive, operation, axis, replaces, is_stopped)


@contextmanager
def edited(edits: Iterable[Edit]) -> Generator[None]:
    """Trace the user's code in this thread with some edits, inside a ``with``."""
    thread, by_primitive = threading.get_ident(), dict[Any, dict[Any, Edit]]()
    for edit in edits:
        by_primitive.setdefault(edit.primitive, {})[edit.site] = edit
        # The place may have a call of a JAX function that is traced once, or a cast of an invarying value for the
        # collective that is replaced.
        by_primitive.setdefault(own_primitive("pvary" if edit.replaces else "jit"), {})[edit.site] = edit
    running, traced = list[Edit](), set[Any]()

    def bind_edited(primitive: Any, bind_unedited: Callable[..., Any], *operands: Any, **params: Any) -> Any:
        bind = partial(bind_unedited, *operands, **params)
        site = _user_site() if threading.get_ident() == thread and not running else None
        if site is None:
            return bind()
        if primitive is not own_primitive("jit"):  # later functions that JAX caches are traced again
            calls.enter_context(_call(next(_numbers)))
        edit = by_primitive[primitive].get(site)
        if edit is None:
            return bind()
        if edit.replaces and primitive is not edit.primitive:
            return operands[0]
        # If the edit was made while JAX traced the function, the call that follows is not edited again.
        is_edited = primitive is not edit.primitive and site in traced
        traced.symmetric_difference_update({site} if is_edited or primitive is edit.primitive else ())
        running.append(edit)
        try:
            return bind() if is_edited else edit(bind, operands, params)
        finally:
            running.pop()

    with _changing, ExitStack() as calls:
        for primitive in by_primitive:
            bind_unedited = type(primitive).bind.__get__(primitive)
            primitive.bind = partial(bind_edited, primitive, bind_unedited)
        try:
            yield
        finally:
            for primitive in by_primitive:
                del primitive.bind


def _user_site() -> tuple[Any, int] | None:
    """The running place in the user's code."""
    frame = inspect.currentframe()
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti)
