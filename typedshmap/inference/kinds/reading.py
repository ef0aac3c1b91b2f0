"""Read a region over one mesh axis: what each value is of the whole, from one trace, or from two of other sizes.

Of two traces the equations are the same; a number that differs between them has a degree, and a dim whose length does is
as long as a shard's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from ... import _jax
from .numbers import Numbers, pmean_axes
from .value import NO_PARTS, NOT_KNOWN, SAME, UNKNOWN, Value, anyhow, heard, unknown

CLAIM = _jax.jaxpr.CLAIM
_MOST_ITERATIONS = 6
_DEPTH = 5
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
    """

    why: str
    eqn: Any
    calls: tuple[Any, ...]
    parts: frozenset[Any]
    is_soft: bool = False
    is_common: bool = False


class Frame:
    """One run of a jaxpr: what is known of its variables, and who calls it."""

    def __init__(self, jaxpr: Any, caller: Frame | None, eqn: Any, given: Sequence[Any]) -> None:
        self.jaxpr, self.caller, self.eqn, self.given = jaxpr, caller, eqn, given
        self.values: dict[Any, Value] = {}
        self.makers: dict[Any, Any] = {}
        self.numbers: dict[Any, Any] = {}

    @property
    def calls(self) -> tuple[Any, ...]:
        """The equations that run it, from within."""
        return () if self.caller is None else (self.eqn, *self.caller.calls)


class Step(NamedTuple):
    """An equation as it is read.

    Attributes:
      eqn: in the region's own trace.
      other: in the second one, or the same.
      frame: the run of the jaxpr that it is in.
      reading: the reading.
    """

    eqn: Any
    other: Any
    frame: Frame
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
        self, why: str, *values: Value, kind: str = "own", degree: Any = 0, is_soft: bool = False, **more: Any
    ) -> Value:
        """A value that is each shard's own from here on, with what its operands had.

        Of a term or a factor that is a part, the whole part is what is lost.
        """
        own = self.reading.lose((self.part, why), why, self, values, is_soft)
        before = frozenset() if is_soft else anyhow(*values)
        return Value(
            kind,  # type: ignore[arg-type]
            degree,
            gauge="?",
            own=frozenset({(own, 1)}) | before,
            may_cancel=any(value.may_cancel for value in values),
            reduced=NO_PARTS.union(*[value.reduced for value in values]),
            is_heard=any(value.is_heard for value in values),
            **more,
        )


Rule = Callable[[Step, "list[Value]"], "Value | Sequence[Value]"]
"""From an equation and its operands to its results; one value stands for all of them."""

