"""Inspect typed and plain programs: their manual regions as data, their hints, and their calls and checks.

The tools of this package are built on this module, and yours can be. Nothing here changes a program."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

from .. import _jax
from ..errors.failures import Failure
from ..hints.check_tree import TreeCheck
from ..hints.context import MeshContext
from ..hints.structure import Node, array_hints
from ..introspection import require_decorated
from ..meshes import override_mesh
from ..observers import HintedValue, ObservedCall, Observer, also_observed_by
from .region import NO_LENGTHS, CollectiveCall, Fact, Finding, Hint, Region, StatedClaim, finding_of

__all__ = [
    "CollectiveCall",
    "Fact",
    "Finding",
    "Hint",
    "Region",
    "Signature",
    "StatedClaim",
    "keeping_claims",
    "observing",
    "on_mesh",
    "reading_thoroughly",
    "regions",
    "signature",
]  # fmt: skip


class Signature(NamedTuple):
    """The hints of a decorated function, and the options of its decorator.

    Attributes:
      name: the function's name.
      verb: the decorator: ``"typed_shard_map"``, ``"typed_jit"`` or ``"typed"``.
      mesh: the decorator's mesh; None if it is looked up at every call.
      axis_names: the mesh axes that it makes manual; empty for all.
      parameters: for each parameter the hints of its arrays; empty for a static one.
      result: the hints of the arrays that it returns.
    """

    name: str
    verb: str
    mesh: _jax.mesh.AnyMesh | None
    axis_names: frozenset[str]
    parameters: Mapping[str, tuple[Hint, ...]]
    result: tuple[Hint, ...]


def signature(f: Any) -> Signature:
    """Return the hints of a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also through ``jax.jit``.

    ```python
    signature(mlp).parameters["x"][0].layout.dim_axes  # (("dp",), ()) for Float[Array, "[batch/dp] model"]
    ```

    Raises:
      StructureError: for any other function.
      AnnotationSyntaxError: for a hint that cannot be read.
    """
    info = require_decorated(f, "signature")
    typed, context = info.signature.read(()), MeshContext.over(info.mesh, info.naming)
    nodes = dict(typed.parameters) | {f"in_types[{at}]": node for at, node in enumerate(typed.positional)}

    def hints(node: Node | None) -> tuple[Hint, ...]:
        return () if node is None else tuple(Hint.over(hint, context) for hint in array_hints(node))

    parameters = {name: hints(node) for name, node in nodes.items()}
    return Signature(typed.name, info.verb, info.mesh, info.axis_names, parameters, hints(typed.result))


def regions(program: Any) -> list[Region]:
    """Return the manual regions of a traced program, including nested ones and those in backward rules.

    ```python
    for region in regions(jax.make_jaxpr(train_step)(state, batch)):
        print(region.name, region.axes, [finding.message for finding in region.findings])
    ```

    Args:
      program: a jaxpr, or the result of ``jax.jit(f).trace(...)``.
    """
    jaxpr = _jax.jaxpr.open_jaxpr(program if hasattr(program, "eqns") else program.jaxpr)
    return [Region(traced) for traced in _jax.regions.regions_of(jaxpr)]


@contextmanager
def observing(observer: Any, axis_sizes: Mapping[str, int] = NO_LENGTHS) -> Generator[None]:
    """Report calls of typed functions, and all regions that are traced, to an observer inside a ``with``.

    ```python
    class Gathers:
        def region(self, region):
            print(region.name, [call for call in region.collectives if call.operation == "all-gather"])


    with observing(Gathers()):
        jax.eval_shape(train_step, state, batch)
    ```

    Regions are reported in all threads, typed functions only in this one. Cached traces are not reused.

    Args:
      observer: an object that has some of these methods.
        ``boundary(values, hints, mesh)``: a typed function was called; its arguments and results by name, and their
        `Hint`s. ``assertion(value, hint)``: a ``check`` or an ``assume``. ``region(region)``: a `Region` was traced,
        typed or plain. ``missed(why)``: a region could not be traced. ``suspect(function, finding)``: a typed region
        has a suspect.
      axis_sizes: the sizes to assume for mesh axes of size 1 in the analysis of a region.
    """
    names = ("region", "missed", "name_operands")
    see, miss, name_operands = (getattr(observer, name, None) for name in names)
    with ExitStack() as opened:
        if see is not None:
            watched = _jax.regions.watched_regions(
                lambda traced: see(Region(traced, axis_sizes)), miss or (lambda why: None), name_operands
            )
            opened.enter_context(watched)
        opened.enter_context(also_observed_by(_Adapted(observer)))
        yield


class _Adapted(Observer):
    """An object with some of the methods of `observing`."""

    def __init__(self, observer: Any) -> None:
        self._boundary, self._assertion, self._suspect = (
            getattr(observer, name, None) for name in ("boundary", "assertion", "suspect")
        )

    def call(self, call: ObservedCall, run: Callable[[], Any]) -> Any:
        if self._boundary is None:
            return run()
        boundary, returned = call.boundary(), run()
        crossing: list[HintedValue] = [*boundary.arguments, *boundary.results(returned)]
        values = {str(hinted.subject): hinted.value for hinted in crossing}
        hints = {str(hinted.subject): Hint.over(hinted.hint, boundary.region) for hinted in crossing}
        self._boundary(values, hints, boundary.mesh)
        return returned

    def asserted(self, function: str, checked: TreeCheck, is_assumed: bool) -> None:
        for leaf in checked.leaves:
            if self._assertion is not None and leaf.hint is not None:
                self._assertion(leaf.value, Hint.over(leaf.hint, checked.region))

    def suspect(self, function: str, failure: Failure) -> None:
        if self._suspect is not None:
            self._suspect(function, finding_of(failure, function))


class _Thorough(Observer):
    is_thorough = True


class _WithClaims(Observer):
    keeps_claims = True


def reading_thoroughly() -> AbstractContextManager[None]:
    """Trace typed regions for another size of an axis wherever the degree of a number may matter, in a ``with``."""
    return also_observed_by(_THOROUGH)


def keeping_claims() -> AbstractContextManager[None]:
    """Make each ``check`` leave an equation in the jaxpr, for `Region.claims`, inside a ``with``."""
    return also_observed_by(_WITH_CLAIMS)


_THOROUGH, _WITH_CLAIMS = _Thorough(), _WithClaims()


@contextmanager
def on_mesh(mesh: _jax.mesh.AnyMesh) -> Generator[None]:
    """Run the typed functions and the regions that this thread traces on another mesh, inside a ``with``.

    ```python
    with on_mesh(AbstractMesh((8,), ("dp",))):
        jax.eval_shape(train_step, state, batch)
    ```

    Args:
      mesh: the mesh that replaces ``mesh=`` of decorators, and that of regions over axes of its names.
    """
    with override_mesh(mesh), _jax.regions.moved_regions(mesh):
        yield
