"""Claims: the layouts that hints, checks and patterns state, compared with the jaxpr.

A claim is kept beside the jaxpr, or as an equation in it. Its primitive is the identity: it keeps the type of the
value, and lowers to nothing. Differentiation keeps it on the primal value and ignores it on the tangent; under
``jax.vmap`` the mapped dim is unconstrained. A claim that follows from the operands of the value's equation is not
bound where it would be differentiated and transposed."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple
from weakref import ref

from jax.interpreters import batching

from .. import _jax
from ..errors.failures import Fault, LayoutMismatch
from ..errors.varying import NotUnreduced, UnmarkedUnreduced, UnmentionedVarying
from ..hints.array_hint import ArrayHint
from ..hints.context import KnownLayout, LayoutAssertion, MeshContext, lookup_layout
from ..notation.layout import Layout
from ..notation.match import NO_SIZES
from ..notation.spec import Dim, Name
from ..records import Record
from . import lattice
from .facts import FactInterpreter, Observation
from .interpreter import CLAIM
from .lattice import UNKNOWN, AxisSet, DimFact, ShardingFact, drop_repeated_axes, invarying, is_within, unknown


class Origin(Record, eq=False):
    """One trace of a region's body, in which claims are made."""

    function: str
    region: MeshContext


class Claim(Record, eq=False):
    """The layout stated of one value, with the context of its error.

    All claims are equal, since JAX caches the types of results by the parameters of their equations. These types do not
    depend on the claim, and the cache would keep the claims of all calls alive.

    Attributes:
      layout: the layout of the value.
      assertion: the hint, its place and its subject.
      origin: the body in which it was made.
    """

    layout: Layout
    assertion: LayoutAssertion
    origin: Origin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Claim)

    def __hash__(self) -> int:
        return hash(Claim)

    @property
    def meaning(self) -> tuple[Any, ...]:
        """Its content, without its place."""
        stated = self.assertion
        return self.layout, self.covered_axes, stated.is_assumed, stated.must_be_invarying, stated.subject.is_pattern

    @property
    def covered_axes(self) -> AxisSet:
        """The axes that the layout describes."""
        return self.assertion.region.checked_axes | self.layout.axes

    def dim_name(self, axis: str) -> str:
        """The name of the dim that it shards over a mesh axis."""
        return dim_name(self.layout, self.assertion.hint, axis)

    @property
    def key(self) -> tuple[str, str, str, AxisSet]:
        """A key that is equal when the body is traced again."""
        stated = self.assertion
        return (stated.function, str(stated.subject), str(stated.hint.text), stated.must_be_invarying)


def dim_name(layout: Layout, hint: ArrayHint, axis: str) -> str:
    """The name of the dim that a hint shards over a mesh axis; empty if it has none."""
    rank = len(layout.dim_axes)
    dims = (hint.spec.dim_at(at, rank) for at, axes in enumerate(layout.dim_axes) if axis in axes)
    size = next((dim.size for dim in dims if isinstance(dim, Dim)), None)
    return size.name if isinstance(size, Name) else ""


def make_claim(stated: LayoutAssertion, rank: int, origin: Origin) -> Claim | None:
    """The claim of a hint about a value of a rank; None if the hint names axes that the mesh does not have."""
    layout = stated.region.manual_layout(stated.hint, rank)
    return None if layout is None else Claim(layout, stated, origin)


def remake_claim(claim: Claim, origin: Origin) -> Claim | None:
    """A claim made again in another body; None if it names axes that the mesh does not have.

    A function under ``jax.jit`` is traced for the first region that calls it. In the next region, names in its hints
    may stand for other axes.
    """
    stated, was, now = claim.assertion, claim.origin.region, origin.region
    region = stated.region
    if frozenset(region.sizes) != frozenset(now.sizes):
        # The claim belongs to an inner region, which has judged varying values.
        return replace(claim, assertion=stated._replace(region=region.but(checked_axes=frozenset())))
    names = ("checked_axes", "aliases", "rules")  # unless the claim has its own
    changes = {name: getattr(now, name) for name in names if getattr(region, name) == getattr(was, name)}
    stated = stated._replace(region=region.but(**changes))
    if stated.function == claim.origin.function:
        stated = stated._replace(function=origin.function, sizes=NO_SIZES)
    return make_claim(stated, len(claim.layout.dim_axes), origin)


