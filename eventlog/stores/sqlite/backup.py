"""A copy of a log, made through SQLite's backup API while others read and write."""

from __future__ import annotations

import os
import sqlite3

from eventlog.errors import StoreUnavailable

__all__ = ["copy_database"]


def copy_database(connection: sqlite3.Connection, target: str) -> int:
    """Copy the database to the new file `target`, durably, and return the last position in the copy.

    Raises StoreUnavailable(`store_cannot_open`) if the target exists or cannot be made; nothing is left behind then.
    """
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreUnavailable(
            "store_cannot_open", f"cannot create {target!r}: {error.strerror}", path=target
        ) from error
    try:
        position = _copy(connection, target)
        _fsync(target)
    except BaseException:
        os.unlink(target)  # a part of a log must not be taken for one
        raise
    return position


def _copy(connection: sqlite3.Connection, target: str) -> int:
    copy = sqlite3.connect(target, isolation_level=None)
    try:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode=WAL")
        position: int = copy.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()[0]
    finally:
        copy.close()
    return position


def _fsync(path: str) -> None:
    for each in (path, os.path.dirname(path) or "."):
        descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
