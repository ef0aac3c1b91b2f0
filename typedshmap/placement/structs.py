"""Values made from a hint, in its structure: specs, shardings, and with sizes of dims ``ShapeDtypeStruct``s."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from .. import _jax
from .._jax.array import KEYS
from ..errors import ShapeError, StructureError, TypedShmapError, error_of, failures
from ..errors.failures import Bound, Failure, Fault, Subject, WrongSize
from ..errors.phrases import did_you_mean, value_text
from ..errors.report import Report
from ..errors.requirements import merge_sizes
from ..hints import structure
from ..hints.array_hint import ArrayHint, rank_of
from ..hints.check_array import check_array
from ..hints.check_tree import ArrayCheck
from ..hints.context import current_mesh_context
from ..hints.fitting import CheckedLeaf
from ..hints.parse_hint import parse_hint_or_dims
from ..hints.structure import ArrayLeaf, Node, Static, array_hints, declares_arrays, node_name
from ..meshes import MeshLike
from ..notation.match import LARGEST_SIZE, NO_SIZES, NoValue, Sizes, evaluate, mismatch_of
from ..notation.spec import Anything as AnySize
from ..notation.spec import Braces, Dim, Name, Rest, names_in_expression
from ..records import Record
from .flax_boxes import check_leaves, holds_boxes, mesh_of_boxes
from .placement_context import PlacementContext, placement_context, read_memory_kind

GIVEN = Subject("placed", "given")
"""The origin of a size passed by keyword."""

_CURE = "pass like=, a value that fixes ranks and lengths"


def partition_specs(T: Any, like: Any = None) -> Any:
    """Return the PartitionSpecs of a hint, or of a class with hints; each has full rank.

    ```python
    partition_specs(Float[Array, "[batch/dp] d"])  # P('dp', None)
    partition_specs(Weights, like=weights)  # Weights(embed=P('tp', 'dp'), ...)
    ```

    Args:
      T: a hint, or a class whose fields have hints.
      like: a value of that type, for ranks and lengths that the hint leaves open.

    Returns:
      The specs, in the tree structure of ``like``, else of the hint; static fields have their
      defaults, and a leaf that is not an array has ``P()``.

    Raises:
      StructureError: for a hint whose ranks or lengths are open, without ``like``.
      MeshAxisError: for a mesh axis that the ambient mesh does not have.
    """
    context = current_mesh_context().but(manual=(), checked_axes=frozenset(), has_vma=False, role="placement")
    return _map_hints(PlacementContext("partition_specs", None, context), T, like, PlacementContext.spec)


def shardings(T: Any, mesh: MeshLike | None = None, like: Any = None, *, memory_kind: str | None = None) -> Any:
    """The NamedShardings of a hint, or of a class of hints: `partition_specs` over a mesh.

    Pass them to ``jax.jit`` as ``in_shardings`` and ``out_shardings``, to ``jax.device_put`` as the
    second argument, and to checkpoint libraries as the target of a restore.

    ```python
    jax.jit(init, out_shardings=shardings(Weights, mesh))(key)
    ```

    Args:
      T: a hint, or a class whose fields have hints.
      mesh: the mesh, which may be abstract, a dict of sizes, or a text ``"dp=4,tp=2"``; by default the ambient mesh, or
        that of Flax boxes.
      like: a value of that type, which fixes ranks and lengths that the hint leaves open.
      memory_kind: the memory of the arrays, ``"pinned_host"``; by default that of computations.

    Returns:
      The shardings, in the tree structure of ``like``, else of the hint.

    Raises:
      MeshAxisError: without a mesh, or for an axis that it does not have.
      StructureError: for a hint whose ranks or lengths are open, without ``like``.
      ShardingError: for a mark ``~``, for ``+`` or ``-`` over Auto axes, and for an unknown kind of memory.
    """
    boxed = partial(mesh_of_boxes, T if like is None else like)
    place = placement_context("shardings", mesh, needs="mesh", takes_sums=True, boxed=boxed)
    kind = read_memory_kind(place.verb, place.mesh, memory_kind)
    return _map_hints(place, T, like, lambda place, hint, rank: place.sharding(hint, rank, kind))


def _map_hints(
    place: PlacementContext, T: Any, like: Any, make: Callable[[PlacementContext, ArrayHint | None, int], Any]
) -> Any:
    """Call ``make`` with the context, the hint and the rank of each array; return the tree of its results."""
    if like is not None or holds_boxes(T):  # a boxed tree needs no hint: its boxes have names
        value, node = (T, None) if like is None else (like, parse_hint_or_dims(T))
        tree = check_leaves(place, value, node)
        made = [make(placed.place, placed.leaf.hint, rank_of(placed.leaf.value)) for placed in tree.leaves]
        return tree.with_values(made, are_specs=True)

    def array(hint: ArrayHint, path: str) -> Any:
        if hint.spec.rest is not None:
            raise builder.open(f"the rank of {path or hint.text} is open")
        rank, subject = len(hint.spec.dims), Subject("placed", "hint", path)
        place.layout(hint, subject)
        if place.mesh is not None:
            # Check the marks by the rule for arrays, with an array of any size.
            any_array = jax.ShapeDtypeStruct((0,) * rank, default_dtype(hint))
            failure = check_array(any_array, any_size_hint(hint), place.context, NO_SIZES, subject, {})
            if isinstance(failure, Failure):
                raise place.error((replace(failure, got=None),))
        return make(place, hint, rank)

    unsharded = make(place, None, 0)
    builder = TreeBuilder(place.verb, array, _CURE, lambda value: jax.tree.map(lambda _: unsharded, value), unsharded)
    return builder.build(parse_hint_or_dims(T))


def shape_structs(
    T: Any,
    /,
    mesh: MeshLike | None = None,
    like: Any = None,
    *,
    sizes: Mapping[str, Any] | None = None,
    **dims: int | tuple[int, ...],
) -> Any:
    """The arrays that a hint, or a class of hints, describes, as ``jax.ShapeDtypeStruct``s of global shape.

    Use them in ``jax.eval_shape``, in ``jax.jit(f).lower``, or as the target of a checkpoint's restore.
    On an AbstractMesh no device is needed.

    ```python
    structs = shape_structs(Weights, mesh, vocab=512, model=64, ff=256)
    jax.jit(step).lower(structs, shape_structs(Batch, mesh, batch=32, seqlen=128)).compile()
    ```

    A dtype name for several dtypes becomes JAX's default of its kind, the 64-bit one under
    ``jax_enable_x64``: float32 for Float, Inexact, Num, Real and Shaped; int32 for Int
    and Integer; uint32 for UInt; complex64 for Complex; the dtype of ``jax.random.key`` for Key.

    Args:
      T: a hint, or a class whose fields have hints.
      mesh: the mesh, which may be abstract, a dict of sizes, or a text ``"dp=4,tp=2"``; by default
        the ambient one, if there is one.
      like: a value of that type, which gives the structure, shapes and dtypes that the hint leaves open: for
        ``Like[optax.OptState, Weights]`` the result of ``jax.eval_shape(optimizer.init, structs)``.
      sizes: sizes by name as in a dict, for a dim that has the name of an option.
      **dims: the global size of each name in the hints; a tuple of sizes for ``*name``; not needed with ``like``.

    Returns:
      The structs, in the tree structure of ``like``, else of the hint, with shardings if a mesh is known. A leaf that
      is not an array has its default.

    Raises:
      ShapeError: for a missing, unknown or invalid size, and for a dim without a size (``_``,
        ``...``, ``{argument}``) or that does not divide over its mesh axes.
      StructureError: for a hint with an open number of arrays.
      MeshAxisError: for an axis that the mesh does not have, and in a manual region.
      ShardingError: for a mark ``+`` or ``~``, and for ``-`` over Auto axes.
    """
    sizes = merge_sizes("shape_structs", sizes, dims)
    place = placement_context("shape_structs", mesh, needs="mesh", is_optional=True)
    tree, leaves = structs_of(parse_hint_or_dims(T), place, sizes, like)
    return _jax.tree.replace_leaves(tree, [leaf.value for leaf in leaves])


class _ArraySlot(Record):
    """The place of one array in a structure."""

    hint: ArrayHint
    path: str


def structs_of(
    node: Node, place: PlacementContext, sizes: Mapping[str, Any], like: Any = None, check: ArrayCheck = check_array
) -> tuple[Any, list[CheckedLeaf]]:
    """A tree in the structure of a hint, or of ``like``, and its leaves: structs with their hints and paths."""
    if like is None:
        tree, name = _unplaced_structs(node, place, sizes), "hint"
    else:
        refuse_wrong_sizes(place.verb, array_hints(node), sizes, must_all=False)
        tree, name = like, "like"

    def placed(leaf: CheckedLeaf) -> CheckedLeaf:
        value, hint, *_ = leaf
        if hint is None:
            return leaf
        struct = value if isinstance(value, _jax.array.SHAPES) else jax.typeof(value)
        sharding = place.sharding_at_rest(hint, len(struct.shape))
        return leaf._replace(value=jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=sharding))

    return tree, [placed(leaf) for leaf in place.require_match(node, tree, name, bound_sizes(sizes), check)]


def _unplaced_structs(node: Node, place: PlacementContext, sizes: Mapping[str, Any]) -> Any:
    cure = "write tuples instead of lists, and classes instead of dicts; give fields without arrays a default"
    tree = TreeBuilder(place.verb, _ArraySlot, f"{cure}; or {_CURE}").build(node)
    leaves = jax.tree_util.tree_leaves(tree)
    slots = [leaf for leaf in leaves if isinstance(leaf, _ArraySlot)]
    refuse_wrong_sizes(place.verb, [slot.hint for slot in slots], sizes, must_all=True)
    known = bound_sizes(sizes)
    slot_shapes = [(slot, shape_of(slot.hint, known)) for slot in slots]
    if wrong := [(slot, shape) for slot, shape in slot_shapes if not isinstance(shape, tuple)]:
        raise place.error(Failure(what, Subject("placed", "hint", slot.path), slot.hint.text) for slot, what in wrong)
    made = (jax.ShapeDtypeStruct(shape, default_dtype(slot.hint)) for slot, shape in slot_shapes)
    return _jax.tree.replace_leaves(tree, [next(made) if isinstance(leaf, _ArraySlot) else leaf for leaf in leaves])


def bound_sizes(sizes: Mapping[str, Any]) -> Sizes:
    """The caller's sizes, bound before any match."""
    known: dict[str, Any] = {}
    for name, size in sizes.items():
        known |= {f"*{name}": tuple(map(int, size))} if isinstance(size, tuple) else {name: int(size)}
    return Sizes({name: Bound(size, GIVEN, 0) for name, size in known.items()}) if known else NO_SIZES


