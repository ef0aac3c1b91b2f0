"""``python -m typedshmap explain``: tables of a module's functions on meshes without devices."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from jax.sharding import AbstractMesh

from ...errors.phrases import excerpt, mesh_text
from ..explain import explain_call
from ..explain.compiled import read_target, require_as_many
from ..explain.costs import Costs, LockFile, change_table
from ..explain.hardware import read_hardware
from ..explain.model import read_bandwidth
from ..explain.tables import Comparison, Explanation
from . import options
from .output import early_progress, print_failure
from .targets import Function, arguments_for, module_of, names_taken, read_functions


def add_verb(add_parser: Callable[..., options.Parser]) -> None:
    """Add the verb and its options."""
    parser = add_parser(
        "explain",
        help="report what functions hold and send on any mesh, without devices",
        description="Report the memory, the collectives and the FLOPs of typed_shard_map and typed_jit functions on "
        "abstract meshes, with inputs made from the hints. Several meshes are compared. No devices are needed.",
        epilog="The exit code is 0 if all functions can be traced, 1 if one cannot or --check finds another cost, and "
        "2 if the command line is wrong. "
        "Example: python -m typedshmap explain model:step --mesh dp=64,tp=8 --size batch=512",
    )
    options.add_target(parser)
    options.add_common(parser)
    add = parser.add_argument
    rate = "bytes per second that a device sends over a mesh axis, to turn bytes into seconds"
    add("--bandwidth", action="append", default=[], metavar="tp=400GB/s", help=rate)
    kinds = "the kind of device, to estimate times: v5e, v5p, v6e, v7x, h100, b200"
    add("--hardware", metavar="v5p", help=kinds)
    compiler = "also compile the function, and print what XLA reports: for cpu, or for TPUs that need not exist"
    add("--compile", metavar="v5p:8x16x16", help=compiler)
    grad = "also explain the gradient, or not; by default if there is one and the function takes none itself"
    add("--grad", action=argparse.BooleanOptionalAction, default=None, help=grad)
    add("--values", action="store_true", help="also print tables of all values, collectives and totals")
    options.add_page(parser, "tables and pictures")
    add("--lock", metavar="FILE", type=Path, help="record the costs in a file, for a later --check")
    add("--check", metavar="FILE", type=Path, help="compare the costs with those that --lock recorded")
    parser.set_defaults(verb=run)


def run(given: argparse.Namespace) -> int:
    """Explain the functions, with several meshes compared; the exit code."""
    options.require_one_module(given.target)
    meshes = options.read_meshes(given.mesh, given.explicit)
    bandwidth = {name.strip(): value.strip() for name, _, value in (text.partition("=") for text in given.bandwidth)}
    with options.misuse():
        for mesh in meshes:
            read_bandwidth("--bandwidth", bandwidth, mesh.shape_tuple)
        hardware = read_hardware("--hardware", given.hardware)
    page = options.page_to_write(given.html, given.force)
    lock = _read_lock(given)
    functions, values, _ = read_functions(given, [given.target], min(meshes[0].size, options.MOST_VIRTUAL_DEVICES))
    calls = [(function, [function.on(mesh) for mesh in meshes]) for function in functions]
    keys: list[str] = []
    if lock is not None:  # entries are independent, while compared meshes have the same sizes
        calls = [(function, [mesh]) for function, own_meshes in calls for mesh in own_meshes]
        keys = [_entry_key(lock.path.parent, function, mesh, values, given) for function, (mesh,) in calls]
        if given.lock is None:
            _require_entries(lock, keys)
    with options.misuse():
        target = read_target("--compile", given.compile)
        for mesh in meshes:
            require_as_many("explain", target, mesh)
    explained: list[Explanation | Comparison] = []
    has_changed = False
    with early_progress("explain: tracing") as report:
        for at, (function, own_meshes) in enumerate(calls):
            report(function.name)
            mesh = own_meshes[0] if len(own_meshes) == 1 else own_meshes
            try:
                arguments = arguments_for(function, values)
                with function.in_its_module():
                    explanation = explain_call(
                        function.function,
                        (),
                        arguments,
                        mesh=mesh,
                        grad=given.grad,
                        bandwidth=bandwidth,
                        hardware=hardware,
                        compile=given.compile,
                    )
            except (Exception, SystemExit) as error:  # from the function's code: the next function is still explained
                where = "; ".join(mesh_text(mesh.shape_tuple) for mesh in own_meshes)
                print_failure(f"FAIL   {function.name}  {where}", error, "\n")
                continue
            explained.append(explanation)
            if lock is None:
                print(f"{explanation}\n\n{explanation.tables}\n" if given.values else f"{explanation}\n", flush=True)
            elif isinstance(explanation, Explanation):
                changes = _compare(lock, keys[at], explanation, given.lock is not None)
                has_changed = has_changed or (changes and given.lock is None)
    options.write_page(page, given.target, explained)
    if lock is not None and given.lock is not None:
        with options.misuse("--lock "):
            lock.write()
    comparisons = [explanation for explanation in explained if isinstance(explanation, Comparison)]
    has_failed = len(explained) < len(calls) or any(comparison.failures for comparison in comparisons)
    return options.FAILED if has_failed or has_changed else options.DONE


def _read_lock(given: argparse.Namespace) -> LockFile | None:
    option, path = ("--lock", given.lock) if given.lock is not None else ("--check", given.check)
    if path is None:
        return None
    if given.lock is not None and given.check is not None:
        raise options.UsageError("--lock and --check: give one of them; --check compares with what --lock has written")
    if option == "--lock" and not path.exists():
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise options.UsageError(f"--lock {path}: there is no folder '{path.parent}' in which a file can be made")
        return LockFile(path)
    with options.misuse(f"{option} "):
        lock = LockFile.read(path)
    if option == "--lock" and not os.access(path, os.W_OK):
        raise options.UsageError(f"--lock {path}: the file cannot be written")
    return lock


def _entry_key(
    folder: Path, function: Function, mesh: AbstractMesh, values: Mapping[str, Any], given: argparse.Namespace
) -> str:
    """The key of an entry of a lock file: the command line, without options that do not change costs."""
    taken = {*names_taken(function, given.target, values)}
    named = {name: value for name, value in sorted(values.items()) if name.partition(".")[0] in taken}
    grad = {None: [], True: ["--grad"], False: ["--no-grad"]}[given.grad]
    words = [f"{_module_name(function.module, folder)}:{function.name}"]
    words += ["--mesh", mesh_text(mesh.shape_tuple).replace(" ", "")]
    for name, value in named.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += ["--size" if isinstance(value, int | tuple) else "--arg", f"{name}={text}"]
    return shlex.join([*words, *grad, *(["--explicit"] if given.explicit else [])])


def _module_name(target: str, folder: Path) -> str:
    """The canonical name of a module: by name in a package, else by its file."""
    path = getattr(sys.modules.get(target), "__file__", None) or target
    if not path.endswith(".py"):
        return target
    file, folder = Path(path).resolve(), folder.resolve()
    if name := module_of(file)[1]:
        return name
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.stem


def _require_entries(lock: LockFile, keys: Sequence[str]) -> None:
    missing = [key for key in keys if key not in lock.entries]
    if missing:
        more = f", nor for {len(missing) - 1} more" if len(missing) > 1 else ""
        cure = f"--lock {lock.path} in the place of --check records it"
        raise options.UsageError(f"--check {lock.path}: it has no entry for '{excerpt(missing[0])}'{more}; {cure}")


def _compare(lock: LockFile, key: str, explanation: Explanation, is_recorded: bool) -> bool:
    """Print the differences from a lock file, and record them there; returns whether there are any."""
    is_new, costs = key not in lock.entries, Costs.of(explanation)
    changes = lock.entries[key].changes(costs) if not is_new else []
    if is_recorded and (is_new or changes):
        lock.entries[key] = costs
    word = "new" if is_new else "same" if not changes else "changed" if is_recorded else "differs"
    print(f"{word:7}  {key}", flush=True)
    if changes:
        print(indent(str(change_table(changes)), " " * 9) + "\n", flush=True)
    return bool(changes)
