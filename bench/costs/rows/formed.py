"""One training step in several forms, by calls and by time: what hints, checks and patterns add to it by hand."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import forms
import programs

from ..benchmark import Benchmark, Result, benchmark, counted, of_counts, of_times
from ..meshes import make_mesh
from ..timing import Effort
from ..tracing import calls, lower, lowered, trace, traced

GROUP = "forms"
JAXTYPING = "by jaxtyping"
# How its layers come, how many they are; and a program, what is done with it.
LAYERS = {"unrolled": 16, "scanned": 32}
PROGRAMS: dict[str, tuple[Callable[..., programs.Pair], Callable[..., Any]]] = {
    "forward pass": (programs.inference, trace),
    "gradient step": (programs.training, lower),
}
TIMED = {"forward pass": traced, "gradient step": lowered}
MEANS = {
    "hints at the boundary": "the body is the same: what the boundary's hints and the inference add",
    "checked by our hints": "its functions are checked by `typed`: shapes, dtypes, sharding, varying, partial sums",
    "in patterns": "its products and collectives are patterns, its functions checked by `typed`",
    JAXTYPING: "its functions are checked by `@jaxtyped(typechecker=beartype)`: shapes and dtypes of shards",
}
# What is over the goal of 6 %, and why.
FLOORS = {
    ("forward pass", "scanned", "checked by our hints"): (
        "; a claim in a loop is an equation, which is 40 calls of JAX's own: 17 of them, with the hints at the "
        "boundary, are 5.4 %"
    )
}
DONE = {"forward pass": "Its trace", "gradient step": "The trace and lowering of loss, gradients and update"}


@cache
def _pair(program: str, kind: str, form: str) -> programs.Pair:
    return PROGRAMS[program][0](make_mesh(4, 2), LAYERS[kind], forms.FORMS[form](), kind == "scanned")


@cache
def _calls_by_hand(program: str, kind: str) -> int:
    pair = _pair(program, kind, "hints at the boundary")
    return calls(partial(PROGRAMS[program][1], pair.by_hand, pair.args))


def _row(program: str, kind: str, form: str, is_counted: bool) -> Benchmark:
    run = PROGRAMS[program][1]

    def count(effort: Effort) -> Result:
        pair = _pair(program, kind, form)
        return of_counts(calls(partial(run, pair.typed, pair.args)), _calls_by_hand(program, kind))

    def measure(effort: Effort) -> Result:
        pair = _pair(program, kind, form)
        return of_times(TIMED[program](pair.typed, pair.by_hand, pair.args, effort))

    name = f"{program} of {LAYERS[kind]} {kind} layers, {form}"
    if is_counted:
        count.__doc__ = f"The calls that Python makes for the same{FLOORS.get((program, kind, form), '')}."
        made = benchmark(GROUP, f"{name}, calls", None) if form == JAXTYPING else counted(GROUP, f"{name}, calls")
        return made(count)
    measure.__doc__ = f"{DONE[program]}; {MEANS[form]}."
    return benchmark(GROUP, name, None)(measure)  # its calls are judged


ROWS: tuple[Benchmark, ...] = (
    *(
        _row(program, kind, form, is_counted)
        for program in PROGRAMS
        for kind in LAYERS
        for form in forms.FORMS
        for is_counted in (False, True)
    ),
)
