"""The saved positions of consumers, in the log's own database or in one of the consumer's.

    consumers    name → the position up to which everything is handled, the leaf of the event there, and of which store

What a handler writes and the position behind it are one transaction. The position is moved from where this consumer
had it, and from nowhere else: a second one that handles the same events finds out, and writes nothing. The leaf tells
a log that was restored, and went on otherwise, from the one that was handled.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence, Set
from functools import partial
from inspect import iscoroutine, isgenerator
from typing import Any, Final, Protocol

import msgspec

from eventlog.errors import EventLogError, InvalidInput, StoreUnavailable
from eventlog.log import EventReader, RecordedEvent
from eventlog.stores.sqlite.connection import Settings, Worker, connect
from eventlog.stores.sqlite.failures import DRIVER_ERRORS, translate
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.foreign_write import ConnectionBroken, TransactionEnded, WriteCursor, kept_tables, run_write
from eventlog.stores.sqlite.rollback import behind_nothing, roll_back
from eventlog.stores.sqlite.schema import APPLICATION_ID
from eventlog.views import described
from projections.sqlite_views.database import cut_write_ahead_log

__all__ = ["CursorDatabase", "CursorFile", "Handle", "Handled", "HandlerFailed", "LogCursors", "leaf_at"]

_CLOSE_TIMEOUT_S: Final = 2.0
_LONGEST_S: Final = 0.1
"""After so long a transaction ends with the event that it is at: appends, and other consumers, wait meanwhile."""

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS consumers (
  name TEXT PRIMARY KEY,
  store_id BLOB NOT NULL,
  position INTEGER NOT NULL CHECK (position >= 0),
  leaf BLOB
) STRICT"""
_FIND: Final = "SELECT store_id, position, leaf FROM consumers WHERE name = ?"
_ADD: Final = "INSERT INTO consumers (name, store_id, position, leaf) VALUES (?, ?, ?, ?)"
_MOVE: Final = "UPDATE consumers SET position = ?, leaf = ? WHERE name = ? AND position = ?"
_LEAF: Final = "SELECT leaf FROM events WHERE position = ?"

Handle = Callable[[Any, RecordedEvent], object]


class Handled(msgspec.Struct, frozen=True):
    """Up to which position a consumer has handled everything, and the leaf of the event there, None if not known."""

    name: str
    position: int
    leaf: bytes | None


class HandlerFailed(Exception):
    """What a handler did wrong, as text; nothing of what it wrote was kept."""


async def leaf_at(log: EventReader, position: int) -> bytes | None:
    """Return the leaf of the event at `position`, or None if there is none, or none that can be read."""
    if position == 0:
        return None
    look = getattr(log, "look", None)
    if look is not None:
        leaf: bytes | None = await look(_leaf_at, position)
        return leaf
    try:
        events = [event async for event in log.read_all(after=position - 1, limit=1)]
    except InvalidInput:  # an event that cannot be decoded, which this consumer may not even want
        return None
    return events[0].leaf if events else None


def _leaf_at(connection: sqlite3.Connection, position: int) -> bytes | None:
    row = connection.execute(_LEAF, (position,)).fetchone()
    return None if row is None else row[0]


class CursorDatabase(Protocol):
    """A database with the positions of consumers, which their handlers write."""

    @property
    def place(self) -> str:
        """The path of the database."""

    async def begin(self, start: Handled, head: int) -> Handled:
        """Return what a consumer has handled; one that is new begins behind `start`, which is not beyond `head`.

        Raises EventLogError(`view_of_another_log`), InvalidInput; nothing is saved then.
        """

    async def take(self, handled: Handled, handle: Handle, events: Sequence[RecordedEvent], end: Handled) -> Handled:
        """Let the events be handled, as many as there is time for, and save how far that is, in one transaction.

        That is `end`, if all of them were. Raises HandlerFailed, EventLogError(`consumer_overtaken`),
        StoreUnavailable; nothing was written then.
        """


class LogCursors:
    """Positions in the log's own database, whose own tables and views no handler can write."""

    def __init__(self, log: Any) -> None:
        self._log: Final = log

    @property
    def place(self) -> str:
        """The path of the log."""
        place: str = self._log.place
        return place

    async def begin(self, start: Handled, head: int) -> Handled:
        """Return what a consumer has handled."""
        handled: Handled = await self._log.write_view(_begin, self._log.store_id, start, head)
        return handled

    async def take(self, handled: Handled, handle: Handle, events: Sequence[RecordedEvent], end: Handled) -> Handled:
        """Let the events be handled, and save how far, in one transaction between two appends."""
        moved: Handled = await self._log.write_view(_take_from_log, handled, handle, events, end)
        return moved


