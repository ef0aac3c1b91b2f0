"""The hints of decorated functions as data: a signature, a call bound to it on a mesh, and the leaves of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import AxisType, PartitionSpec

from .. import _jax
from ..errors.failures import RETURN
from ..hints.array_hint import ArrayHint
from ..hints.check_array import check_array
from ..hints.check_structs import check_as_traced
from ..hints.check_tree import check_arguments, check_value
from ..hints.context import MeshContext, current_axis_naming
from ..hints.fitting import CheckedLeaf
from ..hints.parse_hint import parse_hint_or_dims
from ..hints.signature import HintedSignature
from ..hints.structure import Node, array_hints
from ..introspection import DecoratedInfo, bound_self, find_decorated, require_decorated
from ..meshes import MeshLike, read_mesh
from ..notation.layout import Layout
from ..ops.resharding.pieces import shard_shape
from ..placement.placement_context import no_mesh, placement_context_over
from ..placement.structs import structs_of

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Hint(NamedTuple):
    """A hint for one array.

    Attributes:
      text: the hint as it was written, ``Float[Array, "[b/dp] d"]``.
      layout: the mesh axes of its dims and marks, with aliases and rules applied: ``dim_axes``, ``unreduced``,
        ``reduced``, ``varying``; None if it names an axis that the mesh does not have.
      dims: its dims as they are written, ``("[b/dp]", "d")``.
      marks: its marks, ``("+tp",)``.
    """

    text: str
    layout: Layout | None
    dims: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    @classmethod
    def over(cls, hint: ArrayHint, context: MeshContext, rank: int | None = None) -> Hint:
        """The meaning of a hint in a mesh context; for an array of a rank, with an entry for each dim."""
        layout, spec = context.layout(hint), hint.spec
        layout, dims = layout if isinstance(layout, Layout) else None, spec.dims
        if rank is not None:
            layout, dims = layout and layout.at_rank(rank, spec.rest), [spec.dim_at(at, rank) for at in range(rank)]
        return cls(str(hint.text), layout, tuple(map(str, dims)), tuple(map(str, spec.marks)))


class HintedLeaf(NamedTuple):
    """A leaf of an argument or of a result, on a mesh.

    Attributes:
      name: its path, ``params.w[0]``.
      value: an array, a ``jax.ShapeDtypeStruct``, or any other value.
      hint: its hint, with an entry of the layout for each dim; None if it has no hint.
      shard_shape: the shape of one shard; empty for a value that is not an array.
    """

    name: str
    value: Any
    hint: Hint | None
    shard_shape: tuple[int, ...]

    @property
    def spec(self) -> PartitionSpec:
        """Its PartitionSpec; unsharded without a hint."""
        if self.hint is None or self.hint.layout is None:
            return _jax.array.partition_spec([()] * len(self.shard_shape))
        return _jax.array.spec_of(self.hint.layout)


def _leaf(name: str, leaf: CheckedLeaf, context: MeshContext) -> HintedLeaf:
    value, hint, *_ = leaf
    shape = tuple(np.shape(value)) if hint is not None or isinstance(value, _ARRAYS) else ()
    if hint is None:
        return HintedLeaf(name, value, None, shape)
    known = Hint.over(hint, context, len(shape))
    assert known.layout is not None
    return HintedLeaf(name, value, known, shard_shape(known.layout.dim_axes, shape, dict(context.mesh or ())))


_ARRAYS = (*_jax.array.ARRAYS, *_jax.array.SHAPES)


class Signature:
    """The hints of a decorated function, and the options of its decorator. Hints are parsed at their first use.

    Attributes:
      verb: the decorator: ``"typed_shard_map"``, ``"typed_jit"`` or ``"typed"``.
      mesh: the decorator's mesh; None if it is looked up at every call.
      axis_names: the mesh axes that it makes manual; empty for all.
    """

    def __init__(self, f: Any, info: DecoratedInfo) -> None:
        self._owner, self._info = bound_self(f), info
        self._context = MeshContext.over(info.mesh, current_axis_naming(info.naming))
        self.verb, self.mesh, self.axis_names = info.verb, info.mesh, info.axis_names

    @cached_property
    def _typed(self) -> HintedSignature:
        return self._info.signature.read(self._owner)

    @property
    def name(self) -> str:
        """The function's name."""
        return self._typed.name

    @cached_property
    def parameters(self) -> Mapping[str, tuple[Hint, ...]]:
        """For each parameter the hints of its arrays; empty for a static parameter."""
        nodes = dict(self._typed.parameters) | {f"in_types[{at}]": n for at, n in enumerate(self._typed.positional)}
        return {name: self._hints(node) for name, node in nodes.items()}

    @cached_property
    def result(self) -> tuple[Hint, ...]:
        """The hints of the arrays that it returns."""
        return () if self._typed.result is None else self._hints(self._typed.result)

    def known_mesh(self, mesh: MeshLike | None = None) -> _jax.mesh.AnyMesh | None:
        """The mesh of a call: ``mesh``, else the decorator's, else the ambient mesh; None without these."""
        return read_mesh(mesh) or self.mesh or _jax.mesh.ambient_mesh()

    @property
    def hints(self) -> list[Hint]:
        """The hints of all arrays, first those of the arguments."""
        return [hint for hints in (*self.parameters.values(), self.result) for hint in hints]

    @property
    def has_marks(self) -> bool:
        """Whether a hint has marks, so that the function belongs in manual regions."""
        return any(hint.marks for hint in self.hints)

    @property
    def axes(self) -> list[str]:
        """The mesh axes that its hints and ``axis_names=`` name, in their order."""
        names = list[str]()
        for layout in (hint.layout for hint in self.hints):
            if layout is not None:
                sharded = [axis for axes in layout.dim_axes for axis in axes]
                names += [*sharded, *sorted(layout.axes - set(sharded))]
        return list(dict.fromkeys([*names, *sorted(self.axis_names)]))

    def _hints(self, node: Node) -> tuple[Hint, ...]:
        return tuple(Hint.over(hint, self._context) for hint in array_hints(node))


