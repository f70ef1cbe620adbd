"""Proves that a view equals its log: folds the log afresh, into a database of its own, and compares row by row.

The fresh fold is compared with the view as both are at one position, in one snapshot, so that a log that goes on
growing meanwhile disturbs nothing. It lies in a temporary file: what a check needs of memory does not grow with the
log.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from typing import Final

import msgspec

from eventlog.errors import EventLogError
from eventlog.stores.sqlite.connection import Settings, Worker, connect
from eventlog.stores.sqlite.failures import DRIVER_ERRORS, translate
from eventlog.stores.sqlite.rollback import one_snapshot
from eventlog.stores.sqlite.schema import CREATE_VIEWS
from eventlog.stores.sqlite.view_registry import ENTRY_COLUMNS, add_entry, as_entry, table_name
from eventlog.views import ViewEntry, ViewProblem
from projections.folding import MAX_CACHED_ROWS, Cache, cached_rows
from projections.sqlite_views.comparing import Difference, compare_tables
from projections.sqlite_views.database import LOG_SCHEMA, ViewFile, ViewStore, attach_log
from projections.sqlite_views.table import SqliteView

__all__ = ["Checked", "check_view", "differences"]

_PAGE: Final = 20_000
_CLOSE_TIMEOUT_S: Final = 5.0
_VIEWS_SCHEMA: Final = "views_file"
_ENTRY: Final = f"SELECT {ENTRY_COLUMNS} FROM {{stored}}.views WHERE name = ? AND state = 'live'"

Progress = Callable[[int, int], None]


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of a view found.

    `position` is where the view stands and was compared at, `head` where the log ended then. `differences` are the
    first of `differing`. `problem` is what stopped the view there.
    """

    name: str
    revision: int
    position: int
    head: int
    rows: int = 0
    differing: int = 0
    differences: list[Difference] = []
    problem: ViewProblem | None = None


async def check_view(
    log: ViewStore,
    view: SqliteView,
    *,
    place: ViewFile | None = None,
    limit: int = 100,
    on_progress: Progress | None = None,
) -> Checked | None:
    """Compare a view in the log's own database, or in that at `place`, with a fresh fold; None if there is none.

    `limit` is how many differences are kept; `on_progress` is told the position and the last one. Nothing is written to
    the log or the view. Raises EventLogError(`view_failed`) where the log cannot be folded.
    """
    with tempfile.TemporaryDirectory(prefix="eventlog-check-", ignore_cleanup_errors=True) as folder:
        fresh = _Fresh(os.path.join(folder, "fresh.db"), log, view, place)
        worker = Worker(fresh.connect, None, fresh.path)
        await worker.open()
        try:
            while True:
                position, head = await worker.run(fresh.fold_page)
                if on_progress is not None:
                    on_progress(position, head)
                if position >= head:
                    return await worker.run(fresh.compare, limit)
        except DRIVER_ERRORS as error:
            raise translate(error, f"cannot check the view {view.name!r}") from error
        finally:
            await worker.close(timeout_s=_CLOSE_TIMEOUT_S)


async def differences(log: ViewStore, view: SqliteView, *, limit: int = 100) -> list[Difference]:
    """Return up to `limit` rows of a view in the log's database that are not what the log says, by key."""
    await log.read_view(lambda connection: None, of=(view.name,))  # what is only late is no difference
    checked = await check_view(log, view, limit=limit)
    return [] if checked is None else checked.differences


class _Fresh:
    """The fresh fold. Used on one thread."""

    def __init__(self, path: str, log: ViewStore, view: SqliteView, place: ViewFile | None) -> None:
        self.path: Final = path
        self._log: Final = log
        self._view: Final = view
        self._place: Final = place
        self._stored: Final = LOG_SCHEMA if place is None else _VIEWS_SCHEMA
        self._scan: Final = log.scan_of(view.selection, schema=LOG_SCHEMA)
        self._cache: Final[Cache] = {}
        self._position = 0

    def connect(self) -> sqlite3.Connection:
        """Open a database that need not survive anything, with the log (and the file of the view) attached."""
        connection = connect(Settings(self.path, durability="normal", busy_timeout_s=30), "rwc")
        connection.execute("PRAGMA synchronous=OFF")
        connection.text_factory = _any_text  # a row whose text is none differs, and is no reason to fail
        attach_log(connection, self._log.place)
        if self._place is not None:
            attach_log(connection, self._place.place, schema=_VIEWS_SCHEMA)
        connection.execute(CREATE_VIEWS.strip().rstrip(";"))
        self._entry = add_entry(connection, self._view.name, "live", self._view.revision, self._view.shape)
        self._view.create(connection, self._entry)
        return connection

    def fold_page(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """Fold one page; return the position and where the view stands, which is as far as it can be compared."""
        entry = self._entry_of(connection)
        end = 0 if entry is None else min(self._scan.head(connection), entry.position)
        self._fold(connection, max(self._position, min(end, self._position + _PAGE)))
        return self._position, end

    def _fold(self, connection: sqlite3.Connection, upto: int) -> None:
        connection.execute("SAVEPOINT page")
        try:
            with closing(self._scan.events(connection, self._position, upto)) as events:
                self._view.apply(connection, self._entry, events, self._cache)
        except EventLogError:
            raise
        except Exception as error:
            message = f"the log cannot be folded into {self._view.name!r} behind position {self._position}: {error!r}"
            raise EventLogError("view_failed", message, view=self._view.name) from error
        connection.execute("RELEASE page")
        self._position = upto
        if cached_rows(self._cache) > MAX_CACHED_ROWS:
            self._cache.clear()

    def compare(self, connection: sqlite3.Connection, limit: int) -> Checked | None:
        """Compare with the view as it stands now, at its own position, in one snapshot; what it folds is not kept."""
        with one_snapshot(connection):
            entry = self._entry_of(connection)
            if entry is None:
                return None
            head = self._scan.head(connection)
            if self._position > entry.position:
                self._begin_anew(connection)
            while self._position < min(entry.position, head):
                self._fold(connection, min(entry.position, head, self._position + _PAGE))
            return self._compared(connection, entry, head, limit)

    def _begin_anew(self, connection: sqlite3.Connection) -> None:
        """Start over for a view that was begun anew meanwhile: what was folded is ahead of it."""
        connection.execute(f"DELETE FROM main.[{self._view.name}]")
        self._position = 0
        self._cache.clear()

    def _entry_of(self, connection: sqlite3.Connection) -> ViewEntry | None:
        row = connection.execute(_ENTRY.format(stored=self._stored), (self._view.name,)).fetchone()
        entry = None if row is None else as_entry(row)
        return entry if entry is not None and entry.revision == self._view.revision else None

    def _compared(self, connection: sqlite3.Connection, entry: ViewEntry, head: int, limit: int) -> Checked:
        stored = f"{self._stored}.[{table_name(self._view.name, entry)}]"
        found = compare_tables(connection, self._view, stored, f"main.[{self._view.name}]", limit=limit)
        return Checked(
            name=entry.name,
            revision=entry.revision,
            position=entry.position,
            head=head,
            rows=found.rows,
            differing=found.differing,
            differences=found.differences,
            problem=entry.problem,
        )


def _any_text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogateescape")
