"""What can be wrong with a value: every kind of fault is data, and puts itself into words.

A kind that is found in one place only, as a mismatch of sizes, is defined where it is found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, dataclass_transform

from .phrases import quoted_axes, sharding_text, shortened, size_text

Span: TypeAlias = tuple[int, int]
"""A half-open place in the user's text."""

DTYPE: Span = (-1, 0)
"""A span that stands for the dtype, which is not among a hint's dims."""

_RESHARD = "write what the value is; reshard(x, ...) changes it"
_AROUND = 150
"""How much of a long hint is shown on the side of a caret."""


class Subject(NamedTuple):
    """The value that is spoken of: an argument, the return value or a checked value, or a part of it."""

    kind: str
    name: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.name}{self.path}"

    def at(self, step: str) -> Subject:
        return Subject(self.kind, self.name, self.path + step)

    @property
    def is_pattern(self) -> bool:
        """Whether a pattern says how it should be."""
        return self.kind in ("operand", "pattern")

    @property
    def phrase(self) -> str:
        """How a sentence names it."""
        if self.kind == "argument":
            return f"argument '{self}'"
        if self.is_pattern:
            return str(self) if " " in self.name else f"the {self}"
        return str(self) if self.path else f"{self.name} value"


RETURN = Subject("return", "return")


@dataclass(frozen=True, slots=True)
class Bound:
    """A global size (or the sizes of a ``*name``), who bound it, and over which mesh axes it was seen."""

    size: int | tuple[int, ...]
    subject: Subject
    dim: int
    layouts: frozenset[tuple[str, ...]] = frozenset()


def sizes_text(sizes: Iterable[tuple[str, Bound]]) -> str:
    """``batch=8 (q dim 0), d=64 (q dim 3)``"""
    return ", ".join(
        f"{size_text(name, bound.size)} ({bound.subject} {'from ' * isinstance(bound.size, tuple)}dim {bound.dim})"
        for name, bound in sizes
        if " at " not in name
    )


@dataclass(frozen=True, slots=True)
class Terms:
    """What a message calls things.

    Attributes:
      subject: the value that it is about.
      names: what marks call mesh axes that have another name there.
    """

    subject: Subject
    names: Mapping[str, str]

    @property
    def is_box(self) -> bool:
        """Whether names of a Flax box, which has no brackets, are in the place of a hint."""
        return self.subject.kind == "boxed"

    @property
    def hint(self) -> str:
        """What says how the value should be."""
        return "the pattern" if self.subject.is_pattern else "its box" if self.is_box else "its hint"

    @property
    def within(self) -> str:
        """How a sentence says that something is written there."""
        return "" if self.subject.is_pattern else " among its names" if self.is_box else " in its hint"

    def marks(self, sign: str, axes: tuple[str, ...]) -> str:
        """Axes with a mark before each, by the names that they have there."""
        return " ".join(f"{sign}{self.names.get(axis, axis)}" for axis in axes)


@dataclass_transform(frozen_default=True)
class Fault:
    """What is wrong with a value. Every subclass is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def words(self, terms: Terms) -> Sentence:
        raise NotImplementedError


class Sentence(Fault):
    """A fault in words: the problem, where carets go, and the cure."""

    problem: str
    span: Span | None = None
    cure: str | None = None

    def words(self, terms: Terms) -> Sentence:
        return self


class Mismatch(Fault):
    """A shape that does not match a spec."""


class Unresolved(Fault):
    """A name in a hint that stands for no mesh axis, or for one that the hint has already."""


class WrongType(Fault):
    """A value of another type than the hint's container, or a static value of the wrong type."""

    expected: str
    got: str

    def words(self, terms: Terms) -> Sentence:
        # "bias: Array = None" is a common way to say that it may be absent.
        may_be_absent = self.got == "None" and terms.subject.kind == "argument"
        cure = "write '| None' after its hint if it may be absent" if may_be_absent else None
        return Sentence(f"is {self.got}, but {terms.hint} says {self.expected}", cure=cure)


class NotAnArray(WrongType):
    """Something that is not an array where the hint says one."""


class WrongDtype(Fault):
    """Another dtype than the hint's."""

    expected: str
    got: str

    def words(self, terms: Terms) -> Sentence:
        problem = f"has dtype {self.got}, but {terms.hint} says {self.expected}"
        return Sentence(problem, DTYPE, key_cure(self.expected, self.got))


