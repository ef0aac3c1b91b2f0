"""A program written twice, by `typed_shard_map` and by `jax.shard_map`: one text, one result."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax

from typedshmap._jax.versions import DROPS_UNUSED


def text_of(f: Callable[..., Any], *args: Any) -> str:
    """The StableHLO of a program under a name that is the same for every function."""

    def program(*args: Any) -> Any:
        return f(*args)

    text = jax.jit(program).lower(*args).as_text()
    # There functions are numbered by all operations, also by those that leave nothing behind.
    return re.sub(r"(@\w+?)_\d+\b", r"\1", text) if DROPS_UNUSED else text


def expect_same_program(typed: Callable[..., Any], by_hand: Callable[..., Any], *args: Any) -> None:
    """Expect one text of both, and so one program; it is run once, to see that it runs."""
    assert text_of(typed, *args) == text_of(by_hand, *args)
    jax.block_until_ready(jax.jit(typed)(*args))
