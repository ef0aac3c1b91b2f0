"""The house: a module imports its own layer and those below, and nothing goes round."""

import ast
import re
import shutil
import subprocess
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
ROOMS = {
    0: "drawing records notation errors",
    1: "_jax axis_names",
    2: "hints",
    3: "inference meshes introspection observers dtypes",
    4: "check typed shard_map jit placement ops",
    5: "inspection",
    6: "tools tools.progress tools.sanitize tools.sample",
    7: "testing tools.explain",
    8: "tools.audit",
    9: "testing.plugin auditing explaining",
    10: "tools.cli __main__",
}
LAYERS = {room: layer for layer, rooms in ROOMS.items() for room in rooms.split()} | {"": 10}
# The one option of a verb that is a tool's.
OPTIONS = {("typedshmap.shard_map", "typedshmap.tools.sanitize.sanitizer")}
# What is costly to import waits until it is needed; the reason stands beside each import.
LATE_BY = {
    "_jax.trace": "jax.extend.source_info_util",
    "_jax.source": "jax.extend.source_info_util",
    "_jax.versions": "jax.extend",
    "ops.resharding.run_plan": "jax.interpreters",
    "ops.resharding.plan": "typedshmap.ops.resharding.plan_picture",
    "hints.types": "typedshmap.hints.hint_picture",
    "hints.python_types": "beartype beartype.door beartype.roar",
    "tools.audit": "typedshmap.tools.audit.other_meshes",
    "tools.explain.compiled": "jax.experimental",
    "tools.sample": "hypothesis",
    "testing": "typedshmap.testing.budget",
    "testing.plugin.typedshmap_pytest": "typedshmap.testing.marks typedshmap.testing.plugin.typedshmap_pytest.audits",
    "testing.plugin.typedshmap_pytest.audits": (
        "typedshmap.testing.waiting typedshmap.tools.audit typedshmap.tools.audit.formats "
        "typedshmap.tools.audit.silenced"
    ),
}
LATE = OPTIONS | {(f"{PACKAGE}.{module}", each) for module, targets in LATE_BY.items() for each in targets.split()}


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
    """The first name under the package, of a tool and of the plugin the first two; empty for the package itself."""
    names = module.removeprefix(PACKAGE).lstrip(".").split(".")
    return ".".join(names[:2]) if names[0] == "tools" or names[1:2] == ["plugin"] else names[0]


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
    own = [found for found in own if (found.by, found.target) not in OPTIONS]
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
    rooms = {room(module) for module in module_texts()}
    assert rooms | {"testing.plugin"} == set(LAYERS)  # which a wheel has as a package of its own


def test_the_page_on_design_names_modules_that_are_there():
    page = (Path(__file__).parents[1] / "docs/design.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?!typedshmap/)([\w/]+\.py)`", page))
    there = [f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.rglob("*.py")]
    assert len(named) > 20
    assert {name for name in named if not any(path.endswith(f"/{name}") for path in there)} == set()


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


HOUSE = dict.fromkeys(
    [
        PACKAGE,
        *(f"{PACKAGE}.{module}" for module in ("notation", "notation.spec", "errors", "errors.failures", "_jax")),
        *(f"{PACKAGE}.{module}" for module in ("hints", "hints.check_array", "check", "typed")),
    ],
    "",
)


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
    ["import jax._src.core", "from jax import _src", "from jax._src import core", "def f():\n    return jax._src.x"],
)
def test_a_use_of_the_private_part_of_jax_is_found(text):
    assert len(private_to_jax({**HOUSE, "typedshmap._jax": text})) == 1


def test_an_import_inside_a_function_is_found():
    text = "import jax\ndef f():\n    import numpy"
    assert late({**HOUSE, "typedshmap.check": text}) == ["typedshmap.check imports numpy"]


def test_modules_that_import_each_other_in_a_circle_are_found():
    texts = {**HOUSE, "typedshmap.check": "from .typed import typed", "typedshmap.typed": "from . import check"}
    assert set(cycle(texts)) == {"typedshmap.check", "typedshmap.typed"}


# What tools stand on


# The one door, a public verb, text and data, and JAX.
FOR_TOOLS = {"inspection", "shard_map", "records", "drawing", "notation", "errors", "_jax"}
PAST_THE_DOOR = {
    # It makes values of any hint: it reads the tree of the hint, and binds and places what it has made.
    "tools.sample": (
        "introspection hints.array_hint hints.signature hints.structure hints.check_tree hints.context "
        "placement.placement_context placement.structs"
    ),
    # It runs the calls itself, compares within their programs, and reports in the words of their mesh context.
    "tools.sanitize": "observers hints.context",
    # It says of a mesh in a list what is wrong with it.
    "testing": "meshes",
}


def is_around(module: str) -> bool:
    """Whether a module belongs to the tools around the core."""
    return room(module).startswith(("tools", "testing", "auditing", "explaining", "__main__"))


