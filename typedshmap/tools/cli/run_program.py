"""Run the user's program in this process, as Python does."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path

import jax

from . import options


def require_program(program: str, is_module: bool) -> None:
    """Raise for a script that is not a file, and for a module that cannot be found."""
    if not is_module:
        if os.path.isdir(program):
            raise options.UsageError(f"{program}: it is a folder; name a script, or with -m a module")
        if not os.path.isfile(program):
            raise options.UsageError(f"{program}: there is no such script")
        return
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(program)
    except (ImportError, ValueError, OSError):
        spec = None
    if spec is None:
        raise options.UsageError(f"{program}: there is no such module")


def make_devices(count: int) -> None:
    """Make virtual CPU devices by the environment, so that a program may still make others."""
    options.require_device_count(count)
    jax.config.update("jax_platforms", "cpu")
    option = f"{options.DEVICES_FLAG}="
    others = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(option)]
    os.environ["XLA_FLAGS"] = " ".join([*others, f"{option}{count}"])


def run_program(program: str, is_module: bool, arguments: Sequence[str]) -> int:
    """Run a program as Python does; the exit code."""
    sys.argv, before = [program, *arguments], sys.modules["__main__"]
    try:
        if is_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program).parent.resolve()))
            code = compile(Path(program).read_bytes(), program, "exec", dont_inherit=True)
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            main.__file__ = os.path.abspath(program)
            exec(code, vars(main))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or options.DONE
        print(end.code, file=sys.stderr)
        return options.FAILED
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _print_traceback(error)
        return options.FAILED
    finally:
        sys.modules["__main__"] = before
        sys.stdout.flush()
    return options.DONE


def _print_traceback(error: BaseException) -> None:
    """Print the traceback of a program's error, starting with the program's first line."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        at = at.tb_next
    traceback.print_exception(type(error), error, at)
