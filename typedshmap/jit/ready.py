"""Calls like one that was checked before, which need no second check.

Invariant: a key has all that a check looks at. Only calls outside of all transformations have one,
and no tracer is in it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import jax

from .. import _jax
from ..hints.axes import Naming
from ..hints.binding import POSITIONAL, Typed
from ..hints.nodes import array_hints
from ..hints.scope import naming_around, naming_here
from ..meshes import mesh_around, mesh_instead
from .parts import Fixed, Part


@dataclass(frozen=True, slots=True)
class Ready:
    """A program, and which of a call's arguments it takes: by position, or by keyword."""

    program: Any
    sources: tuple[int | str, ...]

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """What the program is given."""
        return [args[source] if isinstance(source, int) else kwargs[source] for source in self.sources]


def ready_key(args: tuple[Any, ...], kwargs: dict[str, Any], naming: Naming) -> Any:
    """What a check of these arguments looks at; None where one must be made."""
    if not _jax.is_outside_traces():
        return None
    try:
        leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
        key = (structure, tuple(map(_leaf_key, leaves)), naming_here(naming), naming_around(naming), _surroundings())
        hash(key)
    except Exception:  # of arguments that cannot be taken apart or hashed, of which a check tells
        return None
    return key


def _surroundings() -> tuple[Any, ...]:
    """The meshes that are known, and whether 64 bits are."""
    context = _jax.context_mesh()
    ambient = None if context.empty else _jax.ambient_devices()
    return (context, ambient, mesh_around(), mesh_instead(), _jax.has_64_bits())


def _leaf_key(leaf: Any) -> Any:
    kind = _kind_of(type(leaf))
    if kind == "jax":
        # Its type tells its shape and dtype, and JAX has one object for all types that are equal.
        return (jax.typeof(leaf), leaf.sharding if leaf.committed else None)
    if kind == "numpy":
        return (type(leaf), leaf.shape, leaf.dtype)
    if kind == "traced":
        raise TypeError("a value that is being traced")
    return Fixed(leaf)


@lru_cache(maxsize=256)
def _kind_of(cls: type) -> Literal["jax", "numpy", "traced", "other"]:
    if issubclass(cls, (*_jax.TRACERS, *_jax.SHAPES)):
        return "traced"
    if issubclass(cls, jax.Array):
        return "jax"
    return "numpy" if issubclass(cls, _jax.ARRAYS) else "other"


def reads_values(typed: Typed) -> bool:
    """Whether a parameter's hint has a size like ``{self.heads}``, which may change though no key tells."""
    return any("{" in str(hint.spec) for node in typed.parameters.values() for hint in array_hints(node))


def sources_of(
    typed: Typed, parts: list[Part], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int | str, ...] | None:
    """Where in a call the traced parts come from; None if one is not an argument just as it was given."""
    positional = [name for name, each in typed.signature.parameters.items() if each.kind in POSITIONAL]
    found: list[int | str] = []
    for part in parts:
        if not part.key.is_traced:
            continue
        name, subject = part.key.parameter, part.key.subject
        is_many = typed.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        at = len(positional) + int(subject.path[1:-1]) if is_many else _index(positional, name)
        source = at - len(typed.given) if at is not None and at - len(typed.given) < len(args) else subject.name
        given = args[source] if isinstance(source, int) and source >= 0 else kwargs.get(str(source))
        if given is not part.value:
            return None
        found.append(source)
    return tuple(found)


def _index(names: list[str], name: str) -> int | None:
    return names.index(name) if name in names else None
