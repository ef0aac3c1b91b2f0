"""The operands of regions in compiled programs: named in the trace, and computed by a separate program."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import jax
import jax.core
from jax.ad_checkpoint import checkpoint_name

from ... import _jax
from .seen_regions import SeenRegions

_numbers = count(1)


def name_operands(trace: Any, operands: Sequence[Any]) -> tuple[list[Any], tuple[str, ...]]:
    """Name the operands of a region in a trace; returns the named values, and their names."""
    number = next(_numbers)
    names = tuple(f"typedshmap operand {number}.{at}" for at in range(len(operands)))
    with _jax.versions.extend_core().set_current_trace(trace):
        pairs = zip(operands, names, strict=True)
        return [checkpoint_name(x, name) if _jax.array.is_tracer(x) else x for x, name in pairs], names


@contextmanager
def computed_operands(seen: SeenRegions) -> Generator[None]:
    """Compute the unknown operands of regions in the programs that are compiled inside the ``with``."""
    computing, jax_folder = set[int](), os.path.dirname(jax.__file__)  # the threads that compute operands

    def look(event: str, *_: Any, **__: Any) -> None:
        if "jaxpr_to_mlir" not in event or threading.get_ident() in computing:
            return
        computing.add(threading.get_ident())
        try:
            for jaxpr, arguments in _calls_under_way(jax_folder):
                _compute(jaxpr, arguments, seen)
        except Exception:  # then they stay unknown
            return
        finally:
            computing.remove(threading.get_ident())

    jax.monitoring.register_event_duration_secs_listener(look)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(look)


def _calls_under_way(folder: str) -> Iterator[tuple[Any, Sequence[Any]]]:
    """The programs that this thread is going to run, each with the values of its arguments."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while (frame := frame.f_back) is not None:
        if not frame.f_code.co_filename.startswith(folder):
            continue
        jaxpr: Any = frame.f_locals.get("jaxpr")
        arguments: Any = frame.f_locals.get("args")
        variables: Any = getattr(_jax.jaxpr.open_jaxpr(jaxpr), "invars", None)
        is_call = isinstance(variables, list) and isinstance(arguments, (tuple, list))
        if is_call and len(arguments) == len(variables) and all(map(_is_value_of, arguments, variables)):
            yield jaxpr, arguments


def _is_value_of(x: Any, var: Any) -> bool:
    try:
        return not _jax.array.is_tracer(x) and jax.typeof(x).shape == var.aval.shape
    except TypeError:
        return False


def _compute(jaxpr: Any, arguments: Sequence[Any], seen: SeenRegions) -> None:
    known = _names_in(jaxpr)
    for calls in seen.unknown():
        for call in calls:  # one call is enough
            values = dict[str, Any]()
            with suppress(Exception):  # for instance data in another process
                if not known.isdisjoint(call.names):
                    _follow(jaxpr, getattr(jaxpr, "consts", ()), arguments, frozenset(call.names), values)
            if values:  # empty for a branch that is not taken
                seen.take(call, call.with_values(values))
                break


def _name_of(eqn: Any) -> str | None:
    return eqn.params["name"] if eqn.primitive.name == "name" else None


def _names_in(jaxpr: Any) -> set[str | None]:
    return set(map(_name_of, _jax.jaxpr.all_equations(jaxpr)))


def _follow(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], names: frozenset[str], values: Any) -> None:
    """Compute the values of these names, where they first occur in a program or in a program that it runs."""
    program = _jax.jaxpr.open_jaxpr(jaxpr)
    named = {name: eqn.invars[0] for eqn in reversed(program.eqns) if (name := _name_of(eqn)) in names - values.keys()}
    values.update(zip(named, _evaluate(program, consts, arguments, list(named.values())), strict=True))
    for eqn in program.eqns:
        unknown = names - values.keys()
        if any(not unknown.isdisjoint(_names_in(inner)) for inner in _jax.jaxpr.inner_jaxprs(eqn)):
            operands = _evaluate(program, consts, arguments, eqn.invars)
            for inner, given in _entered(eqn, operands):
                _follow(inner, getattr(inner, "consts", ()), given, names, values)


