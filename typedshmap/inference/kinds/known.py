"""Remember programs that were read and are right, so that the same one is not read again when it is traced again.

Two programs are the same if they have the same equations on the same operands, with the same numbers and parameters.
What is kept of one are no arrays, and no functions of the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ... import _jax

_KEPT = (int, float, str, bytes, tuple, list, frozenset, type(None))
_MOST = 16


class Skeleton(NamedTuple):
    """What a program does.

    Attributes:
      inputs: the shapes and dtypes of its operands.
      eqns: per equation its primitive, its operands (the number of a value, or a literal in a tuple of its own), its
        parameters, and the programs that it runs by the names of their parameters.
      results: the numbers of its results.
      claims: what is claimed beside it, by the numbers of values.
    """

    inputs: tuple[Any, ...]
    eqns: tuple[Any, ...]
    results: tuple[Any, ...]
    claims: tuple[Any, ...] = ()


class RightPrograms:
    """The programs of one function that are known to be right."""

    def __init__(self) -> None:
        self._found: dict[Any, Skeleton] = {}

    def has(self, key: Any, jaxpr: Any, claims: Mapping[Any, Sequence[Any]]) -> bool:
        """Whether a program is the one that was found right last, for the same layouts on the same mesh."""
        found = self._found.get(key)
        return found is not None and _is_same(jaxpr, found, claims)

    def add(self, key: Any, jaxpr: Any, claims: Mapping[Any, Sequence[Any]]) -> None:
        """Note that a program is right."""
        if len(self._found) >= _MOST:
            self._found.clear()
        self._found[key] = _skeleton(jaxpr, claims)


def _skeleton(jaxpr: Any, claims: Mapping[Any, Sequence[Any]]) -> Skeleton:
    jaxpr = _jax.jaxpr.open_jaxpr(jaxpr)
    numbers: dict[Any, int] = {}
    for var in (*jaxpr.constvars, *jaxpr.invars):
        numbers[var] = len(numbers)
    eqns: list[Any] = []
    for eqn in jaxpr.eqns:
        params, inner = list[Any](), list[Any]()
        for name, value in eqn.params.items():
            if name == "claim":
                params.append((name, _Stated(value)))
            elif hasattr(_jax.jaxpr.open_jaxpr(value), "eqns"):
                inner.append((name, None, _skeleton(value, {})))
            elif isinstance(value, tuple) and value and all(hasattr(_jax.jaxpr.open_jaxpr(v), "eqns") for v in value):
                inner += [(name, at, _skeleton(each, {})) for at, each in enumerate(value)]
            elif not callable(value) and "shard" not in name and "mesh" not in name and _is_kept(value):
                params.append((name, value))
        operands = tuple(_number(numbers, atom) for atom in eqn.invars)
        eqns.append((eqn.primitive, operands, tuple(params), tuple(inner)))
        for var in eqn.outvars:
            numbers[var] = len(numbers)
    results = tuple(_number(numbers, atom) for atom in jaxpr.outvars)
    inputs = tuple((var.aval.shape, var.aval.dtype) for var in jaxpr.invars)
    claimed = tuple((numbers[var], _said(eqns_of)) for var, eqns_of in claims.items() if var in numbers)
    return Skeleton(inputs, tuple(eqns), results, claimed)


def _is_kept(value: Any) -> bool:
    return isinstance(value, _KEPT) or type(value).__module__.startswith(("jax", "numpy"))


class _Stated:
    """What a claim says, equal to a claim that says the same; claims themselves are all equal."""

    def __init__(self, claim: Any) -> None:
        self.said = _content(claim)

    def __eq__(self, claim: object) -> bool:
        return self.said == _content(claim)

    __hash__ = None  # type: ignore[assignment]


def _content(claim: Any) -> Any:
    if claim is None:
        return None
    return claim.layout, claim.assertion.subject.kind, claim.assertion.is_assumed


def _number(numbers: Mapping[Any, int], atom: Any) -> Any:
    """That of a value, or a literal in a tuple of its own."""
    return (atom.val,) if _jax.jaxpr.is_literal(atom) else numbers[atom]


def _said(claims: Sequence[Any]) -> tuple[Any, ...]:
    """What claims say of a value."""
    return tuple(_content(eqn.params["claim"]) for eqn in claims)


def _is_same(jaxpr: Any, known: Skeleton, claims: Mapping[Any, Sequence[Any]]) -> bool:
    """Whether a program is that one. This runs for every equation of every trace: it makes no calls of its own."""
    jaxpr = _jax.jaxpr.open_jaxpr(jaxpr)
    if len(jaxpr.eqns) != len(known.eqns) or len(jaxpr.invars) != len(known.inputs):
        return False
    literal = _jax.versions.extend_core().Literal
    numbers: dict[Any, int] = {}
    count = 0
    for var in jaxpr.constvars:
        numbers[var] = count
        count += 1
    for var, (shape, dtype) in zip(jaxpr.invars, known.inputs, strict=True):
        if var.aval.shape != shape or var.aval.dtype != dtype:
            return False
        numbers[var] = count
        count += 1
    for eqn, (primitive, operands, params, inner) in zip(jaxpr.eqns, known.eqns, strict=True):
        if eqn.primitive is not primitive:
            return False
        for atom, operand in zip(eqn.invars, operands, strict=True):
            if atom.__class__ is literal:
                if operand.__class__ is not tuple or not (atom.val is operand[0] or atom.val == operand[0]):
                    return False
            elif numbers[atom] != operand:
                return False
        given = eqn.params
        for name, value in params:
            if given[name] is not value and value != given[name]:
                return False
        for name, at, skeleton in inner:
            if not _is_same(given[name] if at is None else given[name][at], skeleton, {}):
                return False
        for var in eqn.outvars:
            numbers[var] = count
            count += 1
    for atom, result in zip(jaxpr.outvars, known.results, strict=True):
        if atom.__class__ is literal:
            if result.__class__ is not tuple or atom.val != result[0]:
                return False
        elif numbers[atom] != result:
            return False
    if len(claims) != len(known.claims):
        return False
    for (var, stated), (number, said) in zip(claims.items(), known.claims, strict=True):
        if numbers.get(var) != number or len(stated) != len(said):
            return False
        for eqn, (layout, kind, is_assumed) in zip(stated, said, strict=True):
            claim = eqn.params["claim"]
            assertion = claim.assertion
            if claim.layout != layout or assertion.subject.kind != kind or assertion.is_assumed != is_assumed:
                return False
    return True
