"""Jaxprs: their equations, how each version names them, and which line of the user's source they come from.

Everything is read by the public names of ``jax.extend.core`` and by attributes of what they return."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, dropwhile, takewhile
from operator import is_not
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters import partial_eval

from ..errors.places import is_users, place_text
from ..records import Record
from .array import STAGED, is_tracer, is_under_gradient, strip_transforms, undifferentiated
from .mesh import without_ambient
from .versions import DROPS_UNUSED, extend_core

# What JAX calls the functions that compute gradients.
_GRADIENTS = frozenset(["grad_f", "value_and_grad_f", "grad_f_aux", "value_and_grad_f_aux", "vjp", "linearize"])

# On jax 0.12 True means "when lowered", and leaves a call in the program.
_EARLY: Any = getattr(jax, "Inline").JAX_EARLY if hasattr(jax, "Inline") else True  # noqa: B009 (not known to 0.10)


def counted_equations(jaxpr: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """The equations of a jaxpr and of all jaxprs within it, each with the number of iterations of the scans around."""
    for eqn in open_jaxpr(jaxpr).eqns:
        yield eqn, times
        iterations = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
        for inner in inner_jaxprs(eqn):
            yield from counted_equations(inner, iterations)


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of all jaxprs within it."""
    return (eqn for eqn, _ in counted_equations(jaxpr))


def maker_of(jaxpr: Any, var: Any) -> Any:
    """The equation of a jaxpr, or of one within it, that makes a variable; None for an operand or a constant."""
    return next((eqn for eqn in all_equations(jaxpr) if any(result is var for result in eqn.outvars)), None)


