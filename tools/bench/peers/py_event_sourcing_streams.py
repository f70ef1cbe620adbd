"""py-event-sourcing: WAL with synchronous=NORMAL, as it comes, and FULL, set on its connection from outside.

Its streams are open only while they are measured: as long as they are, it polls the database in the background, and
every store in the same process becomes two to three times slower.
"""

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

    def __init__(self, path: Path, *, is_full: bool) -> None:
        self._path: Final = path
        self._is_full: Final = is_full

    async def settings(self) -> Settings:
        """Return what the one connection that writes says of itself."""
        async with self._opened() as open_stream:
            connection = await _connection(open_stream)
            answers = []
            for query in QUERIES:
                async with connection.execute(query) as cursor:
                    answers.append((await cursor.fetchone())[0])
            return named(*answers)

    async def append(self, *, tasks: int, each: int) -> float:
        """Write one event a call, at exactly the version that the stream has."""

        async def work(number: int) -> None:
            stream = streams[number]
            for body in taken(BODIES, each, first=number):
                await stream.write([CandidateEvent(type=_TYPE, data=body)], expected_version=stream.version)

        async with AsyncExitStack() as opened:
            open_stream = await opened.enter_async_context(self._opened())
            streams = [await opened.enter_async_context(open_stream(f"agent-{n}")) for n in range(tasks)]
            return await at_once(tasks, work)

    async def fill(self, events: int) -> None:
        """Write one stream in one call."""
        async with self._opened() as open_stream, open_stream("history") as stream:
            await stream.write([CandidateEvent(type=_TYPE, data=body) for body in taken(BODIES, events)])

    async def load(self) -> float:
        """Read the stream and decode the JSON, which the library leaves to its user."""
        async with self._opened() as open_stream:
            return await timed(lambda: _read(open_stream))

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Any]:
        """Open the file, and let every commit reach the disk if asked to; the library has no option for it."""
        async with sqlite_stream_factory(str(self._path)) as open_stream:
            if self._is_full:
                await (await _connection(open_stream)).execute("PRAGMA synchronous=FULL")
            yield open_stream


async def _read(open_stream: Any) -> None:
    async with open_stream("history") as stream:
        async for event in stream.read():
            json.loads(event.data)


async def _connection(open_stream: Any) -> Any:
    async with open_stream("settings") as stream:
        return stream.storage_handle.write_conn


@asynccontextmanager
async def open_as_it_comes(folder: Path) -> AsyncIterator[PyEventSourcingStreams]:
    """Give streams on a new file."""
    yield PyEventSourcingStreams(folder / "streams.db", is_full=False)


@asynccontextmanager
async def open_full(folder: Path) -> AsyncIterator[PyEventSourcingStreams]:
    """Give streams on a new file, with the durability that all others have."""
    yield PyEventSourcingStreams(folder / "streams.db", is_full=True)
