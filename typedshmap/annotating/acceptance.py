"""Accept an annotated program: it runs once more, in a process of its own, with the edited texts for its files.

A call is accepted if it was reached, and if what was traced has the mesh, the types and the specs of the plain one."""

from __future__ import annotations

import builtins
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec

from ..repairing.importing import edited_imports
from ..shard_map import typed_shard_map
from .editing import MARKED
from .program import AnnotatedProgram, SitePlan
from .recording import record_call

_ROUNDS = 8
_SECONDS_BETWEEN_SIGNS = 10


class VerifiedRun(NamedTuple):
    """What came of a run: its exit code, its last words, and by the number of each call what it traced and raised."""

    code: int
    last: str
    claims: Mapping[int, Sequence[str]]
    failures: Mapping[int, str]


def accept(program: AnnotatedProgram, code: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Leave the calls that cannot be accepted, until all others are.

    Args:
      program: the program.
      code: the exit code of the plain one.
      command: what runs it, to which the file with the texts is added.
      environment: the environment in which the plain one began.
    """
    for _ in range(_ROUNDS):
        plans = {number: plan for number, plan in enumerate(program.plans) if not plan.left}
        texts = program.edited(marked=True)
        plans = {number: plan for number, plan in plans.items() if not plan.left}
        if not plans:
            return
        verdict = _run(texts, plans, command, environment)
        wrong = {number: _why_wrong(plan, number, verdict) for number, plan in plans.items()}
        raised = {number: why for number, why in wrong.items() if why and number in verdict.failures}
        wrong = raised or {number: why for number, why in wrong.items() if why}
        if not wrong and verdict.code == code:
            return
        if not wrong:
            why = f"with hints it ends with exit code {verdict.code}, not {code}: {verdict.last}"
            wrong = dict.fromkeys(plans, why)
        for number, why in wrong.items():
            if plans[number].on_definition:
                plans[number].on_definition = False  # the hints may fit the call, and not the function
            else:
                plans[number].left = why
    for plan in program.plans:
        plan.left = plan.left or "the annotated program could not be verified"


def _why_wrong(plan: SitePlan, number: int, verdict: VerifiedRun) -> str:
    if number in verdict.failures:
        return verdict.failures[number]
    expected = {repr(traced.claims()) for traced in plan.site.traced.values()}
    found = set(verdict.claims.get(number, ()))
    if not found:
        return f"the annotated program does not get to it: {verdict.last}"
    return "" if found == expected else "its hints do not say what its specs say"


def _run(
    texts: Mapping[str, str], plans: Mapping[int, SitePlan], command: Sequence[str], environment: Mapping[str, str]
) -> VerifiedRun:
    """Run the program with other texts; a sign of life appears now and then."""
    mapped = {number: [plan.is_mapped(at) for at in range(len(plan.arguments))] for number, plan in plans.items()}
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.json")
        job.write_text(json.dumps({"texts": dict(texts), "mapped": mapped}), encoding="utf-8")
        said, silent = Path(folder, "stderr"), subprocess.DEVNULL
        arguments = [*command[:4], f"--accept={job}", *command[4:]]
        with said.open("wb") as opened:
            process = subprocess.Popen(arguments, env=dict(environment), stdin=silent, stdout=silent, stderr=opened)
            code = None
            try:
                while code is None:
                    with suppress(subprocess.TimeoutExpired):
                        code = process.wait(_SECONDS_BETWEEN_SIGNS)
                    if code is None:
                        print("annotate: the annotated program runs", file=sys.stderr, flush=True)
            finally:
                process.kill()
        last = said.read_text(errors="replace").strip().rpartition("\n")[2][:200]
        done = Path(folder, "done.json")
        found = json.loads(done.read_text(encoding="utf-8")) if done.exists() else {"claims": {}, "failures": {}}
    return VerifiedRun(code, last, *({int(k): v for k, v in found[key].items()} for key in ("claims", "failures")))


@contextmanager
def verifying(job: Path) -> Generator[dict[str, str]]:
    """Have the edited texts imported, and note what the calls in them trace; in the process that verifies.

    Yields:
      The texts by their files.
    """
    given = json.loads(job.read_text(encoding="utf-8"))
    texts: dict[str, str] = given["texts"]
    traced: dict[str, dict[Any, Any]] = {number: {} for number in given["mapped"]}
    failures: dict[str, str] = {}
    specs = {
        number: tuple(PartitionSpec() if is_mapped else None for is_mapped in mapped)
        for number, mapped in given["mapped"].items()
    }
    setattr(builtins, MARKED, functools.partial(_make_and_note, specs, traced, failures))
    try:
        with edited_imports(texts):
            yield texts
    finally:
        claims = {number: [repr(one.claims()) for one in found.values()] for number, found in traced.items()}
        Path(job.parent, "done.json").write_text(json.dumps({"claims": claims, "failures": failures}), encoding="utf-8")


def _make_and_note(
    specs: Mapping[str, tuple[Any, ...]],
    traced: Mapping[str, dict[Any, Any]],
    failures: dict[str, str],
    function: Any = None,
    /,
    **options: Any,
) -> Any:
    """``typed_shard_map`` that notes what its functions trace, and why they cannot."""
    if function is None:
        return functools.partial(_make_and_note, specs, traced, failures, **options)
    number = str(options.pop("number"))
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    own = {"typed": typed_shard_map, "function": function, "options": options}
    try:  # from the user's frame, in which strings of hints are read
        typed = eval("typed(function, **options)", frame.f_globals, {**frame.f_locals, **own})
    except Exception as error:
        failures.setdefault(number, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        raise

    @functools.wraps(typed)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = specs[number]
        if failure := record_call(traced[number], typed, args, given if len(given) == len(args) else ...):
            failures.setdefault(number, failure)
        return typed(*args, **kwargs)

    return call
