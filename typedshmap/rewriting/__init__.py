"""Rewrite calls of ``jax.shard_map`` into hints, where the program stays the same.

Every call is read as data, its function is found, and hints are written for its literal specs. The
result is a list of edits of the text, and of what is left with its reason.

Invariant: a rewritten program has the same specs, but for a trailing None, and takes whatever it took
before. Whatever that cannot be said of is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from .calls import Site, SkippedUse, find_sites
from .definitions import Definition
from .functions import pair_specs
from .hints import Vocabulary, Writer, aliases
from .imports import import_edits, vocabulary
from .source import (
    Edit,
    Source,
    Unclear,
    apply_edits,
    arguments_of,
    comments,
    cut_items,
    odd_line,
    one_a_line,
    place_of,
)
from .specs import SpecTuple, axes_of, read_specs

__all__ = ["RewriteResult", "SkippedUse", "rewrite"]

_MARK = "\ufeff"  # the byte order mark, with which editors on Windows begin a file


@dataclass(frozen=True)
class RewriteResult:
    """A file's new text, how many calls were rewritten, and which uses are left."""

    text: str
    done: int
    left: tuple[SkippedUse, ...]


def rewrite(text: str) -> RewriteResult:
    """Turn the calls of ``shard_map`` in a program into typed ones.

    Args:
      text: the program.

    Raises:
      libcst.ParserSyntaxError: for a text that is no Python.
    """
    if text.startswith(_MARK):
        found = rewrite(text.removeprefix(_MARK))
        return replace(found, text=_MARK + found.text)
    module = cst.parse_module(text)
    if "shard_map" not in text:  # what libcst finds out of a long file takes seconds
        return RewriteResult(text, 0, ())
    odd = odd_line(text, module)
    return _rewrite_source(Source(module)) if odd is None else RewriteResult(text, 0, (SkippedUse(*odd),))


def _rewrite_source(source: Source) -> RewriteResult:
    sites, left = find_sites(source)
    words = vocabulary(source)
    edits: list[Edit] = []
    done = 0
    for site in sites:
        found = _rewrite_or_leave(source, site, words)
        if isinstance(found, SkippedUse):
            left.append(found)
        else:
            edits += found
            done += 1
    if edits:
        # First, so that an import stands above a comment that is put at its place.
        edits = [*import_edits(source, words, edits), *edits]
    return RewriteResult(apply_edits(source.text, edits), done, tuple(sorted(left, key=lambda each: each.line)))


def _rewrite_or_leave(source: Source, site: Site, words: Vocabulary) -> list[Edit] | SkippedUse:
    """The edits of one call; the words that they need are noted only where it is rewritten."""
    own = Vocabulary(words.spelled)
    try:
        edits = _Rewrite(source, site, own).edits()
    except Unclear as reason:
        return SkippedUse(source.line(site.call), str(reason))
    words.needed.update(own.needed)
    return edits


