"""The house: a module imports its own layer and those below, and nothing goes round."""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import typedshmap

PACKAGE = "typedshmap"
ROOT = Path(typedshmap.__file__).parent
LAYERS = {
    "drawing": 0,
    "records": 0,
    "notation": 0,
    "errors": 0,
    "_jax": 1,
    "axis_names": 1,
    "sanitized": 1,
    "hints": 2,
    "inference": 3,
    "meshes": 3,
    "introspection": 3,
    "check": 4,
    "typed": 4,
    "shard_map": 4,
    "jit": 4,
    "placement": 4,
    "ops": 4,
    "tools": 4,
    "tools.progress": 4,
    "tools.sanitize": 3,
    "tools.sample": 5,
    "testing": 6,
    "tools.explain": 6,
    "tools.audit": 6,
    "tools.cli": 7,
    "auditing": 7,
    "explaining": 7,
    "__main__": 8,
    "": 8,
}
# What is costly to import waits until it is needed; the reason stands beside each import.
LATE = {
    ("typedshmap.check", "typedshmap.tools.sanitize.calls"),
    ("typedshmap.jit.call", "typedshmap.tools.sanitize.agreement"),
    ("typedshmap.jit.call", "typedshmap.tools.sanitize.calls"),
    ("typedshmap.jit.call", "typedshmap.tools.sanitize.reports"),
    ("typedshmap.shard_map", "typedshmap.tools.sanitize.agreement"),
    ("typedshmap.shard_map", "typedshmap.tools.sanitize.calls"),
    ("typedshmap.shard_map", "typedshmap.tools.sanitize.reports"),
    ("typedshmap._jax.trace", "jax.extend.source_info_util"),
    ("typedshmap._jax.source", "jax.extend.source_info_util"),
    ("typedshmap._jax.versions", "jax.extend"),
    ("typedshmap._jax.versions", "jax.interpreters"),
    ("typedshmap.ops.resharding.run", "jax.interpreters"),
    ("typedshmap.tools.audit", "typedshmap.tools.audit.invariance"),
    ("typedshmap.tools.explain.compiled", "jax.experimental"),
    ("typedshmap.tools.sample", "hypothesis"),
    ("typedshmap.testing.plugin.typedshmap_pytest", "typedshmap.testing.marks"),
    ("typedshmap.testing.plugin.typedshmap_pytest", "typedshmap.testing.plugin.typedshmap_pytest.audits"),
    ("typedshmap.testing.plugin.typedshmap_pytest.audits", "typedshmap.tools.audit"),
    ("typedshmap.testing.plugin.typedshmap_pytest.audits", "typedshmap.tools.audit.formats"),
    ("typedshmap.testing.plugin.typedshmap_pytest.audits", "typedshmap.tools.audit.silenced"),
    ("typedshmap.hints.types", "typedshmap.hints.picture"),
    ("typedshmap.testing.plugin.typedshmap_pytest.audits", "typedshmap.testing.waiting"),
    ("typedshmap.hints.python_types", "beartype"),
    ("typedshmap.hints.python_types", "beartype.door"),
    ("typedshmap.hints.python_types", "beartype.roar"),
}


@dataclass(frozen=True)
class Import:
    """One imported module: by which module, and whether inside a function."""

    by: str
    target: str
    is_late: bool

    def __str__(self) -> str:
        return f"{self.by} imports {self.target}"

    @property
    def root(self) -> str:
        return self.target.split(".")[0]


