"""``python -m typedshmap plan``: the meshes of a number of devices on which a function fits, and the fastest."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from jax.sharding import AxisType

from ..._jax.mesh import MOST_DEVICES
from ..explain import Choice, choose_call
from ..explain.choose import meshes_to_try, read_free_mesh
from ..explain.hardware import read_hardware
from . import options
from .output import early_progress, print_failure
from .targets import arguments_for, read_functions


def add_verb(add_parser: Callable[..., options.Parser]) -> None:
    """Add the verb and its options."""
    parser = add_parser(
        "plan",
        help="rank the meshes of a number of devices on which a function fits by time",
        description="Trace typed_shard_map and typed_jit functions on all meshes of a number of devices. Meshes on "
        "which they fit are ranked by a lower bound of the time; the others are listed with the reason. No devices "
        "are needed.",
        epilog="The exit code is 0 if a mesh fits, 1 if none does, and 2 if the command line is wrong. "
        "Example: python -m typedshmap plan model:step --devices 2048 --hardware v5p --batch 512",
    )
    options.add_target(parser)
    add = parser.add_argument
    add("--devices", type=options.natural_number, required=True, metavar="2048", help="the number of devices")
    kinds = "the kind of device: v5e, v5p, v6e, v7x, h100, b200; for a TPU also its topology: v5p:8x16x16"
    add("--hardware", required=True, metavar="v5p", help=kinds)
    axes = "mesh axes of fixed size, and axes that no hint names: pp,tp=8"
    add("--mesh", default="", metavar="tp=8", help=axes)
    options.add_values(parser)
    add("--grad", action="store_true", help="plan for the function and its gradient (vector-Jacobian product)")
    options.add_page(parser, "charts of time and memory")
    parser.set_defaults(verb=run)


def run(given: argparse.Namespace) -> int:
    """Plan the functions; the exit code."""
    options.require_one_module(given.target)
    if not 1 <= given.devices <= MOST_DEVICES:
        raise options.UsageError(f"--devices {given.devices}: a mesh has 1 to {MOST_DEVICES} devices")
    with options.misuse():
        hardware, free = read_hardware("--hardware", given.hardware), read_free_mesh("--mesh", given.mesh)
        if all(free.values()):
            meshes_to_try("--mesh", given.devices, {**free, "": None})
    assert hardware is not None
    page = options.page_to_write(given.html, given.force)
    there = argparse.Namespace(**vars(given))
    there.mesh, there.devices = [",".join(f"{axis}=1" for axis in free)], None
    functions, values, _ = read_functions(there, [given.target], min(given.devices, options.MOST_VIRTUAL_DEVICES))
    choices: list[Choice] = []
    with early_progress("plan") as report:
        for function in functions:
            report(function.name)

            def report_mesh(text: str, name: str = function.name) -> None:
                report(f"{name}: {text}")

            try:
                arguments = arguments_for(function, values)
                with function.in_its_module():
                    choice = choose_call(
                        function.function,
                        (),
                        arguments,
                        devices=given.devices,
                        hardware=hardware,
                        mesh=free,
                        grad=given.grad,
                        axis_type=AxisType.Explicit if given.explicit else AxisType.Auto,
                        report=report_mesh,
                    )
            except (Exception, SystemExit) as error:  # from the function's code: the next function is still planned
                print_failure(f"FAIL   {function.name}", error, "\n")
            else:
                print(f"{choice}\n", flush=True)
                choices.append(choice)
    options.write_page(page, given.target, choices)
    is_done = len(choices) == len(functions) and all(choice.ranked for choice in choices)
    return options.DONE if is_done else options.FAILED
