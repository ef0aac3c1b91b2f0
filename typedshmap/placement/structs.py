"""Values made from a hint, in its structure: ``ShapeDtypeStruct``s, once its dims have sizes.

The caller chooses what each array becomes. Static fields have their defaults, since they are part of the structure
that JAX compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from .. import _jax
from ..errors import ShapeError, StructureError, TypedShmapError, error_of, failures
from ..errors.failures import Bound, Failure, Fault, NotAPytree, PlainMessage, Report, Subject, WrongSize
from ..errors.phrases import did_you_mean, value_text
from ..hints import structure
from ..hints.array_hint import KEYS, ArrayHint
from ..hints.check_tree import CheckedLeaf
from ..hints.structure import ArrayLeaf, Node, Static, holds_arrays, node_name, parse_hint_or_dims
from ..notation.match import NoValue, Sizes, evaluate, mismatch_of
from ..notation.spec import Anything as AnySize
from ..notation.spec import Argument, Dim, Name, Number, Rest, names_in_expression
from .context import PlacementContext, placement_context, without_given

GIVEN = Subject("placed", "given")
"""The origin of a size that is given by keyword."""


def shape_structs(T: Any, /, mesh: Mesh | AbstractMesh | None = None, **sizes: int | tuple[int, ...]) -> Any:
    """The arrays that a hint, or a class of hints, describes, as ``jax.ShapeDtypeStruct``s of global shape.

    Use them where no values are needed: in ``jax.eval_shape``, in ``jax.jit(f).lower``, as the target of
    a checkpoint's restore. On an AbstractMesh nothing needs a device.

    ```python
    structs = shape_structs(Weights, mesh, vocab=512, model=64, ff=256)
    jax.jit(step).lower(structs, shape_structs(Batch, mesh, batch=32, seqlen=128)).compile()
    ```

    A dtype name that takes several dtypes becomes JAX's default of its kind, the wide one under
    ``jax_enable_x64``: float32 for Float, Inexact, Num, Real and Shaped; int32 for Int
    and Integer; uint32 for UInt; complex64 for Complex; that of ``jax.random.key`` for Key.

    Args:
      T: a hint, or a class whose fields have hints.
      mesh: the mesh, which may be abstract; by default the ambient one, if there is one.
      **sizes: the global size of each name in the hints; a tuple of sizes for ``*name``.

    Returns:
      The structs, in the structure of the hint, with shardings where a mesh is known. A leaf that is not
      an array has its default.

    Raises:
      ShapeError: for a size that is missing, unknown or none, and a dim that has none (``_``,
        ``...``, ``{argument}``) or does not divide over its mesh axes.
      StructureError: for a hint that leaves open how many arrays it holds.
      MeshAxisError: for an axis that the mesh does not have, and in a manual region.
      ShardingError: for a mark ``+`` or ``~``, and for ``-`` over Auto axes.
    """
    tree, leaves = structs_of(parse_hint_or_dims(T), placement_context("shape_structs", mesh, needs=None), sizes)
    return _jax.tree.unflatten_like(tree, [leaf.value for leaf in leaves])


@dataclass(frozen=True, slots=True)
class _ArraySlot:
    """The place of one array in a structure."""

    hint: ArrayHint
    path: str


def structs_of(node: Node, place: PlacementContext, sizes: Mapping[str, Any]) -> tuple[Any, list[CheckedLeaf]]:
    """A tree in the structure of a hint, and its leaves: a struct for each array, with its hint and its path.

    Raises:
      TypedShmapError: for sizes that are wrong, and for arrays that cannot be made, all of them.
    """
    cure = "write tuples instead of lists, and classes instead of dicts; give fields without arrays a default"
    tree = TreeBuilder(place.verb, _ArraySlot, cure).build(node)
    leaves = jax.tree_util.tree_leaves(tree)
    slots = [leaf for leaf in leaves if isinstance(leaf, _ArraySlot)]
    refuse_wrong_sizes(place.verb, [slot.hint for slot in slots], sizes, must_all=True)
    known = bound_sizes(sizes)
    shapes = [_shape_of(slot, known) for slot in slots]
    if wrong := [shape for shape in shapes if isinstance(shape, Failure)]:
        raise place.error(wrong)
    made = (jax.ShapeDtypeStruct(shape, default_dtype(slot.hint)) for slot, shape in zip(slots, shapes, strict=True))
    tree = _jax.tree.unflatten_like(tree, [next(made) if isinstance(leaf, _ArraySlot) else leaf for leaf in leaves])
    checked = place.check_tree(node, tree, "hint", known)
    if checked.failures:
        raise place.error(checked.failures, without_given(checked.sizes, sizes))

    def placed(leaf: CheckedLeaf) -> CheckedLeaf:
        if leaf.hint is None:
            return leaf
        shape, dtype = leaf.value.shape, leaf.value.dtype
        sharding = place.sharding(leaf.hint, len(shape))
        return leaf._replace(value=jax.ShapeDtypeStruct(shape, dtype, sharding=sharding))

    return tree, [placed(leaf) for leaf in checked.leaves]


# Sizes by keyword


def bound_sizes(sizes: Mapping[str, Any]) -> Sizes:
    """Given sizes as those that are known before anything is matched."""
    known = {
        f"*{name}" if isinstance(size, tuple) else name: tuple(map(int, size)) if isinstance(size, tuple) else int(size)
        for name, size in sizes.items()
    }
    return Sizes({name: Bound(size, GIVEN, 0) for name, size in known.items()})


def refuse_wrong_sizes(verb: str, hints: Iterable[ArrayHint], sizes: Mapping[str, Any], must_all: bool) -> None:
    """Refuse what is not a size, names that no hint has, and missing sizes where every name needs one.

    Raises:
      ShapeError: with everything that is wrong.
    """
    named = names_of(hints)
    texts = {name: f"'*{name}'" if is_rest else f"'{name}'" for name, is_rest in named.items()}
    missing = [text for name, text in texts.items() if name not in sizes] if must_all else []
    problems = [f"no size is given for {', '.join(missing)}"] if missing else []
    problems += [f"no hint names '{name}'{did_you_mean(name, named)}" for name in sizes if name not in named]
    for name, size in sizes.items():
        if name not in named:
            continue
        if not named[name] and not _is_size(size):
            problems.append(f"{name}={value_text(size)} is not a size")
        if named[name] and not (isinstance(size, tuple) and all(map(_is_size, size))):
            problems.append(f"{name}={value_text(size)} is not a tuple of sizes, which '*{name}' wants")
    if problems:
        names = ", ".join(texts.values()) or "none"
        raise ShapeError(f"{verb}: {'; '.join(problems)}\n\nHint: the names in the hints are {names}")


def _is_size(size: Any) -> bool:
    return isinstance(size, (int, np.integer)) and not isinstance(size, bool) and bool(size >= 0)


def names_of(hints: Iterable[ArrayHint]) -> dict[str, bool]:
    """The names in the dims of hints, in order, each with whether it names several dims."""
    found: dict[str, bool] = {}
    for hint in hints:
        for dim in hint.spec.dims:
            if isinstance(dim, Rest):
                found.update({dim.name: True} if dim.name is not None else {})
            else:
                found.update({name: False for name in names_in_expression(dim.size) if name not in found})
    return found


# Shapes


def _shape_of(slot: _ArraySlot, sizes: Sizes) -> tuple[int, ...] | Failure:
    shape: list[int] = []
    for index, dim in enumerate(slot.hint.spec.dims):
        found = sizes_of_dim(dim, index, sizes)
        if not isinstance(found, tuple):
            return Failure(found, Subject("placed", "hint", slot.path), slot.hint.text)
        shape += found
    return tuple(shape)


def sizes_of_dim(dim: Dim | Rest, index: int, sizes: Sizes) -> tuple[int, ...] | Fault:
    """The sizes that a token of a hint means, with sizes that are known."""
    no_size = "for which no size can be given"
    if isinstance(dim, Rest):
        known = sizes.get(f"*{dim.name}") if dim.name is not None else None
        if known is None:
            return WrongSize(f"has '{dim}', {no_size}", dim.span, "write '*name' instead, and pass its size")
        assert isinstance(known.size, tuple)
        return known.size
    expression = dim.size
    if isinstance(expression, Number):
        return (expression.value,)
    if isinstance(expression, AnySize | Argument):
        return WrongSize(f"has dim '{expression}', {no_size}", dim.span, "write a name instead, and pass its size")
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
    if names is not None and "prng_key" in names:
        return jax.eval_shape(lambda: jax.random.key(0)).dtype
    defaults = map(_jax.array.default_dtype, _PREFERRED)
    usual = [dtype for dtype in defaults if names is None or str(dtype) in names]
    return usual[0] if usual or names is None else jax.numpy.dtype(names[0])


_MISSING: Any = dataclasses.MISSING
_SCALARS = (bool, int, float, complex)


@dataclass(frozen=True, slots=True)
class TreeBuilder:
    """What replaces the leaves of a hint.

    Attributes:
      verb: the function that messages name.
      array: what replaces an array, from its hint and its path.
      cure: what to do where the hint leaves something open.
      static: what replaces a leaf that is not an array, from the field's default value.
      scalar: what replaces a Python number without a default; None where there must be one.
      choose: the node to build, from a node and the records around it, where the hint leaves a choice.
    """

    verb: str
    array: Callable[[ArrayHint, str], Any]
    cure: str
    static: Callable[[Any], Any] = lambda default: default
    scalar: Any = None
    choose: Callable[[Node, frozenset[int]], Node] = lambda node, inside: node

    def build(self, node: Node, path: str = "", inside: frozenset[int] = frozenset()) -> Any:
        """A value in the structure of a hint.

        Args:
          node: the hint's tree, which fixes every length.
          path: the path of the node, as ``jax.tree_util.keystr`` writes it.
          inside: the records around it.

        Raises:
          StructureError: for a hint that leaves open how many arrays it holds.
        """
        match node := self.choose(node, inside):
            case ArrayLeaf(hint):
                return self.array(hint, path)
            case Static(hint) if self._needs_no_default(hint):
                return None if hint is type(None) else self.scalar
            case structure.FixedTuple(items, kind):
                return kind(self.build(item, f"{path}[{i}]", inside) for i, item in enumerate(items))
            case structure.Fields(_, kind, fields) if id(node) not in inside:
                inside |= {id(node)}
                if kind == "TypedDict":
                    return {name: self.build(inner, f"{path}[{name!r}]", inside) for name, inner in fields.items()}
                return (self._named_tuple if kind == "NamedTuple" else self._dataclass)(node, path, inside)
            case structure.UnionOf(options, _) if (key := typed_key(options)) is not None:
                return self.build(key, path, inside)
            case structure.UnionOf():
                raise self.open(f"{path or node_name(node)} is a union")
            case _:
                raise self.open(f"{path or node_name(node)} does not say how many arrays it holds")

    def open(self, problem: str) -> StructureError:
        """The error for a hint that leaves something open."""
        return StructureError(f"{self.verb}: {problem}\n\nHint: {self.cure}")

    def _wrong_class(self, what: Fault, path: str) -> TypedShmapError:
        """The error for a class that JAX cannot take apart as its hints say."""
        return error_of(Report(self.verb, (Failure(what, Subject("placed", "hint", path)),)))

    def _needs_no_default(self, hint: Any) -> bool:
        return hint is type(None) or (hint in _SCALARS and self.scalar is not None)

    def _named_tuple(self, node: structure.Fields, path: str, inside: frozenset[int]) -> Any:
        defaults: Mapping[str, Any] = getattr(node.cls, "_field_defaults", {})
        fields = node.fields.items()
        return node.cls(*(self._field(n, defaults.get(name, _MISSING), f"{path}.{name}", inside) for name, n in fields))

    def _dataclass(self, node: structure.Fields, path: str, inside: frozenset[int]) -> Any:
        markers = {field.name: object() for field in dataclasses.fields(node.cls)}
        try:
            children = _jax.tree.one_level(_new_instance(node.cls, markers))
        except _jax.tree.BadTree as bad:
            problem = f"is of class {node.cls.__name__} that JAX cannot take apart: {bad}"
            raise self._wrong_class(PlainMessage(problem), path) from None
        if children is None:
            raise self._wrong_class(NotAPytree(node.cls.__name__), path)
        flattened = {id(part) for _, part in children}  # a marker is found in the fields that JAX flattens
        values: dict[str, Any] = {}
        for field in dataclasses.fields(node.cls):
            inner, at = node.fields[field.name], f"{path}.{field.name}"
            factory: Any = field.default_factory
            default = field.default if factory is _MISSING else factory()
            if id(markers[field.name]) in flattened:
                values[field.name] = self._field(inner, default, at, inside)
            elif holds_arrays(inner):
                raise self._wrong_class(failures.NonPytreeField(node.cls.__name__, field.name), path)
            else:
                values[field.name] = self._default(default, at)
        return _new_instance(node.cls, values)

    def _field(self, node: Node, default: Any, path: str, inside: frozenset[int]) -> Any:
        """A field that JAX flattens: a tree of its own, or leaves that are not arrays."""
        node = self.choose(node, inside)
        is_filled = default is _MISSING and isinstance(node, Static) and self._needs_no_default(node.hint)
        if holds_arrays(node) or is_filled:
            return self.build(node, path, inside)
        return self.static(self._default(default, path))

    def _default(self, default: Any, path: str) -> Any:
        if default is _MISSING:
            raise self.open(f"{path} holds no array and has no default")
        return default


def typed_key(options: tuple[Node, ...]) -> ArrayLeaf | None:
    """The key of ``jax.random.key`` in a ``PRNGKeyArray``, which takes the older kind as well."""
    leaves = [option for option in options if isinstance(option, ArrayLeaf)]
    keys = [leaf for leaf in leaves if leaf.hint.dtypes == KEYS]
    is_raw = all(leaf.hint.dtypes in (KEYS, ("uint32",)) for leaf in leaves)
    return keys[0] if keys and is_raw and len(leaves) == len(options) else None


def _new_instance(cls: type, values: Mapping[str, Any]) -> Any:
    # A class's own __init__ may refuse what is not an array, so the fields are set without it.
    made: Any = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def any_size_hint(hint: ArrayHint) -> ArrayHint:
    """A hint in which every dim may have any size; brackets and marks stay."""
    dims = tuple(
        Rest(span=dim.span) if isinstance(dim, Rest) else Dim(AnySize(), dim.axes, span=dim.span)
        for dim in hint.spec.dims
    )
    return replace(hint, spec=replace(hint.spec, dims=dims), takes_rules=False)
