"""Run a generator or a coroutine in the scope of its call, which is current only during its steps.

Between two steps the caller's scope is current."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from ..records import Record
from .context import CallScope, scope_entered

Check = Callable[[Any], Any]
"""Checks a value, and returns the value to pass on."""


def in_scope(body: Any, scope: CallScope, check_item: Check, check_result: Check) -> Any:
    """A generator, perhaps asynchronous, that runs in a scope."""
    if inspect.isasyncgen(body):
        return _async_generator(body, scope, check_item)
    return _generator(body, scope, check_item, check_result) if inspect.isgenerator(body) else body


class AwaitedInScope(Record):
    """An awaitable that runs in a scope."""

    body: Any
    scope: CallScope

    def __await__(self) -> Generator[Any, Any, Any]:
        return _generator(self.body, self.scope, _unchecked, _unchecked)


def _unchecked(value: Any) -> Any:
    return value


def _generator(body: Any, scope: CallScope, check_item: Check, check_result: Check) -> Generator[Any, Any, Any]:
    step, sent, is_last = body.send, None, False
    while True:
        with scope_entered(scope):
            try:
                item = step(sent)
            except StopIteration as end:
                item, is_last = end.value, True
        if is_last:
            return check_result(item)
        item = check_item(item)
        try:
            step, sent = body.send, (yield item)
        except GeneratorExit:
            with scope_entered(scope):
                body.close()
            raise
        except BaseException as error:
            step, sent = body.throw, error


async def _async_generator(body: Any, scope: CallScope, check_item: Check) -> AsyncGenerator[Any, Any]:
    step = body.asend(None)
    while True:
        try:
            item = await AwaitedInScope(step, scope)
        except StopAsyncIteration:
            return
        item = check_item(item)
        try:
            step = body.asend((yield item))
        except GeneratorExit:
            await AwaitedInScope(body.aclose(), scope)
            raise
        except BaseException as error:
            step = body.athrow(error)
