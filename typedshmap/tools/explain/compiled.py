"""Compile a program ahead of time, for TPUs that need not exist or for virtual CPU devices; report XLA's figures.

Invariant: the compiled program is the explained jaxpr; nothing runs."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ... import _jax
from ...errors import MeshAxisError, StructureError
from ...errors.phrases import count_text, mesh_text, value_text
from .model import Collective, Compiled
from .read_program import donated_operands

# Without the first three settings libtpu asks a server of Google's cloud about the machine, and waits if there is no
# server; without the last only one process may load it at a time.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NEEDED = re.compile(
    r"(?:Used |\()(?P<size>[0-9.]+)(?P<unit>[KMGT]?)(?: of [0-9.]+[KMGT]? hbm|\) exceeds available HBM)"
)
_COLLECTIVE = re.compile(
    r" (?P<name>all-gather|all-reduce|reduce-scatter|(?:ragged-)?all-to-all|collective-(?:permute|broadcast))"
    r'(?:-start)?\(.*?(?:chain_id="(?P<chain>\d+)"|$)',
    re.MULTILINE,
)


class Target(NamedTuple):
    """Devices to compile for; there may be more virtual devices than the mesh has."""

    name: str
    devices: Sequence[Any]


def read_target(verb: str, given: Any) -> Target | None:
    """The target of ``compile=``: a topology of TPUs, or virtual CPU devices."""
    if given is None:
        return None
    if not isinstance(given, str) or not given:
        raise StructureError(f"{verb}: compile= is {value_text(given)}\n\n{_HINT}")
    if given == "cpu":
        return Target(given, jax.devices("cpu"))
    if find_spec("libtpu") is None:
        raise StructureError(
            f"{verb}: compile={given!r} needs libtpu, which is not installed\n\nHint: pip install 'typedshmap[tpu]'"
        )
    from jax.experimental import topologies  # rarely needed, and it imports much

    with _without_metadata_server():
        try:
            return Target(given, topologies.get_topology_desc(platform="tpu", topology_name=given).devices)
        except Exception as error:  # libtpu's exceptions differ between versions
            reason = (str(error).splitlines() or [""])[0]
            what = "is not a topology" if "INVALID_ARGUMENT" in reason else "cannot be asked of libtpu"
            raise StructureError(f"{verb}: compile={given!r} {what}: {reason}\n\n{_HINT}") from None


_HINT = 'Hint: write "cpu", or a kind of TPU with its chips along each dimension, as in "v5e:2x4" and "v5p:8x16x16"'


@contextmanager
def _without_metadata_server() -> Generator[None]:
    added = {name: value for name, value in _NO_TPU.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def require_as_many(name: str, target: Target | None, mesh: AbstractMesh) -> None:
    """Raise a `MeshAxisError` if the numbers of devices of the target and of the mesh differ."""
    if target is None:
        return
    count, is_virtual = len(target.devices), target.name == "cpu"
    if count < mesh.size or (count > mesh.size and not is_virtual):
        hint = "\n\nHint: set XLA_FLAGS=--xla_force_host_platform_device_count=8 before JAX starts, or another number"
        raise MeshAxisError(
            f"{name}: compile={target.name!r} has {count_text(count, 'device')}, "
            f"but the mesh ({mesh_text(mesh.shape_tuple)}) has {mesh.size}{hint if is_virtual else ''}"
        )


def compile_program(
    name: str,
    closed_jaxpr: Any,
    specs: Sequence[PartitionSpec],
    mesh: AbstractMesh,
    target: Target,
    collectives: Iterable[Collective],
) -> Compiled:
    """Compile a jaxpr for a mesh of the target's devices, in their order; compare the collectives."""
    require_as_many(name, target, mesh)
    devices = np.array(target.devices[: mesh.size]).reshape(mesh.axis_sizes)
    there = Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)
    operands = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=NamedSharding(there, spec))
        for aval, spec in zip(closed_jaxpr.in_avals, specs, strict=True)
    ]

    jaxpr = _jax.jaxpr.open_jaxpr(closed_jaxpr)
    options: dict[str, Any] = {"donate_argnums": tuple(donated_operands(jaxpr)), "keep_unused": True}
    program = jax.jit(lambda *values: jax.core.eval_jaxpr(jaxpr, closed_jaxpr.consts, *values), **options)

    try:
        with _jax.mesh.without_ambient(), jax.set_mesh(there), _without_metadata_server(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about donated buffers that XLA does not use
            compiled = program.lower(*operands).compile()
    except Exception as error:  # from the compiler, or for a kernel that cannot be lowered for these devices
        if "RESOURCE_EXHAUSTED" not in str(error):
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            raise StructureError(f"{name}: cannot be compiled for {target.name}: {reason}") from error
        return _refused(target.name, str(error))
    expected = Counter(op.operation for op in collectives)
    written = _collectives_in(compiled.as_text() or "")
    flops = int((compiled.cost_analysis() or {}).get("flops", 0))
    size = _peak_of(compiled.memory_analysis(), target.name == "cpu")
    counts = {name: (expected[name], written[name]) for name in sorted({*expected, *written})}
    return Compiled(target.name, size, flops, counts)


def _peak_of(memory: Any, is_virtual: bool) -> int:
    """The peak memory; for a CPU XLA reports only its allocation."""
    if not is_virtual:
        return memory.peak_memory_in_bytes
    taken = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return taken - memory.alias_size_in_bytes


def _collectives_in(text: str) -> Counter[str]:
    """The number of collectives in a compiled text; one that overlaps with products is written as a chain."""
    written = [(at, match["name"], match["chain"]) for at, match in enumerate(_COLLECTIVE.finditer(text))]
    return Counter(name for name, _ in {(name, chain or f"at {at}") for at, name, chain in written})


def _refused(target: str, message: str) -> Compiled:
    """The result for a program that is too large for the device, from the compiler's message."""
    said = next(filter(_NEEDED.search, message.splitlines()), message.splitlines()[0])
    match = _NEEDED.search(said)
    needed = float(match["size"]) * _UNITS[match["unit"]] if match else 0
    return Compiled(target, int(needed), None, {}, said.removeprefix("RESOURCE_EXHAUSTED: "))
