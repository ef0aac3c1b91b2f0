"""``explain``: trace a function on a mesh that needs no devices, and tell what it holds and what it sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, overload

from jax.sharding import AbstractMesh, Mesh

from ..decorated import Decorated, decorated, owner_of
from ..errors import StructureError
from ..hints.binding import POSITIONAL, Typed
from ..hints.nodes import holds_arrays
from ..testing.call import Inputs
from ..testing.plans import plan, refuse_no_dict
from ..testing.written import refuse_no_answer
from .calls import Call
from .explanation import Comparison, Explanation
from .meshes import meshes_of
from .model import Failed
from .telling import explanation
from .units import read_bandwidth

_SEED = 0
Written: TypeAlias = Mesh | AbstractMesh | Mapping[str, int] | str
"""One mesh, as users write it."""


@overload
def explain(
    f: Callable[..., Any],
    /,
    *args: Any,
    mesh: Written | None = None,
    grad: bool | None = None,
    bandwidth: Mapping[str, float | str] | None = None,
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
    arguments: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Explanation | Comparison:
    """Tell what a function holds on each device of a mesh, and what its devices send each other.

    The function is traced, never run or compiled, on a mesh without devices: one of thousands is as good as
    one of eight. Told are the arrays that its hints speak of, the collectives in its manual regions and in those of its
    gradient, with loops counted, and their totals per mesh axis. What XLA adds to operations outside of
    manual regions is not in the program that is traced; a note says so where there are such.

    ```python
    print(explain(train_step, mesh={"dp": 64, "tp": 8}, batch=512, seq=2048, bandwidth={"tp": "400GB/s"}))
    print(explain(train_step, mesh=["dp=64,tp=8", "dp=128,tp=4"], batch=512, seq=2048))
    ```

    Args:
      f: a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also under ``jax.jit``. One of
        ``typed`` is mapped over all axes of the mesh.
      *args: arguments, arrays or ``jax.ShapeDtypeStruct``s; those that are not given are made from the hints.
      mesh: a ``jax.sharding.Mesh`` or ``AbstractMesh``, a dict of sizes, or a text ``"dp=4,tp=2"``; by default the
        function's own, else the ambient one, else the arguments'. A list of meshes is compared, with the same
        sizes on all.
      grad: whether to tell of the vector-Jacobian product, too; by default where there is one, and where the
        function takes none itself.
      bandwidth: bytes that one device sends per second, by mesh axis: a number, or a text like ``"400GB/s"``.
        Seconds are bytes on the wire over it; latency is not modelled.
      arguments: arguments by name, for names that are those of dims, too, and by path for fields.
      **sizes: global sizes by the names of dims, and arguments by theirs; what is not given is drawn.

    Returns:
      An `Explanation`; of a list of meshes a `Comparison`.

    Raises:
      StructureError: for a function without hints, arguments that no hint can make, and under ``grad=True``
        one without a gradient.
      MeshAxisError: for no mesh, or an axis that the mesh does not have.
      ShapeError and all that a call raises: for arguments that are not what their hints say, and for a body
        that is wrong. In a comparison that is told in the mesh's row.
    """
    return explained(f, args, sizes, mesh=mesh, grad=grad, bandwidth=bandwidth, arguments=arguments)


def explained(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    given: Mapping[str, Any],
    *,
    mesh: Any,
    grad: bool | None,
    bandwidth: Mapping[str, float | str] | None,
    arguments: Mapping[str, Any] | None = None,
) -> Explanation | Comparison:
    """`explain`, with the sizes and arguments that are given by name as a dict."""
    made_of = decorated(f, "explain")
    refuse_no_dict(arguments, "explain")
    refuse_no_answer("explain", "grad", grad)
    meshes = meshes_of("explain", mesh, made_of.mesh, (*args, *given.values()))
    task = _Task(f, made_of, args, given, arguments, grad, bandwidth)
    if isinstance(mesh, (list, tuple)):
        return task.compare(meshes)
    return task.on(meshes[0], task.inputs(meshes))


class _Task:
    """What is to be explained, on whichever mesh."""

    def __init__(
        self,
        f: Callable[..., Any],
        made_of: Decorated,
        args: tuple[Any, ...],
        given: Mapping[str, Any],
        arguments: Mapping[str, Any] | None,
        grad: bool | None,
        bandwidth: Mapping[str, float | str] | None,
    ) -> None:
        self.f, self.given, self.arguments = f, given, arguments
        self.grad, self.bandwidth = grad, bandwidth
        self.owner = owner_of(f)
        self.typed: Typed = made_of.hinted.read((*self.owner, *args))
        self.args = args

    def inputs(self, meshes: Sequence[AbstractMesh]) -> Callable[[AbstractMesh], Inputs]:
        """The arguments of the call on each mesh: as they are given, or made from the hints."""
        if self._is_complete():
            made = Inputs.of(self.args, (), self.given, {}, _SEED)
            return lambda mesh: made
        given = {**self._by_name(), **self.given}
        return plan(self.f, meshes, given, self.arguments, "explain").drawn(_SEED).structs

    def _is_complete(self) -> bool:
        """Whether all arguments are there, so that none has to be made."""
        if self.arguments:
            return False
        try:
            bound = self.typed.bind((*self.owner, *self.args), dict(self.given))
        except StructureError:
            return False
        optional = [name for name, node in self.typed.parameters.items() if holds_arrays(node)]
        return bool(self.args) or all(name in bound.given for name in optional)

    def _by_name(self) -> dict[str, Any]:
        parameters = list(self.typed.signature.parameters.values())[len(self.owner) + len(self.typed.given) :]
        names = [parameter.name for parameter in parameters if parameter.kind in POSITIONAL]
        if len(self.args) > len(names):
            self.typed.bind((*self.owner, *self.args), {})
            raise StructureError(f"explain: {self.typed.name}: pass all arguments, or none, to a function of *args")
        return dict(zip(names, self.args, strict=False))

    def on(self, mesh: AbstractMesh, inputs: Callable[[AbstractMesh], Inputs]) -> Explanation:
        """What is told on one mesh."""
        bandwidth = read_bandwidth("explain", self.bandwidth, mesh.shape_tuple)
        made = inputs(mesh)
        call = Call(self.f, made.args, made.kwargs, mesh)
        return explanation(call, self.grad, bandwidth)

    def compare(self, meshes: Sequence[AbstractMesh]) -> Comparison:
        """What is told on several meshes, with sizes that fit all those on which any fit."""
        failed: dict[AbstractMesh, Failed] = {}
        for mesh in meshes:
            try:
                self.inputs([mesh])(mesh)
            except Exception as error:  # as below
                failed[mesh] = Failed(mesh.shape_tuple, error)
        fit = [mesh for mesh in meshes if mesh not in failed]
        inputs = self.inputs(fit) if fit else None
        rows = [failed[mesh] if mesh in failed or inputs is None else self._tried(mesh, inputs) for mesh in meshes]
        return Comparison(tuple(rows))

    def _tried(self, mesh: AbstractMesh, inputs: Callable[[AbstractMesh], Inputs]) -> Explanation | Failed:
        try:
            return self.on(mesh, inputs)
        except Exception as error:  # the user's own code may fail on one mesh alone, and JAX with it
            return Failed(mesh.shape_tuple, error)