def _entered(eqn: Any, operands: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The programs that an equation runs, with their first operands."""
    params = eqn.params
    match eqn.primitive.name:
        case "scan":
            first, outside = -1 if params["reverse"] else 0, sum(_jax.jaxpr.scan_counts(params))
            yield params["jaxpr"], [*operands[:outside], *(x[first] for x in operands[outside:])]
        case "while":
            of_condition, of_body, carried = _jax.jaxpr.while_operands(eqn, operands)
            yield params["cond_jaxpr"], [*of_condition, *carried]
            yield params["body_jaxpr"], [*of_body, *carried]
        case "cond":
            yield params["branches"][int(operands[0])], operands[1:]
        case _:
            for value in params.values():
                if len(getattr(_jax.jaxpr.open_jaxpr(value), "invars", ())) == len(operands):
                    yield value, operands


def _evaluate(program: Any, consts: Sequence[Any], arguments: Sequence[Any], atoms: Sequence[Any]) -> list[Any]:
    """The values of some variables of a program, from the equations on which they depend."""
    variables = [atom for atom in atoms if not _jax.jaxpr.is_literal(atom)]
    if not variables:
        return [atom.val for atom in atoms]
    needed, equations = set(variables), list[Any]()
    for eqn in reversed(program.eqns):
        if not needed.isdisjoint(eqn.outvars):
            equations.append(eqn)
            needed.update(atom for atom in eqn.invars if not _jax.jaxpr.is_literal(atom))
    part = program.replace(eqns=equations[::-1], outvars=variables)
    if any(map(_jax.jaxpr.effects_of, part.eqns)):
        raise ValueError("its side effects would happen twice")
    compute = jax.jit(lambda consts, arguments: jax.core.eval_jaxpr(part, consts, *arguments))
    with jax.ensure_compile_time_eval():
        values = iter(compute(list(consts), list(arguments)))
    return [atom.val if _jax.jaxpr.is_literal(atom) else next(values) for atom in atoms]


def is_index_into(jaxpr: Any, index: Any, arrays: Mapping[Any, Collection[int]]) -> bool:
    """Whether an operand, or a value that a shard computes from it, is an index into dims of some operands."""
    return _looks_up(
        _jax.jaxpr.open_jaxpr(jaxpr), {index}, {var: dims for var, dims in arrays.items() if var is not index}
    )


def _looks_up(jaxpr: Any, indices: set[Any], arrays: dict[Any, Collection[int] | None]) -> bool:
    """`is_index_into` for several indices, and arrays with perhaps unknown dims."""
    offsets = set[Any]()
    for eqn in jaxpr.eqns:
        operands: list[Any] = [None if _jax.jaxpr.is_literal(atom) else atom for atom in eqn.invars]
        looked_up = arrays.get(operands[0], ()) if operands else ()
        dims = [dim for dim, atom in _indexed_dims(eqn) if not _jax.jaxpr.is_literal(atom) and atom in indices]
        if dims and (looked_up is None or not {*looked_up}.isdisjoint(dims)):
            return True
        for inner in _jax.jaxpr.inner_jaxprs(eqn):
            behind = operands[len(operands) - len(inner.invars) :]  # the predicate of a cond comes first
            pairs = [*zip(inner.invars, behind, strict=False)]
            given = {var: arrays[atom] for var, atom in pairs if atom in arrays}
            if _looks_up(inner, {var for var, atom in pairs if atom in indices}, given):
                return True
        if eqn.primitive.name == "axis_index" or not offsets.isdisjoint(operands):
            offsets.update(eqn.outvars)
        elif _jax.jaxpr.collective_operation(eqn) is None and not indices.isdisjoint(operands):
            indices.update(eqn.outvars)
        for known in (atom for atom in operands if atom in arrays):
            shape = known.aval.shape
            arrays |= {var: arrays[known] if var.aval.shape == shape else None for var in eqn.outvars}
    return False


def _indexed_dims(eqn: Any) -> list[tuple[int, Any]]:
    """The dims of its first operand in which an equation looks up or writes, each with the operand for the index."""
    name, numbers = eqn.primitive.name, eqn.params.get("dimension_numbers")
    if name == "gather":
        return [(dim, eqn.invars[1]) for dim in numbers.start_index_map]
    if name.startswith("scatter"):
        return [(dim, eqn.invars[1]) for dim in numbers.scatter_dims_to_operand_dims]
    kind = _jax.primitives.primitive(name).kind
    if kind not in ("lookup", "placing"):
        return []
    return [*enumerate(eqn.invars[1 if kind == "lookup" else 2 :])]
