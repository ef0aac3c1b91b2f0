"""The faults of values. Each is data, and its ``words`` are the sentence of the message.

A fault that only one module raises, such as a mismatch of sizes, is defined there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from ..records import Record
from .phrases import quoted_axes, sharding_text, shortened, size_text

Span: TypeAlias = tuple[int, int]
"""A half-open range in the user's text."""

DTYPE: Span = (-1, 0)
"""The span of the dtype, which is not among a hint's dims."""

_IN_SPEC = {"+": "unreduced", "-": "reduced"}
_RESHARD = "write the actual sharding, or change it with reshard(x, ...)"
_EXCHANGE = "write this sharding in out_specs, or change it with all_to_all or all_gather"
_AROUND = 150
"""The number of characters of a long hint on each side of a caret."""


class Subject(NamedTuple):
    """The subject of a message: an argument, the return value or a checked value, or a subtree of it."""

    kind: str
    name: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.name}{self.path}"

    def at(self, step: str) -> Subject:
        return Subject(self.kind, self.name, self.path + step)

    @property
    def is_pattern(self) -> bool:
        return self.kind in ("operand", "pattern")

    @property
    def phrase(self) -> str:
        if self.kind == "argument":
            return f"argument '{self}'"
        if self.is_pattern:
            return str(self) if " " in self.name else f"the {self}"
        return str(self) if self.path else f"{self.name} value"


RETURN = Subject("return", "return")


class Bound(Record):
    """A global size (or the sizes of a ``*name``), the value that bound it, and the mesh axes of its dims."""

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


class Terms(Record):
    """The subject of a message, and the aliases of mesh axes in its marks."""

    subject: Subject
    names: Mapping[str, str]

    @property
    def is_box(self) -> bool:
        """Whether the names of a Flax box, which has no brackets, replace a hint."""
        return self.subject.kind == "boxed"

    @property
    def is_spec(self) -> bool:
        """Whether a PartitionSpec replaces a hint."""
        return self.subject.kind == "spec"

    @property
    def hint(self) -> str:
        if self.is_spec:
            return "its PartitionSpec"
        return "the pattern" if self.subject.is_pattern else "its box" if self.is_box else "its hint"

    @property
    def within(self) -> str:
        """The phrase for its place in the hint."""
        return "" if self.subject.is_pattern else " among its names" if self.is_box else " in its hint"

    def marks(self, sign: str, axes: tuple[str, ...]) -> str:
        """Axes with a mark before each, by their aliases."""
        return " ".join(f"{sign}{self.names.get(axis, axis)}" for axis in axes)

    def written(self, sign: str, axes: tuple[str, ...]) -> str:
        """The user's notation: ``'+tp'`` in a hint, ``unreduced={'tp'}`` in a PartitionSpec."""
        if self.is_spec:
            return f"{_IN_SPEC[sign]}={{{quoted_axes(axes)}}}"
        return f"'{self.marks(sign, axes)}'"


class Fault(Record):
    """A fault of a value."""

    def words(self, terms: Terms) -> Sentence:
        raise NotImplementedError


class Sentence(Fault):
    """A fault in words: the problem, the span of the carets, and the cure."""

    problem: str
    span: Span | None = None
    cure: str | None = None

    def words(self, terms: Terms) -> Sentence:
        return self


class Mismatch(Fault):
    """A shape that does not match a spec."""


class Unresolved(Fault):
    """A name in a hint that is not a mesh axis, or that is an axis the hint has already."""


class WrongType(Fault):
    """A value of another type than the hint's container, or a static value of the wrong type."""

    expected: str
    got: str
    cure: str | None = None

    def words(self, terms: Terms) -> Sentence:
        # "bias: Array = None" is common for an optional argument.
        may_be_absent = self.got == "None" and terms.subject.kind == "argument"
        cure = "write '| None' after its hint if it may be absent" if may_be_absent else self.cure
        return Sentence(f"is {self.got}, but {terms.hint} says {self.expected}", cure=cure)


class NotAnArray(WrongType):
    """A value that is not an array, where the hint has one."""

    def words(self, terms: Terms) -> Sentence:
        sentence = super().words(terms)
        if self.expected != "Array" or not self.got.startswith("a NumPy "):
            return sentence
        return replace(sentence, cure="write ArrayLike instead of Array, or np.ndarray for NumPy arrays only")


