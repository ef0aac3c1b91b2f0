"""Inspect typed and plain programs: their manual regions as data, their hints, and their calls and checks.

The tools of this package use this module, and yours can too. Nothing here changes a program."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from .. import _jax
from ..errors.failures import Failure
from ..inference.closures import closed_over, closed_over_sizes
from ..inference.interpreter import CALLS, Interpreter, call
from ..meshes import MeshLike, read_mesh
from ..observers import Assertion, HintedValue, ObservedCall, Observer, also_observed_by
from .binding import NOTHING, CheckedCall, Hint, HintedLeaf, Signature, bind, find_signature, leaves_of, signature
from .region import CollectiveCall, Fact, Finding, Region, StatedClaim, finding_of, reshard_steps

__all__ = [
    "CALLS", "CheckedCall", "CollectiveCall", "Fact", "Finding", "Hint", "HintedLeaf", "Interpreter",
    "MeshLike", "Region", "Signature", "StatedClaim", "bind", "call", "closed_over", "closed_over_sizes",
    "find_signature", "keeping_claims", "leaves_of", "observing", "on_mesh", "read_mesh", "reading_thoroughly",
    "regions", "reshard_steps", "signature",
]  # fmt: skip


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
def observing(observer: Any, axis_sizes: Mapping[str, int] = NOTHING) -> Generator[None]:
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
        typed or plain. ``missed(why)``, with ``region``: a region could not be traced. ``suspect(function, finding)``:
        a typed region has a suspect. ``name_operands(trace, operands)``, with ``region``, for tools that run regions
        again: returns replacements for the operands of a region, and their names in `Region.traced`.
      axis_sizes: the sizes to assume for mesh axes of size 1 in the analysis of a region.
    """
    see, miss, name_operands = (getattr(observer, name, None) for name in ("region", "missed", "name_operands"))
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

    def asserted(self, assertion: Assertion) -> None:
        if (heard := self._assertion) is not None:
            for hinted in assertion.values:
                heard(hinted.value, Hint.over(hinted.hint, assertion.region))

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
def on_mesh(mesh: _jax.mesh.AnyMesh, *, is_ambient: bool = False) -> Generator[None]:
    """Run the typed functions and the regions that this thread traces on another mesh, inside a ``with``.

    ```python
    with on_mesh(AbstractMesh((8,), ("dp",))):
        jax.eval_shape(train_step, state, batch)
    ```

    Args:
      mesh: the mesh that replaces ``mesh=`` of decorators, and that of regions over axes of its names.
      is_ambient: whether it is also the ambient mesh, for functions without their own mesh.
    """
    ambient = _jax.mesh.made_ambient(mesh) if is_ambient else nullcontext()
    with ambient, _jax.mesh.override_mesh(mesh), _jax.regions.moved_regions(mesh):
        yield
