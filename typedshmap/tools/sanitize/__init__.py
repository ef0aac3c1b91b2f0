"""Compare replicas while a program runs on real devices, by a checksum per value and one small exchange."""

from __future__ import annotations

from typing import Any

from ...errors import TypedShmapError
from ...observers import also_observed_by, observers
from . import reports
from .sanitizer import Sanitizer

__all__ = ["sanitize"]


class sanitize:
    """Compare replicated values between devices, at every N-th call.

    Inside, the arguments and results of each ``typed_shard_map`` and ``typed_jit`` are compared over the mesh axes that
    their hints do not mention, and so are the values that bodies `assume`: by a checksum of the bits on each device,
    and one small exchange for each set of mesh axes. See [Replicas that drift](../sanitize.md).

    ```python
    with sanitize(every=100):
        for batch in batches:
            state = train_step(state, batch)
    ```

    The next call raises an error for a difference; so do `sanitize.wait` and the end of the ``with``, which wait.
    Functions that are called inside are traced anew; programs outside are not changed.

    Args:
      every: compare at every N-th call of a function, beginning with the first. A region under ``jax.jit`` counts
        its runs.

    Raises:
      ReplicaError: for a value that differs, with its name, the mesh axis, the shards in the minority, and the place
        in the source; with several processes, in all of them.
      StructureError: unless ``every`` is a positive number of calls.
      TypedShmapError: inside of another `sanitize`.
    """

    def __init__(self, every: int = 100) -> None:
        self._sanitizer = Sanitizer.of("sanitize: every=", every)
        self._contexts: list[Any] = []

    def __enter__(self) -> sanitize:
        for around in observers():
            if isinstance(around, Sanitizer):
                raise TypedShmapError(
                    f"sanitize: every={self._sanitizer.every} is inside of another sanitize, with every={around.every}"
                    "\n\n"
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
        """Wait for all pending comparisons, and raise an error for a difference.

        Raises:
          ReplicaError: for the first value that differs between shards.
        """
        reports.wait()
