"""Follow the cures of messages to the letter, and run what comes of it.

A cure is edits, each at a line of the source: a collective put around the value of the line, in the place of another
one, or left out, or the value divided by the size of an axis. A program that was cured gives on every mesh what the
wrong one gives on one device, where a cure changes nothing.

``python tests/degrees/follow.py [FAMILY...] [-v]`` follows the first cure of every wrong program that has one.
"""

import ast
import re
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Literal

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    import environment  # noqa: F401 (eight devices)

import families  # (fills the registry)
import families.losses
import jax
from deciding import decide, read_decided
from edits import NotFollowedError, OfResult, Placed, apply_cure, parse_cures
from jax import lax
from reading import messages_of
from registry import REGISTRY, Program

Outcome = Literal["right", "wrong and accepted", "wrong and found", "refused by JAX", "cannot be followed"]


def cured(program: Program, cure: list[Placed]) -> Program:
    """A program with the edits of a cure, in its own lines or in those of a function that its module has.

    Raises:
      NotFollowedError: where an edit cannot be made.
    """
    namespace = {**vars(families.losses), **program.function.__globals__, "jax": jax, "lax": lax}
    edited: dict[str, tuple[str, str, int]] = {}
    for edit, file, line in cure:
        if isinstance(edit, OfResult):
            file, line = Path(program.function.__code__.co_filename).name, program.function.__code__.co_firstlineno
            line += program.source.count("\n") - 1
        name, path, first, source = _function_at(program, file, line)
        source = edited[name][0] if name in edited else source
        edited[name] = apply_cure(source, line - first + 1, edit), path, first
    function = program.function
    for name, (source, path, first) in edited.items():
        exec(compile("\n" * (first - 1) + source, path, "exec"), namespace)
        if name == "":
            function = namespace["_"]
    if "" not in edited:
        source = _undecorated(program.source)
        first = program.function.__code__.co_firstlineno + program.source.count("\n") - source.count("\n")
        exec(compile("\n" * (first - 1) + source, program.function.__code__.co_filename, "exec"), namespace)
        function = namespace["_"]
    return replace(program, function=function)


def _undecorated(source: str) -> str:
    return source[re.search(r"^def ", source, re.M).start() :]  # type: ignore[union-attr]


def _function_at(program: Program, file: str, line: int) -> tuple[str, str, int, str]:
    """The name ("" for the program's own), the path, the first line and the source of the function at a line."""
    code, own = program.function.__code__, program.source
    last = code.co_firstlineno + own.count("\n") - 1
    if Path(code.co_filename).name == file and code.co_firstlineno <= line <= last:
        source = _undecorated(own)
        return "", code.co_filename, last - source.count("\n") + 1, source
    for module in (sys.modules[program.function.__module__], families.losses):
        if Path(str(module.__file__)).name == file:
            return _helper_at(module, line)
    raise NotFollowedError(f"{file}:{line} is not the program's")


def _helper_at(module: ModuleType, line: int) -> tuple[str, str, int, str]:
    path = str(module.__file__)
    text = Path(path).read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= node.end_lineno and node.name != "_":
            lines = text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
            return node.name, path, node.lineno, "".join(lines)
    raise NotFollowedError(f"{Path(path).name}:{line} is in no function")


def outcome(program: Program, check_vma: bool, cure: list[Placed]) -> Outcome:
    """What comes of a cure that is followed to the letter."""
    try:
        after = cured(program, cure)
    except NotFollowedError:
        return "cannot be followed"
    match decide(after, check_vma, program):
        case "refused":
            return "refused by JAX"
        case "right":
            return "right"
        case _:
            return "wrong and found" if messages_of(after, check_vma, program.constants[0]) else "wrong and accepted"


def main(words: list[str]) -> None:
    chosen = {word for word in words if not word.startswith("-")}
    began = time.perf_counter()
    counts, decided = Counter[str](), read_decided()
    for program in REGISTRY.values():
        if chosen and program.family not in chosen:
            continue
        for check_vma in (False, True):
            if decided[program.name].verdict(check_vma) != "wrong":
                continue
            messages = messages_of(program, check_vma, program.constants[0])
            cures = [cure for message in messages for cure in parse_cures(message)]
            came = outcome(program, check_vma, cures[0]) if cures else "no cure" if messages else "not found"
            counts[came] += 1
            if "-v" in words and cures and came != "right":
                print(f"{came}: {program.family}: {program.name} [check_vma={check_vma}]")
                print(f"    {next(line for message in messages for line in message.splitlines() if 'Hint: ' in line)}")
    for came, count in counts.most_common():
        print(f"{count:6} {came}")
    print(f"{time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
