"""What follows of a value while its body is still being traced, of the values that it was computed of.

A claim of what follows anyway would be an operation more in the program, to be differentiated and transposed
with it. The rules are those of the reading; it is followed back to values of which a hint or a pattern
told how they lie, and given up where that leads far.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .. import _jax
from ..errors.failures import Varies
from ..hints.memory import Remembered, recall
from .claims import Claim
from .facts import Dim, Fact, Names, equal
from .reader import Reader
from .verdicts import contradiction, lies_so

_MOST_EQUATIONS = 32

# A loop or a region is read once, with all that is around it.
_NOT_FOLLOWED = frozenset(["scan", "while", "cond", "shard_map", "pallas_call"])


def follows(value: Any, made: Claim, reader: Reader) -> bool:
    """Whether a claim follows of what is known of the values that a value was computed of.

    One of equality that JAX's types do not tell is left to the reading, as are sums that are owed.
    """
    if made.is_assumed or made.stated.alike or made.lying.unreduced:
        return False
    fact = _Following(reader).fact_of(value)
    if fact is None or reader.findings or fact.owed or not lies_so(fact.dims, made.lying.parts):
        reader.findings.clear()
        return False
    return contradiction(made, fact, _jax.facts(value).shape, reader) is None


def refuted(value: Any, made: Claim, reader: Reader) -> tuple[Varies, Fact] | None:
    """What a claim of equality is known to come to: over which axes the value varies, and what is known of it.

    It may be equal for all that, if one of those that it was computed of is: so this is no error by itself.
    """
    fact = _Following(reader).fact_of(value)
    reader.findings.clear()
    what = contradiction(made, fact, _jax.facts(value).shape, reader) if fact is not None else None
    return (what, fact) if fact is not None and isinstance(what, Varies) else None


class _Following:
    """The way back from one value."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.left = _MOST_EQUATIONS
        self.found: dict[int, Fact | None] = {}

    def fact_of(self, value: Any) -> Fact | None:
        """What is known of a value; None where the way leads too far."""
        key = id(value)
        if key not in self.found:
            self.found[key] = self._fact_of(value)
        return self.found[key]

    def _fact_of(self, value: Any) -> Fact | None:
        known = recall(value)
        if known is not None:
            return _fact(known, self.reader.axes)
        if _jax.is_constant(value) or self._is_typed_equal(value):
            return equal(len(_jax.facts(value).shape))
        eqn = _jax.equation_of(value)
        if eqn is None or self.left == 0 or eqn.primitive.name in _NOT_FOLLOWED:
            return None
        self.left -= 1
        facts: list[Fact] = []
        for operand in eqn.invars:
            fact = self.fact_of(operand)
            if fact is None:
                return None
            facts.append(fact)
        return self.reader.results_of(eqn, facts)[_jax.place_among_results(value, eqn)]

    def _is_typed_equal(self, value: Any) -> bool:
        """Whether JAX's type says that all shards hold the same, of which no dim can be split."""
        if not self.reader.is_typed:
            return False
        kind = _jax.manual_type(value)
        return self.reader.axes.isdisjoint(kind.varying) and self.reader.axes.isdisjoint(kind.unreduced)


@lru_cache(maxsize=1024)
def _fact(known: Remembered, axes: Names) -> Fact | None:
    """What was remembered of a shard, if it speaks of all these axes."""
    if known.left or not axes <= known.spoken:
        return None
    sharded = frozenset(axis for part in known.parts for axis in part)
    dims = [Dim(tuple(axis for axis in part if axis in axes), is_taught=bool(part)) for part in known.parts]
    return Fact((sharded | (known.varying - known.equal)) & axes, known.unreduced & axes, tuple(dims))
