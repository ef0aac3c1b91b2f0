"""What can be wrong with how a value varies and with partial sums, and since when it varies: the cause of a failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from .failures import Fault, Sentence, Terms
from .phrases import quoted_axes


class Cause(NamedTuple):
    """Since when a value varies, and what it is, as the traced body shows.

    Attributes:
      kind: ``sum``, ``mean`` or ``extreme``: each shard holds that of its part; ``part``: it holds its part of an
        array; ``item``: one item after another of that, in a loop; ``mapped``: the same by ``jax.vmap``; ``picked``:
        what an operation that needs the whole dim made of its part; ``ring``: what it made of what others sent it;
        ``index``: it depends on the shard's own index; ``opaque``: a kernel or a callback computed it; ``choice``: a
        branch or a loop took another way; ``agreement``: it is the same on every shard, and JAX types it as varying;
        ``alone``: the same, as there is only one shard; ``other``: none of these.
      axes: over which mesh axes it does so since then.
      what: the operation.
      place: where it is.
      dims: the names of the sharded dims, each with its axes.
      subject: the argument that has the first one.
      mark: the sign that a hint may write of it, since nothing else is wrong: the sum is taken later.
      is_waiting: whether the value is that sum, which may be taken later just as well.
      cure: what was tried, and is right; empty where nothing is known to be.
      lost: what an operation makes of the sum, where there is no cure.
      may_gather: whether a gather of the part that it is, or was made of, was tried and is right.
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
        return f"the {self.what}{over}{f' at {line}' if (line := self.place.partition(' ')[0]) else ''}"

    @property
    def sharded_dims(self) -> str:
        """``heads (sharded over 'tp')``"""
        dims = [(dim, f"sharded over {quoted_axes(axes)}") for dim, axes in self.dims or (("", self.axes),)]
        return " and ".join(f"{dim} ({sharded})" if dim else f"a dim {sharded}" for dim, sharded in dims)

    @property
    def may_agree(self) -> bool:
        """Whether the shards may be the same or not, for all that is known: of a kernel's results, of a ring's."""
        return self.kind in ("opaque", "ring")

    def words(self, terms: Terms, may_be_unreduced: bool, may_vary: bool) -> str:
        """Since when, and what to write instead."""
        over, origin = quoted_axes(self.axes), self.origin
        if self.what == "hint" and not self.place:
            origin = terms.hint.replace("its", "the", 1) + (f" of {self.subject}" if self.subject else "")
        match self.kind:
            case "sum" | "mean" | "extreme":
                leaves = "leaves partial sums" if self.kind == "sum" else "is of each shard's part"
                return f"{origin} {leaves}{self._cures(terms, may_be_unreduced, may_vary)}"
            case "part":
                (dim, _), *_ = self.dims or (("", ()),)
                of = f" of {self.subject}" if self.subject else ""
                bracketed = f"write [{dim or 'dim'}{terms.marks('/', self.axes).split()[0]}]"
                named = f"name {over} in out_specs" if terms.is_spec else bracketed
                cures = f": {named}, or gather it (all_gather)" if self.may_gather else ""
                return f"{dim or 'a dim'}{of} is still sharded over {over}{cures}"
            case "item" | "mapped":
                marked = [f"write '{terms.marks('~', self.axes)}'"] if may_vary else []
                what = "jax.vmap maps over" if self.kind == "mapped" else "it is one item after another of"
                return f"{what} {self.sharded_dims}{_either(*marked, *self._gather)}"
            case "picked":
                return f"{origin} is of each shard's part of {self.sharded_dims}{_either(*self._gather)}"
            case "agreement":
                gather = "gather it by all_gather without '~', or lax.all_gather(..., to='invarying')"
                cure = gather if "gather" in self.what else "take the mean (pmean)"
                return f"its shards agree since {origin}, and JAX types them as varying: {cure}"
            case "alone":
                more = "so nothing can differ: with more, the error names the cause"
                return f"the mesh has one shard over {over}, {more}"
            case "opaque":
                stated = f"assume(x, hint) what they are, with {terms.written('+', self.axes)} if they are partial sums"
                return f"nothing is known of the shards that {origin} returns: state by {stated}"
            case "ring":
                sent = "sends on" if "permute" in self.what else "is of what the shards send on,"
                parts = f"parts of {self.sharded_dims}: if each has had all of them, state it by assume(x, hint)"
                return f"{origin} {sent} {parts}"
            case "index":
                marked = [f"write '{terms.marks('~', self.axes)}' if the shards may differ"] if may_vary else []
                return f"{origin} is each shard's own{_either(*marked)}"
            case "choice":
                return f"the shards go different ways at {origin}"
            case _:
                return f"the shards differ since {origin}"

    @property
    def _gather(self) -> Sequence[str]:
        return ["gather it first"] if self.may_gather else []

    def _cures(self, terms: Terms, may_be_unreduced: bool, may_vary: bool) -> str:
        """What was tried, and a mark of the value, where that is as right."""
        may_mark = may_be_unreduced if self.mark == "+" else may_vary
        if self.mark and may_mark:
            later = "whose sum is taken later" if self.mark == "+" else "which is reduced later"
            return f", {later}: write {terms.written(self.mark, self.axes)}"
        if not self.cure:
            return f", and {self.lost}" if self.lost else ""
        may_wait = self.is_waiting and may_be_unreduced
        mark = f", or write {terms.written('+', self.axes)} if its sum is taken later" if may_wait else ""
        return f": {self.cure}{mark}"


def _either(*cures: str) -> str:
    return f": {', or '.join(cures)}" if cures else ""


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
        if self.cause is not None and self.cause.kind != "opaque":  # of what a kernel returns assume has stated it
            cure = self.cause.words(terms, True, False)
        return Sentence(f"is unreduced over {axes}, which {terms.hint} does not mention", cure=cure)


class LostMark(Fault):
    """A global array, unreduced or reduced in its type, that is to be placed by a hint without the mark.

    JAX would place it: the sum of one is taken there, that of the other's gradient.
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
    """A value that is unreduced, and is to be so over other axes, too, which XLA does not survive."""

    before: tuple[str, ...]
    added: tuple[str, ...]

    def words(self, terms: Terms) -> Sentence:
        problem = f"is unreduced over {quoted_axes(self.before)}: on jax 0.9 XLA may end the process"
        problem += f" where it becomes so over {quoted_axes(self.added)}, too"
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
