"""Which consumers a database has, and up to which position each has handled the events: for those who only look.

The table `consumers` is written by the consumers themselves; it is made when it is first needed.
"""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import Final

import msgspec

from eventlog.stores.sqlite.connection import Settings, Worker, connect
from eventlog.stores.sqlite.failures import DRIVER_ERRORS, translate
from eventlog.stores.sqlite.file_lock import FileLock

__all__ = ["SavedPosition", "positions_at", "saved_positions"]

_CLOSE_TIMEOUT_S: Final = 2.0
_HAS_TABLE: Final = "SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = 'consumers'"
_ALL: Final = "SELECT name, position, store_id FROM main.consumers ORDER BY name"


class SavedPosition(msgspec.Struct, frozen=True):
    """Up to which position a consumer has handled the events of the log with this `store_id`."""

    name: str
    position: int
    store_id: bytes


def saved_positions(connection: sqlite3.Connection) -> list[SavedPosition]:
    """Return the consumers of the database `main`, by name."""
    if connection.execute(_HAS_TABLE).fetchone() is None:
        return []
    return [SavedPosition(*row) for row in connection.execute(_ALL).fetchall()]


async def positions_at(path: str) -> list[SavedPosition]:
    """Return the consumers of the database at `path`, which is no log and has no views. Raises StoreUnavailable."""
    lock = FileLock(f"{path}.lock")
    worker = Worker(partial(_connect, path, lock), lock, path)
    try:
        await worker.open()
        return await worker.run(saved_positions)
    except DRIVER_ERRORS as error:
        raise translate(error, f"cannot read {path!r}") from error
    finally:
        await worker.close(timeout_s=_CLOSE_TIMEOUT_S)
        lock.close()


def _connect(path: str, lock: FileLock) -> sqlite3.Connection:
    with lock:
        return connect(Settings(path, durability="full", busy_timeout_s=5.0), "ro")
