"""Read a jaxpr as the program of one device.

As in XLA, elementwise operations are fused into their consumers. A product, a reduction, a collective and a loop write
to memory; so does an elementwise operation with several consumers that is costly to recompute.

The buffers of a program depend on the order of its equations and on their consumers, so this is not a domain of
`inference.interpreter`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple

from ... import _jax
from ..._jax.primitives import PRIMITIVES, primitive
from .fusing import fuse_into_products, round_operands
from .jaxpr_costs import OPAQUE, Around, group_size
from .model import array_text
from .program import Buffer, Program, ProgramStep

Backend = Literal["cpu", "gpu", "tpu"]
_FUSED = {"broadcast_in_dim", "complex", "iota", "pad", "random_bits", "rev"} | {
    name
    for name, known in PRIMITIVES.items()
    if known.is_entry_by_entry or known.is_part or (known.kind == "random" and not known.is_draw)
}
# XLA stores the value of a longer expression with several consumers.
_LONGEST = 40


class _Variable(NamedTuple):
    """A variable of the jaxpr: a buffer, perhaps under another shape or dtype."""

    buffer: Buffer
    bytes: int
    parts: int = 1  # the devices over which XLA partitions it outside manual regions


def read_program(
    closed_jaxpr: Any, arguments: Sequence[tuple[str, int]], backend: Backend, results: Sequence[int] | None = None
) -> Program:
    """Read the steps of a program, with the names of its arguments and their bytes on a device."""
    jaxpr = _jax.jaxpr.without_dead_equations(closed_jaxpr)
    program = Program([Buffer(size, name) for name, size in arguments])
    reader, taken = _Reader(program, backend), set(program.arguments)
    operands: list[_Variable] = []
    for buffer, var in zip(program.arguments, jaxpr.invars, strict=True):
        buffer.store(0)
        operands.append(_Variable(buffer, buffer.bytes, max(1, _bytes(var.aval) // max(1, buffer.bytes))))
    for result in reader.read(jaxpr, operands):
        buffer = reader.store(result.buffer)
        if buffer in taken:  # each result is a separate array
            buffer = reader.copy(result, "copy").buffer
        taken.add(buffer)
        program.results.append(buffer)
    for buffer, size in zip(program.results, results or (), strict=False):
        buffer.bytes = size
    buffers = [*program.arguments, *program.results]
    program.types = {buf: _type(atom.aval) for buf, atom in zip(buffers, (*jaxpr.invars, *jaxpr.outvars), strict=True)}
    if backend == "tpu":
        fuse_into_products(program)
        round_operands(program)
    program.reused = _reused_arguments(program, donated_operands(jaxpr))
    return program


def donated_operands(jaxpr: Any) -> list[int]:
    """The numbers of the operands that a call in a jaxpr may overwrite."""
    calls = [zip(eqn.invars, eqn.params.get("donated_invars", ()), strict=False) for eqn in jaxpr.eqns]
    donated = {var for call in calls for var, is_donated in call if is_donated and not _jax.jaxpr.is_literal(var)}
    return [at for at, var in enumerate(jaxpr.invars) if var in donated]


def _reused_arguments(program: Program, donated: Sequence[int]) -> dict[Buffer, Buffer]:
    """For each result that replaces a donated argument, the first argument of its type."""
    offered, reused = [program.arguments[at] for at in donated], dict[Buffer, Buffer]()
    for result in program.results:
        wanted = (program.types[result], result.bytes)
        same = next((argument for argument in offered if (program.types[argument], argument.bytes) == wanted), None)
        if same is not None:
            offered.remove(same)
            reused[result] = same
    return reused


def _has_precision(eqn: Any) -> bool:
    """Whether a product asks for more than a device's default precision."""
    return any(text in str(eqn.params.get("precision")).upper() for text in ("HIGH", "F32", "X3", "X6", "X9"))


