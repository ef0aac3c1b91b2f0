"""``python -m typedshmap audit``: run a program, and analyze every ``shard_map`` that it traces."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import jax

from ..audit import audit
from ..audit.formats import FORMATS, write_report
from ..audit.silenced import Baseline, write_baseline
from . import options
from .output import output_on_stderr
from .run_program import make_devices, require_program, run_program


def add_verb(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the verb and its options."""
    parser = add_parser(
        "audit",
        help="run a program, with hints or without, and find bugs in its shard_maps",
        description="Run a script or a module, and read every shard_map that it traces, whatever calls it. An audit "
        "finds forgotten sums, results that differ between shards, wrong orders of axes, and deadlocks. Nothing is "
        "edited.",
        epilog="The exit code is 0 without errors, 1 with errors (with --strict also with suspects), and 2 if the "
        "command line cannot be read. A program that fails keeps its own. "
        "Example: python -m typedshmap audit --devices 8 train.py --steps 2",
    )
    add = parser.add_argument
    add("--strict", action="store_true", help="count suspects as errors")
    add("--mesh", metavar="dp=4,tp=2", help="the sizes to assume for mesh axes that have size 1 in the program")
    invariance = "at the end, also run each region on one device and on other meshes, and compare the global results"
    add("--invariance", action="store_true", help=invariance)
    hints = "print, per shard_map, the signature that its calls suggest; nothing is edited"
    add("--hints", action="store_true", help=hints)
    add("--format", choices=FORMATS, default="text", help="the format of the report; by default text")
    add("--baseline", metavar="FILE", type=Path, help="leave out the findings in this baseline")
    add("--write-baseline", metavar="FILE", type=Path, help="write the findings as a baseline")
    add("--devices", type=options.natural_number, metavar="8", help="make this many virtual CPU devices")
    add("-m", dest="module", action="store_true", help="run a module, as python -m does")
    add("program", metavar="SCRIPT|MODULE", help="a script; with -m a module")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="what it is given")
    parser.set_defaults(verb=run)


def run(given: argparse.Namespace) -> int:
    """Run a program under audit, and print the report; the exit code."""
    if given.hints and given.format not in ("text", "json"):
        raise options.UsageError(f"--hints is printed as text or json, not as {given.format}")
    axis_sizes = options.read_axis_sizes(given.mesh) if given.mesh is not None else {}
    with options.misuse("--baseline "):
        baseline = Baseline.read(given.baseline) if given.baseline is not None else None
    require_program(given.program, given.module)
    if given.devices is not None:
        make_devices(given.devices)
    is_document = given.format in ("json", "sarif")
    output = output_on_stderr() if is_document else nullcontext()
    with output, audit(axis_sizes, invariance=given.invariance, hints=given.hints) as report:
        code = run_program(given.program, given.module, given.arguments)
    if code and not report.regions and given.devices is None and jax.device_count() == 1:
        print("audit: the program found 1 device; --devices 8 makes as many virtual ones", file=sys.stderr)
    findings = report.findings if baseline is None else baseline.new(report.findings)
    if given.write_baseline is not None:
        with options.misuse("--write-baseline "):
            write_baseline(given.write_baseline, findings)
    hints = report.hints if given.hints else None
    print(write_report(given.format, findings, report.regions, hints=hints), flush=True)
    is_wrong = any(given.strict or finding.severity == "error" for finding in findings)
    return code or (options.FAILED if is_wrong and given.write_baseline is None else options.DONE)
