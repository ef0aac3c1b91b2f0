"""Hints for a function without hints that calls ``jax.shard_map``, from the specs of its regions.

With these hints the tools for decorated functions accept it; on another mesh its regions run on that mesh."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ... import _jax
from ..._jax.array import NAMES, class_name
from ...errors import MeshAxisError, StructureError
from ...errors.phrases import mesh_text, name_of, quoted_axes
from ...hints.array_hint import ArrayHint, parse_array_hint
from ...hints.signature import POSITIONAL, HintedSignature, LazySignature
from ...hints.structure import ArrayLeaf, Fields, FixedTuple, Node, Untyped
from ...inspection import find_signature
from ...introspection import DecoratedInfo, wraps
from ...placement.structs import TreeBuilder
from .arguments import FlatCall, Inputs


def with_hints(
    verb: str,
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    ambient: _jax.mesh.AnyMesh | None = None,
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A function of the same arrays, with hints, whose regions run on the mesh that replaces their own.

    Args:
      verb: the function that messages name.
      f: a function that calls ``jax.shard_map``, or that it made; also under ``jax.jit``.
      args: arrays or ``jax.ShapeDtypeStruct``s, in any trees; other leaves are static.
      kwargs: the same by keyword.
      ambient: the ambient mesh to use if it needs a mesh, and no ambient mesh or mesh of an argument is known.

    Returns:
      The function, and the concrete arrays among its arguments by their paths.
    """
    given_call = _bind(verb, f, args, kwargs)
    flat, name = FlatCall(given_call, *_KINDS), name_of(f)
    arrays = flat.arrays

    def call(arrays: Sequence[Any]) -> Any:
        results = flat.run(f, arrays)
        return results if _is_plain_tree(results) else jax.tree.leaves(results)

    placed = (mesh for array in arrays if (mesh := _jax.mesh.value_mesh(array)) is not None)
    ambient = next(placed, ambient)
    traced, results, is_ambient = _trace(verb, f, call, arrays, ambient)
    region_meshes = [*_outer_meshes(traced)]
    if not region_meshes:
        raise StructureError(
            f"{verb}: {name}: it has no hints, and no shard_map is traced in it\n\nHint: pass a function made by "
            "typed_shard_map, typed_jit or typed, or one that calls jax.shard_map, with its arguments"
        )
    meshes = [_jax.mesh.context_mesh(), ambient]
    own_mesh = next((mesh for mesh in meshes if mesh and region_meshes[0] in (mesh, _as_auto(mesh))), region_meshes[0])
    entering, leaving = _jax.jaxpr.boundary_specs(traced)
    pairs = zip(arrays, entering, strict=True)
    specs = iter([_placed_spec(array) if spec is None else spec for array, spec in pairs])
    nodes = [(parameter, _node(value, specs)) for parameter, value in zip(given_call.names, given_call, strict=True)]
    nodes += [(parameter, _node(value, specs)) for parameter, value in sorted(given_call.kwargs.items())]
    parameters = {parameter: node for parameter, node in nodes if node is not None}
    given, values = dict[str, Any](), iter(arrays)
    for parameter, node in parameters.items():
        TreeBuilder(verb, lambda _, path: given.__setitem__(path, next(values)), "").build(node, parameter)

    def on_its_mesh(*values: Any) -> Any:
        mesh = _jax.mesh.override_mesh.value
        if mesh is not None and (missing := [axis for axis in own_mesh.axis_names if axis not in mesh.axis_names]):
            problem = f"its shard_map is over {quoted_axes(own_mesh.axis_names)}, and the mesh has no '{missing[0]}'"
            raise MeshAxisError(f"{verb}: {name}: {problem}\n\nMesh: {mesh_text(mesh.shape_tuple)}")
        ambient = nullcontext()
        if mesh is not None:
            ambient = jax.sharding.use_abstract_mesh(mesh.abstract_mesh) if is_ambient else _jax.mesh.without_ambient()
        with ambient:
            return call(jax.tree.leaves(values))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(parameter, kind) for parameter in parameters])
    result = _node(results, iter(leaving), Untyped())
    known = HintedSignature(on_its_mesh, name, signature, parameters, (), result)
    hinted = wraps(f, DecoratedInfo("typed_jit", LazySignature.of(known), mesh=own_mesh))(on_its_mesh)
    return hinted, {path: array for path, array in given.items() if isinstance(array, _jax.array.ARRAYS)}


_KINDS = (*_jax.array.ARRAYS, *_jax.array.SHAPES)
_NUMBERS = (bool, int, float, complex, np.generic)


def _outer_meshes(jaxpr: Any) -> Iterator[_jax.mesh.AnyMesh]:
    """The meshes of the outermost regions."""
    regions = (eqn for eqn in _jax.jaxpr.all_equations(jaxpr) if eqn.primitive.name == "shard_map")
    return (eqn.params["mesh"] for eqn in regions if not eqn.params["mesh"].manual_axes)


def is_plain(f: Any) -> bool:
    """Whether no decorator of this library made a function."""
    return callable(f) and find_signature(f) is None


