"""What an error of SQLite means for the caller: definite or unknown, and whether the store can go on.

| where                                   | told to the waiters            | the store          |
|-----------------------------------------|--------------------------------|--------------------|
| lock not obtained                       | `store_busy`, definite         | healthy            |
| a statement before COMMIT               | definite failure               | poisoned if IOERR  |
| the transaction cannot be rolled back   | definite failure               | poisoned           |
| inside, or COMMIT: SQLITE_BUSY, _LOCKED | `store_busy`, definite         | poisoned           |
| COMMIT: SQLITE_FULL                     | `store_full`, definite         | healthy            |
| COMMIT: SQLITE_IOERR_WRITE              | `store_io_error`, definite     | poisoned           |
| COMMIT: anything else, as IOERR_FSYNC   | nobody is told "failed"        | poisoned           |

Whoever holds the lock and is told that it is busy has a statement of his own that was never ended, and would be told so
for ever: only a new connection helps.

The last row is the dangerous one: after a failed fsync the frames may be on the disk all the same, and a retry of the
fsync proves nothing. So the connection is closed, a barrier is committed through a new one, and only then a read
tells.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from eventlog.errors import EventLogError, LogCorrupt, StoreBusy, StoreUnavailable

__all__ = [
    "DRIVER_ERRORS",
    "SQLITE_ERRORS",
    "is_definite_at_commit",
    "is_poison",
    "is_poison_inside",
    "primary",
    "translate",
]

SQLITE_ERRORS: Final = (sqlite3.Error, MemoryError)
"""What a statement raises; for SQLITE_NOMEM the driver raises MemoryError, which is none of its own errors."""

DRIVER_ERRORS: Final = (*SQLITE_ERRORS, UnicodeError)
"""What the driver raises: an error about damaged text quotes the text, and fails at that."""

_SQLITE_IOERR_WRITE: Final = sqlite3.SQLITE_IOERR_WRITE
_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def primary(error: sqlite3.Error | MemoryError) -> int:
    """Return the primary result code (the low byte), 0 if the error did not come from the library."""
    code: int = getattr(error, "sqlite_errorcode", 0) or 0
    return code & 0xFF


def is_definite_at_commit(error: sqlite3.Error | MemoryError) -> bool:
    """Say whether this error of a COMMIT proves that the commit frame was not completed."""
    code = getattr(error, "sqlite_errorcode", 0)
    return primary(error) == sqlite3.SQLITE_FULL or code == _SQLITE_IOERR_WRITE or primary(error) == sqlite3.SQLITE_BUSY


def is_poison(error: sqlite3.Error | MemoryError) -> bool:
    """Say whether the connection must not be used again after this error."""
    # A foreign write that keeps a cursor keeps its snapshot as well, and BEGIN IMMEDIATE fails as long as it does.
    is_held_back = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT
    return is_held_back or primary(error) in (sqlite3.SQLITE_IOERR, *_DAMAGE)


def is_poison_inside(error: sqlite3.Error | MemoryError) -> bool:
    """Say whether an error inside a transaction that holds the write lock means that the connection ends here."""
    return is_poison(error) or primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translate(error: sqlite3.Error | MemoryError | UnicodeError, doing: str) -> EventLogError:
    """Return the coded error for a driver's error that happened before anything was committed."""
    if isinstance(error, UnicodeError):
        return LogCorrupt("store_corrupt", f"{doing}: the database holds text that is none ({error})")
    if isinstance(error, MemoryError):
        return StoreUnavailable("store_out_of_memory", f"{doing}: there is not enough memory")
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    message = f"{doing}: {error} ({name})"
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMMAP:
        return StoreUnavailable("wal_unavailable", message)
    match primary(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy(message)
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable("store_full", message)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StoreUnavailable("store_readonly", message)
        case sqlite3.SQLITE_CANTOPEN:
            return StoreUnavailable("store_cannot_open", message)
        case sqlite3.SQLITE_IOERR if error.sqlite_errorcode == sqlite3.SQLITE_IOERR_SHMSIZE:  # a full disk, mostly
            return StoreUnavailable("store_cannot_open", message)
        case sqlite3.SQLITE_ERROR:  # the statements are ours and right: a table or a column that they name is gone
            return LogCorrupt("schema_changed", message)
        case code if code in _DAMAGE:
            return LogCorrupt("store_corrupt", message)
        case _:
            return StoreUnavailable("store_io_error", message)
