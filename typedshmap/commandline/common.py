"""The options that the verbs have in common."""

from __future__ import annotations

import argparse


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add what is traced, and with which sizes."""
    parser.add_argument("target", metavar="MODULE[:FUNCTION]", help="a module, or a file.py; one function of it")
    parser.add_argument(
        "--mesh", action="append", required=True, metavar="dp=4,tp=2", help="a mesh; several by --mesh again"
    )
    parser.add_argument(
        "--size", action="append", default=[], metavar="batch=32", help="the global size of a dim; else it is drawn"
    )
    parser.add_argument(
        "--arg", action="append", default=[], metavar="scale=0.5", help="an argument that no hint makes"
    )
    parser.add_argument(
        "--explicit", action="store_true", help="mesh axes are of type Explicit, where the function has no own mesh"
    )
    parser.add_argument(
        "--devices",
        type=int,
        metavar="8",
        help="the virtual CPU devices that the module finds; by default as many as the first mesh has",
    )
