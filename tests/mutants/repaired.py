"""Repair a mutant, as ``check --fix`` does a function."""

import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from mutation import Program, source_of
from trying import found_wrong
from wrong import Mutant

from typedshmap.errors.places import Place
from typedshmap.repairing.edits import edits_for
from typedshmap.repairing.search import Repair, RepairSearch
from typedshmap.source.module import ParsedModule

FIXES = Path(__file__).with_name("fixes.txt")
NONE = "none"


def loaded(program: Program, text: str) -> Any:
    """The program's function, made of a text."""
    module = ModuleType(f"{program.path.stem}_made_of_source")
    sys.modules[module.__name__] = module
    with mock.patch.dict(os.environ):  # an example sets variables for JAX
        exec(compile(text, str(program.path), "exec"), module.__dict__)
    return getattr(module, program.function)


def wrong_text(mutant: Mutant) -> str:
    return source_of(mutant.program, (mutant.old, mutant.new), check_vma=mutant.check_vma[0])


def repaired(mutant: Mutant, seconds: float) -> Repair | None:
    """The edit that makes a mutant right, if one is found."""
    program, error, text = mutant.program, found_wrong(mutant, mutant.check_vma[0]), wrong_text(mutant)
    place = getattr(error, "place", None)
    named = re.findall(rf"{re.escape(program.path.name)}:(\d+)", str(error))
    places = list(dict.fromkeys([*([place.line] if isinstance(place, Place) else []), *map(int, named)]))
    cure = " ".join(line for line in str(error).splitlines() if line.startswith("Hint: "))
    source = ParsedModule(text)
    within = next(each.lineno for each in source.tree.body if getattr(each, "name", "") == program.function)
    search = RepairSearch(
        loaded(program, text), lambda text: loaded(program, text), program.meshes, program.given, mutant.grad
    )
    return search.find(source, edits_for(source, search.axes, places, within, cure), seconds)


def written(mutant: Mutant, found: Repair | None) -> str:
    """``34: return x + y``: the first line that a repair changes, and what it is then; or that there is none."""
    if found is None:
        return NONE
    before, after = wrong_text(mutant).splitlines(), found.text.splitlines()
    at = next(at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other)
    return f"{at + 1}: {after[at].strip()}" if len(before) == len(after) else f"{at + 1} goes"


def text_with(mutant: Mutant, line: str) -> str:
    """A mutant's text with a repair, as it is written down."""
    number, _, after = line.partition(": ")
    lines = wrong_text(mutant).splitlines()
    if number.endswith(" goes"):
        del lines[int(number.removesuffix(" goes")) - 1]
    else:
        before = lines[int(number) - 1]
        lines[int(number) - 1] = before[: len(before) - len(before.lstrip())] + after
    return "\n".join(lines) + "\n"
