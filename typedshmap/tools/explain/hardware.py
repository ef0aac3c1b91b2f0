"""The peak figures of devices, and the least time of a program on a device.

Invariant: all figures are peaks, so that every time is a lower bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import isfinite, prod
from numbers import Real
from operator import itemgetter
from typing import Any

from ...errors import MeshAxisError, StructureError
from ...errors.phrases import excerpt, mesh_text, value_text
from .links import Torus, link_rates
from .model import Collective, MeshSizes, Time, Work, seconds_text


@dataclass(frozen=True)
class Hardware:
    """The peak figures of one kind of device.

    ```python
    ours = Hardware("ours", flops={"bf16": 400e12}, memory=64e9, bandwidth=2e12, links={"dp": 25e9, "tp": 400e9})
    print(explain(step, mesh="dp=8,tp=8", hardware=ours))
    ```

    Attributes:
      name: its name.
      flops: floating-point operations per second by JAX's short name of the dtype, ``{"bf16": 197e12}``. Any other
        dtype runs like the next wider dtype here, else like the widest.
      memory: the bytes of its memory.
      bandwidth: the bytes per second to and from the memory.
      links: the bytes that a device sends per second over a mesh axis, in all directions.
      link: the same for all other mesh axes, into a switch or over one dim of a torus; 0 if it is unknown.
      domain: the largest number of devices connected in this way, those of the last mesh axes; 0 means all.
      network: the bytes that a device sends per second over all further mesh axes.
      torus: the grid of the devices; None if a switch connects them.

    Raises:
      StructureError: for figures that are not positive numbers.
    """

    name: str
    flops: Mapping[str, float]
    memory: float
    bandwidth: float
    links: Mapping[str, float] = field(default_factory=dict[str, float])
    link: float = 0
    domain: int = 0
    network: float = 0
    torus: Torus | None = None

    def __post_init__(self) -> None:
        for name in ("flops", "links"):
            if not isinstance(getattr(self, name), Mapping):
                raise StructureError(f"Hardware: {name}= expects a dict, got {value_text(getattr(self, name))}")
        if not self.flops:
            raise StructureError('Hardware: flops= is empty\n\nHint: write as in {"bf16": 197e12}')
        figures: dict[str, Any] = {f"flops[{key!r}]": value for key, value in self.flops.items()}
        figures |= {"memory": self.memory, "bandwidth": self.bandwidth}
        figures |= {f"links[{key!r}]": value for key, value in self.links.items()}
        for name in ("link", "domain", "network"):
            if getattr(self, name) != 0:
                figures[name] = getattr(self, name)
        for name, value in figures.items():
            if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value) or value <= 0:
                raise StructureError(f"Hardware: {name} is {value_text(value)}, not a positive number")

    @property
    def rounds(self) -> bool:
        """Whether it multiplies float32 in bfloat16, like TPUs by default: it has no rate for wider dtypes."""
        return "bf16" in self.flops and all(_width(dtype) <= 16 for dtype in self.flops)

    def rate(self, dtype: str) -> float:
        """The operations per second in a dtype."""
        if dtype in self.flops:
            return self.flops[dtype]
        wider = sorted((known for known in self.flops if _width(known) >= _width(dtype)), key=_width)
        return self.flops[wider[0] if wider else max(self.flops, key=_width)]

    def rates(self, mesh: MeshSizes) -> dict[str, float]:
        """The bytes that a device sends per second over each mesh axis, if known.

        Raises:
          MeshAxisError: for a link over an axis that the mesh does not have.
        """
        if unknown := [axis for axis in self.links if axis not in dict(mesh)]:
            lacks = f"mesh axis '{unknown[0]}', which the mesh ({mesh_text(mesh)}) does not have"
            raise MeshAxisError(f"hardware {self.name!r} has a link over {lacks}")
        count = prod(size for _, size in mesh)
        if self.torus and self.torus.devices and count % self.torus.devices:
            wanted = f"a topology of {self.torus.devices:,} devices"
            raise MeshAxisError(f"hardware {self.name!r} is {wanted}, and the mesh ({mesh_text(mesh)}) has {count:,}")
        rates = link_rates(tuple(size for _, size in mesh), self.link, self.domain, self.network, self.torus)
        known = {axis: self.links.get(axis, rate) for (axis, _), rate in zip(mesh, rates, strict=True)}
        return {axis: rate for axis, rate in known.items() if rate}

    def shaped(self, text: str) -> Hardware:
        """The same in another topology, ``8x16x16``.

        Raises:
          StructureError: for a text that is not a topology of these devices.
        """
        sizes, torus = text.split("x"), self.torus
        if (
            torus is None
            or len(sizes) != torus.dims
            or not all(size.isdecimal() and 0 < len(size) < 6 for size in sizes)
        ):
            kind = f"{torus.dims} sizes, as in {'x'.join(['8', '16', '16'][: torus.dims])}" if torus else "no topology"
            raise StructureError(f"hardware {self.name!r} has {kind}; got {excerpt(text)!r}")
        torus = replace(torus, topology=tuple(map(int, sizes)))
        if not 1 <= torus.devices <= self.domain:
            raise StructureError(f"hardware {self.name!r} has slices of 1 to {self.domain:,} devices; got {text!r}")
        return replace(self, name=f"{self.name}:{text}", domain=torus.devices, torus=torus)


def _width(dtype: str) -> int:
    """The bits of a dtype by its name."""
    digits = "".join(letter if letter.isdigit() else " " for letter in dtype).split()
    return int(digits[0]) if digits else 8


# Sources: docs.cloud.google.com/tpu/docs/{v5e,v5p,v6e,tpu7x}, and NVIDIA's data sheets of the H100 SXM and the HGX
# B200, without sparsity. Over one dim of a torus a chip sends half of its bidirectional bandwidth, divided by the dims;
# into a switch half of it. A device of a TPU7x is one of two chiplets, with half of the chip's figures. The memory of
# TPUs is XLA's limit for a program, somewhat less than the chip's memory.
_SQUARE, _CUBE = Torus(dims=2, ring=16), Torus(dims=3, ring=4)
_PAIRS, _GIB = replace(_CUBE, pair=600e9), 2**30
_H100 = {"f8": 1979e12, "i8": 1979e12, "bf16": 989e12, "f16": 989e12, "f32": 494.7e12, "f64": 67e12}
_B200 = {"f8": 4500e12, "i8": 4500e12, "bf16": 2250e12, "f16": 2250e12, "f32": 1100e12, "f64": 40e12}
KNOWN = {
    hardware.name: hardware
    for hardware in (
        Hardware("v5e", {"bf16": 197e12, "i8": 393e12}, 15.75 * _GIB, 819e9, {}, 100e9, 256, 3.125e9, _SQUARE),
        Hardware("v5p", {"bf16": 459e12, "i8": 918e12}, 95 * _GIB, 2765e9, {}, 200e9, 6144, 6.25e9, _CUBE),
        Hardware("v6e", {"bf16": 918e12, "i8": 1836e12}, 31.24 * _GIB, 1638e9, {}, 200e9, 256, 12.5e9, _SQUARE),
        Hardware("v7x", {"bf16": 1153.5e12, "f8": 2307e12}, 94.74 * _GIB, 3690e9, {}, 100e9, 18432, 6.25e9, _PAIRS),
        Hardware("h100", _H100, 80e9, 3350e9, {}, 450e9, 8, 50e9),
        Hardware("b200", _B200, 180e9, 8000e9, {}, 900e9, 8, 50e9),
    )
}


def read_hardware(verb: str, given: Any) -> Hardware | None:
    """A kind of device by its name, perhaps with its topology as in ``v5p:8x16x16``; a `Hardware` unchanged."""
    if given is None or isinstance(given, Hardware):
        return given
    name, _, topology = given.lower().partition(":") if isinstance(given, str) else ("", "", "")
    if name in KNOWN:
        return KNOWN[name].shaped(topology) if topology else KNOWN[name]
    near = get_close_matches(name, KNOWN, 1, 0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    if verb.startswith("--"):  # a command line cannot describe other devices
        raise StructureError(f"{verb} {given}: {hint}there are {', '.join(KNOWN)}")
    raise StructureError(
        f"{verb}: hardware= is {value_text(given)}\n\n"
        f"Hint: {hint}there are {', '.join(KNOWN)}; "
        "for others pass a Hardware(name, flops=, memory=, bandwidth=, links=)"
    )


_RINGS = ("all-reduce", "all-gather", "reduce-scatter")


def _sent_over(op: Collective, sizes: Mapping[str, int], rates: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The bytes that a device sends over each axis of a collective."""
    # A ring over several axes is a ring over each axis, the fastest first: for the next axes only a part of the data is
    # left. A collective that is not a ring counts over the slowest axis.
    if op.operation not in _RINGS or prod(sizes[axis] for axis in op.axes) != op.group:
        yield min(op.axes, key=rates.__getitem__), op.wire
        return
    full, left = op.wire * op.group / (op.group - 1), 1.0
    for axis in sorted(op.axes, key=rates.__getitem__, reverse=True):
        yield axis, full * left * (1 - 1 / sizes[axis])
        left /= sizes[axis]


