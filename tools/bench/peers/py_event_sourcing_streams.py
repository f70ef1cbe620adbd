"""py-event-sourcing: WAL with synchronous=NORMAL, as it comes, and FULL, set on its connection from outside."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from py_event_sourcing import CandidateEvent, sqlite_stream_factory

from tools.bench.payloads import BODIES, taken
from tools.bench.pragmas import QUERIES, named
from tools.bench.store import Settings, at_once, timed

__all__ = ["PyEventSourcingStreams", "open_as_it_comes", "open_full"]

_TYPE: Final = "step_recorded"


class PyEventSourcingStreams:
    """The streams of one file."""

    def __init__(self, open_stream: Any) -> None:
        self._open_stream: Final = open_stream

    async def settings(self) -> Settings:
        """Return what the one connection that writes says of itself."""
        connection = await self._connection()
        answers = []
        for query in QUERIES:
            async with connection.execute(query) as cursor:
                answers.append((await cursor.fetchone())[0])
        return named(*answers)

    async def make_full(self) -> None:
        """Let every commit reach the disk; the library has no option for it."""
        connection = await self._connection()
        await connection.execute("PRAGMA synchronous=FULL")

    async def append(self, *, tasks: int, each: int) -> float:
        """Write one event a call, at exactly the version that the stream has."""

        async def work(number: int) -> None:
            stream = streams[number]
            for body in taken(BODIES, each, first=number):
                await stream.write([CandidateEvent(type=_TYPE, data=body)], expected_version=stream.version)

        async with AsyncExitStack() as opened:
            streams = [await opened.enter_async_context(self._open_stream(f"agent-{n}")) for n in range(tasks)]
            return await at_once(tasks, work)

    async def fill(self, events: int) -> None:
        """Write one stream in one call."""
        async with self._open_stream("history") as stream:
            await stream.write([CandidateEvent(type=_TYPE, data=body) for body in taken(BODIES, events)])

    async def load(self) -> float:
        """Read the stream and decode the JSON, which the library leaves to its user."""
        return await timed(self._read)

    async def _read(self) -> None:
        async with self._open_stream("history") as stream:
            async for event in stream.read():
                json.loads(event.data)

    async def _connection(self) -> Any:
        async with self._open_stream("settings") as stream:
            return stream.storage_handle.write_conn


@asynccontextmanager
async def open_as_it_comes(folder: Path) -> AsyncIterator[PyEventSourcingStreams]:
    """Open streams on a new file."""
    async with sqlite_stream_factory(str(folder / "streams.db")) as open_stream:
        yield PyEventSourcingStreams(open_stream)


@asynccontextmanager
async def open_full(folder: Path) -> AsyncIterator[PyEventSourcingStreams]:
    """Open streams on a new file, and give them the durability that all others have."""
    async with open_as_it_comes(folder) as streams:
        await streams.make_full()
        yield streams
