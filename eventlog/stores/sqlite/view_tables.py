"""The tables of views by what the registry says of them alone, for those who do not know their projections.

A name that the registry does not have is never touched, and neither is a table of the log, whatever somebody has
written into the registry. Functions work inside the transaction of their caller, on the views of the database `main`.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from typing import Final

from eventlog.errors import LogCorrupt
from eventlog.stores.sqlite.rollback import one_snapshot
from eventlog.stores.sqlite.schema import OWN_TABLES
from eventlog.stores.sqlite.view_registry import all_entries, find_entry, remove_entry, set_state, table_name
from eventlog.views import ViewEntry

__all__ = ["drop_page", "generations_without_table", "set_aside", "without_table"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_TABLES: Final = "SELECT lower(name) FROM main.sqlite_schema WHERE type = 'table'"


def without_table(connection: sqlite3.Connection, entries: Iterable[ViewEntry]) -> frozenset[int]:
    """Return the generations of those entries whose table is gone."""
    there = {name for (name,) in connection.execute(_TABLES)}
    return frozenset(entry.generation for entry in entries if table_name(entry.name, entry).lower() not in there)


def generations_without_table(connection: sqlite3.Connection) -> frozenset[int]:
    """Return the generations of all entries whose table is gone, as of one moment. Called outside a transaction."""
    with one_snapshot(connection):
        return without_table(connection, all_entries(connection))


def set_aside(connection: sqlite3.Connection, name: str) -> bool:
    """Take the public name from the live table of a view, and say whether there was one: it is a kept one then.

    Nothing may be kept already. Whoever reads the view finds none, rather than one that is half there.
    """
    live = find_entry(connection, name)
    if live is None:
        return False
    _require_no_own_table(live)
    is_there = not without_table(connection, [live])
    set_state(connection, name, "live", "kept")
    kept = find_entry(connection, name, "kept")
    assert kept is not None, "it was given this state in this transaction"
    if is_there:
        connection.execute("PRAGMA legacy_alter_table=ON")  # what refers to it by name is not changed
        try:
            connection.execute(f"ALTER TABLE main.[{name}] RENAME TO [{table_name(name, kept)}]")
        finally:
            connection.execute("PRAGMA legacy_alter_table=OFF")
    return True


def drop_page(connection: sqlite3.Connection, name: str, state: str, limit: int) -> bool:
    """Take up to `limit` rows out of a table of a view that nobody reads, or drop it if none is left.

    Return whether there is more. Rows of views are overwritten when they are deleted, so a large table that is dropped
    at once keeps appends waiting, and needs as much room in the write-ahead log.
    """
    entry = find_entry(connection, name, state)
    if entry is None:
        return False
    _require_no_own_table(entry)
    table = f"main.[{table_name(name, entry)}]"
    if not without_table(connection, [entry]):
        sql = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} LIMIT ?)"
        if connection.execute(sql, (limit,)).rowcount:
            return True
        connection.execute(f"DROP TABLE {table}")
    remove_entry(connection, name, state)
    return False


def _require_no_own_table(entry: ViewEntry) -> None:
    """Raise LogCorrupt for an entry that no program of ours has made."""
    if not _NAME.fullmatch(entry.name) or table_name(entry.name, entry).lower() in OWN_TABLES:
        message = f"the registry of views names {entry.name!r}, which is the name of no view"
        raise LogCorrupt("schema_changed", message, view=entry.name)