class CursorFile:
    """Positions in a database of the consumer's own, made if it is missing. Use it as an async context manager."""

    def __init__(self, path: str | os.PathLike[str], store_id: bytes) -> None:
        self._path: Final = os.path.realpath(path)
        self._store_id: Final = store_id

    async def __aenter__(self) -> CursorFile:
        self._lock = FileLock(f"{self._path}.lock")
        settings = Settings(self._path, durability="full", busy_timeout_s=5.0)
        self._worker = Worker(partial(_connect, settings, self._lock), self._lock, self._path)
        try:
            await self._worker.open()
        except BaseException:
            self._lock.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.close(timeout_s=_CLOSE_TIMEOUT_S)
        self._lock.close()

    @property
    def place(self) -> str:
        """The path of the database."""
        return self._path

    async def begin(self, start: Handled, head: int) -> Handled:
        """Return what a consumer has handled."""
        return await self._write(_begin, self._store_id, start, head)

    async def take(self, handled: Handled, handle: Handle, events: Sequence[RecordedEvent], end: Handled) -> Handled:
        """Let the events be handled, and save how far, in one transaction."""
        return await self._write(_take_from_file, handled, handle, events, end)

    async def _write(self, function: Callable[..., Handled], *args: Any) -> Handled:
        try:
            return await self._worker.run(behind_nothing, self._in_transaction, function, *args)
        except ConnectionBroken as error:
            raise StoreUnavailable("store_io_error", f"nothing was written to {self._path!r}: {error}") from error
        except DRIVER_ERRORS as error:
            raise translate(error, f"cannot write {self._path!r}") from error

    def _in_transaction(self, connection: sqlite3.Connection, function: Callable[..., Handled], *args: Any) -> Handled:
        with self._lock:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = function(connection, *args)
                connection.execute("COMMIT")
            except BaseException:
                roll_back(connection)
                raise
            cut_write_ahead_log(connection, self._path)
            return result


def _connect(settings: Settings, lock: FileLock) -> sqlite3.Connection:
    with lock:
        connection = connect(settings, "rwc")
        if connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
            connection.close()
            message = f"{settings.path!r} is a log; a consumer writes a database of its own, or the one that it reads"
            raise InvalidInput("invalid_argument", message)
        return connection


def _begin(connection: sqlite3.Connection, store_id: bytes, start: Handled, head: int) -> Handled:
    connection.execute(_CREATE)
    row = connection.execute(_FIND, (start.name,)).fetchone()
    if row is None:
        if start.position > head:
            message = f"`start_after` is {start.position}, which is beyond the end of the log at {head}"
            raise InvalidInput("invalid_argument", message)
        connection.execute(_ADD, (start.name, store_id, start.position, start.leaf))
        return start
    if row[0] != store_id:
        message = f"the consumer {start.name!r} belongs to the log {row[0].hex()}, not to {store_id.hex()}"
        raise EventLogError("view_of_another_log", message, consumer=start.name)
    return Handled(start.name, row[1], row[2])


def _take_from_log(connection: sqlite3.Connection, *args: Any) -> Handled:
    return _take(connection, kept_tables(connection), False, *args)


def _take_from_file(connection: sqlite3.Connection, *args: Any) -> Handled:
    return _take(connection, {"consumers"}, True, *args)


def _take(
    connection: sqlite3.Connection,
    kept: Set[str],
    may_define: bool,
    handled: Handled,
    handle: Handle,
    events: Sequence[RecordedEvent],
    end: Handled,
) -> Handled:
    _require_at(connection, handled)  # before anything is handled that somebody else has handled
    count = _handle(connection, kept, may_define, handle, events) if events else 0
    if count < len(events):
        end = Handled(handled.name, events[count - 1].position, events[count - 1].leaf)
    connection.execute(_MOVE, (end.position, end.leaf, handled.name, handled.position))
    return end


def _handle(
    connection: sqlite3.Connection, kept: Set[str], may_define: bool, handle: Handle, events: Sequence[RecordedEvent]
) -> int:
    """Let the events be handled until the time is up; return how many were. Raises HandlerFailed."""
    count = 0

    def write(access: Any) -> bytes:
        nonlocal count
        end_s = time.monotonic() + _LONGEST_S
        for event in events:
            _call(handle, access, event)
            count += 1
            if time.monotonic() >= end_s:
                break
        return b""

    try:
        run_write(connection, kept, write, may_define=may_define)
    except TransactionEnded as ended:
        raise _failed(ended.error) from ended
    except EventLogError as error:
        raise _failed(error) from error
    return count


def _failed(error: EventLogError) -> HandlerFailed:
    """Return what the handler did, without what the transaction made of it."""
    cause = error.__cause__
    return cause if isinstance(cause, HandlerFailed) else HandlerFailed(str(error))


def _call(handle: Handle, connection: Any, event: RecordedEvent) -> None:
    try:
        answer = handle(connection, event)
    except BaseException as error:  # an exit as well: it would end the thread that appends
        raise HandlerFailed(described(error)) from error
    if answer is not None and not isinstance(answer, WriteCursor):  # a lambda gives that of its statement
        if iscoroutine(answer) or isgenerator(answer):
            answer.close()
        raise HandlerFailed(
            f"the handler returned a {type(answer).__name__}; it has to be a plain function that returns nothing, "
            "for what is to be done later is not done in this transaction"
        )


def _require_at(connection: sqlite3.Connection, handled: Handled) -> None:
    row = connection.execute(_FIND, (handled.name,)).fetchone()
    if row is None or row[1] != handled.position:
        raise EventLogError(
            "consumer_overtaken",
            f"the consumer {handled.name!r} is not at position {handled.position} any more",
            consumer=handled.name,
            position=handled.position,
        )
