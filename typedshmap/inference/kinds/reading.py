"""Read a region over one mesh axis: what each value is of the whole, from one trace, or from two of other sizes.

Shares are a domain of the interpreter, which walks the first trace; the equations of the second stand beside its own. A
number that differs between them has a degree, and a dim whose length does is as long as a shard's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

from ... import _jax
from ..interpreter import CLAIM, Interpreter
from .joining import join
from .numbers import Numbers, pmean_axes
from .origins import Beginning, Ledger, name_of
from .value import NOT_KNOWN, SAME, Share, anyhow, blended, is_plain, traces_of, unknown

_DEPTH = 6
"""How far back two computations are compared to find that they compute the same."""
_MOST_ITERATIONS = 6


class Unaligned(Exception):
    """The two traces do not have the same equations, and nothing is known of degrees."""


class JaxprRun:
    """One run of a jaxpr: what is known of its variables, and which equation runs it.

    Args:
      jaxpr: the jaxpr, of the region's own trace.
      other: the same of the second trace, or the same one.
      step: the equation; None for the body of a region.
      iteration: of the loops whose iterations are read one by one, which.
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
        """By the variables of the jaxpr, the caller's operands that they are, in every iteration of a loop."""
        operands = () if self.eqn is None else _jax.jaxpr.handed_on(self.eqn, self.jaxpr)
        return dict(zip(self.jaxpr.invars, operands, strict=False))

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

    def beside(self, jaxpr: Any) -> Any:
        """The jaxpr of the second trace at the place that one has in this equation."""
        if self.eqn is self.other:
            return jaxpr
        for name, param in self.eqn.params.items():
            pair = param, self.other.params[name]
            for mine, same in zip(*pair, strict=False) if isinstance(param, (tuple, list)) else [pair]:
                if mine is jaxpr:
                    return same
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
        """The dims of the result that are as long as a shard's, as far as two traces show."""
        if self.eqn is self.other:
            return ()
        sizes = zip(self.result_shape, self.other.outvars[0].aval.shape, strict=False)
        return tuple(dim for dim, (first, second) in enumerate(sizes) if first != second)

    @property
    def likely_rows(self) -> tuple[int, ...]:
        """The same, of one trace those that are as long as a shard's by chance or not."""
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
        """The number of its result, as that of a part."""
        return self.reading.number_of(self.frame, self.eqn.outvars[0])

    def source(self, at: int) -> Any:
        """An operand before the casts and moves of the same jaxpr."""
        atom = self.eqn.invars[at]
        while not _jax.jaxpr.is_literal(atom) and (eqn := self.frame.makers.get(atom)) is not None:
            if _jax.primitives.primitive(eqn.primitive.name).kind not in ("cast", "moving"):
                break
            atom = eqn.invars[0]
        return atom

    def maker(self, at: int) -> Any:
        """The equation that made an operand in the same jaxpr, but for casts and moves."""
        atom = self.source(at)
        return None if _jax.jaxpr.is_literal(atom) else self.frame.makers.get(atom)

    def number(self, at: int) -> Any:
        """The number that an operand repeats; None if it is none, or not known."""
        atom = self.source(at)
        if atom.aval.shape:
            return None
        if _jax.jaxpr.is_literal(atom):
            return atom.val
        value = self.frame.values[atom]
        return None if value.number is None else value.number[0]

    @property
    def is_call(self) -> bool:
        """Whether it runs one jaxpr, whose results are its own."""
        return self.primitive.kind == "call" and "jaxprs" not in self.eqn.params

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
            **traces_of(*values),
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
        return Share("own", 0, is_heard=is_heard, **blended(by, *values))


KindRule = Callable[[ReadEquation, "list[Share]"], "Share | Sequence[Share]"]
"""From an equation and its operands to its results; one value stands for all of them."""
ReadingEdit = Callable[[ReadEquation, "list[Share]", "Sequence[Share]"], "Sequence[Share]"]
"""From an equation, its operands and its results to other results."""

# What computes nothing but what its operands say: of the same on every shard, the same.
_PURE = _jax.primitives.names_of(
    "cast", "moving", "joining", "sum", "product", "quotient", "homogeneous", "elementwise", "test", "extreme",
    "choice", "reducing", "ordering", "lookup", "placing", "matrix",
) - {CLAIM}  # fmt: skip
_CUTS = frozenset(["slice", "dynamic_slice"])
ENTRY_BY_ENTRY = frozenset(
    [name for name, found in _jax.primitives.PRIMITIVES.items() if found.is_entry_by_entry and name != CLAIM]
)


