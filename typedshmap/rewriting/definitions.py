"""Hints on the definition of a mapped function, or beside it.

Where a parameter has an annotation that is not a hint for an array, the hints go to the call, as
``in_types`` and ``out_types``, and the definition stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from .annotations import is_array_type, kind_of, refuse_undefined, tuple_items
from .arrays import ArrayEvidence, arrays_in
from .functions import MappedFunction, ParameterSpecs, has_static_spec
from .hints import Writer
from .jaxtyped import JaxtypedHint, bracket_edits, dims_in
from .source import ArgumentList, Edit, Source, Unclear, one_a_line, parameters_at
from .specs import LeafSpec, NoSpec, Specs, SpecTuple


@dataclass(frozen=True)
class Definition:
    """A mapped function, and the specs of its parameters and its result.

    Attributes:
      is_one_for_all: whether one spec stands for all arguments.
    """

    source: Source
    mapped: MappedFunction
    pairs: Sequence[ParameterSpecs]
    result: Specs
    is_one_for_all: bool

    @property
    def function(self) -> cst.FunctionDef | cst.Lambda:
        return self.mapped.function

    @property
    def returns(self) -> cst.Annotation | None:
        return self.function.returns if isinstance(self.function, cst.FunctionDef) else None

    def takes_hints(self) -> bool:
        """Whether the hints can stand on the definition."""
        stars = {pair.specs for pair in self.pairs if pair.is_star}
        can = self.mapped.may_annotate and len(stars) <= 1
        return can and all(map(self._takes_hint, self.pairs)) and self._result_takes_hint()

    def _takes_hint(self, pair: ParameterSpecs) -> bool:
        kind = kind_of(self.source, pair.param.annotation)
        if has_static_spec(pair):
            return kind in ("bare", "any")
        if isinstance(pair.specs, SpecTuple) or pair.is_star:
            return kind == "bare"
        return kind in ("bare", "array", "optional", "dims")

    def _result_takes_hint(self) -> bool:
        if self.returns is None or self._existing_results():
            return True
        items = tuple_items(self.returns.annotation)
        if isinstance(self.result, SpecTuple) and len(items) == len(self.result.items):
            return all(is_array_type(self.source, item) for item in items)
        return isinstance(self.result, LeafSpec) and kind_of(self.source, self.returns) == "array"

    def _existing_results(self) -> list[JaxtypedHint]:
        """The hints of jaxtyping of the result, where every item of it has one."""
        if self.returns is None:
            return []
        nodes = tuple_items(self.returns.annotation) or [self.returns.annotation]
        specs = self.result.items if isinstance(self.result, SpecTuple) else (self.result,)
        if len(nodes) != len(specs):
            return []
        found = [self._existing(node, each) for node, each in zip(nodes, specs, strict=True)]
        return [each for each in found if each is not None] if all(found) else []

    def _existing(self, node: cst.BaseExpression, specs: Specs | None) -> JaxtypedHint | None:
        dims = dims_in(self.source, node)
        return JaxtypedHint(dims, specs) if dims is not None and specs is not None else None

    def _existing_parameters(self) -> list[JaxtypedHint]:
        noted = [(pair.param.annotation, pair.specs) for pair in self.pairs]
        found = [self._existing(note.annotation, specs) for note, specs in noted if note is not None]
        return [each for each in found if each is not None]

    def _arrays(self) -> ArrayEvidence:
        """Which parameters and results are surely arrays."""
        known = [p.name for p in self.pairs if kind_of(self.source, p.param.annotation) in ("array", "dims")]
        return arrays_in(self.source, self.function, frozenset(known))

    def _parameter_hint(self, pair: ParameterSpecs, writer: Writer, arrays: ArrayEvidence) -> str:
        is_optional = kind_of(self.source, pair.param.annotation) == "optional"
        is_array = (is_optional or pair.name in arrays.parameters) and not pair.is_star
        is_none = isinstance(pair.param.default, cst.Name) and pair.param.default.value == "None"
        return writer.hint(pair.specs, pair.name, is_array, is_optional or is_none)

    def _result_hint(self, writer: Writer, arrays: ArrayEvidence) -> str:
        if isinstance(self.result, SpecTuple):
            return writer.result(self.result, are_arrays=arrays.array_items(len(self.result.items)))
        is_array = arrays.has_array_result() or kind_of(self.source, self.returns) == "array"
        return writer.result(self.result, is_array)

    def call_hints(self, writer: Writer) -> tuple[str, str]:
        """The hints as ``in_types`` and ``out_types``.

        Raises:
          Unclear: for a number of arguments that is not known.
        """
        if self.is_one_for_all and any(pair.is_star for pair in self.pairs):
            raise Unclear("one spec stands for all arguments, however many '*' takes")
        arrays = self._arrays()
        hints = [self._parameter_hint(pair, writer, arrays) for pair in self.pairs]
        in_types = f"({hints[0]},)" if len(hints) == 1 else f"({', '.join(hints)})"
        return in_types, self._result_hint(writer, arrays)

    def annotations(self, writer: Writer) -> list[Edit]:
        """The edits that put hints on the definition.

        Raises:
          Unclear: for hints of jaxtyping whose names may mean the sizes of shards.
        """
        arrays = self._arrays()
        results = self._existing_results()
        edits = bracket_edits(self.source, [*self._existing_parameters(), *results], writer)
        open_ones = {pair.name: pair for pair in self.pairs if self._wants_hint(pair)}
        edits += [self._annotate(p.param, self._parameter_hint(p, writer, arrays)) for p in open_ones.values()]
        if not results:
            edits.append(self._annotate_result(self._result_hint(writer, arrays)))
        return [*edits, *one_a_line(self.source, self._signature(), edits)]

    def _wants_hint(self, pair: ParameterSpecs) -> bool:
        is_self = pair.name in ("self", "cls") and has_static_spec(pair)
        return not is_self and kind_of(self.source, pair.param.annotation) not in ("dims", "any")

    def _annotate(self, param: cst.Param, hint: str) -> Edit:
        if param.annotation is not None:
            return Edit(*self._parenthesized_span(param.annotation.annotation), hint)
        start = end = self.source.span(param.name)[1]
        if param.default is None or not isinstance(param.equal, cst.AssignEqual):
            return Edit(start, end, f": {hint}")
        return Edit(start, end + len(self.source.code(param.equal)), f": {hint} = ")

    def _annotate_result(self, hint: str) -> Edit:
        if self.returns is not None:
            return Edit(*self._parenthesized_span(self.returns.annotation), hint)
        end = self._signature().closing + 1
        return Edit(end, end, f" -> {hint}")

    def _signature(self) -> ArgumentList:
        assert isinstance(self.function, cst.FunctionDef)
        return parameters_at(self.source.text, self.source.span(self.function.name)[1])

    def _parenthesized_span(self, node: cst.BaseExpression) -> tuple[int, int]:
        """Where an expression stands, with its parentheses."""
        start, end = self.source.span(node)
        return start - len(node.lpar), end + len(node.rpar)

    def keyword_hints(self, writer: Writer) -> Iterator[Edit]:
        """Hints for keyword-only parameters and ``**`` ones, which no spec reaches.

        Raises:
          Unclear: for one that cannot have a hint.
        """
        params = self.function.params
        star = [params.star_kwarg] if params.star_kwarg is not None else []
        for param in (*params.kwonly_params, *star):
            if param.annotation is None and param.name.value not in self.mapped.bound:
                if not self.mapped.may_annotate:
                    raise Unclear(f"parameter '{param.name.value}' needs a hint of its own: write Any")
                yield self._annotate(param, writer.hint(NoSpec()))

    def refuse_bad_annotations(self) -> None:
        """Refuse annotations that stay and are read, and with which the program would not be the same.

        Raises:
          Unclear: for a parameter without a spec that would be mapped, and for names not defined.
        """
        params = self.function.params
        paired = {pair.name for pair in self.pairs}
        for param in (*params.posonly_params, *params.params, *params.kwonly_params):
            name, kind = param.name.value, kind_of(self.source, param.annotation)
            if name not in paired and kind in ("array", "optional", "dims"):
                raise Unclear(f"parameter '{name}' has no spec, but is annotated as an array")
            if param.annotation is not None and name not in paired:
                refuse_undefined(self.source, param.annotation.annotation)
