"""Snapshots of streams: a table that anybody may empty or drop, and the log loses nothing but time.

    snapshots    stream → version, and the state that was folded up to there, as its writer spells it

The table is made at the first save, so a log that never saved any has none. Nothing in it is covered by a hash; what a
state is worth is for its reader to check.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from eventlog.log import Snapshot, StreamSlice
from eventlog.stores.sqlite.failures import DRIVER_ERRORS, primary
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.rollback import roll_back
from eventlog.stores.sqlite.rows import Rows
from eventlog.stores.telemetry import logger

__all__ = ["load_snapshot", "read_from_snapshot", "save_snapshot", "snapshot_streams"]

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS snapshots (
  stream TEXT PRIMARY KEY,
  version INTEGER NOT NULL CHECK (version >= 0),
  state BLOB NOT NULL
) STRICT"""
_IS_THERE: Final = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'snapshots'"
_LOAD: Final = "SELECT version, state FROM snapshots WHERE stream = ?"
_IS_SEALED: Final = """
SELECT count(*) FROM streams JOIN subject_streams USING (stream_id) WHERE name = ?"""
_SAVE: Final = """
INSERT INTO snapshots (stream, version, state) VALUES (?, ?, ?)
ON CONFLICT (stream) DO UPDATE SET version = excluded.version, state = excluded.state
WHERE excluded.version >= version"""


def load_snapshot(connection: sqlite3.Connection, stream: str) -> Snapshot | None:
    """Return the snapshot of this stream, or None. Whatever keeps it from being read, the log can do without it."""
    try:
        if not connection.execute(_IS_THERE).fetchone()[0]:
            return None
        row = connection.execute(_LOAD, (stream,)).fetchone()
    except DRIVER_ERRORS as error:
        logger.warning("snapshot_not_loaded", stream=stream, why=str(error))
        return None
    if row is None or type(row[0]) is not int or type(row[1]) is not bytes:
        return None
    return Snapshot(*row)


def snapshot_streams(connection: sqlite3.Connection) -> list[str]:
    """Return the streams that have a snapshot."""
    if not connection.execute(_IS_THERE).fetchone()[0]:
        return []
    return [stream for (stream,) in connection.execute("SELECT stream FROM snapshots ORDER BY stream")]


def read_from_snapshot(connection: sqlite3.Connection, rows: Rows, stream: str) -> tuple[Snapshot | None, StreamSlice]:
    """Return the snapshot of this stream and the events from its version on; without one, all events."""
    snapshot = load_snapshot(connection, stream)
    after = max(snapshot.version - 1, 0) if snapshot is not None else 0
    return snapshot, StreamSlice(*rows.stream_page(connection, stream, after, -1))


def save_snapshot(connection: sqlite3.Connection, lock: FileLock, stream: str, snapshot: Snapshot) -> str | None:
    """Keep the snapshot unless there is a newer one of this stream. For the writer's thread, between two batches.

    Never raises a driver's error, and leaves no transaction behind; returns why the connection must not be used again,
    if so.
    """
    with lock:
        try:
            connection.execute("BEGIN IMMEDIATE")
            if not connection.execute(_IS_SEALED, (stream,)).fetchone()[0]:  # a state in clear would outlive its key
                connection.execute(_CREATE)
                connection.execute(_SAVE, (stream, snapshot.version, snapshot.state))
            connection.execute("COMMIT")
        except DRIVER_ERRORS as error:
            logger.warning("snapshot_not_saved", stream=stream, why=str(error))
            is_io_error = isinstance(error, sqlite3.Error) and primary(error) == sqlite3.SQLITE_IOERR
            return roll_back(connection) or (str(error) if is_io_error else None)
    return None
