"""Run the regions that an audit has seen on other meshes, and compare their global results."""

from __future__ import annotations

import inspect
import io
import re
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from math import prod
from typing import Any

import jax
import numpy as np

from .. import _jax
from ..errors import TypedShmapError
from ..meshes import override_mesh
from ..sampling.closures import closed_over_sizes
from ..testing import assert_mesh_invariant
from ..testing.describe_difference import FIRST_DIFFERENCE
from .findings import Finding, Region
from .formats import NOT_RUN
from .seen import SeenRegion

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
                why = _compare(each)
            except AssertionError as error:
                is_stuck = " has not ended on " in str(error)
                problem, why = _problem(each, error)
                if not why:
                    doubt, given = _doubt(each, problem), _how_given(each)
                    notes = "; ".join(filter(None, [doubt, given]))
                    message = f"{problem} ({notes})" if notes else problem
                    severity = "suspect" if doubt else "error"
                    findings.append(Finding(severity, "invariance", message, region.file, region.line, region.name))
            except Exception as error:  # whatever the body raises for other shards
                why = _why_not(each, error)
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
    if each.is_stuck:
        return "its shards would wait for each other"
    if each.structs and _has_loop(each):
        return "a while loop may never end with values that are drawn, and its operands were not seen"
    body = each.traced.eqn.params["jaxpr"]
    if _jax.jaxpr.effects_of(body):  # what kernels write is theirs
        found = next(filter(_jax.jaxpr.has_effects, _jax.jaxpr.all_equations(body)), None)
        return f"it does more than compute its results ({found.primitive.name if found else 'a write'})"
    return ""


# What a comparison says of a result with another shape.
_OTHER_SHAPE = re.compile(
    r": (?P<name>return\S*)(?: value)? depends on the mesh: it is \w+\[\S*\] on .*, but \w+\[\S*\] on one device"
)


def _compare(each: SeenRegion) -> str:
    """Run a region on one device and on other meshes, with its gradients where the program takes them.

    Returns:
      What is not compared, and why: results whose shape depends on the mesh, as it may; gradients that JAX refuses.

    Raises:
      AssertionError: where something else depends on it.
    """
    if each.differentiated:
        try:
            return _compare_results(each, _gradients(each))
        except AssertionError:
            raise
        except Exception as error:
            return _compare_results(each, None) or f"its gradients: {_why_not(each, error)}"
    return _compare_results(each, None)


def _compare_results(each: SeenRegion, left_out_gradients: tuple[str, ...] | None) -> str:
    """What is not compared of its results, and of its gradients but for those that are left out; None: no gradient."""
    call, left_out = each.traced.call, tuple[str, ...]()
    assert call is not None
    own, function, arguments = call.params["mesh"], _function_of(each), [value for value, _ in _arguments(each)]
    options: Any = {"args": arguments, "grad": left_out_gradients is not None, "trials": 1, "timeout": _SECONDS}
    while len(left_out) < len(each.traced.results):
        try:
            with warnings.catch_warnings(), redirect_stdout(io.StringIO()), _jax.mesh.without_ambient():
                warnings.simplefilter("ignore")
                with override_mesh(own):
                    assert_mesh_invariant(function, exclude=left_out + (left_out_gradients or ()), **options)
                break
        except AssertionError as error:
            other = _OTHER_SHAPE.search(str(error).partition("\n")[0])
            if other is None or other["name"] in left_out:
                raise
            left_out += (other["name"],)
    if not left_out:
        return ""
    return f"the shape of {', '.join(left_out)} depends on the mesh, as that of one entry per shard does"


def _gradients(each: SeenRegion) -> tuple[str, ...]:
    """The gradients that the program does not take."""
    call, names = each.traced.call, _argument_names(each)
    assert call is not None
    are_inexact = [_jax.array.is_inexact(operand.dtype) for operand in call.operands]
    return tuple(
        f"grad({name})"
        for at, (name, is_inexact) in enumerate(zip(names, are_inexact, strict=True))
        if is_inexact and at - len(names) not in each.differentiated
    )


def _arguments(each: SeenRegion) -> list[tuple[Any, str]]:
    """What a region is run with, each with a word on how it was come by if it is not what it was given.

    What has equal entries, as state at the start has, would be the same in any order: it is varied.
    """
    call = each.traced.call
    assert call is not None
    found, has_loop = list[tuple[Any, str]](), _has_loop(each)
    for operand in call.operands:
        if isinstance(operand, _jax.array.SHAPES):
            found.append((operand, _NOT_SEEN))
        elif not has_loop and _is_constant(operand):
            first = np.asarray(operand).flat[0]
            change = np.random.default_rng(0).uniform(0, 1, operand.shape)
            varied = first + (change if first.real >= 0 else -change)
            found.append((jax.numpy.asarray(varied, operand.dtype), "varied"))
        else:
            found.append((operand, ""))
    return found


