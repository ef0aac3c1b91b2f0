"""Read a region over one mesh axis: what each value is of the whole, from one trace, or from two of other sizes.

Of two traces the equations are the same; a number that differs between them has a degree, and a dim whose length does
is as long as a shard's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from ... import _jax
from .numbers import Numbers, pmean_axes
from .origins import Beginning, Loss, is_extreme
from .value import (
    NO_PARTS,
    SAME,
    Share,
    anyhow,
    is_negative,
    is_plain,
    unknown,
)

CLAIM = _jax.jaxpr.CLAIM
_DEPTH = 6
"""How far back two computations are compared to find that they compute the same."""


class Unaligned(Exception):
    """The two traces do not have the same equations, and nothing is known of degrees."""


def aligned_with(eqns: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The equations of another trace beside those of one; a claim, which only that makes, beside itself."""
    rest = iter([eqn for eqn in others if eqn.primitive.name != CLAIM])
    found = [eqn if eqn.primitive.name == CLAIM else next(rest, None) for eqn in eqns]
    return [] if None in found or next(rest, None) is not None else found


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
# What computes nothing but what its operands say: of the same on every shard, the same.
_PURE = _jax.primitives.names_of(
    "cast", "moving", "joining", "sum", "product", "quotient", "homogeneous", "elementwise", "test", "extreme",
    "choice", "reducing", "ordering", "lookup", "placing", "matrix",
) - {CLAIM}  # fmt: skip
_CUTS = frozenset(["slice", "dynamic_slice"])
ENTRY_BY_ENTRY = frozenset(
    [name for name, found in _jax.primitives.PRIMITIVES.items() if found.is_entry_by_entry and name != CLAIM]
)


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
                self.origins.setdefault(since, Beginning(eqn, frame.calls, name_of(operands)))
            return value.but(since=since)
        if value.kind not in ("sum", "extreme") or value.part is not None:
            if not is_plain(value):
                return value
            value = value._replace(is_plain=True, root=None)
            return SAME if value == SAME else self._plain.setdefault(value, value)
        self._made += 1
        part = self.number_of(frame, var)
        made = Beginning(frame.makers.get(var), frame.calls, name_of(operands))
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
        loss = Loss(why, step.eqn, step.frame.calls, found, is_soft, is_common, degree, name_of(values))
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


def name_of(operands: Sequence[Share]) -> tuple[str, str]:
    """What the hints call the sharded dim of the first operand that has one, and its argument."""
    return next((value.name for value in operands if value.kind == "sharded"), ("", ""))


def _opaque(step: ReadEquation, values: list[Share]) -> Share:
    """What nothing is known of."""
    if values and all(value is SAME for value in values) and not step.eqn.effects and step.name in _PURE:
        return SAME
    return unknown(values, is_heard=True)
