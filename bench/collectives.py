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

import numpy as np


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a compiled program.

    Attributes:
      kind: XLA's name, ``all-gather``, ``all-reduce``, ``all-to-all``, ``collective-permute``, ``reduce-scatter``.
      groups: the devices that exchange with each other, in ascending order; of a permutation, its pairs.
      bytes_in: what one device puts in.
      bytes_out: what one device gets.
      sent: what the busiest device sends.
    """

    kind: str
    groups: tuple[tuple[int, ...], ...]
    bytes_in: Fraction
    bytes_out: Fraction
    sent: Fraction

    @property
    def group_size(self) -> int:
        """How many devices exchange with each other; of a permutation, its pairs."""
        return len(self.groups if self.kind == "collective-permute" else self.groups[0])


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
        pairs = tuple(sorted(_listed(_only(PAIRS, line))))
        # The start of an asynchronous one gives the operand, the result, and two numbers of its own.
        size = sizes[0] if found["start"] else sum(sizes, Fraction(0))
        moves = any(source != target for source, target in pairs)
        return Collective(kind, pairs, size, size, size if moves else Fraction(0))
    groups = device_groups(_only(GROUPS, line), devices, line)
    return _of_size(kind, groups, sum(sizes, Fraction(0)), found["start"] is not None)


def _of_size(kind: str, groups: tuple[tuple[int, ...], ...], size: Fraction, is_start: bool) -> Collective:
    """A collective whose result has a size; the start of a gather gives its operand as well."""
    n = len(groups[0])
    match kind:
        case "all-gather":
            operand = size / (n + 1) if is_start else size / n
            return Collective(kind, groups, operand, operand * n, operand * (n - 1))
        case "reduce-scatter":
            return Collective(kind, groups, size * n, size, size * (n - 1))
        case _:
            return Collective(kind, groups, size, size, size * (n - 1) / n * (2 if kind == "all-reduce" else 1))


def device_groups(text: str, devices: int, line: str = "") -> tuple[tuple[int, ...], ...]:
    """The devices that exchange with each other, in any of the forms that XLA writes groups in.

    Args:
      text: ``{{0,1},{2,3}}``, ``{}``, ``[4,2]<=[8]``, ``[4,2]<=[2,4]T(1,0)`` or ``mesh['a'=2,'b'=4] {'a'}``.
      devices: how many devices there are.
      line: the line that has it, for the error.
    """
    found = None
    if text == "{}":
        found = (tuple(range(devices)),)
    elif re.fullmatch(r"\{(\{[0-9,]+\},?)+\}", text):
        found = tuple(sorted(tuple(sorted(group)) for group in _listed(text)))
    elif tiled := re.fullmatch(r"\[([0-9]+,[0-9]+)\]<=(\[.*)", text):
        found = _rows(_iota(tiled[2], text).reshape(_numbers(tiled[1])))
    elif named := re.fullmatch(r"mesh\[(.*?)\](?:, device_ids=\((.*)\))? \{(.*)\}", text):
        found = _of_axes(named[1], named[2], named[3], text)
    if found is None or len({len(group) for group in found}) > 1:
        raise UnknownForm(f"{text} in: {line.strip()}")
    return found


def _of_axes(mesh: str, devices: str | None, axes: str, text: str) -> tuple[tuple[int, ...], ...]:
    """The groups along axes of a mesh; a part of an axis is ``'a':(2)3``: of size 3, with 2 times as much before it."""
    if re.sub(r"'[^']+'(:\([0-9]+\)[0-9]+)?,?\s*", "", axes):
        raise UnknownForm(text)
    parts: dict[str, list[tuple[int, int]]] = {}
    for axis, before, size in re.findall(r"'([^']+)'(?::\(([0-9]+)\)([0-9]+))?", axes):
        parts.setdefault(axis, []).append((int(before or 1), int(size or 0)))
    shape, grouped = list[int](), list[int]()
    for axis, written in re.findall(r"'([^']+)'=([0-9]+)", mesh):
        done, whole = 1, int(written)
        for before, size in sorted(parts.pop(axis, [])):
            shape += [before // done, size or whole]
            grouped.append(len(shape) - 1)
            done = before * (size or whole)
        shape.append(whole // done)
    if parts:
        raise UnknownForm(text)
    ids = (np.arange(prod(shape)) if devices is None else _iota(devices, text)).reshape(shape)
    last = np.moveaxis(ids, grouped, range(-len(grouped), 0))
    return _rows(last.reshape(-1, prod(shape[at] for at in grouped)))


def _iota(text: str, source: str) -> np.ndarray:
    """``[8]``, ``[4,2]T(1,0)``: the numbers from 0 on in this shape, with its dims in another order."""
    found = re.fullmatch(r"\[([0-9,]+)\](?:T\(([0-9,]+)\))?", text)
    if found is None:
        raise UnknownForm(source)
    shape = _numbers(found[1])
    numbers = np.arange(prod(shape)).reshape(shape)
    return numbers.transpose(_numbers(found[2])) if found[2] else numbers


def _rows(ids: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(tuple(sorted(row)) for row in ids.tolist()))


def _listed(text: str) -> tuple[tuple[int, ...], ...]:
    """``{{0,1},{2,3}}``."""
    return tuple(_numbers(group) for group in re.findall(r"\{([0-9,]+)\}", text))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


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