def key_cure(expected: str, got: str) -> str | None:
    """What to write where a raw key is in the place of a typed one, or the other way round; both are dtypes."""
    if expected == "Key" and got == "uint32":
        return "make it by jax.random.key, or jax.random.wrap_key_data; PRNGKeyArray takes a raw PRNGKey as well"
    is_typed = got.startswith("key<") and expected != "Key"
    return "annotate a key of jax.random.key as Key; PRNGKeyArray takes both kinds" if is_typed else None


class UnusableDtype(Fault):
    """A dtype that an operation cannot take, and what it takes."""

    got: str
    usable: str

    def words(self, terms: Terms) -> Sentence:
        return Sentence(f"has dtype {self.got}, but {self.usable}")


<<<<<<< Updated upstream
=======
class Cause(NamedTuple):
    """Since when a value varies, as the traced body shows.

    Attributes:
      kind: how it varies; see `typedshmap.inference.provenance.Provenance`, and ``agreement``: it is the same on every
        shard, and JAX types it as varying.
      axes: over which mesh axes it does so since then.
      what: the operation.
      place: where it is.
      dim: the name of the sharded dim.
      subject: the argument that has the dim.
      collective: what makes the value the same on every shard, and right.
      late: the operation that the collective has to come before, and its place.
      within: the function that does both, so that no collective can stand between.
      divisor: what a sum was divided by, where that may be the number of a shard's elements or of all, and its place.
      astray: a sum over another axis, over which nothing is due, and its place.
      follows: a collective that the program has for it later on, and its place.
    """

    kind: str
    axes: tuple[str, ...]
    what: str = ""
    place: str = ""
    dim: str = ""
    subject: str = ""
    collective: str = ""
    late: str = ""
    within: str = ""
    divisor: str = ""
    astray: str = ""
    follows: str = ""

    @property
    def origin(self) -> str:
        """``the contraction over heads (sharded over 'tp') at model.py:40``"""
        over = f" over {self.sharded_dim}" if self.collective and self.what not in ("gradient", "hint") else ""
        return f"the {self.what}{over}{f' at {line}' if (line := self.place.partition(' ')[0]) else ''}"

    @property
    def sharded_dim(self) -> str:
        """``heads (sharded over 'tp')``"""
        sharded = f"sharded over {quoted_axes(self.axes)}"
        return f"{self.dim} ({sharded})" if self.dim else f"a dim {sharded}"

    def cure(self, terms: Terms, may_be_unreduced: bool, may_vary: bool) -> str:
        """What to write instead."""
        over, before = quoted_axes(self.axes), f" before {self.late}" if self.late else ""
        unreduced, varying, brackets = (terms.marks(sign, self.axes) for sign in "+~/")
        if self.astray:
            return f"{self.origin} leaves partial sums: {self.collective} over {over}, in the place of {self.astray}"
        if self.within:
            return f"{self.origin} is of each shard's part, and {self.within} goes on with it: gather the dim first"
        if self.follows and self.collective and not self.late:
            mark = unreduced if self.kind == "sum" else varying
            return f"{self.origin} leaves each shard its own, for {self.follows}: write '{mark}'"
        if self.divisor:
            either = f"pmean over {over} if that counts a shard's elements, psum if it counts all"
            return f"{self.origin} leaves partial sums, which {self.divisor} divides: {either}"
        if self.kind == "sum":
            mark = f", or write '{unreduced}' if its sum is taken later" if may_be_unreduced and not self.late else ""
            return f"{self.origin} leaves partial sums: psum over {over}{before}{mark}"
        if self.collective:
            return f"{self.origin} is of each shard's part: {self.collective} over {over}{before}"
        if self.kind == "part":
            dim, of = self.dim or "a dim", f" of {self.subject}" if self.subject else ""
            bracketed = f"[{self.dim or 'dim'}{brackets.split()[0]}]"
            return f"{dim}{of} is still sharded over {over}: write {bracketed}, or gather it (all_gather)"
        if self.kind == "agreement":
            gather = "gather it by all_gather without '~', or lax.all_gather(..., to='invarying')"
            cure = gather if "gather" in self.what else "take the mean (pmean)"
            return f"its shards agree since {self.origin}, and JAX types them as varying: {cure}"
        if self.kind == "opaque":
            return f"nothing is known of what {self.origin} returns: if its shards agree, state it by assume(x, hint)"
        if self.kind == "index":
            either = f"write '{varying}' if the shards may differ, or " if may_vary else ""
            return f"{self.origin} is each shard's own: {either}compute it the same on all shards"
        if self.kind == "choice":
            return f"the shards go different ways at {self.origin}: let its condition be the same on all of them"
        if self.kind == "item":
            mark = f"write '{varying}', or " if may_vary else ""
            return f"{self.origin} takes one item after another of {self.sharded_dim}: {mark}gather it first"
        if self.dim or self.subject or self.kind == "mixed":
            return f"{self.origin} is of each shard's part of {self.sharded_dim}: gather it first"
        return f"the shards differ since {self.origin}, and no collective makes them agree"


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
        axes, mark = quoted_axes(self.axes), terms.marks("+", self.axes)
        cure = f"take the sum (psum over {axes}), or write '{mark}'"
        cure = cure if self.cause is None else self.cause.cure(terms, True, False)
        return Sentence(f"is unreduced over {axes}, which {terms.hint} does not mention", cure=cure)


