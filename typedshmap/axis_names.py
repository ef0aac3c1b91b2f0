"""The meaning of names in hints: aliases of mesh axes, and rules that shard dims by name.

Invariant: a context manager sets a JAX user context, which is part of ``jit``'s cache key. A trace under one alias or
rule is never reused under another."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, ContextDecorator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import jax
from jax.sharding import PartitionSpec

from .errors import MeshAxisError
from .errors.phrases import value_text
from .notation.layout import ANY, Rules

AxesLike = str | tuple[str, ...] | list[str] | None
RulesLike = Mapping[str, AxesLike] | tuple[tuple[str, AxesLike], ...] | list[tuple[str, AxesLike]]
AliasPairs = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class AxisNaming:
    """The meaning of names in hints.

    Attributes:
      aliases: names that stand for mesh axes, each with its axes, major to minor.
      rules: mesh axes for dims without brackets; None without rules.
    """

    aliases: AliasPairs = ()
    rules: Rules | None = None

    def then(self, inner: AxisNaming) -> AxisNaming:
        """This naming with an inner one applied: aliases override one by one, rules all at once."""
        if inner is NO_NAMING:
            return self
        aliases = tuple({**dict(self.aliases), **dict(inner.aliases)}.items()) if inner.aliases else self.aliases
        return AxisNaming(aliases, self.rules if inner.rules is None else inner.rules)


NO_NAMING = AxisNaming()


naming_context = jax.make_user_context(default_value=())
"""The namings of the enclosing context managers, the innermost last; each enters a new tuple."""


FLAX = "flax.linen"
"""The module that holds Flax's rules, if it is imported."""


def flax_naming() -> AxisNaming:
    """The rules of an enclosing ``flax.linen.logical_axis_rules``, if `FLAX` is imported; equal rules are interned."""
    find = getattr(sys.modules.get(FLAX), "get_logical_axis_rules", None)
    rules = find() if find is not None else ()
    return _naming_of_flax(tuple((name, tuple(axes) if isinstance(axes, list) else axes) for name, axes in rules))


@lru_cache(maxsize=64)
def _naming_of_flax(pairs: tuple[tuple[str, AxesLike], ...]) -> AxisNaming:
    return AxisNaming(rules=read_rules(pairs)) if pairs else NO_NAMING


def axis_aliases(aliases: Mapping[str, AxesLike] | None = None, /, **more: AxesLike) -> AxisNames:
    """Use names in hints as aliases for mesh axes inside a ``with``.

    Inner aliases replace outer ones of the same name; ``axes=`` on a decorator replaces both.

    ```python
    with axis_aliases(dp=("data", "fsdp"), tp=None):
        step(state, batch)
    ```

    Args:
      aliases: for each name a mesh axis, a tuple of them (major to minor), or None for unsharded.
      **more: the same, for names that are identifiers.

    Returns:
      A reusable context manager.

    Raises:
      MeshAxisError: for an alias that is not a mesh axis, a tuple of them, or None.
    """
    pairs = dict(read_aliases(aliases, "axis_aliases:")) | dict(read_aliases(more))
    return AxisNames(AxisNaming(tuple(pairs.items())))


Fallback = Literal["unsharded", "unconstrained", "error"]


def axis_rules(rules: RulesLike, fallback: Fallback = "unsharded") -> AxisRules:
    """Rules that shard the dims of hints by their names, for dims without brackets.

    The rules are tried in order. A rule gives its mesh axes to the dim of its name, if the dim has
    none yet and all the axes are free: each mesh axis is used at most once per array. A rule of None
    leaves its dim unsharded; a rule of ``"?"`` or ``P.UNCONSTRAINED`` allows any sharding, as ``[dim/?]``.
    Brackets win over rules, and ``[dim/]`` means unsharded. These are the semantics of
    ``flax.linen.logical_to_mesh_axes``.

    ```python
    with axis_rules([("batch", ("data", "fsdp")), ("heads", "tensor"), ("embed", "fsdp")]):
        partition_specs(Float[Array, "batch embed"])  # P(('data', 'fsdp'), None)
        partition_specs(Float[Array, "embed heads"])  # P('fsdp', 'tensor')
    ```

    Args:
      rules: a dict, or pairs of a dim's name and a mesh axis, a tuple of them (major to minor), None, or
        ``"?"``; a name may have several pairs.
      fallback: the meaning of a name for which no rule is left: ``"unsharded"``, ``"unconstrained"`` (as
        ``[dim/?]``), or an ``"error"``.

    Returns:
      A reusable context manager; its rules replace the enclosing ones. The decorators accept it as ``rules=``.

    Raises:
      MeshAxisError: for anything that is not a rule.
    """
    known = get_args(Fallback)
    if type(fallback) is not str or fallback not in known:  # an array has no truth value
        listed = ", ".join(map(repr, known))
        raise MeshAxisError(f"axis_rules: fallback={value_text(fallback)} is not one of {listed}")
    parsed = read_rules(rules)
    if parsed is None:
        raise MeshAxisError("axis_rules: expects pairs of a dim's name and mesh axes, or a dict; got None")
    return AxisRules(AxisNaming(rules=Rules(parsed.pairs, fallback)))