def time_of(
    work: Work,
    collectives: Iterable[Collective],
    hardware: Hardware,
    mesh: MeshSizes,
    rates: Mapping[str, float],
) -> Time:
    """The least time of a program, with the bytes that a device sends per second by mesh axis."""
    compute, memory = defaultdict[str, float](float), defaultdict[str, float](float)
    sent = defaultdict[str, defaultdict[str, float]](lambda: defaultdict(float))
    for line in work.lines:
        compute[line.place] = sum(count / hardware.rate(dtype) for dtype, count in line.products.items())
        memory[line.place] = line.bytes / hardware.bandwidth
    for op in collectives:
        if missing := [axis for axis in op.axes if axis not in rates]:
            raise MeshAxisError(
                f"hardware {hardware.name!r} has no link over mesh axis '{missing[0]}', over which {op.place} sends"
                f'\n\nHint: say how fast it is: links={{"{missing[0]}": 50e9}}, in bytes per second'
            )
        for axis, size in _sent_over(op, dict(mesh), rates):
            sent[axis][op.place] += op.times * size / rates[axis]
    by_line = {"compute": compute, "memory": memory, **sent}
    totals = {name: sum(times.values()) for name, times in by_line.items()}
    bound = max(totals, key=totals.__getitem__)
    place, most = max(by_line[bound].items(), key=itemgetter(1), default=("", 0.0))
    lines = {line.place: max(compute[line.place], memory[line.place]) for line in work.lines}
    serial = sum(lines.values()) + sum(totals[axis] for axis in sent)
    what = {"compute": "compute-bound", "memory": "memory-bound"}.get(bound, f"bound by communication over '{bound}'")
    where = f": {seconds_text(most)} of {seconds_text(totals[bound])} at {place}" if place else ""
    return Time(
        hardware.name,
        hardware.memory,
        totals["compute"],
        totals["memory"],
        {axis: totals[axis] for axis in sent},
        serial,
        totals[bound],
        bound,
        place,
        f"{what}{where}",
        lines,
    )
