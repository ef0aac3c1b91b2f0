"""Annotate the text of a file: calls of ``shard_map`` whose specs are literal, of functions that can be seen.

A spec may be shorter than the rank, so each hint ends in ``...``; nothing is known of the dtype, so it is ``Shaped``. A
name binds equal sizes, so no two dims have the same: a parameter's dims are called after it, those of results, of trees
and of ``*args`` are ``_``. So the program has the same specs, and takes what it took before; what that cannot be said
of is left."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import libcst as cst
from jax.sharding import PartitionSpec
from libcst import matchers as m
from libcst.metadata import Assignment, ImportAssignment

from .. import _jax
from ..errors.phrases import count_text
from .describe import axis_words, bracketed
from .editing import (
    SHARED,
    CallEdit,
    LeftPlain,
    ModuleEdit,
    axes_option,
    edit_module,
    is_partial,
    option_calls,
    options_of,
    shared_calls,
)
from .module import ParsedModule
from .sure_arrays import SureArrays

_SHARD_MAP = {"jax.shard_map", "jax.experimental.shard_map.shard_map"}
_SPECS = {"jax.sharding.PartitionSpec", "jax.P", "jax.sharding.P", "jax.experimental.PartitionSpec"}
_OPTIONS = {"f", "mesh", "in_specs", "out_specs", "check_rep", "check_vma", "axis_names"}
_TRANSPARENT = {"jax.jit", "jax.checkpoint", "jax.remat", "jax.named_call"}  # which leave a function its parameters
_ARRAYS = {
    "chex.Array", "jax.Array", "jax.numpy.ndarray", "jax.typing.ArrayLike", "jaxtyping.Array", "numpy.ndarray",
    "typedshmap.Array",
}  # fmt: skip
_WORDS = ("Any", "Array", "PyTree", "Shaped")
_MARK = "\ufeff"  # the byte order mark, with which editors on Windows begin a file


class AnnotatedText(NamedTuple):
    """The new text of a file, how many calls became typed, and the line of each other use with why it is left."""

    text: str
    done: int
    left: list[tuple[int, str]]


def annotate_text(text: str) -> AnnotatedText:
    """Turn the calls of ``shard_map`` in the text of a file into typed ones.

    Raises:
      libcst.ParserSyntaxError: for a text that is no Python.
    """
    if text.startswith(_MARK):
        found = annotate_text(text.removeprefix(_MARK))
        return found._replace(text=_MARK + found.text)
    if "shard_map" not in text or cst.parse_module(text).code != text or re.search(r"\r(?!\n)", text):
        cst.parse_module(text)
        why = "libcst does not keep the text of the file: a form feed, or a lone carriage return?"
        return AnnotatedText(text, 0, [(1, why)] if "shard_map" in text else [])
    module = ParsedModule(text)
    found = literal_calls(module)
    left = [*_other_uses(module, found)]
    edits: dict[LiteralCall, CallEdit] = {}
    for call in found:
        try:
            edits[call] = call.edit()
        except LeftPlain as reason:
            left.append((module.line(call.calls[0]), str(reason)))
    for call in shared_calls(module, {call: call.calls for call in edits}):
        left.append((module.line(call.calls[0]), SHARED))
        del edits[call]
    if edits:
        # Other files may import what the module binds.
        of_module = (each for each in module.all_bindings() if each.scope is each.scope.globals)
        bound = {each.name for each in of_module if not isinstance(each, ImportAssignment)}
        text = edit_module(module, ModuleEdit([*edits.values()]), bound, _WORDS)
    return AnnotatedText(text, len(edits), sorted(left))


def literal_calls(module: ParsedModule) -> list[LiteralCall]:
    """The calls that map a function with ``shard_map``, and the calls of it that belong to none of them."""
    calls = [LiteralCall(module, option_calls(module, node)) for node in module.nodes(cst.Call)]
    calls = [call for call in calls if module.meaning(call.named) & _SHARD_MAP]
    found = [call for call in calls if call.maps_something()]
    bases = {call.calls[-1] for call in found}
    return found + [call for call in calls if len(call.calls) == 1 and call.calls[0] not in bases]


def _other_uses(module: ParsedModule, calls: Sequence[LiteralCall]) -> Iterator[tuple[int, str]]:
    """The uses of ``shard_map`` that are no calls, and calls of another library's."""
    seen = {call.named for call in calls}
    for node in (*module.nodes(cst.Name), *module.nodes(cst.Attribute)):
        names, above = module.imported_names(node), module.parent(node)
        if names & _SHARD_MAP and node not in seen:
            is_alias = isinstance(above, cst.Assign) and module.bound_value(above.targets[0].target) is node
            yield from () if is_alias else [(module.line(node), "shard_map is not called here")]
        elif isinstance(above, cst.Call) and above.func is node:
            others = {name for name in names if name.rpartition(".")[2] == "shard_map" and not name.startswith("jax.")}
            yield from ((module.line(node), f"it is '{name}', not JAX's shard_map") for name in others)


