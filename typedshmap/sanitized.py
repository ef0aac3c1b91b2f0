"""How often replicas are compared, by `sanitize` around or by a decorator's ``sanitize=``.

What compares them is in ``sanitizing``, which is imported when something is to be compared.

Invariant: what is set lives in JAX user contexts, so that it takes part in ``jit``'s cache key: what was traced without
comparisons is never used with them, or the other way round."""

from __future__ import annotations

from operator import index
from typing import Any

import jax

from .errors import StructureError
from .errors.phrases import value_text

period_context = jax.make_user_context(default_value=0)
"""The ``every=`` of the `sanitize` around; 0 outside of one."""

body_context = jax.make_user_context(default_value=None)
"""What asks for the values that the body of a region assumes; None where nobody asks."""

entered: list[int] = []
"""The ``every=`` of each `sanitize` that any thread is in: without one there is no context to ask for."""


def read_period(name: str, every: Any) -> int:
    """After how many calls replicas are compared.

    Raises:
      StructureError: for anything but a positive whole number.
    """
    try:
        number = None if isinstance(every, bool) else index(every)
    except TypeError:
        number = None
    if number is None:
        raise StructureError(f"{name} wants a number of calls, as in {_EXAMPLE[name]}; got {value_text(every)}")
    if number < 1:
        raise StructureError(f"{name} is {value_text(every)}, but calls are counted from 1, which compares at each")
    return min(number, 2**31)  # as far as a program counts


_EXAMPLE = {"sanitize: every=": "sanitize(every=100)", "sanitize=": "typed_shard_map(sanitize=100)"}
