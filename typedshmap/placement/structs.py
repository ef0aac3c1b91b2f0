"""Arrays that are only shapes: what a hint means once its dims have sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from .. import _jax
from ..errors import ShapeError
from ..errors.failures import Failure, WrongSize
from ..errors.phrases import shown
from ..hints.array import ArrayHint
from ..hints.nodes import Node
from ..hints.trees import node_of
from ..hints.walk import Found
from ..notation.match import Mismatch, NoValue, evaluate, mismatch_of
from ..notation.nodes import (
    Anything,
    Argument,
    Binary,
    Call,
    Dim,
    Expression,
    Group,
    Name,
    Negative,
    Number,
    Rest,
)
from ..notation.sizes import Bound, Sizes, Subject
from .places import Place, only, place_of
from .structure import Maker, make

GIVEN = Subject("placed", "given")
"""Who binds a size that is given by keyword."""


def shape_structs(T: Any, /, mesh: Mesh | AbstractMesh | None = None, **sizes: int | tuple[int, ...]) -> Any:
    """The arrays that a hint, or a class of hints, means, as ``jax.ShapeDtypeStruct``s of global shape.

    They go where no values are needed: ``jax.eval_shape``, ``jax.jit(f).lower``, the target of a
    checkpoint's restore. On an AbstractMesh nothing needs a device.

    ```python
    structs = shape_structs(Weights, mesh, vocab=512, model=64, ff=256)
    jax.jit(step).lower(structs, shape_structs(Batch, mesh, batch=32, seqlen=128)).compile()
    ```

    A dtype name that takes several dtypes stands for JAX's default of its kind, under
    ``jax_enable_x64`` the wide one: float32 for Float, Inexact, Num, Real and Shaped; int32 for Int
    and Integer; uint32 for UInt; complex64 for Complex; that of ``jax.random.key`` for Key.

    Args:
      T: a hint, or a class whose fields have hints.
      mesh: the mesh, which may be abstract; by default the ambient one, if there is one.
      **sizes: the global size of each name in the hints; a tuple of sizes for ``*name``.

    Returns:
      The structs, in the structure of the hint, with shardings where a mesh is known. A leaf that is
      no array has its default.

    Raises:
      ShapeError: for a size that is missing, unknown or none, and a dim that has none (``_``,
        ``...``, ``{argument}``) or does not divide over its mesh axes.
      StructureError: for a hint that leaves open how many arrays it holds.
      MeshAxisError: for an axis that the mesh does not have, and in a manual region.
      ShardingError: for a mark ``+`` or ``~``, and for ``-`` over Auto axes.
    """
    made, _ = structs_of(node_of(T), place_of("shape_structs", mesh), sizes)
    return made


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of one array in a structure."""

    hint: ArrayHint
    path: str

    @property
    def subject(self) -> Subject:
        return Subject("placed", "hint", self.path)


def structs_of(node: Node, place: Place, sizes: Mapping[str, Any]) -> tuple[Any, list[Found]]:
    """The structs of a hint's tree, and of each its hint and its path.

    Raises:
      TypedShmapError: for sizes that are wrong, and for arrays that cannot be made, all of them.
    """
    cure = "write tuples instead of lists, and classes instead of dicts; give fields without arrays a default"
    tree = make(node, Maker(place.verb, _Slot, lambda default: default, None, cure))
    leaves = jax.tree_util.tree_leaves(tree)
    slots = [leaf for leaf in leaves if isinstance(leaf, _Slot)]
    refuse_wrong_sizes(place.verb, [slot.hint for slot in slots], sizes, must_all=True)
    shapes = [_shape_of(slot, bound_sizes(sizes)) for slot in slots]
    failures = [shape for shape in shapes if isinstance(shape, Failure)]
    if failures:
        raise place.error(failures)
    bare = [jax.ShapeDtypeStruct(shape, default_dtype(slot.hint)) for slot, shape in zip(slots, shapes, strict=True)]
    walk = place.walk(node, _filled(tree, leaves, bare), "hint", bound_sizes(sizes))
    if walk.failures:
        raise place.error(walk.failures, only(walk.sizes, sizes))
    arrays = [_placed(found, place) for found in walk.leaves if found.hint is not None]
    return _filled(tree, leaves, [array.value for array in arrays]), arrays


def _filled(tree: Any, leaves: list[Any], values: Iterable[Any]) -> Any:
    """The tree with values in the place of its slots."""
    rest = iter(values)
    return _jax.like(tree, [next(rest) if isinstance(leaf, _Slot) else leaf for leaf in leaves])


def _placed(found: Found, place: Place) -> Found:
    shape, sharding = found.value.shape, place.sharding(found.hint, len(found.value.shape))
    return found._replace(value=jax.ShapeDtypeStruct(shape, found.value.dtype, sharding=sharding))


# Sizes by keyword


def bound_sizes(sizes: Mapping[str, Any]) -> Sizes:
    """Given sizes as those that are known before anything is matched."""
    return Sizes(dict(_bound(name, size) for name, size in sizes.items()))


