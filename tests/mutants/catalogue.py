"""All mutants in the order of the table, and the first lines of what is said of them."""

import re
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from unittest import mock

from mutation import Program, function_of, source_of
from wrong import Mutant
from wrong_attention import CROSS_ENTROPY, MIXTURE, RING
from wrong_loops import ACCUMULATION, HALF, LOADING, QUANTISATION, SOLVER
from wrong_quickstart import QUICK
from wrong_science import STAGES, STENCIL, TRANSFORM
from wrong_state import CHECKPOINT, NOISE
from wrong_training import DATA_PARALLEL, TENSOR_PARALLEL

from typedshmap import TypedShmapError
from typedshmap.testing import prove
from typedshmap.testing.proving import proof

MUTANTS: tuple[Mutant, ...] = (
    *DATA_PARALLEL, *TENSOR_PARALLEL, *RING, *MIXTURE, *CROSS_ENTROPY, *STAGES, *STENCIL, *TRANSFORM,
    *ACCUMULATION, *SOLVER, *QUANTISATION, *HALF, *LOADING, *CHECKPOINT, *NOISE, *QUICK,
)  # fmt: skip
# These add up in few bits, the more terms the worse: a repair, which is judged by one device, leaves them wrong.
WRONG_ON_ONE_DEVICE = {"B1", "B2"}
FIRST_LINES = Path(__file__).with_name("first_lines.txt")
PROOFS = Path(__file__).with_name("proofs.txt")
HAVE_GRADIENTS = {mutant.program.name for mutant in MUTANTS if mutant.grad}
FIRST_DIFFERENCES = Path(__file__).with_name("first_differences.txt")


def label(mutant: Mutant, check_vma: bool) -> str:
    """``T1``; ``T1 without types``"""
    return mutant.id if check_vma else f"{mutant.id} without types"


@cache
def first_lines() -> dict[str, str]:
    return dict(line.split(": ", 1) for line in FIRST_LINES.read_text(encoding="utf-8").splitlines())


@cache
def proofs() -> dict[str, str]:
    """What the proof says of right programs, by their names, and of mutants, by theirs, as it is written down."""
    return dict(line.split(": ", 1) for line in PROOFS.read_text(encoding="utf-8").splitlines())


def verdict(program: Program) -> str:
    """``proved``; ``unknown: it works along a sharded dim``"""
    with mock.patch.object(proof, "assert_mesh_invariant"):  # it is right, so that none refutes it
        found = prove(function_of(program), grad=program.name in HAVE_GRADIENTS)
    return f"{found.verdict}: {found.why}" if found.why else found.verdict


def verdict_on(mutant: Mutant) -> str:
    """``refuted``; ``refused``, where types or JAX do not let it be traced."""
    function = function_of(mutant.program, (mutant.old, mutant.new), check_vma=mutant.check_vma[0])
    try:
        found = prove(function, grad=mutant.grad, **mutant.program.given)
        if found.verdict == "unknown":  # on meshes that these sizes do not fit, it may show
            found = prove(function, grad=mutant.grad)
    except TypedShmapError:
        return "refused"
    if found.why.startswith("it raises "):
        return "refused"
    return f"{found.verdict}: {found.why}" if found.verdict == "unknown" else found.verdict


def said(mutant: Mutant, check_vma: bool) -> str:
    """The first line of what is said of a mutant."""
    return first_lines()[label(mutant, check_vma)]


def without_numbers(message: str) -> str:
    """A full message without numbers that were computed."""
    return re.sub(r"-?\d+\.\d+|\d+e-\d+|(?<= at )\[[\d,]+\]", "…", message)


def reported(line: str) -> str:
    """A first line without computed numbers and the place of the largest, which may differ in rounding."""
    number = r"-?[\d.]+(?:e-?\d+)?(?:[+-][\d.]+(?:e-?\d+)?j)?"
    return re.sub(rf"(?<= ){number}(?= on )|(?<=, not ){number}|(?<= at )\[[\d,]+\]", "…", line)


def edited_lines(mutant: Mutant, check_vma: bool) -> list[int]:
    """The numbers of the lines in which a mutant differs; where one was taken out, of those beside it."""
    right, wrong = (
        source_of(mutant.program, *edits, check_vma=check_vma).splitlines()
        for edits in ((), ((mutant.old, mutant.new),))
    )
    found = list[int]()
    for kind, _, _, start, end in SequenceMatcher(None, right, wrong, autojunk=False).get_opcodes():
        if kind != "equal":
            found += range(start + 1, end + 1) or (start, start + 1)
    return found


def named(mutant: Mutant, check_vma: bool, message: str) -> str:
    """``edited 34``: which line a message names first, and where that is from the line that is wrong."""
    place = re.search(r"^First difference: \S+:(\d+) .*(?:\n    called at (.*))?", message, re.MULTILINE)
    if place is None:
        return "none"
    line, edited = int(place[1]), edited_lines(mutant, check_vma)
    callers = map(int, re.findall(r":(\d+)", place[2] or ""))
    if line in edited:
        return f"edited {line}"
    if not set(edited).isdisjoint(callers):
        return f"called {line}"
    return f"{'before' if line < edited[0] else 'after'} {line}"


@cache
def first_differences() -> dict[str, str]:
    return dict(line.split(": ", 1) for line in FIRST_DIFFERENCES.read_text(encoding="utf-8").splitlines())
