"""Plain sqlite3 in WAL mode with synchronous=FULL: what SQLite itself can do for an event log, with nothing on top.

One table with the one index that an event log cannot do without, on the calling thread. No hashes, no checks, no ids.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

from tools.bench.payloads import BODIES, taken
from tools.bench.pragmas import read_back
from tools.bench.store import Settings

__all__ = ["RawSqlite", "flush_seconds", "open_store"]

_CREATE: Final = """
CREATE TABLE events (
  position INTEGER PRIMARY KEY,
  stream_id INTEGER NOT NULL,
  version INTEGER NOT NULL,
  type TEXT NOT NULL,
  body TEXT NOT NULL,
  UNIQUE (stream_id, version)
)"""
_INSERT: Final = "INSERT INTO events (stream_id, version, type, body) VALUES (?, ?, 'step_recorded', ?)"
_SCAN: Final = "SELECT position, stream_id, version, type, body FROM events"
_PAGE: Final = 1000
_BLOCK: Final = bytes(4096)


class RawSqlite:
    """A connection, and where its streams stand."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: Final = connection
        self._version = 0

    async def settings(self) -> Settings:
        """Return what the connection says of itself."""
        return read_back(self._connection)

    async def append(self, *, tasks: int, each: int) -> float:
        """Insert one row a transaction. SQLite has one writer: tasks would only stand in a queue."""
        return self.insert(rows=tasks * each, each=1)

    def insert(self, *, rows: int, each: int) -> float:
        """Insert `each` rows a transaction."""
        transactions = [self._rows(each) for _ in range(rows // each)]
        began = time.perf_counter()
        for transaction in transactions:
            if each == 1:
                self._connection.execute(_INSERT, transaction[0])
                continue
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(_INSERT, transaction)
            self._connection.execute("COMMIT")
        return time.perf_counter() - began

    def scan(self) -> float:
        """Read every row, five columns, in pages."""
        began = time.perf_counter()
        cursor = self._connection.execute(_SCAN)
        while cursor.fetchmany(_PAGE):
            pass
        return time.perf_counter() - began

    def _rows(self, count: int) -> list[tuple[int, int, str]]:
        first, self._version = self._version, self._version + count
        bodies = taken(BODIES, count, first=first % len(BODIES))
        return [(1, version, body.decode()) for version, body in enumerate(bodies, start=first + 1)]


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[RawSqlite]:
    """Create the table in a new file."""
    with closing(sqlite3.connect(folder / "raw.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(_CREATE)
        yield RawSqlite(connection)


def flush_seconds(folder: Path, *, blocks: int) -> float:
    """Append 4 KB blocks to a file, each followed by a flush to the disk: a durable write without a database."""
    flush = getattr(os, "fdatasync", os.fsync)
    descriptor = os.open(folder / "blocks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        began = time.perf_counter()
        for _ in range(blocks):
            os.write(descriptor, _BLOCK)
            flush(descriptor)
        return time.perf_counter() - began
    finally:
        os.close(descriptor)