_KINDS = {name: found.kind for name, found in _jax.primitives.PRIMITIVES.items()}
# What computes nothing but what its operands say: of the same on every shard, the same.
_PURE = _jax.primitives.names_of(
    "cast", "moving", "joining", "sum", "product", "quotient", "homogeneous", "elementwise", "test", "extreme", "choice",
    "reducing", "ordering", "lookup", "placing", "matrix",
) - {CLAIM}  # fmt: skip
_ENTRY_BY_ENTRY = _jax.primitives.names_of(
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
        rules: Mapping[str, Rule],
        claims: Mapping[Any, Sequence[Any]] | None = None,
        edits: Mapping[Any, Callable[[Step, list[Value], Sequence[Value]], Sequence[Value]]] | None = None,
    ) -> None:
        self.axis, self.numbers, self.claims, self.edits = axis, numbers, claims or {}, edits or {}
        self.rules: dict[str, Rule] = defaultdict(lambda: _opaque, rules)
        self.losses: dict[Any, Loss] = {}
        self.makers: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
        """By a part, the equation that made it and those around that."""
        self.collectives: dict[int, tuple[Any, tuple[Any, ...], Value]] = {}
        """The collectives over the axis, with those around them and what they are given first."""
        self.claimed: list[tuple[Any, Any, Value]] = []
        """What claims are made of: the equation, the claim, and what is known of the value."""
        self._interned: dict[Any, int] = {}
        self._remembered: dict[Any, tuple[Any, list[Value]]] = {}
        self._made = 0

    def read(self, jaxpr: Any, other: Any, given: Sequence[Value]) -> list[Value]:
        """The values of a region's results, from those of its operands.

        Raises:
          Unaligned: where the two traces do not have the same equations.
        """
        self.numbers.pmeans = lambda: self._pmeans(jaxpr)
        return self.run(jaxpr, other, list(given), None, None, _jax.jaxpr.open_jaxpr(jaxpr).invars)

    def _pmeans(self, jaxpr: Any) -> Mapping[Any, tuple[str, ...]]:
        if "pmeans" not in self._interned:
            self._interned["pmeans"] = pmean_axes([*_jax.jaxpr.all_equations(jaxpr)])  # type: ignore[assignment]
        return self._interned["pmeans"]  # type: ignore[return-value]

    def run(
        self, jaxpr: Any, other: Any, given: Sequence[Value], caller: Frame | None, eqn: Any, atoms: Sequence[Any]
    ) -> list[Value]:
        """The values of a jaxpr's results; remembered where nothing in it became a part or was lost."""
        body, body2 = _jax.jaxpr.open_jaxpr(jaxpr), _jax.jaxpr.open_jaxpr(other)
        key = (id(body), tuple(given))
        if key in self._remembered:
            return self._remembered[key][1]
        made = self._made
        frame = Frame(body, caller, eqn, atoms)
        values = frame.values
        for at, var in enumerate(body.constvars):
            consts = [getattr(each, "consts", ()) for each in (jaxpr, other)]
            known = all(len(each) > at for each in consts)
            values[var] = self.numbers.literal([each[at] for each in consts]) if known else SAME
        values.update(zip(body.invars, given, strict=True))
        if len(body.eqns) != len(body2.eqns) or len(body.invars) != len(body2.invars):
            raise Unaligned
        rules, claims, edits = self.rules, self.claims, self.edits
        literal = _jax.versions.extend_core().Literal
        for eqn, other_eqn in zip(body.eqns, body2.eqns, strict=True):
            name = eqn.primitive.name
            if eqn is not other_eqn and name != other_eqn.primitive.name:
                raise Unaligned
            operands: list[Value] = []
            special = None
            for at, atom in enumerate(eqn.invars):
                if atom.__class__ is literal:
                    value = self._literal(atom, other_eqn.invars[at], eqn)
                else:
                    value = values[atom]
                operands.append(value)
                if value is not SAME:
                    special = value if special is None or special is value or special.number is not None else NOT_KNOWN
            outvars = eqn.outvars
            for var in outvars:
                frame.makers[var] = eqn
            if special is None and name in _PURE:
                results: Sequence[Value] = (SAME,) * len(outvars)
            elif (
                special is not None
                and special.is_plain
                and name in _ENTRY_BY_ENTRY
                and len(outvars) == 1
                and (special.number is None or outvars[0].aval.shape)
                and not (special.number is not None and special.kind != "same")
            ):
                results = (special if special.number is None else SAME,)
            else:
                step = Step(eqn, other_eqn, frame, self)
                found = rules[name](step, operands)
                results = (found,) * len(outvars) if isinstance(found, Value) else found
                if edits and id(eqn) in edits:
                    results = edits[id(eqn)](step, operands, results)
                results = [self._settled(value, frame, var) for value, var in zip(results, outvars, strict=True)]
                if name == CLAIM and not _jax.jaxpr.is_literal(eqn.invars[0]):
                    values[eqn.invars[0]] = results[0]
            for var, value in zip(outvars, results, strict=True):
                if var in claims:
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

    def _claimed(self, claim: Any, value: Value, frame: Frame) -> Value:
        found = self.rules[CLAIM](Step(claim, claim, frame, self), [value])
        return found if isinstance(found, Value) else found[0]

    def _literal(self, atom: Any, other: Any, eqn: Any) -> Value:
        values = [atom.val, other.val] if self.numbers.has_second else [atom.val]
        return self.numbers.literal(values, eqn)

    def _settled(self, value: Value, frame: Frame, var: Any) -> Value:
        """A sum or an extreme that is new gets a number, by which it is known as a part wherever it is used."""
        if value.kind not in ("sum", "extreme") or value.part is not None:
            return value
        self._made += 1
        part = self.number_of(frame, var)
        self.makers.setdefault(part, (frame.makers.get(var), frame.calls))
        return value.but(part=part)

    def number_of(self, frame: Frame | None, atom: Any, depth: int = _DEPTH) -> Any:
        """A number that is equal for computations that are seen to be equal."""
        if _jax.jaxpr.is_literal(atom):
            return ("literal", str(atom.val))
        while frame is not None and atom not in frame.makers:
            inputs = frame.jaxpr.invars
            if frame.caller is None or atom not in inputs or len(inputs) != len(frame.given):
                break
            frame, atom = frame.caller, frame.given[inputs.index(atom)]
            if _jax.jaxpr.is_literal(atom):
                return ("literal", str(atom.val))
        if frame is None:
            return id(atom)
        if atom in frame.numbers:
            return frame.numbers[atom]
        eqn = frame.makers.get(atom)
        key: Any = (id(frame), id(atom))
        if eqn is not None and depth and not eqn.effects and not _jax.jaxpr.inner_jaxprs(eqn) and len(eqn.invars) <= 4:
            if _KINDS.get(eqn.primitive.name) == "cast" and len(eqn.invars) == 1:
                return self.number_of(frame, eqn.invars[0], depth)
            operands = tuple(self.number_of(frame, each, depth - 1) for each in eqn.invars)
            params = tuple((name, str(value)) for name, value in eqn.params.items() if "sharding" not in name)
            key = (eqn.primitive.name, operands, params, eqn.outvars.index(atom))
        number = self._interned.setdefault(key, len(self._interned))
        frame.numbers[atom] = number
        return number

    def lose(
        self,
        own: Any,
        why: str,
        step: Step,
        values: Sequence[Value] = (),
        is_soft: bool = False,
        is_common: bool = False,
    ) -> Any:
        """Note that something is each shard's own, and how it came to be; its number."""
        self._made += 1
        parts = {value.part for value in values if value.part is not None}
        parts.update(part for value in values for each, _ in value.own for part in self.losses[each].parts)
        found = frozenset(parts) or frozenset({own})
        self.losses.setdefault(own, Loss(why, step.eqn, step.frame.calls, found, is_soft, is_common))
        return own

    def is_soft(self, value: Value) -> bool:
        """Whether all that is own in a value is what a shard did with its own rows."""
        return bool(value.own) and all(self.losses[own].is_soft for own, _ in value.own)

    def softened(self, value: Value, others: Sequence[Value]) -> Value:
        """A value without what a shard did with its own rows alone, where something of other shards joins in."""
        if not value.own or not any(other.is_heard for other in others):
            return value
        own = frozenset(each for each in value.own if not self.losses[each[0]].is_soft)
        if own == value.own:
            return value
        kind = "own" if not own else value.kind
        return value.but(own=own, gauge=value.gauge if own else "", is_heard=True, kind=kind)

    def own_slice(self, value: Value) -> bool:
        """Whether a value differs from shard to shard as its predicate or index would."""
        return value.kind in ("own", "sharded")


