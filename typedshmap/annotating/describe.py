"""Describe a traced region as the hints that its function would have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import _jax
from ..hints.array_hint import FAMILIES, takes
from ..inference.dims import Labels, RegionDims, read_dims
from ..notation.layout import Layout
from .dim_names import NamedDims, TracedDim
from .function_source import FunctionSource


class LeafHint(NamedTuple):
    """One array as a hint has it.

    Attributes:
      dtype: the name of its dtypes, ``"Float"``.
      dims: its dims with their mesh axes, ``"[batch/dp] seqlen [heads/tp] d"``.
    """

    dtype: str
    dims: str


class Description(NamedTuple):
    """What hints would say of a region.

    Attributes:
      arguments: one hint per array that the function is given, in order; None where its spec is not always the same.
      results: the same per array that it returns.
      axes: the names that hints have for mesh axes which are no identifiers, each with the axis.
    """

    arguments: tuple[LeafHint | None, ...]
    results: tuple[LeafHint | None, ...]
    axes: Mapping[str, str]


def describe(
    traces: Sequence[_jax.jaxpr.TracedRegion], parameters: Sequence[str], source: FunctionSource | None
) -> Description:
    """The hints of a function that was mapped.

    Dims have one name where the operations of the body need them to be of one size, in every trace; an array whose rank
    is not always the same has ``...``.

    Args:
      traces: the regions that its calls were traced to: of the function itself, neither of its gradient nor of what
        ``jax.vmap`` makes of it.
      parameters: the path of each array among its arguments, ``"params['w']"``; what it closes over has none.
      source: its text.
    """
    read = [read_dims(traced.eqn) for traced in traces]
    sides = [_leaves(traced, dims, len(parameters)) for traced, dims in zip(traces, read, strict=True)]
    arguments, results = ([_merged(leaves) for leaves in zip(*side, strict=True)] for side in zip(*sides, strict=True))
    named = NamedDims(read, [each.dims for each in arguments], [each.dims for each in results], parameters)
    if source is not None:
        named.take_notes(source)
    named.take_defaults()
    words = axis_words(traces[0].eqn.params["mesh"].axis_names)
    used = {axis for array in (*arguments, *results) if array.layout is not None for axis in array.layout.axes}
    return Description(
        tuple(_hint(array, named.argument(at), words) for at, array in enumerate(arguments)),
        tuple(_hint(array, named.result(at), words) for at, array in enumerate(results)),
        {word: axis for axis, word in words.items() if axis != word and axis in used},
    )


class _Leaf(NamedTuple):
    """An array in one trace, with the labels of its dims."""

    aval: Any
    spec: Any
    labels: Labels


def _leaves(traced: _jax.jaxpr.TracedRegion, dims: RegionDims, count: int) -> tuple[list[_Leaf], list[_Leaf]]:
    """So many arguments of a region, which are behind what its function closes over, and its results."""
    eqn = traced.eqn
    operands = list(map(_Leaf, (var.aval for var in eqn.invars), eqn.params["in_specs"], dims.operands))
    results = list(map(_Leaf, (var.aval for var in eqn.outvars), eqn.params["out_specs"], dims.results))
    return operands[len(operands) - count :], [results[at] for at in traced.results]


class _Array(NamedTuple):
    """An array in all traces.

    Attributes:
      dims: the dims that it has in all of them.
      rest: where among these the others are, whose number differs; None if there are none.
      dtypes: its dtypes.
      layout: what its PartitionSpec says; None where that is not always the same.
    """

    dims: list[TracedDim]
    rest: int | None
    dtypes: frozenset[Any]
    layout: Layout | None


def _merged(leaves: Sequence[_Leaf]) -> _Array:
    """An array in all traces; where its rank differs, dims are counted from the first one as far as one is sharded."""
    ranks = [len(leaf.aval.shape) for leaf in leaves]
    layouts = [_jax.array.spec_entries(leaf.spec, rank).dim_axes for leaf, rank in zip(leaves, ranks, strict=True)]
    most = [_jax.array.spec_entries(leaf.spec, max(ranks)) for leaf in leaves]
    layout = most[0] if all(one == most[0] for one in most) else None
    places, rest = list(range(ranks[0])), None
    if len(set(ranks)) > 1:
        rest = max(at for dim_axes in layouts for at, axes in enumerate((("",), *dim_axes)) if axes)
        places = [*range(rest), *range(rest - min(ranks), 0)]
    dims = [
        TracedDim(
            tuple(leaf.labels[at] for leaf in leaves), tuple(leaf.aval.shape[at] for leaf in leaves), layouts[0][at]
        )
        for at in places
    ]
    return _Array(dims, rest, frozenset(leaf.aval.dtype for leaf in leaves), layout)


def _hint(array: _Array, names: Sequence[str], axes: Mapping[str, str]) -> LeafHint | None:
    """A hint: each dim with its mesh axes, and what its spec says of sums."""
    if array.layout is None:
        return None
    dims = [bracketed(name, dim.axes, axes) for name, dim in zip(names, array.dims, strict=True)]
    if array.rest is not None:
        dims.insert(array.rest, "...")
    marks = [f"+{axes[axis]}" for axis in sorted(array.layout.unreduced)]
    marks += [f"-{axes[axis]}" for axis in sorted(array.layout.reduced)]
    return LeafHint(_dtype_name(array.dtypes), " ".join([*dims, *marks]))


def bracketed(name: str, dim_axes: Sequence[str], words: Mapping[str, str]) -> str:
    """A dim with the mesh axes that it is sharded over: ``"[batch/dp]"``, or ``"batch"`` without."""
    return f"[{name}/{','.join(words[axis] for axis in dim_axes)}]" if dim_axes else name


def axis_words(axes: Sequence[str]) -> dict[str, str]:
    """What hints call mesh axes: a name of their own if one is no identifier; for ``"=config.axis"`` its last part."""
    words = {axis: axis for axis in axes if axis.isascii() and axis.isidentifier()}
    for axis in axes:
        if axis not in words:
            letters = axis.rpartition(".")[2]
            word = "".join(one if one.isascii() and one.isalnum() else "_" for one in letters).strip("_")
            word = word if word.isidentifier() else f"axis{word}"
            while word in words.values():
                word += "_"
            words[axis] = word
    return words


def _dtype_name(dtypes: Iterable[Any]) -> str:
    """The name of the narrowest kind that has all dtypes, ``"Float"`` for ``float32``."""
    kinds = sorted((kind for kind in FAMILIES.items() if kind[1]), key=lambda kind: len(kind[1] or ()))
    return next((name for name, kind in kinds if all(takes(kind, str(dtype)) for dtype in dtypes)), "Shaped")
