"""Blocking work of a mirror, on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["on_thread"]

T = TypeVar("T")


async def on_thread(work: Callable[..., T], *args: Any) -> T:
    """Run `work(*args)` on a thread. If cancelled, wait until it has ended, and only then raise.

    So nothing goes on behind a mirror that has been closed; each piece of work is as short as the disk lets it be.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work, *args)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        future.exception()  # seen, so that asyncio does not complain
        raise cancelled
    return future.result()
