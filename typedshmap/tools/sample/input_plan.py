"""Plan the arguments of a call from its hints, draw their sizes and values, and place them on any mesh.

Invariant: the values are the same on every mesh. Sizes divide over their mesh axes, and no two sizes are equal by
accident."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import count
from math import lcm, prod
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh

from ... import _jax
from ...errors import ShapeError, StructureError
from ...errors.failures import RETURN, Bound, Subject
from ...errors.phrases import value_text
from ...errors.requirements import require_dict
from ...hints.array_hint import ArrayHint
from ...hints.check_tree import TreeCheck, check_arguments
from ...hints.context import MeshContext, current_axis_naming
from ...hints.signature import TAKEN_BY_SPECS, BoundArgument, BoundCall, HintedSignature
from ...hints.structure import array_hints
from ...introspection import require_decorated
from ...notation.match import LARGEST_SIZE, NoValue, Sizes, evaluate
from ...notation.spec import Anything, Dim, Expression, Name, Rest, names_in_expression
from ...placement.placement_context import PlacementContext, placement_context_over
from ...placement.structs import default_dtype, names_of, refuse_wrong_sizes
from .arguments import (
    ArrayToDraw,
    Inputs,
    TreeToMake,
    arguments_by_position,
    arrays_to_draw,
    bind_arguments,
    complete_call,
    hints_of,
    is_to_draw,
    sizes_among,
    unknown_name_text,
)

_SIZE_STREAM = 2**31
_COMPARED_STREAM = 2**31 + 3
_MOST_COMPARED = 1e6
_TRIES = 2000
REST = "..."
"""The name under which the sizes of an unnamed ``...`` are kept, which are the same for all."""
_DRAWN = Subject("placed", "drawn")
SizeValues = dict[str, Any]
"""The size of each name, ``_`` among them; a tuple of sizes for ``*name`` and ``...``."""


def plan_inputs(
    f: Any,
    meshes: Sequence[_jax.mesh.AnyMesh | None],
    given: Mapping[str, Any] = MappingProxyType({}),
    arguments: Mapping[str, Any] | None = None,
    verb: str = "inputs",
    args: tuple[Any, ...] | None = None,
) -> InputPlan:
    """Plan the arguments of a call, with sizes that divide over the axes of several meshes.

    Args:
      f: a decorated function, or a method of an instance.
      meshes: the meshes; None for no mesh.
      given: sizes by the names of dims, and arguments by their names.
      arguments: more arguments, by name or by path.
      verb: the function that messages name.
      args: the positional arguments of a call that is only traced: a complete call is used unchanged, and arguments may
        be unreduced.
    """
    naming = current_axis_naming(require_decorated(f, verb).naming)
    require_dict(verb, arguments)
    typed, owner = hints_of(f, verb, args or ())
    parameters, source = typed.signature.parameters, f"{verb}: {typed.name}"
    call, sizes = None if args is None or arguments else complete_call(typed, owner, args, given), dict[str, Any]()
    if call is None:
        sizes, by_position = sizes_among(typed, given), arguments_by_position(typed, owner, args or ())
        values = {name: value for name, value in given.items() if name not in sizes}
        call = bind_arguments(typed, owner, verb, {**by_position, **values, **(arguments or {})})
    passed = [argument for argument in typed.arguments(call) if argument[0] in call.given]
    # Only a placement refuses marks.
    contexts = [PlacementContext(source, mesh, MeshContext.over(mesh, naming, "placement")) for mesh in meshes]
    hints = [*(hint for _, _, node, _ in passed for hint in array_hints(node)), *typed.result_hints]
    names = names_of(hints)
    if unknown := [name for name in sizes if name not in names]:
        raise StructureError(f"{source}: {unknown_name_text(unknown[0], [*names, *parameters])}")
    refuse_wrong_sizes(source, hints, sizes, must_all=False)
    # Arguments that are given in full bind sizes.
    in_full = [argument for argument in passed if not is_to_draw(argument[-1])]
    known = _check(in_full, call.arguments, contexts[0]).sizes
    bound = {name.removeprefix("*"): size.size for name, size in known if " at " not in name}
    drawn = [(subject, array.hint) for _, subject, _, value in passed for array in arrays_to_draw(value)]
    requirements = size_requirements([*drawn, *((RETURN, hint) for hint in typed.result_hints)], contexts)
    drawn_hints = [hint for _, hint in drawn]
    factors = factors_of(drawn_hints, requirements)
    given_sizes, before = {**bound, **sizes}, len(typed.given) + len(owner)
    place_on = partial(placement_context_over, source, naming=naming, takes_sums=args is not None)
    return InputPlan(source, typed, call, before, passed, drawn_hints, requirements, factors, given_sizes, place_on)


def _check(given: Sequence[BoundArgument], named: Mapping[str, Any], context: PlacementContext) -> TreeCheck:
    """Check arguments against their hints, and raise the failures."""
    checked = check_arguments(given, named, context.context)
    if checked.failures:
        raise context.error(checked.failures, checked.sizes)
    return checked


@dataclass(frozen=True)
class InputPlan:
    """The arguments of a call, before their sizes and values are drawn."""

    source: str  # the beginning of messages
    typed: HintedSignature
    call: BoundCall
    before: int  # the arguments of a partial and the instance of a method
    arguments: Sequence[BoundArgument]  # with an `ArrayToDraw` for each missing array
    hints: Sequence[ArrayHint]  # of the arrays to draw
    requirements: Sequence[SizeRequirement]
    factors: Mapping[str, int]  # divisors of the sizes
    given: SizeValues
    place_on: Callable[[_jax.mesh.AnyMesh | None], PlacementContext]

    @property
    def named(self) -> Mapping[str, Any]:
        """All arguments by name, for ``{argument}`` in a hint."""
        return self.call.arguments

    def with_multiples(self, of: int) -> InputPlan:
        """The same with sizes that are also multiples of a number."""
        return replace(self, factors={name: lcm(factor, of) for name, factor in self.factors.items()})

    def draw(self, seed: int, sizes: Mapping[str, Any] = MappingProxyType({})) -> UnplacedInputs:
        """Draw sizes and values; raises a `ShapeError` if no sizes fit."""
        rng, given, factors = np.random.default_rng([seed, _SIZE_STREAM]), {**sizes, **self.given}, self.factors
        dims = [dim for hint in self.hints for dim in hint.spec.dims]
        rests = dict.fromkeys(dim.name or REST for dim in dims if isinstance(dim, Rest))
        # The check of the arguments reports given sizes that do not divide, with the argument and the mesh.
        undetermined = [
            requirement
            for requirement in self.requirements
            if not given.keys() >= {*names_in_expression(requirement.expression)}
            or requirement.misfit(given, self.named, 1)
        ]
        misfits: list[str] = []
        for attempt in range(_TRIES):
            drawn = {**draw_once(factors, rests, given, rng, spread=4 + attempt // 50), **given}
            misfits = [
                misfit
                for requirement in undetermined
                if (misfit := requirement.misfit(drawn, self.named, requirement.factor))
            ]
            if not misfits and (attempt >= _TRIES // 4 or are_distinct(drawn, factors, given)):
                return UnplacedInputs(self, drawn, seed)
        problem = misfits[0] if misfits else "no two sizes are different"
        example = ", ".join(f"{name}={4 * factor}" for name, factor in list(factors.items())[:3]) or "x=..."
        raise ShapeError(f"{self.source}: no sizes were found that fit: {problem}\n\nHint: pass sizes, as in {example}")


@dataclass(frozen=True)
class UnplacedInputs:
    """The arguments of one call, before they are placed on a mesh."""

    plan: InputPlan
    sizes: SizeValues
    seed: int
    # By argument, numbers with which the program compares it; some entries are drawn close to them.
    compared: Mapping[str, Iterable[ComparedNumber]] = field(default_factory=dict[str, Any])
    factor: float = 1.0  # of drawn floats

    @property
    def drawn_sizes(self) -> SizeValues:
        """The sizes that are not given."""
        return {name: size for name, size in self.sizes.items() if name not in self.plan.given}

    def on(self, mesh: _jax.mesh.AnyMesh | None) -> Inputs:
        """The arguments, sharded over a mesh by their hints; structs on an AbstractMesh."""
        return self._placed(mesh, isinstance(mesh, AbstractMesh))

    def structs(self, mesh: _jax.mesh.AnyMesh | None) -> Inputs:
        """The arguments with ``jax.ShapeDtypeStruct``s for arrays, which need no devices."""
        return self._placed(mesh, as_structs=True)

    @cached_property
    def _values(self) -> list[Any]:
        return self._fill_arrays(as_structs=False)

    def _fill_arrays(self, as_structs: bool) -> list[Any]:
        """The arguments with an array, or its struct, for each `ArrayToDraw`."""
        numbers = count()
        values = [value for *_, value in self.plan.arguments]
        names = {
            id(leaf): f"{subject}{jax.tree_util.keystr(path)}"
            for _, subject, _, value in self.plan.arguments
            for path, leaf in (jax.tree_util.tree_leaves_with_path(value) if arrays_to_draw(value) else ())
        }

        def fill(leaf: Any) -> Any:
            if not isinstance(leaf, ArrayToDraw):
                return leaf
            hint, make, seed = leaf.hint, leaf.make, (self.seed, next(numbers))
            shape, dtype = shape_of(hint, self.sizes, self.plan.named), default_dtype(hint)
            if make is None and as_structs:
                return jax.ShapeDtypeStruct(shape, dtype)
            if make is None:
                below = bound_of(hint, self.plan.hints, self.sizes)
                try:
                    drawn = draw_value(shape, dtype, below or 2, seed)
                except MemoryError:
                    problem = f"{hint.text} is of shape {shape}, which is too large to be drawn here"
                    raise ShapeError(f"{self.plan.source}: {problem}") from None
                if self.factor != 1 and _jax.array.is_inexact(dtype):
                    drawn = (drawn * self.factor).astype(dtype)
                compared = self.compared.get(names[id(leaf)], ())
                return mix_in(drawn, compared, below, seed) if compared else drawn

            def made(key: Any) -> Any:
                _require_parameters(make, (key, shape), f"{self.plan.source}: the function that makes {hint.text}")
                value = make(key, shape)
                is_array = isinstance(value, (*_jax.array.ARRAYS, *_jax.array.SCALARS))
                if is_array and _jax.array.why_not_array(value) is None:
                    return value
                problem = f"the function that makes {hint.text} returned {value_text(value)}, which is not an array"
                raise StructureError(f"{self.plan.source}: {problem}")

            return jax.eval_shape(made, key_of(seed)) if as_structs else made(key_of(seed))

        filled = [_jax.tree.map_leaves(fill, value) if arrays_to_draw(value) else value for value in values]
        make = partial(self._make_tree, filled, as_structs=as_structs)
        return [_jax.tree.map_leaves(make, value) if is_to_draw(value) else value for value in filled]

    def _make_tree(self, filled: Sequence[Any], leaf: Any, as_structs: bool) -> Any:
        """The tree that the user's function makes from the first parameters of the arguments; other leaves as is."""
        if not isinstance(leaf, TreeToMake):
            return leaf
        checked, subject = TreeCheck(MeshContext.over(None, role="placement"), {}), Subject("placed", "parameters")
        parts = (part for value in filled for part in checked.parts_like(leaf.node, value, subject))
        parameters = next((part for _, part, is_similar in parts if is_similar), None)
        if parameters is None:
            problem = f"no argument has the structure of the parameters from which {leaf.node.name} is to be made"
            raise StructureError(f"{self.plan.source}: {problem}")
        return jax.eval_shape(leaf.make, parameters) if as_structs else leaf.make(parameters)

    def _placed(self, mesh: _jax.mesh.AnyMesh | None, as_structs: bool) -> Inputs:
        """The arguments, checked against their hints, with the arrays placed on a mesh."""
        plan, values = self.plan, self._fill_arrays(True) if as_structs else self._values
        context = plan.place_on(mesh)
        arguments = [(*argument[:3], value) for argument, value in zip(plan.arguments, values, strict=True)]
        checked = _check(arguments, plan.named, context)

        def placed(value: Any, hint: ArrayHint | None) -> Any:
            if hint is None or not (as_structs or hint.array_type is Any or issubclass(jax.Array, hint.array_type)):
                return value
            sharding = context.sharding(hint, len(np.shape(value)))
            if as_structs or isinstance(value, _jax.array.SHAPES):
                aval = value if isinstance(value, _jax.array.SHAPES) else jax.typeof(value)
                dtype = jax.dtypes.canonicalize_dtype(aval.dtype, allow_extended_dtype=True)
                return jax.ShapeDtypeStruct(aval.shape, dtype, sharding=sharding, weak_type=aval.weak_type)
            return jax.numpy.asarray(value) if sharding is None else jax.device_put(value, sharding)

        leaves = [leaf._replace(value=placed(leaf.value, leaf.hint)) for leaf in checked.leaves]
        changed = {subject: value for _, subject, value in checked.with_leaves(leaves)}
        changes = [(name, subject, changed.get(subject, value)) for name, subject, _, value in arguments]
        args, kwargs = plan.call.with_arguments(changes)
        parameters = plan.typed.signature.parameters
        names = [name for name, *_ in changes if parameters[name].kind in TAKEN_BY_SPECS]
        return Inputs.of(args[plan.before :], tuple(names[plan.before :]), kwargs, self.sizes, self.seed)


