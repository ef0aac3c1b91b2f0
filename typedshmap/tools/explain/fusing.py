"""What XLA:TPU fuses into products, and keeps in bfloat16 for them."""

from __future__ import annotations

from collections import Counter, defaultdict

from .program import Buffer, Program, ProgramStep


def fuse_into_products(program: Program) -> None:
    """Let a product write what is computed from it entry by entry, where all else that this takes is there before.

    A stack of a loop is written by the product, too, whose result an iteration puts there.
    """
    count = Counter(one for step in program.steps for one in step.reads)
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
            or product.around.times != step.around.times
            or not all(one is written or one.made < product.time for one in step.reads)
        ):
            kept.append(step)
            continue
        del step.reads[written]
        product.reads, product.writes, product.fills = {**step.reads, **product.reads}, step.writes, step.fills
        for one in product.writes:
            one.made = product.time
    program.steps = kept


def round_operands(program: Program) -> None:
    """Halve what is in memory for products only: a device that multiplies float32 in bfloat16 keeps it in bfloat16."""
    readers = defaultdict[Buffer, list[ProgramStep]](list)
    for step in program.steps:
        for one in step.reads:
            if step.reads[one] and one not in step.fills:
                readers[one].append(step)
    kept = {*program.arguments, *program.results}
    rounded = {one for one in readers if one.type.startswith("f32[") and one not in kept}
    before = 0
    while before != len(rounded):
        before = len(rounded)
        rounded = {
            one for one in rounded if all(one in step.multiplied or _moves_into(step, rounded) for step in readers[one])
        }
    for step in program.steps:
        step.reads.update({one: step.reads[one] // 2 for one in rounded & step.reads.keys()})
    for one in rounded:
        one.bytes, one.type = one.bytes // 2, one.type.replace("f32", "bf16", 1)


def _moves_into(step: ProgramStep, rounded: set[Buffer]) -> bool:
    """Whether a step only moves entries to buffers of a set."""
    is_move = all(one.operation in ("scan", "transpose") for one in step.writes)
    return is_move and bool(step.writes or step.fills) and rounded.issuperset((*step.writes, *step.fills))
