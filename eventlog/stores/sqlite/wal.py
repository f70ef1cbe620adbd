"""WAL checkpoints: moving the write-ahead log into the database, explicitly and only by the writer.

SQLite's automatic ones are switched off: their errors are never reported, and one that overlaps a commit of another
process corrupts databases on older libraries. A WAL checkpoint holds the file lock like every write.
"""

from __future__ import annotations

import sqlite3
from typing import ClassVar, Final

from eventlog.errors import StoreUnavailable
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.telemetry import logger

__all__ = ["WalCheckpoints"]


class WalCheckpoints:
    """Decides when a WAL checkpoint is due, and runs it. Sizes in bytes."""

    SOFT_LIMIT: ClassVar[int] = 8 * 1024 * 1024
    """From here on a WAL checkpoint follows the batch."""
    IDLE_LIMIT: ClassVar[int] = 1024 * 1024
    """From here on an idle writer makes one."""
    STARVED_LIMIT: ClassVar[int] = 64 * 1024 * 1024
    """From here on a reader is holding the log's growth up, and that is said."""
    MAX_FAILURES: ClassVar[int] = 3

    def __init__(self, lock: FileLock) -> None:
        self._lock: Final = lock
        self.wal_bytes = 0
        self._next_at = self.SOFT_LIMIT
        self._tried_idle_at = -1
        self.failures = 0
        self.last_error: str | None = None

    @property
    def is_due(self) -> bool:
        return self.wal_bytes >= self._next_at

    @property
    def is_due_when_idle(self) -> bool:
        return self.wal_bytes >= self.IDLE_LIMIT and self.wal_bytes != self._tried_idle_at

    def run(self, connection: sqlite3.Connection) -> None:
        """Copy what is committed into the database, and cut the write-ahead log if no reader needs it. Never raises."""
        self._tried_idle_at = self.wal_bytes
        try:
            with self._lock:
                is_cut = _checkpoint(connection)
        except (sqlite3.Error, StoreUnavailable) as error:
            self.failures += 1
            self.last_error = str(error)
            logger.error("wal_checkpoint_failed", why=str(error), in_a_row=self.failures)
            return
        self.failures = 0
        self.last_error = None
        logger.debug("wal_checkpoint", wal_bytes=self.wal_bytes, is_cut=is_cut)
        if is_cut:
            self.wal_bytes = 0
            self._next_at = self.SOFT_LIMIT
            return
        self._next_at = self.wal_bytes + self.SOFT_LIMIT
        if self.wal_bytes >= self.STARVED_LIMIT:
            logger.warning("wal_checkpoint_starved", wal_bytes=self.wal_bytes)


def _checkpoint(connection: sqlite3.Connection) -> bool:
    is_busy, in_log, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if is_busy or in_log != copied:
        return False
    timeout_ms = connection.execute("PRAGMA busy_timeout").fetchone()[0]
    connection.execute("PRAGMA busy_timeout=0")  # never wait for a reader while other processes wait for the lock
    try:
        is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout={timeout_ms}")
    return not is_busy