def _bind(verb: str, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs:
    """A call's arguments, by position if possible, each with a name."""
    names = list[str]()
    try:
        signature = inspect.signature(f)
        bound = signature.bind(*args, **kwargs)
        args, kwargs = bound.args, bound.kwargs
        names = [parameter.name for parameter in signature.parameters.values() if parameter.kind in POSITIONAL]
    except ValueError:  # written in C
        pass
    except TypeError as error:
        problem = f"it has no hints and needs its arguments, arrays or jax.ShapeDtypeStruct: {error}"
        raise StructureError(f"{verb}: {name_of(f)}: {problem}") from None
    names += [f"arg{at}" for at in range(len(names), len(args))]
    return Inputs.of(tuple(args), tuple(names[: len(args)]), kwargs, {}, 0)


def _trace(
    verb: str,
    f: Callable[..., Any],
    call: Callable[[Sequence[Any]], Any],
    arrays: Sequence[Any],
    lent: _jax.mesh.AnyMesh | None,
) -> tuple[Any, Any, bool]:
    """A call's jaxpr, the types of its results, and whether its regions are over the ambient mesh.

    The mesh ``lent`` is ambient if the call cannot be traced without it.
    """

    def run(*values: Any) -> Any:
        results = call(values)
        for leaf in jax.tree.leaves(results):
            if not isinstance(leaf, (*_KINDS, *_NUMBERS)) and not hasattr(leaf, "__jax_array__"):
                raise StructureError(f"{verb}: {name_of(f)}: it returns a {type(leaf).__name__}, which is not an array")
        return results

    def traced(arrays: Sequence[Any]) -> tuple[Any, Any]:
        # A new function, since JAX caches traces by the function.
        return jax.make_jaxpr(lambda *values: run(*values), return_shape=True)(*arrays)

    def needs_ambient(arrays: Sequence[Any]) -> bool:
        # A function of jax.shard_map without mesh= keeps the first mesh under which it is called, and has a mesh by
        # now.
        with suppress(Exception), _jax.mesh.without_ambient():
            return not any(_outer_meshes(traced(arrays)[0]))
        return True

    context = _jax.mesh.context_mesh()
    try:
        return *traced(arrays), not context.empty and needs_ambient(arrays)
    except Exception as error:
        untyped = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        for mesh in [context] if not context.empty else [None, lent]:
            auto = nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(_as_auto(mesh).abstract_mesh)
            with suppress(Exception), auto:
                return *traced(untyped), mesh is not None and needs_ambient(untyped)
        if any(_placed_spec(array) is None for array in arrays):
            error.add_note(f"{verb}: {name_of(f)}: {_PLACED}")
        raise error from None  # the mesh is not the cause


_PLACED = (
    "over Explicit axes jax.shard_map takes arguments as they are sharded: pass arrays that are placed, or "
    "jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))"
)


def _as_auto(mesh: _jax.mesh.AnyMesh) -> _jax.mesh.AnyMesh:
    """A mesh whose axes are all of type Auto."""
    return mesh if not mesh.explicit_axes else _jax.mesh.with_axis_type(mesh, AxisType.Auto)


def _is_plain_tree(value: Any) -> bool:
    """Whether a tree is of dicts, lists and tuples."""
    if type(value) not in (dict, list, tuple):
        return not _jax.tree.one_level(value)
    return all(_is_plain_tree(part) for _, part in _jax.tree.one_level(value) or ())


def _node(value: Any, specs: Iterator[PartitionSpec | None], other: Node | None = None) -> Node | None:
    """The hint of a tree, as dicts and lists; parts without arrays or specs are omitted, or have the other hint."""
    if isinstance(value, _KINDS):
        spec = next(specs)
        return other if other is not None and spec is None else ArrayLeaf(array_hint_of(value, spec))
    nodes = [(key, _node(part, specs, other)) for key, part in _jax.tree.one_level(value) or ()]
    parts = [(key, node) for key, node in nodes if node is not None]
    if not parts:
        return other
    if type(value) is dict:
        return Fields(dict, "TypedDict", {key.key: node for key, node in parts}, is_open=False)
    return FixedTuple(tuple(node for _, node in parts), tuple if type(value) is tuple else list)


def _placed_spec(array: Any) -> PartitionSpec | None:
    sharding = getattr(array, "sharding", None)
    return sharding.spec if isinstance(sharding, NamedSharding) else None


def array_hint_of(array: Any, spec: PartitionSpec | None) -> ArrayHint:
    """The hint of an array by its shape, dtype and spec; unsharded without a spec."""
    shape, dtype = array.shape, str(jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True))
    layout = _jax.array.spec_entries(spec if spec is not None else PartitionSpec(), len(shape))
    dims = [
        f"[{size}/{','.join(axes)}]" if axes else str(size) for size, axes in zip(shape, layout.dim_axes, strict=True)
    ]
    marks = [*(f"+{axis}" for axis in sorted(layout.unreduced)), *(f"-{axis}" for axis in sorted(layout.reduced))]
    name = "Key" if dtype.startswith("key<") else class_name(dtype)
    return parse_array_hint(name, NAMES[name], (jax.Array, " ".join([*dims, *marks])))
