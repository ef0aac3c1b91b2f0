"""The arguments of one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from .. import _jax


class Inputs(tuple[Any, ...]):
    """The arguments of one call: ``f(*made)``, or ``f(**made)``; of both kinds by ``f(*made.args, **made.kwargs)``.

    It holds the positional ones, as a tuple; by its name every argument is found, ``made["x"]``. It is a
    pytree of all of them.

    Attributes:
      kwargs: the keyword-only arguments.
      names: the names of the positional ones.
      sizes: the global size of every name in the hints, a tuple of sizes for ``*name``.
      seed: what it was drawn from.
    """

    kwargs: dict[str, Any]
    names: tuple[str, ...]
    sizes: dict[str, Any]
    seed: int

    @classmethod
    def of(
        cls,
        args: tuple[Any, ...],
        names: tuple[str, ...],
        kwargs: Mapping[str, Any],
        sizes: Mapping[str, Any],
        seed: int,
    ) -> Inputs:
        """Put arguments together."""
        made = cls(args)
        made.names, made.kwargs, made.sizes, made.seed = names, dict(kwargs), dict(sizes), seed
        return made

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments."""
        return tuple(self)

    def keys(self) -> Iterator[str]:
        """The names of all arguments that have one."""
        yield from (*self.names[: len(self)], *self.kwargs)

    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, str):
            return super().__getitem__(at)
        return self.kwargs[at] if at in self.kwargs else self.by_name[at]

    @property
    def by_name(self) -> dict[str, Any]:
        """The arguments by their names."""
        return {**dict(zip(self.names, self, strict=False)), **self.kwargs}

    def call(self, f: Callable[..., Any]) -> Any:
        """Call a function with these arguments."""
        return f(*self.args, **self.kwargs)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_short(value)}" for name, value in self.by_name.items())
        return f"Inputs({shown}; seed={self.seed})"


@dataclass(frozen=True)
class Apart:
    """The arguments of a call, its arrays apart from all that is static.

    Attributes:
      kind: the classes of what counts as an array.
      leaves: all leaves, each with its path among the positional arguments (0) or those by keyword (1).
      structure: what they are the leaves of.
    """

    kind: tuple[type, ...]
    leaves: list[tuple[Any, Any]]
    structure: Any

    @classmethod
    def of(cls, made: Inputs, *kind: type) -> Apart:
        """Take the arguments of a call apart."""
        return cls(kind, *jax.tree_util.tree_flatten_with_path((list(made.args), dict(made.kwargs))))

    @property
    def arrays(self) -> list[tuple[Any, Any]]:
        """The arrays among the leaves, each with its path."""
        return [(path, leaf) for path, leaf in self.leaves if isinstance(leaf, self.kind)]

    def run(self, f: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """Call a function with other arrays in the places of these."""
        rest = iter(arrays)
        leaves = [next(rest) if isinstance(leaf, self.kind) else leaf for _, leaf in self.leaves]
        args, kwargs = self.structure.unflatten(leaves)
        return f(*args, **kwargs)


def _short(value: Any) -> str:
    leaves = jax.tree_util.tree_leaves(value)
    if len(leaves) != 1 or leaves[0] is not value:
        return f"{type(value).__name__} of {len(leaves)}"
    return _jax.type_text(value) if hasattr(value, "shape") else repr(value)


def _flatten(made: Inputs) -> tuple[tuple[Any, ...], Any]:
    return (made.args, made.kwargs), (made.names, tuple(made.sizes.items()), made.seed)


def _unflatten(rest: Any, children: Any) -> Inputs:
    (args, kwargs), (names, sizes, seed) = children, rest
    return Inputs.of(args, names, kwargs, dict(sizes), seed)


jax.tree_util.register_pytree_node(Inputs, _flatten, _unflatten)
