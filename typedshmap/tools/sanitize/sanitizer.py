"""The observer that compares replicas, at every N-th call of a typed function."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from typing import Any

import jax

from ... import _jax
from ...errors import StructureError, TypedShmapError
from ...errors.phrases import value_text
from ...observers import Assertion, Boundary, ObservedCall, Observer, also_observed_by, observed_by, observers
from . import reports
from .calls import are_computed, compare_assumed, compare_global, compare_inside
from .counters import is_due
from .processes import is_shared, require_same_program
from .reports import ReplicaComparison

_EXAMPLE = {"sanitize: every=": "sanitize(every=100)", "sanitize=": "typed_shard_map(sanitize=100)"}
_MOST = 2**31  # the range of a counter


class _Due:
    """Whether a run of a region compares: part of JAX's cache key, so no jaxpr has the condition of another region."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @contextmanager
    def asking(self) -> Generator[None]:
        """Compare assumed values inside the ``with``; afterwards no tracer is kept."""
        with _due(self):
            yield
        if self is not _ALWAYS:
            self.value = True


_ALWAYS = _Due(True)
_due = jax.make_user_context(default_value=None)


@dataclass(frozen=True)  # equal sanitizers share traces
class Sanitizer(Observer):
    """The observer that compares replicated values at every N-th call of a function, starting with the first."""

    every: int

    @classmethod
    def of(cls, name: str, every: Any) -> Sanitizer:
        try:
            number = None if isinstance(every, bool) else index(every)
        except TypeError:
            number = None
        if number is None:
            raise StructureError(f"{name} expects a number of calls, as in {_EXAMPLE[name]}; got {value_text(every)}")
        if number < 1:
            raise StructureError(f"{name} is {value_text(every)}; the least is 1, which compares at every call")
        return cls(min(number, _MOST))

    def call(self, call: ObservedCall, run: Callable[[], Any]) -> Any:
        reports.raise_found()
        if _jax.trace.is_jit_disabled() or call.is_in_region:  # nothing is compiled, or values are shards: see `body`
            return run()
        is_computed = are_computed(call.values)
        if is_computed and next(call.numbers) % self.every:
            with observed_by(observer for observer in observers() if observer is not self):  # without comparisons
                return run()
        boundary, around = call.boundary(), _due.value
        if is_computed:
            due = _ALWAYS
            if is_shared(boundary.mesh):
                require_same_program(call.function, boundary.static, boundary.lowered())
        else:
            due = _Due(is_due(self.every, boundary.mesh) if around is None else around.value)
        now, comparison = due.value, _comparison(call.function, boundary)
        if boundary.may_donate and not boundary.is_within:
            compare_global(comparison, boundary.arguments, now)
        # Inner regions compare when this call does: in a separate program, or by its count.
        with due.asking():
            returned = run()
        if not boundary.is_within:
            arguments = () if boundary.may_donate else boundary.arguments
            compare_global(comparison, [*arguments, *boundary.results(returned)], now)
        return returned

    def body(self, call: ObservedCall, results: Sequence[Any]) -> None:
        """Compare the shards that cross the boundary of a nested region."""
        if call.is_in_region:
            boundary = call.boundary()
            values, due = [*boundary.arguments, *boundary.results(results)], _due.value or _ALWAYS
            compare_inside(_comparison(call.function, boundary), values, due.value)

    def asserted(self, assertion: Assertion) -> None:
        if assertion.is_assumed and assertion.region.manual and _due.value is not None:
            compare_assumed(assertion, _due.value.value)


def _comparison(function: str, boundary: Boundary) -> ReplicaComparison:
    return ReplicaComparison(function, boundary.mesh, boundary.axes, boundary.region, boundary.sizes)


class sanitize:
    """Compare replicated values between devices, at every N-th call.

    Inside the ``with``, the arguments and results of each ``typed_shard_map`` and ``typed_jit``, and the values that
    bodies `assume`, are compared over the mesh axes that their hints do not mention: by a checksum of the bits on each
    device, and one small exchange for each set of mesh axes. See [Replicas that drift](../sanitize.md).

    ```python
    with sanitize(every=100):
        for batch in batches:
            state = train_step(state, batch)
    ```

    The next call raises an error for a difference; so do `sanitize.wait` and the end of the ``with``, which wait.
    Functions that are called inside are traced again; programs outside are not changed.

    Args:
      every: compare at every N-th call of a function, starting with the first. A region under ``jax.jit`` counts its
        runs.

    Raises:
      ReplicaError: for a value that differs, with its name, the mesh axis, the shards in the minority, and the place
        in the source; with several processes, in all of them.
      StructureError: unless ``every`` is a positive number of calls.
      TypedShmapError: inside another `sanitize`.
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
                    "Hint: exit the outer one first, or set a number for one function: typed_shard_map(sanitize=...)"
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
