"""Cut the dims of a hint into words, each a run of tokens with their places in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .nodes import Span


class SyntaxFault(Exception):
    """Text that is no hint: the problem, its span, and what to write instead."""

    def __init__(self, problem: str, source: str, span: Span, cure: str | None = None) -> None:
        super().__init__(problem, source, span, cure)
        self.problem, self.source, self.span, self.cure = problem, source, span, cure


class RepeatedAxis(SyntaxFault):
    """A mesh axis that stands twice in one hint."""

    def __init__(self, axis: str, source: str, span: Span) -> None:
        super().__init__(f"mesh axis '{axis}' is used twice", source, span)
        self.axis = axis


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text, by kind: space, number, name or symbol."""

    kind: str
    text: str
    span: Span


_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>\d+)|(?P<name>[^\W\d]\w*)|(?P<symbol>\.\.\.|//|\*\*|[][(){}/,+\-*%=#?~.])"
)
_OPEN, _CLOSE = "[({", "])}"


def words(source: str) -> Iterator[list[Token]]:
    """Runs of tokens between spaces at depth zero; spaces inside brackets are dropped.

    Raises:
      SyntaxFault: for a character that no token starts with, and for brackets that do not match.
    """
    word: list[Token] = []
    opened: list[Token] = []
    for token in _scan(source):
        if token.kind == "space":
            if not opened and word:
                yield word
                word = []
            continue
        word.append(token)
        if token.text in _OPEN:
            opened.append(token)
        elif token.text in _CLOSE and not (opened and _OPEN[_CLOSE.index(token.text)] == opened.pop().text):
            raise SyntaxFault(f"'{token.text}' closes nothing", source, token.span)
    if opened:
        raise SyntaxFault(f"'{opened[-1].text}' is never closed", source, opened[-1].span)
    if word:
        yield word


def _scan(source: str) -> Iterator[Token]:
    """Tokens of the whole text, spaces included."""
    at = 0
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            raise _unknown_character(source, at)
        yield Token(str(found.lastgroup), found.group(), found.span())
        at = found.end()


def _unknown_character(source: str, at: int) -> SyntaxFault:
    character = source[at]
    before = re.search(r"\w+$", source[:at])
    after = re.match(r"\w+", source[at + 1 :])
    cure = f"write [{before.group()}/{after.group()}]" if character == "!" and before and after else None
    return SyntaxFault(f"unexpected character '{character}'", source, (at, at + 1), cure)