def refuse_wrong_sizes(verb: str, hints: Iterable[ArrayHint], sizes: Mapping[str, Any], must_all: bool) -> None:
    """Raise for values that are not sizes, for names that no hint has, and for missing sizes if ``must_all``."""
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
            problems.append(f"{name}={value_text(size)} is not a tuple of sizes, which '*{name}' expects")
    if problems:
        names = ", ".join(texts.values()) or "none"
        raise ShapeError(f"{verb}: {'; '.join(problems)}\n\nHint: the names in the hints are {names}")


def _is_size(size: Any) -> bool:
    return isinstance(size, (int, np.integer)) and not isinstance(size, bool) and 0 <= int(size) <= LARGEST_SIZE


def names_of(hints: Iterable[ArrayHint]) -> dict[str, bool]:
    """The names in the dims of hints, in order; True for a name of several dims."""
    names: dict[str, bool] = {}
    for hint in hints:
        for dim in hint.spec.dims:
            if isinstance(dim, Rest):
                names.update({dim.name: True} if dim.name is not None else {})
            else:
                names.update({name: False for name in names_in_expression(dim.size) if name not in names})
    return names


def shape_of(hint: ArrayHint, sizes: Sizes) -> tuple[int, ...] | Fault:
    """The shape of a hint with known sizes, or the fault that explains why it has no shape."""
    shape, no_size = list[int](), "for which no size can be given"
    for index, dim in enumerate(hint.spec.dims):
        if isinstance(dim, Rest):
            known = sizes.get(f"*{dim.name}") if dim.name is not None else None
            if known is None:
                return WrongSize(f"has '{dim}', {no_size}", dim.span, "write '*name' instead, and pass its size")
            assert isinstance(known.size, tuple)
            shape += known.size
            continue
        expression = dim.size
        problem, cure = f"has dim '{expression}', {no_size}", "write a name instead, and pass its size"
        wrong_size = WrongSize(problem, dim.span, cure)
        if isinstance(expression, AnySize):
            return wrong_size
        if isinstance(expression, Name) and sizes.get(expression.name) is None:
            return WrongSize(f"has dim '{expression}', but '*{expression}' stands for several dims", dim.span)
        try:
            size = evaluate(expression, sizes, {})
        except NoValue as unknown:
            return wrong_size if isinstance(expression, Braces) else mismatch_of(unknown, dim, index, dim.span)
        if size < 0:
            return WrongSize(f"has dim '{expression}' of size {size}", dim.span)
        shape.append(size)
    return tuple(shape)


