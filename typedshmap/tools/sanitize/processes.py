"""Compare the programs of all processes before they run, by hashes, so that no process waits forever."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from ... import _jax
from ...errors import ReplicaError
from ...errors.failures import Subject
from ...errors.phrases import shortened, value_text

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MOST_TEXT = 1 << 24


def is_shared(mesh: _jax.mesh.AnyMesh) -> bool:
    """Whether there are several processes, and a mesh has devices of all of them."""
    if jax.process_count() == 1 or not isinstance(mesh, Mesh):
        return False
    return len({device.process_index for device in mesh.devices.flat}) == jax.process_count()


def require_same_program(function: str, static: Iterable[tuple[Subject, Any]], text: str) -> None:
    """Raise the same ReplicaError in all processes if one runs another program; all processes must call this."""
    arguments = {str(subject): value_text(value) for subject, value in static if isinstance(value, _PLAIN)}
    program_here = {"function": function, "static": arguments, "text": hashlib.sha256(text.encode()).hexdigest()}
    programs = [json.loads(data) for data in _jax.casts.gather_bytes(json.dumps(program_here).encode())]
    differing = next((process for process, program in enumerate(programs) if program != programs[0]), None)
    if differing is None:
        return
    packed = _jax.casts.gather_bytes(zlib.compress(text[:_MOST_TEXT].encode()))
    texts = [zlib.decompress(data).decode() for data in packed]
    problem = _difference(programs[0], programs[differing], [texts[0], texts[differing]], differing)
    cure = "all processes run the same program, on the same static arguments, in the same order"
    raise ReplicaError(f"{function}: {problem}\n\nHint: {cure}")


def _difference(first: Mapping[str, Any], second: Mapping[str, Any], texts: Sequence[str], process: int) -> str:
    if first["function"] != second["function"]:
        return f"process {process} calls '{second['function']}' where process 0 calls '{first['function']}'"
    for name in {**first["static"], **second["static"]}:
        value, other_value = (program["static"].get(name, "no plain value") for program in (first, second))
        if value != other_value:
            return f"static argument '{name}' is {other_value} on process {process}, but {value} on process 0"
    lines = [text.splitlines() for text in texts]
    for number, (line, other_line) in enumerate(zip(*lines, strict=False), 1):
        if line != other_line:
            return (
                f"process {process} runs another program than process 0, from line {number} of its lowered text:\n\n"
                f"    process 0: {shortened(line.strip(), 500)}\n"
                f"    process {process}: {shortened(other_line.strip(), 500)}"
            )
    return f"process {process} runs another program than process 0, of {len(lines[1])} lines for {len(lines[0])}"
