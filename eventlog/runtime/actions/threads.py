"""Blocking work of an action, on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

__all__ = ["run_to_the_end"]

T = TypeVar("T")


async def run_to_the_end(work: Callable[[], T]) -> T:
    """Run `work()` on a thread. If cancelled, wait until it has ended, and only then raise.

    So whoever holds a lock around this call may release it when the call has ended: nothing goes on behind it.
    """
    # A plain future, not a task: `asyncio.run` cancels all tasks when it ends, and would let the thread run on unseen.
    future = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        future.exception()  # Seen, so that asyncio does not complain; the next attempt finds out what happened.
        raise cancelled
    return future.result()