class ClaimEquation(NamedTuple):
    """A claim beside the jaxpr, in the form of an equation, and its value."""

    params: Mapping[str, Any]
    invars: tuple[Any]
    source_info: Any
    value: ref[Any]

    @property
    def primitive(self) -> Any:
        return _primitive()


def claim_equation(var: Any, claim: Claim, value: Any) -> ClaimEquation:
    """A claim about a variable of a jaxpr, made here."""
    claimed_dims = tuple(range(len(claim.layout.dim_axes)))
    return ClaimEquation({"claim": claim, "claimed_dims": claimed_dims}, (var,), _jax.source.source_here(), ref(value))


def insert_claim(x: Any, claim: Claim, traces: Container[int]) -> Any:
    """``x``, with an equation that makes the claim; under differentiation about the primal value.

    Args:
      x: the value.
      claim: the claim.
      traces: the traces of the body itself, whose jaxpr keeps an equation even if nothing uses its result. In a loop or
        a call, a transformation drops unused equations, so the value passes through the claim. Elsewhere that would add
        a residual to a gradient.
    """
    claimed_dims = tuple(range(len(claim.layout.dim_axes)))
    if _jax.staging.is_within(x, traces):
        return _jax.staging.bind_staged(_primitive(), x, claim=claim, claimed_dims=claimed_dims)
    inner = _jax.array.strip_transforms(x)
    below, claimed_dims = (inner.value, inner.dims) if inner.is_differentiated else (x, claimed_dims)
    if not _jax.array.is_tracer(below):
        return x
    stated = _primitive().bind(below, claim=claim, claimed_dims=claimed_dims)
    return x if inner.is_differentiated or _jax.trace.running_traces()[0][0] in traces else stated


@cache
def _primitive() -> Any:
    primitive = _jax.staging.identity_primitive(CLAIM)

    def batch(args: Any, at: Any, *, claim: Claim, claimed_dims: tuple[int, ...]) -> Any:
        dims = tuple(dim + (dim >= at[0]) for dim in claimed_dims)
        return primitive.bind(*args, claim=claim, claimed_dims=dims), at[0]

    batching.primitive_batchers[primitive] = batch
    return primitive


