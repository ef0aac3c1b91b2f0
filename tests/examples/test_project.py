"""The project to copy passes its own CI, command by command."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).parents[2] / "examples" / "project"
WORKFLOW = yaml.safe_load((PROJECT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
COMMANDS = [step["run"] for step in WORKFLOW["jobs"]["test"]["steps"] if "run" in step]
PROGRAMS = {"python": [sys.executable], "typedshmap": [sys.executable, "-m", "typedshmap"]}


@pytest.mark.slow
def test_each_command_of_its_workflow_passes_in_a_copy(tmp_path: Path) -> None:
    pytest.importorskip("optax")
    install, *commands = COMMANDS
    assert install.startswith("pip install") and len(commands) == 4
    copy = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    for command in [*commands, "python -m regression.train --devices 8"]:
        program, *words = shlex.split(command)
        ended = subprocess.run(
            [*PROGRAMS[program], *words], cwd=copy, env=environment, capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
