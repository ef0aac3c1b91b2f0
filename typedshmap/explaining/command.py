"""``python -m typedshmap explain``: tables of a module's functions on meshes that nobody has."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from jax.sharding import AbstractMesh

from ..commandline import (
    Function,
    WrongUse,
    add_common,
    find_functions,
    mesh_like,
    read_arguments,
    read_meshes,
    read_sizes,
    virtual_devices,
)
from ..commandline.devices import MOST
from ..commandline.failing import told
from ..commandline.given import refuse_unknown, values_for
from ..errors import MeshAxisError, StructureError
from ..errors.phrases import mesh_text
from .explanation import Comparison, Explanation
from .html import document
from .units import read_bandwidth
from .verb import explained

DONE, FAILED, WRONG = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_common(parser)
    parser.add_argument(
        "--bandwidth",
        action="append",
        default=[],
        metavar="tp=400GB/s",
        help="what one device sends per second over a mesh axis, which turns bytes into seconds",
    )
    parser.add_argument(
        "--grad",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="tell of the gradient; by default where there is one and the function takes none itself",
    )
    parser.add_argument("--html", metavar="FILE", help="write one page with tables and pictures, too")
    parser.set_defaults(verb=run)


def run(given: argparse.Namespace) -> int:
    """Explain the functions, one after the other; several meshes are compared.

    Returns:
      0 where all can be traced; 1 where one cannot; 2 where the command line cannot be read.
    """
    try:
        return _run(given)
    except WrongUse as error:
        print(f"explain: {error}", file=sys.stderr)
        return WRONG


def _run(given: argparse.Namespace) -> int:
    meshes = read_meshes(given.mesh, given.explicit)
    virtual_devices(given.devices or min(meshes[0].size, MOST))
    bandwidth = _read_bandwidth(given.bandwidth, meshes)
    functions, left = find_functions(given.target)
    for reason in left:
        print(f"left   {reason}", file=sys.stderr)
    values = {**read_sizes(given.size), **read_arguments(given.arg)}
    refuse_unknown(values, functions)
    found = [_explained(each, meshes, values, bandwidth, given.grad) for each in functions]
    if given.html is not None:
        _write(Path(given.html), given.target, found)
    return FAILED if any(one is None or _has_failed(one) for one in found) else DONE


def _read_bandwidth(written: Sequence[str], meshes: Sequence[AbstractMesh]) -> dict[str, str]:
    pairs = [(name.strip(), value.strip()) for name, _, value in (text.partition("=") for text in written)]
    try:
        for mesh in meshes:
            read_bandwidth("--bandwidth", dict(pairs), mesh.shape_tuple)
    except (MeshAxisError, StructureError) as error:
        raise WrongUse(str(error)) from None
    return dict(pairs)


def _explained(
    each: Function,
    meshes: Sequence[AbstractMesh],
    values: Mapping[str, Any],
    bandwidth: Mapping[str, str],
    grad: bool | None,
) -> Explanation | Comparison | None:
    """Explain one function and print it; None, with the error printed, for one that cannot be."""
    there = [mesh_like(mesh, each.made_of.mesh) for mesh in meshes]
    mesh: Any = there[0] if len(there) == 1 else there
    try:
        found = explained(each.function, (), values_for(each, values), mesh=mesh, grad=grad, bandwidth=bandwidth)
    except Exception as error:  # whatever the function's own code raises is told, and the next is explained
        print(f"FAIL   {each.name}  {'; '.join(mesh_text(one.shape_tuple) for one in there)}")
        print(f"{indent(told(error), '       ')}\n")
        return None
    print(f"{found}\n")
    return found


def _has_failed(found: Explanation | Comparison) -> bool:
    return isinstance(found, Comparison) and bool(found.failures)


def _write(path: Path, title: str, found: Sequence[Explanation | Comparison | None]) -> None:
    bodies = [one.html for one in found if one is not None]
    try:
        path.write_text(document(title, "\n<hr>\n".join(bodies)), encoding="utf-8")
    except OSError as error:
        raise WrongUse(f"--html {path}: {(error.strerror or str(error)).lower()}") from None
