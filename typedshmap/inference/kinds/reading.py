"""Read a region over one mesh axis: the kinds and degrees of its values, as a domain of the interpreter.

The interpreter walks the region's jaxpr. If there is a second trace, with another size of the axis, each equation has a
counterpart in it: a number that differs between the traces has a degree, and a dim whose length differs has the length
of a shard's rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

from ... import _jax
from ..interpreter import CLAIM, Interpreter
from .joining import join
from .loss_kinds import LossKind
from .numbers import Numbers, pmean_axes
from .origins import Ledger, ValueOrigin, name_of
from .value import NOT_KNOWN, SAME, Share, is_plain, reach_of, unknown, untracked, untracked_symbols

_DEPTH = 6
"""How many equations deep two computations are compared, to recognise that they are the same."""
_MOST_ITERATIONS = 6


class Unaligned(Exception):
    """The two traces do not have the same equations, so that degrees are unknown."""


class JaxprRun:
    """One run of a jaxpr, with the values of its variables.

    Args:
      jaxpr: the jaxpr.
      other: the corresponding jaxpr of the second trace; without a second trace the same jaxpr.
      step: the equation that runs it; None for the body of a region.
      iteration: the indices of the iterations, for enclosing loops that are read iteration by iteration.
    """

    def __init__(self, jaxpr: Any, other: Any, step: ReadEquation | None, iteration: tuple[int, ...] = ()) -> None:
        self.closed, self.jaxpr, self.other = (jaxpr, other), _jax.jaxpr.open_jaxpr(jaxpr), _jax.jaxpr.open_jaxpr(other)
        self.caller, self.eqn = (None, None) if step is None else (step.frame, step.eqn)
        self.path: Any = (id(self.jaxpr), id(self.eqn), self.caller and self.caller.path, iteration)
        self.values: dict[Any, Share] = {}
        self.numbers: dict[Any, Any] = {}
        self.callees: dict[int, JaxprRun] = {}
        self.aligned: Mapping[int, Any] = {}
        if self.other is not self.jaxpr:
            aligned = _jax.jaxpr.aligned_equations(jaxpr, other)
            if aligned is None:
                raise Unaligned
            self.aligned = aligned

    @cached_property
    def makers(self) -> Mapping[Any, Any]:
        return _jax.jaxpr.makers(self.jaxpr)

    @cached_property
    def inputs(self) -> Mapping[Any, Any]:
        """The caller's operands, by the variables of the jaxpr that are equal to them in every iteration of a loop."""
        operands = () if self.eqn is None else _jax.jaxpr.handed_on(self.eqn, self.jaxpr)
        return dict(zip(self.jaxpr.invars, operands, strict=False))

    @property
    def calls(self) -> tuple[Any, ...]:
        """The equations that run it, innermost first."""
        return () if self.caller is None else (self.eqn, *self.caller.calls)


