"""Jaxprs and their equations, read by the public names of ``jax.extend.core``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import jax
import numpy as np
from jax.interpreters import partial_eval

from .array import manual_type_in
from .mesh import without_ambient
from .primitives import COLLECTIVES, primitive
from .versions import extend_core


def counted_equations(jaxpr: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """The equations of a jaxpr and of its inner jaxprs, each with the number of iterations of its enclosing scans."""
    for eqn in open_jaxpr(jaxpr).eqns:
        yield eqn, times
        iterations = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
        for inner in inner_jaxprs(eqn):
            yield from counted_equations(inner, iterations)


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of its inner jaxprs."""
    return (eqn for eqn, _ in counted_equations(jaxpr))


def maker_of(jaxpr: Any, var: Any) -> Any:
    """The equation of a variable in a jaxpr or an inner jaxpr; None for an operand or a constant."""
    return next((eqn for eqn in all_equations(jaxpr) if any(result is var for result in eqn.outvars)), None)


def makers(jaxpr: Any) -> dict[Any, Any]:
    """The equations of a jaxpr by their variables, without those of inner jaxprs."""
    return {var: eqn for eqn in open_jaxpr(jaxpr).eqns for var in eqn.outvars}


@lru_cache(maxsize=64)
def uses(jaxpr: Any) -> Counter[Any]:
    """How often each variable of a jaxpr is an operand or a result."""
    atoms = [*(atom for eqn in jaxpr.eqns for atom in eqn.invars), *jaxpr.outvars]
    return Counter(atom for atom in atoms if not is_literal(atom))


def owner_of(eqn: Any, jaxprs: Sequence[Any]) -> Any:
    """The jaxpr that contains an equation, without its inner jaxprs; None if none of the jaxprs does."""
    return next((jaxpr for jaxpr in jaxprs if any(eqn is inner for inner in open_jaxpr(jaxpr).eqns)), None)


def aligned_equations(jaxpr: Any, other: Any) -> dict[int, Any] | None:
    """The same equations in another trace, by the ids of a jaxpr's equations; None if the traces differ.

    A claim, which only the first trace makes, is its own counterpart.
    """
    first, second = open_jaxpr(jaxpr), open_jaxpr(other)
    if (len(first.invars), len(first.outvars)) != (len(second.invars), len(second.outvars)):
        return None
    rest = iter([eqn for eqn in second.eqns if eqn.primitive.name != CLAIM])
    pairs = [(eqn, eqn if eqn.primitive.name == CLAIM else next(rest, None)) for eqn in first.eqns]
    if next(rest, None) is not None:
        return None
    for eqn, same in pairs:
        if same is None or same.primitive.name != eqn.primitive.name or len(same.invars) != len(eqn.invars):
            return None
    return {id(eqn): same for eqn, same in pairs}


def called(eqn: Any) -> Any:
    """The jaxpr that an equation calls, with its constants, if it returns the equation's results; else None.

    Its operands are those of the equation; for an operation written in Python, the first of them.
    """
    params = eqn.params
    if is_hi(eqn):
        return hi_jaxpr(eqn)
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
        if name in params and hasattr(jaxpr := getattr(params[name], "jaxpr", params[name]), "eqns"):
            is_same = len(jaxpr.invars) == len(eqn.invars) and len(jaxpr.outvars) == len(eqn.outvars)
            return params[name] if is_same else None
    return None


def called_with(eqn: Any, operands: Sequence[Any]) -> tuple[Any, Sequence[Any]] | None:
    """The jaxpr that an equation calls, as `called` returns it, and its operands among those of the equation."""
    jaxpr = called(eqn)
    return None if jaxpr is None else (jaxpr, operands[: len(open_jaxpr(jaxpr).invars)])


def handed_on(eqn: Any, jaxpr: Any) -> Sequence[Any]:
    """The operands of an equation that are the first operands of an inner jaxpr, and the same in every iteration."""
    name, params, operands = eqn.primitive.name, eqn.params, eqn.invars
    if name == "scan":
        return operands[: scan_counts(params)[0]]
    if name == "while":
        conds, consts, _ = while_operands(eqn, operands)
        return conds if jaxpr is open_jaxpr(params["cond_jaxpr"]) else consts
    return operands[1:] if name == "cond" else () if name == "custom_linear_solve" else operands


def called_jaxpr(eqn: Any) -> Any:
    """The jaxpr that an equation calls with all of its operands, without constants; else None."""
    return None if is_hi(eqn) else open_jaxpr(called(eqn))


def value_numbers(jaxprs: Sequence[Any]) -> list[list[int]]:
    """A number for each result of jaxprs with the same operands: equal for results that are computed in the same way.

    A result that is an operand has the operand's index.
    """
    operands = range(len(open_jaxpr(jaxprs[0]).invars))
    numbers: dict[Any, int] = {at: at for at in operands}
    return [_number_results(open_jaxpr(jaxpr), operands, numbers) for jaxpr in jaxprs]


