"""The arguments of a ``typed_jit``: the options of ``jax.jit`` that select some, and each flattened.

Invariant: the key of an argument has all that a trace depends on, but for the types of the traced leaves, which are in
the key of the call."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from .. import _jax
from ..errors import StructureError
from ..errors.phrases import value_text
from ..hints.array_hint import ArrayHint, rank_of
from ..hints.check_tree import BoundArgument, CheckedLeaf
from ..hints.signature import POSITIONAL, name_of
from ..notation.match import Subject
from .context import JitContext


@dataclass(frozen=True, slots=True)
class ArgSelector:
    """The arguments that an option selects.

    Attributes:
      names: by name.
      numbers: by number, for a function that takes ``*args``, whose arguments are known at each call only.
    """

    names: frozenset[str] = frozenset()
    numbers: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.names or self.numbers)

    def select(self, given: Sequence[BoundArgument], positional: Sequence[Subject]) -> list[Subject]:
        """The arguments of a call that are selected.

        Args:
          given: all arguments.
          positional: those that have a number, in order.
        """
        if not self:
            return []
        count = len(positional)
        by_number = [positional[number] for number in self.numbers if -count <= number < count]
        return by_number + [each for _, each, *_ in given if each.name in self.names and not each.path]


@dataclass(frozen=True, slots=True)
class JitOptions:
    """The options of ``jax.jit`` but for the shardings.

    Attributes:
      static: the arguments that ``static_argnums`` and ``static_argnames`` select.
      donated: those that ``donate_argnums`` and ``donate_argnames`` select.
      others: the options that ``jax.jit`` gets as they are.
    """

    static: ArgSelector
    donated: ArgSelector
    others: Mapping[str, Any]


def parse_options(function: Callable[..., Any], options: Mapping[str, Any]) -> JitOptions:
    """Read the options of a ``typed_jit``.

    Raises:
      StructureError: for a parameter that does not exist, or shardings, which the hints say.
      TypeError, ValueError: of ``jax.jit``, for an option that it does not take.
    """
    name, others = name_of(function), dict(options)
    for given in ("in_shardings", "out_shardings"):
        if given in others:
            raise StructureError(f"{name}: {given}= is what the hints say, so that typed_jit does not take it")
    static, donated = (
        _parse_selector(function, kind, others.pop(f"{kind}_argnums", None), others.pop(f"{kind}_argnames", None))
        for kind in ("static", "donate")
    )
    if both := sorted(static.names & donated.names):
        raise StructureError(f"{name}: parameter '{both[0]}' is both static and donated, but no static one has buffers")
    # With in_shardings, as every call has it: what JAX has against an option, it says when decorating.
    jax.jit(lambda: None, in_shardings=(), **others)
    return JitOptions(static, donated, others)


def _parse_selector(function: Callable[..., Any], kind: str, numbers: Any, names: Any) -> ArgSelector:
    owner, by_number, by_name = name_of(function), f"{kind}_argnums", f"{kind}_argnames"
    found_numbers, found_names = _read_numbers(owner, by_number, numbers), _read_names(owner, by_name, names)
    if not found_numbers and not found_names:
        return ArgSelector()
    parameters = inspect.signature(function).parameters
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    if inspect.Parameter.VAR_KEYWORD not in kinds.values():
        known = [name for name, kind in kinds.items() if kind is not inspect.Parameter.VAR_POSITIONAL]
        for name in found_names:
            if name not in known:
                listed = ", ".join(map(repr, known)) or "none"
                raise StructureError(f"{owner}: {by_name}= names '{name}', which is none of its parameters ({listed})")
    if inspect.Parameter.VAR_POSITIONAL in kinds.values():
        return ArgSelector(frozenset(found_names), found_numbers)
    positional = [name for name, kind in kinds.items() if kind in POSITIONAL]
    for number in found_numbers:
        if not -len(positional) <= number < len(positional):
            raise StructureError(
                f"{owner}: {by_number}= has {value_text(number)}, but {owner} takes {len(positional)} by position"
            )
    return ArgSelector(frozenset(found_names) | {positional[number] for number in found_numbers})


def _read_numbers(owner: str, option: str, numbers: Any) -> tuple[int, ...]:
    if numbers is None:
        return ()
    items: Any = (numbers,) if hasattr(numbers, "__index__") else numbers
    try:
        return tuple(map(operator.index, items))
    except TypeError:
        raise StructureError(f"{owner}: {option}= wants a number, or several; got {value_text(numbers)}") from None


def _read_names(owner: str, option: str, names: Any) -> tuple[str, ...]:
    if names is None:
        return ()
    try:
        found: tuple[Any, ...] = (names,) if isinstance(names, (str, *_jax.array.ARRAYS)) else tuple(names)
    except TypeError:
        found = (names,)
    if not all(isinstance(name, str) for name in found):
        raise StructureError(f"{owner}: {option}= wants a parameter's name, or several; got {value_text(names)}")
    return found


_LEAF = jax.tree_util.tree_structure(0)


class StaticLeaf:
    """A static value, compared by its type and ``==``, and numbers to the last bit."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = (type(value), repr(value) if isinstance(value, (float, complex)) else value)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticLeaf) and self._key == other._key

    @property
    def has_hash(self) -> bool:
        """Whether the value can be hashed."""
        try:
            hash(self)
        except TypeError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class TracedLeaf:
    """A leaf that is traced: its hint and rank; none where JAX chooses its sharding."""

    hint: ArrayHint | None = None
    rank: int = 0

    def sharding(self, context: JitContext) -> Any:
        """Its sharding for ``jax.jit``; None where that chooses."""
        return None if self.hint is None else context.sharding(self.hint, self.rank)


