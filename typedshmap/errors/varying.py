"""The faults of values that vary over mesh axes, and of partial sums."""

from __future__ import annotations

from typing import Literal

from .causes import Cause
from .failures import Fault, Sentence, Terms
from .phrases import quoted_axes


class UnmentionedVarying(Fault):
    """A value that varies over mesh axes its hint does not mention.

    Attributes:
      axes: the mesh axes.
      leaves_region: whether it leaves the region, so that ``~`` is not allowed.
      may_be_unreduced: whether ``+`` is allowed; over an Auto axis a partial sum cannot leave.
      may_agree: whether its shards may be equal, though JAX types it as varying, so that a sum would count it several
        times; this is not known while the body is traced.
      cause: the operation from which on it varies, if that is known.
    """

    axes: tuple[str, ...]
    leaves_region: bool
    may_be_unreduced: bool = True
    may_agree: bool = False
    cause: Cause | None = None

    def words(self, terms: Terms) -> Sentence:
        varies = "is typed as varying" if terms.subject.is_pattern and self.may_agree else "varies"
        problem = f"{varies} over {quoted_axes(self.axes)}, which {terms.hint} does not mention"
        if self.cause is not None:
            may_vary = not self.leaves_region and not self.may_agree
            return Sentence(problem, cure=self.cause.words(terms, self.may_be_unreduced, may_vary))
        if not terms.subject.is_pattern or self.may_agree:
            return Sentence(problem)
        bracketed, unreduced = (terms.marks(sign, self.axes[:1]) for sign in "/+")
        cure = f"write [dim{bracketed}] for a dim that is sharded, or '{unreduced}' if a sum is due"
        return Sentence(problem, cure=cure)


class UnmarkedUnreduced(Fault):
    """A value that is unreduced over mesh axes its hint does not mark with ``+``."""

    axes: tuple[str, ...]
    cause: Cause | None = None

    def words(self, terms: Terms) -> Sentence:
        axes, mark = quoted_axes(self.axes), terms.written("+", self.axes)
        cure = f"take the sum (psum over {axes}), or write {mark}"
        if self.cause is not None and self.cause.kind != "opaque":  # for the result of a kernel, assume has stated it
            cure = self.cause.words(terms, True, False)
        return Sentence(f"is unreduced over {axes}, which {terms.hint} does not mention", cure=cure)


class LostMark(Fault):
    """A global array, unreduced or reduced in its type, that is placed by a hint without the mark.

    JAX would sum an unreduced array there, and the gradient of a reduced array.
    """

    mark: Literal["+", "-"]
    axes: tuple[str, ...]

    def words(self, terms: Terms) -> Sentence:
        is_sum, pattern = self.mark == "+", f'"... {self.mark}{self.axes[0]} -> ..."'
        state, loss = ("unreduced", "its sum is due") if is_sum else ("reduced", "its gradient would be summed here")
        cure = f"write {terms.written(self.mark, self.axes)} to keep it {state}"
        cure += f"; reshard(x, {pattern}) {'takes the sum' if is_sum else 'drops the mark'}"
        problem = f"is {state} over {quoted_axes(self.axes)}, which {terms.hint} does not mention: {loss}"
        return Sentence(problem, cure=cure)


class AddedMark(Fault):
    """An unreduced value that is placed as unreduced over more axes, where XLA may crash."""

    before: tuple[str, ...]
    added: tuple[str, ...]

    def words(self, terms: Terms) -> Sentence:
        problem = f"is unreduced over {quoted_axes(self.before)}: on jax 0.9 XLA may crash"
        problem += f" where it becomes unreduced over {quoted_axes(self.added)}, too"
        return Sentence(
            problem, cure=f"write {terms.written('+', self.before + self.added)} where it becomes unreduced"
        )


class UnmarkedReduced(Fault):
    """A result that JAX types as reduced over mesh axes its hint does not mark with ``-``."""

    axes: tuple[str, ...]

    def words(self, terms: Terms) -> Sentence:
        mark = terms.written("-", self.axes)
        cure = f"write {mark} on an Explicit mesh, or gather it by all_gather(..., to='invarying')"
        problem = f"is reduced over {quoted_axes(self.axes)} in JAX's type, which {terms.hint} does not mention"
        return Sentence(problem, cure=cure)


class NotUnreduced(Fault):
    """A ``+axis`` on a value that is the same on every shard: its sum would count it several times."""

    axis: str
    shards: int

    def words(self, terms: Terms) -> Sentence:
        mark = terms.written("+", (self.axis,))
        reason = f"the sum was taken already, and another would count it {self.shards} times"
        problem = f"is the same on every shard of '{self.axis}', but {terms.hint} says {mark}"
        return Sentence(problem, cure=f"drop {mark}, and a psum over it: {reason}")


