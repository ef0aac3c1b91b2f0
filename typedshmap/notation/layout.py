"""The mesh axes of a spec: aliases and rules applied, every axis known and used once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import chain
from typing import Literal

from ..errors.failures import Sentence, Span, Terms, Unresolved
from ..errors.phrases import quoted_axes
from ..records import Record
from .spec import Dim, Name, Spec, written_axes

Aliases = Mapping[str, tuple[str, ...]]
NO_AXES = frozenset[str]()
ANY = ("?",)
"""The axes of a rule that allows any sharding of a dim, as ``[dim/?]``."""


class Rules(Record):
    """Mesh axes, or `ANY`, for dims without brackets by their names; the first pair with free axes wins."""

    pairs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    fallback: Literal["unsharded", "unconstrained", "error"] = "unsharded"


class Layout(Record):
    """The sharding of an array: the mesh axes of each dim, major to minor, and the axes of its marks.

    A layout resolved from a spec has one entry per token, so that ``...`` counts as one dim.

    Attributes:
      is_silent: whether no bracket, mark or rule applies, so that an array is unsharded if it is placed, and may have
        any sharding if it is only checked.
      unconstrained: the dims that may have any sharding; they have no mesh axes.
    """

    dim_axes: tuple[tuple[str, ...], ...]
    unreduced: frozenset[str] = NO_AXES
    reduced: frozenset[str] = NO_AXES
    varying: frozenset[str] = NO_AXES
    is_silent: bool = field(default=False, compare=False)
    unconstrained: frozenset[int] = frozenset()

    @cached_property
    def sharded(self) -> frozenset[str]:
        return frozenset(axis for axes in self.dim_axes for axis in axes)

    @cached_property
    def axes(self) -> frozenset[str]:
        return self.sharded | self.unreduced | self.reduced | self.varying

    def dim_of(self, axis: str) -> int | None:
        return next((dim for dim, axes in enumerate(self.dim_axes) if axis in axes), None)

    def at_rank(self, rank: int, rest: int | None) -> Layout:
        """The layout for a rank, with one entry per dim; ``rest`` is the index of the entry of ``...``."""
        if rest is None:
            return self
        more = rank - len(self.dim_axes)
        dim_axes = (*self.dim_axes[:rest], *((),) * (more + 1), *self.dim_axes[rest + 1 :])
        unconstrained = frozenset(at + more * (at > rest) for at in self.unconstrained)
        return replace(self, dim_axes=dim_axes, unconstrained=unconstrained)

    def over(self, axes: Collection[str]) -> Layout:
        dim_axes = tuple([tuple(filter(axes.__contains__, part)) for part in self.dim_axes])
        marks = (self.unreduced, self.reduced, self.varying)
        unreduced, reduced, varying = [marked.intersection(axes) for marked in marks]
        return Layout(dim_axes, unreduced, reduced, varying, unconstrained=self.unconstrained)


def shared_prefix(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """The major mesh axes that two dims share."""
    length = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:length]


class UnknownAxis(Unresolved):
    """A hint names a mesh axis that is neither in the mesh nor an alias."""

    written: str
    axis: str
    span: Span
    mesh: tuple[str, ...]
    aliases: tuple[str, ...]
    by_rule: bool = False

    def words(self, terms: Terms) -> Sentence:
        # Aliases are not resolved twice, and a mesh axis may be a number.
        aliases = self.aliases if self.written == self.axis else ()
        axis, known = str(self.axis), tuple(map(str, (*self.mesh, *aliases)))
        # "data" and "dp" differ in most letters, so also compare first letters.
        similar = [name for name in known if name[:1] == axis[:1]]
        close = get_close_matches(axis, known, n=1) or (similar if len(similar) == 1 else [])
        cure = f"did you mean '{close[0]}'? " if close else ""
        if self.by_rule:
            name = f"'{axis}' (by the rule for '{self.written}')"
            cure += "change the rule" + ("" if terms.is_box else f", or write [{self.written}/]")
        elif self.written == axis:
            name = f"'{axis}'"
            cure += f"axis_aliases({{'{axis}': ...}}) maps a name to mesh axes"
        else:
            name = f"'{axis}' (as '{self.written}')"
            cure = f"let '{self.written}' stand for axes of the mesh"
        problem = f"names mesh axis {name}, which is not among the mesh's axes {quoted_axes(self.mesh)}"
        return Sentence(problem, self.span, cure)


class AxisTwice(Unresolved):
    """A hint with one mesh axis twice."""

    axis: str
    span: Span

    def words(self, terms: Terms) -> Sentence:
        return Sentence(f"uses mesh axis '{self.axis}' twice{terms.within}", self.span)


class MixedTypes(Unresolved):
    """A dim over mesh axes of type Auto and Explicit at once."""

    dim: str
    auto: str
    explicit: str
    span: Span

    def words(self, terms: Terms) -> Sentence:
        problem = f"has '{self.dim}'{terms.within} over '{self.auto}' (Auto) and '{self.explicit}' (Explicit) at once"
        cure = "JAX has no such sharding: make both axes of one type, or shard another dim over one of them"
        return Sentence(problem, self.span, cure)


class NoRule(Unresolved):
    """A dim's name without an applicable rule, where a rule is required."""

    name: str
    taken: tuple[str, ...]
    span: Span

    def words(self, terms: Terms) -> Sentence:
        axes = tuple(dict.fromkeys(self.taken))
        given = f"and its rules give {quoted_axes(axes)}, which another dim has"
        why = given if axes else "which no rule names"
        cure = f"add ('{self.name}', None) to the rules" + ("" if terms.is_box else f", or write [{self.name}/]")
        return Sentence(f"has dim '{self.name}'{terms.within}, {why}", self.span, cure)


