"""``python -m typedshmap rewrite``: calls of ``jax.shard_map`` with literal specs into hints."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .annotate import annotate_files


def add_verb(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the verb and its options."""
    parser = add_parser(
        "rewrite",
        help="turn calls of jax.shard_map with literal specs into hints",
        description="Print a diff that turns calls of jax.shard_map with literal specs into hints, and on stderr "
        "what is left and why.",
        epilog="The exit code is 0 where nothing is left, 1 where something is, 2 where a file cannot be read.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--write", action="store_true", help="change the files, too")
    parser.set_defaults(verb=lambda given: annotate_files(given.files, given.write))
