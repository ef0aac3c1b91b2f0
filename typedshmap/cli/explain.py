"""``python -m typedshmap explain``: tables of a module's functions on meshes that nobody has."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from .. import cli
from ..errors import MeshAxisError, StructureError
from ..errors.phrases import mesh_text
from ..explaining import explain_call
from ..explaining.hardware import read_hardware
from ..explaining.model import read_bandwidth
from ..explaining.tables import Comparison, Explanation, document
from ..sampling.meshes import mesh_like


def add_verb(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the verb and its options."""
    parser = add_parser(
        "explain",
        help="report what typed functions hold and send on meshes that nobody has",
        description="Print tables of the values and collectives of typed_shard_map and typed_jit functions, on "
        "abstract meshes, with inputs made from the hints; several meshes are compared. No devices are needed.",
        epilog="The exit code is 0 where all can be traced, 1 where one cannot, 2 where the command line is wrong. "
        "Example: python -m typedshmap explain model:step --mesh dp=64,tp=8 --size batch=512",
    )
    parser.add_argument("target", metavar="MODULE[:FUNCTION]", help="a module, or a file.py; one function of it")
    cli.add_common(parser)
    add = parser.add_argument
    rate = "what one device sends per second over a mesh axis, which turns bytes into seconds"
    add("--bandwidth", action="append", default=[], metavar="tp=400GB/s", help=rate)
    kinds = "the kind of device, for how long it takes: v5e, v5p, v6e, v7x, h100, b200"
    add("--hardware", metavar="v5p", help=kinds)
    grad = "explain the gradient, too; by default where there is one and the function takes none itself"
    add("--grad", action=argparse.BooleanOptionalAction, default=None, help=grad)
    add("--html", metavar="FILE", help="write one page with tables and pictures, too")
    add("--force", action="store_true", help="let --html write over a file that is not a page of HTML")
    parser.set_defaults(verb=run)


def run(given: argparse.Namespace) -> int:
    """Explain the functions, one after the other, several meshes compared; the exit code.

    Raises:
      UsageError: for a command line that cannot be read.
    """
    if os.path.isdir(given.target):
        raise cli.UsageError(f"{given.target}: it is a folder; name a module, a file.py or one function of it")
    meshes = cli.read_meshes(given.mesh, given.explicit)
    bandwidth = {name.strip(): value.strip() for name, _, value in (text.partition("=") for text in given.bandwidth)}
    try:
        for mesh in meshes:
            read_bandwidth("--bandwidth", bandwidth, mesh.shape_tuple)
        hardware = read_hardware("--hardware", given.hardware)
    except (MeshAxisError, StructureError) as error:
        raise cli.UsageError(str(error)) from None
    page = None if given.html is None else Path(given.html)
    if page is not None and page.exists() and page.suffix.lower() not in (".html", ".htm") and not given.force:
        raise cli.UsageError(f"--html {given.html}: the file exists, and is not a page of HTML; --force writes over it")
    functions, values, _ = cli.read_functions(given, [given.target], min(meshes[0].size, cli.MOST))
    found: list[Explanation | Comparison] = []
    with cli.early_progress("explain: tracing") as report:
        for function in functions:
            report(function.name)
            own_meshes = [mesh_like(mesh, function.made_of.mesh) for mesh in meshes]
            mesh = own_meshes[0] if len(own_meshes) == 1 else own_meshes
            try:
                arguments = cli.arguments_for(function, values)
                one = explain_call(
                    function.function, (), arguments, mesh=mesh, grad=given.grad, bandwidth=bandwidth, hardware=hardware
                )
            except (Exception, SystemExit) as error:  # of the function's own code: the next one is explained
                where = "; ".join(mesh_text(mesh.shape_tuple) for mesh in own_meshes)
                cli.print_failure(f"FAIL   {function.name}  {where}", error, "\n")
            else:
                print(f"{one}\n", flush=True)
                found.append(one)
    if page is not None:
        try:
            page.write_text(document(given.target, "\n<hr>\n".join(one.html for one in found)), encoding="utf-8")
        except OSError as error:
            raise cli.UsageError(f"--html {given.html}: {(error.strerror or str(error)).lower()}") from None
    has_failed = any(isinstance(one, Comparison) and one.failures for one in found) or len(found) < len(functions)
    return cli.FAILED if has_failed else cli.DONE
