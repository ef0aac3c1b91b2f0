"""Emulate XLA:TPU, which fuses other operations into products, and rounds their operands to bfloat16."""

from __future__ import annotations

from collections import Counter, defaultdict

from .program import Buffer, Program, ProgramStep


def fuse_into_products(program: Program) -> None:
    """Let a product write values computed from its result, if the other operands exist before; also to a stack."""
    count = Counter(buffer for step in program.steps for buffer in step.reads)
    kept = list[ProgramStep]()
    for step in program.steps:
        product = step.product
        written = product.writes[0] if product is not None and len(product.writes) == 1 else None
        if (
            product is None
            or written is None
            or written not in step.reads
            or count[written] > 1
            or written in program.results
            or not all(buffer is written or buffer.made < product.time for buffer in step.reads)
        ):
            kept.append(step)
            continue
        del step.reads[written]
        product.reads, product.writes, product.fills = {**step.reads, **product.reads}, step.writes, step.fills
        for buffer in product.writes:
            buffer.made = product.time
    program.steps = kept


def round_operands(program: Program) -> None:
    """Halve the buffers that only products read, if they multiply float32 in bfloat16."""
    readers = defaultdict[Buffer, list[ProgramStep]](list)
    for step in program.steps:
        for buffer, size in step.reads.items():
            if size and buffer not in step.fills:
                readers[buffer].append(step)
    kept = {*program.arguments, *program.results}
    rounded = {
        buffer
        for buffer, steps in readers.items()
        if buffer.type.startswith("f32[") and buffer not in kept and all(buffer in step.multiplied for step in steps)
    }
    for step in program.steps:
        step.reads.update({buffer: step.reads[buffer] // 2 for buffer in rounded & step.reads.keys()})
    for buffer in rounded:
        buffer.bytes, buffer.type = buffer.bytes // 2, buffer.type.replace("f32", "bf16", 1)