def called_jaxpr(eqn: Any) -> Any:
    """The jaxpr that an equation calls with its own operands, and whose results are its own; None if there is none."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
        jaxpr = open_jaxpr(eqn.params.get(name))
        if hasattr(jaxpr, "eqns"):
            is_same = len(jaxpr.invars) == len(eqn.invars) and len(jaxpr.outvars) == len(eqn.outvars)
            return jaxpr if is_same else None
    return None


def value_numbers(jaxprs: Sequence[Any]) -> list[list[int]]:
    """For jaxprs of the same operands a number per result: one number for what is always equal.

    A result that is an operand has its index; others are equal if they are computed in the same way.
    """
    operands = range(len(open_jaxpr(jaxprs[0]).invars))
    numbers: dict[Any, int] = {at: at for at in operands}
    return [_number_results(open_jaxpr(jaxpr), operands, numbers) for jaxpr in jaxprs]


_COMMUTATIVE = frozenset(["add", "mul", "max", "min"])


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
        if eqn.primitive.name in ("jit", "pjit"):
            results = _number_results(open_jaxpr(eqn.params["jaxpr"]), given, numbers)
        else:
            try:
                what: Any = object() if _effects(eqn) else frozenset(eqn.params.items())
            except TypeError:  # a parameter without a hash
                what = object()
            if eqn.primitive.name in _COMMUTATIVE:
                given.sort()
            results = [number((eqn.primitive, what, *given, at)) for at in range(len(eqn.outvars))]
        known.update(zip(eqn.outvars, results, strict=True))
    return [number_of(atom) for atom in jaxpr.outvars]


def while_operands(eqn: Any, operands: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """The operands of a while loop: the constants of its condition, those of its body, and what it carries."""
    start = eqn.params["cond_nconsts"]
    end = start + eqn.params["body_nconsts"]
    return operands[:start], operands[start:end], operands[end:]


_READS = frozenset(["get", "load", "masked_load"])


def kernel_operands(eqn: Any) -> list[frozenset[int]] | None:
    """Which operands each result of a Pallas kernel may depend on, by its body; None where that is not followed."""
    params, kernel = eqn.params, open_jaxpr(eqn.params["jaxpr"])
    refs, given = kernel.invars, len(eqn.invars)
    if params["grid_mapping"].num_dynamic_grid_bounds or len(refs) < given + len(eqn.outvars):
        return None
    written = {
        atom
        for each in kernel.eqns
        if each.primitive.name not in _READS
        for atom in each.invars
        if not is_literal(atom)
    }
    if not written.issuperset(refs[given : given + len(eqn.outvars)]):
        return None
    # A result that is written in the place of an operand is one with it.
    same = {refs[given + to]: refs[at] for at, to in params["input_output_aliases"]}
    found: dict[Any, frozenset[int]] = {ref: frozenset() for ref in refs}
    found |= {ref: frozenset([at]) for at, ref in enumerate(refs[:given])}
    before = None
    while before != found:  # what is written in one step of the grid is read in another one
        before = dict(found)
        for each in kernel.eqns:
            atoms = [same.get(atom, atom) for atom in each.invars if not is_literal(atom)]
            read = frozenset[int]().union(*[found.get(atom, frozenset()) for atom in atoms])
            found |= dict.fromkeys(each.outvars, read)
            if each.primitive.name not in _READS:  # and writes, as far as is known, to all that it is given
                found |= {atom: found[atom] | read for atom in atoms if hasattr(atom.aval, "inner_aval")}
    # Where blocks lie may depend on the first operands.
    indices = frozenset(range(params["grid_mapping"].num_index_operands))
    return [found[same.get(ref, ref)] | indices for ref in refs[given : given + len(eqn.outvars)]]


def hi_jaxpr(eqn: Any) -> Any:
    """The jaxpr behind an operation that is written in Python, as jax 0.12 has them: its own, or what it expands to.

    It takes the equation's operands, or the first ones. None if there is none.
    """
    primitive = eqn.params["_prim"]
    shapes = [(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    for jaxpr in inner_jaxprs(primitive):
        taken = [(var.aval.shape, var.aval.dtype) for var in jaxpr.invars]
        if taken == shapes[: len(taken)] and len(jaxpr.outvars) == len(eqn.outvars):
            return jaxpr
    try:
        return _expanded(primitive, tuple(shapes))
    except Exception:  # of many kinds: what it does may depend on the mesh around it, or on its operands' values
        return None


@lru_cache(maxsize=256)
def _expanded(primitive: Any, shapes: tuple[tuple[tuple[int, ...], Any], ...]) -> Any:
    def run(*operands: Any) -> Any:
        return primitive.expand(*primitive.in_tree.unflatten(operands))

    with without_ambient():
        return open_jaxpr(jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(*shape) for shape in shapes)))


COLLECTIVES: Mapping[str, str] = {
    **dict.fromkeys(("psum", "psum2", "psum_invariant", "unreduced_psum"), "all-reduce"),
    **dict.fromkeys(("pmax", "pmin", "unreduced_pmax", "unreduced_pmin"), "all-reduce"),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), "all-gather"),
    **dict.fromkeys(("psum_scatter", "reduce_scatter", "unreduced_reduce_scatter"), "reduce-scatter"),
    "all_to_all": "all-to-all",
    "ragged_all_to_all": "ragged-all-to-all",
    "ppermute": "collective-permute",
    "psend": "collective-permute",
    "pbroadcast": "collective-broadcast",
    "pbroadcast_dynamic": "collective-broadcast",
}
"""The primitives that communicate, and what XLA calls them; those that only change a type are not among them."""


_MOVING_NAMES = (
    "all_gather all_gather_invariant all_to_all broadcast_in_dim convert_element_type copy dynamic_slice gather name "
    "optimization_barrier ppermute pvary reshape rev slice squeeze stop_gradient transpose"
)
MOVING = frozenset(_MOVING_NAMES.split())
"""Primitives that compute nothing: their result has the entries of their first operand."""


def collective_operation(eqn: Any) -> str | None:
    """What XLA calls the collective that an equation is; None for one that does not communicate."""
    return COLLECTIVES.get(eqn.primitive.name.removesuffix("_start"))


_COLLECTIVE_NAMES = {"psum2": "psum", "reduce_scatter": "psum_scatter", "reshard_shards": "reshard"}


def collective_name(eqn: Any) -> str:
    """The function that makes a collective: ``psum`` for any of the primitives that stand for it."""
    name: str = eqn.primitive.name.removesuffix("_start").removeprefix("unreduced_").removesuffix("_dynamic")
    name = name.removesuffix("_invariant").removesuffix("_reduced")
    name = _COLLECTIVE_NAMES.get(name, name)
    return "pmean" if name == "psum" and called_function(eqn) == "pmean" else name


def named_axes(eqn: Any, among: frozenset[str] | None = None) -> tuple[str, ...]:
    """Which of some mesh axes an equation names, in its own order; None stands for all."""
    names = eqn.params.get("axis_name", eqn.params.get("axes", ()))
    names = names if isinstance(names, (tuple, list)) else (names,)
    return tuple([name for name in names if isinstance(name, str) and (among is None or name in among)])


def newly_manual_axes(params: Any) -> frozenset[str]:
    """The mesh axes that a region makes manual; jax 0.9 has another name for them."""
    return frozenset(params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"])


def open_jaxpr(jaxpr: Any) -> Any:
    """A program without its constants; jax 0.12 has one class for both."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def is_literal(atom: Any) -> bool:
    """Whether an equation's operand is a constant in the text of the jaxpr."""
    return isinstance(atom, extend_core().Literal)


