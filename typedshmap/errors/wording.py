"""Every failure is worded here and, where it is about the mesh, in `over_mesh`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType

from ..notation.layout import AxisTwice, NoRule, RuledTwice, UnknownAxis
from ..notation.match import (
    BadExpression,
    Indivisible,
    OutsideTree,
    RankMismatch,
    SizeMismatch,
    UnboundNames,
)
from ..notation.nodes import Anything, Dim, Name, Number, Rest
from ..notation.sizes import Subject
from .failures import (
    AtOdds,
    BoundaryMark,
    Failure,
    HiddenField,
    LiesElse,
    NoArray,
    NoMember,
    NotAnArray,
    NotAPytree,
    NotIntegers,
    NotManual,
    NotNumbers,
    OtherLayout,
    OtherStructure,
    Owes,
    OwesNothing,
    PatternFault,
    StaticArray,
    StaysReduced,
    SummedTwice,
    Told,
    Varies,
    WrongDtype,
    WrongKeys,
    WrongLength,
    WrongSharding,
    WrongSize,
    WrongType,
)
from .over_mesh import cure_of_operand, word_over_mesh
from .phrases import count, equation, quoted
from .sentence import DTYPE, Sentence


def word(failure: Failure, names: Mapping[str, str] = MappingProxyType({})) -> Sentence:
    """What is said of a failure; names are what marks call mesh axes that have another name there."""
    sentence = _word(failure, names)
    if failure.subject.kind == "boxed":
        return _word_of_box(sentence)
    if failure.subject.kind not in ("operand", "pattern"):
        return sentence
    problem = sentence.problem.replace(" in its annotation", "").replace("its annotation", "the pattern")
    if isinstance(failure.what, Varies):
        return _word_of_operand(failure.what, replace(sentence, problem=problem), names)
    return replace(sentence, problem=problem, sizes=True)


def _word_of_operand(what: Varies, sentence: Sentence, names: Mapping[str, str]) -> Sentence:
    """What is said of an operand that varies; of one whose shards may agree no more than JAX's type says."""
    if what.may_agree:
        return replace(sentence, problem=sentence.problem.replace("varies", "is typed as varying"))
    return replace(sentence, cure=cure_of_operand(what.axes, names))


def _word_of_box(sentence: Sentence) -> Sentence:
    """What is said of an array that Flax has boxed with names, where no hint can be written otherwise."""
    problem = sentence.problem.replace("in its annotation", "among its names").replace("its annotation", "its box")
    cure = (sentence.cure or "").partition(", or write [")[0]
    return replace(sentence, problem=problem, cure=None if cure.startswith("write [") else cure or None)


def _word(failure: Failure, names: Mapping[str, str]) -> Sentence:
    match failure.what:
        case RankMismatch(expected, at_least, got):
            least = "at least " if at_least else ""
            return Sentence(f"has {count(got, 'dim')}, but its annotation has {least}{expected}")
        case SizeMismatch():
            return _word_size(failure.what, failure.subject)
        case Indivisible(dim, index, size, axes, shards, span):
            over = f"{quoted(axes)} ({count(shards, 'shard')})"
            cure = f"make {_dim_name(dim, index)} a multiple of {shards}, or pad it"
            return Sentence(f"has {_sized(dim, index, size)}, which does not divide over {over}", span, cure)
        case UnboundNames(dim, _, unbound, span):
            cure = f"name {quoted(unbound)} as a dim of an argument, or write {{{unbound[0]}}} for an argument's value"
            return Sentence(f"has dim '{dim.size}' in its annotation, but nothing binds {quoted(unbound)}", span, cure)
        case BadExpression(_, _, reason, span):
            return Sentence(f"has an annotation without a value: {reason}", span)
        case OutsideTree(dim, span):
            cure = "write PyTree[..., \"S\"] around it, or drop the '?'"
            return Sentence(f"has '{dim}' in its annotation, outside of a PyTree with a structure name", span, cure)
        case UnknownAxis() | AxisTwice() | NoRule() | RuledTwice():
            return _word_names(failure.what)
        case WrongDtype(expected, got):
            return Sentence(f"has dtype {got}, but its annotation says {expected}", (DTYPE, 0), sizes=False)
        case Varies() | Owes() | OwesNothing() | StaysReduced() | SummedTwice() | BoundaryMark():
            return word_over_mesh(failure.what, names)
        case WrongSharding() | OtherLayout() | LiesElse() | AtOdds():
            return word_over_mesh(failure.what, names)
        case PatternFault(problem, span, cure) | WrongSize(problem, span, cure):
            return Sentence(problem, span, cure)
        case NotManual(axis, span):
            cure = "call it inside of typed_shard_map or jax.shard_map, over this axis"
            return Sentence(f"mesh axis '{axis}' is not manual here, so that nothing moves over it", span, cure)
        case NotIntegers(got):
            return Sentence(f"has dtype {got}, but ids are integers", sizes=False)
        case NotNumbers(got, verb):
            return Sentence(f"has dtype {got}, but {verb} takes numbers", sizes=False)
        case NoMember(reasons):
            labels = (f"{reason.hint}: " if reason.hint is not None else "" for reason in reasons)
            problems = (word(reason, names).problem for reason in reasons)
            told = "; ".join(f"{label}{problem}" for label, problem in zip(labels, problems, strict=True))
            return Sentence(f"fits no member of its annotation ({told})")
        case Told(problem, cure):
            return Sentence(problem, cure=cure, sizes=False)
        case _:
            return _word_structure(failure.what, failure.subject)


