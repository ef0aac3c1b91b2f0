"""Describe a failed trial: the result that differs, the mesh, the difference, the responsible mesh axis, and causes.

Causes are inferred from patterns in the values and from the jaxpr; each has a cure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from math import ceil, isclose, log10, prod
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh, NamedSharding

from .. import _jax
from .._jax.primitives import primitive
from ..errors import TypedShmapError
from ..errors.phrases import mesh_text, quoted_axes, size_text
from ..inspection import closed_over, closed_over_sizes
from ..tools.sample.input_plan import UnplacedInputs
from .compare import Difference, FormMismatch, MeshTrial, Tolerance, ValueMismatch, are_close, as_double
from .describe_difference import Where
from .run import FunctionUnderTest, HostArray
from .trial_meshes import longer_axes, name_of_mesh


def failure_report(
    subject: FunctionUnderTest,
    drawn: UnplacedInputs,
    tolerance: Tolerance,
    tried: Sequence[MeshTrial],
    left_out: Mapping[Mesh, str],
    where: Where,
    reference: str,
) -> str:
    """The message of a failed trial."""
    wrong = [trial for trial in tried if trial.differences]
    # The first wrong result on the smallest mesh is reported in full.
    first, mesh = wrong[0].differences[0], name_of_mesh(wrong[0].mesh)
    facts, cure = list[str](), ""
    if isinstance(first, FormMismatch):
        problem = f" it is {first.actual or 'missing'} on {mesh}, but {first.expected or 'missing'} on {reference}"
    else:
        actual, expected = numbers(first.actual[first.at], first.expected[first.at])
        problem = f"{entry_place(first.at)} it is {actual} on {mesh}, but {expected} on {reference}"
        is_gradient = first.name.startswith("grad(")
        causes = [*clues(first, wrong[0].outcome.compiled.jaxprs, is_gradient or where.is_backward, reference)]
        cure = next((clue.cure for clue in causes if clue.cure), "")
        if causes and causes[0].is_pattern:
            problem = f" {causes.pop(0).fact}:{entry_place(first.at)} {actual} on {mesh}, not {expected}"
        facts = [_deviation(first, tolerance), *(clue.fact for clue in causes)]
        if is_gradient:
            facts.append("the results agree: only gradients differ")
    facts += [_responsible_axes(first.name, wrong), f"differs on {list_meshes(trial.mesh for trial in wrong)}"]
    if agreeing := [trial.mesh for trial in tried if not trial.differences]:
        facts.append(f"agrees on {list_meshes(agreeing)}")
    facts += describe_omissions(left_out)
    phrase = result_phrase(first.name)
    names = dict.fromkeys(result_phrase(mismatch.name) for trial in wrong for mismatch in trial.differences)
    if also := [name for name in names if name != phrase]:
        more = f" and {len(also) - 6} more" if len(also) > 6 else ""
        facts.append(f"wrong, too: {', '.join(also[:6])}{more}")
    head = f"{subject.name}: {phrase} depends on the mesh:{problem}"
    lines = [head, "", *(f"    {fact}" for fact in facts), "", *where.lines, "", *describe_trial(subject, drawn)]
    return "\n".join([*lines, f"Hint: {cure}"] if cure else lines)


def describe_trial(subject: FunctionUnderTest, drawn: UnplacedInputs) -> list[str]:
    """The lines of a message with the sizes of a trial, the call of the function, and the seed."""
    text = ", ".join(size_text(name, size) for name, size in drawn.sizes.items())
    lines = [f"Sizes: {text}"] if text else []
    if subject.kind == "global":
        lines.append("Called: under jax.jit, on global arrays; manual=True maps it over the shards")
    if subject.kind == "mapped":
        lines.append("Called: inside of typed_shard_map over all mesh axes; manual=False calls it on global arrays")
    return [*lines, f"Again: seed={drawn.seed}"]


def differs_by_itself(subject: FunctionUnderTest, drawn: UnplacedInputs, mismatch: Difference) -> str:
    """The message for a trial whose result on one device changes when the call is repeated."""
    text = f"{result_phrase(mismatch.name)} depends on something other than the arguments"
    if isinstance(mismatch, ValueMismatch):
        actual, expected = numbers(mismatch.actual[mismatch.at], mismatch.expected[mismatch.at])
        text += f":{entry_place(mismatch.at)} it is {expected} on one device, and {actual} when called there again"
    return "\n".join([f"{subject.name}: {text}", "", *describe_trial(subject, drawn)])


def has_not_ended(subject: FunctionUnderTest, drawn: UnplacedInputs, mesh: Mesh, seconds: float) -> str:
    """The message for a mesh on which the program takes too long."""
    lines = [
        f"{subject.name}: it did not finish on {name_of_mesh(mesh)} within {seconds:.0f} seconds",
        "",
        "    shards that wait for each other never stop, and later programs on these devices hang, too",
        "",
        *describe_trial(subject, drawn),
        "Hint: is there a collective in a branch or a loop that only some shards reach? Else timeout= waits longer",
    ]
    return "\n".join(lines)


def result_phrase(name: str) -> str:
    """The name of a result or a gradient in a message."""
    return "return value" if name == "return" else name


def numbers(a: Any, b: Any) -> tuple[str, str]:
    """Two numbers, with the fewest digits that show that they differ."""
    if not _jax.array.is_inexact(a.dtype):
        return str(a), str(b)
    # At least four digits, which are the same on every machine; the last digits depend on rounding.
    texts = ((f"{a.item():.{digits}g}", f"{b.item():.{digits}g}") for digits in (4, 6, 9, 17))
    return next((pair for pair in texts if pair[0] != pair[1]), (str(a), str(b)))


def entry_place(at: tuple[int, ...]) -> str:
    """The index of an entry, `` at [0,3]``; empty for a scalar."""
    return f" at [{','.join(map(str, at))}]" if at else ""


def list_meshes(meshes: Iterable[Mesh]) -> str:
    """``dp=4; dp=4, tp=2``"""
    return "; ".join(map(name_of_mesh, meshes))


def describe_omissions(left_out: Mapping[Mesh, str]) -> list[str]:
    """The lines that list the meshes that were not tried, by reason."""
    by_reason = {why: [mesh for mesh, reason in left_out.items() if reason == why] for why in left_out.values()}
    return [f"left out, since {why}: {list_meshes(meshes)}" for why, meshes in by_reason.items()]


def _responsible_axes(name: str, wrong: Sequence[MeshTrial]) -> str:
    """The mesh axes that make a result differ, in words: each alone, or only all together."""
    longer = [longer_axes(trial.mesh) for trial in wrong if any(result.name == name for result in trial.differences)]
    alone = dict.fromkeys(axes[0] for axes in longer if len(axes) == 1)
    if not alone:
        return f"only {' and '.join(map(repr, longer[0]))} together cause the difference"
    return f"{'each of ' if len(alone) > 1 else ''}{quoted_axes(alone)} alone causes the difference"


def _deviation(first: ValueMismatch, tolerance: Tolerance) -> str:
    entries = f"{int(first.wrong.sum())} of {first.wrong.size} entries differ" if first.wrong.size > 1 else "it differs"
    if first.allowed is None:
        return f"{entries}; {_jax.array.dtype_name(first.expected.dtype)} has to be equal"
    return f"{entries}, by up to {first.by:.3g}; {explained(tolerance, first.allowed, first.by)}"


def explained(tolerance: Tolerance, allowed: float, by: float) -> str:
    """The allowed difference, in words.

    It is partly measured, and another machine may add in another order. So the text gives a power of ten well above it,
    unless the difference itself is smaller.
    """
    if tolerance.is_given:
        return f"{allowed:.3g} is allowed"
    explains = f"rounding in {_jax.array.dtype_name(tolerance.dtype)} explains"
    bound = 10.0 ** ceil(log10(5 * allowed)) if allowed else by
    return f"{explains} {allowed:.3g}" if by <= bound else f"{explains} at most {bound:.0e}"


class Clue(NamedTuple):
    """A fact about a difference, a cure, which may be empty, and whether the numbers show the fact."""

    fact: str
    cure: str
    is_pattern: bool = False


def clues(mismatch: ValueMismatch, jaxprs: Sequence[Any], is_backward: bool, reference: str) -> Iterator[Clue]:
    """The clues to the cause of a difference, the surest first."""
    sizes = {name: size for name, size in mismatch.mesh.shape.items() if size > 1}
    equations = [eqn for jaxpr in jaxprs for eqn in _jax.jaxpr.all_equations(jaxpr)]
    is_random = any(primitive(eqn.primitive.name).is_draw for eqn in equations)
    pattern = next(_patterns(mismatch, sizes, is_backward, is_random, reference), None)
    if pattern is not None:
        yield pattern
    for axis in sizes if pattern is None else ():
        if (wrong := wrong_shards(mismatch, axis)) is not None:
            text = f"shard {wrong[0]}" if len(wrong) == 1 else f"shards {', '.join(map(str, wrong))}"
            yield Clue(f"along '{axis}' only {text} of {sizes[axis]} {'is' if len(wrong) == 1 else 'are'} wrong", "")
    if pattern is None and is_random:
        kept = f"exclude={mismatch.name!r} leaves this result out"
        cure = f"if random numbers may differ between shards, {kept}"
        if mismatch.name == "return":  # the only result
            drawn = "draw those of the whole array, and take each shard's part of them"
            cure = f"for the same numbers on every mesh {drawn}"
        yield Clue("the program draws random numbers", cure)
    collectives = [eqn for eqn in equations if _jax.jaxpr.collective_operation(eqn) is not None]
    idle = sizes.keys() - {axis for eqn in collectives for axis in _jax.jaxpr.named_axes(eqn)}
    if idle and any(eqn.primitive.name == "shard_map" for eqn in equations):
        over = " or ".join(repr(axis) for axis in sizes if axis in idle)
        yield Clue(f"nothing in the program communicates over {over}", "is a shard's own value used as the global one?")


def _patterns(
    mismatch: ValueMismatch, sizes: Mapping[str, int], is_backward: bool, is_random: bool, reference: str
) -> Iterator[Clue]:
    """The clues in the numbers."""
    groups = [axes for count in range(1, len(sizes) + 1) for axes in combinations(sizes, count)]
    counts = [(prod(sizes[axis] for axis in axes), quoted_axes(axes)) for axes in groups]
    if (factor := common_factor(mismatch)) is not None:
        for count, axes in counts:
            if isclose(factor, count, rel_tol=0.01):
                what = "is something divided by a shard's size, or does every shard count it?"
                cure = f"is a sum over {axes} taken twice, {what}"
                if is_backward:
                    psum = "psum, which transposes to psum under check_vma=False?"
                    cure = f"is the gradient summed twice over {axes}: by hand where JAX sums it already, or by {psum}"
                yield Clue(f"it is {count} times what {reference} gives, the size of {axes}", cure, True)
            if isclose(factor, 1 / count, rel_tol=0.01):
                cure = f"is a sum over {axes} missing, or is a mean used instead of a sum?"
                if is_backward:
                    cure = f"is the gradient not summed over {axes}, or of a cotangent that was divided by their size?"
                yield Clue(f"it is 1/{count} of what {reference} gives, by the size of {axes}", cure, True)
        if mismatch.actual.size > 1:
            text = f"{factor:.4g}" if abs(factor - 1) > 1e-3 else f"1{factor - 1:+.2g}"
            is_all = np.all((mismatch.actual != mismatch.expected) | (mismatch.expected == 0))
            every = "every entry" if is_all else "every entry that differs"
            yield Clue(f"{every} is {text} times what it is on {reference}", "")
    for count, axes in counts:
        if (dim := repeated_dim(mismatch, count)) is not None:
            folded = " (fold jax.lax.axis_index into the key, or draw the whole and take a part)"
            done = f"draw the same random numbers?{folded}" if is_random else "compute the same?"
            fact = f"its {count} parts along dim {dim} are equal, as many as {axes} has shards"
            yield Clue(fact, f"does every shard along {axes} {done}", True)
    for count in sorted({count for count, _ in counts}):
        if (parts := part_order(mismatch, count)) is not None:
            fact = f"its {count} parts along dim {parts[0]} stand in the order {', '.join(map(str, parts[1]))}"
            yield Clue(fact, "are mesh axes swapped in a dim, or shards moved the wrong way?", True)
    if is_shuffled(mismatch):
        yield Clue("it has the same entries in another order", "is a dim flattened or split in the wrong order?", True)


def common_factor(mismatch: ValueMismatch) -> float | None:
    """The factor by which entries differ, if it is the same for all differing entries, and these are not a minority.

    Identical entries do not count: a masked score, a learning rate beside the loss.
    """
    actual, expected = as_double(mismatch.actual), as_double(mismatch.expected)
    is_equal = (actual == expected) & (expected != 0) | np.isnan(actual) & np.isnan(expected)
    if 2 * np.count_nonzero(is_equal) <= is_equal.size:
        actual, expected = actual[~is_equal], expected[~is_equal]
    is_finite = np.isfinite(actual).all() and np.isfinite(expected).all()
    if mismatch.allowed is None or np.iscomplexobj(expected) or not is_finite:
        return None
    length = float(np.sum(expected * expected))
    factor = float(np.sum(actual * expected)) / length if length else 0.0
    if not factor or not np.all(np.abs(actual - factor * expected) <= mismatch.allowed * (1 + abs(factor))):
        return None
    return factor


def repeated_dim(mismatch: ValueMismatch, count: int) -> int | None:
    """The dim along which a number of parts are equal on the mesh, but not on one device."""

    def are_equal(values: HostArray, dim: int) -> bool:
        first, *rest = np.split(values, count, dim)
        return all(np.array_equal(first, part) for part in rest)

    for dim, size in enumerate(mismatch.actual.shape):
        if size % count == 0 and are_equal(mismatch.actual, dim) and not are_equal(mismatch.expected, dim):
            return dim
    return None


def part_order(mismatch: ValueMismatch, count: int) -> tuple[int, tuple[int, ...]] | None:
    """A dim whose parts on the mesh are those on one device in another order, and the order."""
    for dim, size in enumerate(mismatch.actual.shape):
        if size % count:
            continue
        expected, actual = np.split(mismatch.expected, count, dim), np.split(mismatch.actual, count, dim)
        order = [next((at for at, old in enumerate(expected) if _are_close(new, old, mismatch)), -1) for new in actual]
        if sorted(order) == list(range(count)):
            return dim, tuple(order)
    return None


def is_shuffled(mismatch: ValueMismatch) -> bool:
    """Whether the entries are the same in another order."""
    if mismatch.actual.size < 2 or np.iscomplexobj(mismatch.actual):
        return False
    return _are_close(np.sort(mismatch.actual, None), np.sort(mismatch.expected, None), mismatch)


def _are_close(a: HostArray, b: HostArray, mismatch: ValueMismatch) -> bool:
    return bool(are_close(a, b, mismatch.allowed).all())


def wrong_shards(mismatch: ValueMismatch, axis: str) -> tuple[int, ...] | None:
    """The wrong shards along a mesh axis; None if all are wrong, or if no dim is sharded over only this axis."""
    sizes: Mapping[str, int] = mismatch.mesh.shape
    for dim, axes in enumerate(mismatch.dim_axes):
        if [name for name in axes if sizes[name] > 1] == [axis]:
            shards = np.split(mismatch.wrong, sizes[axis], dim)
            wrong = tuple(at for at, shard in enumerate(shards) if shard.any())
            return wrong if len(wrong) < len(shards) else None
    return None


@contextmanager
def noting_sizes(name: str, function: Callable[..., Any], sizes: Mapping[str, int]) -> Generator[None]:
    """Add a note to an exception: the closed-over values that may be sizes of the function's own mesh.

    Args:
      name: the function's name.
      function: the function.
      sizes: the axes of the function's own mesh, with their sizes.
    """
    try:
        yield
    except TypedShmapError:  # its message is sufficient
        raise
    except Exception as error:
        for axis, words in closed_over_sizes(function, sizes).items():
            right = f"jax.lax.axis_size('{axis}') is right on every mesh"
            error.add_note(f"{name} closes over {words} (its own mesh is {mesh_text(sizes.items())}); {right}")
        if not isinstance(error, AssertionError) and any(_is_on_mesh(value) for _, value in closed_over(function)):
            error.add_note(
                f"{name} closes over arrays or shardings of its own mesh, which stay on it: pass arrays as arguments"
            )
        raise


def _is_on_mesh(value: Any) -> bool:
    sharding = getattr(value, "sharding", value)
    return isinstance(sharding, NamedSharding) and sharding.num_devices > 1
