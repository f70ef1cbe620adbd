"""Views that follow the log and wait for the next commit of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from eventlog.stores.entropy import jittered

__all__ = ["Commits"]


class Commits:
    """Wakes those who wait, after each commit. Of other processes they learn by looking again when time is up."""

    def __init__(self) -> None:
        self._waiting: Final[set[asyncio.Future[None]]] = set()

    def next(self) -> Callable[[float], Awaitable[None]]:
        """Return what waits, for so many seconds at the most, for the first commit from now on."""
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(committed)
        committed.add_done_callback(self._waiting.discard)

        async def wait(seconds: float) -> None:
            await asyncio.wait({committed}, timeout=jittered(seconds))
            committed.cancel()

        return wait

    def wake(self) -> None:
        """Say that something was committed, or that the log closes."""
        for future in list(self._waiting):
            if not future.done():
                future.set_result(None)
