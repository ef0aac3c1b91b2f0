"""Suggested signatures of regions without hints, from their calls; never narrower than these."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import jax

from ... import _jax, inspection
from ..._jax.array import FAMILIES, takes
from ...errors.phrases import name_of
from ...errors.places import is_users, running_lines
from .audit_report import SuggestedHints, shown_path
from .dim_names import RETURN, Names, dim_names

_WIDTH = 100
_MOST_LINES, _MOST_PLACES, _MOST_LEAVES = 16, 3, 8
_FAMILIES = ("Key", "Bool", "Int", "UInt", "Float", "Complex", "Integer", "Inexact", "Num", "Shaped")  # narrow first


class _Code(str):
    """Text that is its own repr, for parts of a signature."""

    __repr__ = str.__str__


class _Leaf(NamedTuple):
    """A leaf of an argument or of a result; static without a spec."""

    spec: Any
    shape: tuple[int, ...]
    dtype: Any
    variant: int


class _Tree(NamedTuple):
    """An argument, or a result, of one call."""

    tree: Any
    leaves: tuple[_Leaf, ...]

    @property
    def children(self) -> list[_Tree]:
        leaves = iter(self.leaves)
        return [_Tree(child, tuple(islice(leaves, child.num_leaves))) for child in self.tree.children()]

    @property
    def keys(self) -> list[Any]:
        """The keys of a dict; the places in a tuple."""
        return list(self.tree.node_data()[1]) if self.is_a(dict) else list(range(len(self.tree.children())))

    @property
    def by_path(self) -> Mapping[Any, _Leaf]:
        """The leaves by their paths; empty for a class that cannot hold them."""
        try:
            paths = jax.tree_util.tree_leaves_with_path(self.tree.unflatten(range(len(self.leaves))))
            return {path: self.leaves[at] for path, at in paths}
        except Exception:  # whatever the class raises
            return {}

    def is_a(self, kind: type) -> bool:
        data = self.tree.node_data()
        return data is not None and data[0] is kind


class _Options(NamedTuple):
    """The mapping of a call, without its specs."""

    mesh: tuple[tuple[str, int], ...]
    axis_names: frozenset[str]
    check_vma: bool


class _SeenCall(NamedTuple):
    """A call, and the user's lines of its stack, innermost first."""

    arguments: tuple[_Tree, ...]
    result: _Tree
    lines: tuple[str, ...]
    variant: int


class _SeenFunction:
    """The calls of a function, each with its count; calls with equal specs are one variant."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls: dict[_SeenCall, int] = {}
        self.variants: dict[Any, _Options] = {}


class SeenCalls:
    """The calls of the regions of an audit."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, str, int], _SeenFunction] = {}

    def add(self, region: inspection.Region) -> None:
        trees, call = region.traced.trees, region.traced.call
        if region.is_typed or trees is None or call is None:
            return
        lines = [f"{shown_path(file)}:{line}" for file, line, _ in islice(running_lines(), _MOST_LINES)]
        in_specs = tuple(call.params["in_specs"])
        try:
            specs = tuple(jax.tree.leaves(jax.tree.broadcast(trees.out_specs, trees.result.unflatten(trees.results))))
            hash((trees.arguments, trees.result))
        except Exception:  # any exception of a user's class for leaves that are not arrays
            return
        options = _Options(region.mesh.shape_tuple, frozenset(region.axes), region.check_vma)
        seen = self._functions.setdefault(region.key, _SeenFunction(trees.function))
        seen.variants.setdefault(key := (in_specs, specs, options.axis_names, options.check_vma), options)
        at, arrays = list(seen.variants).index(key), zip(in_specs, call.operands, strict=True)
        leaves = [_leaf(*next(arrays), at) if is_array else _Leaf(None, (), None, at) for is_array in trees.is_array]
        result = _Tree(trees.result, tuple(map(_leaf, specs, trees.results, [at] * len(specs))))
        seen_call = _SeenCall(tuple(_Tree(trees.arguments, tuple(leaves)).children), result, tuple(lines), at)
        seen.calls[seen_call] = seen.calls.get(seen_call, 0) + 1

    def suggestions(self) -> list[SuggestedHints]:
        return [
            SuggestedHints(*key, sum(seen.calls.values()), _SuggestedSignature(seen).text())
            for key, seen in self._functions.items()
        ]


def _leaf(spec: Any, x: Any, variant: int) -> _Leaf:
    aval = x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)
    return _Leaf(spec, tuple(aval.shape), aval.dtype, variant)