def is_reference(var: Any) -> bool:
    """Whether a variable stands for a mutable reference."""
    return hasattr(var.aval, "inner_aval")


def scan_counts(params: Any) -> tuple[int, int]:
    """How many operands of a scan are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(tuple(consts)), len(tuple(carry))


class TracedRegion(Record):
    """A manual region in a traced program.

    Attributes:
      eqn: its equation.
      results: where the results of the call stand among the equation's.
      is_differentiated: whether it was differentiated as it was traced, and has results for the gradient beside.
    """

    eqn: Any
    results: tuple[int, ...]
    is_differentiated: bool = False


def find_region(jaxpr: Any) -> TracedRegion | None:
    """The last manual region that a program runs, whose results are the call's."""
    eqn = next((eqn for eqn in reversed(open_jaxpr(jaxpr).eqns) if eqn.primitive.name == "shard_map"), None)
    return None if eqn is None else TracedRegion(eqn, tuple(range(len(eqn.outvars))))


def before_gradients(traced: TracedRegion) -> TracedRegion:
    """A region up to its first transposed equation, and without results; as it is if it has none."""
    body = traced.eqn.params["jaxpr"]
    is_backward = [any(map(is_transposed, [eqn, *chain(*map(all_equations, inner_jaxprs(eqn)))])) for eqn in body.eqns]
    if True not in is_backward:
        return traced
    forward = body.eqns[: is_backward.index(True)]
    jaxpr = SimpleNamespace(eqns=forward, invars=body.invars, constvars=body.constvars, outvars=[])
    return TracedRegion(SimpleNamespace(params={**traced.eqn.params, "jaxpr": jaxpr}), ())


def region_of_results(results: Sequence[Any]) -> TracedRegion | None:
    """The manual region that returned traced values; None where no program that is being traced shows it."""
    traced = [undifferentiated(value) for value in results]
    eqn = getattr(traced[0], "parent", None) if traced else None
    if eqn is None or eqn.primitive.name != "shard_map":
        return None
    places = {id(var): at for at, var in enumerate(eqn.outvars)}
    found = tuple(places.get(id(getattr(value, "val", None)), -1) for value in traced)
    return None if -1 in found else TracedRegion(eqn, found, any(map(is_not, traced, results)))


