"""Split the text of a hint or a pattern into tokens with spans."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from ..errors import AnnotationSyntaxError, MeshAxisError, TypedShmapError
from ..errors.failures import HintText, Span
from ..errors.phrases import shortened
from ..errors.places import running_place
from ..records import Record


def refuse_long_text(source: str, most: int) -> None:
    """Raise for a text too long to be written by hand, since parsing takes superlinear time."""
    if len(source) > most:
        raise SyntaxFault(f"a text of {len(source)} characters; at most {most} are read", (0, 0))


class SyntaxFault(Exception):
    """Text that is not a hint: the problem, its span, and the cure."""

    error: ClassVar[type[TypedShmapError]] = AnnotationSyntaxError

    def __init__(self, problem: str, span: Span, cure: str | None = None) -> None:
        super().__init__(problem, span, cure)
        self.problem, self.span, self.cure = problem, span, cure

    def in_hint(self, hint: HintText) -> TypedShmapError:
        hint, span = hint.around(self.span)
        pointer = f"\n    {hint.carets(span)}" if span[0] < span[1] else ""
        text = f"{hint}: {shortened(self.problem)}\n\n    {hint}{pointer}"
        return self.error(f"{text}\n\nHint: {shortened(self.cure)}" if self.cure else text, running_place())


class RepeatedAxis(SyntaxFault):
    """A mesh axis that one hint has twice."""

    error = MeshAxisError

    def __init__(self, axis: str, span: Span) -> None:
        super().__init__(f"mesh axis '{axis}' is used twice", span)
        self.axis = axis


class Token(Record):
    """A piece of the text, by kind: space, comma, number, name or symbol."""

    kind: str
    text: str
    span: Span


MOST_DIGITS = 100
"""Python limits the digits of an integer; no size has this many."""

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<comma>,)|(?P<number>\d+(?:_\d+)*)|(?P<name>[^\W\d]\w*)|(?P<symbol>\.\.\.|//|\*\*|[][(){}/+\-*%=#?~.])"
    r"|(?P<unknown>.)"
)
_AXES = re.compile(r"\w+|\(\w+(\s*,\s*\w+)*\)")
_OPENED_BY = {"]": "[", ")": "(", "}": "{"}


def split_tokens(source: str, span: Span, separator: str) -> Iterator[list[Token]]:
    """The runs of tokens between commas or spaces outside brackets; other spaces are dropped."""
    run: list[Token] = []
    opened: list[Token] = []
    for matched in _TOKEN.finditer(source, *span):
        token = Token(str(matched.lastgroup), matched.group(), matched.span())
        if token.kind == "unknown":
            start, end = token.span
            before, after = re.search(r"\w+$", source[max(start - 40, 0) : start]), _AXES.match(source[end : end + 40])
            cure = None
            if token.text in "!@" and before and after:  # as Penzai writes it, and as JAX prints types
                cure = f"write [{before.group()}/{after.group().strip('()')}]"
            raise SyntaxFault(f"unexpected character '{token.text}'", token.span, cure)
        if token.kind == separator and not opened:
            yield run
            run = []
        elif token.kind != "space":
            run.append(token)
            if token.text in _OPENED_BY.values():
                opened.append(token)
            elif token.text in _OPENED_BY and not (opened and opened.pop().text == _OPENED_BY[token.text]):
                raise SyntaxFault(f"'{token.text}' closes nothing", token.span)
    if opened:
        raise SyntaxFault(f"'{opened[-1].text}' is never closed", opened[-1].span)
    yield run


class Cursor:
    """A position among the tokens of a text; the base class of parsers."""

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

    def accept(self, *texts: str) -> str:
        """Take the next token if it is one of these; returns its text, else an empty string."""
        return self.take().text if self.peek() in texts else ""

    def expect(self, text: str, problem: str, cure: str | None = None) -> None:
        if not self.accept(text):
            raise self.fault(problem, cure=cure)

    def here(self) -> Span:
        end = self.tokens[-1].span[1]
        return self.tokens[self.at].span if self.at < len(self.tokens) else (end - 1, end)

    def since(self, start: int) -> Span:
        return (self.tokens[start].span[0], self.tokens[max(self.at - 1, start)].span[1])

    def full_span(self) -> Span:
        return (self.tokens[0].span[0], self.tokens[-1].span[1])

    def text(self, span: Span) -> str:
        return self.source[span[0] : span[1]]

    def fault(self, problem: str, span: Span | None = None, cure: str | None = None) -> SyntaxFault:
        return SyntaxFault(problem, span or self.here(), cure)
