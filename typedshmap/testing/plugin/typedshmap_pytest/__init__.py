"""``pytest --typedshmap-verify``: every function marked by ``mesh_invariant`` is a test; ``--typedshmap-audit``.

This is a separate package, since pytest imports plugins before any ``conftest.py``, and many of these set ``XLA_FLAGS``
or ``JAX_PLATFORMS``. Importing ``typedshmap`` imports JAX, so it is delayed until tests are collected.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

_FLAG, _INI = "--typedshmap-verify", "typedshmap_verify"
_AUDIT, _INVARIANCE, _BASELINE = "--typedshmap-audit", "--typedshmap-invariance", "--typedshmap-baseline"
_MARKING = "typedshmap.testing.marks"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag, and the option that names modules."""
    group = parser.getgroup("typedshmap")
    group.addoption(_FLAG, action="store_true", help="run every function marked by mesh_invariant on several meshes")
    group.addoption(_AUDIT, action="store_true", help="read every shard_map that the tests trace; errors fail the run")
    meshes = "audit the tests, and at the end run each shard_map on one device and on other meshes"
    group.addoption(_INVARIANCE, action="store_true", help=meshes)
    group.addoption(_BASELINE, metavar="FILE", type=Path, help="findings of the audit that are known")
    parser.addini(_INI, "modules to look for functions marked by mesh_invariant", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Make the devices for verification, and audit the tests, if the flags say so."""
    if config.getoption(_FLAG):
        _make_devices()
    baseline: Path | None = config.getoption(_BASELINE)
    if baseline is not None and not baseline.is_file():
        raise pytest.UsageError(f"{_BASELINE} {baseline}: there is no such file")
    invariance = bool(config.getoption(_INVARIANCE))
    if invariance or config.getoption(_AUDIT):
        from .audits import Audit

        config.pluginmanager.register(Audit(config, baseline, invariance), "typedshmap-audit")


def _make_devices() -> None:
    """Make eight virtual CPU devices, unless the environment or a conftest sets the number or the platform."""
    count, flags = "--xla_force_host_platform_device_count", os.environ.get("XLA_FLAGS", "")
    jax = sys.modules.get("jax")
    if count in flags or "JAX_NUM_CPU_DEVICES" in os.environ or (jax and jax.config.jax_num_cpu_devices >= 0):
        return
    os.environ["XLA_FLAGS"] = f"{flags} {count}=8".strip()
    if not (jax.config.jax_platforms if jax else os.environ.get("JAX_PLATFORMS")):
        os.environ["JAX_PLATFORMS"] = "cpu"
        if jax:
            jax.config.update("jax_platforms", "cpu")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add an item for every marked function, before other plugins deselect items."""
    if not config.getoption(_FLAG):
        return
    for name in config.getini(_INI):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise pytest.UsageError(f"{_INI}: cannot import {name!r}: {error}") from error
    marked: list[pytest.Item] = []
    if _MARKING in sys.modules:  # else nothing has imported `mesh_invariant`
        from typedshmap.testing.marks import marked_functions

        parents: dict[str, MarkedModule] = {}
        for module, name, function in marked_functions(list(sys.modules.values())):
            path = Path(module.__file__ or module.__name__)
            parent = parents.setdefault(module.__name__, MarkedModule.of(session, path))
            parent.functions[name] = function
        for parent in parents.values():
            report = parent.ihook.pytest_make_collect_report(collector=parent)
            parent.ihook.pytest_collectreport(report=report)  # pytest counts the items of reports
            marked += report.result
    if not marked:
        raise pytest.UsageError(
            f"{_FLAG}: no function is marked by mesh_invariant, neither in a module that the collected tests import, "
            f"nor in one that the ini option {_INI} names"
        )
    items.extend(marked)


class MarkedModule(pytest.File):
    """A module with marked functions."""

    functions: dict[str, Any]

    @classmethod
    def of(cls, session: pytest.Session, path: Path) -> MarkedModule:
        """The module at a path, without functions yet."""
        made = cls.from_parent(session, path=path)
        made.functions = {}
        return made

    def collect(self) -> list[pytest.Item]:
        return [MarkedFunction.of(self, name, function) for name, function in self.functions.items()]


class MarkedFunction(pytest.Item):
    """A marked function, as a test."""

    function: Any

    @classmethod
    def of(cls, parent: MarkedModule, name: str, function: Any) -> MarkedFunction:
        """The test of a function."""
        made = cls.from_parent(parent, name=f"{name}[mesh-invariant]")
        made.function = function
        return made

    def runtest(self) -> None:
        from typedshmap.testing.marks import find_mark

        mark = find_mark(self.function)
        assert mark is not None
        mark.verify(self.function)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """For an error about the function only its message; any other error with its traceback."""
        error = excinfo.value
        if not isinstance(error, AssertionError) and type(error).__module__ != "typedshmap":
            return super().repr_failure(excinfo, style)
        # JAX's note, which begins like this, is about a traceback that is not shown.
        notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("--------------------")]
        return "\n".join([f"{type(error).__name__}: {error}", *notes])

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name