def find_signature(f: Any) -> Signature | None:
    """Return the result of `signature`; None for a function without hints."""
    info = find_decorated(f)
    return None if info is None else Signature(f, info)


def signature(f: Any, verb: str = "signature") -> Signature:
    """Return the hints of a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also through ``jax.jit``.

    ```python
    signature(mlp).parameters["x"][0].layout.dim_axes  # (("dp",), ()) for Float[Array, "[batch/dp] model"]
    ```

    Args:
      f: the function, or a method of an instance.
      verb: the function that messages name.

    Raises:
      StructureError: for any other function.
      AnnotationSyntaxError: for a hint that cannot be parsed, at its first use.
    """
    return Signature(f, require_decorated(f, verb))


class CheckedCall:
    """The arguments of a call, compared with the hints of the function on a mesh; made by `bind`.

    Attributes:
      leaves: the leaves of the arguments, in the order of the parameters.
    """

    def __init__(self, f: Any, mesh: _jax.mesh.AnyMesh, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        info, owner = require_decorated(f, "bind"), bound_self(f)
        naming = current_axis_naming(info.naming)
        self._typed = typed = info.signature.read((*owner, *args))
        self._call, self._left_out = typed.bind((*owner, *args), dict(kwargs)), len(typed.given) + len(owner)
        self._region = MeshContext.over(mesh, naming, "boundary")
        place = placement_context_over(typed.name, mesh, naming, takes_sums=True)
        given = [argument for argument in typed.arguments(self._call) if argument[0] in self._call.given]
        self._checked = checked = check_arguments(given, self._call.arguments, place.context)
        if checked.failures:
            raise place.error(checked.failures, checked.sizes)
        self._sizes = checked.sizes
        self.leaves = self._leaves(checked.leaves)

    @property
    def sizes(self) -> dict[str, int | tuple[int, ...]]:
        """The global sizes of all names that the hints bind; a tuple for ``*name``."""
        return {name: bound.size for name, bound in self._sizes if name.lstrip("*").isidentifier()}

    def with_values(self, values: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for a call of the function, positional and by keyword, with other values for the leaves."""
        pairs = zip(self._checked.leaves, values, strict=True)
        changes = self._checked.with_leaves([leaf._replace(value=value) for leaf, value in pairs])
        args, kwargs = self._call.with_arguments(changes)
        return args[self._left_out :], kwargs

    def results(self, value: Any) -> list[HintedLeaf]:
        """The leaves of a result, or of a result of ``jax.eval_shape``; ``sizes`` then has the names that it binds.

        Raises:
          TypedShmapError: for a result that contradicts its hint.
        """
        if (node := self._typed.result) is None:
            return []
        named, sizes = self._call.arguments, self._sizes
        checked = check_as_traced(
            lambda value: check_value(node, value, RETURN, self._region, named, sizes), value, has_shardings=False
        )
        if checked.failures:
            raise self._region.error(self._typed.name, checked.failures, checked.sizes)
        self._sizes = checked.sizes
        return self._leaves(checked.leaves)

    def _leaves(self, leaves: Iterable[CheckedLeaf]) -> list[HintedLeaf]:
        return [_leaf(str(leaf.subject), leaf, self._region) for leaf in leaves]


def bind(
    f: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = NOTHING, *, mesh: MeshLike | None = None
) -> CheckedCall:
    """Compare the arguments of a call with the hints of a decorated function on a mesh, without calling it.

    ```python
    call = bind(train_step, (state, batch), mesh={"dp": 64, "tp": 8})  # arrays, or jax.ShapeDtypeStruct
    for leaf in call.leaves:
        print(leaf.name, leaf.spec, leaf.shard_shape)
    ```

    Args:
      f: a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, or a method of an instance.
      args: the positional arguments. Arrays may be on other devices.
      kwargs: the keyword arguments.
      mesh: a ``jax.sharding.Mesh`` or ``AbstractMesh``, a dict of sizes, or a text ``"dp=4,tp=2"``; by default the
        function's own, else the ambient one.

    Raises:
      StructureError: for a function without hints, and for a call that lacks an argument.
      MeshAxisError: without a mesh, or for an axis that it does not have.
      TypedShmapError: for arguments that contradict their hints.
    """
    known = signature(f, "bind").known_mesh(mesh)
    if known is None:
        raise no_mesh("bind")
    return CheckedCall(f, known, args, kwargs)


def leaves_of(
    hint: Any, sizes: Mapping[str, Any] = NOTHING, *, mesh: MeshLike | None = None, verb: str = "leaves_of"
) -> list[HintedLeaf]:
    """Return the arrays that a hint, or a class of hints, describes on a mesh, as ``jax.ShapeDtypeStruct``s.

    ```python
    per_device = sum(prod(leaf.shard_shape) for leaf in leaves_of(Weights, {"model": 4096}, mesh="dp=8,tp=4"))
    ```

    Args:
      hint: a hint, its dims as a string, or a class whose fields have hints. It may have any marks.
      sizes: the global size of each name in the hints; a tuple of sizes for ``*name``.
      mesh: as for `bind`; by default the ambient one.
      verb: the function that messages name.

    Raises:
      ShapeError: for a missing, unknown or invalid size, and for a dim that does not divide over its mesh axes.
      MeshAxisError: without a mesh, or for an axis that it does not have.
      StructureError: for a hint with an open number of arrays.
    """
    given = read_mesh(mesh) or _jax.mesh.ambient_mesh()
    if given is None:
        raise no_mesh(verb)
    # Over Explicit axes, so that marks also have a meaning outside regions.
    place = placement_context_over(verb, _jax.mesh.with_axis_type(given, AxisType.Explicit), current_axis_naming())
    _, leaves = structs_of(parse_hint_or_dims(hint), place, sizes, check=_check_without_marks)
    named = ((leaf.subject.path.removeprefix("."), leaf) for leaf in leaves if leaf.hint is not None)
    return [_leaf(name, leaf, place.context) for name, leaf in named]


def _check_without_marks(value: Any, hint: ArrayHint, *rest: Any) -> Any:
    """Check an array except its marks: a shard of a manual region is shown as if it were placed."""
    return check_array(value, replace(hint, spec=replace(hint.spec, marks=())), *rest)