def _opaque(step: Step, values: list[Value]) -> Value:
    """What nothing is known of."""
    if values and all(value is SAME for value in values) and not step.eqn.effects and step.name in _PURE:
        return SAME
    return unknown(values, is_heard=True)


# ------------------------------------------------------------------------------------------------- calls and control flow


def call(step: Step, values: list[Value]) -> Sequence[Value]:
    """A call of a jaxpr with the same operands."""
    find = _jax.jaxpr.hi_jaxpr if step.name == "call_hi_primitive" else _jax.jaxpr.called_jaxpr
    jaxpr, other = find(step.eqn), find(step.other)
    if jaxpr is None or other is None:
        return [unknown(values, is_heard=True)] * len(step.eqn.outvars)
    count = len(jaxpr.invars)
    return step.reading.run(jaxpr, other, values[:count], step.frame, step.eqn, step.eqn.invars[:count])


def linear_solve(step: Step, values: list[Value]) -> Sequence[Value]:
    """A solver with a gradient of its own: one of its jaxprs computes the solution."""
    lengths, jaxprs = step.params["const_lengths"], step.params["jaxprs"]
    first, last = lengths.matvec + lengths.vecmat, sum(lengths)
    given = [*range(first, first + lengths.solve), *range(last, len(values))]
    atoms = [step.eqn.invars[at] for at in given]
    return step.reading.run(
        jaxprs.solve, step.other.params["jaxprs"].solve, [values[at] for at in given], step.frame, step.eqn, atoms
    )