@dataclass
class _Reader:
    """Reads a jaxpr into steps."""

    program: Program
    backend: Backend
    now: int = 0
    around: Around = field(default_factory=Around)
    # By array, dtype and the start of a loop that scans the array.
    narrowed: dict[tuple[Buffer, str, int], Buffer] = field(default_factory=dict[tuple[Buffer, str, int], Buffer])

    def read(self, closed_jaxpr: Any, operands: Sequence[_Variable]) -> list[_Variable]:
        """Read a jaxpr with its operands; returns its results."""
        jaxpr, known, around = _jax.jaxpr.open_jaxpr(closed_jaxpr), dict[Any, _Variable](), self.around
        uses = Counter(id(atom) for eqn in jaxpr.eqns for atom in eqn.invars)
        uses.update(map(id, jaxpr.outvars))
        summed = {id(atom) for eqn in jaxpr.eqns if eqn.primitive.name.startswith("reduce_") for atom in eqn.invars}

        def bind(variables: Sequence[Any], values: Sequence[_Variable]) -> None:
            for var, variable in zip(variables, values, strict=True):
                known[var] = variable
                if uses[id(var)] > 1 and (variable.buffer.is_costly or variable.buffer.size > _LONGEST):
                    # A result that is summed while it is written does not overwrite its operands.
                    self.store(variable.buffer, is_in_place=id(var) not in summed)

        def variable_of(atom: Any) -> _Variable:
            is_constant = _jax.jaxpr.is_literal(atom) or atom not in known
            return self._new(atom.aval, "constant") if is_constant else known[atom]

        bind(jaxpr.invars, operands)
        for eqn in jaxpr.eqns:
            self.now += 1
            self.around = around.at(eqn)
            results = self._equation(eqn, [variable_of(atom) for atom in eqn.invars])
            self.around = around
            bind(eqn.outvars, results)
        return [variable_of(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, operands: list[_Variable]) -> list[_Variable]:
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            consts, carry, scanned = _jax.jaxpr.scan_operands(eqn, operands)
            body = _jax.jaxpr.open_jaxpr(params["jaxpr"])
            rows = map(self._row, scanned, body.invars[len(operands) - len(scanned) :])
            return self._loop(eqn, body, consts, carry, [*rows], params["length"])
        if name == "while":
            conds, consts, carry = _jax.jaxpr.while_operands(eqn, operands)
            self.read(params["cond_jaxpr"], [*conds, *carry])
            return self._loop(eqn, params["body_jaxpr"], consts, carry)
        if name == "cond":
            return self._cond(eqn, operands)
        if name == "shard_map":
            return self._region(eqn, operands)
        if name not in OPAQUE and name not in _FUSED and not primitive(name).is_view:
            called = _jax.jaxpr.called_with(eqn, operands)
            if called is not None:
                return self.read(*called)
        return self._operation(eqn, operands)

    def _operation(self, eqn: Any, operands: list[_Variable]) -> list[_Variable]:
        """An equation without jaxprs: a view, a part of an expression, or a step."""
        name, kind = eqn.primitive.name, primitive(eqn.primitive.name)
        parts = max((operand.parts for operand in operands), default=1)
        made = [self._new(var.aval, name, parts) for var in eqn.outvars]
        # XLA drops a collective of single shards.
        if kind.is_view or group_size(eqn, self.around.sizes) == 1:
            return [result._replace(buffer=operand.buffer) for operand, result in zip(operands, made, strict=False)]
        self.program.equations.append((eqn, parts, self.around))
        if name in _FUSED:
            self._fuse(eqn, operands, made)
            return made
        if name == "dot_general" and self.backend == "cpu":
            _, batch = eqn.params["dimension_numbers"]
            operands = [self._batch_first(*pair) for pair in zip(operands, batch, strict=True)]
        # Reductions and updates read each entry once, while the operands are computed.
        if kind.kind not in ("reducing", "placing"):
            for operand in operands:
                if name != "dot_general" or self.backend != "tpu" or operand.buffer.stack is None:
                    self.store(operand.buffer)
        params, beside = eqn.params, list[Buffer]()
        if name == "all_to_all" or params.get("scatter_dimension") or params.get("all_gather_dimension"):
            # A collective also holds the parts of each device one behind the other.
            larger = max(eqn.invars[0].aval, eqn.outvars[0].aval, key=_bytes)
            beside = [self._new(larger, name).buffer]
        is_in_place = kind.kind == "placing" or name == "sort"
        step = self._step([*(result.buffer for result in made), *beside], _union(operands), is_in_place)
        if name == "dot_general":
            made[0].buffer.product = step
            step.multiplied = frozenset(() if _has_precision(eqn) else _union(operands))
        return made

    def _fuse(self, eqn: Any, operands: Sequence[_Variable], made: Sequence[_Variable]) -> None:
        """Make the results of an equation expressions of its operands."""
        name, kind = eqn.primitive.name, primitive(eqn.primitive.name)
        reads = _union(operands, made[0].bytes if kind.is_part else None)
        buffers = [operand.buffer for operand in operands]
        products = [buffer.product for buffer in buffers if buffer.product is not None]
        for buffer in (result.buffer for result in made):
            buffer.reads, buffer.size = reads, 1 + sum(operand.size for operand in buffers)
            buffer.is_costly = kind.is_costly or any(operand.is_costly for operand in buffers)
            buffer.product = max(products, key=attrgetter("time"), default=None)
        if name == "convert_element_type" and buffers[0].stack is not None and made[0].bytes < operands[0].bytes:
            # XLA makes an array that a loop scans narrower before the loop.
            scanned, start = buffers[0].stack
            dtype, size = made[0].buffer.type.partition("[")[0], scanned.bytes * made[0].bytes // operands[0].bytes
            if (narrow := self.narrowed.get((scanned, dtype, start))) is None:
                narrow = Buffer(size, f"{scanned.type} as {dtype}", name, self.around.place, start)
                step = ProgramStep(start, {scanned: scanned.bytes}, [narrow], Around(1, narrow.place))
                self.program.steps.append(step)
                self.narrowed[scanned, dtype, start] = narrow
            made[0].buffer.reads = {narrow: made[0].bytes}

    def _new(self, aval: Any, operation: str, parts: int = 1) -> _Variable:
        size = -(-_bytes(aval) // parts)
        return _Variable(self._buffer(size, _type(aval), operation), size, parts)

    def _buffer(self, size: int, type_text: str, operation: str) -> Buffer:
        return Buffer(size, type_text, operation, self.around.place, self.now, self.around.is_transposed)

    def _step(self, writes: Sequence[Buffer], reads: Mapping[Buffer, int], is_in_place: bool = False) -> ProgramStep:
        """Add a step that writes buffers."""
        step = ProgramStep(self.now, dict(reads), writes, self.around, is_in_place)
        for buffer in writes:
            buffer.store(self.now)
        self.program.steps.append(step)
        self.now += 1
        return step

    def store(self, buffer: Buffer, is_in_place: bool = True) -> Buffer:
        """Compute a buffer now unless it is in memory."""
        if not buffer.is_stored:
            step = self._step([buffer], buffer.reads, is_in_place)
            step.product, step.around = buffer.product, Around(self.around.times, buffer.place, buffer.is_transposed)
        return buffer

    def copy(self, variable: _Variable, operation: str) -> _Variable:
        """Another array with the same entries."""
        copy = self._buffer(variable.bytes, variable.buffer.type, operation)
        self._step([copy], variable.buffer.reads, is_in_place=True)
        return variable._replace(buffer=copy)

    def _batch_first(self, operand: _Variable, batch: Sequence[int]) -> _Variable:
        """An operand of a product with its batch dims first."""
        is_in_order = tuple(batch) == tuple(range(len(batch)))
        return operand if is_in_order else self.copy(operand, "transpose")

    def _row(self, array: _Variable, var: Any) -> _Variable:
        """One iteration's slice of an array."""
        row, scanned = self._new(var.aval, "scan"), self.store(array.buffer)
        row.buffer.reads, row.buffer.stack = {scanned: row.bytes}, (scanned, self.now)
        return row

    def _loop(
        self,
        eqn: Any,
        body: Any,
        consts: list[_Variable],
        carry: list[_Variable],
        rows: Sequence[_Variable] = (),
        length: int = 1,
    ) -> list[_Variable]:
        """A loop, whose stacked results are in memory before the first iteration."""
        self._store_all(consts)
        start, around, count = self.now, self.around, len(carry)
        for operand in carry:
            self.store(operand.buffer)
        stacks = [self._new(var.aval, "stacked") for var in eqn.outvars[count:]]
        self._step([stack.buffer for stack in stacks], {})
        first = len(self.program.steps)
        self.around = around.inside(eqn.primitive.name, length)
        results = self.read(body, [*consts, *carry, *rows])
        for result in results[:count]:
            self.store(result.buffer)
        for result, stack in zip(results[count:], stacks, strict=True):
            step = self._step([], {**result.buffer.reads, stack.buffer: result.bytes})
            step.product, step.fills = result.buffer.product, [stack.buffer]
        self.around = around
        # The next iteration reads values from outside again.
        outside = [buffer for step in self.program.steps[first:] for buffer in step.reads if buffer.made < start]
        self._step([], dict.fromkeys(outside, 0))
        return [*results[:count], *stacks]

    def _cond(self, eqn: Any, operands: list[_Variable]) -> list[_Variable]:
        """The branch that writes most to memory."""
        self._store_all(operands)
        program, branches = self.program, list[tuple[int, Program, list[_Variable]]]()
        for branch in eqn.params["branches"]:
            self.program = Program(())
            results = self.read(branch, operands[1:])
            for result in results:
                self.store(result.buffer)
            written = sum(buf.bytes for step in self.program.steps for buf in step.writes)
            branches.append((written, self.program, results))
        _, most, results = max(branches, key=itemgetter(0))
        program.steps += most.steps
        program.equations += most.equations
        self.program = program
        return results

    def _store_all(self, operands: Sequence[_Variable]) -> None:
        """Compute all operands except constants."""
        for operand in operands:
            if operand.buffer.reads:
                self.store(operand.buffer)

    def _region(self, eqn: Any, operands: list[_Variable]) -> list[_Variable]:
        """A manual region, where shapes are those of a shard."""
        body, inside = _jax.jaxpr.open_jaxpr(eqn.params["jaxpr"]), list[_Variable]()
        for operand, var in zip(operands, body.invars, strict=True):
            shard = self._new(var.aval, "reshard")
            if operand.bytes == shard.bytes:
                shard = shard._replace(buffer=operand.buffer)
            else:
                shard.buffer.reads = _union([operand], shard.bytes)
            inside.append(shard)
        self.around = self.around._replace(sizes={**self.around.sizes, **_jax.jaxpr.manual_sizes(eqn.params)})
        return [
            result._replace(parts=max(1, _bytes(var.aval) // max(1, result.bytes)))
            for result, var in zip(self.read(body, inside), eqn.outvars, strict=True)
        ]


def _union(variables: Sequence[_Variable], most: int | None = None) -> dict[Buffer, int]:
    """The bytes that several variables read of each buffer, up to a limit."""
    reads: dict[Buffer, int] = {}
    for variable in variables:
        for buffer, size in variable.buffer.reads.items():
            reads[buffer] = max(reads.get(buffer, 0), size if most is None else min(size, most))
    return reads


def _bytes(aval: Any) -> int:
    return _jax.array.size_in_bytes(aval.shape, aval.dtype) if hasattr(aval, "shape") else 0


def _type(aval: Any) -> str:
    if not hasattr(aval, "shape"):
        return str(aval)
    return array_text(_jax.array.short_dtype(aval.dtype), aval.shape)
