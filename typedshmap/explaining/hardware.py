"""Chips, by what they compute, hold and send in a second; and how long a program takes on one at the least.

Invariant: all figures are peaks, so that every time is a lower bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import isfinite, prod
from numbers import Real
from operator import itemgetter
from typing import Any

from ..errors import MeshAxisError, StructureError
from ..errors.phrases import value_text
from .model import Collective, Time, Work, seconds_text


@dataclass(frozen=True)
class Hardware:
    """What one device of a kind can do at its peak.

    ```python
    ours = Hardware("ours", flops={"bf16": 400e12}, memory=64e9, bandwidth=2e12, links={"dp": 25e9, "tp": 400e9})
    print(explain(step, mesh="dp=8,tp=8", hardware=ours))
    ```

    Attributes:
      name: what it is called.
      flops: floating-point operations per second by JAX's short name of the dtype, ``{"bf16": 197e12}``. A dtype that
        is not among them runs as the next wider one that is, else as the widest.
      memory: the bytes of its memory.
      bandwidth: the bytes per second to and from it.
      links: the bytes that a device sends per second over a mesh axis, in all directions.
      link: the same over mesh axes that are not among the links; 0 where that is not known.
      domain: how many devices ``link`` connects: those of the last mesh axes. 0 is all.
      network: the bytes that a device sends per second over the mesh axes that reach further.

    Raises:
      StructureError: for what is not a positive number.
    """

    name: str
    flops: Mapping[str, float]
    memory: float
    bandwidth: float
    links: Mapping[str, float] = field(default_factory=dict[str, float])
    link: float = 0
    domain: int = 0
    network: float = 0

    def __post_init__(self) -> None:
        for name in ("flops", "links"):
            if not isinstance(getattr(self, name), Mapping):
                raise StructureError(f"Hardware: {name}= wants a dict, got {value_text(getattr(self, name))}")
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
                raise StructureError(f"Hardware: {name} is {value_text(value)}, and is to be a positive number")

    def rate(self, dtype: str) -> float:
        """The operations per second in a dtype."""
        if dtype in self.flops:
            return self.flops[dtype]
        wider = sorted((each for each in self.flops if _width(each) >= _width(dtype)), key=_width)
        return self.flops[wider[0] if wider else max(self.flops, key=_width)]

    def rates(self, mesh: tuple[tuple[str, int], ...]) -> dict[str, float]:
        """The bytes that a device sends per second over each mesh axis for which that is known.

        Raises:
          MeshAxisError: for a link over an axis that the mesh does not have.
        """
        if unknown := [axis for axis in self.links if axis not in dict(mesh)]:
            known = ", ".join(f"{axis}={size}" for axis, size in mesh)
            lacks = f"mesh axis '{unknown[0]}', which the mesh ({known}) does not have"
            raise MeshAxisError(f"hardware {self.name!r} has a link over {lacks}")
        found: dict[str, float] = {}
        for at, (axis, _) in enumerate(mesh):
            reach = prod(size for _, size in mesh[at:])
            rate = self.link if not self.domain or reach <= self.domain else self.network
            if rate := self.links.get(axis, rate):
                found[axis] = rate
        return found


def _width(dtype: str) -> int:
    """The bits of a dtype by its name."""
    digits = "".join(letter if letter.isdigit() else " " for letter in dtype).split()
    return int(digits[0]) if digits else 8


def _tpu(name: str, flops: Mapping[str, float], gib: int, bandwidth: float, link: float, *pod: float) -> Hardware:
    size, network = pod
    return Hardware(name, flops, gib * 2**30, bandwidth, link=link, domain=int(size), network=network)


# Sources: docs.cloud.google.com/tpu/docs/{v5e,v5p,v6e,tpu7x}, the data sheets of NVIDIA's H100 SXM and HGX B200,
# without sparsity. A mesh axis lies on one dim of a torus, and a device sends both ways: half of the bidirectional
# bandwidth of its chip over the dims. Of a TPU7x a device is one of two chiplets, and has half of what the chip has.
KNOWN = {
    each.name: each
    for each in (
        _tpu("v5e", {"bf16": 197e12, "i8": 394e12}, 16, 819e9, 100e9, 256, 3.125e9),
        _tpu("v5p", {"bf16": 459e12, "i8": 918e12}, 95, 2765e9, 200e9, 8960, 6.25e9),
        _tpu("v6e", {"bf16": 918e12, "i8": 1836e12}, 32, 1638e9, 200e9, 256, 12.5e9),
        _tpu("v7x", {"bf16": 1153.5e12, "f8": 2307e12}, 96, 3690e9, 100e9, 18432, 6.25e9),
        Hardware(
            "h100",
            {"f8": 1979e12, "i8": 1979e12, "bf16": 989e12, "f16": 989e12, "f32": 494e12, "f64": 67e12},
            80e9,
            3350e9,
            link=450e9,
            domain=8,
            network=50e9,
        ),
        Hardware(
            "b200",
            {"f8": 4500e12, "i8": 4500e12, "bf16": 2250e12, "f16": 2250e12, "f32": 1100e12, "f64": 40e12},
            180e9,
            8000e9,
            link=900e9,
            domain=8,
            network=50e9,
        ),
    )
}


def read_hardware(verb: str, given: Any) -> Hardware | None:
    """A kind of device by its name, or as it is.

    Raises:
      StructureError: for a name that is not known, and what is neither.
    """
    if given is None or isinstance(given, Hardware):
        return given
    if isinstance(given, str) and given.lower() in KNOWN:
        return KNOWN[given.lower()]
    near = get_close_matches(given.lower(), KNOWN, 1, 0.5) if isinstance(given, str) else []
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise StructureError(
        f"{verb}: hardware= is {value_text(given)}\n\n"
        f"Hint: {hint}there are {', '.join(KNOWN)}; "
        "for others pass a Hardware(name, flops=, memory=, bandwidth=, links=)"
    )


def time_of(work: Work, collectives: Iterable[Collective], hardware: Hardware, rates: Mapping[str, float]) -> Time:
    """How long a program takes at the least.

    Args:
      work: what is computed and moved.
      collectives: what is sent.
      hardware: the kind of device.
      rates: the bytes that one device sends per second, by mesh axis.

    Raises:
      MeshAxisError: for a collective over an axis of which no link is known.
    """
    compute, memory = defaultdict[str, float](float), defaultdict[str, float](float)
    sent = defaultdict[str, defaultdict[str, float]](lambda: defaultdict(float))
    for line in work.lines:
        compute[line.place] = sum(count / hardware.rate(dtype) for dtype, count in line.products.items())
        memory[line.place] = line.bytes / hardware.bandwidth
    for one in collectives:
        if missing := [axis for axis in one.axes if axis not in rates]:
            raise MeshAxisError(
                f"hardware {hardware.name!r} has no link over mesh axis '{missing[0]}', over which {one.place} sends"
                f'\n\nHint: say how fast it is: links={{"{missing[0]}": 50e9}}, in bytes per second'
            )
        slowest = min(one.axes, key=rates.__getitem__)
        sent[slowest][one.place] += one.times * one.wire / rates[slowest]
    by_line = {"compute": compute, "memory": memory, **sent}
    totals = {name: sum(times.values()) for name, times in by_line.items()}
    bound = max(totals, key=totals.__getitem__)
    place, most = max(by_line[bound].items(), key=itemgetter(1), default=("", 0.0))
    serial = sum(max(compute[place], memory[place]) for place in {*compute, *memory})
    serial += sum(totals[axis] for axis in sent)
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
    )