class WrongDtype(Fault):
    """A dtype that is not the hint's."""

    expected: str
    got: str

    def words(self, terms: Terms) -> Sentence:
        problem = f"has dtype {self.got}, but {terms.hint} says {self.expected}"
        return Sentence(problem, DTYPE, key_cure(self.expected, self.got))


def key_cure(expected: str, got: str) -> str | None:
    """The cure if a key is raw and the hint is typed, or the other way round."""
    if expected == "Key" and got == "uint32":
        return "make it by jax.random.key, or jax.random.wrap_key_data; PRNGKeyArray takes a raw PRNGKey as well"
    is_typed = got.startswith("key<") and expected != "Key"
    return "annotate a key of jax.random.key as Key; PRNGKeyArray takes both kinds" if is_typed else None


class UnusableDtype(Fault):
    """A dtype that an operation does not accept, and the dtypes that it does."""

    got: str
    usable: str

    def words(self, terms: Terms) -> Sentence:
        return Sentence(f"has dtype {self.got}, but {self.usable}")


class WrongSharding(Fault):
    """A global array whose sharding contradicts its hint."""

    expected: str
    got: str
    cure: str | None = None

    def words(self, terms: Terms) -> Sentence:
        return Sentence(f"is {self.got}, but {terms.hint} says {self.expected}", cure=self.cure)


class BoundaryMark(Fault):
    """A mark that is not allowed at the boundary of a manual region."""

    sign: str
    axis: str
    reason: str
    cure: str | None = None

    def words(self, terms: Terms) -> Sentence:
        mark = terms.marks(self.sign, (self.axis,))
        return Sentence(f"is marked '{mark}'{terms.within}, but {self.reason}", cure=self.cure)


class OpenDim(Fault):
    """An unconstrained dim where a spec is required."""

    dim: str
    name: str
    span: Span

    def words(self, terms: Terms) -> Sentence:
        problem = f"has '{self.dim}'{terms.within}, but at the boundary of a manual region every dim needs a sharding"
        return Sentence(problem, self.span, f"write [{self.name}/axis], or [{self.name}/] for an unsharded dim")


class NotAPytree(Fault):
    """An instance of a class with arrays that JAX treats as a leaf."""

    cls: str

    def words(self, terms: Terms) -> Sentence:
        problem = f"is of class {self.cls}, which holds arrays and is not registered as a pytree"
        return Sentence(problem, cure=f"put @jax.tree_util.register_dataclass above {self.cls}")


class NonPytreeField(Fault):
    """A field with array hints that is not a child of its class in JAX."""

    cls: str
    field: str
    is_dataclass: bool = True

    def words(self, terms: Terms) -> Sentence:
        problem = f"has arrays in field '{self.field}', which is not a pytree child of {self.cls}"
        if self.is_dataclass:
            return Sentence(problem, cure=f"register '{self.field}' among the data fields of {self.cls}")
        cure = f"let {self.cls} flatten '{self.field}' as it is, or with '{self.field}' as its key"
        return Sentence(problem, cure=cure)


class LateRegistration(Fault):
    """An instance of a class that was registered as a pytree after its hint was read."""

    cls: str

    def words(self, terms: Terms) -> Sentence:
        problem = f"is of class {self.cls}, which was registered as a pytree after its hint was read"
        return Sentence(problem, cure=f"register {self.cls} before it is named in a hint")


class StaticArray(Fault):
    """An array for a static value, whose hint holds no array or is missing."""

    hint: str | None

    def words(self, terms: Terms) -> Sentence:
        if self.hint is not None and terms.subject.kind == "return":
            return Sentence(f"is an array, but {terms.hint} says {self.hint}")
        why = "has no hint" if self.hint is None else f"{terms.hint} {self.hint} holds none"
        problem = f"is an array, but {why}, so the argument is static"
        return Sentence(problem, cure=f"annotate it as an array, as in {terms.subject.name}: Array")


class PlainMessage(Fault):
    """A fault with its words, which only one place raises."""

    problem: str
    cure: str | None = None

    def words(self, terms: Terms) -> Sentence:
        return Sentence(self.problem, cure=self.cure)


class PatternFault(Sentence):
    """A pattern that is invalid, or invalid for these operands."""


class WrongSize(Sentence):
    """A size that an operation does not accept."""


