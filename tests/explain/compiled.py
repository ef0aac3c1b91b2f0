"""Read what a compiled program communicates out of XLA's text; refuse what is not known.

Invariant: an instruction counts as often as the loops that it is in turn, by the trip counts that XLA
writes down; a combined collective counts once per operand.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

from typedshmap._jax.primitives import OPERATIONS
from typedshmap.tools.explain import Explanation

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from collectives import GROUPS, device_groups

_WIDTHS = {1: "pred s8 u8", 2: "s16 u16 f16 bf16", 4: "s32 u32 f32", 8: "f64 c64"}
_BYTES = {name: width for width, names in _WIDTHS.items() for name in names.split()}
_HEAD = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%(?P<name>[\w.\-]+) = (?P<type>\(.*?\)|\S+) (?P<operation>[a-z][\w\-]*)\((?P<rest>.*)$"
)
_ARRAY = re.compile(r"(?P<dtype>[a-z]+[0-9]*)\[(?P<dims>[0-9,]*)\]")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class Sent(NamedTuple):
    """One operand of a collective: what it is, how many devices take part, and the bytes that go in and out."""

    operation: str
    group: int
    bytes_in: int
    bytes_out: int


@dataclass
class _Instruction:
    name: str
    type: str
    operation: str
    rest: str

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", _closed(self.rest))


def _closed(text: str) -> str:
    """A text up to the bracket that closes it, which tuples' types within it do not."""
    depth = 1
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[:at]
    raise AssertionError(f"no end: {text}")


def sent_by(text: str, devices: int) -> Counter[Sent]:
    """All that one device sends, by kind, with how often.

    Args:
      text: the compiled program.
      devices: how many devices the program runs on.
    """
    computations, entry = _computations(text)
    found: Counter[Sent] = Counter()
    _count(entry, 1, computations, devices, found)
    return found


def reported(found: Explanation, is_widened: bool = False) -> Counter[Sent]:
    """What ``explain`` reported, as what is read out of XLA's text; on CPU, XLA may send bfloat16 as float32."""
    counted: Counter[Sent] = Counter()
    for one in found.collectives:
        group = 0 if one.operation == "collective-permute" else one.group
        width = 2 if is_widened and one.operand.startswith("bf16[") else 1
        counted[Sent(one.operation, group, width * one.bytes_in, width * one.bytes_out)] += one.times
    return counted


def _computations(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    found: dict[str, list[_Instruction]] = {}
    entry, current = "", list[_Instruction]()
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = found[head["name"]] = []
            entry = head["name"] if line.startswith("ENTRY") else entry
        elif match := _INSTRUCTION.match(line):
            current.append(_Instruction(**match.groupdict()))
    assert entry, "the text has no ENTRY"
    return found, entry


def _count(
    name: str, times: int, computations: dict[str, list[_Instruction]], devices: int, found: Counter[Sent]
) -> None:
    types = {one.name: one.type for one in computations[name]}
    for one in computations[name]:
        operation = one.operation.removesuffix("-start")
        if operation in OPERATIONS:
            for sent in _sent(one, operation, types, devices):
                found[sent] += times
            continue
        iterations = times
        if one.operation == "while":
            trips = _TRIPS.search(one.rest)
            assert trips is not None, f"a loop of unknown length: {one.rest}"
            iterations *= int(trips[1])
        branches = [each.strip().lstrip("%") for each in "".join(_BRANCHES.findall(one.rest)).split(",") if each]
        for called in (*_CALLED.findall(one.rest), *branches):
            _count(called, iterations, computations, devices, found)


def _sent(one: _Instruction, operation: str, types: dict[str, str], devices: int) -> list[Sent]:
    ins = [_bytes(types[name]) for name in one.operands]
    outs = [_bytes_of(match) for match in _ARRAY.finditer(one.type)]
    if one.operation.endswith("-start") and len(outs) == 2 * len(ins):
        outs = outs[len(ins) :]
    assert len(ins) == len(outs), one
    group = _group(one.rest, operation, devices)
    if operation == "all-to-all" and len(ins) > 1:  # one operand per device, all of the same value
        ins, outs = [sum(ins)], [sum(outs)]
    return [Sent(operation, group, before, after) for before, after in zip(ins, outs, strict=True)]


def _group(rest: str, operation: str, devices: int) -> int:
    """How many devices communicate with each other; of a permutation none are said to."""
    if operation == "collective-permute":
        return 0
    groups = GROUPS.search(rest)
    assert groups is not None, rest
    return len(device_groups(groups[1], devices, rest)[0])


def _bytes(type_text: str) -> int:
    (match,) = _ARRAY.finditer(type_text)
    return _bytes_of(match)


def _bytes_of(match: re.Match[str]) -> int:
    return prod(int(size) for size in match["dims"].split(",") if size) * _BYTES[match["dtype"]]
