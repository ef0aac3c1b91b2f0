"""One call of an operation: its pattern, resolved over the current mesh, its operands, and its errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, auto_axes

from .. import _jax
from .._jax.array import KEYS, takes
from ..errors import MeshAxisError, TypedShmapError, failures, warn_of_suspect
from ..errors.failures import Failure, Fault, HintText, Span, Subject
from ..errors.phrases import count_text, quoted_axes, sharding_text
from ..errors.places import Place, running_line
from ..errors.varying import UnmentionedVarying
from ..hints import context
from ..hints.array_hint import ArrayHint
from ..hints.check_array import check_array, describe
from ..hints.fitting import CheckedLeaf, find_fitting, keep_fit
from ..hints.global_sharding import mismatch_beside_manual, place_stated, with_mesh
from ..meshes import mesh_of_values
from ..notation.layout import NO_AXES, AxisTwice, Layout, UnknownAxis
from ..notation.match import NO_SIZES
from ..notation.pattern import Factor, Pattern, PatternDim, Side, parse_pattern
from ..notation.spec import Rest, written_axes
from ..notation.spelling import misspelt_name
from ..notation.tokens import RepeatedAxis, SyntaxFault
from ..records import Record

T = TypeVar("T")
MeshAxes = tuple[str, ...]
_PATTERN = Subject("pattern", "pattern")
RESULT = Subject("operand", "result")


class ResolvedDim(Record):
    """A dim of an array, as written in the pattern, and its manual mesh axes; ``...`` has an entry for each dim."""

    dim: PatternDim
    axes: MeshAxes

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, self.dim.factors))

    @property
    def name(self) -> str:
        """Its name in messages."""
        return " ".join(self.names)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Its factors as unique keys: the key of a number, ``4``, includes its span."""
        start = self.dim.span[0]
        return tuple(f"{name} at {start}:{at}" if name.isdecimal() else name for at, name in enumerate(self.names))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The sizes of its factors that are numbers, by their keys."""
        return {key: int(name) for key, name in zip(self.keys, self.names, strict=True) if name.isdecimal()}


class SideLayout(Layout, kw_only=True):
    """The layout of one side of a pattern over manual axes, for one rank; ``dots`` counts the dims of ``...``."""

    side: Side
    dims: tuple[ResolvedDim, ...]
    dots: int

    @cached_property
    def differing(self) -> frozenset[str]:
        return self.sharded | self.unreduced | self.varying


def shard_count(axes: Iterable[str], sizes: Mapping[str, int]) -> int:
    """The number of shards over mesh axes."""
    return prod([sizes[axis] for axis in axes])


class Operand(NamedTuple):
    """A shard and its side of the pattern; ``invarying`` has axes over which shards are known to be equal."""

    value: Any
    shape: tuple[int, ...]
    subject: Subject
    layout: SideLayout
    invarying: frozenset[str]

    def global_shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        pairs = zip(self.shape, self.layout.dim_axes, strict=True)
        return tuple([size * shard_count(axes, sizes) for size, axes in pairs])


_OF_NUMPY = (np.ndarray, np.generic)
_RUN_TOGETHER = re.compile(r"\s*[A-Za-z]+(\s*,\s*[A-Za-z]+)*\s*(->\s*[A-Za-z]*\s*)?")


class Operation(Record):
    """One call of an operation; ``hints`` has a hint for each side; ``mesh`` is None if all its axes are manual."""

    verb: str
    pattern: Pattern
    hints: tuple[ArrayHint, ...]
    region: context.MeshContext
    where: str
    mesh: _jax.mesh.AnyMesh | None = None

    @property
    def is_plain(self) -> bool:
        """Whether this is a plain einops call: no brackets, no marks, no manual region."""
        return not self.region.manual and not self.pattern.has_sharding

    @cached_property
    def placed_axes(self) -> frozenset[str]:
        """The axes that are not manual, if the pattern gives the sharding over them: in a region, if it names one."""
        if self.mesh is None or not self.pattern.has_sharding or len(self.region.manual) == len(self.mesh.axis_names):
            return frozenset()
        auto_axes_here = frozenset(self.mesh.axis_names).difference(self.region.sizes)
        sides = map(self.layout, range(len(self.hints)))
        is_said = not self.region.manual or any(side.axes & auto_axes_here for side in sides)
        return auto_axes_here if is_said else frozenset()

    def placed_layout(self, rank: int) -> Layout:
        return self.layout(-1, rank).over(self.placed_axes)

    @property
    def result(self) -> Side:
        assert self.pattern.result is not None
        return self.pattern.result

    def error(self, *failed: Failure) -> TypedShmapError:
        return self.region.error(self.where, failed)

    def wrong(self, what: Fault, subject: Subject = _PATTERN, value: Any = None) -> TypedShmapError:
        got = None if value is None else _jax.array.type_text(value)
        return self.error(Failure(what, subject, HintText('"', self.pattern.source, '"'), got))

    def fault(self, problem: str, span: Span | None = None, cure: str | None = None) -> TypedShmapError:
        return self.wrong(failures.PatternFault(problem, span, cure))

    @cached_property
    def spacing_cure(self) -> str | None:
        """The cure for a pattern in the style of ``numpy.einsum``, ``"bm,mf->bf"``; None for any other pattern."""
        if _RUN_TOGETHER.fullmatch(self.pattern.source) is None:
            return None
        *operands, result = ["".join(side.names) for side in self.pattern.sides]
        is_made_of = set(result) <= set("".join(operands)) or self.pattern.result is None
        is_long = any(len(side) > 1 for side in (*operands, result))
        if not is_long or not is_made_of or any(len(set(side)) < len(side) for side in (*operands, result)):
            return None
        left, right = (", ".join(map(" ".join, sides)) for sides in (operands, [result]))
        meant = f"{left} -> {right}" if self.pattern.result is not None else left or right
        return f'names are separated by spaces: "{meant.strip()}"'

    def plan(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Cache a plan by pattern, region and key; the key has the shapes and everything else that it depends on."""
        return self.region.plan((self.pattern.source, self.verb, *key), make)

    def plan_for(self, operands: list[Operand], make: Callable[[], T], *more: Any) -> T:
        """A plan that depends on the operands' shapes, and on where they are known to be equal."""
        return self.plan((*[(operand.shape, operand.invarying) for operand in operands], *more), make)

    def layout(self, index: int, rank: int | None = None) -> Layout:
        """The layout of a side, perhaps for a rank; the result is side -1."""
        layout = self.region.layout(self.hints[index])
        if not isinstance(layout, Layout):
            raise self.wrong(layout)
        return layout if rank is None else layout.at_rank(rank, self.hints[index].spec.rest)

    def resolve_side(self, index: int, dots: int) -> SideLayout:
        def resolve() -> SideLayout:
            side, manual = self.pattern.sides[index], frozenset(self.region.sizes)
            # On Explicit axes, JAX's types also have + and - outside manual regions.
            markable = manual or self.region.explicit
            for mark in side.marks:
                for axis in self.meaning(mark.axis):
                    if axis not in markable or (mark.sign == "~" and not manual):
                        raise self.not_manual(axis, mark.span)
            dims: list[PatternDim] = []
            for dim in side.dims:
                if isinstance(dim, Rest):
                    dims += [PatternDim((dot,), span=dim.span) for dot in _factors_of(dim, dots)]
                else:
                    factors = tuple(chain.from_iterable(_factors_of(item, dots) for item in dim.factors))
                    dims.append(PatternDim(factors, dim.axes, dim.is_group, dim.span))
            layout = self.layout(index, len(dims)).over(manual)
            places, count = tuple(map(ResolvedDim, dims, layout.dim_axes)), 0 if side.dots is None else dots
            axes = (layout.dim_axes, layout.unreduced, layout.reduced, layout.varying)
            return SideLayout(*axes, side=side, dims=places, dots=count)

        return self.plan(("side", index, dots), resolve)

    def meaning(self, name: str) -> MeshAxes:
        return dict(self.region.aliases).get(name, (name,))

    @property
    def has_unused_alias(self) -> bool:
        """Whether an alias in the pattern stands for no mesh axis here: then nothing moves."""
        written = (written_axes(side.dims, side.marks) for side in self.pattern.sides)
        return any(not self.meaning(name) for name, _ in chain.from_iterable(written))

    def explicit_axes(self, operands: Sequence[Operand]) -> Mapping[str, tuple[MeshAxes, ...]]:
        """The Explicit axes in the operands' types, by the major factor of the dim that they shard."""
        axes_by_factor: dict[str, tuple[MeshAxes, ...]] = {}
        for operand in operands:
            sharding = _jax.array.explicit_spec(operand.value)
            if sharding is None:
                continue
            dim_axes = _jax.array.spec_entries(sharding.spec, len(operand.shape)).dim_axes
            for place, axes in zip(operand.layout.dims, dim_axes, strict=True):
                if axes and place.keys:
                    axes_by_factor[place.keys[0]] = (*axes_by_factor.get(place.keys[0], ()), axes)
        return axes_by_factor

    def explicit_spec(
        self, known: Mapping[str, tuple[MeshAxes, ...]], result: SideLayout, has_marks: bool = False
    ) -> PartitionSpec:
        written = self.layout(-1, len(result.dims)).over(self.region.explicit - frozenset(self.region.sizes))
        taken, dims = set(written.sharded), list[MeshAxes]()
        for at, (place, part) in enumerate(zip(result.dims, written.dim_axes, strict=True)):
            is_open = not self.placed_axes or at in written.unconstrained
            before = known.get(place.keys[0], ((),))[0] if place.keys and not part and is_open else ()
            part = part or tuple(axis for axis in before if axis not in taken)
            taken |= {*part}
            dims.append(part)
        marks = (written.unreduced, written.reduced) if has_marks else ()
        return _jax.array.partition_spec(dims, *marks)

    def run_on_auto_axes(
        self,
        operands: Sequence[Operand],
        result: SideLayout,
        is_refused: Callable[[Mapping[str, tuple[MeshAxes, ...]]], bool],
        f: Callable[..., Any],
    ) -> Any:
        """Call a function; on Auto axes, if JAX cannot infer its result's Explicit sharding."""
        values = [operand.value for operand in operands]
        explicit = self.region.explicit.difference(self.region.sizes)
        if not explicit:
            return f(*values)
        known = self.explicit_axes(operands)
        is_stated = not self.region.manual and bool(explicit & self.placed_axes)
        # Few functions accept unreduced or reduced types, and on Auto axes none does.
        is_marked = any(_jax.array.has_marked_type(value) for value in values)
        if is_marked or not (is_stated or (known and is_refused(known))):
            try:
                return f(*values)
            except Exception:
                self.refuse_global_marks(operands)
                raise
        # A dim that is split is no longer sharded.
        split = {place.keys[0] for operand in operands for place in operand.layout.dims if len(place.keys) > 1}
        kept = {key: axes for key, axes in known.items() if key not in split}
        spec: Any = self.explicit_spec(kept, result)
        inferred = (kept.get(place.keys[0], ((),))[0] if place.keys else () for place in result.dims)
        if spec == _jax.array.partition_spec(inferred) and not is_refused(known):
            return f(*values)  # JAX infers that itself
        spec = NamedSharding(self.mesh, spec) if self.mesh and _jax.mesh.context_mesh().empty else spec
        return auto_axes(f, axes=tuple(explicit), out_sharding=spec)(*values)

    def require_manual(self, axes: Iterable[str] | None = None) -> None:
        """Raise unless these axes, by default all of the pattern, are manual here."""
        written: dict[str, Span] = {}
        for index, side in enumerate(self.pattern.sides):
            self.layout(index)  # raises for unknown axes
            for name, span in written_axes(side.dims, side.marks):
                for axis in self.meaning(name):
                    written.setdefault(axis, span)
        for axis in written if axes is None else axes:
            if axis not in self.region.sizes:
                raise self.not_manual(axis, written.get(axis))

    def not_manual(self, axis: str, span: Span | None) -> TypedShmapError:
        mesh = None if self.region.mesh is None else tuple(name for name, _ in self.region.mesh)
        if mesh is None or axis in mesh:
            return self.wrong(failures.NotManual(axis, span))
        other_names = tuple(name for name, _ in self.region.aliases if name not in mesh)
        return self.wrong(UnknownAxis(axis, axis, (0, len(self.pattern.source)), mesh, other_names))

    def require_names(self) -> None:
        """Raise for merged dims and numbers, in an operation with one name per dim."""
        for side in self.pattern.sides:
            for dim in side.dims:
                if isinstance(dim, PatternDim) and (dim.is_group or str(dim.factors[0]).isdecimal()):
                    cure = "merge and split dims by rearrange; give a number a name"
                    raise self.fault(f"{self.verb} accepts names only, not '{dim}'", dim.span, cure)

    def refuse_repeated_names(self, where: str) -> None:
        for index, side in enumerate(self.pattern.sides):
            names = side.names
            for at, name in enumerate(names):
                if name in names[:at]:
                    raise self.fault(f"the pattern has '{name}' twice {where}", self.span_of(index, name))

    def refuse_new_names(self) -> None:
        known = [name for side in self.pattern.operands for name in side.names]
        for factor in self.pattern.result.factors if self.pattern.result is not None else ():
            if factor.name not in known:
                raise self.fault(f"the pattern has '{factor}' only on the right", factor.span)

    def span_of(self, index: int, name: str) -> Span:
        """The span of the dim with this factor, else that of the side."""
        side = self.pattern.sides[index]
        dims = (dim for dim in side.dims if isinstance(dim, PatternDim) and name in map(str, dim.factors))
        return next(dims, side).span

    def shards(self, axes: Iterable[str]) -> int:
        return prod([self.region.sizes[axis] for axis in axes])

    def nontrivial(self, axes: MeshAxes) -> MeshAxes:
        """The axes with several shards; over the others, dims and sums do not differ."""
        return tuple(filter(self.region.nontrivial_axes.__contains__, axes))

    def over(self, axes: MeshAxes) -> str:
        """``over 'dp', 'tp' (8 shards)``"""
        return f"over {quoted_axes(axes)} ({self.shards(axes)} shards)"

    def local_pattern(self, dim_text: Callable[[PatternDim], str]) -> str:
        """The pattern without its sharding."""
        sides: list[str] = []
        for side in self.pattern.sides:
            sides.append(" ".join(["..." if isinstance(dim, Rest) else dim_text(dim) for dim in side.dims]))
        return f"{', '.join(sides[:-1])} -> {sides[-1]}"

    def read_operands(self, values: tuple[Any, ...]) -> list[Operand]:
        if self.mesh is None and not self.region.manual:
            self._refuse_axes()
        operands: list[Operand] = []
        for index, value in enumerate(values):
            subject = Subject("operand", "operand" if len(self.pattern.operands) == 1 else f"operand {index + 1}")
            known = context.lookup_layout(value) if self.region.manual else None
            hint, must_be_invarying = self.hints[index], NO_AXES
            if self.region.manual and isinstance(value, _OF_NUMPY):
                self.refuse_unknown(value, subject)
            if self.is_plain or self.spacing_cure is not None:
                self._refuse_for_einops(index, value, subject)
            if not self.is_plain:
                must_be_invarying = self._check_operand(value, hint, subject)
                if self.region.manual and self.mesh is not None and self.placed_axes:
                    self._refuse_placed(index, value, subject)
            shape = tuple(_jax.array.aval_of(value).shape)
            layout = self.resolve_side(index, len(shape) - len(hint.spec.dims) + 1)
            if known is not None:
                self._refuse_mismatch(layout, known, subject, value)
            value = self._assert_layout(index, value, subject, known, must_be_invarying)
            invarying = must_be_invarying if known is None else must_be_invarying | known.invarying
            if self.region.has_vma:
                invarying |= _jax.array.manual_type(value).reduced
            operands.append(Operand(value, shape, subject, layout, invarying - layout.differing))
        return operands

    def _check_operand(self, value: Any, hint: ArrayHint, subject: Subject) -> frozenset[str]:
        """Check a value against its side; the axes over which it must be the same on every shard."""
        fitting = find_fitting(hint.fits, (value,), (subject,), self.region, NO_SIZES)
        if fitting is not None:
            return fitting.unmentioned[0] if fitting.unmentioned else NO_AXES
        checked = check_array(value, hint, self.region, NO_SIZES, subject, {})
        if isinstance(checked, Failure):
            raise self.error(checked)
        leaf = CheckedLeaf(value, hint, subject, checked[1])
        keep_fit(hint.fits, (value,), (subject,), self.region, NO_SIZES, [leaf], [(0, 1)], checked[0].sizes)
        return leaf.must_be_invarying

    def _refuse_axes(self) -> None:
        """Raise for brackets over mesh axes if no mesh is known."""
        for index, side in enumerate(self.pattern.sides):
            if self.layout(index).axes:
                name = next(name for name, _ in written_axes(side.dims, side.marks) if self.meaning(name))
                text = f"{self.where}: the pattern names mesh axis '{name}', but no mesh is known"
                raise MeshAxisError(f"{text}\n\nHint: call it under jax.set_mesh(mesh), or with arrays that are on one")

    def _refuse_placed(self, index: int, value: Any, subject: Subject) -> None:
        """Raise for a shard with another known sharding over the axes that are not manual."""
        layout = self.layout(index, len(_jax.array.aval_of(value).shape))
        if (what := mismatch_beside_manual(value, layout.over(self.placed_axes), self.region)) is not None:
            raise self.wrong(what, subject, value)

    def refuse_uneven(self, result: SideLayout, shape: Sequence[int]) -> None:
        """Raise for a result whose shape, per shard, does not divide over the axes that are not manual."""
        if self.mesh is None or not self.placed_axes:
            return
        sizes, layout = dict(self.region.mesh or ()), self.placed_layout(len(shape))
        for place, size, axes in zip(result.dims, shape, layout.dim_axes, strict=True):
            shards = shard_count(axes, sizes)
            if shards > 1 and size % shards:
                over = f"over {quoted_axes(axes)} ({shards} shards)"
                problem = f"has {place.name}={size}, which does not divide {over}"
                raise self.wrong(failures.WrongSize(problem, place.dim.span), RESULT)

    def _refuse_for_einops(self, index: int, value: Any, subject: Subject) -> None:
        """Raise for an operand that einops rejects, regardless of its sharding."""
        hint, side = self.hints[index], self.pattern.operands[index]
        if not hint.takes_type(value):
            raise self.wrong(failures.NotAnArray("an array", describe(value)), subject)
        has_rest, got = hint.spec.rest is not None, len(_jax.array.aval_of(value).shape)
        expected = len(side.dims) - has_rest
        if got < expected or (got > expected and not has_rest):
            expects = f"{'at least ' if has_rest else ''}{expected}"
            cure = self.spacing_cure if got == sum(map(len, side.names)) else None
            problem = f"{subject.phrase} has {count_text(got, 'dim')}, but the pattern has {expects}"
            raise self.fault(problem, side.span, cure)

    def refuse_unknown(self, value: Any, subject: Subject) -> None:
        """Raise for NumPy arrays that JAX does not accept, such as strings, and for shapes without values."""
        reason = _jax.array.why_not_array(value) if isinstance(value, _OF_NUMPY) else None
        reason = "it has no values" if isinstance(value, _jax.array.SHAPES) else reason
        if reason is not None:
            what = failures.NotAnArray("an array", f"{describe(value)} that JAX refuses ({reason})")
            raise self.wrong(what, subject, value)

    def refuse_non_numbers(self, operand: Operand) -> None:
        self.refuse_unknown(operand.value, operand.subject)
        if takes(KEYS, dtype := _jax.array.dtype_name_of(operand.value)):
            what = failures.UnusableDtype(dtype, f"{self.verb} takes numbers")
            raise self.wrong(what, operand.subject, operand.value)

    def refuse_unreduced_type(self, operand: Operand, reason: str, name: str = "") -> None:
        for axis in sorted(_jax.array.manual_type(operand.value).unreduced):
            cure = f"take the sum first (psum), or leave it '~{axis}' where it was made"
            problem = f"{name or operand.subject.phrase} is unreduced over '{axis}' in JAX's type, {reason}"
            raise self.fault(problem, operand.layout.side.span, cure)

    def refuse_global_marks(self, operands: Sequence[Operand]) -> None:
        """Raise for global arrays typed unreduced or reduced, which few functions of JAX accept."""
        for operand in operands if not self.region.manual else ():
            known = _jax.array.explicit_spec(operand.value)
            for sign, state in (("+", "unreduced"), ("-", "reduced")):
                for axis in sorted(getattr(known.spec, state)) if known is not None else ():
                    typed = f"{operand.subject.phrase} is {state} over '{axis}' in JAX's type"
                    problem = f"{typed}, and JAX has no {self.verb} of such a value"
                    effect = "takes the sum first" if sign == "+" else "drops that, and its gradient is summed there"
                    cure = f'reshard(x, "... {sign}{axis} -> ...") {effect}'
                    raise self.fault(problem, operand.layout.side.span, cure)

    def _assert_layout(
        self,
        index: int,
        value: Any,
        subject: Subject,
        known: context.KnownLayout | None,
        invarying: frozenset[str] = frozenset(),
    ) -> Any:
        sink = context.current_sink()
        if sink is None or not self.region.manual:
            return value
        hint, is_assumed = self.hints[index], subject is RESULT
        assertion = context.LayoutAssertion(hint, self.region, subject, self.where, NO_SIZES, invarying, is_assumed)
        layout = self.region.manual_layout(hint, len(_jax.array.aval_of(value).shape))
        return sink.assert_layout(value, assertion, layout, known)

    def _refuse_mismatch(self, layout: SideLayout, known: context.KnownLayout, subject: Subject, value: Any) -> None:
        is_same = known.dim_axes == layout.dim_axes and known.unreduced == layout.unreduced
        if is_same or len(known.dim_axes) != len(layout.dims):
            return
        compared = (known.covered_axes & self.region.nontrivial_axes) - (known.varying - known.invarying)
        compared -= layout.varying
        claimed, actual = layout.over(compared), known.over(compared)

        def mismatch(dim: int | None, claimed: str, actual: str, span: Span) -> TypedShmapError:
            what = failures.PatternLayoutMismatch(dim, claimed, f"{actual} ({known.text})", known.place, span)
            return self.wrong(what, subject, value)

        for at, place in enumerate(layout.dims):
            if claimed.dim_axes[at] != actual.dim_axes[at]:
                texts = sharding_text(claimed.dim_axes[at]), sharding_text(known.dim_axes[at])
                raise mismatch(at, *texts, place.dim.span)
        if claimed.unreduced != actual.unreduced:
            span = next((mark.span for mark in layout.side.marks if mark.sign == "+"), layout.side.span)
            both = claimed.unreduced, actual.unreduced
            said, due = (f"unreduced over {quoted_axes(sorted(s))}" if s else "not unreduced" for s in both)
            raise mismatch(None, said, due, span)

    def record_result(
        self,
        value: Any,
        operands: Sequence[Operand],
        layout: SideLayout,
        made_invarying: frozenset[str] = frozenset(),
        addend_axes: frozenset[str] = frozenset(),
        is_stated: bool = False,
    ) -> Any:
        """Record the layout of a result, and return it; ``is_stated`` also asserts it in the jaxpr."""
        region = self.region
        if self.mesh is not None and self.placed_axes:
            source, rank = f'{self.where} "{self.pattern.source}"', len(_jax.array.aval_of(value).shape)
            value = place_stated(value, self.placed_layout(rank), self.mesh, region, source)
        if not region.manual:
            return value
        if not layout.dims and region.has_vma:
            self._refuse_scalar_varying(value, operands, layout)
        if is_stated:
            value = self._assert_layout(-1, value, RESULT, context.lookup_layout(value))
        # A result is equal on all shards over an axis if some operands are known to be equal, and none differs; and
        # over an axis that only a ``~`` of the result mentions.
        differing = NO_AXES.union(*[operand.layout.differing for operand in operands])
        invarying = NO_AXES.union(*[operand.invarying for operand in operands]) - differing - layout.differing
        invarying |= made_invarying | (layout.varying - differing)
        covered_axes = region.checked_axes | layout.differing
        axes = (layout.dim_axes, layout.unreduced, layout.reduced, layout.varying)
        text = f'"{self.pattern.source}"'
        known = context.KnownLayout(
            *axes, invarying=invarying, covered_axes=covered_axes, addend_axes=addend_axes, text=text, place=self.where
        )
        context.record_layout(value, known)
        return value

    def _refuse_scalar_varying(self, value: Any, operands: Sequence[Operand], layout: SideLayout) -> None:
        """Raise for a scalar typed as varying without a mark: it lacks a psum, or its gradient is too large."""
        aval = _jax.array.aval_of(value)
        if not _jax.array.is_inexact(aval.dtype):
            return
        varying = _jax.array.manual_type_in(aval).varying - layout.varying - layout.unreduced
        axes = tuple(axis for axis in self.region.sizes if axis in varying & self.region.nontrivial_axes)
        if not self.region.checked_axes.isdisjoint(axes):
            candidates = ((operand.subject, operand.value) for operand in operands)
            culprits = (pair for pair in candidates if not _jax.array.manual_type(pair[1]).varying.isdisjoint(axes))
            subject, culprit = next(culprits, (RESULT, value))
            what = context.with_cause(culprit, UnmentionedVarying(axes, False, may_agree=True))
            raise self.wrong(what, subject, culprit)