class _SuggestedSignature:
    """The signature of a function, from its calls."""

    def __init__(self, seen: _SeenFunction) -> None:
        self.function, self.calls, self.variants = seen.function, list(seen.calls), list(seen.variants.values())
        self.axes: dict[tuple[tuple[str, ...] | None, ...], str] = {}  # a name for axes that differ between callers
        self.unsaid: list[str] = []
        is_plain = inspect.isfunction(self.function) and self.function.__name__ != "<lambda>"
        self.parameters = self._bound() if is_plain else None
        self.classes: dict[str, str] = {}  # the fields of each class
        self.names = dim_names(self.function) if self.parameters is not None else {}
        wrong = self._contradicted()
        self.names = {
            written: tuple("_" if dim in wrong or dim.startswith("_") else dim for dim in dims)
            for written, dims in self.names.items()
        }

    def text(self) -> str:
        """The signature, and its calls; empty for a function that is not the user's."""
        code = getattr(inspect.unwrap(getattr(self.function, "func", self.function)), "__code__", None)
        if code is not None and not is_users(code.co_filename):
            return ""
        if self.parameters is None:
            return self._by_types()
        kinds, parts = [parameter.kind for parameter, _ in self.parameters], list[str]()
        for at, (parameter, given) in enumerate(self.parameters):
            by_name = {parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY}
            if parameter.kind is parameter.KEYWORD_ONLY and by_name.isdisjoint(kinds[:at]):
                parts.append("*")
            parts.append(self._parameter(parameter, given))
            if parameter.kind is parameter.POSITIONAL_ONLY and parameter.kind not in kinds[at + 1 :]:
                parts.append("/")
        result = self._said("the result", RETURN, self._results)
        arrow = f" -> {result}" if result else ""
        name = self.function.__name__
        written = f"def {name}({', '.join(parts)}){arrow}: ..."
        if len(written) > _WIDTH:
            written = "\n".join([f"def {name}(", *(f"    {part}," for part in parts), f"){arrow}: ..."])
        calls = self._call_lines(f"{name}{{}}{self._specs}")
        return "\n".join([*self._class_texts, written, *self.unsaid, "", *calls])

    def _by_types(self) -> str:
        """The hints of a function without annotations: a lambda, a partial, a method."""
        count = max(len(call.arguments) for call in self.calls)
        given = [[call.arguments[at] for call in self.calls if at < len(call.arguments)] for at in range(count)]
        hints = [self._said(f"argument {at}", f"argument_{at}", trees) for at, trees in enumerate(given)]
        result = self._said("the result", RETURN, self._results)
        types = f", in_types=({', '.join(hints)}{',' * (len(hints) == 1)}), out_types={result}"
        name = name_of(self.function)
        # A bound method has its instance.
        is_named = inspect.isroutine(self.function) and not inspect.ismethod(self.function)
        name = name if is_named and name.replace(".", "").isidentifier() else "f"
        classes = () if self.unsaid else self._class_texts
        return "\n".join([*classes, *self.unsaid, *self._call_lines(f"{name}{{}}{self._specs or types}")])

    @property
    def _specs(self) -> str:
        return ", in_specs=in_specs, out_specs=out_specs" if self.unsaid else ""

    @property
    def _class_texts(self) -> list[str]:
        return [f"class {name}(TypedDict):\n{body}" for name, body in self.classes.items()]

    @property
    def _results(self) -> list[_Tree]:
        return [call.result for call in self.calls]

    def _call_lines(self, form: str) -> Iterator[str]:
        """The call of ``typed_shard_map`` for each variant, with the places of its callers."""
        places: dict[str, list[str]] = {}
        for at, options in enumerate(self.variants):
            words = ", mesh=mesh"
            if options.axis_names != frozenset(dict(options.mesh)):
                words += f", axis_names={{{', '.join(map(_quoted, sorted(options.axis_names)))}}}"
            words += "" if options.check_vma else ", check_vma=False"
            if self.axes:
                said = (f"{_quoted(name)}: {_axes_text(vector[at])}" for vector, name in self.axes.items())
                words += f", axes={{{', '.join(said)}}}"
            places.setdefault(form.format(words), []).extend(self._places(at))
        for call, lines in places.items():
            distinct = list(dict.fromkeys(lines))
            more = ", ..." if len(distinct) > _MOST_PLACES else ""
            yield f"typed_shard_map({call})  # {', '.join(distinct[:_MOST_PLACES])}{more}"

    def _places(self, variant: int) -> list[str]:
        """The lines of a variant's callers; for callers that share a line with another variant, also their callers."""
        others = {call.lines for call in self.calls if call.variant != variant}
        places: list[str] = []
        for lines in dict.fromkeys(call.lines for call in self.calls if call.variant == variant):
            same = [other_lines for other_lines in others if other_lines[:1] == lines[:1]]
            pairs = [next((b for a, b in zip(other_lines, lines, strict=False) if a != b), "") for other_lines in same]
            places.append(" from ".join(filter(None, (*lines[:1], pairs[0] if pairs else ""))))
        return list(dict.fromkeys(places))

    def _bound(self) -> list[tuple[inspect.Parameter, list[_Tree]]] | None:
        """The parameters, each with its arguments in the calls; None if a wrapper has another signature."""
        signature = inspect.signature(self.function)
        given: dict[str, list[_Tree]] = {name: [] for name in signature.parameters}
        for call in self.calls:
            try:
                bound = signature.bind(*call.arguments)
            except TypeError:
                return None
            for name, value in bound.arguments.items():
                is_several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
                given[name] += value if is_several else [value]
        return [(parameter, given[name]) for name, parameter in signature.parameters.items()]

    def _parameter(self, parameter: inspect.Parameter, given: list[_Tree]) -> str:
        name, default, hint = parameter.name, parameter.default, ""
        leaves = [leaf for tree in given for leaf in tree.leaves]
        if given and (not leaves or any(leaf.spec is not None for leaf in leaves)):
            hint = self._said(name, name, given)
            if hint and default is None and not hint.endswith("None"):  # a call may omit it
                hint += " | None"
        elif parameter.annotation is not inspect.Parameter.empty:
            annotation = parameter.annotation
            hint = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        elif given:
            hint = "Any"
        is_literal = default is parameter.empty or isinstance(default, (int, float, str, type(None)))
        annotation = _Code(hint) if hint else parameter.empty
        return str(parameter.replace(annotation=annotation, default=default if is_literal else _Code("...")))

    def _said(self, what: str, written: str, trees: Sequence[_Tree]) -> str:
        """One hint, or an empty string and comments for each leaf."""
        classes = dict(self.classes)
        hint = self._hint(written, trees)
        if hint is None:
            self.classes = classes
            if list(trees[0].by_path) == [()]:  # an array
                self.unsaid.append(f"# {what} keeps its spec: no hint says all that were seen")
                return ""
            self.unsaid.append(f"# {what} keeps its spec:")
            for path in islice(trees[0].by_path, _MOST_LEAVES):
                leaves = [tree.by_path[path] for tree in trees if path in tree.by_path]
                text = jax.tree_util.keystr(path)
                is_array = all(leaf.spec is not None for leaf in leaves)
                said = self._array(f"{written}{text}", leaves) if is_array else "static"
                self.unsaid.append(f"#   {text}: {said or 'differs between calls'}")
        return hint or ""

    def _hint(self, written: str, trees: Sequence[_Tree]) -> str | None:
        """One hint for the arguments of several calls, with their name in the source; None without a common hint."""
        present = [tree for tree in trees if tree.leaves or not tree.is_a(type(None))]
        if not present:
            return "None"
        optional = " | None" if len(present) < len(trees) else ""
        leaves = [leaf for tree in present for leaf in tree.leaves]
        if leaves and all(leaf.spec is None for leaf in leaves):
            return "Any"
        if all(tree.tree.num_nodes == 1 and tree.leaves for tree in present):
            hint = self._array(written, leaves) if all(leaf.spec is not None for leaf in leaves) else None
            return hint and hint + optional
        if all(tree.is_a(tuple) for tree in present) and len({len(tree.children) for tree in present}) == 1:
            columns = zip(*(tree.children for tree in present), strict=True)
            inner = [self._hint(f"{written}[{at}]", column) for at, column in enumerate(columns)]
            if None not in inner:
                return f"tuple[{', '.join(map(str, inner)) or '()'}]{optional}"
        if leaves and all(leaf.spec is not None for leaf in leaves):
            hint = self._array("", leaves)
            if hint is not None:
                return f"PyTree[{hint}]{optional}"
        if all(tree.is_a(dict) for tree in present) and len({tuple(tree.keys) for tree in present}) == 1:
            hint = self._typed_dict(written, present)
            return hint and hint + optional
        return None

    def _typed_dict(self, written: str, trees: Sequence[_Tree]) -> str | None:
        """A class for dicts of the same keys; None if a key is not a name, or a value has no hint."""
        keys, fields = trees[0].keys, list[str]()
        for key, column in zip(keys, zip(*(tree.children for tree in trees), strict=True), strict=True):
            hint = self._hint(f"{written}[{key!r}]", column)
            if not (isinstance(key, str) and key.isidentifier() and not keyword.iskeyword(key)) or hint is None:
                return None
            fields.append(f"    {key}: {hint}")
        words = re.findall(r"[A-Za-z0-9]+", "result" if written == RETURN else written)
        body = "\n".join([*fields, "", ""])
        name = next((name for name, known in self.classes.items() if known == body), None)
        if name is None:
            name = "".join(word[:1].upper() + word[1:] for word in words)
            self.classes[name] = body
        return name

    def _array(self, written: str, leaves: Sequence[_Leaf]) -> str | None:
        """One hint for the arrays of several calls; None if it would be narrower than the arrays."""
        dims = self.names.get(written)
        name = "_".join(re.findall(r"\w+", written)) or "leaves"
        layouts = [_jax.array.spec_entries(leaf.spec, len(leaf.shape)) for leaf in leaves]
        marks = {(layout.unreduced, layout.reduced) for layout in layouts}
        ranks = {len(leaf.shape) for leaf in leaves}
        sharded = max((at for layout in layouts for at, axes in enumerate(layout.dim_axes, 1) if axes), default=0)
        if len(marks) > 1 or sharded > min(ranks):
            return None
        count = max(ranks) if len(ranks) == 1 else sharded
        named = dims if dims is not None and ranks == {len(dims)} else ("_",) * count
        vectors: list[list[tuple[str, ...] | None]] = [[None] * len(self.variants) for _ in range(count)]
        for leaf, layout in zip(leaves, layouts, strict=True):
            for vector, axes in zip(vectors, layout.dim_axes[:count], strict=True):
                if vector[leaf.variant] not in (None, axes):
                    return None
                vector[leaf.variant] = axes
        tokens: list[str] = []
        for at, (dim, vector) in enumerate(zip(named, vectors, strict=True)):
            axes = self._axes_of(tuple(vector), f"{name}_{at}" if dim == "_" else f"{dim}_axes")
            tokens.append(f"[{dim}/{axes}]" if axes else dim)
        tokens += ["..."] if len(ranks) > 1 else []
        unreduced, reduced = marks.pop()
        tokens += [*(f"+{axis}" for axis in sorted(unreduced)), *(f"-{axis}" for axis in sorted(reduced))]
        return f'{_family({str(leaf.dtype) for leaf in leaves})}[Array, "{" ".join(tokens)}"]'

    def _axes_of(self, vector: tuple[tuple[str, ...] | None, ...], name: str) -> str:
        """The mesh axes of a dim, or an alias if callers differ."""
        known = {axes for axes in vector if axes is not None}
        if len(known) == 1:
            return ",".join(known.pop())
        for known_vector, given in self.axes.items():  # without an array, the axes may be those of another argument
            if all(a in (None, b) for a, b in zip(vector, known_vector, strict=True)):
                return given
        mesh_axes = {axis for options in self.variants for axis, _ in options.mesh}
        while name in (*self.axes.values(), *mesh_axes):
            name += "_"
        self.axes[tuple(axes or () for axes in vector)] = name
        return name

    def _contradicted(self) -> set[str]:
        """The names with two sizes in one call."""
        wrong = set[str]()
        for call in self.calls:
            sizes: dict[str, int] = {}
            given = inspect.signature(self.function).bind(*call.arguments).arguments if self.names else {}
            for written, tree in (*given.items(), (RETURN, call.result)):
                for dims, leaf in self._named(written, tree) if isinstance(tree, _Tree) else ():
                    for dim, size in zip(dims, leaf.shape, strict=True):
                        if sizes.setdefault(dim, size) != size:
                            wrong.add(dim)
        return wrong

    def _named(self, written: str, tree: _Tree) -> Iterator[tuple[Names, _Leaf]]:
        """The leaves of an argument whose dims have names."""
        if len(tree.leaves) == 1 and len(tree.leaves[0].shape) == len(dims := self.names.get(written, ())):
            yield dims, tree.leaves[0]
        if tree.is_a(tuple) or tree.is_a(dict):
            for key, child in zip(tree.keys, tree.children, strict=True):
                yield from self._named(f"{written}[{key!r}]", child)


def _axes_text(axes: tuple[str, ...] | None) -> str:
    if not axes:
        return "None"
    return _quoted(axes[0]) if len(axes) == 1 else f"({', '.join(map(_quoted, axes))})"


def _quoted(text: str) -> str:
    return f'"{text}"'


def _family(dtypes: set[str]) -> str:
    """The dtype name for all of these dtypes."""
    return next(name for name in _FAMILIES if all(takes(FAMILIES[name], dtype) for dtype in dtypes))
