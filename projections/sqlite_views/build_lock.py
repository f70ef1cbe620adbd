"""One process at a time follows, or builds, one view: a lock file beside the database.

It is `flock`: the kernel frees it when its holder dies. The file is never deleted. A forked child does not hold what
its parent holds: it closes its copies of the descriptors, which leaves the parent's lock alone.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from eventlog.errors import EventLogError, StoreUnavailable

__all__ = ["exclusive", "is_held"]

_POLL_S: Final = 0.2
_OPEN: Final[weakref.WeakSet[_LockFile]] = weakref.WeakSet()


@asynccontextmanager
async def exclusive(place: str, purpose: str, *, waits: bool) -> AsyncIterator[None]:
    """Hold the lock for `purpose` (a view's name and revision, or its build) beside the database at `place`.

    Where somebody holds it: wait for him to end, or raise EventLogError(`view_busy`). No thread is kept waiting.
    """
    path = _path(place, purpose)
    try:
        file = _LockFile(path, os.O_CREAT)
    except OSError as error:
        raise StoreUnavailable("store_cannot_open", f"cannot open the lock file {path!r}: {error.strerror}") from error
    try:
        while not file.lock():
            if not waits:
                raise EventLogError(
                    "view_busy", f"another process has the lock of the view ({purpose})", purpose=purpose
                )
            await asyncio.sleep(_POLL_S)
        yield
    finally:
        file.close()


def is_held(place: str, purpose: str) -> bool:
    """Say whether a living process holds this lock, as far as its file can be opened. Nothing is created."""
    try:
        file = _LockFile(_path(place, purpose), os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not file.lock()
    finally:
        file.close()


def _path(place: str, purpose: str) -> str:
    return f"{place}.view-{purpose}.lock"


class _LockFile:
    """An open lock file. Closing it frees the lock."""

    def __init__(self, path: str, flags: int) -> None:
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        _OPEN.add(self)

    def lock(self) -> bool:
        """Take the lock, unless somebody holds it; say whether it is taken."""
        if self._descriptor is None:
            raise StoreUnavailable("engine_closed", "a forked child has none of its parent's locks")
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close it, once: in a child its number may be another file's by then."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _close_in_child() -> None:
    for file in list(_OPEN):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)