class UnmarkedReduced(Fault):
    """A result that JAX types as reduced over mesh axes its hint does not mark with ``-``."""

    axes: tuple[str, ...]

    def words(self, terms: Terms) -> Sentence:
        mark = terms.marks("-", self.axes)
        cure = f"write '{mark}' on an Explicit mesh, or gather it by all_gather(..., to='invarying')"
        problem = f"is reduced over {quoted_axes(self.axes)} in JAX's type, which {terms.hint} does not mention"
        return Sentence(problem, cure=cure)


class NotUnreduced(Fault):
    """A ``+axis`` on a value that is the same on every shard: its sum would count it several times."""

    axis: str
    shards: int

    def words(self, terms: Terms) -> Sentence:
        mark = terms.marks("+", (self.axis,))
        cure = f"drop '{mark}': the sum was taken already, and a second one would count it {self.shards} times"
        return Sentence(f"is the same on every shard of '{self.axis}', but {terms.hint} says '{mark}'", cure=cure)


class RedundantPsum(Fault):
    """A value that is the same on every shard of an axis over which it is to be summed.

    Attributes:
      place: who made it so, where JAX's type does not say.
    """

    axis: str
    shards: int
    verb: str
    place: str | None = None

    def words(self, terms: Terms) -> Sentence:
        wrong = f"would count it {self.shards} times" if self.verb in ("psum", "psum_scatter") else "changes nothing"
        by = f" by {self.place}" if self.place else ""
        problem = f"is the same on every shard of '{self.axis}'{by}, so a {self.verb} over it {wrong}"
        reason = "jax.grad sums the gradient of a value that is the same on every shard by itself"
        return Sentence(problem, cure=f"drop the {self.verb}: {reason}")


class LostSum(Fault):
    """A sum that is due, and that an operation loses; or one that is taken though none is due.

    Attributes:
      operation: its name.
      how: ``nonlinear``: it is not linear; ``product``: of two such sums; ``factor``: the sum divides, chooses or is an
        index; ``sharded``: the result is sharded over the axes; ``added``: a value that is the same on every shard is
        added to it; ``taken``: none is due.
      axes: the mesh axes.
      shards: how many shards there are over them.
      since: where the sum became due, or where it was taken.
      may_be_meant: whether no hint says that the sum is due.
    """

    operation: str
    how: str
    axes: tuple[str, ...]
    shards: int
    since: str = ""
    may_be_meant: bool = False

    def words(self, terms: Terms) -> Sentence:
        over, count = quoted_axes(self.axes), f"which counts it {self.shards} times"
        since = f", due since {self.since}" if self.since else ""
        taken = f" since the sum was taken at {self.since}" if self.since else ""
        problem = {
            "nonlinear": f"is not linear, and takes a partial sum over {over}{since}",
            "product": f"multiplies two partial sums over {over}{since}",
            "factor": f"divides, chooses or counts by a partial sum over {over}{since}",
            "sharded": f"loses a partial sum over {over}{since}: its result is sharded over {over}",
            "added": f"adds what is the same on every shard of {over} to a partial sum{since}, {count}",
            "taken": f"sums over {over} what is the same on every shard{taken}, {count}",
        }[self.how]
        cure = f"take the sum before it (psum over {over})"
        if self.how == "taken":
            cure = f"leave out {over}; a mean is a pmean"
        elif self.how == "added":
            cure = f"add it after the sum (psum over {over}), or on one shard only"
        if self.may_be_meant and self.how != "taken":
            cure += f"; if each shard's own is meant, say so by check(x, '... {terms.marks('~', self.axes)}')"
        return Sentence(f"{self.operation} {problem}", cure=cure)


