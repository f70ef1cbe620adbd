"""openai-agents: SQLiteSession, one item a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from agents.memory.sqlite_session import SQLiteSession

from tools.bench.payloads import DICTS, taken
from tools.bench.pragmas import read_back
from tools.bench.store import Settings, at_once, timed

__all__ = ["OpenaiSessions", "open_store"]


class OpenaiSessions:
    """The sessions of one file."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._sessions: dict[str, Any] = {}

    async def settings(self) -> Settings:
        """Return what the connection of a worker thread says of itself."""
        return await asyncio.to_thread(self._settings)

    async def append(self, *, tasks: int, each: int) -> float:
        """Add one item a call, to a session a task."""
        sessions = [self._session(f"agent-{number}") for number in range(tasks)]

        async def work(number: int) -> None:
            for payload in taken(DICTS, each, first=number):
                await sessions[number].add_items([payload])

        return await at_once(tasks, work)

    async def fill(self, events: int) -> None:
        """Add all items in one call."""
        await self._session("history").add_items(list(taken(DICTS, events)))

    async def load(self) -> float:
        """Get the items of the session."""
        return await timed(self._session("history").get_items)

    def close(self) -> None:
        """Close the connections of every session."""
        for session in self._sessions.values():
            session.close()

    def _session(self, name: str) -> Any:
        if name not in self._sessions:
            self._sessions[name] = SQLiteSession(name, self._path)
        return self._sessions[name]

    def _settings(self) -> Settings:
        with self._session("history")._locked_connection() as connection:
            return read_back(connection)


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[OpenaiSessions]:
    """Open sessions on a new file."""
    sessions = OpenaiSessions(folder / "sessions.db")
    try:
        yield sessions
    finally:
        sessions.close()
