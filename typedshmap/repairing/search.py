"""Try edits of a typed function: one holds if its types do, and if every mesh gives what one device gave before."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cached_property
from math import lcm
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from ..errors import SuspectWarning
from ..introspection import bound_self, require_decorated
from ..sampling.arguments import FlatCall, taken_names
from ..sampling.plan import UnplacedInputs, plan_inputs
from ..source.text import SourceText
from ..testing import assert_mesh_invariant
from ..testing.compare import Tolerance, differences, measure
from ..testing.invariance import is_excluded
from ..testing.meshes import axes_of, default_meshes, given_meshes
from ..testing.proving import read_proof
from ..testing.run import Outcome, classify_function, compile_call, needs_manual_axes
from .edits import Edit

_SECONDS_A_RUN = 20.0
_SEED = 0
_SIZES = (2, 3, 4)
# The third has large values, and a branch is rarely chosen alike by all of them.
_TRIALS = 4
# How long one is looked for whose gradients are right as well.
_MORE_SECONDS = 15.0


class Repair(NamedTuple):
    """An edit that holds.

    Attributes:
      edit: the edit.
      text: the module's text with it.
      tried: how many edits were tried.
      has_gradients: whether the gradients of its results are the same on every mesh as well, where it has some.
    """

    edit: Edit
    text: str
    tried: int
    has_gradients: bool


class RepairSearch:
    """A typed function that is wrong on a mesh, and how an edited one is tried.

    Args:
      function: the function as it stands.
      load: makes the function of an edited text.
      meshes: the meshes on which it is wrong, as `assert_mesh_invariant` takes them.
      given: sizes and arguments, as that takes them.
      grad: whether its gradients are what is wrong, or may be.
      exclude: results that may differ, as that takes them.
    """

    def __init__(
        self,
        function: Any,
        load: Callable[[str], Any],
        meshes: Sequence[Any],
        given: Mapping[str, Any],
        grad: bool = False,
        exclude: Any = (),
    ) -> None:
        self.load, self.given, self.grad, self.exclude = load, given, grad, exclude
        made_of = require_decorated(function, _VERB)
        axes = axes_of(made_of, made_of.signature.read(bound_self(function)), None)
        self.name = made_of.signature.read(bound_self(function)).name
        self.axes = tuple(axes.sizes)
        self.one, *others = default_meshes(axes, self.name)
        self.meshes = [*given_meshes(list(meshes), axes)[1:]] if meshes else others[-1:]
        # An index that one dim clamps, or a shift by more than one, may be right by chance with two shards.
        sizes = [{axis: size} for axis in self.axes for size in _SIZES if size <= len(axes.devices)]
        others = dict.fromkeys([*others, *map(axes.mesh, sizes)])
        self.others = [mesh for mesh in others if mesh not in self.meshes]
        self.function, self.tried = function, 0

    def find(
        self, source: SourceText, edits: Sequence[Edit], seconds: float, report: Callable[[str], None] = lambda _: None
    ) -> Repair | None:
        """The first edit that holds; one whose gradients are right as well, if it is found soon after.

        Args:
          source: the module's text.
          edits: the edits, the most likely first.
          seconds: how long they are tried.
          report: is told what is tried.
        """
        end, seen, second = time.monotonic() + seconds, {source.text}, None
        for edit in edits:
            if time.monotonic() > end:
                break
            text = source.changed(edit.changes)
            if text in seen or (not edit.is_identity and self._reference(self.grad) is None):
                continue
            seen.add(text)
            self.tried += 1
            report(f"edit {self.tried}, {edit.kind} at line {edit.line}")
            holds, has_gradients = self._try(text)
            if holds and has_gradients:
                return Repair(edit, text, self.tried, True)
            if holds and second is None:
                second = Repair(edit, text, self.tried, False)
                end = min(end, time.monotonic() + _MORE_SECONDS)
        return second

    def is_proved(self, found: Repair) -> bool:
        """Whether the edited function gives the same on all meshes, by what its traced programs say."""
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                return read_proof(self.load(found.text), self.grad, self.given).verdict == "proved"
            except (Exception, SystemExit):  # whatever the edited text raises
                return False

    def _try(self, text: str) -> tuple[bool, bool]:
        """Whether an edited function is right on every mesh, and its gradients too."""
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", SuspectWarning)
            try:
                function = self.load(text)
                if not self._agrees(function, self.grad, [*self.meshes[-1:], self.one, *self.meshes[:-1]]):
                    return False, False
                self._hold_everywhere(function, self.grad)
            except (Exception, SystemExit):  # whatever the edited text raises
                return False, False
            try:
                if not self.grad and self._outcome(function, self.one, True, self._sizes).gradients:
                    self._hold_everywhere(function, True)
            except (Exception, SystemExit):
                return True, False
        return True, True

    def _hold_everywhere(self, function: Any, grad: bool) -> None:
        """Require that it is the same on the meshes, and on those that are tried by default, as far as sizes fit."""
        options: Any = {"grad": grad, "exclude": self.exclude, "timeout": _SECONDS_A_RUN}
        assert_mesh_invariant(function, self.meshes, trials=_TRIALS, **options, **self.given)
        for mesh in self.others:
            given = self._given_for(function, mesh)
            if given is not None:
                assert_mesh_invariant(function, [mesh], trials=1, **options, **given)

    def _given_for(self, function: Any, mesh: Mesh) -> Mapping[str, Any] | None:
        """What is given, with multiples of the sizes where a mesh needs them; None where neither fits it."""
        multiples = {name: lcm(size, mesh.size) for name, size in self.given.items() if type(size) is int}
        for sizes in ({}, multiples):
            try:
                self._drawn(function, [self.one, mesh], sizes).structs(mesh)
                if sizes:
                    self._outcome(function, self.one, False, sizes)
            except Exception:  # whatever the user's code raises with sizes that were not given
                continue
            return {**self.given, **sizes}
        return None

    def _agrees(self, function: Any, grad: bool, meshes: Sequence[Mesh]) -> bool:
        """Whether it gives on some meshes what the function gave on one device before the edit.

        Where JAX's types refuse that even on one device, it is what the edited one gives there.
        """
        reference = self._reference(grad) or self._outcome(function, self.one, grad, self._sizes)
        tolerance = Tolerance(measure(reference, _SEED), None, None)
        for mesh in meshes:
            outcome = self._outcome(function, mesh, grad, self._sizes)
            found = differences(reference, outcome, tolerance.over(reference, [outcome]))
            if not all(is_excluded(each.name, self.exclude) for each in found):
                return False
        return True

    @cached_property
    def _sizes(self) -> dict[str, Any]:
        return dict(self._drawn(self.function, [self.one, *self.meshes], {}).sizes)

    def _reference(self, grad: bool) -> Outcome | None:
        """What the function gives on one device as it stands, which is what is meant; None where it is refused."""
        if grad not in self._references:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    self._references[grad] = self._outcome(self.function, self.one, grad, self._sizes)
                except (Exception, SystemExit):  # whatever the user's code raises
                    self._references[grad] = None
        return self._references[grad]

    @cached_property
    def _references(self) -> dict[bool, Outcome | None]:
        return {}

    def _drawn(self, function: Any, meshes: Sequence[Mesh], sizes: Mapping[str, Any]) -> UnplacedInputs:
        return plan_inputs(function, meshes, {**self.given, **sizes}, None, _VERB).draw(_SEED)

    def _outcome(self, function: Any, mesh: Mesh, grad: bool, sizes: Mapping[str, Any]) -> Outcome:
        made_of = require_decorated(function, _VERB)
        typed = made_of.signature.read(bound_self(function))
        subject = classify_function(function, made_of, typed, None)
        known = {name: size for name, size in sizes.items() if name in taken_names(typed)}
        drawn = self._drawn(function, [self.one, mesh], known)
        if subject.kind == "global" and needs_manual_axes(subject, drawn.on(self.one), self.one):
            subject = replace(subject, kind="mapped")
        used = subject.mesh_for(mesh)
        call = FlatCall(drawn.on(used), jax.Array)
        compiled = compile_call(subject, call, used, grad, lambda name: is_excluded(name, self.exclude))
        return compiled.run(subject, call.arrays, _SEED, _SECONDS_A_RUN)


_VERB = "fix"
