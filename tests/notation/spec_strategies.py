"""Hypothesis strategies for the nodes that the grammar can produce."""

from dataclasses import replace

from hypothesis import strategies as st

from typedshmap.notation.spec import (
    Anything,
    Argument,
    Axes,
    Binary,
    Braces,
    Call,
    Dim,
    Expression,
    Group,
    Mark,
    Name,
    Negative,
    Number,
    Rest,
    Spec,
)

AXES = ("dp", "tp", "sp", "fsdp", "_x")

names = st.sampled_from(("a", "b", "batch", "d2", "min", "größe"))
numbers = st.builds(Number, st.integers(0, 10**20))
steps = st.lists(st.one_of(names, st.integers(-9, 99)), max_size=3).map(tuple)
arguments = st.builds(Argument, names, steps)
in_braces = st.one_of(numbers, arguments, st.builds(Binary, arguments, st.sampled_from("+-%"), numbers))
leaves = st.one_of(numbers, st.builds(Name, names), st.builds(Braces, in_braces))


def chains(terms: st.SearchStrategy[Expression], *operators: str) -> st.SearchStrategy[Expression]:
    """Left-associative chains of up to three terms."""

    def folded(parts: tuple[Expression, list[tuple[str, Expression]]]) -> Expression:
        left, rest = parts
        for operator, right in rest:
            left = Binary(left, operator, right)
        return left

    following = st.tuples(st.sampled_from(operators), terms)
    return st.tuples(terms, st.lists(following, max_size=2)).map(folded)


def sums(atoms: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    """Every precedence level of the grammar once, over these atoms."""
    signed = st.one_of(atoms, st.builds(Negative, atoms))
    powers = st.builds(Binary, atoms, st.just("**"), signed)
    unary = st.one_of(signed, powers, st.builds(Negative, powers))
    return chains(chains(unary, "*", "//", "%"), "+", "-")


def nested(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    arguments = st.lists(inner, min_size=1, max_size=3).map(tuple)
    calls = st.builds(Call, st.sampled_from(("min", "max")), arguments)
    return sums(st.one_of(leaves, st.builds(Group, inner), calls))


# Shorter than what a dim may be, which counts its tokens.
expressions = st.recursive(sums(leaves), nested, max_leaves=5).filter(lambda expression: len(str(expression)) < 150)


def _readable(dim: Dim) -> Dim:
    """A leading minus would be read as a mark, unless something stands before it."""
    is_bare = dim.axes is None and dim.label is None and not dim.broadcast
    return replace(dim, size=Group(dim.size)) if is_bare and str(dim).startswith("-") else dim


@st.composite
def dims(draw: st.DrawFn, free: list[str]) -> Dim:
    """One dim, taking its mesh axes from those that are free."""
    per_leaf, broadcast = draw(st.booleans()), draw(st.booleans())
    anything = st.builds(Anything, st.sampled_from(("_", "_n", "__")))
    sizes = st.one_of(leaves, expressions) if broadcast else st.one_of(leaves, anything, expressions)
    size = draw(st.builds(Name, names) if per_leaf else sizes)
    label = draw(st.one_of(st.none(), names))
    count = draw(st.one_of(st.none(), st.integers(0, 0 if broadcast else min(2, len(free)))))
    axes = None if count is None else Axes(tuple(free.pop() for _ in range(count)), bool(count) and draw(st.booleans()))
    return _readable(Dim(size, axes, broadcast, per_leaf, label))


rests = st.one_of(st.just(Rest()), st.builds(Rest, names, st.booleans(), st.booleans()))


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """A whole spec: at most one Rest, no mesh axis twice."""
    free = list(draw(st.permutations(AXES)))
    found = [draw(dims(free)) for _ in range(draw(st.integers(0, 3)))]
    if draw(st.booleans()):
        found.insert(draw(st.integers(0, len(found))), draw(rests))
    count = draw(st.integers(0, len(free)))
    return Spec(tuple(found), tuple(Mark(draw(st.sampled_from("+-~")), free.pop()) for _ in range(count)))
