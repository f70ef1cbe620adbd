"""Opening logs in files, locks beside them held as another process would, and checks of a whole log."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import eventlog
from eventlog.stores import SqliteLog

__all__ = ["assert_whole", "file_lock_held", "is_lock_free", "open_file"]


def open_file(path: str | Path, **options: Any) -> SqliteLog:
    """Return the log at `path` as `eventlog.open` does, known to be one in a file."""
    log = eventlog.open(path, **options)
    assert isinstance(log, SqliteLog)
    return log


@contextmanager
def file_lock_held(path: str | Path) -> Iterator[None]:
    """Hold the file lock of a log as another process would: flock belongs to the open file, not to the process."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def is_lock_free(path: str | Path) -> bool:
    """Say whether nobody holds the file lock of a log."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


async def assert_whole(log: SqliteLog) -> None:
    """Check that every event of a log is verified and that positions have no gap."""
    head = (await log.head()).position
    page = await log.check_page(after=0, limit=head + 1)
    assert (page.position, page.events, list(page.problems)) == (head, head, [])