def _number_results(jaxpr: Any, operands: Sequence[int], numbers: dict[Any, int]) -> list[int]:
    known = dict(zip(jaxpr.invars, operands, strict=True))

    def number(key: Any) -> int:
        return numbers.setdefault(key, len(numbers))

    def number_of(atom: Any) -> int:
        if is_literal(atom):
            return number((str(atom.aval), np.asarray(atom.val).tobytes()))
        return known[atom] if atom in known else number(atom)  # a constant

    for eqn in jaxpr.eqns:
        given = [number_of(atom) for atom in eqn.invars]
        if (inner := called_jaxpr(eqn)) is not None:
            results = _number_results(inner, given, numbers)
        else:
            try:
                what: Any = object() if effects_of(eqn) else frozenset(eqn.params.items())
            except TypeError:  # a parameter without a hash
                what = object()
            if primitive(eqn.primitive.name).is_commutative:
                given.sort()
            results = [number((eqn.primitive, what, *given, at)) for at in range(len(eqn.outvars))]
        known.update(zip(eqn.outvars, results, strict=True))
    return [number_of(atom) for atom in jaxpr.outvars]


def while_operands(eqn: Any, operands: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """The operands of a while loop: constants of its condition, constants of its body, and the carry."""
    start = eqn.params["cond_nconsts"]
    end = start + eqn.params["body_nconsts"]
    return operands[:start], operands[start:end], operands[end:]


_READS = frozenset(["get", "load", "masked_load"])


def kernel_operands(eqn: Any) -> list[frozenset[int]] | None:
    """For each result of a Pallas kernel the operands that it may depend on; None if unknown."""
    params, kernel = eqn.params, open_jaxpr(eqn.params["jaxpr"])
    refs, given = kernel.invars, len(eqn.invars)
    if params["grid_mapping"].num_dynamic_grid_bounds or len(refs) < given + len(eqn.outvars):
        return None
    writes = [step for step in kernel.eqns if step.primitive.name not in _READS]
    written = {atom for step in writes for atom in step.invars if not is_literal(atom)}
    if not written.issuperset(refs[given : given + len(eqn.outvars)]):
        return None
    # A result that aliases an operand is the same reference.
    same = {refs[given + to]: refs[at] for at, to in params["input_output_aliases"]}
    read_by: dict[Any, frozenset[int]] = {ref: frozenset() for ref in refs}
    read_by |= {ref: frozenset([at]) for at, ref in enumerate(refs[:given])}
    before = None
    while before != read_by:  # a write in one step of the grid may be read in another
        before = dict(read_by)
        for step in kernel.eqns:
            atoms = [same.get(atom, atom) for atom in step.invars if not is_literal(atom)]
            read = frozenset[int]().union(*[read_by.get(atom, frozenset()) for atom in atoms])
            read_by |= dict.fromkeys(step.outvars, read)
            if step.primitive.name not in _READS:  # which may write to all of its operands
                read_by |= {atom: read_by[atom] | read for atom in atoms if hasattr(atom.aval, "inner_aval")}
    # The index maps of blocks may depend on the first operands.
    indices = frozenset(range(params["grid_mapping"].num_index_operands))
    return [read_by[same.get(ref, ref)] | indices for ref in refs[given : given + len(eqn.outvars)]]


def is_hi(eqn: Any) -> bool:
    """Whether an equation is an operation written in Python (jax 0.12)."""
    return "_prim" in eqn.params


def hi_jaxpr(eqn: Any) -> Any:
    """The jaxpr of an operation written in Python: its own, or its expansion; else None.

    It takes the equation's first operands.
    """
    primitive = eqn.params["_prim"]
    shapes = [(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    for jaxpr in inner_jaxprs(primitive):
        taken = [(var.aval.shape, var.aval.dtype) for var in jaxpr.invars]
        if taken == shapes[: len(taken)] and len(jaxpr.outvars) == len(eqn.outvars):
            return jaxpr
    try:
        return _expanded(primitive, tuple(shapes))
    except Exception:  # the expansion may depend on the enclosing mesh, or on the values of its operands
        return None


@lru_cache(maxsize=256)
def _expanded(primitive: Any, shapes: tuple[tuple[tuple[int, ...], Any], ...]) -> Any:
    def run(*operands: Any) -> Any:
        return primitive.expand(*primitive.in_tree.unflatten(operands))

    with without_ambient():
        return open_jaxpr(jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(*shape) for shape in shapes)))


CLAIM = "typedshmap_claim"
"""The primitive that claims a layout of its operand; facts from the claim hold for the operand, too."""


def collective_operation(eqn: Any) -> str | None:
    """XLA's name of a collective equation; None for an equation without communication."""
    return COLLECTIVES.get(eqn.primitive.name.removesuffix("_start"))


def named_axes(eqn: Any, among: frozenset[str] | None = None) -> tuple[str, ...]:
    """The mesh axes in an equation's parameters, in its order, restricted to some axes; None means all."""
    params = eqn.params
    names = params["axis_name"] if "axis_name" in params else params.get("axes", ())
    names = names if type(names) is tuple or type(names) is list else (names,)
    return tuple([name for name in names if isinstance(name, str) and (among is None or name in among)])


def unreduced_results(jaxpr: Any) -> dict[Any, frozenset[str]]:
    """The results of equations that JAX types as unreduced, with the axes."""
    results = [var for eqn in jaxpr.eqns for var in eqn.outvars]
    try:  # without a call for each equation of the program
        return {var: axes for var in results if (axes := var.aval.manual_axis_type.unreduced)}
    except AttributeError:
        return {var: axes for var in results if (axes := manual_type_in(var.aval).unreduced)}


def newly_manual_axes(params: Any) -> frozenset[str]:
    """The mesh axes that a region makes manual; jax 0.9 has another parameter."""
    return frozenset(params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"])


def manual_sizes(params: Any) -> dict[str, int]:
    """The mesh axes that a region makes manual, each with its size."""
    manual = newly_manual_axes(params)
    return {axis: size for axis, size in params["mesh"].shape.items() if axis in manual}


def open_jaxpr(jaxpr: Any) -> Any:
    """The open jaxpr of a closed one; jax 0.12 has one class for both."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def is_literal(atom: Any) -> bool:
    """Whether an equation's operand is a literal."""
    return isinstance(atom, extend_core().Literal)


def is_reference(var: Any) -> bool:
    """Whether a variable stands for a mutable reference."""
    return hasattr(var.aval, "inner_aval")


def scan_counts(params: Any) -> tuple[int, int]:
    """The numbers of constants and of carried operands of a scan."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(tuple(consts)), len(tuple(carry))


def scan_operands(eqn: Any, operands: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """The operands of a scan: its constants, its carry, and the stacked inputs."""
    consts, carried = scan_counts(eqn.params)
    return operands[:consts], operands[consts : consts + carried], operands[consts + carried :]


def boundary_specs(jaxpr: Any) -> tuple[list[Any], list[Any]]:
    """For each operand and each result of a program the PartitionSpec of its region, else None."""
    jaxpr, entering, leaving = open_jaxpr(jaxpr), dict[Any, Any](), dict[Any, Any]()
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "shard_map":
            ins, outs = eqn.params["in_specs"], eqn.params["out_specs"]
        elif (inner := called_jaxpr(eqn)) is not None:
            ins, outs = boundary_specs(inner)
        else:
            continue
        for var, spec in zip(eqn.invars, ins, strict=True):
            if spec is not None and not is_literal(var):
                entering.setdefault(var, spec)
        leaving.update(zip(eqn.outvars, outs, strict=True))
    results = [None if is_literal(var) else leaving.get(var) for var in jaxpr.outvars]
    return [entering.get(var) for var in jaxpr.invars], results


def without_dead_equations(closed_jaxpr: Any) -> Any:
    """A program without unused equations, with the same operands."""
    jaxpr = open_jaxpr(closed_jaxpr)
    with without_ambient():  # the program may be for another mesh
        live, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)
    return live


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The programs that an equation runs."""
    params = [hi_jaxpr(eqn)] if is_hi(eqn) else eqn.params.values()
    values = [value if isinstance(value, (tuple, list)) else (value,) for value in params]
    return [jaxpr for jaxpr in map(open_jaxpr, chain(*values)) if hasattr(jaxpr, "eqns")]


def held_jaxprs(eqn: Any) -> list[Any]:
    """The programs that an equation runs, and those that an operation written in Python has as parameters."""
    primitive = eqn.params.get("_prim")
    return [*inner_jaxprs(eqn), *(inner_jaxprs(primitive) if hasattr(primitive, "params") else ())]


def has_effects(eqn: Any) -> bool:
    """Whether an equation has side effects: a callback, a write into a reference."""
    return bool(effects_of(eqn)) and not inner_jaxprs(eqn)


def effects_of(eqn: Any) -> set[str]:
    """The effects of an equation or a program, by the names of JAX's classes."""
    return {type(effect).__name__ for effect in eqn.effects} - {"NamedAxisEffect"}  # which collectives have


def is_differentiated(eqn: Any) -> bool:
    """Whether an equation belongs to a differentiated function, or to its gradient."""
    return "jvp(" in str(eqn.source_info.name_stack)


def is_transposed(eqn: Any) -> bool:
    """Whether an equation was made by transposing another, as in the backward pass."""
    return "transpose(" in str(eqn.source_info.name_stack)
