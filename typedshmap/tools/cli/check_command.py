"""``python -m typedshmap check``: trace every typed function of a module on meshes without devices."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import product
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from ...errors import ShapeError, TypedShmapError
from ...errors.phrases import count_text, mesh_text
from ...errors.places import Place
from ...inspection import reading_thoroughly
from ...testing import assert_mesh_invariant
from ...testing.run import classify_function, in_its_region
from ..audit import audit
from ..audit.audit_report import AuditedRegion, Finding
from ..audit.formats import write_report
from ..sample.arguments import FlatCall
from ..sample.input_plan import UnplacedInputs, plan_inputs
from . import options
from .output import early_progress, output_on_stderr, print_failure, users_frame
from .targets import Function, arguments_for, read_arguments, read_functions


def add_verb(add_parser: Callable[..., options.Parser]) -> None:
    """Add the verb and its options."""
    parser = add_parser(
        "check",
        help="check typed functions on any mesh, without devices",
        description="Trace every typed_shard_map and typed_jit function of a module on abstract meshes, with inputs "
        "made from the hints. No devices are needed.",
        epilog="The exit code is 0 if all functions are right, 1 if one is wrong, and 2 if the command line or a "
        "target cannot be read. Example: python -m typedshmap check examples/ model.layers:mlp --mesh dp=64,tp=8",
    )
    what = "a module, a file.py, one function of it, or a folder: every .py file below it with typed functions"
    parser.add_argument("targets", nargs="+", metavar="MODULE[:FUNCTION]", help=what)
    options.add_common(parser)
    form = "print the findings as GitHub annotations or as a JSON document; other output then goes to stderr"
    parser.add_argument("--format", choices=("text", "github", "json"), default="text", help=form)
    parser.add_argument("--seed", type=options.natural_number, default=0, help="the seed of the sizes that are drawn")
    numerics = "also run each function on virtual CPU devices, and compare its results with those on one device"
    parser.add_argument("--numerics", action="store_true", help=numerics)
    parser.set_defaults(verb=run)


def run(given: argparse.Namespace) -> int:
    """Check the functions, and print a line per function and mesh, or a document; the exit code."""
    meshes = options.read_meshes(given.mesh, given.explicit)
    devices = max(mesh.size for mesh in meshes) if given.numerics else min(meshes[0].size, options.MOST_VIRTUAL_DEVICES)
    with output_on_stderr() if given.format != "text" else nullcontext():
        functions, values, unusable = read_functions(given, given.targets, devices)
        for error in unusable:
            print(f"check: {error}", file=sys.stderr, flush=True)
        findings: list[Finding | None] = []
        left = [finding for function in functions if (finding := _left_out(function, values)) is not None]
        tried = [function for function in functions if all(function.name != finding.region for finding in left)]
        with early_progress("check: tracing") as report:
            for function, mesh in product(tried, meshes):
                report(function.name)
                with function.in_its_module():
                    findings.append(_check(function, mesh, values, given.seed))
        for function in tried if given.numerics else ():
            with function.in_its_module():
                findings.append(_compare_meshes(function, meshes, values))
        failed, on = len(findings) - findings.count(None), "1 mesh" if len(meshes) == 1 else f"{len(meshes)} meshes"
        counts = [f"{failed} failed"] * bool(failed) + [f"{len(left)} not checked"] * bool(left)
        summary = f"{count_text(len(functions), 'function')} on {on}: {', '.join(counts) or 'all right'}"
        print(summary, flush=True)
    if given.format != "text":
        regions = [AuditedRegion(function.name, *function.line, True, ()) for function in functions]
        listed = [*left, *(finding for finding in findings if finding is not None)]
        print(write_report(given.format, listed, regions, summary))
    return options.WRONG if unusable else options.FAILED if failed or left else options.DONE


def _left_out(function: Function, values: Mapping[str, Any]) -> Finding | None:
    """Print that a function is not checked, since an argument is missing that cannot be made from a hint."""
    try:
        _, missing = read_arguments(function, values)
    except Exception:  # raised again by the check
        return None
    if not missing:
        return None
    print(f"left   {function.name}: not checked: {missing}", flush=True)
    return Finding("error", "structure", f"not checked: {missing}", *function.line, function.name)


def _check(function: Function, mesh: AbstractMesh, values: Mapping[str, Any], seed: int) -> Finding | None:
    mesh, drawn_sizes = function.on(mesh), dict[str, Any]()
    label = f"{function.name}  {mesh_text(mesh.shape_tuple)}"
    try:
        arguments = arguments_for(function, values)
        drawn = plan_inputs(function.function, (mesh,), arguments, None, "check").draw(seed)
        drawn_sizes = drawn.drawn_sizes
        with audit() if function.is_plain else nullcontext() as report:
            _trace(function, drawn, mesh)
        if report is not None:
            report.raise_for_errors()
    except (Exception, SystemExit) as error:  # from the function's code: the next function is still checked
        # Another size may help, since a body may divide a dim that the hints leave unsharded.
        may_help = drawn_sizes and (isinstance(error, ShapeError) or not isinstance(error, TypedShmapError))
        drawn_text = f"\nDrawn: {mesh_text(drawn_sizes.items())}; --size gives others" if may_help else ""
        print_failure(f"FAIL   {label}", error, drawn_text)
        return _finding(function, error, f"on {mesh_text(mesh.shape_tuple)}")
    print(f"ok     {label}  ({mesh_text(drawn.sizes.items())})" if drawn.sizes else f"ok     {label}", flush=True)
    return None


def _trace(function: Function, drawn: UnplacedInputs, mesh: AbstractMesh) -> None:
    """Trace a function; a helper of manual regions is mapped over the mesh."""
    subject = classify_function(function.function, function.signature)
    with reading_thoroughly():
        subject = in_its_region(subject, drawn.structs(mesh), mesh)
        used = subject.mesh_for(mesh)
        call = FlatCall(drawn.structs(used), jax.ShapeDtypeStruct)
        with subject.on(used):
            jax.make_jaxpr(lambda *arrays: call.run(subject.mapped(used), arrays))(*call.arrays)


def _compare_meshes(function: Function, meshes: Sequence[AbstractMesh], values: Mapping[str, Any]) -> Finding | None:
    devices, like = np.array(jax.devices()), [function.on(mesh) for mesh in meshes]
    placed = [Mesh(devices[: m.size].reshape(m.axis_sizes), m.axis_names, axis_types=m.axis_types) for m in like]
    try:
        known, arguments = function.names, arguments_for(function, values)
        marked = {name: value for name, value in function.mark.items() if name not in known}
        assert_mesh_invariant(function.function, placed, **marked, **arguments)
    except (Exception, SystemExit) as error:  # as above
        print_failure(f"DIFFER {function.name}", error)
        return _finding(function, error, "on several meshes")
    on = "; ".join(mesh_text(mesh.shape_tuple) for mesh in meshes)
    print(f"same   {function.name}  on one device and on {on}", flush=True)
    return None


def _finding(function: Function, error: BaseException, where: str) -> Finding:
    """The error of a function as a finding, at the place of the error, else of the function."""
    file, line = function.line
    if isinstance(place := getattr(error, "place", None), Place):
        file, line = place.file, place.line
    elif frame := users_frame(error):
        file, line = frame.filename, frame.lineno or line
    name = type(error).__name__.removesuffix("Error")
    kind = "invariance" if isinstance(error, AssertionError) else re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
    first, *rest = str(error).splitlines() or [name]
    cure = "".join(f"; {text.removeprefix('Hint: ')}" for text in rest if text.startswith("Hint: "))
    return Finding("error", kind, f"{first} ({where}){cure}", file, line, function.name)
