"""``python -m typedshmap check``: trace every typed function of a module on meshes that nobody has."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from .. import _jax
from ..decorated import owner_of
from ..errors import MeshAxisError, ShapeError, TypedShmapError
from ..errors.phrases import count, mesh_text
from ..testing import assert_mesh_invariant
from ..testing.drawn import Drawn
from ..testing.mapping import has_marks, is_of_regions, mapped
from ..testing.plans import plan
from ..testing.traced import trace_on
from .common import add_common
from .devices import MOST, virtual_devices
from .failing import told
from .functions import Function, find_functions
from .given import options_for, refuse_unknown, values_for
from .written import WrongUse, mesh_like, read_arguments, read_meshes, read_sizes

DONE, FAILED, WRONG = 0, 1, 2


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_common(parser)
    parser.add_argument("--seed", type=int, default=0, help="what sizes are drawn from")
    parser.add_argument(
        "--numerics", action="store_true", help="also run each function, on virtual CPU devices, and on one: all alike"
    )
    parser.set_defaults(verb=run)


def run(given: argparse.Namespace) -> int:
    """Check the functions, a line per function and mesh.

    Returns:
      0 where all are right; 1 where one is not; 2 where the command line cannot be read.
    """
    try:
        return _run(given)
    except WrongUse as error:
        print(f"check: {error}", file=sys.stderr)
        return WRONG


@dataclass(frozen=True, slots=True)
class _Case:
    """One function on one mesh."""

    function: Function
    mesh: AbstractMesh
    values: Mapping[str, Any]
    seed: int

    @property
    def label(self) -> str:
        return f"{self.function.name}  {mesh_text(self.mesh.shape_tuple)}"


def _run(given: argparse.Namespace) -> int:
    meshes = read_meshes(given.mesh, given.explicit)
    virtual_devices(
        given.devices or (max(mesh.size for mesh in meshes) if given.numerics else min(meshes[0].size, MOST))
    )
    functions, left = find_functions(given.target)
    for reason in left:
        print(f"left   {reason}", file=sys.stderr)
    values = {**read_sizes(given.size), **read_arguments(given.arg)}
    refuse_unknown(values, functions)
    cases = [
        _Case(each, mesh_like(mesh, each.made_of.mesh), values, given.seed) for each in functions for mesh in meshes
    ]
    failed = [_check(case) for case in cases].count(False)
    if given.numerics:
        failed += [_compare(each, meshes, values) for each in functions].count(False)
    print(f"{count(len(functions), 'function')} on {_meshes(meshes)}: {f'{failed} failed' if failed else 'all right'}")
    return FAILED if failed else DONE


def _meshes(meshes: Sequence[AbstractMesh]) -> str:
    return "1 mesh" if len(meshes) == 1 else f"{len(meshes)} meshes"


def _check(case: _Case) -> bool:
    """Trace a function; print a line, and what is wrong."""
    own: Mapping[str, Any] = {}
    try:
        planned = plan(case.function.function, (case.mesh,), values_for(case.function, case.values), None, "check")
        drawn = planned.drawn(case.seed)
        own = {name: size for name, size in drawn.sizes.items() if name not in planned.given}
        _trace(case.function, drawn, case.mesh)
    except Exception as error:  # whatever the function's own code raises is told, and the next is checked
        text = "\n".join([told(error), *_doubt(error, own)])
        print(f"FAIL   {case.label}\n{indent(text, '       ')}")
        return False
    print(f"ok     {case.label}  ({_told_sizes(drawn.sizes)})" if drawn.sizes else f"ok     {case.label}")
    return True


def _doubt(error: Exception, drawn: Mapping[str, Any]) -> list[str]:
    """The sizes that were drawn, where another size may help: a body may divide a dim that the hints leave whole."""
    if not drawn or (isinstance(error, TypedShmapError) and not isinstance(error, ShapeError)):
        return []
    return [f"Drawn: {_told_sizes(drawn)}; --size gives others"]


def _told_sizes(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _trace(function: Function, drawn: Drawn, mesh: AbstractMesh) -> None:
    """Trace a function; a helper for manual regions, as its marks or its collectives tell, mapped over the mesh."""
    f, made_of = function.function, function.made_of
    if made_of.verb != "typed":
        trace_on(f, drawn.structs(mesh), mesh)
        return
    try:
        if not has_marks(made_of.hinted.read(owner_of(f))):
            trace_on(f, drawn.structs(mesh), mesh)
            return
    except (NameError, MeshAxisError) as error:
        if not is_of_regions(error):
            raise
    explicit = _jax.with_axis_type(mesh, AxisType.Explicit)  # over which a sum that is owed may leave
    trace_on(mapped(f, made_of), drawn.structs(explicit), explicit)


def _compare(function: Function, meshes: Sequence[AbstractMesh], values: Mapping[str, Any]) -> bool:
    """Run a function on the meshes and on one device; print a line, and what differs."""

    devices = np.array(jax.devices())
    there = [
        Mesh(devices[: mesh.size].reshape(mesh.axis_sizes), mesh.axis_names, axis_types=like.axis_types)
        for mesh in meshes
        for like in [mesh_like(mesh, function.made_of.mesh)]
    ]
    try:
        assert_mesh_invariant(function.function, there, **options_for(function), **values_for(function, values))
    except Exception as error:  # as above
        print(f"DIFFER {function.name}\n{indent(told(error), '       ')}")
        return False
    print(f"same   {function.name}  on one device and on {'; '.join(mesh_text(mesh.shape_tuple) for mesh in meshes)}")
    return True
