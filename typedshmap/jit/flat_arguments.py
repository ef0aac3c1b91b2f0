"""The arguments of a ``typed_jit``: the options of ``jax.jit`` that select some of them, and each argument flattened.

Invariant: the key of an argument has everything that a trace depends on, except the types of the traced leaves, which
are in the key of the call."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from .. import _jax
from ..errors import StructureError
from ..errors.failures import Subject
from ..errors.phrases import name_of, value_text
from ..hints.array_hint import ArrayHint, rank_of
from ..hints.fitting import CheckedLeaf
from ..hints.signature import POSITIONAL, BoundArgument
from .jit_context import JitContext

VAR_POSITIONAL, VAR_KEYWORD = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


class ArgSelector(NamedTuple):
    """The arguments that an option selects.

    Attributes:
      names: by name.
      numbers: by number, for a function with ``*args``, whose arguments are known only at a call.
    """

    names: frozenset[str] = frozenset()
    numbers: tuple[int, ...] = ()

    def select(self, arguments: Sequence[BoundArgument], kinds: Mapping[str, Any], skipped: int) -> list[Subject]:
        """The selected arguments of a call; arguments of a partial come first and have no number."""
        if not self.names and not self.numbers:
            return []
        positional = (*POSITIONAL, VAR_POSITIONAL)
        numbered = [subject for name, subject, *_ in arguments if kinds[name] in positional][skipped:]
        by_number = [numbered[at] for at in self.numbers if -len(numbered) <= at < len(numbered)]
        by_name = [subject for _, subject, *_ in arguments if subject.name in self.names and not subject.path]
        return by_number + by_name


def parse_options(
    function: Callable[..., Any], options: Mapping[str, Any]
) -> tuple[ArgSelector, ArgSelector, dict[str, Any]]:
    """The static and donated arguments that the options of a ``typed_jit`` select, and the options for ``jax.jit``."""
    name, others = name_of(function), dict(options)
    for given in ("in_shardings", "out_shardings"):
        if given in others:
            raise StructureError(f"{name}: typed_jit does not take {given}=, since the hints give the shardings")
    static, donated = _parse_selector(function, "static", others), _parse_selector(function, "donate", others)
    if both := sorted(static.names & donated.names):
        raise StructureError(
            f"{name}: parameter '{both[0]}' is both static and donated, but a static argument has no buffers"
        )
    # With in_shardings, as at every call, so that JAX refuses an option when the function is decorated.
    jax.jit(lambda: None, in_shardings=(), **others)
    return static, donated, others


def _parse_selector(function: Callable[..., Any], kind: str, options: dict[str, Any]) -> ArgSelector:
    """Pop ``static_argnums`` and ``static_argnames``, or those of ``donate``, from the options."""
    owner, by_number, by_name = name_of(function), f"{kind}_argnums", f"{kind}_argnames"
    numbers, names = options.pop(by_number, None), options.pop(by_name, None)
    try:
        several: Any = () if numbers is None else (numbers,) if hasattr(numbers, "__index__") else numbers
        found_numbers = tuple(map(operator.index, several))
    except TypeError:
        raise StructureError(f"{owner}: {by_number}= expects a number, or several; got {value_text(numbers)}") from None
    try:
        found_names: tuple[Any, ...] = () if names is None else (names,) if isinstance(names, str) else tuple(names)
    except TypeError:
        found_names = (names,)
    if not all(isinstance(name, str) for name in found_names):
        raise StructureError(f"{owner}: {by_name}= expects a parameter's name, or several; got {value_text(names)}")
    if not found_numbers and not found_names:
        return ArgSelector()
    kinds = {name: parameter.kind for name, parameter in inspect.signature(function).parameters.items()}
    known = [name for name, kind in kinds.items() if kind is not VAR_POSITIONAL]
    if VAR_KEYWORD not in kinds.values() and (unknown := [name for name in found_names if name not in known]):
        listed = ", ".join(map(repr, known)) or "none"
        raise StructureError(f"{owner}: {by_name}= names '{unknown[0]}', which is not one of its parameters ({listed})")
    if VAR_POSITIONAL in kinds.values():
        return ArgSelector(frozenset(found_names), found_numbers)
    positional = [name for name, kind in kinds.items() if kind in POSITIONAL]
    if beyond := [number for number in found_numbers if not -len(positional) <= number < len(positional)]:
        got, most = value_text(beyond[0]), len(positional)
        raise StructureError(f"{owner}: {by_number}= has {got}, but {owner} takes {most} by position")
    return ArgSelector(frozenset(found_names) | {positional[number] for number in found_numbers})


class StaticLeaf:
    """A static value, compared by its type and ``==``, a float or a complex number by its ``repr``."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = (type(value), repr(value) if isinstance(value, (float, complex)) else value)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticLeaf) and self._key == other._key


