"""``python -m typedshmap rewrite``: calls of ``jax.shard_map`` with literal specs into hints."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .annotate import annotate_files


def add_verb(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the verb and its options."""
    parser = add_parser(
        "rewrite",
        help="turn jax.shard_map calls with literal specs into typed ones, without running them",
        description="Print a diff that turns calls of jax.shard_map with literal specs into typed ones. Calls that "
        "stay as they are go to stderr, with the reason. Nothing is run.",
        epilog="The exit code is 0 if all calls were turned, 1 if some were not, and 2 if a file cannot be read. "
        "Example: python -m typedshmap rewrite --write model.py layers.py",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file.py")
    parser.add_argument("--write", action="store_true", help="also change the files")
    parser.set_defaults(verb=lambda given: annotate_files(given.files, given.write))
