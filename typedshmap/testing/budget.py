"""``assert_cost``: a budget of collectives, bytes on the wire, memory and FLOPs for one function on one mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .._jax.primitives import OPERATIONS
from ..errors import MeshAxisError, StructureError
from ..errors.phrases import did_you_mean, mesh_text, value_text
from ..errors.requirements import merge_sizes, require_bool_or_none, require_integer
from ..tools.explain import Explanation, MeshLike, explain_call
from ..tools.explain.costs import Costs, changed_counts
from ..tools.explain.model import bytes_text

_VERB = "assert_cost"


def assert_cost(
    f: Callable[..., Any],
    /,
    *args: Any,
    mesh: MeshLike | None = None,
    collectives: Mapping[str, int] | None = None,
    wire_bytes: int | None = None,
    memory: int | None = None,
    flops: int | None = None,
    grad: bool = False,
    arguments: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
    **dims: Any,
) -> Explanation:
    """Assert that a function keeps a budget of communication, memory and computation.

    ```python
    assert_cost(mlp, mesh={"dp": 4, "tp": 2}, collectives={"all-gather/dp": 2, "all-reduce/tp": 1}, wire_bytes=2**20)
    ```

    The function is traced, as by `explain`, and needs no devices.

    Args:
      f: as for `explain`: a decorated function, or a plain function with its arguments.
      *args: arguments, arrays or ``jax.ShapeDtypeStruct``s; by default drawn for a decorated function.
      mesh: a mesh, a dict of sizes or a text, as for `explain`.
      collectives: the exact number of all collectives, by operation and mesh axes, as in ``"all-reduce/dp,tp"``; ``{}``
        for none. A collective in a loop counts once per iteration, in a ``while`` loop once.
      wire_bytes: the most bytes that one device may send in all collectives together.
      memory: the most bytes that may be in the memory of one device at any time.
      flops: the most floating-point operations of one device.
      grad: whether the budget is for the forward and backward passes, not only for the function.
      arguments: as for `explain`.
      sizes: sizes by name as in a dict, for a dim that has the name of an option.
      **dims: as for `explain`.

    Returns:
      The explanation that was compared with the budget.

    Raises:
      AssertionError: for an exceeded budget, with both numbers and the places of the collectives.
      StructureError: for a budget that cannot be parsed.
      TypedShmapError: as for `explain`.
    """
    require_bool_or_none(_VERB, "grad", grad)
    limits = {"wire_bytes": wire_bytes, "memory": memory, "flops": flops}
    most = {name: require_integer(_VERB, name, limit, 0) for name, limit in limits.items() if limit is not None}
    expected = None if collectives is None else _read_collectives(collectives)
    if expected is None and not most:
        raise StructureError(f"{_VERB}: no budget is given: pass collectives=, wire_bytes=, memory= or flops=")
    if isinstance(mesh, (list, tuple)):
        raise StructureError(f"{_VERB}: mesh={value_text(mesh)} is several meshes; a budget is for one")
    sizes = merge_sizes(_VERB, sizes, dims)
    explanation = explain_call(f, args, sizes, mesh=mesh, grad=grad, bandwidth=None, arguments=arguments)
    assert isinstance(explanation, Explanation)
    costs = Costs.of(explanation)
    problems = [] if expected is None else _other_collectives(explanation, costs, expected)
    spent = {"wire_bytes": sum(costs.wire_bytes.values()), "memory": costs.memory, "flops": costs.flops}
    what = {"wire_bytes": "one device sends", "memory": "the peak of memory is", "flops": "it computes"}
    for name, limit in most.items():
        if spent[name] > limit:
            amount, allowed = (f"{n:,} FLOP" if name == "flops" else _exact(n) for n in (spent[name], limit))
            problems.append(f"{what[name]} {amount} per device, and {name}= allows {allowed}")
    if problems:
        head, *more = problems
        lines = [f"{_VERB}: {explanation.function}: {head}", *(f"Also: {problem}" for problem in more)]
        raise AssertionError("\n".join([*lines, "", f"Mesh: {mesh_text(explanation.mesh)}", *_listed(explanation)]))
    return explanation


def _exact(count: int) -> str:
    return bytes_text(count) if count < 1024 else f"{bytes_text(count)} ({count:,} B)"


def _read_collectives(given: Any) -> dict[str, int]:
    """The expected number of each collective, by operation and mesh axes."""
    if not isinstance(given, Mapping):
        raise StructureError(
            f'{_VERB}: collectives= expects a dict as in {{"all-gather/dp": 2}}, got {value_text(given)}'
        )
    counts: dict[str, int] = {}
    for name, count in dict[Any, Any](given).items():
        operation, slash, axes = name.partition("/") if isinstance(name, str) else ("", "", "")
        if not slash or not axes or operation not in OPERATIONS:
            known = did_you_mean(operation, OPERATIONS) or f"; operations are {', '.join(OPERATIONS)}"
            raise StructureError(
                f"{_VERB}: collectives= has {value_text(name)}, which is not an operation and its mesh axes, as in "
                f'"all-gather/dp"{known}'
            )
        key = f"{operation}/{','.join(axis.strip() for axis in axes.split(','))}"
        counts[key] = require_integer(_VERB, f"collectives[{name!r}]", count, 0)
    return counts


def _other_collectives(explanation: Explanation, costs: Costs, expected: Mapping[str, int]) -> list[str]:
    """The collectives whose number is not the expected one."""
    names = dict(explanation.mesh)
    for key in expected:
        for axis in key.partition("/")[2].split(","):
            if axis not in names:
                known = mesh_text(explanation.mesh)
                raise MeshAxisError(f"{_VERB}: collectives= names mesh axis '{axis}', which the mesh ({known}) lacks")
    changed = changed_counts(expected, costs.collectives)
    return [f"{count} {key}, not {wanted}" for key, wanted, count in changed]


def _listed(explanation: Explanation) -> list[str]:
    """The collectives, each with its place."""
    lines = [
        f"    {call.times} {call.operation}/{','.join(call.axes)}, {bytes_text(call.times * call.wire)}"
        + (f", at {call.place}" if call.place else "")
        + (" (gradient)" if call.part == "gradient" else "")
        for call in explanation.collectives
    ]
    return ["Collectives:", *lines] if lines else ["Collectives: none"]
