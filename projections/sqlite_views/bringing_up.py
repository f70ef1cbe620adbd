"""Brings the live table of a view up to the end of the log, between the appends of whoever else writes it."""

from __future__ import annotations

import sqlite3
from typing import Final

from eventlog.errors import EventLogError
from eventlog.stores.sqlite.scan import Scan
from eventlog.stores.sqlite.view_builds import advance_view
from eventlog.stores.sqlite.view_registry import find_entry
from eventlog.views import ViewEntry
from projections.sqlite_views.database import ViewDatabase
from projections.sqlite_views.table import SqliteView

__all__ = ["bring_up"]

_PAGE: Final = 1000


async def bring_up(database: ViewDatabase, view: SqliteView) -> ViewEntry:
    """Fold what the view is missing into it, a page a transaction, and return its entry.

    If its projection raises, the entry has the `problem`; one that it had before is gone once the event behind it is
    folded. Raises EventLogError(`view_overtaken`) if there is no view of this revision.
    """
    scan = database.scan_of(view.selection)
    while True:
        entry, is_at_end = await database.write_view(_page, view, scan)
        if is_at_end or entry.problem is not None:
            return entry


def _page(connection: sqlite3.Connection, view: SqliteView, scan: Scan) -> tuple[ViewEntry, bool]:
    entry = find_entry(connection, view.name)
    if entry is None or entry.revision != view.revision:
        raise EventLogError(
            "view_overtaken", f"the view {view.name!r} is not of revision {view.revision}", view=view.name
        )
    head = scan.head(connection)
    upto = min(head, entry.position + _PAGE)
    return advance_view(connection, view, scan, entry, upto), upto >= head
