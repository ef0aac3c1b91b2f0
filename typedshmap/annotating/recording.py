"""What a program gives to ``shard_map``, call by call in its source, and what its annotated text makes of that."""

from __future__ import annotations

import builtins
import functools
import json
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec

from .. import _jax
from ..auditing.calls import CodeSpan, ShardMapCall, recorded_calls
from ..errors.phrases import shortened
from ..shard_map import typed_shard_map
from ..source.edited_imports import edited_imports
from .editing import MARKED


class TracedCall(NamedTuple):
    """One way in which a mapped function was called.

    Attributes:
      arguments: the tree of each positional argument: its leaves are their numbers among all that are mapped, and
        ``...`` for what is not mapped.
      results: the tree of the result, whose leaves are counted anew.
      region: the region as it is traced without transformations.
    """

    arguments: tuple[Any, ...]
    results: Any
    region: _jax.jaxpr.TracedRegion

    def claims(self) -> str:
        """What two programs have in common that do the same: mesh, axes, and the type and the spec of each leaf."""
        eqn, params = self.region.eqn, self.region.eqn.params
        count = sum(leaf is not ... for leaf in jax.tree.leaves(self.arguments))
        pairs = [*zip(eqn.invars, params["in_specs"], strict=True)][len(eqn.invars) - count :]
        pairs += zip(eqn.outvars, params["out_specs"], strict=True)
        types = [var.aval.str_short(short_dtypes=True) for var, _ in pairs]
        layouts = [_jax.array.spec_entries(spec, var.aval.ndim) for var, spec in pairs]
        of_layouts = [f"{one.dim_axes} {sorted(one.unreduced)} {sorted(one.reduced)}" for one in layouts]
        axes = sorted(map(str, _jax.jaxpr.newly_manual_axes(params)))
        return repr((tuple(params["mesh"].shape_tuple), axes, bool(params["check_vma"]), types, of_layouts))


@dataclass
class MappedSite:
    """A call of ``shard_map`` in the program's source.

    Attributes:
      file: the file in which it stands.
      span: where it stands in it.
      functions: what was mapped there, one function for each code.
      options: as they were given, the last time.
      traced: the ways in which it was called.
      failure: why a call could not be traced.
    """

    file: str
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
        site = sites.setdefault((call.made_at[0], call.span), MappedSite(call.made_at[0], call.span))
        code = getattr(innermost(call.function), "__code__", type(call.function))
        specs = [call.options.get(name, ...) for name in ("in_specs", "out_specs")]
        site.functions[code] = call.function
        site.options = call.options
        site.failure = _record(site.traced, mapped, args, specs[0], (code, str(specs))) or site.failure

    with recorded_calls(see):
        yield sites


def innermost(function: Callable[..., Any]) -> Any:
    """The function of Python that is called in the end, through partials, methods and wrappers; or what is callable."""
    names = ("__wrapped__", "func", "__func__")
    below = next((getattr(function, name) for name in names if getattr(function, name, None) is not None), None)
    return function if below is None else innermost(below)


def _record(
    traced: dict[Any, TracedCall], mapped: Callable[..., Any], args: tuple[Any, ...], in_specs: Any, what: Any = None
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

    def merged(given: Any, others: list[Any]) -> Any:
        rest = iter(given)
        pairs = zip(others, are_mapped, strict=True)
        return structure.unflatten(next(rest) if is_mapped else x for x, is_mapped in pairs)

    given = [x for x, is_mapped in zip(leaves, are_mapped, strict=True) if is_mapped]
    try:
        program, results = jax.make_jaxpr(lambda *xs: mapped(*merged(xs, leaves)), return_shape=True)(*given)
    except Exception as error:  # the call itself will raise it
        return f"a call raises {type(error).__name__}: {shortened(str(error).partition(chr(10))[0], 150)}"
    region = _jax.jaxpr.find_region(program)
    if region is None:
        return "its region is not found in the traced program"
    arguments = merged(range(len(given)), [...] * len(leaves))
    outs = jax.tree.structure(results).unflatten(range(len(region.results)))
    traced[key] = TracedCall(arguments, outs, region)
    return ""


def _mapped_leaves(args: tuple[Any, ...], in_specs: Any) -> list[bool]:
    """Which leaves of the arguments are mapped: those for which there is a spec that is not None."""
    specs = tuple(in_specs) if isinstance(in_specs, list) else in_specs
    flags = jax.tree.map(lambda spec: spec is not None, specs, is_leaf=lambda spec: spec is None)
    return jax.tree.leaves(jax.tree.broadcast(flags, args))


# The annotated program


@contextmanager
def verifying(job: Path) -> Generator[dict[str, str]]:
    """Have the edited texts imported, and note what the calls in them trace; in the process that verifies.

    Args:
      job: a file with the texts, and for each call which of its arguments are mapped. What is found goes to a file
        ``done.json`` beside it: of each call why it failed, or what it claims.

    Yields:
      The texts by their files.
    """
    given = json.loads(job.read_text(encoding="utf-8"))
    texts: dict[str, str] = given["texts"]
    traced: dict[str, dict[Any, TracedCall]] = {number: {} for number in given["mapped"]}
    failures: dict[str, str] = {}

    def make_and_note(function: Any = None, /, **options: Any) -> Any:
        """``typed_shard_map`` that notes what its functions trace, and why they cannot."""
        if function is None:
            return functools.partial(make_and_note, **options)
        number = str(options.pop("number"))
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        own = {"typed": typed_shard_map, "function": function, "options": options}
        try:  # from the user's frame, in which strings of hints are read
            typed = eval("typed(function, **options)", frame.f_globals, {**frame.f_locals, **own})
        except Exception as error:
            failures.setdefault(number, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            raise

        @functools.wraps(typed)
        def call(*args: Any, **kwargs: Any) -> Any:
            specs = tuple(PartitionSpec() if is_mapped else None for is_mapped in given["mapped"][number])
            if failure := _record(traced[number], typed, args, specs if len(specs) == len(args) else ...):
                failures.setdefault(number, failure)
            return typed(*args, **kwargs)

        return call

    setattr(builtins, MARKED, make_and_note)
    try:
        with edited_imports(texts):
            yield texts
    finally:
        claims = {number: [one.claims() for one in found.values()] for number, found in traced.items()}
        Path(job.parent, "done.json").write_text(json.dumps({"claims": claims, "failures": failures}), encoding="utf-8")