_NOT_SEEN = "not seen, and drawn"


def _is_constant(operand: Any) -> bool:
    """Whether an array of inexact numbers has one and the same in each of several entries."""
    if not _jax.array.is_inexact(operand.dtype) or operand.size < 2:
        return False
    values = np.asarray(operand)
    return bool(np.isfinite(values.flat[0]) and (values == values.flat[0]).all())


def _how_given(each: SeenRegion) -> str:
    """What the region was run with that it was not given in the program, in words."""
    hows = {how for _, how in _arguments(each)}
    if _NOT_SEEN in hows:
        return "its arguments were not seen, and are drawn"
    return "an argument with equal entries is varied" if hows - {""} else ""


def _has_loop(each: SeenRegion) -> bool:
    equations = _jax.jaxpr.all_equations(each.traced.eqn.params["jaxpr"])
    return any(eqn.primitive.name == "while" for eqn in equations)


def _doubt(each: SeenRegion, problem: str) -> str:
    """Why its results may differ rightly, or its operands be none that the program gives it; empty if neither."""
    body = each.traced.eqn.params["jaxpr"]
    primitives = {eqn.primitive.name for eqn in _jax.jaxpr.all_equations(body)}
    if not primitives.isdisjoint(_DRAWS):
        return "it draws random numbers, which may rightly differ from shard to shard"
    if any(jax.numpy.issubdtype(struct.dtype, jax.numpy.integer) for struct in each.structs):
        return "its integers may be none that the program gives it"
    results = [body.outvars[at] for at in each.traced.results]
    if problem.startswith("grad(") and sum(_jax.array.is_inexact(var.aval.dtype) for var in results) > 1:
        return "it is that of all its results, of which the program may differentiate some"
    if names := _entries_per_shard(each):
        return f"'{names[0]}' has one entry per shard here, which the function may rely on"
    makers = [_jax.jaxpr.maker_of(body, var) for var in results]
    if any(maker is not None and maker.primitive.name == "ppermute" for maker in makers):
        return "it hands shards on as they are, as stages of a pipeline do"
    return ""


def _entries_per_shard(each: SeenRegion) -> list[str]:
    """The operands of which each shard has one entry along a dim that is sharded."""
    found = list[str]()
    call = each.traced.call
    assert call is not None
    sizes = call.params["mesh"].shape
    for name, operand, spec in zip(_argument_names(each), call.operands, call.params["in_specs"], strict=True):
        layout = _jax.array.spec_entries(spec, len(operand.shape))
        shards = [prod(sizes[axis] for axis in axes) for axes in layout.dim_axes]
        if any(size == count > 1 for size, count in zip(operand.shape, shards, strict=True)):
            found.append(name)
    return found


def _argument_names(each: SeenRegion) -> tuple[str, ...]:
    """The names of a region's operands; others where they are no names of parameters."""
    call = each.traced.call
    assert call is not None
    names, count = call.argument_names or each.argument_names, len(call.operands)
    if len({*names}) != count or not all(name.isidentifier() for name in names):
        return tuple(f"arg{at}" for at in range(count))
    return names


def _function_of(each: SeenRegion) -> Callable[..., Any]:
    """A function of a region's global operands, by its name and with their names."""
    call = each.traced.call
    assert call is not None

    def run(*operands: Any) -> Any:
        results = call(*operands)
        return results[0] if len(results) == 1 else results

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in _argument_names(each)])
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
    places = (line.removeprefix(FIRST_DIFFERENCE) for line in lines if line.startswith(FIRST_DIFFERENCE))
    place = next((f"first difference: {place}" for place in places if not place.startswith("not known")), "")
    return "; ".join(filter(None, [problem, place, cure])), ""


def _closed_over(each: SeenRegion) -> str:
    """What a region's function has in itself that may be the size of an axis of its own mesh, in words."""
    call = each.traced.call
    assert call is not None
    found = closed_over_sizes(call.body, call.params["mesh"].shape)
    return "".join(f"; it closes over {words}" for words in [*found.values()][:1])


def _why_not(each: SeenRegion, error: Exception) -> str:
    """Why a region cannot be run, by what was raised."""
    first = (str(error).splitlines() or [""])[0]
    text = first if isinstance(error, TypedShmapError) else f"{type(error).__name__}: {first}"
    return text.removeprefix(f"assert_mesh_invariant: {each.region.name}: ") + _closed_over(each)
