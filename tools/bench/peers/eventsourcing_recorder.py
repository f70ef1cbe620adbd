"""eventsourcing: its SQLite recorder for writing and for the feed, its repository for loading an aggregate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
from eventsourcing.persistence import StoredEvent

from tools.bench.payloads import BODIES, DICTS, taken
from tools.bench.pragmas import read_back
from tools.bench.store import Settings, timed

__all__ = ["THREADS", "EventsourcingRecorder", "open_store"]

THREADS: Final = 10
_TOPIC: Final = "tools.bench:StepRecorded"
_PAGE: Final = 1000


class Session(Aggregate):  # type: ignore[misc]  # its package is not followed, so that the check runs without it
    """An agent's session: an aggregate that counts its steps."""

    def __init__(self) -> None:
        self.steps = 0

    class StepRecorded(Aggregate.Event):  # type: ignore[misc]
        """A step, with the fields of the payload."""

        tool: str
        call_id: str
        arguments: str
        result: str
        tokens: int
        seconds: float

        def apply(self, aggregate: Any) -> None:
            """Count the step."""
            aggregate.steps += 1


class EventsourcingRecorder:
    """An application with its recorder. It is synchronous: one task is one thread, many tasks are ten."""

    def __init__(self, application: Any) -> None:
        self._application: Final = application
        self._recorder: Final = application.recorder
        self._history: UUID | None = None

    async def settings(self) -> Settings:
        """Return what a connection of the writer's pool says of itself."""
        with self._recorder.datastore.get_connection(commit=True) as connection:
            return read_back(connection._sqlite_conn)

    async def append(self, *, tasks: int, each: int) -> float:
        """Insert one stored event a call: on this thread for one task, else on ten threads."""
        prepared = [_stored(each, first=number) for number in range(tasks)]
        if tasks == 1:
            return await timed(lambda: _async(self._insert_each, prepared[0]))
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(self._insert_each, [_stored(1) for _ in range(THREADS)]))  # opens the connections
            return await timed(lambda: _in_threads(threads, self._insert_each, prepared))

    async def fill(self, events: int) -> None:
        """Save an aggregate with that many events."""
        session = Session()
        for payload in taken(DICTS, events - 1):
            session.trigger_event(Session.StepRecorded, **payload)
        self._application.save(session)
        self._history = session.id

    async def load(self) -> float:
        """Get the aggregate from the repository."""
        return await timed(lambda: _async(self._application.repository.get, self._history))

    async def load_stored(self) -> float:
        """Select the aggregate's events and decode their JSON, without the repository."""
        return await timed(lambda: _async(self._select))

    def fill_feed(self, events: int) -> None:
        """Write that many stored events, in big transactions."""
        for first in range(0, events, _PAGE):
            self._recorder.insert_events(_stored(min(_PAGE, events - first)))

    async def read_feed(self) -> float:
        """Select all notifications, page by page, and decode their JSON."""
        return await timed(lambda: _async(self._read_notifications))

    def _insert_each(self, events: list[Any]) -> None:
        for event in events:
            self._recorder.insert_events([event])

    def _select(self) -> None:
        for event in self._recorder.select_events(self._history):
            json.loads(event.state)

    def _read_notifications(self) -> None:
        start = 1
        while page := self._recorder.select_notifications(start, _PAGE):
            for notification in page:
                json.loads(notification.state)
            start = page[-1].id + 1


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[EventsourcingRecorder]:
    """Open an application on a new file."""
    environment = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(folder / "eventsourcing.db")}
    application = Application(env=environment)
    try:
        yield EventsourcingRecorder(application)
    finally:
        application.close()


def _stored(count: int, *, first: int = 0) -> list[Any]:
    originator = uuid4()
    bodies = taken(BODIES, count, first=first)
    return [StoredEvent(originator, version, _TOPIC, body) for version, body in enumerate(bodies, start=1)]


async def _async(function: Any, *args: Any) -> None:
    function(*args)


async def _in_threads(threads: ThreadPoolExecutor, function: Any, parts: list[Any]) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(loop.run_in_executor(threads, function, part) for part in parts))