@dataclass(frozen=True)
class AxisNames(ContextDecorator):
    """The meaning of names inside a ``with``; made by `axis_aliases`.

    It applies to its thread, like JAX's own contexts: tasks of ``asyncio`` that wait inside it share it.
    """

    naming: AxisNaming

    def __enter__(self) -> None:
        entered = naming_context((*naming_context.value, self.naming))
        entered.__enter__()
        _thread_contexts().append(entered)

    def __exit__(self, *error: Any) -> None:
        if not (stack := _thread_contexts()):
            raise RuntimeError("axis_rules and axis_aliases are left in the thread in which they were entered")
        stack.pop().__exit__(*error)


@dataclass(frozen=True, repr=False)
class AxisRules(AxisNames):
    """Rules inside a ``with``; made by `axis_rules`."""

    def __repr__(self) -> str:
        rules = self.naming.rules or Rules(())
        pairs = [(name, axes[0] if len(axes) == 1 else axes or None) for name, axes in rules.pairs]
        return f"axis_rules({pairs}, fallback={rules.fallback!r})"


_threads = threading.local()


def _thread_contexts() -> list[AbstractContextManager[None]]:
    """The contexts that this thread has entered. The last exits first, even if tasks of one thread interleave."""
    stack: list[AbstractContextManager[None]] = _threads.__dict__.setdefault("stack", [])
    return stack


def read_naming(axes: Any, rules: Any) -> AxisNaming:
    """The ``axes=`` and ``rules=`` of a decorator.

    Raises:
      MeshAxisError: for any other value.
    """
    aliases, parsed_rules = read_aliases(axes), read_rules(rules)
    return AxisNaming(aliases, parsed_rules) if aliases or parsed_rules is not None else NO_NAMING


def read_aliases(aliases: Any, source: str = "axes=") -> AliasPairs:
    """Aliases as tuples of mesh axes; None means no aliases.

    Raises:
      MeshAxisError: for anything but a dict of names and mesh axes.
    """
    if aliases is not None and not isinstance(aliases, Mapping):
        raise MeshAxisError(f"{source} expects a dict of names and mesh axes, got {type(aliases).__name__}")
    return tuple((name, _read_axes("alias", name, axes)) for name, axes in (aliases or {}).items())


def read_rules(rules: Any) -> Rules | None:
    """Rules as pairs of a name and a tuple of mesh axes; None means no rules.

    Raises:
      MeshAxisError: for anything but a dict, or pairs, of names and mesh axes.
    """
    if rules is None:
        return None
    if isinstance(rules, AxisRules):
        return rules.naming.rules
    pairs = list(rules.items()) if isinstance(rules, Mapping) else rules
    if not isinstance(pairs, (list, tuple)):
        got = type(rules).__name__
        raise MeshAxisError(f"rules= expects pairs of a dim's name and mesh axes, or a dict; got {got}")
    parsed: list[tuple[str, tuple[str, ...]]] = []
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            problem = "is not a pair of a dim's name and its mesh axes, as in ('batch', 'data')"
            raise MeshAxisError(f"the rule {value_text(pair)} {problem}")
        name, written = pair
        axes = ANY if written is PartitionSpec.UNCONSTRAINED else _read_axes("rule for", name, written)
        if len(set(axes)) < len(axes):
            raise MeshAxisError(f"the rule for '{name}' has a mesh axis twice: {value_text(written)}")
        parsed.append((name, axes))
    return Rules(tuple(parsed))


def _read_axes(kind: str, name: Any, axes: Any) -> tuple[str, ...]:
    names: tuple[Any, ...] = () if axes is None else tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)
    if not isinstance(name, str) or not all(isinstance(axis, str) for axis in names):
        text = name if isinstance(name, str) else value_text(name)
        raise MeshAxisError(f"the {kind} '{text}' is {value_text(axes)}; write a mesh axis, a tuple of them, or None")
    return names
