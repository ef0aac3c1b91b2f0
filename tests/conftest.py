"""Eight virtual CPU devices, the meshes that most tests use, and how many examples hypothesis draws.

``--hypothesis-profile=fast`` (the default) draws 20 examples per law, ``ci`` draws 100, the same ones at every run;
``random`` draws other ones each time.
"""

import os
import shutil

import environment  # before JAX, which reads what it sets
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from jax.sharding import Mesh

# The programs that tests start share what XLA has compiled; here `check` asks XLA while it compiles, and would ask
# nothing of a program that another test has compiled.
jax.config.update("jax_enable_compilation_cache", False)

# How long an example takes says nothing where the machine may be busy.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fast", derandomize=True, max_examples=20, **PATIENT)
settings.register_profile("ci", derandomize=True, max_examples=100, **PATIENT)
settings.register_profile("random", derandomize=False, max_examples=100, **PATIENT)
settings.load_profile("fast")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let CI say what a run may take."""
    parser.addoption("--cpu-budget", type=float, help="fail if the run takes half as many CPU seconds again as this")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that passed and took too long, in CPU time: other work on the machine does not count."""
    budget = session.config.getoption("--cpu-budget")
    if not environment.IS_WORKER and budget is not None and session.exitstatus == 0 and cpu_seconds() > 1.5 * budget:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the run took."""
    budget = config.getoption("--cpu-budget")
    limit = "" if budget is None else f", of {budget:.0f}, and at most {1.5 * budget:.0f}"
    terminalreporter.write_line(f"{cpu_seconds():.0f} s of CPU time{limit}")


def cpu_seconds() -> float:
    """What this process and those that it started, workers too, have taken."""
    return sum(os.times()[:4])


def pytest_unconfigure() -> None:
    """Remove the compiled programs, at the end of the run."""
    if not environment.IS_WORKER:
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(scope="session")
def mesh() -> Mesh:
    """dp=4, tp=2, both Auto."""
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))
