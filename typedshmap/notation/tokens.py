"""Cut the text of a hint or a pattern into tokens, each with its place in the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""A half-open place in the user's text."""


class SyntaxFault(Exception):
    """Text that is not a hint: the problem, its span, and what to write instead."""

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


MOST_DIGITS = 100
"""Python reads no number of more than a few thousand, and no array has a size of that many."""

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>\d+)|(?P<name>[^\W\d]\w*)|(?P<symbol>\.\.\.|//|\*\*|[][(){}/,+\-*%=#?~.])"
)
_OPEN, _CLOSE = "[({", "])}"


def words(source: str) -> Iterator[list[Token]]:
    """Runs of tokens between spaces at depth zero; spaces inside brackets are dropped.

    Raises:
      SyntaxFault: for a character that no token starts with, and for brackets that do not match.
    """
    yield from _split_tokens(source, (0, len(source)), lambda token: token.kind == "space", skips_empty=True)


def operands(source: str, span: Span) -> Iterator[list[Token]]:
    """Runs of tokens between commas at depth zero, within a span of the text; spaces are dropped.

    Raises:
      SyntaxFault: as `words` does.
    """
    yield from _split_tokens(source, span, lambda token: token.text == ",", skips_empty=False)


def _split_tokens(
    source: str, span: Span, is_between: Callable[[Token], bool], skips_empty: bool
) -> Iterator[list[Token]]:
    """Runs of tokens, divided where brackets are closed; spaces are dropped."""
    run: list[Token] = []
    opened: list[Token] = []
    for token in _scan(source, span):
        if not opened and is_between(token):
            if run or not skips_empty:
                yield run
            run = []
        elif token.kind != "space":
            run.append(token)
            _follow(token, opened, source)
    if opened:
        raise SyntaxFault(f"'{opened[-1].text}' is never closed", source, opened[-1].span)
    if run or not skips_empty:
        yield run


def _follow(token: Token, opened: list[Token], source: str) -> None:
    """Keep account of the brackets that are open."""
    if token.text in _OPEN:
        opened.append(token)
    elif token.text in _CLOSE and not (opened and _OPEN[_CLOSE.index(token.text)] == opened.pop().text):
        raise SyntaxFault(f"'{token.text}' closes nothing", source, token.span)


def _scan(source: str, span: Span) -> Iterator[Token]:
    """The tokens of a span of the text, spaces included."""
    at, end = span
    while at < end:
        found = _TOKEN.match(source, at, end)
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


class Cursor:
    """A place among the tokens of a text; parsers derive from it."""

    def __init__(self, source: str, tokens: list[Token]) -> None:
        self.source, self.tokens = source, tokens
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.at].kind if self.at < len(self.tokens) else ""

    def take(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def here(self) -> Span:
        if self.at < len(self.tokens):
            return self.tokens[self.at].span
        end = self.tokens[-1].span[1]
        return (end - 1, end)

    def since(self, start: int) -> Span:
        return (self.tokens[start].span[0], self.tokens[max(self.at - 1, start)].span[1])

    def full_span(self) -> Span:
        return (self.tokens[0].span[0], self.tokens[-1].span[1])

    def text(self, span: Span) -> str:
        return self.source[span[0] : span[1]]

    def fault(self, problem: str, span: Span | None = None, cure: str | None = None) -> SyntaxFault:
        return SyntaxFault(problem, self.source, span or self.here(), cure)