def past_the_door(texts: Mapping[str, str]) -> list[str]:
    """Imports of the core by a tool, but for public names, the one door, and those with a reason."""
    core = [found for found in all_imports(texts) if found.root == PACKAGE and not is_around(found.target)]
    wrong = list[str]()
    for found in core:
        module = found.target.removeprefix(PACKAGE).lstrip(".")
        is_inner = module.startswith("inspection.")
        has_reason = module in PAST_THE_DOOR.get(room(found.by), "").split()
        is_allowed = has_reason or (room(module) in FOR_TOOLS and not is_inner)
        if is_around(found.by) and module and not is_allowed:
            wrong.append(str(found))
    return wrong


def test_tools_stand_on_the_one_door_and_on_public_names():
    assert past_the_door(module_texts()) == []


def test_every_import_past_the_door_that_has_a_reason_is_there():
    imports = {(room(found.by), found.target) for found in all_imports(module_texts())}
    listed = {(by, f"{PACKAGE}.{module}") for by, modules in PAST_THE_DOOR.items() for module in modules.split()}
    assert listed - imports == set()


@pytest.mark.parametrize(
    ("module", "text", "target"),
    [
        ("tools.explain.explained_call", "from ...hints.signature import name", "hints.signature"),
        ("tools.explain.explained_call", "def f():\n    from ... import introspection", "introspection"),
        ("tools.sanitize", "from ...hints.signature import name", "hints.signature"),
        ("testing.run", "from ..inspection.region import Region", "inspection.region"),
        ("testing.proving.walk", "from ...inference import interpreter", "inference.interpreter"),
        ("auditing", "from .meshes import find_mesh", "meshes"),
    ],
)
def test_an_import_past_the_door_is_found(module, text, target):
    texts = {**module_texts(), f"{PACKAGE}.{module}": text}
    assert past_the_door(texts) == [f"{PACKAGE}.{module} imports {PACKAGE}.{target}"]


@pytest.mark.parametrize(
    "text",
    [
        "from ... import __version__",
        "from ...shard_map import typed_shard_map",
        "from ...inspection import regions",
        "from ..._jax.primitives import primitive",
        "from ..sample.plan import plan_inputs",
    ],
)
def test_a_public_name_the_door_and_another_tool_are_allowed(text):
    assert past_the_door({**module_texts(), f"{PACKAGE}.tools.explain.explained_call": text}) == []


# What is left where a tool is deleted


TOOLS = sorted(path.name for path in (ROOT / "tools").iterdir() if (path / "__init__.py").exists())


def dependents(tool: str, texts: Mapping[str, str]) -> set[str]:
    """The modules that do not work without a tool: what imports it at once, and what imports, or is in, these."""
    gone = {module for module in texts if room(module) == f"tools.{tool}"}
    by_target: dict[str, set[str]] = {}
    for found in all_imports(texts):
        if found.root == PACKAGE and not found.is_late:
            by_target.setdefault(found.target, set()).add(found.by)
    waiting = list(gone)
    while waiting:
        target = waiting.pop()
        within = {module for module in texts if module.startswith(f"{target}.") and target != PACKAGE}
        new = (by_target.get(target, set()) | within) - gone
        gone |= new
        waiting += new
    return gone


def test_no_module_of_the_core_depends_on_a_tool() -> None:
    texts = module_texts()
    for tool in TOOLS:
        left = dependents(tool, texts) - {PACKAGE}  # whose names are imported when they are asked for
        assert {module for module in left if not is_around(module)} == set()


@pytest.mark.sample(8)
@pytest.mark.parametrize("tool", TOOLS)
def test_the_rest_works_where_a_tool_is_deleted(tool: str, tmp_path: Path) -> None:
    copy = tmp_path / PACKAGE
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / "tools" / tool)
    gone = dependents(tool, module_texts()) - {PACKAGE}
    program = f"""
import importlib, pkgutil, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
sys.path.insert(0, {str(tmp_path)!r})
import typedshmap as ts
assert ts.__file__.startswith({str(tmp_path)!r})
for module in sorted({sorted(set(module_texts()) - gone)!r}):
    importlib.import_module(module)
import jax, numpy as np
from jax.sharding import Mesh
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))
X, W, Y = ts.Float[ts.Array, "[b/dp] [m/tp]"], ts.Float[ts.Array, "[m/tp] f"], ts.Float[ts.Array, "[b/dp] f"]
@ts.typed_shard_map(mesh=mesh)
def layer(x: X, w: W) -> Y:
    return ts.einsum(x, w, "[b/dp] [m/tp], [m/tp] f -> [b/dp] f")
x, w = np.ones((8, 16), np.float32), np.ones((16, 4), np.float32)
assert (np.asarray(ts.typed_jit(layer)(x, w)) == 16).all()
if {tool!r} != "audit":
    with ts.audit() as report:
        jax.eval_shape(lambda x, w: layer(x, w), x, w)
    assert report.regions[0].name == "layer"
if {tool!r} not in ("explain", "sample"):
    assert ts.explain(layer, mesh="dp=2,tp=2", b=8).collectives
if {tool!r} != "sanitize":
    with ts.sanitize(every=1):
        layer(x, w)
if {tool!r} != "sample":
    from typedshmap.testing import assert_mesh_invariant, prove
    assert_mesh_invariant(layer)
    assert prove(layer).verdict == "proved"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, cwd=tmp_path)
