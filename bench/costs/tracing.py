"""One program on both sides, traced or lowered anew at every call, by time and by the calls that Python makes."""

import cProfile
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from .timing import Effort, Turns, take_turns

Program = Callable[..., Any]
TRIES = 3


def trace(f: Program, args: tuple[Any, ...]) -> Any:
    # jit caches by function, so each time it is given a new one.
    return jax.jit(lambda *args: f(*args)).trace(*args)


def lower(f: Program, args: tuple[Any, ...]) -> Any:
    return jax.jit(lambda *args: f(*args)).lower(*args)


def traced(ours: Program, other: Program, args: tuple[Any, ...], effort: Effort) -> Turns:
    return take_turns(partial(trace, ours, args), partial(trace, other, args), effort, tries=TRIES)


def lowered(ours: Program, other: Program, args: tuple[Any, ...], effort: Effort) -> Turns:
    return take_turns(partial(lower, ours, args), partial(lower, other, args), effort, tries=TRIES)


def calls_traced(ours: Program, other: Program, args: tuple[Any, ...]) -> tuple[int, int]:
    return calls(partial(trace, ours, args)), calls(partial(trace, other, args))


def calls_lowered(ours: Program, other: Program, args: tuple[Any, ...]) -> tuple[int, int]:
    return calls(partial(lower, ours, args)), calls(partial(lower, other, args))


def calls(run: Callable[[], Any]) -> int:
    """How many calls Python makes of its functions and of those written in C; what is cached is cached by then."""
    run()
    run()
    gc.collect()
    profile = cProfile.Profile()
    profile.enable()
    run()
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())
