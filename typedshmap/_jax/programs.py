"""Traced programs: their equations, what these are called on each version, and where in the user's source they stand.

Everything is read by the public names of ``jax.extend.core`` and by attributes of what they return.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import jax
import jax.core
from jax.interpreters import partial_eval

from .meshes import without_ambient

# Frames of these are passed over in looking for the user's own.
_SITE = os.path.dirname(os.path.dirname(os.path.abspath(jax.__file__ or "")))
_LIBRARIES = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    *(os.path.join(_SITE, name) + os.sep for name in ("jax", "jaxlib", "einops", "beartype")),
)


# On jax 0.12 True stands for "when lowered", and leaves a call in the program.
_EARLY: Any = getattr(jax, "Inline").JAX_EARLY if hasattr(jax, "Inline") else True  # noqa: B009 (not known to 0.10)


def equations(program: Any) -> Sequence[Any]:
    """The equations of a program, closed or not."""
    return open_program(program).eqns


def all_equations(program: Any) -> Iterator[Any]:
    """The equations of a program and of all programs within it."""
    from jax.extend.core import jaxprs_in_params

    for eqn in equations(program):
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from all_equations(inner)


def open_program(program: Any) -> Any:
    """A program without its constants; jax 0.12 has one class for both."""
    return getattr(program, "jaxpr", program)


@cache
def _literal() -> type:
    # Imported here, since jax.extend brings Pallas along, a fifth of what importing this library costs.
    from jax.extend.core import Literal

    return Literal


def is_literal(atom: Any) -> bool:
    """Whether an equation's operand is a constant that stands in the program's text."""
    return isinstance(atom, _literal())


def scan_counts(params: Any) -> tuple[int, int]:
    """How many operands of a scan are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(tuple(consts)), len(tuple(carry))


def is_transformed(values: Iterable[Any]) -> bool:
    """Whether one of the values is traced for anything but a program, as for a gradient or by ``jax.vmap``."""
    return any(isinstance(x, jax.core.Tracer) and not isinstance(x, partial_eval.DynamicJaxprTracer) for x in values)


def trace(f: Callable[..., Any], args: Sequence[Any]) -> tuple[Callable[..., Any], Any]:
    """Trace a function once.

    Returns:
      A function that puts what was traced where it is called, without tracing again or leaving a call
      in the program; and the program.
    """
    inlined = jax.jit(f, inline=_EARLY)
    return inlined, inlined.trace(*args).jaxpr


def equation_of(results: Iterable[Any], name: str) -> Any:
    """The equation of a program that is being traced whose results these are; None where they are of no such one.

    Args:
      results: all that the equation gives.
      name: its primitive's name.
    """
    made: list[Any] = [getattr(x, "parent", None) for x in results]
    eqn = made[0] if made else None
    if eqn is None or eqn.primitive.name != name or len(eqn.outvars) != len(made):
        return None
    return eqn if all(each is eqn for each in made) else None


def aval_text(aval: Any) -> str:
    """A type in JAX's notation, ``f32[2,4]{V:dp}``."""
    return aval.str_short(short_dtypes=True)


def place_of_equation(eqn: Any) -> str:
    """Where the user wrote an equation, as ``train.py:12 (step)``; empty where that is not known."""
    traceback = getattr(eqn.source_info, "traceback", None)
    for frame in getattr(traceback, "frames", ()):
        if not frame.file_name.startswith(_LIBRARIES):
            return f"{os.path.basename(frame.file_name)}:{frame.line_num} ({frame.function_name})"
    return ""


def without_dead(program: Any) -> Any:
    """A program without the equations that none of its results needs, with the same operands."""
    jaxpr = open_program(program)
    with without_ambient():  # the program may be for another mesh
        live, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)
    return live


def programs_within(eqn: Any) -> list[Any]:
    """The programs that an equation runs."""
    from jax.extend.core import jaxprs_in_params

    return list(jaxprs_in_params(eqn.params))


def is_transposed(eqn: Any) -> bool:
    """Whether an equation was made by transposing another, as the backward part of a gradient is."""
    return "transpose(" in str(eqn.source_info.name_stack)
