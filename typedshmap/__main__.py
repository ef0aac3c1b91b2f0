"""``python -m typedshmap VERB``: the tools of the command line, each in a module of ``cli``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .cli import FAILED, INTERRUPTED, WRONG, Parser, UsageError, audit, check, explain, rewrite


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and hand it to its verb; the exit code."""
    parser = Parser("python -m typedshmap", description="Tools for shard_map programs.")
    parser.set_defaults(verb=None)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="name")
    for tool in (rewrite, check, explain, audit):
        tool.add_verb(verbs.add_parser)
    given, unknown = parser.parse_known_args(arguments)
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
        # Nobody reads on, as behind a pipe to head; what is still buffered would be reported at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
