"""``explain``: the values and collectives of a function on a mesh, by its hints and its jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, overload

from jax.sharding import AbstractMesh, Mesh

from ..errors import StructureError
from ..hints.signature import POSITIONAL
from ..hints.structure import declares_arrays
from ..introspection import bound_self, require_bool_or_none, require_decorated, require_dict
from ..sampling.arguments import Inputs, makes_tree
from ..sampling.plain import is_plain, with_hints
from ..sampling.plan import plan_inputs
from .build import ExplainedCall, explanation, meshes_of
from .compiled import read_target
from .hardware import Hardware, read_hardware
from .links import Torus
from .model import (
    Alive,
    Collective,
    Compiled,
    Explained,
    Failed,
    Memory,
    Time,
    Total,
    Value,
    Work,
    WorkLine,
    read_bandwidth,
)
from .show import Block, Shown, ShownArray, show
from .tables import Comparison, Explanation

__all__ = [
    "Alive", "Block", "Collective", "Comparison", "Compiled", "Explained", "Explanation", "Failed", "Hardware",
    "Memory", "Shown", "ShownArray", "Time", "Torus", "Total", "Value", "Work", "WorkLine", "explain", "show",
]  # fmt: skip


_SEED = 0
MeshLike: TypeAlias = Mesh | AbstractMesh | Mapping[str, int] | str
"""One mesh, as users write it."""


@overload
def explain(
    f: Callable[..., Any],
    /,
    *args: Any,
    mesh: MeshLike | None = None,
    grad: bool | None = None,
    bandwidth: Mapping[str, float | str] | None = None,
    hardware: str | Hardware | None = None,
    compile: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Explanation: ...
@overload
def explain(
    f: Callable[..., Any],
    /,
    *args: Any,
    mesh: list[Any] | tuple[Any, ...],
    grad: bool | None = None,
    bandwidth: Mapping[str, float | str] | None = None,
    hardware: str | Hardware | None = None,
    compile: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Comparison: ...
def explain(
    f: Callable[..., Any],
    /,
    *args: Any,
    mesh: Any = None,
    grad: bool | None = None,
    bandwidth: Mapping[str, float | str] | None = None,
    hardware: str | Hardware | None = None,
    compile: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Explanation | Comparison:
    """Report what a function holds on each device of a mesh, and what its devices send each other.

    The function is traced, never run, on a mesh without devices: one of thousands is as good as one of eight. It is
    compiled only where ``compile=`` asks for that. The report has the arrays that its hints describe, the collectives
    in its manual regions and in those of its gradient, with loops counted, and their totals per mesh axis. What XLA
    adds to operations outside of manual regions is not in the jaxpr; a note says so where there are such.

    ```python
    print(explain(train_step, mesh={"dp": 64, "tp": 8}, batch=512, seq=2048, bandwidth={"tp": "400GB/s"}))
    print(explain(train_step, mesh=["dp=64,tp=8", "dp=128,tp=4"], batch=512, seq=2048))
    ```

    Args:
      f: a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also under ``jax.jit``. One of
        ``typed`` is mapped over all axes of the mesh. Or a function without hints that calls ``jax.shard_map``, or was
        made by it: its arguments are sharded as the regions say that they enter.
      *args: arguments, arrays or ``jax.ShapeDtypeStruct``s; those that are not given are made from the hints, where
        there are any.
      mesh: a ``jax.sharding.Mesh`` or ``AbstractMesh``, a dict of sizes, or a text ``"dp=4,tp=2"``; by default the
        function's own, else the ambient one, else the arguments'. A list of meshes is compared, with the same
        sizes on all.
      grad: whether to report the vector-Jacobian product, too; by default where there is one, and where the
        function takes none itself.
      bandwidth: bytes that one device sends per second, by mesh axis: a number, or a text like ``"400GB/s"``.
        Seconds are bytes on the wire over it; latency is not modelled.
      hardware: the kind of device, for how long it takes: ``"v5e"``, ``"v5p"``, ``"v6e"``, ``"v7x"``, ``"h100"``,
        ``"b200"``, of a TPU also with its topology as in ``"v5p:8x16x16"``, or a `Hardware`; a ``bandwidth`` comes
        before its links.
      compile: what to compile the function for, too, ahead of time: ``"cpu"`` for virtual devices, or TPUs as
        ``"v5p:8x16x16"``, as many as the mesh has. What XLA says is printed beside the estimate, and is ``.compiled``.
      arguments: arguments by name, for names that are those of dims, too, and by path for fields.
      **sizes: global sizes by the names of dims, and arguments by theirs; what is not given is drawn.

    Returns:
      An `Explanation`; of a list of meshes a `Comparison`.

    Raises:
      StructureError: for a function without hints, arguments that no hint can make, and under ``grad=True``
        one without a gradient.
      MeshAxisError: for no mesh, or an axis that the mesh does not have.
      ShapeError and all that a call raises: for arguments that are not what their hints say, and for a body
        that is wrong. In a comparison the error is in the mesh's row.
    """
    return explain_call(
        f,
        args,
        sizes,
        mesh=mesh,
        grad=grad,
        bandwidth=bandwidth,
        hardware=hardware,
        compile=compile,
        arguments=arguments,
    )


def explain_call(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    given: Mapping[str, Any],
    *,
    mesh: Any,
    grad: bool | None,
    bandwidth: Mapping[str, float | str] | None,
    hardware: str | Hardware | None = None,
    compile: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Explanation | Comparison:
    """`explain`, with the sizes and arguments that are given by name as a dict."""
    require_dict("explain", arguments)
    require_bool_or_none("explain", "grad", grad)
    if is_plain(f):
        lent = None if mesh is None else meshes_of(mesh, None, ())[0]
        f, arguments = with_hints("explain", f, args, {**given, **(arguments or {})}, lent)
        args, given = (), {}
    made_of = require_decorated(f, "explain")
    device, target = read_hardware("explain", hardware), read_target("explain", compile)
    meshes = meshes_of(mesh, made_of.mesh, (*args, *given.values()))
    owner = bound_self(f)

    def inputs_for(meshes: Sequence[AbstractMesh]) -> Callable[[AbstractMesh], Inputs]:
        """The arguments of the call on each mesh: as they are given, or made from the hints."""
        typed = made_of.signature.read((*owner, *args))
        if not arguments:
            with suppress(StructureError):
                bound = typed.bind((*owner, *args), dict(given))
                is_made = any(makes_tree(value, node) for _, _, node, value in typed.arguments(bound))
                arrays = [name for name, node in typed.parameters.items() if declares_arrays(node)]
                if not is_made and (args or all(name in bound.given for name in arrays)):
                    return lambda mesh: Inputs.of(args, (), given, {}, _SEED)
        parameters = list(typed.signature.parameters.values())[len(owner) + len(typed.given) :]
        names = [parameter.name for parameter in parameters if parameter.kind in POSITIONAL]
        if len(args) > len(names):
            typed.bind((*owner, *args), {})
            raise StructureError(f"explain: {typed.name}: pass all arguments, or none, to a function of *args")
        by_name = dict(zip(names, args, strict=False))
        return plan_inputs(f, meshes, {**by_name, **given}, arguments, "explain").draw(_SEED).structs

    def explain_on(inputs: Callable[[AbstractMesh], Inputs], mesh: AbstractMesh) -> Explanation:
        rates = read_bandwidth("explain", bandwidth, mesh.shape_tuple)
        rates = rates if device is None else {**device.rates(mesh.shape_tuple), **rates}
        return explanation(ExplainedCall(f, inputs(mesh), mesh), grad, rates, device, target)

    if not isinstance(mesh, (list, tuple)):
        return explain_on(inputs_for(meshes), meshes[0])
    failed: dict[AbstractMesh, Failed] = {}
    for each in meshes:
        try:
            inputs_for([each])(each)
        except Exception as error:  # as below
            failed[each] = Failed(each.shape_tuple, error)
    # The sizes fit all meshes on which any fit.
    fit = [each for each in meshes if each not in failed]
    inputs = inputs_for(fit) if fit else None
    rows: list[Explanation | Failed] = []
    for each in meshes:
        try:
            rows.append(failed[each] if inputs is None or each in failed else explain_on(inputs, each))
        except Exception as error:  # the user's own code may fail on one mesh alone, and JAX with it
            rows.append(Failed(each.shape_tuple, error))
    return Comparison(tuple(rows))
