"""The lock beside the database that every write transaction and every WAL checkpoint of every process holds.

It shares the writing evenly between processes (SQLite's own busy handler starves), and it keeps a commit from
overlapping a WAL checkpoint, which is what corrupted databases under SQLite 3.7.0 to 3.51.2. It is `flock`, not a
POSIX record lock: those vanish when any descriptor of the file is closed. The kernel frees it when its holder dies.
The file is never deleted.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from typing import Final

from eventlog.errors import StoreUnavailable, code_of_os_error

__all__ = ["FileLock"]

_OPEN: Final[weakref.WeakSet[FileLock]] = weakref.WeakSet()


class FileLock:
    """An exclusive lock on `path`, blocking. Taken before any SQLite lock, never inside.

    The threads of this process exclude one another too: `flock` alone would let a second thread in, for both use one
    descriptor, and the first to leave would free the lock of the other. The descriptor stays open until its owner has
    closed it and every thread that shares it has let go.
    """

    def __init__(self, path: str) -> None:
        self.path: Final = path
        try:
            self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            message = f"cannot open the lock file {path!r}: {error.strerror}"
            raise StoreUnavailable(code_of_os_error(error, "store_cannot_open"), message) from error
        self._threads: Final = threading.Lock()
        self._counting: Final = threading.Lock()
        self._shares = 1
        self._is_closed = False
        self.is_held = False
        """Whether a thread that uses this object has the lock by now. To be looked at by others."""
        _OPEN.add(self)

    def acquire(self, *, even_if_closed: bool = False) -> None:
        """Wait for the lock, without limit: the caller's deadline is kept by whoever waits for this thread.

        Raises StoreUnavailable(`engine_closed`) if the owner has closed it, also meanwhile: nobody wants the work any
        more.
        """
        if self._fd is None:  # before the mutex: in a forked child it may be locked for ever
            raise StoreUnavailable("engine_closed", "the lock file is closed")
        self._threads.acquire()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as error:
            self._threads.release()
            raise StoreUnavailable("store_cannot_open", f"cannot lock {self.path!r}: {error.strerror}") from error
        self.is_held = True
        if self._is_closed and not even_if_closed:
            self.release()
            raise StoreUnavailable("engine_closed", "the log was closed while it waited for the lock")

    def release(self) -> None:
        """Give the lock back."""
        assert self._fd is not None, "whoever holds the lock shares its descriptor"
        self.is_held = False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._threads.release()

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def share(self) -> None:
        """Keep the descriptor open for a thread, until `let_go`."""
        with self._counting:
            self._shares += 1

    def let_go(self) -> None:
        """Give a share back; the last one closes the descriptor."""
        with self._counting:
            self._shares -= 1
            if self._shares == 0:
                self._close_descriptor()

    def close(self) -> None:
        """Give up the owner's share: from now on the lock is taken only to close connections. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self.let_go()

    def close_in_child(self) -> None:
        """Close the copy that a forked child has, where the parent's threads do not exist."""
        self._is_closed = True
        self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _close_in_child() -> None:
    # Closing the child's copy leaves the parent's lock alone; LOCK_UN in the child would free it.
    for lock in list(_OPEN):
        lock.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
