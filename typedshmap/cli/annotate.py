"""``python -m typedshmap annotate``: run a program, and print the diff that types its calls of ``shard_map``."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .. import cli
from .programs import add_program, make_devices, require_program, run_program


def add_verb(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the verb and its options."""
    parser = add_parser(
        "annotate",
        help="run a program, and turn its jax.shard_map calls into typed ones",
        description="Run a script or a module, and print a diff that turns the calls of jax.shard_map that it made "
        "into typed ones. Findings of an audit become comments above the calls; calls that stay as they are go to "
        "stderr, with the reason. The program runs at least twice, since the diff is printed only if the typed "
        "program passes.",
        epilog="The exit code is that of the program, or 2 if the command line cannot be read. A program that fails "
        "is annotated as far as it got. Example: python -m typedshmap annotate --devices 8 train.py --steps 2",
    )
    add = parser.add_argument
    add("--static", action="store_true", help="do not run the program, and turn literal specs in files into hints")
    add("--write", action="store_true", help="also change the files")
    add("--accept", type=Path, help=argparse.SUPPRESS)
    add_program(parser, "a script; with -m a module; with --static a file", "what it is given, or more files")
    parser.set_defaults(verb=run)


def run(given: argparse.Namespace) -> int:
    """Annotate a program, or files; the exit code.

    Raises:
      UsageError: for a command line that cannot be read, and a program that is not there.
    """
    if given.static:
        return annotate_files([given.program, *given.arguments], given.write)
    from ..annotating.program import AnnotatedProgram  # which takes long to import, as only this verb needs it
    from ..annotating.recording import recorded_sites, verifying

    environment = {name: value for name, value in os.environ.items() if name != "TYPEDSHMAP_CHECKS"}
    if given.devices is not None:
        make_devices(given.devices)
    if given.accept is not None:
        sys.path.insert(0, os.getcwd())
        with verifying(given.accept) as texts:
            return run_program(given.program, given.module, given.arguments, texts)
    folder, loaded = Path.cwd(), {*sys.modules}
    with cli.output_on_stderr():
        with recorded_sites() as sites:
            require_program(given.program, given.module)  # which imports the package around a module
            code = run_program(given.program, given.module, given.arguments)
        os.chdir(folder)
        program = AnnotatedProgram([*sites.values()], given.program, loaded)
        program.accept(code, _command(given), environment)
        texts = program.edited(marked=False)
    for file in sorted(texts):
        sys.stdout.write(diff(Path(file), program.modules[file].as_written(), texts[file]))
    if given.write:
        write_files(texts)
    for file, line, why in program.left():
        print(f"{os.path.relpath(file)}:{line}: left: {why}", file=sys.stderr)
    done, count = sum(not plan.left for plan in program.plans), len(program.plans) + len(program.lost)
    print(f"annotate: {done} of {count} calls are annotated", file=sys.stderr, flush=True)
    return code


def annotate_files(files: Sequence[str], write: bool) -> int:
    """Turn literal specs in files into hints, and run nothing; one that cannot be read does not stop the others.

    Returns:
      0 if every call is typed, or there is none; 1 if some are left; 2 if a file cannot be read.
    """
    from ..annotating.static import annotate_text  # as above

    code = cli.DONE
    for name in files:
        try:
            with Path(name).open(encoding="utf-8", newline="") as file:  # which keeps the ends of lines
                text = file.read()
            found = annotate_text(text)
        except SyntaxError as error:
            print(f"{name}:{error.lineno}: it is no Python", file=sys.stderr)
            code = cli.WRONG
        except (OSError, ValueError) as error:
            print(_unreadable(name, error), file=sys.stderr)
            code = cli.WRONG
        else:
            if write and found.text != text:
                write_files({name: found.text})
            sys.stdout.write(diff(Path(name), text, found.text))
            for line, why in found.left:
                print(f"{name}:{line}: left: {why}", file=sys.stderr)
            if not found.done and not found.left:
                print(f"{name}: no call of jax.shard_map", file=sys.stderr)
            code = max(code, cli.FAILED if found.left else cli.DONE)
    return code


def _unreadable(name: str, error: OSError | ValueError) -> str:
    """Why a file cannot be read; a name that no file can have is shown as Python shows it."""
    match error:
        case OSError():
            return f"{name}: {(error.strerror or str(error)).lower()}"
        case UnicodeDecodeError():
            return f"{name}: it is not UTF-8"
        case _:
            return f"{name!r}: {error}"


def _command(given: argparse.Namespace) -> list[str]:
    devices = [f"--devices={given.devices}"] if given.devices is not None else []
    own = ["-m"] if given.module else []
    return [sys.executable, "-m", "typedshmap", "annotate", *devices, *own, given.program, *given.arguments]


def write_files(texts: Mapping[str, str]) -> None:
    """Write files as they are, with the ends of lines that their texts have."""
    for file, text in texts.items():
        Path(file).write_bytes(text.encode())


def diff(path: Path, before: str, after: str) -> str:
    """The changes of a file, as a patch; its path is relative to the current folder if it is below."""
    shown = os.path.relpath(path)
    shown = str(path) if shown.startswith("..") else shown
    # Not splitlines, for which a form feed ends a line as well.
    lines = difflib.unified_diff(list(io.StringIO(before)), list(io.StringIO(after)), shown, shown)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