class MappedFunction(NamedTuple):
    """A function as it is mapped.

    Attributes:
      node: its definition.
      given: how many arguments are bound by position, ``self`` included.
      bound: the parameters that are bound by keyword.
      may_have_hints: whether the hints can stand on it: it is mapped once, and called otherwise.
    """

    node: cst.FunctionDef | cst.Lambda
    given: int = 0
    bound: frozenset[str] = frozenset()
    may_have_hints: bool = False


class LiteralCall:
    """A call of ``shard_map`` as it is written, on its way from specs to hints.

    Specs are values: ``PartitionSpec``, None, tuples; a list of one spec for a container whose specs are all that one.
    A mesh axis that code gives, as in ``P(config.axis)``, is called ``"=config.axis"``."""

    def __init__(self, module: ParsedModule, calls: tuple[cst.Call, ...]) -> None:
        self.module, self.calls = module, calls
        self.named = calls[-1].args[0].value if is_partial(module, calls[-1]) else calls[-1].func
        self.axes: dict[str, str] = {}

    def maps_something(self) -> bool:
        """Whether it gives ``shard_map`` a function, or decorates one."""
        try:
            given = ["f" in options_of(self.module, call, call is self.calls[-1]) for call in self.calls]
        except LeftPlain:
            return False
        is_decorator = isinstance(self.module.parent(self.calls[0]), cst.Decorator)
        maps_later = given[0] and is_partial(self.module, self.calls[0])
        return not maps_later and given == [not is_decorator, *[False] * (len(given) - 1)]

    def edit(self) -> CallEdit:
        """The edit that makes it typed.

        Raises:
          LeftPlain: for what cannot be typed safely.
        """
        given: dict[str, cst.Arg] = {}
        for call in reversed(self.calls):
            given |= options_of(self.module, call, call is self.calls[-1])
        for name in given.keys() - _OPTIONS:
            raise LeftPlain(f"the option '{name}' has no equal" if name else "too many options by position")
        for name in ("in_specs", "out_specs"):
            if name not in given:
                raise LeftPlain(f"{name} is not given here")
        in_specs, out_specs = (self._spec(given[name].value) for name in ("in_specs", "out_specs"))
        self.axes = axis_words([*_axes_in(in_specs), *_axes_in(out_specs)])
        if not self.maps_something():
            raise LeftPlain("the function that it maps is given elsewhere")
        function = self._function(given["f"].value) if "f" in given else self._decorated()
        axes = {word: axis[1:] if axis[0] == "=" else f'"{axis}"' for axis, word in self.axes.items() if axis != word}
        return CallEdit(self.calls, *self._hints(function, in_specs, out_specs), axes_option(axes))

    # Specs

    def _spec(self, node: cst.BaseExpression, through: cst.Name | None = None) -> Any:
        """The value of a spec; one that is bound to a name is read as the name stands in the call."""
        match node:
            case cst.Name(value="None"):
                return None
            case cst.Name(value=name):
                value = self.module.bound_value(node)
                if value is None:
                    raise LeftPlain(f"the spec '{name}' is not bound once to a literal")
                if isinstance(value, cst.List | cst.Dict):
                    raise LeftPlain(f"the spec '{name}' is bound to a {_kind(value)}, which may change")
                try:
                    return self._spec(value, through or node)
                except LeftPlain as reason:
                    raise LeftPlain(f"{reason}, in '{name}'") from None
            case cst.Tuple(elements=elements):
                return tuple([self._spec(self._item(each), through) for each in elements])
            case cst.List(elements=elements) | cst.Dict(elements=elements):
                items = [self._spec(self._item(each), through) for each in elements]
                if not items or not isinstance(items[0], PartitionSpec) or any(item != items[0] for item in items):
                    cure = "write a TypedDict or a dataclass" if isinstance(node, cst.Dict) else "make it a tuple"
                    raise LeftPlain(f"a {_kind(node)} of different specs: {cure}")
                return items[:1]
            case cst.Call(func=func, args=args) if self.module.meaning(func) & _SPECS:
                return PartitionSpec(*(self._dim(self._item(arg), through) for arg in args))
            case _:
                raise LeftPlain(f"the spec '{self._short(node)}' is no literal")

    def _short(self, node: cst.CSTNode) -> str:
        code = " ".join(self.module.code(node).split())
        return code if len(code) <= 60 else f"{code[:57]}..."

    def _item(self, node: Any) -> cst.BaseExpression:
        if isinstance(node, cst.StarredElement | cst.StarredDictElement) or getattr(node, "star", ""):
            raise LeftPlain(f"'*{self._short(node.value)}' stands for any number of specs or dims")
        if getattr(node, "keyword", None) is not None:
            raise LeftPlain(f"P(..., {node.keyword.value}=...) says more than where the dims lie")
        return node.value

    def _dim(self, node: cst.BaseExpression, through: cst.Name | None) -> tuple[str, ...]:
        """The mesh axes of a dim: literals, constants of the file, and code that means the same in the call."""
        if isinstance(node, cst.Tuple | cst.List):
            return tuple([axis for each in node.elements for axis in self._dim(self._item(each), through)])
        if m.matches(node, m.Name("None")):
            return ()
        if isinstance(node, cst.SimpleString):
            return (str(ast.literal_eval(node.value)),)
        value, code = self.module.bound_value(node), self.module.code(node)
        if value is not None and m.matches(value, _CONSTANT):
            return self._dim(value, through)
        if not re.fullmatch(r"[\w.]+", code) or code.endswith("UNCONSTRAINED"):
            raise LeftPlain(f"the mesh axis '{self._short(node)}' is no literal")
        if through is not None and not (isinstance(node, cst.Name) and self.module.means_the_same(node, through)):
            raise LeftPlain(f"the mesh axis '{code}' may be another one where the call is")
        return (f"={code}",)

    # Functions

    def _function(self, node: cst.BaseExpression) -> MappedFunction:
        """The function that is passed to a call.

        Raises:
          LeftPlain: for one whose parameters cannot be seen in this file.
        """
        bound = self.module.bound_node(node)
        match node:
            case cst.Lambda():
                return MappedFunction(node)
            case cst.Name() if isinstance(bound, cst.FunctionDef):
                self._refuse_decorators(bound.decorators)
                others = [use for use in self.module.uses(node) if use is not node]
                are_calls = all(getattr(self.module.parent(use), "func", None) is use for use in others)
                return MappedFunction(bound, may_have_hints=are_calls)
            case cst.Name() if isinstance(
                value := self.module.bound_value(node), cst.Call | cst.Lambda | cst.Attribute
            ):
                return self._function(value)._replace(may_have_hints=False)
            case cst.Call(args=[first, *others]) if is_partial(self.module, node):
                if any(arg.star for arg in others):
                    raise LeftPlain("a partial with '*' or '**' binds what cannot be seen")
                inner, count = self._function(first.value), sum(arg.keyword is None for arg in others)
                names = inner.bound | {arg.keyword.value for arg in others if arg.keyword is not None}
                return MappedFunction(inner.node, inner.given + count, names, inner.may_have_hints and not count)
            case cst.Call(args=[first, *_]) if self.module.imported_names(node.func) & _TRANSPARENT:
                return self._function(first.value)._replace(may_have_hints=False)
            case cst.Attribute(value=cst.Name(value="self"), attr=cst.Name(value=name)):
                around = next(self.module.around(node, cst.ClassDef), None)
                body = around.body.body if isinstance(around, cst.ClassDef) else ()
                found = [part for part in body if isinstance(part, cst.FunctionDef) and part.name.value == name]
                if len(found) == 1 and not found[0].decorators:
                    return MappedFunction(found[0], given=1)
                raise LeftPlain(f"the method '{name}' is not defined once in the class around, without decorators")
            case _:
                raise LeftPlain(f"the parameters of '{self._short(node)}' are not known here")

    def _decorated(self) -> MappedFunction:
        decorator = self.module.parent(self.calls[0])
        function = self.module.parent(decorator)
        if not isinstance(function, cst.FunctionDef):
            raise LeftPlain("it decorates a class")
        self._refuse_decorators(function.decorators[[*function.decorators].index(decorator) + 1 :])  # type: ignore[arg-type]
        return MappedFunction(function, may_have_hints=True)

    def _refuse_decorators(self, decorators: Sequence[cst.Decorator]) -> None:
        for each in decorators:
            node = each.decorator
            while isinstance(node, cst.Call):
                node = node.args[0].value if is_partial(self.module, node) else node.func
            if not self.module.imported_names(node) & _TRANSPARENT:
                raise LeftPlain(f"the decorator '@{self.module.code(each.decorator)}' may change the parameters")

    # Hints

    def _paired(self, function: MappedFunction, specs: Any) -> list[tuple[cst.Param, Any]]:
        """The positional parameters of a function that get specs, each with its own."""
        params = function.node.params
        every = [*params.posonly_params, *params.params][function.given :]
        every = [param for param in every if param.name.value not in function.bound]
        star = [params.star_arg] if isinstance(params.star_arg, cst.Param) else []
        if not isinstance(specs, tuple):
            for param in every:
                if param.default is not None and not _is_none(param.default) and specs is not None:
                    name = param.name.value
                    raise LeftPlain(f"one spec stands for all arguments, and parameter '{name}' may be left out")
            return [(param, specs) for param in (*every, *star)]
        if any(param.default is None for param in every[len(specs) :]) or (len(specs) > len(every) and not star):
            counts = count_text(len(specs), "spec"), count_text(len(every), "positional parameter")
            raise LeftPlain(" for ".join(counts))
        return [*zip(chain(every, star * len(specs)), specs, strict=False)]

    def _hints(
        self, function: MappedFunction, in_specs: Any, out_specs: Any
    ) -> tuple[cst.FunctionDef | None, dict[str, str], str]:
        """The definition that takes the hints, None if the call does; those of the parameters, and of the result."""
        node, pairs = function.node, self._paired(function, in_specs)
        paired, star = {param.name.value for param, _ in pairs}, node.params.star_arg
        every = {param.name.value: param for param in self.module.parameters(node)}
        for name, param in every.items():
            if name not in paired and param.annotation is not None:
                self._refuse_annotation(param, param.annotation.annotation)
        noted = {name for name in paired if self._is_of_array(every[name].annotation)}
        shown = SureArrays(self.module, node, {*noted})
        hints = [
            self._hint(spec, "" if param is star or _is_none(param.default) else param.name.value, shown.parameters)
            for param, spec in pairs
        ]
        returns = node.returns if isinstance(node, cst.FunctionDef) else None
        specs, items = (out_specs, _tuple_items(returns)) if isinstance(out_specs, tuple) else ((out_specs,), [returns])
        are_arrays = [self._is_of_array(item) for item in items]
        results = [
            self._result(spec, is_shown or is_noted)
            for spec, is_shown, is_noted in zip_longest(
                specs, shown.results(len(specs)), are_arrays[: len(specs)], fillvalue=False
            )
        ]
        result = results[0] if not isinstance(out_specs, tuple) else f"tuple[{', '.join(results) or '()'}]"
        needs = [
            param.name.value
            for param in node.params.kwonly_params
            if param.annotation is None and param.default is None and param.name.value not in function.bound
        ]
        stars = [spec for param, spec in pairs if param is star]
        # Hints of jaxtyping are not replaced by those that say less.
        subscripts = [m.findall(note, m.Subscript()) for name in noted if (note := every[name].annotation) is not None]
        is_open = not any(subscripts) and all(every[name].annotation is None or name in noted for name in paired)
        is_open &= all(spec is not None for param, spec in pairs if param.name.value in noted)
        is_open &= returns is None or (not m.findall(returns, m.SimpleString()) and are_arrays == [True] * len(specs))
        if (
            isinstance(node, cst.FunctionDef)
            and function.may_have_hints
            and is_open
            and stars == stars[:1] * len(stars)
        ):
            named = {param.name.value: hint for (param, _), hint in zip(pairs, hints, strict=True)}
            implied = {name for param, spec in pairs if (name := param.name.value) in ("self", "cls") and spec is None}
            parameters = {name: hint for name, hint in named.items() if name not in implied}
            return node, parameters | dict.fromkeys(needs, self.module.spelled("Any")), result
        if needs:
            raise LeftPlain(f"parameter '{needs[0]}' needs a hint of its own: write Any")
        if stars and not isinstance(in_specs, tuple):
            raise LeftPlain("one spec stands for all arguments, however many '*' takes")
        return None, {str(at): hint for at, hint in enumerate(hints)}, result

    def _hint(self, spec: Any, name: str, arrays: set[str]) -> str:
        """The hint for a spec: of an array whose dims are called after its name if that is one, else of a tree."""
        array, tree, shaped, anything = map(self.module.spelled, ("Array", "PyTree", "Shaped", "Any"))
        if spec is None:
            return anything
        if isinstance(spec, tuple):
            return f"tuple[{', '.join(self._hint(item, '', set()) for item in spec) or '()'}]"
        is_array = name in arrays and not isinstance(spec, list)
        axes = _entries(spec[0] if isinstance(spec, list) else spec)
        has_names = is_array and name.strip("_") and name.isascii()
        dims = [bracketed(f"{name}_{at}" if has_names else "_", each, self.axes) for at, each in enumerate(axes)]
        leaf = f'{shaped}[{array}, "{" ".join([*dims, "..."])}"]'
        return leaf if is_array else f"{tree}[{leaf}]"

    def _result(self, spec: Any, is_array: bool = False) -> str:
        if isinstance(spec, tuple):
            return f"tuple[{', '.join(map(self._result, spec)) or '()'}]"
        return "None" if spec is None else self._hint(spec, "_" * is_array, {"_"})

    def _is_of_array(self, note: cst.CSTNode | None) -> bool:
        """Whether an annotation is an array, or one of jaxtyping's hints for one."""
        node = note.annotation if isinstance(note, cst.Annotation) else note
        if isinstance(node, cst.Subscript):
            return any(name.startswith("jaxtyping.") for name in self.module.imported_names(node.value))
        return node is not None and bool(self.module.imported_names(node) & _ARRAYS)

    def _refuse_annotation(self, param: cst.Param, node: cst.BaseExpression) -> None:
        """Refuse the annotation of a parameter without a spec that would map it, and one that cannot be read."""
        names = m.findall(node, m.Name() | m.Attribute())
        if any(self.module.imported_names(name) & _ARRAYS for name in names):
            raise LeftPlain(f"parameter '{param.name.value}' has no spec, but is annotated as an array")
        if m.findall(node, m.SimpleString()):
            raise LeftPlain(f"the quoted annotation {self.module.code(node)} would be read when the program runs")
        for name in names:
            found = self.module.bindings(name) if isinstance(name, cst.Name) else []
            tests = [
                next(self.module.around(each.node, cst.If), None) for each in found if isinstance(each, Assignment)
            ]
            if any(test is not None and "TYPE_CHECKING" in self.module.code(test.test) for test in tests):  # type: ignore[attr-defined]
                raise LeftPlain(f"the annotation '{self.module.code(name)}' is not defined when the program runs")


_CONSTANT = m.SimpleString() | m.Name("None") | m.Tuple([m.ZeroOrMore(m.Element(m.SimpleString()))])


def _axes_in(spec: Any) -> Iterator[str]:
    """Every mesh axis in specs."""
    if isinstance(spec, PartitionSpec):
        yield from chain(*_entries(spec))
    elif spec is not None:
        yield from chain(*map(_axes_in, spec))


def _entries(spec: PartitionSpec) -> tuple[tuple[str, ...], ...]:
    return _jax.array.spec_entries(spec).dim_axes


def _is_none(node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def _kind(node: cst.CSTNode) -> str:
    return type(node).__name__.lower()


def _tuple_items(note: cst.Annotation | None) -> list[cst.BaseExpression]:
    """``A`` and ``B`` of ``tuple[A, B]``."""
    match note:
        case cst.Annotation(cst.Subscript(value=cst.Name(value="tuple" | "Tuple"), slice=elements)):
            return [element.slice.value for element in elements if isinstance(element.slice, cst.Index)]
        case _:
            return []
