"""``python -m typedshmap VERB``: the tools of the command line, each in a room of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .cli import WRONG, UsageError
from .cli.check import add_check
from .cli.explain import add_arguments as add_explain


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and hand it to its verb; the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.verb is None:
        parser.print_help(sys.stderr)
        return WRONG
    try:
        return given.verb(given)
    except UsageError as error:
        print(f"{given.name}: {error}", file=sys.stderr)
        return WRONG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m typedshmap", description="Tools for typed shard_map programs.")
    parser.set_defaults(verb=None)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="name")
    rewrite = verbs.add_parser(
        "rewrite",
        help="turn calls of jax.shard_map with literal specs into hints",
        description="Print a diff that turns calls of jax.shard_map with literal specs into hints, and on stderr "
        "what is left and why.",
        epilog="The exit code is 0 where nothing is left, 1 where something is, 2 where a file cannot be read.",
    )
    rewrite.add_argument("files", nargs="+", metavar="FILE")
    rewrite.add_argument("--write", action="store_true", help="change the files, too")
    rewrite.set_defaults(verb=_rewrite)
    check = verbs.add_parser(
        "check",
        help="trace typed functions on meshes that nobody has",
        description="Trace every typed_shard_map and typed_jit function of a module on abstract meshes, with inputs "
        "made from the hints. No devices are needed.",
        epilog="The exit code is 0 where all are right, 1 where one is not, 2 where the command line cannot be read.",
    )
    add_check(check)
    explain = verbs.add_parser(
        "explain",
        help="report what typed functions hold and send on meshes that nobody has",
        description="Print tables of the values and collectives of typed_shard_map and typed_jit functions, on "
        "abstract meshes, with inputs made from the hints; several meshes are compared. No devices are needed.",
        epilog="The exit code is 0 where all can be traced, 1 where one cannot, 2 where the command line is wrong.",
    )
    add_explain(explain)
    return parser


def _rewrite(given: argparse.Namespace) -> int:
    try:
        # libcst is an optional extra, which only this verb needs.
        from .rewriting.command import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "libcst":
            raise
        print("rewrite needs libcst, the extra 'rewrite': pip install libcst", file=sys.stderr)
        return WRONG
    return run(given.files, given.write)


if __name__ == "__main__":
    sys.exit(main())
