"""Work that has to come to its end, however often whoever waits for it is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["undisturbed"]

T = TypeVar("T")


async def undisturbed(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns, or raise what it raises; a cancellation is raised only once it has ended.

    One `asyncio.shield` is not enough: a second cancellation leaves it, and the work goes on behind it unseen.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen, so that asyncio does not complain
        raise cancelled
    return task.result()
