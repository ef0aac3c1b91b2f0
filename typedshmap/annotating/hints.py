"""Trees of arrays as hints: containers, the classes of the program, and ``PyTree`` where a tree has no better hint."""

from __future__ import annotations

import builtins
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

import jax

from ..hints.parse_hint import parse_hint
from ..hints.structure import array_hints
from .calls import LeftPlain
from .dims import LeafHint, common

_MOST_FIELDS = 16


@dataclass
class HintWriter:
    """Writes the hints that stand in one file.

    Attributes:
      names: what a name means where the hints stand.
      home: the writer of the file of a class, if that is one of the program's own.
      typed_dicts: the text of each ``TypedDict`` that they use, by its name.
      classes: the hints of the fields of the program's own classes; None where they are not always the same.
    """

    names: Mapping[str, Any]
    home: Callable[[type], HintWriter | None]
    typed_dicts: dict[str, dict[str, str]] = field(default_factory=dict)
    classes: dict[type, dict[str, str] | None] = field(default_factory=dict)

    def hint(self, samples: Sequence[Any], name: str) -> str:
        """The hint of trees that were given at one place.

        Args:
          samples: each tree, with a hint for each of its leaves; ``...`` for one that is not mapped.
          name: what it is called, after which a ``TypedDict`` is named.

        Raises:
          LeftPlain: for what no hint says.
        """
        given = [sample for sample in samples if sample is not None]
        if not given:
            return "None"
        if all(sample is ... for sample in given):
            return "Any"
        text = self._of_leaves(given, name) if all(isinstance(each, LeafHint) for each in given) else None
        kinds, levels = {*map(type, given)}, [_one_level(sample) for sample in given]
        if text is None and len(kinds) == 1 and len({tuple(level) for level in levels}) == 1:
            items = {key: [level[key] for level in levels] for key in levels[0]}
            text = self._container(kinds.pop(), items, name)
        text = text or f"PyTree[{self._of_leaves(given, name)}]"
        return text if len(given) == len(samples) else f"{text} | None"

    def _of_leaves(self, trees: Sequence[Any], name: str) -> str:
        """The one hint of all arrays in trees."""
        hint = common([leaf for leaf in jax.tree.leaves(trees) if leaf is not ...])
        if hint is None:
            raise LeftPlain(f"the arrays of '{name}' are sharded in different ways")
        return f'{hint.dtype}[Array, "{hint.dims}"]'

    def _container(self, kind: type, items: Mapping[Any, Sequence[Any]], name: str) -> str | None:
        """The hint of a container; None where only a ``PyTree`` is one."""
        if kind is tuple or kind is list:
            texts = [self.hint(item, name) for item in items.values()]
            is_uniform = len(set(texts)) == 1
            if kind is list:
                return f"list[{texts[0]}]" if is_uniform else None
            many = is_uniform and len(texts) > 3
            return f"tuple[{texts[0]}, ...]" if many else f"tuple[{', '.join(texts) or '()'}]"
        if not all(isinstance(key, str) and key.isidentifier() for key in items) or not items:
            return None
        if kind is dict:
            return self._typed_dict(items, name) if len(items) <= _MOST_FIELDS else None
        # What the hints can call it: its name, or that of a module and its name.
        modules = (module for module, value in self.names.items() if getattr(value, kind.__name__, None) is kind)
        dotted = next((f"{module}.{kind.__name__}" for module in modules), None)
        word, home = kind.__name__ if self.names.get(kind.__name__) is kind else dotted, self.home(kind)
        has_fields = dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        if word is None or not has_fields or _has_hints(kind):
            return word if has_fields else None
        if home is None:
            return None
        fields = {key: home.hint(item, key) for key, item in items.items()}
        if home.classes.setdefault(kind, fields) != fields:
            home.classes[kind] = None
        return word if home.classes[kind] is not None else None

    def _typed_dict(self, items: Mapping[str, Sequence[Any]], name: str) -> str:
        fields = {key: self.hint(item, f"{name}_{key}") for key, item in items.items()}
        known = next((one for one, has in self.typed_dicts.items() if has == fields), None)
        if known is not None:
            return known
        word = "".join(part.capitalize() for part in re.split(r"\W|_", name) if part) or "Tree"
        taken = {*self.names, *self.typed_dicts, *vars(builtins)}
        words = chain([word], (f"{word}{number}" for number in count(2)))
        word = next(each for each in words if each not in taken)
        self.typed_dicts[word] = fields
        return word


def _one_level(tree: Any) -> dict[Any, Any]:
    """The items of a container by their keys; none of a leaf."""
    children, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda each: each is not tree)
    steps = [(path[0], child) for path, child in children if path]
    return {next((getattr(step, name) for name in ("key", "name", "idx") if hasattr(step, name)), str(step)): child
            for step, child in steps}  # fmt: skip


def _has_hints(kind: type) -> bool:
    """Whether the fields of a class have hints that say where dims lie."""
    try:
        return any(hint.spec.source != "..." for hint in array_hints(parse_hint(kind)))
    except Exception:  # a class that no hint can name
        return False