@cache
def module_texts() -> Mapping[str, str]:
    """Every module of the package by its name; a package by its ``__init__``'s."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return found


def room(module: str) -> str:
    """The first name under the package, of a tool the first two; empty for the package itself."""
    names = module.removeprefix(PACKAGE).lstrip(".").split(".")
    return ".".join(names[:2]) if names[0] == "tools" else names[0]


def layer(module: str) -> int:
    return LAYERS[room(module)]


def is_package(module: str, texts: Mapping[str, str]) -> bool:
    return any(other.startswith(f"{module}.") for other in texts)


def imports_of(module: str, texts: Mapping[str, str]) -> Iterator[Import]:
    """What a module imports, inside of functions and under TYPE_CHECKING as well."""
    for node, is_late in import_statements(texts[module]):
        for target in targets_of(node, module, texts):
            yield Import(module, target, is_late)


@cache
def import_statements(text: str) -> list[tuple[ast.AST, bool]]:
    """Each with whether it stands inside a function."""
    found, waiting = list[tuple[ast.AST, bool]](), [(ast.parse(text), False)]
    while waiting:
        node, is_late = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append((node, is_late))
        is_late |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        waiting += [(inner, is_late) for inner in ast.iter_child_nodes(node)]
    return found


def targets_of(node: ast.AST, module: str, texts: Mapping[str, str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        here = module.split(".") if is_package(module, texts) else module.split(".")[:-1]
        above = here[: len(here) - node.level + 1]
        base = ".".join([*above, *filter(None, [node.module])])
    return [full if (full := f"{base}.{alias.name}") in texts or base == "jax" else base for alias in node.names]


def all_imports(texts: Mapping[str, str]) -> list[Import]:
    return [found for module in texts for found in imports_of(module, texts)]


def upward(texts: Mapping[str, str]) -> list[str]:
    """Imports of a layer above."""
    own = [found for found in all_imports(texts) if found.root == PACKAGE]
    return [str(found) for found in own if layer(found.target) > layer(found.by)]


# PatternError is an einops.EinopsError.
BASES = {("typedshmap.errors", "einops")}


def beyond_stdlib(texts: Mapping[str, str]) -> list[str]:
    """Imports in layer 0 of anything but the standard library."""
    foreign = [found for found in all_imports(texts) if layer(found.by) == 0 and found.root != PACKAGE]
    unknown = [found for found in foreign if found.root not in sys.stdlib_module_names]
    return [str(found) for found in unknown if (found.by, found.root) not in BASES]


def private_to_jax(texts: Mapping[str, str]) -> list[str]:
    """Imports and attributes of ``jax._src``."""
    imported = [str(found) for found in all_imports(texts) if found.target.startswith("jax._src")]
    read = [
        f"{module} reads {ast.unparse(node)}"
        for module, text in texts.items()
        if "_src" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr == "_src"
    ]
    return imported + read


def late(texts: Mapping[str, str]) -> list[str]:
    """Imports inside of functions, but for those with a reason."""
    found = [item for item in all_imports(texts) if item.is_late]
    return [str(item) for item in found if (item.by, item.target) not in LATE]


def cycle(texts: Mapping[str, str]) -> list[str]:
    """Modules that import each other in a circle, if there are any."""
    graph = {module: {found.target for found in imports_of(module, texts) if found.root == PACKAGE} for module in texts}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_every_module_lives_in_a_room_of_a_known_layer():
    assert {room(module) for module in module_texts()} == set(LAYERS)


def test_no_module_imports_a_layer_above_its_own():
    assert upward(module_texts()) == []


def test_text_and_numbers_import_the_standard_library_only():
    assert beyond_stdlib(module_texts()) == []


def test_no_module_uses_the_private_part_of_jax():
    assert private_to_jax(module_texts()) == []


def test_no_function_imports_but_for_what_is_costly():
    assert late(module_texts()) == []


def test_no_modules_import_each_other_in_a_circle():
    assert cycle(module_texts()) == []


def test_the_imports_that_are_read_are_those_of_the_package():
    found = {str(found) for found in all_imports(module_texts())}
    assert {
        "typedshmap imports typedshmap.shard_map",
        "typedshmap.hints.check_array imports typedshmap._jax",
        "typedshmap.errors imports typedshmap.errors.failures",
        "typedshmap.hints.python_types imports beartype",
        "typedshmap.notation.pattern imports typedshmap.notation.spec",
    } <= found


HOUSE = {
    "typedshmap": "",
    "typedshmap.notation": "",
    "typedshmap.notation.spec": "",
    "typedshmap.errors": "",
    "typedshmap.errors.failures": "",
    "typedshmap._jax": "",
    "typedshmap.hints": "",
    "typedshmap.hints.check_array": "",
    "typedshmap.check": "",
    "typedshmap.typed": "",
}


@pytest.mark.parametrize(
    ("module", "text", "target"),
    [
        ("notation.spec", "from ..hints.check_array import check_array", "hints.check_array"),
        ("notation.spec", "from ..hints import check_array", "hints.check_array"),
        ("notation.spec", "from .. import _jax", "_jax"),
        ("notation", "from .._jax import abstract", "_jax"),
        ("_jax", "from .hints import check_array", "hints.check_array"),
        ("_jax", "import typedshmap.check", "check"),
        ("hints.check_array", "from typedshmap import check", "check"),
        ("hints.check_array", "from typedshmap.typed import typed as t", "typed"),
        ("hints.check_array", "def f():\n    from ..check import size", "check"),
        ("errors.failures", "if TYPE_CHECKING:\n    from ..typed import typed", "typed"),
    ],
)
def test_an_import_of_a_layer_above_is_found(module, text, target):
    texts = {**HOUSE, f"{PACKAGE}.{module}": text}
    assert upward(texts) == [f"{PACKAGE}.{module} imports {PACKAGE}.{target}"]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("check", "from .typed import typed"),
        ("check", "from .hints.check_array import check_array"),
        ("hints.check_array", "from .. import _jax"),
        ("errors.failures", "from ..notation.spec import Dim"),
    ],
)
def test_an_import_of_its_own_layer_or_one_below_is_allowed(module, text):
    assert upward({**HOUSE, f"{PACKAGE}.{module}": text}) == []


@pytest.mark.parametrize(
    "text", ["import jax", "import numpy as np", "from jax.sharding import Mesh", "import beartype.door"]
)
def test_an_import_beyond_the_standard_library_is_found(text):
    assert len(beyond_stdlib({**HOUSE, "typedshmap.errors.failures": text})) == 1
    assert beyond_stdlib({**HOUSE, "typedshmap.hints.check_array": text}) == []


@pytest.mark.parametrize(
    "text",
    [
        "import jax._src.core",
        "from jax import _src",
        "from jax._src import core",
        "def f():\n    return jax._src.core.Tracer",
    ],
)
def test_a_use_of_the_private_part_of_jax_is_found(text):
    assert len(private_to_jax({**HOUSE, "typedshmap._jax": text})) == 1


def test_an_import_inside_a_function_is_found():
    text = "import jax\ndef f():\n    import numpy"
    assert late({**HOUSE, "typedshmap.check": text}) == ["typedshmap.check imports numpy"]


def test_modules_that_import_each_other_in_a_circle_are_found():
    texts = {**HOUSE, "typedshmap.check": "from .typed import typed", "typedshmap.typed": "from . import check"}
    assert set(cycle(texts)) == {"typedshmap.check", "typedshmap.typed"}
