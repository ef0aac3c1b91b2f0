"""The imports of a rewritten file: what its hints need, and what nothing uses any more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst
from libcst.metadata import BaseAssignment, ImportAssignment

from .hints import Vocabulary
from .source import Edit, Source, comments, cut_items, place_of

_SAME = {
    "Any": {"typing.Any"},
    "Array": {"typedshmap.Array", "jax.Array", "jaxtyping.Array"},
    "PyTree": {"typedshmap.PyTree"},
    "Shaped": {"typedshmap.Shaped"},
    "typed_shard_map": {"typedshmap.typed_shard_map"},
}


def vocabulary(source: Source) -> Vocabulary:
    """How a file can spell the library's names: its own names stay what they are."""
    bound: dict[str, list[BaseAssignment]] = {}
    for binding in source.all_bindings():
        bound.setdefault(binding.name, []).append(binding)
    spelled = {name: _free(name, bound) for name in _SAME}
    return Vocabulary(spelled)


def _free(name: str, bound: dict[str, list[BaseAssignment]]) -> str:
    if all(_is_the_same(name, binding) for binding in bound.get(name, ())):
        return name
    free = f"{name}_"
    while free in bound:
        free += "_"
    return free


def _is_the_same(name: str, binding: BaseAssignment) -> bool:
    """Whether a name of the file is the library's, everywhere in the file."""
    return _imports_any(binding, _SAME[name]) and binding.scope is binding.scope.globals


def _imports_any(binding: BaseAssignment, names: set[str]) -> bool:
    if not isinstance(binding, ImportAssignment):
        return False
    return {found.name for found in binding.get_qualified_names_for(binding.name)} <= names


def import_edits(source: Source, words: Vocabulary, edits: Sequence[Edit]) -> list[Edit]:
    """The edits that bring in what the hints need, and take out what they replaced."""
    bound = {binding.name for binding in source.all_bindings()}
    missing = sorted(name for name in words.needed if words.spelled[name] not in bound)
    added = list(_import_edits(source, words, missing, min(edits, key=place_of).start))
    return [*added, *_unused_import_edits(source, edits, {edit.start for edit in added})]


def _import_edits(source: Source, words: Vocabulary, missing: list[str], first: int) -> Iterator[Edit]:
    ours = [_import_item(name, words.spelled[name]) for name in missing if name != "Any"]
    lines = [f"from typing import {_import_item('Any', words.spelled['Any'])}"] if "Any" in missing else []
    existing = _import_of_ours(source)
    if ours and existing is not None:
        end = source.span(existing)[1]
        yield Edit(end, end, "".join(f", {name}" for name in ours))
    elif ours:
        lines.append(f"from typedshmap import {', '.join(ours)}")
    if lines:
        place = _insertion_point(source, first)
        newline = source.module.default_newline
        follows = newline * 2 if place == source.line_start(source.span(source.module.body[0])[0]) else ""
        yield Edit(place, place, "".join(line + newline for line in lines) + follows)


def _import_item(name: str, spelled: str) -> str:
    return name if name == spelled else f"{name} as {spelled}"


def _import_of_ours(source: Source) -> cst.ImportAlias | None:
    """The last name of ``from typedshmap import ...`` at the top of the file."""
    for statement in source.module.body:
        match statement:
            case cst.SimpleStatementLine(
                body=[cst.ImportFrom(module=cst.Name(value="typedshmap"), names=[*_, cst.ImportAlias() as last])]
            ):
                return last
            case _:
                pass
    return None


def _insertion_point(source: Source, first: int) -> int:
    """After the last import above the first change, or where the file begins."""
    body = source.module.body
    place = source.line_start(min(source.span(body[0])[0], first))
    for index, statement in enumerate(body):
        end = source.span(statement)[1]
        if end > first:
            break
        if _is_import(statement) or (index == 0 and _is_docstring(statement)):
            place = source.line_end(end)
    return place


def _is_import(statement: cst.CSTNode) -> bool:
    statements = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
    return bool(statements) and all(isinstance(part, (cst.Import, cst.ImportFrom)) for part in statements)


