"""Run the regions that an audit has seen on other meshes, and compare their global results."""

from __future__ import annotations

import inspect
import io
import re
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from typing import Any

import jax

from .. import _jax
from ..errors import TypedShmapError
from ..meshes import override_mesh
from ..sampling.captured import captured_sizes, captured_values
from ..testing import assert_mesh_invariant
from .findings import Finding, Region
from .formats import NOT_RUN
from .region import SeenRegion

_DRAWS = frozenset(["random_bits", "threefry2x32", "rng_bit_generator"])
_SECONDS = 60


def compare_on_meshes(seen: Iterable[SeenRegion]) -> tuple[list[Finding], list[Region]]:
    """Run regions on one device and on axes of other sizes.

    What they print as they are traced and run is not shown.

    Returns:
      What depends on the mesh, and the regions that cannot be compared, with the reason.
    """
    findings, not_run, is_stuck = list[Finding](), list[Region](), False
    for each in seen:
        region, why = each.region, "a region before it has not ended" if is_stuck else _reason_not_to_run(each)
        if why == "":
            try:
                if left_out := _compare(each):
                    are = ", ".join(left_out)
                    why = f"the shape of {are} depends on the mesh, as that of one entry per shard does"
            except AssertionError as error:
                is_stuck = " has not ended on " in str(error)
                problem, why = _problem(each, error)
                if not why:
                    doubt = _doubt(each)
                    message = f"{problem} ({doubt})" if doubt else problem
                    severity = "suspect" if doubt else "error"
                    findings.append(Finding(severity, "invariance", message, *region[1:3], region.name))
            except Exception as error:  # whatever the body raises for other shards
                why = _first_line(error).removeprefix(f"assert_mesh_invariant: {region.name}: ") + _closed_over(each)
        if why:
            not_run.append(region._replace(is_complete=True, unread=(f"{NOT_RUN}: {why}",)))
    return findings, not_run


def _reason_not_to_run(each: SeenRegion) -> str | None:
    """Why a region cannot be run again; None for one within another, which is run with that."""
    call = each.traced.call
    if each.traced.eqn.params["mesh"].manual_axes:
        return None
    if call is None:
        return "jax 0.10.1 and older trace a function only once"
    for eqn in _jax.jaxpr.all_equations(each.traced.eqn.params["jaxpr"]):
        if eqn.primitive.name == "while" and each.structs:
            return "a while loop may never end with values that are drawn, and its operands were not seen"
        if _jax.jaxpr.has_effects(eqn):
            return f"it does more than compute its results ({eqn.primitive.name})"
    return ""


# What a comparison says of a result with another shape.
_OTHER_SHAPE = re.compile(
    r": (?P<name>return\S*)(?: value)? depends on the mesh: it is \w+\[\S*\] on .*, but \w+\[\S*\] on one device"
)


def _compare(each: SeenRegion) -> tuple[str, ...]:
    """Run a region on one device and on other meshes; the results whose shape depends on the mesh, which it may.

    Raises:
      AssertionError: where the other results depend on it, too.
    """
    call, left_out = each.traced.call, tuple[str, ...]()
    assert call is not None
    own, function = call.params["mesh"], _function_of(each)
    while len(left_out) < len(each.traced.results):
        try:
            with warnings.catch_warnings(), redirect_stdout(io.StringIO()), _jax.mesh.without_ambient():
                warnings.simplefilter("ignore")
                with override_mesh(own):
                    assert_mesh_invariant(function, args=call.operands, exclude=left_out, trials=1, timeout=_SECONDS)
                break
        except AssertionError as error:
            other = _OTHER_SHAPE.search(str(error).partition("\n")[0])
            if other is None or other["name"] in left_out:
                raise
            left_out += (other["name"],)
    return left_out


def _doubt(each: SeenRegion) -> str:
    """Why its results may differ rightly, or its operands be none that the program gives it; empty if neither."""
    body = each.traced.eqn.params["jaxpr"]
    primitives = {eqn.primitive.name for eqn in _jax.jaxpr.all_equations(body)}
    if not primitives.isdisjoint(_DRAWS):
        return "it draws random numbers, which may rightly differ from shard to shard"
    if any(jax.numpy.issubdtype(struct.dtype, jax.numpy.integer) for struct in each.structs):
        return "its integers were not seen, and are drawn"
    makers = [_jax.jaxpr.maker_of(body, body.outvars[at]) for at in each.traced.results]
    if any(maker is not None and maker.primitive.name == "ppermute" for maker in makers):
        return "it hands shards on as they are, as stages of a pipeline do"
    return ""


def _function_of(each: SeenRegion) -> Callable[..., Any]:
    """A function of a region's global operands, by its name and with their names."""
    call, names = each.traced.call, each.argument_names
    assert call is not None
    body, count = call.body, len(call.operands)
    typed = next((value for _, value, _ in captured_values(body) if hasattr(value, "run_again")), None)

    def run(*operands: Any) -> Any:
        assert callable(body)  # closed over, so that what it closes over in turn is found
        results = call(*operands) if typed is None else typed.run_again(operands)
        return results[0] if len(results) == 1 else results

    if len({*names}) != count or not all(name.isidentifier() for name in names):
        names = tuple(f"arg{at}" for at in range(count))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    setattr(run, "__signature__", signature)  # noqa: B010 (unknown to type checkers)
    run.__name__ = run.__qualname__ = each.region.name
    return run


def _problem(each: SeenRegion, error: AssertionError) -> tuple[str, str]:
    """What is wrong by the message of a comparison, with the cure; else why it says nothing of the region."""
    first, *lines = str(error).splitlines()
    problem = first.removeprefix(f"{each.region.name}: ")
    if "depends on the mesh" not in first:
        return problem, problem
    if closed := _closed_over(each):
        return problem, problem + closed
    cures = (line.removeprefix("Hint: ") for line in lines if line.startswith("Hint: "))
    cure = next((cure for cure in cures if "exclude=" not in cure), "")
    return (f"{problem}; {cure}" if cure else problem), ""


def _closed_over(each: SeenRegion) -> str:
    """What a region's function has in itself that may be the size of an axis of its own mesh, in words."""
    call = each.traced.call
    assert call is not None
    found = captured_sizes(call.body, dict(call.params["mesh"].shape))
    return "".join(f"; it has {name}, which may be the size of '{axis}'" for axis, name in [*found.items()][:1])


def _first_line(error: Exception) -> str:
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, TypedShmapError) else f"{type(error).__name__}: {text}"