def _word_size(what: SizeMismatch, subject: Subject) -> Sentence:
    name = _dim_name(what.dim, what.index)
    shards = ""
    if what.shard is not None:
        shards = f" ({what.shard} per shard over {quoted(what.axes)})"
    has = f"has {_sized(what.dim, what.index, what.got)}{shards}"
    or_one = " (or 1)" if what.dim.broadcast else ""
    if what.origin is None:
        return Sentence(f"{has}, but its annotation says {what.expected}{or_one}", what.span)
    expected = equation(name, what.expected)
    if what.origin.subject == subject:
        return Sentence(f"{has} in dim {what.index}, but {expected} in dim {what.origin.dim}", what.span)
    return Sentence(f"{has}, but {what.origin.subject.phrase} has {expected}{or_one}", what.span)


def _dim_name(dim: Dim | Rest, index: int) -> str:
    """How a sentence names a dim: by its name, its label, its expression, or its index."""
    if isinstance(dim, Rest):
        return f"*{dim.name}"
    if dim.label is not None:
        return dim.label
    return f"dim {index}" if isinstance(dim.size, Anything | Number) else str(dim.size)


def _sized(dim: Dim | Rest, index: int, size: int | tuple[int, ...]) -> str:
    if isinstance(dim, Dim) and dim.label is None and not isinstance(dim.size, Name):
        is_plain = isinstance(dim.size, Anything | Number)
        return f"size {size} in dim {index}" if is_plain else f"size {size} in dim {index}, '{dim.size}'"
    return equation(_dim_name(dim, index), size)


def _word_names(what: UnknownAxis | AxisTwice | NoRule | RuledTwice) -> Sentence:
    match what:
        case UnknownAxis():
            return _word_unknown_axis(what)
        case AxisTwice(axis, span):
            return Sentence(f"uses mesh axis '{axis}' twice in its annotation", span, sizes=False)
        case NoRule(name, taken, span):
            axes = tuple(dict.fromkeys(taken))
            given = f"whose rules give {quoted(axes)}, which {'is' if len(axes) == 1 else 'are'} taken"
            why = given if taken else "which no rule names"
            cure = f"add ('{name}', None) to the rules, or write [{name}/]"
            return Sentence(f"has dim '{name}' in its annotation, {why}", span, cure, sizes=False)
        case RuledTwice(name, span):
            problem = f"has dim '{name}' twice in its annotation, so that the rule for it could mean either"
            return Sentence(problem, span, f"write [{name}/axis] or [{name}/] for one of them", sizes=False)


def _word_unknown_axis(what: UnknownAxis) -> Sentence:
    # An alias of an alias is none, and a mesh may call an axis by a number.
    aliases = what.aliases if what.written == what.axis else ()
    axis, known = str(what.axis), tuple(map(str, (*what.mesh, *aliases)))
    # "data" is far from "dp" in letters, and yet what is meant; so a first letter will do.
    alike = [name for name in known if name[:1] == axis[:1]]
    close = get_close_matches(axis, known, n=1) or (alike if len(alike) == 1 else [])
    meant = f"did you mean '{close[0]}'? " if close else ""
    alias = f" (as '{what.written}')" if what.written != axis else ""
    if what.by_rule:
        alias = f" (by the rule for '{what.written}')"
    problem = f"names mesh axis '{axis}'{alias}, which is not among the mesh's axes {quoted(what.mesh)}"
    if what.by_rule:
        return Sentence(problem, what.span, f"{meant}change the rule, or write [{what.written}/]", sizes=False)
    return Sentence(problem, what.span, f"{meant}axes={{'{what.written}': ...}} maps a name to mesh axes", sizes=False)


def _word_structure(what: object, subject: Subject) -> Sentence:
    match what:
        case NotAnArray(expected, got) | WrongType(expected, got):
            # "bias: Array = None" is a common way to say that it may be absent.
            cure = "write '| None' after its hint if it may be absent" if got == "None" else None
            is_given = subject.kind == "argument"
            return Sentence(f"is {got}, but its annotation says {expected}", None, cure if is_given else None, False)
        case WrongLength(expected, got):
            return Sentence(f"has {count(got, 'item')}, but its annotation has {expected}", sizes=False)
        case WrongKeys(missing, extra):
            parts = [f"lacks {quoted(missing)}"] if missing else []
            parts += [f"has {quoted(extra)}, which its annotation does not know"] if extra else []
            return Sentence(" and ".join(parts), sizes=False)
        case NotAPytree(cls):
            problem = f"is of class {cls}, which holds arrays and is not registered as a pytree"
            return Sentence(problem, cure=f"put @jax.tree_util.register_dataclass above {cls}", sizes=False)
        case HiddenField(cls, field):
            problem = f"holds arrays in field '{field}', which {cls} does not show JAX as a child"
            cure = f"register '{field}' among the data fields of {cls}"
            return Sentence(problem, cure=cure, sizes=False)
        case OtherStructure(name, expected, got, origin):
            problem = (
                f"has another tree structure than {origin.phrase}, which '{name}' stands for: {got}, not {expected}"
            )
            return Sentence(problem, sizes=False)
        case NoArray(got):
            return Sentence(f"is {got}, which is no array and cannot leave the manual region", sizes=False)
        case StaticArray(hint) if subject.kind == "return":
            return Sentence(f"is an array, but its annotation says {hint}", sizes=False)
        case StaticArray(hint):
            problem = f"is an array, but its annotation {hint} holds none, so the argument is static"
            return Sentence(problem, cure='annotate it as an array, as in Int[Array, ""]', sizes=False)
        case _:
            raise TypeError(f"no words for {what!r}")
