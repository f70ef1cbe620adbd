"""What a database says of its views, all at once: for those who look at them, and change nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from eventlog.stores.sqlite.rollback import one_snapshot
from eventlog.stores.sqlite.view_registry import all_entries, table_name
from eventlog.views import ViewEntry
from projections.sqlite_views.database import ViewDatabase

__all__ = ["ViewEntries", "read_entries"]

_HEAD: Final = "SELECT coalesce(max(position), 0) FROM events"


class ViewEntries(msgspec.Struct, frozen=True):
    """The views of the log's own database and where the log ends, from one snapshot; `rows` by generation."""

    entries: Sequence[ViewEntry]
    head: int
    rows: dict[int, int]


async def read_entries(database: ViewDatabase, *, counts_rows: bool = False) -> ViewEntries:
    """Return what the log's database says of its views, with the number of rows of each where that is wanted."""
    return await database.look(_read, counts_rows)


def _read(connection: sqlite3.Connection, counts_rows: bool) -> ViewEntries:
    with one_snapshot(connection):
        entries = all_entries(connection)
        head: int = connection.execute(_HEAD).fetchone()[0]
        rows = _count_rows(connection, entries) if counts_rows else {}
    return ViewEntries(entries, head, rows)


def _count_rows(connection: sqlite3.Connection, entries: Sequence[ViewEntry]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for entry in entries:
        table = table_name(entry.name, entry).replace('"', '""')
        try:
            (counts[entry.generation],) = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()
        except sqlite3.OperationalError:
            continue  # a view of other tables, or one whose table is gone
    return counts
