"""With which operations a collective commutes, so that it may as well stand after them as before, and where dims go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .provenance import Known, Provenance

ONE_TO_ONE = frozenset(
    ["broadcast_in_dim", "convert_element_type", "copy", "pvary", "reshape", "rev", "squeeze", "transpose"]
)
MOVING = ONE_TO_ONE | frozenset(
    ["all_gather", "copy_p", "expand_dims", "name", "optimization_barrier", "preduced", "reduce_precision"]
).union(["reduced_vary_cast", "slice", "split", "stop_gradient"])
LINEAR = MOVING | frozenset(["neg", "reduce_sum", "real", "imag", "conj", "cumsum", "vary_unreduced_cast"])
PRODUCTS = frozenset(["mul", "dot_general", "conv_general_dilated"])
SCALING = frozenset(["div", "add", "add_any", "sub", "select_n"])
PICKING = frozenset(["dynamic_slice", "gather"])
PLACING = frozenset(["gather", "scatter", "scatter-add", "scatter_add"])
MIXING = frozenset(["sort", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "fft"])
# Which operands an operation adds, or puts side by side.
JOINED: Mapping[str, Callable[[int], bool]] = {
    **dict.fromkeys(("add", "add_any", "sub", "concatenate", "stack", "pad"), lambda at: True),
    "select_n": lambda at: at > 0,
    "dynamic_update_slice": lambda at: at < 2,
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add"), lambda at: at in (0, 2)),
}


def position_after(eqn: Any, at: int, position: int) -> int | None:
    """Where a dim of an operand is among those of the result; None where that is not known."""
    name, params, shape = eqn.primitive.name, eqn.params, eqn.invars[at].aval.shape
    gone = params.get("axes", params.get("dimensions", ())) if name.startswith("reduce_") or name == "squeeze" else ()
    if gone:
        return None if position in gone else position - sum(dim < position for dim in gone)
    if name == "transpose":
        return params["permutation"].index(position)
    if name == "broadcast_in_dim":
        return params["broadcast_dimensions"][position]
    if name == "dot_general":
        contracted, batched = params["dimension_numbers"]
        if position in batched[at]:
            return batched[at].index(position)
        free = [dim for dim in range(len(shape)) if dim not in (*contracted[at], *batched[at])]
        before = 0 if at == 0 else eqn.outvars[0].aval.ndim - len(free) - len(batched[0])
        return len(batched[0]) + before + free.index(position)
    return position if eqn.outvars[0].aval.shape == shape and name not in MIXING else None


def commutes(eqn: Any, kind: str, found: Mapping[int, Provenance], operands: list[Known]) -> bool:
    """Whether a collective may as well be after an equation as before it."""
    name, is_linear = eqn.primitive.name, kind in ("sum", "mean", "masked")
    if any(one.kind != kind or one.late is not None for one in found.values()):
        return False
    if name in MOVING or (name in PICKING and set(found) == {0}):
        return True
    if not is_linear:
        return name in {"maximum": ("max", "reduce_max"), "minimum": ("min", "reduce_min")}[kind]
    if name in LINEAR:
        return True
    if name in PRODUCTS or name == "div":
        return len(found) == 1 and (name != "div" or 0 in found)
    if name not in JOINED:
        return False
    joined = [at for at in range(len(operands)) if JOINED[name](at)]
    others = [operands[at] for at in joined if at not in found]
    is_shift = kind == "mean" and name in ("add", "add_any", "sub")
    return set(found) <= set(joined) and (is_shift or all(one.value == 0 or one.carried == "neutral" for one in others))


def sizes_of(eqn: Any, at: int, dims: Sequence[int]) -> tuple[int, ...]:
    """How long some dims of an operand are on a shard."""
    return tuple(eqn.invars[at].aval.shape[dim] for dim in dims)