class RedundantPsum(Fault):
    """A value that is the same on every shard of an axis over which it is to be summed.

    Attributes:
      verb: the collective.
      is_sum: whether the collective adds up the values of the shards.
      place: where it became so, if JAX's type does not say.
      is_among_others: whether it is also to be summed over other axes.
    """

    axis: str
    shards: int
    verb: str
    is_sum: bool
    place: str | None = None
    is_among_others: bool = False

    def words(self, terms: Terms) -> Sentence:
        wrong = f"would count it {self.shards} times" if self.is_sum else "changes nothing"
        by = f" by {self.place}" if self.place else ""
        problem = f"is the same on every shard of '{self.axis}'{by}, so a {self.verb} over it {wrong}"
        reason = "jax.grad sums the gradient of a value that is the same on every shard by itself"
        dropped = f"leave out '{self.axis}'" if self.is_among_others else f"drop the {self.verb}"
        if self.verb == "pmean":
            reason = f"{reason}; for its mean, take the pmean of the loss inside the differentiated function"
        return Sentence(problem, cure=f"{dropped}: {reason}")


class DifferingReplicas(Fault):
    """A replicated value that differs between shards on the devices.

    Attributes:
      axes: the mesh axes over which its shards differ.
      shards: the shards that differ from most, as ``dp=2, tp=1 (device 5)``; all shards if most do not agree.
      number: the number of shards that must agree.
      has_majority: whether most shards agree.
    """

    axes: tuple[str, ...]
    shards: tuple[str, ...]
    number: int
    has_majority: bool

    def words(self, terms: Terms) -> Sentence:
        shown = "; ".join(self.shards[:_MOST_SHARDS])
        shown += f"; and {len(self.shards) - _MOST_SHARDS} more" if len(self.shards) > _MOST_SHARDS else ""
        if not self.has_majority:
            what = f"{shown} differ bitwise, and no value is shared by most shards"
        elif len(self.shards) == 1:
            what = f"{shown} differs bitwise from the other {self.number - 1}"
        else:
            what = f"{shown} differ bitwise from most shards"
        problem = f"differs over {quoted_axes(self.axes)}, where {terms.hint} says that it is the same: {what}"
        causes = "an update or a placement that is not the same on all shards, a nondeterministic kernel"
        return Sentence(problem, cure=f"the cause may be {causes}, or a faulty device")


_MOST_SHARDS = 4


class DivergentCollective(Fault):
    """A collective in a branch or loop that not all shards of its axes reach.

    Attributes:
      collective: its name.
      axes: its mesh axes.
      diverging: those of its axes over which the predicate varies.
      control: ``"cond"``, ``"switch"`` or ``"loop"``.
      is_gradient: whether differentiation made it.
      cause: the operation from which on the predicate varies, if that is known.
    """

    collective: str
    axes: tuple[str, ...]
    diverging: tuple[str, ...]
    control: str
    is_gradient: bool = False
    cause: Cause | None = None

    def words(self, terms: Terms) -> Sentence:
        what, over, is_loop = self.collective, quoted_axes(self.diverging), self.control == "loop"
        decides = "condition" if is_loop else "predicate"
        predicate = f"the {decides} of the {self.control} around it varies over {over}"
        since = self.cause.place.partition(" ")[0] if self.cause is not None else ""
        problem = f"{what} over {quoted_axes(self.axes)} would deadlock: {predicate}{since and f' since {since}'}"
        move = f"move the {what} out of the {'loop' if is_loop else 'branch'}"
        if self.is_gradient:
            cast = f"{_pcast(self.diverging)} before the {self.control}"
            return Sentence(problem, cure=f"it is the gradient of an invarying value x: {cast}")
        if self.cause is not None and self.cause.kind == "index":
            goes = "when a shard leaves it" if is_loop else "which one a shard takes"
            return Sentence(problem, cure=f"{move}: {goes} depends on its own index")
        agree = f"make the {decides} the same on all shards: take the psum or pmax of the compared value over {over}"
        return Sentence(problem, cure=f"{agree}; or, if each shard should decide for itself, {move}")


class UntypedVarying(Fault):
    """A result that JAX types as invarying though it varies, so that gradients through it are wrong.

    Attributes:
      operation: the operation that computes it.
      axes: the mesh axes over which it varies.
      is_control: whether the operation is a branch or a loop whose predicate varies.
    """

    operation: str
    axes: tuple[str, ...]
    is_control: bool

    def words(self, terms: Terms) -> Sentence:
        over, cast = quoted_axes(self.axes), _pcast(self.axes)
        reason = "as its predicate does" if self.is_control else "as its operands may"
        problem = f"a result of {self.operation} varies over {over}, {reason}, but JAX types it as invarying"
        if self.is_control:
            cure = f"cast its operands first: {cast}; or make the predicate the same on all shards"
        else:
            cure = f"cast it: {cast}" + ("" if terms.is_spec else "; or state that its shards agree: assume(x, hint)")
        return Sentence(f"{problem}: gradients are wrong", cure=cure)


def _pcast(axes: tuple[str, ...]) -> str:
    return f"jax.lax.pcast(x, {(axes[0] if len(axes) == 1 else axes)!r}, to='varying')"
