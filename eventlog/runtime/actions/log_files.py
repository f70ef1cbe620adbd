"""Which files belong to the log, so that no effect touches them.

Writing one is the obvious harm. Merely opening and closing the database makes SQLite lose its locks in this process,
after which another process can take the write-ahead log away: so the question is asked by name and inode, and nothing
is opened.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["belongs_to_log"]

_BESIDE: Final = (b"", b"-wal", b"-shm", b"-journal", b".lock", b".owners", b".artifacts")


def belongs_to_log(place: str, directory: int, name: bytes) -> bool:
    """Say whether `name` in the open directory is the database at `place`, or one of the files kept beside it.

    Also by another name: a hard link, or other letters where the file system takes them for the same.
    """
    path = os.fsencode(place)
    here = _identity(b".", directory)
    if here == _identity(os.path.dirname(path)):
        base = os.path.basename(path)
        if name.lower() in {(base + end).lower() for end in _BESIDE}:
            return True
    if here == _identity(path + b".owners"):
        return True
    artifacts = _identity(path + b".artifacts")
    if artifacts is not None and artifacts in (here, _identity(b"..", directory)):
        return True
    target = _identity(name, directory)
    return target is not None and target in {_identity(path + end) for end in _BESIDE}


def _identity(path: bytes, directory: int | None = None) -> tuple[int, int] | None:
    try:
        status = os.stat(path, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino
