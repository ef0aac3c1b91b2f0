"""What can be wrong with how a value varies and with partial sums, and since when it varies: the cause of a failure."""

from __future__ import annotations

from typing import NamedTuple

from .failures import Fault, Sentence, Terms
from .phrases import quoted_axes


class Cause(NamedTuple):
    """Since when a value varies, as the traced body shows.

    Attributes:
      kind: how it varies; see `typedshmap.inference.provenance.Provenance`, and ``agreement``: it is the same on every
        shard, and JAX types it as varying; ``alone``: the same, as there is only one shard.
      axes: over which mesh axes it does so since then.
      what: the operation.
      place: where it is.
      dim: the name of the sharded dim.
      more_dims: those of others that are summed with it, each with its axes; the first one's axes are the rest.
      subject: the argument that has the dim.
      collective: what makes the value the same on every shard, and right.
      late: the operation that the collective has to come before, and its place.
      within: the function that does both, so that no collective can stand between.
      divisor: what a sum was divided by, where that may be the number of a shard's elements or of all, and its place.
      astray: a sum over another axis, over which nothing is due, and its place.
      follows: a collective that the program has for it later on, and its place.
      untyped: where what it is in is differentiated, without JAX's types, which give a psum another gradient.
      inside: where what it is in is differentiated, of a mean whose gradient would else be the sum of the shards'.
      made: ``typed`` or ``untyped``, by whether JAX types values, where differentiation made the late operation;
        ``mixed``: without types, of a gradient that is in part of a mean.
      recounted: why a gradient is wrong over other axes, without JAX's types.
      tried: another edit, with which the program was read or traced, and is right; empty where none is known to be.
    """

    kind: str
    axes: tuple[str, ...]
    what: str = ""
    place: str = ""
    dim: str = ""
    more_dims: tuple[tuple[str, tuple[str, ...]], ...] = ()
    subject: str = ""
    collective: str = ""
    late: str = ""
    within: str = ""
    divisor: str = ""
    astray: str = ""
    follows: str = ""
    untyped: str = ""
    inside: str = ""
    recounted: str = ""
    made: str = ""
    tried: str | None = None

    @property
    def origin(self) -> str:
        """``the contraction over heads (sharded over 'tp') at model.py:40``"""
        is_over_dim = self.collective and self.kind != "masked" and self.what not in ("gradient", "hint", "pattern")
        over = f" over {self.sharded_dim}" if is_over_dim else ""
        return f"the {self.what}{over}{f' at {line}' if (line := self.place.partition(' ')[0]) else ''}"

    @property
    def sharded_dim(self) -> str:
        """``heads (sharded over 'tp')``"""
        others = {axis for _, axes in self.more_dims for axis in axes}
        first = (self.dim, tuple(axis for axis in self.axes if axis not in others))
        dims = [(dim, f"sharded over {quoted_axes(axes)}") for dim, axes in (first, *self.more_dims)]
        return " and ".join(f"{dim} ({sharded})" if dim else f"a dim {sharded}" for dim, sharded in dims)

    @property
    def may_agree(self) -> bool:
        """Whether the shards may be the same or not, for all that is known: of a kernel's results, of a ring's."""
        return self.kind in ("opaque", "ring")

    @property
    def reduction(self) -> str:
        """``psum over 'tp'``, where a collective makes the value the same on every shard, and right."""
        return f"{self.collective} over {quoted_axes(self.axes)}"

    @property
    def is_conditional(self) -> bool:
        """Whether its cure is more than a collective at its place."""
        return any(
            (self.late, self.within, self.divisor, self.astray, self.untyped, self.inside, self.recounted, self.made)
        )

    @property
    def counted(self) -> str:
        """What a number that divides the sum has to count."""
        number = f"; let {self.divisor}, which divides it, count the elements of all shards"
        return f"{number} if it counts those of one" if self.divisor else ""

    @property
    def typed(self) -> str:
        """What a psum needs that is differentiated."""
        return ", with check_vma=True: without, JAX differentiates a psum as a psum" if self.untyped else ""

    def origin_in(self, terms: Terms) -> str:
        """The same, of what a hint or a PartitionSpec says, too."""
        if self.what == "hint" and not self.place:
            return terms.hint.replace("its", "the", 1) + f" of {self.subject}" if self.subject else terms.hint
        return self.origin

    def cure(self, terms: Terms, may_be_unreduced: bool, may_vary: bool) -> str:
        """What to write instead."""
        over, before = quoted_axes(self.axes), f" before {self.late}" if self.late else ""
        origin = self.origin_in(terms)
        varying, brackets = (terms.marks(sign, self.axes) for sign in "~/")
        outside = f" at {self.untyped}, outside of what is differentiated" if self.untyped else ""
        outside = self.typed if self.late else outside
        inside = f" inside of what is differentiated at {self.inside}" if self.inside else ""
        if self.tried is not None:
            leaves = "leaves partial sums" if self.kind in ("sum", "masked") else "is of each shard's part"
            return f"{origin} {leaves}{self.tried and f': {self.tried}'}"
        if self.recounted:
            return f"no collective makes {origin} right, as {self.recounted}: leave out check_vma=False"
        if self.made == "mixed":
            reason = "it is in part of a mean, and in part of a sum: leave out check_vma=False, and pmean the one"
            return f"no collective makes {origin} right, as {reason} and psum the other where they are taken"
        if self.made:
            otherwise = "differentiate by what is invarying" if self.made == "typed" else "leave out check_vma=False"
            reason = f"differentiation goes on with the shards' parts: {otherwise}, and JAX takes the sum by itself"
            return f"no collective makes {origin} right, as {reason}"
        if self.astray:
            instead = f"{self.collective} over {over}, in the place of {self.astray}{self.typed}"
            is_what = "is of each shard's part" if self.kind == "mean" else "leaves partial sums"
            return f"{origin} {is_what}: {instead}"
        if self.within:
            return f"{origin} is of each shard's part, and {self.within} goes on with it: gather the dim first"
        if self.follows and self.collective and not self.late and not terms.is_spec:
            mark = terms.marks("+" if self.kind == "sum" else "~", self.axes)
            return f"{origin} leaves each shard its own, for {self.follows}: write '{mark}'"
        if self.kind in ("sum", "masked"):
            is_open = may_be_unreduced and not self.late
            mark = f", or write {terms.written('+', self.axes)} if its sum is taken later" if is_open else ""
            psum = f"psum over {over}{before}{outside}{inside}{mark}{self.counted}"
            if self.kind == "masked":
                return f"if {origin} leaves each entry on one shard, and zeros on the others: {psum}"
            return f"{origin} leaves partial sums: {psum}"
        if self.collective:
            return f"{origin} is of each shard's part: {self.collective} over {over}{before}{inside}"
        if self.kind == "part":
            dim, of = self.dim or "a dim", f" of {self.subject}" if self.subject else ""
            bracketed = f"write [{self.dim or 'dim'}{brackets.split()[0]}]"
            named = f"name {over} in out_specs" if terms.is_spec else bracketed
            return f"{dim}{of} is still sharded over {over}: {named}, or gather it (all_gather)"
        if self.kind == "mapped":
            mark = f"write '{varying}', or " if may_vary else ""
            return f"jax.vmap maps over {self.sharded_dim}: {mark}gather it first"
        if self.kind == "agreement":
            gather = "gather it by all_gather without '~', or lax.all_gather(..., to='invarying')"
            cure = gather if "gather" in self.what else "take the mean (pmean)"
            return f"its shards agree since {origin}, and JAX types them as varying: {cure}"
        if self.kind == "alone":
            return f"the mesh has one shard over {over}, so nothing can differ: with more, the error names the cause"
        if self.kind == "opaque":
            either = f"if they are partial sums, psum over {over}; if they agree, state it by assume(x, hint)"
            return f"nothing is known of the shards that {origin} returns: {either}"
        if self.kind == "ring":
            sent = f"{origin} is over parts of {self.sharded_dim} that the shards send on (ppermute)"
            return f"{sent}: if each has had all of them, state it by assume(x, hint)"
        if self.kind == "index":
            either = f"write '{varying}' if the shards may differ, or " if may_vary else ""
            combined = "combine what the shards make of it, such as addends by a psum"
            return f"{origin} is each shard's own: {either}{combined}, or compute it the same on all shards"
        if self.kind == "choice":
            return f"the shards go different ways at {origin}: let its condition be the same on all of them"
        if self.kind == "item":
            mark = f"write '{varying}', or " if may_vary else ""
            return f"{origin} takes one item after another of {self.sharded_dim}: {mark}gather it first"
        if self.dim or self.subject or self.kind in ("mixed", "picked"):
            return f"{origin} is of each shard's part of {self.sharded_dim}: gather it first"
        return f"the shards differ since {origin}: combine what they hold, such as addends by a psum"


class UnmentionedVarying(Fault):
    """A value that varies over mesh axes its hint does not mention.

    Attributes:
      axes: the mesh axes.
      leaves_region: whether it leaves, so that ``~`` may not be written.
      may_be_unreduced: whether ``+`` may be; over an Auto axis no addend leaves.
      may_agree: whether its shards may be equal all the same, so that a sum would count it several times, which
        nobody knows while the body is traced; of a value that leaves, whether they are.
      cause: since when it varies, if that is known.
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
            return Sentence(problem, cure=self.cause.cure(terms, self.may_be_unreduced, may_vary))
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
        cure = cure if self.cause is None else self.cause.cure(terms, True, False)
        return Sentence(f"is unreduced over {axes}, which {terms.hint} does not mention", cure=cure)


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
      place: who made it so, where JAX's type does not say.
      is_among_others: whether it is to be summed over other axes, too.
    """

    axis: str
    shards: int
    verb: str
    place: str | None = None
    is_among_others: bool = False

    def words(self, terms: Terms) -> Sentence:
        wrong = f"would count it {self.shards} times" if self.verb in ("psum", "psum_scatter") else "changes nothing"
        by = f" by {self.place}" if self.place else ""
        problem = f"is the same on every shard of '{self.axis}'{by}, so a {self.verb} over it {wrong}"
        reason = "jax.grad sums the gradient of a value that is the same on every shard by itself"
        dropped = f"leave out '{self.axis}'" if self.is_among_others else f"drop the {self.verb}"
        if self.verb == "pmean":
            reason = f"{reason}; for its mean, pmean the loss inside of what is differentiated"
        return Sentence(problem, cure=f"{dropped}: {reason}")


class Suspect(Fault):
    """What a program hardly means, and may mean all the same."""


class DifferingReplicas(Fault):
    """A value that is not the same on all shards where it has to be, as the devices have it.

    Attributes:
      axes: the mesh axes over which its shards differ.
      shards: those that differ from most others, as ``dp=2, tp=1 (device 5)``; all, where no value is that of most.
      number: how many shards have to agree.
      has_majority: whether one value is that of most.
    """

    axes: tuple[str, ...]
    shards: tuple[str, ...]
    number: int
    has_majority: bool

    def words(self, terms: Terms) -> Sentence:
        shown = "; ".join(self.shards[:_MOST_SHARDS])
        shown += f"; and {len(self.shards) - _MOST_SHARDS} more" if len(self.shards) > _MOST_SHARDS else ""
        if not self.has_majority:
            what = f"{shown} have different bits, none of them those of most shards"
        elif len(self.shards) == 1:
            what = f"{shown} has other bits than the other {self.number - 1}"
        else:
            what = f"{shown} have other bits than most shards"
        problem = f"differs over {quoted_axes(self.axes)}, where {terms.hint} says that it is the same: {what}"
        cure = (
            "an update or a placement that is not the same everywhere, a kernel that is not deterministic, or a device"
        )
        return Sentence(problem, cure=f"it may be {cure} that computes wrongly")


_MOST_SHARDS = 4


class DivergentCollective(Fault):
    """A collective in a branch or loop that not all shards of its axes reach.

    Attributes:
      collective: its name.
      axes: its mesh axes.
      diverging: the mesh axes over which the predicate varies, and all of whose shards it waits for.
      control: ``"cond"``, ``"switch"`` or ``"loop"``.
      is_gradient: whether differentiation made it.
      cause: since when the predicate varies, if that is known.
    """

    collective: str
    axes: tuple[str, ...]
    diverging: tuple[str, ...]
    control: str
    is_gradient: bool = False
    cause: Cause | None = None

    def words(self, terms: Terms) -> Sentence:
        what, over, is_loop = self.collective, quoted_axes(self.diverging), self.control == "loop"
        predicate = f"the {'condition' if is_loop else 'predicate'} of the {self.control} around it varies over {over}"
        since = self.cause.place.partition(" ")[0] if self.cause is not None else ""
        problem = f"{what} over {quoted_axes(self.axes)} would deadlock: {predicate}{since and f' since {since}'}"
        move = f"move the {what} out of the {'loop' if is_loop else 'branch'}"
        if self.is_gradient:
            cast = f"{_pcast(self.diverging)} before the {self.control}"
            return Sentence(problem, cure=f"it is the gradient of a value x that is invarying until there: {cast}")
        if self.cause is not None and self.cause.kind == "index":
            goes = "when a shard leaves it" if is_loop else "which one a shard takes"
            return Sentence(problem, cure=f"{move}: {goes} depends on its own index")
        agree = "when the loop ends, by pmax of its condition" if is_loop else "the branch, by pmax of the predicate"
        return Sentence(problem, cure=f"let all shards agree on {agree}; or, if each is to decide for itself, {move}")


class UntypedVarying(Fault):
    """A result that JAX types as invarying though it varies, so that gradients through it are wrong.

    Attributes:
      operation: what computes it.
      axes: the mesh axes over which it varies.
      is_control: whether that is control flow, whose predicate varies.
    """

    operation: str
    axes: tuple[str, ...]
    is_control: bool

    def words(self, terms: Terms) -> Sentence:
        over, cast = quoted_axes(self.axes), _pcast(self.axes)
        reason = "as its predicate does" if self.is_control else "as its operands may"
        problem = f"a result of {self.operation} varies over {over}, {reason}, but JAX types it as invarying"
        if self.is_control:
            cure = f"cast what it is given before: {cast}; or let all shards agree on the predicate"
        else:
            cure = f"cast it: {cast}" + ("" if terms.is_spec else "; or state that its shards agree: assume(x, hint)")
        return Sentence(f"{problem}: gradients are wrong", cure=cure)


def _pcast(axes: tuple[str, ...]) -> str:
    return f"jax.lax.pcast(x, {(axes[0] if len(axes) == 1 else axes)!r}, to='varying')"
