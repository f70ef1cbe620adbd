"""Follows the log with one view, live or being built: a page is folded on a connection that reads, and written apart.

So the writer's lock is held for the rows that changed, and not while events are read and folded. How many events are
folded at once is fitted to how many rows they change.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Final

from msgspec.structs import replace

from eventlog.errors import EventTypeUnknown, InvalidInput, LogCorrupt
from eventlog.stores.sqlite.view_registry import find_entry, move_entry, overtaken, set_problem
from eventlog.views import FoldFailed, ViewEntry, ViewProblem, described
from projections.folding import MAX_CACHED_ROWS, Cache, Changes, cached_rows
from projections.sqlite_views.database import ViewDatabase
from projections.sqlite_views.table import SqliteView, UnstorableRow

__all__ = ["Follower"]

FIRST_PAGE: Final = 1000
LAST_PAGE: Final = 20_000
_ROWS: Final = 2000
"""How many rows a page may change, about, before a smaller one is taken: writing so many takes some 10 ms."""
_BYTES: Final = 4 * 1024 * 1024
"""How many bytes of texts and BLOBs the changed rows of a page may have, about."""
_MAX_CACHED_BYTES: Final = 32 * 1024 * 1024


class Follower:
    """Brings the tables of one entry up, page by page. It has to be the only one who writes them.

    `until` is where it ends, for a range of the log; the log has that position.
    """

    def __init__(
        self,
        database: ViewDatabase,
        view: SqliteView,
        entry: ViewEntry,
        *,
        requires_known_types: bool = False,
        until: int | None = None,
    ) -> None:
        self._database: Final = database
        self._view: Final = view
        self._scan: Final = database.scan_of(view.selection)
        self._requires_known_types: Final = requires_known_types
        self._until: Final = until
        self._cache: Cache = {}
        self._cached_bytes = 0
        self._page = FIRST_PAGE
        self.entry = entry
        self.head = entry.position

    async def step(self) -> bool:
        """Fold one page into the view; say whether there may be more.

        A projection that raises leaves the entry with a `problem`, in front of the event that it cannot fold, and the
        answer is no. Raises EventLogError(`view_overtaken`) if somebody else writes the view, EventTypeUnknown,
        StoreUnavailable.
        """
        after = self.entry.position
        if self._requires_known_types:
            await self._database.look(self._require_known, after)
        try:
            changes, upto = await self._database.look(self._fold, after)
            if upto == after:
                return False
            self.entry = await self._database.write_view(self._write, changes, upto)
        except Exception as error:
            self._forget_rows()
            if _is_not_the_projection(error):
                raise
            return await self._narrow(error)
        self._fit_page(changes)
        return upto < self.head

    def _fold(self, connection: sqlite3.Connection, after: int) -> tuple[Changes, int]:
        self.head = self._scan.head(connection) if self._until is None else self._until
        upto = min(self.head, after + self._page)
        if upto <= after:
            return {}, after
        with closing(self._scan.events(connection, after, upto)) as events:
            return self._view.fold(connection, self.entry, events, self._cache), upto

    def _require_known(self, connection: sqlite3.Connection, after: int) -> None:
        head = self._scan.head(connection) if self._until is None else self._until
        self._scan.require_known(connection, after, min(head, after + self._page))

    def _write(self, connection: sqlite3.Connection, changes: Changes, upto: int) -> ViewEntry:
        leaf = self._scan.leaf(connection, upto)
        moved = move_entry(connection, self.entry, upto, leaf)  # first: behind an exchange the table is somebody else's
        self._view.write(connection, self.entry, changes)
        return moved

    async def _narrow(self, error: Exception) -> bool:
        """Stop in front of the event that cannot be folded: a fold tells which it is, else the page is halved."""
        await self._database.look(self._require_own)
        size = min(self._page, self.head - self.entry.position)
        left = error.position - 1 - self.entry.position if isinstance(error, FoldFailed) else size // 2
        if left > 0:
            self._page = left
            return True
        self.entry = await self._database.write_view(self._stop, described(error))
        return False

    def _require_own(self, connection: sqlite3.Connection) -> None:
        """Raise EventLogError(`view_overtaken`) if what failed is that the table is another one by now."""
        found = find_entry(connection, self.entry.name, self.entry.state)
        if found is None or found.generation != self.entry.generation:
            raise overtaken(self.entry)

    def _stop(self, connection: sqlite3.Connection, why: str) -> ViewEntry:
        position = self.entry.position + 1
        type_name, stream = self._scan.origin(connection, position)
        problem = ViewProblem(position=position, type=type_name, stream=stream, error=why)
        set_problem(connection, self.entry, problem)
        return replace(self.entry, problem=problem)

    def _fit_page(self, changes: Changes) -> None:
        rows, size = len(changes), _size(changes)
        if rows <= _ROWS // 2 and size <= _BYTES // 2:
            self._page = min(self._page * 2, LAST_PAGE)
        elif rows > _ROWS or size > _BYTES:
            self._page = max(self._page // 2, 1)
        self._cached_bytes += size  # rather too many: a row that changes on each page counts on each
        if cached_rows(self._cache) > MAX_CACHED_ROWS or self._cached_bytes > _MAX_CACHED_BYTES:
            self._forget_rows()

    def _forget_rows(self) -> None:
        self._cache.clear()
        self._cached_bytes = 0


def _size(changes: Changes) -> int:
    """Return how many characters and bytes the texts and BLOBs of changed rows have; large ones are all that count."""
    rows = changes.values()
    return sum(len(each) for row in rows if row for each in row.values() if type(each) is str or type(each) is bytes)


def _is_not_the_projection(error: Exception) -> bool:
    """Say whether the database, or who writes in it, is at fault: what the projection is no part of."""
    if isinstance(error, EventTypeUnknown | FoldFailed | LogCorrupt | UnstorableRow):
        return False
    return not (isinstance(error, InvalidInput) and error.code == "invalid_event")
