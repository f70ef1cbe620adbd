"""A log in SQLite, as whoever keeps it under signed heads sees it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from eventlog.errors import StoreUnavailable
from eventlog.events import LOG_STREAM, LogRestored
from eventlog.heads import SignedHead
from eventlog.merkle import TreeHead
from eventlog.signing.log_keys import NO_LOG_KEYS, LogKeys, evolve_log_keys
from eventlog.stores.artifacts import coded_os_errors, flush
from eventlog.stores.head_keeper import Restored
from eventlog.stores.sqlite.database import read_facts
from eventlog.stores.sqlite.reader import ReadConnections
from eventlog.stores.sqlite.rows import Rows
from eventlog.stores.sqlite.tree import (
    add_head,
    checked_head,
    newest_heads,
    prove_consistency,
    read_heads,
    tree_head,
)

__all__ = ["SignedHeads", "newest_kept_head", "restored_behind", "restored_in"]

_KEY_TYPES: Final = frozenset({"log_key_declared", "log_key_rotated", "log_key_revoked"})
_LOG_EVENTS: Final = """
SELECT e.version, e.position, t.name FROM events e JOIN types t USING (type_id)
WHERE e.stream_id = (SELECT stream_id FROM streams WHERE name = ?) AND e.version > ? ORDER BY e.version"""


class SignedHeads:
    """Reads the tree for a `HeadKeeper`, and keeps what is signed. `write` runs a function in a transaction.

    `poison` says why the writer cannot be used now, if so: what is there then may not be durable.
    """

    def __init__(
        self,
        path: str,
        reads: ReadConnections,
        make_rows: Callable[[], Rows],
        write: Callable[..., Awaitable[Any]],
        poison: Callable[[], str | None],
    ) -> None:
        self._path: Final = path
        self._poison: Final = poison
        self._reads: Final = reads
        self._make_rows: Final = make_rows
        self._write: Final = write
        self._keys = NO_LOG_KEYS
        self._keys_at = 0

    async def log_ids(self) -> Sequence[tuple[int, bytes]]:
        return (await self._reads.run(read_facts)).log_ids

    async def tree_head(self, size: int | None = None) -> TreeHead:
        return await self._reads.run(tree_head, size)

    async def checked_head(self, after: int) -> TreeHead:
        poison = self._poison()
        if poison is not None:
            raise StoreUnavailable("store_io_error", f"nothing is signed until the log is written to again: {poison}")
        return await self._reads.run(checked_head, after)

    async def make_durable(self) -> None:
        await self._reads.run(_flush_wal, f"{self._path}-wal")

    async def prove_consistency(self, old_size: int, size: int) -> list[bytes]:
        return await self._reads.run(prove_consistency, old_size, size)

    async def keep_head(self, signed: SignedHead) -> None:
        await self._write(add_head, signed)

    async def newest_heads(self, log_id: bytes, after: int) -> Sequence[SignedHead]:
        return await self._reads.run(newest_heads, log_id, after)

    async def log_keys(self) -> LogKeys:
        """Only what `$log` has said since the last time is read."""
        found, self._keys_at = await self._reads.run(_key_events, self._make_rows(), self._keys_at)
        for position, event in found:
            self._keys = evolve_log_keys(self._keys, position, event)
        return self._keys

    async def restored(self) -> Restored | None:
        return await self._reads.run(restored_in, self._make_rows())


def _key_events(connection: sqlite3.Connection, rows: Rows, after: int) -> tuple[list[tuple[int, object]], int]:
    """Return what `$log` says of keys behind this version of it, by position, and the version it is at."""
    found = connection.execute(_LOG_EVENTS, (LOG_STREAM, after)).fetchall()
    version = found[-1][0] if found else after
    positions = [position for _, position, name in found if name in _KEY_TYPES]
    pages = (rows.log_page(connection, position - 1, 1) for position in positions)
    return [(event.position, event.data) for events, _ in pages for event in events], version


def restored_in(connection: sqlite3.Connection, rows: Rows) -> Restored | None:
    """Return what the newest incarnation of the log says of the one before; None if it does not, or is the first."""
    log_ids = read_facts(connection).log_ids
    if len(log_ids) == 1:
        return None
    events, _ = rows.log_page(connection, log_ids[-1][0] - 1, 1)
    said = events[0].data if events else None
    if not isinstance(said, LogRestored):
        return None
    try:
        return Restored(bytes.fromhex(said.previous_log_id), TreeHead(said.size, bytes.fromhex(said.root)))
    except ValueError:  # of whoever wrote that, it was not this program
        return None


def restored_behind(
    last: SignedHead | None, log_id: bytes, head: TreeHead, why: str, *, is_from_signer: bool
) -> LogRestored:
    """Return what a new incarnation says of the one before: the last head that is known of it.

    That is the signed one, or without any the head that the log with the id `log_id` has itself.
    """
    known = head if last is None else last.head
    return LogRestored(
        previous_log_id=(log_id if last is None else last.log_id).hex(),
        size=known.size,
        root=known.root.hex(),
        reason=why,
        note=None if last is None else last.note.decode(),
        is_from_signer=is_from_signer,
    )


def newest_kept_head(connection: sqlite3.Connection) -> SignedHead | None:
    """Return the newest signed head that the database keeps, what is none left out."""
    return next((kept for kept in reversed(read_heads(connection, 0)) if kept.head.root and _is_text(kept.note)), None)


def _is_text(note: bytes) -> bool:
    try:
        note.decode()
    except UnicodeDecodeError:
        return False
    return True


def _flush_wal(_: sqlite3.Connection, path: str) -> None:
    """Flush the write-ahead log; what was moved out of it was flushed on the way.

    SQLite has no lock on this file that closing it could lose.
    """
    with coded_os_errors("cannot flush the write-ahead log"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            flush(descriptor)
        finally:
            os.close(descriptor)
