"""Views as SQLite tables, written with the connection and inside the transaction that the log hands in.

`SqliteView` keeps the table of one projection. `RunsTable` is the view of runs as the runtime compares it with the log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from eventlog.events import run_stream
from eventlog.log import RecordedEvent
from eventlog.run import Run
from projections.projection import Projection, Row
from projections.runs import RUNS

__all__ = ["Difference", "RunsTable", "SqliteView", "ViewStore", "differences", "runs_view"]

T = TypeVar("T")


class ViewStore(Protocol):
    """What a view needs of a log in SQLite: reading events, and a connection for a moment. It cannot append."""

    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> AsyncIterator[RecordedEvent]:
        """Give the events of `stream` behind version `after`."""

    def read_all(self, *, after: int = 0, limit: int | None = None) -> AsyncIterator[RecordedEvent]:
        """Give the events of the log behind position `after`."""

    async def read_view(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` once the inline views are at the head."""

    async def write_view(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function(connection, *args)` in one write transaction."""


class SqliteView:
    """The table of one projection, named like it."""

    def __init__(self, projection: Projection) -> None:
        self._projection: Final = projection
        names = list(projection.columns)
        self._names: Final = names
        self._key: Final = names[0]
        columns = ", ".join(f"{name} {kind}" for name, kind in projection.columns.items())
        self._create: Final = f"CREATE TABLE {projection.name} ({columns}) STRICT"
        self._select: Final = f"SELECT {', '.join(names)} FROM {projection.name}"
        self._upsert: Final = (
            f"INSERT INTO {projection.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
            f"ON CONFLICT ({names[0]}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in names[1:])}"
        )

    @property
    def name(self) -> str:
        """The name of the view and of its table."""
        return self._projection.name

    @property
    def revision(self) -> int:
        """The revision of the projection."""
        return self._projection.revision

    @property
    def event_types(self) -> frozenset[str]:
        """The event types that may change the view."""
        return self._projection.event_types

    @property
    def key_column(self) -> str:
        """The column that identifies a row."""
        return self._key

    @property
    def projection(self) -> Projection:
        """The fold behind the table."""
        return self._projection

    def exists(self, connection: sqlite3.Connection) -> bool:
        """Say whether the table is there."""
        found = connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (self.name,))
        return found.fetchone() is not None

    def create(self, connection: sqlite3.Connection) -> None:
        """Create the table, empty."""
        connection.execute(self._create)

    def drop(self, connection: sqlite3.Connection) -> None:
        """Drop the table, if there is one."""
        connection.execute(f"DROP TABLE IF EXISTS {self.name}")

    def apply(self, connection: sqlite3.Connection, events: Sequence[RecordedEvent]) -> None:
        """Fold the events into their rows and write each changed row once."""
        changed: dict[str, Row] = {}
        for event in events:
            key = self._projection.key(event)
            if key is None:
                continue
            row = self._projection.apply(changed.get(key) or self.row(connection, key), event)
            if row is not None:
                changed[key] = row
        connection.executemany(self._upsert, [tuple(row[name] for name in self._names) for row in changed.values()])

    def row(self, connection: sqlite3.Connection, key: str) -> Row | None:
        """Return one row by its key."""
        found = connection.execute(f"{self._select} WHERE {self._key} = ?", (key,)).fetchone()
        return None if found is None else dict(zip(self._names, found, strict=True))

    def rows(self, connection: sqlite3.Connection, after: str | None, limit: int) -> list[Row]:
        """Return up to `limit` rows in the order of their keys, those behind `after` if given."""
        where = "" if after is None else f"WHERE {self._key} > ?"
        arguments = (limit,) if after is None else (after, limit)
        found = connection.execute(f"{self._select} {where} ORDER BY {self._key} LIMIT ?", arguments).fetchall()
        return [dict(zip(self._names, values, strict=True)) for values in found]


def runs_view() -> SqliteView:
    """Return the view `runs`, to be handed to `eventlog.open(…, views=[…])`."""
    return SqliteView(RUNS)


class RunsTable:
    """The view `runs` of one log."""

    def __init__(self, log: ViewStore, view: SqliteView) -> None:
        self._log: Final = log
        self._view: Final = view

    async def row(self, run: Run) -> Mapping[str, Any]:
        """Return the row of a run, folding into it the events that it is missing.

        A row that somebody edited is returned as it is: only what is late is caught up.
        """
        row = await self._log.read_view(self._view.row, run.run_id)
        version = _version_of(row)
        if version >= run.version or await self._is_current(run, version):
            return row or {}
        events = [event async for event in self._log.read(run_stream(run.run_id), after=version)]
        wanted = [event for event in events if event.type in self._view.event_types]
        await self._log.write_view(self._view.apply, wanted)
        return await self._log.read_view(self._view.row, run.run_id) or {}

    async def page(self, after: str | None = None, limit: int = 1000) -> list[Row]:
        """Return rows in the order of run ids."""
        return await self._log.read_view(self._view.rows, after, limit)

    async def _is_current(self, run: Run, version: int) -> bool:
        """Say whether nothing behind `version` changes the row."""
        if version == 0:
            return False
        async for event in self._log.read(run_stream(run.run_id), after=version):
            if event.type in self._view.event_types:
                return False
        return True


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A row that is not what the log says. `stored` or `expected` is None where the row exists on one side only."""

    key: str
    columns: list[str]
    stored: Row | None
    expected: Row | None


async def differences(log: ViewStore, view: SqliteView, *, limit: int = 100) -> list[Difference]:
    """Fold the whole log afresh and compare row by row; return up to `limit` differences in the order of their keys."""
    expected = await _fold(log.read_all(), view.projection)
    stored: dict[str, Row] = {}
    after: str | None = None
    while page := await log.read_view(view.rows, after, 1000):
        stored |= {str(row[view.key_column]): row for row in page}
        after = str(page[-1][view.key_column])
    found = (_compare(key, stored.get(key), expected.get(key)) for key in sorted(stored.keys() | expected.keys()))
    return _first(limit, (difference for difference in found if difference is not None))


async def _fold(events: AsyncIterator[RecordedEvent], projection: Projection) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    async for event in events:
        key = projection.key(event) if event.type in projection.event_types else None
        if key is None:
            continue
        row = projection.apply(rows.get(key), event)
        if row is not None:
            rows[key] = row
    return rows


def _compare(key: str, stored: Row | None, expected: Row | None) -> Difference | None:
    if stored == expected:
        return None
    names = (expected or stored or {}).keys()
    columns = [name for name in names if (stored or {}).get(name) != (expected or {}).get(name)]
    return Difference(key=key, columns=columns, stored=stored, expected=expected)


def _first(limit: int, items: Iterable[Difference]) -> list[Difference]:
    return [item for _, item in zip(range(limit), items, strict=False)]


def _version_of(row: Row | None) -> int:
    version = row["version"] if row is not None else 0
    return version if type(version) is int and version >= 0 else 0
