"""``typedshmap VERB``: the commands, each in its own module here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

from ... import __version__
from ...testing.waiting import end_if_waiting
from . import audit_command, check_command, explain_command, plan_command
from .options import FAILED, INTERRUPTED, WRONG, Parser, UsageError, read_size_flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, and run its verb; returns the exit code."""
    parser = Parser("python -m typedshmap", description="Tools for shard_map programs.")
    parser.set_defaults(verb=None)
    parser.add_argument("--version", action="version", version=f"typedshmap {__version__}")
    _prepare_process()
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="name")
    for tool in (check_command, explain_command, plan_command, audit_command):
        tool.add_verb(verbs.add_parser)
    given, unknown = parser.parse_known_args(arguments)
    if "size" in given:
        unknown = read_size_flags(given, unknown)
    if unknown:
        verbs.choices.get(given.name, parser).refuse_flag(unknown[0])
    if given.verb is None:
        parser.print_help(sys.stderr)
        return WRONG
    try:
        code = given.verb(given)
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"{given.name}: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print(f"{given.name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # A closed pipe, as of head; Python would report buffered output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _prepare_process() -> None:
    """Add the current folder to the path, like ``python -m``, and flush each line, on any terminal."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")


def main_and_exit() -> NoReturn:
    """The command ``typedshmap``."""
    code = main()
    end_if_waiting(code)
    sys.exit(code)