@dataclass(frozen=True, slots=True)
class SizeRequirement:
    """The requirement of one dim on the sizes."""

    expression: Expression
    factor: int  # the size of the dim is a multiple of it
    text: str  # of the hint

    def misfit(self, sizes: SizeValues, arguments: Mapping[str, Any], factor: int) -> str | None:
        """The reason why the size is not a multiple of a factor; None also if only the result binds its names."""
        try:
            size = size_of(self.expression, sizes, arguments)
        except NoValue as unknown:
            (reason,) = unknown.args
            return f"{reason} ({self.text})" if isinstance(reason, str) else None
        if size < 0:
            return f"'{self.expression}' is {size}, which is not a size ({self.text})"
        if size % factor:
            return f"'{self.expression}' is {size}, which is not a multiple of {factor} ({self.text})"
        return None


def size_requirements(
    hints: Iterable[tuple[Subject, ArrayHint]], contexts: Sequence[PlacementContext]
) -> list[SizeRequirement]:
    """The requirements of the dims of hints, for all of several meshes."""
    requirements: list[SizeRequirement] = []
    for subject, hint in hints:
        layouts = [(context.layout(hint, subject), dict(context.context.mesh or ())) for context in contexts]
        for at, dim in enumerate(hint.spec.dims):
            if isinstance(dim, Dim):
                factor = lcm(*(prod(sizes.get(axis, 1) for axis in layout.dim_axes[at]) for layout, sizes in layouts))
                requirements.append(SizeRequirement(dim.size, factor, str(hint.text)))
    return requirements


