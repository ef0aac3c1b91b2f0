"""The data of messages about shards that differ: why a value varies, what is suspected, and the cures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, Literal, NamedTuple

from ..records import Record
from .failures import Fault, Sentence, Terms
from .phrases import quoted_axes

SuspectKind = Literal["double-sum", "summed-gradient", "lost-sum", "own-part", "copies", "same-draw"]


class Cause(NamedTuple):
    """The operation from which on a value varies, in the traced body.

    Attributes:
      kind: what each shard holds:

        - ``sum``, ``mean`` or ``extreme``: that of its rows
        - ``part``: its part of an array; ``item``: a row of the part, in a loop; ``mapped``: a row under ``jax.vmap``
        - ``derived``: the result of an operation on its part that needs the whole dim
        - ``ring``: a result computed from values that other shards sent
        - ``index``: a value that depends on its index
        - ``opaque``: the result of a kernel or a callback
        - ``choice``: the result of a branch or a loop whose predicate varies
        - ``agreement``: the same as the other shards, though JAX types it as varying; ``alone``: the same, since there
          is one shard
        - ``other``: none of these
      axes: the mesh axes over which the value varies from there on.
      what: the operation.
      place: its line.
      dims: the names of the sharded dims, each with its axes.
      subject: the argument that has the first of these dims.
      mark: the mark with which a hint is true and the program right, since the sum is taken later; empty if unknown.
      is_waiting: whether the value is a partial sum that may as well be summed later.
      cure: the edit that was tried and is right; empty if none is known.
      lost: what an operation does with the partial sum, if there is no cure.
      may_gather: whether the program is right if the sharded dim is gathered first.
    """

    kind: str
    axes: tuple[str, ...]
    what: str = ""
    place: str = ""
    dims: tuple[tuple[str, tuple[str, ...]], ...] = ()
    subject: str = ""
    mark: str = ""
    is_waiting: bool = False
    cure: str = ""
    lost: str = ""
    may_gather: bool = False

    @property
    def origin(self) -> str:
        """``the contraction over heads (sharded over 'tp') at model.py:40``"""
        is_over_dim = self.kind in ("sum", "mean", "extreme") and self.what not in ("gradient", "hint", "pattern")
        over = f" over {self.sharded_dims}" if is_over_dim and self.dims else ""
        return f"the {self.what}{over}{f' at {self.line}' if self.line else ''}"

    @property
    def line(self) -> str:
        """``model.py:40``"""
        return self.place.partition(" ")[0]

    @property
    def sharded_dims(self) -> str:
        """``heads (sharded over 'tp')``"""
        dims = [(dim, f"sharded over {quoted_axes(axes)}") for dim, axes in self.dims or (("", self.axes),)]
        return " and ".join(f"{dim} ({sharded})" if dim else f"a dim {sharded}" for dim, sharded in dims)

    @property
    def may_agree(self) -> bool:
        """Whether the shards may agree: nothing is known of the results of a kernel or a ring."""
        return self.kind in ("opaque", "ring")

    def words(self, terms: Terms, may_be_unreduced: bool, may_vary: bool) -> str:
        """The operation, and the cure."""
        over, origin = quoted_axes(self.axes), self.origin
        if self.what == "hint" and not self.place:
            origin = terms.hint.replace("its", "the", 1) + (f" of {self.subject}" if self.subject else "")
        mark = [f"write '{terms.marks('~', self.axes)}'"] if may_vary else []
        gather = ["gather it first"] if self.may_gather else []
        match self.kind:
            case "sum" | "mean" | "extreme":
                leaves = "leaves partial sums" if self.kind == "sum" else "covers only each shard's part"
                return f"{origin} {leaves}{self._cures(terms, may_be_unreduced, may_vary)}"
            case "part":
                (dim, _), *_ = self.dims or (("", ()),)
                of = f" of {self.subject}" if self.subject else ""
                named = f"write [{dim or 'dim'}{terms.marks('/', self.axes).split()[0]}]"
                if terms.is_spec:
                    named = f"name {over} in out_specs"
                cures = [named, "gather it (all_gather)"] if self.may_gather else []
                return f"{dim or 'a dim'}{of} is still sharded over {over}{_either(cures)}"
            case "item" | "mapped":
                what = "jax.vmap maps over" if self.kind == "mapped" else "a loop runs over"
                return f"{what} {self.sharded_dims}{_either(mark + gather)}"
            case "derived":
                return f"{origin} covers only each shard's part of {self.sharded_dims}{_either(gather)}"
            case "agreement":
                gathered = "gather it by all_gather without '~', or lax.all_gather(..., to='invarying')"
                cure = gathered if "gather" in self.what else "take the mean (pmean)"
                return f"its shards agree since {origin}, and JAX types them as varying: {cure}"
            case "alone":
                no_difference = f"the mesh has only one shard over {over}, so no values differ"
                return f"{no_difference}: with more shards, the error names the cause"
            case "opaque":
                added = f"and add {terms.written('+', self.axes)} if the shards are partial sums"
                return f"the result of {origin} is unknown: state its sharding with assume(x, hint), {added}"
            case "ring":
                sent = f"sends parts of {self.sharded_dims} to other shards"
                if "permute" not in self.what:
                    sent = f"computes with values sent between shards, which are parts of {self.sharded_dims}"
                stated = "if every shard has received all parts, state this with assume(x, hint)"
                return f"{origin} {sent}: reduce it over {over} (psum, pmax); {stated}"
            case "index":
                return f"{origin} is each shard's own{_either([f'{cure} if the shards may differ' for cure in mark])}"
            case "choice":
                return f"the predicate of {origin} varies"
            case _:
                return f"the shards differ since {origin}"

    def _cures(self, terms: Terms, may_be_unreduced: bool, may_vary: bool) -> str:
        """The cure that was tried, or the mark if that is right as well."""
        if self.mark and (may_be_unreduced if self.mark == "+" else may_vary):
            later = "whose sum is taken later" if self.mark == "+" else "which is reduced later"
            return f", {later}: write {terms.written(self.mark, self.axes)}"
        if not self.cure:
            return f", and {self.lost}" if self.lost else ""
        waits = [f"write {terms.written('+', self.axes)} if its sum is taken later"]
        return _either([self.cure, *(waits if self.is_waiting and may_be_unreduced else [])])


def _either(cures: Sequence[str]) -> str:
    return f": {', or '.join(cures)}" if cures else ""


class EditedEquation(NamedTuple):
    """One equation that a cure edits.

    Attributes:
      eqn: the equation.
      operation: the collective that is added, or ``divide``; empty for none.
      replaces: the collective that it replaces; empty if it is put after the equation.
      is_of_parts: whether only the results that are parts are edited.
      is_stopped: whether a ``stop_gradient`` is put around the operand, as for a ``pmax``, which has no gradient.
    """

    eqn: Any
    operation: str
    replaces: str = ""
    is_of_parts: bool = False
    is_stopped: bool = False


class Cure(Record):
    """An edit with which a region reads as right.

    Attributes:
      text: the edit, in words.
      other: another cure that is as simple.
      line: the line that it changes; empty for a result.
      operation: the collective that it adds; empty if it removes one.
      weight: its complexity: 2 for one changed operation, more for a result, a division, or two edits.
      changes: the edited equations.
      results: the indices of the results that it changes.
    """

    text: str
    other: str = ""
    line: str = ""
    operation: str = ""
    weight: int = 2
    changes: tuple[EditedEquation, ...] = field(default=(), compare=False)
    results: tuple[int, ...] = ()

    @property
    def eqn(self) -> Any:
        """The equation that it changes first."""
        return self.changes[0].eqn if self.changes else None

    def __str__(self) -> str:
        return f"{self.text}, or {self.other}" if self.other else self.text

    def over(self, before: tuple[str, ...], axes: tuple[str, ...]) -> Cure:
        """The same over more axes."""
        names = quoted_axes(before), quoted_axes(axes)
        return replace(self, text=self.text.replace(*names), other=self.other.replace(*names))


class Suspect(Fault):
    """Code that is probably a mistake, but may be intended."""


class Suspected(Suspect):
    """Code in a body that is probably a mistake.

    Attributes:
      kind: its kind in an audit.
      axes: the mesh axes.
      problem: the problem, in words.
      since: the line of the partial sum, if one is lost.
      is_marked: whether a hint marks the partial sum.
      cure: the cure; None if none is known.
    """

    kind: SuspectKind
    axes: tuple[str, ...]
    problem: str
    since: str = ""
    is_marked: bool = False
    cure: Cure | None = None

    def over(self, axes: tuple[str, ...]) -> Suspected:
        """The same over more axes."""
        problem = self.problem.replace(quoted_axes(self.axes), quoted_axes(axes))
        cure = None if self.cure is None else self.cure.over(self.axes, axes)
        return replace(self, axes=axes, problem=problem, cure=cure)

    def words(self, terms: Terms) -> Sentence:
        cure = None if self.cure is None else str(self.cure)
        if not self.is_marked:
            silenced = f"if this is intended, add the comment # typedshmap: ignore[{self.kind}]"
            cure = f"{'no cure is known' if cure is None else cure}; {silenced}"
        return Sentence(self.problem, cure=cure)
