"""Logs in real files for the adapters: checked when they are closed, and usable from code that blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from eventlog.log import EventLog
from tools.campaigns.storage.log_files import assert_whole, open_file

__all__ = ["BlockingFeed", "LogThread", "checked_log", "first", "taken"]

T = TypeVar("T")

_PATIENCE_S: Final = 60.0
_LOOK_AROUND_S: Final = 0.05


@asynccontextmanager
async def checked_log(path: Path) -> AsyncIterator[EventLog]:
    """Open the log at `path`; at the end check every event in it, and close it."""
    async with open_file(path, actor="service:conformance") as log:
        yield log
        await assert_whole(log)


async def taken(events: AsyncIterator[T]) -> list[T]:
    """Return all that an iterator gives."""
    return [event async for event in events]


async def first(events: AsyncIterator[T]) -> T | None:
    """Return the first thing that an iterator of at most one gives, or None."""
    return next(iter(await taken(events)), None)


class LogThread:
    """An open log on an event loop in a thread of its own, for callers that block and come from any thread."""

    def __init__(self, path: Path) -> None:
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._loop.run_forever, name="log", daemon=True)
        self._thread.start()
        self._opening: Final = checked_log(path)
        self.log: Final = self.call(self._opening.__aenter__())

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin `work` on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns on the loop."""
        return self.start(work).result(_PATIENCE_S)

    def close(self) -> None:
        """Check and close the log and end the thread."""
        try:
            self.call(self._opening.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class BlockingFeed(Generic[T]):
    """A subscription for a caller that blocks, and that any thread may stop."""

    def __init__(self, thread: LogThread, feed: AsyncGenerator[T, None]) -> None:
        self._thread: Final = thread
        self._feed: Final = feed
        self._stopped: Final = threading.Event()
        self._step: asyncio.Task[Any] | None = None

    def next(self) -> T | None:
        """Return the next event as soon as there is one, or None once the feed was stopped."""
        if self._stopped.is_set():
            return None
        waiting = self._thread.start(self._anext())
        while not wait([waiting], timeout=_LOOK_AROUND_S).done:
            if self._stopped.is_set():
                return None
        return None if self._stopped.is_set() else waiting.result()

    def stop(self) -> None:
        """End the feed. May be called twice."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.call(self._close())

    async def _anext(self) -> T:
        self._step = asyncio.current_task()
        return await anext(self._feed)

    async def _close(self) -> None:
        if self._step is not None and not self._step.done():
            self._step.cancel()
            await asyncio.wait({self._step})
        await self._feed.aclose()