def factors_of(hints: Sequence[ArrayHint], requirements: Iterable[SizeRequirement]) -> dict[str, int]:
    """The number by which the drawn size of each name, and of ``_``, must be divisible."""
    factors = {name: 1 for name, is_rest in names_of(hints).items() if not is_rest}
    sizes = [dim.size for hint in hints for dim in hint.spec.dims if isinstance(dim, Dim)]
    factors |= {str(size): 1 for size in sizes if isinstance(size, Anything)}
    for requirement in requirements:
        if (name := str(requirement.expression)) in factors:
            factors[name] = lcm(factors[name], requirement.factor)
    return factors


def draw_once(
    factors: Mapping[str, int], rests: Iterable[str], given: Mapping[str, Any], rng: np.random.Generator, spread: int
) -> SizeValues:
    """Draw all sizes once: at least two elements per shard, and even sizes of unsharded dims, to be halved."""
    taken = {size for size in given.values() if isinstance(size, int)}
    drawn: SizeValues = {}
    for name, factor in factors.items():
        unit = factor if factor > 1 else 2
        sizes = [unit * k for k in range(2, 2 + spread + len(factors))]
        free = [size for size in sizes if size not in taken] or sizes
        drawn[name] = int(rng.choice(free[:spread]))
        taken.add(drawn[name])
    return drawn | {name: tuple(rng.choice(range(3, 9), 1, replace=False).tolist()) for name in rests}


