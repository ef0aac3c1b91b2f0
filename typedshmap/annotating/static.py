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
from libcst.metadata import ImportAssignment

from .. import _jax
from ..errors.phrases import count_text
from .arrays import ArrayEvidence
from .describe import axis_words, bracketed
from .editing import SHARED, CallEdit, ModuleEdit, axes_option, edit_module, option_calls, options_of, shared_calls
from .hints import LeftPlain
from .module import ParsedModule

_PARTIAL = {"functools.partial"}
_SHARD_MAP = {"jax.shard_map", "jax.experimental.shard_map.shard_map"}
_SPECS = {"jax.sharding.PartitionSpec", "jax.P", "jax.sharding.P", "jax.experimental.PartitionSpec"}
_OPTIONS = {"f", "mesh", "in_specs", "out_specs", "check_rep", "check_vma", "axis_names"}
# Decorators and wrappers that leave a function its parameters; from those of the first kind hints are read.
_TRANSPARENT = {"jax.jit", "jax.checkpoint", "jax.remat", "jax.named_call"}
_CHECKERS = {"jaxtyping.jaxtyped", "beartype.beartype"}
_ARRAYS = {
    "chex.Array", "jax.Array", "jax.numpy.ndarray", "jax.typing.ArrayLike", "jaxtyping.Array", "numpy.ndarray",
    "typedshmap.Array",
}  # fmt: skip
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
    module = ParsedModule(text) if "shard_map" in text else None
    if module is None:
        cst.parse_module(text)
        return AnnotatedText(text, 0, [])
    if (line := module.odd_line()) is not None:
        why = "libcst does not keep this line: a form feed, or a lone carriage return?"
        return AnnotatedText(text, 0, [(line, why)])
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
        words = {"typed_shard_map"}.union(*(call.words for call in edits))
        # Other files may import what the module binds.
        bound = {each.name for each in module.globals() if not isinstance(each, ImportAssignment)}
        text = edit_module(module, ModuleEdit([*edits.values()], words=words), bound)
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


class ParameterSpec(NamedTuple):
    """A parameter with the spec of an argument, None for one that has none."""

    param: cst.Param
    spec: Any
    is_star: bool = False

    @property
    def name(self) -> str:
        return self.param.name.value