>>>>>>> Stashed changes
class WrongSharding(Fault):
    """A global array that is sharded otherwise than its hint says."""

    expected: str
    got: str
    cure: str | None = None

    def words(self, terms: Terms) -> Sentence:
        return Sentence(f"is {self.got}, but {terms.hint} says {self.expected}", cure=self.cure)


class BoundaryMark(Fault):
    """A mark that may not be written where a value enters or leaves a manual region."""

    sign: str
    axis: str
    reason: str
    cure: str | None = None

    def words(self, terms: Terms) -> Sentence:
        mark = terms.marks(self.sign, (self.axis,))
        return Sentence(f"is marked '{mark}'{terms.within}, but {self.reason}", cure=self.cure)


class NotAPytree(Fault):
    """An instance of a class that holds arrays and that JAX takes for a leaf."""

    cls: str

    def words(self, terms: Terms) -> Sentence:
        problem = f"is of class {self.cls}, which holds arrays and is not registered as a pytree"
        return Sentence(problem, cure=f"put @jax.tree_util.register_dataclass above {self.cls}")


class NonPytreeField(Fault):
    """A field that its class's hints declare as arrays and that JAX does not see among its children."""

    cls: str
    field: str

    def words(self, terms: Terms) -> Sentence:
        problem = f"holds arrays in field '{self.field}', which {self.cls} does not show JAX as a child"
        return Sentence(problem, cure=f"register '{self.field}' among the data fields of {self.cls}")


class StaticArray(Fault):
    """An array for a value that is static: its hint holds no array, or it has none."""

    hint: str | None

    def words(self, terms: Terms) -> Sentence:
        if self.hint is None:
            cure = f'annotate it, as in {terms.subject.name}: Float[Array, "..."]'
            return Sentence("is an array, but has no hint, so the argument is static", cure=cure)
        if terms.subject.kind == "return":
            return Sentence(f"is an array, but {terms.hint} says {self.hint}")
        problem = f"is an array, but {terms.hint} {self.hint} holds none, so the argument is static"
        return Sentence(problem, cure='annotate it as an array, as in Int[Array, ""]')


class PlainMessage(Fault):
    """A fault that is put into words where it is found, since it happens in one place only."""

    problem: str
    cure: str | None = None

    def words(self, terms: Terms) -> Sentence:
        return Sentence(self.problem, cure=self.cure)


class PatternFault(Sentence):
    """A pattern that makes no sense, or none for these operands."""


class WrongSize(Sentence):
    """A size that an operation cannot take."""


class NotManual(Fault):
    """An operation over a mesh axis that is not manual here."""

    axis: str
    span: Span | None = None

    def words(self, terms: Terms) -> Sentence:
        problem = f"mesh axis '{self.axis}' is not manual here: collectives need it inside shard_map"
        return Sentence(problem, self.span, "call it in the body of a typed_shard_map or jax.shard_map over this axis")


class PatternLayoutMismatch(Fault):
    """A value that a pattern reads in another layout than it is known to have.

    Attributes:
      dim: the first dim that differs; None where it is a mark.
      claimed: what the pattern says of it.
      known: what is known of it.
      place: who said so.
    """

    dim: int | None
    claimed: str
    known: str
    place: str
    span: Span | None = None

    def words(self, terms: Terms) -> Sentence:
        where = "" if self.dim is None else f" in dim {self.dim}"
        return Sentence(f"is read as {self.claimed}{where}, but {self.place} says {self.known}", self.span, _RESHARD)