TracedLeaf = tuple[ArrayHint | None, int]
"""The hint and the rank of a traced leaf; without a hint, JAX chooses its sharding."""


def traced_leaf(leaf: CheckedLeaf) -> TracedLeaf:
    """A leaf without its value."""
    return leaf.hint, 0 if leaf.hint is None else rank_of(leaf.value)


_LEAF = jax.tree_util.tree_structure(0)


class ArgumentKey(NamedTuple):
    """The part of an argument that a trace depends on."""

    parameter: str
    subject: Subject
    structure: Any
    leaves: tuple[TracedLeaf | StaticLeaf, ...]

    @property
    def traced(self) -> list[TracedLeaf]:
        """The leaves that are traced."""
        return [leaf for leaf in self.leaves if not isinstance(leaf, StaticLeaf)]

    @property
    def is_mixed(self) -> bool:
        """Whether JAX gets a list of the traced leaves: others are static, or a class accepts only arrays."""
        traced = len(self.traced)
        return traced > 0 and (traced < len(self.leaves) or not _jax.tree.takes_any_leaves(self.structure))

    @property
    def is_replaced(self) -> bool:
        """Whether the function gets another object than the call: always, except for a static leaf.

        A static tree is rebuilt, as ``jax.jit`` rebuilds traced ones: this key omits everything that the
        structure omits, such as the order of a dict's keys.
        """
        return bool(self.traced) or self.structure != _LEAF

    def unflatten(self, traced: Iterator[Any]) -> Any:
        """The argument from its static leaves and the next traced value, if it has traced leaves."""
        if self.traced and not self.is_mixed:
            return next(traced)
        remaining = iter(next(traced) if self.traced else ())
        leaves = [leaf.value if isinstance(leaf, StaticLeaf) else next(remaining) for leaf in self.leaves]
        return jax.tree_util.tree_unflatten(self.structure, leaves)

    def shardings(self, context: JitContext) -> Any:
        """Its shardings for ``jax.jit``; None where JAX chooses."""
        leaf_shardings = [context.sharding(*leaf) for leaf in self.traced]
        if self.is_mixed:
            return leaf_shardings
        if all(sharding is None for sharding in leaf_shardings):
            return None
        return jax.tree_util.tree_unflatten(self.structure, leaf_shardings)


def flatten_argument(
    parameter: str, subject: Subject, value: Any, checked: Sequence[CheckedLeaf], is_any: bool
) -> tuple[ArgumentKey, Any]:
    """The key of an argument, and its value for ``jax.jit``: all its traced leaves, or itself."""
    try:
        structure = jax.tree_util.tree_structure(value)
    except Exception:  # a value that JAX cannot flatten is one static leaf
        return ArgumentKey(parameter, subject, _LEAF, (StaticLeaf(value),)), value
    arrays = (*_jax.array.ARRAYS, *_jax.array.SHAPES)
    leaves = tuple(
        traced_leaf(leaf)
        if leaf.hint is not None or is_any or isinstance(leaf.value, arrays)
        else StaticLeaf(leaf.value)
        for leaf in checked
    )
    key = ArgumentKey(parameter, subject, structure, leaves)
    if key.is_mixed:
        pairs = zip(checked, leaves, strict=True)
        value = [leaf.value for leaf, key_leaf in pairs if not isinstance(key_leaf, StaticLeaf)]
    return key, value


def place_unplaced(key: ArgumentKey, value: Any, context: JitContext) -> Any:
    """A traced argument on Explicit axes, with the sharding of each array in its type, placed before or here.

    ``jax.jit`` places an unplaced array by ``in_shardings``, but its tracer is typed as unsharded.
    """
    leaves, structure = jax.tree_util.tree_flatten(value)
    placed: list[Any] = []
    for leaf, traced in zip(leaves, key.traced, strict=True):
        is_known = _jax.array.explicit_spec(leaf) is not None or _jax.array.committed_sharding(leaf) is not None
        sharding = None if is_known else context.sharding(*traced)
        placed.append(leaf if sharding is None else _jax.placing.device_put_typed(leaf, sharding))
    return value if all(map(operator.is_, placed, leaves)) else structure.unflatten(placed)
