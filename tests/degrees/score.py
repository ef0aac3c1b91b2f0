"""How many of the wrong programs types find, and how many of the right ones they suspect.

``python tests/degrees/score.py [FAMILY...] [-v] [--quick] [--write]`` traces the programs, and runs none. ``-v`` names
each that is missed, and each that is suspected with its message; ``--quick`` reads each with one constant, and most
in one mode; ``--write`` writes what tests expect, `expected.txt`.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    import environment  # noqa: F401 (JAX on CPUs)

import families  # noqa: F401 (fills the registry)
from deciding import Verdict, read_decided
from reading import messages_of
from registry import CONSTANTS, REGISTRY, Program
from verdicts import without_cures

EXPECTED = Path(__file__).with_name("expected.txt")


class Row(NamedTuple):
    """A program as it is read: in one mode, with one constant."""

    program: Program
    check_vma: bool
    c: float | None
    decided: Verdict
    messages: list[str]

    @property
    def is_as_decided(self) -> bool:
        return (self.decided == "wrong") == bool(self.messages)

    @property
    def label(self) -> str:
        constant = "" if self.c is None else f", c={self.c:.4g}"
        return f"{self.program.family}: {self.program.name} [check_vma={self.check_vma}{constant}]"


def rows_of(programs: Iterable[Program], is_quick: bool = False) -> Iterator[Row]:
    """Read programs in both modes, with each constant; what JAX refuses in a mode is left out there.

    Args:
      is_quick: read each with one constant, and in one mode where it is the same in both: four of a family in one
        mode, the next four in the other.
    """
    decided = read_decided()
    for at, program in enumerate(each for each in programs if each.name in decided):
        verdicts, constants = decided[program.name], program.constants
        modes = [False, True]
        if is_quick:
            constants = (constants[at % len(constants)],)
            if verdicts.plain == verdicts.typed:
                modes = [at // len(CONSTANTS) % 2 == 1]
        for check_vma in modes:
            if (verdict := verdicts.verdict(check_vma)) != "refused":
                for c in constants:
                    yield Row(program, check_vma, c, verdict, messages_of(program, check_vma, c))


def unexpected(rows: Iterable[Row]) -> set[str]:
    """What is missed and what is suspected, as `expected.txt` lists it."""
    return {
        f"{'missed' if row.decided == 'wrong' else 'suspected'} {row.label}" for row in rows if not row.is_as_decided
    }


def read_expected() -> set[str]:
    return set(EXPECTED.read_text().splitlines())


def main(words: list[str]) -> None:
    chosen = {word for word in words if not word.startswith("-")}
    began, cpu_began = time.perf_counter(), time.process_time()
    programs = [program for program in REGISTRY.values() if not chosen or program.family in chosen]
    with without_cures():
        rows = list(rows_of(programs, is_quick="--quick" in words))
    took, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    counts = Counter((row.program.family, row.check_vma, row.decided, bool(row.messages)) for row in rows)
    seen = dict.fromkeys(row.program.family for row in rows)
    print(f"{'':24}{'check_vma=False':^30}{'check_vma=True':^30}")
    print(f"{'':24}{'wrong found':>15}{'right alarmed':>15}{'wrong found':>15}{'right alarmed':>15}")
    for families_of_line, heading in [*(((family,), family) for family in seen), (tuple(seen), "all")]:
        cells = list[str]()
        for check_vma in (False, True):
            for verdict in ("wrong", "right"):
                said, unsaid = (
                    sum(counts[family, check_vma, verdict, is_said] for family in families_of_line)
                    for is_said in (True, False)
                )
                cells.append(f"{said} of {said + unsaid}")
        print(f"{heading:24}" + "".join(f"{cell:>15}" for cell in cells))
    print(f"{len(rows)} rows of {len({row.program.name for row in rows})} programs in {took:.1f} s ({cpu:.1f} of CPU)")
    said = {(row.program.name, row.check_vma, bool(row.messages)) for row in rows}
    varying = len(said) - len({(name, check_vma) for name, check_vma, _ in said})
    print(f"what is said depends on the constant for {varying} programs in a mode")
    if "-v" in words:
        for (_, check_vma), same in groupby(rows, key=lambda row: (row.program.name, row.check_vma)):
            if others := [row for row in same if not row.is_as_decided]:
                print(
                    f"{'MISSED ' if others[0].decided == 'wrong' else 'ALARMED'} {others[0].program.place} {check_vma=}"
                )
                constants = ", ".join(f"{row.c:.4g}" for row in others if row.c is not None)
                print(f"        {others[0].program.name}{constants and f' with c={constants}'}")
                for message in others[0].messages:
                    print(f"            {message.splitlines()[0]}")
    if "--write" in words:
        assert not chosen and "--quick" not in words, "all rows are written at once"
        EXPECTED.write_text("\n".join(sorted(unexpected(rows))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