class LayoutMismatch(Fault):
    """A shard that is known to have another layout than a hint or a pattern says.

    Attributes:
      dim: the first dim that differs.
      claimed: the mesh axes that it is said to be sharded over, major to minor.
      known: those that it is sharded over.
      gathered: the axes, in this order, over which it was gathered though it is sharded in another order.
      is_interleaved: whether the shards do not follow each other: another dim, or shards that were gathered before, are
        major to what is sharded.
    """

    dim: int
    claimed: tuple[str, ...]
    known: tuple[str, ...]
    gathered: tuple[str, ...] = ()
    is_interleaved: bool = False
    span: Span | None = None

    def words(self, terms: Terms) -> Sentence:
        if self.gathered:
            gathered = f"was gathered over {quoted_axes(self.gathered)} in dim {self.dim}"
            cure = "gather it over the axes in the order in which they shard it"
            return Sentence(f"{gathered}, which is not the order of its shards", self.span, cure)
        claimed = f"{terms.hint} says {sharding_text(self.claimed)}"
        if self.is_interleaved:
            shards = f"has interleaved shards over {quoted_axes(self.known)} in dim {self.dim}"
            cure = "gather a dim over its minor axes first, and merge a sharded dim only as the major one"
            return Sentence(f"{shards}, but {claimed}", self.span, cure)
        return Sentence(f"is {sharding_text(self.known)} in dim {self.dim}, but {claimed}", self.span, _RESHARD)


class ShardingConflict(Fault):
    """An operation that combines two dims which are sharded in different ways.

    Attributes:
      operation: JAX's name of it.
      where: which dims.
      first: the mesh axes of the first operand's.
      second: those of the other's.
    """

    operation: str
    where: str
    first: tuple[str, ...]
    second: tuple[str, ...]

    def words(self, terms: Terms) -> Sentence:
        ways = f"one is sharded over {quoted_axes(self.first)}, the other over {quoted_axes(self.second)}"
        cure = "gather or reshard one of them; if a value is not what it seems to be, state it by assume(x, hint)"
        return Sentence(f"{self.operation} combines {self.where}, but {ways}", cure=cure)


@dataclass(frozen=True, slots=True)
class HintText:
    """A hint as the user wrote it; carets are placed relative to its ``dims``."""

    before: str
    dims: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.before}{self.dims}{self.after}"

    def around(self, span: Span | None) -> tuple[HintText, Span]:
        """The hint where it is not long, else what is around a span of it; and the span there."""
        start, end = span or (0, 0)
        first, last = max(start - _AROUND, 0), max(start, 0) + 3 * _AROUND
        dims = f"{'...' * (first > 0)}{self.dims[first:last]}{'...' * (last < len(self.dims))}"
        moved = first - 3 * (first > 0)
        hint = HintText(shortened(self.before), dims, shortened(self.after))
        return hint, (start - moved, min(end, last) - moved)

    def carets(self, span: Span) -> str:
        """Carets under a span of the dims, or under the dtype."""
        if span == DTYPE:
            return "^" * len(self.before.split("[")[0])
        return " " * (len(self.before) + span[0]) + "^" * (span[1] - span[0])


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that is wrong with one value.

    Attributes:
      what: what is wrong.
      subject: the value.
      hint: its hint, if it has one.
      got: the value's type in JAX's notation, if it is an array.
      place: the line of the user's program, of one of several things that are wrong in a body.
    """

    what: Fault
    subject: Subject
    hint: HintText | None = None
    got: str | None = None
    place: str = ""

    @property
    def cause_place(self) -> str:
        """Where it began; empty if that is not known."""
        cause = getattr(self.what, "cause", None)
        return "" if cause is None else cause.place

    def follows_from(self, first: Failure) -> bool:
        """Whether it began where another did, and is not of another part of the same value: one cure is for both."""
        is_other_part = self.subject.name == first.subject.name and self.subject.path != first.subject.path
        return self.cause_place == first.cause_place != "" and not is_other_part

    @property
    def hint_words(self) -> set[str]:
        """The names of dims and axes in the hint."""
        return set(re.findall(r"\w+", self.hint.dims)) if self.hint is not None else set()

    def words(self, names: Mapping[str, str] | None = None) -> Sentence:
        """It in words; names are what marks call mesh axes that have another name there."""
        return self.what.words(Terms(self.subject, names or {}))


class NoUnionMember(Fault):
    """A value that no member of a union takes, and why each of them does not."""

    reasons: tuple[Failure, ...]

    def words(self, terms: Terms) -> Sentence:
        labels = (f"{reason.hint}: " if reason.hint is not None else "" for reason in self.reasons)
        problems = (reason.words(terms.names).problem for reason in self.reasons)
        listed = "; ".join(f"{label}{problem}" for label, problem in zip(labels, problems, strict=True))
        return Sentence(f"fits no member of {terms.hint} ({listed})")
