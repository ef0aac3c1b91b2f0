"""What a program gives to ``shard_map``, call by call in its source: functions, trees and traced regions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jax import tree_util
from jax.sharding import PartitionSpec

from .. import _jax
from ..auditing.calls import CodeSpan, ShardMapCall, recorded_calls
from ..errors.phrases import shortened


class Tree(NamedTuple):
    """A tree of arrays: a leaf, or a container with its items.

    Attributes:
      kind: the class of a container, that of None included; None of a leaf.
      items: the key and the tree of each item.
      leaf: which of all leaves it is; -1 for one that is not mapped.
    """

    kind: type | None
    items: tuple[tuple[Any, Tree], ...] = ()
    leaf: int = -1

    def leaves(self) -> Iterator[int]:
        """The numbers of its leaves that are mapped."""
        if self.kind is None and self.leaf >= 0:
            yield self.leaf
        for _, item in self.items:
            yield from item.leaves()


class TracedCall(NamedTuple):
    """One way in which a mapped function was called.

    Attributes:
      arguments: the tree of each positional argument; leaves are counted through all of them.
      results: the tree of the result, whose leaves are counted anew.
      region: the region as it is traced without transformations.
    """

    arguments: tuple[Tree, ...]
    results: Tree
    region: _jax.jaxpr.TracedRegion

    def claims(self) -> tuple[Any, ...]:
        """What two programs have in common that do the same: mesh, axes, and the type and the spec of each leaf."""
        params, eqn = self.region.eqn.params, self.region.eqn
        count = sum(len(list(tree.leaves())) for tree in self.arguments)
        pairs = [*zip(eqn.invars, params["in_specs"], strict=True)][len(eqn.invars) - count :]
        pairs += zip(eqn.outvars, params["out_specs"], strict=True)
        leaves = [(str(var.aval.str_short(short_dtypes=True)), _stripped(spec)) for var, spec in pairs]
        axes = sorted(map(str, _jax.jaxpr.newly_manual_axes(params)))
        return tuple(params["mesh"].shape_tuple), tuple(axes), bool(params["check_vma"]), tuple(leaves)


def _stripped(spec: PartitionSpec) -> str:
    entries = [entry if isinstance(entry, tuple | None) else (entry,) for entry in spec]
    while entries and not entries[-1]:
        entries.pop()
    return f"{[entry or () for entry in entries]} {getattr(spec, 'unreduced', '')} {getattr(spec, 'reduced', '')}"


@dataclass
class MappedSite:
    """A call of ``shard_map`` in the program's source.

    Attributes:
      file: the file, and the function in which the call stands.
      span: where the call stands in it.
      functions: what was mapped there, one function for each code.
      options: as they were given, the last time.
      traced: the ways in which it was called.
      failure: why a call could not be traced.
    """

    file: str
    function: str
    span: CodeSpan
    functions: dict[Any, Callable[..., Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    traced: dict[Any, TracedCall] = field(default_factory=dict)
    failure: str = ""


@contextmanager
def recorded_sites() -> Generator[dict[tuple[str, CodeSpan], MappedSite]]:
    """Record the sites at which the program maps functions meanwhile, in the order in which they are called."""
    sites: dict[tuple[str, CodeSpan], MappedSite] = {}

    def see(call: ShardMapCall, mapped: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not call.is_direct or call.made_at is None or call.verb != "shard_map":
            return
        file, _, function = call.made_at
        site = sites.setdefault((file, call.span), MappedSite(file, function, call.span))
        code, specs = code_of(call.function), [call.options.get(name, ...) for name in ("in_specs", "out_specs")]
        site.functions[code] = call.function
        site.options = call.options
        site.failure = record_call(site.traced, mapped, args, specs[0], (code, str(specs))) or site.failure

    with recorded_calls(see):
        yield sites


def code_of(function: Callable[..., Any]) -> Any:
    """What identifies the definition of a function, through partials, methods and wrappers."""
    while not hasattr(function, "__code__"):
        below = getattr(function, "func", None) or getattr(function, "__func__", None)
        below = below or getattr(function, "__wrapped__", None)
        if below is None:
            return type(function)
        function = below
    below = getattr(function, "__wrapped__", None)
    return code_of(below) if below is not None else function.__code__


def record_call(
    traced: dict[Any, TracedCall],
    mapped: Callable[..., Any],
    args: tuple[Any, ...],
    in_specs: Any = ...,
    what: Any = None,
) -> str:
    """Trace a call for its region, unless it is known; why it cannot be traced.

    Args:
      traced: the known ones, to which it is added.
      mapped: what is called.
      args: with what.
      in_specs: which of the arguments are mapped: those whose spec is not None.
      what: the function and the specs, by which it differs from others with such arguments.
    """
    leaves, structure = jax.tree.flatten(args)
    try:
        are_mapped = _mapped_leaves(args, in_specs)
        types = [jax.typeof(x) if is_mapped else type(x) for x, is_mapped in zip(leaves, are_mapped, strict=True)]
    except (TypeError, ValueError) as error:  # the call itself will raise it, in other words
        return f"a call raises {type(error).__name__}"
    key = what, structure, tuple(types)
    if key in traced:
        return ""

    def call(*given: Any) -> Any:
        rest = iter(given)
        values = [next(rest) if is_mapped else x for x, is_mapped in zip(leaves, are_mapped, strict=True)]
        return mapped(*structure.unflatten(values))

    given = [x for x, is_mapped in zip(leaves, are_mapped, strict=True) if is_mapped]
    try:
        program, results = jax.make_jaxpr(call, return_shape=True)(*given)
    except Exception as error:  # the call itself will raise it
        return f"a call raises {type(error).__name__}: {shortened(str(error).partition(chr(10))[0], 150)}"
    region = _jax.jaxpr.find_region(program)
    if region is None:
        return "its region is not found in the traced program"
    flags = iter(are_mapped)
    count = iter(range(len(given)))
    arguments = tuple(_tree(arg, lambda: next(count) if next(flags) else -1) for arg in args)
    outs = iter(range(len(region.results)))
    traced[key] = TracedCall(arguments, _tree(results, lambda: next(outs)), region)
    return ""


def _mapped_leaves(args: tuple[Any, ...], in_specs: Any) -> list[bool]:
    """Which leaves of the arguments are mapped: those for which there is a spec that is not None."""
    if in_specs is None or not isinstance(in_specs, tuple | list) or len(in_specs) != len(args):
        return [in_specs is not None] * len(jax.tree.leaves(args))
    found: list[bool] = []
    for spec, arg in zip(in_specs, args, strict=True):
        flags = jax.tree.map(lambda one: one is not None, spec, is_leaf=lambda one: one is None)
        found += jax.tree.leaves(jax.tree.broadcast(flags, arg))
    return found


def _tree(value: Any, number: Callable[[], int]) -> Tree:
    children, _ = tree_util.tree_flatten_with_path(value, is_leaf=lambda one: one is not value)
    if len(children) == 1 and not children[0][0]:
        return Tree(None, (), number())
    items = [(_key(path[0]), _tree(child, number)) for path, child in children]
    return Tree(type(value), tuple(items))


def _key(step: Any) -> Any:
    return next((getattr(step, name) for name in ("key", "name", "idx") if hasattr(step, name)), str(step))
