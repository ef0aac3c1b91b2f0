"""Describe a traced region as the hints that its function would have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from .. import _jax
from ..notation.layout import Layout
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
      arguments: one hint per array that the function is given, in order; None where nothing is known.
      results: the same per array that it returns.
      axes: mesh axes that no hint can name, by the names that the hints have for them.
    """

    arguments: tuple[LeafHint | None, ...]
    results: tuple[LeafHint | None, ...]
    axes: Mapping[str, str]


def describe(
    traces: Sequence[_jax.jaxpr.TracedRegion], parameters: Sequence[str], source: FunctionSource | None
) -> Description:
    """The hints of a function that was mapped.

    Args:
      traces: the regions that its calls were traced to.
      parameters: the path of each array among its arguments, ``"params['w']"``; what it closes over has none.
      source: its text.
    """
    eqn = traces[0].eqn
    first = len(eqn.invars) - len(parameters)
    axes: dict[str, str] = {}
    arguments = [
        _leaf_hint(var.aval, spec, _names(path, len(var.aval.shape)), axes)
        for var, spec, path in zip(eqn.invars[first:], eqn.params["in_specs"][first:], parameters, strict=True)
    ]
    results = [
        _leaf_hint(eqn.outvars[at].aval, eqn.params["out_specs"][at], ["_"] * len(eqn.outvars[at].aval.shape), axes)
        for at in traces[0].results
    ]
    return Description(tuple(arguments), tuple(results), {word: axis for axis, word in axes.items() if axis != word})


def _names(path: str, rank: int) -> list[str]:
    words = "".join(letter if letter.isalnum() else " " for letter in path).split()
    base = next((word for word in reversed(words) if word.isidentifier()), "dim")
    return [f"{base}_{at}" for at in range(rank)]


def _leaf_hint(aval: Any, spec: Any, names: Sequence[str], axes: dict[str, str]) -> LeafHint:
    layout = _jax.array.spec_entries(spec, len(aval.shape))
    return LeafHint(_dtype_name(aval.dtype), _dims_text(layout, names, axes))


def _dims_text(layout: Layout, names: Sequence[str], axes: dict[str, str]) -> str:
    def word(axis: str) -> str:
        if axis not in axes:
            name = axis if axis.isascii() and axis.isidentifier() else "axis"
            while name in axes.values():
                name += "_"
            axes[axis] = name
        return axes[axis]

    dims = [
        f"[{name}/{','.join(map(word, sharded))}]" if sharded else name
        for name, sharded in zip(names, layout.dim_axes, strict=True)
    ]
    marks = [f"+{word(axis)}" for axis in sorted(layout.unreduced)]
    return " ".join([*dims, *marks, *(f"-{word(axis)}" for axis in sorted(layout.reduced))])


_KINDS = {
    "Key": jax.dtypes.prng_key,
    "Bool": jax.numpy.bool_,
    "Int": jax.numpy.signedinteger,
    "UInt": jax.numpy.unsignedinteger,
    "Float": jax.numpy.floating,
    "Complex": jax.numpy.complexfloating,
}


def _dtype_name(dtype: Any) -> str:
    """The name of the kind of a dtype, ``"Float"`` for ``float32``."""
    return next((name for name, kind in _KINDS.items() if jax.numpy.issubdtype(dtype, kind)), "Shaped")