def branch(step: Step, values: list[Value]) -> Sequence[Value]:
    """One of several branches, by an index."""
    which, operands, reading = values[0], values[1:], step.reading
    ways = [
        reading.run(jaxpr, other, operands, step.frame, step.eqn, step.eqn.invars[1:])
        for jaxpr, other in zip(step.params["branches"], step.other.params["branches"], strict=True)
    ]
    results = [reduce(lambda a, b: join(reading, a, b), each) for each in zip(*ways, strict=True)]
    if which.kind == "unknown":
        return [unknown(values)] * len(results)
    if which.kind in ("sum", "extreme") or which.own:
        return [step.lost("takes a branch by", which, value) for value in results]
    if which.kind in ("own", "sharded"):
        return [value.but(kind="own", is_heard=value.is_heard or which.is_heard, part=None) for value in results]
    return results


def loop(step: Step, values: list[Value]) -> Sequence[Value]:
    """A while loop."""
    reading, eqn, other = step.reading, step.eqn, step.other
    conds, consts, carry = _jax.jaxpr.while_operands(eqn, values)
    _, const_atoms, carry_atoms = _jax.jaxpr.while_operands(eqn, eqn.invars)
    cond_atoms = _jax.jaxpr.while_operands(eqn, eqn.invars)[0]
    carry = [_unnumbered(value) for value in carry]

    def turn(now: list[Value]) -> list[Value]:
        atoms = [*const_atoms, *[None] * len(now)]
        return reading.run(
            eqn.params["body_jaxpr"], other.params["body_jaxpr"], [*consts, *now], step.frame, eqn, atoms
        )

    carry = _fixed_point(reading, carry, turn)[0]
    atoms = [*cond_atoms, *[None] * len(carry)]
    (goes_on,) = reading.run(
        eqn.params["cond_jaxpr"], other.params["cond_jaxpr"], [*conds, *carry], step.frame, eqn, atoms
    )
    if goes_on.kind == "unknown":
        return [unknown(values)] * len(carry)
    if goes_on.kind in ("sum", "extreme") or goes_on.own:
        return [step.lost("goes on by", goes_on, value) for value in carry]
    if goes_on.kind in ("own", "sharded"):
        return [value.but(kind="own", is_heard=True, part=None) for value in carry]
    return carry


def scan(step: Step, values: list[Value]) -> Sequence[Value]:
    """A loop over leading dims."""
    reading, eqn, other = step.reading, step.eqn, step.other
    counts = _jax.jaxpr.scan_counts(eqn.params)
    fixed, carried = values[: counts[0]], values[counts[0] : sum(counts)]
    items = [_item(value) for value in values[sum(counts) :]]
    is_over_rows = any(item.dim == "rows" for item in items)
    is_long = eqn.params["length"] != other.params["length"]
    atoms = [*eqn.invars[: counts[0]], *[None] * (len(values) - counts[0])]
    carried = [_unnumbered(value) for value in carried]

    def turn(now: list[Value]) -> list[Value]:
        jaxprs = eqn.params["jaxpr"], other.params["jaxpr"]
        results = reading.run(*jaxprs, [*fixed, *now, *items], step.frame, eqn, atoms)
        if is_over_rows:
            results = [
                accumulated(value) if at < counts[1] and value.dim == "rows" else value
                for at, value in enumerate(results)
            ]
        return results

    before = carried
    carried, results = _fixed_point(reading, carried, turn)
    carried = [
        value.but(part=("sum of rows", step.part, at)) if value.kind == "sum" and value.part is None else value
        for at, value in enumerate(carried)
    ]
    for at, value in enumerate(carried):
        if value.kind in ("sum", "extreme") and value.part is not None:
            reading.makers.setdefault(value.part, (_made_in(eqn, at), (eqn, *step.frame.calls)))
    if is_long and not is_over_rows:
        carried = [value if value == was else heard(NOT_KNOWN) for value, was in zip(carried, before, strict=True)]
    return [*carried, *[_stacked(step, value, is_over_rows, is_long) for value in results[counts[1] :]]]


def _made_in(eqn: Any, at: int) -> Any:
    """The equation of a loop's body that made what it carries; else the loop."""
    jaxpr = _jax.jaxpr.open_jaxpr(eqn.params["jaxpr"])
    return _jax.jaxpr.maker_of(jaxpr, jaxpr.outvars[at]) or eqn


