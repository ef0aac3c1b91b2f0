"""``in_specs`` and ``out_specs`` for values without hints, as in ``jax.shard_map``: prefix trees, None, ``Infer``.

A spec becomes the hint of an array with any dims. JAX raises for specs that it does not accept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import jax
from jax.sharding import PartitionSpec

from .. import _jax
from ..errors.failures import Failure, WrongSharding
from ..notation.spec import Axes, Dim
from .array_hint import ArrayHint
from .context import MeshContext
from .fitting import CheckedLeaf
from .signature import TAKEN_BY_SPECS, BoundArgument, BoundCall, HintedSignature, Specs
from .structure import BySpec, Node, Untyped, array_hints, holds_arrays

INFER = inspect.signature(_jax.mesh.shard_map).parameters["in_specs"].default
"""The default of ``in_specs`` in ``jax.shard_map``."""


class Unreadable(Exception):
    """Specs that JAX rejects, or that only JAX can read."""


def specs_of_arguments(
    specs: Specs,
    typed: HintedSignature,
    bound: BoundCall,
    arguments: Sequence[BoundArgument],
    infer: Callable[[Any], PartitionSpec] | None,
) -> list[tuple[Any, ...] | None]:
    """The specs of the leaves of each argument; None if its hint suffices, or if it is static."""
    kinds = {name: parameter.kind for name, parameter in typed.signature.parameters.items()}
    positional = [at for at, (name, *_) in enumerate(arguments) if kinds[name] in TAKEN_BY_SPECS]
    taken = positional[len(typed.given) :]
    while taken and arguments[taken[-1]][0] not in bound.given:
        taken.pop()
    counts = {at: len(_jax.tree.leaves(arguments[at][3])) for at in positional}
    # Arguments of a partial, and defaults, are closed over, unless a hint has their sharding.
    closed_over = [at for at in positional if at not in taken and not says_sharding(arguments[at][2])]
    by_position: dict[int, tuple[Any, ...] | None] = {at: (None,) * counts[at] for at in closed_over}
    if specs.in_specs is not ... and specs.in_specs is not INFER:
        remaining = iter(leaf_specs(specs.in_specs, tuple([arguments[at][3] for at in taken]), takes_none=True))
        by_position |= {at: tuple(islice(remaining, counts[at])) for at in taken}
        return [by_position.get(at) for at in range(len(arguments))]
    is_bare = [at for at in taken if isinstance(arguments[at][2], Untyped) and arguments[at][0] not in ("self", "cls")]
    if infer is not None:
        silent = [at for at in taken if holds_arrays(arguments[at][2]) and not says_sharding(arguments[at][2])]
        by_position |= {at: tuple(map(infer, _jax.tree.leaves(arguments[at][3]))) for at in (*is_bare, *silent)}
    elif is_bare:
        raise Unreadable("in_specs are inferred over Explicit axes only")
    return [by_position.get(at) for at in range(len(arguments))]


def leaf_specs(specs: Any, tree: Any, takes_none: bool) -> list[Any]:
    """The specs of the leaves of a tree, by a prefix tree of specs; None may be the spec of a static subtree."""
    try:
        leaves, structure = jax.tree_util.tree_flatten(tree)
        by_leaf, specs_structure = jax.tree_util.tree_flatten(specs)
        if specs_structure != structure:
            is_leaf = (lambda spec: spec is None) if takes_none else None
            by_leaf = list[Any]()
            jax.tree_util.tree_map(
                lambda spec, part: by_leaf.extend([spec] * len(jax.tree_util.tree_leaves(part))),
                specs,
                tree,
                is_leaf=is_leaf,
            )
    except Exception as error:
        raise Unreadable(str(error)) from None
    for spec, rank in dict.fromkeys(zip(by_leaf, map(len, _jax.array.shapes_of(leaves)), strict=True)):
        if spec is not None and _length(spec) > rank:
            raise Unreadable(f"{spec} is too long")
    return by_leaf


def _length(spec: Any) -> int:
    """The number of dims with entries in a spec."""
    if not isinstance(spec, PartitionSpec) or _jax.array.non_name_entries(spec):
        raise Unreadable(f"{spec} does not name mesh axes")
    return len(_jax.array.spec_entries(spec).dim_axes)


def with_specs(argument: BoundArgument, specs: tuple[Any, ...] | None) -> BoundArgument:
    """The argument with its specs as a hint, unless its hint has a sharding; untyped if all its specs are None."""
    name, subject, node, value = argument
    if specs is None or says_sharding(node):
        return argument
    if any(spec is not None for spec in specs):
        return name, subject, BySpec(specs), value
    return (name, subject, Untyped(), value) if holds_arrays(node) else argument


def says_sharding(node: Node | None) -> bool:
    """Whether a hint has a sharding: a bare ``jax.Array``, and ``"..."``, leave it to a spec."""
    hints = array_hints(node) if node is not None else ()
    return any(hint.spec.marks or hint.spec.rest is None or len(hint.spec.dims) > 1 for hint in hints)


def disagreements(
    leaves: Iterable[CheckedLeaf], specs: Iterable[Any], name: str, context: MeshContext
) -> list[Failure]:
    """The failures of leaves whose hints disagree with ``in_specs`` or ``out_specs``."""
    failures: list[Failure] = []
    for leaf, spec in zip(leaves, specs, strict=True):
        given = f"{'None (static)' if spec is None else _jax.array.spec_text(spec)} in {name}"
        if leaf.hint is None:
            if spec is not None:
                what = WrongSharding("a static value", given, f"write None in {name}, or hint it as an array")
                failures.append(Failure(what, leaf.subject))
            continue
        rank = len(_jax.array.shapes_of([leaf.value])[0])
        hinted = context.spec(leaf.hint, rank)
        if spec is not None and _jax.array.spec_entries(spec, rank) == _jax.array.spec_entries(hinted, rank):
            continue
        cure = f"make {name} and the hint agree"
        if spec is not None and leaf.hint.spec.rest is None:
            cure = f'if {name} is right, write "{_with_axes(leaf.hint, spec, rank)}" in the hint'
        what = WrongSharding(_jax.array.spec_text(hinted), given, cure)
        failures.append(Failure(what, leaf.subject, leaf.hint.text, _jax.array.type_text(leaf.value)))
    return failures


def _with_axes(hint: ArrayHint, spec: PartitionSpec, rank: int) -> str:
    """The dims of a hint with the sharding of a spec."""
    layout = _jax.array.spec_entries(spec, rank)
    parts: list[str] = []
    for dim, axes in zip(hint.spec.dims, layout.dim_axes, strict=True):
        parts.append(str(replace(dim, axes=Axes(axes) if axes else None) if isinstance(dim, Dim) else dim))
    marks = [*(f"+{axis}" for axis in sorted(layout.unreduced)), *(f"-{axis}" for axis in sorted(layout.reduced))]
    return " ".join([*parts, *marks])