def are_distinct(sizes: SizeValues, factors: Mapping[str, int], given: Mapping[str, Any]) -> bool:
    """Whether all drawn sizes are different, global sizes and shard sizes."""
    drawn = {name: sizes[name] for name in factors if name not in given}
    shards = {name: size // factors[name] for name, size in drawn.items() if factors[name] > 1}
    others = [size for name, size in sizes.items() if name not in shards and isinstance(size, int)]
    return len(set(drawn.values())) == len(drawn) and not set(shards.values()) & set(others)


def size_of(expression: Expression, sizes: SizeValues, arguments: Mapping[str, Any]) -> int:
    """The size of a dim; raises `NoValue` for a name without one."""
    if isinstance(expression, Anything) and str(expression) in sizes:
        return sizes[str(expression)]
    bound = {name: Bound(int(size), _DRAWN, 0) for name, size in sizes.items() if not isinstance(size, tuple)}
    return evaluate(expression, Sizes(bound), arguments)


def shape_of(hint: ArrayHint, sizes: SizeValues, arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """The global shape of a hint's array; raises `NoValue` for a name without a size."""
    shape: list[int] = []
    for dim in hint.spec.dims:
        shape += sizes[dim.name or REST] if isinstance(dim, Rest) else [size_of(dim.size, sizes, arguments)]
    return tuple(shape)


def _require_parameters(make: Callable[..., Any], given: Sequence[Any], subject: str) -> None:
    """Raise for a function that does not take a key and a shape, if its signature is known."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        raise StructureError(f"{subject} is given a key and a shape, which it does not take: {error}") from None


@cache
def _memory() -> int:
    """The bytes of this machine's memory; if unknown, the bytes that it can address."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # on Windows there is no such function
        return LARGEST_SIZE


def draw_value(shape: tuple[int, ...], dtype: Any, below: int, seed: Sequence[int]) -> Any:
    """A random global array on the host: normal floats, integers below a bound, keys."""
    jnp = jax.numpy
    if 8 * prod(shape) > _memory():
        raise MemoryError
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        key = key_of(seed)
        return jax.random.split(key, prod(shape)).reshape(shape) if shape else key
    rng = np.random.default_rng(seed)
    if jnp.issubdtype(dtype, jnp.floating):
        return rng.standard_normal(shape).astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if jnp.issubdtype(dtype, jnp.bool_):
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, max(1, min(below, int(jnp.iinfo(dtype).max))), shape).astype(dtype)


class ComparedNumber(NamedTuple):
    """A number with which a program compares an argument, perhaps for equality."""

    value: float
    is_equality: bool


def mix_in(values: Any, compared: Iterable[ComparedNumber], below: int | None, seed: Sequence[int]) -> Any:
    """Values, some of them replaced by numbers with which a program compares them, or by close numbers on both sides.

    Integers are below a bound if they are indices, except for comparisons by equality, such as with a padding id.
    """
    is_integer = jax.numpy.issubdtype(values.dtype, jax.numpy.integer)
    if not is_integer and not _jax.array.is_inexact(values.dtype):  # truth values are drawn both ways
        return values
    candidates = set[float]()
    for number, is_equality in compared:
        step = 1 if is_integer else 0.1 * max(abs(number), 1.0)
        near = {number} if is_equality else {number - step, number} if is_integer else {number - step, number + step}
        if is_integer:
            is_drawn = number >= step and (below is None or number < below)
        else:
            is_drawn = 1 <= abs(number) <= _MOST_COMPARED  # near smaller numbers there are normal numbers
        candidates |= near if is_equality or is_drawn else set()
    limits = jax.numpy.iinfo(values.dtype) if is_integer else jax.numpy.finfo(values.dtype)
    fitting = sorted(x for x in candidates if float(limits.min) <= x <= float(limits.max))
    if not fitting:
        return values
    rng = np.random.default_rng((*seed, _COMPARED_STREAM))
    is_replaced = rng.random(values.shape) < max(1 / 8, 1 / (1 + values.size))
    return np.where(is_replaced, rng.choice(fitting, values.shape).astype(values.dtype), values)


def key_of(seed: Sequence[int]) -> jax.Array:
    """A key that depends only on the seed."""
    return jax.random.key(int(np.random.SeedSequence(seed).generate_state(1)[0]))


def bound_of(hint: ArrayHint, others: Iterable[ArrayHint], sizes: SizeValues) -> int | None:
    """The exclusive upper bound of drawn integers, so that they are valid indices of the other arrays; None without."""
    # The smallest dim that they may index: the last dim of an array with which they share dims (logits and their
    # labels), the first dim of an array with which they share no dims (a table).
    own_names, bounds = names_of([hint]), list[int]()
    for other_hint in others:
        names = [dim.size.name for dim in other_hint.spec.dims if isinstance(dim, Dim) and isinstance(dim.size, Name)]
        free = [name for name in names if name not in own_names]
        if other_hint is not hint and free and len(other_hint.spec.dims) > 1:
            size = sizes.get(free[-1] if len(free) < len(names) else free[0])
            bounds += [size] if isinstance(size, int) else []
    return min(bounds, default=None)