class ReadEquation(NamedTuple):
    """An equation, as the argument of rules.

    Attributes:
      eqn: the equation.
      other: the corresponding equation of the second trace; without a second trace the same equation.
      frame: the run of its jaxpr.
      reading: the reading.
    """

    eqn: Any
    other: Any
    frame: JaxprRun
    reading: Reading

    def beside(self, jaxpr: Any) -> Any:
        """The jaxpr of the second trace that corresponds to a jaxpr in the parameters of this equation."""
        if self.eqn is self.other:
            return jaxpr
        for name, param in self.eqn.params.items():
            pair = param, self.other.params[name]
            for first, second in zip(*pair, strict=False) if isinstance(param, (tuple, list)) else [pair]:
                if first is jaxpr:
                    return second
        return _jax.jaxpr.called(self.other)

    @property
    def name(self) -> str:
        return self.eqn.primitive.name

    @property
    def primitive(self) -> _jax.primitives.Primitive:
        return _jax.primitives.primitive(self.eqn.primitive.name)

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
        """The dims of the result with the length of a shard's rows; empty without a second trace."""
        if self.eqn is self.other:
            return ()
        sizes = zip(self.result_shape, self.other.outvars[0].aval.shape, strict=False)
        return tuple(dim for dim, (first, second) in enumerate(sizes) if first != second)

    @property
    def likely_rows(self) -> tuple[int, ...]:
        """The same; without a second trace the dims that may have that length by chance."""
        if self.eqn is not self.other:
            return self.rows
        lengths = self.reading.numbers.row_lengths
        return tuple(dim for dim, size in enumerate(self.result_shape) if size in lengths)

    @property
    def is_inexact(self) -> bool:
        return _jax.array.is_inexact(self.eqn.outvars[0].aval.dtype)

    @property
    def is_inexact_operand(self) -> bool:
        return _jax.array.is_inexact(self.eqn.invars[0].aval.dtype)

    @property
    def part(self) -> Any:
        """The number of the part that its result may be."""
        return self.reading.number_of(self.frame, self.eqn.outvars[0])

    def source(self, at: int) -> Any:
        """An operand without the casts and moves that made it in the same jaxpr."""
        atom = self.eqn.invars[at]
        while not _jax.jaxpr.is_literal(atom) and (eqn := self.frame.makers.get(atom)) is not None:
            if _jax.primitives.primitive(eqn.primitive.name).kind not in ("cast", "moving"):
                break
            atom = eqn.invars[0]
        return atom

    def maker(self, at: int) -> Any:
        """The equation in the same jaxpr that made an operand, apart from casts and moves."""
        atom = self.source(at)
        return None if _jax.jaxpr.is_literal(atom) else self.frame.makers.get(atom)

    def number(self, at: int) -> Any:
        """The scalar value of an operand, perhaps before a broadcast; None if it is unknown."""
        atom = self.source(at)
        if atom.aval.shape:
            return None
        if _jax.jaxpr.is_literal(atom):
            return atom.val
        value = self.frame.values[atom]
        return None if value.number is None else value.number[0]

    @property
    def is_call(self) -> bool:
        """Whether it runs one jaxpr, and returns its results."""
        return self.primitive.kind == "call" and "jaxprs" not in self.eqn.params

    def lost(
        self, why: LossKind, *values: Share, kind: str = "own", degree: Any = 0, is_excusable: bool = False, **more: Any
    ) -> Share:
        """The result of a loss: a new symbol, with those of the operands.

        Args:
          why: the effect of the equation, as in `Loss`.
          *values: its operands.
          kind: the kind of the result.
          degree: its degree.
          is_excusable: as in `Loss`.
          **more: other fields of the result.
        """
        symbol = self.reading.lose((self.part, why), why, self, values, is_excusable)
        before = frozenset() if is_excusable else untracked_symbols(*values)
        return Share(
            kind,  # type: ignore[arg-type]
            degree,
            role="?",
            symbols=frozenset({(symbol, 1)}) | before,
            may_cancel=any(value.may_cancel for value in values),
            **reach_of(*values),
            **more,
        )

    def mixed(self, value: Share) -> Share:
        """The sum of a shard's rows, which differ between shards: its origin is here."""
        origin = self.reading.origins.get(value.origin)
        is_sent = origin is not None and self.reading.is_sent(value.origin)
        if origin is None or not (is_sent or (origin.is_of_rows and origin.name != ("", ""))):
            return value
        key = ("sent", id(self.eqn)) if is_sent else id(self.eqn)
        self.reading.origins.setdefault(key, ValueOrigin(self.eqn, self.frame.calls, origin.name))
        return value.but(origin=key)

    def decided(self, why: LossKind, by: Share, *values: Share) -> Share:
        """The result of a choice by a value that differs between shards; an excusable loss remains the only loss."""
        reading = self.reading
        if not reading.is_excusable(by):
            is_own = by.kind in ("own", "extreme", "sharded")  # no collective has reduced them
            return self.lost(why, by, *values, is_excusable=is_own and reading.is_of_extremes(by))
        is_reached = any(value.is_reached for value in (by, *values))
        return Share("own", 0, is_reached=is_reached, **untracked(by, *values))