def _factors_of(item: Factor | Rest, count: int) -> tuple[Factor, ...]:
    """The factor, or a factor for each dim of ``...``, counted from the last, as in broadcasting."""
    return tuple(Factor(f"…{at}", item.span) for at in range(count, 0, -1)) if isinstance(item, Rest) else (item,)


def current_operation(
    verb: str, pattern: Pattern, hints: tuple[ArrayHint, ...] = (), values: Sequence[Any] = ()
) -> Operation:
    """A call of an operation in the current mesh context; outside manual regions its values may give the mesh."""
    scope, region = context.current_scope(), context.current_mesh_context()
    where = verb if scope is None else f"{verb} in {scope.function}"
    if region.manual or not pattern.has_sharding:
        is_open = len(region.manual) < len(region.mesh or ())
        return Operation(verb, pattern, hints, region, where, _jax.mesh.context_mesh() if is_open else None)
    mesh = mesh_of_values(_jax.mesh.known_mesh(), values)
    return Operation(verb, pattern, hints, region if mesh is None else with_mesh(mesh, region), where, mesh)


def read_operation(
    verb: str, pattern: Any, values: Sequence[Any], has_result: bool = True, allows_underscore: bool = False
) -> Operation:
    """Read the pattern of a call; ``_`` is a name only in einops' einsum."""
    if not isinstance(pattern, str):
        what = failures.PatternFault(f"the pattern is of type {type(pattern).__name__}, not a string")
        raise current_operation(verb, Pattern((), None)).error(Failure(what, _PATTERN))
    try:
        parsed, hints, misspelt = _read_pattern(pattern, allows_underscore)
    except SyntaxFault as fault:
        call = current_operation(verb, Pattern((), None, pattern))
        if isinstance(fault, RepeatedAxis):
            raise call.wrong(AxisTwice(fault.axis, fault.span)) from None
        raise call.fault(fault.problem, fault.span, fault.cure) from None
    call, operands = current_operation(verb, parsed, hints, values), len(values)
    if misspelt is not None and (line := running_line()) is not None:
        text = f"{call.where}: dim '{misspelt[0]}' stands once in \"{pattern}\", and looks like '{misspelt[1]}'"
        warn_of_suspect(f"{text}\n\nAt: {Place.of(*line)}", *line[:2])
    if has_result and parsed.result is None:
        raise call.fault("the pattern has no '->'", None, "write operands -> result")
    if not has_result and parsed.result is not None:
        raise call.fault(f"the pattern has '->', but {call.verb} takes one side only", parsed.result.span)
    if len(parsed.operands) != operands:
        given = f"{count_text(operands, 'array')} {'was' if operands == 1 else 'were'}"
        raise call.fault(f"the pattern has {count_text(len(parsed.operands), 'operand')}, but {given} given")
    return call


@lru_cache(maxsize=4096)
def _read_pattern(
    source: str, allows_underscore: bool
) -> tuple[Pattern, tuple[ArrayHint, ...], tuple[str, str] | None]:
    """A pattern, the hints of its sides, and a misspelt name with the name that it looks like."""
    pattern, text = parse_pattern(source), HintText('"', source, '"')
    for factor in chain.from_iterable(side.factors for side in pattern.sides):
        if factor.name == "_" and not allows_underscore:
            problem = "the pattern has '_'; a name neither starts nor ends with an underscore"
            raise SyntaxFault(problem, factor.span)
    specs = (side.spec(pattern) for side in pattern.sides)
    hints = tuple(ArrayHint(None, "Shaped", Any, spec, text, takes_rules=False) for spec in specs)
    return pattern, hints, misspelt_name(name for side in pattern.sides for name in side.names)