class RuledTwice(Unresolved):
    """A name with a rule that two dims of one array have, so that the rule is ambiguous."""

    name: str
    span: Span

    def words(self, terms: Terms) -> Sentence:
        problem = f"has dim '{self.name}' twice{terms.within}, and its rule could mean either"
        cure = None if terms.is_box else f"write [{self.name}/axis] or [{self.name}/] for one of them"
        return Sentence(problem, self.span, cure)


def resolve(
    spec: Spec,
    aliases: Aliases,
    mesh: Collection[str] | None,
    rules: Rules | None = None,
    explicit: Collection[str] = (),
    manual: Collection[str] = (),
) -> Layout | Unresolved:
    """Replace the names in a spec by mesh axes; without a mesh any name will do."""
    used: set[str] = set()

    def use(axes: tuple[str, ...], written: str, span: Span, by_rule: bool = False) -> UnknownAxis | AxisTwice | None:
        for axis in axes:
            if mesh is not None and axis not in mesh:
                others = tuple(alias for alias in aliases if alias not in mesh)
                return UnknownAxis(written, axis, span, tuple(mesh), others, by_rule)
            if axis in used:
                return AxisTwice(axis, span)
            used.add(axis)
        return None

    meaning: dict[str, tuple[str, ...]] = {}
    for name, span in written_axes(spec.dims, spec.marks):
        meaning[name] = aliases.get(name, (name,))
        if wrong := use(meaning[name], name, span):
            return wrong
    names = (dim.axes.names if dim.axes else () for dim in spec.dims)
    dim_axes = [tuple(chain.from_iterable(map(meaning.__getitem__, dim_names))) for dim_names in names]
    # A rule may shard dims with a name or a label and without brackets.
    rules, unruled = rules or Rules(), dict[str, list[int]]()
    for at, dim in enumerate(spec.dims):
        name = isinstance(dim, Dim) and (dim.label or (isinstance(dim.size, Name) and dim.size.name))
        if name and dim.axes is None and not dim.broadcast:
            unruled.setdefault(name, []).append(at)
    # Rules are applied in their own order, not in that of the dims, as in ``flax.linen.logical_to_mesh_axes``.
    taken: dict[str, tuple[str, ...]] = {}
    unconstrained = {at for at, dim in enumerate(spec.dims) if dim.axes is not None and dim.axes.is_any}
    is_silent = not spec.marks and all(dim.axes is None for dim in spec.dims)
    for name, written in rules.pairs:
        dims = unruled.get(name)
        if not dims:
            continue
        if len(dims) > 1:
            return RuledTwice(name, spec.dims[dims[1]].span)
        if written == ANY:
            unconstrained.update(unruled.pop(name))
            is_silent = False
            continue
        axes = tuple(axis for word in written for axis in aliases.get(word, (word,)))
        if not used.isdisjoint(axes):
            taken[name] = (*taken.get(name, ()), *axes)
            continue
        if wrong := use(axes, name, spec.dims[dims[0]].span, by_rule=True):
            return wrong
        dim_axes[dims[0]], is_silent = axes, False
        del unruled[name]
    if unruled and rules.fallback == "error":
        name, dims = next(iter(unruled.items()))
        return NoRule(name, taken.get(name, ()), spec.dims[dims[0]].span)
    if rules.fallback == "unconstrained":
        unconstrained.update(*unruled.values())
    for dim, axes in zip(spec.dims, dim_axes, strict=True) if mesh is not None and explicit else ():
        typed = [axis for axis in axes if axis in explicit]
        auto = [axis for axis in axes if axis not in explicit and axis not in manual]
        if typed and auto:
            return MixedTypes(str(dim), auto[0], typed[0], dim.span)
    marked = {sign: frozenset(a for m in spec.marks if m.sign == sign for a in meaning[m.axis]) for sign in "+-~"}
    return Layout(tuple(dim_axes), marked["+"], marked["-"], marked["~"], is_silent, frozenset(unconstrained))
