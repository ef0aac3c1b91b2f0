"""How a traced array lies where XLA decides: compared with its hint when the program is compiled.

Under ``jax.jit`` no type tells how an array lies over Auto mesh axes, so JAX is asked to call back
(``jax.debug.inspect_array_sharding``). What is raised there comes out of JAX as an error of JAX's
own, with our text in it; `told_by` finds ours.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from .. import _jax
from ..errors import MeshAxisError, TypedShmapError, error_of
from ..errors.failures import Failure, NoMember, Report, Told, WrongSharding
from ..errors.rendering import render
from ..notation.layout import Layout
from ..notation.sizes import Sizes, Subject
from .array import ArrayHint
from .asking import ask
from .lying import on_mesh, region_of, wrong_marks, wrong_placement
from .scope import Region

# JAX calls back while it compiles, on 0.10 in another thread, so that no context leads to the call
# that waits: a report is found again by its text. Reports are kept, not errors, which hold frames.
_MOST = 64
_told: deque[tuple[type[TypedShmapError], Report]] = deque(maxlen=_MOST)


def told_by(error: BaseException) -> TypedShmapError | None:
    """The error of ours that a compilation failed with, if it did.

    ```python
    try:
        return compiled(*args)
    except jax.errors.JaxRuntimeError as error:
        if (ours := told_by(error)) is not None:
            raise ours from error
        raise
    ```

    Args:
      error: what JAX raised; our text is in its text.

    Returns:
      A new error of the class, text and report of the one that was raised in JAX's callback.
    """
    text = str(error)
    return next((kind(report) for kind, report in reversed([*_told]) if render(report) in text), None)


def inspect(
    value: Any, hints: tuple[ArrayHint, ...], subject: Subject, region: Region, function: str, sizes: Sizes, place: str
) -> None:
    """Compare how a traced value lies with its hint when the program is compiled, if only that can tell.

    Args:
      value: a value that fits the hint as far as is known now.
      hints: its hint; several for a union, any of which will do.
      subject: the value's name.
      region: where it is checked.
      function: the function that an error names.
      sizes: what is bound.
      place: where the user's program checks it.
    """
    region, inner = region_of(value, region), _jax.innermost(value).value
    if not region.is_manual and _jax.is_tracer(inner) and not _is_settled(inner, hints, region):
        ask(value, _Expected(hints, subject, region, function, sizes, _jax.type_text(value), place))


def _is_settled(value: Any, hints: tuple[ArrayHint, ...], region: Region) -> bool:
    """Whether there is nothing to ask: the type tells all, or there is one device, or none."""
    typed = _jax.explicit_spec(value)
    if typed is not None and not _jax.auto_axes(typed.mesh):
        return True
    mesh = _jax.value_mesh(value) or _jax.context_mesh()
    if mesh.empty:
        return _jax.is_one_device() and not any(_axes_of(hint, region) for hint in hints)
    return mesh.size == 1 or not _jax.has_devices(mesh)


def _axes_of(hint: ArrayHint, region: Region) -> frozenset[str]:
    layout = region.layout(hint)
    return layout.sharded | layout.unreduced | layout.reduced if isinstance(layout, Layout) else frozenset()


@dataclass(frozen=True, eq=False)
class _Expected:
    """What a value's sharding is compared with; it holds no value, since the program keeps it.

    Attributes:
      got: the value's type.
      place: where the user's program checks it, which the traceback of a compilation does not show.
    """

    hints: tuple[ArrayHint, ...]
    subject: Subject
    region: Region
    function: str
    sizes: Sizes
    got: str
    place: str

    def __call__(self, sharding: Any, dims: tuple[int, ...], rank: int, mesh: Any) -> None:
        """Compare; see `asking.Answer`."""
        region = _with_mesh(mesh, self.region)
        value = _Lying(sharding, dims, rank, self.region.mesh is not None)
        compared = ((hint, _compare(value, hint, region)) for hint in self.hints)
        wrong = [Failure(what, self.subject, hint.text, self.got) for hint, what in compared if what is not None]
        if len(wrong) < len(self.hints):
            return
        failure = wrong[0] if len(wrong) == 1 else Failure(NoMember(tuple(wrong)), self.subject, None, self.got)
        report = replace(region.report(self.function, (failure,), self.sizes), place=self.place)
        kind = MeshAxisError if isinstance(wrong[0].what, Told) else type(error_of(report))
        _told.append((kind, report))
        raise kind(report)


class _Lying(NamedTuple):
    """How a value lies.

    Attributes:
      dims: which of its dims the hint speaks of.
      rank: how many it has.
      traced_on_mesh: whether its mesh was known when it was traced, so that the hint's marks were compared.
    """

    sharding: Any
    dims: tuple[int, ...]
    rank: int
    traced_on_mesh: bool


def _compare(value: _Lying, hint: ArrayHint, region: Region) -> object:
    layout = region.layout(hint)
    if not isinstance(layout, Layout):
        return layout
    if region.mesh is None and (axes := _axes_of(hint, region)):
        return _no_mesh(axes)
    spec = region.spec(hint, len(value.dims))
    if not value.traced_on_mesh and (marked := wrong_marks(layout, spec, region, typed=False)):
        return marked
    spec = _jax.partition_spec(_jax.spec_parts(spec).parts)  # XLA's answer has no marks
    named = _jax.named_sharding(value.sharding, region.mesh or (), value.rank)
    if named is not None:
        return wrong_placement(named, spec, value.dims, value.rank, _cure(spec))
    parts = _jax.parts_along(value.sharding, value.rank)
    return _wrong_parts(tuple(parts[at] for at in value.dims), spec, region)


def _with_mesh(mesh: Any, region: Region) -> Region:
    """The region with the program's mesh, where that was not known when it was traced."""
    if region.mesh is not None or mesh is None or mesh.empty:
        return region
    return on_mesh(mesh, region)


def _no_mesh(axes: frozenset[str]) -> Told:
    named = f"mesh ax{'i' if len(axes) == 1 else 'e'}s {', '.join(repr(axis) for axis in sorted(axes))}"
    cure = "call it under jax.set_mesh(mesh), or with arguments placed by shard(x, hint, mesh)"
    return Told(f"names {named} in its annotation, but no mesh is known", cure)


def _wrong_parts(parts: tuple[int, ...], spec: Any, region: Region) -> WrongSharding | None:
    """A sharding that no PartitionSpec says is compared by its number of parts along each dim."""
    sizes = dict(region.mesh or ())
    if parts == tuple(prod(sizes[axis] for axis in axes) for axes in _jax.spec_parts(spec).parts):
        return None
    got = f"sharded in ({', '.join(map(str, parts))}) parts, which no PartitionSpec says"
    return WrongSharding(_jax.spec_text(spec), got, _cure(spec))


def _cure(spec: Any) -> str:
    return f"constrain it by jax.lax.with_sharding_constraint(x, {_jax.spec_text(spec)})"
