"""``python -m typedshmap explain``: tables of a module's functions on meshes that nobody has."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from jax.sharding import AbstractMesh

from .. import cli
from ..errors import MeshAxisError, StructureError
from ..errors.phrases import mesh_text
from ..explaining import explain_call
from ..explaining.model import read_bandwidth
from ..explaining.tables import Comparison, Explanation, document


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    cli.add_common(parser)
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
    """Explain the functions, one after the other, several meshes compared; the exit code.

    Raises:
      UsageError: for a command line that cannot be read.
    """
    meshes = cli.read_meshes(given.mesh, given.explicit)
    bandwidth = {name.strip(): value.strip() for name, _, value in (text.partition("=") for text in given.bandwidth)}
    try:
        for mesh in meshes:
            read_bandwidth("--bandwidth", bandwidth, mesh.shape_tuple)
    except (MeshAxisError, StructureError) as error:
        raise cli.UsageError(str(error)) from None
    functions, values = cli.read_functions(given, min(meshes[0].size, cli.MOST))
    found = [_explain_one(each, meshes, values, bandwidth, given.grad) for each in functions]
    if given.html is not None:
        bodies = [one.html for one in found if one is not None]
        try:
            Path(given.html).write_text(document(given.target, "\n<hr>\n".join(bodies)), encoding="utf-8")
        except OSError as error:
            raise cli.UsageError(f"--html {given.html}: {(error.strerror or str(error)).lower()}") from None
    has_failed = any(one is None or (isinstance(one, Comparison) and one.failures) for one in found)
    return cli.FAILED if has_failed else cli.DONE


def _explain_one(
    function: cli.Function,
    meshes: Sequence[AbstractMesh],
    values: Mapping[str, Any],
    bandwidth: Mapping[str, str],
    grad: bool | None,
) -> Explanation | Comparison | None:
    """Explain one function and print it; None, with the error printed, for one that cannot be."""
    there = [cli.mesh_like(mesh, function.made_of.mesh) for mesh in meshes]
    mesh: Any = there[0] if len(there) == 1 else there
    try:
        arguments = cli.arguments_for(function, values)
        found = explain_call(function.function, (), arguments, mesh=mesh, grad=grad, bandwidth=bandwidth)
    except Exception as error:  # whatever the function's own code raises is printed, and the next one is explained
        print(f"FAIL   {function.name}  {'; '.join(mesh_text(one.shape_tuple) for one in there)}")
        print(f"{indent(cli.format_error(error), '       ')}\n")
        return None
    print(f"{found}\n")
    return found
