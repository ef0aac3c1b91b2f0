"""Replicas compared while a program runs on real devices: a checksum per value on each, and one small exchange."""

from __future__ import annotations

from typing import Any

from ...errors import TypedShmapError
from ...observers import also_observed_by, observers
from . import reports
from .sanitizer import Sanitizer

__all__ = ["sanitize"]


class sanitize:
    """Compare, at every N-th call, what the hints say is the same on several devices.

    Inside, the arguments and results of each ``typed_shard_map`` and ``typed_jit`` are compared over the mesh axes that
    their hints do not mention, and so is what bodies `assume`: a checksum of its bits on each device, and one small
    exchange for each set of mesh axes. See [Replicas that drift](../sanitize.md).

    ```python
    with sanitize(every=100):
        for batch in batches:
            state = train_step(state, batch)
    ```

    What differs is raised by the next call, by `sanitize.wait`, or where the ``with`` is left, which waits. What is
    called inside is traced anew; the programs outside stay as they are.

    Args:
      every: after how many calls of a function its values are compared again; the first call is one. A region under
        ``jax.jit`` counts how often it runs.

    Raises:
      ReplicaError: for a value that is not the same, with its name, the mesh axis, the shards that differ from most,
        and the place in the source; under several processes in all of them.
      StructureError: for anything but a positive number of calls.
      TypedShmapError: for one inside of another.
    """

    def __init__(self, every: int = 100) -> None:
        self._sanitizer = Sanitizer.of("sanitize: every=", every)
        self._contexts: list[Any] = []

    def __enter__(self) -> sanitize:
        for around in observers():
            if isinstance(around, Sanitizer):
                raise TypedShmapError(
                    f"sanitize: every={self._sanitizer.every} is inside of another one, of every={around.every}\n\n"
                    "Hint: leave that one first, or give a function a number of its own: typed_shard_map(sanitize=...)"
                )
        context = also_observed_by(self._sanitizer)
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self._contexts.pop().__exit__(kind, *error)
        if kind is None:
            reports.wait()

    @staticmethod
    def wait() -> None:
        """Wait for all comparisons that are under way, and raise what they find.

        Raises:
          ReplicaError: for the first value that is not the same on all shards.
        """
        reports.wait()
