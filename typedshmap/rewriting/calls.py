"""Every use of ``shard_map`` in a file: what is called, with which options, and what is mapped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from .functions import PARTIAL, MappedFunction, function_of_call, function_of_decorator
from .source import Source, Unclear

OLD = "jax.experimental.shard_map.shard_map"
SHARD_MAP = {"jax.shard_map", OLD}
_POSITIONS = ("f", "mesh", "in_specs", "out_specs", "check_rep", "auto")
_KNOWN = {"f", "mesh", "in_specs", "out_specs", "check_rep", "check_vma", "axis_names"}


@dataclass(frozen=True)
class SkippedUse:
    """A use that is left as it is, and why."""

    line: int
    reason: str


@dataclass(frozen=True)
class Site:
    """One call of ``shard_map``, or of a partial of it.

    Attributes:
      call: the call that holds the options.
      is_partial: whether its first argument is ``shard_map`` itself.
      is_old: whether it may be the one of ``jax.experimental``, which takes its options by position.
    """

    call: cst.Call
    is_partial: bool
    is_old: bool

    def options(self) -> Mapping[str, int]:
        """The options by name, each with the index of its argument.

        Raises:
          Unclear: for options that cannot be read, or that hints do not take.
        """
        found: dict[str, int] = {}
        positions = iter(_POSITIONS if self.is_old else _POSITIONS[:1])
        for index, arg in enumerate(self.call.args):
            if self.is_partial and index == 0:
                continue
            if arg.star:
                raise Unclear(f"'{arg.star}' passes options that cannot be seen")
            name = arg.keyword.value if arg.keyword is not None else next(positions, "")
            if name not in _KNOWN:
                raise Unclear(f"the option '{name}' has no equal" if name else "too many options by position")
            if name == "f" and (self.is_partial or arg.keyword is not None):
                raise Unclear("the function is given by keyword, or to a partial")
            found[name] = index
        for name in ("in_specs", "out_specs"):
            if name not in found:
                raise Unclear(f"{name} is not given here")
        return found

    def mapped(self, source: Source, options: Mapping[str, int]) -> MappedFunction:
        """What is mapped: an argument, what is decorated, or what the result of the call is called with.

        Raises:
          Unclear: where that cannot be seen.
        """
        if "f" in options:
            return function_of_call(source, self.call.args[options["f"]].value)
        above = source.parent(self.call)
        if isinstance(above, cst.Decorator):
            return function_of_decorator(source, above)
        if isinstance(above, cst.Call) and above.func is self.call and len(above.args) == 1:
            return function_of_call(source, above.args[0].value)
        raise Unclear("the function that it maps is given elsewhere")


def _is_shard_map(source: Source, node: cst.CSTNode) -> frozenset[str]:
    """Which ``shard_map`` a name is."""
    named = source.meaning(node)
    return named if named and named <= SHARD_MAP else frozenset()


def find_sites(source: Source) -> tuple[list[Site], list[SkippedUse]]:
    """Every call of JAX's ``shard_map`` in a file, and other uses of the name."""
    sites: list[Site] = []
    seen: set[cst.CSTNode] = set()
    left: list[SkippedUse] = []
    nodes = list(_all_nodes(source.module))
    for node in nodes:
        if isinstance(node, cst.Call):
            site = _site(source, node)
            if site is not None:
                sites.append(site)
                seen.add(node.args[0].value if site.is_partial else node.func)
            elif (other := _foreign_name(source, node.func)) is not None:
                left.append(SkippedUse(source.line(node), f"it is '{other}', not JAX's shard_map"))
    for node in nodes:
        if source.imported_names(node) & SHARD_MAP and node not in seen and not _is_alias(source, node):
            left.append(SkippedUse(source.line(node), "shard_map is not called here"))
    return sites, left


def _site(source: Source, node: cst.Call) -> Site | None:
    if named := _is_shard_map(source, node.func):
        return Site(node, is_partial=False, is_old=OLD in named)
    first = node.args[0].value if node.args and source.imported_names(node.func) & PARTIAL else None
    named = _is_shard_map(source, first) if first is not None else frozenset[str]()
    return Site(node, is_partial=True, is_old=OLD in named) if named else None


def _foreign_name(source: Source, node: cst.CSTNode) -> str | None:
    """The full name of a ``shard_map`` of another library."""
    names = (name for name in source.imported_names(node) if name.split(".")[-1] in ("shard_map", "shmap"))
    return next((name for name in sorted(names) if name not in SHARD_MAP and not name.startswith("jax.")), None)


def _is_alias(source: Source, node: cst.CSTNode) -> bool:
    """Whether a use only gives ``shard_map`` another name, whose uses are found themselves."""
    above = source.parent(node)
    if not isinstance(above, cst.Assign) or above.value is not node or len(above.targets) != 1:
        return False
    target = above.targets[0].target
    return isinstance(target, cst.Name) and source.bound_value(target) is node


def _all_nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _all_nodes(child)
