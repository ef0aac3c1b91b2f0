"""The calls in a file that map functions with ``shard_map``."""

from __future__ import annotations

import ast
from typing import NamedTuple

from ..source.module import ParsedModule

SHARD_MAP = frozenset({"jax.shard_map", "jax.experimental.shard_map.shard_map"})
_POSITIONS = ("f", "mesh", "in_specs", "out_specs", "check_rep")


class LeftPlain(Exception):
    """What cannot be annotated safely, with the reason."""


class MappingCall(NamedTuple):
    """A call that maps a function with ``shard_map``, or decorates one.

    Attributes:
      node: the call.
      named: ``shard_map``, as it is named there, or in the partial that the call is of.
      options: those that it gives, the function ``f`` included, and those that it takes from partials.
    """

    node: ast.Call
    named: ast.expr
    options: dict[str, ast.expr]


def mapping_call(module: ParsedModule, call: ast.Call) -> MappingCall | None:
    """How a call maps a function with ``shard_map``, or decorates one; None if it does neither.

    Raises:
      LeftPlain: for options that cannot be seen.
    """
    chain, named, below = list[ast.Call](), call.func, call
    while isinstance(below, ast.Call):  # of a partial, of what shard_map(mesh=...) gives, or of a name for that
        chain.append(below)
        named = below.args[0] if _is_partial(module, below) else below.func
        below = named if isinstance(named, ast.Call) else module.value(named)
    if not module.meaning(named) & SHARD_MAP:
        return None
    given = [_options(module, each, _POSITIONS if each is chain[-1] else _POSITIONS[:1]) for each in chain]
    gives_function = ["f" in each for each in given]
    is_decorator = call in getattr(module.parents[call], "decorator_list", ())
    is_later = _is_partial(module, call) and gives_function[0]
    if is_later or gives_function != [not is_decorator, *[False] * len(chain[1:])]:
        return None
    options = {name: value for each in reversed(given) for name, value in each.items()}
    for name, value in options.items():
        if name not in given[0] and not module.means_the_same(value, call):
            raise LeftPlain(f"its option '{name}' comes from where names may mean something else")
    return MappingCall(call, named, options)


def _is_partial(module: ParsedModule, call: ast.Call) -> bool:
    """Whether a call is one of ``functools.partial``."""
    return "functools.partial" in module.imported(call.func) and bool(call.args)


def _options(module: ParsedModule, call: ast.Call, positions: tuple[str, ...]) -> dict[str, ast.expr]:
    positional = call.args[_is_partial(module, call) :]
    stars = [each.value for each in positional if isinstance(each, ast.Starred)]
    for value in (*stars, *(each.value for each in call.keywords if each.arg is None)):
        raise LeftPlain(f"'{module.code(value)}' passes options that cannot be seen")
    named = {each.arg: each.value for each in call.keywords if each.arg is not None}
    return {**dict(zip(positions, positional, strict=False)), **named}