class LiteralCall:
    """A call of ``shard_map`` as it is written, on its way from specs to hints.

    Specs are values: ``PartitionSpec``, None, tuples; a list of one spec for a container whose specs are all that one.
    A mesh axis that code gives, as in ``P(config.axis)``, is called ``"=config.axis"``."""

    def __init__(self, module: ParsedModule, calls: tuple[cst.Call, ...]) -> None:
        self.module, self.calls, self.words = module, calls, set[str]()
        is_partial = module.imported_names(calls[-1].func) & _PARTIAL and calls[-1].args
        self.named = calls[-1].args[0].value if is_partial else calls[-1].func
        self.axes: dict[str, str] = {}

    def maps_something(self) -> bool:
        """Whether it gives ``shard_map`` a function, or decorates one."""
        try:
            given = ["f" in options_of(self.module, call, call is self.calls[-1]) for call in self.calls]
        except LeftPlain:
            return False
        is_decorator = isinstance(self.module.parent(self.calls[0]), cst.Decorator)
        if given[0] and self.module.imported_names(self.calls[0].func) & _PARTIAL:  # which maps when it is called
            return False
        return given == [not is_decorator, *[False] * (len(given) - 1)]

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
        definition, hints, result = self._hints(function, in_specs, out_specs)
        text = " ".join([*hints.values(), result])
        self.words = {word for word in self.words if re.search(rf"\b{self.module.spelled(word)}\b", text)}
        return CallEdit(self.calls, definition, hints, result, axes_option(axes))

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
            case cst.Call(func=func) if self.module.short(func).split(".")[-1] in ("P", "PS", "PartitionSpec"):
                raise LeftPlain(f"'{self.module.short(func)}' is not seen to be JAX's PartitionSpec")
            case _:
                raise LeftPlain(f"the spec '{self.module.short(node)}' is no literal")

    def _item(self, node: Any) -> cst.BaseExpression:
        if isinstance(node, cst.StarredElement | cst.StarredDictElement) or getattr(node, "star", ""):
            raise LeftPlain(f"'*{self.module.short(node.value)}' stands for any number of specs or dims")
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
            raise LeftPlain(f"the mesh axis '{self.module.short(node)}' is no literal")
        if through is not None and not (isinstance(node, cst.Name) and self.module.means_the_same(node, through)):
            raise LeftPlain(f"the mesh axis '{code}' may be another one where the call is")
        return (f"={code}",)

    # Functions

    def _function(self, node: cst.BaseExpression) -> MappedFunction:
        """The function that is passed to a call.

        Raises:
          LeftPlain: for one whose parameters cannot be seen in this file.
        """
        match node:
            case cst.Lambda():
                return MappedFunction(node)
            case cst.Name() if (definition := self.module.bound_function(node)) is not None:
                is_checked = self._has_checker(definition.decorators)
                others = [use for use in self.module.uses(node) if use is not node]
                are_calls = all(getattr(self.module.parent(use), "func", None) is use for use in others)
                return MappedFunction(definition, may_have_hints=not is_checked and are_calls)
            case cst.Name() if isinstance(value := self.module.bound_value(node), _MAY_BE_MAPPED):
                return self._function(value)._replace(may_have_hints=False)
            case cst.Call(args=[first, *others]) if self.module.imported_names(node.func) & _PARTIAL:
                if any(arg.star for arg in others):
                    raise LeftPlain("a partial with '*' or '**' binds what cannot be seen")
                inner, count = self._function(first.value), sum(arg.keyword is None for arg in others)
                bound = inner.bound | {arg.keyword.value for arg in others if arg.keyword is not None}
                return MappedFunction(inner.node, inner.given + count, bound, inner.may_have_hints and not count)
            case cst.Call(args=[first, *_]) if self.module.imported_names(node.func) & _TRANSPARENT:
                return self._function(first.value)._replace(may_have_hints=False)
            case cst.Attribute(value=cst.Name(value="self"), attr=cst.Name(value=name)):
                around = next(self.module.around(node, cst.ClassDef), None)
                body = around.body.body if isinstance(around, cst.ClassDef) else ()
                found = [part for part in body if isinstance(part, cst.FunctionDef) and part.name.value == name]
                if len(found) != 1 or found[0].decorators:
                    raise LeftPlain(f"the method '{name}' is not defined once in the class around, without decorators")
                return MappedFunction(found[0], given=1)
            case _:
                raise LeftPlain(f"the parameters of '{self.module.short(node)}' are not known here")

    def _decorated(self) -> MappedFunction:
        decorator = self.module.parent(self.calls[0])
        function = self.module.parent(decorator)
        assert isinstance(decorator, cst.Decorator)
        if not isinstance(function, cst.FunctionDef):
            raise LeftPlain("it decorates a class")
        below = function.decorators[function.decorators.index(decorator) + 1 :]
        return MappedFunction(function, may_have_hints=not self._has_checker(below))

    def _has_checker(self, decorators: Sequence[cst.Decorator]) -> bool:
        """Whether a checker of hints is among decorators, all of which leave a function its parameters."""
        has_checker = False
        for each in decorators:
            node = each.decorator
            while isinstance(node, cst.Call):
                is_partial = self.module.imported_names(node.func) & _PARTIAL and node.args
                node = node.args[0].value if is_partial else node.func
            names = self.module.imported_names(node)
            if not names & (_TRANSPARENT | _CHECKERS):
                raise LeftPlain(f"the decorator '@{self.module.code(each.decorator)}' may change the parameters")
            has_checker |= bool(names & _CHECKERS)
        return has_checker

    def _paired(self, function: MappedFunction, specs: Any) -> list[ParameterSpec]:
        """The positional parameters of a function, each with its spec."""
        params = function.node.params
        open_ones = [*params.posonly_params, *params.params][function.given :]
        open_ones = [param for param in open_ones if param.name.value not in function.bound]
        star = params.star_arg if isinstance(params.star_arg, cst.Param) else None
        if not isinstance(specs, tuple):
            for param in open_ones:
                if param.default is not None and not _is_none(param.default) and specs is not None:
                    name = param.name.value
                    raise LeftPlain(f"one spec stands for all arguments, and parameter '{name}' may be left out")
            found = [ParameterSpec(param, specs) for param in open_ones]
            return found if star is None else [*found, ParameterSpec(star, specs, is_star=True)]
        beyond = open_ones[len(specs) :]
        if any(param.default is None for param in beyond) or (len(specs) > len(open_ones) and star is None):
            counts = count_text(len(specs), "spec"), count_text(len(open_ones), "positional parameter")
            raise LeftPlain(" for ".join(counts))
        found = [ParameterSpec(param, spec) for param, spec in zip_longest(open_ones, specs[: len(open_ones)])]
        more = specs[len(open_ones) :]
        return found + [ParameterSpec(star, spec, is_star=True) for spec in more if star is not None]

    # Hints

    def _hints(
        self, function: MappedFunction, in_specs: Any, out_specs: Any
    ) -> tuple[cst.FunctionDef | None, dict[str, str], str]:
        """The definition that takes the hints, None if the call does; those of the parameters, and of the result."""
        node, pairs = function.node, self._paired(function, in_specs)
        returns = node.returns if isinstance(node, cst.FunctionDef) else None
        kinds = {pair.name: self._kind(pair.param.annotation) for pair in pairs}
        shown = ArrayEvidence(self.module, node, {name for name, kind in kinds.items() if kind in ("array", "dims")})
        hints: list[str] = []
        for pair in pairs:
            is_optional = kinds[pair.name] == "optional"
            is_array = (is_optional or pair.name in shown.shown) and not pair.is_star
            hint = self._hint(pair.spec, pair.name if is_array else "")
            may_be_none = is_optional or _is_none(pair.param.default)
            hints.append(f"{hint} | None" if may_be_none and hint.startswith(self._word("Shaped")) else hint)
        is_array = shown.is_result_array() or self._kind(returns) == "array"
        result = self._result(out_specs, shown, is_array)
        self._refuse_bad_annotations(function, pairs)
        others = [*node.params.kwonly_params, *filter(None, [node.params.star_kwarg])]
        bare = [each.name.value for each in others if each.annotation is None and each.name.value not in function.bound]
        existing = self._existing(returns, out_specs)
        is_open = existing or self._may_be_replaced(returns, out_specs)
        stars = [pair.spec for pair in pairs if pair.is_star]
        if (
            function.may_have_hints
            and is_open
            and all(stars[:1] * len(stars) == stars and self._may_have_hint(pair, kinds[pair.name]) for pair in pairs)
        ):
            noted = [(pair.param.annotation, pair.spec) for pair in pairs if kinds[pair.name] == "dims"]
            brackets = self._brackets([*(one for note in noted for one in self._existing(*note)), *existing])
            parameters = {pair.name: hint for pair, hint in zip(pairs, hints, strict=True)}
            for pair in pairs:
                if kinds[pair.name] == "dims":
                    parameters[pair.name] = self._bracketed(pair.param.annotation, brackets)
                elif kinds[pair.name] == "any" or (pair.name in ("self", "cls") and pair.spec is None):
                    del parameters[pair.name]
            parameters |= {name: self._word("Any") for name in bare}
            assert isinstance(node, cst.FunctionDef)
            return node, parameters, self._bracketed(returns, brackets) if existing else result
        if bare:
            raise LeftPlain(f"parameter '{bare[0]}' needs a hint of its own: write Any")
        if stars and not isinstance(in_specs, tuple):
            raise LeftPlain("one spec stands for all arguments, however many '*' takes")
        return None, {str(at): hint for at, hint in enumerate(hints)}, result

    def _word(self, name: str) -> str:
        self.words.add(name)
        return self.module.spelled(name)

    def _hint(self, spec: Any, base: str = "") -> str:
        """The hint of a parameter, or of a result that is not None.

        Args:
          spec: its spec.
          base: what its dims are called after if it is surely an array, and no tree.
        """
        if spec is None:
            return self._word("Any")
        if isinstance(spec, tuple):
            return f"tuple[{', '.join(map(self._hint, spec)) or '()'}]"
        is_tree = isinstance(spec, list) or not base
        axes = _entries(spec[0] if isinstance(spec, list) else spec)
        has_names = base.strip("_") and base.isascii() and not is_tree
        names = [f"{base}_{at}" if has_names else "_" for at in range(len(axes))]
        dims = " ".join([*(bracketed(*each, self.axes) for each in zip(names, axes, strict=True)), "..."])
        leaf = f'{self._word("Shaped")}[{self._word("Array")}, "{dims}"]'
        return f"{self._word('PyTree')}[{leaf}]" if is_tree else leaf

    def _result(self, spec: Any, shown: ArrayEvidence | None, is_array: bool) -> str:
        if spec is None:
            return "None"
        if not isinstance(spec, tuple):
            return self._hint(spec, "_" if is_array else "")
        are_arrays = shown.are_results_arrays(len(spec)) if shown is not None else [False] * len(spec)
        items = [self._result(item, None, each) for item, each in zip(spec, are_arrays, strict=True)]
        return f"tuple[{', '.join(items) or '()'}]"

    # Annotations that are there

    def _kind(self, annotation: cst.Annotation | None) -> str:
        """What an annotation is: bare, Any, of an array, or an optional one, of jaxtyping with dims, or other."""
        if annotation is None:
            return "bare"
        node = annotation.annotation
        if "typing.Any" in self.module.imported_names(node):
            return "any"
        inner = self._without_none(node)
        if self._dims_in(node) is not None:
            return "dims"
        if not self.module.imported_names(inner) & _ARRAYS:
            return "other"
        return "array" if inner is node else "optional"

    def _without_none(self, node: cst.BaseExpression) -> cst.BaseExpression:
        match node:
            case cst.BinaryOperation(left=left, operator=cst.BitOr(), right=cst.Name(value="None")):
                return left
            case cst.Subscript(value=value, slice=[cst.SubscriptElement(slice=cst.Index(value=inner))]):
                return inner if "typing.Optional" in self.module.imported_names(value) else node
            case _:
                return node

    def _dims_in(self, node: cst.BaseExpression) -> cst.SimpleString | None:
        """The string of dims in a hint of jaxtyping, which may be optional."""
        match self._without_none(node):
            case cst.Subscript(
                value=value, slice=[_, cst.SubscriptElement(slice=cst.Index(value=cst.SimpleString() as dims))]
            ):
                names = self.module.imported_names(value)
                return dims if any(name.startswith("jaxtyping.") for name in names) else None

            case _:
                return None

    def _may_have_hint(self, pair: ParameterSpec, kind: str) -> bool:
        """Whether a parameter has no annotation yet, or one that a hint may replace."""
        if pair.spec is None:
            return kind in ("bare", "any")
        is_one = not isinstance(pair.spec, tuple) and not pair.is_star
        return kind in (("bare", "array", "optional", "dims") if is_one else ("bare",))

    def _may_be_replaced(self, returns: cst.Annotation | None, spec: Any) -> bool:
        if returns is None or not isinstance(spec, tuple):
            return returns is None or (spec is not None and self._kind(returns) == "array")
        items = _tuple_items(returns)
        return len(items) == len(spec) and all(self.module.imported_names(item) & _ARRAYS for item in items)

    def _existing(self, annotation: cst.Annotation | None, spec: Any) -> list[tuple[cst.SimpleString, Any]]:
        """The dims of jaxtyping's hints in an annotation with their specs, if each item of it has them."""
        nodes = (_tuple_items(annotation) or [annotation.annotation]) if annotation is not None else []
        specs = spec if isinstance(spec, tuple) else (spec,)
        found = [(dims, one) for dims, one in zip(map(self._dims_in, nodes), specs, strict=False) if dims is not None]
        return found if len(found) == len(nodes) == len(specs) else []

    def _brackets(self, noted: Sequence[tuple[cst.SimpleString, Any]]) -> dict[cst.SimpleString, str]:
        """Hints of jaxtyping with brackets.

        Its names may have meant the sizes of shards. Both readings agree if a name is sharded in the same way wherever
        it stands.

        Raises:
          LeftPlain: for anything else.
        """
        rows: dict[cst.SimpleString, list[tuple[str, tuple[str, ...]]]] = {}
        for dims, spec in noted:
            if not isinstance(spec, PartitionSpec):
                raise LeftPlain(f"the hint {dims.value} is for one array, and its spec for several")
            tokens, axes = str(ast.literal_eval(dims.value)).split(), _entries(spec)
            if len(axes) > next((at for at, each in enumerate(tokens) if each[0] in ".*"), len(tokens)):
                raise LeftPlain(f"the hint {dims.value} does not tell all the dims of its spec")
            rows[dims] = [*zip_longest(tokens, axes, fillvalue=())]  # type: ignore[list-item]
            for token, each in rows[dims]:
                if each and not token.isidentifier():
                    raise LeftPlain(f"the dim '{token}' of the hint {dims.value} is sharded, and may be the shard's")
        sharded = {token: axes for row in rows.values() for token, axes in row if axes}
        for token, axes in (pair for row in rows.values() for pair in row):
            for name in re.findall(r"[^\W\d]\w*", token):
                if name in sharded and name[0] != "_" and (name != token or sharded[name] != axes):
                    why = "is sharded in one hint and otherwise in another: it may be the shard's"
                    raise LeftPlain(f"the dim '{name}' {why}")
        return {dims: f'"{" ".join(bracketed(*each, self.axes) for each in row)}"' for dims, row in rows.items()}

    def _bracketed(self, annotation: cst.Annotation | None, brackets: dict[cst.SimpleString, str]) -> str:
        assert annotation is not None
        text, rest = "", self.module.code(annotation.annotation)
        for dims in m.findall(annotation, m.SimpleString()):
            assert isinstance(dims, cst.SimpleString)
            before, _, rest = rest.partition(dims.value)
            text += before + brackets.get(dims, dims.value)
        return text + rest

    def _refuse_bad_annotations(self, function: MappedFunction, pairs: Sequence[ParameterSpec]) -> None:
        """Refuse annotations of parameters without a spec that would map them, and those that cannot be read.

        Raises:
          LeftPlain: for the first such annotation.
        """
        params, paired = function.node.params, {pair.name for pair in pairs}
        for param in (*params.posonly_params, *params.params, *params.kwonly_params):
            if param.annotation is None or param.name.value in paired:
                continue
            if self._kind(param.annotation) in ("array", "optional", "dims"):
                raise LeftPlain(f"parameter '{param.name.value}' has no spec, but is annotated as an array")
            self._refuse_unreadable(param.annotation.annotation)

    def _refuse_unreadable(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
            raise LeftPlain(f"the quoted annotation {self.module.code(node)} would be read when the program runs")
        if isinstance(node, cst.Name) and not any(map(self.module.is_for_running, self.module.bindings(node))):
            raise LeftPlain(f"the annotation '{node.value}' is not defined when the program runs")
        for child in (node.value,) if isinstance(node, cst.Attribute) else node.children:
            # Strings in brackets are dims, or those of a Literal.
            if not isinstance(node, cst.Index) or not isinstance(child, cst.SimpleString):
                self._refuse_unreadable(child)


_MAY_BE_MAPPED = cst.Call | cst.Lambda | cst.Attribute
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


def _tuple_items(annotation: cst.Annotation) -> list[cst.BaseExpression]:
    """``A`` and ``B`` of ``tuple[A, B]``."""
    match annotation.annotation:
        case cst.Subscript(value=cst.Name(value="tuple" | "Tuple"), slice=elements):
            return [element.slice.value for element in elements if isinstance(element.slice, cst.Index)]
        case _:
            return []