def _is_docstring(statement: cst.CSTNode) -> bool:
    match statement:
        case cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString())]):
            return True
        case _:
            return False


def _unused_import_edits(source: Source, edits: Sequence[Edit], added: set[int]) -> Iterator[Edit]:
    """Imports all of whose uses went away; those that nothing used before are not ours to judge."""
    gone: dict[cst.Import | cst.ImportFrom, set[str]] = {}
    for binding in source.all_bindings():
        node = binding.node if isinstance(binding, ImportAssignment) else None
        if isinstance(node, (cst.Import, cst.ImportFrom)) and _is_unused_now(source, binding, edits):
            gone.setdefault(node, set()).add(binding.name)
    for node, names in gone.items():
        yield from _without_names(source, node, names, added)


def _is_unused_now(source: Source, binding: BaseAssignment, edits: Sequence[Edit]) -> bool:
    """Whether every use of a name was edited away, and no edit wrote it anew."""
    name = re.compile(rf"\b{re.escape(binding.name)}\b")
    places = [source.span(access.node) for access in binding.references]
    gone = [any(edit.start <= start and end <= edit.end for edit in edits) for start, end in places]
    is_gone = bool(gone) and all(gone) and not any(name.search(edit.text) for edit in edits)
    return is_gone and not _is_exported(source, binding)


def _is_exported(source: Source, binding: BaseAssignment) -> bool:
    """Whether other files may import a name from here: it is in ``__all__``, or imported ``as`` itself."""
    node = binding.node if isinstance(binding, ImportAssignment) else None
    names = node.names if isinstance(node, (cst.Import, cst.ImportFrom)) else ()
    aliases = names if not isinstance(names, cst.ImportStar) else ()
    as_itself = any(alias.evaluated_alias == alias.evaluated_name == binding.name for alias in aliases)
    name = re.compile(rf"\b{re.escape(binding.name)}\b")
    return as_itself or any(name.search(exports) for exports in _exports(source))


def _exports(source: Source) -> Iterator[str]:
    """Every statement of the file that speaks of ``__all__``, as it was written."""
    for statement in source.module.body:
        for part in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if (code := source.code(part)).startswith("__all__"):
                yield code


def _without_names(
    source: Source, node: cst.Import | cst.ImportFrom, names: set[str], added: set[int]
) -> Iterator[Edit]:
    statement = source.parent(node)
    block = source.parent(statement) if statement is not None else None
    aliases = [] if isinstance(node.names, cst.ImportStar) else list(node.names)
    gone = [i for i, alias in enumerate(aliases) if _bound_name(alias) in names]
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return
    if len(gone) < len(aliases):
        cut = cut_items([source.span(alias) for alias in aliases], gone)
        # A comment among the names may speak of one that stays.
        if not any(comments(source.text[start:end]) for start, end in cut):
            yield from (Edit(*span, "") for span in cut)
    elif isinstance(block, cst.Module) or _is_one_of_several(source, block):
        yield Edit(*_line_span(source, statement, added), "")


def _line_span(source: Source, statement: cst.CSTNode, added: set[int]) -> tuple[int, int]:
    """The lines of a statement, and the blank one after it where nothing else would part it from others."""
    start, end = source.span(statement)
    start, end = source.line_start(start), source.line_end(end)
    newline = source.module.default_newline
    before, after = source.text[:start], source.text[end:]
    is_first = (not before or before.endswith(newline * 2)) and end not in added
    return start, end + (len(newline) if is_first and after.startswith(newline) else 0)


def _bound_name(alias: cst.ImportAlias) -> str:
    """The name that an import binds, as libcst has it: that of ``import a.b`` is ``a.b``."""
    return alias.evaluated_alias or alias.evaluated_name


def _is_one_of_several(source: Source, block: cst.CSTNode | None) -> bool:
    """Whether a statement of a block may go: the block of a function that has others."""
    is_body = isinstance(block, cst.IndentedBlock) and isinstance(source.parent(block), cst.FunctionDef)
    return isinstance(block, cst.IndentedBlock) and is_body and len(block.body) > 1
