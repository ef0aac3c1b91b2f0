"""Annotate the text of a file: calls of ``shard_map`` whose specs are literal.

A spec may be shorter than the rank, so each hint ends in ``...``; nothing is known of the dtype, so it is ``Shaped``;
a name binds equal sizes, so each dim is ``_``; a spec holds for each leaf of a tree, so what is not annotated as an
array is a ``PyTree``. So the program has the same specs, and takes what it took; what that is not said of is left."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec

from .. import _jax
from ..errors.phrases import shortened
from ..source.module import ParsedModule
from .calls import SHARD_MAP, LeftPlain, MappingCall, mapping_call
from .dims import axis_words, with_axes
from .editing import CallEdit, ModuleEdit, axes_option, edit_module

_SPECS = {"jax.sharding.PartitionSpec", "jax.P", "jax.sharding.P", "jax.experimental.PartitionSpec"}
_OPTIONS = {"f", "mesh", "in_specs", "out_specs", "check_rep", "check_vma", "axis_names"}
_ARRAYS = {"jax.Array", "jax.numpy.ndarray", "jax.typing.ArrayLike", "numpy.ndarray", "chex.Array", "typedshmap.Array"}


class AnnotatedText(NamedTuple):
    """The new text of a file, how many calls became typed, and the line of each other use with why it is left."""

    text: str
    done: int
    left: list[tuple[int, str]]


def annotate_text(text: str) -> AnnotatedText:
    """Turn the calls of ``shard_map`` in the text of a file into typed ones.

    Raises:
      SyntaxError: for a text that is no Python.
    """
    module, edit, left, known = ParsedModule(text), ModuleEdit(), dict[int, str](), set[ast.AST]()
    for node in module.nodes(ast.Call):
        try:
            if (call := mapping_call(module, node)) is not None:
                known.add(call.named)
                edit.calls.append(_typed(module, call))
        except LeftPlain as reason:
            left[node.lineno] = str(reason)
    for node in module.nodes(ast.Name, ast.Attribute):
        is_alias = isinstance(module.parents[node], ast.Assign)
        if module.imported(node) & SHARD_MAP and not is_alias and node not in known:
            left.setdefault(node.lineno, "no function is mapped here")
    if edit.calls:
        # Other files may import what the module binds.
        own = {name for (scope, name), nodes in module.bindings.items()
               if scope is module.tree and not any(isinstance(node, ast.alias) for node in nodes)}  # fmt: skip
        text = edit_module(module, edit, own)
    return AnnotatedText(text, len(edit.calls), sorted(left.items()))


def _typed(module: ParsedModule, call: MappingCall) -> CallEdit:
    """The edit that makes a call typed.

    Raises:
      LeftPlain: for what cannot be typed safely.
    """
    for name in sorted(call.options.keys() - _OPTIONS):
        raise LeftPlain(f"the option '{name}' has no equal")
    for name in ("in_specs", "out_specs"):
        if name not in call.options:
            raise LeftPlain(f"{name} is not given here")
    in_specs, out_specs = (literal_spec(module, call.options[name], call.node) for name in ("in_specs", "out_specs"))
    given = call.options.get("f")
    function = module.parents[call.node] if given is None else module.bound_node(given) or given
    args = function.args if isinstance(function, ast.FunctionDef | ast.Lambda) else None
    params = [*args.posonlyargs, *args.args] if args is not None else []
    if not isinstance(in_specs, tuple):
        if args is None or args.vararg or args.defaults:
            raise LeftPlain("one spec stands for all arguments, and how many there are is not known here")
        in_specs = (in_specs,) * len(params)
    words = axis_words([*axes_in(in_specs), *axes_in(out_specs)])
    axes = {axis: axis[1:] if axis[0] == "=" else f'"{axis}"' for axis, word in words.items() if axis != word}
    notes = [param.annotation for param in params[: len(in_specs)]] + [None] * (len(in_specs) - len(params))
    returns = getattr(function, "returns", None)
    hints = [_hint(module, spec, words, note) for spec, note in zip(in_specs, notes, strict=True)]
    result = _hint(module, out_specs, words, returns, "None")
    # Annotations that say more, or other, than that it is an array, stay as they are.
    is_open = all(note is None or module.imported(note) & _ARRAYS for note in (*notes, returns))
    if isinstance(function, ast.FunctionDef) and args is not None:
        is_only = not function.decorator_list and len(module.uses[module.binding(function.name, call.node)]) == 1
        is_direct = is_only if given is not None else function.decorator_list[-1] is call.node
        has_all = len(params) - len(args.defaults) <= len(in_specs) <= len(params) and None not in args.kw_defaults
        if is_open and is_direct and has_all and not args.vararg:
            named = dict(zip([param.arg for param in params], hints, strict=False))
            parameters = {name: hint for name, hint in named.items() if (name, hint) != ("self", "Any")}
            return CallEdit(module, call, function, parameters, result, axes_option(words, axes))
    of_arguments = {str(at): hint for at, hint in enumerate(hints)}
    return CallEdit(module, call, None, of_arguments, result, axes_option(words, axes))


def literal_spec(module: ParsedModule, node: ast.expr, place: ast.AST) -> Any:
    """The value of a literal spec: a ``PartitionSpec``, None, a tuple; a list of one for a container of equal ones.

    Args:
      module: the file.
      node: the spec, or a name that is bound once to one.
      place: where it is used. A mesh axis that code gives, as in ``P(config.axis)``, is called ``"=config.axis"``.

    Raises:
      LeftPlain: for one that is not bound once to a literal.
    """
    value = module.value(node)
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Tuple(elts=items):
            return tuple([literal_spec(module, item, place) for item in items])
        case ast.List(elts=items) | ast.Dict(values=items):
            specs = [literal_spec(module, item, place) for item in items]
            if specs and isinstance(specs[0], PartitionSpec) and all(spec == specs[0] for spec in specs):
                return specs[:1]
            raise LeftPlain("a list or dict of different specs: make it a tuple, a TypedDict or a dataclass")
        case ast.Call(func=func, args=args, keywords=[]) if module.meaning(func) & _SPECS:
            return PartitionSpec(*(_literal_axes(module, arg, place) for arg in args))
        case ast.Name() if value is not None and not isinstance(value, ast.List | ast.Dict):  # which may change
            return literal_spec(module, value, place)
        case _:
            spec = shortened(" ".join(module.code(node).split()), 60)
            raise LeftPlain(f"the spec '{spec}' is not bound once to a literal")


def _literal_axes(module: ParsedModule, node: ast.expr, place: ast.AST) -> Any:
    """The mesh axes of a dim: literals, constants of the file, and names that mean the same where the call is."""
    value, is_axis = module.value(node), not module.code(node).endswith("UNCONSTRAINED")
    match node:
        case ast.Constant(value=str() | None as axis):
            return axis
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple([_literal_axes(module, item, place) for item in items])
        case ast.Name() if isinstance(value, ast.Constant | ast.Tuple):
            return _literal_axes(module, value, place)
        case ast.Name() | ast.Attribute(value=ast.Name()) if is_axis and module.means_the_same(node, place):
            return f"={module.code(node)}"
        case _:
            raise LeftPlain(f"the mesh axis '{shortened(module.code(node), 60)}' is not bound once to a literal")


def axes_in(spec: Any) -> Iterator[str]:
    """Every mesh axis in specs."""
    if isinstance(spec, PartitionSpec):
        yield from (axis for axes in _jax.array.spec_entries(spec).dim_axes for axis in axes)
    elif isinstance(spec, Sequence):
        for item in spec:
            yield from axes_in(item)


def _hint(module: ParsedModule, spec: Any, words: Any, note: ast.expr | None, nothing: str = "Any") -> str:
    """The hint for a spec: of an array if it is annotated as one, by jaxtyping for instance; of a tuple; of a tree."""
    if spec is None:
        return nothing
    base, inner = (note.value, note.slice) if isinstance(note, ast.Subscript) else (note, None)
    if isinstance(spec, tuple) and not isinstance(spec, PartitionSpec):
        notes = inner.elts if isinstance(inner, ast.Tuple) and len(inner.elts) == len(spec) else [None] * len(spec)
        items = [_hint(module, item, words, one, nothing) for item, one in zip(spec, notes, strict=True)]
        return f"tuple[{', '.join(items) or '()'}]"
    entries = _jax.array.spec_entries(spec[0] if isinstance(spec, list) else spec).dim_axes
    leaf = f'Shaped[Array, "{" ".join([*(with_axes("_", each, words) for each in entries), "..."])}"]'
    is_array = any(name in _ARRAYS or name.startswith("jaxtyping.") for name in module.imported(base))
    return leaf if is_array and not isinstance(spec, list) else f"PyTree[{leaf}]"