class _Rewrite:
    """One call on its way from specs to hints."""

    def __init__(self, source: Source, site: Site, words: Vocabulary) -> None:
        self.source, self.site, self.words = source, site, words
        self.args = site.call.args
        self.options = site.options()

    def edits(self) -> list[Edit]:
        """The edits of the call and of the definition.

        Raises:
          Unclear: for what cannot be rewritten safely.
        """
        in_specs = read_specs(self.source, self.args[self.options["in_specs"]].value)
        out_specs = read_specs(self.source, self.args[self.options["out_specs"]].value)
        axes = aliases([*axes_of(in_specs), *axes_of(out_specs)])
        mapped = self.site.mapped(self.source, self.options)
        pairs = pair_specs(mapped, in_specs)
        definition = Definition(self.source, mapped, pairs, out_specs, not isinstance(in_specs, SpecTuple))
        writer = Writer(self.words, axes)
        are_here = definition.takes_hints()
        definition.refuse_bad_annotations()
        named = ", ".join(f'"{name}": {code}' for code, name in axes.items())
        options = [f"axes={{{named}}}"] if axes else []
        loose = list(definition.keyword_hints(writer))
        if are_here:
            return [*loose, *definition.annotations(writer), *self._call(options, [])]
        in_types, out_types = definition.call_hints(writer)
        return [*loose, *self._call([*options, f"in_types={in_types}"], [f"out_types={out_types}"])]

    def _call(self, at_in_specs: Sequence[str], at_out_specs: Sequence[str]) -> list[Edit]:
        """The edits of the call itself: its function, and its options."""
        replaced = {self.options["in_specs"]: at_in_specs, self.options["out_specs"]: at_out_specs}
        gone = [index for index, texts in replaced.items() if not texts]
        gone += [0] if self.site.is_partial else []
        if len(gone) == len(self.args):
            edits = [self._bare_decorator(self.words.word("typed_shard_map"))]
        else:
            edits = self._edit_options(replaced, gone, ", ")
            breaks = one_a_line(self.source, arguments_of(self.source, self.site.call), edits)
            between = f",{breaks[0].text}" if breaks else self._separator(self.options["in_specs"])
            edits = [*self._edit_options(replaced, gone, between), *breaks]
        return [*self._kept_comments(edits), *(edit for edit in edits if edit.start < edit.end or edit.text)]

    def _edit_options(self, replaced: Mapping[int, Sequence[str]], gone: Sequence[int], between: str) -> list[Edit]:
        """The call with some options replaced by others, and some gone."""
        spans = [self.source.span(arg) for arg in self.args]
        name = Edit(*self.source.span(self.site.call.func), self.words.word("typed_shard_map"))
        new = [Edit(*spans[index], between.join(texts)) for index, texts in replaced.items() if texts]
        cut = [Edit(*span, "") for span in cut_items(spans, gone)]
        kept = [self._keyword(option, index) for option, index in self.options.items() if index not in replaced]
        return [name, *new, *cut, *kept]

    def _separator(self, index: int) -> str:
        """What parts two options in the place of one: where that begins a line, the second does, too."""
        place = self.source.span(self.args[index])[0]
        indent = self.source.text[self.source.line_start(place) : place]
        return ", " if indent.strip() else f",{self.source.module.default_newline}{indent}"

    def _bare_decorator(self, name: str) -> Edit:
        """A call that lost all of its arguments: a decorator needs no parentheses."""
        is_decorator = isinstance(self.source.parent(self.site.call), cst.Decorator)
        return Edit(*self.source.span(self.site.call), name if is_decorator else f"{name}()")

    def _keyword(self, option: str, index: int) -> Edit:
        """An option by its keyword of today."""
        arg, start = self.args[index], self.source.span(self.args[index])[0]
        today = "check_vma" if option == "check_rep" else option
        if arg.keyword is not None and arg.keyword.value != today:
            return Edit(*self.source.span(arg.keyword), today)
        is_by_position = arg.keyword is None and option != "f"
        return Edit(start, start, f"{today}=" if is_by_position else "")

    def _kept_comments(self, edits: Sequence[Edit]) -> list[Edit]:
        """Comments that stood among the specs, above the statement."""
        found = [
            text for edit in sorted(edits, key=place_of) for text in comments(self.source.text[edit.start : edit.end])
        ]
        if not found:
            return []
        place = self.source.span(self._statement())[0]
        start = self.source.line_start(place)
        indent = self.source.text[start:place]
        newline = self.source.module.default_newline
        return [Edit(start, start, "".join(f"{indent}{text}{newline}" for text in found))]

    def _statement(self) -> cst.CSTNode:
        """The decorator or the statement that holds the call."""
        node: cst.CSTNode | None = self.site.call
        while node is not None:
            if isinstance(node, (cst.Decorator, cst.SimpleStatementLine, cst.BaseCompoundStatement)):
                return node
            node = self.source.parent(node)
        return self.site.call
