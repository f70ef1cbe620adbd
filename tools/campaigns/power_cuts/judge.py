"""Reads the log of a crash image by plain SQLite, fast: thousands of images a second.

Opening a database is mostly parsing its schema. So one connection stays open on files whose content is replaced, and
the index of the write-ahead log that it shares with nobody is wiped each time: SQLite finds that damaged, and recovers
the log from its file, as after a crash. A sample, and whatever looks wrong, is read once more by a new connection to
new files, which also checks the integrity of the database: that one counts, and the two must not differ.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Hashable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from tools.campaigns.power_cuts.disk import Cut
from tools.campaigns.power_cuts.history import NOTHING, History, Rows, Wrong, read_rows
from tools.campaigns.power_cuts.scene import LOG

__all__ = ["Judge", "read_log"]

_WAL: Final = "-wal"
_JOURNAL: Final = "-journal"
_INDEX: Final = "-shm"
_INDEX_HEADER: Final = bytes(136)
_IS_WAL: Final = b"\2\2"
"""Bytes 18 and 19 of a database in WAL mode."""
_EVERY: Final = 64
"""One of so many images is read a second time."""
_MOST_KNOWN: Final = 50_000


def read_log(path: Path) -> Rows:
    """Return what a database holds, by a connection of its own. Raises Wrong if it is damaged."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA cell_size_check=ON")
            rows = read_rows(connection)
            damage = connection.execute("PRAGMA integrity_check").fetchone()[0]
    except sqlite3.Error as error:
        raise Wrong("I10", f"SQLite cannot read it: {error}") from error
    if damage != "ok":
        raise Wrong("I10", f"integrity_check: {damage}")
    return rows


class Judge:
    """Says how many events a crash image holds, and remembers the answers for equal contents of one trace."""

    def __init__(self, folder: Path, history: History) -> None:
        folder.mkdir(exist_ok=True)
        self._fresh: Final = folder / "fresh.db"
        self._history: Final = history
        self._kept: _KeptOpen | None = None
        self._path: Final = folder / "kept.db"
        self._known: Final[dict[Hashable, int | Wrong]] = {}
        self.distinct = 0
        """How many images were opened: those whose database and write-ahead log were not seen before."""

    def close(self) -> None:
        """Close the connection, and remove its files."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def events_of(self, cut: Cut) -> int:
        """Return how many events are left. Raises Wrong unless they are the first of the history."""
        files = tuple(cut.find(f"{LOG}{tail}") for tail in ("", _WAL, _JOURNAL))
        key = tuple(map(cut.key, files))
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._look(cut, files, key)
        known = self._known[key]
        if isinstance(known, Wrong):
            raise known
        return known

    def _look(self, cut: Cut, files: tuple[int | None, ...], key: tuple[Hashable, ...]) -> int | Wrong:
        self.distinct += 1
        try:
            return self._history.events_of(self._read(cut, files, key))
        except Wrong as wrong:
            seems = wrong
        try:
            self._history.events_of(self._read_afresh(cut, files))
        except Wrong as wrong:
            return wrong
        raise RuntimeError(f"only the connection that stays open finds this: {seems.what}")

    def _read(self, cut: Cut, files: tuple[int | None, ...], key: tuple[Hashable, ...]) -> Rows:
        database, wal, journal = files
        if database is None:
            return NOTHING
        content = cut.content(database)
        if journal is not None or content[18:20] != _IS_WAL:
            return self._read_afresh(cut, files)
        if self._kept is None:
            self._kept = _KeptOpen(self._path, content)
        try:
            rows = self._kept.read(key[0], content, key[1], cut.content(wal) if wal is not None else b"")
        except sqlite3.Error:
            self.close()
            return self._read_afresh(cut, files)
        if self.distinct % _EVERY == 0 and self._read_afresh(cut, files) != rows:
            raise RuntimeError("the connection that stays open reads an image otherwise than a new one")
        return rows

    def _read_afresh(self, cut: Cut, files: tuple[int | None, ...]) -> Rows:
        paths = [Path(f"{self._fresh}{tail}") for tail in ("", _WAL, _JOURNAL, _INDEX)]
        for path, file in zip(paths, files, strict=False):
            if file is not None:
                path.write_bytes(cut.content(file))
        try:
            return read_log(self._fresh)
        finally:
            for path in paths:
                path.unlink(missing_ok=True)


class _KeptOpen:
    """A connection that stays open while the content of its files is replaced."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._paths: Final = [Path(f"{path}{tail}") for tail in ("", _WAL, _INDEX)]
        # Opened before SQLite opens them, and closed after: a `close` in between would drop SQLite's locks.
        self._database, self._wal, self._index = (os.open(each, os.O_RDWR | os.O_CREAT, 0o600) for each in self._paths)
        _replace(self._database, content)
        self._keys: list[Hashable] = [None, None]
        self._connection: Final = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA cell_size_check=ON")
        self._connection.execute("PRAGMA query_only=ON")

    def read(self, key: Hashable, content: bytes, wal_key: Hashable, wal: bytes) -> Rows:
        """Return what a database and a write-ahead log hold that have these contents. Raises sqlite3.Error."""
        if self._keys[0] != key:
            _replace(self._database, content)
        if self._keys[1] != wal_key or wal_key is None:
            _replace(self._wal, wal)
        self._keys = [key, wal_key]
        os.pwrite(self._index, _INDEX_HEADER, 0)
        return read_rows(self._connection)

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()
        for descriptor in (self._database, self._wal, self._index):
            os.close(descriptor)
        for path in self._paths:
            path.unlink(missing_ok=True)


def _replace(descriptor: int, content: bytes) -> None:
    os.ftruncate(descriptor, len(content))
    os.pwrite(descriptor, content, 0)
