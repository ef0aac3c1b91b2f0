"""Eight virtual CPU devices, the meshes that most tests use, and how many examples hypothesis draws.

``--hypothesis-profile=fast`` (the default) draws 6 examples per law, ``ci`` draws 40, the same ones at every run;
``random`` draws other ones each time.
"""

import gc
import os
import shutil
import sys
from collections.abc import Iterator

import environment  # before JAX, which reads what it sets
import jax
import numpy as np
import pytest
import tiers
import verdicts
from hypothesis import HealthCheck, settings
from jax.sharding import Mesh

from typedshmap._jax.versions import DROPS_UNUSED, HAS_MANUAL_TYPES
from typedshmap.inference import interpreted_region

interpreted_region.raises_in_readings = True

# The programs that tests start share what XLA has compiled; here `check` asks XLA while it compiles, and would ask
# nothing of a program that another test has compiled.
jax.config.update("jax_enable_compilation_cache", False)

# How long an example takes says nothing where the machine may be busy.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fast", derandomize=True, max_examples=6, **PATIENT)
settings.register_profile("ci", derandomize=True, max_examples=40, **PATIENT)
settings.register_profile("random", derandomize=False, max_examples=100, **PATIENT)
settings.load_profile("fast")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let CI say what a run may take."""
    parser.addoption("--cpu-budget", type=float, help="fail if the run takes half as many CPU seconds again as this")


def pytest_collection_finish() -> None:
    """Have no verb say that it takes long, which depends on the machine; the one that is asked to has a test."""
    if (output := sys.modules.get("typedshmap.tools.cli.output")) is not None:
        output.SOON = 600.0


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that passed and took too long, in CPU time: other work on the machine does not count."""
    budget = session.config.getoption("--cpu-budget")
    if not environment.IS_WORKER and budget is not None and session.exitstatus == 0 and cpu_seconds() > 1.5 * budget:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


# What cannot pass on jax 0.9, by the end of the test's name; the functions of jax.numpy do not stand in its tracebacks.
_UNKNOWN = "jax 0.9 does not say which function of its own an equation comes from"
_LATE = "on jax 0.9 a contradiction is found when all of the body is traced"
_NO_CURE = "on jax 0.9 the message names no cure"
_DROPPED = "jax 0.9 drops a check whose result nothing uses"
_LACKS = "jax 0.9 lacks what the program uses"
_WARNS = "on jax 0.9 a check of a quotient by '~' silences no suspect"
_FIRST = "on jax 0.9 what a function of JAX's own computes has the line of its first call"
_AGAIN = "on jax 0.9 a body is traced again where any of its numbers may count shards"
_GATHERED = "jax 0.9 makes another operation of a step of two"
_FLAX = "the last Flax that takes jax 0.9 does otherwise, or warns"
NOT_ON_JAX_0_9 = {
    "or_refused[a variance-": _UNKNOWN,
    "or_refused[a log-sum-exp-": _LACKS,
    "or_refused[a scan that adds rows to ones-": _LACKS,
    "or_refused[the first row-": _LACKS,
    "or_refused[the product of a part-": _LACKS,
    "or_refused[a norm of a part, summed-": _LACKS,
    "or_refused[a check of a part-": _LACKS,
    "or_refused[a gathered value-": _LACKS,
    "or_refused[an argmax-": _LACKS,
    "or_refused[any of a part-": _LACKS,
    "or_refused[a tiled part-": _LACKS,
    "or_refused[a helper's result that agrees-": _LACKS,
    "nothing_is_said[a local weighted mean that is stated-": _WARNS,
    "is_an_error[a relu-": _FIRST,
    "is_an_error[a relu in a jit-": _FIRST,
    "is_an_error[a relu in a scan-": _FIRST,
    "is_suspect[a relu-": _FIRST,
    "lines_that_the_user_wrote[step-": _FIRST,
    "lines_that_the_user_wrote[again-": _FIRST,
    "test_a_suspect_has_the_lines_of_the_loss_and_of_the_sum": _FIRST,
    "found_at_its_line[copies]": _FIRST,
    "test_an_audit_always_asks_what_numbers_do": "below jax 0.10.2 a region is not traced again",
    "test_an_audit_finds_a_gradient_of_one_row": "below jax 0.10.2 a region is not traced again",
    "of_a_result[shapes: every other element": _GATHERED,
    "program_is_refused[every other row, and then": _GATHERED,
    "is_an_error[a relu of what": _FIRST,
    "test_one_hint_is_true_in_nested_regions": _AGAIN,
    "traced_again_where_a_verdict_depends_on_a_number[<lambda>-False": _AGAIN,
    "test_a_nested_region_on_an_explicit_mesh": _AGAIN,
    "test_a_region_that_cannot_be_traced_at_another_size_is_read_without_degrees": _AGAIN,
    "test_what_was_read_is_not_read_again": _AGAIN,
    "test_an_argument_that_is_unreduced_is_named": "jax 0.9 multiplies no value that it types as unreduced",
    "test_of_a_scalar_that_is_typed_as_varying_it_is_said_since_when": _LATE,
    "every_shard[a variance-": _UNKNOWN,
    "every_shard[a nonlinear function-": _UNKNOWN,
    "or_refused[what is computed of a gathered value-": _NO_CURE,
    "or_refused[a lookup-": _NO_CURE,
    "[all_gather to invarying in a branch-": _LACKS,
    "[gradient of a gather in a branch-": _LACKS,
    "[a choice that is checked as if it agreed-": _DROPPED,
    "[a choice between two gradients-": _LACKS,
    "test_what_jax_types_as_unreduced_stays_accepted": _LACKS,
    "may_be_mapped_over_unjitted_and_twice[False]": "jax 0.9 shards the result otherwise",
    "test_an_optimizer_may_be_sharded_otherwise": _FLAX,
    "test_a_mesh_of_both_kinds_places_what_flax_refuses": _FLAX,
    "test_a_model_is_made_in_jit_by_the_names_of_its_boxes": _FLAX,
    "test_boxes_go_over_the_bridge_both_ways": _FLAX,
    "type_that_jaxtyping_wants[int | str-": "jaxtyping 0.3.4 looks at the first leaf only",
    "type_that_jaxtyping_wants[typing.Optional[int]-": "jaxtyping 0.3.4 looks at the first leaf only",
}

NOT_BELOW_JAX_0_10_2 = {
    "test_a_known_layout_comes_before_sizes": "before 0.10.2 a contradiction is found when all of the body is traced"
}


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the order is made random, which a wrapper does, too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark what is not in every run, and skip on old versions of JAX what they cannot do."""
    tiers.put_into_runs(items)
    reasons = {**(NOT_BELOW_JAX_0_10_2 if DROPS_UNUSED else {}), **({} if HAS_MANUAL_TYPES else NOT_ON_JAX_0_9)}
    for item in items:
        for name, reason in reasons.items():
            if name in item.name:
                item.add_marker(pytest.mark.skip(reason=reason))
    return (yield)


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


@pytest.fixture(scope="module", autouse=True)
def only_new_objects_are_looked_at() -> Iterator[None]:
    """Leave what modules before this one have made, most of it in JAX's caches, out of every search for garbage."""
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(scope="session")
def mesh() -> Mesh:
    """dp=4, tp=2, both Auto."""
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"))


@pytest.fixture
def without_cures() -> Iterator[None]:
    """Search for no cures where a test compares verdicts only."""
    with verdicts.without_cures():
        yield
