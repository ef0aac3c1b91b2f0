"""``python -m typedshmap rewrite``: a diff of files on stdout, and what is left on stderr."""

from __future__ import annotations

import difflib
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import libcst as cst

from . import RewriteResult, rewrite

DONE, SOME_LEFT, WRONG = 0, 1, 2


def run(files: Sequence[str], write: bool) -> int:
    """Rewrite files one by one; one that cannot be read does not stop the others.

    Returns:
      0 where every call is rewritten, or there is none; 1 where some are left; 2 where a file cannot
      be read.
    """
    return max(_run_one(Path(name), write) for name in files)


def _run_one(path: Path, write: bool) -> int:
    try:
        # newline="": a file keeps the ends of lines that it has.
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
        rewritten = rewrite(text)
    except (OSError, ValueError, cst.ParserSyntaxError) as error:  # UnicodeDecodeError; a name that no file can have
        return _report_error(path, error)
    if write and rewritten.text != text:
        path.write_bytes(rewritten.text.encode())
    sys.stdout.write(_diff(path, text, rewritten.text))
    _report(path, rewritten)
    return SOME_LEFT if rewritten.left else DONE


def _diff(path: Path, before: str, after: str) -> str:
    # Not splitlines, for which a form feed ends a line as well.
    lines = difflib.unified_diff(list(io.StringIO(before)), list(io.StringIO(after)), str(path), str(path))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _report(path: Path, rewritten: RewriteResult) -> None:
    """What happened, on stderr, so that stdout is a patch."""
    for left in rewritten.left:
        print(f"{path}:{left.line}: left: {left.reason}", file=sys.stderr)
    if not rewritten.done and not rewritten.left:
        print(f"{path}: no call of jax.shard_map", file=sys.stderr)


def _report_error(path: Path, error: Exception) -> int:
    match error:
        case cst.ParserSyntaxError():
            print(f"{path}:{error.raw_line}: it is no Python", file=sys.stderr)
        case OSError():
            print(f"{path}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        case UnicodeDecodeError():
            print(f"{path}: it is not UTF-8", file=sys.stderr)
        case _:
            print(f"{str(path)!r}: {error}", file=sys.stderr)
    return WRONG
