"""A crowd of subscribers, and writers for them: most on a run of their own, one in a hundred on the whole log.

One in ten is slow and takes a while for each event. Every one of them checks that it misses nothing and gets nothing
twice: versions of its own run, or positions of the log, follow one another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from typing import Final

from eventlog import EventReader, Expect, RecordedEvent
from eventlog.stores import SqliteLog
from tools.bench.payloads import STEPS

__all__ = ["RUNS", "Crowd", "write_for"]

RUNS: Final = 1000
_SLOW_S: Final = 0.02
_PATIENCE_S: Final = 60.0


class Crowd:
    """So many subscribers of one log: up to 1000 on runs of their own, those beyond that on the whole log."""

    def __init__(self, log: EventReader, size: int) -> None:
        self._log: Final = log
        self._size: Final = size
        self._quick: Final[list[_Watcher]] = []

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Crowd]:
        """Have all of them caught up, and follow the log until the end of the block."""
        watchers = [_Watcher(number, None if number >= RUNS else f"agent-{number}") for number in range(self._size)]
        self._quick[:] = [watcher for watcher in watchers if not watcher.is_slow]
        tasks = [asyncio.create_task(watcher.watch(self._log)) for watcher in watchers]
        try:
            for watcher in watchers:
                await watcher.is_there.wait()
            yield self
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
        if failed:
            raise ValueError(f"{len(failed)} subscribers failed, the first with {failed[0]!r}")

    async def until_served(self, versions: dict[str, int]) -> None:
        """Wait until each one that is quick has all of what it follows."""
        head = sum(versions.values())
        async with asyncio.timeout(_PATIENCE_S):
            for watcher in self._quick:
                wanted = head if watcher.stream is None else versions.get(watcher.stream, 0)
                while watcher.last < wanted:  # noqa: ASYNC110  (an event a watcher would cost what is measured)
                    await asyncio.sleep(0.002)


class _Watcher:
    """One subscriber."""

    def __init__(self, number: int, stream: str | None) -> None:
        self.stream: Final = stream
        self.is_slow: Final = number % 10 == 9
        self.is_there: Final = asyncio.Event()
        self.last = 0

    async def watch(self, log: EventReader) -> None:
        feed = log.subscribe(streams=None if self.stream is None else [self.stream], marks=True)
        async with aclosing(feed):
            async for item in feed:
                self.is_there.set()
                if isinstance(item, RecordedEvent):
                    self._check(item.position if self.stream is None else item.version)
                    if self.is_slow:
                        await asyncio.sleep(_SLOW_S)

    def _check(self, number: int) -> None:
        if number != self.last + 1:
            raise ValueError(f"{self.stream or 'the log'}: {number} came behind {self.last}")
        self.last = number


async def write_for(log: SqliteLog, seconds: float, *, tasks: int) -> tuple[float, dict[str, int]]:
    """Append events to the runs, one a call, from so many tasks; return events a second, and the version of each run.

    All tasks together touch every run, so that every subscriber has something to do.
    """
    versions: dict[str, int] = {}
    began_s = time.perf_counter()
    end_s = began_s + seconds

    async def write(task: int) -> None:
        for number in count(task, tasks):
            stream = f"agent-{number % RUNS}"
            version = versions.get(stream, 0)
            result = await log.append(stream, [STEPS[number % len(STEPS)]], expect=Expect.at(version))
            versions[stream] = result.version
            if time.perf_counter() >= end_s:
                return

    async with asyncio.TaskGroup() as group:
        for task in range(tasks):
            group.create_task(write(task))
    return sum(versions.values()) / (time.perf_counter() - began_s), versions
