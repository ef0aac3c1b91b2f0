"""Record what a program gives to ``jax.shard_map``: its functions with their specs, and what those are called with.

A region that is traced has neither the trees of its arguments nor the line where it was made. Both are known to the
call of ``jax.shard_map`` itself, as long as that is looked up while calls are recorded; one that a module imported
before is JAX's own."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jax

from .. import _jax
from ..errors.places import is_of_package, is_users, running_line

Line = tuple[str, int, str]
CodeSpan = tuple[int | None, int | None, int | None, int | None]
Before = Callable[["ShardMapCall", Callable[..., Any], tuple[Any, ...]], None]


@dataclass(eq=False)
class ShardMapCall:
    """One call of what ``jax.shard_map``, ``jax.smap`` or the one of ``jax.experimental`` made of a function.

    Attributes:
      function: the function.
      verb: ``"shard_map"`` or ``"smap"``, by which it was mapped.
      options: the keywords as they were given: mesh, in_specs, out_specs, axis_names, check_vma; what was not given is
        not there. Those of ``jax.experimental`` have their present names.
      made_at: the file, the line and the function of the user's line that mapped it, as ``jax.shard_map(f, ...)``, or
        ``@jax.shard_map(...)``; None where there is none.
      is_direct: whether that line itself did, and no library that it calls, as Flax.
      span: where the expression stands that did, if it is direct: the first and the last line, and the columns in UTF-8
        at which it begins and ends.
      args: the positional arguments; each array as its ``jax.ShapeDtypeStruct``, anything else as it is.
      results: the results in the same way; None as long as it has not returned.
    """

    function: Callable[..., Any]
    verb: str
    options: Mapping[str, Any]
    made_at: Line | None
    is_direct: bool
    span: CodeSpan
    args: tuple[Any, ...]
    results: Any = None


class _CallsHere(threading.local):
    """The calls that are under way in a thread, the innermost last."""

    def __init__(self) -> None:
        self.calls: list[ShardMapCall] = []


_here = _CallsHere()


def call_under_way() -> ShardMapCall | None:
    """The innermost recorded call that is under way in this thread.

    Asked for where a region is seen, it is the call that traced it, unless something else did: a transformation that
    traces it anew, or a function that was mapped before.
    """
    return _here.calls[-1] if _here.calls else None


@contextmanager
def recorded_calls(before: Before = lambda call, mapped, args: None) -> Generator[list[ShardMapCall]]:
    """Record the calls of functions that are mapped meanwhile, in any thread, but for those that this library maps.

    Args:
      before: called before each call, with what it calls and the arguments themselves.

    Yields:
      The calls, in the order in which they began.
    """
    found: list[ShardMapCall] = []
    known = {name: getattr(jax, name) for name in ("shard_map", "smap") if hasattr(jax, name)}
    replaced = [(jax, name, make, _recording(make, name, found, before)) for name, make in known.items()]
    old: Any = None
    with suppress(ImportError):
        old = importlib.import_module("jax.experimental.shard_map")
    # It makes its function, and says that it is deprecated, when it is asked for that.
    if (asked := getattr(old, "__getattr__", None)) is not None:
        names = {"shard_map": lambda: _recording(asked("shard_map"), "shard_map", found, before)}
        replaced.append((old, "__getattr__", asked, lambda name: names.get(name, lambda: asked(name))()))
    for module, name, _, recording in replaced:
        setattr(module, name, recording)
    try:
        yield found
    finally:
        for module, name, make, _ in replaced:
            setattr(module, name, make)


# The parameters of the function in `jax.experimental`, in order, by their names in `jax.shard_map`.
_OLD = {"mesh": "mesh", "in_specs": "in_specs", "out_specs": "out_specs", "check_rep": "check_vma"}


def _recording(make: Callable[..., Any], verb: str, found: list[ShardMapCall], before: Before) -> Callable[..., Any]:
    """What maps functions as JAX does, and records the calls of what it made."""

    @functools.wraps(make)
    def map_and_record(f: Callable[..., Any] | None = None, /, *args: Any, **options: Any) -> Any:
        f = options.pop("f", None) if f is None else f  # by keyword, as the old one takes it
        if f is None:
            return functools.partial(map_and_record, **options)
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        caller, span = frame.f_code.co_filename, next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
        mapped = make(f, *args, **options)
        if is_of_package(caller):
            return mapped
        given = {**dict(zip(_OLD, args, strict=False)), **options}
        named = {_OLD.get(name, name): value for name, value in given.items()}
        made_at, is_direct = running_line(), is_users(caller)
        del frame

        @functools.wraps(mapped)
        def call_and_record(*args: Any) -> Any:
            call = ShardMapCall(f, verb, named, made_at, is_direct, span, _structs(args))
            found.append(call)
            before(call, mapped, args)
            _here.calls.append(call)
            try:
                results = mapped(*args)
            finally:
                _here.calls.pop()
            call.results = _structs(results)
            return results

        return call_and_record

    return map_and_record


def _structs(values: Any) -> Any:
    """A tree with the type of each array in its place; what is traced is not kept."""

    def struct(leaf: Any) -> Any:
        if not isinstance(leaf, _jax.array.ARRAYS):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=bool(getattr(leaf, "weak_type", False)))

    return _jax.tree.map_leaves(struct, values)
