"""Read the collectives of a compiled program from its text, and count the bytes that each sends.

    found = collectives(jax.jit(f).lower(x).compile().as_text())
    sum(one.sent for one in found)

Bytes are counted by ring formulas for the busiest device: gather (n-1)S, all_to_all (n-1)/n S,
psum 2(n-1)/n S, psum_scatter (n-1)/n S, ppermute S, with S the bytes of the operand on one device. A
collective in the body of a loop is in the text once, and is counted once.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import prod


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a compiled program.

    Attributes:
      kind: XLA's name, ``all-gather``, ``all-reduce``, ``all-to-all``, ``collective-permute``, ``reduce-scatter``.
      group_size: how many devices exchange with each other; of a permutation, its pairs.
      bytes_in: what one device puts in.
      bytes_out: what one device gets.
      sent: what the busiest device sends.
    """

    kind: str
    group_size: int
    bytes_in: Fraction
    bytes_out: Fraction
    sent: Fraction


class UnknownForm(ValueError):
    """A line of compiled text that this reader does not understand."""


KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
REFUSED = ("ragged-all-to-all", "collective-broadcast")
LINE = re.compile(rf" = (?P<type>.*?) (?P<kind>{'|'.join((*REFUSED, *KINDS))})(?P<start>-start)?\(")
ARRAY = re.compile(r"\b(?P<dtype>pred|token|[a-z]+[0-9]+[a-z0-9]*)\[(?P<dims>[0-9,]*)\]")
DEVICES = re.compile(r"(?:num_partitions|replica_count)=([0-9]+)")
GROUPS = re.compile(r"replica_groups=(mesh\[.*?\](?:, device_ids=\S+)? \{.*?\}|.*?)(?:, [a-z_]+=|$)")
PAIRS = re.compile(r"source_target_pairs=(\{\{.*?\}\}|\{\})")


def collectives(compiled: str) -> list[Collective]:
    """The collectives of a program, in the order of its text.

    Args:
      compiled: what ``.compile().as_text()`` gives.

    Raises:
      UnknownForm: for a collective, or a way of writing its groups, that is not known here.
    """
    devices = prod(map(int, DEVICES.findall(compiled.partition("\n")[0])))
    return [_read(line, found, devices) for line in compiled.splitlines() if (found := LINE.search(line))]


def sent(compiled: str) -> Fraction:
    """The bytes that the busiest device sends in a program."""
    return sum((one.sent for one in collectives(compiled)), Fraction(0))


def _read(line: str, found: re.Match[str], devices: int) -> Collective:
    kind = found["kind"]
    if kind in REFUSED:
        raise UnknownForm(line)
    sizes = [*_array_bytes(found["type"])]
    if kind == "collective-permute":
        pairs = re.findall(r"\{([0-9]+),([0-9]+)\}", _only(PAIRS, line))
        # The start of an asynchronous one gives the operand, the result, and two numbers of its own.
        size = sizes[0] if found["start"] else sum(sizes, Fraction(0))
        moves = any(source != target for source, target in pairs)
        return Collective(kind, len(pairs), size, size, size if moves else Fraction(0))
    n = group_size(_only(GROUPS, line), devices, line)
    return _of_size(kind, n, sum(sizes, Fraction(0)), found["start"] is not None)


def _of_size(kind: str, n: int, size: Fraction, is_start: bool) -> Collective:
    """A collective of ``n`` devices whose result has a size; the start of a gather gives its operand as well."""
    match kind:
        case "all-gather":
            operand = size / (n + 1) if is_start else size / n
            return Collective(kind, n, operand, operand * n, operand * (n - 1))
        case "reduce-scatter":
            return Collective(kind, n, size * n, size, size * (n - 1))
        case _:
            return Collective(kind, n, size, size, size * (n - 1) / n * (2 if kind == "all-reduce" else 1))


def group_size(text: str, devices: int, line: str = "") -> int:
    """How many devices are in each group, in any of the forms that XLA writes groups in.

    Args:
      text: ``{{0,1},{2,3}}``, ``{}``, ``[4,2]<=[8]``, ``[4,2]<=[2,4]T(1,0)`` or ``mesh['a'=2,'b'=4] {'a'}``.
      devices: how many devices there are.
      line: the line that has it, for the error.
    """
    if text == "{}":
        return devices
    if re.fullmatch(r"\{(\{[0-9,]+\},?)+\}", text):
        sizes = {len(group.split(",")) for group in re.findall(r"\{([0-9,]+)\}", text)}
        if len(sizes) == 1:
            return sizes.pop()
    if tiled := re.fullmatch(r"\[([0-9]+),([0-9]+)\]<=\[[0-9,]+\](T\([0-9,]+\))?", text):
        return int(tiled[2])
    if named := re.fullmatch(r"mesh\[(.*?)\](?:, device_ids=\S+)? \{(.*)\}", text):
        return _of_axes(named[1], named[2], text)
    raise UnknownForm(f"{text} in: {line.strip()}")


def _of_axes(mesh: str, axes: str, text: str) -> int:
    """The product of the named axes' sizes; a part of an axis is written ``'a':(1)2``, the last number its size."""
    sizes = dict(re.findall(r"'([^']+)'=([0-9]+)", mesh))
    found = re.findall(r"'([^']+)'(?::\([0-9]+\)([0-9]+))?", axes)
    if re.sub(r"'[^']+'(:\([0-9]+\)[0-9]+)?,?\s*", "", axes):
        raise UnknownForm(text)
    return prod(int(part or sizes[axis]) for axis, part in found)


def _array_bytes(text: str) -> Iterator[Fraction]:
    for found in ARRAY.finditer(text):
        yield Fraction(_bits(found["dtype"]) * prod(int(size) for size in found["dims"].split(",") if size), 8)


def _bits(dtype: str) -> int:
    """How wide an element is: ``f32``, ``bf16``, ``f8e4m3fn``, ``c64``; a boolean takes a byte."""
    if dtype == "token":
        return 0
    return 8 if dtype == "pred" else int(re.findall(r"[0-9]+", dtype)[0])


def _only(pattern: re.Pattern[str], line: str) -> str:
    found = pattern.search(line)
    if found is None:
        raise UnknownForm(line.strip())
    return found[1]
