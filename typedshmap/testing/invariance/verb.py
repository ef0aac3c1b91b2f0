"""The verb: draw, run on every mesh, compare with one device, and tell the first failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from ... import _jax
from ...decorated import Decorated, decorated, owner_of
from ...errors import ShapeError, StructureError
from ...errors.phrases import shown
from ...hints.binding import Typed
from ..inputs import mesh_of
from ..written import refuse_no_answer
from .choice import axes_of, default_meshes, given_meshes
from .programs import subject_of
from .telling import listed, omissions
from .trials import UNCOMPILED, VERB, Asked, try_out


@dataclass(frozen=True)
class Verified:
    """What a function was found to be invariant over.

    Attributes:
      function: its name.
      meshes: the meshes, the first of them one device.
      left_out: meshes that were to be tried, too, each with the reason why it was not.
      seeds: the trials.
    """

    function: str
    meshes: tuple[Mesh, ...]
    left_out: Mapping[Mesh, str]
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        trials = f"{len(self.seeds)} trial{'s' if len(self.seeds) != 1 else ''}"
        told = "; ".join([trials, *omissions(self.left_out)])
        return f"{self.function}: the same on {listed(self.meshes)} ({told})"


def assert_mesh_invariant(
    f: Callable[..., Any],
    /,
    meshes: Sequence[Any] | None = None,
    *,
    grad: bool = False,
    exclude: str | Iterable[str] = (),
    seed: int | None = None,
    trials: int = 3,
    rtol: float | None = None,
    atol: float | None = None,
    manual: bool | None = None,
    arguments: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Verified:
    """Demand that a function gives the same global results on every mesh, and the same gradients.

    A right program does: the mesh says where things are computed, not what. One that takes a shard's mean for the
    global one, owes a sum twice, draws the same random numbers on every shard, or swaps the axes of a dim, does not.

    ```python
    assert_mesh_invariant(step, [{"dp": 4, "tp": 2}], grad=True, batch=32)
    ```

    Each trial draws sizes and arguments by the hints, as `inputs` does, and runs the function on one device and on
    every mesh. Numbers may differ by what another order of sums explains, ``2 g (u scale + moved)``: u is the unit
    roundoff of the coarsest dtype that the program computes in; ``scale`` the largest entry of the result on one
    device; ``moved`` the most that the result changes there when every inexact argument is off by one unit in the last
    place of that dtype; and ``g = sqrt(n) v / u + sqrt(p)``, for sums of n terms kept in a dtype of unit roundoff v
    (float32 or finer), on p devices. The square roots are those of N. J. Higham and T. Mary, "A new approach to
    probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019. Integers, bools and keys have to be
    equal, except where that change of the arguments changes them.

    Args:
      f: a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also under ``jax.jit``; or a method of
        an instance. Its own ``mesh=`` is replaced for the run.
      meshes: each a Mesh, a dict of sizes, or a text like ``"dp=4,tp=2"``; axes that are not named have size 1.
        By default every axis alone, all together, and their sizes permuted: the axes of the function's own mesh,
        of the ambient one, or of the hints, on the devices of this process. One device is always the first.
      grad: whether the vector-Jacobian products have to agree, too: of all results in all inexact arguments,
        with random cotangents. Their names are ``grad(x)``.
      exclude: results that rightly differ, by their paths: ``"return[0]"`` or ``"[0]"``, ``"return.noise"`` or
        ``".noise"``; all that is in them is left out. For randomness that is each shard's own.
      seed: what the first trial is drawn from, 0 by default; each further one from the next number.
      trials: how many times sizes and arguments are drawn.
      rtol: instead of what rounding explains, the share of a result's largest entry that is allowed.
      atol: the same as a number; both add up.
      manual: of a helper made by ``typed``: whether it is one of manual regions, and mapped over all axes of the
        mesh, or is called under ``jax.jit`` on global arrays. By default it is mapped if its hints bear marks
        (``+axis``) or it communicates over mesh axes. A result marked ``+axis`` is summed.
      arguments: arguments by name or by path, as for `inputs`.
      **sizes: sizes by the names of dims, and arguments by theirs, as for `inputs`; they are the same in all trials.

    Returns:
      What was tried.

    Raises:
      AssertionError: for a result that depends on the mesh, with the axis that makes it and the seed.
      MeshAxisError: where no mesh is known, or one has too few devices.
      StructureError: for arguments that no hint can make, and for an unknown name in ``exclude``.
      TypedShmapError: what is wrong with the function on some mesh; a note says on which.
    """
    made_of = decorated(f, VERB)
    typed = made_of.hinted.read(owner_of(f))
    own = mesh_of(f, None, VERB)
    refuse_no_answer(VERB, "grad", grad)
    subject = subject_of(f, made_of, typed, manual)
    asked = Asked(grad, _names(exclude), _share("rtol", rtol), _share("atol", atol), arguments, sizes)
    first = _whole_number("seed", 0 if seed is None else seed, 0)
    chosen, left_out = _meshes(f, meshes, own, made_of, typed, asked)
    seeds = tuple(range(first, first + _whole_number("trials", trials, 1)))
    for each in seeds:
        subject, failed = try_out(subject, chosen, left_out, each, asked, manual, may_fail=meshes is None)
        left_out.update(dict.fromkeys(failed, UNCOMPILED))
        chosen = [mesh for mesh in chosen if mesh not in failed]
    return Verified(typed.name, tuple(chosen), left_out, seeds)


_UNFIT = "the sizes do not fit"


def _whole_number(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise StructureError(f"{VERB}: {name}={shown(value)} is no whole number from {least} on")
    return value


def _share(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise StructureError(f"{VERB}: {name}={shown(value)} is no number from 0 on")
    return float(value)


def _names(exclude: Any) -> tuple[str, ...]:
    names = (exclude,) if isinstance(exclude, str) else tuple(exclude) if isinstance(exclude, Iterable) else (exclude,)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise StructureError(f'{VERB}: exclude= holds {shown(wrong[0])}; it takes names of results, as "return[0]"')
    return tuple(name if name.startswith(("return", "grad(")) else f"return{name}" for name in names)


def _meshes(
    f: Callable[..., Any],
    meshes: Sequence[Any] | None,
    own: _jax.AnyMesh | None,
    made_of: Decorated,
    typed: Typed,
    asked: Asked,
) -> tuple[list[Mesh], dict[Mesh, str]]:
    """The meshes to try, one device first; and those of the default ones that are not, with the reason."""
    axes = axes_of(made_of, typed, own)
    if meshes is not None:
        return given_meshes(meshes, axes), {}
    one, *others = default_meshes(axes, typed.name)
    reasons = {mesh: _misfit(f, one, mesh, asked) for mesh in others}
    fitting = [mesh for mesh, reason in reasons.items() if reason is None]
    unfit = [reason for reason in reasons.values() if reason is not None]
    if not fitting:
        raise unfit[0]
    return [one, *fitting], dict.fromkeys((mesh for mesh in others if mesh not in fitting), _UNFIT)


def _misfit(f: Callable[..., Any], one: Mesh, mesh: Mesh, asked: Asked) -> ShapeError | None:
    """Why sizes, given or in the hints, do not fit a mesh, if they do not."""
    asked.draw(f, [one], 0)  # what is wrong with one device is wrong
    try:
        asked.draw(f, [one, mesh], 0).structs(mesh)
    except ShapeError as error:
        return error
    return None
