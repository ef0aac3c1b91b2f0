"""The hooks of .pre-commit-config.yaml: what they run before a commit is run here on the whole tree."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tree import ROOT, needs_source

pytestmark = pytest.mark.slow  # on all files, whatever version of JAX is there

CONFIGURATION = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
HOOKS: dict[str, Any] = {hook["id"]: hook for repository in CONFIGURATION["repos"] for hook in repository["hooks"]}

# A commit is formatted, the tree has to be; and pyright finds JAX where these tests do.
HERE = {"ruff-format": ["--check"], "ruff-check": [], "pyright": ["--pythonpath", sys.executable]}


def run(name: str, *arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    python, *words = shlex.split(HOOKS[name]["entry"])
    assert python == "python"
    command = [sys.executable, *words, *HERE[name], *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", timeout=600)


@needs_source
@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_passes_on_all_files(name: str) -> None:
    done = run(name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_refuses_a_bad_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import os\nx : int='1'\n", encoding="utf-8")
    done = run(name, "bad.py", folder=tmp_path)
    assert done.returncode == 1 and "bad.py" in done.stdout


def test_the_versions_of_all_tools_stand_in_pyproject() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    tools = {re.split(r"[<>=~]", requirement)[0] for requirement in extras["lint"]}
    assert {shlex.split(hook["entry"])[2] for hook in HOOKS.values()} <= tools
    assert {hook["language"] for hook in HOOKS.values()} == {"system"}