def judge_claim(interpreter: FactInterpreter, eqn: Any, claim: Claim, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The transfer rule of the primitive: judge the claim, then refine the fact by it."""
    fact, layout, is_assumed = facts[0], claim.layout, claim.assertion.is_assumed
    claimed_dims: tuple[int, ...] = eqn.params["claimed_dims"]
    covers_shape = len(claimed_dims) == len(fact.dims)
    aval, is_plain = (
        eqn.invars[0].aval,
        covers_shape and not (fact.unreduced or fact.due or layout.unreduced or is_assumed),
    )
    # Most claims state known layouts.
    if is_plain and has_layout(fact.dims, layout.dim_axes) and fact.varying <= layout.sharded | layout.varying:
        interpreter.observations.append(Observation(eqn, None, claim, fact, aval))
        return facts
    seen = fact if covers_shape else fact.with_dims(fact.dims[at] for at in claimed_dims)
    if not covers_shape:
        aval = _jax.array.with_dims(aval, claimed_dims)
    what = None if is_assumed else contradiction(claim, seen, aval.shape, interpreter)
    interpreter.observations.append(Observation(eqn, what, claim, seen, aval))
    return [_refine_fact(claim, fact, claimed_dims, interpreter.axes)]


def contradiction(
    claim: Claim, fact: ShardingFact, shape: tuple[int, ...], interpreter: FactInterpreter, leaves_region: bool = False
) -> Fault | None:
    """The fault of a claim that contradicts a fact, whose dims are those of the claim.

    Args:
      claim: the claim.
      fact: the fact.
      shape: the shape of the value.
      interpreter: the interpreter of the region.
      leaves_region: whether the value leaves the region, so that a claim must not reinterpret its dims.
    """
    layout, region = claim.layout, claim.assertion.region
    checked_axes = region.checked_axes & interpreter.axes

    def in_mesh_order(axes: AxisSet) -> tuple[str, ...]:
        return tuple(axis for axis in interpreter.sizes if axis in axes)

    extra = fact.varying & checked_axes - layout.sharded - layout.unreduced - layout.varying
    if extra:
        may_be_unreduced = region.boundary_axes & extra <= region.explicit
        return UnmentionedVarying(in_mesh_order(extra), region.role == "boundary", may_be_unreduced)
    if unreduced := fact.unreduced & checked_axes - layout.unreduced:
        return UnmarkedUnreduced(in_mesh_order(unreduced))
    if missing := layout.unreduced & checked_axes - fact.varying - fact.unreduced:
        axis = in_mesh_order(missing)[0]
        return NotUnreduced(axis, interpreter.sizes[axis])
    dims = lattice.certain_dims(fact.dims) if leaves_region else fact.dims
    return layout_contradiction(claim, dims, shape, interpreter.axes, leaves_region)


def layout_contradiction(
    claim: Claim, dims: tuple[DimFact, ...], shape: tuple[int, ...], axes: AxisSet, leaves_region: bool
) -> LayoutMismatch | None:
    """The first dim with another known sharding, or sharded over axes that the claim has elsewhere.

    A dim with one element per shard may stand for any other dim, since no operation is needed to move it; but the order
    of its shards is fixed. The same holds for a movable dim, unless the value leaves the region.
    """
    layout = claim.layout
    if has_layout(dims, layout.dim_axes):
        return None
    compared = claim.covered_axes & axes - layout.varying
    movable = {axis for part, size in zip(layout.dim_axes, shape, strict=True) if size <= 1 for axis in part}
    claimed = [tuple(axis for axis in part if axis in compared) for part in layout.dim_axes]
    everywhere = {axis for part in claimed for axis in part}
    for at, (dim, part) in enumerate(zip(dims, claimed, strict=True)):
        known = tuple(axis for axis in dim.known_axes if axis in compared)
        fixed = tuple(axis for axis in known if axis in part or axis not in movable)
        if dim.axes is None:  # at most its shards are known to be out of order
            is_wrong = part == known if dim.gathered else bool(dim.parts and part) or not everywhere.isdisjoint(fixed)
            is_other = is_wrong and not dim.is_movable and compared.issuperset((*dim.gathered, *dim.known_axes))
        elif part:
            is_other = bool(fixed) and not is_within(fixed, part)
        else:
            is_other = not dim.is_movable and not everywhere.isdisjoint(fixed)
        woven = tuple(axis for axis in part if axis in dim.woven) if leaves_region else ()
        is_other, known = is_other or bool(woven), known or woven
        is_free = shape[at] <= 1 and set(part) != set(known)
        if is_other and not is_free:
            span = claim.assertion.hint.spec.dim_at(at, len(layout.dim_axes)).span
            gathered = dim.gathered if dim.axes is None else ()
            return LayoutMismatch(at, part, known, gathered, not dim.axes and bool(dim.woven or dim.parts), span)
    return None


def has_layout(dims: Sequence[DimFact], dim_axes: Sequence[tuple[str, ...]]) -> bool:
    """Whether dims are known to be sharded over exactly these axes."""
    for dim, part in zip(dims, dim_axes, strict=True):  # noqa: SIM110 (every claim comes by here)
        if dim.axes != part or dim.is_movable:
            return False
    return True


def _refine_fact(claim: Claim, fact: ShardingFact, claimed_dims: tuple[int, ...], axes: AxisSet) -> ShardingFact:
    """A fact refined by a claim: by its sharded dims and unreduced axes, and by its invarying axes if it is assumed."""
    layout, covered_axes, dims = claim.layout, claim.covered_axes & axes, list(fact.dims)
    claimed_axes = covered_axes - layout.varying
    for at, names in zip(claimed_dims, layout.dim_axes, strict=True):
        dim, part = dims[at], tuple(axis for axis in names if axis in axes)
        if dim.axes == part and not (dim.parts and claim.assertion.is_assumed):
            dims[at] = dim._replace(is_movable=False)
        elif not claimed_axes.issuperset(dim.known_axes):
            dims[at] = UNKNOWN if part else dim
        else:
            certain = DimFact(None) if claim.assertion.is_assumed else dim
            dims[at] = DimFact(part, from_claim=bool(part), parts=certain.parts, woven=certain.woven)
    varying, unreduced = fact.varying, fact.unreduced
    if claim.assertion.is_assumed:
        unreduced -= covered_axes - layout.unreduced
        varying |= fact.unreduced - unreduced
        varying -= covered_axes - layout.sharded - layout.unreduced - layout.varying
    newly = layout.unreduced & varying & axes
    varying, unreduced = varying - newly, unreduced | newly
    # A claim that a dim is sharded, or that shards may differ, is about the shard's value, not about a pending sum.
    due = (fact.due & varying) - layout.sharded - layout.varying
    return fact._replace(varying=varying, unreduced=unreduced, dims=drop_repeated_axes(tuple(dims)), due=due)


def is_implied(value: Any, claim: Claim, interpreter: FactInterpreter) -> bool:
    """Whether a claim follows from the facts of the operands of the value's equation.

    Claims without support in JAX's types, and partial sums, are left to the analysis.
    """
    stated, eqn = claim.assertion, _jax.staging.equation_of(value)
    if stated.is_assumed or stated.must_be_invarying or claim.layout.unreduced or eqn is None:
        return False
    # An inner jaxpr is interpreted once, with the region.
    if len(eqn.outvars) > 1 or _jax.primitives.primitive(eqn.primitive.name).kind in ("loop", "branch", "call"):
        return False
    facts = [fact_of_operand(operand, interpreter.axes, interpreter.has_vma) for operand in eqn.invars]
    known = [fact for fact in facts if fact is not None]
    if len(known) < len(facts):
        return False
    (fact,) = interpreter.results_of(eqn, known)
    conflicts, interpreter.observations = interpreter.observations, []
    if conflicts or fact.unreduced or fact.due or not has_layout(fact.dims, claim.layout.dim_axes):
        return False
    return contradiction(claim, fact, _jax.array.aval_of(value).shape, interpreter) is None


def fact_of_operand(value: Any, axes: AxisSet, has_vma: bool) -> ShardingFact | None:
    """The known fact of an operand of an equation that is being traced."""
    known = lookup_layout(value)
    fact = _fact_of_layout(known, axes) if known is not None else None
    if fact is not None:
        return fact
    rank = len(_jax.array.aval_of(value).shape)
    if not has_vma:
        return invarying(rank) if _jax.staging.is_constant(value) else None
    kind = _jax.array.manual_type(value)
    varies = axes & (kind.varying | kind.unreduced)
    return unknown(varies, rank) if varies else invarying(rank)


@lru_cache(maxsize=1024)
def _fact_of_layout(known: KnownLayout, axes: AxisSet) -> ShardingFact | None:
    """The fact of a shard whose layout is recorded, if the layout covers all these axes."""
    if known.addend_axes or not axes <= known.covered_axes:
        return None
    dims = [DimFact(tuple(axis for axis in part if axis in axes), from_claim=bool(part)) for part in known.dim_axes]
    return ShardingFact((known.sharded | (known.varying - known.invarying)) & axes, known.unreduced & axes, tuple(dims))
