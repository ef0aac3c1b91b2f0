"""Trees of arrays as hints: containers, the classes of the program, and ``PyTree`` where a tree has no better hint."""

from __future__ import annotations

import builtins
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

from ..hints.parse_hint import parse_hint
from ..hints.structure import array_hints
from .describe import LeafHint
from .editing import LeftPlain
from .recording import Tree

_MOST_FIELDS = 16
_NONE = Tree(type(None))


@dataclass
class HintWriter:
    """Writes the hints that stand in one file.

    Attributes:
      names: what a name means where the hints stand.
      home: the writer of the file of a class, if that is one of the program's own.
      words: the names of the library that the hints use.
      typed_dicts: the text of each ``TypedDict`` that they use, by its name.
      classes: the hints of the fields of the program's own classes; None where they are not always the same.
    """

    names: Mapping[str, Any]
    home: Callable[[type], HintWriter | None]
    words: set[str] = field(default_factory=set)
    typed_dicts: dict[str, dict[str, str]] = field(default_factory=dict)
    classes: dict[type, dict[str, str] | None] = field(default_factory=dict)

    def hint(self, samples: Sequence[tuple[Tree, Sequence[LeafHint | None]]], name: str) -> str:
        """The hint of trees that were given at one place.

        Args:
          samples: each tree with the hints of its leaves.
          name: what it is called, after which a ``TypedDict`` is named.

        Raises:
          LeftPlain: for what no hint says.
        """
        given = [sample for sample in samples if sample[0] != _NONE]
        if not given:
            return "None"
        text = self._hint_of_present(given, name)
        return text if len(given) == len(samples) or text == "Any" else f"{text} | None"

    def _hint_of_present(self, samples: Sequence[tuple[Tree, Sequence[LeafHint | None]]], name: str) -> str:
        trees = [tree for tree, _ in samples]
        if all(not list(tree.leaves()) and tree.kind is None for tree in trees):
            return self._word("Any")
        kinds, keys = {tree.kind for tree in trees}, {tuple(key for key, _ in tree.items) for tree in trees}
        leaves = [hints[at] for tree, hints in samples for at in tree.leaves()]
        if kinds == {None}:
            return self._leaf(common(leaves), name)
        (kind, *others), (fields, *_) = kinds, keys
        text = None
        if not others and len(keys) == 1 and kind is not None:
            items = [[(tree.items[at][1], hints) for tree, hints in samples] for at in range(len(fields))]
            text = self._container(kind, fields, items, name)
        return text or f"{self._word('PyTree')}[{self._leaf(common(leaves), name)}]"

    def _container(self, kind: type, keys: tuple[Any, ...], items: Sequence[Any], name: str) -> str | None:
        """The hint of a container; None where only a ``PyTree`` is one."""
        if kind is tuple or kind is list:
            texts = [self.hint(item, name) for item in items]
            is_uniform = len(set(texts)) == 1
            if kind is list:
                return f"list[{texts[0]}]" if is_uniform else None
            many = is_uniform and len(texts) > 3
            return f"tuple[{texts[0]}, ...]" if many else f"tuple[{', '.join(texts) or '()'}]"
        if not all(isinstance(key, str) and key.isidentifier() for key in keys) or not keys:
            return None
        if issubclass(kind, dict):
            return self._dict(keys, items, name) if kind is dict and len(keys) <= _MOST_FIELDS else None
        word, home = self._name_of(kind), self.home(kind)
        if word is None or has_hints(kind):
            return word
        if home is None or not has_fields(kind):
            return None
        fields = {key: home.hint(item, key) for key, item in zip(keys, items, strict=True)}
        if home.classes.setdefault(kind, fields) != fields:
            home.classes[kind] = None
        return word if home.classes[kind] is not None else None

    def _name_of(self, kind: type) -> str | None:
        """What the hints can call a class: its name, or that of a module and its name."""
        name = kind.__name__
        modules = (module for module, value in self.names.items() if getattr(value, name, None) is kind)
        return name if self.names.get(name) is kind else next((f"{module}.{name}" for module in modules), None)

    def _dict(self, keys: Sequence[str], items: Sequence[Any], name: str) -> str:
        fields = {key: self.hint(item, f"{name}_{key}") for key, item in zip(keys, items, strict=True)}
        known = next((one for one, has in self.typed_dicts.items() if has == fields), None)
        if known is not None:
            return known
        word = "".join(part.capitalize() for part in re.split(r"\W|_", name) if part) or "Tree"
        word = next(
            each
            for each in chain([word], (f"{word}{number}" for number in count(2)))
            if each not in self.names and each not in self.typed_dicts and not hasattr(builtins, each)
        )
        self._word("TypedDict")
        self.typed_dicts[word] = fields
        return word

    def _leaf(self, hint: LeafHint | None, name: str) -> str:
        if hint is None:
            raise LeftPlain(f"the arrays of '{name}' are sharded in different ways")
        return f'{self._word(hint.dtype)}[{self._word("Array")}, "{hint.dims}"]'

    def _word(self, name: str) -> str:
        self.words.add(name)
        return name


def has_fields(kind: type) -> bool:
    """Whether a class says in its body what its fields are."""
    return dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def has_hints(kind: type) -> bool:
    """Whether the fields of a class have hints that say where dims lie."""
    try:
        return has_fields(kind) and any(hint.spec.source != "..." for hint in array_hints(parse_hint(kind)))
    except Exception:  # a class that no hint can name
        return False


def common(hints: Iterable[LeafHint | None]) -> LeafHint | None:
    """The one hint of several arrays, or of all in a tree, which may differ in rank; None where there is none."""
    found = [hint for hint in hints if hint is not None]
    if not found:
        return LeafHint("Shaped", "...")
    dtype = found[0].dtype if len({hint.dtype for hint in found}) == 1 else "Shaped"
    rows = [hint.dims.split() for hint in found]
    if all(row == rows[0] for row in rows):
        return LeafHint(dtype, found[0].dims)
    axes = {tuple(token.partition("/")[2] for token in row) for row in rows}
    leading = {" ".join(f"[_/{each}" if each else "_" for each in row).rstrip("_ ") for row in axes}
    if len(leading) > 1 or any(token[0] in "+-~" for row in rows for token in row):
        return None
    return LeafHint(dtype, f"{leading.pop()} ...".strip())
