"""Whether JAX is tracing, and its settings."""

from __future__ import annotations

import inspect
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import jax

from .versions import extend_core


@cache
def load_extend() -> None:
    """Import late imports now, outside traces.

    On jax 0.12 that import changes settings in jit's cache key: inside a trace JAX would trace the program again.
    """
    from jax.extend.source_info_util import register_exclusion

    is_outside_traces()
    # Profiles and lowered programs name the user's line of an operation, not a line of this library.
    register_exclusion(os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep)


def is_outside_traces() -> bool:
    """Whether no transformation of JAX is running, so that a call is evaluated eagerly."""
    return extend_core().get_opaque_trace_state() == _outermost_state()


def running_traces() -> tuple[list[int], bool]:
    """The ids of the running trace and of its parents; and whether one of them is a differentiation or a vmap."""
    traces = _running_traces()
    return [id(trace) for trace in traces], not all(hasattr(trace, "frame") for trace in traces[:-1])


def is_staged() -> bool:
    """Whether a jaxpr is being traced, so that nothing is evaluated eagerly, unlike under ``jax.grad`` alone."""
    return any(hasattr(trace, "frame") for trace in _running_traces())  # the equations so far


def is_nested() -> bool:
    """Whether the jaxpr being traced is inside another jaxpr, such as the body of a loop."""
    return sum(hasattr(trace, "frame") for trace in _running_traces()) > 1


def is_in_inner_jit() -> bool:
    """Whether the jaxpr being traced is that of an inner ``jax.jit``."""
    frames = [trace.frame for trace in _running_traces() if hasattr(trace, "frame")]
    return any(getattr(frame.debug_info, "traced_for", "jit") == "jit" for frame in frames[:-1])


def may_diverge(region: str) -> bool:
    """Whether a branch, or a loop with a condition, is being traced that some shards may not take.

    Args:
      region: the name of the library's function that traces the enclosing region, where the search ends.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != region:
        if frame.f_code.co_filename.endswith(_CONDITIONALS) or frame.f_code.co_name == "while_loop":
            return True
        frame = frame.f_back
    return False


_CONDITIONALS = os.path.join("control_flow", "conditionals.py")


def is_mapped_around() -> bool:
    """Whether an enclosing transformation is ``jax.vmap``."""
    return any(hasattr(trace, "axis_data") for trace in _running_traces())


def _running_traces() -> list[Any]:
    traces: list[Any] = []
    with extend_core().take_current_trace() as trace:
        while trace is not None:
            traces.append(trace)
            trace = getattr(trace, "parent_trace", None)
    return traces


@cache
def _outermost_state() -> object:
    """The trace state outside all transformations, read in a new thread: this thread may be in a trace."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(extend_core().get_opaque_trace_state).result()


def is_jit_disabled() -> bool:
    """Whether the user runs everything op by op (``jax.disable_jit``)."""
    return bool(getattr(jax.config, "jax_disable_jit"))  # noqa: B009 (unknown to type checkers)


def types_have_unit_axes() -> bool:
    """Whether types mention mesh axes of size 1 (not under ``jax_remove_size_one_mesh_axis_from_type``)."""
    return not getattr(jax.config, "jax_remove_size_one_mesh_axis_from_type", False)


def has_64_bits() -> bool:
    """Whether JAX keeps 64-bit dtypes."""
    return bool(getattr(jax.config, "jax_enable_x64"))  # noqa: B009 (unknown to type checkers)
