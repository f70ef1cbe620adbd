"""The engine itself, through its public API: typed events, the expected version of every append, all hashes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import eventlog
from eventlog import Append, Expect
from eventlog.stores import SqliteLog
from tools.bench.payloads import STEPS, StepRecorded, taken
from tools.bench.pragmas import read_back
from tools.bench.store import Settings, at_once, timed

__all__ = ["BATCH", "Ours", "open_log", "open_store", "open_with_normal_durability"]

BATCH: Final = 1000


class Ours:
    """A log, and where its streams stand."""

    def __init__(self, log: SqliteLog) -> None:
        self.log: Final = log
        self._versions: dict[str, int] = {}

    async def settings(self) -> Settings:
        """Return what the writer's connection says of itself."""
        return await self.log.write_view(read_back)

    async def append(self, *, tasks: int, each: int) -> float:
        """Append one event a call, at exactly the version that the stream has."""

        async def work(number: int) -> None:
            stream = f"agent-{number}"
            version = self._versions.get(stream, 0)
            for step in taken(STEPS, each, first=number):
                result = await self.log.append(stream, [step], expect=Expect.at(version))
                version = result.version
            self._versions[stream] = version

        return await at_once(tasks, work)

    async def append_batches(self, *, batches: int, stream: str = "batches") -> float:
        """Append 1000 events of one stream a call."""
        steps = list(taken(STEPS, BATCH))

        async def work() -> None:
            for _ in range(batches):
                result = await self.log.append(stream, steps, expect=Expect.at(self._versions.get(stream, 0)))
                self._versions[stream] = result.version

        return await timed(work)

    async def append_rounds(self, streams: list[str], *, batches: int) -> float:
        """Append one event to each of the streams a call."""
        batch = [
            Append(stream, [step], Expect.any())
            for stream, step in zip(streams, taken(STEPS, len(streams)), strict=True)
        ]

        async def work() -> None:
            for _ in range(batches):
                await self.log.append_many(batch)

        return await timed(work)

    async def fill(self, events: int) -> None:
        """Write the stream that `load` reads."""
        for first in range(0, events, BATCH):
            steps = list(taken(STEPS, min(BATCH, events - first)))
            await self.log.append("history", steps, expect=Expect.at(first))
        self._versions["history"] = events

    async def load(self) -> float:
        """Read the stream: every event verified against its leaf and decoded to its Struct."""
        loaded = 0

        async def work() -> None:
            nonlocal loaded
            found = await self.log.read_stream("history")
            loaded = sum(isinstance(event.data, StepRecorded) for event in found.events)

        seconds = await timed(work)
        assert loaded == self._versions["history"], "every event came back as its Struct"
        return seconds


@asynccontextmanager
async def open_log(path: Path, durability: Literal["full", "normal"] = "full") -> AsyncIterator[SqliteLog]:
    """Open a log in a file; it is an SQLite log, whose views and file the harness may look at."""
    async with eventlog.open(path, actor="bench", durability=durability) as log:
        assert isinstance(log, SqliteLog), "a path names a file"
        yield log


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[Ours]:
    """Open a log as every user gets it."""
    async with open_log(folder / "log.db") as log:
        yield Ours(log)


@asynccontextmanager
async def open_with_normal_durability(folder: Path) -> AsyncIterator[Ours]:
    """The negative control of the count of syncs: a log that does not sync each commit."""
    async with open_log(folder / "log.db", durability="normal") as log:
        yield Ours(log)
