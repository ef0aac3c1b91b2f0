"""One region's reading: which claims wait for it, and the error for what it finds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax

from .. import _jax
from ..errors import TypedShmapError, error_of
from ..errors.failures import AtOdds, Failure, Varies
from ..hints.memory import recall
from ..hints.scope import Lying, Region, Stated, current_reading
from ..notation.sizes import NO_SIZES, Subject
from .ahead import follows, refuted
from .claims import Claim, Noted, Origin, claim_of, made_anew, noted, state
from .facts import NONE, Fact, Names
from .reader import CLAIM, Reader, Rule
from .rules import RULES
from .rules.calls import entering
from .rules.odds import Odds
from .verdicts import Judged, contradiction, judged

_ALL = Subject("whole", "body")


class Reading:
    """What a region's body states, until the body is read.

    A body that is traced a second time, under differentiation for instance, states nothing any more:
    what JAX's types do not confirm must be among what was proven in the first.
    """

    def __init__(self, axes: Names) -> None:
        self.axes = axes
        self.stated: list[Claim] = []
        self.waiting: list[Claim] = []
        self.proven: set[tuple[Any, ...]] = set()
        self.is_done = False
        self.traces: frozenset[int] = frozenset()
        self.noted: dict[Any, list[Noted]] = {}
        self.doubted: _Doubted | None = None
        self.within: list[Reading] = []

    def begin(self, function: str, region: Region) -> None:
        """Note the body, and its traces, in which all that is stated stays; the region around notes what is within.

        A body that is differentiated as it is traced has several: one differentiates what it hands on to the next.
        """
        self.traces = frozenset(_jax.running_traces())
        if self.is_done:
            return
        self.stated, self.waiting, self.within = [], [], []
        self.noted, self.doubted = {}, None
        self.origin = Origin(function, region)
        self.ahead = Reader(self.sizes, region.typed, {**RULES, CLAIM: _rule(self)})
        around = current_reading()
        self.is_within = isinstance(around, Reading)
        if isinstance(around, Reading):
            around.within.append(self)

    def state(self, value: Any, stated: Stated) -> Any:
        """The value, of which that is stated now, unless it is known already."""
        if not _jax.is_tracer(value):
            return value
        lying = stated.region.lying(stated.hint, len(_jax.facts(value).shape))
        if lying is None:
            return value
        if self.is_done:
            self._require_proven(Claim(lying, stated, self.origin))
            return value
        is_told = stated.subject.kind == "checked" and _is_all_stated()
        is_known = _is_known(value, stated, lying)
        if is_known and not is_told:
            return value
        made = Claim(lying, stated._replace(alike=NONE) if is_known else stated, self.origin)
        var = _jax.variable_of(value, self.traces)
        # A tool wants to be told of each check.
        if var is None and not is_told and follows(value, made, self.ahead):
            return value
        self.stated.append(made)
        if made.alike:
            self.waiting.append(made)
            if var is None:
                self._doubt(value, made)
        # Tools read the program; and one that was traced before is read without what was noted beside it.
        if var is None or self.is_within or _is_all_stated():
            return state(value, made, _jax.running_traces()[0] in self.traces)
        self.noted.setdefault(var, []).append(noted(var, made))
        return value

    @property
    def unproven(self) -> list[str]:
        """What waits to be found out, in words."""
        axes = [", ".join(f"'{axis}'" for axis in made.region.sizes if axis in made.alike) for made in self.waiting]
        return [
            f"{made.subject.phrase} of {made.function} is equal over {over}, as {made.text} says"
            for made, over in zip(self.waiting, axes, strict=True)
        ]

    def _doubt(self, value: Any, made: Claim) -> None:
        """Note a claim of equality in a loop or a call that what is known by now speaks against."""
        found = refuted(value, made, self.ahead)
        if found is not None:
            self.doubted = _Doubted(made, *found, _jax.facts(value), _jax.equation_of(value))

    def behind(self, error: Exception) -> TypedShmapError | None:
        """The error that is behind JAX's: a loop's carry whose type is another after a turn, since a sum was forgotten.

        JAX finds that before the body is read; what it advises makes the carry vary and hides the cause.
        """
        doubted = self.doubted
        if doubted is None or not isinstance(error, TypeError):
            return None
        if not all(re.search(rf"\b{re.escape(axis)}\b", str(error)) for axis in doubted.what.axes):
            return None
        return _error(doubted.claim, doubted.what, doubted.fact, doubted.aval, doubted.eqn, self.ahead)

    @property
    def sizes(self) -> dict[str, int]:
        """The mesh axes over which the body is read, with their sizes."""
        region = self.origin.region
        return {axis: size for axis, size in region.held if axis in region.watched}

    @property
    def origins(self) -> set[Origin]:
        """The bodies of this region and of those within it, as they are traced now."""
        return {self.origin}.union(*(reading.origins for reading in self.within))

    def _require_proven(self, made: Claim) -> None:
        if made.alike and made.key not in self.proven:
            raise _unproven(made)


class _Doubted(NamedTuple):
    """A claim of equality of a value that is known to be computed of what varies, the type and equation of that."""

    claim: Claim
    what: Varies
    fact: Fact
    aval: Any
    eqn: Any


# Among JAX's own contexts, so that what was traced with all claims is never used where they add to a program.
_all_stated = jax.make_user_context(default_value=False)


def stating_all_checks() -> AbstractContextManager[None]:
    """Let each ``check`` leave a claim, also of what is known already: for tools that tell what a body checks."""
    return _all_stated(True)


def _is_all_stated() -> bool:
    found: bool = _all_stated.value
    return found


def _is_known(value: Any, stated: Stated, lying: Lying) -> bool:
    """Whether the same was stated of a value before, or an operation made it so."""
    known = recall(value)
    if known is None or stated.is_assumed or not stated.alike <= known.equal or not lying.spoken <= known.spoken:
        return False
    if (known.parts, known.unreduced) != (lying.parts, lying.unreduced):
        return False
    return known.varying - known.equal == lying.varying - known.equal


def _unproven(made: Claim, place: str = "") -> TypedShmapError:
    axes = tuple(axis for axis in made.region.sizes if axis in made.alike)
    failure = Failure(Varies(axes, False), made.subject, made.text)
    return _placed(made.region, made.function, failure, made.sizes, place)


def read(reading: Reading, traced: _jax.TracedRegion | None, results: Sequence[Stated | None]) -> bool:
    """Read a traced region, and raise the first thing that is wrong with it.

    Args:
      reading: what waits for it.
      traced: the region; None for one that is not in the program, since nothing comes of it.
      results: what is claimed of its results.

    Returns:
      Whether all that the body states stands in the region: not if it was differentiated as it was traced, and
      something stated in a loop of a value that nothing uses; then the body by itself is to be read.

    Raises:
      VaryingError, ShardingError: for a claim that contradicts what is known, with its place.
    """
    if traced is None:
        return True
    params, axes = traced.eqn.params, reading.sizes
    reader = Reader(axes, bool(params["check_vma"]), {**RULES, CLAIM: _rule(reading)}, reading.noted)
    body, names = params["jaxpr"], frozenset(axes)
    pairs = zip(params["in_specs"], body.invars, strict=True)
    out = reader.read(body, [entering(spec, len(var.aval.shape), names) for spec, var in pairs])
    if traced.is_differentiated and not _is_all_read(reading, reader):
        return False
    _raise_first(reader.findings, reader, reading.origin)
    _refuse_unproven(reading, reader, body)
    for stated, at in zip(results, traced.results, strict=True):
        var, fact = body.outvars[at], out[at]
        made = claim_of(stated, len(var.aval.shape), reading.origin) if stated is not None else None
        if made is not None:
            _judge_result(made, var, fact, body, reader)
    reading.is_done = True
    return True


def _is_all_read(reading: Reading, reader: Reader) -> bool:
    read_ones = {id(found.claim) for found in reader.findings if isinstance(found, Judged)}
    return all(id(stated) in read_ones for stated in reading.stated)


def _rule(reading: Reading) -> Rule:
    """The rule of claims, of which those that stand in a program from before are made anew."""
    origins = reading.origins

    def rule(reader: Reader, eqn: Any, facts: list[Fact]) -> Sequence[Fact]:
        stated: Claim = eqn.params["claim"]
        if stated.origin in origins:
            return judged(reader, eqn, stated, facts)
        anew = made_anew(stated, reading.origin)
        return facts if anew is None else judged(reader, eqn, anew, facts)

    return rule


def _raise_first(findings: Iterable[Any], reader: Reader, origin: Origin) -> None:
    for found in findings:
        if isinstance(found, Odds):
            what = AtOdds(found.eqn.primitive.name, found.where, found.first, found.second)
            failure = Failure(what, _ALL)
            raise _placed(origin.region, origin.function, failure, NO_SIZES, _jax.place_of_equation(found.eqn))
        if found.what is not None:
            raise _error(found.claim, found.what, found.fact, found.eqn.invars[0].aval, found.eqn, reader)


def _refuse_unproven(reading: Reading, reader: Reader, program: Any) -> None:
    """Refuse what stands where the reading did not come, and note what it has proven.

    What is no longer in the program, since nothing used it in a loop that is differentiated, is nothing any more.
    """
    judged_ones = [found for found in reader.findings if isinstance(found, Judged)]
    seen = {id(found.eqn.params["claim"]) for found in judged_ones}
    if any(id(stated) not in seen for stated in reading.waiting):
        stands = {id(eqn.params["claim"]) for eqn in _jax.all_equations(program) if eqn.primitive.name == CLAIM}
        for stated in reading.waiting:
            if id(stated) in stands - seen:
                raise _unproven(stated)
    reading.proven.update(stated.key for stated in reading.waiting)
    reading.proven.update(found.claim.key for found in judged_ones if found.claim.alike)


def _judge_result(stated: Claim, var: Any, fact: Fact, body: Any, reader: Reader) -> None:
    what = contradiction(stated, fact, var.aval.shape, reader)
    if what is not None:
        made = next((eqn for eqn in reversed(body.eqns) if any(out is var for out in eqn.outvars)), None)
        raise _error(stated, what, fact, var.aval, made, reader)


def _error(stated: Claim, what: object, fact: Fact, aval: Any, eqn: Any, reader: Reader) -> TypedShmapError:
    failure = Failure(what, stated.subject, stated.text, _type_text(aval, fact, reader))
    place = _jax.place_of_equation(eqn) if eqn is not None else ""
    return _placed(stated.region, stated.function, failure, stated.sizes, place)


def _placed(region: Region, function: str, failure: Failure, sizes: Any, place: str) -> TypedShmapError:
    return error_of(region.report(function, (failure,), sizes, place))


def _type_text(aval: Any, fact: Fact, reader: Reader) -> str:
    """A value's type in JAX's notation; under ``check_vma=False`` with what was inferred."""
    text = _jax.aval_text(aval)
    if reader.is_typed:
        return text
    marks = [
        f"{letter}:{axes[0] if len(axes) == 1 else '(' + ','.join(axes) + ')'}"
        for letter, names in (("V", fact.varying), ("U", fact.owed))
        if (axes := [axis for axis in reader.sizes if axis in names])
    ]
    return f"{text}{{{', '.join(marks)}}}" if marks else text
