"""The lock beside the database that every write transaction and every WAL checkpoint of every process holds.

It shares the writing evenly between processes (SQLite's own busy handler starves), and it keeps a commit from overlapping a
WAL checkpoint, which is what corrupted databases under SQLite 3.7.0 to 3.51.2. It is `flock`, not a POSIX record lock: those
vanish when any descriptor of the file is closed. The kernel frees it when its holder dies. The file is never deleted.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from typing import Final

from eventlog.errors import StoreUnavailable

__all__ = ["FileLock"]

_OPEN: Final[weakref.WeakSet[FileLock]] = weakref.WeakSet()


class FileLock:
    """An exclusive lock on `path`, blocking. Used by one thread at a time; taken before any SQLite lock, never inside."""

    def __init__(self, path: str) -> None:
        self.path: Final = path
        try:
            self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable("store_cannot_open", f"cannot open the lock file {path!r}: {error.strerror}") from error
        _OPEN.add(self)

    def acquire(self) -> None:
        """Wait for the lock, without limit: the caller's deadline is kept by whoever waits for this thread."""
        try:
            fcntl.flock(self._descriptor(), fcntl.LOCK_EX)
        except OSError as error:
            raise StoreUnavailable("store_cannot_open", f"cannot lock {self.path!r}: {error.strerror}") from error

    def release(self) -> None:
        """Give the lock back."""
        fcntl.flock(self._descriptor(), fcntl.LOCK_UN)

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def close(self) -> None:
        """Close the descriptor, which also gives up the lock. May be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _descriptor(self) -> int:
        if self._fd is None:
            raise StoreUnavailable("engine_closed", "the lock file is closed")
        return self._fd


def _close_in_child() -> None:
    # Closing the child's copy leaves the parent's lock alone; LOCK_UN in the child would free it.
    for lock in list(_OPEN):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)