def _unnumbered(value: Value) -> Value:
    return value.but(number=None, line=None) if value.number is not None or value.line is not None else value


def _item(value: Value) -> Value:
    """One of the items over which a loop goes."""
    if value is SAME:
        return value
    value = _unnumbered(value)
    if value.kind in ("sharded", "local") and value.dim == 0:
        return value.but(dim="rows")
    if value.kind == "parts" and value.dim == 0:
        return heard(NOT_KNOWN)
    return value.but(dim=value.dim - 1) if isinstance(value.dim, int) else value


def accumulated(value: Value) -> Value:
    """Rows of a shard, or what a psum made of such rows, added up."""
    if value.kind == "local" and value.place == "folded":
        return value.but(kind="same", dim=None, place="")
    if value.kind != "sharded":
        return value
    return Value("sum", value.degree, reduced=value.reduced, is_heard=value.is_heard, **value.gauges)


def _stacked(step: Step, value: Value, is_over_rows: bool, is_long: bool) -> Value:
    """What a loop returns of each turn, along a new dim."""
    if value.dim == "rows":
        return value.but(dim=0)
    if is_over_rows:
        if value.kind == "same":
            return value if value.is_zero else Value("sharded", value.degree, dim=0, **value.gauges)
        if value.kind == "sum":
            return step.lost("scans its own rows of", value, is_soft=True)
        return value
    if is_long:
        return NOT_KNOWN
    return _unnumbered(value.but(dim=value.dim + 1) if isinstance(value.dim, int) else value)


def _fixed_point(
    reading: Reading, carry: list[Value], turn: Callable[[list[Value]], list[Value]]
) -> tuple[list[Value], list[Value]]:
    """What a loop carries before every turn, and what a turn returns."""
    if all(value is SAME for value in carry):
        results = turn(carry)
        if all(value is SAME for value in results[: len(carry)]):
            return carry, results
    for _ in range(_MOST_ITERATIONS):
        results = turn(carry)
        after = [join(reading, now, _unnumbered(then)) for now, then in zip(carry, results, strict=False)]
        if after == carry:
            return carry, results
        carry = after
    carry = [now if now == then else NOT_KNOWN for now, then in zip(carry, turn(carry), strict=False)]
    return carry, turn(carry)


def join(reading: Reading, a: Value, b: Value) -> Value:
    """What is known of a value that is one of two."""
    if a is b or a == b:
        return a
    if a.kind == "unknown" or b.kind == "unknown":
        return unknown((a, b))
    for zero, value in ((a, b), (b, a)):
        if zero.is_zero and zero.kind == "same":
            return _unnumbered(value)
    more = {
        "gauge": "?" if a.own or b.own else "",
        "own": anyhow(a, b),
        "may_cancel": a.may_cancel or b.may_cancel,
        "reduced": a.reduced | b.reduced,
        "is_heard": a.is_heard or b.is_heard,
        "is_positive": a.is_positive and b.is_positive,
    }
    if "own" in (a.kind, b.kind):
        return Value("own", 0, **more)
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
            else Value("same", degree, **more)
        )
    dims = {value.dim for value in (a, b) if value.kind in ("sharded", "local")}
    if kinds <= {"same", "sharded"} and len(dims) == 1:
        name = a.name if a.kind == "sharded" else b.name
        return Value("sharded", degree, dim=dims.pop(), order=a.order or b.order, name=name, **more)
    if kinds == {"sum"} and a.beside == b.beside:
        return Value("sum", degree, a.beside, part=a.part if a.part == b.part else None or a.part, **more)
    if kinds == {"extreme"} and a.end == b.end:
        return Value("extreme", degree, end=a.end, part=a.part, **more)
    if kinds <= {"same", "local"} and len(dims) == 1:
        return Value("local", degree, dim=dims.pop(), **more)
    if kinds == {"same", "extreme"}:  # before the first turn of a running extreme
        found, start = (a, b) if a.kind == "extreme" else (b, a)
        bound = start.number[0] if start.number is not None else None
        if bound is not None and abs(bound) > 1e6:
            return found.but(**more)
    return unknown((a, b))


RULES: Mapping[str, Rule] = {
    **{name: call for name, found in _jax.primitives.PRIMITIVES.items() if found.kind == "call"},
    "custom_linear_solve": linear_solve,
    "cond": branch,
    "while": loop,
    "scan": scan,
}
