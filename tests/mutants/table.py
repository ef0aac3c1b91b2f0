"""Print the table of mutants for the documentation; with ``--first-lines``, try them all and write down what is said,
and which line is named first; with ``--proofs``, prove the right programs and the wrong ones and write down the
verdicts.

PYTHONPATH=. python tests/mutants/table.py
"""

import os
import sys
from collections import Counter
from itertools import groupby

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
from catalogue import (
    FIRST_DIFFERENCES,
    FIRST_LINES,
    MUTANTS,
    PROOFS,
    label,
    named,
    proofs,
    reported,
    verdict,
    verdict_on,
)
from trying import first_line, found_wrong
from wrong import Mutant


def row(program: str, mutants: list[Mutant]) -> str:
    """A right program, and how its wrong variants are found."""
    by = Counter(mutant.found_by for mutant in mutants)
    verdicts = Counter(proofs()[mutant.id].partition(":")[0] for mutant in mutants)
    counts = [
        by["types"] + by["JAX"],
        by["mesh"],
        verdicts["refused"] + verdicts["refuted"],
        verdicts["unknown"],
    ]
    return f"| {program} | {' | '.join(map(str, counts))} | {proofs()[program].partition(':')[0]} |"


def table() -> str:
    """A row for each program."""
    parts = ["| program | types | mesh | refuted | unknown | itself |", f"|---|{'--:|' * 4}---|"]
    for program, mutants in groupby(MUTANTS, lambda mutant: mutant.program.name):
        parts.append(row(program, list(mutants)))
    return "\n".join(parts)


def write_down() -> None:
    """Write down what is said of every mutant now.

    Raises:
      SystemExit: for one that nothing is said of.
    """
    lines, places = list[str](), list[str]()
    for mutant, check_vma in [(m, v) for m in MUTANTS for v in m.check_vma]:
        error = found_wrong(mutant, check_vma)
        if error is None:
            sys.exit(f"{label(mutant, check_vma)} is not found")
        lines.append(f"{label(mutant, check_vma)}: {reported(first_line(error))}\n")
        if mutant.found_by == "mesh":
            places.append(f"{label(mutant, check_vma)}: {named(mutant, check_vma, str(error))}\n")
    FIRST_LINES.write_text("".join(lines), encoding="utf-8")
    FIRST_DIFFERENCES.write_text("".join(places), encoding="utf-8")


if __name__ == "__main__":
    if "--first-lines" in sys.argv:
        jax.config.update("jax_disable_most_optimizations", True)  # as in the tests
        write_down()
    if "--proofs" in sys.argv:
        programs = {mutant.program.name: mutant.program for mutant in MUTANTS}
        said_of = {name: verdict(each) for name, each in programs.items()}
        said_of |= {mutant.id: verdict_on(mutant) for mutant in MUTANTS}
        PROOFS.write_text("".join(f"{name}: {said}\n" for name, said in said_of.items()), encoding="utf-8")
    print(table())