def traced_leaf(leaf: CheckedLeaf) -> TracedLeaf:
    """A leaf without its value."""
    return TracedLeaf() if leaf.hint is None else TracedLeaf(leaf.hint, rank_of(leaf.value))


@dataclass(frozen=True, slots=True)
class ArgumentKey:
    """What a trace depends on in one argument."""

    parameter: str
    subject: Subject
    structure: Any
    leaves: tuple[TracedLeaf | StaticLeaf, ...]

    @property
    def is_traced(self) -> bool:
        return any(isinstance(leaf, TracedLeaf) for leaf in self.leaves)

    @property
    def is_mixed(self) -> bool:
        """Whether some leaves are traced and others static; then ``jax.jit`` gets the traced ones only."""
        return len({type(leaf) for leaf in self.leaves}) > 1

    @property
    def is_replaced(self) -> bool:
        """Whether the function gets another value than the call: all but a static leaf.

        A static tree is made anew, as ``jax.jit`` does with traced ones: what its structure does not
        have, such as the order of a dict's keys, is not in this key.
        """
        return self.is_traced or (self.structure is not None and self.structure != _LEAF)

    def unflatten(self, traced: Iterator[Any]) -> Any:
        """The argument, from the next traced value, if it has one, and its static leaves."""
        if self.is_traced and not self.is_mixed:
            return next(traced)
        remaining = iter(next(traced) if self.is_traced else ())
        leaves = [next(remaining) if isinstance(leaf, TracedLeaf) else leaf.value for leaf in self.leaves]
        return jax.tree_util.tree_unflatten(self.structure, leaves)

    def shardings(self, context: JitContext) -> Any:
        """Its shardings for ``jax.jit``; None where that chooses."""
        found = [leaf.sharding(context) for leaf in self.leaves if isinstance(leaf, TracedLeaf)]
        if self.is_mixed:
            return found
        return jax.tree_util.tree_unflatten(self.structure, found) if any(each is not None for each in found) else None


@dataclass(frozen=True, slots=True)
class JitArgument:
    """One argument of a call: its key, and its value for ``jax.jit``."""

    key: ArgumentKey
    value: Any


def flatten_argument(
    parameter: str, subject: Subject, value: Any, checked: Sequence[CheckedLeaf], is_any: bool
) -> JitArgument:
    """Separate what is traced of an argument from what is static.

    Args:
      parameter: the parameter's name.
      subject: the argument.
      value: its value.
      checked: its leaves, with their hints.
      is_any: whether all its leaves are traced, whatever they are (a parameter hinted ``Any``).
    """
    try:
        structure = jax.tree_util.tree_structure(value)
    except Exception:  # what JAX cannot flatten is static as a whole
        return JitArgument(ArgumentKey(parameter, subject, None, (StaticLeaf(value),)), value)
    arrays = (*_jax.array.ARRAYS, *_jax.array.SHAPES)
    leaves = tuple(
        traced_leaf(leaf)
        if leaf.hint is not None or is_any or isinstance(leaf.value, arrays)
        else StaticLeaf(leaf.value)
        for leaf in checked
    )
    key = ArgumentKey(parameter, subject, structure, leaves)
    if key.is_mixed:
        value = [leaf.value for leaf, each in zip(checked, leaves, strict=True) if isinstance(each, TracedLeaf)]
    return JitArgument(key, value)


def place_unplaced(argument: JitArgument, context: JitContext) -> JitArgument:
    """An argument whose arrays have their shardings in their types on Explicit axes, also those not placed yet.

    ``jax.jit`` places such an array as ``in_shardings`` says, but types it as unsharded where it is traced.
    """
    traced = [leaf for leaf in argument.key.leaves if isinstance(leaf, TracedLeaf)]
    if not traced:
        return argument
    leaves, structure = jax.tree_util.tree_flatten(argument.value)
    placed = list(leaves)
    for at, (value, leaf) in enumerate(zip(leaves, traced, strict=True)):
        is_known = _jax.array.explicit_spec(value) is not None or _jax.array.committed_sharding(value) is not None
        if not is_known and (sharding := leaf.sharding(context)) is not None:
            placed[at] = _jax.casts.device_put_typed(value, sharding)
    is_same = all(new is leaf for new, leaf in zip(placed, leaves, strict=True))
    return argument if is_same else JitArgument(argument.key, structure.unflatten(placed))
