"""What a call maps: the function behind a name, a partial, a method or a lambda, and its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from .source import Source, Unclear
from .specs import LeafSpec, NoSpec, Specs, SpecTuple

PARTIAL = {"functools.partial"}
# Decorators and wrappers that leave a function its parameters, and from which hints are read.
TRANSPARENT = {"jax.jit", "jax.checkpoint", "jax.remat", "jax.named_call"}
_CHECKERS = {"jaxtyping.jaxtyped", "beartype.beartype"}


@dataclass(frozen=True)
class MappedFunction:
    """A function that is mapped, as it is passed.

    Attributes:
      function: its definition.
      given: how many arguments are bound by position, ``self`` included.
      bound: the parameters that are bound by keyword.
      may_annotate: whether its definition may carry the hints.
    """

    function: cst.FunctionDef | cst.Lambda
    given: int = 0
    bound: frozenset[str] = frozenset()
    may_annotate: bool = False


def function_of_decorator(source: Source, decorator: cst.Decorator) -> MappedFunction:
    """The function below a decorator.

    Raises:
      Unclear: for a decorator in between that may change the parameters.
    """
    function = source.parent(decorator)
    if not isinstance(function, cst.FunctionDef):
        raise Unclear("it decorates a class")
    between = function.decorators[function.decorators.index(decorator) + 1 :]
    return MappedFunction(function, may_annotate=not _refuse_opaque(source, between))


def _refuse_opaque(source: Source, decorators: Sequence[cst.Decorator]) -> bool:
    """Whether a checker of hints is among the decorators, all of which leave a function its parameters."""
    has_checker = False
    for each in decorators:
        named = _decorator_names(source, each.decorator)
        has_checker |= bool(named & _CHECKERS)
        if not named & (TRANSPARENT | _CHECKERS):
            raise Unclear(f"the decorator '@{source.code(each.decorator)}' may change the parameters")
    return has_checker


def _decorator_names(source: Source, node: cst.BaseExpression) -> frozenset[str]:
    """What a decorator is, through a call and a partial."""
    if not isinstance(node, cst.Call):
        return source.imported_names(node)
    named = source.imported_names(node.func)
    return source.imported_names(node.args[0].value) if named & PARTIAL and node.args else named


def function_of_call(source: Source, node: cst.BaseExpression) -> MappedFunction:
    """The function that is passed to a call.

    Raises:
      Unclear: for one whose parameters cannot be seen in this file.
    """
    match node:
        case cst.Lambda():
            return MappedFunction(node)
        case cst.Name():
            return _function_of_name(source, node)
        case cst.Call(args=[first, *others]) if source.imported_names(node.func) & PARTIAL:
            return _function_of_partial(source, first.value, others)
        case cst.Call(args=[first, *_]) if source.imported_names(node.func) & TRANSPARENT:
            inner = function_of_call(source, first.value)
            return MappedFunction(inner.function, inner.given, inner.bound)
        case cst.Attribute(value=cst.Name(value="self"), attr=attr):
            return MappedFunction(_function_of_method(source, node, attr.value), given=1)
        case _:
            raise Unclear(f"the parameters of '{source.short(node)}' are not known here")


def _function_of_name(source: Source, name: cst.Name) -> MappedFunction:
    binding = source.only_binding(name)
    if binding is not None and isinstance(binding.node, cst.FunctionDef):
        return MappedFunction(binding.node, may_annotate=_may_annotate(source, binding.node, name))
    value = source.bound_value(name)
    if value is None or isinstance(value, cst.Name):
        raise Unclear(f"the parameters of '{name.value}' are not known here")
    found = function_of_call(source, value)
    return MappedFunction(found.function, found.given, found.bound)


def _may_annotate(source: Source, function: cst.FunctionDef, name: cst.Name) -> bool:
    """Whether hints on a function speak to this call alone: it is mapped once, and else only called."""
    if _refuse_opaque(source, function.decorators):
        return False
    binding = source.only_binding(name)
    assert binding is not None
    others = [access.node for access in binding.references if access.node is not name]
    return all(_is_called(source, other) for other in others)


def _is_called(source: Source, node: cst.CSTNode) -> bool:
    above = source.parent(node)
    return isinstance(above, cst.Call) and above.func is node


def _function_of_partial(source: Source, node: cst.BaseExpression, args: list[cst.Arg]) -> MappedFunction:
    """A partial of a function; a name that only this partial uses may carry the hints."""
    if any(arg.star for arg in args):
        raise Unclear("a partial with '*' or '**' binds what cannot be seen")
    inner = function_of_call(source, node)
    given = sum(arg.keyword is None for arg in args)
    bound = frozenset(arg.keyword.value for arg in args if arg.keyword is not None)
    return MappedFunction(inner.function, inner.given + given, inner.bound | bound, inner.may_annotate and not given)


def _function_of_method(source: Source, node: cst.Attribute, name: str) -> cst.FunctionDef:
    """The method of the class around; ``in_types`` fits one that a subclass has in its place."""
    around = source.enclosing(node, cst.ClassDef)
    body = around.body.body if around is not None else ()
    found = [part for part in body if isinstance(part, cst.FunctionDef) and part.name.value == name]
    if len(found) != 1:
        raise Unclear(f"the method '{name}' is not defined once in the class around")
    if found[0].decorators:
        raise Unclear(f"the method '{name}' is decorated")
    return found[0]


@dataclass(frozen=True)
class ParameterSpecs:
    """A parameter with the spec of its argument; no spec where none reaches it."""

    param: cst.Param
    specs: Specs | None
    is_star: bool = False

    @property
    def name(self) -> str:
        return self.param.name.value


def pair_specs(mapped: MappedFunction, specs: Specs) -> list[ParameterSpecs]:
    """The positional parameters of a function, in order, each with its specs.

    Raises:
      Unclear: for more or fewer specs than parameters.
    """
    params = mapped.function.params
    positional = [*params.posonly_params, *params.params][mapped.given :]
    positional = [param for param in positional if param.name.value not in mapped.bound]
    star = params.star_arg if isinstance(params.star_arg, cst.Param) else None
    if not isinstance(specs, SpecTuple):
        return _one_spec_for_all(positional, star, specs)
    return _one_spec_each(positional, star, specs.items)


def _one_spec_for_all(positional: list[cst.Param], star: cst.Param | None, specs: Specs) -> list[ParameterSpecs]:
    """One spec for all arguments: a default that is an array would become one more."""
    for param in positional:
        is_none = isinstance(param.default, cst.Name) and param.default.value == "None"
        if param.default is not None and not is_none and isinstance(specs, LeafSpec):
            raise Unclear(f"one spec stands for all arguments, and parameter '{param.name.value}' may be left out")
    found = [ParameterSpecs(param, specs) for param in positional]
    return [*found, ParameterSpecs(star, specs, is_star=True)] if star is not None else found


def _one_spec_each(
    positional: list[cst.Param], star: cst.Param | None, specs: tuple[Specs, ...]
) -> list[ParameterSpecs]:
    counted = f"{_count_text(len(specs), 'spec')} for {_count_text(len(positional), 'positional parameter')}"
    beyond, more = positional[len(specs) :], specs[len(positional) :]
    if any(param.default is None for param in beyond) or (more and star is None):
        raise Unclear(counted)
    found = [ParameterSpecs(param, spec) for param, spec in zip(positional, specs, strict=False)]
    found += [ParameterSpecs(param, None) for param in beyond]
    return found + [ParameterSpecs(star, spec, is_star=True) for spec in more if star is not None]


def _count_text(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def has_static_spec(pair: ParameterSpecs) -> bool:
    """Whether an argument is not mapped: by its spec, or because none reaches it."""
    return pair.specs is None or isinstance(pair.specs, NoSpec)
