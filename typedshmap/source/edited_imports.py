"""Import modules with other texts than their files have."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import linecache
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def edited_imports(texts: Mapping[str, str]) -> Generator[None]:
    """Have other texts imported for some files, and shown as theirs.

    Args:
      texts: the texts by their files.
    """
    for file, text in texts.items():
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    finder = _EditedFinder(texts)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _EditedFinder(importlib.abc.MetaPathFinder):
    """Finds modules as ever, and has other texts read for some files."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None and spec.origin in self.texts:
            spec.loader = _EditedLoader(fullname, spec.origin, self.texts[spec.origin])
            return spec
        return None


class _EditedLoader(importlib.machinery.SourceFileLoader):
    """Loads a module from a text."""

    def __init__(self, fullname: str, path: str, text: str) -> None:
        super().__init__(fullname, path)
        self.text = text

    def get_code(self, fullname: str) -> Any:
        return compile(self.text, self.path, "exec", dont_inherit=True)