_PREFERRED = (float, int, "uint64", complex, bool)


def default_dtype(hint: ArrayHint) -> Any:
    """The dtype of a hint, or JAX's default of its kind if it has several."""
    names = hint.dtypes
    if names is not None and "prng_key" in names:
        return jax.eval_shape(lambda: jax.random.key(0)).dtype
    defaults = map(_jax.array.default_dtype, _PREFERRED)
    usual = [dtype for dtype in defaults if names is None or str(dtype) in names]
    return usual[0] if usual or names is None else jax.numpy.dtype(names[0])


_MISSING: Any = dataclasses.MISSING
_SCALARS = (bool, int, float, complex)


class TreeBuilder(Record):
    """Builds a tree in the structure of a hint, with other leaves.

    Attributes:
      verb: the function that messages name.
      array: returns the leaf for an array, from its hint and its path.
      cure: the cure in the error for an open hint.
      static: returns the leaf for a static field, from its default.
      scalar: the leaf for a Python number without a default; None if a default is required.
      choose: returns the node to build, from a node and the enclosing records, if the hint leaves a choice.
      like: returns the subtree for a ``Like``, from its hint and its path; None if its structure is unknown.
    """

    verb: str
    array: Callable[[ArrayHint, str], Any]
    cure: str
    static: Callable[[Any], Any] = lambda default: default
    scalar: Any = None
    choose: Callable[[Node, frozenset[int]], Node] = lambda node, inside: node
    like: Callable[[structure.LikeOf, str], Any] | None = None

    def build(self, node: Node, path: str = "", inside: frozenset[int] = frozenset()) -> Any:
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
                values = self._fields(node, path, inside)
                return node.cls(*values.values()) if kind == "NamedTuple" else self._instance(node.cls, values, path)
            case structure.LikeOf() if self.like is not None:
                return self.like(node, path)
            case structure.UnionOf(options, _) if (key := typed_key(options)) is not None:
                return self.build(key, path, inside)
            case structure.UnionOf():
                raise self.open(f"{path or node_name(node)} is a union")
            case _:
                raise self.open(f"{path or node_name(node)} does not say how many arrays it holds")

    def open(self, problem: str) -> StructureError:
        return StructureError(f"{self.verb}: {problem}\n\nHint: {self.cure}")

    def _wrong_class(self, what: Fault, path: str) -> TypedShmapError:
        """The error for a class that JAX does not flatten according to its hints."""
        return error_of(Report(self.verb, (Failure(what, Subject("placed", "hint", path)),)))

    def _not_by_hints(self, cls: type, path: str) -> StructureError:
        """The error for a class whose children depend on the instance, such as ``nnx.Module``."""
        of = f"{path} is of class {cls.__name__}, which" if path else cls.__name__
        return self.open(f"{of} cannot be built from its hints alone")

    def _needs_no_default(self, hint: Any) -> bool:
        return hint is type(None) or (hint in _SCALARS and self.scalar is not None)

    def _fields(self, node: structure.Fields, path: str, inside: frozenset[int]) -> dict[str, Any]:
        """The fields of a NamedTuple or a dataclass; static fields and fields that are not children have defaults."""
        cls, flattened = node.cls, node.fields.keys()
        defaults: dict[str, Any] = getattr(cls, "_field_defaults", {})
        if node.kind in ("dataclass", "class"):
            flattened = self._flattened(node, path)
        if node.kind == "class":
            defaults = {name: default for name, default in vars(cls).items() if not hasattr(default, "__get__")}
        if node.kind == "dataclass":
            fields = dataclasses.fields(cls)
            factories: dict[str, Any] = {field.name: field.default_factory for field in fields}
            made = {name: factory() for name, factory in factories.items() if factory is not _MISSING}
            defaults = {field.name: field.default for field in fields} | made
        values: dict[str, Any] = {}
        for name, inner in node.fields.items():
            default, at, is_child = defaults.get(name, _MISSING), f"{path}.{name}", name in flattened
            inner = self.choose(inner, inside) if is_child else inner
            is_built = isinstance(inner, Static) and self._needs_no_default(inner.hint)
            is_filled = default is _MISSING and (is_built or isinstance(inner, structure.BareTree))
            if is_child and (declares_arrays(inner) or is_filled):
                values[name] = self.build(inner, at, inside)
            elif not is_child and declares_arrays(inner) and node.kind == "class":
                raise self._not_by_hints(cls, path)
            elif not is_child and declares_arrays(inner):
                raise self._wrong_class(failures.NonPytreeField(cls.__name__, name), path)
            elif default is _MISSING:
                raise self.open(f"{at} holds no array and has no default")
            else:
                values[name] = self.static(default) if is_child else default
        return values

    def _instance(self, cls: type, values: Mapping[str, Any], path: str) -> Any:
        """An instance with these fields; raises if JAX finds other children in it."""
        made, fields = _new_instance(cls, values), set(map(id, values.values()))
        try:
            children = _jax.tree.one_level(made) or []
        except _jax.tree.BadTree:
            children = [(None, made)]
        if not all(id(part) in fields for _, part in children):
            raise self._not_by_hints(cls, path)
        return made

    def _flattened(self, node: structure.Fields, path: str) -> set[str]:
        """The fields of a class that JAX flattens, found by a marker in each field."""
        cls, markers = node.cls, {name: object() for name in node.fields}
        try:
            children = _jax.tree.one_level(_new_instance(cls, markers))
        except _jax.tree.BadTree as bad:
            if node.kind == "class":
                raise self._not_by_hints(cls, path) from None
            problem = f"is of class {cls.__name__}, which JAX cannot flatten: {bad}"
            raise self._wrong_class(failures.PlainMessage(problem), path) from None
        if children is None:
            raise self._wrong_class(failures.NotAPytree(cls.__name__), path)
        child_ids = {id(part) for _, part in children}
        return {name for name, marker in markers.items() if id(marker) in child_ids}


def typed_key(options: tuple[Node, ...]) -> ArrayLeaf | None:
    """The typed key in a ``PRNGKeyArray``, which also accepts raw keys."""
    leaves = [option for option in options if isinstance(option, ArrayLeaf)]
    keys = [leaf for leaf in leaves if leaf.hint.dtypes == KEYS]
    is_raw = all(leaf.hint.dtypes in (KEYS, ("uint32",)) for leaf in leaves)
    return keys[0] if keys and is_raw and len(leaves) == len(options) else None


def _new_instance(cls: type, values: Mapping[str, Any]) -> Any:
    # The __init__ of a class may reject leaves that are not arrays, so set the fields without it.
    made: Any = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def any_size_hint(hint: ArrayHint) -> ArrayHint:
    """The hint with any size for every dim; brackets and marks stay."""
    dims = [Rest(span=dim.span) if isinstance(dim, Rest) else dim for dim in hint.spec.dims]
    dims = [Dim(AnySize(), dim.axes, span=dim.span) if isinstance(dim, Dim) else dim for dim in dims]
    return replace(hint, spec=replace(hint.spec, dims=tuple(dims)), takes_rules=False)
