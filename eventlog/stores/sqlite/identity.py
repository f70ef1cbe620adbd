"""Whether the files are still the ones that were opened.

If another program opens and closes the database in the wrong way, or somebody renames or deletes a file, SQLite goes
on writing to files that nobody else sees, and reports success. Comparing two inodes after each commit costs
microseconds and turns that silent loss into `store_identity_changed`. Only `stat` is used: opening the database file
by any means other than SQLite would drop SQLite's own locks.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from eventlog.errors import StoreUnavailable

__all__ = ["Identity", "canonical_path"]


def canonical_path(path: str) -> str:
    """Return the real path of a database, symbolic links resolved.

    Raises StoreUnavailable(`store_cannot_open`) for a file with several hard links: each name would get a write-ahead
    log of its own.
    """
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except FileNotFoundError:
        return real
    except OSError as error:
        raise StoreUnavailable("store_cannot_open", f"cannot open {path!r}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise StoreUnavailable("store_cannot_open", f"{path!r} is not a regular file")
    if status.st_nlink > 1:
        raise StoreUnavailable(
            "store_cannot_open", f"{path!r} has {status.st_nlink} hard links; a log needs exactly one"
        )
    return real


class Identity:
    """The inodes of a database and of its write-ahead log, as they were when the log was opened."""

    def __init__(self, path: str) -> None:
        self._path: Final = path
        self._wal_path: Final = f"{path}-wal"
        self._database = _inode(path)
        self._wal = _inode(self._wal_path)

    def check(self) -> int:
        """Return the size of the write-ahead log in bytes.

        Raises StoreUnavailable(`store_identity_changed`) if one of the files is not the one that was opened.
        """
        try:
            database = os.stat(self._path)
            wal = os.stat(self._wal_path)
        except OSError as error:
            raise self._changed(f"{error.filename} is gone") from error
        if (database.st_dev, database.st_ino) != self._database:
            raise self._changed(f"{self._path} is another file now")
        if self._wal is None:  # it did not exist before the first transaction
            self._wal = (wal.st_dev, wal.st_ino)
        if (wal.st_dev, wal.st_ino) != self._wal:
            raise self._changed(f"{self._wal_path} is another file now")
        return wal.st_size

    def is_unchanged(self) -> bool:
        """Say whether both files are still at their path; a write-ahead log that was not there yet may have come."""
        wal = _inode(self._wal_path)
        return _inode(self._path) == self._database and (self._wal is None or wal == self._wal)

    def require_unchanged(self) -> None:
        """Raise StoreUnavailable(`store_identity_changed`) unless `is_unchanged`."""
        if not self.is_unchanged():
            raise self._changed(f"{self._path} or its write-ahead log is another file now, or gone")

    def check_database(self) -> None:
        """Raise StoreUnavailable(`store_identity_changed`) if the database is not the file that was opened."""
        if _inode(self._path) != self._database:
            raise self._changed(f"{self._path} is another file now, or gone")

    def _changed(self, what: str) -> StoreUnavailable:
        return StoreUnavailable("store_identity_changed", what, path=self._path)


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
