"""WAL checkpoints: moving the write-ahead log into the database, explicitly and only by the writer.

SQLite's automatic ones are switched off: their errors are never reported, and one that overlaps a commit of another
process corrupts databases on older libraries. A WAL checkpoint holds the file lock like every write.

The file is not cut each time: once everything in it is copied, SQLite starts again at its beginning, and a commit that
overwrites is synced much faster than one that makes the file longer. So its size says little of how much is left to
copy, which is estimated from what is written. A file that grows says it exactly: all of it is in use.
"""

from __future__ import annotations

import sqlite3
from typing import ClassVar, Final

from eventlog.errors import StoreUnavailable
from eventlog.stores.sqlite.failures import SQLITE_ERRORS
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.identity import Identity
from eventlog.stores.telemetry import logger

__all__ = ["WalCheckpoints"]


class WalCheckpoints:
    """Decides when a WAL checkpoint is due, and runs it.

    Sizes in bytes: those of `CUT_LIMIT` and `STARVED_LIMIT` of the file, the others of what is still to be copied.
    """

    SOFT_LIMIT: ClassVar[int] = 8 * 1024 * 1024
    """From here on a WAL checkpoint follows the batch."""
    IDLE_LIMIT: ClassVar[int] = 1024 * 1024
    """From here on an idle writer makes one."""
    CUT_LIMIT: ClassVar[int] = 2 * SOFT_LIMIT
    """From this size of the file on, the WAL checkpoint that copies everything cuts it as well."""
    STARVED_LIMIT: ClassVar[int] = 64 * 1024 * 1024
    """From here on a reader is holding the log's growth up, and that is said."""
    MAX_FAILURES: ClassVar[int] = 3

    def __init__(self, lock: FileLock, identity: Identity) -> None:
        self._lock: Final = lock
        self._identity: Final = identity
        self.wal_bytes = 0
        """The size of the file."""
        self._pending = 0
        """About how much of it is still to be copied."""
        self._begin = 0
        """Where that begins, unless SQLite begins the file again."""
        self._next_at = self.SOFT_LIMIT
        self._tried_idle_at = -1
        self.failures = 0
        self.last_error: str | None = None

    @property
    def is_due(self) -> bool:
        return self._pending >= self._next_at

    @property
    def is_due_when_idle(self) -> bool:
        return self._pending >= self.IDLE_LIMIT and self._pending != self._tried_idle_at

    def note_commit(self, wal_bytes: int, written: int) -> None:
        """Take note of the file's size behind a commit, and of about how much the commit wrote.

        A file that became longer was written at its end, so all of it from `_begin` on is pending, whoever wrote it.
        One that did not was begun again.
        """
        self._pending += written
        if wal_bytes > self.wal_bytes:
            self._pending = max(self._pending, wal_bytes - self._begin)
        elif written:
            self._begin = 0
        self.wal_bytes = wal_bytes

    def cut(self, connection: sqlite3.Connection) -> None:
        """As `run`, and cut the write-ahead log if no reader needs it, however small it is. Never raises."""
        self.run(connection, is_last=True)

    def run(self, connection: sqlite3.Connection, *, is_last: bool = False) -> None:
        """Copy what is committed into the database, and cut the write-ahead log if it is large. Never raises."""
        self._tried_idle_at = self._pending
        try:
            with self._lock:
                self._identity.require_unchanged()  # the copy must not land in a file that is somebody else's by now
                is_copied = _copy(connection)
                is_cut = is_copied and (is_last or self.wal_bytes >= self.CUT_LIMIT) and _cut(connection)
        except (*SQLITE_ERRORS, StoreUnavailable) as error:
            self.failures += 1
            self.last_error = str(error) or type(error).__name__
            logger.error("wal_checkpoint_failed", why=self.last_error, in_a_row=self.failures)
            return
        self.failures = 0
        self.last_error = None
        logger.debug("wal_checkpoint", wal_bytes=self.wal_bytes, is_copied=is_copied, is_cut=is_cut)
        if is_copied:
            self.wal_bytes = 0 if is_cut else self.wal_bytes
            self._begin = self.wal_bytes  # a reader of the last commit would keep the file from being begun again
            self._pending = 0
            self._next_at = self.SOFT_LIMIT
            return
        self._next_at = self._pending + self.SOFT_LIMIT
        if self.wal_bytes >= self.STARVED_LIMIT:
            logger.warning("wal_checkpoint_starved", wal_bytes=self.wal_bytes)


def _copy(connection: sqlite3.Connection) -> bool:
    is_busy, in_log, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return not is_busy and in_log == copied


def _cut(connection: sqlite3.Connection) -> bool:
    timeout_ms = connection.execute("PRAGMA busy_timeout").fetchone()[0]
    connection.execute("PRAGMA busy_timeout=0")  # never wait for a reader while other processes wait for the lock
    try:
        is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout={timeout_ms}")
    return not is_busy
