"""Describe a value of a region: its kind and its degree over each axis, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from ... import _jax
from ..control_flow import fact_of_spec
from .reading import Reading, Unaligned
from .region_kinds import Kinds
from .suspects import growth_text, problem_of
from .value import Share


def describe_value(params: Mapping[str, Any], other: Mapping[str, Any] | None, var: Any) -> Iterator[str]:
    """The kind and the degree of a value over each axis of a region, in words.

    Args:
      params: the parameters of the region's equation.
      other: the parameters of the same region on another mesh, if there is one.
      var: a variable of its jaxpr, or of a jaxpr within it.
    """
    sizes, body = _jax.jaxpr.manual_sizes(params), params["jaxpr"]
    others = {} if other is None else _jax.jaxpr.manual_sizes(other)
    pairs = zip(params["in_specs"], body.invars, strict=True)
    entering = [fact_of_spec(spec, len(var.aval.shape), frozenset(sizes)) for spec, var in pairs]
    kinds = Kinds(body, entering, {}, sizes)
    for axis in [axis for axis, size in sizes.items() if size > 1]:
        bodies, lengths = [body], [sizes[axis]]
        if other is not None and {**sizes, axis: 0} == {**others, axis: 0} and others[axis] != sizes[axis]:
            bodies, lengths = [*bodies, other["jaxpr"]], [*lengths, others[axis]]
        try:
            reading = kinds.read(axis, bodies, lengths, is_blind=len(bodies) == 1).reading
        except Unaligned:
            reading = kinds.read(axis, bodies[:1], lengths[:1], is_blind=True).reading
        value = reading.value_of(var)
        if value is not None:
            yield _in_words(reading, value, sizes[axis])


def _in_words(reading: Reading, value: Share, size: int) -> str:
    axis, degree, losses = f"'{reading.axis}'", reading.numbers.known(value.degree), reading.losses_of(value)
    if losses:
        return problem_of(reading, losses)
    maker = None if value.part is None else reading.maker_of(value.part)
    since = f", due since {maker.place}" if maker is not None and maker.place else ""
    match value.kind:
        case "same":
            text = f"the same on every shard of {axis}"
        case "sharded" if isinstance(value.dim, int):
            text = f"dim {value.dim} sharded over {axis}"
        case "local":
            text = f"the same on every shard of {axis}, of a shard's shape"
        case "sum":
            text = f"a partial sum over {axis}{since}"
        case "extreme":
            text = f"each shard's own extreme over {axis}{since}"
        case "unknown":
            return f"nothing is known over {axis}"
        case _:
            text = f"each shard's own over {axis}"
    if isinstance(degree, int | Fraction) and degree:
        text += f", and {growth_text(((reading.axis, size, degree),))}"
    return text
