"""Programs before and after they are rewritten, one a file in ``cases/``.

``python tests/rewriting/rewritten.py`` writes what comes after, and what is left, anew; the difference
is then reviewed.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from typedshmap.rewriting import RewriteResult, rewrite

CASES = Path(__file__).parent / "cases"
_PART = re.compile(r"^=== (?P<name>\w+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """A program that ends with ``program``, the arguments of a call, and what becomes of it.

    Attributes:
      options: lines of the head: ``args``, the arguments of a call as code; ``static``, those of
        them that jit must not trace, by index; ``jit`` and ``ambient``, whether it needs them.
      left: the lines of what is left, ``line: reason``.
    """

    path: Path
    options: dict[str, str]
    before: str
    after: str
    left: str

    @property
    def name(self) -> str:
        return self.path.stem

    def text_with(self, found: RewriteResult) -> str:
        """The file, with what was found."""
        head = "".join(f"{name}: {value}".rstrip() + "\n" for name, value in self.options.items())
        left = "".join(f"{left.line}: {left.reason}\n" for left in found.left)
        parts = {"before": self.before, "after": found.text, "left": left}
        return head + "".join(f"=== {name}\n{text}" for name, text in parts.items() if text)


def read_case(path: Path) -> Case:
    head, *parts = _PART.split(path.read_text(encoding="utf-8"))
    options = {name: value.strip() for name, value in (line.split(":", 1) for line in head.splitlines())}
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    return Case(path, options, texts["before"], texts.get("after", ""), texts.get("left", ""))


def cases() -> list[Case]:
    return [read_case(path) for path in sorted(CASES.glob("*.txt"))]


if __name__ == "__main__":
    named = sys.argv[1:]
    for case in cases():
        if not named or case.name in named:
            case.path.write_text(case.text_with(rewrite(case.before)), encoding="utf-8")