class Reading(Ledger, Interpreter[Share]):
    """What the values of a region are, over one axis.

    Args:
      axis: the axis.
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
        """By the id of a branch or a loop, what decides which way it goes."""
        self.iteration: tuple[int, ...] = ()
        """Of the loops whose iterations are read one by one, which."""
        self._frame: Any = None
        self._step: ReadEquation | None = None
        self._interned: dict[Any, int] = {}
        self._plain: dict[Share, Share] = {}
        self._literals: dict[Any, Share] = {}
        self._pairs: dict[tuple[int, int], Share | None] = {}
        self._remembered: dict[Any, tuple[JaxprRun, list[Share]]] = {}

    def read(self, jaxpr: Any, other: Any, given: Sequence[Share]) -> list[Share]:
        """The values of a region's results, from those of its operands.

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
                self.makers["argument", at] = Beginning(None, (), value.name)
                given[at] = value.but(part=("argument", at))
        return self.interpret(jaxpr, given)

    # ------------------------------------------------------------------------------------------ as a domain

    def interpret(self, closed_jaxpr: Any, values: Sequence[Share], known: Any = None) -> list[Share]:
        """The values of a jaxpr's results; remembered where nothing in it became a part or was lost."""
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
        """What an equation's results are: of plain operands, that are the same or sharded alike, mostly as they are."""
        plain: Share | None = SAME
        """What plain operands make together; None where they are not, or make something else."""
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
            and ((plain.kind == "same" and name in _PURE) or (name in ENTRY_BY_ENTRY and len(outvars) == 1))
            and not (has_number and plain is SAME and not (name in ENTRY_BY_ENTRY and outvars[0].aval.shape))
            and (eqn is other or name != "reduce_sum")  # which may add more entries in the other trace
            and not (name in _CUTS and plain.kind == "same" and self._may_take_rows(eqn))
        ):
            return (plain,) * len(outvars)
        step = self._step = ReadEquation(eqn, other, frame, self)
        return [
            value if value.is_plain else self._settled(value, frame, var, operands)
            for value, var in zip(self._results(step, operands), outvars, strict=True)
        ]

    def _results(self, step: ReadEquation, operands: list[Share]) -> Sequence[Share]:
        """What an equation's results are by its rule, and by the edit of it that is tried."""
        found = self.kind_rules[step.eqn.primitive.name](step, operands)
        results = (found,) * len(step.eqn.outvars) if isinstance(found, Share) else found
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
            if not self.numbers.is_asked:  # of others it depends on where they stand
                self._literals[key] = known
        return known

    def constants(self, closed_jaxpr: Any) -> list[Share]:
        count = len(self._frame.jaxpr.constvars)
        consts = [getattr(jaxpr, "consts", ()) for jaxpr in self._frame.closed]
        if any(len(some) < count for some in consts):
            return [SAME] * count
        return [self.numbers.literal(pair) for pair in zip(*consts, strict=False)]

    def opaque(self, eqn: Any, values: list[Share]) -> list[Share]:
        return [unknown(values, is_heard=True)] * len(eqn.outvars)

    def noted(self, jaxpr: Any) -> Container[Any]:
        return self.claims

    def refined(self, var: Any, value: Share) -> Share:
        """A value after the claims that are kept beside the jaxpr."""
        for claim in self.claims[var]:
            (value,) = self._results(ReadEquation(claim, claim, self._frame, self), [value])
            if value.kind == "sum" and value.part is None:
                self.makers.setdefault(("claim", id(claim)), Beginning(claim, self._frame.calls))
                value = value.but(part=("claim", id(claim)))
        return value

    def carried(self, start: list[Share], now: list[Share], results: list[Share], times: int) -> list[Share]:
        after = [join(self, *pair) for pair in zip(now, (value.unnumbered for value in results), strict=False)]
        if times < _MOST_ITERATIONS:
            return after
        return [before if before == then else NOT_KNOWN for before, then in zip(now, after, strict=True)]

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

    def _settled(self, value: Share, frame: JaxprRun, var: Any, operands: Sequence[Share]) -> Share:
        """A value with where it began, if that is here: a sum or an extreme gets a number, by which it is known."""
        is_astray = value.kind in ("own", "unknown") or (value.kind == "sharded" and value.order != 0)
        if is_astray and value.since is None:
            since = self.since(operands)
            eqn = frame.makers.get(var)
            if since is None and eqn is not None:
                since = id(eqn)
                self.origins.setdefault(since, Beginning(eqn, frame.calls, name_of(operands)))
            return value._replace(since=since)
        if value.kind not in ("sum", "extreme") or value.part is not None:
            if not is_plain(value):
                return value
            value = value._replace(is_plain=True, root=None)
            return SAME if value == SAME else self._plain.setdefault(value, value)
        self.changes += 1
        part = self.number_of(frame, var)
        made = Beginning(frame.makers.get(var), frame.calls, name_of(operands))
        if self.makers.setdefault(part, made).eqn is not made.eqn:
            self.twins[part].append(made)
        if value.kind == "extreme":
            self.ends.setdefault(id(frame.makers.get(var)), value.end)
        before = {operand.part for operand in operands if operand.kind == value.kind} - {None}
        if len(before) == 1:
            self.earlier.setdefault(part, before.pop())
        return value._replace(part=part)

    def number_of(self, frame: JaxprRun, atom: Any, depth: int = _DEPTH) -> Any:
        """A number that is equal for computations that are seen to be equal."""
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
    """What an equation computes, to be compared with that of others."""
    params = tuple(value for name, value in eqn.params.items() if "sharding" not in name)
    try:
        hash(params)
    except TypeError:
        return tuple(map(id, params))
    return params


def _opaque(step: ReadEquation, values: list[Share]) -> Share:
    """What nothing is known of."""
    if values and all(value is SAME for value in values) and not step.eqn.effects and step.name in _PURE:
        return SAME
    return unknown(values, is_heard=True)
