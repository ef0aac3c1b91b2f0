"""The operations and the memory traffic of one device, line by line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from math import log2, prod
from typing import Any, Literal

import numpy as np

from ... import _jax
from ..._jax.primitives import PRIMITIVES, primitive
from .model import Work, WorkLine
from .program import Program

WorkKind = Literal["products", "transforms", "elementwise", "reductions"]
# Other operations choose or rename entries.
_ELEMENTWISE = {
    name for name, known in PRIMITIVES.items() if known.is_entry_by_entry and known.kind not in ("cast", "choice")
} - {"imag", "real"}


def work_of(program: Program) -> Work:
    """The work of a program: operations by their equations, bytes by the steps that move them."""
    kinds, flops, once = Counter[str](), Counter[str](), 0
    matrix, moved = defaultdict[str, Counter[str]](Counter), Counter[str]()
    for eqn, parts, around in program.equations:
        for kind, dtype, count in _operations(eqn):
            on_device = -(-count // parts)
            total, once = on_device * around.times, once + on_device
            kinds[kind] += total
            flops[around.place] += total
            if kind in ("products", "transforms"):
                matrix[around.place][dtype] += total
    for step in program.steps:
        size = sum(step.reads.values()) + sum(buffer.bytes for buffer in step.writes)
        moved[step.around.place] += size * step.around.times
    lines = [WorkLine(place, flops[place], moved[place], dict(matrix[place])) for place in {**flops, **moved}]
    lines.sort(key=lambda line: (-line.flops, -line.bytes, line.place))
    return Work(
        flops.total(),
        once,
        moved.total(),
        dict(kinds.most_common()),
        tuple(line for line in lines if any(line[1:3])),
    )


def _operations(eqn: Any) -> Iterator[tuple[WorkKind, str, int]]:
    """The floating-point operations of an equation: their kind, the dtype of the operands, and their number."""
    name, atoms = eqn.primitive.name, [*eqn.invars, *eqn.outvars]
    if not all(hasattr(atom.aval, "shape") for atom in atoms) or not eqn.outvars:
        return
    result, dtype = eqn.outvars[0].aval, _widest(eqn)
    if (count := _PRODUCTS.get(name)) is not None:
        yield "products", dtype, count(eqn)
    elif name == "fft":
        lengths = eqn.params["fft_lengths"]
        size = max(prod(eqn.invars[0].aval.shape), prod(result.shape))
        is_real = "RFFT" in str(eqn.params["fft_type"])
        yield "transforms", dtype, round((2.5 if is_real else 5) * size * log2(max(2, prod(lengths))))
    elif primitive(name).kind == "reducing" or name.startswith(("cum", "reduce_window")):
        if _jax.array.is_inexact(eqn.invars[0].aval.dtype):
            yield "reductions", dtype, prod(eqn.invars[0].aval.shape)
    elif name in _ELEMENTWISE and _jax.array.is_inexact(result.dtype):
        yield "elementwise", dtype, prod(result.shape)


def _widest(eqn: Any) -> str:
    dtypes = [atom.aval.dtype for atom in eqn.invars if _jax.array.is_inexact(atom.aval.dtype)]
    dtypes = dtypes or [atom.aval.dtype for atom in eqn.invars] or [eqn.outvars[0].aval.dtype]
    return _jax.array.short_dtype(max(dtypes, key=lambda dtype: dtype.itemsize))


def _dot(eqn: Any) -> int:
    """A multiplication and an addition per entry of the result and of the contracted dims."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return 2 * prod(eqn.outvars[0].aval.shape) * prod(shape[dim] for dim in contracted)


def _convolution(eqn: Any) -> int:
    """The same, for pairs of an entry and a weight of the window; pairs with padding do not count."""
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    lhs, rhs, out = (var.aval.shape for var in (*eqn.invars[:2], eqn.outvars[0]))
    pairs = 1
    for at, (low, _) in enumerate(params["padding"]):
        stride, spread, apart = (params[key][at] for key in ("window_strides", "lhs_dilation", "rhs_dilation"))
        size, window, count = (shape[spec[at + 2]] for shape, spec in zip((lhs, rhs, out), numbers, strict=True))
        place = np.arange(count)[:, None] * stride + np.arange(window) * apart - low
        pairs *= int(np.count_nonzero((place >= 0) & (place < (size - 1) * spread + 1) & (place % spread == 0)))
    batch, features = out[numbers.out_spec[0]], out[numbers.out_spec[1]]
    return 2 * batch * features * rhs[numbers.rhs_spec[1]] * pairs


def _kernel(eqn: Any) -> int:
    """The cost estimate of a kernel; 0 without an estimate."""
    cost = eqn.params.get("cost_estimate")
    return int(getattr(cost, "flops", 0) or 0)


_PRODUCTS: dict[str, Callable[[Any], int]] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "pallas_call": _kernel,
}
