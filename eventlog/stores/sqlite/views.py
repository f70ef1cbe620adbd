"""Views that live in the log's database and are written in the append's own transaction.

Which views a log has, and up to which position each is written, is recorded in the table `views`, in the same
transaction as the view's rows. A process that appends without knowing a view leaves it behind, visibly; the next one
that knows it brings it up before anybody reads. A view that raises is rolled back to a savepoint and stays behind
alone: the append goes on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Final, Protocol

from eventlog.errors import EventLogError
from eventlog.log import RecordedEvent
from eventlog.stores.requests import Wanted
from eventlog.stores.sqlite.rows import Rows
from eventlog.stores.telemetry import logger

__all__ = ["InlineView", "Views"]

_CATCH_UP_PAGE: Final = 1000

_POSITION: Final = "SELECT position FROM views WHERE name = ? AND revision = ?"
_NEWEST: Final = "SELECT max(revision) FROM views WHERE name = ?"
_FORGET: Final = "DELETE FROM views WHERE name = ?"
_REGISTER: Final = "INSERT INTO views (name, revision, position) VALUES (?, ?, 0)"
_MOVE: Final = "UPDATE views SET position = ? WHERE name = ? AND revision = ? AND position = ?"


class InlineView(Protocol):
    """A view that is kept with plain SQL. The projections that ship with the engine provide such objects."""

    @property
    def name(self) -> str:
        """The name of the view."""

    @property
    def revision(self) -> int:
        """Raised when the view's shape or meaning changes."""

    @property
    def event_types(self) -> frozenset[str]:
        """The event types that change the view."""

    def exists(self, connection: sqlite3.Connection) -> bool:
        """Say whether the view's tables are there."""

    def create(self, connection: sqlite3.Connection) -> None:
        """Create the view's tables, empty."""

    def drop(self, connection: sqlite3.Connection) -> None:
        """Drop the view's tables, also those of an earlier revision."""

    def apply(self, connection: sqlite3.Connection, events: Sequence[RecordedEvent]) -> None:
        """Write what these events, in position order, change. Called inside a transaction; commits nothing."""


class Views:
    """The inline views that this process knows. Used on the writer's thread."""

    def __init__(self, views: Iterable[InlineView], make_rows: Callable[[], Rows]) -> None:
        self._views: Final = tuple(views)
        self._make_rows: Final = make_rows
        self._rows_or_none: Rows | None = None
        self.failures: dict[str, str] = {}
        self._overtaken: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._views)

    def create(self, connection: sqlite3.Connection) -> None:
        """Create what the database lacks, and begin anew what it has of an earlier revision; a transaction each.

        A view of a later revision belongs to a later program and is left to it.
        """
        for view in self._views:
            (newest,) = connection.execute(_NEWEST, (view.name,)).fetchone()
            if newest is not None and newest > view.revision:
                self._overtaken[view.name] = (
                    f"revision {newest} is kept by a later program, this one knows {view.revision}"
                )
            elif newest != view.revision or not self._is_whole(connection, view):
                self._begin_anew(connection, view)

    def _is_whole(self, connection: sqlite3.Connection, view: InlineView) -> bool:
        head, _ = self._make_rows().head(connection)
        position = _position(connection, view)
        return view.exists(connection) and position is not None and position <= head

    def _begin_anew(self, connection: sqlite3.Connection, view: InlineView) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            view.drop(connection)
            view.create(connection)
            connection.execute(_FORGET, (view.name,))
            connection.execute(_REGISTER, (view.name, view.revision))
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def follow(self, connection: sqlite3.Connection, before: int, after: int, types: Set[str]) -> None:
        """Inside an append's transaction: bring each view that stands near `before` to `after`. Never raises.

        `types` are those of the events in between: a view that wants none of them only moves its position.
        """
        for view in self._views:
            if view.name in self.failures or view.name in self._overtaken:
                continue
            try:
                position = _position(connection, view)
            except sqlite3.Error as error:
                self.failures[view.name] = str(error)
                continue
            if position == before and view.event_types.isdisjoint(types):
                _move(connection, view, before, after)
            elif position is not None and 0 <= before - position <= _CATCH_UP_PAGE:
                self._guarded(connection, view, position, after)

    def forget(self) -> None:
        """Forget the names that were read in a transaction that failed: they were never written."""
        self._rows_or_none = None

    def _rows(self) -> Rows:
        if self._rows_or_none is None:
            self._rows_or_none = self._make_rows()
        return self._rows_or_none

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Bring every view as near to the head as it can be, a page a transaction. Call it under the file lock."""
        self.failures.clear()
        for view in self._views:
            while view.name not in self._overtaken and self._catch_up_page(connection, view):
                pass

    def require_all(self) -> None:
        """Raise EventLogError(`view_failed`) if `catch_up` could not bring a view to the head."""
        for name, why in (self.failures | self._overtaken).items():
            raise EventLogError("view_failed", f"the view {name!r} stopped: {why}", view=name)

    def are_behind(self, connection: sqlite3.Connection) -> bool:
        """Say whether a view that this process knows is not at the head."""
        head, _ = self._make_rows().head(connection)
        return any(_position(connection, view) != head for view in self._views) or bool(self._overtaken)

    def behind(self, connection: sqlite3.Connection) -> dict[str, int]:
        """Return how many positions each view of the database is behind the head, those of other programs included."""
        head, _ = self._rows().head(connection)
        found = connection.execute("SELECT name, revision, position FROM views ORDER BY name, revision").fetchall()
        return {f"{name}/{revision}": head - position for name, revision, position in found}

    def _catch_up_page(self, connection: sqlite3.Connection, view: InlineView) -> bool:
        connection.execute("BEGIN IMMEDIATE")
        try:
            head, _ = self._rows().head(connection)
            position = _position(connection, view)
            is_behind = position is not None and position < head
            if position is not None and is_behind:
                self._guarded(connection, view, position, min(head, position + _CATCH_UP_PAGE))
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        return is_behind and view.name not in self.failures

    def _guarded(self, connection: sqlite3.Connection, view: InlineView, position: int, upto: int) -> None:
        connection.execute("SAVEPOINT view")
        try:
            self._apply(connection, view, position, upto)
        except Exception as error:  # whatever a view does wrong is its own failure, never the append's
            connection.execute("ROLLBACK TO view")
            self.failures[view.name] = f"{type(error).__name__}: {error}"
            logger.error("view_failed", view=view.name, after=position, why=str(error))
        connection.execute("RELEASE view")

    def _apply(self, connection: sqlite3.Connection, view: InlineView, position: int, upto: int) -> None:
        events, _ = self._rows().log_page(connection, position, upto - position, Wanted(view.event_types, ""))
        if events:
            view.apply(connection, events)
        _move(connection, view, position, upto)


def _move(connection: sqlite3.Connection, view: InlineView, before: int, after: int) -> None:
    moved = connection.execute(_MOVE, (after, view.name, view.revision, before)).rowcount
    assert moved == 1, "the position was read in this transaction"


def _position(connection: sqlite3.Connection, view: InlineView) -> int | None:
    row = connection.execute(_POSITION, (view.name, view.revision)).fetchone()
    return None if row is None else row[0]
