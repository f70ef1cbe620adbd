"""Cancelling a coroutine at exactly its n-th await."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

__all__ = ["CancelledAt", "cancel_at"]

T = TypeVar("T")


class CancelledAt:
    """What became of a coroutine: how often it waited, and whether it got as far as its cancellation."""

    def __init__(self) -> None:
        self.awaits = 0
        self.was_cancelled = False


async def cancel_at(coroutine: Coroutine[Any, Any, T], number: int, seen: CancelledAt) -> T:
    """Run a coroutine and cancel the task the moment it waits for the `number`-th time, counted from 1."""
    return await _drive(coroutine, number, seen)


@types.coroutine
def _drive(coroutine: Coroutine[Any, Any, T], number: int, seen: CancelledAt) -> Generator[Any, Any, T]:
    task = asyncio.current_task()
    assert task is not None
    error: BaseException | None = None
    while True:
        try:
            awaited = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        error = None
        seen.awaits += 1
        if seen.awaits == number:
            seen.was_cancelled = True
            task.cancel()  # takes effect at the yield below
        try:
            yield awaited
        except BaseException as thrown:  # handed on to where the coroutine waits
            error = thrown
