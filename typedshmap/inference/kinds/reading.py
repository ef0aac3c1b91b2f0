"""Read a region over one mesh axis: what each value is of the whole, from one trace, or from two of other sizes.

Of two traces the equations are the same; a number that differs between them has a degree, and a dim whose length does
is as long as a shard's."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from typing import Any, NamedTuple

from ... import _jax
from .numbers import Numbers, pmean_axes
from .value import (
    ANY,
    NO_PARTS,
    NOT_KNOWN,
    SAME,
    UNKNOWN,
    Share,
    anyhow,
    heard,
    is_negative,
    is_plain,
    scaled,
    sum_of,
    unknown,
)

CLAIM = _jax.jaxpr.CLAIM
_MOST_ITERATIONS = 6
_DEPTH = 6
"""How far back two computations are compared to find that they compute the same."""


class Unaligned(Exception):
    """The two traces do not have the same equations, and nothing is known of degrees."""


class Loss(NamedTuple):
    """How something that is each shard's own came into a value.

    Attributes:
      why: how, for a message; with what it was lost to.
      eqn: at which equation.
      calls: those around it.
      parts: the parts of a sum or an extreme that were lost.
      is_soft: whether it is an operation on a shard's own rows alone, which is right where others join in.
      is_common: whether it is the same on every shard after all, as a bound that a collective found.
      degree: the largest one of what came together there, as far as it is known.
      name: what the hints call a dim of an operand that is sharded, and the argument.
    """

    why: str
    eqn: Any
    calls: tuple[Any, ...]
    parts: frozenset[Any]
    is_soft: bool = False
    is_common: bool = False
    degree: Any = 0
    name: tuple[str, str] = ("", "")

    @property
    def is_of_slice(self) -> bool:
        """Whether a shard's own part of a partial sum was taken, which others may be added to."""
        return self.why in ("takes its own slice of a partial sum", "takes its own entries of a partial sum")


class Beginning(NamedTuple):
    """Where something began.

    Attributes:
      eqn: the equation; None for an argument.
      calls: those around it, from within.
      name: what the hints call a dim of an operand that is sharded, and the argument.
    """

    eqn: Any
    calls: tuple[Any, ...] = ()
    name: tuple[str, str] = ("", "")

    @property
    def is_marked(self) -> bool:
        """Whether a hint says so."""
        return self.eqn is None or self.eqn.primitive.name == CLAIM

    @property
    def is_of_rows(self) -> bool:
        """Whether an operation made it of what a shard holds, and of nothing else."""
        return self.eqn is not None and _KINDS.get(self.eqn.primitive.name, "opaque") not in _NOT_OF_ROWS

    @property
    def written(self) -> Any:
        """Of the equation and those around it the innermost that the user wrote, none of a library's jaxprs."""
        for eqn, caller in zip((self.eqn, *self.calls), (*self.calls, None), strict=True):
            inner = _jax.jaxpr.inner_jaxprs(caller) if caller is not None else ()
            jaxpr = next((each for each in inner if any(eqn is one for one in each.eqns)), None)
            if eqn is not None and _jax.source.is_written_in(eqn, jaxpr):
                return eqn
        return self.eqn

    @property
    def gradient(self) -> Any:
        """The equation, or one around it, that differentiation made by transposing; None if none was."""
        eqns = () if self.is_marked else (self.eqn, *self.calls)
        return next((eqn for eqn in eqns if _jax.jaxpr.is_transposed(eqn)), None)

    @property
    def place(self) -> str:
        """Where the user wrote that, or called what it is in; of a gradient where it was asked for."""
        if self.gradient is not None:
            return _jax.source.gradient_place(self.gradient)
        return "" if self.eqn is None else _jax.source.equation_place(self.written)