def _bound(name: str, size: Any) -> tuple[str, Bound]:
    if isinstance(size, tuple):
        return f"*{name}", Bound(tuple(map(int, size)), GIVEN, 0)
    return name, Bound(int(size), GIVEN, 0)


def refuse_wrong_sizes(verb: str, hints: Iterable[ArrayHint], sizes: Mapping[str, Any], must_all: bool) -> None:
    """Refuse sizes that are none, that no hint names, and where there must be all of them, those that lack.

    Raises:
      ShapeError: with everything that is wrong.
    """
    named = names_of(hints)
    missing = [_shown(name, named) for name in named if name not in sizes] if must_all else []
    problems = [f"no size is given for {', '.join(missing)}"] if missing else []
    problems += [_unknown(name, named) for name in sizes if name not in named]
    problems += [problem for name in sizes if name in named and (problem := _no_size(name, sizes[name], named[name]))]
    if problems:
        names = ", ".join(_shown(name, named) for name in named) or "none"
        raise ShapeError(f"{verb}: {'; '.join(problems)}\n\nHint: the names in the hints are {names}")


def _shown(name: str, named: Mapping[str, bool]) -> str:
    return f"'*{name}'" if named[name] else f"'{name}'"


def _unknown(name: str, named: Mapping[str, bool]) -> str:
    close = get_close_matches(name, named, n=1)
    return f"no hint names '{name}'" + (f" (did you mean '{close[0]}'?)" if close else "")


def _no_size(name: str, size: Any, is_rest: bool) -> str | None:
    if is_rest:
        is_right = isinstance(size, tuple) and all(map(_is_size, size))
        return None if is_right else f"{name}={shown(size)} is no tuple of sizes, which '*{name}' wants"
    return None if _is_size(size) else f"{name}={shown(size)} is no size"


def _is_size(size: Any) -> bool:
    return isinstance(size, (int, np.integer)) and not isinstance(size, bool) and bool(size >= 0)


def names_of(hints: Iterable[ArrayHint]) -> dict[str, bool]:
    """The names in the dims of hints, in their order; of each whether it stands for several dims."""
    found: dict[str, bool] = {}
    for hint in hints:
        for dim in hint.spec.dims:
            if isinstance(dim, Rest):
                found.update({dim.name: True} if dim.name is not None else {})
            else:
                found.update({name: False for name in names_in(dim.size) if name not in found})
    return found


def names_in(expression: Expression) -> Iterator[str]:
    """The names of dims in an expression."""
    match expression:
        case Name(name):
            yield name
        case Group(inner) | Negative(inner):
            yield from names_in(inner)
        case Binary(left, _, right):
            yield from names_in(left)
            yield from names_in(right)
        case Call(_, arguments):
            for argument in arguments:
                yield from names_in(argument)
        case Number() | Anything() | Argument():
            pass


# Shapes


def _shape_of(slot: _Slot, sizes: Sizes) -> tuple[int, ...] | Failure:
    shape: list[int] = []
    for index, dim in enumerate(slot.hint.spec.dims):
        found = sizes_of_dim(dim, index, sizes)
        if not isinstance(found, tuple):
            return Failure(found, slot.subject, slot.hint.text)
        shape += found
    return tuple(shape)


def sizes_of_dim(dim: Dim | Rest, index: int, sizes: Sizes) -> tuple[int, ...] | WrongSize | Mismatch:
    """The sizes that a token of a hint stands for, by sizes that are known."""
    if isinstance(dim, Rest):
        known = sizes.get(f"*{dim.name}") if dim.name is not None else None
        if known is None:
            return _open_size(f"has '{dim}'", dim)
        assert isinstance(known.size, tuple)
        return known.size
    match dim.size:
        case Number(size):
            return (size,)
        case Anything() | Argument():
            return _open_size(f"has dim '{dim.size}'", dim)
        case expression:
            return _evaluated(expression, dim, index, sizes)


def _open_size(has: str, dim: Dim | Rest) -> WrongSize:
    name = "'*name'" if isinstance(dim, Rest) else "a name"
    return WrongSize(f"{has}, for which no size can be given", dim.span, f"write {name} instead, and pass its size")


def _evaluated(expression: Expression, dim: Dim, index: int, sizes: Sizes) -> tuple[int, ...] | WrongSize | Mismatch:
    if isinstance(expression, Name) and sizes.get(expression.name) is None:
        return WrongSize(f"has dim '{expression}', but '*{expression}' stands for several dims", dim.span)
    try:
        size = evaluate(expression, sizes, {})
    except NoValue as unknown:
        return mismatch_of(unknown, dim, index, dim.span)
    return (size,) if size >= 0 else WrongSize(f"has dim '{expression}' of size {size}", dim.span)


_PREFERRED = (float, int, "uint64", complex, bool)


def default_dtype(hint: ArrayHint) -> Any:
    """The one dtype of a hint, or JAX's default for its kind."""
    names = hint.dtypes
    defaults = [_jax.default_dtype(kind) for kind in _PREFERRED]
    if names is None:
        return defaults[0]
    if "prng_key" in names:
        return _jax.key_dtype()
    usual = [dtype for dtype in defaults if str(dtype) in names]
    return usual[0] if usual else jax.numpy.dtype(names[0])
