"""The view `runs` of one log, as the runtime compares it with the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from eventlog.events import run_stream
from eventlog.run import Run
from eventlog.stores.sqlite.view_registry import find_entry
from eventlog.views import ViewEvent, as_view_event
from projections.projection import Row
from projections.runs import RUNS
from projections.sqlite_views.database import ViewStore
from projections.sqlite_views.table import SqliteView

__all__ = ["RunsTable", "runs_view"]


def runs_view() -> SqliteView:
    """Return the view `runs`, to be handed to `eventlog.open(…, views=[…])`."""
    return SqliteView(RUNS)


class RunsTable:
    """The view `runs` of one log."""

    def __init__(self, log: ViewStore, view: SqliteView) -> None:
        self._log: Final = log
        self._view: Final = view
        self._of: Final = (view.name,)  # another view that has stopped keeps nobody from taking up a run

    async def row(self, run: Run) -> Mapping[str, Any]:
        """Return the row of a run, folding into it the events that it is missing.

        A row that somebody edited is returned as it is: only what is late is caught up.
        """
        row = await self._log.read_view(self._view.row, run.run_id, of=self._of)
        version = _version_of(row)
        if version >= run.version or await self._is_current(run, version):
            return row or {}
        types = self._view.selection.types
        events = [event async for event in self._log.read(run_stream(run.run_id), after=version)]
        wanted = [as_view_event(event) for event in events if event.type in types]
        await self._log.write_view(self._apply, wanted)
        return await self._log.read_view(self._view.row, run.run_id, of=self._of) or {}

    async def page(self, after: str | None = None, limit: int = 1000) -> list[Row]:
        """Return rows in the order of run ids."""
        return await self._log.read_view(self._view.rows, after, limit, of=self._of)

    def _apply(self, connection: sqlite3.Connection, events: list[ViewEvent]) -> None:
        entry = find_entry(connection, self._view.name)
        if entry is not None:
            self._view.apply(connection, entry, events)

    async def _is_current(self, run: Run, version: int) -> bool:
        """Say whether nothing behind `version` changes the row."""
        if version == 0:
            return False
        async for event in self._log.read(run_stream(run.run_id), after=version):
            if event.type in self._view.selection.types:
                return False
        return True


def _version_of(row: Row | None) -> int:
    version = row["version"] if row is not None else 0
    return version if type(version) is int and version >= 0 else 0
