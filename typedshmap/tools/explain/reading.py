"""A jaxpr as the program that one device runs.

As XLA does, elementwise operations are fused into what takes their results. A product, a sum, a collective and a loop
write to memory; so does an elementwise operation whose result several take, where it is costly to compute again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from operator import attrgetter, itemgetter
from typing import Any, Literal

from ... import _jax
from ..._jax.primitives import PRIMITIVES
from ...inference.elementwise import RULES
from .collectives import OPAQUE, group_size
from .fusing import fuse_into_products, round_operands
from .program import Around, Buffer, Equation, Program, ProgramStep, donated_operands, reused_arguments

Backend = Literal["cpu", "gpu", "tpu"]
_SCANS = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
# The same bytes, under another name or of another type.
_VIEWS = frozenset(name for name, found in PRIMITIVES.items() if found.is_view)
# Of an operand they read no more than their result is large.
_PARTIAL = frozenset(name for name, found in PRIMITIVES.items() if found.is_part)
_WRITES = frozenset(["dot_general", "conv_general_dilated", "threefry2x32", *_SCANS])
_FUSED = frozenset(RULES) - _WRITES - _VIEWS | _PARTIAL | {"broadcast_in_dim", "iota", "pad", "rev"}
# What XLA computes once and keeps, where several operations take it; and longer expressions than this.
_COSTLY = frozenset(name for name, found in PRIMITIVES.items() if found.is_costly)
_LONGEST = 40
# What can read its operands while they are computed, as it takes each entry of them once.
_REDUCES = ("reduce", "arg", "scatter", "dynamic_update_slice")
# What may write where an operand was that nothing else needs.
_IN_PLACE = ("dynamic_update_slice", "scatter", "sort")


@dataclass(eq=False, slots=True)
class _Variable:
    """What a variable of the jaxpr stands for: a buffer, or an expression that is yet to be computed.

    Attributes:
      buffer: what its memory would be, or is.
      reads: the bytes to be read for it of each buffer; of a buffer those of itself.
      parts: over how many devices XLA partitions it outside of manual regions; inside, 1.
      is_stored: whether it is in memory.
      is_costly: whether XLA computes it no more than once.
      size: how many operations are to be computed, without casts.
      view_of: the value whose bytes it has.
      entries: how many entries it has.
      product: the step of a product from whose result it is computed, entry by entry.
      is_alone: whether one operation alone takes that result.
      stack: the array of which it is what one iteration takes, and when the loop starts.
    """

    buffer: Buffer
    reads: Mapping[Buffer, int]
    parts: int = 1
    is_stored: bool = False
    is_costly: bool = False
    size: int = 0
    view_of: _Variable | None = None
    entries: int = 0
    product: ProgramStep | None = None
    is_alone: bool = True
    stack: tuple[Buffer, int] | None = None


def read_program(
    closed_jaxpr: Any,
    arguments: Sequence[tuple[str, int]],
    results: Sequence[int] | None = None,
    *,
    backend: Backend = "cpu",
) -> Program:
    """Read the steps of a program.

    Args:
      closed_jaxpr: the jaxpr.
      arguments: of each operand its name, and the bytes that a device holds of it.
      results: the bytes that a device holds of each result, where that is known.
      backend: whose compiler makes it. XLA:TPU fuses into products what others compute before; on TPUs and GPUs
        products read operands whose batch dims are anywhere.
    """
    jaxpr = _jax.jaxpr.without_dead_equations(closed_jaxpr)
    program = Program([Buffer(size, name) for name, size in arguments])
    reader, taken = _Reader(program, backend), set(program.arguments)
    operands = [
        _stored(buffer, max(1, _bytes(var.aval) // max(1, buffer.bytes)))
        for buffer, var in zip(program.arguments, jaxpr.invars, strict=True)
    ]
    for value in [reader.store(value) for value in reader.read(jaxpr, operands, Around())]:
        (buffer,) = value.reads
        if buffer in taken:  # each result is an array of its own
            (buffer,) = reader.copy(value, Around(), "copy").reads
        taken.add(buffer)
        program.results.append(buffer)
    for buffer, size in zip(program.results, results or (), strict=False):
        buffer.bytes = size
    buffers = [*program.arguments, *program.results]
    program.types = {one: _type(atom.aval) for one, atom in zip(buffers, (*jaxpr.invars, *jaxpr.outvars), strict=True)}
    if backend == "tpu":
        fuse_into_products(program)
        round_operands(program)
    program.reused = reused_arguments(program, donated_operands(jaxpr))
    return program


def _has_precision(eqn: Any) -> bool:
    """Whether a product asks for more than the precision that a device has by default."""
    return any(text in str(eqn.params.get("precision")).upper() for text in ("HIGH", "F32", "X3", "X6", "X9"))


@dataclass
class _Reader:
    """Reads a jaxpr into steps.

    Attributes:
      now: counts equations and steps.
      times: how often what is read now runs.
      manual: the mesh axes that are manual there, with their sizes.
    """

    program: Program
    backend: Backend
    now: int = 0
    times: int = 1
    manual: Mapping[str, int] = field(default_factory=dict[str, int])
    converted: dict[tuple[Buffer, str], Buffer] = field(default_factory=dict[tuple[Buffer, str], Buffer])

    def read(self, closed_jaxpr: Any, operands: Sequence[_Variable], around: Around) -> list[_Variable]:
        """Read a jaxpr; from its operands to its results."""
        jaxpr, known = _jax.jaxpr.open_jaxpr(closed_jaxpr), dict[Any, _Variable]()
        uses = Counter(id(atom) for eqn in jaxpr.eqns for atom in eqn.invars)
        uses.update(map(id, jaxpr.outvars))
        summed = {id(atom) for eqn in jaxpr.eqns if eqn.primitive.name.startswith("reduce_") for atom in eqn.invars}

        def bind(variables: Sequence[Any], values: Sequence[_Variable]) -> None:
            for var, value in zip(variables, values, strict=True):
                known[var] = value if uses[id(var)] <= 1 else self.share(value, id(var) in summed)

        def value_of(atom: Any) -> _Variable:
            is_constant = _jax.jaxpr.is_literal(atom) or atom not in known
            return self._new(atom.aval, "constant", around) if is_constant else _latest(known[atom])

        self.times = around.times
        bind(jaxpr.invars, operands)
        for eqn in jaxpr.eqns:
            self.now, self.times = self.now + 1, around.times
            is_transposed = around.is_transposed or _jax.jaxpr.is_transposed(eqn)
            at = Around(around.times, _jax.source.equation_place(eqn) or around.place, is_transposed)
            results = self._equation(eqn, [value_of(atom) for atom in eqn.invars], at)
            self.times = around.times
            bind(eqn.outvars, results)
        return [value_of(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, operands: list[_Variable], at: Around) -> list[_Variable]:
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            consts, carried = _jax.jaxpr.scan_counts(params)
            slices, body = operands[consts + carried :], _jax.jaxpr.open_jaxpr(params["jaxpr"])
            inside = at._replace(times=at.times * params["length"])
            parts = [self._slice(*each, inside) for each in zip(slices, body.invars[consts + carried :], strict=True)]
            return self._loop(eqn, body, operands[:consts], operands[consts : consts + carried], parts, at, inside)
        if name == "while":
            conds, consts, carry = _jax.jaxpr.while_operands(eqn, operands)
            self.read(params["cond_jaxpr"], [*conds, *carry], at)
            return self._loop(eqn, _jax.jaxpr.open_jaxpr(params["body_jaxpr"]), consts, carry, [], at, at)
        if name == "cond":
            return self._cond(eqn, operands, at)
        if name == "shard_map":
            return self._region(eqn, operands, at)
        if name not in OPAQUE and name not in _FUSED | _VIEWS:
            called = _jax.jaxpr.hi_jaxpr(eqn) if "_prim" in params else _jax.jaxpr.called_jaxpr(eqn)
            if called is not None:
                return self.read(called, operands[: len(called.invars)], at)
        return self._operation(eqn, operands, at)

    def _operation(self, eqn: Any, operands: list[_Variable], at: Around) -> list[_Variable]:
        """An equation without jaxprs: a view, a part of an expression, or a step."""
        name, parts = eqn.primitive.name, max((value.parts for value in operands), default=1)
        made = [self._new(var.aval, name, at, parts) for var in eqn.outvars]
        is_same = made and operands and operands[0].entries == made[0].entries
        # XLA drops a collective of each shard by itself.
        if name in _VIEWS or (is_same and (name == "reduce_sum" or group_size(eqn, self.manual) == 1)):
            return [_view(value, one) for value, one in zip(operands, made, strict=False)]
        self.program.equations.append(Equation(eqn, parts, at))
        if name in _FUSED:
            reads = _union(operands, made[0].buffer.bytes if name in _PARTIAL else None)
            is_simple = name not in _COSTLY or (name == "div" and _jax.jaxpr.is_literal(eqn.invars[1]))
            for one in made:
                one.reads, one.size = reads, (name != "convert_element_type") + sum(value.size for value in operands)
                one.is_costly = not is_simple or any(value.is_costly for value in operands)
                one.product = _product_of(one, operands)
                one.is_alone = all(value.is_alone for value in operands if value.product is not None)
            if name == "convert_element_type":
                taken = operands[0].view_of or operands[0]
                if taken.stack is not None and made[0].buffer.bytes < taken.buffer.bytes:
                    self._convert_scanned(taken, made[0])
            return made
        if name == "dot_general":
            _, batch = eqn.params["dimension_numbers"]
            if self.backend == "cpu":
                operands = [self._batch_first(value, dims, at) for value, dims in zip(operands, batch, strict=True)]
        if not name.startswith(_REDUCES):
            is_read_in_place = self.backend == "tpu" and name == "dot_general"
            operands = [
                value if is_read_in_place and (value.view_of or value).stack else self.store(value)
                for value in operands
            ]
        beside = [self._new(each, name, at).buffer for each in _sent_as(eqn)]
        results = self._step(made, _union(operands), at, is_in_place=name.startswith(_IN_PLACE), beside=beside)
        if name == "dot_general":
            results[0].product = self.program.steps[-1]
            self.program.steps[-1].multiplied = frozenset(() if _has_precision(eqn) else _union(operands))
        return results

    def _new(self, aval: Any, operation: str, at: Around, parts: int = 1) -> _Variable:
        size = -(-_bytes(aval) // parts)
        buffer = Buffer(size, _type(aval), operation, at.place, self.now, at.is_transposed)
        return _Variable(buffer, {}, parts, entries=prod(getattr(aval, "shape", ())))

    def _step(
        self,
        made: Sequence[_Variable],
        reads: Mapping[Buffer, int],
        at: Around,
        product: ProgramStep | None = None,
        is_in_place: bool = False,
        beside: Sequence[Buffer] = (),
    ) -> list[_Variable]:
        """A step that writes values to memory."""
        buffers = [one.buffer for one in made]
        ready = min((buffer.made for buffer in buffers), default=self.now)
        for buffer in buffers:
            buffer.made = self.now
        step = ProgramStep(self.now, ready, dict(reads), [*buffers, *beside], at, is_in_place, product=product)
        self.program.steps.append(step)
        self.now += 1
        return [_stored(one.buffer, one.parts, one.entries) for one in made]

    def store(self, value: _Variable, is_in_place: bool = True) -> _Variable:
        """A value in memory, computed now where it is not yet there."""
        value = _latest(value)
        if value.view_of is not None and not value.is_stored:
            self.store(value.view_of, is_in_place)
        elif not value.is_stored and _is_epilogue(value):
            assert value.product is not None
            step, (buffer,) = value.product, value.product.writes
            step.reads = {**value.reads, **step.reads}
            del step.reads[buffer]
            buffer.bytes, buffer.type = value.buffer.bytes, value.buffer.type
            value.reads, value.is_stored, value.is_costly, value.size = {buffer: buffer.bytes}, True, False, 0
        elif not value.is_stored:
            at = Around(self.times, value.buffer.place, value.buffer.is_transposed)
            (array,) = self._step([value], value.reads, at, value.product, is_in_place)
            value.reads, value.is_stored, value.is_costly, value.size = array.reads, True, False, 0
        return _latest(value)

    def share(self, value: _Variable, is_summed: bool) -> _Variable:
        """A value that several take: in memory where it is costly, or where XLA writes it as a product's result.

        What is summed as it is written is not written over what it is computed from.
        """
        value = _latest(value)
        if value.is_stored:
            (value.view_of or value).is_alone = value.is_alone = False
            return value
        is_kept = value.is_costly or value.size > _LONGEST or (value.size > 0 and _is_epilogue(value))
        return self.store(value, is_in_place=not is_summed) if is_kept else value

    def copy(self, value: _Variable, at: Around, operation: str) -> _Variable:
        """Another buffer with the same entries."""
        made = Buffer(value.buffer.bytes, value.buffer.type, operation, at.place, self.now, at.is_transposed)
        return self._step([_Variable(made, {}, value.parts)], value.reads, at, is_in_place=True)[0]

    def _batch_first(self, value: _Variable, batch: Sequence[int], at: Around) -> _Variable:
        """An operand of a product, whose batch dims are to be in front; what is yet to be computed, is made so."""
        is_in_order = tuple(batch) == tuple(range(len(batch)))
        return value if is_in_order or not value.is_stored else self.copy(value, at, "transpose")

    def _slice(self, array: _Variable, var: Any, at: Around) -> _Variable:
        """What one iteration takes of an array that is scanned."""
        part = self._new(var.aval, "scan", at)
        ((scanned, size),) = self.store(array).reads.items()
        part.reads, part.stack = {scanned: min(size, part.buffer.bytes)}, (scanned, self.now)
        return part

    def _convert_scanned(self, part: _Variable, made: _Variable) -> None:
        """What an iteration takes of an array, and makes narrower: XLA does that of the whole array before the loop."""
        assert part.stack is not None
        scanned, start = part.stack
        narrow = made.buffer.type.partition("[")[0]
        if (scanned, narrow) not in self.converted:
            size = scanned.bytes * made.buffer.bytes // part.buffer.bytes
            copy = Buffer(size, f"{scanned.type} as {narrow}", "convert_element_type", made.buffer.place, start)
            at = Around(1, made.buffer.place)
            self.program.steps.append(
                ProgramStep(start, start, {scanned: scanned.bytes}, [copy], at, is_in_place=False)
            )
            self.converted[scanned, narrow] = copy
        made.reads = {self.converted[scanned, narrow]: made.buffer.bytes}
        made.stack = (self.converted[scanned, narrow], start)

    def _loop(
        self,
        eqn: Any,
        body: Any,
        consts: list[_Variable],
        carry: list[_Variable],
        slices: list[_Variable],
        at: Around,
        inside: Around,
    ) -> list[_Variable]:
        """What is carried is in memory of its own; what is stacked is set aside before the first iteration."""
        consts = [self.store(value) if value.reads else value for value in consts]
        start, first, count = self.now, len(self.program.steps), len(carry)
        is_same = [var is atom for var, atom in zip(body.invars[len(consts) :], body.outvars[:count], strict=False)]
        carry = [
            self.store(value) if same else self.copy(value, at, "carried")
            for value, same in zip(carry, is_same, strict=True)
        ]
        stacks = self._step([self._new(var.aval, "stacked", at) for var in eqn.outvars[count:]], {}, at)
        if self.backend == "tpu":  # XLA:CPU comes out nearer with what a loop starts with held, too
            first = len(self.program.steps)
        results = self.read(body, [*consts, *carry, *slices], inside)
        self.times = inside.times
        carried = [self.store(value) for value in results[:count]]
        for value, stack in zip(results[count:], stacks, strict=True):
            self._step([], {**value.reads, **dict.fromkeys(stack.reads, value.buffer.bytes)}, inside, value.product)
            self.program.steps[-1].fills = [*stack.reads]
        # The next iteration takes what comes from outside again.
        outside = [one for step in self.program.steps[first:] for one in step.reads if one.made < start]
        self._step([], dict.fromkeys([*outside, *_union(carried)], 0), at)
        return [*carried, *stacks]

    def _cond(self, eqn: Any, operands: list[_Variable], at: Around) -> list[_Variable]:
        """The branch that writes most to memory."""
        operands = [self.store(value) if value.reads else value for value in operands]
        program, branches = self.program, list[tuple[int, Program, list[_Variable]]]()
        for branch in eqn.params["branches"]:
            self.program = Program(())
            results = [self.store(value) for value in self.read(branch, operands[1:], at)]
            written = sum(one.bytes for step in self.program.steps for one in step.writes)
            branches.append((written, self.program, results))
        _, most, results = max(branches, key=itemgetter(0))
        program.steps += most.steps
        program.equations += most.equations
        self.program = program
        return results

    def _region(self, eqn: Any, operands: list[_Variable], at: Around) -> list[_Variable]:
        """A manual region, in which shapes are those of a shard."""
        body, inside = _jax.jaxpr.open_jaxpr(eqn.params["jaxpr"]), list[_Variable]()
        for value, var in zip(operands, body.invars, strict=True):
            shard = self._new(var.aval, "reshard", at)
            if value.buffer.bytes == shard.buffer.bytes:
                shard = _view(value, shard)
            else:
                shard.reads = {buffer: min(size, shard.buffer.bytes) for buffer, size in value.reads.items()}
            inside.append(shard)
        around, sizes = self.manual, eqn.params["mesh"].shape
        self.manual = {**around, **{axis: sizes[axis] for axis in _jax.jaxpr.newly_manual_axes(eqn.params)}}
        results = self.read(body, inside, at)
        self.manual = around
        for value, var in zip(results, eqn.outvars, strict=True):
            value.parts = max(1, _bytes(var.aval) // max(1, value.buffer.bytes))
        return results


def _product_of(value: _Variable, operands: Sequence[_Variable]) -> ProgramStep | None:
    """The last product from which a value is computed entry by entry."""
    found = [one.product for one in operands if one.product is not None and one.entries == value.entries]
    return max(found, key=attrgetter("time"), default=None)


def _is_epilogue(value: _Variable) -> bool:
    """Whether XLA writes a value in the place of the product from which it is computed.

    It is wider than the product, so that nothing is saved by computing it again, and all else that it takes is there.
    """
    if value.product is None or not value.is_alone or len(value.product.writes) > 1:
        return False
    (written,) = value.product.writes
    is_wider = value.buffer.bytes > written.bytes
    return is_wider and all(one is written or one.made < value.product.time for one in value.reads)


def _sent_as(eqn: Any) -> list[Any]:
    """What is sent or received with the parts of each device one behind the other, to be laid out beside."""
    params = eqn.params
    if eqn.primitive.name == "all_to_all" or params.get("scatter_dimension", 0):
        return [eqn.invars[0].aval]
    return [eqn.outvars[0].aval] if params.get("all_gather_dimension", 0) else []


def _stored(buffer: Buffer, parts: int, entries: int = 0) -> _Variable:
    return _Variable(buffer, {buffer: buffer.bytes}, parts, is_stored=True, entries=entries)


def _view(value: _Variable, made: _Variable) -> _Variable:
    """A value by the name of another that has its bytes."""
    made.buffer.operation, made.buffer.place = value.buffer.operation, value.buffer.place
    made.view_of = value if value.view_of is None else value.view_of
    return _latest(made)


def _latest(value: _Variable) -> _Variable:
    """A value as it is now: of what it is a view may have been stored."""
    if value.view_of is not None:
        array = value.view_of
        value.reads, value.is_stored, value.is_costly, value.size, value.product = (
            array.reads,
            array.is_stored,
            array.is_costly,
            array.size,
            array.product,
        )
        value.is_alone = array.is_alone
    return value


def _union(values: Sequence[_Variable], most: int | None = None) -> dict[Buffer, int]:
    """What is to be read for several values, of each no more than some bytes."""
    found: dict[Buffer, int] = {}
    for value in values:
        for buffer, size in value.reads.items():
            found[buffer] = max(found.get(buffer, 0), size if most is None else min(size, most))
    return found


def _bytes(aval: Any) -> int:
    return _jax.array.size_in_bytes(aval.shape, aval.dtype) if hasattr(aval, "shape") else 0


def _type(aval: Any) -> str:
    if not hasattr(aval, "shape"):
        return str(aval)
    return f"{_jax.array.short_dtype(aval.dtype)}[{','.join(map(str, aval.shape))}]"
