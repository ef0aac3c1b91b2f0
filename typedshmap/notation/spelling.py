"""Names of dims that look like misspellings of others.

Only typing errors count, not differences that distinguish dims: ``q_len`` and ``k_len``, ``head`` and ``heads``,
``dim1`` and ``dim2``, ``patch`` and ``batch``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_ROWS = "qwertyuiop asdfghjkl zxcvbnm"
_SHORTEST = 5


def misspelt_name(names: Iterable[str]) -> tuple[str, str] | None:
    """The first name that occurs once and looks like another name, and that name."""
    counts = Counter(names)
    for name, count in counts.items():
        if count == 1 and len(name) >= _SHORTEST:
            for candidate, times in counts.items():
                if candidate != name and _is_misspelling(name, candidate, times > 1):
                    # If both names occur once, the first counts as right.
                    return (name, candidate) if times > 1 else (candidate, name)
    return None


def _is_misspelling(name: str, other: str, is_usual: bool) -> bool:
    """Whether two names differ by one typing error: in one long word, and not in its first letter."""
    words, others = name.split("_"), other.split("_")
    if len(words) != len(others):
        return name.replace("_", "") == other.replace("_", "")
    pairs = [pair for pair in zip(words, others, strict=True) if pair[0] != pair[1]]
    if len(pairs) != 1 or min(map(len, pairs[0])) < _SHORTEST or pairs[0][0][0] != pairs[0][1][0]:
        return False
    word, right = pairs[0]
    start = next((at for at, (a, b) in enumerate(zip(word, right, strict=False)) if a != b), min(map(len, pairs[0])))
    wrong, meant = word[start:], right[start:]
    while wrong and meant and wrong[-1] == meant[-1]:
        wrong, meant = wrong[:-1], meant[:-1]
    if not (wrong + meant).isalpha():
        return False
    if len(wrong) == len(meant) == 2:
        return wrong == meant[::-1]
    if len(wrong) == len(meant) == 1:
        return is_usual and (wrong + meant in _ROWS or meant + wrong in _ROWS)
    # One letter too many or too few, but not a suffix; at the end, a repeated letter.
    letter, is_ending = wrong + meant, start == min(len(word), len(right))
    return len(letter) == 1 and (word[start - 1] == letter != "s" if is_ending else True)