KindRule = Callable[[ReadEquation, "list[Share]"], "Share | Sequence[Share]"]
"""From an equation and its operands to its results; one value if all results are alike."""
ReadingEdit = Callable[[ReadEquation, "list[Share]", "Sequence[Share]"], "Sequence[Share]"]
"""From an equation, its operands and its results to other results."""

# Deterministic functions of their operands: if these are the same on every shard, so are the results.
_PURE = _jax.primitives.names_of(
    "cast", "moving", "joining", "sum", "product", "quotient", "homogeneous", "elementwise", "test", "extreme",
    "choice", "reducing", "ordering", "lookup", "placing", "matrix",
) - {CLAIM}  # fmt: skip
_CUTS = frozenset(["slice", "dynamic_slice"])
ENTRY_BY_ENTRY = frozenset(
    [name for name, known in _jax.primitives.PRIMITIVES.items() if known.is_entry_by_entry and name != CLAIM]
)


class Reading(Ledger, Interpreter[Share]):
    """The kinds of a region's values over one axis.

    Args:
      axis: the axis.
      numbers: the degrees of its numbers.
      rules: the rules, by primitive.
      claims: the claims beside the jaxpr, by variable.
      edits: the edits that are tried, by the id of an equation, or by ``("result", index)``.
    """

    def __init__(
        self,
        axis: str,
        numbers: Numbers,
        rules: Mapping[str, KindRule],
        claims: Mapping[Any, Sequence[Any]] | None = None,
        edits: Mapping[Any, ReadingEdit] | None = None,
    ) -> None:
        super().__init__(axis, numbers)
        self.claims, self.edits = claims or {}, edits or {}
        self.rules = defaultdict(lambda: Reading.read_equation)
        self.kind_rules: dict[str, KindRule] = defaultdict(lambda: _opaque, rules)
        self.outermost: JaxprRun | None = None
        """The run of the region's body."""
        self.runs: dict[int, JaxprRun] = {}
        """The last run of each jaxpr."""
        self.predicates: dict[int, Share] = {}
        """By the id of a branch or a loop, its predicate."""
        self.iteration: tuple[int, ...] = ()
        """The current iterations of the loops that are read iteration by iteration."""
        self._frame: Any = None
        self._step: ReadEquation | None = None
        self._interned: dict[Any, int] = {}
        self._plain: dict[Share, Share] = {}
        self._literals: dict[Any, Share] = {}
        self._pairs: dict[tuple[int, int], Share | None] = {}
        self._remembered: dict[Any, tuple[JaxprRun, list[Share]]] = {}

    def read(self, jaxpr: Any, other: Any, given: Sequence[Share]) -> list[Share]:
        """The results of a region for some operands.

        Raises:
          Unaligned: where the two traces do not have the same equations.
        """
        self.numbers.pmeans = cache(lambda: pmean_axes([*_jax.jaxpr.all_equations(jaxpr)]))
        given, inputs, self._other = list(given), _jax.jaxpr.open_jaxpr(jaxpr).invars, other
        self.numbers.unsharded = frozenset(
            size
            for var, value in zip(inputs, given, strict=True)
            for dim, size in enumerate(getattr(var.aval, "shape", ()))
            if dim != value.dim
        )
        for at, value in enumerate(given):
            if value.kind == "sum":
                self.makers["argument", at] = ValueOrigin(None, (), value.name)
                given[at] = value.but(part=("argument", at))
        return self.interpret(jaxpr, given)

    def interpret(self, closed_jaxpr: Any, values: Sequence[Share], known: Any = None) -> list[Share]:
        """The results of a jaxpr; cached if no origin and no loss was recorded in it."""
        step, around, made = self._step, self._frame, self.changes
        other = self._other if step is None else step.beside(closed_jaxpr)
        key = id(_jax.jaxpr.open_jaxpr(closed_jaxpr)), id(_jax.jaxpr.open_jaxpr(other)), tuple(values)
        if key in self._remembered:
            return self._remembered[key][1]
        frame = self._frame = JaxprRun(closed_jaxpr, other, step, self.iteration)
        self.outermost = self.outermost or frame
        self.runs[id(frame.jaxpr)] = frame
        if step is not None and step.is_call:
            step.frame.callees[id(step.eqn)] = frame
        outcome = super().interpret(closed_jaxpr, values, frame.values)
        self._frame, self._step = around, step
        if made == self.changes:
            self._remembered[key] = frame, outcome
        return outcome

    def read_equation(self, eqn: Any, operands: list[Share]) -> Sequence[Share]:
        """The results of an equation; mostly all operands are plain and alike, and then the results are plain too."""
        plain: Share | None = SAME
        """The join of plain operands; None if one is not plain, or if they are sharded in different ways."""
        has_number = False
        for value in operands:
            if value is SAME:
                continue
            if not value.is_plain:
                plain = None
            elif value.number is not None:
                has_number = True
            elif plain is SAME:
                plain = value
            elif plain is not value:
                plain = self._together(plain, value)
            if plain is None:
                break
        name, outvars, frame = eqn.primitive.name, eqn.outvars, self._frame
        other = frame.aligned[id(eqn)] if frame.aligned else eqn
        if (
            plain is not None
            and not (self.edits and id(eqn) in self.edits)
            and ((plain.kind == "same" and name in _PURE) or (name in ENTRY_BY_ENTRY and len(outvars) == 1))
            and not (has_number and plain is SAME and not (name in ENTRY_BY_ENTRY and outvars[0].aval.shape))
            and (eqn is other or name != "reduce_sum")  # the other trace may sum more entries
            and not (name in _CUTS and plain.kind == "same" and self._may_take_rows(eqn))
        ):
            return (plain,) * len(outvars)
        step = self._step = ReadEquation(eqn, other, frame, self)
        return [
            value if value.is_plain else self._settled(value, frame, var, operands)
            for value, var in zip(self._results(step, operands), outvars, strict=True)
        ]

    def _results(self, step: ReadEquation, operands: list[Share]) -> Sequence[Share]:
        """The results of an equation by its rule, and by the edit that is being tried."""
        outcome = self.kind_rules[step.eqn.primitive.name](step, operands)
        results = (outcome,) * len(step.eqn.outvars) if isinstance(outcome, Share) else outcome
        if not self.edits or (edit := self.edits.get(id(step.eqn))) is None:
            return results
        return edit(step, operands, results)

    def literal(self, atom: Any, eqn: Any, at: int) -> Share:
        if self.numbers.has_second:
            frame = self._frame
            if frame.aligned:
                atoms = frame.other.outvars if eqn is None else frame.aligned[id(eqn)].invars
                if not _jax.jaxpr.is_literal(atoms[at]):
                    raise Unaligned
                return self.numbers.literal([atom.val, atoms[at].val], eqn)
            return self.numbers.literal([atom.val, atom.val], eqn)
        if atom.aval.shape:
            return self.numbers.literal([atom.val], eqn)
        key = atom.aval.dtype, str(atom.val)
        known = self._literals.get(key)
        if known is None:
            known = self.numbers.literal([atom.val], eqn)
            if not self.numbers.is_asked:  # the others depend on the line
                self._literals[key] = known
        return known

    def constants(self, closed_jaxpr: Any) -> list[Share]:
        count = len(self._frame.jaxpr.constvars)
        consts = [getattr(jaxpr, "consts", ()) for jaxpr in self._frame.closed]
        if any(len(some) < count for some in consts):
            return [SAME] * count
        return [self.numbers.literal(pair) for pair in zip(*consts, strict=False)]

    def opaque(self, eqn: Any, values: list[Share]) -> list[Share]:
        return [unknown(values, is_reached=True)] * len(eqn.outvars)

    def noted(self, jaxpr: Any) -> Container[Any]:
        return self.claims

    def refined(self, var: Any, value: Share) -> Share:
        """A value after the claims about it that are kept beside the jaxpr."""
        for claim in self.claims[var]:
            (value,) = self._results(ReadEquation(claim, claim, self._frame, self), [value])
            if value.kind == "sum" and value.part is None:
                self.makers.setdefault(("claim", id(claim)), ValueOrigin(claim, self._frame.calls))
                value = value.but(part=("claim", id(claim)))
        return value

    def carried(self, start: list[Share], now: list[Share], results: list[Share], times: int) -> list[Share]:
        after = [join(self, *pair) for pair in zip(now, (value.without_number for value in results), strict=False)]
        if times < _MOST_ITERATIONS:
            return after
        return [before if before == then else NOT_KNOWN for before, then in zip(now, after, strict=True)]

    def value_of(self, var: Any) -> Share | None:
        """The value of a variable in the last run of its jaxpr; None if the jaxpr was not read."""
        return next((run.values[var] for run in self.runs.values() if var in run.values), None)

    def _may_take_rows(self, eqn: Any) -> bool:
        """Whether a slice has the length of a shard's rows, so that every shard may take the same rows."""
        lengths, pair = self.numbers.row_lengths, (eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)
        return any(after in lengths and after != before for before, after in zip(*pair, strict=True))

    def _together(self, a: Share, b: Share) -> Share | None:
        """The result of an elementwise operation on two plain values; None if different dims are sharded."""
        key = id(a), id(b)  # plain values are kept
        if key not in self._pairs:
            rows = a if a.kind == "sharded" else b
            is_plain = a.kind == "same" or b.kind == "same" or a.dim == b.dim
            result = rows._replace(reduced=a.reduced | b.reduced, is_reached=a.is_reached or b.is_reached)
            self._pairs[key] = self._plain.setdefault(result, result) if is_plain else None
        return self._pairs[key]

    def _settled(self, value: Share, frame: JaxprRun, var: Any, operands: Sequence[Share]) -> Share:
        """A result with its origin, if that is here; a part gets its number."""
        is_astray = value.kind in ("own", "unknown") or (value.kind == "sharded" and value.order != 0)
        if is_astray and value.origin is None:
            key = self.origin_of(operands)
            eqn = frame.makers.get(var)
            if key is None and eqn is not None:
                key = id(eqn)
                self.origins.setdefault(key, ValueOrigin(eqn, frame.calls, name_of(operands)))
            return value._replace(origin=key)
        if value.kind not in ("sum", "extreme") or value.part is not None:
            if not is_plain(value):
                return value
            value = value._replace(is_plain=True, root=None)
            return SAME if value == SAME else self._plain.setdefault(value, value)
        self.changes += 1
        part = self.number_of(frame, var)
        made = ValueOrigin(frame.makers.get(var), frame.calls, name_of(operands))
        if self.makers.setdefault(part, made).eqn is not made.eqn:
            self.twins[part].append(made)
        if value.kind == "extreme":
            self.ends.setdefault(id(frame.makers.get(var)), value.end)
        before = {operand.part for operand in operands if operand.kind == value.kind} - {None}
        if len(before) == 1:
            self.earlier.setdefault(part, before.pop())
        return value._replace(part=part)

    def number_of(self, frame: JaxprRun, atom: Any, depth: int = _DEPTH) -> Any:
        """The number of a value: equal for two values that are recognised as computed in the same way."""
        while not (is_literal := _jax.jaxpr.is_literal(atom)) and atom not in frame.makers and frame.caller is not None:
            given = frame.inputs.get(atom)
            if given is None:
                break
            frame, atom = frame.caller, given
        if is_literal:
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
            if _jax.primitives.primitive(eqn.primitive.name).kind == "cast" and len(eqn.invars) == 1:
                return operands[0]
            key = (eqn.primitive.name, operands, _params(eqn), eqn.outvars.index(atom))
        number = self._interned.setdefault(key, len(self._interned))
        frame.numbers[atom] = number
        return number


def _params(eqn: Any) -> Any:
    """The parameters of an equation, for a comparison with those of another."""
    params = tuple(value for name, value in eqn.params.items() if "sharding" not in name)
    try:
        hash(params)
    except TypeError:
        return tuple(map(id, params))
    return params


def _opaque(step: ReadEquation, values: list[Share]) -> Share:
    """The rule of a primitive without a rule."""
    if values and all(value is SAME for value in values) and not step.eqn.effects and step.name in _PURE:
        return SAME
    return unknown(values, is_reached=True)
