"""Names: one name for one class, and for one module, in the whole package, and JAX's words rather than our own."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePath

import pytest

import typedshmap

PACKAGE = Path(typedshmap.__file__).parent

REPLACED = {
    "alike kin": "invarying, equal or similar",
    "laid lies lying": "layout, sharding",
    "learnt": "known",
    "owe owed owes owing": "unreduced",
    "spoken": "covered",
    "taught": "from a claim",
    "tell telling tells told": "report, explain, describe",
    "turn turns": "iteration",
    "unowed": "not unreduced",
    "whole": "unsharded, global size",
}
"""Words that no identifier has, each with what is written instead."""
WRONG = {word for words in REPLACED for word in words.split()}

LEGITIMATE = {"_WHOLE_BODY"}


@cache
def texts() -> Mapping[str, str]:
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def types(tree: ast.Module) -> Iterator[str]:
    """The names of the classes, and of the type aliases at the top of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
            yield ast.unparse(node.target)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id.lstrip("_")
            if name[:1].isupper() and not name.isupper():  # an alias, ``Axes = tuple[str, ...]``; not a constant
                yield node.targets[0].id


def repeated_types(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Names that several types of the package have, a leading underscore apart, and where they are."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, text in sources.items():
        for name in types(ast.parse(text)):
            places[name.lstrip("_")].append(path)
    return {name: found for name, found in places.items() if len(found) > 1}


def identifiers(tree: ast.Module) -> Iterator[str]:
    """Every name of a program, but for the modules that it imports."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(name=name):
                yield name
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case _:
                pass


def wrong_words(text: str) -> set[str]:
    """The identifiers of a program that have one of the words which others stand for."""
    found = set(identifiers(ast.parse(text))) - LEGITIMATE
    return {name for name in found if not WRONG.isdisjoint(words(name))}


def words(name: str) -> list[str]:
    """``['owed', 'sum']`` of ``owed_sum``, ``OWED_SUM`` and ``OwedSum``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")


def repeated_modules(paths: Iterable[str]) -> dict[str, list[str]]:
    """Names that several modules of the package have, and where they are; a package has that of its folder."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in map(PurePath, paths):
        places[path.parent.name if path.stem == "__init__" else path.stem].append(str(path))
    return {name: found for name, found in places.items() if len(found) > 1}


def test_every_module_has_a_name_of_its_own() -> None:
    assert repeated_modules(texts()) == {}


@pytest.mark.parametrize("second", ["tools/plan.py", "plan/__init__.py"])
def test_a_name_that_two_modules_have_is_found(second: str) -> None:
    assert repeated_modules(["ops/plan.py", second, "ops/run.py"]) == {"plan": ["ops/plan.py", second]}


def test_every_class_and_alias_has_a_name_of_its_own() -> None:
    assert repeated_types(texts()) == {}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("class Call: ...", "class _Call: ..."),
        ("class Axes: ...", "Axes = tuple[str, ...]"),
        ("Axes: TypeAlias = str | None", "def f():\n    class Axes: ..."),
    ],
)
def test_a_name_that_two_types_have_is_found(first: str, second: str) -> None:
    name = "Call" if "Call" in first else "Axes"
    assert repeated_types({"a.py": first, "b.py": second}) == {name: ["a.py", "b.py"]}


def test_constants_and_different_names_are_not_found() -> None:
    assert repeated_types({"a.py": "CALLS = 1\nclass Call: ...", "b.py": "CALLS = 2\nclass Calls: ..."}) == {}


@pytest.mark.parametrize("path", texts())
def test_no_identifier_has_a_word_that_has_a_replacement(path: str) -> None:
    assert wrong_words(texts()[path]) == set()


@pytest.mark.parametrize("name", ["owed", "_owed_axes", "OwesNothing", "is_whole", "WHOLE", "told_by", "_MOST_TURNS"])
def test_a_wrong_word_is_found_in_any_identifier(name: str) -> None:
    assert wrong_words(f"x.{name} = 1") == {name}


@pytest.mark.parametrize("text", ["returns = 1", "unlike = 1", "# what is owed", 'x = "whole"', "_WHOLE_BODY = 1"])
def test_other_words_comments_and_strings_are_not_found(text: str) -> None:
    assert wrong_words(text) == set()