class NotManual(Fault):
    """An operation over a mesh axis that is not manual here."""

    axis: str
    span: Span | None = None

    def words(self, terms: Terms) -> Sentence:
        problem = f"mesh axis '{self.axis}' is not manual here: collectives need it inside shard_map"
        cure = "call it in the body of a typed_shard_map or jax.shard_map over this axis"
        return Sentence(problem, self.span, f"{cure}; outside, reshard changes the sharding of a global array")


class PatternLayoutMismatch(Fault):
    """A value whose known layout contradicts a pattern, in a dim or, without one, in a mark."""

    dim: int | None
    claimed: str
    known: str
    place: str
    span: Span | None = None

    def words(self, terms: Terms) -> Sentence:
        where = "" if self.dim is None else f" in dim {self.dim}"
        return Sentence(f"is read as {self.claimed}{where}, but {self.place} says {self.known}", self.span, _RESHARD)


class LayoutMismatch(Fault):
    """A shard whose inferred layout contradicts a hint or a pattern.

    Attributes:
      dim: the first dim that differs.
      claimed: the mesh axes of the dim in the hint, major to minor.
      known: the mesh axes of the dim that were inferred.
      gathered: the axes over which it was gathered, in a wrong order.
      is_interleaved: whether the shards do not follow each other: another dim, or shards gathered earlier, are
        major to the sharded dim.
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
        cure = _EXCHANGE if terms.is_spec else _RESHARD
        return Sentence(f"is {sharding_text(self.known)} in dim {self.dim}, but {claimed}", self.span, cure)


class ShardingConflict(Fault):
    """An operation that combines two dims with different, perhaps interleaved, shardings."""

    operation: str
    where: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    interleaved: tuple[bool, bool] = (False, False)

    def words(self, terms: Terms) -> Sentence:
        if not any(self.interleaved):
            ways = f"one is sharded over {quoted_axes(self.first)}, the other over {quoted_axes(self.second)}"
        else:
            first, second = ("has interleaved shards" if woven else "is sharded" for woven in self.interleaved)
            ways = f"one {first} over {quoted_axes(self.first)}, the other {second} over {quoted_axes(self.second)}"
        cure = "gather or reshard one of them"
        if not terms.is_spec:
            cure += "; if an inferred sharding is wrong, state the right one with assume(x, hint)"
        return Sentence(f"{self.operation} combines {self.where}, but {ways}", cure=cure)


class HintText(Record):
    """The user's text of a hint; carets are placed relative to its ``dims``."""

    before: str
    dims: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.before}{self.dims}{self.after}"

    def around(self, span: Span | None) -> tuple[HintText, Span]:
        """The hint, cut around a span if it is long; and the span in it."""
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


class Failure(Record):
    """One fault of one value.

    Attributes:
      what: the fault.
      subject: the value.
      hint: its hint, if it has one.
      got: the value's type in JAX's notation, if it is an array.
      place: the line in the user's program, for one of several faults in a body.
    """

    what: Fault
    subject: Subject
    hint: HintText | None = None
    got: str | None = None
    place: str = ""

    @property
    def cause_place(self) -> str:
        cause = getattr(self.what, "cause", None)
        return "" if cause is None else cause.place

    def follows_from(self, first: Failure) -> bool:
        """Whether the cure of another failure cures this one: both have one cause, and are not parts of one value."""
        is_other_part = self.subject.name == first.subject.name and self.subject.path != first.subject.path
        return self.cause_place == first.cause_place != "" and not is_other_part

    @property
    def hint_words(self) -> set[str]:
        return set(re.findall(r"\w+", self.hint.dims)) if self.hint is not None else set()

    def words(self, names: Mapping[str, str] | None = None) -> Sentence:
        """The failure in words; ``names`` are the aliases of mesh axes in marks."""
        return self.what.words(Terms(self.subject, names or {}))


class NoUnionMember(Fault):
    """A value that no member of a union accepts, with the reason of each."""

    reasons: tuple[Failure, ...]

    def words(self, terms: Terms) -> Sentence:
        labels = (f"{reason.hint}: " if reason.hint is not None else "" for reason in self.reasons)
        problems = (reason.words(terms.names).problem for reason in self.reasons)
        listed = "; ".join(f"{label}{problem}" for label, problem in zip(labels, problems, strict=True))
        return Sentence(f"fits no member of {terms.hint} ({listed})")
