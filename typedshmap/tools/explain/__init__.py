"""``explain``: the values and collectives of a function on a mesh, from its hints and its jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload
from warnings import warn

from jax.sharding import AbstractMesh, AxisType

from ... import _jax
from ..._jax.mesh import MOST_DEVICES
from ...errors import MeshAxisError, ShapeError, StructureError
from ...errors.phrases import mesh_text, name_of, quoted_axes, value_text
from ...errors.requirements import merge_sizes, require_bool_or_none, require_dict, require_integer
from ...inspection import MeshLike, signature
from ..progress import progress
from ..sample.input_plan import UnplacedInputs, plan_inputs
from ..sample.plain import is_plain, with_hints
from .choose import Candidate, Choice, FreeMesh, choice_of, meshes_to_try, read_free_mesh, reason_of
from .compiled import read_target
from .explained_call import ExplainedCall, explanation, meshes_of
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
    "Alive", "Block", "Candidate", "Choice", "Collective", "Comparison", "Compiled", "Explained", "Explanation",
    "Failed", "Hardware", "Memory", "Shown", "ShownArray", "Time", "Torus", "Total", "Value", "Work", "WorkLine",
    "choose_mesh", "explain", "show",
]  # fmt: skip


@overload
def explain(
    f: Callable[..., Any],
    /,
    *args: Any,
    mesh: MeshLike | None = None,
    meshes: None = None,
    grad: bool | None = None,
    bandwidth: Mapping[str, float | str] | None = None,
    hardware: str | Hardware | None = None,
    compile: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
    **dims: Any,
) -> Explanation: ...
@overload
def explain(
    f: Callable[..., Any],
    /,
    *args: Any,
    meshes: Sequence[MeshLike],
    grad: bool | None = None,
    bandwidth: Mapping[str, float | str] | None = None,
    hardware: str | Hardware | None = None,
    compile: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
    **dims: Any,
) -> Comparison: ...
def explain(
    f: Callable[..., Any],
    /,
    *args: Any,
    mesh: MeshLike | None = None,
    meshes: Sequence[MeshLike] | None = None,
    grad: bool | None = None,
    bandwidth: Mapping[str, float | str] | None = None,
    hardware: str | Hardware | None = None,
    compile: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
    **dims: Any,
) -> Explanation | Comparison:
    """Report the arrays on each device of a mesh, and the collectives between devices.

    The function is traced, not run, on a mesh of any size, without devices. It is compiled only with ``compile=``.
    The report has the arrays of its hints, the collectives in its manual regions and in those of its gradient, counted
    for all iterations of loops, and their totals per mesh axis. Collectives that XLA adds outside manual regions are
    not in the jaxpr; a note mentions such operations.

    ```python
    print(explain(train_step, mesh={"dp": 64, "tp": 8}, batch=512, seq=2048, bandwidth={"tp": "400GB/s"}))
    print(explain(train_step, meshes=["dp=64,tp=8", "dp=128,tp=4"], batch=512, seq=2048))
    ```

    Args:
      f: a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also under ``jax.jit``. A function of
        ``typed`` is mapped over all axes of the mesh. Or a function without hints that calls ``jax.shard_map``, or
        was made by it: the specs of its regions determine the sharding of its arguments.
      *args: arguments, arrays or ``jax.ShapeDtypeStruct``s; by default made from the hints.
      mesh: a ``jax.sharding.Mesh`` or ``AbstractMesh``, a dict of sizes, or a text ``"dp=4,tp=2"``; by default the
        function's mesh, else the ambient mesh, else that of the arguments.
      meshes: several meshes to compare, with the same sizes on all.
      grad: whether to report the vector-Jacobian product too; by default if the function has one, and takes no gradient
        itself.
      bandwidth: bytes that one device sends per second, by mesh axis: a number, or a text like ``"400GB/s"``. Seconds
        are the bytes on the wire divided by it; latency is not modelled.
      hardware: the kind of device, for times: ``"v5e"``, ``"v5p"``, ``"v6e"``, ``"v7x"``, ``"h100"``,
        ``"b200"``, a TPU with its topology as ``"v5p:8x16x16"``, or a `Hardware`; ``bandwidth`` overrides its
        links.
      compile: a target for ahead-of-time compilation: ``"cpu"`` for virtual devices, or TPUs as ``"v5p:8x16x16"``,
        as many as the mesh has. XLA's figures are printed beside the estimate, and are in ``.compiled``.
      arguments: arguments by name, even if a dim has that name, and fields by path.
      sizes: sizes by name as in a dict, for a dim that has the name of an option.
      **dims: global sizes by the names of dims, and arguments by name; sizes are drawn by default.

    Returns:
      An `Explanation`; for several meshes a `Comparison`.

    Raises:
      StructureError: for a function without hints, for arguments that cannot be made from hints, and under
        ``grad=True`` for a function without a gradient.
      MeshAxisError: without a mesh, or for an axis that the mesh does not have.
      ShapeError and all errors of a call: for arguments that contradict their hints, and for a wrong body. In a
        comparison the error is in the mesh's row.
    """
    if isinstance(mesh, (list, tuple)) and meshes is None:
        warn("explain: passing a list of meshes as mesh= is deprecated; pass meshes=", DeprecationWarning, stacklevel=2)
    elif mesh is not None and meshes is not None:
        raise MeshAxisError("explain: both mesh= and meshes= are given")
    elif not isinstance(meshes, list | tuple | None):
        raise MeshAxisError(f"explain: meshes= expects a list of meshes, got {value_text(meshes)}")
    return explain_call(
        f,
        args,
        merge_sizes("explain", sizes, dims),
        mesh=mesh if meshes is None else list(meshes),
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
    verb: str = "explain",
    report: Callable[[str], None] = lambda _: None,
) -> Explanation | Comparison:
    """`explain`, with sizes and arguments by name in a dict; ``report`` is called with the progress."""
    require_dict(verb, arguments)
    require_bool_or_none(verb, "grad", grad)
    if is_plain(f):
        lent = None if mesh is None else meshes_of(mesh, None, (), verb)[0]
        f, arguments = with_hints(verb, f, args, {**given, **(arguments or {})}, lent)
        args, given = (), {}
    own_mesh = signature(f, verb).known_mesh()
    device, target = read_hardware(verb, hardware), read_target(verb, compile)
    meshes = meshes_of(mesh, own_mesh, (*args, *given.values()), verb)

    def draw_for(meshes: Sequence[AbstractMesh]) -> UnplacedInputs:
        """The arguments of the call, with sizes that divide over the meshes."""
        return plan_inputs(f, meshes, given, arguments, verb, args).draw(seed=0)

    def explain_on(drawn: UnplacedInputs, mesh: AbstractMesh) -> Explanation:
        rates = read_bandwidth(verb, bandwidth, mesh.shape_tuple)
        rates = rates if device is None else {**device.rates(mesh.shape_tuple), **rates}
        explained = explanation(ExplainedCall(f, drawn, mesh), grad, rates, device, target)
        if device is None or not drawn.drawn_sizes:
            return explained
        sizes = mesh_text(drawn.drawn_sizes.items())
        note = f"sizes that are not given are drawn, so that they divide over all meshes: {sizes}"
        return replace(explained, notes=(*explained.notes, note))

    if not isinstance(mesh, (list, tuple)):
        return explain_on(draw_for(meshes), meshes[0])
    failed: dict[AbstractMesh, Failed] = {}
    for each_mesh in meshes:
        try:
            draw_for([each_mesh]).structs(each_mesh)
        except Exception as error:  # as below
            failed[each_mesh] = Failed(each_mesh.shape_tuple, error)
    # The sizes divide over all meshes on which any size does.
    fit = [each_mesh for each_mesh in meshes if each_mesh not in failed]
    drawn = draw_for(fit) if fit else None
    rows: list[Explanation | Failed] = []
    for at, each_mesh in enumerate(meshes, 1):
        report(f"{at:,} of {len(meshes):,} meshes, {mesh_text(each_mesh.shape_tuple)}")
        try:
            rows.append(failed[each_mesh] if drawn is None or each_mesh in failed else explain_on(drawn, each_mesh))
        except Exception as error:  # the user's code, or JAX, may fail on only one mesh
            rows.append(Failed(each_mesh.shape_tuple, error))
    return Comparison(tuple(rows))


def choose_mesh(
    f: Callable[..., Any],
    /,
    *args: Any,
    devices: int,
    hardware: str | Hardware,
    mesh: FreeMesh | str | None = None,
    grad: bool = False,
    arguments: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
    **dims: Any,
) -> Choice:
    """Rank the meshes of a number of devices on which a function fits in memory, by time.

    All ways to divide the devices over the mesh axes are tried: the axes of the function's mesh or the ambient mesh,
    else those in its hints, under the current aliases and rules. On each mesh the function is traced, as by `explain`,
    in a fraction of a second, without devices. Axes are ordered to fit the links of the hardware best.

    ```python
    found = choose_mesh(train_step, devices=2048, hardware="v5p", batch=2048, seq=8192, **LLAMA_8B)
    print(found)
    explain(train_step, mesh=found.best.mesh, hardware="v5p", batch=2048, seq=8192, **LLAMA_8B)
    ```

    Args:
      f: as for `explain`: a decorated function, or a plain function with its arguments.
      *args: as for `explain`.
      devices: the number of devices.
      hardware: as for `explain`.
      mesh: fixed sizes of axes, as in ``{"tp": 8}`` or ``"tp=8"``; and names of axes that no hint has, with None,
        as in ``{"pp": None}`` or ``"pp"``.
      grad: whether to include the vector-Jacobian product in memory and time.
      arguments: as for `explain`.
      sizes: sizes by name as in a dict, for a dim that has the name of an option.
      **dims: as for `explain`. Pass the sizes of all dims; others are drawn so that they divide over all meshes.

    Returns:
      The meshes that fit, the fastest first, and the refused ones, each with the reason. If none fits, ``.best``
      is None, and ``.why`` reports the least memory.

    Raises:
      StructureError: as for `explain`, and for unknown hardware, an invalid number of devices, and more than 5,000
        meshes.
      MeshAxisError: without a known mesh axis, and for sizes that do not divide the devices.
      Exception: an error that the function raises on all meshes.
    """
    sizes = merge_sizes("choose_mesh", sizes, dims)
    with progress("choose_mesh") as report:
        return choose_call(
            f, args, sizes, devices=devices, hardware=hardware, mesh=mesh, grad=grad, arguments=arguments, report=report
        )


def choose_call(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    given: Mapping[str, Any],
    *,
    devices: int,
    hardware: str | Hardware,
    mesh: FreeMesh | str | None,
    grad: bool,
    arguments: Mapping[str, Any] | None = None,
    axis_type: AxisType = AxisType.Auto,
    report: Callable[[str], None],
) -> Choice:
    """`choose_mesh`, with sizes and arguments by name in a dict; axes beyond those of a known mesh get a type."""
    verb, notes = "choose_mesh", list[str]()
    unknown = 'and no mesh is known\n\nHint: name its axes, as in mesh="dp,tp"'
    require_bool_or_none(verb, "grad", grad)
    devices, wanted = require_integer(verb, "devices", devices, 1, MOST_DEVICES), read_free_mesh(verb, mesh)
    device = read_hardware(verb, hardware)
    if device is None:
        raise StructureError(f"{verb}: hardware= is None, but times need it\n\nHint: as in hardware='v5p'")
    if is_plain(f):
        require_dict(verb, arguments)
        lent = _jax.mesh.abstract_mesh(dict.fromkeys(wanted, 1)) if wanted else None
        try:
            f, arguments = with_hints(verb, f, args, {**given, **(arguments or {})}, lent)
        except ValueError as error:
            if lent is not None or "context mesh cannot be empty" not in str(error):
                raise
            raise MeshAxisError(f"{verb}: {name_of(f)}: its regions are over the ambient mesh, {unknown}") from None
        args, given = (), {}
    hinted = signature(f, verb)
    own_mesh = hinted.known_mesh()
    known = hinted.axes if own_mesh is None else list(own_mesh.axis_names)
    axes: dict[str, int | None] = {**dict.fromkeys(known), **wanted}
    if not axes:
        raise MeshAxisError(f"{verb}: {hinted.name}: its hints name no mesh axes, {unknown}")
    if known and (more := [axis for axis in wanted if axis not in known]):
        notes.append(f"no hint and no mesh of {hinted.name} names {quoted_axes(more)}")
    meshes = [
        _jax.mesh.mesh_like(_jax.mesh.abstract_mesh(sizes, axis_type), own_mesh)
        for sizes in meshes_to_try(verb, devices, axes)
    ]
    device.rates(meshes[0].shape_tuple)
    comparison = explain_call(
        f, args, given, mesh=meshes, grad=bool(grad), bandwidth=None, hardware=device, arguments=arguments, verb=verb,
        report=report,
    )  # fmt: skip
    assert isinstance(comparison, Comparison)
    errors = [failed.error for failed in comparison.failures]
    if not comparison.explanations and len({reason_of(verb, hinted.name, error) for error in errors}) == 1:
        if not isinstance(errors[0], ShapeError):
            raise errors[0]
        # An invalid size is also wrong on one device; a size that divides over no mesh is not.
        explain_call(
            f, args, given, mesh=dict.fromkeys(axes, 1), grad=False, bandwidth=None, arguments=arguments, verb=verb
        )
    return choice_of(verb, hinted.name, device, comparison, notes)