def aligned_with(eqns: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The equations of another trace beside those of one; a claim, which only that makes, beside itself."""
    rest = iter([eqn for eqn in others if eqn.primitive.name != CLAIM])
    found = [eqn if eqn.primitive.name == CLAIM else next(rest, None) for eqn in eqns]
    return [] if None in found or next(rest, None) is not None else found


_EXTREMES = frozenset(["reduce_max", "reduce_min", "reduce_or", "reduce_and", "max", "min"])


def is_extreme(origin: Beginning) -> bool:
    """Whether what began there is an extreme, and no sum."""
    return origin.eqn is not None and origin.eqn.primitive.name in _EXTREMES


class JaxprRun:
    """One run of a jaxpr: what is known of its variables, and who calls it."""

    def __init__(self, jaxpr: Any, caller: JaxprRun | None, eqn: Any, given: Sequence[Any]) -> None:
        self.jaxpr, self.caller, self.eqn, self.given = jaxpr, caller, eqn, given
        self.makers: dict[Any, Any] = {var: each for each in jaxpr.eqns for var in each.outvars}
        self.path: Any = (id(jaxpr), id(eqn), caller and caller.path)  # the same in every iteration of a loop
        self.values: dict[Any, Share] = {}
        self.numbers: dict[Any, Any] = {}
        self.callees: dict[int, JaxprRun] = {}

    @cached_property
    def inputs(self) -> Mapping[Any, Any]:
        """By the variables of the jaxpr, what the caller gives for them."""
        return dict(zip(self.jaxpr.invars, self.given, strict=False))

    @property
    def calls(self) -> tuple[Any, ...]:
        """The equations that run it, from within."""
        return () if self.caller is None else (self.eqn, *self.caller.calls)


class ReadEquation(NamedTuple):
    """An equation as it is read.

    Attributes:
      eqn: in the region's own trace.
      other: in the second one, or the same.
      frame: the run of the jaxpr that it is in.
      reading: the reading.
    """

    eqn: Any
    other: Any
    frame: JaxprRun
    reading: Reading

    @property
    def name(self) -> str:
        return self.eqn.primitive.name

    @property
    def params(self) -> Any:
        return self.eqn.params

    def shape(self, at: int) -> tuple[int, ...]:
        """The shape of an operand on a shard."""
        return self.eqn.invars[at].aval.shape

    @property
    def result_shape(self) -> tuple[int, ...]:
        return self.eqn.outvars[0].aval.shape

    @property
    def rows(self) -> tuple[int, ...]:
        """The dims of the result that are as long as a shard's, as far as two traces show."""
        if self.eqn is self.other:
            return ()
        sizes = zip(self.result_shape, self.other.outvars[0].aval.shape, strict=False)
        return tuple(dim for dim, (first, second) in enumerate(sizes) if first != second)

    @property
    def is_inexact(self) -> bool:
        return _jax.array.is_inexact(self.eqn.outvars[0].aval.dtype)

    @property
    def is_inexact_operand(self) -> bool:
        return _jax.array.is_inexact(self.eqn.invars[0].aval.dtype)

    @property
    def part(self) -> Any:
        """The number of its result, as that of a part."""
        return self.reading.number_of(self.frame, self.eqn.outvars[0])

    def maker(self, at: int) -> Any:
        """The equation that made an operand in the same jaxpr, but for casts and moves."""
        atom = self.eqn.invars[at]
        while not _jax.jaxpr.is_literal(atom) and (eqn := self.frame.makers.get(atom)) is not None:
            if _KINDS.get(eqn.primitive.name) not in ("cast", "moving"):
                return eqn
            atom = eqn.invars[0]
        return None

    def lost(
        self, why: str, *values: Share, kind: str = "own", degree: Any = 0, is_soft: bool = False, **more: Any
    ) -> Share:
        """A value that is each shard's own from here on, with what its operands had.

        Of a term or a factor that is a part, the whole part is what is lost.
        """
        own = self.reading.lose((self.part, why), why, self, values, is_soft)
        before = frozenset() if is_soft else anyhow(*values)
        return Share(
            kind,  # type: ignore[arg-type]
            degree,
            gauge="?",
            own=frozenset({(own, 1)}) | before,
            may_cancel=any(value.may_cancel for value in values),
            reduced=NO_PARTS.union(*[value.reduced for value in values]),
            is_heard=any(value.is_heard for value in values),
            **more,
        )

    def mixed(self, value: Share) -> Share:
        """Each shard's own rows, added up: since here, as rows may differ."""
        origin = self.reading.origins.get(value.since)
        is_sent = origin is not None and self.reading.is_sent(value.since)
        if origin is None or not (is_sent or (origin.is_of_rows and origin.name != ("", ""))):
            return value
        since = ("sent", id(self.eqn)) if is_sent else id(self.eqn)
        self.reading.origins.setdefault(since, Beginning(self.eqn, self.frame.calls, origin.name))
        return value.but(since=since)

    def decided(self, why: str, by: Share, *values: Share) -> Share:
        """What is chosen by a value of which each shard has its own: of own rows, these are what counts."""
        reading = self.reading
        if not reading.is_soft(by):
            is_own = by.kind in ("own", "extreme", "sharded")  # no collective has made something of them
            return self.lost(why, by, *values, is_soft=is_own and reading.is_of_extremes(by))
        is_heard = any(value.is_heard for value in (by, *values))
        may_cancel = any(value.may_cancel for value in (by, *values))
        return Share("own", 0, gauge="?", own=anyhow(by, *values), is_heard=is_heard, may_cancel=may_cancel)


KindRule = Callable[[ReadEquation, "list[Share]"], "Share | Sequence[Share]"]
"""From an equation and its operands to its results; one value stands for all of them."""

_KINDS = {name: found.kind for name, found in _jax.primitives.PRIMITIVES.items()}
_NOT_OF_ROWS = frozenset(["collective", "index", "random", "branch", "loop", "outside", "opaque"])
# What computes nothing but what its operands say: of the same on every shard, the same.
_PURE = _jax.primitives.names_of(
    "cast", "moving", "joining", "sum", "product", "quotient", "homogeneous", "elementwise", "test", "extreme",
    "choice", "reducing", "ordering", "lookup", "placing", "matrix",
) - {CLAIM}  # fmt: skip
_CUTS = frozenset(["slice", "dynamic_slice"])
ENTRY_BY_ENTRY = _jax.primitives.names_of(
    "cast", "sum", "product", "quotient", "homogeneous", "elementwise", "test", "extreme", "choice"
) - {CLAIM, "dot_general", "conv_general_dilated", "conv", "ragged_dot", "ragged_dot_general", "bitcast_convert_type"}


class Reading:
    """What the values of a region are, over one axis.

    Args:
      axis: the mesh axis.
      numbers: what its numbers are.
      rules: by primitive.
      claims: claims beside the jaxpr, by variable.
      edits: changes that are tried: by the id of an equation, or the place of a result, what is made of its results.
    """

    def __init__(
        self,
        axis: str,
        numbers: Numbers,
        rules: Mapping[str, KindRule],
        claims: Mapping[Any, Sequence[Any]] | None = None,
        edits: Mapping[Any, Callable[[ReadEquation, list[Share], Sequence[Share]], Sequence[Share]]] | None = None,
    ) -> None:
        self.axis, self.numbers, self.claims, self.edits = axis, numbers, claims or {}, edits or {}
        self.rules: dict[str, KindRule] = defaultdict(lambda: _opaque, rules)
        self.losses: dict[Any, Loss] = {}
        self.makers: dict[Any, Beginning] = {}
        """By a part, where it was made."""
        self.twins: dict[Any, list[Beginning]] = defaultdict(list)
        """By a part, where the same was made once more."""
        self.ends: dict[int, str] = {}
        """By the id of an equation that makes an extreme, which."""
        self.earlier: dict[Any, Any] = {}
        """By a part, another one of which an operation made it, entry by entry."""
        self.marked: set[Any] = set()
        """The parts of which a hint says that their sum is due."""
        self.stated = set[Any]()
        """The parts of which a hint says by ``~`` that each shard has its own, and may do with it what it likes."""
        self.sent: list[Beginning] = []
        """Where partial sums are sent on: only the author knows what each shard has had in the end."""
        self.origins: dict[Any, Beginning] = {}
        """By the id of an equation or a part, where a value became each shard's own, or unknown."""
        self.collectives: dict[int, tuple[Any, tuple[Any, ...], Share]] = {}
        """The collectives over the axis, with those around them and what they are given first."""
        self.claimed: list[tuple[Any, Any, Share]] = []
        """What claims are made of: the equation, the claim, and what is known of the value."""
        self.outermost: JaxprRun | None = None
        self.runs: dict[int, JaxprRun] = {}
        """The last run of each jaxpr."""
        """The run of the region's body."""
        self.predicates: dict[int, Share] = {}
        """By the id of a branch or a loop, what decides which way it goes."""
        self._interned: dict[Any, int] = {}
        self._plain: dict[Share, Share] = {}
        self._literals: dict[Any, Share] = {}
        self._pairs: dict[tuple[int, int], Share | None] = {}
        self._remembered: dict[Any, tuple[Any, list[Share]]] = {}
        self._made = 0

    def read(self, jaxpr: Any, other: Any, given: Sequence[Share]) -> list[Share]:
        """The values of a region's results, from those of its operands.

        Raises:
          Unaligned: where the two traces do not have the same equations.
        """
        self.numbers.pmeans = lambda: self._pmeans(jaxpr)
        given, inputs = list(given), _jax.jaxpr.open_jaxpr(jaxpr).invars
        self.numbers.unsharded = frozenset(
            size
            for var, value in zip(inputs, given, strict=True)
            for dim, size in enumerate(getattr(var.aval, "shape", ()))
            if dim != value.dim
        )
        for at, value in enumerate(given):
            if value.kind == "sum":
                self.makers["argument", at] = Beginning(None, (), value.name)
                given[at] = value.but(part=("argument", at))
        return self.run(jaxpr, other, given, None, None, inputs)

    def _pmeans(self, jaxpr: Any) -> Mapping[Any, tuple[str, ...]]:
        if "pmeans" not in self._interned:
            self._interned["pmeans"] = pmean_axes([*_jax.jaxpr.all_equations(jaxpr)])  # type: ignore[assignment]
        return self._interned["pmeans"]  # type: ignore[return-value]

    def run(
        self,
        jaxpr: Any,
        other: Any,
        given: Sequence[Share],
        caller: JaxprRun | None,
        eqn: Any,
        atoms: Sequence[Any],
        is_call: bool = False,
    ) -> list[Share]:
        """The values of a jaxpr's results; remembered where nothing in it became a part or was lost."""
        body, body2 = _jax.jaxpr.open_jaxpr(jaxpr), _jax.jaxpr.open_jaxpr(other)
        key = (id(body), tuple(given))
        if key in self._remembered:
            return self._remembered[key][1]
        made = self._made
        frame = JaxprRun(body, caller, eqn, atoms)
        self.outermost = self.outermost or frame
        self.runs[id(body)] = frame
        if is_call and caller is not None:
            caller.callees[id(eqn)] = frame
        values = frame.values
        for at, var in enumerate(body.constvars):
            consts = [getattr(each, "consts", ()) for each in (jaxpr, other)]
            known = all(len(each) > at for each in consts)
            values[var] = self.numbers.literal([each[at] for each in consts]) if known else SAME
        values.update(zip(body.invars, given, strict=True))
        if len(body.invars) != len(body2.invars) or len(body.outvars) != len(body2.outvars):
            raise Unaligned
        others = body2.eqns if body2 is body else aligned_with(body.eqns, body2.eqns)
        if len(others) != len(body.eqns):
            raise Unaligned
        rules, claims, edits = self.rules, self.claims, self.edits
        literal = _jax.versions.extend_core().Literal
        for eqn, other_eqn in zip(body.eqns, others, strict=True):
            name = eqn.primitive.name
            if eqn is not other_eqn and (name != other_eqn.primitive.name or len(eqn.invars) != len(other_eqn.invars)):
                raise Unaligned
            operands: list[Share] = []
            plain: Share | None = SAME
            """What plain operands make together; None where they are not, or make something else."""
            has_number = False
            for at, atom in enumerate(eqn.invars):
                is_literal = atom.__class__ is literal
                value = self._literal(atom, other_eqn.invars[at], eqn) if is_literal else values[atom]
                operands.append(value)
                if value is SAME or plain is None:
                    continue
                if not value.is_plain:
                    plain = None
                elif value.number is not None:
                    has_number = True
                elif plain is SAME:
                    plain = value
                elif plain is not value:
                    plain = self._together(plain, value)
            outvars = eqn.outvars
            if (
                plain is not None
                and ((plain.kind == "same" and name in _PURE) or (name in ENTRY_BY_ENTRY and len(outvars) == 1))
                and not (has_number and plain is SAME and not (name in ENTRY_BY_ENTRY and outvars[0].aval.shape))
                and (eqn is other_eqn or name != "reduce_sum")  # which may add more entries in the other trace
                and not (name in _CUTS and plain.kind == "same" and self._may_take_rows(eqn))
            ):
                results: Sequence[Share] = (plain,) * len(outvars)
            else:
                step = ReadEquation(eqn, other_eqn, frame, self)
                found = rules[name](step, operands)
                results = (found,) * len(outvars) if isinstance(found, Share) else found
                if edits and id(eqn) in edits:
                    results = edits[id(eqn)](step, operands, results)
                results = [
                    value if value.is_plain else self._settled(value, frame, var, operands)
                    for value, var in zip(results, outvars, strict=True)
                ]
                if name == CLAIM and not _jax.jaxpr.is_literal(eqn.invars[0]):
                    values[eqn.invars[0]] = results[0]
            for var, value in zip(outvars, results, strict=True):
                if claims and var in claims:
                    for claim in claims[var]:
                        value = self._claimed(claim, value, frame)
                values[var] = value
        outcome = [
            self._literal(x, y, None) if x.__class__ is literal else values[x]
            for x, y in zip(body.outvars, body2.outvars, strict=True)
        ]
        if made == self._made:
            self._remembered[key] = body, outcome
        return outcome

    def value_of(self, var: Any) -> Share | None:
        """What a variable of some jaxpr was when that ran last; None for one of a jaxpr that was not read."""
        return next((run.values[var] for run in self.runs.values() if var in run.values), None)

    def _may_take_rows(self, eqn: Any) -> bool:
        """Whether a slice is as long as a shard, so that every shard may take the same rows."""
        lengths, pair = self.numbers.row_lengths, (eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)
        return any(after in lengths and after != before for before, after in zip(*pair, strict=True))

    def _together(self, a: Share, b: Share) -> Share | None:
        """What two plain values make, entry by entry; None where they do not lie along one dim."""
        key = id(a), id(b)  # plain values are kept
        if key not in self._pairs:
            rows = a if a.kind == "sharded" else b
            is_plain = a.kind == "same" or b.kind == "same" or a.dim == b.dim
            found = rows._replace(reduced=a.reduced | b.reduced, is_heard=a.is_heard or b.is_heard)
            self._pairs[key] = self._plain.setdefault(found, found) if is_plain else None
        return self._pairs[key]

    def _claimed(self, claim: Any, value: Share, frame: JaxprRun) -> Share:
        """A value after a claim that is kept beside the jaxpr."""
        step = ReadEquation(claim, claim, frame, self)
        found = self.rules[CLAIM](step, [value])
        value = found if isinstance(found, Share) else found[0]
        if id(claim) in self.edits:
            (value,) = self.edits[id(claim)](step, [value], [value])
        if value.kind != "sum" or value.part is not None:
            return value
        self.makers.setdefault(("claim", id(claim)), Beginning(claim, frame.calls))
        return value.but(part=("claim", id(claim)))

    def _literal(self, atom: Any, other: Any, eqn: Any) -> Share:
        if self.numbers.has_second:
            return self.numbers.literal([atom.val, other.val], eqn)
        if atom.aval.shape:
            return self.numbers.literal([atom.val], eqn)
        key = atom.aval.dtype, str(atom.val)
        known = self._literals.get(key)
        if known is None:
            known = self.numbers.literal([atom.val], eqn)
            if not self.numbers.is_asked:  # of others it depends on where they stand
                self._literals[key] = known
        return known

    def _settled(self, value: Share, frame: JaxprRun, var: Any, operands: Sequence[Share]) -> Share:
        """A value with where it began, if that is here: a sum or an extreme gets a number, by which it is known."""
        is_astray = value.kind in ("own", "unknown") or (value.kind == "sharded" and value.order != 0)
        if is_astray and value.since is None:
            since = self.since(operands)
            eqn = frame.makers.get(var)
            if since is None and eqn is not None:
                since = id(eqn)
                self.origins.setdefault(since, Beginning(eqn, frame.calls, _name_of(operands)))
            return value.but(since=since)
        if value.kind not in ("sum", "extreme") or value.part is not None:
            if not is_plain(value):
                return value
            value = value._replace(is_plain=True, root=None)
            return SAME if value == SAME else self._plain.setdefault(value, value)
        self._made += 1
        part = self.number_of(frame, var)
        made = Beginning(frame.makers.get(var), frame.calls, _name_of(operands))
        if self.makers.setdefault(part, made).eqn is not made.eqn:
            self.twins[part].append(made)
        if value.kind == "extreme":
            self.ends.setdefault(id(frame.makers.get(var)), value.end)
        before = {operand.part for operand in operands if operand.kind == value.kind} - {None}
        if len(before) == 1:
            self.earlier.setdefault(part, before.pop())
        return value.but(part=part)

    def since(self, values: Sequence[Share]) -> int | None:
        """Since when one of some values is each shard's own: what shards sent on counts more than anything else."""
        found = [value.since for value in values if value.since is not None]
        return next(filter(self.is_sent, found), found[0] if found else None)

    def is_sent(self, since: Any) -> bool:
        """Whether that is where shards sent on what they hold, or added up what was sent."""
        eqn = self.origins[since].eqn
        is_sending = eqn is not None and _jax.jaxpr.collective_operation(eqn) == "collective-permute"
        return is_sending or (isinstance(since, tuple) and since[0] == "sent")

    def number_of(self, frame: JaxprRun, atom: Any, depth: int = _DEPTH) -> Any:
        """A number that is equal for computations that are seen to be equal."""
        while not _jax.jaxpr.is_literal(atom) and atom not in frame.makers and frame.caller is not None:
            given = frame.inputs.get(atom)
            if given is None:
                break
            frame, atom = frame.caller, given
        if _jax.jaxpr.is_literal(atom):
            return ("literal", str(atom.val))
        if atom in frame.numbers:
            return frame.numbers[atom]
        value, eqn = frame.values.get(atom), frame.makers.get(atom)
        key: Any = (frame.path, id(atom))
        if value is not None and value.kind == "extreme" and value.part is not None:
            key = ("part", value.part)
        elif eqn is not None and (callee := frame.callees.get(id(eqn))) is not None:
            return self.number_of(callee, callee.jaxpr.outvars[eqn.outvars.index(atom)], depth)
        elif eqn is not None and eqn.primitive.name in _PURE and len(eqn.invars) <= 4:
            if not depth:
                return self._interned.setdefault(key, len(self._interned))
            operands = tuple(self.number_of(frame, operand, depth - 1) for operand in eqn.invars)
            if _KINDS.get(eqn.primitive.name) == "cast" and len(eqn.invars) == 1:
                return operands[0]
            key = (eqn.primitive.name, operands, _params(eqn), eqn.outvars.index(atom))
        number = self._interned.setdefault(key, len(self._interned))
        frame.numbers[atom] = number
        return number

    def lose(
        self,
        own: Any,
        why: str,
        step: ReadEquation,
        values: Sequence[Share] = (),
        is_soft: bool = False,
        is_common: bool = False,
    ) -> Any:
        """Note that something is each shard's own, and how it came to be; its number."""
        self._made += 1
        parts = {value.part for value in values if value.part is not None}
        parts.update(part for value in values for each, _ in value.own for part in self.losses[each].parts)
        found = frozenset(parts) or frozenset({own})
        degrees = [self.numbers.known(value.degree) for value in values]
        degree = max((each for each in degrees if isinstance(each, int | Fraction)), key=abs, default=0)
        loss = Loss(why, step.eqn, step.frame.calls, found, is_soft, is_common, degree, _name_of(values))
        self.losses.setdefault(own, loss)
        return own

    def maker_of(self, part: Any) -> Beginning | None:
        """Where a part was made, or that of which it is the negative."""
        return self.makers.get(part[1] if is_negative(part) else part)

    def makers_of(self, parts: Iterable[Any]) -> list[Beginning]:
        """Where some parts were made, each time."""
        found = list[Beginning]()
        for part in parts:
            if (maker := self.maker_of(part)) is not None:
                found += [maker, *self.twins.get(part[1] if is_negative(part) else part, ())]
        return found

    def is_soft(self, value: Share) -> bool:
        """Whether all that is own in a value is what a shard did with its own rows."""
        return bool(value.own) and all(self.losses[own].is_soft for own, _ in value.own)

    def losses_of(self, value: Share) -> tuple[Loss, ...]:
        """How what is own in a value came to be, in the order of the program."""
        names = {own for own, _ in value.own}
        return tuple(loss for own, loss in self.losses.items() if own in names) if names else ()

    def is_marked(self, parts: Iterable[Any]) -> bool:
        """Whether a hint says of one of some parts that it is due."""
        return any(part in self.marked or (part in self.makers and self.makers[part].is_marked) for part in parts)

    def is_of_extremes(self, value: Share) -> bool:
        """Whether all that is own in a value comes of a shard's own extremes."""
        parts = {part for own, _ in value.own for part in self.losses[own].parts} | ({value.part} - {None})
        origins = [self.makers.get(part) for part in parts]
        is_extremes = all(origin is not None and is_extreme(origin) for origin in origins)
        return value.kind == "extreme" or (bool(origins) and is_extremes)

    def softened(self, value: Share, others: Sequence[Share]) -> Share:
        """A value without what a shard did with its own rows alone, where something of other shards joins in."""
        if not value.own or not any(other.is_heard for other in others):
            return value
        own = frozenset(each for each in value.own if not self.losses[each[0]].is_soft)
        if own == value.own:
            return value
        kind = "own" if not own else value.kind
        return value.but(own=own, gauge=value.gauge if own else "", is_heard=True, kind=kind)


def _params(eqn: Any) -> Any:
    """What an equation computes, to be compared with that of others."""
    params = tuple(value for name, value in eqn.params.items() if "sharding" not in name)
    try:
        hash(params)
    except TypeError:
        return tuple(map(id, params))
    return params


def _name_of(operands: Sequence[Share]) -> tuple[str, str]:
    return next((value.name for value in operands if value.kind == "sharded"), ("", ""))


def _opaque(step: ReadEquation, values: list[Share]) -> Share:
    """What nothing is known of."""
    if values and all(value is SAME for value in values) and not step.eqn.effects and step.name in _PURE:
        return SAME
    return unknown(values, is_heard=True)


# ----------------------------------------------------------------------------------------------- calls and control flow


def call(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A call of a jaxpr with the same operands."""
    find = _jax.jaxpr.hi_jaxpr if step.name == "call_hi_primitive" else _jax.jaxpr.called_jaxpr
    jaxpr, other = find(step.eqn), find(step.other)
    if jaxpr is None or other is None:
        return [unknown(values, is_heard=True)] * len(step.eqn.outvars)
    count = len(jaxpr.invars)
    return step.reading.run(jaxpr, other, values[:count], step.frame, step.eqn, step.eqn.invars[:count], is_call=True)


def linear_solve(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A solver with a gradient of its own: one of its jaxprs computes the solution."""
    lengths, jaxprs = step.params["const_lengths"], step.params["jaxprs"]
    first, last = lengths.matvec + lengths.vecmat, sum(lengths)
    sides = values[last:]
    if all(value.kind == "same" and not value.own for value in (*values[: lengths.matvec], *sides)):
        matrix = [*values[: lengths.matvec], *[SAME] * len(sides)]
        atoms = [*step.eqn.invars[: lengths.matvec], *[None] * len(sides)]
        products = step.reading.run(
            jaxprs.matvec, step.other.params["jaxprs"].matvec, matrix, step.frame, step.eqn, atoms
        )
        if all(value.kind == "same" and not value.own for value in products):
            return [
                side if product is SAME else side.but(degree=sum_of(side.degree, product.degree, -1), is_heard=True)
                for side, product in zip(sides, products, strict=True)
            ]
    given = [*range(first, first + lengths.solve), *range(last, len(values))]
    atoms = [step.eqn.invars[at] for at in given]
    return step.reading.run(
        jaxprs.solve, step.other.params["jaxprs"].solve, [values[at] for at in given], step.frame, step.eqn, atoms
    )


def branch(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """One of several branches, by an index."""
    which, operands, reading = values[0], values[1:], step.reading
    reading.predicates[id(step.eqn)] = which
    ways = [
        reading.run(jaxpr, other, operands, step.frame, step.eqn, step.eqn.invars[1:])
        for jaxpr, other in zip(step.params["branches"], step.other.params["branches"], strict=True)
    ]
    results = [_either_way(reading, each) for each in zip(*ways, strict=True)]
    if which.kind == "unknown":
        return [unknown(values).but(since=which.since)] * len(results)
    is_of_own_rows = reading.is_soft(which) or reading.is_of_extremes(which)  # as to skip what changes nothing
    if (which.kind in ("sum", "extreme") or which.own) and not is_of_own_rows:
        return [step.lost("takes a branch by", which, value) for value in results]
    if is_of_own_rows or which.kind in ("own", "sharded"):
        return [_chosen(step, value, is_of_own_rows or which.is_heard) for value in results]
    return results


def _either_way(reading: Reading, ways: Sequence[Share]) -> Share:
    """The result of one of several branches; of a sum that only some of them take it is known where that began."""
    sums = [way for way in ways if way.kind == "sum"]
    terms = [way.beside for way in sums if way.beside is not None]
    terms += [way.degree for way in ways if way.kind == "same" and not way.is_zero]
    if sums and terms and all(way.kind in ("sum", "same") and not way.own for way in ways):
        value = reduce(lambda a, b: join(reading, a, b), [way.but(beside=None) for way in sums])
        return value.but(beside=terms[0] if len(set(terms)) == 1 else UNKNOWN)
    value = reduce(lambda a, b: join(reading, a, b), ways)
    part = next((way.part for way in ways if way.kind == "sum"), None)
    origin = reading.makers.get(part)
    if value.kind != "unknown" or value.since is not None or origin is None or origin.eqn is None:
        return value
    reading.origins.setdefault(id(origin.eqn), origin)
    return value.but(since=id(origin.eqn))


def _chosen(step: ReadEquation, value: Share, is_heard: bool) -> Share:
    """A value of which each shard chose its own."""
    step.reading.origins.setdefault(id(step.eqn), Beginning(step.eqn, step.frame.calls))
    is_heard = value.is_heard or is_heard
    return value.but(kind="own", dim=None, order=0, part=None, is_heard=is_heard, since=id(step.eqn))


def loop(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A while loop."""
    reading, eqn, other = step.reading, step.eqn, step.other
    conds, consts, carry = _jax.jaxpr.while_operands(eqn, values)
    cond_atoms, const_atoms, _ = _jax.jaxpr.while_operands(eqn, eqn.invars)
    carry = [_unnumbered(value) for value in carry]

    def iteration(now: list[Share]) -> list[Share]:
        atoms = [*const_atoms, *[None] * len(now)]
        return reading.run(
            eqn.params["body_jaxpr"], other.params["body_jaxpr"], [*consts, *now], step.frame, eqn, atoms
        )

    carry = _fixed_point(reading, carry, iteration)[0]
    atoms = [*cond_atoms, *[None] * len(carry)]
    (goes_on,) = reading.run(
        eqn.params["cond_jaxpr"], other.params["cond_jaxpr"], [*conds, *carry], step.frame, eqn, atoms
    )
    reading.predicates[id(eqn)] = goes_on
    if goes_on.kind == "unknown":
        return [unknown(values).but(since=goes_on.since)] * len(carry)
    is_of_own_rows = reading.is_soft(goes_on) or reading.is_of_extremes(goes_on)
    if (goes_on.kind in ("sum", "extreme") or goes_on.own) and not is_of_own_rows:
        return [step.lost("goes on by", goes_on, value) for value in carry]
    if is_of_own_rows or goes_on.kind in ("own", "sharded"):
        return [_chosen(step, value, True) for value in carry]
    return carry


def scan(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A loop over leading dims."""
    reading, eqn, other = step.reading, step.eqn, step.other
    consts, count = _jax.jaxpr.scan_counts(eqn.params)
    fixed, before = values[:consts], [_unnumbered(value) for value in values[consts : consts + count]]
    items = [_item(value) for value in values[consts + count :]]
    is_over_rows = any(item.dim == "rows" for item in items)
    is_long = eqn.params["length"] != other.params["length"]
    atoms = [*eqn.invars[:consts], *[None] * (len(values) - consts)]
    body = _jax.jaxpr.open_jaxpr(eqn.params["jaxpr"])
    folds = [_fold(body, consts + at, at, reading.edits) for at in range(count)]
    started = [_NEUTRAL.get(fold, value) for fold, value in zip(folds, before, strict=True)]

    def iteration(now: list[Share]) -> list[Share]:
        jaxprs = eqn.params["jaxpr"], other.params["jaxpr"]
        results = reading.run(*jaxprs, [*fixed, *now, *items], step.frame, eqn, atoms)
        after = [
            started[at]
            if folds[at]
            else step.lost("scans its own rows of", value, is_soft=True)
            if is_over_rows and value.dim == "rows"
            else value
            for at, value in enumerate(results[:count])
        ]
        turned.append(results)
        return [*after, *results[count:]]

    turned: list[list[Share]] = []
    carried, results = _fixed_point(reading, started, iteration)
    if is_long and not is_over_rows:
        carried = [value if value == was else heard(NOT_KNOWN) for value, was in zip(carried, started, strict=True)]
    for at, fold in enumerate(folds):
        if fold:
            carried[at] = _folded(step, fold, before[at], turned[-1][at], body, at, is_over_rows)
    for at, value in enumerate(carried):
        if value.kind in ("sum", "extreme") and value.part is None:
            carried[at] = value = value.but(part=("iterations", step.part, at))
        if value.kind in ("sum", "extreme"):
            origin = Beginning(_made_in(eqn, at), (eqn, *step.frame.calls), _name_of(items))
            reading.makers.setdefault(value.part, origin)
    return [*carried, *[_stacked(step, value, is_over_rows, is_long) for value in results[count:]]]


_FOLDS = {"add": "add", "add_any": "add", "sub": "add", "max": "max", "min": "min"}
_NEUTRAL = {
    "add": Share("same", ANY),
    "max": Share("same", 0, number=(float("-inf"),) * 2),
    "min": Share("same", 0, number=(float("inf"),) * 2),
}


def _fold(body: Any, at_input: int, at_result: int, edits: Mapping[Any, Any]) -> str:
    """How a loop folds what a iteration makes into what it carries, if that is all that it does with it."""
    carried, result = body.invars[at_input], body.outvars[at_result]
    *casts, made = _through_casts(body, result)
    eqn = None if _jax.jaxpr.is_literal(made) else _jax.jaxpr.maker_of(body, made)
    if eqn is None or eqn.primitive.name not in _FOLDS or id(eqn) in edits:
        return ""
    operands = eqn.invars[:1] if eqn.primitive.name == "sub" else eqn.invars
    ways = [way for way in (_through_casts(body, atom) for atom in operands) if way[-1] is carried]
    is_used_once = len(ways) == 1 and all(_uses(body)[atom] == 1 for atom in (*casts, made, *ways[0]))
    return _FOLDS[eqn.primitive.name] if is_used_once else ""


def _through_casts(body: Any, atom: Any) -> list[Any]:
    """A value, and what it was cast from, as far back as that goes."""
    atoms = [atom]
    while not _jax.jaxpr.is_literal(atom) and (eqn := _jax.jaxpr.maker_of(body, atom)) is not None:
        if _KINDS.get(eqn.primitive.name) != "cast" or len(eqn.invars) != 1:
            break
        atom = eqn.invars[0]
        atoms.append(atom)
    return atoms


def _cast_maker(body: Any, atom: Any) -> Any:
    """The equation that made a value, but for casts."""
    atom = _through_casts(body, atom)[-1]
    return None if _jax.jaxpr.is_literal(atom) else _jax.jaxpr.maker_of(body, atom)


@lru_cache(maxsize=64)
def _uses(body: Any) -> Counter[Any]:
    """How often each variable of a jaxpr is an operand or a result."""
    atoms = [*(atom for eqn in body.eqns for atom in eqn.invars), *body.outvars]
    return Counter(atom for atom in atoms if not _jax.jaxpr.is_literal(atom))


def _folded(
    step: ReadEquation, fold: str, start: Share, iteration: Share, body: Any, at: int, is_over_rows: bool
) -> Share:
    """What a loop has folded up in the end: what it began with, and what all of its iterations made."""
    lengths = [eqn.params["length"] for eqn in (step.eqn, step.other)]
    if fold != "add":
        if iteration.kind == "sharded" and iteration.dim == "rows" and not iteration.own:
            iteration = Share(
                "extreme", iteration.degree, end=fold, reduced=iteration.reduced, is_heard=iteration.is_heard
            )
        is_bound = (start.kind == "same" and not start.own) or step.reading.is_soft(start)
        return iteration if is_bound and iteration.kind in ("same", "extreme") else join(step.reading, start, iteration)
    if iteration.dim == "rows":
        iteration = accumulated(iteration)
    elif iteration.kind in ("same", "sharded", "local") and not iteration.is_zero:
        iteration = scaled(iteration, step.reading.numbers.iterations(lengths, step.eqn, is_over_rows))
    elif lengths[0] != lengths[1] and not iteration.is_zero:
        iteration = heard(NOT_KNOWN)
    eqn = _cast_maker(body, body.outvars[at])
    frame = JaxprRun(body, step.frame, step.eqn, ())
    if start.is_zero:
        return iteration
    total = step.reading.rules["add"](ReadEquation(eqn, eqn, frame, step.reading), [start, iteration])
    return total if isinstance(total, Share) else total[0]


def _made_in(eqn: Any, at: int) -> Any:
    """The equation of a loop's body that made what it carries; else the loop."""
    jaxpr = _jax.jaxpr.open_jaxpr(eqn.params["jaxpr"])
    return _jax.jaxpr.maker_of(jaxpr, jaxpr.outvars[at]) or eqn


def _unnumbered(value: Share) -> Share:
    return value.but(number=None, line=None) if value.number is not None or value.line is not None else value


def _item(value: Share) -> Share:
    """One of the items over which a loop goes."""
    if value is SAME:
        return value
    value = _unnumbered(value)
    if value.kind in ("sharded", "local") and value.dim == 0:
        return value.but(dim="rows")
    if value.kind == "parts" and value.dim == 0:
        return heard(NOT_KNOWN)
    return value.but(dim=value.dim - 1) if isinstance(value.dim, int) else value


def accumulated(value: Share) -> Share:
    """Rows of a shard, or what a psum made of such rows, added up."""
    if value.kind == "local" and value.place == "folded":
        return value.but(kind="same", dim=None, place="")
    if value.kind != "sharded":
        return value
    return Share("sum", value.degree, reduced=value.reduced, is_heard=value.is_heard, **value.gauges)


def _stacked(step: ReadEquation, value: Share, is_over_rows: bool, is_long: bool) -> Share:
    """What a loop returns of each iteration, along a new dim."""
    if value.dim == "rows":
        return value.but(dim=0)
    if is_over_rows:
        if value.kind == "same":
            return value if value.is_zero else Share("sharded", value.degree, dim=0, **value.gauges)
        if value.kind == "sum":
            return step.lost("scans its own rows of", value, is_soft=True)
        return value
    if is_long:
        return NOT_KNOWN
    return _unnumbered(value.but(dim=value.dim + 1) if isinstance(value.dim, int) else value)


def _fixed_point(
    reading: Reading, carry: list[Share], iteration: Callable[[list[Share]], list[Share]]
) -> tuple[list[Share], list[Share]]:
    """What a loop carries before every iteration, and what a iteration returns."""
    if all(value is SAME for value in carry):
        results = iteration(carry)
        if all(value is SAME for value in results[: len(carry)]):
            return carry, results
    for _ in range(_MOST_ITERATIONS):
        results = iteration(carry)
        after = [join(reading, now, _unnumbered(then)) for now, then in zip(carry, results, strict=False)]
        if after == carry:
            return carry, results
        carry = after
    carry = [now if now == then else NOT_KNOWN for now, then in zip(carry, iteration(carry), strict=False)]
    return carry, iteration(carry)


def join(reading: Reading, a: Share, b: Share) -> Share:
    """What is known of a value that is one of two."""
    if a is b or a == b:
        return a
    if a.kind == "unknown" or b.kind == "unknown":
        return unknown((a, b)).but(since=_since_either(reading, a, b))
    for zero, value in ((a, b), (b, a)):
        if zero.is_zero and zero.kind == "same":
            return _unnumbered(value)
    more: dict[str, Any] = {
        "gauge": "?" if a.own or b.own else "",
        "own": anyhow(a, b),
        "may_cancel": a.may_cancel or b.may_cancel,
        "reduced": a.reduced | b.reduced,
        "is_heard": a.is_heard or b.is_heard,
        "is_positive": a.is_positive and b.is_positive,
    }
    if "own" in (a.kind, b.kind):
        return Share("own", 0, since=reading.since((a, b)), **more)
    degree = reading.numbers.agree(a.degree, b.degree)
    kinds = {a.kind, b.kind}
    if degree is None and kinds == {"same"} and a.number is not None and b.number is not None:
        degree = 0
    if degree is None:
        degree = UNKNOWN
    if kinds == {"same"}:
        return (
            SAME
            if degree == 0 and not more["own"] and not more["is_heard"] and not more["reduced"]
            else Share("same", degree, **more)
        )
    dims = {value.dim for value in (a, b) if value.kind in ("sharded", "local")}
    if kinds <= {"same", "sharded"} and len(dims) == 1:
        name = a.name if a.kind == "sharded" else b.name
        return Share("sharded", degree, dim=dims.pop(), order=a.order or b.order, name=name, **more)
    if kinds == {"sum"} and a.beside == b.beside:
        return Share("sum", degree, a.beside, part=a.part if a.part == b.part else None or a.part, **more)
    if kinds == {"extreme"} and a.end == b.end:
        return Share("extreme", degree, end=a.end, part=a.part, **more)
    if kinds <= {"same", "local"} and len(dims) == 1:
        return Share("local", degree, dim=dims.pop(), **more)
    if kinds == {"same", "extreme"}:  # before the first iteration of a running extreme
        found, start = (a, b) if a.kind == "extreme" else (b, a)
        bound = start.number[0] if start.number is not None else None
        if bound is not None and abs(bound) > 1e6:
            return found.but(**more)
    return unknown((a, b)).but(since=_since_either(reading, a, b))


def _since_either(reading: Reading, a: Share, b: Share) -> Any:
    """Since when a value is not known that is one of two: since a part was made, if one of them is that part."""
    if (since := reading.since((a, b))) is not None:
        return since
    for value in (a, b):
        if value.part in reading.makers:
            reading.origins.setdefault(value.part, reading.makers[value.part])
            return value.part
    return None


RULES: Mapping[str, KindRule] = {
    **{name: call for name, found in _jax.primitives.PRIMITIVES.items() if found.kind == "call"},
    "custom_linear_solve": linear_solve,
    "cond": branch,
    "while": loop,
    "scan": scan,
}