def inline_jit(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function under a jit of its own, which leaves no call in the program around."""
    return jax.jit(f, inline=_EARLY)


def linearised_once(f: Any) -> Callable[..., Any]:
    """A function of two arrays, and of options with a hash, that gradients linearise once per types of the arrays.

    What stands bare in a program JAX linearises wherever it stands, as a dot in every layer.
    """
    jitted = jax.jit(f, static_argnums=tuple(range(2, f.__code__.co_argcount)), inline=_EARLY)

    def call(first: Any, second: Any, *options: Any) -> Any:
        are_staged = type(first) is STAGED and type(second) is STAGED
        is_differentiated = not are_staged and (is_under_gradient(first) or is_under_gradient(second))
        return (jitted if is_differentiated else f)(first, second, *options)

    return call


def make_jaxpr(f: Any, args: Sequence[Any]) -> Any:
    """A function's traced program; one under ``jax.jit`` remembers it."""
    return f.trace(*args).jaxpr if hasattr(f, "trace") else jax.make_jaxpr(f)(*args)


def are_staged(values: Iterable[Any]) -> bool:
    """Whether all traced values are ones of a program that is being traced, if it is only differentiated, too."""
    others = [x for x in values if type(x) is not STAGED and is_tracer(x)]  # mostly none
    return all(isinstance(undifferentiated(x), STAGED) for x in others)


def variable_of(value: Any, traces: Container[int]) -> Any:
    """The variable that an equation of one of these traces made of a value, under differentiation of the value below.

    None for an operand or a constant of the program, for what is mapped over, and for a value of another trace;
    and on JAX's versions that drop a variable which nothing uses.
    """
    below = value if type(value) is STAGED else undifferentiated(value)
    if DROPS_UNUSED or type(below) is not STAGED or below.parent is None:
        return None
    return below.val if trace_id(below) in traces else None


class UnfinishedEquation(Record, eq=False):
    """An equation of a program that is being traced, in the form that it will have."""

    primitive: Any
    invars: list[Any]
    outvars: list[Any]
    params: Any
    source_info: Any


class UnfinishedJaxpr(NamedTuple):
    """What a program that is being traced has computed some values by.

    Attributes:
      invars: the variables that it starts from.
      operands: their values.
    """

    eqns: list[Any]
    invars: list[Any]
    operands: list[Any]
    outvars: list[Any]
    constvars: tuple[()] = ()


def unfinished_jaxpr(values: Sequence[Any]) -> UnfinishedJaxpr:
    """The equations behind values that are being traced, each after those of its operands."""
    found, seen = UnfinishedJaxpr([], [], [], [value.val for value in values]), set[int]()
    waiting = [(value, False) for value in reversed(values)]
    while waiting:
        value, is_ready = waiting.pop()
        eqn = value.parent
        key = id(value.val) if eqn is None else id(eqn)
        if key in seen or is_literal(value.val):
            continue
        if eqn is None:
            seen.add(key)
            found.invars.append(value.val)
            found.operands.append(value)
        elif is_ready:
            seen.add(key)
            atoms = [operand.val for operand in eqn.invars]
            found.eqns.append(UnfinishedEquation(eqn.primitive, atoms, eqn.outvars, eqn.params, eqn.source_info))
        else:
            waiting.append((value, True))
            waiting += [(operand, False) for operand in reversed(eqn.invars)]
    return found


def source_here() -> Any:
    """Where the program is, as an equation that is made here knows it."""
    # Imported here, since jax.extend brings Pallas along, a fifth of what importing this library costs.
    from jax.extend.source_info_util import current

    return current()


def equation_of(value: Any) -> Any:
    """The equation that made a value of a program that is being traced; None for an operand, and any other value."""
    return value.parent if type(value) is STAGED else None


def result_index(value: Any, eqn: Any) -> int:
    """Which result of the equation that made it a value is."""
    return next(at for at, var in enumerate(eqn.outvars) if var is value.val) if len(eqn.outvars) > 1 else 0


def is_constant(value: Any) -> bool:
    """Whether a value is a constant in the text of the program that is being traced."""
    return is_literal(getattr(value, "val", None))


def value_place(value: Any) -> str:
    """Where the user wrote what made a value that is being traced; empty for an operand, and any other value."""
    eqn = equation_of(strip_transforms(value).value) if is_tracer(value) else None
    return equation_place(eqn) if eqn is not None else ""


def is_staged(value: Any) -> bool:
    """Whether a value is one of a program that is being traced, and not of a transformation that computes at once."""
    return type(value) is STAGED


def trace_id(value: Any) -> int:
    """What identifies the trace that a value belongs to."""
    return id(getattr(value, "_trace", None))


def called_function(eqn: Any) -> str:
    """The function of a library by which the user's line made an equation; else the equation's own name."""
    inner = called_jaxpr(eqn)
    name = str(eqn.params.get("name") or getattr(getattr(inner, "debug_info", None), "func_name", "")).lstrip("_")
    if not name.isidentifier():
        name = ([frame.function_name for frame in _library_frames(eqn)] or [""])[-1]
    return name if name.isidentifier() and not name.startswith("_") else str(eqn.primitive.name)


def equation_place(eqn: Any) -> str:
    """Where the user wrote an equation, as ``train.py:12 (step)``; empty where that is not known."""
    frame = next((frame for frame in _frames(eqn) if is_users(frame.file_name)), None)
    return "" if frame is None else _frame_place(frame)


def _frames(eqn: Any) -> Iterator[Any]:
    """The frames in which an equation was made, from the innermost on."""
    return iter(getattr(getattr(eqn.source_info, "traceback", None), "frames", ()))


def _frame_place(frame: Any) -> str:
    return place_text(frame.file_name, frame.line_num, frame.function_name)


def _library_frames(eqn: Any) -> Iterator[Any]:
    """The frames between the user's line and the making of an equation, from the innermost on."""
    return takewhile(lambda frame: not is_users(frame.file_name), _frames(eqn))


def library_functions(eqn: Any) -> set[str]:
    """The functions of JAX by which the user's line made an equation, ``mean`` for instance."""
    return {frame.function_name for frame in _library_frames(eqn)}


def gradient_place(eqn: Any) -> str:
    """Where the user asked for the gradient of which an equation is a part; else where the equation is."""
    frames = dropwhile(lambda frame: frame.function_name.rpartition(".")[2] not in _GRADIENTS, _frames(eqn))
    outer = next((frame for frame in frames if is_users(frame.file_name)), None)
    return equation_place(eqn) if outer is None else _frame_place(outer)


def is_written_in(eqn: Any, jaxpr: Any) -> bool:
    """Whether the user's program has an equation of a jaxpr, which no function of a library makes that is traced once.

    Those of such a function have no line on jax 0.10 and later, and on jax 0.9 that of its first call.
    """
    info = getattr(jaxpr, "debug_info", None)
    file, function = getattr(info, "func_filename", None), str(getattr(info, "func_src_info", "")).partition(" ")[0]
    is_made = file is not None and not is_users(file) and function in library_functions(eqn)
    return equation_place(eqn) != "" and not is_made


def public_name(jaxpr: Any) -> str | None:
    """The name by which JAX's users call the function that a jaxpr was traced from; None for any other."""
    name = str(getattr(getattr(jaxpr, "debug_info", None), "func_src_info", "")).partition(" ")[0].lstrip("_")
    return name if any(hasattr(module, name) for module in (jax.numpy, jax.nn, jax.numpy.linalg, jax.lax)) else None


def equation_line(eqn: Any) -> tuple[str, int]:
    """The file and the line where the user wrote an equation."""
    return next(((frame.file_name, frame.line_num) for frame in _frames(eqn) if is_users(frame.file_name)), ("", 0))


def without_dead_equations(closed_jaxpr: Any) -> Any:
    """A program without the equations that none of its results needs, with the same operands."""
    jaxpr = open_jaxpr(closed_jaxpr)
    with without_ambient():  # the program may be for another mesh
        live, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)
    return live


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The programs that an equation runs."""
    params = [hi_jaxpr(eqn)] if "_prim" in eqn.params else eqn.params.values()
    values = [value if isinstance(value, (tuple, list)) else (value,) for value in params]
    return [jaxpr for jaxpr in map(open_jaxpr, chain(*values)) if hasattr(jaxpr, "eqns")]


def has_effects(eqn: Any) -> bool:
    """Whether an equation by itself does more than compute its results: a callback, a write into a reference."""
    return bool(_effects(eqn)) and not inner_jaxprs(eqn)


def _effects(eqn: Any) -> set[str]:
    return {type(effect).__name__ for effect in eqn.effects} - {"NamedAxisEffect"}  # which collectives have


def is_differentiated(eqn: Any) -> bool:
    """Whether an equation is part of what is differentiated, or was made of that."""
    return "jvp(" in str(eqn.source_info.name_stack)


def is_transposed(eqn: Any) -> bool:
    """Whether an equation was made by transposing another, as the backward part of a gradient is."""
    return "transpose(" in str(eqn.source_info.name_stack)
