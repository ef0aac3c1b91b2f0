"""Find the numbers that a program compares its arguments with, so that arguments are drawn on both sides of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from .. import _jax
from ..tools.sample.arguments import FlatCall, Inputs
from ..tools.sample.plan import ComparedNumber
from .run import FunctionUnderTest

_COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "max", "min", "clamp"])
_EQUALITIES = frozenset(["eq", "ne"])


class _ArgumentAt(NamedTuple):
    at: int


Compared = _ArgumentAt | float | None
"""Where a value comes from: an argument, a number in the program, or something that was computed."""


def numbers_compared(subject: FunctionUnderTest, made: Inputs, mesh: Mesh) -> Mapping[str, Collection[ComparedNumber]]:
    """The numbers that a function compares its arguments with, by the name of the argument; none where it fails."""
    call = FlatCall(made, jax.Array)
    with subject.on(mesh), suppress(Exception):  # which the first trial meets, too, and reports
        jaxpr = jax.make_jaxpr(lambda arrays: call.run(subject.mapped(mesh), arrays))(call.arrays)
        return {call.names[at]: numbers for at, numbers in compared_numbers(jaxpr).items()}
    return {}


def compared_numbers(jaxpr: Any) -> Mapping[int, set[ComparedNumber]]:
    """The numbers that a program compares its arguments with, by the position of the argument."""
    found: dict[int, set[ComparedNumber]] = {}
    opened = _jax.jaxpr.open_jaxpr(jaxpr)
    _follow(opened, [_ArgumentAt(at) for at in range(len(opened.invars))], found)
    return found


def _follow(jaxpr: Any, sources: Sequence[Compared], found: dict[int, set[ComparedNumber]]) -> list[Compared]:
    """Follow arguments and numbers through a jaxpr to its results, and note what is compared with what."""
    known: dict[Any, Compared] = dict(zip(jaxpr.invars, sources, strict=True))
    for eqn in jaxpr.eqns:
        operands = [_number(x.val) if _jax.jaxpr.is_literal(x) else known.get(x) for x in eqn.invars]
        name, called = eqn.primitive.name, _jax.jaxpr.called_jaxpr(eqn)
        if name in _COMPARISONS:
            numbers = [x for x in operands if isinstance(x, float)]
            for argument in (x for x in operands if isinstance(x, _ArgumentAt)):
                found.setdefault(argument.at, set()).update(ComparedNumber(x, name in _EQUALITIES) for x in numbers)
        elif name in _jax.jaxpr.MOVING:
            known[eqn.outvars[0]] = operands[0]
        elif name == "cond":
            for branch in eqn.params["branches"]:
                _follow(_jax.jaxpr.open_jaxpr(branch), operands[1:], found)
        elif name == "while":
            conds, consts, carry = _jax.jaxpr.while_operands(eqn, operands)
            _follow(_jax.jaxpr.open_jaxpr(eqn.params["cond_jaxpr"]), [*conds, *carry], found)
            _follow(_jax.jaxpr.open_jaxpr(eqn.params["body_jaxpr"]), [*consts, *carry], found)
        elif called is not None:
            results = _follow(called, operands, found)
            known.update(zip(eqn.outvars, results, strict=True) if name != "scan" else ())
    return [_number(x.val) if _jax.jaxpr.is_literal(x) else known.get(x) for x in jaxpr.outvars]


def _number(value: Any) -> float | None:
    """A number in the text of a program."""
    is_number = np.ndim(value) == 0 and jnp.issubdtype(getattr(value, "dtype", type(value)), jnp.number)
    return float(value) if is_number and not np.iscomplexobj(value) and np.isfinite(value) else None
